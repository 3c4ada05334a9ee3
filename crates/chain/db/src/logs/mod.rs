//! The log index: in which blocks an address or a topic occurs in logs, so that a search over many
//! blocks need not read each of them.
//!
//! # Vocabulary
//!
//! * *Term*: an address, or a topic at its position. The index stores 32 bits of its hash, so two
//!   terms may look the same.
//! * *Posting*: a term and a block in whose logs it occurs (`LogPosting`).
//! * *Segment*: the postings of consecutive canonical blocks, in the order of terms, cut into rows
//!   of a quarter of a page (`LogSegment`). A segment is full at a number of postings
//!   ([`LogBounds`]), not of blocks: a search reads a row or two in each segment, so its cost
//!   depends on the number of logs, and empty blocks are free.
//! * *Candidate*: a block that may have a matching log. The caller of a search reads its receipts
//!   to find out. A candidate is false if two terms share a hash, or if address and topic belong to
//!   two different logs.
//!
//! ```text
//!  blocks      bottom ........ first            last ... tip    in memory
//!              |  read         |seg|segm|segment|       read one by one
//!              one by one, <-- grows           grows -->
//! ```
//!
//! # Soundness
//!
//! Writes of the chain do not touch the index. A segment stores the hash of its last block, and is
//! *valid* in a snapshot if that block is canonical there. Then all its blocks are canonical, and
//! all segments below are valid too, as a segment is only added next to one that is valid in the
//! same transaction. So after a revert, even one by a version of this program without an index,
//! comparing the hash is enough, and [`DatabaseEnv::index_logs`](crate::DatabaseEnv::index_logs)
//! later removes invalid segments.
//!
//! A search does not use the index for blocks below
//! [`receipts_pruned_below`](crate::ChainRead::receipts_pruned_below).

mod build;
mod check;
mod postings;
mod search;

#[cfg(test)]
mod tests;

pub use build::LogBounds;
pub(crate) use check::LogCheck;
pub use search::{LogCandidates, LogQuery};

use crate::{
    CorruptRow, ReadError, Result,
    chain::canonical,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use alloy_primitives::{B256, keccak256, map::HashMap};
use retrie_chainspec::primitives::Receipt;
use retrie_state::{
    ScanDirection, TableRow,
    wire::{WireError, WireReader},
};

/// A range of canonical blocks whose logs are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogSegment {
    first: u64,
    last: u64,
    /// Hash of the last block.
    hash: B256,
    postings: u32,
}

/// Maximum number of blocks of a segment, so that offsets fit into two bytes.
const MOST_BLOCKS: u64 = 1 << 16;

impl LogSegment {
    fn key(&self) -> [u8; 8] {
        self.first.to_be_bytes()
    }

    fn encode(&self) -> Vec<u8> {
        [&self.last.to_be_bytes()[..], self.hash.as_slice(), &self.postings.to_be_bytes()].concat()
    }

    fn decode((key, row): &TableRow) -> Result<Self, CorruptRow> {
        let bad = |what| CorruptRow::new(ChainTable::LogSegments.name(), key, what);
        let first = <[u8; 8]>::try_from(&key[..]).map(u64::from_be_bytes);
        let first = first.map_err(|_| bad("the key is not a block number"))?;
        let segment = Self::parse(first, row).map_err(|error| bad(error.what()))?;
        if segment.last < first || segment.last - first >= MOST_BLOCKS {
            return Err(bad("it ends before it begins, or has too many blocks"));
        }
        Ok(segment)
    }

    fn parse(first: u64, row: &[u8]) -> Result<Self, WireError> {
        let mut reader = WireReader::new(row);
        let (last, hash, postings) = (reader.u64()?, reader.hash()?, reader.u32()?);
        reader.finish()?;
        Ok(Self { first, last, hash, postings })
    }

    /// Whether its blocks are canonical, so that the segment is valid.
    fn is_valid<R: RawRead + ?Sized>(&self, read: &R) -> Result<bool, ReadError> {
        Ok(canonical(read, self.last)?.is_some_and(|(hash, _)| hash == self.hash))
    }
}

/// The first segment of the index, or the last one.
fn outermost<R: RawRead + ?Sized>(
    read: &R,
    direction: ScanDirection,
) -> Result<Option<LogSegment>, ReadError> {
    let row = read.raw_seek(read.chain(ChainTable::LogSegments), None, direction)?;
    Ok(row.as_ref().map(LogSegment::decode).transpose()?)
}

/// Segments whose first blocks are in `from..=to`, in order.
fn segments<R: RawRead + ?Sized>(
    read: &R,
    from: u64,
    to: u64,
) -> Result<Vec<LogSegment>, ReadError> {
    let (start, end) = (from.to_be_bytes(), to.checked_add(1).map(u64::to_be_bytes));
    let end = end.as_ref().map(|end| &end[..]);
    let range =
        RowRange { start: &start, end, direction: ScanDirection::Forward, limit: usize::MAX };
    let rows = read.raw_scan(read.chain(ChainTable::LogSegments), range)?;
    Ok(rows.iter().map(LogSegment::decode).collect::<Result<_, _>>()?)
}

/// Position of the address in a log; topics have positions 1 to 4.
const ADDRESS: u8 = 0;

/// The hash of a term: the first four bytes of keccak-256 over position (1 byte) and value.
fn term(place: u8, value: &[u8]) -> u32 {
    let mut bytes = [0; 33];
    bytes[0] = place;
    bytes[1..=value.len()].copy_from_slice(value);
    let hash = keccak256(&bytes[..=value.len()]);
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Computes terms of logs, and caches the hashes of terms that it has seen.
#[derive(Debug, Default)]
struct TermHashes {
    hashes: HashMap<(u8, B256), u32>,
}

impl TermHashes {
    /// The terms of a block, each once, in order.
    fn of_block(&mut self, receipts: &[Receipt]) -> Vec<u32> {
        let mut terms = Vec::new();
        for log in receipts.iter().flat_map(|receipt| &receipt.logs) {
            let address = (ADDRESS, log.address.as_slice());
            let topics = (1..).zip(log.topics()).map(|(place, topic)| (place, topic.as_slice()));
            for (place, value) in std::iter::once(address).chain(topics) {
                let known = (place, B256::left_padding_from(value));
                terms.push(*self.hashes.entry(known).or_insert_with(|| term(place, value)));
            }
        }
        terms.sort_unstable();
        terms.dedup();
        terms
    }
}
