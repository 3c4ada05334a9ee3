//! Payloads that are answered with the witness of their block.

use super::{ApiResult, EngineApi, EngineApiError, METHODS};
use crate::EngineError;
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_engine::PayloadStatus;

#[cfg(doc)]
use retrie_sources::witness::ExecutionWitness;

/// The methods of this API that stores of Ethereum's trie have.
const WITNESS_METHODS: &[&str] = &[
    "engine_newPayloadWithWitnessV1",
    "engine_newPayloadWithWitnessV2",
    "engine_newPayloadWithWitnessV3",
    "engine_newPayloadWithWitnessV4",
    "engine_newPayloadWithWitnessV5",
];

impl EngineApi {
    /// The methods for `engine_exchangeCapabilities`.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub async fn capabilities(&self) -> ApiResult<Vec<&'static str>> {
        self.read(|view| {
            let has_witnesses = view.witness_obstacle(view.head().timestamp).is_none();
            let witnesses = if has_witnesses { WITNESS_METHODS } else { &[] };
            Ok([METHODS, witnesses].concat())
        })
        .await
    }

    /// `engine_newPayloadWithWitnessV1` to `V5`, as geth has them: the answer of `sent`, the method
    /// without a witness for the payload with this block hash and timestamp; if the block is valid, with
    /// RLP of its [`ExecutionWitness`]. The block is executed a second time for it.
    ///
    /// A valid block whose witness cannot be made, say one that is known and too old, has none.
    ///
    /// # Errors
    /// [`EngineApiError::NoWitness`] before anything is sent, if no block here has a witness.
    pub async fn with_witness(
        &self,
        (hash, timestamp): (B256, u64),
        sent: impl Future<Output = ApiResult<PayloadStatus>>,
    ) -> ApiResult<(PayloadStatus, Option<Bytes>)> {
        self.read(move |view| match view.witness_obstacle(timestamp) {
            None => Ok(()),
            Some(why) => {
                let backend = view.live().backend().identity().name;
                Err(EngineApiError::NoWitness { backend, why })
            }
        })
        .await?;
        let status = sent.await?;
        if !status.is_valid() {
            return Ok((status, None));
        }
        let made = self.read(move |view| {
            let Some(block) = view.block(&hash).map_err(EngineError::from)? else {
                return Ok(None);
            };
            let witness = view.execution_witness(&block).map_err(EngineError::from)?;
            Ok(Some(Bytes::from(alloy_rlp::encode(&witness))))
        });
        let witness = made.await.unwrap_or_else(|error| {
            tracing::warn!(%hash, %error, "a valid payload has no witness");
            None
        });
        Ok((status, witness))
    }
}
