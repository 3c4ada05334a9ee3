//! Block witnesses of Ethereum's tries: trie nodes, as `debug_executionWitness` has them, each once.
//!
//! ```text
//!  witness  01 count node..     nodes in ascending order of their bytes
//!  node     length, RLP         numbers are varints
//! ```
//!
//! # Soundness
//!
//! A node is found by its hash alone, which the root or another node names. So whatever is read or
//! computed follows from the root. A branch that a removal leaves with one child merges with that
//! child, which therefore has to be there. A node that the root does not lead to is refused.

use crate::{
    LeafUpdate, PartialMpt, Trie, TrieHash, WitnessNodes,
    audit::LinkedNodes,
    ethereum::{StateTries, account_nodes, merge_nodes},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, BackendChange, BackendDelta, BackendKey, ProofError, StateError, StateValue,
    WitnessError, WitnessRequest,
    descriptor::{OpenedWitness, WitnessResult},
    wire::{WireReader, put_varint},
};
use std::collections::{BTreeMap, BTreeSet};

/// First byte of a witness.
const VERSION: u8 = 1;

/// The witness of `block` in the state of `tries`.
///
/// # Errors
/// Errors of the tries' source.
pub fn make(tries: &impl StateTries, block: WitnessRequest<'_>) -> Result<Bytes, StateError> {
    // Slots that go with their whole storage need no path.
    let changed = block.delta.changes().iter().filter(|change| !goes_with_all(block.delta, change));
    let mut asked: BTreeMap<AccountKey, BTreeSet<B256>> = BTreeMap::new();
    let removed = changed.clone().filter(|change| change.next.is_none());
    let removed: Vec<BackendKey> = removed.map(|change| change.key).collect();
    for key in block.reads.iter().chain(changed.map(|change| &change.key)) {
        let slots = asked.entry(*key.account()).or_default();
        if let BackendKey::Slot(_, slot) = key {
            slots.insert(*slot);
        }
    }
    for account in block.listed.iter().chain(block.delta.wiped()) {
        asked.entry(*account).or_default();
    }
    let mut nodes = BTreeSet::new();
    // A block that touches nothing still needs the root node, to show its root.
    nodes.extend(account_nodes(tries, &AccountKey::MIN, &[])?.account.into_iter().next());
    for (account, slots) in asked {
        let slots: Vec<B256> = slots.into_iter().collect();
        let found = account_nodes(tries, &account, &slots)?;
        nodes.extend(found.account);
        nodes.extend(found.storage.into_iter().flatten());
    }
    nodes.extend(merge_nodes(tries, &removed)?);
    let mut out = vec![VERSION];
    put_nodes(&mut out, &nodes);
    Ok(out.into())
}

/// Appends nodes, whose set has the order of the format.
pub fn put_nodes(out: &mut Vec<u8>, nodes: &BTreeSet<Bytes>) {
    put_varint(out, nodes.len() as u64);
    for node in nodes {
        put_varint(out, node.len() as u64);
        out.extend_from_slice(node);
    }
}

/// Whether `change` removes a slot of an account whose whole storage goes.
fn goes_with_all(delta: &BackendDelta, change: &BackendChange) -> bool {
    let BackendKey::Slot(owner, _) = &change.key else { return false };
    let account = delta.change(&BackendKey::Account(*owner));
    let is_gone = account.is_some_and(|account| account.next.is_none());
    change.next.is_none() && (is_gone || delta.is_wiped(owner))
}

/// Opens the witness `bytes` of the state of `root`, in tries hashed `with` this function.
///
/// # Errors
/// [`WitnessError::Refused`] if the bytes are not canonical, a node is malformed or not part of the
/// state, or the root node is missing.
pub fn open(with: TrieHash, root: B256, bytes: &[u8]) -> WitnessResult {
    let mut reader = WireReader::new(bytes);
    if reader.u8().map_err(ProofError::from)? != VERSION {
        return Err(ProofError::Malformed { what: "version" }.into());
    }
    let nodes = WitnessNodes::hashed(with, &read_nodes(&mut reader)?);
    reader.finish().map_err(ProofError::from)?;
    if root != with.empty_root() && !nodes.by_hash().contains_key(&root) {
        return Err(ProofError::RootMismatch.into());
    }
    LinkedNodes::of_state(with, root, &nodes).check_all_of(&nodes)?;
    Ok(Box::new(MptWitness { with, state: PartialMpt::hashed(with, root, nodes) }))
}

