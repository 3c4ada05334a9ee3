//! Comparison of the log index with the receipts, for `retrie db verify`.

use super::{
    LogSegment, TermHashes,
    postings::{LogPosting, PostingReader, damaged, stored_rows},
};
use crate::{
    CorruptRow, ReadError, ReadTxn, Result, checksum,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use retrie_chainspec::primitives::Receipt;
use retrie_state::ScanDirection;
use std::{collections::VecDeque, mem};

/// Compares the log index with blocks, which are passed in ascending order.
pub(crate) struct LogCheck<'a> {
    read: &'a ReadTxn,
    /// Segments whose blocks have not all been passed, and whether they are valid.
    segments: VecDeque<(LogSegment, bool)>,
    /// The postings of the first segment that its blocks require; below, which blocks have been
    /// passed, by offset.
    expected: Vec<LogPosting>,
    known: Vec<bool>,
    terms: TermHashes,
    /// Rows of segments and postings.
    rows: (u64, u64),
}

impl<'a> LogCheck<'a> {
    /// Reads the list of segments, which must be adjacent.
    pub(crate) fn new(
        read: &'a ReadTxn,
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<Self, ReadError> {
        let table = read.chain(ChainTable::LogSegments);
        let all = RowRange {
            start: &[],
            end: None,
            direction: ScanDirection::Forward,
            limit: usize::MAX,
        };
        let mut segments = VecDeque::new();
        let mut rows = 0;
        let mut next = None;
        for (key, row) in read.stored_scan(table, all)? {
            rows += 1;
            let row = checksum::open(table, &key, row);
            match row.and_then(|row| LogSegment::decode(&(key.clone(), row))) {
                Ok(segment) => {
                    if next.is_some_and(|next| next != Some(segment.first)) {
                        let what = "it does not begin where the segment before it ends";
                        fault(CorruptRow::new(table.name, &key, what));
                    }
                    next = Some(segment.last.checked_add(1));
                    segments.push_back((segment, true));
                }
                Err(error) => {
                    fault(error);
                    next = None;
                }
            }
        }
        // Segments that a reorganisation has invalidated are at the upper end.
        let mut counts = false;
        for (segment, counted) in segments.iter_mut().rev() {
            match segment.is_valid(read) {
                Ok(false) if counts => {
                    let what = format!("block {} has another hash", segment.last);
                    fault(CorruptRow::new(table.name, &segment.key(), what));
                }
                Ok(it_does) => counts = it_does,
                Err(ReadError::Corrupt(row)) => fault(row),
                Err(error) => return Err(error),
            }
            *counted = counts;
        }
        let (expected, known, terms) = Default::default();
        Ok(Self { read, segments, expected, known, terms, rows: (rows, 0) })
    }

    /// Passes the next canonical block, with its receipts if they are stored.
    pub(crate) fn block(
        &mut self,
        number: u64,
        receipts: Option<&[Receipt]>,
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<(), ReadError> {
        while self.segments.front().is_some_and(|(segment, _)| segment.last < number) {
            self.end_segment(fault)?;
        }
        if let (Some((segment, true)), Some(receipts)) = (self.segments.front(), receipts)
            && segment.first <= number
        {
            let offset = (number - segment.first) as u16;
            self.known.resize(usize::from(offset) + 1, false);
            self.known[usize::from(offset)] = true;
            let terms = self.terms.of_block(receipts).into_iter();
            self.expected.extend(terms.map(|term| LogPosting { term, offset }));
        }
        Ok(())
    }

    /// Ends the check after the last block. Returns the number of rows of segments and of postings.
    pub(crate) fn finish(
        &mut self,
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<(u64, u64), ReadError> {
        while !self.segments.is_empty() {
            self.end_segment(fault)?;
        }
        Ok(self.rows)
    }

    fn end_segment(&mut self, fault: &mut dyn FnMut(CorruptRow)) -> Result<(), ReadError> {
        let Some((segment, counts)) = self.segments.pop_front() else { return Ok(()) };
        self.terms = TermHashes::default();
        let (mut expected, known) = (mem::take(&mut self.expected), mem::take(&mut self.known));
        let Some(found) = self.postings(&segment, fault)? else { return Ok(()) };
        if found.len() != segment.postings as usize {
            let what = format!("it counts {} postings, not {}", segment.postings, found.len());
            fault(CorruptRow::new(ChainTable::LogSegments.name(), &segment.key(), what));
        }
        if !counts {
            return Ok(());
        }
        expected.sort_unstable();
        let known = |posting: &LogPosting| known.get(usize::from(posting.offset)) == Some(&true);
        let mut found = found.into_iter().filter(known);
        let mut expected = expected.into_iter();
        // The first difference of each segment is enough.
        loop {
            let (found, expected) = (found.next(), expected.next());
            if found == expected {
                if found.is_none() {
                    return Ok(());
                }
                continue;
            }
            let is_extra = expected.is_none_or(|expected| found.is_some_and(|one| one < expected));
            let (posting, what) = match (found, expected) {
                (Some(found), _) if is_extra => (found, "is not in its logs"),
                (_, Some(expected)) => (expected, "is in its logs, and not in the index"),
                (_, None) => return Ok(()),
            };
            let block = segment.first + u64::from(posting.offset);
            let what = format!("term {:#010x} of block {block} {what}", posting.term);
            fault(damaged(&posting.key(&segment), &what));
            return Ok(());
        }
    }

    /// All postings of a segment in order; reports and returns `None` if some cannot be read.
    fn postings(
        &mut self,
        segment: &LogSegment,
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<Option<Vec<LogPosting>>, ReadError> {
        let table = self.read.chain(ChainTable::LogPostings);
        let mut all: Vec<LogPosting> = Vec::new();
        let mut whole = true;
        for (key, row) in stored_rows(self.read, segment)? {
            self.rows.1 += 1;
            let read = (|| {
                let row = (key.clone(), checksum::open(table, &key, row)?);
                let postings: Vec<_> =
                    PostingReader::of(segment, &row)?.collect::<Result<_, _>>()?;
                if all.last().zip(postings.first()).is_some_and(|(last, first)| last >= first) {
                    return Err(damaged(&key, "it begins before the row before it ends"));
                }
                Ok(postings)
            })();
            match read {
                Ok(postings) => all.extend(postings),
                Err(error) => {
                    fault(error);
                    whole = false;
                }
            }
        }
        Ok(whole.then_some(all))
    }
}
