//! A chain on a store in memory, and the values that it should have.

use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{DeltaBuilder, ProofError, StateError, StateKey, StateProof, StateValue};
use retrie_state_store::{
    KvStore, MemoryStore, StateCheckSink, StateId, StateProvider, StateStore, StoreOptions,
};
use retrie_storage_lvmt::Lvmt;
use std::{collections::BTreeMap, sync::Arc};

pub(crate) type ExpectedValues = BTreeMap<StateKey, StateValue>;

pub(crate) struct TestChain {
    pub(crate) kv: MemoryStore,
    pub(crate) store: StateStore,
    pub(crate) values: ExpectedValues,
    pub(crate) number: u64,
}

pub(crate) fn key(n: u64) -> StateKey {
    StateKey::Slot(Address::repeat_byte(7), B256::from(U256::from(n)))
}

impl TestChain {
    pub(crate) fn new(backend: Lvmt, retention: u64) -> Self {
        Self::on(MemoryStore::new(), backend, retention)
    }

    /// Opens the store that another backend has left. The caller sets `values` and `number`.
    pub(crate) fn on(kv: MemoryStore, backend: Lvmt, retention: u64) -> Self {
        let options = StoreOptions { retention, ..StoreOptions::default() };
        let store = StateStore::open(Arc::new(backend), Arc::new(kv.clone()), options).unwrap();
        let number = store.tip().map_or(0, |tip| tip.block.number + 1);
        Self { kv, store, values: ExpectedValues::new(), number }
    }

    pub(crate) fn hash(number: u64) -> B256 {
        B256::from(U256::from(number + 1))
    }

    /// Commits a block that sets (or deletes) these keys.
    pub(crate) fn block(&mut self, changes: &[(StateKey, Option<StateValue>)]) -> B256 {
        self.try_block(changes).unwrap()
    }

    pub(crate) fn try_block(
        &mut self,
        changes: &[(StateKey, Option<StateValue>)],
    ) -> Result<B256, StateError> {
        let mut delta = DeltaBuilder::new();
        for (key, next) in changes {
            delta.change(*key, self.values.get(key).cloned(), next.clone());
        }
        let proposal = self.store.begin(StateId::Tip)?.finish_as(self.number, &delta.build())?;
        self.store.seal(&proposal, Self::hash(self.number));
        let root = proposal.root();
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store.commit(&[proposal], &mut *txn)?;
        txn.commit().unwrap();
        after.run()?;
        for (key, next) in changes {
            match next {
                Some(value) => self.values.insert(*key, value.clone()),
                None => self.values.remove(key),
            };
        }
        self.number += 1;
        Ok(root)
    }

    /// A block of `changes` random changes among the first `keys` keys. One in `deletes` is a
    /// deletion.
    pub(crate) fn random_block(
        &mut self,
        random: &mut StdRng,
        keys: u64,
        changes: usize,
        deletes: u32,
    ) -> B256 {
        let changes: Vec<_> = (0..changes)
            .map(|_| {
                let delete = random.random_ratio(1, deletes);
                let value = Bytes::from(random.random::<[u8; 8]>().to_vec());
                (key(random.random_range(0..keys)), (!delete).then_some(value))
            })
            .collect();
        self.block(&changes)
    }

    pub(crate) fn revert(&mut self, number: u64, values: ExpectedValues) {
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store.revert(number, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        (self.number, self.values) = (number + 1, values);
    }

    /// The state of the tip.
    pub(crate) fn tip(&self) -> StateProvider {
        self.store.at(StateId::Tip).unwrap()
    }

    /// Proves `keys` at the tip and checks what the proof shows.
    pub(crate) fn prove(&self, keys: &[StateKey]) -> StateProof {
        let proof = self.tip().prove(keys).unwrap();
        self.check_proof(keys, proof.root, &proof.bytes).unwrap();
        proof
    }

    pub(crate) fn check_proof(
        &self,
        keys: &[StateKey],
        root: B256,
        proof: &[u8],
    ) -> Result<(), ProofError> {
        let shown =
            self.store.backend().verify(root, &retrie_state::KeyForm::Plain.keys(keys), proof)?;
        let expected: Vec<_> = keys.iter().map(|key| self.values.get(key).cloned()).collect();
        assert_eq!(shown, expected);
        Ok(())
    }

    /// The number of rows of a table.
    pub(crate) fn rows(&self, table: &str) -> u64 {
        let stats = self.store.stats().unwrap().backend;
        stats.tables.iter().find(|(name, _)| *name == table).unwrap().1
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
        if let Err(end) = self.store.check(&scratch, &mut faults) {
            faults.0.push(end.to_string());
        }
        // The values of these tests are not canonical storage words.
        faults.0.retain(|fault| !fault.contains("does not decode"));
        faults.0
    }
}
