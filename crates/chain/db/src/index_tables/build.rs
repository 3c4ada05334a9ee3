//! Building tables, one at a time.

use super::{
    CHUNK, CHUNK_HEIGHT, ROOTS, TableRecord, entries_key, entry_keys, outermost, table_key,
};
use crate::{
    ChainRead, DatabaseEnv, ReadError, ReadTxn, Result, WriteTxn, raw::RawRead, tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_chainspec::primitives::{Header, Receipt, Transaction};
use retrie_log_tables::{
    IndexTable, TABLE_SIZES, TABLES_PER_LEVEL, TableBuilder, TableReader, TableSpan, encode_entries,
};
use retrie_state::ScanDirection;
use std::sync::atomic::{AtomicBool, Ordering};

/// Adds a block to a table; `false` if there is not a receipt for each transaction.
pub fn add_to_table(
    table: &mut TableBuilder,
    header: &Header,
    transactions: &[Transaction],
    receipts: &[Receipt],
) -> bool {
    if transactions.len() != receipts.len() {
        return false;
    }
    let hashes = transactions.iter().map(|transaction| *transaction.tx_hash());
    let logs = receipts.iter().map(|receipt| &receipt.logs[..]);
    table.add_block(header.number, &header.parent_hash, hashes.zip(logs));
    true
}

enum TableStep {
    Remove(TableRecord),
    Add { span: TableSpan, beside: Option<TableRecord> },
}

impl DatabaseEnv {
    /// Takes one step in keeping the index tables (EIP-8304) of the durable chain from block
    /// `active_from` on: adds one table, smaller ones first, upwards to the tip and then downwards, or
    /// removes one that is not valid any more, or whose root the index contract does not keep. Returns
    /// whether there may be more to do. A step holds the entries of one table in memory, and writes it
    /// in one transaction. It has no effect if `stop` is set, or if the chain has been reorganised
    /// meanwhile.
    ///
    /// # Errors
    /// [`DbError::Corrupt`](crate::DbError::Corrupt) for damaged rows; any failure of the database.
    pub fn keep_index_tables(&self, active_from: u64, stop: &AtomicBool) -> Result<bool> {
        let read = self.begin_read()?;
        let (span, beside) = match read.next_table(active_from)? {
            None => return Ok(false),
            Some(TableStep::Remove(record)) => {
                drop(read);
                let mut txn = self.begin_write()?;
                txn.remove_table(record.span)?;
                txn.commit()?;
                return Ok(true);
            }
            Some(TableStep::Add { span, beside }) => (span, beside),
        };
        let Some(table) = read.collect_table(span, stop)? else { return Ok(false) };
        let Some(hash) = read.canonical_hash(span.last())? else { return Ok(false) };
        // Do not hold the snapshot while waiting for the write transaction.
        drop(read);
        let record = TableRecord { span, hash, entries: table.count() as u32, root: table.root() };
        let mut txn = self.begin_write()?;
        if txn.has_end(span.size(), beside)? && record.is_valid(&txn)? {
            txn.add_table(&record, &table)?;
            txn.commit()?;
        }
        Ok(true)
    }
}

impl ReadTxn {
    /// Makes the index table of a span from the receipts of its canonical blocks; `None` if they are
    /// not all there. It is not stored.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if a row is damaged.
    pub fn make_index_table(&self, span: TableSpan) -> Result<Option<IndexTable>, ReadError> {
        self.collect_table(span, &AtomicBool::new(false))
    }

    fn collect_table(
        &self,
        span: TableSpan,
        stop: &AtomicBool,
    ) -> Result<Option<IndexTable>, ReadError> {
        let mut table = TableBuilder::default();
        for number in span.first()..=span.last() {
            let Some(hash) = self.canonical_hash(number)? else { return Ok(None) };
            if stop.load(Ordering::Relaxed) || !self.add_to_table(&mut table, &hash)? {
                return Ok(None);
            }
        }
        Ok(Some(table.finish()))
    }

    /// Adds a stored block to a table; `false` if its body or its receipts are not there.
    ///
    /// # Errors
    /// As [`make_index_table`](Self::make_index_table).
    pub fn add_to_table(&self, table: &mut TableBuilder, hash: &B256) -> Result<bool, ReadError> {
        let Some(header) = self.header(hash)? else { return Ok(false) };
        let body = match self.body(hash) {
            Err(ReadError::Pruned(_)) => return Ok(false),
            body => body?,
        };
        let Some((body, receipts)) = body.zip(self.receipts(hash)?) else { return Ok(false) };
        Ok(add_to_table(table, &header, &body.transactions, &receipts))
    }

    fn next_table(&self, active_from: u64) -> Result<Option<TableStep>, ReadError> {
        let (Some(first), Some(tip)) = (self.first()?, self.tip()?) else { return Ok(None) };
        let bottom = self.receipts_pruned_below()?.max(self.bodies_pruned_below()?);
        let bottom = bottom.max(first.number).max(active_from);
        for size in TABLE_SIZES {
            if let Some(step) = self.next_of_size(size, bottom, tip.number)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    fn next_of_size(
        &self,
        size: u64,
        bottom: u64,
        tip: u64,
    ) -> Result<Option<TableStep>, ReadError> {
        let is_whole = |span: &TableSpan| span.first() >= bottom && span.last() <= tip;
        let lowest = outermost(self, size, ScanDirection::Forward)?;
        let highest = outermost(self, size, ScanDirection::Backward)?;
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            // The newest whole table.
            let first = (tip + 1).checked_sub(size).map(|first| first - first % size);
            let span = first.and_then(|first| TableSpan::new(first, size)).filter(is_whole);
            return Ok(span.map(|span| TableStep::Add { span, beside: None }));
        };
        if !highest.is_valid(self)? {
            return Ok(Some(TableStep::Remove(highest)));
        }
        let ring = size * (TABLES_PER_LEVEL - 1);
        let oldest = highest.span.first().saturating_sub(ring);
        if lowest.span.first() < bottom.max(oldest) {
            return Ok(Some(TableStep::Remove(lowest)));
        }
        let above = highest.span.first().checked_add(size);
        let above = above.and_then(|first| TableSpan::new(first, size)).filter(is_whole);
        if let Some(span) = above {
            return Ok(Some(TableStep::Add { span, beside: Some(highest) }));
        }
        let below = lowest.span.first().checked_sub(size).filter(|first| *first >= oldest);
        let below = below.and_then(|first| TableSpan::new(first, size)).filter(is_whole);
        Ok(below.map(|span| TableStep::Add { span, beside: Some(lowest) }))
    }
}

impl WriteTxn {
    /// Whether `beside` is still at an end of the tables of a size, and valid. For `None`: whether
    /// there is still no table.
    fn has_end(&self, size: u64, beside: Option<TableRecord>) -> Result<bool, ReadError> {
        let ends = [
            outermost(self, size, ScanDirection::Forward)?,
            outermost(self, size, ScanDirection::Backward)?,
        ];
        match beside {
            None => Ok(ends == [None, None]),
            Some(record) => Ok(ends.contains(&beside) && record.is_valid(self)?),
        }
    }

    fn add_table(&mut self, record: &TableRecord, table: &IndexTable) -> Result<()> {
        let rows = self.chain(ChainTable::IndexEntries);
        let mut roots = Vec::new();
        for (number, chunk) in (0..).zip(table.all().chunks(CHUNK)) {
            self.raw_put(rows, &entries_key(record.span, number), &encode_entries(chunk))?;
            let Ok(root) = table.node(CHUNK_HEIGHT, number.into());
            roots.push(root);
        }
        for (group, roots) in (0..).zip(roots.chunks(CHUNK)) {
            let roots: Vec<u8> = roots.iter().flat_map(|root| root.0).collect();
            self.raw_put(rows, &entries_key(record.span, ROOTS + group), &roots)?;
        }
        let tables = self.chain(ChainTable::IndexTables);
        self.raw_put(tables, &table_key(record.span), &record.encode())
    }

    /// Removes a table, damaged or not.
    fn remove_table(&mut self, span: TableSpan) -> Result<()> {
        let rows = self.chain(ChainTable::IndexEntries);
        for (key, _) in entry_keys(self, span)? {
            self.raw_delete(rows, &key)?;
        }
        self.raw_delete(self.chain(ChainTable::IndexTables), &table_key(span))?;
        Ok(())
    }
}
