//! The flat state: one row a key, `BackendKey` bytes to value bytes.
//!
//! Backends that authenticate values but do not store them share this table. Its rows are part of
//! the same view, overlay, undo and journal as the backend's own rows.

use crate::{
    AccountKey, BackendDelta, BackendKey, BulkSink, KeyRange, NodeRead, NodeWrite, RowTable,
    ScanDirection, StateError, StateValue, prefix_end,
};
use alloy_primitives::{B256, Bytes};

/// The table of the flat state: key [`BackendKey::encode`], value as given.
pub const TABLE: RowTable = RowTable::framework(0xf0, "Flat");

/// The value of `key`.
pub fn get(view: &dyn NodeRead, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
    view.get(TABLE, &key.encode())
}

/// Writes every change of `delta`.
pub fn apply(view: &mut dyn NodeWrite, delta: &BackendDelta) -> Result<(), StateError> {
    for change in delta.changes() {
        view.replace(TABLE, &change.key.encode(), change.previous.clone(), change.next.clone())?;
    }
    Ok(())
}

/// Writes one row of a bulk load.
pub fn put(
    sink: &mut dyn BulkSink,
    key: &BackendKey,
    value: &StateValue,
) -> Result<(), StateError> {
    sink.put(TABLE, &key.encode(), value)
}

/// The slots of `account` that are set, in order.
pub fn slots<'a>(
    view: &'a dyn NodeRead,
    account: &AccountKey,
) -> Result<impl Iterator<Item = Result<B256, StateError>> + use<'a>, StateError> {
    let start = account.slots_prefix();
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    let rows = view.scan(TABLE, range, ScanDirection::Forward)?;
    Ok(rows.map(|row| match decode(row?)?.0 {
        BackendKey::Slot(_, slot) => Ok(slot),
        key => Err(StateError::corrupt(TABLE.name, format!("{key} among slots"))),
    }))
}

/// Up to `limit` slots of `account` that are set, in slot order.
pub fn slots_of(
    view: &dyn NodeRead,
    account: &AccountKey,
    limit: usize,
) -> Result<Vec<(B256, StateValue)>, StateError> {
    let start = account.slots_prefix();
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    view.scan(TABLE, range, ScanDirection::Forward)?
        .take(limit)
        .map(|row| match decode(row?)? {
            (BackendKey::Slot(_, slot), value) => Ok((slot, value)),
            (key, _) => Err(StateError::corrupt(TABLE.name, format!("{key} among slots"))),
        })
        .collect()
}

/// All accounts, in order.
pub fn accounts(
    view: &dyn NodeRead,
) -> Result<impl Iterator<Item = Result<AccountKey, StateError>>, StateError> {
    // Keys of accounts begin with 0, or with 4 if they are hashed.
    let rows = |start, end| view.scan(TABLE, KeyRange::new(start, end), ScanDirection::Forward);
    let rows = rows(&[], &[1])?.chain(rows(&[4], &[5])?);
    Ok(rows.map(|row| Ok(*decode(row?)?.0.account())))
}

/// Up to `limit` entries in key order from `start` on.
pub fn entries(
    view: &dyn NodeRead,
    start: Option<&BackendKey>,
    limit: usize,
) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
    let start = start.map(BackendKey::encode);
    let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
    view.scan(TABLE, range, ScanDirection::Forward)?.take(limit).map(|row| decode(row?)).collect()
}

fn decode((key, value): (Bytes, Bytes)) -> Result<(BackendKey, StateValue), StateError> {
    let key = BackendKey::decode(&key)
        .ok_or_else(|| StateError::corrupt(TABLE.name, format!("row {key} is not a state key")))?;
    Ok((key, value))
}
