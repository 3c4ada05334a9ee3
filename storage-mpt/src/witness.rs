//! Partial tries: the part of one block's state that the nodes of a witness contain.
//!
//! Nodes are addressed by hash. A block is applied as one batch, so a node is needed only if the
//! state after the block cannot be hashed without it.

use crate::{
    TrieHash, decode,
    ethereum::by_account,
    leaf,
    trie::{Branch, BranchLink, NodeLink, NodeSource, Trie},
};
use alloy_primitives::{Address, B256, Bytes, keccak256, map::B256HashMap};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use retrie_state::{
    Account, AccountKey, KeyForm, PartialTree, StateDelta, StateError, StateKey, StateReader,
    StateValue,
};
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

    /// RLP of the node with this reference, at `path`.
    fn rlp<'a>(&'a self, path: &Nibbles, reference: &'a RlpNode) -> Result<&'a [u8], StateError> {
        let Some(hash) = reference.as_hash() else { return Ok(reference) };
        let node = self.by_hash.get(&hash).ok_or_else(|| StateError::MissingWitness {
            what: format!("trie node {hash} at path {path:?}"),
        })?;
        Ok(node)
    }
}

impl NodeSource for WitnessNodes {
    type Stamp = ();

    fn load(&self, path: &Nibbles, link: &BranchLink) -> Result<Arc<Branch>, StateError> {
        let reference = link.reference();
        let branch = decode::branch(path, reference, self.rlp(path, reference)?);
        branch.map(Arc::new).ok_or_else(|| malformed(path))
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink, StateError> {
        decode::link(path, reference, self.rlp(path, reference)?).ok_or_else(|| malformed(path))
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        true
    }
}

fn malformed(path: &Nibbles) -> StateError {
    StateError::corrupt("witness", format!("the trie node at path {path:?} is malformed"))
}

/// A partial state in memory, opened from a witness.
#[derive(Clone, Debug)]
pub struct PartialMpt {
    nodes: Arc<WitnessNodes>,
    accounts: Trie,
    /// Storage tries that changed since the witness was opened.
    storages: BTreeMap<AccountKey, Trie>,
}

impl PartialMpt {
    /// The part of the state under `root` that `nodes` contain. Nodes are decoded when they are
    /// needed.
    pub fn open(root: B256, nodes: WitnessNodes) -> Self {
        let accounts = Trie::unresolved(TrieHash::Keccak256, root);
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
        self.account_of(&(*address).into())
    }

    fn account_of(&self, owner: &AccountKey) -> Result<Option<(Account, B256)>, StateError> {
        self.accounts
            .get(&*self.nodes, &TrieHash::Keccak256.account_path(owner))
            .map_err(|error| of(error, format_args!("account {owner}")))?
            .map(|leaf| {
                leaf::decode_account(&leaf).ok_or_else(|| {
                    let what = format!("the leaf of account {owner} is malformed");
                    StateError::corrupt("witness", what)
                })
            })
            .transpose()
    }

    fn storage(&self, owner: &AccountKey, root: B256) -> Trie {
        match self.storages.get(owner) {
            Some(trie) => trie.clone(),
            None => Trie::unresolved(TrieHash::Keccak256, root),
        }
    }

    /// The state after `delta`, which is applied as one batch per trie.
    pub fn after(&self, delta: &StateDelta) -> Result<Self, StateError> {
        let nodes = &*self.nodes;
        let mut storages = self.storages.clone();
        let mut items = Vec::new();
        for touched in by_account(&KeyForm::Plain.delta(delta)) {
            let owner = &touched.owner;
            let before = self.account_of(owner)?;
            let before = before.map(|(account, root)| (account, self.storage(owner, root)));
            let (item, storage) = touched
                .after(TrieHash::Keccak256, before, nodes, &mut ())
                .map_err(|error| of(error, format_args!("storage of {owner}")))?;
            match storage {
                Some(storage) => storages.insert(*owner, storage),
                None => storages.remove(owner),
            };
            items.push(item);
        }
        items.sort_unstable_by_key(|item| item.key);
        let accounts = self
            .accounts
            .update(nodes, &items, &mut ())
            .map_err(|error| of(error, format_args!("the account trie")))?;
        Ok(Self { nodes: self.nodes.clone(), accounts, storages })
    }
}

/// Adds to the error of a missing node what the node was needed for.
fn of(error: StateError, needed_for: core::fmt::Arguments<'_>) -> StateError {
    match error {
        StateError::MissingWitness { what } => {
            StateError::MissingWitness { what: format!("{what}, needed for {needed_for}") }
        }
        error => error,
    }
}

impl StateReader for PartialMpt {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let Some((account, root)) = self.account_and_storage_root(key.address())? else {
            return Ok(None);
        };
        let StateKey::Slot(address, slot) = key else { return Ok(Some(account.encode())) };
        self.storage(&(*address).into(), root)
            .get(&*self.nodes, &keccak256(slot))
            .map_err(|error| of(error, format_args!("{key}")))?
            .map(|leaf| {
                leaf::decode_slot_value(&leaf).ok_or_else(|| {
                    StateError::corrupt("witness", format!("the leaf of {key} is malformed"))
                })
            })
            .transpose()
    }

    /// Fails unless the witness shows that the storage is empty: it contains only hashes of keys.
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
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
