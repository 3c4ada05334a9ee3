//! A chain on a store in memory, and the values it should have.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, rngs::StdRng};
use retrie_light_client::{Account, KeyForm, StateKey, StateProof, StateValue};
use retrie_state::{AnyBackend, Backend, BlockRef, DeltaBuilder, ValueVersion, encode_slot};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};
use tempfile::TempDir;

pub(crate) type ValueMap = BTreeMap<StateKey, StateValue>;

pub(crate) struct TestChain {
    kv: MemoryStore,
    pub(crate) store: StateStore,
    /// Folder of the backend's files; removed after the store is closed.
    _dir: TempDir,
    /// The values after each block.
    pub(crate) states: Vec<ValueMap>,
    /// Headers with the backend's roots.
    pub(crate) headers: Vec<Header>,
    /// Codes that accounts may have, by their keccak-256. A block brings those of its accounts.
    pub(crate) codes: BTreeMap<B256, Bytes>,
}

impl TestChain {
    pub(crate) fn new(backend: impl Backend) -> Self {
        Self::on(Arc::new(backend), KeyForm::Plain)
    }

    /// On a store with this form of keys.
    pub(crate) fn on(backend: Arc<dyn AnyBackend>, keys: KeyForm) -> Self {
        let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
        let dir_path = Some(dir.path().to_owned());
        let options = StoreOptions { dir: dir_path, keys, ..StoreOptions::default() };
        let store = StateStore::open(backend, Arc::new(kv.clone()), options);
        Self {
            kv,
            store: store.unwrap(),
            _dir: dir,
            states: Vec::new(),
            headers: Vec::new(),
            codes: BTreeMap::new(),
        }
    }

    /// Commits a block that sets (or deletes) these keys.
    pub(crate) fn block(&mut self, changes: &BTreeMap<StateKey, Option<StateValue>>) {
        let number = self.headers.len() as u64;
        let mut values = self.states.last().cloned().unwrap_or_default();
        let mut delta = DeltaBuilder::new();
        for (key, next) in changes {
            delta.change(*key, values.get(key).cloned(), next.clone());
            if let (StateKey::Account(_), Some(value)) = (key, next)
                && let Some(account) = Account::decode(value)
                && let Some(code) = self.codes.get(&account.code_hash)
            {
                delta.add_code(account.code_hash, code.clone());
            }
            match next {
                Some(value) => values.insert(*key, value.clone()),
                None => values.remove(key),
            };
        }
        let session = self.store.begin(StateId::Tip).unwrap();
        let proposal = session.finish_as(number, &delta.build()).unwrap();
        let header = Header {
            parent_hash: self.headers.last().map(Header::hash_slow).unwrap_or_default(),
            state_root: proposal.root(),
            number,
            gas_limit: 30_000_000,
            timestamp: 1_700_000_000 + 12 * number,
            // Headers with and without the fields of a later fork, which differ in length.
            base_fee_per_gas: (number % 2 == 1).then_some(7),
            ..Header::default()
        };
        self.store.seal(&proposal, header.hash_slow());
        let mut txn = self.kv.begin_write().unwrap();
        let after = self.store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        self.states.push(values);
        self.headers.push(header);
    }

    pub(crate) fn hash(&self, number: u64) -> B256 {
        self.headers[number as usize].hash_slow()
    }

    pub(crate) fn tip(&self) -> u64 {
        self.headers.len() as u64 - 1
    }

    /// A proof under the block's own root.
    pub(crate) fn prove(&self, number: u64, keys: &[StateKey]) -> StateProof {
        // Archives have history; other backends find retained states by hash.
        match self
            .store
            .backend()
            .extensions()
            .history
            .is_some_and(|history| !history.proven_by_view())
        {
            true => self.prove_past(number, keys),
            false => {
                let state = self.store.at(StateId::Block(self.hash(number))).unwrap();
                state.prove(keys).unwrap()
            }
        }
    }

    /// A proof by the backend's history, under the root that the backend chooses.
    pub(crate) fn prove_past(&self, number: u64, keys: &[StateKey]) -> StateProof {
        self.store.history(BlockRef::new(number, self.hash(number))).unwrap().prove(keys).unwrap()
    }

    /// The versions of `key` in a range of blocks, newest first.
    pub(crate) fn versions(
        &self,
        key: &StateKey,
        blocks: &RangeInclusive<u64>,
    ) -> Vec<ValueVersion> {
        let mut versions: Vec<ValueVersion> = Vec::new();
        let mut value = None;
        for (state, block) in self.states.iter().zip(0..=*blocks.end()) {
            let next = state.get(key);
            if next != value {
                if block <= *blocks.start() {
                    versions.clear();
                }
                versions.push(ValueVersion { block, value: next.cloned() });
                value = next;
            }
        }
        versions.reverse();
        versions
    }

    pub(crate) fn truth(&self, number: u64, keys: &[StateKey]) -> Vec<Option<StateValue>> {
        keys.iter().map(|key| self.states[number as usize].get(key).cloned()).collect()
    }
}

pub(crate) fn address(random: &mut StdRng) -> Address {
    Address::from(random.random::<[u8; 20]>())
}

pub(crate) fn word(random: &mut StdRng) -> B256 {
    B256::from(random.random::<[u8; 32]>())
}

/// An account of any kind: with code or without, with nothing at all.
pub(crate) fn account(random: &mut StdRng) -> StateValue {
    let mut account = Account::default();
    if random.random_ratio(9, 10) {
        account.nonce = random.random::<u64>() >> random.random_range(8..64);
        account.balance = U256::from(random.random::<u128>() >> random.random_range(30..128));
    }
    if random.random_ratio(1, 5) {
        account.code_hash = word(random);
    }
    account.encode()
}

pub(crate) fn slot_value(random: &mut StdRng) -> StateValue {
    let bytes: Bytes = random.random::<[u8; 32]>().into();
    let shift = random.random_range(0..31) * 8;
    encode_slot((U256::from_be_slice(&bytes) >> shift) | U256::from(1)).unwrap()
}

/// Random accounts as changes; `slots` are the numbers of their slots.
pub(crate) fn accounts(
    random: &mut StdRng,
    slots: impl IntoIterator<Item = usize>,
) -> BTreeMap<StateKey, Option<StateValue>> {
    let mut all = BTreeMap::new();
    for slots in slots {
        let address = address(random);
        all.insert(StateKey::Account(address), Some(account(random)));
        for _ in 0..slots {
            all.insert(StateKey::Slot(address, word(random)), Some(slot_value(random)));
        }
    }
    all
}

/// Changes of one in `one_in` keys of a state: new values, and deleted slots.
pub(crate) fn changes(
    random: &mut StdRng,
    state: &ValueMap,
    one_in: u32,
) -> BTreeMap<StateKey, Option<StateValue>> {
    let mut changed = BTreeMap::new();
    for key in state.keys() {
        if random.random_ratio(1, one_in) {
            let value = match key {
                StateKey::Account(_) => Some(account(random)),
                StateKey::Slot(..) => random.random_ratio(3, 4).then(|| slot_value(random)),
            };
            changed.insert(*key, value);
        }
    }
    changed
}
