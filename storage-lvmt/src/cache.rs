//! What structures in memory are made of: arrays that share what they have in common, and rows read
//! before.

use alloy_primitives::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use retrie_state::StateKey;
use std::sync::Arc;

/// Entries of a chunk of a [`Shared`] array.
const CHUNK: usize = 16;

/// An array whose copies share what they have in common, in chunks of 16.
#[derive(Clone, Debug)]
pub(crate) struct Shared<T> {
    chunks: Vec<Arc<[T; CHUNK]>>,
}

impl<T: Copy> Shared<T> {
    /// `len` times `of`.
    pub(crate) fn new(len: usize, of: T) -> Self {
        let chunk = Arc::new([of; CHUNK]);
        Self { chunks: vec![chunk; len.div_ceil(CHUNK)] }
    }

    /// What `items` holds; `filler` up to the end of its last chunk.
    pub(crate) fn from_slice(items: &[T], filler: T) -> Self {
        let chunks = items.chunks(CHUNK).map(|items| {
            let mut chunk = [filler; CHUNK];
            chunk[..items.len()].copy_from_slice(items);
            Arc::new(chunk)
        });
        Self { chunks: chunks.collect() }
    }

    /// Bytes that an array of `len` items takes, if it shares none.
    pub(crate) const fn bytes(len: usize) -> u64 {
        (len.div_ceil(CHUNK) * (CHUNK * size_of::<T>() + 3 * size_of::<usize>())) as u64
    }

    /// The chunks in which the first `len` items are.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        Self { chunks: self.chunks[..len.div_ceil(CHUNK).min(self.chunks.len())].to_vec() }
    }

    /// The item at `index`, which is within the array.
    pub(crate) fn get(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(crate) fn set(&mut self, index: usize, item: T) {
        Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK] = item;
    }
}

/// Most rows that a memo holds.
const MEMO_ROWS: usize = 1 << 16;
const MEMO_PARTS: usize = 16;

/// Records read from a state: what a block changes it has mostly read before, and the record that
/// is read for the value is needed again for version and slot. Bounded; belongs to one state, so it
/// is never wrong.
#[derive(Default)]
pub(crate) struct Memo([Mutex<HashMap<StateKey, Option<Bytes>>>; MEMO_PARTS]);

impl Memo {
    /// An empty one with room for as many rows as `other` has: blocks are alike.
    pub(crate) fn like(other: &Self) -> Self {
        let part = |of: &Mutex<HashMap<_, _>>| Mutex::new(HashMap::with_capacity(of.lock().len()));
        Self(std::array::from_fn(|at| part(&other.0[at])))
    }

    fn part(&self, key: &StateKey) -> &Mutex<HashMap<StateKey, Option<Bytes>>> {
        let byte = match key {
            StateKey::Account(address) => address[19],
            StateKey::Slot(address, slot) => address[19] ^ slot[31],
        };
        &self.0[usize::from(byte) % MEMO_PARTS]
    }

    /// The row of `key`, if it was read before.
    pub(crate) fn get(&self, key: &StateKey) -> Option<Option<Bytes>> {
        self.part(key).lock().get(key).cloned()
    }

    pub(crate) fn put(&self, key: &StateKey, row: &Option<Bytes>) {
        let mut part = self.part(key).lock();
        if part.len() < MEMO_ROWS / MEMO_PARTS {
            part.insert(*key, row.clone());
        }
    }

    /// Bytes that one takes at most, if values are those of Ethereum: a row with its key and what the
    /// map takes beside.
    pub(crate) const BYTES: u64 = (MEMO_ROWS * 320) as u64;

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|part| *part.lock() = HashMap::default());
    }
}
