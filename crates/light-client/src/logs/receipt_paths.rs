//! Single receipts of a block: nodes of the trie of receipts, from its root down.

use crate::{LogsFault, header};
use alloc::vec::Vec;
use alloy_primitives::{B256, Bytes, Log, keccak256, map::HashMap};
use alloy_rlp::{Decodable, Header};
use alloy_trie::{
    Nibbles,
    nodes::{RlpNode, TrieNode},
};

/// Nodes of the trie of receipts of a block.
pub(super) struct ReceiptPaths<'a> {
    root: B256,
    nodes: HashMap<B256, &'a [u8]>,
    /// Nodes that were needed.
    used: HashMap<B256, ()>,
}

impl<'a> ReceiptPaths<'a> {
    /// The nodes of a block whose header has this root of receipts.
    pub(super) fn new(root: B256, nodes: &'a [Bytes]) -> Result<Self, LogsFault> {
        let map: HashMap<_, _> = nodes.iter().map(|node| (keccak256(node), &node[..])).collect();
        if map.len() != nodes.len() {
            return Err(LogsFault::SurplusNode);
        }
        Ok(Self { root, nodes: map, used: HashMap::default() })
    }

    /// The logs of the receipt of a transaction.
    pub(super) fn logs(&mut self, transaction: u32) -> Result<Vec<Log>, LogsFault> {
        let key = Nibbles::unpack(alloy_rlp::encode(transaction));
        let mut rest = key;
        let mut hash = self.root;
        loop {
            let node = self.nodes.get(&hash).ok_or(LogsFault::MissingNode(hash))?;
            self.used.insert(hash, ());
            let node =
                TrieNode::decode(&mut &node[..]).map_err(|_| LogsFault::MalformedReceipts)?;
            let child = match node {
                TrieNode::Leaf(leaf) if leaf.key == rest => {
                    let logs = logs_of(&leaf.value).ok();
                    return logs.ok_or(LogsFault::MalformedReceipts);
                }
                TrieNode::Extension(extension) if rest.starts_with(&extension.key) => {
                    rest = rest.slice(extension.key.len()..);
                    Some(extension.child)
                }
                TrieNode::Branch(branch) => match rest.first() {
                    Some(nibble) => {
                        rest = rest.slice(1..);
                        let branch = branch.as_ref();
                        let child = branch.children().find(|(index, _)| *index == nibble);
                        child.and_then(|(_, child)| child.cloned())
                    }
                    None => None,
                },
                _ => None,
            };
            // A receipt is longer than what a node holds without hash.
            let below = child.as_ref().and_then(RlpNode::as_hash);
            hash = below.ok_or(LogsFault::NoReceipt(transaction))?;
        }
    }

    /// Fails unless all nodes were needed.
    pub(super) fn finish(self) -> Result<(), LogsFault> {
        if self.used.len() == self.nodes.len() { Ok(()) } else { Err(LogsFault::SurplusNode) }
    }
}

/// The logs of a receipt (EIP-2718).
fn logs_of(mut receipt: &[u8]) -> alloy_rlp::Result<Vec<Log>> {
    if let Some((0..=0x7f, payload)) = receipt.split_first() {
        receipt = payload;
    }
    let mut fields = Header::decode_bytes(&mut receipt, true)?;
    // Status or state root, gas, bloom.
    header::skip(&mut fields, 3)?;
    Vec::decode(&mut fields)
}
