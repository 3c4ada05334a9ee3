//! Keys in the order of tries.

use crate::TrieHash;
use alloy_primitives::B256;
use alloy_trie::Nibbles;
use rayon::prelude::*;
use std::ops::Range;

/// Plain keys, sorted by their hashes.
#[derive(Debug)]
pub(super) struct Sorted<K> {
    with: TrieHash,
    /// The first 8 bytes of the hash, and the key.
    keys: Vec<(u64, K)>,
}

impl<K: AsRef<[u8]> + Copy + Send + Sync> Sorted<K> {
    pub(super) fn new(with: TrieHash, keys: Vec<K>) -> Self {
        let first = |hash: B256| hash.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let mut keys: Vec<_> =
            keys.into_par_iter().map(|key| (first(with.hash(key)), key)).collect();
        // Whole hashes are compared only of those that begin alike.
        keys.par_sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| with.hash(a.1).cmp(&with.hash(b.1)))
        });
        Self { with, keys }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The keys below a slot.
    pub(super) fn below(&self, slot: &Nibbles) -> impl ExactSizeIterator<Item = &K> {
        self.keys[self.range(slot)].iter().map(|(_, key)| key)
    }

    fn range(&self, slot: &Nibbles) -> Range<usize> {
        let mut first = B256::ZERO;
        let mut last = B256::repeat_byte(0xff);
        for (at, nibble) in slot.to_vec().into_iter().enumerate() {
            let shift = if at.is_multiple_of(2) { 4 } else { 0 };
            first[at / 2] |= nibble << shift;
            last[at / 2] &= nibble << shift | (0x0f << (4 - shift));
        }
        let number = |hash: &B256| hash.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let start = self.keys.partition_point(|(own, key)| {
            *own < number(&first) || (*own == number(&first) && self.with.hash(key) < first)
        });
        let end = self.keys.partition_point(|(own, key)| {
            *own < number(&last) || (*own == number(&last) && self.with.hash(key) <= last)
        });
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, keccak256};

    #[test]
    fn keys_below_a_slot_are_those_whose_hash_begins_so() {
        let keys: Vec<_> =
            (0..500u64).map(|n| Address::left_padding_from(&n.to_be_bytes())).collect();
        let sorted = Sorted::new(TrieHash::Keccak256, keys.clone());
        let mut hashed: Vec<_> = keys.iter().map(|key| (keccak256(key), *key)).collect();
        hashed.sort_unstable();
        for len in [0, 1, 2, 3, 20, 64] {
            for (hash, _) in hashed.iter().step_by(7) {
                let slot = Nibbles::unpack_array(&hash.0).slice(..len);
                let expected = hashed
                    .iter()
                    .filter(|(hash, _)| Nibbles::unpack_array(&hash.0).starts_with(&slot));
                let expected: Vec<_> = expected.map(|(_, key)| key).collect();
                assert_eq!(sorted.below(&slot).collect::<Vec<_>>(), expected);
            }
        }
    }
}
