//! Proofs that an element is in a tree, for all trees.

use super::{avl::Side, hash};
use alloy_primitives::B256;

/// One step on the way from an element's hash up to the root.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A sibling in a chunk's hash tree.
    Pair(Side, B256),
    /// A chunk of so many entries.
    Chunk(u32),
    /// A sibling above chunks, or elements.
    Inner(Side, B256),
    /// A tree whose chunks have so many entries at most.
    Root(u32),
    /// The other hashes of a cell, before and behind.
    Cell(Vec<B256>, Vec<B256>),
}

/// A proof.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    /// From the element up.
    pub(super) steps: Vec<Step>,
}

impl Proof {
    /// How many hashes it holds.
    pub(crate) fn hashes(&self) -> usize {
        let of = |step: &Step| match step {
            Step::Pair(..) | Step::Inner(..) => 1,
            Step::Cell(before, behind) => before.len() + behind.len(),
            Step::Chunk(_) | Step::Root(_) => 0,
        };
        self.steps.iter().map(of).sum()
    }

    /// The root of the tree that it shows `key` to have this value in.
    pub(crate) fn root(&self, key: u32, value: &[u8]) -> B256 {
        self.steps.iter().fold(hash::entry(key, value), |below, step| match step {
            Step::Pair(Side::Left, left) => hash::pair(left, &below),
            Step::Pair(Side::Right, right) => hash::pair(&below, right),
            Step::Chunk(count) => hash::chunk(*count, &below),
            Step::Inner(Side::Left, left) => hash::inner(left, &below),
            Step::Inner(Side::Right, right) => hash::inner(&below, right),
            Step::Root(most) => hash::root(*most, &below),
            Step::Cell(before, behind) => hash::cell(before.iter().chain([&below]).chain(behind)),
        })
    }
}
