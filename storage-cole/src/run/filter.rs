//! The blocked Bloom filter over the keys of a run: a lookup reads one block of 64 bytes.
//!
//! Keys come in their order, and set bits anywhere in the filter. A filter that is larger than the
//! memory for it is built in parts, ranges of blocks: the bits of the first part are set at once,
//! those of the others wait on disk, 12 bytes a key, until their part's turn. The bytes of a filter
//! do not depend on the memory.
//!
//! Format: `docs/formats/cole.md`, Filters.

use super::file::{PAYLOAD, PagedFile, ScratchFile};
use crate::filter::{bits, block_of};
use alloy_primitives::B256;
use retrie_state::StateError;
use std::path::Path;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;
/// Blocks in a page.
pub(crate) const BLOCKS: usize = PAYLOAD / BLOCK;
const BITS_A_KEY: u64 = 10;
/// Bytes of memory for a filter that is being built: in parts from 27 million keys on.
pub(crate) const MEMORY: usize = 64 << 20;

/// Bytes of an entry: block in its part, numbers of the bits.
const ENTRY: usize = 12;
/// Bytes of a chunk before its entries: where the chunk before lies.
const HEAD: usize = 8;
/// Entries of the largest and of the smallest chunk: 256 KiB, and 512 bytes.
const MOST_ENTRIES: usize = ((256 << 10) - HEAD) / ENTRY;
const LEAST_ENTRIES: usize = (512 - HEAD) / ENTRY;
/// Stands for the place of a chunk if there is none.
const NO_CHUNK: u64 = u64::MAX;

/// The number of blocks for `keys` keys.
pub(crate) const fn blocks(keys: u64) -> u64 {
    (keys * BITS_A_KEY).div_ceil(8 * BLOCK as u64)
}

/// The number of pages for `blocks` blocks.
pub(crate) const fn pages(blocks: u64) -> u64 {
    blocks.div_ceil(BLOCKS as u64)
}

/// A filter that is being built.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    /// The number of blocks of the filter.
    blocks: u64,
    /// The first part.
    first: Vec<[u8; BLOCK]>,
    /// The other parts, if there are any.
    others: Option<SpilledParts>,
}

impl FilterBuilder {
    /// An empty filter for `keys` keys, which takes at most `memory` bytes of memory (as long as
    /// `memory` is 9 KiB or more, and the filter at most `memory`^2 / 2,048 bytes: 2 TiB with
    /// [`MEMORY`]). A filter of more than half of that uses a file of `dir`, whose name begins with
    /// `name`.
    pub(crate) fn new(
        dir: &Path,
        name: &str,
        keys: u64,
        memory: usize,
    ) -> Result<Self, StateError> {
        let (blocks, half) = (blocks(keys), memory / 2);
        // Whole pages, so that the parts can be written one after the other.
        let part = (half / (BLOCK * BLOCKS)).max(1) * BLOCKS;
        let more = blocks.div_ceil(part as u64).saturating_sub(1) as usize;
        let others = (more > 0).then(|| SpilledParts::new(dir, name, more, half)).transpose()?;
        let first = vec![[0; BLOCK]; part.min(blocks as usize)];
        Ok(Self { blocks, first, others })
    }

    /// Adds a key, by the hash from which [`crate::hash::filter_key`] takes its numbers.
    pub(crate) fn add(&mut self, hash: &B256) -> Result<(), StateError> {
        let (a, b) = halves(hash);
        let (block, part) = (block_of(a, self.blocks), self.first.len().max(1) as u64);
        let at = (block % part) as usize;
        match (&mut self.others, (block / part).checked_sub(1)) {
            (Some(others), Some(other)) => others.add(other as usize, at, b),
            _ => {
                set(&mut self.first, at, b);
                Ok(())
            }
        }
    }

    /// Calls `each` with all blocks in order, a part at a time. All parts but the last one fill
    /// whole pages.
    pub(crate) fn finish(
        self,
        mut each: impl FnMut(&[[u8; BLOCK]]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let Self { blocks, first: mut part, others } = self;
        each(&part)?;
        let Some(SpilledParts { file, full, chunks }) = others else { return Ok(()) };
        let mut left = blocks - part.len() as u64;
        for mut chunk in chunks {
            part.truncate(part.len().min(left as usize));
            part.fill([0; BLOCK]);
            loop {
                let (before, entries) = chunk.split_at(HEAD);
                for entry in entries.as_chunks::<ENTRY>().0 {
                    let (at, b) = entry.split_at(ENTRY - 8);
                    set(&mut part, big_endian(at) as usize, big_endian(b));
                }
                let before = big_endian(before);
                if before == NO_CHUNK {
                    break;
                }
                // All chunks on disk are full.
                chunk.resize(full, 0);
                file.read(before, &mut chunk)?;
            }
            each(&part)?;
            left -= part.len() as u64;
        }
        Ok(())
    }

    /// Bytes of memory that it has asked for.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let chunks = self.others.iter().flat_map(|others| &others.chunks);
        self.first.capacity() * BLOCK + chunks.map(Vec::capacity).sum::<usize>()
    }
}

/// Parts that wait. Each has one chunk in memory, and its full chunks in the file: each names the
/// one before, the last one is named by the chunk in memory.
#[derive(Debug)]
struct SpilledParts {
    file: ScratchFile,
    /// Bytes of a full chunk.
    full: usize,
    chunks: Vec<Vec<u8>>,
}

impl SpilledParts {
    fn new(dir: &Path, name: &str, parts: usize, memory: usize) -> Result<Self, StateError> {
        let entries = (memory / parts).saturating_sub(HEAD) / ENTRY;
        let full = HEAD + ENTRY * entries.clamp(LEAST_ENTRIES, MOST_ENTRIES);
        let empty = || {
            let mut chunk = Vec::with_capacity(full);
            chunk.extend_from_slice(&NO_CHUNK.to_be_bytes());
            chunk
        };
        let chunks = (0..parts).map(|_| empty()).collect();
        Ok(Self { file: ScratchFile::new(dir, name)?, full, chunks })
    }

    /// Adds the bits `b` of block `at` of a part.
    fn add(&mut self, part: usize, at: usize, b: u64) -> Result<(), StateError> {
        let Some(chunk) = self.chunks.get_mut(part) else { return Ok(()) };
        if chunk.len() == self.full {
            let place = self.file.append(chunk)?;
            chunk.clear();
            chunk.extend_from_slice(&place.to_be_bytes());
        }
        // A part has fewer than 2^32 blocks, which are 256 GiB.
        chunk.extend_from_slice(&(at as u32).to_be_bytes());
        chunk.extend_from_slice(&b.to_be_bytes());
        Ok(())
    }
}

fn set(blocks: &mut [[u8; BLOCK]], at: usize, b: u64) {
    if let Some(block) = blocks.get_mut(at) {
        bits(b).for_each(|(byte, mask)| block[byte] |= mask);
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// The numbers `a` and `b` of a key.
fn halves(hash: &B256) -> (u64, u64) {
    (big_endian(&hash[..8]), big_endian(&hash[8..16]))
}

/// Reads a block of a filter from its file.
pub(crate) fn block(file: &PagedFile, number: u64) -> Result<&[u8; BLOCK], StateError> {
    let (page, at) = (number / BLOCKS as u64, (number % BLOCKS as u64) as usize);
    let block = file.page(page)?[at * BLOCK..].first_chunk();
    block.ok_or_else(|| file.wrong(format!("it has no block {number}")))
}
