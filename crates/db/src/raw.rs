//! Reads of one MDBX transaction, of any kind, and the traits that chain and state reads share.

use crate::{Result, checksum, env::Inner, tables::ChainTable};
use alloy_primitives::Bytes;
use mdbx::{Cursor, Database, MdbxError, ReadError, Stat, TransactionKind, tx::Tx};
use retrie_state::{Direction, Row};

/// An open table.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// Where the [checksums](crate::checksum) of its rows start.
    pub(crate) start: u32,
    /// `None`: there is no such table yet, and nothing in it, as the datadir is of an earlier version
    /// and open to read alone.
    pub(crate) db: Option<Database>,
}

impl Handle {
    pub(crate) fn new(name: &'static str, name_on_disk: &str, db: Option<Database>) -> Self {
        Self { name, start: checksum::start(name_on_disk), db }
    }

    /// MDBX's handle, to write.
    pub(crate) fn dbi(self) -> Result<Database, MdbxError> {
        self.db.ok_or(MdbxError::BadDbi)
    }
}

/// What a snapshot and a write transaction have in common below the level of rows with a meaning.
pub trait RawRead {
    /// The environment read from.
    fn inner(&self) -> &Inner;

    /// The row of `key` as it lies on disk, unchecked: checksum and value.
    fn stored(&self, table: Handle, key: &[u8]) -> Result<Option<Bytes>>;

    /// As [`raw_seek`](Self::raw_seek), unchecked.
    fn stored_seek(
        &self,
        table: Handle,
        key: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Row>>;

    /// As [`raw_scan`](Self::raw_scan), unchecked.
    fn stored_scan(&self, table: Handle, range: Range<'_>) -> Result<Vec<Row>>;

    /// The value of `key`.
    #[inline]
    fn raw_get(&self, table: Handle, key: &[u8]) -> Result<Option<Bytes>> {
        match self.stored(table, key)? {
            Some(row) => checksum::open(table, key, row).map(Some),
            None => Ok(None),
        }
    }

    /// As `KvRead::seek`.
    fn raw_seek(
        &self,
        table: Handle,
        key: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Row>> {
        self.stored_seek(table, key, direction)?.map(|row| open_row(table, row)).transpose()
    }

    /// As `KvRead::scan`.
    fn raw_scan(&self, table: Handle, range: Range<'_>) -> Result<Vec<Row>> {
        let rows = self.stored_scan(table, range)?;
        rows.into_iter().map(|row| open_row(table, row)).collect()
    }

    /// Number of rows and pages; `None` if this snapshot is older than the table.
    fn raw_stat(&self, table: Handle) -> Result<Option<Stat>>;

    /// Handle of a chain table.
    fn chain(&self, table: ChainTable) -> Handle {
        self.inner().tables.chain(table)
    }
}

/// What to scan: keys `start..end`, at most `limit` rows.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    pub(crate) start: &'a [u8],
    pub(crate) end: Option<&'a [u8]>,
    pub(crate) direction: Direction,
    pub(crate) limit: usize,
}

/// A row as MDBX's crate hands it out. Vectors, not borrowed slices: for those the crate asks MDBX
/// in a write transaction whether the page is dirty, and `mdbx_is_dirty` counts pages in 32 bits, so
/// that it errs about memory 16 TiB beyond the map (as with several environments in one process).
type RawRow = (Vec<u8>, Vec<u8>);

fn open_row(table: Handle, (key, row): Row) -> Result<Row> {
    let value = checksum::open(table, &key, row)?;
    Ok((key, value))
}

/// The row of `key`. On a snapshot older than the table there is none.
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
    direction: Direction,
) -> Result<Option<Row>, MdbxError> {
    let Some(db) = db else { return Ok(None) };
    let found = (|| {
        let mut cursor = tx.cursor(db)?;
        match direction {
            Direction::Forward => at_or_after(&mut cursor, key.unwrap_or_default()),
            Direction::Backward => match key {
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
    range: Range<'_>,
) -> Result<Vec<Row>, MdbxError> {
    let Some(db) = db else { return Ok(Vec::new()) };
    let Range { start, end, direction, limit } = range;
    if limit == 0 || end.is_some_and(|end| end <= start) {
        return Ok(Vec::new());
    }
    let rows = (|| {
        let mut rows = Vec::new();
        let mut cursor = tx.cursor(db)?;
        let mut next = match (direction, end) {
            (Direction::Forward, _) => at_or_after(&mut cursor, start)?,
            (Direction::Backward, None) => cursor.last().map_err(plain)?,
            (Direction::Backward, Some(end)) => before(&mut cursor, end)?,
        };
        while let Some(found) = next {
            let key = found.0.as_slice();
            let inside = match direction {
                Direction::Forward => end.is_none_or(|end| key < end),
                Direction::Backward => key >= start,
            };
            if !inside {
                break;
            }
            rows.push(row(found));
            if rows.len() == limit {
                break;
            }
            next = match direction {
                Direction::Forward => cursor.next(),
                Direction::Backward => cursor.prev(),
            }
            .map_err(plain)?;
        }
        Ok(rows)
    })();
    rows.or_else(|error| missing_is_empty::<K, _>(error, Vec::new()))
}

/// Gives all rows in order to `row` until it returns false.
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

fn row((key, value): RawRow) -> Row {
    (key.into(), value.into())
}

/// We decode nothing while reading, so a decoding error can only be about the page itself.
fn plain(error: ReadError) -> MdbxError {
    match error {
        ReadError::Mdbx(error) => error,
        ReadError::Decoding(_) => MdbxError::Corrupted,
    }
}

/// MDBX refuses a table's handle in a snapshot taken before the table was created; for us it is an
/// empty table. A write transaction sees every table, so there it stays an error.
fn missing_is_empty<K: TransactionKind, T>(error: MdbxError, empty: T) -> Result<T, MdbxError> {
    if K::IS_READ_ONLY && error == MdbxError::BadDbi { Ok(empty) } else { Err(error) }
}
