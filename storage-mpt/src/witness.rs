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
use alloy_primitives::{
    Address, B256, Bytes,
    map::{B256HashMap, B256Set},
};
use alloy_trie::{Nibbles, nodes::RlpNode};
use parking_lot::Mutex;
use retrie_state::{
    Account, AccountKey, BackendDelta, BackendKey, KeyForm, PartialTree, StateDelta, StateError,
    StateKey, StateReader, StateValue,
};
use std::{collections::BTreeMap, sync::Arc};

/// RLP of trie nodes, by hash.
#[derive(Clone, Debug, Default)]
pub struct WitnessNodes {
    by_hash: B256HashMap<Bytes>,
    /// Hashes of the nodes that were needed, if the witness is being checked.
    needed: Option<Arc<Mutex<B256Set>>>,
}

impl WitnessNodes {
    /// Hashes `nodes`; their order does not matter, and duplicates are allowed.
    pub fn new(nodes: &[Bytes]) -> Self {
        Self::hashed(TrieHash::Keccak256, nodes)
    }

    /// As [`new`](Self::new) for tries hashed `with` this function.
    pub(crate) fn hashed(with: TrieHash, nodes: &[Bytes]) -> Self {
        let by_hash = nodes.iter().map(|node| (with.hash(node), node.clone())).collect();
        Self { by_hash, needed: None }
    }

    /// The same nodes, which note in `needed` which of them are needed.
    pub(crate) fn noting(self, needed: Arc<Mutex<B256Set>>) -> Self {
        Self { needed: Some(needed), ..self }
    }

    /// The nodes by hash.
    pub(crate) const fn by_hash(&self) -> &B256HashMap<Bytes> {
        &self.by_hash
    }

    /// RLP of the node with this reference, at `path`.
    fn rlp<'a>(&'a self, path: &Nibbles, reference: &'a RlpNode) -> Result<&'a [u8], StateError> {
        let Some(hash) = reference.as_hash() else { return Ok(reference) };
        let node = self.by_hash.get(&hash).ok_or_else(|| StateError::MissingWitness {
            what: format!("trie node {hash} at path {path:?}"),
        })?;
        if let Some(needed) = &self.needed {
            needed.lock().insert(hash);
        }
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
    with: TrieHash,
    nodes: Arc<WitnessNodes>,
    accounts: Trie,
    /// Storage tries that changed since the witness was opened.
    storages: BTreeMap<AccountKey, Trie>,
}

impl PartialMpt {
    /// The part of the state under `root` that `nodes` contain. Nodes are decoded when they are
    /// needed.
    pub fn open(root: B256, nodes: WitnessNodes) -> Self {
        Self::hashed(TrieHash::Keccak256, root, nodes)
    }

    /// As [`open`](Self::open) for tries hashed `with` this function.
    pub(crate) fn hashed(with: TrieHash, root: B256, nodes: WitnessNodes) -> Self {
        let accounts = Trie::unresolved(with, root);
        Self { with, nodes: Arc::new(nodes), accounts, storages: BTreeMap::new() }
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

    pub(crate) fn account_of(
        &self,
        owner: &AccountKey,
    ) -> Result<Option<(Account, B256)>, StateError> {
        self.accounts
            .get(&*self.nodes, &self.with.account_path(owner))
            .map_err(|error| of(error, format_args!("account {owner}")))?
            .map(|leaf| {
                leaf::decode_account(&leaf).ok_or_else(|| {
                    let what = format!("the leaf of account {owner} is malformed");
                    StateError::corrupt("witness", what)
                })
            })
            .transpose()
    }

    /// The value of `key`.
    pub(crate) fn value_of(&self, key: &BackendKey) -> Result<Option<StateValue>, StateError> {
        let Some((account, root)) = self.account_of(key.account())? else { return Ok(None) };
        let BackendKey::Slot(owner, slot) = key else { return Ok(Some(account.encode())) };
        self.storage(owner, root)
            .get(&*self.nodes, &self.with.slot_path(owner, slot))
            .map_err(|error| of(error, format_args!("{key}")))?
            .map(|leaf| {
                leaf::decode_slot_value(&leaf).ok_or_else(|| {
                    StateError::corrupt("witness", format!("the leaf of {key} is malformed"))
                })
            })
            .transpose()
    }

    fn storage(&self, owner: &AccountKey, root: B256) -> Trie {
        match self.storages.get(owner) {
            Some(trie) => trie.clone(),
            None => Trie::unresolved(self.with, root),
        }
    }

    /// The state after `delta`, which is applied as one batch per trie.
    pub fn after(&self, delta: &StateDelta) -> Result<Self, StateError> {
        self.after_block(&KeyForm::Plain.delta(delta))
    }

    /// As [`after`](Self::after), of a delta with keys of either form.
    pub(crate) fn after_block(&self, delta: &BackendDelta) -> Result<Self, StateError> {
        let nodes = &*self.nodes;
        let mut storages = self.storages.clone();
        let mut items = Vec::new();
        for touched in by_account(delta) {
            let owner = &touched.owner;
            let before = self.account_of(owner)?;
            let before = before.map(|(account, root)| (account, self.storage(owner, root)));
            let (item, storage) = touched
                .after(self.with, before, nodes, &mut ())
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
        Ok(Self { with: self.with, nodes: self.nodes.clone(), accounts, storages })
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
        self.value_of(&(*key).into())
    }

    /// Fails unless the witness shows that the storage is empty: it contains only hashes of keys.
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        match self.account_and_storage_root(address)? {
            None => Ok(Vec::new()),
            Some((_, root)) if root == self.with.empty_root() => Ok(Vec::new()),
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
