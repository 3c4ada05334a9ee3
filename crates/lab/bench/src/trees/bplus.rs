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
    Leaf(LeafNode),
    Inner(InnerNode),
}

#[derive(Debug, Default)]
struct LeafNode {
    entries: EntryArrays,
    /// Hashes of the entries; zero if an entry is not hashed yet.
    hashes: Vec<B256>,
}

impl LeafNode {
    fn insert(&mut self, key: u32, value: &[u8]) {
        match self.entries.insert(key, value) {
            (at, true) => self.hashes.insert(at, B256::ZERO),
            (at, false) => self.hashes[at] = B256::ZERO,
        }
    }

    /// Moves the right half of the entries to a new node.
    fn split(&mut self, most: usize) -> Option<Self> {
        let half = self.hashes.len().div_ceil(2);
        let lengths = [half, self.hashes.len() - half];
        let [left, right] = EntryArrays::cut(&[&self.entries], &lengths, most).try_into().ok()?;
        self.entries = left;
        Some(Self { entries: right, hashes: self.hashes.split_off(half) })
    }

    /// Hashes the new entries.
    fn hash(&mut self, batch: &mut HashBatch) {
        for at in (0..self.hashes.len()).filter(|at| self.hashes[*at].is_zero()) {
            batch.entry(self.entries.keys[at], self.entries.value(at));
        }
        let new = self.hashes.iter_mut().filter(|hash| hash.is_zero());
        new.zip(batch.finish()).for_each(|(hash, digest)| *hash = *digest);
    }
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
            Self::Leaf(leaf) => {
                leaf.insert(key, value);
                if leaf.hashes.len() <= most {
                    return None;
                }
                let right = leaf.split(most)?;
                *leaves += 1;
                Some((right.entries.first(), Self::Leaf(right)))
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
        let mut batch = HashBatch::default();
        match self {
            Self::Leaf(leaf) => {
                leaf.hash(&mut batch);
                leaf.hashes.clone()
            }
            Self::Inner(inner) => {
                let mut stale: Vec<_> =
                    inner.children.iter_mut().filter(|child| child.is_stale).collect();
                for children in stale.chunks_mut(16) {
                    for child in &mut *children {
                        batch.cell(&child.node.hashes());
                    }
                    for (child, hash) in children.iter_mut().zip(batch.finish()) {
                        (child.hash, child.is_stale) = (*hash, false);
                    }
                }
                inner.hashes()
            }
        }
    }

    fn each_proof(&self, above: usize, found: &mut dyn FnMut(usize)) {
        match self {
            Self::Leaf(leaf) => {
                let len = leaf.hashes.len();
                (0..len).for_each(|_| found(above + len - 1));
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
    fn find(&self, key: u32) -> &LeafNode {
        let mut node = &self.top;
        loop {
            match node {
                BPlusNode::Leaf(leaf) => return leaf,
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
        Self { most, top: BPlusNode::Leaf(LeafNode::default()), leaves: 1 }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        if let Some((first, right)) = self.top.insert(self.most, key, value, &mut self.leaves) {
            let left = std::mem::replace(&mut self.top, BPlusNode::Leaf(LeafNode::default()));
            let children = [left, right].map(ChildNode::new).into();
            self.top = BPlusNode::Inner(BPlusNode::inner(vec![0, first], children));
        }
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        self.find(key).entries.get(key)
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
                BPlusNode::Leaf(leaf) => {
                    steps.push(others(&leaf.hashes, leaf.entries.position(key).ok()?));
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
