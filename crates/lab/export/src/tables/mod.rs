//! The tables: their columns, and their rows for a block.

mod blocks;
mod changes;
mod logs;
mod receipts;
pub(crate) mod results;
mod transactions;

use crate::{
    BlockData, BlockNeeds, ExportError, ExportFileError,
    column::TableSchema,
    file::{self, FileStamp, TableFile},
};
use alloy_primitives::{Address, B256, Bytes};
use std::{fmt, path::Path, str::FromStr, sync::Arc};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExportTable {
    /// Headers, and figures of bodies.
    Blocks,
    /// Transactions and their outcomes.
    Transactions,
    /// Receipts.
    Receipts,
    /// Logs.
    Logs,
    /// Balances that blocks changed.
    BalanceDiffs,
    /// Nonces that blocks changed.
    NonceDiffs,
    /// Codes that blocks changed.
    CodeDiffs,
    /// Slots that blocks changed.
    StorageDiffs,
    /// Results of races and replays.
    Results,
    /// Checks of each bundle of a replay.
    ResultBlocks,
}

impl ExportTable {
    /// The tables that are made of blocks.
    pub const OF_BLOCKS: [Self; 8] = [
        Self::Blocks,
        Self::Transactions,
        Self::Receipts,
        Self::Logs,
        Self::BalanceDiffs,
        Self::NonceDiffs,
        Self::CodeDiffs,
        Self::StorageDiffs,
    ];

    /// The tables that are made of reports.
    pub const OF_REPORTS: [Self; 2] = [Self::Results, Self::ResultBlocks];

    /// Its name, here and in file names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Transactions => "transactions",
            Self::Receipts => "receipts",
            Self::Logs => "logs",
            Self::BalanceDiffs => "balance_diffs",
            Self::NonceDiffs => "nonce_diffs",
            Self::CodeDiffs => "code_diffs",
            Self::StorageDiffs => "storage_diffs",
            Self::Results => "results",
            Self::ResultBlocks => "result_blocks",
        }
    }

    /// The parts of a block that its rows need.
    pub(crate) const fn needs(self) -> BlockNeeds {
        BlockNeeds {
            receipts: matches!(self, Self::Transactions | Self::Receipts | Self::Logs),
            changes: matches!(
                self,
                Self::BalanceDiffs | Self::NonceDiffs | Self::CodeDiffs | Self::StorageDiffs
            ),
        }
    }

    /// How its rows are made of blocks; `None` for tables of reports.
    pub(crate) fn layout(self) -> Option<Box<dyn TableLayout>> {
        const fn boxed<R: 'static>(
            table: ExportTable,
            schema: fn() -> TableSchema<R>,
            rows: RowsOf<R>,
        ) -> BlockTableLayout<R> {
            BlockTableLayout { table, schema, rows }
        }
        Some(match self {
            Self::Blocks => Box::new(boxed(self, blocks::schema, blocks::rows)),
            Self::Transactions => Box::new(boxed(self, transactions::schema, transactions::rows)),
            Self::Receipts => Box::new(boxed(self, receipts::schema, transactions::rows)),
            Self::Logs => Box::new(boxed(self, logs::schema, logs::rows)),
            Self::BalanceDiffs => {
                Box::new(boxed(self, changes::balance_schema, changes::balance_rows))
            }
            Self::NonceDiffs => Box::new(boxed(self, changes::nonce_schema, changes::nonce_rows)),
            Self::CodeDiffs => Box::new(boxed(self, changes::code_schema, changes::code_rows)),
            Self::StorageDiffs => {
                Box::new(boxed(self, changes::storage_schema, changes::storage_rows))
            }
            Self::Results | Self::ResultBlocks => return None,
        })
    }
}

impl fmt::Display for ExportTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no table with this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no table `{0}`; there are {list}", list = list())]
pub struct UnknownTable(String);

