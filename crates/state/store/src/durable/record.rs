//! Records: the changed rows of one commit or block, checksummed, and cut into pieces. The journal
//! and undo are made of them.

use super::{layer::RowKey, patch};
use crate::{KvRead, KvWrite};
use alloy_primitives::Bytes;
use retrie_state::{
    KeyRange, RowTable, ScanDirection, StateError, StoreError,
    wire::{WireError, WireReader, put_varint},
};

/// Largest piece of a record in bytes: with MDBX's node header a piece still fits into one page,
/// while a value of 4,096 bytes takes two.
pub(crate) const PIECE: usize = 4030;

/// What a record says of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordValue {
    Absent,
    Whole(Bytes),
    /// A [`patch`] of the value that the record's reader has.
    Patch(Bytes),
}

/// Encodes changed rows: `table (1) || bytes of the key that the previous row's key begins with
/// (varint) || number of the other bytes (varint) || these bytes || content (varint) || value or
/// patch`. The content is 0 if the row is absent, twice the length plus 1 before a value, twice the
/// length before a patch.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    bytes: Vec<u8>,
    last_key: RowKey,
    patch: Vec<u8>,
}

impl RecordWriter {
    /// A record that starts with `header`.
    pub(crate) fn new(header: &[u8]) -> Self {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(header);
        Self { bytes, last_key: RowKey::new(), patch: Vec::new() }
    }

    /// Adds a row. It becomes a patch of `base` if there is one and the patch is short.
    pub(crate) fn push(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: Option<&Bytes>,
        base: Option<&Bytes>,
    ) {
        let shared = key.iter().zip(&self.last_key).take_while(|(a, b)| a == b).count();
        let out = &mut self.bytes;
        out.push(table.id);
        put_varint(out, shared as u64);
        put_varint(out, (key.len() - shared) as u64);
        out.extend_from_slice(&key[shared..]);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.patch.clear();
        match (value, base) {
            (None, _) => out.push(0),
            (Some(value), Some(base)) if patch::put(&mut self.patch, base, value) => {
                put_varint(out, 2 * self.patch.len() as u64);
                out.extend_from_slice(&self.patch);
            }
            (Some(value), _) => {
                put_varint(out, 2 * value.len() as u64 + 1);
                out.extend_from_slice(value);
            }
        }
    }

    /// Writes the record under `id`, cut into pieces; returns its bytes. The first eight bytes are
    /// the length of the rest (4, LE) and its CRC-32 (4, LE).
    pub(crate) fn write(
        self,
        txn: &mut dyn KvWrite,
        table: RowTable,
        id: u64,
    ) -> Result<usize, StoreError> {
        let mut bytes = self.bytes;
        let len = u32::try_from(bytes.len() - 8).map_err(|_| {
            StoreError::new(
                format!("writing record {id} of table {}", table.name),
                "it exceeds 4 GiB; commit fewer blocks at once",
            )
        })?;
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        for (piece, part) in bytes.chunks(PIECE).enumerate() {
            txn.append(table, &record_key(id, piece as u32), part)?;
        }
        Ok(bytes.len())
    }
}

pub(crate) fn record_key(id: u64, piece: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// The record id in the key of a row.
pub(crate) fn record_id(table: RowTable, key: &[u8]) -> Result<u64, StateError> {
    match key.first_chunk::<8>() {
        Some(id) if key.len() == 12 => Ok(u64::from_be_bytes(*id)),
        _ => Err(StateError::corrupt(table.name, "a row key is not 12 bytes long")),
    }
}

/// Reads and checks the whole record `id`; `None` if there is none.
pub(crate) fn read_record(
    kv: &dyn KvRead,
    table: RowTable,
    id: u64,
) -> Result<Option<Vec<u8>>, StateError> {
    let (start, end) = (record_key(id, 0), record_key(id, u32::MAX));
    let range = KeyRange::new(&start, &end);
    let bad = |what: &str| StateError::corrupt(table.name, format!("record {id}: {what}"));
    let pieces = kv.scan(table, range, ScanDirection::Forward, usize::MAX)?;
    if pieces.is_empty() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    for (n, (key, piece)) in pieces.iter().enumerate() {
        if key[..] != record_key(id, n as u32) {
            return Err(bad("a piece is missing"));
        }
        bytes.extend_from_slice(piece);
    }
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| bad("too short"))?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(0) as usize != rest.len() {
        return Err(bad("a piece is missing"));
    }
    if word(4) != crc32fast::hash(rest) {
        return Err(bad("checksum mismatch"));
    }
    bytes.drain(..8);
    Ok(Some(bytes))
}

/// The changed rows of a record after its header.
pub(crate) fn decode_rows(
    source: RowTable,
    tables: &[RowTable],
    rows: &[u8],
    mut row: impl FnMut(RowTable, &[u8], RecordValue),
) -> Result<(), StateError> {
    let bad = |error: WireError| StateError::corrupt(source.name, format!("a record: {error}"));
    let mut rest = WireReader::new(rows);
    let mut key = RowKey::new();
    while !rest.is_empty() {
        let id = rest.u8().map_err(bad)?;
        let table = tables.iter().find(|table| table.id == id).ok_or_else(|| {
            StateError::corrupt(source.name, format!("a record names the unknown table {id:#x}"))
        })?;
        take_key(&mut rest, &mut key).map_err(bad)?;
        row(*table, &key, take_value(&mut rest).map_err(bad)?);
    }
    Ok(())
}

/// Reads a key into `key`, which holds the key before it.
fn take_key(rest: &mut WireReader<'_>, key: &mut RowKey) -> Result<(), WireError> {
    let shared = usize::try_from(rest.varint()?).unwrap_or(usize::MAX);
    if shared > key.len() {
        return Err(WireError::UnexpectedEnd);
    }
    key.truncate(shared);
    let more = rest.count(1)?;
    key.extend_from_slice(rest.take(more)?);
    Ok(())
}

fn take_value(rest: &mut WireReader<'_>) -> Result<RecordValue, WireError> {
    let content = rest.varint()?;
    let len = usize::try_from(content / 2).unwrap_or(usize::MAX);
    let bytes = Bytes::copy_from_slice(rest.take(len)?);
    Ok(match content {
        0 => RecordValue::Absent,
        content if content % 2 == 1 => RecordValue::Whole(bytes),
        _ => RecordValue::Patch(bytes),
    })
}

/// Deletes the records `from..to`; returns the number of deleted rows.
pub(crate) fn delete_records(
    txn: &mut dyn KvWrite,
    table: RowTable,
    from: u64,
    to: u64,
) -> Result<usize, StoreError> {
    let (start, end) = (record_key(from, 0), record_key(to, 0));
    let mut deleted = 0;
    loop {
        let rows = txn.scan(table, KeyRange::new(&start, &end), ScanDirection::Forward, 512)?;
        for (key, _) in &rows {
            txn.delete(table, key)?;
        }
        deleted += rows.len();
        if rows.len() < 512 {
            return Ok(deleted);
        }
    }
}

#[cfg(test)]
mod tests;
