//! Proofs: what they show, and that nothing else passes for one.

use crate::common::{
    BavlModel, BavlStore, ModelTree, NodePart, ProofParts, delta, entry_hash, hash, key,
    random_delta,
};
use alloy_primitives::{Address, B256};
use rand::{SeedableRng, rngs::StdRng};
use retrie_state::{BackendKey, ProofError, descriptor::ProofFormat};
use retrie_storage_bavl::{
    ChildSide, PROOF_FORMATS, PathStep, VerifiedChunk, hashes_in, verify, verify_chunk,
};

/// Some dozens of chunks of more than one group.
fn scene() -> (BavlStore, BavlModel) {
    let random = &mut StdRng::seed_from_u64(21);
    let (mut store, mut model) = (BavlStore::new(40), BavlModel::new(40));
    for _ in 0..8 {
        let delta = random_delta(random, &model.values, 2500, 400);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    assert_eq!(store.root, model.root());
    assert!(model.tree.as_ref().unwrap().height() > 4);
    (store, model)
}

/// Keys that have no value, each between entries of one chunk, or (the second) of two.
fn absent(model: &BavlModel) -> [BackendKey; 2] {
    let chunks = model.tree.as_ref().unwrap().chunks();
    let around = |key: &BackendKey| {
        let after = chunks.iter().position(|chunk| chunk.last().unwrap().0 > *key)?;
        Some((after > 0, chunks[after][0].0 > *key))
    };
    let all = (0..).map(key).filter(|key| !model.values.contains_key(key));
    let find = |is_across| all.clone().find(|key| around(key) == Some((true, is_across))).unwrap();
    [find(false), find(true)]
}

fn last_of_all() -> BackendKey {
    BackendKey::Slot(Address::repeat_byte(0xff).into(), B256::repeat_byte(0xff))
}

/// Keys in no order, one twice: present, absent, before and behind all.
fn some_keys(model: &BavlModel) -> Vec<BackendKey> {
    let present = |at: usize| *model.values.keys().nth(at).unwrap();
    let [within, across] = absent(model);
    let first = BackendKey::Account(Address::ZERO.into());
    vec![present(300), across, within, present(3), last_of_all(), first, present(300)]
}

/// The root that parts lead to, if each chunk has the right number of hashes.
fn root_of(parts: &ProofParts) -> Option<B256> {
    fn within(
        (start, len): (u64, u64),
        shown: &[(u64, B256)],
        hashes: &mut dyn Iterator<Item = B256>,
    ) -> Option<B256> {
        let own: Vec<_> =
            shown.iter().copied().filter(|(at, _)| (start..start + len).contains(at)).collect();
        match (own.first(), len) {
            (None, _) => hashes.next(),
            (Some((_, own)), 1) => Some(*own),
            _ => {
                let left = len.next_power_of_two() / 2;
                let low = within((start, left), &own, hashes)?;
                let high = within((start + left, len - left), &own, hashes)?;
                Some(hash(&[&[1], &low[..], &high[..]]))
            }
        }
    }
    fn top(part: &NodePart) -> Option<B256> {
        Some(match part {
            NodePart::Hidden(hash) => *hash,
            NodePart::Inner(left, right) => hash(&[&[3], &top(left)?[..], &top(right)?[..]]),
            NodePart::Chunk { count: 0, .. } => hash(&[&[2, 0, 0, 0, 0]]),
            NodePart::Chunk { count, entries, hashes } => {
                let mut next = 0;
                let shown: Vec<_> = entries
                    .iter()
                    .map(|(gap, key, value)| {
                        let at = next + gap;
                        next = at + 1;
                        (at, hash(&[&[0], key, value]))
                    })
                    .collect();
                let mut hashes = hashes.iter().copied();
                let top = within((0, *count), &shown, &mut hashes)?;
                hashes.next().is_none().then_some(())?;
                hash(&[&[2], &(*count as u32).to_be_bytes(), &top[..]])
            }
        })
    }
    Some(hash(&[&[4], &(parts.most as u32).to_be_bytes(), &top(&parts.node)?[..]]))
}

fn missing() -> ProofError {
    ProofError::Missing { what: "a key: its entry, or the entries around it" }
}

#[test]
fn every_key_is_proven_alone_and_all_together() {
    let (store, model) = scene();
    let all: Vec<BackendKey> = (0..2600).map(key).collect();
    let truth = |keys: &[BackendKey]| -> Vec<_> {
        keys.iter().map(|key| model.values.get(key).cloned()).collect()
    };
    for keys in all.chunks(1).step_by(7).chain(all.chunks(97)).chain([&all[..], &[]]) {
        let proof = store.prove(keys);
        assert_eq!(verify(store.root, keys, &proof).unwrap(), truth(keys));
    }
    let keys = some_keys(&model);
    let turned: Vec<_> = keys.iter().rev().copied().collect();
    assert_eq!(store.prove(&keys), store.prove(&turned), "order does not show");
    let proof = store.prove(&keys);
    assert_eq!(verify(store.root, &keys, &proof).unwrap(), truth(&keys));
    let verifier = PROOF_FORMATS[0].verifier.fixed().unwrap();
    assert_eq!(verifier.values(store.root, &keys, None, &proof).unwrap(), truth(&keys));
    let old = verifier.values(store.root, &keys, Some(3), &proof);
    assert_eq!(old, Err(ProofFormat::NO_HISTORY));
}

#[test]
fn a_proof_of_one_key_has_the_hashes_of_its_way() {
    let (store, model) = scene();
    fn ways(tree: &ModelTree, above: usize, all: &mut Vec<(BackendKey, usize)>) {
        match tree {
            ModelTree::Inner(left, right) => {
                ways(left, above + 1, all);
                ways(right, above + 1, all);
            }
            ModelTree::Chunk(entries) => {
                fn depth(at: usize, len: usize) -> usize {
                    let left = len.next_power_of_two() / 2;
                    match len {
                        1 => 0,
                        _ if at < left => 1 + depth(at, left),
                        _ => 1 + depth(at - left, len - left),
                    }
                }
                let len = entries.len();
                let own = entries.iter().enumerate();
                all.extend(own.map(|(at, (key, _))| (*key, above + depth(at, len))));
            }
        }
    }
    let mut all = Vec::new();
    ways(model.tree.as_ref().unwrap(), 0, &mut all);
    for (key, hashes) in all {
        assert_eq!(hashes_in(&store.prove(&[key])), Ok(hashes), "{key}");
    }
    assert!(hashes_in(&[4, 7]).is_err());
}

#[test]
fn the_empty_state_shows_absence_and_no_keys_show_the_top() {
    let store = BavlStore::new(256);
    let keys = [key(1), key(2)];
    let proof = store.prove(&keys);
    assert_eq!(proof[..], [0x80, 2, 2, 0, 0]);
    assert_eq!(verify(store.root, &keys, &proof).unwrap(), [None, None]);
    let none = store.prove(&[]);
    assert_eq!(none.len(), 2 + 1 + 32);
    assert_eq!(verify(store.root, &[], &none).unwrap(), []);
    assert_eq!(verify(store.root, &keys, &none), Err(missing()));
    assert_eq!(verify(store.root, &[], &proof), Err(ProofError::Unused));
    assert_eq!(verify(B256::repeat_byte(1), &keys, &proof), Err(ProofError::RootMismatch));
    let chunk = verify_chunk(store.root, &proof).unwrap();
    assert!(chunk.entries.is_empty() && chunk.is_first() && chunk.is_last());
}

#[test]
fn every_changed_byte_and_every_cut_is_refused() {
    let (store, model) = scene();
    let [within, across] = absent(&model);
    for keys in [vec![within], vec![across], some_keys(&model)] {
        let proof = store.prove(&keys);
        assert_eq!(proof[..], model.proof(&keys).bytes());
        for at in 0..proof.len() {
            for flip in (0..8).map(|bit| 1u8 << bit).chain([0xff]) {
                let mut forged = proof.to_vec();
                forged[at] ^= flip;
                let shown = verify(store.root, &keys, &forged);
                assert!(shown.is_err(), "byte {at} ^ {flip:02x}: {shown:?}");
            }
            assert!(verify(store.root, &keys, &proof[..at]).is_err(), "cut at {at}");
            let without = [&proof[..at], &proof[at + 1..]].concat();
            assert!(verify(store.root, &keys, &without).is_err(), "without byte {at}");
        }
        for more in [&[0][..], &[2], &[0x80], &[7; 32], &[0; 64]] {
            let forged = [&proof[..], more].concat();
            assert!(verify(store.root, &keys, &forged).is_err(), "{} bytes more", more.len());
        }
    }
}

#[test]
fn dropped_doubled_swapped_and_foreign_parts_are_refused() {
    let (store, model) = scene();
    let keys = some_keys(&model);
    let whole = model.proof(&keys);
    assert_eq!(root_of(&whole), Some(store.root));
    let mut nodes = 0;
    whole.clone().node.each(&mut |_| nodes += 1);
    let mut tried = 0;
    for at in 0..nodes {
        let mut forged = |how: &str, change: &dyn Fn(&mut NodePart)| {
            let mut parts = whole.clone();
            let mut place = 0;
            parts.node.each(&mut |part| {
                if place == at {
                    change(part);
                }
                place += 1;
            });
            if parts != whole {
                tried += 1;
                verify(store.root, &keys, &parts.bytes()).expect_err(how);
            }
        };
        forged("children swapped", &|part| {
            if let NodePart::Inner(left, right) = part {
                std::mem::swap(left, right);
            }
        });
        forged("a child alone", &|part| {
            if let NodePart::Inner(left, _) = part {
                *part = (**left).clone();
            }
        });
        forged("hidden", &|part| {
            let parts = ProofParts { most: 40, node: part.clone() };
            // An arbitrary hash: `root_of` gives a root, not the hash of this subtree.
            if root_of(&parts).is_some() && !matches!(part, NodePart::Hidden(_)) {
                *part = NodePart::Hidden(B256::repeat_byte(1));
            }
        });
        forged("a hash as an empty chunk", &|part| {
            if let NodePart::Hidden(_) = part {
                *part = NodePart::Chunk { count: 0, entries: Vec::new(), hashes: Vec::new() };
            }
        });
        for n in 0..3 {
            forged("an entry dropped", &|part| {
                if let NodePart::Chunk { entries, .. } = part
                    && n < entries.len()
                {
                    entries.remove(n);
                }
            });
            forged("an entry in place of its hash", &|part| {
                if let NodePart::Chunk { entries, hashes, .. } = part
                    && n < entries.len()
                {
                    let (_, key, value) = entries.remove(n);
                    hashes.insert(n.min(hashes.len()), hash(&[&[0], &key, &value]));
                }
            });
            forged("an entry doubled", &|part| {
                if let NodePart::Chunk { entries, .. } = part
                    && let Some(entry) = entries.get(n).cloned()
                {
                    entries.insert(n, entry);
                }
            });
            forged("another value", &|part| {
                if let NodePart::Chunk { entries, .. } = part
                    && let Some(entry) = entries.get_mut(n)
                {
                    entry.2.push(1);
                }
            });
            forged("another position", &|part| {
                if let NodePart::Chunk { entries, .. } = part
                    && let Some(entry) = entries.get_mut(n)
                {
                    entry.0 += 1;
                }
            });
            forged("a hash dropped", &|part| {
                if let NodePart::Chunk { hashes, .. } = part
                    && n < hashes.len()
                {
                    hashes.remove(n);
                }
            });
            forged("a hash doubled", &|part| {
                if let NodePart::Chunk { hashes, .. } = part
                    && n < hashes.len()
                {
                    hashes.insert(n, hashes[n]);
                }
            });
            forged("two hashes swapped", &|part| {
                if let NodePart::Chunk { hashes, .. } = part
                    && n + 1 < hashes.len()
                {
                    hashes.swap(n, n + 1);
                }
            });
            forged("another count", &|part| {
                if let NodePart::Chunk { count, .. } = part {
                    *count = count.wrapping_add([1, u64::MAX, 1 << 32][n]);
                }
            });
        }
    }
    assert!(tried > 100, "{tried}");
    for most in [0, 3, 39, 41, 256, 4096, 4097, 40 + (1 << 32), u64::MAX] {
        let parts = ProofParts { most, ..whole.clone() };
        verify(store.root, &keys, &parts.bytes()).expect_err("another size of chunks");
    }
    let foreign = model.proof(&[key(77), key(500)]);
    verify(store.root, &keys, &foreign.bytes()).expect_err("a proof of other keys");
    let top = model.proof(&[]);
    assert_eq!(verify(store.root, &keys, &top.bytes()), Err(missing()));
}

#[test]
fn a_true_proof_of_more_or_fewer_keys_is_refused() {
    let (store, model) = scene();
    let keys = some_keys(&model);
    let other = |at: usize| *model.values.keys().nth(at).unwrap();
    let more = [&keys[..], &[other(1), other(900)]].concat();
    assert_eq!(verify(store.root, &keys, &store.prove(&more)), Err(ProofError::Unused));
    assert_eq!(verify(store.root, &more, &store.prove(&keys)), Err(missing()));
    // Of keys that need the same entries there is one proof.
    for gap in absent(&model) {
        let around: Vec<_> = model.shown(&[gap]).into_iter().collect();
        assert_eq!(around.len(), 2);
        assert_eq!(store.prove(&[gap]), store.prove(&around));
        let proof = store.prove(&[gap]);
        let truth: Vec<_> = around.iter().map(|key| model.values.get(key).cloned()).collect();
        assert_eq!(verify(store.root, &around, &proof).unwrap(), truth);
        // One neighbour alone shows nothing of the gap.
        for key in around {
            assert_eq!(verify(store.root, &[gap], &store.prove(&[key])), Err(missing()));
        }
    }
}

#[test]
fn a_gap_with_something_hidden_in_it_shows_nothing() {
    let (store, model) = scene();
    // Neighbours but one: the entry between them is in a hash.
    let keys: Vec<_> = model.values.keys().copied().collect();
    for at in [0, 5, 17, 300, keys.len() - 3] {
        let between = keys[at + 1];
        let proof = store.prove(&[keys[at], keys[at + 2]]);
        assert_eq!(verify(store.root, &[keys[at], between, keys[at + 2]], &proof), Err(missing()));
    }
    // The ends, with something beyond what is shown.
    let first = BackendKey::Account(Address::ZERO.into());
    assert_eq!(verify(store.root, &[first, keys[1]], &store.prove(&[keys[1]])), Err(missing()));
    let proof = store.prove(&[keys[keys.len() - 2]]);
    let asked = [keys[keys.len() - 2], last_of_all()];
    assert_eq!(verify(store.root, &asked, &proof), Err(missing()));
}

#[test]
fn proofs_of_another_block_are_refused() {
    let random = &mut StdRng::seed_from_u64(22);
    let (mut store, mut model) = (BavlStore::new(8), BavlModel::new(8));
    let mut old: Option<(B256, ProofParts)> = None;
    for _ in 0..12 {
        let delta = random_delta(random, &model.values, 400, 50);
        model.apply(&delta);
        store.apply(&delta).unwrap();
        let keys: Vec<_> = (0..400).step_by(41).map(key).collect();
        let proof = model.proof(&keys);
        if let Some((root, before)) = &old {
            assert!(verify(store.root, &keys, &before.bytes()).is_err());
            assert!(verify(*root, &keys, &proof.bytes()).is_err());
        }
        old = Some((store.root, proof));
    }
}

/// Each of these proofs leads to the right root of its forged parts; the fault is not in a hash.
#[test]
fn what_no_honest_tree_holds_is_refused_under_its_own_root() {
    let (_, model) = scene();
    let keys = some_keys(&model);
    let honest = model.proof(&keys);
    let shown = |parts: &ProofParts| {
        let root = root_of(parts).unwrap();
        verify(root, &keys, &parts.bytes()).map(|_| ())
    };
    assert_eq!(shown(&honest), Ok(()));
    let malformed = |parts: &ProofParts, what: &'static str| {
        assert_eq!(shown(parts), Err(ProofError::Malformed { what }));
    };
    let with = |node: NodePart| ProofParts { most: 40, node };
    let hidden = || Box::new(NodePart::Hidden(B256::repeat_byte(3)));
    let top = || Box::new(honest.node.clone());
    // Keys out of order, or twice.
    malformed(&with(NodePart::Inner(top(), top())), "keys are out of order");
    // Inner nodes that show nothing.
    let nothing = || Box::new(NodePart::Inner(hidden(), hidden()));
    malformed(&with(NodePart::Inner(top(), nothing())), "an inner node that shows nothing");
    // An empty chunk beside others.
    let empty = || Box::new(NodePart::Chunk { count: 0, entries: Vec::new(), hashes: Vec::new() });
    malformed(&with(NodePart::Inner(top(), empty())), "a chunk without entries");
    malformed(&with(NodePart::Inner(empty(), top())), "a chunk without entries");
    // A chunk that shows nothing.
    let whole = B256::repeat_byte(8);
    let silent = Box::new(NodePart::Chunk { count: 9, entries: Vec::new(), hashes: vec![whole] });
    malformed(&with(NodePart::Inner(top(), silent)), "a chunk that shows nothing");
    // More entries than a chunk holds.
    let mut large = honest.clone();
    large.most = 4;
    malformed(&large, "a chunk with more entries than it can hold");
    // Too high.
    let mut high = honest.node.clone();
    for _ in 0..70 {
        high = NodePart::Inner(Box::new(high), hidden());
    }
    malformed(&with(high), "the tree is too high");
    // Keys of no form.
    let mut tag = honest.clone();
    tag.node.each(&mut |part| {
        if let NodePart::Chunk { entries, .. } = part {
            entries[0].1[0] = 2;
        }
    });
    malformed(&tag, "key");
    // Entries behind the end.
    let mut beyond = honest.clone();
    beyond.node.each(&mut |part| {
        if let NodePart::Chunk { count, entries, .. } = part {
            entries.last_mut().unwrap().0 += *count;
        }
    });
    let error = verify(B256::ZERO, &keys, &beyond.bytes());
    assert_eq!(error, Err(ProofError::Malformed { what: "position beyond the chunk" }));
}

