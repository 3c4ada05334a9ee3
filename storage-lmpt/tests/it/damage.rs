//! Damaged rows give typed errors that name the table; never a panic, never another root.

use crate::common::{BlockChanges, TestChain, changes, every, key, try_open};
use alloy_primitives::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use retrie_state::{RowTable, StateError};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_storage_lmpt::{LAYERS, LISTS, META, SNAPSHOT};

const KEYS: u64 = 120;

/// A chain with a merge that is partly written ahead, and with lists of the merge before, closed;
/// and its next block.
fn chain() -> (TestChain, BlockChanges) {
    let mut chain = TestChain::new(every(9), 3);
    let random = &mut StdRng::seed_from_u64(4);
    for _ in 0..33 {
        chain.block(&changes(random, KEYS, 30));
        chain.wait_idle();
    }
    assert_eq!(chain.faults(), [""; 0]);
    chain.store().flush().unwrap();
    (chain, vec![(key(1), Some(Bytes::from_static(b"next")))])
}

fn write(kv: &MemoryStore, table: RowTable, key: &[u8], row: Option<&[u8]>) {
    let mut txn = kv.begin_write().unwrap();
    match row {
        Some(row) => txn.put(table, key, row).unwrap(),
        None => drop(txn.delete(table, key).unwrap()),
    }
    txn.commit().unwrap();
}

/// Applies blocks up to the next boundary and beyond, without a commit. Returns the error, if any.
fn go_on(store: &StateStore, chain: &TestChain, next: &BlockChanges) -> Result<(), StateError> {
    let mut before = chain.tip_entries();
    let mut last = None;
    for number in chain.number()..chain.number() + 12 {
        let delta = TestChain::delta(&before, next);
        for change in delta.changes() {
            before.extend(change.next.clone().map(|value| (change.key, value)));
        }
        let at = last.as_ref().map_or(StateId::Tip, StateId::Proposal);
        last = Some(store.begin(at)?.finish_as(number, &delta)?);
    }
    Ok(())
}

