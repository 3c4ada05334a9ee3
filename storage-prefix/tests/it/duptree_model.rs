//! Random histories against the tree by its definition: roots, proofs and rows of every layout.

use crate::duptree_common::{DupTreeModel, DupTreeStore, delta, key, random_delta, value};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{Backend, BackendKey, BackendStats, StateValue, blake2b, flat};
use retrie_state_testkit::MemoryView;
use retrie_storage_prefix::duptree::{DupTree, DupTreeLayout, KEYS, NODES, verify};

/// One store of each layout, and some with almost nothing in memory.
fn stores() -> Vec<DupTreeStore> {
    let all = DupTreeLayout::ALL.into_iter();
    let small = |layout: DupTreeLayout| {
        [0, 1, 3].map(|most| DupTreeStore::of(layout, DupTree::with_cache(layout, most)))
    };
    all.clone().map(DupTreeStore::new).chain(all.flat_map(small)).collect()
}

fn same(stores: &[DupTreeStore], model: &DupTreeModel, random: &mut StdRng) {
    let root = model.root();
    let mut keys: Vec<BackendKey> = (0..6).map(|_| key(random.random_range(0..2000))).collect();
    keys.extend((0..4).filter_map(|_| model.keys.choose(random)));
    keys.truncate(random.random_range(0..=keys.len()));
    let proof = model.proof(&keys).bytes();
    let truth: Vec<_> = keys.iter().map(|key| model.values.get(key).cloned()).collect();
    assert_eq!(verify(root, &keys, &proof).unwrap(), truth);
    for store in stores {
        assert_eq!(store.root, root, "{}, {} leaves", store.layout, model.leaves());
        assert_eq!(store.prove(&keys), proof, "{}, {} leaves", store.layout, model.leaves());
    }
}

#[test]
fn every_layout_has_the_roots_and_proofs_of_the_definition() {
    for seed in 0..4 {
        let random = &mut StdRng::seed_from_u64(seed);
        let (mut stores, mut model) = (stores(), DupTreeModel::default());
        same(&stores, &model, random);
        for block in 0..40 {
            let (keys, changes) = [(60, 8), (2000, 60), (2000, 3), (300, 0)][block % 4];
            let delta = random_delta(random, &model.values, keys, changes);
            model.apply(&delta);
            for store in &mut stores {
                store.apply(&delta).unwrap();
                if random.random_ratio(1, 5) {
                    store.reopen();
                }
            }
            same(&stores, &model, random);
        }
        assert!(model.height() > 8, "three layers: {}", model.height());
        for store in &stores {
            assert_eq!(store.faults(), [""; 0], "{}", store.layout);
        }
    }
}

#[test]
fn the_tree_doubles_leaf_by_leaf() {
    let random = &mut StdRng::seed_from_u64(5);
    let (mut stores, mut model) = (stores(), DupTreeModel::default());
    for n in 0..1100 {
        let delta = delta(&model.values, [(key(n * 7919 % 5000), Some(value(random)))]);
        model.apply(&delta);
        stores.iter_mut().for_each(|store| store.apply(&delta).unwrap());
        let leaves = model.leaves();
        let is_edge = (leaves - 1).is_power_of_two() || leaves.is_power_of_two() || n % 97 == 0;
        if is_edge {
            same(&stores, &model, random);
            for store in &stores {
                assert_eq!(store.faults(), [""; 0], "{}, {leaves} leaves", store.layout);
            }
        }
    }
    assert_eq!((model.leaves(), model.height()), (1101, 11));
}

#[test]
fn a_load_writes_the_rows_of_a_first_block() {
    let random = &mut StdRng::seed_from_u64(6);
    // Around full subtrees of each layer, and around what is hashed at once.
    for count in
        [0, 1, 2, 3, 30, 31, 32, 33, 63, 64, 255, 1022, 1023, 1024, 1025, 2100, 16383, 16400]
    {
        let all = (0..count).map(|n| (key(n), Some(value(random))));
        let delta = delta(&Default::default(), all);
        let set = |change: &retrie_state::BackendChange| (change.key, change.next.clone().unwrap());
        let model = DupTreeModel {
            keys: delta.changes().iter().map(|change| change.key).collect(),
            values: delta.changes().iter().map(set).collect(),
        };
        for layout in DupTreeLayout::ALL {
            let (mut store, mut loaded) = (DupTreeStore::new(layout), MemoryView::default());
            store.apply(&delta).unwrap();
            let mut entries = model.values.iter().map(|(key, value)| Ok((*key, value.clone())));
            let root = store.backend.bulk_load(0, &mut entries, &mut loaded).unwrap();
            assert_eq!(root, store.root, "{layout}, {count} keys");
            if count < 3000 {
                assert_eq!(root, model.root(), "{layout}, {count} keys");
            }
            assert!(loaded.filled() == store.view.filled(), "{layout}, {count} keys");
            assert_eq!(store.faults(), [""; 0], "{layout}, {count} keys");
        }
    }
}

#[test]
fn deleted_keys_keep_their_leaves_and_come_back_to_them() {
    let random = &mut StdRng::seed_from_u64(7);
    let (mut stores, mut model) = (stores(), DupTreeModel::default());
    let all: Vec<BackendKey> = (0..200).map(key).collect();
    let live = [all.len(), 0, 50, 0, all.len()];
    for (block, live) in live.into_iter().enumerate() {
        let next = |at| (at < live).then(|| value(random));
        let delta = delta(&model.values, all.iter().copied().zip((0..all.len()).map(next)));
        model.apply(&delta);
        for store in &mut stores {
            store.apply(&delta).unwrap();
            let stats = store.backend.stats(&store.view, &store.cache).unwrap();
            let BackendStats { live_keys, dead_keys, .. } = stats;
            assert_eq!((live_keys, dead_keys), (live as u64, (all.len() - live) as u64));
            assert_eq!(store.view.tables[&KEYS].len(), all.len(), "block {block}");
        }
        same(&stores, &model, random);
        for store in &stores {
            assert_eq!(store.faults(), [""; 0], "{}", store.layout);
        }
    }
    assert_eq!(model.leaves(), 201);
}

