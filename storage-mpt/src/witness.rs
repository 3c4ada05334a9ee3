//! Partial tries: the state of one block as far as the nodes of a witness show it.
//!
//! The nodes are addressed by hash. A block is applied as one batch, so a node is asked for only if
//! the state after the block cannot be hashed without it.

use crate::{
    backend::{by_account, decode_account, refuse_orphan, slot_items},
    leaf,
    node::{Branch, BranchLink, Children, Leaf, Link},
    trie::{Item, NodeSource, Trie, child_slot},
    verify::decode_node,
};
use alloy_primitives::{Address, B256, Bytes, keccak256, map::B256HashMap};
use alloy_trie::{
    EMPTY_ROOT_HASH, Nibbles,
    nodes::{BranchNode, RlpNode, TrieNode},
};
use retrie_state::{Account, PartialTree, StateDelta, StateError, StateKey, StateReader, Value};
use std::{collections::BTreeMap, sync::Arc};

/// RLP of trie nodes, by hash.
#[derive(Clone, Debug, Default)]
pub struct WitnessNodes {
    by_hash: B256HashMap<Bytes>,
}

impl WitnessNodes {
    /// Hashes `nodes`; their order does not matter, and duplicates are allowed.
    pub fn new(nodes: &[Bytes]) -> Self {
        Self { by_hash: nodes.iter().map(|node| (keccak256(node), node.clone())).collect() }
    }

    fn node(&self, path: &Nibbles, reference: &RlpNode) -> Result<TrieNode, StateError> {
        let node = match reference.as_hash() {
            None => decode_node(reference),
            Some(hash) => {
                let node = self.by_hash.get(&hash).ok_or_else(|| StateError::MissingWitness {
                    what: format!("trie node {hash} at path {path:?}"),
                })?;
                decode_node(node)
            }
        };
        node.ok_or_else(|| malformed(path))
    }

    /// What hangs at `slot` according to its reference.
    fn link(&self, slot: &Nibbles, reference: &RlpNode) -> Result<Link, StateError> {
        match self.node(slot, reference)? {
            TrieNode::Leaf(leaf) => {
                if slot.len() + leaf.key.len() != 64 {
                    return Err(malformed(slot));
                }
                let mut key = B256::ZERO;
                slot.join(&leaf.key).pack_to(&mut key.0);
                Ok(Link::Leaf(Arc::new(Leaf::new(key, leaf.value.into()))))
            }
            TrieNode::Extension(extension) => {
                if extension.key.is_empty() || slot.len() + extension.key.len() > 63 {
                    return Err(malformed(slot));
                }
                let path = slot.join(&extension.key);
                Ok(Link::Branch(BranchLink::new(slot, &path, extension.child, None)))
            }
            TrieNode::Branch(branch) => {
                let node = self.branch(slot, reference, &branch)?;
                Ok(Link::Branch(BranchLink::new(slot, slot, reference.clone(), Some(node))))
            }
            TrieNode::EmptyRoot => Err(malformed(slot)),
        }
    }

    fn branch(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
        branch: &BranchNode,
    ) -> Result<Arc<Branch>, StateError> {
        if path.len() > 63 || branch.stack.len() < 2 {
            return Err(malformed(path));
        }
        let mut children = Children::default();
        let set = (0u8..16).filter(|nibble| branch.state_mask.is_bit_set(*nibble));
        for (nibble, child) in set.zip(&branch.stack) {
            children[nibble as usize] = Some(if child.is_hash() {
                Link::Unresolved(child.clone())
            } else {
                self.link(&child_slot(path, nibble), child)?
            });
        }
        Ok(Arc::new(Branch::with_reference(children, reference.clone(), None)))
    }
}

impl NodeSource for WitnessNodes {
    fn load(&self, path: &Nibbles, reference: &RlpNode) -> Result<Arc<Branch>, StateError> {
        match self.node(path, reference)? {
            TrieNode::Branch(branch) => self.branch(path, reference, &branch),
            _ => Err(malformed(path)),
        }
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link, StateError> {
        self.link(path, reference)
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        true
    }
}

fn malformed(path: &Nibbles) -> StateError {
    StateError::corrupt("witness", format!("the trie node at path {path:?} is malformed"))
}

/// A partial state in memory.
#[derive(Clone, Debug)]
pub struct PartialMpt {
    nodes: Arc<WitnessNodes>,
    accounts: Trie,
    /// Storage tries that were changed since the witness was opened.
    storages: BTreeMap<Address, Trie>,
}

impl PartialMpt {
    /// The state under `root` as far as `nodes` show it. Nodes are read when they are needed.
    pub fn open(root: B256, nodes: WitnessNodes) -> Self {
        let accounts = Trie::unresolved(root);
        Self { nodes: Arc::new(nodes), accounts, storages: BTreeMap::new() }
    }

