//! Making bundles: a block of an archive node, with all the state that it reads.
//!
//! ```text
//!  node --block--> execute over RemoteState --accesses--> prestate bundle --> proofs, if offered
//!        ^----------------'  reads on demand                   |
//!                                              encode, parse, replay offline --> file
//! ```
//!
//! The accesses are complete: the bundle has every key that the EVM asked for. The node is trusted
//! only as far as it is checked. The bundle, as read back from its JSON, must replay to the
//! header's gas, bloom, receipts and requests. If the node gives proofs (`eth_getProof`), every
//! account and slot must be in the state with the parent's state root; this finds wrong values that
//! no check of the block would notice.

use super::{BundleReplay, BundleReplayOptions, remote::RemoteState};
use crate::{BundleError, PipelineError, recover::recover_senders};
use alloy_primitives::{Address, B256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock},
};
use retrie_execution::{AccessRecorder, ExecutionInput, RecordedAccesses, execute_block};
use retrie_sources::{
    Bundle, PreAccount, PreState, PrestateBundle, RpcClient, RpcError, bundle::encode_prestate,
    rpc::RpcErrorKind,
};
use retrie_state::{
    Account, AnyBackend, PartialState, StateDelta, StateKey, StateReader, StateValue, decode_slot,
};
use retrie_state_store::{MemoryStore, StateStore, StoreOptions};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
    sync::Arc,
};

/// Makes bundles from the blocks of one node.
pub struct BundleMaker<'a> {
    /// The node, an archive node of the same chain.
    pub client: &'a RpcClient,
    /// Rules of the chain.
    pub spec: Arc<ChainSpec>,
    /// Any backend. Bundles are replayed on it, in memory.
    pub backend: Arc<dyn AnyBackend>,
    /// A backend that opens witnesses. It checks the node's proofs.
    pub opener: Option<&'a dyn PartialState>,
}

impl std::fmt::Debug for BundleMaker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleMaker")
            .field("client", &self.client.endpoint())
            .field("chain", &self.spec.name())
            .finish_non_exhaustive()
    }
}

/// A bundle that was made and replays.
#[derive(Debug)]
pub struct MadeBundle {
    /// The bundle, as read from `json`.
    pub bundle: Bundle,
    /// The content of its file.
    pub json: Vec<u8>,
    /// Whether its state was proved under the parent's state root.
    pub proved: bool,
}

/// Slots in one proof request, at most.
const SLOTS_PER_PROOF: usize = 256;

