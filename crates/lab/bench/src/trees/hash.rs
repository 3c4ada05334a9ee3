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

/// Number of inputs that a CPU hashes at once.
const LANES: usize = 4;

/// Inputs that are hashed together. The digests equal those of the functions with the same names.
#[derive(Debug, Default)]
pub(super) struct HashBatch {
    inputs: Vec<u8>,
    /// End of each input.
    ends: Vec<usize>,
    digests: Vec<B256>,
}

impl HashBatch {
    pub(super) fn entry(&mut self, key: u32, value: &[u8]) {
        self.inputs.push(ENTRY);
        self.inputs.extend_from_slice(&state_key(key).encode());
        self.add(value);
    }

    pub(super) fn pair(&mut self, left: &B256, right: &B256) {
        self.two(PAIR, left, right);
    }

    pub(super) fn inner(&mut self, left: &B256, right: &B256) {
        self.two(INNER, left, right);
    }

    fn two(&mut self, domain: u8, left: &B256, right: &B256) {
        self.inputs.push(domain);
        self.inputs.extend_from_slice(&left[..]);
        self.add(&right[..]);
    }

    pub(super) fn chunk(&mut self, count: u32, top: &B256) {
        self.inputs.push(CHUNK);
        self.inputs.extend_from_slice(&count.to_be_bytes());
        self.add(&top[..]);
    }

    pub(super) fn cell(&mut self, hashes: &[B256]) {
        self.inputs.push(CELL);
        for hash in hashes {
            self.inputs.extend_from_slice(&hash[..]);
        }
        self.add(&[]);
    }

    /// Appends the last part of an input.
    fn add(&mut self, last: &[u8]) {
        self.inputs.extend_from_slice(last);
        self.ends.push(self.inputs.len());
    }

    /// The digests in the order in which inputs were added. Empties the batch.
    pub(super) fn finish(&mut self) -> &[B256] {
        let Self { inputs, ends, digests } = self;
        digests.clear();
        match ends[..] {
            // Alone, an input needs none of the preparations for several.
            [_] => digests.push(blake2b::hash(&[inputs])),
            _ => {
                let count = ends.len();
                // Full lanes take less time than two or three inputs after them, so copies of the
                // last input fill them.
                let is_slow = count % LANES == 3 || count % LANES == 2 && count > LANES;
                if is_slow {
                    let last = ends[count - 2]..inputs.len();
                    while ends.len() % LANES != 0 {
                        inputs.extend_from_within(last.clone());
                        ends.push(inputs.len());
                    }
                }
                let mut start = 0;
                let each =
                    ends.iter().map(|end| &inputs[std::mem::replace(&mut start, *end)..*end]);
                blake2b::hash_many(each, digests);
                digests.truncate(count);
            }
        }
        inputs.clear();
        ends.clear();
        digests
    }
}
