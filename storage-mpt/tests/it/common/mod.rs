//! A model of the state and its root by another implementation.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod blocks;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_trie::{HashBuilder, Nibbles, TrieAccount};
use rand::Rng;
use retrie_state::{
    Account, AccountNodes, AnyCache, ApplyContext, Backend, DeltaBuilder, JobRunner, KeyForm,
    StateDelta, StateError, StateKey, StateValue,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::{
    Mpt, TrieHash,
    verify::{AccountProof, SlotProof},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub fn random_address(random: &mut impl Rng) -> Address {
    Address::from(random.random::<[u8; 20]>())
}

pub fn random_word(random: &mut impl Rng) -> B256 {
    B256::from(random.random::<[u8; 32]>())
}

pub type StateModel = BTreeMap<StateKey, StateValue>;

/// The form of keys of these tests.
pub const PLAIN: KeyForm = KeyForm::Plain;

/// The delta from `before` to `after`.
pub fn delta(before: &StateModel, after: &StateModel, wiped: &[Address]) -> StateDelta {
    let mut builder = DeltaBuilder::new();
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        builder.change(*key, before.get(key).cloned(), after.get(key).cloned());
    }
    wiped.iter().for_each(|address| builder.wipe(*address));
    builder.build()
}

/// The root of a trie by the yellow paper's definition (appendix D), word for word.
pub fn root_by_definition(with: TrieHash, leaves: &BTreeMap<B256, Vec<u8>>) -> B256 {
    fn hex_prefix(nibbles: &[u8], is_leaf: bool) -> Vec<u8> {
        let flag = 2 * u8::from(is_leaf) + (nibbles.len() % 2) as u8;
        let padding = if nibbles.len().is_multiple_of(2) { vec![flag, 0] } else { vec![flag] };
        let padded: Vec<u8> = padding.into_iter().chain(nibbles.iter().copied()).collect();
        padded.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }
    fn list(items: &[Vec<u8>]) -> Vec<u8> {
        let payload_length = items.iter().map(Vec::len).sum();
        let mut out = Vec::new();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
        out.extend(items.concat());
        out
    }
    fn string(bytes: &[u8]) -> Vec<u8> {
        alloy_rlp::encode(bytes)
    }
    fn node(with: TrieHash, leaves: &[(Vec<u8>, &Vec<u8>)], depth: usize) -> Vec<u8> {
        let (first, last) = (&leaves[0].0, &leaves[leaves.len() - 1].0);
        if leaves.len() == 1 {
            return list(&[string(&hex_prefix(&first[depth..], true)), string(leaves[0].1)]);
        }
        let same = (depth..).take_while(|at| first[*at] == last[*at]).count();
        if same > 0 {
            let path = string(&hex_prefix(&first[depth..depth + same], false));
            return list(&[path, reference(with, leaves, depth + same)]);
        }
        let child = |nibble| {
            let below: Vec<_> =
                leaves.iter().filter(|(key, _)| key[depth] == nibble).cloned().collect();
            if below.is_empty() { string(&[]) } else { reference(with, &below, depth + 1) }
        };
        list(&(0..16).map(child).chain([string(&[])]).collect::<Vec<_>>())
    }
    fn reference(with: TrieHash, leaves: &[(Vec<u8>, &Vec<u8>)], depth: usize) -> Vec<u8> {
        let rlp = node(with, leaves, depth);
        if rlp.len() < 32 { rlp } else { string(with.hash(rlp).as_slice()) }
    }
    if leaves.is_empty() {
        return with.hash([0x80]);
    }
    let nibbles = |key: &B256| key.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
    let leaves: Vec<_> = leaves.iter().map(|(key, value)| (nibbles(key), value)).collect();
    with.hash(node(with, &leaves, 0))
}

/// State root by definition.
pub fn state_root_by_definition(with: TrieHash, model: &StateModel) -> B256 {
    let mut storages: BTreeMap<Address, BTreeMap<B256, Vec<u8>>> = BTreeMap::new();
    for (key, value) in model {
        if let StateKey::Slot(address, slot) = key {
            let leaf = alloy_rlp::encode(U256::from_be_slice(value));
            storages.entry(*address).or_default().insert(with.hash(slot), leaf);
        }
    }
    let leaf = |(key, value): (&StateKey, &StateValue)| {
        let StateKey::Account(address) = key else { return None };
        let Account { nonce, balance, code_hash } = Account::decode(value).unwrap();
        let slots = storages.get(address).cloned().unwrap_or_default();
        let storage_root = root_by_definition(with, &slots);
        let account = TrieAccount { nonce, balance, storage_root, code_hash };
        Some((with.hash(address), alloy_rlp::encode(account)))
    };
    root_by_definition(with, &model.iter().filter_map(leaf).collect())
}

fn trie_root(leaves: BTreeMap<B256, Vec<u8>>) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in leaves {
        builder.add_leaf(Nibbles::unpack(key), &value);
    }
    builder.root()
}