#[test]
fn no_bytes_of_a_value_pass_for_a_node() {
    // A value is the attacker's to choose: here what a pair, a chunk and an inner node hash.
    let (mut store, mut model) = (BavlStore::new(4), BavlModel::new(4));
    let two = [[7; 32], [9; 32]].concat();
    let values = [
        [&[1], &two[..]].concat(),
        [&[2, 0, 0, 0, 1], &two[..32]].concat(),
        [&[3], &two[..]].concat(),
    ];
    let all: Vec<_> =
        (0..12).map(|n| (key(n), Some(values[n as usize % 3].clone().into()))).collect();
    let delta = delta(&model.values, all);
    model.apply(&delta);
    store.apply(&delta).unwrap();
    let proof = model.proof(&[key(5)]);
    // Each inner node on the way posed as a chunk, and as a pair within one.
    let mut nodes = 0;
    proof.clone().node.each(&mut |_| nodes += 1);
    for at in 0..nodes {
        for count in [1, 2, 3, 4] {
            let mut posed = proof.clone();
            let mut place = 0;
            posed.node.each(&mut |part| {
                if place == at
                    && let NodePart::Inner(left, right) = part
                {
                    let mut hashes = Vec::new();
                    for side in [&**left, &**right] {
                        if let NodePart::Hidden(hash) = side {
                            hashes.push(*hash);
                        }
                    }
                    let entries = vec![(0, key(5).encode().to_vec(), values[2].clone())];
                    *part = NodePart::Chunk { count, entries, hashes };
                }
                place += 1;
            });
            if posed != proof {
                assert!(verify(store.root, &[key(5)], &posed.bytes()).is_err());
            }
        }
    }
    // An entry is hashed as nothing else is.
    let entry = (key(5), values[2].clone().into());
    let other: Vec<B256> = values.iter().map(|value| hash(&[value])).collect();
    assert!(!other.contains(&entry_hash(&entry)));
}

