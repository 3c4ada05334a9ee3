//! Search of the log index: which blocks may have matching logs.

use super::{
    ADDRESS, LogSegment,
    postings::{LogPosting, PostingReader},
    segments, term,
};
use crate::{ChainRead, ReadError, ReadTxn, Result, raw::RawRead, tables::ChainTable};
use alloy_primitives::{Address, B256};
use retrie_state::{ScanDirection, TableRow};
use std::{ops::RangeInclusive, vec};

/// Addresses and topics to look for in logs, as terms of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// A block must have at least one term of each list. Lists that are likely to be rare come
    /// first.
    pub(super) lists: Vec<Vec<u32>>,
}

impl LogQuery {
    /// A search for logs of one of these addresses, with one of these topics at each position. An
    /// empty list matches anything.
    pub fn new<'a, A, T>(addresses: A, topics: [T; 4]) -> Self
    where
        A: IntoIterator<Item = &'a Address>,
        T: IntoIterator<Item = &'a B256>,
    {
        let hashed = |place: u8, values: &mut dyn Iterator<Item = &'a [u8]>| {
            let mut list: Vec<u32> = values.map(|value| term(place, value)).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let mut lists = vec![hashed(ADDRESS, &mut addresses.into_iter().map(|one| one.as_slice()))];
        for (place, topics) in (1..).zip(topics) {
            lists.push(hashed(place, &mut topics.into_iter().map(|one| one.as_slice())));
        }
        // An event's indexed arguments are rarer than its contract, and that is rarer than its
        // signature. If the first does not occur, the search skips the others.
        lists.swap(0, 1);
        lists.reverse();
        lists.retain(|list| !list.is_empty());
        Self { lists }
    }
}

