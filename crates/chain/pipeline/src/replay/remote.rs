//! The state of one block of an RPC node, fetched on demand.

use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, keccak256, map::HashMap};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_execution::{BlockHashes, CodeReader};
use retrie_sources::{RpcClient, RpcError, rpc::RemoteAccount};
use retrie_state::{
    Account, StateError, StateKey, StateReader, StateValue, StoreError, encode_slot,
};
use std::collections::{BTreeMap, BTreeSet};

/// State after block `at`, codes, and hashes of ancestors, of an archive node. Each is fetched
/// once.
///
/// An account without nonce, balance and code counts as absent, as the node's answers do not show
/// the difference; see [`know`](Self::know). The storage of an account cannot be listed.
#[derive(Debug)]
pub(super) struct RemoteState<'a> {
    client: &'a RpcClient,
    at: u64,
    known: Mutex<RemoteCache>,
}

#[derive(Debug, Default)]
struct RemoteCache {
    values: HashMap<StateKey, Option<StateValue>>,
    codes: HashMap<B256, Bytes>,
    /// Hashes of ancestors that were requested.
    hashes: BTreeMap<u64, B256>,
    /// Hashes of ancestors from block `at` down, each taken from the header of its child.
    chain: Vec<B256>,
    codes_read: BTreeSet<B256>,
    failure: Option<RpcError>,
}

impl<'a> RemoteState<'a> {
    /// The state after block `at`, whose hash is `hash`.
    pub(super) fn new(client: &'a RpcClient, at: u64, hash: B256) -> Self {
        let known = RemoteCache { chain: vec![hash], ..RemoteCache::default() };
        Self { client, at, known: Mutex::new(known) }
    }

    /// Fetches in few requests what the block will most likely read: the keys that its transactions
    /// name, and the keys that each of them would touch according to the node.
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

    /// Sets the value of `key`, whatever the node has answered.
    pub(super) fn know(&self, key: StateKey, value: Option<StateValue>) {
        self.known.lock().values.insert(key, value);
    }

    /// The error of the first failed read, if there is one.
    pub(super) fn take_failure(&self) -> Option<RpcError> {
        self.known.lock().failure.take()
    }

    /// Codes and ancestor hashes that were read.
    pub(super) fn into_read(self) -> (BTreeMap<B256, Bytes>, BTreeMap<u64, B256>) {
        let RemoteCache { codes, hashes, codes_read, .. } = self.known.into_inner();
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

    /// Keeps the error for the caller of the EVM, as the EVM returns only a state error.
    fn failed(&self, error: RpcError) -> StateError {
        let message = error.to_string();
        self.known.lock().failure.get_or_insert(error);
        StateError::Store(StoreError::new("reading from the node", message))
    }
}

impl StateReader for RemoteState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
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

    /// Called to see whether an account without nonce and code has storage (EIP-7610). A handful of
    /// such accounts exist on mainnet, from before Spurious Dragon; this method assumes that the
    /// account is none of them. If it is one, the replay of the bundle fails.
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        let is_bare = |account: Account| account.nonce == 0 && account.code_hash == KECCAK256_EMPTY;
        if self.account(address)?.is_none_or(is_bare) {
            return Ok(Vec::new());
        }
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
    /// Follows the headers down from block `at`, so that the node cannot invent a hash.
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        let Some(depth) = self.at.checked_sub(number) else { return Ok(None) };
        loop {
            let (walked, lowest) = {
                let mut known = self.known.lock();
                if let Some(hash) = known.chain.get(depth as usize).copied() {
                    known.hashes.insert(number, hash);
                    return Ok(Some(hash));
                }
                (known.chain.len() as u64, known.chain[known.chain.len() - 1])
            };
            let child = self.at + 1 - walked;
            let (hash, header) = self.client.header(child).map_err(|error| self.failed(error))?;
            if hash != lowest {
                let what = format!(
                    "block {child} is {hash}, but block {} stands on {lowest}: the node's answers \
                     contradict each other; if it was just reorganising, try again",
                    child + 1,
                );
                return Err(StoreError::new("reading from the node", what).into());
            }
            self.known.lock().chain.push(header.parent_hash);
        }
    }
}
