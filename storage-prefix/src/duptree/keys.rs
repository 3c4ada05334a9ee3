//! The key table: every key that has a leaf, in key order, with the number of its leaf. A key's
//! successor in the table is the next key of its leaf.

use super::leaf::{IndexedLeaf, KeyPosition};
use alloy_primitives::{Bytes, hex};
use retrie_state::{
    AccountKey, BackendKey, KeyRange, NodeRead, RowTable, ScanDirection, StateError, StateValue,
    TableRow, flat, prefix_end,
    wire::{WireReader, put_varint},
};

/// Encoded state key -> number of its leaf (LEB128), from 1 on.
pub const KEYS: RowTable = RowTable::new(0x50, "DupTreeKeys");

/// The row of a key with this leaf number.
pub(crate) fn row(number: u64) -> Bytes {
    let mut row = Vec::with_capacity(5);
    put_varint(&mut row, number);
    row.into()
}

/// Key and number of a row.
///
/// # Errors
/// [`StateError::Corrupt`], naming the row.
pub(crate) fn decode((key, row): &TableRow) -> Result<(BackendKey, u64), StateError> {
    let key = BackendKey::decode(key).ok_or_else(|| {
        StateError::corrupt(KEYS.name, format!("row {} is not a state key", hex::encode(key)))
    })?;
    Ok((key, decode_number(&key, row)?))
}

fn decode_number(key: &BackendKey, row: &[u8]) -> Result<u64, StateError> {
    let mut reader = WireReader::new(row);
    match reader.varint() {
        Ok(number) if number > 0 && reader.is_empty() => Ok(number),
        _ => Err(StateError::corrupt(KEYS.name, format!("{key}: its row is not a leaf's number"))),
    }
}

/// The number of a key's leaf, if it has one.
pub(crate) fn number(view: &dyn NodeRead, key: &BackendKey) -> Result<Option<u64>, StateError> {
    let row = view.get(KEYS, &key.encode())?;
    row.map(|row| decode_number(key, &row)).transpose()
}

/// The last key before `key`, with the number of its leaf; the sentinel has number 0.
pub(crate) fn before(
    view: &dyn NodeRead,
    key: &BackendKey,
) -> Result<(Option<BackendKey>, u64), StateError> {
    let end = key.encode();
    let range = KeyRange::new(&[], &end);
    let row = view.scan(KEYS, range, ScanDirection::Backward)?.next().transpose()?;
    let Some(row) = row else { return Ok((None, 0)) };
    let (key, number) = decode(&row)?;
    Ok((Some(key), number))
}

/// The first key after `key`; for `None` the first key of all.
pub(crate) fn after(
    view: &dyn NodeRead,
    key: Option<&BackendKey>,
) -> Result<Option<BackendKey>, StateError> {
    let mut start = Vec::new();
    if let Some(key) = key {
        start.extend_from_slice(&key.encode());
        start.push(0);
    }
    let row =
        view.scan(KEYS, KeyRange::from(&start), ScanDirection::Forward)?.next().transpose()?;
    Ok(row.map(|row| decode(&row)).transpose()?.map(|(key, _)| key))
}

/// The slots of `account` that have a leaf, deleted or not.
pub(crate) fn slots_with_leaf(
    view: &dyn NodeRead,
    account: &AccountKey,
) -> Result<Vec<BackendKey>, StateError> {
    let start = account.slots_prefix();
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    let rows = view.scan(KEYS, range, ScanDirection::Forward)?;
    rows.map(|row| Ok(decode(&row?)?.0)).collect()
}

/// The value of a key; the sentinel has none.
pub(crate) fn value(
    view: &dyn NodeRead,
    key: Option<&BackendKey>,
) -> Result<Option<StateValue>, StateError> {
    key.map_or(Ok(None), |key| flat::get(view, key))
}

/// The leaf that covers `key`, and its number.
pub(crate) fn covering_leaf(
    view: &dyn NodeRead,
    key: &BackendKey,
) -> Result<(u64, IndexedLeaf), StateError> {
    let (own, number) = match number(view, key)? {
        Some(number) => (Some(*key), number),
        None => before(view, key)?,
    };
    let (value, next) = (value(view, own.as_ref())?, after(view, own.as_ref())?);
    let leaf = IndexedLeaf { key: own, value, next };
    if leaf.place(key) == KeyPosition::Elsewhere {
        return Err(StateError::corrupt(KEYS.name, format!("no leaf covers {key}")));
    }
    Ok((number, leaf))
}