impl ReadTxn {
    /// The blocks of `range`, in order, that may have a log that matches `query`. Where the index
    /// covers a block it decides; all other blocks are candidates. It is not used for blocks above
    /// `durable`, as the caller's blocks there may differ from this snapshot's.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], with table and key, if a row of the index is
    /// damaged. The iterator may fail in the same way.
    pub fn log_candidates<'a>(
        &'a self,
        query: &'a LogQuery,
        range: RangeInclusive<u64>,
        durable: u64,
    ) -> Result<LogCandidates<'a>, ReadError> {
        let from = self.receipts_pruned_below()?.max(*range.start());
        let to = durable.min(*range.end());
        let segments = if query.lists.is_empty() || from > to {
            Vec::new()
        } else {
            self.segments_within(from, to)?
        };
        Ok(LogCandidates {
            read: self,
            query,
            from,
            to,
            segments: segments.into_iter(),
            found: Vec::new().into_iter(),
            next: (!range.is_empty()).then_some(*range.start()),
            end: *range.end(),
        })
    }

    /// The valid segments with blocks in `from..=to`.
    fn segments_within(&self, from: u64, to: u64) -> Result<Vec<LogSegment>, ReadError> {
        let table = self.chain(ChainTable::LogSegments);
        let key = from.to_be_bytes();
        let before = self.raw_seek(table, Some(&key), ScanDirection::Backward)?;
        let before = before.as_ref().map(LogSegment::decode).transpose()?;
        let before = before.filter(|segment| segment.last >= from);
        let mut segments = segments(self, before.map_or(from, |segment| segment.first), to)?;
        while let Some(last) = segments.last()
            && !last.is_valid(self)?
        {
            segments.pop();
        }
        Ok(segments)
    }

    /// Blocks of `range` with a term of each list of `query`.
    fn search_segment(
        &self,
        segment: &LogSegment,
        query: &LogQuery,
        range: RangeInclusive<u64>,
    ) -> Result<Vec<u64>, ReadError> {
        let mut found: Option<Vec<u16>> = None;
        for terms in &query.lists {
            let mut offsets = self.offsets_of(segment, terms)?;
            if let Some(found) = found {
                offsets.retain(|offset| found.binary_search(offset).is_ok());
            }
            if offsets.is_empty() {
                return Ok(Vec::new());
            }
            found = Some(offsets);
        }
        let blocks = found.into_iter().flatten().map(|offset| segment.first + u64::from(offset));
        Ok(blocks.filter(|block| range.contains(block)).collect())
    }

    /// Offsets of the blocks with one of these terms, in order. Reads each row at most once.
    fn offsets_of(&self, segment: &LogSegment, terms: &[u32]) -> Result<Vec<u16>, ReadError> {
        let mut wanted = terms;
        let mut offsets = Vec::new();
        let mut row: Option<TableRow> = None;
        while let Some(term) = wanted.first() {
            let next = self.row_for(segment, row.as_ref(), *term)?;
            let Some(next) = next else { break };
            for posting in PostingReader::of(segment, &next)? {
                let posting = posting?;
                while let Some((term, others)) = wanted.split_first()
                    && *term < posting.term
                {
                    wanted = others;
                }
                match wanted.first() {
                    None => break,
                    Some(term) if *term == posting.term => offsets.push(posting.offset),
                    Some(_) => {}
                }
            }
            row = Some(next);
        }
        if terms.len() > 1 {
            offsets.sort_unstable();
            offsets.dedup();
        }
        Ok(offsets)
    }

    /// The first row after `read` that may have postings of `term`.
    fn row_for(
        &self,
        segment: &LogSegment,
        read: Option<&TableRow>,
        term: u32,
    ) -> Result<Option<TableRow>, ReadError> {
        let table = self.chain(ChainTable::LogPostings);
        let is_new = |row: &TableRow| {
            row.0.starts_with(&segment.key()) && read.is_none_or(|read| row.0 > read.0)
        };
        let first = LogPosting { term, offset: 0 }.key(segment);
        let row = self.raw_seek(table, Some(&first), ScanDirection::Backward)?;
        if let Some(row) = row.filter(is_new) {
            return Ok(Some(row));
        }
        // The term may begin at the start of a row, or in the row after the one that was read.
        let after = read.map_or_else(|| first.to_vec(), |(key, _)| [&key[..], &[0]].concat());
        let row = self.raw_seek(table, Some(&after), ScanDirection::Forward)?;
        Ok(row.filter(is_new))
    }
}

/// Blocks that may have matching logs; see [`ReadTxn::log_candidates`]. It ends after an error.
#[derive(Debug)]
pub struct LogCandidates<'a> {
    read: &'a ReadTxn,
    query: &'a LogQuery,
    /// First and last block for which the index is used.
    from: u64,
    to: u64,
    segments: vec::IntoIter<LogSegment>,
    /// Candidates of the current segment.
    found: vec::IntoIter<u64>,
    /// The next block after that segment.
    next: Option<u64>,
    end: u64,
}

impl LogCandidates<'_> {
    /// Skips the blocks up to `last`.
    fn go_beyond(&mut self, last: u64) {
        self.next = last.checked_add(1).filter(|next| *next <= self.end);
    }
}

impl Iterator for LogCandidates<'_> {
    type Item = Result<u64, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(block) = self.found.next() {
                return Some(Ok(block));
            }
            let at = self.next?;
            let segment = self.segments.as_slice().first().copied();
            match segment.filter(|segment| segment.first.max(self.from) <= at) {
                Some(segment) => {
                    self.segments.next();
                    let last = segment.last.min(self.to);
                    if last < at {
                        continue;
                    }
                    self.go_beyond(last);
                    match self.read.search_segment(&segment, self.query, at..=last) {
                        Ok(found) => self.found = found.into_iter(),
                        Err(error) => {
                            self.next = None;
                            return Some(Err(error));
                        }
                    }
                }
                None => {
                    self.go_beyond(at);
                    return Some(Ok(at));
                }
            }
        }
    }
}
