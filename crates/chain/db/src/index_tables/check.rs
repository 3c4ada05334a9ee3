//! Comparison of index tables with the receipts, for `retrie db verify`.

use super::{StoredTable, TableRecord, entry_keys};
use crate::{
    CorruptRow, ReadError, ReadTxn, Result,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use retrie_log_tables::{IndexTable, TableReader};
use retrie_state::ScanDirection;

/// Checks each table: its entries lead to its root, and if it is valid they are those of its blocks.
/// Returns the number of rows of tables and of entries.
pub(crate) fn check_tables(
    read: &ReadTxn,
    fault: &mut dyn FnMut(CorruptRow),
) -> Result<(u64, u64), ReadError> {
    let table = read.chain(ChainTable::IndexTables);
    let direction = ScanDirection::Forward;
    let all = RowRange { start: &[], end: None, direction, limit: usize::MAX };
    let mut rows = (0, 0);
    for (key, row) in read.stored_scan(table, all)? {
        rows.0 += 1;
        let row = crate::checksum::open(table, &key, row);
        match row.and_then(|row| TableRecord::decode(&(key.clone(), row))) {
            Err(error) => fault(error),
            Ok(record) => {
                rows.1 += entry_keys(read, record.span)?.len() as u64;
                match check_table(read, record) {
                    Ok(None) => {}
                    Ok(Some(what)) => fault(CorruptRow::new(table.name, &key, what)),
                    Err(ReadError::Corrupt(row)) => fault(row),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(rows)
}

fn check_table(read: &ReadTxn, record: TableRecord) -> Result<Option<&'static str>, ReadError> {
    let stored = StoredTable::open(read, record)?;
    if IndexTable::new(stored.entries(0..stored.count())?).root() != record.root {
        return Ok(Some("its entries do not lead to its root"));
    }
    let made = match record.is_valid(read)? {
        true => read.make_index_table(record.span)?,
        false => None,
    };
    let differs = made.is_some_and(|made| made.root() != record.root);
    Ok(differs.then_some("its entries are not those of its blocks"))
}