#[test]
fn rows_that_are_damaged_or_missing_are_told_by_table() {
    let (mut chain, next) = chain();
    let tables = [SNAPSHOT, LAYERS, LISTS, META];
    let rows: Vec<_> = tables.iter().map(|table| (*table, chain.rows(*table))).collect();
    chain.close();
    let options = StoreOptions { retention: 3, ..StoreOptions::default() };
    let sound = {
        let store = try_open(chain.params, &chain.kv, &options).unwrap();
        go_on(&store, &chain, &next).unwrap();
        store.tip()
    };
    let mut noticed = [0; 4];
    for (of, (table, rows)) in rows.iter().enumerate() {
        assert!(!rows.is_empty(), "{}", table.name);
        let step = rows.len().div_ceil(25);
        for (key, row) in rows.iter().step_by(step) {
            let mut flipped = row.to_vec();
            let at = flipped.len() / 2;
            flipped[at] ^= 0x10;
            for damaged in [Some(&flipped[..]), Some(&row[..row.len() - 1]), Some(&[]), None] {
                write(&chain.kv, *table, key, damaged);
                match try_open(chain.params, &chain.kv, &options) {
                    Ok(store) => {
                        assert_eq!(store.tip(), sound);
                        match go_on(&store, &chain, &next) {
                            Err(StateError::Corrupt { table: named, .. }) => {
                                assert!(named.starts_with("Lmpt") || named == "Flat", "{named}");
                                noticed[of] += 1;
                            }
                            // The error of a job.
                            Err(StateError::Job { reason, .. }) => {
                                assert!(reason.contains("Lmpt"), "{reason}");
                                noticed[of] += 1;
                            }
                            Err(other) => panic!("{other}"),
                            // Rows that are not read; the check finds them.
                            Ok(()) => {}
                        }
                        let store = &mut Some(store);
                        let faults = std::mem::take(store).map(|store| faults(&chain, store));
                        let may_be_missed = *table == LISTS || *table == META;
                        assert!(may_be_missed || faults != Some(0), "{} {key}", table.name);
                    }
                    Err(StateError::Corrupt { table: named, .. }) => {
                        assert!(named.starts_with("Lmpt"), "{named}");
                        noticed[of] += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            write(&chain.kv, *table, key, Some(row));
        }
    }
    // Only commits read lists.
    assert!(noticed[0] > 5 && noticed[1] > 20 && noticed[3] > 0, "{noticed:?}");
    let store = try_open(chain.params, &chain.kv, &options).unwrap();
    go_on(&store, &chain, &next).unwrap();
}

/// The number of faults that the check finds.
fn faults(chain: &TestChain, store: StateStore) -> usize {
    let mut of = TestChain::new(chain.params, 3);
    of.replace_store(store);
    of.faults().len()
}

#[test]
fn a_row_of_a_layer_that_is_added_is_told() {
    let (mut chain, next) = chain();
    let (first, row) = chain.rows(LAYERS).last().cloned().unwrap();
    chain.close();
    let mut other = first.to_vec();
    *other.last_mut().unwrap() ^= 1;
    write(&chain.kv, LAYERS, &other, Some(&row));
    let store = try_open(chain.params, &chain.kv, &chain.options).unwrap();
    let error = go_on(&store, &chain, &next).unwrap_err().to_string();
    assert!(error.contains("LmptLayers: row") && error.contains("out of order"), "{error}");
    // Values come from Flat.
    let tip = chain.number() - 1;
    assert_eq!(store.at(StateId::Tip).unwrap().root(), chain.roots[tip as usize]);
}

#[test]
fn a_value_that_the_layers_do_not_have_is_told_by_the_check() {
    let (mut chain, _) = chain();
    chain.close();
    let value = chain.tip_entries().into_iter().next().unwrap();
    for row in [Some(&b"another"[..]), None] {
        write(&chain.kv, retrie_state::flat::TABLE, &value.0.encode(), row);
        chain.reopen();
        let faults = chain.faults();
        assert!(faults.iter().any(|fault| fault.starts_with("Flat:")), "{faults:?}");
        chain.close();
    }
}

/// The row is valid by itself, but the merge makes another one. The block that publishes the merge
/// would lead to an older version of the branch.
#[test]
fn a_settled_row_of_another_version_is_told_by_the_check() {
    let (mut chain, _) = chain();
    let rows = chain.rows(SNAPSHOT);
    chain.close();
    // Keys end with generation and origin.
    let parts = |key: &Bytes| {
        let (path, generation) = key.split_at(key.len() - 9);
        (path.to_vec(), generation[..8].to_vec(), generation[8])
    };
    let newest = rows.iter().map(|(key, _)| parts(key).1).max().unwrap();
    let settled = rows.iter().filter(|(key, _)| parts(key).1 == newest && parts(key).2 == 1);
    let older = |of: &Bytes| rows.iter().find(|(key, _)| parts(key).0 == parts(of).0 && key < of);
    let (key, older) = settled.filter_map(|(key, _)| Some((key, &older(key)?.1))).next().unwrap();
    write(&chain.kv, SNAPSHOT, key, Some(older));
    chain.reopen();
    let faults = chain.faults();
    assert!(faults.iter().any(|fault| fault.contains("not what the merge makes")), "{faults:?}");
}

/// Garbage removal is no part of a block: if its rows are damaged, blocks are committed without it,
/// and it continues once the rows are whole.
#[test]
fn clean_up_that_fails_keeps_no_block_back() {
    let (mut chain, _) = chain();
    let lists = chain.rows(LISTS);
    chain.close();
    for (key, list) in &lists {
        write(&chain.kv, LISTS, key, Some(&list[..list.len() - 1]));
    }
    chain.reopen();
    let random = &mut StdRng::seed_from_u64(8);
    for _ in 0..16 {
        chain.block(&changes(random, KEYS, 30));
    }
    let faults = chain.faults();
    assert!(faults.iter().any(|fault| fault.starts_with("LmptLists")), "{faults:?}");
    chain.close();
    for (key, list) in &lists {
        write(&chain.kv, LISTS, key, Some(list));
    }
    chain.reopen();
    for _ in 0..16 {
        chain.block(&changes(random, KEYS, 30));
        chain.wait_idle();
    }
    assert_eq!(chain.faults(), [""; 0]);
    assert!(lists.iter().all(|list| !chain.rows(LISTS).contains(list)), "they are cleaned up");
}
