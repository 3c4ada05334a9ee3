//! Building trees, and their rows with them.

use super::{GROUP, GROUP_BITS, group};
use crate::hash;
use alloy_primitives::B256;
use std::convert::Infallible;

/// A tree of which the first leaves are known before the others. It gives the rows of all its groups, by
/// level and number of the group.
pub(crate) struct Begun {
    leaves: Vec<B256>,
    /// Tops of the groups that the first leaves fill.
    tops: Vec<B256>,
}

impl Begun {
    /// The tree that begins with `leaves`.
    pub(crate) fn new(leaves: Vec<B256>, mut row: impl FnMut(u8, u64, Vec<u8>)) -> Self {
        let whole = &leaves[..leaves.len() / GROUP * GROUP];
        give_rows(0, whole, &mut row);
        let tops = group_tops(whole);
        Self { leaves, tops }
    }

    /// The top of the tree that ends with `leaves`; zero if there are none at all.
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

/// Gives the rows of the groups of level 0 over these leaves, the first of them number `first`.
fn give_rows(first: usize, leaves: &[B256], row: &mut impl FnMut(u8, u64, Vec<u8>)) {
    for (group, leaves) in (first as u64..).zip(leaves.chunks(GROUP)) {
        row(0, group, group::encode(group::all(leaves.len() as u8), leaves));
    }
}

/// The top over the tops of the groups of level 0, and the rows above these.
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

/// Builds a tree of any size from leaves that come one after the other. Holds the tops of the
/// groups so far: 1 byte for each leaf.
#[derive(Debug, Default)]
pub(crate) struct TreeBuilder {
    count: u64,
    group: Vec<B256>,
    tops: Vec<B256>,
}

impl TreeBuilder {
    /// Leaves so far.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Adds a leaf. If that completes a group of level 0: its number and row.
    pub(crate) fn push(&mut self, leaf: B256) -> Option<(u64, Vec<u8>)> {
        self.count += 1;
        self.group.push(leaf);
        (self.group.len() == GROUP).then(|| self.close())
    }

    /// Ends the tree, gives the rows that are left to `row`, by level and number of the group, and
    /// returns the top; zero if there are no leaves.
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

/// The rows of `level`, whose leaves are these, and of those above.
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

/// The tops of the groups of neighbours. All pairs of a height are hashed together.
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
