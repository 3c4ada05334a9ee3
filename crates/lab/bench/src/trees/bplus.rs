//! The Merkle B+tree in memory (section III.C). Leaves hold entries and inner nodes hold children,
//! both up to the same number. The hash of a node is the hash of all hashes in it.

use super::{
    AuthenticatedTree,
    entries::EntryArrays,
    hash::{self, HashBatch},
    proof::{MembershipProof, ProofStep},
};
use alloy_primitives::B256;

#[derive(Debug)]
enum BPlusNode {
    Leaf(EntryArrays),
    Inner(InnerNode),
}

#[derive(Debug)]
struct InnerNode {
    /// The smallest key of each child; the first one's is not used.
    firsts: Vec<u32>,
    children: Vec<ChildNode>,
}

#[derive(Debug)]
struct ChildNode {
    node: Box<BPlusNode>,
    hash: B256,
    is_stale: bool,
}

impl ChildNode {
    fn new(node: BPlusNode) -> Self {
        Self { node: Box::new(node), hash: B256::ZERO, is_stale: true }
    }
}

impl InnerNode {
    fn child(&self, key: u32) -> usize {
        self.firsts[1..].partition_point(|first| *first <= key)
    }

    fn hashes(&self) -> Vec<B256> {
        self.children.iter().map(|child| child.hash).collect()
    }
}

impl BPlusNode {
    /// Inserts into the subtree. If the node was split, returns the first key of the right half,
    /// and the right half.
    fn insert(
        &mut self,
        most: usize,
        key: u32,
        value: &[u8],
        leaves: &mut usize,
    ) -> Option<(u32, Self)> {
        match self {
            Self::Leaf(entries) => {
                entries.insert(key, value);
                if entries.len() <= most {
                    return None;
                }
                let half = entries.len() / 2;
                let lengths = [entries.len() - half, half];
                let mut halves = EntryArrays::cut(&[&*entries], &lengths, most);
                let right = halves.pop()?;
                *entries = halves.pop()?;
                *leaves += 1;
                Some((right.first(), Self::Leaf(right)))
            }
            Self::Inner(inner) => {
                let at = inner.child(key);
                let child = &mut inner.children[at];
                child.is_stale = true;
                let (first, right) = child.node.insert(most, key, value, leaves)?;
                inner.firsts.insert(at + 1, first);
                inner.children.insert(at + 1, ChildNode::new(right));
                if inner.children.len() <= most {
                    return None;
                }
                let half = inner.children.len().div_ceil(2);
                let firsts = inner.firsts.split_off(half);
                let children = inner.children.split_off(half);
                Some((firsts[0], Self::Inner(Self::inner(firsts, children))))
            }
        }
    }

    const fn inner(firsts: Vec<u32>, children: Vec<ChildNode>) -> InnerNode {
        InnerNode { firsts, children }
    }

    /// Hashes the changed nodes below, and returns the hashes in this node.
    fn hashes(&mut self) -> Vec<B256> {
        let (mut batch, mut digests) = (HashBatch::default(), Vec::new());
        match self {
            Self::Leaf(entries) => {
                entries.hash_new(&mut batch);
                batch.finish_into(&mut digests);
                entries.take_new(&mut digests.into_iter());
                entries.hashes().to_vec()
            }
            Self::Inner(inner) => {
                let mut stale: Vec<_> =
                    inner.children.iter_mut().filter(|child| child.is_stale).collect();
                for children in stale.chunks_mut(16) {
                    for child in &mut *children {
                        batch.cell(&child.node.hashes());
                    }
                    batch.finish_into(&mut digests);
                    for (child, hash) in children.iter_mut().zip(&digests) {
                        (child.hash, child.is_stale) = (*hash, false);
                    }
                }
                inner.hashes()
            }
        }
    }

    fn each_proof(&self, above: usize, found: &mut dyn FnMut(usize)) {
        match self {
            Self::Leaf(entries) => {
                (0..entries.len()).for_each(|_| found(above + entries.len() - 1));
            }
            Self::Inner(inner) => {
                let above = above + inner.children.len() - 1;
                inner.children.iter().for_each(|child| child.node.each_proof(above, found));
            }
        }
    }
}

/// The tree.
#[derive(Debug)]
pub(crate) struct BPlusTree {
    most: usize,
    top: BPlusNode,
    leaves: usize,
}

impl BPlusTree {
    /// The leaf in whose range `key` lies.
    fn find(&self, key: u32) -> &EntryArrays {
        let mut node = &self.top;
        loop {
            match node {
                BPlusNode::Leaf(entries) => return entries,
                BPlusNode::Inner(inner) => node = &inner.children[inner.child(key)].node,
            }
        }
    }
}

/// All hashes but the one at index `at`.
fn others(hashes: &[B256], at: usize) -> ProofStep {
    ProofStep::Cell(hashes[..at].to_vec(), hashes[at + 1..].to_vec())
}

impl AuthenticatedTree for BPlusTree {
    const NAME: &'static str = "bplus";

    fn new(most: usize) -> Self {
        Self { most, top: BPlusNode::Leaf(EntryArrays::default()), leaves: 1 }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        if let Some((first, right)) = self.top.insert(self.most, key, value, &mut self.leaves) {
            let left = std::mem::replace(&mut self.top, BPlusNode::Leaf(EntryArrays::default()));
            let children = [left, right].map(ChildNode::new).into();
            self.top = BPlusNode::Inner(BPlusNode::inner(vec![0, first], children));
        }
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        self.find(key).get(key)
    }

    fn root(&mut self) -> B256 {
        hash::cell(self.top.hashes().iter())
    }

    fn prove(&self, key: u32) -> Option<MembershipProof> {
        let mut steps = Vec::new();
        let mut node = &self.top;
        loop {
            match node {
                BPlusNode::Inner(inner) => {
                    let at = inner.child(key);
                    steps.push(others(&inner.hashes(), at));
                    node = &inner.children[at].node;
                }
                BPlusNode::Leaf(entries) => {
                    steps.push(others(entries.hashes(), entries.position(key).ok()?));
                    steps.reverse();
                    return Some(MembershipProof { steps });
                }
            }
        }
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.top.each_proof(0, found);
    }

    fn chunks(&self) -> Option<usize> {
        Some(self.leaves)
    }
}
