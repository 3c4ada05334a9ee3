//! The rows of the snapshot trie, keyed by path, stamp and *origin*.
//!
//! A row that a merge makes is written once, in one of two ways: with the block that publishes the
//! merge, and then it goes if that block is reverted, or by `settle` before, and then it stays. The
//! last byte of its key, the origin, keeps the two apart. A block that was proposed before a row was
//! settled writes it anew beside the settled one: were they one row, its undo would take away what
//! other blocks, proposed later, count on.

use crate::row::SNAPSHOT;
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::{Direction, KeyRange, NodeRead, Rows as RowIter, StateError, Table};
use retrie_storage_mpt::trie::{Branch, Place, Recorder, Rows, row};
use std::sync::Arc;

/// Who wrote a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// The block that published it.
    Block = 0,
    /// A commit before that.
    Settled = 1,
}

impl Origin {
    pub(crate) const ALL: [Self; 2] = [Self::Block, Self::Settled];

    /// The key of a row with this origin.
    pub(crate) fn key(self, key: &[u8]) -> Vec<u8> {
        [key, &[self as u8]].concat()
    }
}

/// Where the rows are.
pub(crate) fn place() -> Place {
    Place::new(SNAPSHOT, &[])
}

/// The key of a branch's row, but for its origin.
pub(crate) fn branch_key(path: &Nibbles, stamp: u64) -> Vec<u8> {
    row::branch_key(&[], path, stamp)
}

/// Path and stamp in such a key.
pub(crate) fn parse_key(key: &[u8]) -> Option<(Nibbles, u64)> {
    let (rest, stamp) = key.split_last_chunk()?;
    let (kind, nibbles) = rest.split_first()?;
    let is_path = *kind == 1 && nibbles.len() < 64 && nibbles.iter().all(|nibble| *nibble <= 0x0f);
    is_path.then(|| (Nibbles::from_nibbles_unchecked(nibbles), u64::from_be_bytes(*stamp)))
}

/// The rows of the snapshot in `view`, which is a view of [`Snapshot`].
pub(crate) fn rows(view: &dyn NodeRead) -> Rows<'_, u64> {
    Rows::new(view, place())
}

/// A view in which rows of the snapshot are found whatever their origin.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot<'a>(pub(crate) &'a dyn NodeRead);

impl NodeRead for Snapshot<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        // Rows of the first block are not settled; of later ones most are.
        let is_first = key.last_chunk() == Some(&0u64.to_be_bytes());
        let mut origins = Origin::ALL;
        if !is_first {
            origins.reverse();
        }
        for origin in origins {
            if let Some(row) = self.0.get(table, &origin.key(key))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Rows of the snapshot are found by their keys alone.
    fn scan<'b>(
        &'b self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<RowIter<'b>, StateError> {
        self.0.scan(table, range, direction)
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        None
    }
}

/// What became of a branch in an update.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) path: Nibbles,
    /// Stamp of the row that it had.
    pub(crate) before: Option<u64>,
    /// The row that it has now.
    pub(crate) row: Option<Bytes>,
}

/// Takes down what an update of the snapshot changes.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    stamp: u64,
    pub(crate) rows: Vec<Recorded>,
}

impl Changes {
    /// Nothing yet; new rows get this stamp.
    pub(crate) const fn new(stamp: u64) -> Self {
        Self { stamp, rows: Vec::new() }
    }

    /// Keys and rows of an update that found no rows.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (Vec<u8>, Bytes)> {
        let stamp = self.stamp;
        self.rows.into_iter().filter_map(move |recorded| {
            let key = Origin::Block.key(&branch_key(&recorded.path, stamp));
            Some((key, recorded.row?))
        })
    }
}

impl Recorder for Changes {
    type Stamp = u64;

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn fork(&self) -> Self {
        Self::new(self.stamp)
    }

    fn absorb(&mut self, part: Self) {
        self.rows.extend(part.rows);
    }

    fn record(
        &mut self,
        path: &Nibbles,
        previous: Option<&Branch<u64>>,
        next: Option<&Branch<u64>>,
    ) {
        self.rows.push(Recorded {
            path: *path,
            before: previous.map(Branch::stamp),
            row: next.map(|next| row::encode(path, next)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_with_every_path() {
        for nibbles in [&[][..], &[0], &[1, 15, 0], &[0; 63]] {
            let path = Nibbles::from_nibbles(nibbles);
            assert_eq!(parse_key(&branch_key(&path, 258)), Some((path, 258)));
        }
        for wrong in [&[0; 9][..], &[1; 8], &[1, 16, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(parse_key(wrong), None, "{wrong:?}");
        }
    }
}
