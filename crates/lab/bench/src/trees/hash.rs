//! The hash functions of the trees: the same as in `storage-bavl`, so that [`super::BavlTree`] has
//! the roots of that backend.

use alloy_primitives::{Address, B256};
use retrie_state::{StateKey, blake2b};

const ENTRY: u8 = 0;
const PAIR: u8 = 1;
const CHUNK: u8 = 2;
const INNER: u8 = 3;
const ROOT: u8 = 4;
/// Only B+trees have cells.
const CELL: u8 = 5;

/// The state key for a key of a tree.
pub(super) fn state_key(key: u32) -> StateKey {
    StateKey::Account(Address::left_padding_from(&key.to_be_bytes()))
}

pub(super) fn entry(key: u32, value: &[u8]) -> B256 {
    blake2b::hash(&[&[ENTRY], &state_key(key).encode(), value])
}

pub(super) fn pair(left: &B256, right: &B256) -> B256 {
    blake2b::hash(&[&[PAIR], &left[..], &right[..]])
}

pub(super) fn chunk(count: u32, top: &B256) -> B256 {
    blake2b::hash(&[&[CHUNK], &count.to_be_bytes(), &top[..]])
}

pub(super) fn inner(left: &B256, right: &B256) -> B256 {
    blake2b::hash(&[&[INNER], &left[..], &right[..]])
}

pub(super) fn root(most: u32, top: &B256) -> B256 {
    blake2b::hash(&[&[ROOT], &most.to_be_bytes(), &top[..]])
}

pub(super) fn cell<'a>(hashes: impl Iterator<Item = &'a B256>) -> B256 {
    let mut hasher = blake2b::Blake2bHasher::default();
    hasher.update(&[CELL]);
    for hash in hashes {
        hasher.update(&hash[..]);
    }
    hasher.finish()
}

/// Inputs that are hashed together. The digests equal those of the functions with the same names.
#[derive(Debug, Default)]
pub(super) struct HashBatch(blake2b::Blake2bBatch);

impl HashBatch {
    pub(super) fn entry(&mut self, key: u32, value: &[u8]) {
        self.0.push(|input| {
            input.push(ENTRY);
            input.extend_from_slice(&state_key(key).encode());
            input.extend_from_slice(value);
        });
    }

    pub(super) fn pair(&mut self, left: &B256, right: &B256) {
        self.two(PAIR, left, right);
    }

    pub(super) fn inner(&mut self, left: &B256, right: &B256) {
        self.two(INNER, left, right);
    }

    fn two(&mut self, domain: u8, left: &B256, right: &B256) {
        self.0.push(|input| {
            input.push(domain);
            input.extend_from_slice(&left[..]);
            input.extend_from_slice(&right[..]);
        });
    }

    pub(super) fn chunk(&mut self, count: u32, top: &B256) {
        self.0.push(|input| {
            input.push(CHUNK);
            input.extend_from_slice(&count.to_be_bytes());
            input.extend_from_slice(&top[..]);
        });
    }

    pub(super) fn cell(&mut self, hashes: &[B256]) {
        self.0.push(|input| {
            input.push(CELL);
            input.extend(hashes.iter().flat_map(|hash| hash.0));
        });
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes the digests in the order in which inputs were added, and empties the batch.
    pub(super) fn finish_into(&mut self, digests: &mut Vec<B256>) {
        digests.clear();
        self.0.finish_into(digests);
    }
}
