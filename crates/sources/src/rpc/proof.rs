//! Proofs of any backend from a node of ours.

use super::{RpcClient, RpcError, quantity, wire::Call};
use alloy_primitives::{Address, B256};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::ops::RangeInclusive;

impl RpcClient {
    /// The answer to `state_getProof` (`docs/formats/proofs.md`): an account and some of its slots
    /// after block `at`, with their proof, none of it checked. `T` is how the caller reads it.
    ///
    /// # Errors
    /// [`RpcErrorKind::Pruned`](super::RpcErrorKind::Pruned) if the node has dropped that state, or
    /// what kept it from answering. Only nodes of this program know the method.
    pub fn state_proof<T: DeserializeOwned>(
        &self,
        address: &Address,
        slots: &[B256],
        at: u64,
    ) -> Result<T, RpcError> {
        let params = json!([address, slots, quantity(at)]);
        self.one(&Call::new("state_getProof", params, Some(at)))
    }

    /// What an account, or a slot of it, was over a range of blocks, with the proof
    /// (`state_getProvenance`), as `T` reads it.
    ///
    /// # Errors
    /// What kept the node from answering. Only nodes of this program know the method.
    pub fn provenance<T: DeserializeOwned>(
        &self,
        address: &Address,
        slot: Option<&B256>,
        blocks: &RangeInclusive<u64>,
    ) -> Result<T, RpcError> {
        let (from, to) = (quantity(*blocks.start()), quantity(*blocks.end()));
        self.one(&Call::new("state_getProvenance", json!([address, slot, from, to]), None))
    }
}
