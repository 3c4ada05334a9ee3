//! Building the log index, a bounded part at a time.

use super::{
    LogSegment, MOST_BLOCKS, TermHashes, outermost,
    postings::{self, LogPosting, PostingReader},
};
use crate::{
    ChainRead, CorruptRow, DatabaseEnv, ReadError, ReadTxn, Result, WriteTxn,
    chain::{canonical, header_at},
    raw::RawRead,
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_state::ScanDirection;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sizes of the index's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// A segment is full at this many postings, of about five bytes each. A search reads a row or
    /// two of each segment, and a step writes at most one segment.
    pub postings: usize,
    /// A segment is full at this many blocks; at most 65,536.
    pub blocks: u64,
    /// A step is taken once this many durable blocks are above the index, as it may rewrite a whole
    /// segment. A search reads fewer than this many blocks one by one.
    pub behind: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { postings: 1 << 18, blocks: MOST_BLOCKS, behind: 32 }
    }
}

impl LogBounds {
    fn most_blocks(&self) -> u64 {
        self.blocks.clamp(1, MOST_BLOCKS)
    }
}

enum IndexStep {
    /// Removes a segment that is no longer valid, or whose receipts are pruned.
    Remove(LogSegment),
    /// Adds blocks, beginning with `from`, which is next to the segment `beside`.
    Add { from: u64, towards: u64, beside: Option<LogSegment> },
}

impl DatabaseEnv {
    /// Takes one step in extending the log index, first up to the durable tip, then down to the
    /// oldest block with receipts. Returns whether there may be more to do. A step reads at most
    /// the blocks of one segment, and writes it in one transaction. It has no effect if `stop` is
    /// set, or if the chain has been reorganised meanwhile.
    ///
    /// # Errors
    /// [`DbError::Corrupt`](crate::DbError::Corrupt) for damaged rows, including rows of the index;
    /// any failure of the database.
    pub fn index_logs(&self, bounds: &LogBounds, stop: &AtomicBool) -> Result<bool> {
        let read = self.begin_read()?;
        let (part, beside) = match read.next_step(bounds)? {
            None => return Ok(false),
            Some(IndexStep::Remove(segment)) => {
                drop(read);
                let mut txn = self.begin_write()?;
                txn.remove_segment(&segment)?;
                txn.commit()?;
                return Ok(true);
            }
            Some(IndexStep::Add { from, towards, beside }) => {
                let Some(part) = SegmentDraft::collect(&read, from, towards, bounds, stop)? else {
                    return Ok(false);
                };
                (part, beside)
            }
        };
        let (part, replaced) = match beside {
            Some(beside) if part.fits(&beside, bounds) => {
                (part.join(&read, &beside)?, beside.into())
            }
            _ => (part, None),
        };
        // Do not hold the snapshot while waiting for the write transaction.
        drop(read);
        let mut txn = self.begin_write()?;
        if txn.has_edge(beside)? && part.segment.is_valid(&txn)? {
            if let Some(replaced) = &replaced {
                txn.remove_segment(replaced)?;
            }
            txn.add_segment(&part)?;
            txn.commit()?;
        }
        Ok(true)
    }
}

impl ReadTxn {
    fn next_step(&self, bounds: &LogBounds) -> Result<Option<IndexStep>, ReadError> {
        let (Some(first), Some(tip)) = (self.first()?, self.tip()?) else { return Ok(None) };
        let bottom = self.receipts_pruned_below()?.max(first.number);
        let behind = bounds.behind.max(1);
        let lowest = outermost(self, ScanDirection::Forward)?;
        let highest = outermost(self, ScanDirection::Backward)?;
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            let step = IndexStep::Add { from: tip.number, towards: bottom, beside: None };
            return Ok((tip.number + 1 >= bottom.saturating_add(behind)).then_some(step));
        };
        if !highest.is_valid(self)? {
            return Ok(Some(IndexStep::Remove(highest)));
        }
        if lowest.last < bottom {
            return Ok(Some(IndexStep::Remove(lowest)));
        }
        if tip.number.saturating_sub(highest.last) >= behind {
            let beside = Some(highest);
            return Ok(Some(IndexStep::Add {
                from: highest.last + 1,
                towards: tip.number,
                beside,
            }));
        }
        let below = lowest.first.checked_sub(1).filter(|below| *below >= bottom);
        Ok(below.map(|from| IndexStep::Add { from, towards: bottom, beside: Some(lowest) }))
    }
}

/// A segment in memory, its postings in order.
struct SegmentDraft {
    segment: LogSegment,
    postings: Vec<LogPosting>,
}

