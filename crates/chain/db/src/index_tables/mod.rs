//! Index tables (EIP-8304) of durable blocks: entries of logs and transactions, sorted, with the tree
//! of hashes over them.
//!
//! Of each of the five sizes there are the tables of consecutive spans, at most as many as the index
//! contract keeps roots of. They are kept as the [log index](crate::LogQuery) is: writes of the chain
//! do not touch them; a table stores the hash of its last block, and is *valid* in a snapshot if that
//! block is canonical there. A table is only added beside one that is valid in the same transaction,
//! so those below a valid one are valid too.
//!
//! Entries are cut into chunks of 256, a row each. The roots of chunks are stored beside them, so a
//! proof reads the chunks of its entries and of a few nodes, not the whole table.

mod build;
mod check;
mod stored;

pub use build::add_to_table;
pub(crate) use check::check_tables;
pub use stored::StoredTable;

use crate::{
    CorruptRow, ReadError, ReadTxn, Result,
    chain::canonical,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_log_tables::{TABLE_SIZES, TableSpan};
use retrie_state::{
    ScanDirection, TableRow,
    wire::{WireError, WireReader},
};

/// Entries of a chunk, and chunk roots of a row, as a power of two.
const CHUNK_HEIGHT: u32 = 8;
const CHUNK: usize = 1 << CHUNK_HEIGHT;
/// Numbers of rows with chunk roots begin here.
const ROOTS: u32 = 1 << 31;

/// The row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableRecord {
    span: TableSpan,
    /// Hash of the last block.
    hash: B256,
    entries: u32,
    root: B256,
}

fn table_key(span: TableSpan) -> [u8; 10] {
    let mut key = [0; 10];
    key[..2].copy_from_slice(&(span.size() as u16).to_be_bytes());
    key[2..].copy_from_slice(&span.first().to_be_bytes());
    key
}

fn entries_key(span: TableSpan, row: u32) -> [u8; 14] {
    let mut key = [0; 14];
    key[..10].copy_from_slice(&table_key(span));
    key[10..].copy_from_slice(&row.to_be_bytes());
    key
}

impl TableRecord {
    fn encode(&self) -> Vec<u8> {
        [self.hash.as_slice(), &self.entries.to_be_bytes(), self.root.as_slice()].concat()
    }

    fn decode((key, row): &TableRow) -> Result<Self, CorruptRow> {
        let bad = |what| CorruptRow::new(ChainTable::IndexTables.name(), key, what);
        Self::parse(key, row).map_err(|error| bad(error.what()))?.ok_or_else(|| bad("no such span"))
    }

    fn parse(key: &[u8], row: &[u8]) -> Result<Option<Self>, WireError> {
        let Some((size, first)) = key.split_first_chunk::<2>() else { return Ok(None) };
        let Ok(first) = <[u8; 8]>::try_from(first) else { return Ok(None) };
        let span = TableSpan::new(u64::from_be_bytes(first), u16::from_be_bytes(*size).into());
        let mut reader = WireReader::new(row);
        let (hash, entries, root) = (reader.hash()?, reader.u32()?, reader.hash()?);
        reader.finish()?;
        Ok(span.map(|span| Self { span, hash, entries, root }))
    }

    /// Number of chunks.
    const fn chunks(&self) -> u32 {
        self.entries.div_ceil(CHUNK as u32)
    }

    /// Whether its blocks are canonical.
    fn is_valid<R: RawRead + ?Sized>(&self, read: &R) -> Result<bool, ReadError> {
        Ok(canonical(read, self.span.last())?.is_some_and(|(hash, _)| hash == self.hash))
    }
}

/// The lowest or highest table of a size.
fn outermost<R: RawRead + ?Sized>(
    read: &R,
    size: u64,
    direction: ScanDirection,
) -> Result<Option<TableRecord>, ReadError> {
    let size = size as u16;
    let key = match direction {
        ScanDirection::Forward => [&size.to_be_bytes()[..], &[0; 8]].concat(),
        ScanDirection::Backward => [&size.to_be_bytes()[..], &[0xff; 8]].concat(),
    };
    let row = read.raw_seek(read.chain(ChainTable::IndexTables), Some(&key), direction)?;
    let row = row.filter(|(key, _)| key.starts_with(&size.to_be_bytes()));
    Ok(row.as_ref().map(TableRecord::decode).transpose()?)
}

/// Keys of the rows of a table's entries.
fn entry_keys<R: RawRead + ?Sized>(read: &R, span: TableSpan) -> Result<Vec<TableRow>, ReadError> {
    let (start, last) = (entries_key(span, 0), entries_key(span, u32::MAX));
    let end = [&last[..], &[0]].concat();
    let direction = ScanDirection::Forward;
    let range = RowRange { start: &start, end: Some(&end), direction, limit: usize::MAX };
    read.stored_scan(read.chain(ChainTable::IndexEntries), range)
}

impl ReadTxn {
    /// The stored table of a span, if there is one and its blocks are canonical.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if a row is damaged.
    pub fn index_table(&self, span: TableSpan) -> Result<Option<StoredTable<'_>>, ReadError> {
        match self.table_record(span)? {
            Some(record) if record.is_valid(self)? => StoredTable::open(self, record).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether there is such a table.
    ///
    /// # Errors
    /// As [`index_table`](Self::index_table).
    pub fn has_index_table(&self, span: TableSpan) -> Result<bool, ReadError> {
        match self.table_record(span)? {
            Some(record) => record.is_valid(self),
            None => Ok(false),
        }
    }

    fn table_record(&self, span: TableSpan) -> Result<Option<TableRecord>, ReadError> {
        let key = table_key(span);
        let row = self.raw_get(self.chain(ChainTable::IndexTables), &key)?;
        let decoded = row.map(|row| TableRecord::decode(&(key.to_vec().into(), row)));
        Ok(decoded.transpose()?)
    }

    /// The lowest block that a stored table has; `None` if there is none.
    ///
    /// # Errors
    /// As [`index_table`](Self::index_table).
    pub fn first_block_in_tables(&self) -> Result<Option<u64>, ReadError> {
        let mut first = None;
        for size in TABLE_SIZES {
            if let Some(lowest) = outermost(self, size, ScanDirection::Forward)? {
                let lowest = lowest.span.first();
                first = Some(first.map_or(lowest, |first: u64| first.min(lowest)));
            }
        }
        Ok(first)
    }
}
