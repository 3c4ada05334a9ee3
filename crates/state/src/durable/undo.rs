//! Undo records: what each durable block changed, turned round. They serve `revert`, and the
//! reverse overlays through which a durable block below the tip is read and extended.

use super::{
    journal::{RecordWriter, decode_rows, delete_records, read_record, record_id},
    overlay::{FILES, Key, Layer},
};
use crate::{Direction, KvRead, KvWrite, StateError, StoreError, Table};
use alloy_primitives::{B256, Bytes};
use std::ops::RangeInclusive;

/// Undo rows: key = block number (8 bytes, big-endian) || piece (4 bytes, big-endian). A record
/// starts with hash and root of the block, then hash and root of its parent (32 bytes each).
pub(crate) const UNDO: Table = Table::framework(0xf2, "Undo");

/// Head of an undo record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndoHead {
    pub(crate) hash: B256,
    pub(crate) root: B256,
    pub(crate) parent_hash: B256,
    pub(crate) parent_root: B256,
}

const HEAD: usize = 128;

/// A row as it was before the block.
pub(crate) type UndoRow = (Table, Key, Option<Bytes>);

/// Writes the undo record of block `number`; returns its bytes.
pub(crate) fn write(
    txn: &mut dyn KvWrite,
    number: u64,
    head: UndoHead,
    layer: &Layer,
) -> Result<usize, StoreError> {
    let mut header = [0; HEAD];
    let fields = [head.hash, head.root, head.parent_hash, head.parent_root];
    for (to, field) in header.chunks_exact_mut(32).zip(fields) {
        to.copy_from_slice(field.as_slice());
    }
    let mut record = RecordWriter::new(&header);
    for (table, key, row) in layer.iter() {
        record.push(table, key, row.previous.as_ref().map(|value| &value[..]));
    }
    record.write(txn, UNDO, number)
}

/// The undo record of block `number`: its head, and the rows as they were before.
pub(crate) fn read(
    kv: &dyn KvRead,
    tables: &[Table],
    number: u64,
) -> Result<(UndoHead, Vec<UndoRow>), StateError> {
    let record = read_record(kv, UNDO, number)?.ok_or_else(|| {
        StateError::corrupt(UNDO.name, format!("the record of block {number} is missing"))
    })?;
    let (header, rest) = record.split_at_checked(HEAD).ok_or_else(|| {
        StateError::corrupt(UNDO.name, format!("the record of block {number} has no header"))
    })?;
    let field = |n: usize| B256::from_slice(&header[n * 32..n * 32 + 32]);
    let head =
        UndoHead { hash: field(0), root: field(1), parent_hash: field(2), parent_root: field(3) };
    let mut rows = Vec::new();
    decode_rows(UNDO, tables, rest, |table, key, value| {
        rows.push((table, Key::from_slice(key), value));
    })?;
    Ok((head, rows))
}

/// Numbers of the oldest and the newest block with an undo record.
pub(crate) fn span(kv: &dyn KvRead) -> Result<Option<(u64, u64)>, StateError> {
    let first = kv.seek(UNDO, Some(&[]), Direction::Forward)?;
    let last = kv.seek(UNDO, None, Direction::Backward)?;
    match (first, last) {
        (Some((first, _)), Some((last, _))) => {
            Ok(Some((record_id(UNDO, &first)?, record_id(UNDO, &last)?)))
        }
        _ => Ok(None),
    }
}

/// Lays the states that the records `numbers` lead back to onto `layer`.
pub(crate) fn onto(
    kv: &dyn KvRead,
    tables: &[Table],
    numbers: RangeInclusive<u64>,
    layer: &mut Layer,
) -> Result<(), StateError> {
    // The oldest record has the last word.
    for number in numbers.rev() {
        let (_, rows) = read(kv, tables, number)?;
        for (table, key, previous) in rows {
            layer.overwrite(table, key, previous);
        }
    }
    Ok(())
}

/// The files that a block retired: only the states below it name them.
pub(crate) fn retired_files(rows: &[UndoRow]) -> impl Iterator<Item = String> {
    rows.iter()
        .filter(|(table, _, previous)| *table == FILES && previous.is_some())
        .map(|(_, key, _)| String::from_utf8_lossy(key).into_owned())
}

/// Forgets the records of blocks that lie deeper than `keep` below `tip`.
pub(crate) fn prune(txn: &mut dyn KvWrite, tip: u64, keep: u64) -> Result<(), StateError> {
    if let Some((first, last)) = span(txn)?
        && first.saturating_add(keep) <= tip
    {
        // Without retention the tip itself has no record.
        delete_records(txn, UNDO, first, (tip + 1 - keep).min(last + 1))?;
    }
    Ok(())
}