impl SegmentDraft {
    /// Reads blocks beginning with `from` until the segment is full, or `towards` is reached;
    /// `None` if `stop` was set.
    fn collect(
        read: &ReadTxn,
        from: u64,
        towards: u64,
        bounds: &LogBounds,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, ReadError> {
        let mut terms = TermHashes::default();
        let mut found: Vec<(u32, u64)> = Vec::new();
        let mut number = from;
        // Logs without new terms cost time too.
        let mut logs = 0;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let (hash, id) = canonical(read, number)?.ok_or_else(|| no_block(number))?;
            if !header_at(read, id)?.logs_bloom.is_zero() {
                let receipts = read.receipts(&hash)?.ok_or_else(|| {
                    let what = "a canonical block has no receipts";
                    CorruptRow::new(ChainTable::Receipts.name(), &id.to_bytes(), what)
                })?;
                logs += receipts.iter().map(|receipt| receipt.logs.len()).sum::<usize>();
                found.extend(terms.of_block(&receipts).into_iter().map(|term| (term, number)));
            }
            let is_full = found.len().max(logs) >= bounds.postings
                || number.abs_diff(from) + 1 >= bounds.most_blocks();
            if number == towards || is_full {
                break;
            }
            number = if towards > from { number + 1 } else { number - 1 };
        }
        let (first, last) = (from.min(number), from.max(number));
        let hash = read.canonical_hash(last)?.ok_or_else(|| no_block(last))?;
        found.sort_unstable();
        let posting = |(term, number)| LogPosting { term, offset: (number - first) as u16 };
        let postings: Vec<_> = found.into_iter().map(posting).collect();
        Ok(Some(Self::new(first, last, hash, postings)))
    }

    fn new(first: u64, last: u64, hash: B256, postings: Vec<LogPosting>) -> Self {
        Self {
            segment: LogSegment { first, last, hash, postings: postings.len() as u32 },
            postings,
        }
    }

    /// Whether both together fit into one segment.
    fn fits(&self, beside: &LogSegment, bounds: &LogBounds) -> bool {
        let LogSegment { first, last, .. } = self.segment;
        let blocks = last.max(beside.last) - first.min(beside.first) + 1;
        let postings = self.postings.len() + beside.postings as usize;
        blocks <= bounds.most_blocks() && postings <= bounds.postings
    }

    /// This segment joined with the segment beside it.
    fn join(self, read: &ReadTxn, beside: &LogSegment) -> Result<Self, ReadError> {
        let mut postings = Vec::with_capacity(self.postings.len() + beside.postings as usize);
        let first = self.segment.first.min(beside.first);
        // `fits` has checked that the offsets fit into two bytes.
        let shifted = |posting: LogPosting, of: &LogSegment| LogPosting {
            offset: posting.offset + (of.first - first) as u16,
            ..posting
        };
        for row in postings::rows(read, beside)? {
            for posting in PostingReader::of(beside, &row)? {
                postings.push(shifted(posting?, beside));
            }
        }
        postings.extend(self.postings.iter().map(|posting| shifted(*posting, &self.segment)));
        // The sort merges the two sorted sequences.
        postings.sort();
        let top = if self.segment.last > beside.last { &self.segment } else { beside };
        Ok(Self::new(first, top.last, top.hash, postings))
    }
}

impl WriteTxn {
    /// Whether `beside` is still at an end of the index, and valid. For `None`: whether there is
    /// still no index.
    fn has_edge(&self, beside: Option<LogSegment>) -> Result<bool, ReadError> {
        let ends =
            [outermost(self, ScanDirection::Forward)?, outermost(self, ScanDirection::Backward)?];
        match beside {
            None => Ok(ends == [None, None]),
            Some(segment) => Ok(ends.contains(&beside) && segment.is_valid(self)?),
        }
    }

    fn add_segment(&mut self, part: &SegmentDraft) -> Result<()> {
        let table = self.chain(ChainTable::LogSegments);
        self.raw_put(table, &part.segment.key(), &part.segment.encode())?;
        postings::write(self, &part.segment, &part.postings)
    }

    /// Removes a segment, damaged or not.
    fn remove_segment(&mut self, segment: &LogSegment) -> Result<()> {
        let table = self.chain(ChainTable::LogPostings);
        for (key, _) in postings::stored_rows(self, segment)? {
            self.raw_delete(table, &key)?;
        }
        self.raw_delete(self.chain(ChainTable::LogSegments), &segment.key())?;
        Ok(())
    }
}

fn no_block(number: u64) -> CorruptRow {
    let key = number.to_be_bytes();
    CorruptRow::new(ChainTable::Canonical.name(), &key, "the chain has a gap here")
}
