//! Damage: rows that are changed, cut, lengthened, lost or made up are found, and nothing panics.

use crate::duptree_common;

use alloy_primitives::{Bytes, hex};
use duptree_common::{DupTreeModel, DupTreeStore, delta, key, random_delta, value};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{Backend, RowTable, flat};
use retrie_storage_prefix::duptree::{DupTreeLayout, KEYS, NODES};

/// Two layers, some keys deleted.
fn scene(layout: DupTreeLayout) -> (DupTreeStore, DupTreeModel) {
    let random = &mut StdRng::seed_from_u64(31);
    let (mut store, mut model) = (DupTreeStore::new(layout), DupTreeModel::default());
    for _ in 0..5 {
        let delta = random_delta(random, &model.values, 90, 40);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    if model.leaves() % 2 == 0 {
        let delta = delta(&model.values, [(key(91), Some(value(random)))]);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    assert!(model.leaves() > 64 && model.leaves() % 2 == 1, "{} leaves", model.leaves());
    assert_eq!(store.faults(), [""; 0]);
    (store, model)
}

/// Opens the store, reads, makes proofs and applies blocks, all without panic. Returns the faults
/// that the check finds.
fn found(store: &DupTreeStore, model: &DupTreeModel) -> Vec<String> {
    let mut faults = Vec::new();
    let root = store.root;
    let mut store = DupTreeStore {
        view: store.view.clone(),
        cache: store.cache.clone(),
        ..DupTreeStore::new(store.layout)
    };
    store.root = root;
    store.view.lenient = true;
    faults.extend(store.faults());
    match store.backend.open(&store.view, None) {
        Err(error) => faults.push(error.to_string()),
        Ok(cache) => {
            store.cache = cache;
            let all: Vec<_> = (0..95).map(key).collect();
            for keys in all.chunks(10).chain([&all[..], &[]]) {
                drop(store.backend.prove(&store.view, &store.cache, keys));
            }
            let random = &mut StdRng::seed_from_u64(32);
            let changes = (60..130).map(key).filter(|key| !model.values.contains_key(key));
            let changes: Vec<_> = changes.map(|key| (key, Some(value(random)))).collect();
            drop(store.apply(&delta(&model.values, changes)));
        }
    }
    faults
}

fn set(store: &mut DupTreeStore, table: RowTable, key: &[u8], row: Option<Bytes>) -> Option<Bytes> {
    let rows = store.view.tables.entry(table).or_default();
    match row {
        Some(row) => rows.insert(key.to_vec(), row),
        None => rows.remove(key),
    }
}

#[test]
fn every_damaged_or_missing_row_is_found() {
    for layout in DupTreeLayout::ALL {
        let (mut store, model) = scene(layout);
        assert_eq!(found(&store, &model), [""; 0]);
        let random = &mut StdRng::seed_from_u64(33);
        for table in [flat::TABLE, KEYS, NODES] {
            let rows: Vec<_> = store.view.tables[&table].clone().into_iter().collect();
            for (key, row) in rows {
                let mut damaged = vec![None, Some([&row[..], &[1]].concat())];
                if let Some(last) = row.len().checked_sub(1) {
                    damaged.push(Some(row[..last].to_vec()));
                    for _ in 0..3 {
                        let mut bytes = row.to_vec();
                        bytes[random.random_range(0..row.len())] ^= 1 << random.random_range(0..8);
                        damaged.push(Some(bytes));
                    }
                }
                for bytes in damaged {
                    let what = format!("{layout}: {bytes:02x?} in {} {key:02x?}", table.name);
                    set(&mut store, table, &key, bytes.map(Bytes::from));
                    assert!(!found(&store, &model).is_empty(), "{what}");
                }
                set(&mut store, table, &key, Some(row));
            }
        }
        assert_eq!(found(&store, &model), [""; 0]);
    }
}

#[test]
fn rows_that_nobody_has_written_are_found() {
    for layout in DupTreeLayout::ALL {
        let (mut store, model) = scene(layout);
        let made_up: [(RowTable, Vec<u8>, Vec<u8>); 9] = [
            (flat::TABLE, key(4001).encode().to_vec(), vec![1]),
            (KEYS, key(4001).encode().to_vec(), vec![3]),
            (KEYS, vec![0; 20], vec![3]),
            (KEYS, vec![3; 21], vec![3]),
            (NODES, vec![], vec![0; 32]),
            (NODES, vec![0; 8], vec![0; 32]),
            (NODES, vec![0, 0, 0, 0, 0, 0, 0, 9, 9], vec![0; 32]),
            (NODES, vec![13; 9], vec![0; 32]),
            (NODES, vec![0xff, 0], vec![0; 32]),
        ];
        for (table, key, row) in made_up {
            assert_eq!(set(&mut store, table, &key, Some(row.into())), None);
            let found = found(&store, &model);
            assert!(found.iter().any(|what| what.contains(table.name)), "{key:02x?}: {found:?}");
            set(&mut store, table, &key, None);
        }
        let mut empty = DupTreeStore::new(layout);
        assert_eq!(empty.faults(), [""; 0]);
        set(&mut empty, NODES, &[0; 9], Some(vec![0; 32].into()));
        assert!(empty.faults()[0].contains(NODES.name));
    }
}

#[test]
fn numbers_that_are_no_permutation_are_named() {
    for layout in DupTreeLayout::ALL {
        let (mut store, model) = scene(layout);
        let [a, b] = [model.keys[5], model.keys[40]];
        let row = |number: u64| Some(Bytes::from(duptree_common::varint(number)));
        // Two keys have one leaf.
        let old = set(&mut store, KEYS, &b.encode(), row(6));
        let faults = found(&store, &model);
        let twice = |fault: &String| fault.contains("leaf 6") && fault.contains("another key");
        assert!(faults.iter().any(twice), "{faults:?}");
        // Two keys have each other's.
        set(&mut store, KEYS, &a.encode(), row(41));
        let faults = found(&store, &model);
        let named = |key: &str| faults.iter().any(|fault| fault.contains(key));
        assert!(named(&a.to_string()) && named(&b.to_string()), "{faults:?}");
        set(&mut store, KEYS, &a.encode(), row(6));
        for number in [model.leaves(), u64::MAX] {
            set(&mut store, KEYS, &b.encode(), row(number));
            let faults = found(&store, &model);
            assert!(faults.iter().any(|fault| fault.contains(&b.to_string())), "{faults:?}");
        }
        set(&mut store, KEYS, &b.encode(), old);
        assert_eq!(found(&store, &model), [""; 0]);
    }
}

#[test]
fn a_tree_that_claims_to_be_huge_is_refused_at_once() {
    for layout in DupTreeLayout::ALL {
        let (mut store, model) = scene(layout);
        let whole = store.view.tables[&NODES][&vec![0xff]].clone();
        for leaves in [0, 1, 2, 66, 1 << 40, 1 << 63, (1 << 63) + 1, u64::MAX] {
            let row = [&u64::to_be_bytes(leaves)[..], &whole[8..]].concat();
            set(&mut store, NODES, &[0xff], Some(row.into()));
            let faults = found(&store, &model);
            assert!(faults.iter().any(|fault| fault.contains("row ff")), "{leaves}: {faults:?}");
        }
    }
}

#[test]
fn copies_of_a_node_that_disagree_are_both_named() {
    let (mut store, model) = scene(DupTreeLayout::Dup);
    // Rows 0 and 1 of layer 0 both show node 1 of level 1.
    let row_key = |number: u8| [0, 0, 0, 0, 0, 0, 0, 0, number];
    let row = store.view.tables[&NODES][&row_key(1).to_vec()].clone();
    let mut bytes = row.to_vec();
    bytes[40] ^= 1;
    set(&mut store, NODES, &row_key(1), Some(bytes.into()));
    let faults = found(&store, &model);
    let [first, second] = [0, 1].map(|number| hex::encode(row_key(number)));
    let both = |fault: &String| fault.contains(&first) && fault.contains(&second);
    assert!(faults.iter().any(both), "{faults:?}");
    set(&mut store, NODES, &row_key(1), Some(row));
    assert_eq!(found(&store, &model), [""; 0]);
}

/// A row that is not needed for its own path may be stale. The error comes later, and names the
/// row.
#[test]
fn errors_name_the_row_that_is_missing() {
    for layout in DupTreeLayout::ALL {
        let (mut store, model) = scene(layout);
        let shown = model.keys[3];
        // What the path of leaf 4 reads first.
        let number = match layout {
            DupTreeLayout::Naive => 5,
            DupTreeLayout::Dup => 4,
            DupTreeLayout::Blocked => 0,
        };
        let row_key = [0, 0, 0, 0, 0, 0, 0, 0, number];
        set(&mut store, NODES, &row_key, None);
        store.reopen();
        let error = store.backend.prove(&store.view, &store.cache, &[shown]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(NODES.name) && error.contains(&hex::encode(row_key)), "{error}");
        let error = store.apply(&delta(&model.values, [(shown, Some(vec![1].into()))]));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(NODES.name) && error.contains(&hex::encode(row_key)), "{error}");
    }
}