/// Reads what [`put_nodes`] appends.
fn read_nodes(reader: &mut WireReader<'_>) -> Result<Vec<Bytes>, ProofError> {
    let count = reader.count(1)?;
    let mut nodes: Vec<Bytes> = Vec::with_capacity(count);
    for _ in 0..count {
        let len = reader.count(1)?;
        let node = Bytes::copy_from_slice(reader.take(len)?);
        if nodes.last().is_some_and(|last| *last >= node) {
            return Err(ProofError::Malformed { what: "nodes are out of order" });
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// The part of one trie that a witness shows, for stores with several tries under their root. Keys
/// are hashed, nodes are hashed with keccak-256.
#[derive(Debug)]
pub struct PartialTrie {
    trie: Trie,
    nodes: WitnessNodes,
}

impl PartialTrie {
    /// Reads the nodes of the trie of `root`, as [`put_nodes`] appends them.
    ///
    /// # Errors
    /// [`ProofError`] if they are not canonical, or the root does not lead to one of them.
    pub fn read(root: B256, reader: &mut WireReader<'_>) -> Result<Self, ProofError> {
        let nodes = WitnessNodes::new(&read_nodes(reader)?);
        let with = TrieHash::Keccak256;
        LinkedNodes::of_trie(with, root, &nodes).check_all_of(&nodes)?;
        Ok(Self { trie: Trie::unresolved(with, root), nodes })
    }

    /// The root of the trie.
    pub const fn root(&self) -> B256 {
        self.trie.hash()
    }

    /// The value of the leaf at `path`.
    ///
    /// # Errors
    /// [`StateError::MissingWitness`] if a node on the path is missing, [`StateError::Corrupt`] if
    /// one is malformed.
    pub fn get(&self, path: &B256) -> Result<Option<Bytes>, StateError> {
        self.trie.get(&self.nodes, path)
    }

    /// The root after `items`, which are sorted by key, one item a key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn root_after(&self, items: &[LeafUpdate]) -> Result<B256, StateError> {
        Ok(self.trie.update(&self.nodes, items, &mut ())?.hash())
    }
}

/// An opened witness.
#[derive(Debug)]
struct MptWitness {
    with: TrieHash,
    state: PartialMpt,
}

/// The refusal of a node that no trie has.
const BAD_NODE: WitnessError = WitnessError::Refused(ProofError::Malformed { what: "trie node" });

impl OpenedWitness for MptWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        self.state.value_of(key).map_err(|error| match error {
            StateError::MissingWitness { .. } => WitnessError::Unproven { key: *key },
            _ => BAD_NODE,
        })
    }

    /// Only the storage of which nothing is set can be listed: the tries have hashes of slots.
    fn slots_of(&self, account: &AccountKey) -> Result<Vec<(B256, StateValue)>, WitnessError> {
        match self.state.account_of(account) {
            Ok(None) => Ok(Vec::new()),
            Ok(Some((_, root))) if root == self.with.empty_root() => Ok(Vec::new()),
            _ => Err(WitnessError::Unlisted { account: *account }),
        }
    }

    fn wipes_unnamed_slots(&self) -> bool {
        true
    }

    fn apply(&self, _: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        for change in delta.changes().iter().filter(|change| !goes_with_all(delta, change)) {
            // A slot that is set again after its storage was wiped may come without its old value.
            let is_rewritten = delta.is_wiped(change.key.account());
            if !is_rewritten && self.value(&change.key)? != change.previous {
                return Err(WitnessError::OtherValue { key: change.key });
            }
        }
        match self.state.after_block(delta) {
            Ok(state) => Ok(state.root()),
            Err(StateError::MissingWitness { what }) => Err(WitnessError::Incomplete { what }),
            Err(StateError::Corrupt { table, what }) if table == "delta" => {
                Err(WitnessError::InvalidDelta { what })
            }
            Err(_) => Err(BAD_NODE),
        }
    }
}
