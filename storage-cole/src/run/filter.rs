//! The blocked Bloom filter over the keys of a run: a lookup reads one block of 64 bytes.
//!
//! Format: `docs/formats/cole.md`, Filters.

use super::file::{PAYLOAD, PageWriter, PagedFile};
use crate::filter::{bits, block_of};
use alloy_primitives::B256;
use retrie_state::StateError;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;
/// Blocks in a page.
const BLOCKS: u64 = (PAYLOAD / BLOCK) as u64;
const BITS_A_KEY: u64 = 10;

/// The number of blocks for `keys` keys.
pub(crate) const fn blocks(keys: u64) -> u64 {
    (keys * BITS_A_KEY).div_ceil(8 * BLOCK as u64)
}

/// The number of pages for `blocks` blocks.
pub(crate) const fn pages(blocks: u64) -> u64 {
    blocks.div_ceil(BLOCKS)
}

/// A filter that is being built, in memory: 10 bits for each key.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    pub(crate) blocks: Vec<[u8; BLOCK]>,
}

impl FilterBuilder {
    /// An empty filter for `keys` keys.
    pub(crate) fn new(keys: u64) -> Self {
        Self { blocks: vec![[0; BLOCK]; blocks(keys) as usize] }
    }

    /// Adds a key, by the hash from which [`crate::hash::filter_key`] takes its numbers.
    pub(crate) fn add(&mut self, hash: &B256) {
        let (a, b) = halves(hash);
        let at = block_of(a, self.blocks.len() as u64) as usize;
        if let Some(block) = self.blocks.get_mut(at) {
            bits(b).for_each(|(byte, mask)| block[byte] |= mask);
        }
    }

    /// Writes the filter.
    pub(crate) fn write(&self, out: &mut PageWriter) -> Result<(), StateError> {
        self.blocks.chunks(BLOCKS as usize).try_for_each(|page| out.append(page.as_flattened()))
    }
}

/// The numbers `a` and `b` of a key.
fn halves(hash: &B256) -> (u64, u64) {
    let word = |at: usize| hash[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    (word(0), word(8))
}

/// Reads a block of a filter from its file.
pub(crate) fn block(file: &PagedFile, number: u64) -> Result<&[u8; BLOCK], StateError> {
    let at = (number % BLOCKS) as usize * BLOCK;
    let block = file.page(number / BLOCKS)?[at..].first_chunk();
    block.ok_or_else(|| file.wrong(format!("it has no block {number}")))
}