/// Storage root of `address` by alloy's builder.
pub fn storage_root(model: &StateModel, address: &Address) -> B256 {
    let from = StateKey::Slot(*address, B256::ZERO);
    let to = StateKey::Slot(*address, B256::repeat_byte(0xff));
    let leaf = |(key, value): (&StateKey, &StateValue)| match key {
        StateKey::Slot(_, slot) => (keccak256(slot), alloy_rlp::encode(U256::from_be_slice(value))),
        StateKey::Account(_) => unreachable!(),
    };
    trie_root(model.range(from..=to).map(leaf).collect())
}

/// State root by alloy's builder.
pub fn state_root(model: &StateModel) -> B256 {
    let leaf = |(key, value): (&StateKey, &StateValue)| match key {
        StateKey::Account(address) => {
            let Account { nonce, balance, code_hash } = Account::decode(value).unwrap();
            let storage_root = storage_root(model, address);
            let account = TrieAccount { nonce, balance, storage_root, code_hash };
            Some((keccak256(address), alloy_rlp::encode(account)))
        }
        StateKey::Slot(..) => None,
    };
    trie_root(model.iter().filter_map(leaf).collect())
}

/// A backend with its state.
pub struct TestStore<B: Backend = Mpt> {
    pub mpt: B,
    pub view: MemoryView,
    pub cache: Arc<B::Cache>,
    pub model: StateModel,
    pub root: B256,
    number: u64,
    jobs: JobRunner,
}

impl TestStore {
    pub fn new() -> Self {
        Self::of(Mpt::new())
    }
}

impl<B: Backend> TestStore<B> {
    pub fn of(mpt: B) -> Self {
        let (view, jobs) = (MemoryView::default(), JobRunner::new(None));
        let cache = Arc::new(mpt.open(&view, None).unwrap());
        let root = mpt.profile().empty_root;
        Self { mpt, view, cache, model: StateModel::new(), root, number: 0, jobs }
    }

    /// Moves on to the state `after`.
    pub fn block(&mut self, after: StateModel, wiped: &[Address]) {
        let delta = delta(&self.model, &after, wiped);
        self.apply(&delta).unwrap();
        self.model = after;
    }

    pub fn apply(&mut self, delta: &StateDelta) -> Result<(), StateError> {
        let context =
            ApplyContext { number: self.number, parent_root: self.root, jobs: &self.jobs };
        let applied = self.mpt.apply(&context, &mut self.view, &self.cache, &PLAIN.delta(delta))?;
        (self.root, self.cache) = (applied.root, Arc::new(applied.cache));
        self.number += 1;
        Ok(())
    }

    pub fn reopen(&mut self) {
        self.cache = Arc::new(self.mpt.open(&self.view, None).unwrap());
    }

    /// The cache, for extensions.
    pub fn any_cache(&self) -> AnyCache {
        AnyCache::from(self.cache.clone())
    }

    /// The view that loading the state at once gives, and the root.
    pub fn bulk_loaded(&self) -> (MemoryView, B256) {
        let mut view = MemoryView::default();
        let mut entries = self.model.iter().map(|(key, value)| Ok(((*key).into(), value.clone())));
        let root = self.mpt.bulk_load(0, &mut entries, &mut view).unwrap();
        (view, root)
    }
}

/// The EIP-1186 proof of an account of `model` and some of its slots, with these nodes.
pub fn account_proof(
    nodes: AccountNodes,
    model: &StateModel,
    address: &Address,
    slots: &[B256],
) -> AccountProof {
    let AccountNodes { storage_root, account: account_proof, storage } = nodes;
    let account = model.get(&StateKey::Account(*address));
    let slot = |(slot, proof): (&B256, Vec<Bytes>)| {
        let value = model.get(&StateKey::Slot(*address, *slot)).cloned();
        SlotProof { slot: *slot, value, proof }
    };
    AccountProof {
        address: *address,
        account: account.map(|value| Account::decode(value).unwrap()),
        storage_root,
        account_proof,
        storage: slots.iter().zip(storage).map(slot).collect(),
    }
}

pub fn json(path: &std::path::Path) -> serde_json::Value {
    let file = std::fs::File::open(path).unwrap();
    serde_json::from_reader(std::io::BufReader::new(flate2::read::GzDecoder::new(file))).unwrap()
}
