//! In which blocks an address or a topic occurs in logs, so that a search over many blocks need not
//! look at each of them.
//!
//! # Vocabulary
//!
//! * *Term*: what is looked for in logs: an address, or a topic at its place. It is known by 32 bits
//!   of a hash, so that two may be taken for one.
//! * *Posting*: a term and a block in whose logs it occurs.
//! * *Segment*: the postings of consecutive canonical blocks, in the order of terms, cut into rows of
//!   a quarter of a page. It is full at so many postings ([`LogBounds`]), not blocks: a search reads a
//!   row or two in each segment, so it costs what the chain has logged, and empty blocks are free.
//! * *Candidate*: a block that may hold what a search is for. Whoever searches reads its receipts: of
//!   blocks that share a term's hash, and of those where address and topic are of two logs, nothing is
//!   found there.
//!
//! ```text
//!  blocks      bottom ........ first            last ... tip    in memory
//!              |  looked at    |seg|segm|segment|       looked at one by one
//!              one by one, <-- grows           grows -->
//! ```
//!
//! # Soundness
//!
//! No write of the chain touches the index. A segment names the hash of its last block, and counts in
//! a snapshot if that block is canonical there: then all its blocks are, and so are all segments below,
//! as each is only ever added next to one that counts in the same transaction. So a revert needs
//! nothing but a look at the hash, also one by a version of this program that knows no index, and
//! [`Db::index_logs`](crate::Db::index_logs) removes afterwards what does not count.
//!
//! Blocks below [`receipts_pruned_below`](crate::ChainRead::receipts_pruned_below) are not searched
//! by the index, whatever it has.

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
    DbError, Result,
    chain::canonical,
    raw::{Range, RawRead},
    tables::ChainTable,
};
use alloy_primitives::{B256, keccak256, map::HashMap};
use retrie_chainspec::primitives::Receipt;
use retrie_state::{
    Direction, Row,
    wire::{WireError, WireReader},
};

/// A stretch of canonical blocks whose logs are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    first: u64,
    last: u64,
    /// Hash of the last block.
    hash: B256,
    postings: u32,
}

/// Most blocks of a segment: those whose offsets fit into two bytes.
const MOST_BLOCKS: u64 = 1 << 16;

impl Segment {
    fn key(&self) -> [u8; 8] {
        self.first.to_be_bytes()
    }

    fn encode(&self) -> Vec<u8> {
        [&self.last.to_be_bytes()[..], self.hash.as_slice(), &self.postings.to_be_bytes()].concat()
    }

    fn decode((key, row): &Row) -> Result<Self> {
        let bad = |what| DbError::corrupt(ChainTable::LogSegments.name(), key, what);
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

    /// Whether it is of canonical blocks.
    fn counts<R: RawRead + ?Sized>(&self, read: &R) -> Result<bool> {
        Ok(canonical(read, self.last)?.is_some_and(|(hash, _)| hash == self.hash))
    }
}

/// The first segment of all, or the last one.
fn outermost<R: RawRead + ?Sized>(read: &R, direction: Direction) -> Result<Option<Segment>> {
    let row = read.raw_seek(read.chain(ChainTable::LogSegments), None, direction)?;
    row.as_ref().map(Segment::decode).transpose()
}

/// Segments whose first blocks are in `from..=to`, in order.
fn segments<R: RawRead + ?Sized>(read: &R, from: u64, to: u64) -> Result<Vec<Segment>> {
    let (start, end) = (from.to_be_bytes(), to.checked_add(1).map(u64::to_be_bytes));
    let end = end.as_ref().map(|end| &end[..]);
    let range = Range { start: &start, end, direction: Direction::Forward, limit: usize::MAX };
    let rows = read.raw_scan(read.chain(ChainTable::LogSegments), range)?;
    rows.iter().map(Segment::decode).collect()
}

/// Place of an address among the things that a log has; those of topics follow.
const ADDRESS: u8 = 0;

/// The hash of a term: the first four bytes of keccak-256 over place (1 byte) and value.
fn term(place: u8, value: &[u8]) -> u32 {
    let mut bytes = [0; 33];
    bytes[0] = place;
    bytes[1..=value.len()].copy_from_slice(value);
    let hash = keccak256(&bytes[..=value.len()]);
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Terms of logs, with the hashes of those that have come before.
#[derive(Debug, Default)]
struct Terms {
    hashes: HashMap<(u8, B256), u32>,
}

impl Terms {
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
