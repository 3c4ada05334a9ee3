//! A chain on a store in memory, with every state it should have.

#![allow(dead_code, reason = "each test file uses its part")]

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    DeltaBuilder, KeyRange, RowTable, ScanDirection, StateDelta, StateError, StateKey, StateReader,
    StateValue,
};
use retrie_state_store::{
    KvStore, MemoryStore, Proposal, StateCheckSink, StateId, StateStore, StoreOptions,
};
use retrie_storage_lmpt::{Lmpt, LmptParams};
use std::{collections::BTreeMap, sync::Arc};

pub(crate) type StateEntries = BTreeMap<StateKey, StateValue>;
pub(crate) type BlockChanges = Vec<(StateKey, Option<StateValue>)>;

pub(crate) const NEVER: u64 = 1 << 40;

pub(crate) const fn every(interval: u64) -> LmptParams {
    LmptParams { interval, keys: NEVER, least: 1 }
}

/// Accounts and slots of a few contracts.
pub(crate) fn key(n: u64) -> StateKey {
    match n % 4 {
        0 => StateKey::Account(Address::left_padding_from(&n.to_be_bytes())),
        _ => StateKey::Slot(Address::repeat_byte((n % 3) as u8), B256::from(U256::from(n))),
    }
}

pub(crate) struct TestChain {
    pub(crate) params: LmptParams,
    pub(crate) kv: MemoryStore,
    /// `None` only within [`reopen`](Self::reopen).
    store: Option<StateStore>,
    pub(crate) options: StoreOptions,
    /// The state after each block.
    pub(crate) states: Vec<StateEntries>,
    /// Roots and hashes of the blocks.
    pub(crate) roots: Vec<B256>,
    pub(crate) hashes: Vec<B256>,
    pub(crate) branch: u64,
}

pub(crate) fn open(params: LmptParams, kv: &MemoryStore, options: &StoreOptions) -> StateStore {
    try_open(params, kv, options).unwrap()
}

pub(crate) fn try_open(
    params: LmptParams,
    kv: &MemoryStore,
    options: &StoreOptions,
) -> Result<StateStore, StateError> {
    StateStore::open(Arc::new(Lmpt::new(params).unwrap()), Arc::new(kv.clone()), options.clone())
}

impl TestChain {
    pub(crate) fn new(params: LmptParams, retention: u64) -> Self {
        let kv = MemoryStore::new();
        let options = StoreOptions { retention, ..StoreOptions::default() };
        let store = Some(open(params, &kv, &options));
        let (states, roots, hashes) = (Vec::new(), Vec::new(), Vec::new());
        Self { params, kv, store, options, states, roots, hashes, branch: 0 }
    }

    pub(crate) fn store(&self) -> &StateStore {
        self.store.as_ref().unwrap()
    }

    pub(crate) fn number(&self) -> u64 {
        self.states.len() as u64
    }

    pub(crate) fn close(&mut self) {
        self.store = None;
    }

    pub(crate) fn reopen(&mut self) {
        self.close();
        self.store = Some(open(self.params, &self.kv, &self.options));
    }

    /// Uses a store that was opened elsewhere.
    pub(crate) fn replace_store(&mut self, store: StateStore) {
        self.store = Some(store);
    }

    pub(crate) fn delta(before: &StateEntries, changes: &BlockChanges) -> StateDelta {
        let mut delta = DeltaBuilder::new();
        for (key, next) in changes {
            delta.change(*key, before.get(key).cloned(), next.clone());
        }
        delta.build()
    }

    /// A proposal of block `number`, which applies `changes` to `before`.
    pub(crate) fn propose(
        &self,
        at: StateId<'_>,
        number: u64,
        before: &StateEntries,
        changes: &BlockChanges,
    ) -> Result<(Proposal, StateEntries), StateError> {
        let delta = Self::delta(before, changes);
        let proposal = self.store().begin(at)?.finish_as(number, &delta)?;
        let hash = keccak256([number.to_be_bytes(), self.branch.to_be_bytes()].concat());
        self.store().seal(&proposal, hash);
        let mut after = before.clone();
        for change in delta.changes() {
            match &change.next {
                Some(value) => drop(after.insert(change.key, value.clone())),
                None => drop(after.remove(&change.key)),
            }
        }
        Ok((proposal, after))
    }

    pub(crate) fn commit(&mut self, proposal: &Proposal, after: StateEntries) {
        let mut txn = self.kv.begin_write().unwrap();
        let run = self.store().commit(std::slice::from_ref(proposal), &mut *txn).unwrap();
        txn.commit().unwrap();
        run.run().unwrap();
        self.states.push(after);
        self.roots.push(proposal.root());
        self.hashes.push(proposal.hash().unwrap());
    }

    pub(crate) fn tip_entries(&self) -> StateEntries {
        self.states.last().cloned().unwrap_or_default()
    }

    pub(crate) fn block(&mut self, changes: &BlockChanges) -> B256 {
        let before = self.tip_entries();
        let made = self.propose(StateId::Tip, self.number(), &before, changes);
        let (proposal, after) = made.unwrap();
        self.commit(&proposal, after);
        proposal.root()
    }

    pub(crate) fn revert(&mut self, to: u64) {
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store().revert(to, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        let kept = to as usize + 1;
        self.states.truncate(kept);
        self.roots.truncate(kept);
        self.hashes.truncate(kept);
        self.branch += 1;
    }

    /// Waits until no job is under way.
    pub(crate) fn wait_idle(&self) {
        self.store().wait_idle().unwrap();
    }

    /// Checks that values and proofs of a retained block are those of the model.
    pub(crate) fn check_block(&self, number: u64, keys: &[StateKey]) {
        let state = self.store().at(StateId::Block(self.hashes[number as usize])).unwrap();
        let entries = &self.states[number as usize];
        assert_eq!(state.root(), self.roots[number as usize]);
        let expected: Vec<_> = keys.iter().map(|key| entries.get(key).cloned()).collect();
        for (key, value) in keys.iter().zip(&expected) {
            assert_eq!(state.get(key).unwrap(), *value);
        }
        let proof = state.prove(keys).unwrap();
        let shown = self.store().backend().verify(
            proof.root,
            &retrie_state::KeyForm::Plain.keys(keys),
            &proof.bytes,
        );
        assert_eq!(shown.unwrap(), expected, "block {number}");
    }

    /// The faults that the check of the whole state finds.
    pub(crate) fn faults(&self) -> Vec<String> {
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
        if let Err(end) = self.store().check(&scratch, &mut faults) {
            faults.0.push(end.to_string());
        }
        // The values of these tests are not canonical accounts and storage words.
        faults.0.retain(|fault| !fault.contains("does not decode"));
        faults.0
    }

    /// The rows of a table on disk.
    pub(crate) fn rows(&self, table: RowTable) -> Vec<(Bytes, Bytes)> {
        self.store().flush().unwrap();
        let snapshot = self.kv.snapshot().unwrap();
        let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
        rows.into_iter().collect()
    }
}

pub(crate) fn changes(random: &mut StdRng, keys: u64, most: usize) -> BlockChanges {
    (0..random.random_range(0..=most))
        .map(|_| {
            let value = Bytes::from(random.random::<[u8; 8]>().to_vec());
            let is_set = random.random_ratio(3, 4);
            (key(random.random_range(0..keys)), is_set.then_some(value))
        })
        .collect()
}
