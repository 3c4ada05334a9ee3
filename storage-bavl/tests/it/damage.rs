//! Damage: rows that are changed, cut, lengthened, lost or made up are found, and nothing panics.

use crate::common::{BavlModel, BavlStore, delta, key, random_delta, value};
use alloy_primitives::{Bytes, hex};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{Backend, RowTable, flat};
use retrie_storage_bavl::{CHUNKS, HASHES};

/// Some chunks, of up to three groups.
fn scene(most: u32) -> (BavlStore, BavlModel) {
    let random = &mut StdRng::seed_from_u64(31);
    let (mut store, mut model) = (BavlStore::new(most), BavlModel::new(most));
    for _ in 0..6 {
        let delta = random_delta(random, &model.values, 150, 40);
        model.apply(&delta);
        store.apply(&delta).unwrap();
    }
    assert!(model.tree.as_ref().unwrap().height() > 0);
    assert_eq!(store.faults(), [""; 0]);
    (store, model)
}

/// Opens the store, reads, makes proofs and applies blocks, all without panic. Returns the faults
/// that the check finds.
fn found(store: &BavlStore, model: &BavlModel) -> Vec<String> {
    let mut damaged = BavlStore::new(store.most());
    damaged.view = store.view.clone();
    damaged.root = store.root;
    damaged.view.lenient = true;
    let faults = damaged.faults();
    let all: Vec<_> = (0..155).map(key).collect();
    for keys in all.chunks(10).chain([&all[..], &[]]) {
        drop(damaged.backend.prove(&damaged.view, &damaged.cache, keys));
    }
    let first = key(0);
    drop(damaged.backend.prove_chunk(&damaged.view, &damaged.cache, &first));
    let random = &mut StdRng::seed_from_u64(32);
    for range in [100..190, 0..60] {
        let changes: Vec<_> = range.map(|n| (key(n), Some(value(random)))).collect();
        damaged.reopen();
        drop(damaged.apply(&delta(&model.values, changes)));
    }
    faults
}

/// Whether all proofs are unchanged, and further blocks have the right roots.
fn serves(store: &BavlStore, model: &BavlModel) -> bool {
    let mut damaged = BavlStore::new(store.most());
    damaged.view = store.view.clone();
    damaged.root = store.root;
    let all: Vec<_> = (0..155).map(key).collect();
    let proof = damaged.backend.prove(&damaged.view, &damaged.cache, &all);
    if !proof.is_ok_and(|proof| proof[..] == model.proof(&all).bytes()) {
        return false;
    }
    let mut model = model.clone();
    let random = &mut StdRng::seed_from_u64(34);
    (0..4).all(|_| {
        let delta = random_delta(random, &model.values, 150, 40);
        model.apply(&delta);
        damaged.apply(&delta).is_ok() && damaged.root == model.root()
    })
}

fn set(store: &mut BavlStore, table: RowTable, key: &[u8], row: Option<Bytes>) -> Option<Bytes> {
    let rows = store.view.tables.entry(table).or_default();
    match row {
        Some(row) => rows.insert(key.to_vec(), row),
        None => rows.remove(key),
    }
}

#[test]
fn every_damaged_or_missing_row_is_found() {
    for most in [5, 40] {
        let (mut store, model) = scene(most);
        assert_eq!(found(&store, &model), [""; 0]);
        let random = &mut StdRng::seed_from_u64(33);
        for table in [flat::TABLE, CHUNKS, HASHES] {
            let rows: Vec<_> = store.view.tables[&table].clone().into_iter().collect();
            for (key, row) in rows {
                let mut damaged = vec![None, Some([&row[..], &[1]].concat())];
                if let Some(last) = row.len().checked_sub(1) {
                    damaged.push(Some(row[..last].to_vec()));
                    // Of a chunk's row the head, and anything.
                    let head = (table == CHUNKS).then_some(0..row.len().min(3)).into_iter();
                    let any: Vec<_> = (0..3).map(|_| random.random_range(0..row.len())).collect();
                    for at in head.flatten().chain(any) {
                        let mut bytes = row.to_vec();
                        bytes[at] ^= 1 << random.random_range(0..8);
                        damaged.push(Some(bytes));
                    }
                }
                for bytes in damaged {
                    let what = format!("{most}: {bytes:02x?} in {} {key:02x?}", table.name);
                    set(&mut store, table, &key, bytes.map(Bytes::from));
                    // Another fence between the same keys is valid, too.
                    let is_harmless = table == CHUNKS && serves(&store, &model);
                    assert!(is_harmless || !found(&store, &model).is_empty(), "{what}");
                }
                set(&mut store, table, &key, Some(row));
            }
        }
        assert_eq!(found(&store, &model), [""; 0]);
    }
}

#[test]
fn rows_that_nobody_has_written_are_found() {
    let (mut store, model) = scene(5);
    let first = store.view.tables[&CHUNKS].keys().nth(1).unwrap().clone();
    let row = store.view.tables[&CHUNKS][&first].to_vec();
    let made_up: [(RowTable, Vec<u8>, Vec<u8>); 9] = [
        (flat::TABLE, key(4001).encode().to_vec(), vec![1]),
        (CHUNKS, key(4001).encode().to_vec(), row.clone()),
        (CHUNKS, vec![], row.clone()),
        (CHUNKS, vec![0; 20], row),
        (HASHES, vec![], vec![0; 32]),
        (HASHES, key(4001).encode().to_vec(), vec![0; 32]),
        (HASHES, [&key(4001).encode()[..], &[0, 0]].concat(), vec![0; 32]),
        (HASHES, [&first[..], &[0, 1]].concat(), vec![0; 32]),
        (HASHES, [&first[..], &[0, 0, 0]].concat(), vec![0; 32]),
    ];
    for (table, key, row) in made_up {
        assert_eq!(set(&mut store, table, &key, Some(row.into())), None);
        let found = found(&store, &model);
        assert!(!found.is_empty(), "{} {key:02x?}", table.name);
        set(&mut store, table, &key, None);
    }
    assert_eq!(found(&store, &model), [""; 0]);
    let mut empty = BavlStore::new(5);
    assert_eq!(empty.faults(), [""; 0]);
    for (table, row) in [(flat::TABLE, vec![1]), (HASHES, vec![0; 32]), (CHUNKS, vec![0, 0, 0])] {
        set(&mut empty, table, &key(0).encode(), Some(row.into()));
        assert!(!empty.faults().is_empty(), "{}", table.name);
        set(&mut empty, table, &key(0).encode(), None);
    }
}

