//! Proofs of any backend, from a retrie node.

use super::{RpcClient, RpcError, quantity, wire::RpcCall};
use alloy_primitives::{Address, B256};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::ops::RangeInclusive;

impl RpcClient {
    /// The answer to `state_getProof` (`docs/formats/proofs.md`): an account and some of its slots
    /// after block `at`, with their proof. Nothing is checked. `T` is the type of the answer.
    ///
    /// # Errors
    /// [`RpcErrorKind::Pruned`](super::RpcErrorKind::Pruned) if the node has dropped this state, or
    /// why the node did not answer. Only retrie nodes have the method.
    pub fn state_proof<T: DeserializeOwned>(
        &self,
        address: &Address,
        slots: &[B256],
        at: u64,
    ) -> Result<T, RpcError> {
        let params = json!([address, slots, quantity(at)]);
        self.one(&RpcCall::new("state_getProof", params, Some(at)))
    }

    /// The values of an account, or of one of its slots, over a range of blocks, with the proof
    /// (`state_getProvenance`). `T` is the type of the answer.
    ///
    /// # Errors
    /// Why the node did not answer. Only retrie nodes have the method.
    pub fn provenance<T: DeserializeOwned>(
        &self,
        address: &Address,
        slot: Option<&B256>,
        blocks: &RangeInclusive<u64>,
    ) -> Result<T, RpcError> {
        let (from, to) = (quantity(*blocks.start()), quantity(*blocks.end()));
        self.one(&RpcCall::new("state_getProvenance", json!([address, slot, from, to]), None))
    }
}
