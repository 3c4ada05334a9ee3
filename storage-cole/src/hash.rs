//! Every hash under the root: BLAKE2b-256; the first byte of the input names the domain.
//!
//! No input of one domain can be read as an input of another, nor as two inputs of its own: every
//! field has a fixed length, is led by its length, or comes last. Numbers are big-endian.

use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::blake2b::{Blake2bHasher, hash as parts};

/// The leaf of a tree: from `block` on, `key` (an encoded state key) had `value` (`None`: deleted).
pub(crate) fn pair(key: &[u8], block: u64, value: Option<&[u8]>) -> B256 {
    // State keys have 53 bytes at most.
    debug_assert!(key.len() < 256);
    let mut head = [0; 2];
    head[1] = key.len() as u8;
    let present = [u8::from(value.is_some())];
    parts(&[&head, key, &block.to_be_bytes(), &present, value.unwrap_or_default()])
}

/// A node of any tree, over the digests of its children.
pub(crate) fn node<'a>(children: impl IntoIterator<Item = &'a B256>) -> B256 {
    let mut state = Blake2bHasher::default();
    state.update(&[0x01]);
    for child in children {
        state.update(&child[..]);
    }
    state.finish()
}

/// The leaf of a key with several versions in a run with version trees: `top` is the top of the tree
/// over its versions.
pub(crate) fn versions(key: &[u8], top: &B256) -> B256 {
    debug_assert!(key.len() < 256);
    parts(&[&[0x05, key.len() as u8], key, &top[..]])
}

/// The numbers that locate a key in a filter: `a` (which block) and `b` (which bits).
pub(crate) fn filter_key(key: &[u8]) -> (u64, u64) {
    let hash = parts(&[&[0x02], key]);
    let word = |at: usize| hash[at..at + 8].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
    (word(0), word(8))
}

/// A block of a filter.
pub(crate) fn filter_block(block: &[u8; 64]) -> B256 {
    parts(&[&[0x03], block])
}

/// What the root says about a source: a group in memory, or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceHeader {
    /// Number of pairs, at least one.
    pub(crate) pairs: u64,
    /// Lowest block of a pair.
    pub(crate) first_block: u64,
    /// Highest block of a pair.
    pub(crate) last_block: u64,
    /// Top of the tree over the pairs.
    pub(crate) top: B256,
    /// Blocks of the filter, 64 bytes each; 0 in memory.
    pub(crate) filter_blocks: u64,
    /// Top of the tree over the filter's blocks; zero in memory.
    pub(crate) filter_top: B256,
}

impl SourceHeader {
    /// The digest under the root. An empty group in memory has the digest zero instead.
    pub(crate) fn digest(&self) -> B256 {
        parts(&[
            &[0x04],
            &self.pairs.to_be_bytes(),
            &self.first_block.to_be_bytes(),
            &self.last_block.to_be_bytes(),
            &self.top[..],
            &self.filter_blocks.to_be_bytes(),
            &self.filter_top[..],
        ])
    }
}

/// The digests of one level's runs, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelDigests {
    /// Writing group.
    pub(crate) writing: Vec<B256>,
    /// Merging group.
    pub(crate) merging: Vec<B256>,
}

/// The root of a state. `memory` are the digests of the writing and the merging group. Empty levels
/// at the end do not count.
pub(crate) fn root(horizon: u64, memory: [B256; 2], levels: &[LevelDigests]) -> B256 {
    let is_empty = |level: &LevelDigests| level.writing.is_empty() && level.merging.is_empty();
    let used = levels.iter().rposition(|level| !is_empty(level)).map_or(0, |last| last + 1);
    let mut state = Blake2bHasher::default();
    state.update(&[0x07]).update(&horizon.to_be_bytes());
    state.update(&memory[0][..]).update(&memory[1][..]);
    state.update(&(used as u16).to_be_bytes());
    for level in &levels[..used] {
        state.update(&[level.writing.len() as u8, level.merging.len() as u8]);
        for digest in level.writing.iter().chain(&level.merging) {
            state.update(&digest[..]);
        }
    }
    state.finish()
}

