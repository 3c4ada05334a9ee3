//! The rows of the snapshot trie, keyed by path, stamp and *origin*.
//!
//! A row of a merge is written once, in one of two ways. The block that publishes the merge writes
//! it, and then a revert of that block removes it. Or a commit before that writes it ahead, and
//! then it stays. The last byte of the key, the origin, distinguishes the two. A block that was
//! proposed before a row was written ahead writes its own copy beside the other: if they were one
//! row, the undo of the block would remove a row that blocks proposed later need.

use crate::record::SNAPSHOT;
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::{KeyRange, NodeRead, RowScan as RowIter, RowTable, ScanDirection, StateError};
use retrie_storage_mpt::trie::{Branch, RowPlace, RowSource, UpdateRecorder, record};
use std::sync::Arc;

/// The writer of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RowOrigin {
    /// The block that published the merge.
    Block = 0,
    /// A commit before the publication.
    Ahead = 1,
}

impl RowOrigin {
    pub(crate) const ALL: [Self; 2] = [Self::Block, Self::Ahead];

    /// The key of a row with this origin.
    pub(crate) fn key(self, key: &[u8]) -> Vec<u8> {
        [key, &[self as u8]].concat()
    }
}

/// The place of the snapshot trie's rows.
pub(crate) fn place() -> RowPlace {
    RowPlace::new(SNAPSHOT, &[])
}

/// The key of a branch's row, without its origin.
pub(crate) fn branch_key(path: &Nibbles, stamp: u64) -> Vec<u8> {
    record::branch_key(&[], path, stamp)
}

/// Path and stamp in the key of a branch's row, without its origin.
pub(crate) fn parse_key(key: &[u8]) -> Option<(Nibbles, u64)> {
    let (rest, stamp) = key.split_last_chunk()?;
    let (kind, nibbles) = rest.split_first()?;
    let is_path = *kind == 1 && nibbles.len() < 64 && nibbles.iter().all(|nibble| *nibble <= 0x0f);
    is_path.then(|| (Nibbles::from_nibbles_unchecked(nibbles), u64::from_be_bytes(*stamp)))
}

/// The rows of the snapshot in `view`, which must be a [`SnapshotView`].
pub(crate) fn rows(view: &dyn NodeRead) -> RowSource<'_, u64> {
    RowSource::new(view, place())
}

/// A view that finds rows of the snapshot whatever their origin.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotView<'a>(pub(crate) &'a dyn NodeRead);

impl NodeRead for SnapshotView<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        // Rows of the first block are never written ahead; most rows of merges are.
        let is_first = key.last_chunk() == Some(&0u64.to_be_bytes());
        let mut origins = RowOrigin::ALL;
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

    /// Rows of the snapshot are only read by key, so a scan passes through.
    fn scan<'b>(
        &'b self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowIter<'b>, StateError> {
        self.0.scan(table, range, direction)
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        None
    }
}

/// The change of a branch in an update.
#[derive(Clone, Debug)]
pub(crate) struct BranchChange {
    pub(crate) path: Nibbles,
    /// Stamp of the row before the update.
    pub(crate) before: Option<u64>,
    /// The row after the update.
    pub(crate) row: Option<Bytes>,
}

/// Records the changes of an update of the snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotChanges {
    stamp: u64,
    pub(crate) rows: Vec<BranchChange>,
}

impl SnapshotChanges {
    /// Starts without changes. New rows get this stamp.
    pub(crate) const fn new(stamp: u64) -> Self {
        Self { stamp, rows: Vec::new() }
    }

    /// Keys and rows of an update that found no rows of its own.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (Vec<u8>, Bytes)> {
        let stamp = self.stamp;
        self.rows.into_iter().filter_map(move |recorded| {
            let key = RowOrigin::Block.key(&branch_key(&recorded.path, stamp));
            Some((key, recorded.row?))
        })
    }
}

impl UpdateRecorder for SnapshotChanges {
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
        self.rows.push(BranchChange {
            path: *path,
            before: previous.map(Branch::stamp),
            row: next.map(|next| record::encode(path, next)),
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
