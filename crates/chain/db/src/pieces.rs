//! Long values, cut into pieces that fill four pages each.
//!
//! The first piece has the value's own key. Each full piece is followed by another piece, whose key
//! is the value's key and the piece's number (2 bytes, big-endian, from 1).

use crate::{
    DbError, ReadError, Result, TableError, WriteTxn,
    raw::{RawRead, RowRange, TableHandle},
};
use alloy_primitives::Bytes;
use retrie_state::{ScanDirection, prefix_end};

/// Length of a full piece in bytes. With MDBX's page header (20 bytes) it fits into four pages.
const PIECE: usize = 16_352;

/// Length of a piece number in bytes.
const NUMBER: usize = 2;

/// Stores `value`, appending its rows if `append` and the table's order allow it.
///
/// Values are written once; a shorter value must not replace a longer one (delete it first).
pub(crate) fn put(
    txn: &mut WriteTxn,
    table: TableHandle,
    key: &[u8],
    value: &[u8],
    append: bool,
) -> Result<()> {
    let mut rest = value;
    for number in 0_u16.. {
        let (piece, tail) = rest.split_at(rest.len().min(PIECE));
        let piece_key = piece_key(key, number);
        let stored = if append {
            txn.raw_append(table, &piece_key, piece)
        } else {
            txn.raw_put(table, &piece_key, piece)
        };
        match stored {
            // The table has later rows, so the piece is inserted instead.
            Err(DbError::Table(TableError::OutOfOrder { .. })) => {
                txn.raw_put(table, &piece_key, piece)?
            }
            stored => stored?,
        }
        if piece.len() < PIECE {
            return Ok(());
        }
        rest = tail;
    }
    // 2^16 pieces are 1 GiB: no block or code is that large.
    Err(TableError::ValueTooLong {
        table: table.name.to_owned(),
        key: crate::error::show_key(key),
        len: value.len(),
        max: PIECE * usize::from(u16::MAX),
    }
    .into())
}

/// Number of rows that a value of `len` bytes takes.
pub(crate) const fn count(len: usize) -> u64 {
    (len / PIECE) as u64 + 1
}

/// The whole value of `key`.
pub(crate) fn get<R: RawRead + ?Sized>(
    read: &R,
    table: TableHandle,
    key: &[u8],
) -> Result<Option<Bytes>, ReadError> {
    let Some(first) = read.raw_get(table, key)? else { return Ok(None) };
    if first.len() < PIECE {
        return Ok(Some(first));
    }
    let mut value = first.to_vec();
    for number in 1..=u16::MAX {
        let piece = read.raw_get(table, &piece_key(key, number))?;
        let piece = piece.ok_or_else(|| missing(table, key, number))?;
        value.extend_from_slice(&piece);
        if piece.len() < PIECE {
            break;
        }
    }
    Ok(Some(value.into()))
}

/// All values whose keys are `prefix` followed by `suffix_len` bytes, in order, with their keys.
pub(crate) fn scan_prefix<R: RawRead + ?Sized>(
    read: &R,
    table: TableHandle,
    prefix: &[u8],
    suffix_len: usize,
) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    let key_len = prefix.len() + suffix_len;
    let mut values: Vec<(Bytes, Bytes)> = Vec::new();
    let mut long: Option<(u16, Vec<u8>)> = None;
    for (key, piece) in rows_with_prefix(read, table, prefix)? {
        match &mut long {
            // The row after a full piece continues it.
            Some((number, value)) => {
                let (start, _) = values.last().expect("a value is open");
                if *key != *piece_key(start, *number) {
                    return Err(missing(table, start, *number));
                }
                value.extend_from_slice(&piece);
                *number = number.saturating_add(1);
                if piece.len() < PIECE {
                    let (_, value) = long.take().expect("matched above");
                    values.last_mut().expect("a value is open").1 = value.into();
                }
            }
            None if key.len() != key_len => {
                return Err(ReadError::corrupt(table.name, &key, "the key has a wrong length"));
            }
            None => {
                if piece.len() == PIECE {
                    long = Some((1, piece.to_vec()));
                }
                values.push((key, piece));
            }
        }
    }
    match long {
        None => Ok(values),
        Some((number, _)) => {
            let (start, _) = values.last().expect("a value is open");
            Err(missing(table, start, number))
        }
    }
}

/// Removes all rows whose keys start with `prefix`; returns their number.
pub(crate) fn delete_prefix(
    txn: &mut WriteTxn,
    table: TableHandle,
    prefix: &[u8],
) -> Result<usize> {
    let rows = rows_with_prefix(txn, table, prefix)?;
    for (key, _) in &rows {
        txn.raw_delete(table, key)?;
    }
    Ok(rows.len())
}

fn rows_with_prefix<R: RawRead + ?Sized>(
    read: &R,
    table: TableHandle,
    prefix: &[u8],
) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    let end = prefix_end(prefix);
    read.raw_scan(
        table,
        RowRange {
            start: prefix,
            end: end.as_deref(),
            direction: ScanDirection::Forward,
            limit: usize::MAX,
        },
    )
}

fn piece_key(key: &[u8], number: u16) -> Vec<u8> {
    let mut piece_key = Vec::with_capacity(key.len() + NUMBER);
    piece_key.extend_from_slice(key);
    if number > 0 {
        piece_key.extend_from_slice(&number.to_be_bytes());
    }
    piece_key
}

fn missing(table: TableHandle, key: &[u8], number: u16) -> ReadError {
    ReadError::corrupt(table.name, key, format!("piece {number} of the value is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatabaseEnv, OpenOptions, tables::ChainTable};

    #[test]
    fn values_around_multiples_of_a_piece_come_back_whole() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut txn = db.begin_write().unwrap();
        let table = txn.chain(ChainTable::Transactions);
        let lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7];
        let values: Vec<Vec<u8>> = lengths.map(|n| (0..n).map(|i| i as u8).collect()).into();
        for (i, value) in values.iter().enumerate() {
            put(&mut txn, table, &[9, i as u8], value, i % 2 == 0).unwrap();
        }
        put(&mut txn, table, &[10, 0], &[1], false).unwrap();
        for (i, value) in values.iter().enumerate() {
            assert_eq!(get(&txn, table, &[9, i as u8]).unwrap().unwrap(), *value);
        }
        let scanned = scan_prefix(&txn, table, &[9], 1).unwrap();
        assert_eq!(scanned.len(), values.len());
        for (i, (key, value)) in scanned.iter().enumerate() {
            assert_eq!((&key[..], &value[..]), (&[9, i as u8][..], &values[i][..]));
        }
        // 0 and 1 byte: 1 row; PIECE-1: 1; PIECE: 2; PIECE+1: 2; 2 PIECE: 3; 3 PIECE + 7: 4
        assert_eq!(txn.raw_stat(table).unwrap().unwrap().entries(), 1 + 1 + 1 + 2 + 2 + 3 + 4 + 1);

        // A missing piece is an error, not a short value.
        txn.raw_delete(table, &piece_key(&[9, 6], 2)).unwrap();
        assert!(matches!(get(&txn, table, &[9, 6]), Err(ReadError::Corrupt(_))));
        assert!(matches!(scan_prefix(&txn, table, &[9], 1), Err(ReadError::Corrupt(_))));

        delete_prefix(&mut txn, table, &[9]).unwrap();
        assert_eq!(txn.raw_stat(table).unwrap().unwrap().entries(), 1);
    }
}