/// Shapes that are no AVL tree's, and one as deep as there are chunks.
#[test]
fn key_heights_of_no_avl_tree_are_refused_by_name() {
    let (mut store, model) = scene(5);
    let rows: Vec<_> = store.view.tables[&CHUNKS].clone().into_iter().collect();
    let heights: Vec<u8> = rows.iter().map(|(_, row)| row[0]).collect();
    let count = rows.len() as u8;
    assert!(count > 10);
    let shapes: [Vec<u8>; 6] = [
        (0..count).collect(),
        (0..count).rev().collect(),
        vec![0; count.into()],
        vec![1; count.into()],
        vec![255; count.into()],
        heights.iter().map(|height| height.saturating_add(1)).collect(),
    ];
    for shape in shapes {
        for ((key, row), height) in rows.iter().zip(&shape) {
            let row = [&[*height], &row[1..]].concat();
            set(&mut store, CHUNKS, key, Some(row.into()));
        }
        let faults = found(&store, &model);
        let [fault] = &faults[..] else { panic!("{shape:?}: {faults:?}") };
        assert!(fault.contains(CHUNKS.name) && fault.contains("AVL"), "{fault}");
        let error = store
            .backend
            .open(&store.view, None)
            .and_then(|cache| store.backend.prove(&store.view, &cache, &[key(1)]));
        assert!(error.unwrap_err().to_string().contains("key-height"));
    }
}

/// A chunk whose last fence lies behind its last key, and behind the chunk.
#[test]
fn a_fence_beyond_its_chunk_is_named_and_nothing_panics() {
    let (mut store, model) = scene(40);
    let rows: Vec<_> = store.view.tables[&CHUNKS].clone().into_iter().collect();
    let mut tried = 0;
    for (first, row) in rows {
        let groups = u16::from_be_bytes([row[3], row[4]]);
        let parts = usize::from(u16::from_be_bytes([row[1], row[2]])).div_ceil(16);
        if groups != 2 {
            continue;
        }
        tried += 1;
        // Head, parts, first group; then name, length, and nothing shared: one byte.
        let second = 5 + 32 * parts + 3;
        let damaged = [&row[..second + 3], &[0, 1, 0xff]].concat();
        set(&mut store, CHUNKS, &first, Some(damaged.into()));
        let faults = found(&store, &model);
        assert!(faults.iter().any(|fault| fault.contains("fence")), "{faults:?}");
        set(&mut store, CHUNKS, &first, Some(row));
    }
    assert!(tried > 0);
}

#[test]
fn another_shape_of_the_same_chunks_is_another_root() {
    let (mut store, model) = scene(5);
    let rows: Vec<_> = store.view.tables[&CHUNKS].clone().into_iter().collect();
    // A rotation: two neighbouring inner nodes with equal children swap places, if this gives a
    // tree.
    let mut found_one = false;
    for pair in rows.windows(2) {
        let [(a, left), (b, right)] = pair else { continue };
        if left[0] == 0 {
            continue;
        }
        set(&mut store, CHUNKS, a, Some([&right[..1], &left[1..]].concat().into()));
        set(&mut store, CHUNKS, b, Some([&left[..1], &right[1..]].concat().into()));
        let faults = found(&store, &model);
        assert!(left[0] == right[0] || !faults.is_empty());
        found_one |= faults.iter().any(|fault| fault.contains("recorded"));
        set(&mut store, CHUNKS, a, Some(left.clone()));
        set(&mut store, CHUNKS, b, Some(right.clone()));
    }
    assert!(found_one);
}

#[test]
fn a_datadir_with_larger_chunks_is_refused() {
    let (store, _) = scene(40);
    let mut smaller = BavlStore::new(16);
    smaller.view = store.view.clone();
    smaller.root = store.root;
    let faults = smaller.faults();
    assert!(faults[0].contains("no chunk of up to 16 entries"), "{faults:?}");
}

#[test]
fn errors_name_the_row_that_is_missing() {
    let (mut store, model) = scene(40);
    let shown = *model.values.keys().nth(3).unwrap();
    let first = store.view.tables[&CHUNKS].keys().next().unwrap().clone();
    let row_key = [&first[..], &[0, 0]].concat();
    set(&mut store, HASHES, &row_key, None);
    store.reopen();
    let error = store.backend.prove(&store.view, &store.cache, &[shown]).unwrap_err().to_string();
    assert!(error.contains(HASHES.name) && error.contains(&hex::encode(&row_key)), "{error}");
    for change in [Some(vec![1].into()), None] {
        let mut store = BavlStore { view: store.view.clone(), ..scene(40).0 };
        let error = store.apply(&delta(&model.values, [(shown, change)])).unwrap_err().to_string();
        assert!(error.contains(HASHES.name) && error.contains(&hex::encode(&row_key)), "{error}");
    }
}
