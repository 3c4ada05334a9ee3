//! A model of the state, and the tree over it computed the long way: all leaves, one sweep.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    Account, ApplyContext, Backend, BackendKey, BulkSink, BulkSorter, DeltaBuilder, JobRunner,
    KeyForm, RowTable, StateError, StateKey, StateValue, encode_slot,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_pbt::{
    Pbt, PbtState,
    hash::{Subtree, Sweep, TreeHash},
    key::{CODE_ZONE, HEADER_ZONE, SlotPlace, Stem, account_path, account_word, group_path},
    leaf::{CodeFacts, account_leaves, chunks},
};
use std::collections::{BTreeMap, BTreeSet};

/// Hash function of these tests.
pub(crate) const HASH: TreeHash = TreeHash::Blake3;

/// The values of a state, and all codes.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateModel {
    pub(crate) accounts: BTreeMap<Address, Account>,
    pub(crate) slots: BTreeMap<(Address, B256), U256>,
    pub(crate) codes: BTreeMap<B256, Bytes>,
}

/// What one step changes.
pub(crate) enum Step {
    Account(Address, Option<Account>),
    Slot(Address, B256, U256),
}

impl StateModel {
    /// A model that knows these codes.
    pub(crate) fn with_codes(codes: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let codes = codes.into_iter().map(|code| (keccak256(&code), code.into()));
        Self { codes: codes.collect(), ..Self::default() }
    }

    /// Applies steps, and returns their delta. An account that goes takes its slots along.
    pub(crate) fn apply(&mut self, steps: Vec<Step>) -> retrie_state::StateDelta {
        let mut delta = DeltaBuilder::new();
        for step in steps {
            match step {
                Step::Account(address, account) => {
                    let before = match account {
                        Some(account) => self.accounts.insert(address, account),
                        None => self.accounts.remove(&address),
                    };
                    let encoded =
                        |account: Option<Account>| account.map(|account| account.encode());
                    delta.change(StateKey::Account(address), encoded(before), encoded(account));
                    if let Some(account) = account
                        && let Some(code) = self.codes.get(&account.code_hash)
                    {
                        delta.add_code(account.code_hash, code.clone());
                    }
                    if account.is_none() {
                        let gone: Vec<_> = self
                            .slots
                            .range((address, B256::ZERO)..=(address, B256::repeat_byte(0xff)))
                            .map(|(key, value)| (*key, *value))
                            .collect();
                        for ((_, slot), value) in gone {
                            delta.change(StateKey::Slot(address, slot), encode_slot(value), None);
                            self.slots.remove(&(address, slot));
                        }
                    }
                }
                Step::Slot(address, slot, value) => {
                    if !self.accounts.contains_key(&address) {
                        continue;
                    }
                    let before = match value.is_zero() {
                        true => self.slots.remove(&(address, slot)),
                        false => self.slots.insert((address, slot), value),
                    };
                    let before = encode_slot(before.unwrap_or_default());
                    delta.change(StateKey::Slot(address, slot), before, encode_slot(value));
                }
            }
        }
        delta.build()
    }

