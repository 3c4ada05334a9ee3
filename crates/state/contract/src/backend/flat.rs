//! The flat state: one row a key, `StateKey` bytes to value bytes.
//!
//! Backends that authenticate values but do not store them share this table. Its rows are part of
//! the same view, overlay, undo and journal as the backend's own rows.

use crate::{
    BulkSink, KeyRange, NodeRead, NodeWrite, RowTable, ScanDirection, StateDelta, StateError,
    StateKey, StateValue, prefix_end,
};
use alloy_primitives::{Address, B256, Bytes};

/// The table of the flat state: key [`StateKey::encode`], value as given.
pub const TABLE: RowTable = RowTable::framework(0xf0, "Flat");

/// The value of `key`.
pub fn get(view: &dyn NodeRead, key: &StateKey) -> Result<Option<StateValue>, StateError> {
    view.get(TABLE, &key.encode())
}

/// Writes every change of `delta`.
pub fn apply(view: &mut dyn NodeWrite, delta: &StateDelta) -> Result<(), StateError> {
    for change in delta.changes() {
        view.replace(TABLE, &change.key.encode(), change.previous.clone(), change.next.clone())?;
    }
    Ok(())
}

/// Writes one row of a bulk load.
pub fn put(sink: &mut dyn BulkSink, key: &StateKey, value: &StateValue) -> Result<(), StateError> {
    sink.put(TABLE, &key.encode(), value)
}

/// The slots of `address` that are set, in order.
pub fn slots<'a>(
    view: &'a dyn NodeRead,
    address: &Address,
) -> Result<impl Iterator<Item = Result<B256, StateError>> + use<'a>, StateError> {
    let mut start = vec![1u8];
    start.extend_from_slice(address.as_slice());
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    let rows = view.scan(TABLE, range, ScanDirection::Forward)?;
    Ok(rows.map(|row| match decode(row?)?.0 {
        StateKey::Slot(_, slot) => Ok(slot),
        key => Err(StateError::corrupt(TABLE.name, format!("{key} among slots"))),
    }))
}

/// Up to `limit` slots of `address` that are set, in slot order.
pub fn slots_of(
    view: &dyn NodeRead,
    address: &Address,
    limit: usize,
) -> Result<Vec<(B256, StateValue)>, StateError> {
    let mut start = vec![1u8];
    start.extend_from_slice(address.as_slice());
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    view.scan(TABLE, range, ScanDirection::Forward)?
        .take(limit)
        .map(|row| match decode(row?)? {
            (StateKey::Slot(_, slot), value) => Ok((slot, value)),
            (key, _) => Err(StateError::corrupt(TABLE.name, format!("{key} among slots"))),
        })
        .collect()
}

/// The addresses of all accounts, in order.
pub fn accounts(
    view: &dyn NodeRead,
) -> Result<impl Iterator<Item = Result<Address, StateError>>, StateError> {
    // Keys of slots begin with 1.
    let rows = view.scan(TABLE, KeyRange::new(&[], &[1]), ScanDirection::Forward)?;
    Ok(rows.map(|row| Ok(*decode(row?)?.0.address())))
}

/// Up to `limit` entries in key order from `start` on.
pub fn entries(
    view: &dyn NodeRead,
    start: Option<&StateKey>,
    limit: usize,
) -> Result<Vec<(StateKey, StateValue)>, StateError> {
    let start = start.map(StateKey::encode);
    let range = KeyRange::from(start.as_deref().unwrap_or(&[]));
    view.scan(TABLE, range, ScanDirection::Forward)?.take(limit).map(|row| decode(row?)).collect()
}

fn decode((key, value): (Bytes, Bytes)) -> Result<(StateKey, StateValue), StateError> {
    let key = StateKey::decode(&key)
        .ok_or_else(|| StateError::corrupt(TABLE.name, format!("row {key} is not a state key")))?;
    Ok((key, value))
}
