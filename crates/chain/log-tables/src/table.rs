//! Tables in memory, and how any table is read.

use crate::{
    EntryKey, EntryPosition, IndexEntry, NodeLevels,
    merkle::{depth, list_root},
};
use alloc::vec::Vec;
use alloy_primitives::{B256, Log};
use core::{convert::Infallible, ops::Range};

/// Reads a table, wherever it is.
pub trait TableReader {
    /// Why a read failed.
    type Error;

    /// Number of entries.
    fn count(&self) -> u64;

    /// Index of the first entry that is not below these bytes.
    ///
    /// # Errors
    /// If the table cannot be read; this holds for all methods.
    fn lower_bound(&self, bytes: &[u8]) -> Result<u64, Self::Error>;

    /// Some of its entries.
    fn entries(&self, range: Range<u64>) -> Result<Vec<IndexEntry>, Self::Error>;

    /// The node of its tree at `height` with this index from the left.
    fn node(&self, height: u32, index: u64) -> Result<B256, Self::Error>;

    /// Indices of the entries of a key.
    fn range_of(&self, key: &EntryKey) -> Result<Range<u64>, Self::Error> {
        let start = self.lower_bound(key.as_bytes())?;
        let mut after = key.as_bytes().to_vec();
        while let Some(last) = after.pop() {
            if last < u8::MAX {
                after.push(last + 1);
                break;
            }
        }
        let end = if after.is_empty() { self.count() } else { self.lower_bound(&after)? };
        Ok(start..end)
    }
}

/// Collects the entries of consecutive blocks.
#[derive(Clone, Debug, Default)]
pub struct TableBuilder {
    entries: Vec<IndexEntry>,
}

impl TableBuilder {
    /// Adds the entries of a block: those of its transactions, by hash and logs, and that of its
    /// parent. Genesis has none.
    pub fn add_block<'a>(
        &mut self,
        number: u64,
        parent: &B256,
        transactions: impl IntoIterator<Item = (B256, &'a [Log])>,
    ) {
        if let Some(block) = number.checked_sub(1) {
            let position = EntryPosition { block, ..EntryPosition::default() };
            self.entries.push(IndexEntry::new(&EntryKey::block(parent), position));
        }
        let mut logs_before = 0;
        for (transaction, (hash, logs)) in (0..).zip(transactions) {
            let position = EntryPosition { block: number, transaction, log: logs_before };
            self.entries.push(IndexEntry::new(&EntryKey::transaction(&hash), position));
            logs_before += logs.len() as u32;
            for (index, log) in (0..).zip(logs) {
                let position = EntryPosition { log: index, ..position };
                self.entries.push(IndexEntry::new(&EntryKey::address(&log.address), position));
                for (place, topic) in (0..4).zip(log.topics()) {
                    self.entries.push(IndexEntry::new(&EntryKey::topic(place, topic), position));
                }
            }
        }
    }

    /// The table of all blocks that were added.
    pub fn finish(mut self) -> IndexTable {
        self.entries.sort_unstable();
        IndexTable::new(self.entries)
    }
}

/// A table in memory: its entries, 51 bytes each, and its tree, about 64 bytes an entry.
#[derive(Clone, Debug)]
pub struct IndexTable {
    entries: Vec<IndexEntry>,
    tree: NodeLevels,
}

impl IndexTable {
    /// The table of entries that are in order.
    pub fn new(entries: Vec<IndexEntry>) -> Self {
        let leaves = entries.iter().map(IndexEntry::leaf).collect();
        Self { entries, tree: NodeLevels::new(0, leaves) }
    }

    /// Its root: of the SSZ list of the hashes of its entries.
    pub fn root(&self) -> B256 {
        let count = self.entries.len() as u64;
        list_root(&self.tree.node(depth(count), 0), count)
    }

    /// All entries, in order.
    pub fn all(&self) -> &[IndexEntry] {
        &self.entries
    }
}

impl TableReader for IndexTable {
    type Error = Infallible;

    fn count(&self) -> u64 {
        self.entries.len() as u64
    }

    fn lower_bound(&self, bytes: &[u8]) -> Result<u64, Infallible> {
        Ok(self.entries.partition_point(|entry| entry.as_bytes() < bytes) as u64)
    }

    fn entries(&self, range: Range<u64>) -> Result<Vec<IndexEntry>, Infallible> {
        let within = |index: u64| index.min(self.count()) as usize;
        let range = within(range.start)..within(range.end);
        Ok(self.entries.get(range).unwrap_or_default().to_vec())
    }

    fn node(&self, height: u32, index: u64) -> Result<B256, Infallible> {
        Ok(self.tree.node(height, index))
    }
}
