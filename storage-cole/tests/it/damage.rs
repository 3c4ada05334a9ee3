//! Damage: a store with a damaged or missing file or row names it, and never panics.

use crate::common::{TestChain, faults, key, open};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateReader};
use retrie_state_store::{KvStore, StateId};
use retrie_storage_cole::ColeParams;
use std::fs;

fn chain() -> TestChain {
    let params = ColeParams { memory_pairs: 60, size_ratio: 2, ..ColeParams::default() };
    let mut chain = TestChain::new(params, 0);
    let mut random = StdRng::seed_from_u64(6);
    for _ in 0..120 {
        chain.random_block(&mut random, 150, 20);
        chain.store().wait_idle().unwrap();
    }
    assert_eq!(chain.faults(), [""; 0]);
    chain.store().flush().unwrap();
    chain.close();
    chain
}

/// The faults found by opening, reading, proving and checking.
fn found(chain: &TestChain) -> Vec<String> {
    match open(chain.params, &chain.kv, &chain.dir, 0) {
        Err(error) => vec![error.to_string()],
        Ok(store) => {
            let keys: Vec<_> = (0..170).map(key).collect();
            let tip = store.at(StateId::Tip).unwrap();
            let mut found: Vec<_> =
                keys.iter().filter_map(|key| Some(tip.get(key).err()?.to_string())).collect();
            found.extend(tip.prove(&keys).err().map(|error| error.to_string()));
            found.extend(faults(&store));
            found
        }
    }
}

#[test]
fn every_damaged_or_missing_file_is_named() {
    let chain = chain();
    let mut random = StdRng::seed_from_u64(7);
    let snapshot = chain.kv.snapshot().unwrap();
    let meta = RowTable::new(0x41, "ColeMeta");
    let manifest = snapshot.get(meta, b"manifest").unwrap().unwrap();
    // Files of runs that are replaced or not yet in use do not belong to the state.
    let is_named = |name: &String| {
        let stem = name.split('.').next().unwrap().as_bytes();
        manifest.windows(stem.len()).any(|part| part == stem)
    };
    let named: Vec<String> = chain.files().into_iter().filter(is_named).collect();
    assert!(named.len() >= 8 && named.len().is_multiple_of(4), "{named:?}");
    for name in named {
        let path = chain.dir.path().join(&name);
        let whole = fs::read(&path).unwrap();
        for _ in 0..6 {
            let mut bytes = whole.clone();
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= 1 << random.random_range(0..8);
            fs::write(&path, &bytes).unwrap();
            let found = found(&chain);
            assert!(found.iter().any(|what| what.contains(&name)), "{name}, byte {at}: {found:?}");
        }
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            let found = found(&chain);
            assert!(found.iter().any(|what| what.contains(&name)), "{name}, {cut} left: {found:?}");
        }
        fs::remove_file(&path).unwrap();
        let missing = found(&chain);
        assert!(missing.iter().any(|what| what.contains(&name)), "{name} missing: {missing:?}");
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(found(&chain), [""; 0]);
}

#[test]
fn every_damaged_or_missing_row_is_found() {
    let chain = chain();
    for table in [RowTable::new(0x40, "ColeMemory"), RowTable::new(0x41, "ColeMeta")] {
        let snapshot = chain.kv.snapshot().unwrap();
        let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
        assert!(!rows.is_empty());
        let set = |key: &[u8], value: Option<&[u8]>| {
            let mut txn = chain.kv.begin_write().unwrap();
            match value {
                Some(value) => txn.put(table, key, value).unwrap(),
                None => drop(txn.delete(table, key).unwrap()),
            }
            txn.commit().unwrap();
        };
        let mut noticed = 0;
        for (key, value) in &rows {
            let before = noticed;
            for at in [0, value.len() / 2, value.len() - 1] {
                let mut bytes = value.to_vec();
                bytes[at] ^= 0x10;
                set(key, Some(&bytes));
                noticed += usize::from(!found(&chain).is_empty());
            }
            set(key, None);
            noticed += usize::from(!found(&chain).is_empty());
            set(key, Some(value));
            let noticed = noticed - before;
            match &key[..] {
                // Plausible numbers are left to the checksums of the database.
                b"blocks" => assert!(noticed >= 2, "row `blocks`: {noticed} noticed"),
                b"manifest" => assert_eq!(noticed, 4, "row `manifest`"),
                // Rows of blocks that have left the memory level wait to be removed; they are not
                // read.
                _ => assert!([0, 4].contains(&noticed), "row {key}: {noticed} noticed"),
            }
        }
        assert!(noticed > 0);
        assert_eq!(found(&chain), [""; 0]);
    }
}

#[test]
fn a_newer_manifest_is_named() {
    let chain = chain();
    let meta = RowTable::new(0x41, "ColeMeta");
    let snapshot = chain.kv.snapshot().unwrap();
    let row = snapshot.get(meta, b"manifest").unwrap().unwrap();
    let mut txn = chain.kv.begin_write().unwrap();
    txn.put(meta, b"manifest", &[&[9], &row[1..]].concat()).unwrap();
    txn.commit().unwrap();
    let files = chain.files();
    let found = found(&chain);
    assert!(found[0].contains("version 9") && found[0].contains("newer"), "{found:?}");
    assert_eq!(chain.files(), files, "nothing else is touched");
}
