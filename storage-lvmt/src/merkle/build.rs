//! Building trees together with their rows.

use super::{GROUP, GROUP_BITS, group};
use crate::hash;
use alloy_primitives::B256;
use std::convert::Infallible;

/// A tree whose first leaves are known before the others. It passes the rows of all its groups on,
/// with level and number of the group.
pub(crate) struct TreePrefix {
    leaves: Vec<B256>,
    /// Tops of the groups that the first leaves fill completely.
    tops: Vec<B256>,
}

impl TreePrefix {
    /// The tree that begins with `leaves`.
    pub(crate) fn new(leaves: Vec<B256>, mut row: impl FnMut(u8, u64, Vec<u8>)) -> Self {
        let whole = &leaves[..leaves.len() / GROUP * GROUP];
        give_rows(0, whole, &mut row);
        let tops = group_tops(whole);
        Self { leaves, tops }
    }

    /// Adds the remaining leaves and returns the top; zero if the tree has no leaves.
    pub(crate) fn finish(mut self, leaves: &[B256], mut row: impl FnMut(u8, u64, Vec<u8>)) -> B256 {
        self.leaves.extend_from_slice(leaves);
        let rest = &self.leaves[self.tops.len() * GROUP..];
        give_rows(self.tops.len(), rest, &mut row);
        self.tops.extend(group_tops(rest));
        let mut row = |level, group, bytes| {
            row(level, group, bytes);
            Ok::<_, Infallible>(())
        };
        let Ok(top) = top_of(&self.tops, &mut row);
        top
    }
}

/// Passes on the rows of the groups of level 0 over these leaves. The first group has number
/// `first`.
fn give_rows(first: usize, leaves: &[B256], row: &mut impl FnMut(u8, u64, Vec<u8>)) {
    for (group, leaves) in (first as u64..).zip(leaves.chunks(GROUP)) {
        row(0, group, group::encode(group::all(leaves.len() as u8), leaves));
    }
}

/// The top over the tops of the groups of level 0. Passes on the rows of the levels above.
fn top_of<E>(
    tops: &[B256],
    row: &mut impl FnMut(u8, u64, Vec<u8>) -> Result<(), E>,
) -> Result<B256, E> {
    match tops {
        [] => Ok(B256::ZERO),
        [top] => Ok(*top),
        tops => rows_from(1, tops, row),
    }
}

/// Builds a tree of any size from a stream of leaves. It holds the tops of the groups so far: 1
/// byte for each leaf.
#[derive(Debug, Default)]
pub(crate) struct TreeBuilder {
    count: u64,
    group: Vec<B256>,
    tops: Vec<B256>,
}

impl TreeBuilder {
    /// The number of leaves so far.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Adds a leaf. If it completes a group of level 0, returns the group's number and row.
    pub(crate) fn push(&mut self, leaf: B256) -> Option<(u64, Vec<u8>)> {
        self.count += 1;
        self.group.push(leaf);
        (self.group.len() == GROUP).then(|| self.close())
    }

    /// Completes the tree, passes the remaining rows to `row` with level and number of the group,
    /// and returns the top; zero without leaves.
    ///
    /// # Errors
    /// Those of `row`.
    pub(crate) fn finish<E>(
        mut self,
        mut row: impl FnMut(u8, u64, Vec<u8>) -> Result<(), E>,
    ) -> Result<B256, E> {
        if !self.group.is_empty() {
            let (group, bytes) = self.close();
            row(0, group, bytes)?;
        }
        top_of(&self.tops, &mut row)
    }

    fn close(&mut self) -> (u64, Vec<u8>) {
        let row = group::encode(group::all(self.group.len() as u8), &self.group);
        let number = self.tops.len() as u64;
        self.tops.extend(group_tops(&self.group));
        self.group.clear();
        (number, row)
    }
}

/// Passes on the rows of `level`, which has these leaves, and of the levels above.
fn rows_from<E>(
    mut level: u8,
    leaves: &[B256],
    row: &mut impl FnMut(u8, u64, Vec<u8>) -> Result<(), E>,
) -> Result<B256, E> {
    let mut tops: Vec<B256>;
    let mut leaves = leaves;
    loop {
        for (group, leaves) in leaves.chunks(GROUP).enumerate() {
            row(level, group as u64, group::encode(group::all(leaves.len() as u8), leaves))?;
        }
        tops = group_tops(leaves);
        match &tops[..] {
            [] => return Ok(B256::ZERO),
            [top] => return Ok(*top),
            _ => (level, leaves) = (level + 1, &tops),
        }
    }
}

/// The tops of groups of neighbours. All pairs of one height are hashed together.
pub(super) fn group_tops(leaves: &[B256]) -> Vec<B256> {
    let mut tops = Vec::new();
    hash::nodes(leaves, &mut tops);
    for _ in 1..GROUP_BITS {
        let mut parents = Vec::new();
        hash::nodes(&tops, &mut parents);
        tops = parents;
    }
    tops
}