#[test]
fn siblings_leave_their_parents_cache_as_it_was() {
    let random = &mut StdRng::seed_from_u64(8);
    for layout in DupTreeLayout::ALL {
        let (mut store, mut model) = (DupTreeStore::new(layout), DupTreeModel::default());
        for _ in 0..12 {
            let delta = random_delta(random, &model.values, 3000, 200);
            model.apply(&delta);
            store.apply(&delta).unwrap();
        }
        let (view, cache, root) = (store.view.clone(), store.cache.clone(), store.root);
        let keys: Vec<_> = (0..40).map(key).collect();
        let proof = store.prove(&keys);
        for _ in 0..3 {
            let mut child = model.clone();
            let delta = random_delta(random, &child.values, 4000, 300);
            child.apply(&delta);
            store.apply(&delta).unwrap();
            assert_eq!(store.root, child.root(), "{layout}");
            (store.view, store.cache, store.root) = (view.clone(), cache.clone(), root);
            assert_eq!(store.prove(&keys), proof, "{layout}");
        }
    }
}

#[test]
fn a_path_takes_as_many_rows_as_the_layout_says() {
    let random = &mut StdRng::seed_from_u64(9);
    for layout in DupTreeLayout::ALL {
        let (mut store, mut model) = (DupTreeStore::new(layout), DupTreeModel::default());
        for _ in 0..6 {
            let delta = random_delta(random, &model.values, 9000, 1000);
            model.apply(&delta);
            store.apply(&delta).unwrap();
        }
        let (height, leaves) = (u64::from(model.height()), model.leaves());
        assert!(height == 12, "three layers: {height}");
        store.reopen();
        // A key whose path has no empty sibling.
        let shown = model.keys[100];
        let before = [store.view.counts(NODES).gets, store.view.counts(NODES).scans];
        store.prove(&[shown]);
        let gets = store.view.counts(NODES).gets - before[0];
        assert_eq!(store.view.counts(NODES).scans, before[1]);
        let subtrees = height.div_ceil(5);
        let expected = if layout == DupTreeLayout::Naive { height } else { subtrees };
        assert_eq!(gets, expected, "{layout}, {leaves} leaves");

        // Written: the path, and the row of the size.
        let written = store.view.counts(NODES).writes;
        let changed = delta(&model.values, [(shown, Some(value(random)))]);
        model.apply(&changed);
        store.apply(&changed).unwrap();
        let written = store.view.counts(NODES).writes - written - 1;
        let (all, expected) = match layout {
            DupTreeLayout::Naive => (height, height),
            DupTreeLayout::Blocked => (subtrees, subtrees),
            // All rows of a full subtree but the own one, which shows what is beside the path.
            DupTreeLayout::Dup => (32 * subtrees, 31 + 31),
        };
        assert!(written >= expected && written <= all, "{layout}: {written} rows");
        // Reads of the block: siblings, or whole subtrees.
        let delta = delta(&model.values, [(shown, None)]);
        let before = store.view.counts(NODES).gets + store.view.counts(NODES).scans;
        store.apply(&delta).unwrap();
        let read = store.view.counts(NODES).gets + store.view.counts(NODES).scans - before;
        // Upper subtrees are in memory by now.
        assert_eq!(read, if layout == DupTreeLayout::Naive { 5 } else { 1 }, "{layout}");
    }
}

#[test]
fn a_value_without_a_leaf_is_refused() {
    for layout in DupTreeLayout::ALL {
        let mut store = DupTreeStore::new(layout);
        let held = StateValue::from_static(&[1]);
        let values = [(key(1), held.clone())].into();
        let flat = store.view.tables.entry(flat::TABLE).or_default();
        flat.insert(key(1).encode().to_vec(), held);
        let error = store.apply(&delta(&values, [(key(1), None)])).unwrap_err().to_string();
        assert!(error.contains(KEYS.name) && error.contains(&key(1).to_string()), "{error}");
    }
}

/// The roots of the empty state and of one key, byte for byte as on the format page.
#[test]
fn small_roots_are_those_of_the_format() {
    let hash = blake2b::hash;
    let empty_leaf = hash(&[&[2]]);
    let sentinel = hash(&[&[0], &[2, 0, 2]]);
    let store = DupTreeStore::new(DupTreeLayout::Blocked);
    assert_eq!(store.root, hash(&[&[3, 0], &sentinel[..]]));
    assert_ne!(empty_leaf, sentinel);

    let mut store = DupTreeStore::new(DupTreeLayout::Blocked);
    let account = key(0);
    store.apply(&delta(&Default::default(), [(account, Some(vec![7, 8].into()))])).unwrap();
    let first = hash(&[&[0], &[2, 0], &account.encode()]);
    let own = hash(&[&[0], &account.encode(), &[3, 7, 8], &[2]]);
    let top = hash(&[&[1], &first[..], &own[..]]);
    assert_eq!(store.root, hash(&[&[3, 1], &top[..]]));
    let rows = &store.view.tables[&NODES];
    let row = [&first[..], &own[..]].concat();
    assert_eq!(rows[&vec![0; 9]], row);
    assert_eq!(rows[&vec![0xff]], [&2u64.to_be_bytes()[..], &top[..]].concat());
    assert_eq!(rows.len(), 2);
    assert_eq!(store.view.tables[&KEYS][&account.encode().to_vec()][..], [1]);
}
