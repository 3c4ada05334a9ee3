//! [`TestBlock`]: blocks built for tests, `testing_buildBlockV1` of execution-apis.

use crate::{
    BuilderConfig, EngineApiError, EngineError, LiveChain, PayloadBuilder,
    api::{ApiFork, envelope_v4, envelope_v5, envelope_v6},
    pool::TransactionPool,
};
use alloy_consensus::transaction::{Recovered, SignerRecoverable};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_engine::{
    ExecutionPayloadEnvelopeV4, ExecutionPayloadEnvelopeV5, ExecutionPayloadEnvelopeV6,
    PayloadAttributes,
};
use retrie_chainspec::primitives::Transaction;
use serde::Serialize;

/// Target gas limit; the default of other clients.
const GAS_TARGET: u64 = 60_000_000;

/// A request for a block, as a test specifies it.
#[derive(Clone, Debug)]
pub struct TestBlock {
    /// Hash of the parent.
    pub parent: B256,
    /// Payload attributes, of Cancun or later.
    pub attributes: PayloadAttributes,
    /// EIP-2718 encodings of the transactions, all of which must be included; `None` takes
    /// transactions of the pool.
    pub transactions: Option<Vec<Bytes>>,
    /// Extra data, at most 32 bytes; empty if absent.
    pub extra_data: Option<Bytes>,
}

/// A payload as `engine_getPayload` returns it in the version of its fork.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum TestPayload {
    /// Cancun and Prague.
    V4(Box<ExecutionPayloadEnvelopeV4>),
    /// Osaka.
    V5(Box<ExecutionPayloadEnvelopeV5>),
    /// Amsterdam.
    V6(Box<ExecutionPayloadEnvelopeV6>),
}

impl TestBlock {
    /// Builds the block. The chain does not change.
    ///
    /// # Errors
    /// [`EngineApiError::InvalidParams`] for parameters that give no block,
    /// [`EngineApiError::UnsupportedFork`] before Cancun, and those of building a payload.
    pub fn build(
        self,
        live: &LiveChain,
        pool: &TransactionPool,
    ) -> Result<TestPayload, EngineApiError> {
        let Self { parent, attributes, transactions, extra_data } = self;
        let extra_data = extra_data.unwrap_or_default();
        if extra_data.len() > 32 {
            let what = format!("extraData has {} bytes, at most 32", extra_data.len());
            return Err(EngineApiError::InvalidParams(what));
        }
        let fork = ApiFork::at(live.spec(), attributes.timestamp);
        if fork < ApiFork::Cancun {
            return Err(EngineApiError::UnsupportedFork("testing_buildBlockV1 is from Cancun on"));
        }
        let known = live.view().and_then(|view| view.header(&parent));
        let header = known.map_err(EngineError::from)?.ok_or_else(|| {
            EngineApiError::InvalidParams(format!("the parent block {parent} is not known"))
        })?;
        if attributes.timestamp <= header.timestamp {
            return Err(EngineApiError::InvalidParams(format!(
                "timestamp {} is not after {}, that of the parent",
                attributes.timestamp, header.timestamp
            )));
        }
        let config =
            BuilderConfig { extra_data, gas_limit: Some(GAS_TARGET), ..BuilderConfig::default() };
        let builder = PayloadBuilder::new(live.clone(), pool.clone(), config);
        if let Some(reason) = builder.obstacle() {
            return Err(EngineError::Build { reason }.into());
        }
        let payload = match transactions {
            Some(transactions) => {
                builder.build_with_transactions(&header, &attributes, decode(&transactions)?)?
            }
            None => builder.build(&header, &attributes)?,
        };
        let block = payload.block.block().clone_block();
        Ok(match fork {
            ApiFork::Amsterdam => TestPayload::V6(envelope_v6(&payload, &block)?.into()),
            ApiFork::Osaka => TestPayload::V5(envelope_v5(&payload, &block)?.into()),
            _ => TestPayload::V4(envelope_v4(&payload, &block)?.into()),
        })
    }
}

fn decode(encoded: &[Bytes]) -> Result<Vec<Recovered<Transaction>>, EngineApiError> {
    let one = |(index, bytes): (usize, &Bytes)| {
        let invalid = |reason: String| {
            EngineApiError::InvalidParams(format!("transaction {index}: {reason}"))
        };
        let transaction =
            Transaction::decode_2718_exact(bytes).map_err(|error| invalid(error.to_string()))?;
        transaction.try_into_recovered().map_err(|_| invalid("its signature is invalid".into()))
    };
    encoded.iter().enumerate().map(one).collect()
}
