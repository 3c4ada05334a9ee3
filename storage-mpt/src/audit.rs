//! Checking the nodes of a witness: which of them belong to the state, and which are needed.

use crate::{PartialMpt, TrieHash, WitnessNodes, leaf, verify::decode_node};
use alloy_primitives::{B256, Bytes, map::B256Set};
use alloy_trie::nodes::{RlpNode, TrieNode};
use parking_lot::Mutex;
use retrie_state::{NodeAudit, NodeUse, WitnessAudit};
use std::sync::Arc;

/// Opens a witness and notes which of its nodes are needed.
pub(crate) fn open(root: B256, nodes: &[Bytes]) -> WitnessAudit {
    let with = TrieHash::Keccak256;
    let needed = Arc::new(Mutex::new(B256Set::default()));
    let opened = WitnessNodes::new(nodes);
    let order = nodes.iter().map(|node| with.hash(node)).collect();
    let audit = MptNodeAudit { with, root, order, nodes: opened.clone(), needed: needed.clone() };
    WitnessAudit {
        tree: Arc::new(PartialMpt::open(root, opened.noting(needed))),
        nodes: Arc::new(audit),
    }
}

struct MptNodeAudit {
    with: TrieHash,
    root: B256,
    /// The hash of each node, in the order in which they were given.
    order: Vec<B256>,
    nodes: WitnessNodes,
    needed: Arc<Mutex<B256Set>>,
}

impl NodeAudit for MptNodeAudit {
    fn uses(&self) -> Vec<NodeUse> {
        let linked = LinkedNodes::of(self.with, self.root, &self.nodes);
        let needed = self.needed.lock();
        let nodes = self.nodes.by_hash();
        let of = |hash: &B256| {
            let is_node = || nodes.get(hash).is_some_and(|rlp| decode_node(rlp).is_some());
            if linked.malformed.contains(hash) {
                NodeUse::Malformed
            } else if *hash == self.root || needed.contains(hash) {
                NodeUse::Read
            } else if linked.all.contains(hash) {
                NodeUse::Unread
            } else if is_node() {
                NodeUse::Unlinked
            } else {
                NodeUse::Malformed
            }
        };
        self.order.iter().map(of).collect()
    }
}

/// The nodes that a root leads to.
#[derive(Debug, Default)]
pub(crate) struct LinkedNodes {
    /// Their hashes.
    pub(crate) all: B256Set,
    /// Those of them that are not what their place demands.
    pub(crate) malformed: B256Set,
}

impl LinkedNodes {
    /// The nodes of `nodes` that `root` leads to, in the account trie and the storage tries.
    pub(crate) fn of(with: TrieHash, root: B256, nodes: &WitnessNodes) -> Self {
        let mut found = Self::default();
        let mut seen = [B256Set::default(), B256Set::default()];
        // Hashes of nodes, with whether they belong to the account trie.
        let mut waiting = vec![(root, true)];
        while let Some((hash, is_account)) = waiting.pop() {
            let Some(node) = nodes.by_hash().get(&hash) else { continue };
            if !seen[usize::from(is_account)].insert(hash) {
                continue;
            }
            found.all.insert(hash);
            if follow(with, node, is_account, &mut waiting).is_none() {
                found.malformed.insert(hash);
            }
        }
        found
    }
}

/// Adds what a node names to `waiting`; `None` if it is malformed.
fn follow(
    with: TrieHash,
    node: &[u8],
    is_account: bool,
    waiting: &mut Vec<(B256, bool)>,
) -> Option<()> {
    let mut embedded: Vec<RlpNode> = Vec::new();
    let mut next = Some(decode_node(node)?);
    while let Some(node) = next {
        let children = match node {
            TrieNode::EmptyRoot => return None,
            TrieNode::Branch(branch) => branch.stack,
            TrieNode::Extension(extension) => vec![extension.child],
            TrieNode::Leaf(leaf) if is_account => {
                let (_, storage) = leaf::decode_account(&leaf.value)?;
                if storage != with.empty_root() {
                    waiting.push((storage, false));
                }
                Vec::new()
            }
            TrieNode::Leaf(leaf) => {
                leaf::decode_slot_value(&leaf.value)?;
                Vec::new()
            }
        };
        for child in children {
            match child.as_hash() {
                Some(hash) => waiting.push((hash, is_account)),
                None => embedded.push(child),
            }
        }
        next = match embedded.pop() {
            Some(child) => Some(decode_node(&child)?),
            None => None,
        };
    }
    Some(())
}
