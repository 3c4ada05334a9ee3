//! Tables of state changes in Parquet, as `retrie export --format parquet` and cryo write them.
//!
//! They have what blocks change, so a trace of them reads nothing else. cryo's tables have a row
//! for each transaction; the first old and the last new value of a block count.

use super::error::MakeTraceError;
use crate::state::real::BlockDiff;
use alloy_primitives::{Address, Bytes, U256};
use parquet::{
    file::reader::SerializedFileReader,
    record::{Field, Row, reader::RowIter},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    path::{Path, PathBuf},
};

/// The tables that are read.
const TABLES: [&str; 4] = ["balance_diffs", "nonce_diffs", "code_diffs", "storage_diffs"];

/// Calls `visit` with the changes of each block, in order.
pub(super) fn read(
    folder: &Path,
    visit: &mut dyn FnMut(BlockDiff) -> Result<(), MakeTraceError>,
) -> Result<(), MakeTraceError> {
    let mut tables = Vec::new();
    for (name, files) in TABLES.into_iter().zip(files(folder)?) {
        let mut table = TableCursor { name, files: files.into(), rows: None, next: None };
        table.advance()?;
        tables.push(table);
    }
    while let Some(number) = tables.iter().filter_map(TableCursor::block).min() {
        let mut diff = BlockDiff::new(number);
        for table in &mut tables {
            while table.block() == Some(number) {
                table.add(&mut diff)?;
            }
        }
        visit(diff)?;
    }
    Ok(())
}

/// The files of each table, in the order of their blocks. All tables have files of the same blocks.
fn files(folder: &Path) -> Result<[Vec<PathBuf>; 4], MakeTraceError> {
    let mut of_tables: [BTreeMap<String, PathBuf>; 4] = Default::default();
    let failed = MakeTraceError::io("reading", folder);
    for entry in std::fs::read_dir(folder).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_suffix(".parquet").filter(|name| !name.starts_with('.')) else {
            continue;
        };
        // `ethereum__storage_diffs__00000000_to_00000999`.
        for (table, files) in TABLES.into_iter().zip(&mut of_tables) {
            if let Some((_, range)) = name.split_once(&format!("{table}__")) {
                files.insert(range.to_owned(), path.clone());
            }
        }
    }
    let missing = |table, range: &str| MakeTraceError::MissingTable {
        folder: folder.into(),
        table,
        range: range.to_owned(),
    };
    let ranges: Vec<String> = of_tables.iter().flat_map(BTreeMap::keys).cloned().collect();
    for (table, files) in TABLES.into_iter().zip(&of_tables) {
        if files.is_empty() {
            return Err(missing(table, "*"));
        }
        if let Some(range) = ranges.iter().find(|range| !files.contains_key(*range)) {
            return Err(missing(table, range));
        }
    }
    // Numbers have eight digits at least; later blocks may have more.
    let in_order = |files: BTreeMap<String, PathBuf>| {
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(range, _)| (range.len(), range.clone()));
        files.into_iter().map(|(_, path)| path).collect()
    };
    Ok(of_tables.map(in_order))
}

/// The rows of one table, file after file.
struct TableCursor {
    name: &'static str,
    files: VecDeque<PathBuf>,
    /// The file that is being read, and its other rows.
    rows: Option<(PathBuf, RowIter<'static>)>,
    next: Option<TableRow>,
}

/// A row that is next, with its block.
struct TableRow {
    block: u64,
    row: Row,
}

impl TableCursor {
    fn block(&self) -> Option<u64> {
        self.next.as_ref().map(|next| next.block)
    }

    /// Reads the next row.
    fn advance(&mut self) -> Result<(), MakeTraceError> {
        let before = self.next.take().map(|next| next.block);
        let row = loop {
            if let Some((file, rows)) = &mut self.rows
                && let Some(row) = rows.next()
            {
                break row
                    .map_err(|source| MakeTraceError::Parquet { file: file.clone(), source })?;
            }
            let Some(file) = self.files.pop_front() else { return Ok(()) };
            let opened = File::open(&file).map_err(MakeTraceError::io("opening", &file))?;
            let reader = SerializedFileReader::new(opened)
                .map_err(|source| MakeTraceError::Parquet { file: file.clone(), source })?;
            self.rows = Some((file, reader.into_iter()));
        };
        let block = self.number(&row, "block_number")?;
        if let Some(after) = before.filter(|before| *before > block) {
            return Err(MakeTraceError::Order { number: block, after });
        }
        self.next = Some(TableRow { block, row });
        Ok(())
    }

    /// Adds the next row to the changes of its block, and reads the one after it.
    fn add(&mut self, diff: &mut BlockDiff) -> Result<(), MakeTraceError> {
        let Some(TableRow { row, .. }) = &self.next else { return Ok(()) };
        let address = Address::from(self.fixed::<20>(row, "address")?);
        let code = |column| Ok::<_, MakeTraceError>(Bytes::from(self.bytes(row, column)?.to_vec()));
        let word =
            |column| Ok::<_, MakeTraceError>(U256::from_be_bytes(self.fixed::<32>(row, column)?));
        match self.name {
            "balance_diffs" => {
                diff.add_balance(address, word("from_value_binary")?, word("to_value_binary")?);
            }
            "nonce_diffs" => {
                let [from, to] = ["from_value", "to_value"].map(|side| self.number(row, side));
                diff.add_nonce(address, from?, to?);
            }
            "code_diffs" => diff.add_code(address, code("from_value")?, code("to_value")?),
            _ => {
                let slot = U256::from_be_bytes(self.fixed::<32>(row, "slot")?);
                diff.add_slot(address, slot, word("from_value")?, word("to_value")?);
            }
        }
        self.advance()
    }

    fn field<'r>(&self, row: &'r Row, column: &'static str) -> Result<&'r Field, MakeTraceError> {
        let found = row.get_column_iter().find(|(name, _)| *name == column);
        found.map(|(_, field)| field).ok_or_else(|| self.unusable(column))
    }

    fn unusable(&self, column: &'static str) -> MakeTraceError {
        let file = self.rows.as_ref().map_or_else(PathBuf::new, |(file, _)| file.clone());
        MakeTraceError::Row { file, column }
    }

    fn number(&self, row: &Row, column: &'static str) -> Result<u64, MakeTraceError> {
        match self.field(row, column)? {
            Field::UInt(number) => Ok((*number).into()),
            Field::ULong(number) => Ok(*number),
            _ => Err(self.unusable(column)),
        }
    }

    fn bytes<'r>(&self, row: &'r Row, column: &'static str) -> Result<&'r [u8], MakeTraceError> {
        match self.field(row, column)? {
            Field::Bytes(bytes) => Ok(bytes.data()),
            _ => Err(self.unusable(column)),
        }
    }

    fn fixed<const N: usize>(
        &self,
        row: &Row,
        column: &'static str,
    ) -> Result<[u8; N], MakeTraceError> {
        self.bytes(row, column)?.try_into().map_err(|_| self.unusable(column))
    }
}
