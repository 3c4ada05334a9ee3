//! The keys of a proof, in the order of the proof: by location, each once.

use crate::hash;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::BackendKey;

/// The distinct keys that a proof is about, numbered by location. Keys with a common entry are
/// neighbours, and the entries of a level come in the order of their paths.
#[derive(Debug)]
pub(crate) struct AskedKeys {
    height: u8,
    keys: Vec<(B256, BackendKey)>,
    /// For each key of the request, its number.
    numbers: Vec<usize>,
}

impl AskedKeys {
    /// The distinct keys of the request, for AMTs of this height.
    pub(crate) fn new(keys: &[BackendKey], height: u8) -> Self {
        let locations: Vec<_> = keys.iter().map(|key| hash::location(&key.encode())).collect();
        let mut sorted: Vec<_> = locations.iter().copied().zip(keys.iter().copied()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let number = |location| sorted.partition_point(|(other, _)| other < location);
        let numbers = locations.iter().map(number).collect();
        Self { height, keys: sorted, numbers }
    }

    /// The number of distinct keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key with this number.
    pub(crate) fn key(&self, number: usize) -> &BackendKey {
        &self.keys[number].1
    }

    /// For each key of the request, its number.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Whether `key` is among them.
    pub(crate) fn contains(&self, location: &B256, key: &BackendKey) -> bool {
        self.keys.binary_search(&(*location, *key)).is_ok()
    }

    /// The path of a key down to its entry at `level`; `None` if its hash is too short for that
    /// level.
    pub(crate) fn path(&self, number: usize, level: usize) -> Option<Vec<u16>> {
        self.path_of(&self.keys[number].0, level)
    }

    /// The same for a location.
    pub(crate) fn path_of(&self, location: &B256, level: usize) -> Option<Vec<u16>> {
        // The height is at most 16, so an entry has at most 16 bits.
        let entry = |level| hash::entry_of(location, self.height, level).map(|entry| entry as u16);
        (0..=level).map(entry).collect()
    }

    /// Splits `numbers` (ascending) into groups of keys with a common entry at `level`.
    pub(crate) fn by_entry<'n>(
        &self,
        numbers: &'n [usize],
        level: usize,
    ) -> impl Iterator<Item = &'n [usize]> {
        let bits = (level + 1) * usize::from(self.height);
        numbers.chunk_by(move |a, b| agree(&self.keys[*a].0, &self.keys[*b].0, bits))
    }
}

/// Whether the first `bits` bits of two hashes are equal.
fn agree(a: &B256, b: &B256, bits: usize) -> bool {
    let differ = a.iter().zip(b).position(|(a, b)| a != b);
    differ.is_none_or(|at| at * 8 + (a[at] ^ b[at]).leading_zeros() as usize >= bits)
}