impl BundleMaker<'_> {
    /// Makes the bundle of a block, to be stored in `file`. Does not write the file.
    ///
    /// # Errors
    /// If the node does not answer, lacks the state, or its answers contradict each other. The
    /// error names the node and the block.
    pub fn make(&self, number: u64, file: &Path) -> Result<MadeBundle, PipelineError> {
        let Some(parent) = number.checked_sub(1) else {
            return Err(BundleError::Genesis.into());
        };
        let block = self.client.block(number)?;
        let (parent_hash, parent_header) = self.client.header(parent)?;
        if parent_hash != block.header.parent_hash {
            let kind = RpcErrorKind::Mismatch {
                what: "hash of the parent",
                expected: block.header.parent_hash,
                got: parent_hash,
            };
            return Err(self.error("eth_getBlockByNumber", parent, kind).into());
        }
        self.make_from(block, parent_header.state_root, file).map_err(|error| match error {
            rpc @ PipelineError::Rpc(_) => rpc,
            error => BundleError::FromNode {
                endpoint: self.client.endpoint().to_owned(),
                number,
                source: Box::new(error),
            }
            .into(),
        })
    }

    /// Replays a bundle offline.
    ///
    /// # Errors
    /// [`BundleError::Replay`] names the failed checks.
    pub fn check(&self, bundle: &Bundle) -> Result<(), PipelineError> {
        let kv = MemoryStore::new();
        let options = StoreOptions::default();
        let store = StateStore::open(self.backend.clone(), Arc::new(kv.clone()), options)?;
        let options = BundleReplayOptions {
            spec: self.spec.clone(),
            witness_opener: self.opener,
            witnesses: false,
        };
        let mut replay = BundleReplay::new(&options, &store, &kv)?;
        let outcome = replay.run(bundle)?;
        if outcome.ok() {
            Ok(())
        } else {
            Err(BundleError::Replay { failure: outcome.failure() }.into())
        }
    }

    fn make_from(
        &self,
        block: Block,
        parent_root: B256,
        file: &Path,
    ) -> Result<MadeBundle, PipelineError> {
        let block = recover_senders(&self.spec, block)?;
        let header = block.header();
        let spec = self.spec.for_header(header);
        let remote = RemoteState::new(self.client, header.number - 1, header.parent_hash);
        remote.prefetch(&block)?;
        let (values, proved) = loop {
            let values = self.execute(&spec, &block, &remote)?;
            match self.prove(header.number - 1, parent_root, &values)? {
                ProofCheck::None => break (values, false),
                ProofCheck::Holds => break (values, true),
                // This ends: each round adds at least one of finitely many accounts.
                ProofCheck::EmptyAccounts(addresses) => {
                    for address in addresses {
                        let empty = Account::default().encode();
                        remote.know(StateKey::Account(address), Some(empty));
                    }
                }
            }
        };
        let (codes, block_hashes) = remote.into_read();
        let state = PrestateBundle {
            senders: block.senders().to_vec(),
            uncle_hashes: block.body().ommers_hashes().collect(),
            block_hashes,
            pre: pre_state(values),
            codes,
        };
        let fork = spec.fork_at_header(header).to_string();
        let json = encode_prestate(&block.clone_block(), &fork, &state);
        let bundle = Bundle::parse(file, &json)?;
        self.check(&bundle)?;
        Ok(MadeBundle { bundle, json, proved })
    }

    /// Every key that the block reads or writes, with its value before the block.
    fn execute(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        remote: &RemoteState<'_>,
    ) -> Result<BTreeMap<StateKey, Option<StateValue>>, PipelineError> {
        let recorder = AccessRecorder::new(remote);
        let input = ExecutionInput::new(&recorder, remote, remote);
        let failed = |error: PipelineError| match remote.take_failure() {
            Some(cause) => cause.into(),
            None => error,
        };
        let outcome = execute_block(spec, block, input).map_err(|error| failed(error.into()))?;
        complete(recorder.into_accesses(), &outcome.delta, remote)
            .map_err(|error| failed(error.into()))
    }

    /// Checks values against the state root, if the node gives proofs.
    fn prove(
        &self,
        at: u64,
        root: B256,
        values: &BTreeMap<StateKey, Option<StateValue>>,
    ) -> Result<ProofCheck, PipelineError> {
        let Some(opener) = self.opener else { return Ok(ProofCheck::None) };
        let mut slots: BTreeMap<Address, Vec<B256>> = BTreeMap::new();
        for key in values.keys() {
            let slots = slots.entry(*key.address()).or_default();
            if let StateKey::Slot(_, slot) = key {
                slots.push(*slot);
            }
        }
        let mut wanted = Vec::new();
        for (address, slots) in slots {
            if slots.is_empty() {
                wanted.push((address, slots));
            } else {
                wanted.extend(slots.chunks(SLOTS_PER_PROOF).map(|some| (address, some.to_vec())));
            }
        }
        let nodes = match self.client.proofs(&wanted, at) {
            Ok(nodes) => nodes,
            Err(error) if error.kind.is_refusal() => {
                tracing::debug!("{error}; the state is checked by execution alone");
                return Ok(ProofCheck::None);
            }
            Err(error) => return Err(error.into()),
        };
        if wanted.is_empty() {
            return Ok(ProofCheck::Holds);
        }
        let lacking = |source| BundleError::Proof { source: Box::new(source) };
        let tree = opener.open_witness(root, &nodes).map_err(lacking)?;
        let empty = Account::default().encode();
        let mut found_empty = Vec::new();
        for (key, value) in values {
            let proved = tree.get(key).map_err(lacking)?;
            match key {
                StateKey::Account(address)
                    if value.is_none() && proved.as_ref() == Some(&empty) =>
                {
                    found_empty.push(*address);
                }
                _ if proved == *value => {}
                _ => return Err(BundleError::NotProved { key: *key, root }.into()),
            }
        }
        Ok(if found_empty.is_empty() {
            ProofCheck::Holds
        } else {
            ProofCheck::EmptyAccounts(found_empty)
        })
    }

    fn error(&self, method: &'static str, block: u64, kind: RpcErrorKind) -> RpcError {
        RpcError {
            endpoint: self.client.endpoint().to_owned(),
            method,
            block: Some(block),
            kind: Box::new(kind),
        }
    }
}

/// What the node's proofs show.
enum ProofCheck {
    /// The node gives no proofs.
    None,
    /// All values are in the state with this root.
    Holds,
    /// All values but these accounts: they exist and are empty, which matters before EIP-161.
    EmptyAccounts(Vec<Address>),
}

/// The accesses, with the keys that are written but not read, and with the account of each slot.
fn complete(
    accesses: RecordedAccesses,
    delta: &StateDelta,
    state: &dyn StateReader,
) -> Result<BTreeMap<StateKey, Option<StateValue>>, retrie_state::StateError> {
    let mut values = accesses.values;
    for change in delta.changes() {
        values.entry(change.key).or_insert_with(|| change.previous.clone());
    }
    let addresses: Vec<_> = values.keys().map(|key| *key.address()).collect();
    for address in addresses {
        if let Entry::Vacant(entry) = values.entry(StateKey::Account(address)) {
            let value = state.get(entry.key())?;
            entry.insert(value);
        }
    }
    Ok(values)
}

/// Keys and values in the form of a bundle. Accounts come before their slots.
fn pre_state(values: BTreeMap<StateKey, Option<StateValue>>) -> PreState {
    let mut pre = PreState::new();
    for (key, value) in values {
        match key {
            StateKey::Account(address) => {
                let account = value.and_then(|v| Account::decode(&v)).map(|account| PreAccount {
                    nonce: account.nonce,
                    balance: account.balance,
                    code_hash: account.code_hash,
                    storage_root: None,
                    storage: BTreeMap::new(),
                });
                pre.insert(address, account);
            }
            StateKey::Slot(address, slot) => {
                if let (Some(Some(account)), Some(value)) =
                    (pre.get_mut(&address), value.and_then(|v| decode_slot(&v)))
                {
                    account.storage.insert(slot, value);
                }
            }
        }
    }
    pre
}
