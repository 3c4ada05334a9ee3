//! A tree that grows at its right end: the range over all blocks.

use super::{GROUP, MerkleGroup, build::group_tops, group, group_size, levels, width};
use crate::merkle;
use alloy_primitives::B256;
use retrie_state::StateError;

/// The right edge of a tree to which leaves are appended: the last group of every level.
///
/// A group that is not the last one of its level never changes again. The last groups must not be
/// pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeEdge {
    count: u64,
    edge: Vec<Vec<B256>>,
}

impl RangeEdge {
    /// Opens a tree of `count` leaves. `read` returns the last group (of this size) of each level,
    /// by level and number. `None` if a group is missing or pruned, or if the levels contradict
    /// each other.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn open(
        count: u64,
        mut read: impl FnMut(u8, u64, u8) -> Result<Option<MerkleGroup>, StateError>,
    ) -> Result<Option<Self>, StateError> {
        let mut edge: Vec<Vec<B256>> = Vec::new();
        for level in 0..levels(count) {
            let number = (width(count, level) - 1) / GROUP as u64;
            let size = group_size(count, level, number);
            let group = read(level, number, size)?.filter(|group| group.size() == size);
            let Some(leaves) = group.as_ref().and_then(MerkleGroup::leaves) else {
                return Ok(None);
            };
            if edge.last().is_some_and(|below| leaves.last() != Some(&merkle::top(below))) {
                return Ok(None);
            }
            edge.push(leaves.to_vec());
        }
        Ok(Some(Self { count, edge }))
    }

    /// The top; zero if there are no leaves.
    pub(crate) fn top(&self) -> B256 {
        self.edge.last().map_or(B256::ZERO, |last| merkle::top(last))
    }

    /// Appends a leaf. Passes each row that changes, one for each level, to `row`, with level and
    /// number of the group. Returns the new top.
    ///
    /// # Errors
    /// Those of `row`.
    pub(crate) fn append<E>(
        &mut self,
        leaf: B256,
        mut row: impl FnMut(u8, u64, Vec<u8>) -> Result<(), E>,
    ) -> Result<B256, E> {
        let (mut item, mut position, mut level) = (leaf, self.count, 0);
        self.count += 1;
        if self.edge.is_empty() {
            self.edge.push(Vec::new());
        }
        while level < self.edge.len() {
            let at = (position % GROUP as u64) as usize;
            if at == 0 && self.edge[level].len() == GROUP {
                // The previous group is complete. If it was the only one, a new level begins above
                // it.
                if level + 1 == self.edge.len() {
                    self.edge.push(group_tops(&self.edge[level]));
                }
                self.edge[level].clear();
            }
            // Above level 0 the item is the new top of a group that may exist already.
            let leaves = &mut self.edge[level];
            leaves.truncate(at);
            leaves.push(item);
            position /= GROUP as u64;
            row(level as u8, position, group::encode(group::all(leaves.len() as u8), leaves))?;
            item = merkle::top(leaves);
            level += 1;
        }
        Ok(item)
    }
}
