//! The AVL+ tree of Tendermint in memory: each leaf is one element, with the same hashes as in
//! [`BavlTree`](super::BavlTree). Messages contain as many leaves as requested, so a message proves
//! nothing.

use super::{
    AuthenticatedTree,
    arena::NodeId,
    avl::{AvlLeaf, AvlTree, HashBuffers, LeafInsert},
    hash::{self, HashBatch},
    proof::{MembershipProof, ProofStep},
};
use alloy_primitives::B256;

/// A key and its value.
#[derive(Debug)]
pub(super) struct AvlElement {
    key: u32,
    value: Box<[u8]>,
}

impl AvlLeaf for AvlElement {
    type SharedData = ();

    fn first(&self) -> u32 {
        self.key
    }

    fn hash_all(
        leaves: &mut [Self],
        (): &mut (),
        which: &[NodeId],
        batch: &mut HashBatch,
        hashes: &mut Vec<B256>,
    ) {
        for id in which {
            let Self { key, value } = &leaves[*id as usize];
            batch.entry(*key, value);
        }
        hashes.extend_from_slice(batch.finish());
    }
}

/// The tree.
#[derive(Debug)]
pub(crate) struct AvlPlusTree {
    tree: AvlTree<AvlElement>,
    buffers: HashBuffers,
}

impl AvlPlusTree {
    /// Serialises the tree in messages of `many` elements. An element is: key-height, key, length
    /// of its value, and value.
    pub(crate) fn serialize(&self, many: usize) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        let mut left = 0;
        self.tree.for_each_leaf(&mut |AvlElement { key, value }, place| {
            if left == 0 {
                messages.push(Vec::new());
                left = many;
            }
            left -= 1;
            if let Some(out) = messages.last_mut() {
                out.push(place.key_height);
                out.extend_from_slice(&key.to_le_bytes());
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
        });
        messages
    }

    /// Rebuilds the tree from messages in order, without hashes; `None` if they are not a tree.
    pub(crate) fn deserialize(messages: &[Vec<u8>]) -> Option<Self> {
        let elements: Option<Vec<_>> = messages.iter().map(|message| elements(message)).collect();
        Self::rebuild(elements?)
    }

    /// Rebuilds the tree from decoded messages in order.
    pub(crate) fn rebuild(elements: Vec<MessageElements>) -> Option<Self> {
        let elements = elements.into_iter().flat_map(|elements| elements.0);
        let tree = AvlTree::rebuild((), elements)?;
        Some(Self { tree, buffers: HashBuffers::default() })
    }
}

/// The elements of a message, with their key-heights.
#[derive(Debug)]
pub(crate) struct MessageElements(Vec<(AvlElement, u8)>);

/// Decodes a message; `None` if it is malformed.
pub(crate) fn elements(mut message: &[u8]) -> Option<MessageElements> {
    let mut all = Vec::new();
    while let Some((key_height, rest)) = message.split_first() {
        let (key, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        all.push((AvlElement { key: u32::from_le_bytes(*key), value: value.into() }, *key_height));
        message = rest;
    }
    Some(MessageElements(all))
}

impl AuthenticatedTree for AvlPlusTree {
    const NAME: &'static str = "avlplus";

    fn new(_: usize) -> Self {
        Self { tree: AvlTree::new(), buffers: HashBuffers::default() }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        self.tree.put(key, |element, ()| match element {
            Some(element) if element.key == key => {
                element.value = value.into();
                LeafInsert::Changed
            }
            _ => LeafInsert::Beside(AvlElement { key, value: value.into() }),
        });
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        let element = &self.tree.leaves()[self.tree.find(key)? as usize];
        (element.key == key).then_some(&element.value)
    }

    fn root(&mut self) -> B256 {
        self.tree.hash(&mut self.buffers).unwrap_or_else(|| hash::cell([].iter()))
    }

    fn prove(&self, key: u32) -> Option<MembershipProof> {
        self.get(key)?;
        let way = self.tree.proof_path(key).into_iter();
        Some(MembershipProof {
            steps: way.map(|(side, hash)| ProofStep::Inner(side, hash)).collect(),
        })
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.tree.for_each_leaf(&mut |_, place| found(place.depth));
    }

    fn chunks(&self) -> Option<usize> {
        None
    }
}
