//! Reads stored tables chunk by chunk.

use super::{CHUNK, CHUNK_HEIGHT, ROOTS, TableRecord, entries_key};
use crate::{CorruptRow, ReadError, ReadTxn, raw::RawRead, tables::ChainTable};
use alloy_primitives::B256;
use retrie_log_tables::{
    IndexEntry, IndexTable, NodeLevels, TableReader, TableSpan, decode_entries,
};
use std::{cell::RefCell, ops::Range, rc::Rc};

/// A stored index table. It holds the roots of its chunks in memory, and the chunk that was read last.
#[derive(Debug)]
pub struct StoredTable<'a> {
    read: &'a ReadTxn,
    record: TableRecord,
    /// The tree above the chunks.
    above: NodeLevels,
    last_chunk: RefCell<Option<(u64, Rc<IndexTable>)>>,
}

impl<'a> StoredTable<'a> {
    pub(super) fn open(read: &'a ReadTxn, record: TableRecord) -> Result<Self, ReadError> {
        let mut roots = Vec::new();
        for group in 0..record.chunks().div_ceil(CHUNK as u32) {
            let key = entries_key(record.span, ROOTS + group);
            let row = read.raw_get(read.chain(ChainTable::IndexEntries), &key)?;
            let row = row.ok_or_else(|| damaged(&key, "the roots of chunks are missing"))?;
            roots.extend(row.chunks_exact(32).map(B256::from_slice));
        }
        if roots.len() != record.chunks() as usize {
            let key = entries_key(record.span, ROOTS);
            return Err(damaged(&key, "there are more or fewer roots than chunks").into());
        }
        let above = NodeLevels::new(CHUNK_HEIGHT, roots);
        Ok(Self { read, record, above, last_chunk: RefCell::new(None) })
    }

    /// Its blocks.
    pub const fn span(&self) -> TableSpan {
        self.record.span
    }

    /// Its root, as it was stored.
    pub const fn root(&self) -> B256 {
        self.record.root
    }

    /// A chunk, as a table of its own.
    fn chunk(&self, number: u64) -> Result<Rc<IndexTable>, ReadError> {
        if let Some((known, chunk)) = &*self.last_chunk.borrow()
            && *known == number
        {
            return Ok(chunk.clone());
        }
        let key = entries_key(self.record.span, u32::try_from(number).unwrap_or(ROOTS - 1));
        let row = self.read.raw_get(self.read.chain(ChainTable::IndexEntries), &key)?;
        let row = row.ok_or_else(|| damaged(&key, "the chunk is missing"))?;
        let entries = decode_entries(&row).ok_or_else(|| damaged(&key, "its entries are none"))?;
        let rest = self.count().saturating_sub(number.saturating_mul(CHUNK as u64));
        if entries.len() as u64 != rest.min(CHUNK as u64) {
            return Err(damaged(&key, "it has more or fewer entries than it must have").into());
        }
        let chunk = Rc::new(IndexTable::new(entries));
        self.last_chunk.replace(Some((number, chunk.clone())));
        Ok(chunk)
    }
}

impl TableReader for StoredTable<'_> {
    type Error = ReadError;

    fn count(&self) -> u64 {
        self.record.entries.into()
    }

    fn lower_bound(&self, bytes: &[u8]) -> Result<u64, ReadError> {
        // The first chunk whose last entry is not below.
        let (mut low, mut high) = (0, u64::from(self.record.chunks()));
        while low < high {
            let middle = low.midpoint(high);
            let is_below = |last: &IndexEntry| last.as_bytes() < bytes;
            if self.chunk(middle)?.all().last().is_some_and(is_below) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == u64::from(self.record.chunks()) {
            return Ok(self.count());
        }
        let chunk = self.chunk(low)?;
        let within = chunk.all().partition_point(|entry| entry.as_bytes() < bytes);
        Ok(low * CHUNK as u64 + within as u64)
    }

    fn entries(&self, range: Range<u64>) -> Result<Vec<IndexEntry>, ReadError> {
        let end = range.end.min(self.count());
        let mut entries = Vec::new();
        let mut next = range.start;
        while next < end {
            let number = next / CHUNK as u64;
            let start = number * CHUNK as u64;
            let chunk = self.chunk(number)?;
            let part = (next - start) as usize..(end - start).min(CHUNK as u64) as usize;
            entries.extend_from_slice(chunk.all().get(part).unwrap_or_default());
            next = start + CHUNK as u64;
        }
        Ok(entries)
    }

    fn node(&self, height: u32, index: u64) -> Result<B256, ReadError> {
        let Some(down) = CHUNK_HEIGHT.checked_sub(height).filter(|down| *down > 0) else {
            return Ok(self.above.node(height, index));
        };
        let number = index >> down;
        let chunk = self.chunk(number)?;
        let Ok(node) = chunk.node(height, index - (number << down));
        Ok(node)
    }
}

pub(super) fn damaged(key: &[u8], what: &str) -> CorruptRow {
    CorruptRow::new(ChainTable::IndexEntries.name(), key, what)
}
