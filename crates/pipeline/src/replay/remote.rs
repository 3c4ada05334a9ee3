//! The state of one block as an RPC node tells it, fetched when it is first asked for.

use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, keccak256, map::HashMap};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_execution::{BlockHashes, CodeReader};
use retrie_sources::{RpcClient, RpcError, rpc::RemoteAccount};
use retrie_state::{Account, StateError, StateKey, StateReader, StoreError, Value, encode_slot};
use std::collections::{BTreeMap, BTreeSet};

/// State after block `at`, codes, and hashes of ancestors, of an archive node. Each is asked for
/// once.
///
/// An account that has neither nonce, balance nor code counts as absent, as the node's answers do not
/// tell the difference; see [`know`](Self::know). The storage of an account cannot be listed.
#[derive(Debug)]
pub(super) struct RemoteState<'a> {
    client: &'a RpcClient,
    at: u64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    values: HashMap<StateKey, Option<Value>>,
    codes: HashMap<B256, Bytes>,
    hashes: BTreeMap<u64, B256>,
    codes_read: BTreeSet<B256>,
    failure: Option<RpcError>,
}

impl<'a> RemoteState<'a> {
    pub(super) fn new(client: &'a RpcClient, at: u64) -> Self {
        Self { client, at, known: Mutex::default() }
    }

    /// Fetches in few requests what the block will most likely read: what its transactions name, and
    /// what the node says that each of them would touch.
    pub(super) fn prefetch(&self, block: &RecoveredBlock) -> Result<(), RpcError> {
        let touched = self
            .client
            .touched(block.transactions_with_sender().map(|(sender, tx)| (*sender, tx)), self.at)?;
        let body = block.body();
        let mut accounts: BTreeSet<Address> = [block.header().beneficiary].into();
        accounts.extend(body.ommers.iter().map(|ommer| ommer.beneficiary));
        accounts.extend(body.withdrawals.iter().flatten().map(|withdrawal| withdrawal.address));
        let mut slots = BTreeSet::new();
        for (sender, tx) in block.transactions_with_sender() {
            accounts.insert(*sender);
            accounts.extend(tx.to());
            for item in tx.access_list().map(|list| list.0.as_slice()).unwrap_or_default() {
                accounts.insert(item.address);
                slots.extend(item.storage_keys.iter().map(|slot| (item.address, *slot)));
            }
        }
        for (address, keys) in touched.into_iter().flatten() {
            accounts.insert(address);
            slots.extend(keys.into_iter().map(|slot| (address, slot)));
        }
        self.fetch_accounts(&accounts.into_iter().collect::<Vec<_>>())?;
        self.fetch_slots(&slots.into_iter().collect::<Vec<_>>())
    }

    /// From now on `key` has this value, whatever the node said.
    pub(super) fn know(&self, key: StateKey, value: Option<Value>) {
        self.known.lock().values.insert(key, value);
    }

    /// Why a read failed, if one did.
    pub(super) fn take_failure(&self) -> Option<RpcError> {
        self.known.lock().failure.take()
    }

    /// Codes and ancestor hashes that were read.
    pub(super) fn into_read(self) -> (BTreeMap<B256, Bytes>, BTreeMap<u64, B256>) {
        let Known { codes, hashes, codes_read, .. } = self.known.into_inner();
        let codes =
            codes_read.into_iter().filter_map(|hash| Some((hash, codes.get(&hash)?.clone())));
        (codes.collect(), hashes)
    }

    fn fetch_accounts(&self, addresses: &[Address]) -> Result<(), RpcError> {
        let accounts = self.client.accounts(addresses, self.at)?;
        let mut known = self.known.lock();
        for (address, RemoteAccount { nonce, balance, code }) in addresses.iter().zip(accounts) {
            let code_hash = if code.is_empty() { KECCAK256_EMPTY } else { keccak256(&code) };
            let account = Account { nonce, balance, code_hash };
            let value = (!account.is_empty()).then(|| account.encode());
            known.values.insert(StateKey::Account(*address), value);
            if !code.is_empty() {
                known.codes.insert(code_hash, code);
            }
        }
        Ok(())
    }

    fn fetch_slots(&self, keys: &[(Address, B256)]) -> Result<(), RpcError> {
        let values = self.client.slots(keys, self.at)?;
        let mut known = self.known.lock();
        for (&(address, slot), value) in keys.iter().zip(values) {
            known.values.insert(StateKey::Slot(address, slot), encode_slot(value));
        }
        Ok(())
    }

    /// Keeps the failure for whoever runs the EVM, which passes on only that there was one.
    fn failed(&self, error: RpcError) -> StateError {
        let message = error.to_string();
        self.known.lock().failure.get_or_insert(error);
        StateError::Store(StoreError::new("reading from the node", message))
    }
}

impl StateReader for RemoteState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        if let Some(value) = self.known.lock().values.get(key) {
            return Ok(value.clone());
        }
        match key {
            StateKey::Account(address) => self.fetch_accounts(&[*address]),
            StateKey::Slot(address, slot) => self.fetch_slots(&[(*address, *slot)]),
        }
        .map_err(|error| self.failed(error))?;
        Ok(self.known.lock().values.get(key).cloned().flatten())
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        Err(StateError::MissingWitness { what: format!("the whole storage of {address}") })
    }
}

impl CodeReader for RemoteState<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        let mut known = self.known.lock();
        known.codes_read.insert(*hash);
        Ok(known.codes.get(hash).cloned())
    }
}

impl BlockHashes for RemoteState<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        if let Some(hash) = self.known.lock().hashes.get(&number) {
            return Ok(Some(*hash));
        }
        let (hash, _) = self.client.header(number).map_err(|error| self.failed(error))?;
        self.known.lock().hashes.insert(number, hash);
        Ok(Some(hash))
    }
}
