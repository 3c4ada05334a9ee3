//! Postings of a segment in rows, byte by byte.
//!
//! A row's key is the segment's first block (8 bytes), then the row's first posting: term (4) and
//! offset of the block from the segment's first (2), all big-endian. The value has the others, in
//! order, each as varints that go on from the one before: `2 * (offset - before - 1) + 1` if it is of
//! the same term, else `2 * (term - before - 1)` and the offset.

use super::Segment;
use crate::{
    DbError, Result, WriteTxn, checksum,
    raw::{Range, RawRead},
    tables::ChainTable,
};
use retrie_state::{
    Direction, Row, prefix_end,
    wire::{WireError, WireReader, put_varint},
};

/// Most bytes of a value: with key and checksum four rows fill a page of MDBX.
const ROW: usize = 990;
/// Most bytes of one posting.
const POSTING: usize = 8;

/// A term and the offset of a block from the first of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Posting {
    pub(super) term: u32,
    pub(super) offset: u16,
}

impl Posting {
    /// Key of the row that begins with it.
    pub(super) fn key(self, segment: &Segment) -> [u8; 14] {
        let mut key = [0; 14];
        key[..8].copy_from_slice(&segment.key());
        key[8..12].copy_from_slice(&self.term.to_be_bytes());
        key[12..].copy_from_slice(&self.offset.to_be_bytes());
        key
    }
}

/// The postings of a row, in order. After an error there are no more.
pub(super) struct Postings<'a> {
    key: &'a [u8],
    /// No block of the segment has a higher offset.
    most: u16,
    next: Option<Posting>,
    reader: WireReader<'a>,
}

impl<'a> Postings<'a> {
    /// # Errors
    /// [`DbError::Corrupt`] if the key is none of a row of `segment`.
    pub(super) fn of(segment: &Segment, (key, value): &'a Row) -> Result<Self> {
        let mut reader = WireReader::new(key);
        let mut parse = || {
            let first = reader.u64()?;
            Ok::<_, WireError>((first, Posting { term: reader.u32()?, offset: reader.u16()? }))
        };
        match parse() {
            Ok((first, posting)) if first == segment.first && reader.is_empty() => Ok(Self {
                key,
                most: (segment.last - segment.first) as u16,
                next: Some(posting),
                reader: WireReader::new(value),
            }),
            _ => Err(damaged(key, "the key is none of a row of postings")),
        }
    }

    /// The posting after `before`; `None` if a number is too large.
    fn read(&mut self, before: Posting) -> Result<Option<Posting>, WireError> {
        let number = self.reader.varint()?;
        let beyond = number >> 1;
        if number & 1 == 1 {
            let offset = u64::from(before.offset) + beyond + 1;
            return Ok(u16::try_from(offset).ok().map(|offset| Posting { offset, ..before }));
        }
        let (term, offset) = (u64::from(before.term) + beyond + 1, self.reader.varint()?);
        let parts = u32::try_from(term).ok().zip(u16::try_from(offset).ok());
        Ok(parts.map(|(term, offset)| Posting { term, offset }))
    }
}

impl Iterator for Postings<'_> {
    type Item = Result<Posting>;

    fn next(&mut self) -> Option<Self::Item> {
        let posting = self.next.take()?;
        if posting.offset > self.most {
            return Some(Err(damaged(self.key, "a posting is of no block of the segment")));
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

/// The row is damaged.
pub(super) fn damaged(key: &[u8], what: &str) -> DbError {
    DbError::corrupt(ChainTable::LogPostings.name(), key, what)
}

/// All rows of a segment.
pub(super) fn rows<R: RawRead + ?Sized>(read: &R, segment: &Segment) -> Result<Vec<Row>> {
    let table = read.chain(ChainTable::LogPostings);
    let open = |(key, row): Row| {
        let value = checksum::open(table, &key, row)?;
        Ok((key, value))
    };
    stored_rows(read, segment)?.into_iter().map(open).collect()
}

/// The same as they lie on disk, unchecked.
pub(super) fn stored_rows<R: RawRead + ?Sized>(read: &R, segment: &Segment) -> Result<Vec<Row>> {
    let start = segment.key();
    let end = prefix_end(&start);
    let direction = Direction::Forward;
    let range = Range { start: &start, end: end.as_deref(), direction, limit: usize::MAX };
    read.stored_scan(read.chain(ChainTable::LogPostings), range)
}

/// Writes the postings of a segment, which are in order.
pub(super) fn write(txn: &mut WriteTxn, segment: &Segment, postings: &[Posting]) -> Result<()> {
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
            // Segments of older blocks are written after those of newer ones.
            Err(DbError::OutOfOrder { .. }) => txn.raw_put(table, &key, &value)?,
            written => written?,
        }
    }
    Ok(())
}

fn put(value: &mut Vec<u8>, before: Posting, posting: Posting) {
    if posting.term == before.term {
        put_varint(value, 2 * u64::from(posting.offset - before.offset - 1) + 1);
    } else {
        put_varint(value, 2 * u64::from(posting.term - before.term - 1));
        put_varint(value, posting.offset.into());
    }
}
