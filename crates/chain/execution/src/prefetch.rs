//! Prefetch by block access list: other threads read the keys of a block before execution needs
//! them.

use crate::keys_of_list;
use alloy_eip7928::AccountChanges;
use alloy_primitives::{Address, B256, map::HashMap};
use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use parking_lot::Mutex;
use retrie_state::{StateError, StateKey, StateReader, StateValue};

/// Keys that a thread claims at a time.
const KEYS_PER_CLAIM: usize = 32;

/// A [`StateReader`] that caches the keys of a block access list (BAL, EIP-7928), so that other
/// threads can [fetch](Self::fetch) them before execution needs them.
///
/// The first thread that needs a key reads it from the state below; a thread that needs a key which
/// is being read waits for that read. Keys outside the list are not cached. Execution may begin at
/// once, and works without any fetched key.
pub struct PrefetchedState<'a> {
    below: &'a dyn StateReader,
    places: HashMap<StateKey, usize>,
    values: Vec<(StateKey, Mutex<FetchedValue>)>,
    next: AtomicUsize,
    is_stopped: AtomicBool,
}

/// The value of a key, once it was read.
type FetchedValue = Option<Option<StateValue>>;

impl<'a> PrefetchedState<'a> {
    /// Wraps the state `below` for the block with access list `list`. Nothing is fetched yet.
    ///
    /// A valid list names at most one account or slot per 2000 gas of the block's `gas_limit`
    /// (EIP-7928). Keys beyond that are not fetched.
    pub fn new(below: &'a dyn StateReader, list: &[AccountChanges], gas_limit: u64) -> Self {
        let keys = keys_of_list(list, gas_limit);
        let values: Vec<_> = keys.map(|key| (key, Mutex::new(None))).collect();
        let places = values.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
        let (next, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { below, places, values, next, is_stopped }
    }

    /// Number of keys that can be fetched.
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key to fetch.
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Reads keys that are not read yet, until all are read or [`stop`](Self::stop) is called. Any
    /// number of threads may call it at the same time.
    ///
    /// It ignores failed reads: execution reads such a key again and gets the error.
    pub fn fetch(&self) {
        while !self.is_stopped.load(Relaxed) {
            let first = self.next.fetch_add(KEYS_PER_CLAIM, Relaxed);
            let Some(rest) = self.values.get(first..) else { return };
            for (key, value) in rest.iter().take(KEYS_PER_CLAIM) {
                // Another thread is reading a locked value.
                if let Some(mut value) = value.try_lock()
                    && value.is_none()
                {
                    *value = self.below.get(key).ok();
                }
            }
        }
    }

    /// Ends all running calls of [`fetch`](Self::fetch).
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }
}

impl StateReader for PrefetchedState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let Some(place) = self.places.get(key) else { return self.below.get(key) };
        let mut value = self.values[*place].1.lock();
        match &*value {
            Some(value) => Ok(value.clone()),
            None => {
                let read = self.below.get(key)?;
                *value = Some(read.clone());
                Ok(read)
            }
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.below.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.below.some_slots(address, limit)
    }
}

impl fmt::Debug for PrefetchedState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchedState").field("keys", &self.values.len()).finish_non_exhaustive()
    }
}