fn list() -> String {
    let all = ExportTable::OF_BLOCKS.iter().chain(&ExportTable::OF_REPORTS);
    all.map(|table| table.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for ExportTable {
    type Err = UnknownTable;

    fn from_str(name: &str) -> Result<Self, UnknownTable> {
        // Alternative names in cryo.
        let name = match name {
            "txs" => "transactions",
            "events" => "logs",
            "slot_diffs" => "storage_diffs",
            name => name,
        };
        let mut all = Self::OF_BLOCKS.into_iter().chain(Self::OF_REPORTS);
        all.find(|table| table.name() == name).ok_or_else(|| UnknownTable(name.to_owned()))
    }
}

/// Receives the rows of a block.
type RowSink<'a, R> = dyn FnMut(&R) -> Result<(), ExportError> + 'a;
type RowsOf<R> = fn(&Arc<BlockData>, &mut RowSink<'_, R>) -> Result<(), ExportError>;

/// How the rows of a table are made of blocks, and written.
pub(crate) trait TableLayout {
    /// Begins a file.
    fn create(&self, target: &Path) -> Result<Box<dyn RowWriter>, ExportFileError>;

    /// Checks that a file is complete and has the content of `stamp`. Returns its number of rows.
    fn check(&self, path: &Path, stamp: &FileStamp) -> Result<u64, ExportFileError>;
}

/// Writes the rows of blocks into a file.
pub(crate) trait RowWriter {
    /// Adds the rows of a block.
    fn push(&mut self, block: &Arc<BlockData>) -> Result<(), ExportError>;

    /// Makes the file durable and gives it its name. Returns its number of rows.
    fn finish(self: Box<Self>, stamp: &FileStamp) -> Result<u64, ExportFileError>;
}

struct BlockTableLayout<R: 'static> {
    table: ExportTable,
    schema: fn() -> TableSchema<R>,
    rows: RowsOf<R>,
}

struct BlockTableWriter<R: 'static> {
    file: TableFile<R>,
    rows: RowsOf<R>,
}

impl<R: 'static> TableLayout for BlockTableLayout<R> {
    fn create(&self, target: &Path) -> Result<Box<dyn RowWriter>, ExportFileError> {
        let file = TableFile::create(target, self.table.name(), (self.schema)())?;
        Ok(Box::new(BlockTableWriter { file, rows: self.rows }))
    }

    fn check(&self, path: &Path, stamp: &FileStamp) -> Result<u64, ExportFileError> {
        file::check(path, self.table.name(), &(self.schema)(), stamp)
    }
}

impl<R> RowWriter for BlockTableWriter<R> {
    fn push(&mut self, block: &Arc<BlockData>) -> Result<(), ExportError> {
        let file = &mut self.file;
        (self.rows)(block, &mut |row| Ok(file.push(row)?))
    }

    fn finish(self: Box<Self>, stamp: &FileStamp) -> Result<u64, ExportFileError> {
        self.file.finish(stamp)
    }
}

fn hash(hash: B256) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(hash.as_slice()))
}

fn address(address: Address) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(address.as_slice()))
}

/// A gas price in wei. cryo stores 64 bits; null if the price is larger.
fn price(wei: u128) -> Option<u64> {
    u64::try_from(wei).ok()
}

/// A count. Nothing in a block exceeds 32 bits.
const fn count(number: usize) -> Option<u32> {
    Some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_by_their_names_and_by_those_of_cryo() {
        for table in ExportTable::OF_BLOCKS.into_iter().chain(ExportTable::OF_REPORTS) {
            assert_eq!(table.name().parse(), Ok(table));
            assert_eq!(table.layout().is_some(), ExportTable::OF_BLOCKS.contains(&table));
        }
        assert_eq!("txs".parse(), Ok(ExportTable::Transactions));
        let error = "traces".parse::<ExportTable>().unwrap_err().to_string();
        assert!(error.contains("`traces`") && error.contains("balance_diffs"), "{error}");
    }
}
