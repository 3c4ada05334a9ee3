//! Checking the nodes of a witness: which of them belong to the state, and which are needed.

use crate::{PartialMpt, TrieHash, WitnessNodes, leaf, verify::decode_node};
use alloy_primitives::{B256, Bytes, map::B256Set};
use alloy_trie::nodes::{RlpNode, TrieNode};
use parking_lot::Mutex;
use retrie_state::{NodeAudit, NodeUse, ProofError, WitnessAudit};
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
        let linked = LinkedNodes::of_state(self.with, self.root, &self.nodes);
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

/// What the leaves of a trie hold.
#[derive(Clone, Copy, Debug)]
enum LeafContent {
    Accounts,
    Slots,
    Anything,
}

impl LinkedNodes {
    /// The nodes of `nodes` that `root` leads to, in the account trie and the storage tries.
    pub(crate) fn of_state(with: TrieHash, root: B256, nodes: &WitnessNodes) -> Self {
        Self::below(with, (root, LeafContent::Accounts), nodes)
    }

    /// The nodes of `nodes` that `root` leads to, in one trie with leaves of any kind.
    pub(crate) fn of_trie(with: TrieHash, root: B256, nodes: &WitnessNodes) -> Self {
        Self::below(with, (root, LeafContent::Anything), nodes)
    }

    fn below(with: TrieHash, top: (B256, LeafContent), nodes: &WitnessNodes) -> Self {
        let mut found = Self::default();
        let mut seen = [(); 3].map(|()| B256Set::default());
        let mut waiting = vec![top];
        while let Some((hash, content)) = waiting.pop() {
            let Some(node) = nodes.by_hash().get(&hash) else { continue };
            if !seen[content as usize].insert(hash) {
                continue;
            }
            found.all.insert(hash);
            if follow(with, node, content, &mut waiting).is_none() {
                found.malformed.insert(hash);
            }
        }
        found
    }

    /// Checks that the root leads to each of `nodes`, and that each is what its place demands.
    pub(crate) fn check_all_of(&self, nodes: &WitnessNodes) -> Result<(), ProofError> {
        if !self.malformed.is_empty() {
            return Err(ProofError::Malformed { what: "trie node" });
        }
        if self.all.len() == nodes.by_hash().len() { Ok(()) } else { Err(ProofError::Unused) }
    }
}

/// Adds what a node names to `waiting`; `None` if it is malformed.
fn follow(
    with: TrieHash,
    node: &[u8],
    content: LeafContent,
    waiting: &mut Vec<(B256, LeafContent)>,
) -> Option<()> {
    let mut embedded: Vec<RlpNode> = Vec::new();
    let mut next = Some(decode_node(node)?);
    while let Some(node) = next {
        let children = match node {
            TrieNode::EmptyRoot => return None,
            TrieNode::Branch(branch) => branch.stack,
            TrieNode::Extension(extension) => vec![extension.child],
            TrieNode::Leaf(leaf) => {
                match content {
                    LeafContent::Accounts => {
                        let (_, storage) = leaf::decode_account(&leaf.value)?;
                        if storage != with.empty_root() {
                            waiting.push((storage, LeafContent::Slots));
                        }
                    }
                    LeafContent::Slots => drop(leaf::decode_slot_value(&leaf.value)?),
                    LeafContent::Anything => {}
                }
                Vec::new()
            }
        };
        for child in children {
            match child.as_hash() {
                Some(hash) => waiting.push((hash, content)),
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
