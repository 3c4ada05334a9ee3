//! Tests of flat history beyond the test-kit: options that change between openings, pruning that
//! has to catch up, large blocks, damaged rows, and the bytes on disk.

use crate::common;

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use common::{commit, hash, hashed::MockHash, propose, revert, slot_key};
use retrie_state::{
    KeyRange, RowTable, ScanDirection, StateError, StateKey, StateReader, StateValue, encode_slot,
};
use retrie_state_store::{
    FlatHistory, KvStore, KvTxn, MemoryStore, Proposal, StateCheck, StateCheckSink, StateId,
    StateStore, StoreOptions,
};
use std::{ops::RangeInclusive, sync::Arc};

fn open(kv: &MemoryStore, changes: FlatHistory) -> StateStore {
    let options = StoreOptions {
        retention: 3,
        flat_history: changes,
        fold_commits: 7,
        ..StoreOptions::default()
    };
    common::open(Arc::new(MockHash), kv, None, options).unwrap()
}

/// Two bytes, another one for each block.
fn value(n: u64) -> StateValue {
    encode_slot(U256::from(n + 1000)).unwrap()
}

/// Commits the blocks `numbers`, in each of which `keys` slots are set to the block's number.
fn extend(store: &StateStore, kv: &MemoryStore, numbers: RangeInclusive<u64>, keys: u64) {
    for number in numbers {
        let changes: Vec<_> = (0..keys).map(|n| (slot_key(n), Some(value(number)))).collect();
        let proposal = propose(store, StateId::Tip, hash(0, number), &changes).unwrap();
        commit(store, kv, &[proposal]).unwrap();
    }
}

/// Checks what is kept, and the state of each kept block.
fn assert_kept(store: &StateStore, expected: RangeInclusive<u64>) {
    assert_eq!(store.flat_history_kept(StateId::Tip).unwrap(), Some(expected.clone()));
    for number in expected {
        let past = store.flat_history(StateId::Tip, number).unwrap();
        for n in [0, 3] {
            assert_eq!(past.get(&slot_key(n)).unwrap(), Some(value(number)), "block {number}");
        }
    }
}

fn table(name: &str) -> RowTable {
    let tables = StateStore::tables(&MockHash);
    tables.into_iter().find(|table| table.name == name).unwrap()
}

