use super::{keys::FANOUT, *};
use crate::shown_tree::CompoundPair;
use alloy_primitives::{Address, Bytes};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::BackendKey;
use std::collections::BTreeMap;

/// Keys that can differ in any of their words.
fn key(n: u64) -> BackendKey {
    let address = Address::repeat_byte((n % 3) as u8);
    let mut slot = [0; 32];
    slot[(n * 7 % 32) as usize] = n as u8;
    slot[30] = (n >> 8) as u8;
    match n % 11 {
        10 => BackendKey::Account(Address::left_padding_from(&n.to_be_bytes()).into()),
        _ => BackendKey::Slot(address.into(), slot.into()),
    }
}

type PairModel = BTreeMap<CompoundKey, Option<StateValue>>;

fn id(entry: &MemoryPair) -> CompoundKey {
    (entry.key(), entry.block())
}

fn value(entry: &MemoryPair) -> Option<StateValue> {
    entry.value().map(StateValue::copy_from_slice)
}

/// The group after each of some blocks, with its expected pairs.
fn grown(seed: u64, blocks: u64, keys: u64) -> Vec<(MemoryGroup, PairModel)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut group, mut model) = (MemoryGroup::default(), PairModel::new());
    let mut grown = Vec::new();
    for block in 5..5 + blocks {
        let mut changes = BTreeMap::new();
        for _ in 0..rng.random_range(0..30) {
            let n = rng.random_range(0..keys);
            let value = (n % 4 > 0).then(|| Bytes::from(vec![n as u8; rng.random_range(0..9)]));
            changes.insert(key(n), value);
        }
        group.add_block(block, changes.iter().map(|(key, value)| (*key, value)));
        model.extend(changes.into_iter().map(|(key, value)| ((key, block), value)));
        grown.push((group.clone(), model.clone()));
    }
    grown
}

fn check(group: &MemoryGroup, model: &PairModel) {
    assert_eq!(group.len(), model.len() as u64);
    let first = (BackendKey::Account(Address::ZERO.into()), 0);
    let pairs = |group: &MemoryGroup, from: &CompoundKey| -> Vec<_> {
        group.from(from).map(|(entry, _)| (id(entry), value(entry))).collect()
    };
    assert!(pairs(group, &first).into_iter().eq(model.clone()));
    for n in 0..40 {
        for block in [0, 6, 9, 30, u64::MAX] {
            let id = (key(n), block);
            let floor = model.range(..=id).next_back().map(|(id, value)| (*id, value.clone()));
            let found = group.floor(&id).map(|entry| (self::id(entry), value(entry)));
            assert_eq!(found, floor);
            let from = model.range(id..).map(|(id, value)| (*id, value.clone()));
            assert!(pairs(group, &id).into_iter().eq(from));
        }
    }
}

/// The digest of a shown tree, and the pairs that it shows.
fn fold(node: &ShownNode, pairs: &mut Vec<CompoundPair>) -> B256 {
    match node {
        ShownNode::Hidden(digest) => *digest,
        ShownNode::Pair(pair) => {
            pairs.push(pair.clone());
            hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
        }
        ShownNode::Inner(children) => {
            let digests: Vec<_> = children.iter().map(|child| fold(child, pairs)).collect();
            hash::node(&digests)
        }
        ShownNode::Versions(..) => unreachable!("a group in memory has no version trees"),
    }
}

#[test]
fn every_block_has_its_own_tree_and_the_same_blocks_give_the_same_tree() {
    let (one, two) = (grown(1, 40, 60), grown(1, 40, 60));
    for ((group, model), (other, _)) in one.iter().zip(&two) {
        check(group, model);
        assert_eq!(group.digest(), other.digest());
    }
}

#[test]
fn shown_pairs_lead_to_the_top() {
    for (group, model) in grown(2, 30, 200).iter().skip(3).step_by(5) {
        let ids: Vec<CompoundKey> = model.keys().copied().collect();
        let last = ids.len() - 1;
        for ranges in [
            vec![(0, 0)],
            vec![(last, last)],
            vec![(0, last)],
            vec![(3, 5), (6, 6), (last / 2, last / 2 + 2)],
        ] {
            let wanted: Vec<_> = ranges.iter().map(|(a, b)| (ids[*a], ids[*b])).collect();
            let tree = group.show(&wanted).unwrap();
            let mut pairs = Vec::new();
            assert_eq!(fold(&tree, &mut pairs), group.source().unwrap().top);
            let expected = ranges.iter().flat_map(|(a, b)| ids[*a..=*b].iter());
            let shown =
                pairs.iter().map(|pair| (BackendKey::decode(&pair.key).unwrap(), pair.block));
            assert!(shown.eq(expected.copied()));
        }
        assert!(
            matches!(group.show(&[]), Some(ShownNode::Hidden(top)) if top == group.source().unwrap().top)
        );
    }
}

