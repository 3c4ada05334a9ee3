//! [`BlockWitness`]: what it takes to show what a block reads, on any store with proofs.

use crate::{BundleError, PipelineError};
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_execution::RecordedAccesses;
use retrie_state::{Account, AnyBackend, BackendKey, StateError, StateKey};
use retrie_state_store::StateProvider;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Instant};

/// One proof of all accounts and slots that a block read, and the codes of those accounts. What the
/// root after the block needs beyond that, such as siblings of deleted leaves, is not in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockWitness {
    /// Accounts and slots.
    pub keys: u64,
    /// Bytes of the proof.
    pub proof_bytes: u64,
    /// Bytes of the same, compressed with zstd (level 3).
    pub proof_zstd_bytes: u64,
    /// Bytes of all codes of the accounts.
    pub code_bytes: u64,
    /// Seconds to make the proof.
    pub prove_seconds: f64,
    /// Seconds to verify it.
    pub verify_seconds: f64,
}

impl BlockWitness {
    /// Proves `accesses` in `state`, and verifies the proof. `None` if the backend has no proofs.
    ///
    /// # Errors
    /// [`BundleError::WrongWitness`] if the proof does not verify to the values that were read;
    /// errors of the state store.
    pub(super) fn make(
        backend: &dyn AnyBackend,
        state: &StateProvider,
        accesses: &RecordedAccesses,
        codes: &HashMap<B256, Bytes>,
    ) -> Result<Option<Self>, PipelineError> {
        if !backend.profile().proofs || accesses.values.is_empty() {
            return Ok(None);
        }
        let (keys, values): (Vec<StateKey>, Vec<_>) = accesses.values.clone().into_iter().unzip();
        let start = Instant::now();
        let proof = match state.prove(&keys) {
            // This shard has the proof data of some keys only.
            Err(StateError::OutsideShard { .. }) => return Ok(None),
            proof => proof?,
        };
        let prove_seconds = start.elapsed().as_secs_f64();
        let named: Vec<BackendKey> = keys.iter().map(|key| (*key).into()).collect();
        let start = Instant::now();
        let shown = backend.verify(proof.root, &named, &proof.bytes);
        let verify_seconds = start.elapsed().as_secs_f64();
        if shown.as_ref() != Ok(&values) {
            let backend = backend.identity().name;
            return Err(BundleError::WrongWitness { backend, source: shown.err() }.into());
        }
        let accounts = values.iter().zip(&keys).filter_map(|(value, key)| match key {
            StateKey::Account(_) => Account::decode(value.as_ref()?),
            StateKey::Slot(..) => None,
        });
        let hashes: BTreeSet<B256> = accounts.map(|account| account.code_hash).collect();
        let code_bytes = hashes.iter().filter_map(|hash| codes.get(hash)).map(|code| code.len());
        let compressed = zstd::bulk::compress(&proof.bytes, 3);
        let compressed = compressed
            .map_err(|source| PipelineError::Io { action: "compressing a proof".into(), source })?;
        Ok(Some(Self {
            keys: keys.len() as u64,
            proof_bytes: proof.bytes.len() as u64,
            proof_zstd_bytes: compressed.len() as u64,
            code_bytes: code_bytes.sum::<usize>() as u64,
            prove_seconds,
            verify_seconds,
        }))
    }
}