    /// The root of the state.
    pub const fn root(&self) -> B256 {
        self.accounts.hash()
    }

    /// The account at `address` with its storage root.
    pub fn account_and_storage_root(
        &self,
        address: &Address,
    ) -> Result<Option<(Account, B256)>, StateError> {
        self.accounts
            .get(&*self.nodes, &keccak256(address))
            .map_err(|error| of(error, format_args!("account {address}")))?
            .map(|leaf| {
                leaf::decode_account(&leaf).ok_or_else(|| {
                    let what = format!("the leaf of account {address} is malformed");
                    StateError::corrupt("witness", what)
                })
            })
            .transpose()
    }

    fn storage(&self, address: &Address, root: B256) -> Trie {
        match self.storages.get(address) {
            Some(trie) => trie.clone(),
            None => Trie::unresolved(root),
        }
    }

    /// The state after `delta`, applied as one batch a trie.
    pub fn after(&self, delta: &StateDelta) -> Result<Self, StateError> {
        let nodes = &*self.nodes;
        let mut storages = self.storages.clone();
        let mut items = Vec::new();
        for touched in by_account(delta) {
            let address = &touched.address;
            let before = self.account_and_storage_root(address)?;
            let account = match touched.account {
                None => before.map(|(account, _)| account),
                Some(change) => {
                    change.next.as_ref().map(|next| decode_account(address, next)).transpose()?
                }
            };
            let storage = match (account, before) {
                (None, _) => {
                    refuse_orphan(touched.slots)?;
                    None
                }
                (_, Some((_, root))) if !touched.wiped => Some(self.storage(address, root)),
                _ => Some(Trie::default()),
            };
            let storage = storage
                .map(|trie| trie.update(nodes, &slot_items(touched.slots)?, &mut ()))
                .transpose()
                .map_err(|error| of(error, format_args!("storage of {address}")))?;
            let value = account.zip(storage).map(|(account, trie)| {
                let root = trie.hash();
                storages.insert(*address, trie);
                leaf::encode_account(&account, root)
            });
            if value.is_none() {
                storages.remove(address);
            }
            items.push(Item { key: keccak256(address), value });
        }
        items.sort_unstable_by_key(|item| item.key);
        let accounts = self
            .accounts
            .update(nodes, &items, &mut ())
            .map_err(|error| of(error, format_args!("the account trie")))?;
        Ok(Self { nodes: self.nodes.clone(), accounts, storages })
    }
}

/// Adds to a missing node for what it was needed.
fn of(error: StateError, needed_for: core::fmt::Arguments<'_>) -> StateError {
    match error {
        StateError::MissingWitness { what } => {
            StateError::MissingWitness { what: format!("{what}, needed for {needed_for}") }
        }
        error => error,
    }
}

impl StateReader for PartialMpt {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        let Some((account, root)) = self.account_and_storage_root(key.address())? else {
            return Ok(None);
        };
        let StateKey::Slot(address, slot) = key else { return Ok(Some(account.encode())) };
        self.storage(address, root)
            .get(&*self.nodes, &keccak256(slot))
            .map_err(|error| of(error, format_args!("{key}")))?
            .map(|leaf| {
                leaf::decode_slot_value(&leaf).ok_or_else(|| {
                    StateError::corrupt("witness", format!("the leaf of {key} is malformed"))
                })
            })
            .transpose()
    }

    /// Fails unless the witness shows that there are none: keys are known by their hashes only.
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        match self.account_and_storage_root(address)? {
            None => Ok(Vec::new()),
            Some((_, root)) if root == EMPTY_ROOT_HASH => Ok(Vec::new()),
            Some(_) => {
                Err(StateError::MissingWitness { what: format!("the list of slots of {address}") })
            }
        }
    }
}

impl PartialTree for PartialMpt {
    fn root(&self) -> B256 {
        self.root()
    }

    fn apply(&self, delta: &StateDelta) -> Result<Arc<dyn PartialTree>, StateError> {
        Ok(Arc::new(self.after(delta)?))
    }
}
