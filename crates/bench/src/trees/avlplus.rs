//! The AVL+ tree of Tendermint in memory: an element a leaf, all of them hashed as those of
//! [`Bavl`](super::Bavl) are. Chunks are made of as many leaves as fit when they are asked for, so they
//! prove nothing.

use super::{
    Tree,
    avl::{Avl, Id, Leaf, Put},
    hash::{self, Batch},
    proof::{Proof, Step},
};
use alloy_primitives::B256;

/// A key and its value.
#[derive(Debug)]
pub(super) struct Element {
    key: u32,
    value: Box<[u8]>,
}

impl Leaf for Element {
    fn first(&self) -> u32 {
        self.key
    }

    fn hash_all(leaves: &mut [Self], which: &[Id], hashes: &mut Vec<B256>) {
        let mut batch = Batch::default();
        for id in which {
            let Self { key, value } = &leaves[*id as usize];
            batch.entry(*key, value);
        }
        batch.finish_into(hashes);
    }
}

/// The tree.
#[derive(Debug)]
pub(crate) struct AvlPlus {
    tree: Avl<Element>,
}

impl AvlPlus {
    /// The whole tree in messages of `many` elements, each element by itself: key-height, key, length of
    /// its value, and value.
    pub(crate) fn serialize(&self, many: usize) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        let mut left = 0;
        self.tree.each(&mut |Element { key, value }, place| {
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

    /// The tree of messages in their order, not hashed; `None` if they are not one.
    pub(crate) fn deserialize(messages: &[Vec<u8>]) -> Option<Self> {
        let elements: Option<Vec<_>> = messages.iter().map(|message| elements(message)).collect();
        Self::rebuild(elements?)
    }

    /// The tree of what was read of messages, in their order.
    pub(crate) fn rebuild(elements: Vec<Elements>) -> Option<Self> {
        let elements = elements.into_iter().flat_map(|elements| elements.0);
        Some(Self { tree: Avl::rebuild(elements)? })
    }
}

/// The elements of a message, with their key-heights.
#[derive(Debug)]
pub(crate) struct Elements(Vec<(Element, u8)>);

/// Reads a message; `None` if it is none.
pub(crate) fn elements(mut message: &[u8]) -> Option<Elements> {
    let mut all = Vec::new();
    while let Some((key_height, rest)) = message.split_first() {
        let (key, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        all.push((Element { key: u32::from_le_bytes(*key), value: value.into() }, *key_height));
        message = rest;
    }
    Some(Elements(all))
}

impl Tree for AvlPlus {
    const NAME: &'static str = "avlplus";

    fn new(_: usize) -> Self {
        Self { tree: Avl::new() }
    }

    fn insert(&mut self, key: u32, value: &[u8]) {
        self.tree.put(key, |element| match element {
            Some(element) if element.key == key => {
                element.value = value.into();
                Put::Changed
            }
            _ => Put::Beside(Element { key, value: value.into() }),
        });
    }

    fn get(&self, key: u32) -> Option<&[u8]> {
        let element = &self.tree.leaves()[self.tree.find(key)? as usize];
        (element.key == key).then_some(&element.value)
    }

    fn root(&mut self) -> B256 {
        self.tree.hash().unwrap_or_else(|| hash::cell([].iter()))
    }

    fn prove(&self, key: u32) -> Option<Proof> {
        self.get(key)?;
        let way = self.tree.way(key).into_iter();
        Some(Proof { steps: way.map(|(side, hash)| Step::Inner(side, hash)).collect() })
    }

    fn each_proof(&self, found: &mut dyn FnMut(usize)) {
        self.tree.each(&mut |_, place| found(place.depth));
    }

    fn chunks(&self) -> Option<usize> {
        None
    }
}
