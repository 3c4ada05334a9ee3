//! Proofs: what they show, and that nothing else passes for one.

use crate::duptree_common;

use alloy_primitives::{Address, B256};
use duptree_common::{
    DupTreeModel, DupTreeStore, ProofParts, ShownLeaf, delta, hash, key, random_delta, varint,
};
use rand::{SeedableRng, rngs::StdRng};
use retrie_state::{Backend, BackendKey, ProofError, descriptor::ProofFormat};
use retrie_storage_prefix::duptree::{DupTreeLayout, FORMAT, verify};

/// A tree of three layers, some of whose keys are deleted.
fn scene() -> (DupTreeStore, DupTreeModel) {
    let random = &mut StdRng::seed_from_u64(21);
    let (mut store, mut model) =
        (DupTreeStore::new(DupTreeLayout::Blocked), DupTreeModel::default());
    for _ in 0..8 {
        let delta = random_delta(random, &model.values, 2500, 400);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    assert_eq!((store.root, model.height()), (model.root(), 11));
    (store, model)
}

fn deleted(model: &DupTreeModel) -> BackendKey {
    *model.keys.iter().find(|key| !model.values.contains_key(key)).unwrap()
}

fn absent(model: &DupTreeModel) -> BackendKey {
    let is_slot = |key: &BackendKey| matches!(key, BackendKey::Slot(..));
    (0..).map(key).find(|key| is_slot(key) && !model.keys.contains(key)).unwrap()
}

/// Keys in no order, one twice: present, deleted, never there.
fn some_keys(model: &DupTreeModel) -> Vec<BackendKey> {
    let present = |at: usize| *model.values.keys().nth(at).unwrap();
    let end = BackendKey::Slot(Address::repeat_byte(0xff).into(), B256::repeat_byte(0xff));
    vec![present(300), deleted(model), absent(model), present(3), end, present(300)]
}

/// The root that parts lead to, if they have the right number of hashes.
fn root_of(parts: &ProofParts) -> Option<B256> {
    let mut hashes = parts.hashes.iter();
    let leaf = |leaf: &ShownLeaf| (leaf.number, hash(&[&[0], &leaf.bytes()]));
    let mut known: Vec<(u64, B256)> = parts.leaves.iter().map(leaf).collect();
    for _ in 0..parts.height {
        let mut above: Vec<(u64, B256)> = Vec::new();
        let mut at = 0;
        while at < known.len() {
            let (number, node) = known[at];
            let is_pair = number % 2 == 0 && known.get(at + 1).is_some_and(|n| n.0 == number + 1);
            let other = if is_pair { known[at + 1].1 } else { *hashes.next()? };
            let (left, right) = if number % 2 == 0 { (node, other) } else { (other, node) };
            above.push((number / 2, hash(&[&[1], &left[..], &right[..]])));
            at += 1 + usize::from(is_pair);
        }
        known = above;
    }
    let top = known.first()?.1;
    hashes.next().is_none().then(|| hash(&[&[3, parts.height], &top[..]]))
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
    assert_eq!(verify(store.root, &keys, &store.prove(&keys)).unwrap(), truth(&keys));
    let verifier = FORMAT.verifier.fixed().unwrap();
    let proof = store.prove(&keys);
    assert_eq!(verifier.values(store.root, &keys, None, &proof).unwrap(), truth(&keys));
    let old = verifier.values(store.root, &keys, Some(3), &proof);
    assert_eq!(old, Err(ProofFormat::NO_HISTORY));
}

#[test]
fn the_empty_state_shows_absence_and_no_keys_show_the_top() {
    let store = DupTreeStore::new(DupTreeLayout::Blocked);
    let keys = [key(1), key(2)];
    let proof = store.prove(&keys);
    assert_eq!(proof[..], [0, 1, 0, 2, 0, 2]);
    assert_eq!(verify(store.root, &keys, &proof).unwrap(), [None, None]);
    let none = store.prove(&[]);
    assert_eq!(none.len(), 34);
    assert_eq!(verify(store.root, &[], &none).unwrap(), []);
    assert_eq!(verify(store.root, &keys, &none), Err(missing()));
    assert_eq!(verify(store.root, &[], &proof), Err(ProofError::Unused));
    assert!(verify(B256::repeat_byte(1), &keys, &proof).is_err());
}

fn missing() -> ProofError {
    ProofError::Missing { what: "a key: the leaf that covers it" }
}

#[test]
fn every_changed_byte_and_every_cut_is_refused() {
    let (store, model) = scene();
    for keys in [vec![absent(&model)], vec![deleted(&model)], some_keys(&model)] {
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
    let foreign = model.proof(&[model.keys[77], model.keys[500]]);
    let refused = |how: &str, change: &dyn Fn(&mut ProofParts)| {
        let mut parts = whole.clone();
        change(&mut parts);
        assert_ne!(parts, whole, "{how}");
        verify(store.root, &keys, &parts.bytes()).expect_err(how)
    };
    let count = whole.leaves.len();
    for at in 0..count {
        refused("a leaf dropped", &|parts| drop(parts.leaves.remove(at)));
        let doubled = refused("a leaf doubled", &|parts| {
            parts.leaves.insert(at, parts.leaves[at].clone());
        });
        assert_eq!(doubled, ProofError::Malformed { what: "leaves are out of order" });
        if at > 0 {
            refused("two leaves swapped", &|parts| parts.leaves.swap(at - 1, at));
            refused("numbers of two leaves swapped", &|parts| {
                let number = parts.leaves[at].number;
                parts.leaves[at].number = parts.leaves[at - 1].number;
                parts.leaves[at - 1].number = number;
                parts.leaves.swap(at - 1, at);
            });
        }
        refused("another value", &|parts| parts.leaves[at].value = Some(vec![1]));
        refused("a link to the end", &|parts| {
            let leaf = &mut parts.leaves[at];
            leaf.next = match leaf.next {
                None => Some(key(0).encode().to_vec()),
                Some(_) => None,
            };
        });
        refused("a link to itself", &|parts| parts.leaves[at].next = parts.leaves[at].key.clone());
        refused("another number", &|parts| parts.leaves[at].number ^= 1);
        refused("a number beyond the tree", &|parts| {
            parts.leaves[at].number += 1 << 11;
            let leaf = parts.leaves.remove(at);
            parts.leaves.push(leaf);
        });
    }
    for at in 0..whole.hashes.len() {
        let fewer = refused("a hash dropped", &|parts| {
            parts.hashes.remove(at);
        });
        assert_eq!(fewer, ProofError::Missing { what: "a sibling" });
        let more = refused("a hash doubled", &|parts| parts.hashes.insert(at, parts.hashes[at]));
        assert_eq!(more, ProofError::Malformed { what: "hashes after the end" });
        refused("a hash of zeros", &|parts| parts.hashes[at] = B256::ZERO);
        if at > 0 && whole.hashes[at - 1] != whole.hashes[at] {
            refused("two hashes swapped", &|parts| parts.hashes.swap(at - 1, at));
        }
    }
    for height in (0..=255).filter(|height| *height != whole.height) {
        refused("another height", &|parts| parts.height = height);
    }
    refused("one level more, with a hash for it", &|parts| {
        parts.height += 1;
        parts.hashes.push(B256::ZERO);
    });
    refused("leaves of other keys", &|parts| parts.leaves.clone_from(&foreign.leaves));
    refused("all of other keys", &|parts| parts.clone_from(&foreign));
    refused("a leaf of other keys more", &|parts| {
        parts.leaves.push(foreign.leaves[0].clone());
        parts.leaves.sort_by_key(|leaf| leaf.number);
    });
    refused("nothing but the top", &|parts| {
        let top = model.proof(&[]);
        parts.clone_from(&top);
    });
}

#[test]
fn a_true_proof_of_more_or_fewer_keys_is_refused() {
    let (store, model) = scene();
    let keys = some_keys(&model);
    let more = [&keys[..], &[model.keys[1], model.keys[900]]].concat();
    assert_eq!(verify(store.root, &keys, &store.prove(&more)), Err(ProofError::Unused));
    assert_eq!(verify(store.root, &more, &store.prove(&keys)), Err(missing()));
    // Of keys that need the same leaves there is one proof.
    let gap = absent(&model);
    let leaf = model.proof(&[gap]).leaves[0].key.clone().unwrap();
    let own = BackendKey::decode(&leaf).unwrap();
    let truth = [model.values.get(&own).cloned(), None];
    assert_eq!(store.prove(&[gap]), store.prove(&[own, gap]));
    assert_eq!(verify(store.root, &[own, gap], &store.prove(&[gap])).unwrap(), truth);
}

#[test]
fn proofs_of_another_block_are_refused() {
    let random = &mut StdRng::seed_from_u64(22);
    let (mut store, mut model) =
        (DupTreeStore::new(DupTreeLayout::Blocked), DupTreeModel::default());
    let mut old: Option<(B256, ProofParts, Vec<BackendKey>)> = None;
    for _ in 0..12 {
        let delta = random_delta(random, &model.values, 400, 50);
        model.apply(&delta);
        store.apply(&delta).unwrap();
        // Keys that the block has changed or not.
        let keys: Vec<_> = (0..400).step_by(41).map(key).collect();
        let proof = model.proof(&keys);
        if let Some((root, before, _)) = &old {
            assert!(verify(store.root, &keys, &before.bytes()).is_err());
            assert!(verify(*root, &keys, &proof.bytes()).is_err());
            // A leaf of the other block among the leaves of this one.
            for (at, leaf) in before.leaves.iter().enumerate() {
                let mut mixed = proof.clone();
                let Some(place) = mixed.leaves.get_mut(at).filter(|own| **own != *leaf) else {
                    continue;
                };
                *place = leaf.clone();
                assert!(verify(store.root, &keys, &mixed.bytes()).is_err());
            }
        }
        old = Some((store.root, proof, keys));
    }
}

/// Each of these proofs leads to the right root of its forged parts; the fault is not in a hash.
#[test]
fn what_no_honest_tree_holds_is_refused_under_its_own_root() {
    let (_, model) = scene();
    let asked = absent(&model);
    let honest = model.proof(&[asked]);
    assert_eq!(root_of(&honest), Some(model.root()));
    let shown = |keys: &[BackendKey], change: &dyn Fn(&mut ProofParts)| {
        let mut parts = honest.clone();
        change(&mut parts);
        verify(root_of(&parts).unwrap(), keys, &parts.bytes())
    };
    assert_eq!(shown(&[asked], &|_| {}).unwrap(), [None]);
    let own = honest.leaves[0].key.clone();
    let malformed = |shown: Result<_, ProofError>, what: &'static str| {
        assert_eq!(shown.map(|_: Vec<Option<_>>| ()), Err(ProofError::Malformed { what }));
    };
    let backwards = "a leaf's next key does not come after its own";
    malformed(shown(&[asked], &|parts| parts.leaves[0].next = own.clone()), backwards);
    let least = BackendKey::Account(Address::ZERO.into()).encode().to_vec();
    malformed(shown(&[asked], &|parts| parts.leaves[0].next = Some(least.clone())), backwards);
    let what = match &honest.leaves[0].value {
        Some(_) => "the first leaf has a value",
        None => "leaf 0 and no other is the first",
    };
    malformed(shown(&[asked], &|parts| parts.leaves[0].key = None), what);
    // The gap ends at the key that is asked for, or begins there.
    let bytes = asked.encode().to_vec();
    let to = shown(&[asked], &|parts| parts.leaves[0].next = Some(bytes.clone()));
    assert_eq!(to, Err(missing()));
    let from = shown(&[asked], &|parts| {
        parts.leaves[0].key = Some(bytes.clone());
        parts.leaves[0].value = Some(vec![5]);
    });
    assert_eq!(from.unwrap(), [Some(vec![5].into())], "then it is the leaf's own");
    // Leaf 0 is the sentinel.
    let mut parts = DupTreeModel::default().proof(&[asked]);
    parts.leaves[0].value = Some(vec![1]);
    let root = root_of(&parts).unwrap();
    malformed(verify(root, &[asked], &parts.bytes()), "the first leaf has a value");
    parts.leaves[0].key = Some(vec![0; 21]);
    let root = root_of(&parts).unwrap();
    malformed(verify(root, &[asked], &parts.bytes()), "leaf 0 and no other is the first");
    // Two leaves of one key, of which one would do.
    let other = model.keys.iter().find(|key| model.proof(&[asked, **key]).leaves.len() == 2);
    let mut two = model.proof(&[asked, *other.unwrap()]);
    two.leaves.iter_mut().for_each(|leaf| {
        (leaf.key, leaf.value, leaf.next) = (own.clone(), Some(vec![5]), None);
    });
    let root = root_of(&two).unwrap();
    malformed(verify(root, &[asked], &two.bytes()), "two leaves of one key");
}

#[test]
fn an_inner_node_does_not_pass_for_a_leaf() {
    // A value is the attacker's to choose: here the bytes of two nodes, as a parent hashes them.
    let (mut store, mut model) =
        (DupTreeStore::new(DupTreeLayout::Blocked), DupTreeModel::default());
    let inner = [&[7; 32][..], &[9; 32][..]].concat();
    for n in 1..6 {
        let delta = delta(&model.values, [(key(n), Some(inner.clone().into()))]);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    let asked = key(2);
    let honest = model.proof(&[asked]);
    assert_eq!(honest.height, 3);
    // The parent of the leaf in its place, in a tree of one level less.
    let leaves = model.hashes();
    for level in 1..3u8 {
        let number = honest.leaves[0].number;
        let node = |side: u64| model.node(&leaves, level - 1, (number >> level) * 2 + side);
        let posed = [&node(0)[..], &node(1)[..]].concat();
        let mut bytes = vec![3 - level];
        bytes.extend(varint(1));
        bytes.extend(varint(number >> level));
        bytes.extend(posed);
        bytes.extend(honest.hashes[usize::from(level)..].iter().flatten());
        assert!(verify(store.root, &[asked], &bytes).is_err(), "level {level}");
    }
    // The tree below a node is a tree of its own, but not of this root.
    let top = |level: u8| model.node(&leaves, level, 0);
    for level in 0..3u8 {
        let mut parts = model.proof(&[BackendKey::Account(Address::ZERO.into())]);
        parts.height = level;
        parts.hashes.truncate(level.into());
        assert_eq!(root_of(&parts), Some(hash(&[&[3, level], &top(level)[..]])));
        assert_eq!(
            verify(store.root, &[BackendKey::Account(Address::ZERO.into())], &parts.bytes()),
            Err(ProofError::RootMismatch)
        );
    }
    // Nor does the root bind the top alone.
    let root = hash(&[&[3, 4], &top(3)[..]]);
    assert_eq!(verify(root, &[asked], &honest.bytes()), Err(ProofError::RootMismatch));
}

#[test]
fn neighbours_and_prefixes_of_a_key_are_other_keys() {
    let random = &mut StdRng::seed_from_u64(23);
    let address = Address::repeat_byte(0x55);
    let near = |last: u8| {
        let mut bytes = [0x55; 20];
        bytes[19] = last;
        BackendKey::Account(Address::from(bytes).into())
    };
    let slot = |n: u64| BackendKey::Slot(address.into(), B256::left_padding_from(&n.to_be_bytes()));
    // Account and slots share the address; slots share 31 bytes.
    let present = [BackendKey::Account(address.into()), slot(0), slot(2), near(0x57), near(0)];
    let mut store = DupTreeStore::new(DupTreeLayout::Blocked);
    let values = present.map(|key| (key, Some(duptree_common::value(random))));
    store.apply(&delta(&Default::default(), values.clone())).unwrap();
    let absent = [near(0x54), near(0x56), near(0x58), slot(1), slot(3), near(0xff), near(1)];
    let all: Vec<BackendKey> = present.iter().chain(&absent).copied().collect();
    let truth =
        |key: &BackendKey| values.iter().find(|(own, _)| own == key).and_then(|of| of.1.clone());
    for key in &all {
        let proof = store.prove(&[*key]);
        assert_eq!(verify(store.root, &[*key], &proof).unwrap(), [truth(key)]);
        for other in &all {
            // The proof of one key fails for another key, or shows its true value.
            if let Ok(shown) = verify(store.root, &[*other], &proof) {
                assert_eq!(shown, [truth(other)], "{key} for {other}");
            }
        }
    }
}

#[test]
fn work_and_memory_are_bounded_by_the_proof() {
    let root = B256::repeat_byte(1);
    let keys = [key(1)];
    // Counts and lengths that promise more than there is.
    for bytes in [
        [&[63][..], &varint(u64::MAX)].concat(),
        [&[63][..], &varint(1 << 40), &[0; 100]].concat(),
        [&[63, 1, 0, 2][..], &varint(u64::MAX)].concat(),
        [&[63, 1, 0][..], &[0; 21], &varint(1 << 60), &[0; 100]].concat(),
        vec![63, 1],
        vec![64, 0],
        vec![255, 0],
        vec![],
    ] {
        assert!(
            matches!(verify(root, &keys, &bytes), Err(ProofError::Malformed { .. })),
            "{bytes:?}"
        );
    }
    // A leaf at the last place of the highest tree, and one beyond it.
    let leaf = ShownLeaf { number: (1 << 63) - 1, key: Some(vec![0; 21]), value: None, next: None };
    let parts = ProofParts { height: 63, leaves: vec![leaf.clone()], hashes: vec![root; 63] };
    let shown = verify(
        root_of(&parts).unwrap(),
        &[BackendKey::Account(Address::ZERO.into())],
        &parts.bytes(),
    );
    assert_eq!(shown, Ok(vec![None]));
    let beyond =
        ProofParts { leaves: vec![ShownLeaf { number: 1 << 63, ..leaf }], ..parts.clone() };
    assert_eq!(
        verify(root, &keys, &beyond.bytes()),
        Err(ProofError::Malformed { what: "number of a leaf beyond the tree" })
    );
    let short = ProofParts { hashes: vec![root; 62], ..parts };
    assert_eq!(verify(root, &keys, &short.bytes()), Err(ProofError::Missing { what: "a sibling" }));
}

#[test]
fn the_backend_verifies_as_the_function_does() {
    let (store, model) = scene();
    let keys = some_keys(&model);
    let proof = store.prove(&keys);
    assert_eq!(store.backend.verify(store.root, &keys, &proof), verify(store.root, &keys, &proof));
    assert!(store.backend.verify(B256::ZERO, &keys, &proof).is_err());
}
