//! The checksum that every row of every table carries.
//!
//! A row lies in MDBX as `checksum (4 bytes, little-endian) || value`. The checksum is the CRC-32
//! (IEEE) over key and value. It starts from a value of the table: the CRC-32 of the table's name
//! on disk, XOR the length of the key. So a row does not match if it is damaged, or if it appears
//! under another key, in another table, or with another boundary between key and value. All code
//! above this crate's [`raw`](crate::raw) sees plain values.
//!
//! The checksum comes first, as cutting off the front of a buffer costs nothing.

use crate::{CorruptRow, Result, raw::TableHandle};
use alloy_primitives::Bytes;

/// Length of a checksum in bytes.
pub(crate) const LEN: usize = 4;

/// The fault of a row whose checksum does not match.
pub(crate) const MISMATCH: &str = "the row does not match its checksum";

/// Initial value of a table's checksums.
pub(crate) fn start(name_on_disk: &str) -> u32 {
    crc32fast::hash(name_on_disk.as_bytes())
}

#[inline]
fn of(start: u32, key: &[u8], value: &[u8]) -> [u8; LEN] {
    let mut hasher = crc32fast::Hasher::new_with_initial(start ^ key.len() as u32);
    hasher.update(key);
    hasher.update(value);
    hasher.finalize().to_le_bytes()
}

/// Writes the row of `value` into `row`.
#[inline]
pub(crate) fn seal(table: TableHandle, key: &[u8], value: &[u8], row: &mut Vec<u8>) {
    row.clear();
    row.extend_from_slice(&of(table.start, key, value));
    row.extend_from_slice(value);
}

/// The value of `row`, if its checksum matches.
#[inline]
pub(crate) fn open(table: TableHandle, key: &[u8], mut row: Bytes) -> Result<Bytes, CorruptRow> {
    if !is_right(table.start, key, &row) {
        return Err(mismatch(table, key));
    }
    // It moves only the start of the buffer.
    alloy_primitives::bytes::Buf::advance(&mut row.0, LEN);
    Ok(row)
}

/// Whether the checksum of a row matches.
#[inline]
pub(crate) fn is_right(start: u32, key: &[u8], row: &[u8]) -> bool {
    row.split_first_chunk::<LEN>().is_some_and(|(sum, value)| *sum == of(start, key, value))
}

#[cold]
fn mismatch(table: TableHandle, key: &[u8]) -> CorruptRow {
    CorruptRow::new(table.name, key, MISMATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatabaseEnv, OpenOptions, ReadError, raw::RawRead, tables::ChainTable};
    use retrie_state::{KeyRange, RowTable, ScanDirection};
    use retrie_state_store::{KvRead, KvWrite};

    const A: RowTable = RowTable::new(1, "A");

    #[test]
    fn every_kind_of_read_refuses_a_damaged_row_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut txn = db.begin_write().unwrap();
        for key in [b"a", b"b", b"c"] {
            txn.put(A, key, b"value").unwrap();
        }
        txn.insert_code(&Default::default(), b"code").unwrap();
        txn.commit().unwrap();
        let mut txn = db.begin_write().unwrap();
        let table = txn.existing_state_table(A).unwrap().unwrap();
        let mut row = txn.stored(table, b"b").unwrap().unwrap().to_vec();
        row[6] ^= 1;
        txn.put_stored(table, b"b", &row);
        let codes = txn.chain(ChainTable::Codes);
        txn.put_stored(codes, &[0; 32], b"cod");
        let here = |text: String| {
            assert!(text.contains("table A, key 0x62") && text.contains("its checksum"), "{text}");
        };
        let ask = |read: &dyn KvRead| {
            here(read.get(A, b"b").unwrap_err().to_string());
            here(read.seek(A, Some(b"aa"), ScanDirection::Forward).unwrap_err().to_string());
            here(read.scan(A, KeyRange::ALL, ScanDirection::Backward, 9).unwrap_err().to_string());
            assert_eq!(read.get(A, b"a").unwrap().unwrap(), b"value"[..]);
            assert_eq!(read.scan(A, KeyRange::ALL, ScanDirection::Forward, 1).unwrap().len(), 1);
            assert_eq!(read.count(A).unwrap(), 3);
        };
        ask(&txn);
        txn.commit().unwrap();
        let read = db.begin_read().unwrap();
        ask(&read);
        let code = crate::ChainRead::code(&read, &Default::default());
        assert!(matches!(code, Err(ReadError::Corrupt(_))), "{code:?}");
        let mut found = Vec::new();
        let tables = read.check_rows(&mut |_, _| {}, &mut |e| found.push(e.to_string())).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("table Codes, key 0x00"), "{found:?}");
        assert!(found[1].contains("table StateA, key 0x62"), "{found:?}");
        assert_eq!(tables.last().map(|table| (&*table.name, table.rows)), Some(("StateA", 3)));
        assert_eq!(db.check_pages().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn row_is_these_bytes_and_passes_nowhere_else() {
        let mut row = Vec::new();
        let seal_in = |table: &str, key: &[u8], value: &[u8], row: &mut Vec<u8>| {
            row.clear();
            row.extend_from_slice(&of(start(table), key, value));
            row.extend_from_slice(value);
        };
        seal_in("StateFlat", b"key", b"value", &mut row);
        assert_eq!(alloy_primitives::hex::encode(&row), "22a2edfb76616c7565");
        assert!(is_right(start("StateFlat"), b"key", &row));
        assert!(!is_right(start("StateUndo"), b"key", &row), "another table");
        assert!(!is_right(start("StateFlat"), b"kez", &row), "another key");
        let sum = &row[..LEN];
        let shifted = [sum, b"alue"].concat();
        assert!(!is_right(start("StateFlat"), b"keyv", &shifted), "another border");
        for bit in 0..row.len() * 8 {
            row[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(start("StateFlat"), b"key", &row), "bit {bit}");
            row[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..row.len() {
            assert!(!is_right(start("StateFlat"), b"key", &row[..len]), "{len} bytes");
        }
        seal_in("StateFiles", b"name", b"", &mut row);
        assert!(row.len() == LEN && is_right(start("StateFiles"), b"name", &row));
    }
}