fn chunks(store: &BavlStore) -> Vec<(Vec<u8>, VerifiedChunk)> {
    let mut all = Vec::new();
    let mut next = Some(BackendKey::Account(Address::ZERO.into()));
    while let Some(key) = next {
        let (proof, after) = store.backend.prove_chunk(&store.view, &store.cache, &key).unwrap();
        all.push((proof.to_vec(), verify_chunk(store.root, &proof).unwrap()));
        next = after;
    }
    all
}

#[test]
fn whole_chunks_show_themselves_and_their_ways_make_the_tree() {
    let (store, model) = scene();
    let all = chunks(&store);
    let shown: Vec<_> = all.iter().map(|(_, chunk)| chunk.entries.clone()).collect();
    let expected: Vec<_> = model.tree.as_ref().unwrap().chunks().into_iter().cloned().collect();
    assert_eq!(shown, expected);
    let ends: Vec<_> = all.iter().map(|(_, chunk)| [chunk.is_first(), chunk.is_last()]).collect();
    assert_eq!(ends.iter().filter(|end| end[0]).count(), 1);
    assert!(ends[0][0] && ends[ends.len() - 1][1]);
    assert_eq!(ends.iter().filter(|end| end[1]).count(), 1);
    // The ways, from the top down, are those to the leaves of one binary tree, from left to right.
    let ways: Vec<Vec<ChildSide>> = all
        .iter()
        .map(|(_, chunk)| chunk.path.iter().rev().map(|step| step.side).collect())
        .collect();
    fn leaves(ways: &[Vec<ChildSide>], depth: usize) -> Option<ModelTree> {
        if let [one] = ways
            && one.len() == depth
        {
            return Some(ModelTree::Chunk(Vec::new()));
        }
        let is_left = |way: &Vec<ChildSide>| way.get(depth).map(|side| *side == ChildSide::Left);
        let middle = ways.iter().position(|way| is_left(way) == Some(false))?;
        let (left, right) = ways.split_at(middle);
        let left = Box::new(leaves(left, depth + 1)?);
        Some(ModelTree::Inner(left, Box::new(leaves(right, depth + 1)?)))
    }
    let rebuilt = leaves(&ways, 0).unwrap();
    assert_eq!(rebuilt.height(), model.tree.as_ref().unwrap().height());
    assert!(all.iter().all(|(_, chunk)| chunk.most.get() == 40));
}

