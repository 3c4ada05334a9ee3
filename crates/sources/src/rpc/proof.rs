//! Proofs of any backend from a node of ours.

use super::{RpcClient, RpcError, quantity, wire::Call};
use alloy_primitives::{Address, B256};
use serde::de::DeserializeOwned;
use serde_json::json;

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
}