/// The id of a run that is to be made. It is not under the root; the run's files are named by it.
#[cfg(feature = "std")]
pub(crate) fn run_id<'a>(
    params: &B256,
    cutoff: &[u8],
    inputs: impl IntoIterator<Item = &'a B256>,
) -> B256 {
    let mut state = Blake2bHasher::default();
    state.update(&[0x08]).update(&params[..]);
    // At most nine bytes.
    state.update(&[cutoff.len() as u8]).update(cutoff);
    for input in inputs {
        state.update(&input[..]);
    }
    state.finish()
}

/// Hashes many inputs together, more than twice as fast as one by one. The digests equal those of
/// the functions of the same names.
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub(crate) struct HashBatch(retrie_state::blake2b::Blake2bBatch);

#[cfg(feature = "std")]
impl HashBatch {
    /// Adds a [`pair`].
    pub(crate) fn pair(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) {
        debug_assert!(key.len() < 256);
        self.0.push(|input| {
            input.extend_from_slice(&[0x00, key.len() as u8]);
            input.extend_from_slice(key);
            input.extend_from_slice(&block.to_be_bytes());
            input.push(u8::from(value.is_some()));
            input.extend_from_slice(value.unwrap_or_default());
        });
    }

    /// Adds a [`node`].
    pub(crate) fn node<'a>(&mut self, children: impl IntoIterator<Item = &'a B256>) {
        self.0.push(|input| {
            input.push(0x01);
            for child in children {
                input.extend_from_slice(&child[..]);
            }
        });
    }

    /// Adds a [`versions`].
    pub(crate) fn versions(&mut self, key: &[u8], top: &B256) {
        debug_assert!(key.len() < 256);
        self.0.push(|input| {
            input.extend_from_slice(&[0x05, key.len() as u8]);
            input.extend_from_slice(key);
            input.extend_from_slice(&top[..]);
        });
    }

    /// Adds the input of a [`filter_key`], which is the first 16 bytes of the hash.
    pub(crate) fn filter_key(&mut self, key: &[u8]) {
        self.0.push(|input| {
            input.push(0x02);
            input.extend_from_slice(key);
        });
    }

    /// Adds a [`filter_block`].
    pub(crate) fn filter_block(&mut self, block: &[u8; 64]) {
        self.0.push(|input| {
            input.push(0x03);
            input.extend_from_slice(block);
        });
    }

    /// The number of inputs.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends the digests to `digests`, in the order in which the inputs were added, and empties
    /// the batch.
    pub(crate) fn finish_into(&mut self, digests: &mut Vec<B256>) {
        self.0.finish_into(digests);
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_batch_hashes_as_the_functions_of_the_same_names_do() {
        let children = [B256::repeat_byte(1), B256::repeat_byte(2), B256::repeat_byte(3)];
        let mut batch = HashBatch::default();
        let mut expected = Vec::new();
        for n in 0..40u64 {
            let key = vec![n as u8; 1 + n as usize];
            let value = (n % 3 > 0).then(|| vec![7; 3 * n as usize]);
            batch.pair(&key, n << 40, value.as_deref());
            expected.push(pair(&key, n << 40, value.as_deref()));
            batch.node(&children[..1 + n as usize % 3]);
            expected.push(node(&children[..1 + n as usize % 3]));
            batch.filter_block(&[n as u8; 64]);
            expected.push(filter_block(&[n as u8; 64]));
            batch.versions(&key, &children[n as usize % 3]);
            expected.push(versions(&key, &children[n as usize % 3]));
        }
        assert_eq!(batch.len(), expected.len());
        let mut digests = Vec::new();
        batch.finish_into(&mut digests);
        assert_eq!(digests, expected);
        batch.filter_key(b"key");
        digests.clear();
        batch.finish_into(&mut digests);
        let word = |at: usize| u64::from_be_bytes(digests[0][at..at + 8].try_into().unwrap());
        assert_eq!(filter_key(b"key"), (word(0), word(8)));
    }
}
