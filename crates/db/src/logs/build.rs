//! Building the index, a bounded part at a time.

use super::{
    MOST_BLOCKS, Segment, Terms, outermost,
    postings::{self, Posting, Postings},
};
use crate::{
    ChainRead, Db, DbError, ReadTxn, Result, WriteTxn,
    chain::{canonical, header_at},
    raw::RawRead,
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_state::Direction;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sizes of the index's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// Postings with which a segment is full: a search reads a row or two of so many, and a step
    /// writes about so many, some five bytes each.
    pub postings: usize,
    /// Blocks with which a segment is full, at most 65,536.
    pub blocks: u64,
    /// Durable blocks above the index that make a step worth its while. It may write a whole segment
    /// anew; a search looks at fewer than so many one by one.
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

enum Step {
    /// This segment goes: it does not count any more, or its receipts are gone.
    Remove(Segment),
    /// Blocks come, beginning with `from`, which is next to the segment `beside`.
    Add { from: u64, towards: u64, beside: Option<Segment> },
}

impl Db {
    /// Takes one step in bringing the index of logs up to the durable tip, then down to the oldest
    /// block that has receipts. Says whether there may be more to do. A step reads the blocks of a
    /// segment at most, and writes them in one transaction; nothing comes of it if `stop` is set, or if
    /// the chain has been reorganised meanwhile.
    ///
    /// # Errors
    /// [`DbError::Corrupt`] for damaged rows, those of the index too; if the database fails.
    pub fn index_logs(&self, bounds: &LogBounds, stop: &AtomicBool) -> Result<bool> {
        let read = self.begin_read()?;
        let (part, beside) = match read.next_step(bounds)? {
            None => return Ok(false),
            Some(Step::Remove(segment)) => {
                drop(read);
                let mut txn = self.begin_write()?;
                txn.remove_segment(&segment)?;
                txn.commit()?;
                return Ok(true);
            }
            Some(Step::Add { from, towards, beside }) => {
                let Some(part) = Part::collect(&read, from, towards, bounds, stop)? else {
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
        // Nobody waits for a snapshot that waits for its turn to write.
        drop(read);
        let mut txn = self.begin_write()?;
        if txn.has_edge(beside)? && part.segment.counts(&txn)? {
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
    fn next_step(&self, bounds: &LogBounds) -> Result<Option<Step>> {
        let (Some(first), Some(tip)) = (self.first()?, self.tip()?) else { return Ok(None) };
        let bottom = self.receipts_pruned_below()?.max(first.number);
        let behind = bounds.behind.max(1);
        let lowest = outermost(self, Direction::Forward)?;
        let highest = outermost(self, Direction::Backward)?;
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            let step = Step::Add { from: tip.number, towards: bottom, beside: None };
            return Ok((tip.number + 1 >= bottom.saturating_add(behind)).then_some(step));
        };
        if !highest.counts(self)? {
            return Ok(Some(Step::Remove(highest)));
        }
        if lowest.last < bottom {
            return Ok(Some(Step::Remove(lowest)));
        }
        if tip.number.saturating_sub(highest.last) >= behind {
            let beside = Some(highest);
            return Ok(Some(Step::Add { from: highest.last + 1, towards: tip.number, beside }));
        }
        let below = lowest.first.checked_sub(1).filter(|below| *below >= bottom);
        Ok(below.map(|from| Step::Add { from, towards: bottom, beside: Some(lowest) }))
    }
}

/// A segment in memory, its postings in order.
struct Part {
    segment: Segment,
    postings: Vec<Posting>,
}

impl Part {
    /// Reads blocks beginning with `from` until a segment is full, or `towards` reached; `None` if
    /// `stop` was set.
    fn collect(
        read: &ReadTxn,
        from: u64,
        towards: u64,
        bounds: &LogBounds,
        stop: &AtomicBool,
    ) -> Result<Option<Self>> {
        let mut terms = Terms::default();
        let mut found: Vec<(u32, u64)> = Vec::new();
        let mut number = from;
        // Logs that say what others have said cost time too.
        let mut logs = 0;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let (hash, id) = canonical(read, number)?.ok_or_else(|| no_block(number))?;
            if !header_at(read, id)?.logs_bloom.is_zero() {
                let receipts = read.receipts(&hash)?.ok_or_else(|| {
                    let what = "a canonical block has no receipts";
                    DbError::corrupt(ChainTable::Receipts.name(), &id.to_bytes(), what)
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
        let posting = |(term, number)| Posting { term, offset: (number - first) as u16 };
        let postings: Vec<_> = found.into_iter().map(posting).collect();
        Ok(Some(Self::new(first, last, hash, postings)))
    }

    fn new(first: u64, last: u64, hash: B256, postings: Vec<Posting>) -> Self {
        Self { segment: Segment { first, last, hash, postings: postings.len() as u32 }, postings }
    }

    /// Whether both make one segment.
    fn fits(&self, beside: &Segment, bounds: &LogBounds) -> bool {
        let Segment { first, last, .. } = self.segment;
        let blocks = last.max(beside.last) - first.min(beside.first) + 1;
        let postings = self.postings.len() + beside.postings as usize;
        blocks <= bounds.most_blocks() && postings <= bounds.postings
    }

    /// The same with the blocks of the segment beside it.
    fn join(self, read: &ReadTxn, beside: &Segment) -> Result<Self> {
        let mut postings = Vec::with_capacity(self.postings.len() + beside.postings as usize);
        let first = self.segment.first.min(beside.first);
        // Both have at most as many blocks as offsets can tell apart.
        let shifted = |posting: Posting, of: &Segment| Posting {
            offset: posting.offset + (of.first - first) as u16,
            ..posting
        };
        for row in postings::rows(read, beside)? {
            for posting in Postings::of(beside, &row)? {
                postings.push(shifted(posting?, beside));
            }
        }
        postings.extend(self.postings.iter().map(|posting| shifted(*posting, &self.segment)));
        // Two runs in order: they are merged.
        postings.sort();
        let top = if self.segment.last > beside.last { &self.segment } else { beside };
        Ok(Self::new(first, top.last, top.hash, postings))
    }
}

impl WriteTxn {
    /// Whether `beside` is still there, at an end of the index, and counts. `None`: there is no index.
    fn has_edge(&self, beside: Option<Segment>) -> Result<bool> {
        let ends = [outermost(self, Direction::Forward)?, outermost(self, Direction::Backward)?];
        match beside {
            None => Ok(ends == [None, None]),
            Some(segment) => Ok(ends.contains(&beside) && segment.counts(self)?),
        }
    }

    fn add_segment(&mut self, part: &Part) -> Result<()> {
        let table = self.chain(ChainTable::LogSegments);
        self.raw_put(table, &part.segment.key(), &part.segment.encode())?;
        postings::write(self, &part.segment, &part.postings)
    }

    /// Removes a segment, damaged or not.
    fn remove_segment(&mut self, segment: &Segment) -> Result<()> {
        let table = self.chain(ChainTable::LogPostings);
        for (key, _) in postings::stored_rows(self, segment)? {
            self.raw_delete(table, &key)?;
        }
        self.raw_delete(self.chain(ChainTable::LogSegments), &segment.key())?;
        Ok(())
    }
}

fn no_block(number: u64) -> DbError {
    let key = number.to_be_bytes();
    DbError::corrupt(ChainTable::Canonical.name(), &key, "the chain has a gap here")
}