#[test]
fn chunks_with_anything_else_in_them_are_refused() {
    let (store, model) = scene();
    for (proof, chunk) in chunks(&store).into_iter().step_by(11) {
        for at in 0..proof.len() {
            let mut forged = proof.clone();
            forged[at] ^= 1 << (at % 8);
            assert!(verify_chunk(store.root, &forged).is_err(), "byte {at}");
            assert!(verify_chunk(store.root, &proof[..at]).is_err(), "cut at {at}");
        }
        assert!(verify_chunk(store.root, &[&proof[..], &[0]].concat()).is_err());
        let other = verify_chunk(B256::repeat_byte(1), &proof);
        assert_eq!(other, Err(ProofError::RootMismatch));
        let keys: Vec<_> = chunk.entries.iter().map(|entry| entry.0).collect();
        assert_eq!(model.proof(&keys).bytes(), proof, "it is the proof of its keys");
        let fewer = verify_chunk(store.root, &store.prove(&keys[1..]));
        assert_eq!(fewer, Err(ProofError::Missing { what: "an entry of the chunk" }));
        let PathStep { other, .. } = chunk.path[0];
        assert_ne!(other, B256::ZERO);
    }
    let none = verify_chunk(store.root, &store.prove(&[]));
    assert_eq!(none, Err(ProofError::Missing { what: "the chunk" }));
    let keys: Vec<_> = model.values.keys().copied().collect();
    let two = verify_chunk(store.root, &store.prove(&[keys[0], keys[keys.len() - 1]]));
    assert_eq!(two, Err(ProofError::Malformed { what: "more than one chunk" }));
}