    /// All leaves of the tree, by key.
    pub(crate) fn leaves(&self) -> BTreeMap<Vec<u8>, B256> {
        let mut leaves = BTreeMap::new();
        let mut add = |stem: Stem, sub, value: B256| {
            if !value.is_zero() {
                let (key, len) = stem.key(sub);
                assert_eq!(leaves.insert(key[..len].to_vec(), value), None);
            }
        };
        let mut codes = BTreeSet::new();
        for (address, account) in &self.accounts {
            let path = account_path(HASH, &(*address).into());
            let code = match account.code_hash {
                KECCAK256_EMPTY => CodeFacts::default(),
                hash => CodeFacts::of(&self.codes[&hash]).unwrap(),
            };
            if account.code_hash != KECCAK256_EMPTY && code.delegation.is_none() {
                codes.insert(account.code_hash);
            }
            for (sub, value) in account_leaves(account, &code).unwrap() {
                add(Stem::short(HEADER_ZONE, &path), sub, value);
            }
        }
        for code in codes {
            for (at, chunk) in chunks(&self.codes[&code]).into_iter().enumerate() {
                let group = B256::from(U256::from(at / 256));
                let path = group_path(HASH, &code, &group);
                add(Stem::short(CODE_ZONE, &path), (at % 256) as u8, chunk);
            }
        }
        for ((address, slot), value) in &self.slots {
            let path = account_path(HASH, &(*address).into());
            let (stem, sub) = match SlotPlace::of(slot) {
                SlotPlace::Header(sub) => (Stem::short(HEADER_ZONE, &path), sub),
                SlotPlace::Storage { group, sub } => {
                    let word = account_word(&(*address).into());
                    (Stem::storage(&path, &group_path(HASH, &word, &group)), sub)
                }
            };
            add(stem, sub, B256::from(*value));
        }
        leaves
    }

    /// The root of these leaves.
    pub(crate) fn root(&self) -> B256 {
        let mut sweep = Sweep::new(HASH);
        for (key, value) in self.leaves() {
            let leaf = HASH.leaf(&key, &value);
            sweep.push(&key, Subtree::Leaf(leaf));
        }
        sweep.root()
    }

    /// All entries in the order of their keys.
    pub(crate) fn entries(&self) -> Vec<(BackendKey, StateValue)> {
        let accounts = self
            .accounts
            .iter()
            .map(|(address, account)| (StateKey::Account(*address), account.encode()));
        let slots = self.slots.iter().map(|((address, slot), value)| {
            (StateKey::Slot(*address, *slot), encode_slot(*value).unwrap())
        });
        accounts.chain(slots).map(|(key, value)| (key.into(), value)).collect()
    }
}

/// A backend on rows in memory.
pub(crate) struct TestTree {
    pub(crate) backend: Pbt,
    pub(crate) view: MemoryView,
    pub(crate) state: PbtState,
    pub(crate) root: B256,
    number: u64,
    jobs: JobRunner,
}

impl TestTree {
    pub(crate) fn new() -> Self {
        let backend = Pbt::new(HASH);
        let view = MemoryView::default();
        let state = backend.open(&view, None).unwrap();
        let jobs = JobRunner::without_threads(None);
        Self { backend, view, state, root: B256::ZERO, number: 0, jobs }
    }

    /// Applies a delta.
    pub(crate) fn apply(&mut self, delta: &retrie_state::StateDelta) {
        self.number += 1;
        let context =
            ApplyContext { number: self.number, parent_root: self.root, jobs: &self.jobs };
        let delta = KeyForm::Plain.delta(delta);
        let done = self.backend.apply(&context, &mut self.view, &self.state, &delta).unwrap();
        (self.root, self.state) = (done.root, done.cache);
    }
}

/// Codes of all kinds.
pub(crate) fn codes(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let mut codes: Vec<Vec<u8>> = [1, 30, 31, 32, 62, 31 * 256, 31 * 256 + 1, 24_576]
        .map(|len| (0..len).map(|_| rng.random_range(0x55..0x85)).collect())
        .to_vec();
    codes.push(vec![0; 100]);
    codes.push([&[0xef, 1, 0][..], &[7; 20]].concat());
    codes.push([&[0xef, 1, 0][..], &[8; 20]].concat());
    codes.push(vec![0xef; 23]);
    codes
}

/// Rows in memory, loaded with codes at hand.
#[derive(Default)]
pub(crate) struct CodedView {
    pub(crate) view: MemoryView,
    pub(crate) codes: BTreeMap<B256, Bytes>,
}

impl BulkSink for CodedView {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        BulkSink::put(&mut self.view, table, key, value)
    }

    fn put_unordered(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError> {
        self.view.put_unordered(table, key, value)
    }

    fn sorter(&self) -> Box<dyn BulkSorter> {
        self.view.sorter()
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).cloned())
    }
}
