//! A chain on a store in memory with a directory, and every state that it should have.

#![allow(dead_code, reason = "each test file uses its part")]

use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{BlockRef, DeltaBuilder, StateError, StateKey, StateValue, ValueVersion};
use retrie_state_store::{
    KvStore, MemoryStore, StateCheckSink, StateId, StateProvider, StateStore, StoreOptions,
};
use retrie_storage_cole::{Cole, ColeParams};
use std::{collections::BTreeMap, sync::Arc};
use tempfile::TempDir;

/// The values of each key, by the block that set them.
pub(crate) type VersionModel = BTreeMap<StateKey, BTreeMap<u64, Option<StateValue>>>;

pub(crate) struct TestChain {
    pub(crate) params: ColeParams,
    pub(crate) kv: MemoryStore,
    pub(crate) dir: TempDir,
    /// `None` only within [`reopen`](Self::reopen).
    store: Option<StateStore>,
    pub(crate) retention: u64,
    pub(crate) model: VersionModel,
    pub(crate) number: u64,
}

/// Accounts and slots of a few contracts.
pub(crate) fn key(n: u64) -> StateKey {
    match n % 4 {
        0 => StateKey::Account(Address::left_padding_from(&n.to_be_bytes())),
        _ => StateKey::Slot(Address::repeat_byte((n % 3) as u8), B256::from(U256::from(n))),
    }
}

pub(crate) fn open(
    params: ColeParams,
    kv: &MemoryStore,
    dir: &TempDir,
    retention: u64,
) -> Result<StateStore, StateError> {
    let dir = Some(dir.path().to_owned());
    let options = StoreOptions { retention, dir, ..StoreOptions::default() };
    let backend = Arc::new(Cole::new(params).unwrap());
    StateStore::open(backend, Arc::new(kv.clone()), options)
}

impl TestChain {
    pub(crate) fn new(params: ColeParams, retention: u64) -> Self {
        let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
        let store = Some(open(params, &kv, &dir, retention).unwrap());
        Self { params, kv, dir, store, retention, model: VersionModel::new(), number: 0 }
    }

    pub(crate) fn store(&self) -> &StateStore {
        self.store.as_ref().unwrap()
    }

    /// The state of the tip.
    pub(crate) fn tip(&self) -> StateProvider {
        self.store().at(StateId::Tip).unwrap()
    }

    /// The state of an older block, from the backend's history.
    pub(crate) fn past(&self, number: u64) -> Result<StateProvider, StateError> {
        self.store().history(BlockRef::new(number, Self::hash(number)))
    }

    pub(crate) fn close(&mut self) {
        self.store = None;
    }

    pub(crate) fn reopen(&mut self) {
        self.close();
        self.store = Some(open(self.params, &self.kv, &self.dir, self.retention).unwrap());
    }

    pub(crate) fn hash(number: u64) -> B256 {
        B256::from(U256::from(number + 1))
    }

    /// The value of `key` after block `number`.
    pub(crate) fn value(&self, key: &StateKey, number: u64) -> Option<StateValue> {
        let (_, value) = self.model.get(key)?.range(..=number).next_back()?;
        value.clone()
    }

    /// The versions of `key` in a range of blocks.
    pub(crate) fn versions(&self, key: &StateKey, from: u64, to: u64) -> Vec<ValueVersion> {
        let Some(all) = self.model.get(key) else { return Vec::new() };
        let base = all.range(..=from).next_back();
        let later = all.range(from..=to).filter(|(block, _)| **block > from);
        let all = base.into_iter().chain(later);
        let mut versions: Vec<_> = all
            .map(|(block, value)| ValueVersion { block: *block, value: value.clone() })
            .collect();
        versions.reverse();
        versions
    }

    /// Commits a block that sets (or deletes) these keys.
    pub(crate) fn block(&mut self, changes: &[(StateKey, Option<StateValue>)]) -> B256 {
        let mut delta = DeltaBuilder::new();
        for (key, next) in changes {
            let previous = self.number.checked_sub(1).and_then(|last| self.value(key, last));
            delta.change(*key, previous, next.clone());
        }
        let delta = delta.build();
        let proposal =
            self.store().begin(StateId::Tip).unwrap().finish_as(self.number, &delta).unwrap();
        self.store().seal(&proposal, Self::hash(self.number));
        let root = proposal.root();
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store().commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        for change in delta.changes() {
            let versions = self.model.entry(change.key).or_default();
            versions.insert(self.number, change.next.clone());
        }
        self.number += 1;
        root
    }

    pub(crate) fn random_block(&mut self, random: &mut StdRng, keys: u64, most: usize) -> B256 {
        let changes: Vec<_> = (0..random.random_range(0..=most))
            .map(|_| {
                let value = Bytes::from(random.random::<[u8; 8]>().to_vec());
                let is_set = random.random_ratio(4, 5);
                (key(random.random_range(0..keys)), is_set.then_some(value))
            })
            .collect();
        self.block(&changes)
    }

    pub(crate) fn revert(&mut self, to: u64) {
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store().revert(to, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        self.number = to + 1;
        for versions in self.model.values_mut() {
            versions.split_off(&(to + 1));
        }
    }

    /// The faults that the check of the whole state finds.
    pub(crate) fn faults(&self) -> Vec<String> {
        faults(self.store())
    }

    /// Names of the files in the directory.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn faults(store: &StateStore) -> Vec<String> {
    #[derive(Default)]
    struct FaultList(Vec<String>);
    impl StateCheckSink for FaultList {
        fn fault(&mut self, fault: StateError) {
            self.0.push(fault.to_string());
        }
        fn entry(&mut self, _: &retrie_state::BackendKey, _: &StateValue) {}
        fn progress(&mut self, _: u64, _: u64) {}
    }
    let mut faults = FaultList::default();
    let scratch: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
    if let Err(end) = store.check(&scratch, &mut faults) {
        faults.0.push(end.to_string());
    }
    // The values of these tests are not canonical accounts and storage words.
    faults.0.retain(|fault| !fault.contains("does not decode"));
    faults.0
}
