//! [`BlockWitness`]: what it takes to show what a block reads, on any store with proofs.

use crate::{BundleError, PipelineError};
use alloy_primitives::{B256, Bytes, map::HashMap};
use retrie_execution::{ExecutedChunks, RecordedAccesses};
use retrie_state::{Account, AnyBackend, BackendKey, CodePart, StateError, StateKey};
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
    /// If the root commits to codes in chunks: those that the block executes, in the same proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_proof: Option<CodeProofFigures>,
    /// Seconds to make the proof.
    pub prove_seconds: f64,
    /// Seconds to verify it.
    pub verify_seconds: f64,
}

/// A proof of keys and of chunks of codes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeProofFigures {
    /// Chunks that the block's transactions execute.
    pub chunks: u64,
    /// Bytes of the proof of these and of all keys.
    pub proof_bytes: u64,
}

/// What a block needs of the state before it.
pub(super) struct BlockNeeds<'a> {
    /// Accounts and slots that it reads.
    pub(super) accesses: &'a RecordedAccesses,
    /// Codes, by their hashes.
    pub(super) codes: &'a HashMap<B256, Bytes>,
    /// Gives the chunks of so many bytes that it executes.
    pub(super) executed: &'a dyn Fn(usize) -> Result<ExecutedChunks, PipelineError>,
}

impl BlockWitness {
    /// Bytes of proof and code: of chunks that the proof shows, or else of whole codes.
    pub fn bytes_with_code(&self) -> u64 {
        let whole = self.proof_bytes + self.code_bytes;
        self.code_proof.as_ref().map_or(whole, |proof| proof.proof_bytes)
    }

    /// Proves what a block needs in `state`, and verifies the proofs. `None` if the backend has no
    /// proofs.
    ///
    /// # Errors
    /// [`BundleError::WrongWitness`] if the proof does not verify to the values that were read;
    /// errors of the state store.
    pub(super) fn make(
        backend: &dyn AnyBackend,
        state: &StateProvider,
        needs: BlockNeeds<'_>,
    ) -> Result<Option<Self>, PipelineError> {
        let BlockNeeds { accesses, codes, executed } = needs;
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
        let wrong = |source| {
            let backend = backend.identity().name;
            PipelineError::from(BundleError::WrongWitness { backend, source })
        };
        if shown.as_ref() != Ok(&values) {
            return Err(wrong(shown.err()));
        }
        let accounts = values.iter().zip(&keys).filter_map(|(value, key)| match key {
            StateKey::Account(_) => Account::decode(value.as_ref()?),
            StateKey::Slot(..) => None,
        });
        let hashes: BTreeSet<B256> = accounts.map(|account| account.code_hash).collect();
        let code_proof = match backend.extensions().code_proofs {
            None => None,
            Some(proofs) => {
                let part = |(hash, chunks): (B256, BTreeSet<u32>)| {
                    // A code that the block itself creates is in no account yet.
                    let code = codes.get(&hash).filter(|_| hashes.contains(&hash))?.clone();
                    // Chunks of zeros are in no tree.
                    let bytes = code.chunks(proofs.chunk_bytes()).collect::<Vec<_>>();
                    let is_set = |chunk: &u32| {
                        bytes
                            .get(*chunk as usize)
                            .is_some_and(|all| all.iter().any(|byte| *byte > 0))
                    };
                    let chunks = chunks.into_iter().filter(is_set).collect();
                    Some(CodePart { code, chunks })
                };
                let executed = executed(proofs.chunk_bytes())?;
                let parts: Vec<CodePart> = executed.into_iter().filter_map(part).collect();
                let proof = state.prove_with_codes(&keys, &parts)?;
                let shown = proofs.verify_with_codes(proof.root, &named, &parts, &proof.bytes);
                if shown.as_ref() != Ok(&values) {
                    return Err(wrong(shown.err()));
                }
                let chunks = parts.iter().map(|part| part.chunks.len() as u64).sum();
                Some(CodeProofFigures { chunks, proof_bytes: proof.bytes.len() as u64 })
            }
        };
        let code_bytes = hashes.iter().filter_map(|hash| codes.get(hash)).map(|code| code.len());
        let compressed = zstd::bulk::compress(&proof.bytes, 3);
        let compressed = compressed
            .map_err(|source| PipelineError::Io { action: "compressing a proof".into(), source })?;
        Ok(Some(Self {
            keys: keys.len() as u64,
            proof_bytes: proof.bytes.len() as u64,
            proof_zstd_bytes: compressed.len() as u64,
            code_bytes: code_bytes.sum::<usize>() as u64,
            code_proof,
            prove_seconds,
            verify_seconds,
        }))
    }
}
