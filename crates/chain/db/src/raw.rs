//! Reads of one MDBX transaction of any kind, and the trait that chain and state reads share.

use crate::{CorruptRow, ReadError, Result, checksum, env::DatabaseInner, tables::ChainTable};
use alloy_primitives::Bytes;
use mdbx::{Cursor, Database, MdbxError, Stat, TransactionKind, tx::Tx};
use retrie_state::{ScanDirection, TableRow};

/// An open table.
#[derive(Clone, Copy, Debug)]
pub struct TableHandle {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// Initial value of its rows' [checksums](crate::checksum).
    pub(crate) start: u32,
    /// `None` if the table does not exist yet, as the datadir is of an earlier version and opened
    /// read-only. It counts as empty.
    pub(crate) db: Option<Database>,
}

impl TableHandle {
    pub(crate) fn new(name: &'static str, name_on_disk: &str, db: Option<Database>) -> Self {
        Self { name, start: checksum::start(name_on_disk), db }
    }

    /// MDBX's handle, for writing.
    pub(crate) fn dbi(self) -> Result<Database, MdbxError> {
        self.db.ok_or(MdbxError::BadDbi)
    }
}

/// Reads of plain rows, shared by snapshots and write transactions.
pub trait RawRead {
    /// The environment that it reads from.
    fn inner(&self) -> &DatabaseInner;

