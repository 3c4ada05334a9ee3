//! Changes of rows, and what several kinds of rows have in common.

use crate::{hash::Subtree, key::Stem};
use alloy_primitives::Bytes;
use retrie_state::{
    NodeWrite, RowTable, StateError,
    wire::{WireError, WireReader},
};

/// A changed row.
#[derive(Clone, Debug)]
pub(crate) struct RowChange {
    pub(crate) table: RowTable,
    pub(crate) key: Vec<u8>,
    pub(crate) previous: Option<Bytes>,
    pub(crate) next: Option<Bytes>,
}

/// Writes changed rows.
pub(crate) fn write(view: &mut dyn NodeWrite, rows: Vec<RowChange>) -> Result<(), StateError> {
    for RowChange { table, key, previous, next } in rows {
        if previous != next {
            view.replace(table, &key, previous, next)?;
        }
    }
    Ok(())
}

/// Appends a subtree within a stem: `00` for none, `01` and the hash for a leaf; for a branch `02`,
/// the split within the sub-index (1), the bits of the sub-index before it (1), and two hashes.
pub(crate) fn put_subtree(out: &mut Vec<u8>, subtree: Option<&Subtree>) {
    match subtree {
        None => out.push(0),
        Some(Subtree::Leaf(leaf)) => {
            out.push(1);
            out.extend_from_slice(&leaf[..]);
        }
        Some(Subtree::Branch { split, key, left, right }) => {
            out.push(2);
            out.push((split % 8) as u8);
            out.push(key.get(usize::from(split / 8)).copied().unwrap_or_default());
            out.extend_from_slice(&left[..]);
            out.extend_from_slice(&right[..]);
        }
    }
}

/// Reads [`put_subtree`]'s bytes, which belong to `stem`.
pub(crate) fn read_subtree(
    reader: &mut WireReader<'_>,
    stem: &Stem,
) -> Result<Option<Subtree>, WireError> {
    Ok(match reader.u8()? {
        0 => None,
        1 => Some(Subtree::Leaf(reader.hash()?)),
        2 => {
            let split = stem.bits() + usize::from(reader.u8()? % 8);
            let (key, len) = stem.key(reader.u8()?);
            Some(Subtree::branch(&key[..len], split, reader.hash()?, reader.hash()?))
        }
        _ => return Err(WireError::TrailingBytes),
    })
}
