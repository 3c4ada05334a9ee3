//! Chunks that consist of leaves of earlier states, as far as what is known of later changes goes. Their
//! ids show whether they do.

use super::{
    StateSyncError,
    spool::{AnswerSpool, OlderAnswer, SpoolPlace, below, difference},
};
use crate::format::StateFormat;
use alloy_primitives::{B256, Bytes};
use retrie_state::{ChunkId, ChunkPlace, OpenedChunk, RangeChanges, TrieLeaf};
use std::sync::Arc;

/// The leaves of the answer that was read last: chunks beside each other often need the same.
#[derive(Debug, Default)]
pub(super) struct OlderLeaves(Option<(SpoolPlace, Arc<Vec<TrieLeaf>>)>);

impl OlderLeaves {
    /// The leaves of this answer; none if it cannot be read as leaves.
    pub(super) fn read(
        &mut self,
        place: SpoolPlace,
        spool: &mut AnswerSpool,
    ) -> Result<Arc<Vec<TrieLeaf>>, StateSyncError> {
        match &self.0 {
            Some((last, leaves)) if *last == place => Ok(leaves.clone()),
            _ => {
                let leaves = Arc::new(spool.leaves(place)?.unwrap_or_default());
                self.0 = Some((place, leaves.clone()));
                Ok(leaves)
            }
        }
    }
}

/// Whether older leaves give a chunk.
#[derive(Debug)]
pub(super) enum OlderOutcome {
    /// They do, with these changes, packed.
    Same { changed: Bytes, opened: OpenedChunk },
    /// They do not.
    Other {
        /// Whether it helps to know the node at the slot.
        as_node: bool,
    },
}

/// What was made of older leaves.
#[derive(Debug)]
pub(super) struct OlderChunk {
    pub(super) outcome: OlderOutcome,
    /// The number of older leaves below the slot.
    pub(super) count: usize,
}

impl OlderChunk {
    /// Tries to make the chunk `id` of older leaves.
    pub(super) fn of(
        format: &StateFormat,
        id: &ChunkId,
        place: &ChunkPlace,
        (leaves, older): (&[TrieLeaf], OlderAnswer),
        changes: &RangeChanges,
        mut storage: impl FnMut(B256, B256) -> Option<Vec<TrieLeaf>>,
    ) -> Self {
        let old = below(leaves, place);
        let made = |outcome| Self { outcome, count: old.len() };
        let other = made(OlderOutcome::Other { as_node: !old.is_empty() });
        // The same leaves below the same slot have the same hash, which the id does not have.
        if changes.0.is_empty() && (older.is_own || old.is_empty()) {
            return other;
        }
        let new = format.changed(place, old, changes, &mut storage);
        match format.open(id, &format.pack_leaves(&new)) {
            Ok(opened) => {
                let changed = format.pack_leaves(&difference(old, &new));
                made(OlderOutcome::Same { changed, opened })
            }
            Err(_) => other,
        }
    }
}
