//! Entries in arrays (section IV.B): keys in order, and values in the order of insertion.

use super::hash::HashBatch;
use alloy_primitives::B256;

/// The position of a value in the value array.
#[derive(Clone, Copy, Debug, Default)]
struct ValueSpan {
    start: u32,
    len: u32,
}

/// The entries of a chunk, or of a B+tree leaf.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryArrays {
    keys: Vec<u32>,
    slots: Vec<ValueSpan>,
    /// The values. Replaced values stay until the entries are cut.
    values: Vec<u8>,
    /// Hashes of the entries; zero if an entry is not hashed yet.
    hashes: Vec<B256>,
}

impl EntryArrays {
    pub(super) const fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn first(&self) -> u32 {
        self.keys.first().copied().unwrap_or_default()
    }

    pub(super) fn hashes(&self) -> &[B256] {
        &self.hashes
    }

    pub(super) fn position(&self, key: u32) -> Result<usize, usize> {
        self.keys.binary_search(&key)
    }

    pub(super) fn value(&self, at: usize) -> &[u8] {
        let ValueSpan { start, len } = self.slots[at];
        &self.values[start as usize..][..len as usize]
    }

    pub(super) fn get(&self, key: u32) -> Option<&[u8]> {
        self.position(key).ok().map(|at| self.value(at))
    }

    fn append(&mut self, value: &[u8]) -> ValueSpan {
        let start = self.values.len() as u32;
        self.values.extend_from_slice(value);
        ValueSpan { start, len: value.len() as u32 }
    }

    /// Inserts or replaces an entry. Returns its position, and whether it is new.
    pub(super) fn insert(&mut self, key: u32, value: &[u8]) -> (usize, bool) {
        let slot = self.append(value);
        match self.position(key) {
            Ok(at) => {
                (self.slots[at], self.hashes[at]) = (slot, B256::ZERO);
                (at, false)
            }
            Err(at) => {
                self.keys.insert(at, key);
                self.slots.insert(at, slot);
                self.hashes.insert(at, B256::ZERO);
                (at, true)
            }
        }
    }

    /// Empty arrays with room for `entries` entries and `bytes` bytes of values.
    fn with_room(entries: usize, bytes: usize) -> Self {
        Self {
            keys: Vec::with_capacity(entries),
            slots: Vec::with_capacity(entries),
            values: Vec::with_capacity(bytes),
            hashes: Vec::with_capacity(entries),
        }
    }

    /// Cuts the entries of consecutive arrays into arrays of these lengths, with room for `most`
    /// entries each.
    pub(super) fn cut(runs: &[&Self], lengths: &[usize], most: usize) -> Vec<Self> {
        let places = runs.iter().flat_map(|run| (0..run.len()).map(move |at| (*run, at)));
        let bytes: usize = runs.iter().map(|run| run.values.len()).sum();
        let mean = bytes.div_ceil(runs.iter().map(|run| run.len()).sum::<usize>().max(1));
        let mut places = places;
        let new = |length: &usize| {
            let mut new = Self::with_room(most + 1, (most + 1) * mean);
            for (run, at) in places.by_ref().take(*length) {
                let slot = new.append(run.value(at));
                new.keys.push(run.keys[at]);
                new.slots.push(slot);
                new.hashes.push(run.hashes[at]);
            }
            new
        };
        lengths.iter().map(new).collect()
    }

    /// Adds the entries without hash to a batch.
    pub(super) fn hash_new(&self, batch: &mut HashBatch) {
        for at in 0..self.len() {
            if self.hashes[at].is_zero() {
                batch.entry(self.keys[at], self.value(at));
            }
        }
    }

    /// Stores the digests of that batch.
    pub(super) fn take_new(&mut self, digests: &mut impl Iterator<Item = B256>) {
        let new = self.hashes.iter_mut().filter(|hash| hash.is_zero());
        for (hash, digest) in new.zip(digests) {
            *hash = digest;
        }
    }

    /// Serialises the entries: their number, the length of the values, and the arrays.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.reserve(8 + 12 * self.len() + self.values.len());
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.values.len() as u32).to_le_bytes());
        self.keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
        for ValueSpan { start, len } in &self.slots {
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&self.values);
    }

    /// Decodes the bytes of [`write`](Self::write); `None` if they are malformed.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (count, len) = (u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*len) as usize);
        let (keys, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (slots, values) = rest.split_at_checked(count.checked_mul(8)?)?;
        if values.len() != len || count == 0 {
            return None;
        }
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let keys: Vec<u32> = keys.as_chunks().0.iter().map(number).collect();
        let slots = slots.as_chunks::<8>().0.iter().map(|slot| {
            let [start, len] =
                [0, 4].map(|at| number(&[slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]));
            ValueSpan { start, len }
        });
        let slots: Vec<ValueSpan> = slots.collect();
        let is_within =
            |slot: &ValueSpan| u64::from(slot.start) + u64::from(slot.len) <= len as u64;
        let is_sound = keys.is_sorted_by(|one, next| one < next) && slots.iter().all(is_within);
        let hashes = vec![B256::ZERO; count];
        is_sound.then(|| Self { keys, slots, values: values.to_vec(), hashes })
    }
}