/// Groups that are large enough to have folded subtrees.
fn large(seed: u64) -> Vec<(MemoryGroup, PairModel)> {
    let all = grown(seed, 150, 4000);
    let large = |(group, _): &(MemoryGroup, PairModel)| group.depth > FOLD_HEIGHT;
    let large: Vec<_> = all.into_iter().filter(large).collect();
    assert!(large.last().unwrap().0.depth > FOLD_HEIGHT + 1, "too few pairs");
    large
}

#[test]
fn thinned_groups_hold_and_show_what_whole_ones_do() {
    for (group, model) in large(4).iter().step_by(17) {
        let (thin, bytes) = group.compacted(group.last_block);
        assert!(thin.unfolded.is_some() && bytes > 0);
        assert_eq!((thin.digest(), thin.source()), (group.digest(), group.source()));
        check(&thin, model);
        let ids: Vec<CompoundKey> = model.keys().copied().collect();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(thin.get(&id.0, id.1).map(value), group.get(&id.0, id.1).map(value));
            let wanted = [(*id, ids[(at + 1).min(ids.len() - 1)])];
            assert_eq!(thin.show(&wanted), group.show(&wanted));
        }
        assert_eq!(
            thin.show(&[(ids[0], ids[ids.len() - 1])]),
            group.show(&[(ids[0], ids[ids.len() - 1])])
        );
        let digests = |group: &MemoryGroup| group.from(&ids[0]).map(|(_, d)| d).collect::<Vec<_>>();
        assert_eq!(digests(&thin), digests(group));
    }
}

#[test]
fn thinned_groups_grow_as_whole_ones_do_and_are_cheap_beside_their_neighbours() {
    let groups = large(5);
    let mut last = groups[0].0.compacted(groups[0].0.last_block);
    for ((before, _), (group, _)) in groups.iter().zip(&groups[1..]) {
        let (thin, bytes) = group.compacted(group.last_block);
        if group.last_block > before.last_block {
            let own = group.changed * size_of::<TreeNode>() as u64;
            assert!(bytes < own, "thinned {bytes}, whole {own}");
            // Add the same pairs to the compacted tree of the block before.
            let first = (BackendKey::Account(Address::ZERO.into()), 0);
            let new: Vec<_> = group
                .from(&first)
                .filter(|(entry, _)| entry.block() == group.last_block)
                .map(|(entry, _)| (entry.key(), value(entry)))
                .collect();
            let mut grown = last.0.whole();
            grown.add_block(group.last_block, new.iter().map(|(key, value)| (*key, value)));
            assert_eq!(grown.digest(), group.digest());
            assert_eq!(last.0.digest(), before.digest());
        }
        // A group that was compacted once costs nothing the second time.
        assert_eq!(group.compacted(group.last_block + 1).1, 0);
        last = (thin, bytes);
    }
}

#[test]
fn nodes_are_as_full_as_they_should_be() {
    fn walk(node: &TreeNode, is_root: bool, depth: usize) -> B256 {
        let len = node.keys.len();
        assert!(len <= FANOUT && (is_root || len >= FANOUT / 2));
        assert_eq!(matches!(node.below, NodeChildren::Pairs(_)), depth == 0);
        for (at, digest) in node.digests().iter().enumerate().filter(|_| depth > 0) {
            let child = node.child(at).unwrap();
            assert!(at > 0 || node.keys.first() == child.keys.first());
            assert_eq!(node.lens()[at], child.len());
            assert_eq!(*digest, walk(child, false, depth - 1));
        }
        hash::node(node.digests())
    }
    for (group, _) in grown(3, 60, 1000) {
        if let Some(root) = &group.root {
            assert_eq!(walk(root, true, group.depth), group.top);
        }
    }
}

/// The shapes are hashed into roots, so they must not change.
#[test]
fn the_same_pairs_lead_to_the_same_top_for_ever() {
    let mut group = MemoryGroup::default();
    for block in 0..300u64 {
        let keys: std::collections::BTreeSet<_> =
            (0..20).map(|n| key((n * n * 31 + block * 17) % 5000)).collect();
        let value = (block % 7 > 0).then(|| Bytes::from(block.to_be_bytes()));
        let changes: Vec<_> = keys.into_iter().map(|key| (key, value.clone())).collect();
        group.add_block(block, changes.iter().map(|(key, value)| (*key, value)));
    }
    let digest =
        alloy_primitives::b256!("6eda6fe559282c1b214ad4871862032d0dc7118df9406f979424266c5f20a0d1");
    assert_eq!(group.digest(), digest);
}