    /// The row of `key` as stored, unchecked: checksum and value.
    fn stored(&self, table: TableHandle, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// As [`raw_seek`](Self::raw_seek), unchecked.
    fn stored_seek(
        &self,
        table: TableHandle,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, ReadError>;

    /// As [`raw_scan`](Self::raw_scan), unchecked.
    fn stored_scan(
        &self,
        table: TableHandle,
        range: RowRange<'_>,
    ) -> Result<Vec<TableRow>, ReadError>;

    /// The value of `key`.
    #[inline]
    fn raw_get(&self, table: TableHandle, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.stored(table, key)? {
            Some(row) => Ok(Some(checksum::open(table, key, row)?)),
            None => Ok(None),
        }
    }

    /// As `KvRead::seek`.
    fn raw_seek(
        &self,
        table: TableHandle,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, ReadError> {
        let row = self.stored_seek(table, key, direction)?;
        Ok(row.map(|row| open_row(table, row)).transpose()?)
    }

    /// As `KvRead::scan`.
    fn raw_scan(
        &self,
        table: TableHandle,
        range: RowRange<'_>,
    ) -> Result<Vec<TableRow>, ReadError> {
        let rows = self.stored_scan(table, range)?;
        Ok(rows.into_iter().map(|row| open_row(table, row)).collect::<Result<_, CorruptRow>>()?)
    }

    /// Number of rows and pages; `None` if this snapshot is older than the table.
    fn raw_stat(&self, table: TableHandle) -> Result<Option<Stat>, ReadError>;

    /// Handle of a chain table.
    fn chain(&self, table: ChainTable) -> TableHandle {
        self.inner().tables.chain(table)
    }
}

/// The rows to scan: keys `start..end`, at most `limit` rows.
#[derive(Clone, Copy, Debug)]
pub struct RowRange<'a> {
    pub(crate) start: &'a [u8],
    pub(crate) end: Option<&'a [u8]>,
    pub(crate) direction: ScanDirection,
    pub(crate) limit: usize,
}

/// A row from the MDBX crate. It uses vectors, not borrowed slices: for slices the crate asks MDBX
/// in a write transaction whether the page is dirty, and `mdbx_is_dirty` counts pages in 32 bits.
/// So it is wrong for memory 16 TiB beyond the map, which happens with several environments in one
/// process.
type RawRow = (Vec<u8>, Vec<u8>);

fn open_row(table: TableHandle, (key, row): TableRow) -> Result<TableRow, CorruptRow> {
    let value = checksum::open(table, &key, row)?;
    Ok((key, value))
}

/// The row of `key`; `None` also if the snapshot is older than the table.
pub(crate) fn get<K: TransactionKind>(
    tx: &Tx<K>,
    db: Option<Database>,
    key: &[u8],
) -> Result<Option<Bytes>, MdbxError> {
    let Some(db) = db else { return Ok(None) };
    match tx.get::<Vec<u8>>(db.dbi(), key) {
        Ok(value) => Ok(value.map(Bytes::from)),
        Err(error) => missing_is_empty::<K, _>(plain(error), None),
    }
}

/// The row at or after `key` (`None`: the first), or the one at or before it (`None`: the last).
pub(crate) fn seek<K: TransactionKind>(
    tx: &Tx<K>,
    db: Option<Database>,
    key: Option<&[u8]>,
    direction: ScanDirection,
) -> Result<Option<TableRow>, MdbxError> {
    let Some(db) = db else { return Ok(None) };
    let found = (|| {
        let mut cursor = tx.cursor(db)?;
        match direction {
            ScanDirection::Forward => at_or_after(&mut cursor, key.unwrap_or_default()),
            ScanDirection::Backward => match key {
                Some(key) => at_or_before(&mut cursor, key),
                None => cursor.last().map_err(plain),
            },
        }
        .map(|found| found.map(row))
    })();
    found.or_else(|error| missing_is_empty::<K, _>(error, None))
}

/// The rows of `range`.
pub(crate) fn scan<K: TransactionKind>(
    tx: &Tx<K>,
    db: Option<Database>,
    range: RowRange<'_>,
) -> Result<Vec<TableRow>, MdbxError> {
    let Some(db) = db else { return Ok(Vec::new()) };
    let RowRange { start, end, direction, limit } = range;
    if limit == 0 || end.is_some_and(|end| end <= start) {
        return Ok(Vec::new());
    }
    let rows = (|| {
        let mut rows = Vec::new();
        let mut cursor = tx.cursor(db)?;
        let mut next = match (direction, end) {
            (ScanDirection::Forward, _) => at_or_after(&mut cursor, start)?,
            (ScanDirection::Backward, None) => cursor.last().map_err(plain)?,
            (ScanDirection::Backward, Some(end)) => before(&mut cursor, end)?,
        };
        while let Some(found) = next {
            let key = found.0.as_slice();
            let inside = match direction {
                ScanDirection::Forward => end.is_none_or(|end| key < end),
                ScanDirection::Backward => key >= start,
            };
            if !inside {
                break;
            }
            rows.push(row(found));
            if rows.len() == limit {
                break;
            }
            next = match direction {
                ScanDirection::Forward => cursor.next(),
                ScanDirection::Backward => cursor.prev(),
            }
            .map_err(plain)?;
        }
        Ok(rows)
    })();
    rows.or_else(|error| missing_is_empty::<K, _>(error, Vec::new()))
}

/// Passes all rows in order to `row` until it returns false.
pub(crate) fn walk<K: TransactionKind>(
    tx: &Tx<K>,
    db: Option<Database>,
    mut row: impl FnMut(Vec<u8>, Vec<u8>) -> bool,
) -> Result<(), MdbxError> {
    let Some(db) = db else { return Ok(()) };
    let walked = (|| {
        let mut cursor = tx.cursor(db)?;
        let mut next = cursor.first::<Vec<u8>, Vec<u8>>();
        while let Some((key, value)) = next.map_err(plain)? {
            if !row(key, value) {
                break;
            }
            next = cursor.next();
        }
        Ok(())
    })();
    walked.or_else(|error| missing_is_empty::<K, _>(error, ()))
}

/// Rows and pages of a table.
pub(crate) fn stat<K: TransactionKind>(
    tx: &Tx<K>,
    db: Option<Database>,
) -> Result<Option<Stat>, MdbxError> {
    let Some(db) = db else { return Ok(None) };
    tx.db_stat(&db).map(Some).or_else(|error| missing_is_empty::<K, _>(error, None))
}

fn at_or_after<K: TransactionKind>(
    cursor: &mut Cursor<'_, K>,
    key: &[u8],
) -> Result<Option<RawRow>, MdbxError> {
    if key.is_empty() { cursor.first() } else { cursor.set_range(key) }.map_err(plain)
}

fn at_or_before<K: TransactionKind>(
    cursor: &mut Cursor<'_, K>,
    key: &[u8],
) -> Result<Option<RawRow>, MdbxError> {
    match at_or_after(cursor, key)? {
        Some(found) if found.0 == key => Ok(Some(found)),
        Some(_) => cursor.prev().map_err(plain),
        None => cursor.last().map_err(plain),
    }
}

fn before<K: TransactionKind>(
    cursor: &mut Cursor<'_, K>,
    key: &[u8],
) -> Result<Option<RawRow>, MdbxError> {
    match at_or_after(cursor, key)? {
        Some(_) => cursor.prev(),
        None => cursor.last(),
    }
    .map_err(plain)
}

fn row((key, value): RawRow) -> TableRow {
    (key.into(), value.into())
}

/// Reads decode nothing, so a decoding error means a damaged page.
fn plain(error: mdbx::ReadError) -> MdbxError {
    match error {
        mdbx::ReadError::Mdbx(error) => error,
        mdbx::ReadError::Decoding(_) => MdbxError::Corrupted,
    }
}

/// MDBX refuses a table's handle in a snapshot that is older than the table; such a table counts as
/// empty. A write transaction sees every table, so there it is an error.
fn missing_is_empty<K: TransactionKind, T>(error: MdbxError, empty: T) -> Result<T, MdbxError> {
    if K::IS_READ_ONLY && error == MdbxError::BadDbi { Ok(empty) } else { Err(error) }
}
