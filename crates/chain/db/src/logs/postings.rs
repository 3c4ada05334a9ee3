//! Rows of a segment's postings, byte by byte.
//!
//! A row's key is the segment's first block (8 bytes), then the row's first posting: term (4) and
//! offset of the block from the segment's first block (2), all big-endian. The value has the other
//! postings in order, each as varints relative to the posting before: `2 * (offset - before - 1) +
//! 1` if it has the same term, else `2 * (term - before - 1)` and the offset.

use super::LogSegment;
use crate::{
    CorruptRow, DbError, ReadError, Result, TableError, WriteTxn, checksum,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use retrie_state::{
    ScanDirection, TableRow, prefix_end,
    wire::{WireError, WireReader, put_varint},
};

/// Maximum bytes of a value: with key and checksum four rows fill a page of MDBX.
const ROW: usize = 990;
/// Maximum bytes of one posting.
const POSTING: usize = 8;

/// A term, and the offset of a block from the first block of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogPosting {
    pub(super) term: u32,
    pub(super) offset: u16,
}

impl LogPosting {
    /// Key of the row that begins with this posting.
    pub(super) fn key(self, segment: &LogSegment) -> [u8; 14] {
        let mut key = [0; 14];
        key[..8].copy_from_slice(&segment.key());
        key[8..12].copy_from_slice(&self.term.to_be_bytes());
        key[12..].copy_from_slice(&self.offset.to_be_bytes());
        key
    }
}

/// Reads the postings of a row, in order. It ends after an error.
pub(super) struct PostingReader<'a> {
    key: &'a [u8],
    /// Highest offset of the segment.
    most: u16,
    next: Option<LogPosting>,
    reader: WireReader<'a>,
}

impl<'a> PostingReader<'a> {
    /// Reads a row of `segment`.
    ///
    /// # Errors
    /// [`CorruptRow`] if the key does not belong to `segment`.
    pub(super) fn of(segment: &LogSegment, (key, value): &'a TableRow) -> Result<Self, CorruptRow> {
        let mut reader = WireReader::new(key);
        let mut parse = || {
            let first = reader.u64()?;
            Ok::<_, WireError>((first, LogPosting { term: reader.u32()?, offset: reader.u16()? }))
        };
        match parse() {
            Ok((first, posting)) if first == segment.first && reader.is_empty() => Ok(Self {
                key,
                most: (segment.last - segment.first) as u16,
                next: Some(posting),
                reader: WireReader::new(value),
            }),
            _ => Err(damaged(key, "the key is not one of a row of postings")),
        }
    }

    /// The posting after `before`; `None` if a number is too large.
    fn read(&mut self, before: LogPosting) -> Result<Option<LogPosting>, WireError> {
        let number = self.reader.varint()?;
        let beyond = number >> 1;
        if number & 1 == 1 {
            let offset = u64::from(before.offset) + beyond + 1;
            return Ok(u16::try_from(offset).ok().map(|offset| LogPosting { offset, ..before }));
        }
        let (term, offset) = (u64::from(before.term) + beyond + 1, self.reader.varint()?);
        let parts = u32::try_from(term).ok().zip(u16::try_from(offset).ok());
        Ok(parts.map(|(term, offset)| LogPosting { term, offset }))
    }
}

impl Iterator for PostingReader<'_> {
    type Item = Result<LogPosting, CorruptRow>;

    fn next(&mut self) -> Option<Self::Item> {
        let posting = self.next.take()?;
        if posting.offset > self.most {
            return Some(Err(damaged(self.key, "a posting names a block outside the segment")));
        }
        if !self.reader.is_empty() {
            match self.read(posting) {
                Ok(Some(next)) => self.next = Some(next),
                Ok(None) => return Some(Err(damaged(self.key, "a posting is too large"))),
                Err(error) => return Some(Err(damaged(self.key, error.what()))),
            }
        }
        Some(Ok(posting))
    }
}

/// The error for a damaged row.
pub(super) fn damaged(key: &[u8], what: &str) -> CorruptRow {
    CorruptRow::new(ChainTable::LogPostings.name(), key, what)
}

/// All rows of a segment.
pub(super) fn rows<R: RawRead + ?Sized>(
    read: &R,
    segment: &LogSegment,
) -> Result<Vec<TableRow>, ReadError> {
    let table = read.chain(ChainTable::LogPostings);
    let open = |(key, row): TableRow| {
        let value = checksum::open(table, &key, row)?;
        Ok((key, value))
    };
    let rows = stored_rows(read, segment)?;
    Ok(rows.into_iter().map(open).collect::<Result<_, CorruptRow>>()?)
}

/// The same as stored, unchecked.
pub(super) fn stored_rows<R: RawRead + ?Sized>(
    read: &R,
    segment: &LogSegment,
) -> Result<Vec<TableRow>, ReadError> {
    let start = segment.key();
    let end = prefix_end(&start);
    let direction = ScanDirection::Forward;
    let range = RowRange { start: &start, end: end.as_deref(), direction, limit: usize::MAX };
    read.stored_scan(read.chain(ChainTable::LogPostings), range)
}

/// Writes the postings of a segment, which must be in order.
pub(super) fn write(
    txn: &mut WriteTxn,
    segment: &LogSegment,
    postings: &[LogPosting],
) -> Result<()> {
    let table = txn.chain(ChainTable::LogPostings);
    let mut value = Vec::with_capacity(ROW);
    let mut rest = postings.iter().copied();
    while let Some(first) = rest.next() {
        value.clear();
        let mut before = first;
        while value.len() + POSTING <= ROW
            && let Some(posting) = rest.next()
        {
            put(&mut value, before, posting);
            before = posting;
        }
        let key = first.key(segment);
        match txn.raw_append(table, &key, &value) {
            // A segment of older blocks may be written after one of newer blocks.
            Err(DbError::Table(TableError::OutOfOrder { .. })) => {
                txn.raw_put(table, &key, &value)?
            }
            written => written?,
        }
    }
    Ok(())
}

fn put(value: &mut Vec<u8>, before: LogPosting, posting: LogPosting) {
    if posting.term == before.term {
        put_varint(value, 2 * u64::from(posting.offset - before.offset - 1) + 1);
    } else {
        put_varint(value, 2 * u64::from(posting.term - before.term - 1));
        put_varint(value, posting.offset.into());
    }
}
