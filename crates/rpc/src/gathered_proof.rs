//! Proofs of which this node may keep a part only: the other parts come from proof peers.
//!
//! ```text
//!  accounts and slots --prove--> the whole proof
//!                      '--prove_part--> own part --peers--> the whole proof, verified
//! ```

use crate::{
    RpcContext, RpcError, RpcResult,
    proof_peers::{GatherError, PartRequest, ProofAssembler},
};
use alloy_primitives::{B256, Bytes};
use retrie_engine::StateNeed;
use retrie_light_client::AccountReads;
use retrie_state::{BackendKey, ProofError, ProofHole, StateError, StateKey, StateProof};
use retrie_state_store::StateProvider;
use std::sync::Arc;

/// Most accounts and slots of one proof of several accounts.
pub(crate) const MAX_KEYS: usize = 16_384;

/// A proof of accounts and slots, or this node's part of it.
pub(crate) struct BegunProof {
    reads: Vec<AccountReads>,
    /// The proof, or this node's part.
    proof: StateProof,
    /// Of a part, the error that names the missing shard.
    outside: Option<StateError>,
}

impl BegunProof {
    /// As much as this node has of the proof of `reads` in `state`.
    ///
    /// # Errors
    /// As [`StateProvider::prove`]; [`StateError::OutsideShard`] only if there are no peers to ask.
    pub(crate) fn of(
        rpc: &RpcContext,
        state: &StateProvider,
        reads: Vec<AccountReads>,
    ) -> RpcResult<Self> {
        let keys = AccountReads::keys(&reads);
        let (proof, outside) = match state.prove(&keys) {
            Err(outside @ StateError::OutsideShard { .. }) if rpc.proof_peers.is_some() => {
                (state.prove_part(&keys)?, Some(outside))
            }
            proof => (proof?, None),
        };
        Ok(Self { reads, proof, outside })
    }

    /// The number of the block whose state is shown, if its root is not what the proof leads to.
    pub(crate) const fn as_of(&self) -> Option<u64> {
        self.proof.as_of
    }

    /// The whole proof. While it asks other nodes, it holds no thread, permit or view: otherwise two
    /// nodes that ask each other could block each other.
    ///
    /// # Errors
    /// If no peer returns a part that is needed.
    pub(crate) async fn finish(self, rpc: &Arc<RpcContext>) -> RpcResult<StateProof> {
        let Self { reads, proof: own, outside } = self;
        let Some(outside) = outside else { return Ok(own) };
        let Some(peers) = &rpc.proof_peers else { return Err(outside.into()) };
        let parts = OwnProofPart {
            rpc: rpc.clone(),
            keys: AccountReads::keys(&reads),
            block: own.block.hash,
            root: own.root,
            own: own.bytes.clone(),
        };
        let ask = PartRequest { reads, block: own.block.hash };
        let bytes = peers.gather(ask, Arc::new(parts)).await.map_err(|error| match error {
            GatherError::Own(error) => error,
            error => RpcError::Rejected(format!("{outside}: {error}")),
        })?;
        Ok(StateProof { bytes, ..own })
    }
}

/// Checks parts of a proof against this node's own part and state.
struct OwnProofPart {
    rpc: Arc<RpcContext>,
    keys: Vec<StateKey>,
    block: B256,
    root: B256,
    own: Bytes,
}

impl OwnProofPart {
    fn all(&self, others: &[Bytes]) -> Vec<Bytes> {
        [&self.own].into_iter().chain(others).cloned().collect()
    }

    fn backend_keys(&self) -> Vec<BackendKey> {
        self.rpc.live.chain().state().keys().keys(&self.keys)
    }
}

impl ProofAssembler for OwnProofPart {
    fn holes(&self, others: &[Bytes]) -> Result<Vec<ProofHole>, ProofError> {
        let shards = self.rpc.live.backend().extensions().proof_shards.ok_or(NO_SHARDS)?;
        shards.holes(&self.backend_keys(), &self.all(others))
    }

    fn fills(&self, shard: &str, hole: &ProofHole) -> bool {
        let shards = self.rpc.live.backend().extensions().proof_shards;
        shards.is_some_and(|shards| shards.fills(shard, hole))
    }

    fn finish(&self, others: &[Bytes]) -> Result<Bytes, ProofError> {
        let backend = self.rpc.live.backend();
        let whole =
            backend.extensions().proof_shards.ok_or(NO_SHARDS)?.combine(&self.all(others))?;
        backend.verify(self.root, &self.backend_keys(), &whole)?;
        Ok(whole)
    }

    fn check(&self, part: &Bytes) -> RpcResult<Result<(), ProofError>> {
        let state = self.rpc.view()?.state_at(&self.block, StateNeed::Proofs)?;
        Ok(state.check_part(&self.keys, &self.own, part)?)
    }
}

const NO_SHARDS: ProofError = ProofError::WrongKind { what: "the backend has no proof shards" };
