//! Membership proofs of elements, for all trees.

use super::{avl::ChildSide, hash};
use alloy_primitives::B256;

/// One step from an element's hash up to the root.
#[derive(Clone, Debug)]
pub(super) enum ProofStep {
    /// A sibling in a chunk's hash tree.
    Pair(ChildSide, B256),
    /// A chunk with this number of entries.
    Chunk(u32),
    /// A sibling above chunks, or elements.
    Inner(ChildSide, B256),
    /// A tree whose chunks have at most this number of entries.
    Root(u32),
    /// The other hashes in a node of the B+tree, before and after.
    Cell(Vec<B256>, Vec<B256>),
}

/// A proof that an element is in a tree.
#[derive(Clone, Debug)]
pub(crate) struct MembershipProof {
    /// The steps from the element up.
    pub(super) steps: Vec<ProofStep>,
}

impl MembershipProof {
    /// Number of hashes in the proof.
    pub(crate) fn hashes(&self) -> usize {
        let of = |step: &ProofStep| match step {
            ProofStep::Pair(..) | ProofStep::Inner(..) => 1,
            ProofStep::Cell(before, behind) => before.len() + behind.len(),
            ProofStep::Chunk(_) | ProofStep::Root(_) => 0,
        };
        self.steps.iter().map(of).sum()
    }

    /// The root of the tree in which, according to the proof, `key` has this value.
    pub(crate) fn root(&self, key: u32, value: &[u8]) -> B256 {
        self.steps.iter().fold(hash::entry(key, value), |below, step| match step {
            ProofStep::Pair(ChildSide::Left, left) => hash::pair(left, &below),
            ProofStep::Pair(ChildSide::Right, right) => hash::pair(&below, right),
            ProofStep::Chunk(count) => hash::chunk(*count, &below),
            ProofStep::Inner(ChildSide::Left, left) => hash::inner(left, &below),
            ProofStep::Inner(ChildSide::Right, right) => hash::inner(&below, right),
            ProofStep::Root(most) => hash::root(*most, &below),
            ProofStep::Cell(before, behind) => {
                hash::cell(before.iter().chain([&below]).chain(behind))
            }
        })
    }
}
