//! Building blocks of structures in memory: arrays that share their common chunks, and records that
//! were read before.

use alloy_primitives::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use retrie_state::BackendKey;
use std::sync::Arc;

/// Items in a chunk of a [`SharedArray`].
const CHUNK: usize = 16;

/// An array whose copies share their common parts, in chunks of 16.
#[derive(Clone, Debug)]
pub(crate) struct SharedArray<T> {
    chunks: Vec<Arc<[T; CHUNK]>>,
}

impl<T: Copy> SharedArray<T> {
    /// `len` copies of `of`.
    pub(crate) fn new(len: usize, of: T) -> Self {
        let chunk = Arc::new([of; CHUNK]);
        Self { chunks: vec![chunk; len.div_ceil(CHUNK)] }
    }

    /// The items of the slice; `filler` fills the last chunk.
    pub(crate) fn from_slice(items: &[T], filler: T) -> Self {
        let chunks = items.chunks(CHUNK).map(|items| {
            let mut chunk = [filler; CHUNK];
            chunk[..items.len()].copy_from_slice(items);
            Arc::new(chunk)
        });
        Self { chunks: chunks.collect() }
    }

    /// Bytes of an array of `len` items that shares no chunk.
    pub(crate) const fn bytes(len: usize) -> u64 {
        (len.div_ceil(CHUNK) * (CHUNK * size_of::<T>() + 3 * size_of::<usize>())) as u64
    }

    /// The chunks that contain the first `len` items.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        Self { chunks: self.chunks[..len.div_ceil(CHUNK).min(self.chunks.len())].to_vec() }
    }

    /// The item at `index`, which must be within the array.
    pub(crate) fn get(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(crate) fn set(&mut self, index: usize, item: T) {
        Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK] = item;
    }
}

/// Most rows in a memo.
const MEMO_ROWS: usize = 1 << 16;
const MEMO_PARTS: usize = 16;

/// Records read from one state. A block has mostly read a record before it changes it, and `apply`
/// needs the record again for slot and version. The size is bounded. A memo belongs to one state,
/// so it is never stale.
#[derive(Default)]
pub(crate) struct RecordMemo([Mutex<HashMap<BackendKey, Option<Bytes>>>; MEMO_PARTS]);

impl RecordMemo {
    /// An empty memo with room for as many rows as `other` has: consecutive blocks are similar.
    pub(crate) fn like(other: &Self) -> Self {
        let part = |of: &Mutex<HashMap<_, _>>| Mutex::new(HashMap::with_capacity(of.lock().len()));
        Self(std::array::from_fn(|at| part(&other.0[at])))
    }

    fn part(&self, key: &BackendKey) -> &Mutex<HashMap<BackendKey, Option<Bytes>>> {
        let byte = match key {
            BackendKey::Account(account) => account[19],
            BackendKey::Slot(account, slot) => account[19] ^ slot[31],
        };
        &self.0[usize::from(byte) % MEMO_PARTS]
    }

    /// The row of `key`, if it was read before.
    pub(crate) fn get(&self, key: &BackendKey) -> Option<Option<Bytes>> {
        self.part(key).lock().get(key).cloned()
    }

    pub(crate) fn put(&self, key: &BackendKey, row: &Option<Bytes>) {
        let mut part = self.part(key).lock();
        if part.len() < MEMO_ROWS / MEMO_PARTS {
            part.insert(*key, row.clone());
        }
    }

    /// Bytes that a memo takes at most with Ethereum's values: row, key and overhead of the map.
    pub(crate) const BYTES: u64 = (MEMO_ROWS * 320) as u64;

    /// Removes all rows.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|part| *part.lock() = HashMap::default());
    }
}
