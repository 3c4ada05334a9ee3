//! Reads ahead of execution: what a block will read, fetched by other threads.

use crate::keys_of_list;
use alloy_eip7928::AccountChanges;
use alloy_primitives::{Address, B256, map::HashMap};
use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use parking_lot::Mutex;
use retrie_state::{StateError, StateKey, StateReader, Value};

/// Keys that a thread takes at a time.
const AT_ONCE: usize = 32;

/// A [`StateReader`] that keeps what it reads of the keys of a block access list, so that other threads
/// may [fetch](Self::fetch) them before execution asks. Each key is read once, by whoever comes first; a
/// thread that asks for one that is being read waits for it. All other keys are read through.
///
/// Execution may begin at once, and nothing has to be fetched at all.
pub struct WarmState<'a> {
    below: &'a dyn StateReader,
    places: HashMap<StateKey, usize>,
    values: Vec<(StateKey, Mutex<Fetched>)>,
    next: AtomicUsize,
    is_stopped: AtomicBool,
}

/// The value of a key, once it was read.
type Fetched = Option<Option<Value>>;

impl<'a> WarmState<'a> {
    /// The state `below` before anything of `list`, that of the block executed on it, is fetched.
    ///
    /// A list that tells the truth names at most one account or slot for every 2000 of the block's
    /// `gas_limit` (EIP-7928). What is beyond that is not fetched.
    pub fn new(below: &'a dyn StateReader, list: &[AccountChanges], gas_limit: u64) -> Self {
        let keys = keys_of_list(list, gas_limit);
        let values: Vec<_> = keys.map(|key| (key, Mutex::new(None))).collect();
        let places = values.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
        let (next, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { below, places, values, next, is_stopped }
    }

    /// Keys that can be fetched.
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Reads keys that nobody has read, until there are none or somebody [stops](Self::stop) it. Any
    /// number of threads may do so at once.
    ///
    /// What cannot be read is left to whoever needs it, and told to him.
    pub fn fetch(&self) {
        while !self.is_stopped.load(Relaxed) {
            let first = self.next.fetch_add(AT_ONCE, Relaxed);
            let Some(rest) = self.values.get(first..) else { return };
            for (key, value) in rest.iter().take(AT_ONCE) {
                // One that is locked is being read.
                if let Some(mut value) = value.try_lock()
                    && value.is_none()
                {
                    *value = self.below.get(key).ok();
                }
            }
        }
    }

    /// Ends what [`fetch`](Self::fetch) does, on all threads.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }
}

impl StateReader for WarmState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
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

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        self.below.slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        self.below.some_slots(address, limit)
    }
}

impl fmt::Debug for WarmState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmState").field("keys", &self.values.len()).finish_non_exhaustive()
    }
}
