//! The asked keys in the order of a proof: by location, each once.

use crate::hash;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::StateKey;

/// The distinct keys that a proof is asked for, numbered by location. Those with an entry in common
/// are neighbours, and entries of a level come in the order of their ways.
#[derive(Debug)]
pub(crate) struct Asked {
    height: u8,
    keys: Vec<(B256, StateKey)>,
    /// For each key as asked, its number.
    numbers: Vec<usize>,
}

impl Asked {
    /// The distinct ones of `keys`, for AMTs of this height.
    pub(crate) fn new(keys: &[StateKey], height: u8) -> Self {
        let locations: Vec<_> = keys.iter().map(|key| hash::location(&key.encode())).collect();
        let mut sorted: Vec<_> = locations.iter().copied().zip(keys.iter().copied()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let number = |location| sorted.partition_point(|(other, _)| other < location);
        let numbers = locations.iter().map(number).collect();
        Self { height, keys: sorted, numbers }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key of a number.
    pub(crate) fn key(&self, number: usize) -> &StateKey {
        &self.keys[number].1
    }

    /// For each key as asked, its number.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Whether `key` is one of them.
    pub(crate) fn contains(&self, location: &B256, key: &StateKey) -> bool {
        self.keys.binary_search(&(*location, *key)).is_ok()
    }

    /// The way of a key down to its entry at `level`; `None` if its hash does not go that deep.
    pub(crate) fn way(&self, number: usize, level: usize) -> Option<Vec<u16>> {
        self.way_of(&self.keys[number].0, level)
    }

    /// The same for a location.
    pub(crate) fn way_of(&self, location: &B256, level: usize) -> Option<Vec<u16>> {
        // Entries of a height of 16 at most.
        let entry = |level| hash::entry_of(location, self.height, level).map(|entry| entry as u16);
        (0..=level).map(entry).collect()
    }

    /// Cuts `numbers`, which ascend, into those that have an entry at `level` in common.
    pub(crate) fn by_entry<'n>(
        &self,
        numbers: &'n [usize],
        level: usize,
    ) -> impl Iterator<Item = &'n [usize]> {
        let bits = (level + 1) * usize::from(self.height);
        numbers.chunk_by(move |a, b| agree(&self.keys[*a].0, &self.keys[*b].0, bits))
    }
}

/// Whether the first `bits` of two hashes are the same.
fn agree(a: &B256, b: &B256, bits: usize) -> bool {
    let differ = a.iter().zip(b).position(|(a, b)| a != b);
    differ.is_none_or(|at| at * 8 + (a[at] ^ b[at]).leading_zeros() as usize >= bits)
}