fn rows(kv: &MemoryStore, name: &str) -> Vec<(Bytes, Bytes)> {
    let snapshot = kv.snapshot().unwrap();
    snapshot.scan(table(name), KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap()
}

#[test]
fn a_gap_hides_what_lies_before_it_and_is_cleared_away() {
    let kv = MemoryStore::new();
    let store = open(&kv, FlatHistory::All);
    extend(&store, &kv, 0..=5, 4);
    assert_kept(&store, 0..=5);
    drop(store);

    // A proposal does not end a range.
    let store = open(&kv, FlatHistory::Off);
    propose(&store, StateId::Tip, hash(1, 6), &[]).unwrap();
    assert_kept(&store, 0..=5);
    extend(&store, &kv, 6..=7, 4);
    assert_kept(&store, 7..=7);
    let error = store.flat_history(StateId::Tip, 6).unwrap_err();
    assert!(matches!(error, StateError::BeyondHistory { number: 6, first: 7 }), "{error}");
    for part in ["block 6", "block 7", "history of states"] {
        assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
    }
    store.flush().unwrap();
    assert!(rows(&kv, "Changes").is_empty() && rows(&kv, "ChangedKeys").is_empty());
    drop(store);

    let store = open(&kv, FlatHistory::All);
    assert_kept(&store, 7..=7);
    extend(&store, &kv, 8..=9, 4);
    assert_kept(&store, 7..=9);
    let error = store.flat_history(StateId::Tip, 6).unwrap_err();
    assert!(matches!(error, StateError::BeyondHistory { number: 6, first: 7 }), "{error}");
    // Reverts into the gap, and continues from there.
    revert(&store, &kv, 6).unwrap();
    assert_kept(&store, 6..=6);
    extend(&store, &kv, 7..=12, 4);
    assert_kept(&store, 6..=12);
}

#[test]
fn a_gap_that_is_reverted_leaves_the_history_before_it() {
    let kv = MemoryStore::new();
    // More history than one commit deletes.
    extend(&open(&kv, FlatHistory::All), &kv, 0..=400, 25);
    let store = open(&kv, FlatHistory::Off);
    extend(&store, &kv, 401..=401, 4);
    assert_kept(&store, 401..=401);
    revert(&store, &kv, 400).unwrap();
    let kept = store.flat_history_kept(StateId::Tip).unwrap().unwrap();
    assert!((1..400).contains(kept.start()), "{kept:?}");
    assert_kept(&store, kept);
}

#[test]
fn pruning_changes_its_mind_and_catches_up_in_bounded_steps() {
    let kv = MemoryStore::new();
    extend(&open(&kv, FlatHistory::All), &kv, 0..=500, 25);
    assert_kept(&open(&kv, FlatHistory::Off), 0..=500);

    let store = open(&kv, FlatHistory::Last(20));
    let mut start = 0;
    for number in 501..600 {
        extend(&store, &kv, number..=number, 4);
        let kept = store.flat_history_kept(StateId::Tip).unwrap().unwrap();
        let pruned = kept.start() - start;
        assert!(pruned * 26 <= 4096 + 200, "{pruned} blocks at once");
        assert_kept(&store, kept.clone());
        start = *kept.start();
        if start == number - 20 {
            assert!(number > 502, "all at once");
            break;
        }
    }
    let tip = store.tip().unwrap().block.number;
    assert_eq!(start, tip - 20, "it has not caught up");
    extend(&store, &kv, tip + 1..=tip + 30, 4);
    assert_kept(&store, tip + 10..=tip + 30);
    drop(store);
    let store = open(&kv, FlatHistory::All);
    extend(&store, &kv, tip + 31..=tip + 60, 4);
    assert_kept(&store, tip + 10..=tip + 60);
    store.flush().unwrap();
    assert_eq!(rows(&kv, "ChangedKeys").len(), 50);
    assert_eq!(rows(&kv, "Changes").len(), 50 * 4);
    drop(store);
    // History is never shorter than the retention.
    let store = open(&kv, FlatHistory::Last(0));
    extend(&store, &kv, tip + 61..=tip + 61, 4);
    assert_kept(&store, tip + 58..=tip + 61);
}

#[test]
fn a_commit_of_more_blocks_than_are_kept_is_pruned_by_the_next_one() {
    let kv = MemoryStore::new();
    let store = open(&kv, FlatHistory::Last(3));
    extend(&store, &kv, 0..=0, 4);
    let mut proposals: Vec<Proposal> = Vec::new();
    for number in 1..=20 {
        let changes: Vec<_> = (0..4).map(|n| (slot_key(n), Some(value(number)))).collect();
        let at = proposals.last().map_or(StateId::Tip, StateId::Proposal);
        proposals.push(propose(&store, at, hash(0, number), &changes).unwrap());
    }
    commit(&store, &kv, &proposals).unwrap();
    assert_kept(&store, 0..=20);
    extend(&store, &kv, 21..=21, 4);
    assert_kept(&store, 18..=21);
    store.flush().unwrap();
    assert_eq!(rows(&kv, "Changes").len(), 3 * 4);
}

#[test]
fn history_is_counted_apart() {
    let counts = [FlatHistory::Off, FlatHistory::All, FlatHistory::Last(5)].map(|changes| {
        let kv = MemoryStore::new();
        let store = open(&kv, changes);
        extend(&store, &kv, 0..=20, 9);
        if changes != FlatHistory::Off {
            let past = store.flat_history(StateId::Tip, 16).unwrap();
            let before = store.counts();
            past.get(&slot_key(3)).unwrap();
            assert_eq!((&store.counts() - &before).reads, 0, "the value is in the history");
        }
        store.counts()
    });
    let backend = |at: usize| (counts[at].reads, counts[at].writes, counts[at].write_bytes);
    assert_eq!(backend(1), backend(0));
    assert_eq!(backend(2), backend(0));
    assert_eq!(counts[0].history_bytes, 0);
    // Nine changes a block: account tag, address, slot, number; presence and a value.
    let changes = 20 * 9 * (61 + 3);
    // Five addresses, of which four have two slots.
    let lists = 20 * (12 + 12 + 5 * 53 + 4 * 33);
    assert_eq!(counts[1].history_bytes, changes + lists);
    let deleted = 15 * (9 * 61 + 12);
    assert_eq!(counts[2].history_bytes, changes + lists + deleted);
}

#[test]
fn a_block_with_many_keys_takes_several_rows() {
    let kv = MemoryStore::new();
    let store = open(&kv, FlatHistory::Last(3));
    let key = |n: u64| {
        let address = Address::from_word(B256::from(U256::from(n / 3)));
        match n % 3 {
            0 => StateKey::Account(address),
            slot => StateKey::Slot(address, B256::with_last_byte(slot as u8)),
        }
    };
    for number in 0..8 {
        let changes: Vec<_> = (0..1000).map(|n| (key(n), Some(value(number)))).collect();
        let proposal = propose(&store, StateId::Tip, hash(0, number), &changes).unwrap();
        commit(&store, &kv, &[proposal]).unwrap();
        let mut keys: Vec<_> = (0..1000).map(key).collect();
        keys.sort();
        if number > 0 {
            let keys = retrie_state::KeyForm::Plain.keys(&keys);
            assert_eq!(store.changed_keys(StateId::Tip, number).unwrap(), keys);
        }
    }
    store.flush().unwrap();
    let lists = rows(&kv, "ChangedKeys");
    assert!(lists.len() > 3 * 8 && lists.iter().all(|(_, row)| row.len() <= 4030));
    assert_eq!(rows(&kv, "Changes").len(), 3 * 1000, "three blocks are kept");
    let past = store.flat_history(StateId::Tip, 4).unwrap();
    for n in 0..1000 {
        assert_eq!(past.get(&key(n)).unwrap(), Some(value(4)));
    }
    assert_eq!(past.slots_of(key(1).address()).unwrap().len(), 2);
}

// -- damage ---------------------------------------------------------------------------------------

#[derive(Default)]
struct HistoryFaults(Vec<String>);

impl StateCheckSink for HistoryFaults {
    fn fault(&mut self, fault: StateError) {
        self.0.push(fault.to_string());
    }

    fn entry(&mut self, _: &retrie_state::BackendKey, _: &StateValue) {}

    fn progress(&mut self, _: u64, _: u64) {}
}

/// Checks a copy of `kv` after `change`.
fn check(kv: &MemoryStore, change: impl FnOnce(&mut dyn KvTxn)) -> (StateCheck, Vec<String>) {
    let copy = MemoryStore::new();
    let mut txn = copy.begin_write().unwrap();
    for table in StateStore::tables(&MockHash) {
        for (key, value) in rows(kv, table.name) {
            txn.put(table, &key, &value).unwrap();
        }
    }
    change(&mut *txn);
    txn.commit().unwrap();
    let store = open(&copy, FlatHistory::Off);
    let scratch: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
    let mut faults = HistoryFaults::default();
    let done = store.check(&scratch, &mut faults).unwrap();
    // Whatever is damaged: an answer or an error, never a panic.
    for number in 0..12 {
        let _ = store.changed_keys(StateId::Tip, number);
        if let Ok(past) = store.flat_history(StateId::Tip, number) {
            let _ = (past.get(&slot_key(0)), past.slots_of(slot_key(0).address()));
        }
    }
    (done, faults.0)
}

#[test]
fn damaged_history_is_found_and_never_a_panic() {
    let kv = MemoryStore::new();
    let store = open(&kv, FlatHistory::Last(6));
    extend(&store, &kv, 0..=10, 3);
    store.flush().unwrap();
    drop(store);
    let (done, faults) = check(&kv, |_| {});
    assert_eq!((done.changes, &faults[..]), (6 * 3, &[] as &[String]));

    let (changes, lists) = (rows(&kv, "Changes"), rows(&kv, "ChangedKeys"));
    let (of_changes, of_lists) = (table("Changes"), table("ChangedKeys"));
    let finds = |what: &str, change: &dyn Fn(&mut dyn KvTxn)| {
        let (_, faults) = check(&kv, change);
        assert!(faults.iter().any(|fault| fault.contains(what)), "`{what}` is not in {faults:?}");
    };
    for (key, _) in &changes {
        finds("is missing", &|txn| assert!(txn.delete(of_changes, key).unwrap()));
        finds("neither 0 nor 1", &|txn| txn.put(of_changes, key, &[2]).unwrap());
    }
    // The oldest list may be missing, as if pruned with its range; later ones may not.
    for (key, _) in &lists[1..] {
        finds("does not list", &|txn| assert!(txn.delete(of_lists, key).unwrap()));
    }
    let other = [&slot_key(9).encode()[..], &7u64.to_be_bytes()].concat();
    finds("does not list", &|txn| txn.put(of_changes, &other, &[0]).unwrap());
    finds("not a state key", &|txn| txn.put(of_changes, b"other", &[0]).unwrap());
    let above = [&99u64.to_be_bytes()[..], &[0; 4]].concat();
    let head = [&99u64.to_be_bytes()[..], &[0; 4]].concat();
    finds("above the tip", &|txn| txn.put(of_lists, &above, &head).unwrap());
    // The lowest retained block is 7; a value that block 9 found is read there.
    let (key, _) = changes.iter().find(|(key, _)| key.ends_with(&[8])).unwrap();
    let wrong = [&[1][..], &value(77)].concat();
    finds("history and undo differ", &|txn| txn.put(of_changes, key, &wrong).unwrap());

    for (table, (key, value)) in [(of_lists, &lists[2]), (of_changes, &changes[0])] {
        // All bits of the first ones, samples of the rest.
        for bit in (0..value.len() * 8).filter(|bit| *bit < 200 || bit % 13 == 0) {
            let mut damaged = value.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            check(&kv, |txn| txn.put(table, key, &damaged).unwrap());
        }
        for len in 0..value.len() {
            check(&kv, |txn| txn.put(table, key, &value[..len]).unwrap());
        }
    }
}

#[test]
fn golden_bytes_of_history() {
    let kv = MemoryStore::new();
    let store = open(&kv, FlatHistory::All);
    let account = StateKey::Account(Address::repeat_byte(0xaa));
    let slot = |n| StateKey::Slot(Address::repeat_byte(0xbb), B256::with_last_byte(n));
    let blocks = [
        vec![(account, Some(Bytes::from_static(&[0, 0])))],
        vec![(account, None), (slot(1), Some(Bytes::from_static(&[7])))],
        vec![(slot(1), Some(Bytes::from_static(&[8]))), (slot(2), Some(Bytes::from_static(&[9])))],
        vec![],
    ];
    for (number, changes) in blocks.iter().enumerate() {
        let number = number as u64;
        let proposal = propose(&store, StateId::Tip, hash(0, number), changes).unwrap();
        commit(&store, &kv, &[proposal]).unwrap();
    }
    store.flush().unwrap();
    let shown = |name| -> Vec<(String, String)> {
        let hex = |bytes: Bytes| hex::encode(bytes);
        rows(&kv, name).into_iter().map(|(key, value)| (hex(key), hex(value))).collect()
    };
    let (a, b) = ("aa".repeat(20), "bb".repeat(20));
    let slot = |n: u8| format!("{n:064x}");
    let block = |n: u64| format!("{n:016x}");
    let row = |key: String, value: String| (key, value);
    assert_eq!(
        shown("Changes"),
        [
            row(format!("00{a}{}", block(1)), "010000".into()),
            row(format!("01{b}{}{}", slot(1), block(1)), "00".into()),
            row(format!("01{b}{}{}", slot(1), block(2)), "0107".into()),
            row(format!("01{b}{}{}", slot(2), block(2)), "00".into()),
        ]
    );
    assert_eq!(
        shown("ChangedKeys"),
        [
            row(
                format!("{}00000000", block(1)),
                format!("{}00000002", block(1)) + &format!("00{a}01{b}{}", slot(1))
            ),
            row(
                format!("{}00000000", block(2)),
                format!("{}00000002", block(1)) + &format!("01{b}{}02{}", slot(1), slot(2))
            ),
            row(format!("{}00000000", block(3)), format!("{}00000000", block(1))),
        ]
    );
}
