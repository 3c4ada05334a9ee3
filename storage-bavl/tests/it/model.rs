//! Random histories against the tree by its definition: roots, shapes, proofs and rows.

use crate::common;

use alloy_primitives::{Address, B256, U256, b256};
use common::{
    BavlModel, BavlStore, ModelTree, bavl, chunk_hash, delta, hash, key, random_delta, value,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_state::{Backend, BackendKey, RowTable, StateValue, flat};
use retrie_state_testkit::{MemoryView, ViewCounts};
use retrie_storage_bavl::{CHUNKS, HASHES, verify};
use std::collections::BTreeSet;

const TABLES: [RowTable; 3] = [flat::TABLE, CHUNKS, HASHES];

fn same(store: &BavlStore, model: &BavlModel, random: &mut StdRng) {
    assert_eq!(store.root, model.root());
    // Shape and keys, as rows have them.
    let rows = store.view.filled().remove(&CHUNKS).unwrap_or_default();
    let rows: Vec<_> =
        rows.iter().map(|(key, row)| (BackendKey::decode(key).unwrap(), row[0])).collect();
    assert_eq!(rows, model.key_heights());
    if let Some(tree) = &model.tree {
        tree.assert_sound(model.most);
    }
    let shape = store.backend.shape(&store.view, &store.cache).unwrap();
    assert_eq!((shape.chunks, shape.entries), (rows.len(), model.values.len()));
    assert_eq!(shape.height, model.tree.as_ref().map_or(0, ModelTree::height));

    let mut keys: Vec<BackendKey> = (0..6).map(|_| key(random.random_range(0..2000))).collect();
    keys.extend(model.values.keys().choose_multiple(random, 4));
    keys.truncate(random.random_range(0..=keys.len()));
    let proof = model.proof(&keys).bytes();
    let truth: Vec<_> = keys.iter().map(|key| model.values.get(key).cloned()).collect();
    assert_eq!(store.prove(&keys)[..], proof[..]);
    assert_eq!(verify(store.root, &keys, &proof).unwrap(), truth);
}

#[test]
fn random_histories_have_the_roots_shapes_and_proofs_of_the_definition() {
    let random = &mut StdRng::seed_from_u64(1);
    for (most, keys, changes) in
        [(4, 300, 12), (4, 40, 15), (5, 2000, 60), (7, 600, 40), (16, 900, 60), (50, 2000, 200)]
    {
        let (mut store, mut model) = (BavlStore::new(most), BavlModel::new(most));
        same(&store, &model, random);
        for block in 0..60 {
            let delta = match block % 20 {
                // Most keys go.
                15 => {
                    let gone = model.values.keys().copied().filter(|_| random.random_ratio(9, 10));
                    let gone: Vec<_> = gone.map(|key| (key, None)).collect();
                    delta(&model.values, gone)
                }
                // Many come into one place.
                8 => {
                    let address = Address::repeat_byte(random.random_range(0..3));
                    let slot =
                        |n: u64| BackendKey::Slot(address.into(), U256::from((7 << 60) + n).into());
                    let new = (0..u64::from(most) * 9).map(|n| (slot(n), Some(value(random))));
                    let new: Vec<_> = new.collect();
                    delta(&model.values, new)
                }
                _ => random_delta(random, &model.values, keys, changes),
            };
            store.apply(&delta).unwrap();
            model.apply(&delta);
            same(&store, &model, random);
            if random.random_ratio(1, 4) {
                store.reopen();
            }
            if block % 7 == 0 {
                assert_eq!(store.faults(), [""; 0]);
            }
        }
        let all: Vec<_> = model.values.keys().map(|key| (*key, None)).collect();
        let all = delta(&model.values, all);
        store.apply(&all).unwrap();
        model.apply(&all);
        same(&store, &model, random);
        assert_eq!(store.root, store.backend.profile().empty_root);
        assert!(store.view.filled().is_empty());
    }
}

#[test]
fn keys_that_come_one_by_one_in_order_keep_the_tree_sound() {
    let random = &mut StdRng::seed_from_u64(2);
    let slot = |n: u64| BackendKey::Slot(Address::ZERO.into(), U256::from(n).into());
    for most in [4, 6, 20] {
        for is_up in [true, false] {
            let (mut store, mut model) = (BavlStore::new(most), BavlModel::new(most));
            for n in 0..200 {
                let key = slot(if is_up { n } else { 1000 - n });
                let delta = delta(&model.values, [(key, Some(value(random)))]);
                store.apply(&delta).unwrap();
                model.apply(&delta);
                assert_eq!(store.root, model.root());
            }
            same(&store, &model, random);
            let keys: Vec<_> = model.values.keys().copied().collect();
            let keys: Vec<_> = if is_up { keys } else { keys.into_iter().rev().collect() };
            for key in keys {
                let delta = delta(&model.values, [(key, None)]);
                store.apply(&delta).unwrap();
                model.apply(&delta);
                same(&store, &model, random);
            }
        }
    }
}

#[test]
fn a_load_is_the_first_block_row_by_row() {
    let random = &mut StdRng::seed_from_u64(3);
    for most in [4, 5, 16, 33] {
        for count in [0, 1, 2, 4, 5, 13, 100, 1000, 3000] {
            let mut entries: Vec<(BackendKey, StateValue)> =
                (0..count).map(|n| (key(n), value(random))).collect();
            entries.sort_unstable_by_key(|entry| entry.0);
            let mut store = BavlStore::new(most);
            let changes: Vec<_> =
                entries.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
            store.apply(&delta(&Default::default(), changes)).unwrap();
            let mut loaded = MemoryView::default();
            let root =
                bavl(most).bulk_load(0, &mut entries.into_iter().map(Ok), &mut loaded).unwrap();
            assert_eq!(root, store.root, "{most}, {count}");
            assert_eq!(loaded.filled(), store.view.filled(), "{most}, {count}");
        }
    }
}

#[test]
fn siblings_leave_their_parents_tree_as_it_was() {
    let random = &mut StdRng::seed_from_u64(8);
    let (mut store, mut model) = (BavlStore::new(6), BavlModel::new(6));
    for _ in 0..12 {
        let delta = random_delta(random, &model.values, 900, 100);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    let (view, root) = (store.view.clone(), store.root);
    let keys: Vec<_> = (0..40).map(key).collect();
    let proof = store.prove(&keys);
    let parent = std::mem::replace(&mut store.cache, store.backend.open(&view, None).unwrap());
    let mut parent = Some(parent);
    for _ in 0..3 {
        let mut child = model.clone();
        let delta = random_delta(random, &child.values, 1200, 150);
        child.apply(&delta);
        // On the tree in memory, which the siblings share.
        let own = parent.take().unwrap();
        let old = std::mem::replace(&mut store.cache, own);
        drop(old);
        let jobs = retrie_state::JobRunner::new(None);
        let context = retrie_state::ApplyContext { number: 12, parent_root: root, jobs: &jobs };
        let done = store.backend.apply(&context, &mut store.view, &store.cache, &delta).unwrap();
        assert_eq!(done.root, child.root());
        store.view = view.clone();
        assert_eq!(store.prove(&keys), proof);
        parent =
            Some(std::mem::replace(&mut store.cache, store.backend.open(&view, None).unwrap()));
    }
}

/// The rows depend only on shape and entries: the same history gives the same rows, and a rebuilt
/// tree behaves like the tree in memory.
#[test]
fn a_tree_rebuilt_at_every_block_grows_as_the_one_in_memory() {
    let random = &mut StdRng::seed_from_u64(4);
    let (mut kept, mut reopened, mut values) =
        (BavlStore::new(5), BavlStore::new(5), Default::default());
    for _ in 0..50 {
        let delta = random_delta(random, &values, 400, 60);
        for change in delta.changes() {
            match &change.next {
                Some(value) => drop(values.insert(change.key, value.clone())),
                None => drop(values.remove(&change.key)),
            }
        }
        kept.apply(&delta).unwrap();
        reopened.reopen();
        reopened.apply(&delta).unwrap();
        assert_eq!(kept.root, reopened.root);
        assert_eq!(kept.view.filled(), reopened.view.filled());
    }
}

#[test]
fn a_changed_value_writes_its_group_and_its_chunk() {
    let random = &mut StdRng::seed_from_u64(9);
    let mut store = BavlStore::new(256);
    let mut values = common::ValueMap::new();
    for n in 0..5000 {
        values.insert(key(n), value(random));
    }
    let all: Vec<_> = values.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    store.apply(&delta(&Default::default(), all)).unwrap();
    for n in [0, 77, 4999] {
        let writes = |store: &BavlStore| TABLES.map(|table| store.view.counts(table).writes);
        let before = writes(&store);
        let changed = delta(&values, [(key(n), Some(value(random)))]);
        store.apply(&changed).unwrap();
        let written: Vec<_> =
            writes(&store).iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(written, [1, 1, 1]);
        values.insert(key(n), changed.changes()[0].next.clone().unwrap());
    }
    assert_eq!(store.faults(), [""; 0]);
    let sizes = |table| store.view.tables[&table].values().map(|row| row.len()).max().unwrap();
    assert!(sizes(HASHES) == 512 && sizes(CHUNKS) < 600, "{}", sizes(CHUNKS));
}

#[test]
fn a_key_that_comes_or_goes_writes_its_group_and_its_chunk() {
    let mut random = StdRng::seed_from_u64(10);
    let random = &mut random;
    let slot = |n: u64| BackendKey::Slot(Address::ZERO.into(), U256::from(n).into());
    let mut store = BavlStore::new(256);
    let mut values: common::ValueMap = (0..3000).map(|n| (slot(n * 100), value(random))).collect();
    let all: Vec<_> = values.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    store.apply(&delta(&Default::default(), all)).unwrap();
    let (mut splits, mut gets, mut scans) = (0, 0, 0);
    for n in 0..400 {
        let key = match n % 4 {
            0 => *values.keys().choose(random).unwrap(),
            _ => slot(150_000 + random.random_range(0..40) * 100 + random.random_range(1..100)),
        };
        let next = (n % 4 > 0 && !values.contains_key(&key)).then(|| value(random));
        let changed = delta(&values, [(key, next.clone())]);
        let counts = |store: &BavlStore| {
            let counts = TABLES.map(|table| store.view.counts(table));
            let sum = |count: fn(&ViewCounts) -> u64| counts.iter().map(count).sum::<u64>();
            (counts.map(|of| of.writes), sum(|of| of.gets), sum(|of| of.scans))
        };
        let before = counts(&store);
        store.apply(&changed).unwrap();
        let after = counts(&store);
        let written = |table: usize| after.0[table] - before.0[table];
        match (written(1), written(2)) {
            (1, 1) => (gets, scans) = (gets + after.1 - before.1, scans + after.2 - before.2),
            (0, 0) if changed.is_empty() => {}
            // A group in two, or a chunk that is cut or made anew.
            (_, groups) => splits += groups.min(1),
        }
        match next {
            Some(value) => drop(values.insert(key, value)),
            None => drop(values.remove(&key)),
        }
        assert_eq!(store.faults(), [""; 0]);
    }
    assert!((10..80).contains(&splits), "{splits}");
    // Of the chunk's groups those behind the key.
    assert!(gets < 400 * 17 && scans <= 400, "{gets}, {scans}");
}

#[test]
fn trees_with_other_chunks_never_share_a_root() {
    let sizes = [4, 5, 16, 256, 4096];
    let roots = |keys: u64| -> BTreeSet<B256> {
        let changes: Vec<_> = (0..keys).map(|n| (key(n), Some(vec![1].into()))).collect();
        let delta = delta(&Default::default(), changes);
        let root = |most| {
            let mut store = BavlStore::new(most);
            store.apply(&delta).unwrap();
            store.root
        };
        sizes.into_iter().map(root).collect()
    };
    for keys in [0, 1, 3] {
        assert_eq!(roots(keys).len(), sizes.len(), "{keys} keys, one chunk");
    }
}

#[test]
fn a_value_that_is_not_the_one_before_is_refused() {
    let mut store = BavlStore::new(16);
    let values: common::ValueMap = (0..60).map(|n| (key(n), vec![n as u8].into())).collect();
    let all: Vec<_> = values.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    store.apply(&delta(&Default::default(), all)).unwrap();
    store.view.lenient = true;
    let lies = [(key(7), StateValue::from_static(b"else"))].into();
    let error = store.apply(&delta(&lies, [(key(7), Some(vec![1].into()))])).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(HASHES.name) && error.contains(&key(7).to_string()), "{error}");
    // The delta says that the key is new, but it exists.
    let mut store = BavlStore::new(16);
    let all: Vec<_> = values.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    store.apply(&delta(&Default::default(), all)).unwrap();
    store.view.lenient = true;
    let error = store.apply(&delta(&Default::default(), [(key(7), Some(vec![1].into()))]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains(HASHES.name) && error.contains("entries"), "{error}");
}

/// The roots of the empty state, of one entry and of three, byte for byte as on the format page.
#[test]
fn small_roots_and_rows_are_those_of_the_format() {
    let root = |most: u32, top: B256| hash(&[&[4], &most.to_be_bytes(), &top[..]]);
    let mut store = BavlStore::new(256);
    assert_eq!(store.root, root(256, hash(&[&[2, 0, 0, 0, 0]])));
    let (a, b, c) = (key(0), key(4), key(2));
    let entry = |key: BackendKey, value: &[u8]| hash(&[&[0], &key.encode(), value]);
    store.apply(&delta(&Default::default(), [(a, Some(vec![7, 8].into()))])).unwrap();
    assert_eq!(store.root, root(256, hash(&[&[2, 0, 0, 0, 1], &entry(a, &[7, 8])[..]])));
    assert_eq!(
        store.view.tables[&CHUNKS][&a.encode().to_vec()],
        [&[0, 0, 1, 0, 1][..], &entry(a, &[7, 8])[..], &[0, 0, 1]].concat()
    );

    let more = [(b, Some(vec![9].into())), (c, Some(vec![].into()))];
    store.apply(&delta(&Default::default(), more)).unwrap();
    assert!(a < b && b < c);
    let [one, two, three] = [entry(a, &[7, 8]), entry(b, &[9]), entry(c, &[])];
    let pair = hash(&[&[1], &one[..], &two[..]]);
    let top = hash(&[&[1], &pair[..], &three[..]]);
    assert_eq!(store.root, root(256, hash(&[&[2, 0, 0, 0, 3], &top[..]])));
    let row_key = [&a.encode()[..], &[0, 0]].concat();
    assert_eq!(store.view.tables[&HASHES][&row_key], [one, two, three].concat());
    assert_eq!(store.view.tables[&HASHES].len(), 1);
    assert_eq!(store.view.tables[&flat::TABLE].len(), 3);
}

/// Two chunks and two groups: the second chunk's row has key-height 1, the first chunk's row a
/// fence.
#[test]
fn rows_of_two_chunks_are_those_of_the_format() {
    let slot =
        |n: u64| BackendKey::Slot(Address::repeat_byte(5).into(), U256::from(n * 256).into());
    let mut store = BavlStore::new(24);
    let all: Vec<_> = (1..=36).map(|n| (slot(n), Some(vec![n as u8].into()))).collect();
    store.apply(&delta(&Default::default(), all)).unwrap();
    let entries = |range: std::ops::RangeInclusive<u64>| -> Vec<(BackendKey, StateValue)> {
        range.map(|n| (slot(n), vec![n as u8].into())).collect()
    };
    let (left, right) = (entries(1..=18), entries(19..=36));
    let top = hash(&[&[3], &chunk_hash(&left)[..], &chunk_hash(&right)[..]]);
    assert_eq!(store.root, hash(&[&[4, 0, 0, 0, 24], &top[..]]));
    let row = |key_height: u8, entries: &[(BackendKey, StateValue)], first: u64| {
        let hashes: Vec<_> = entries.iter().map(common::entry_hash).collect();
        let groups = [common::within(&hashes[..16]), common::within(&hashes[16..])].concat();
        // Up to the byte in which the 17th key differs from the 16th: all but the last one.
        let (own, fence) = (slot(first).encode(), slot(first + 16).encode());
        let shared = own.iter().zip(&fence[..]).take_while(|(a, b)| a == b).count();
        let fence = [&[shared as u8, (52 - shared) as u8], &fence[shared..52]].concat();
        [&[key_height, 0, 18, 0, 2], &groups[..], &[0, 0, 16], &[0, 1, 2], &fence].concat()
    };
    let rows = &store.view.tables[&CHUNKS];
    assert_eq!(rows[&slot(1).encode().to_vec()], row(0, &left, 1));
    assert_eq!(rows[&slot(19).encode().to_vec()], row(1, &right, 19));
    assert_eq!(rows.len(), 2);
    assert_eq!(store.view.tables[&HASHES].len(), 4);
}

/// What the format fixes may not move without a new version: all of it is under these roots.
#[test]
fn golden_roots() {
    let random = &mut StdRng::seed_from_u64(77);
    let mut roots = Vec::new();
    for most in [4, 256] {
        let (mut store, mut model) = (BavlStore::new(most), BavlModel::new(most));
        for _ in 0..10 {
            let delta = random_delta(random, &model.values, 700, 90);
            model.apply(&delta);
            store.apply(&delta).unwrap();
        }
        roots.push(store.root);
    }
    assert_eq!(
        roots,
        [
            b256!("56fe69aa5774332be7307dbb4d9b3e027f5bdd8b6ce74160432f3394e7954c4d"),
            b256!("1597572f0243fc36f05d661c777357ef48585d826e776422bb63d3d45492a566"),
        ]
    );
}
