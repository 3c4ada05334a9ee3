//! Every key of a block access list is read once, by the first thread that needs it, with the value
//! of the state below.

use crate::common::{MapState, fixtures::*};
use alloy_eip7928::{AccountChanges, BlockAccessIndex, SlotChanges, StorageChange};
use alloy_primitives::{Address, B256, U256};
use retrie_execution::PrefetchedState;
use retrie_state::{StateError, StateKey, StateReader, StateValue};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// A state that counts reads by key, and may fail.
struct CountingState {
    state: MapState,
    reads: Mutex<BTreeMap<StateKey, usize>>,
    is_broken: AtomicBool,
}

impl StateReader for CountingState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        *self.reads.lock().unwrap().entry(*key).or_default() += 1;
        if self.is_broken.load(Relaxed) {
            return Err(StateError::Poisoned);
        }
        self.state.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.state.slots_of(address)
    }
}

/// 200 accounts, each with a slot that is read and one that is written, and a state with half of
/// them.
fn scene() -> (CountingState, Vec<AccountChanges>, Vec<StateKey>) {
    let mut state = MapState::default();
    let mut list = Vec::new();
    let mut keys = Vec::new();
    for n in 0..200u64 {
        let address = Address::from_word(U256::from(n + 1).into());
        if n % 2 == 0 {
            state.set_account(address, balance(n + 1));
            state.set_slot(address, U256::from(1), U256::from(n + 1));
        }
        let change = StorageChange::new(BlockAccessIndex::new(1), U256::from(5));
        let mut account = AccountChanges::new(address);
        account.storage_changes.push(SlotChanges::new(U256::from(1), vec![change]));
        account.storage_reads.push(U256::from(2));
        list.push(account);
        keys.extend([StateKey::Account(address), slot(address, 1), slot(address, 2)]);
    }
    let counting =
        CountingState { state, reads: Mutex::default(), is_broken: AtomicBool::new(false) };
    (counting, list, keys)
}

#[test]
fn every_key_is_read_once_whoever_asks() {
    let (below, list, keys) = scene();
    let warm = PrefetchedState::new(&below, &list, u64::MAX);
    assert_eq!(warm.len(), keys.len());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| warm.fetch());
        }
        for skipped in [0, keys.len() / 2] {
            let (warm, below, keys) = (&warm, &below, &keys);
            scope.spawn(move || {
                for key in keys.iter().skip(skipped) {
                    assert_eq!(warm.get(key).unwrap(), below.state.get(key).unwrap(), "{key}");
                }
            });
        }
    });
    let reads = below.reads.lock().unwrap();
    let mut keys = keys;
    keys.sort();
    assert_eq!(reads.keys().copied().collect::<Vec<_>>(), keys);
    assert!(reads.values().all(|reads| *reads == 1), "{reads:?}");
}

#[test]
fn a_failed_read_is_nobodys_answer_but_its_own() {
    let (below, list, keys) = scene();
    let warm = PrefetchedState::new(&below, &list, u64::MAX);
    below.is_broken.store(true, Relaxed);
    warm.fetch();
    assert!(matches!(warm.get(&keys[0]), Err(StateError::Poisoned)));
    below.is_broken.store(false, Relaxed);
    for key in &keys {
        assert_eq!(warm.get(key).unwrap(), below.state.get(key).unwrap());
    }
}

#[test]
fn no_more_is_fetched_than_gas_can_have_paid_for() {
    let (below, list, keys) = scene();
    let warm = PrefetchedState::new(&below, &list, 2000 * 7 + 1999);
    assert_eq!(warm.len(), 7);
    warm.fetch();
    assert_eq!(below.reads.lock().unwrap().len(), 7);
    // Every other key is read from the state below each time.
    let last = keys.last().unwrap();
    for _ in 0..2 {
        assert_eq!(warm.get(last).unwrap(), below.state.get(last).unwrap());
    }
    assert_eq!(below.reads.lock().unwrap()[last], 2);
}

#[test]
fn nothing_is_fetched_once_it_is_stopped() {
    let (below, list, _) = scene();
    let warm = PrefetchedState::new(&below, &list, u64::MAX);
    warm.stop();
    warm.fetch();
    assert!(below.reads.lock().unwrap().is_empty());
}
