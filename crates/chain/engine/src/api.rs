//! The Engine API for the consensus client: method versions, forks, and checks of each field.
//!
//! Source: execution-apis, `src/engine`. This module is independent of the transport; the RPC crate
//! serves it on the authenticated port.

mod bodies;
mod by_fork;
mod cells;
mod error;
mod witness;

pub use bodies::BodyRequest;
pub use by_fork::PayloadEnvelope;
pub use error::EngineApiError;

use crate::{
    BuiltPayload, EngineError, EngineHandle, LiveView, PayloadBuilder,
    pool::{BlobSidecar, TransactionPool},
    service::RejectedBlock,
};
use alloy_consensus::{BlockHeader, Transaction as _};
use alloy_eips::{
    eip4844::{BlobAndProofV1, BlobAndProofV2},
    eip7685::Requests,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_engine::{
    BlobsBundleV1, BlobsBundleV2, CancunPayloadFields, ExecutionData, ExecutionPayload,
    ExecutionPayloadEnvelopeV2, ExecutionPayloadEnvelopeV3, ExecutionPayloadEnvelopeV4,
    ExecutionPayloadEnvelopeV5, ExecutionPayloadEnvelopeV6, ExecutionPayloadFieldV2,
    ExecutionPayloadInputV2, ExecutionPayloadSidecar, ExecutionPayloadV1, ExecutionPayloadV3,
    ExecutionPayloadV4, ForkchoiceState, ForkchoiceUpdated, PayloadAttributes, PayloadError,
    PayloadId, PayloadStatus, PayloadStatusEnum, PraguePayloadFields,
};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock, Transaction},
};
use retrie_pipeline::{InvalidBlockError, PipelineError, prepare, recover_senders};
use std::sync::Arc;
use tracing::{Instrument, debug_span, field};

/// Largest number of versioned hashes per request.
const MAX_BLOBS: usize = 128;

/// The methods of this API that all stores have.
const METHODS: &[&str] = &[
    "engine_newPayloadV1",
    "engine_newPayloadV2",
    "engine_newPayloadV3",
    "engine_newPayloadV4",
    "engine_newPayloadV5",
    "engine_forkchoiceUpdatedV1",
    "engine_forkchoiceUpdatedV2",
    "engine_forkchoiceUpdatedV3",
    "engine_forkchoiceUpdatedV4",
    "engine_getPayloadV1",
    "engine_getPayloadV2",
    "engine_getPayloadV3",
    "engine_getPayloadV4",
    "engine_getPayloadV5",
    "engine_getPayloadV6",
    "engine_getPayloadBodiesByHashV1",
    "engine_getPayloadBodiesByHashV2",
    "engine_getPayloadBodiesByRangeV1",
    "engine_getPayloadBodiesByRangeV2",
    "engine_getBlobsV1",
    "engine_getBlobsV2",
    "engine_getBlobsV3",
    "engine_getBlobsV4",
    "engine_getClientVersionV1",
];

type ApiResult<T> = std::result::Result<T, EngineApiError>;

/// The Engine API. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineApi {
    engine: EngineHandle,
    payloads: PayloadBuilder,
    pool: TransactionPool,
}

/// Forks with their own version of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiFork {
    /// Proof of stake.
    Paris,
    /// Withdrawals (EIP-4895).
    Shanghai,
    /// Blobs (EIP-4844), and the root of the parent's beacon block (EIP-4788).
    Cancun,
    /// Requests to the consensus layer (EIP-7685).
    Prague,
    /// Cell proofs of blobs (EIP-7594).
    Osaka,
    /// Block access lists (EIP-7928), and slot numbers (EIP-7843).
    Amsterdam,
}

impl ApiFork {
    /// All of them, the oldest first.
    pub const ALL: [Self; 6] =
        [Self::Paris, Self::Shanghai, Self::Cancun, Self::Prague, Self::Osaka, Self::Amsterdam];

    /// The fork of a block with this timestamp.
    pub fn at(spec: &ChainSpec, timestamp: u64) -> Self {
        if spec.is_amsterdam_active_at_timestamp(timestamp) {
            Self::Amsterdam
        } else if spec.is_osaka_active_at_timestamp(timestamp) {
            Self::Osaka
        } else if spec.is_prague_active_at_timestamp(timestamp) {
            Self::Prague
        } else if spec.is_cancun_active_at_timestamp(timestamp) {
            Self::Cancun
        } else if spec.is_shanghai_active_at_timestamp(timestamp) {
            Self::Shanghai
        } else {
            Self::Paris
        }
    }
}

impl EngineApi {
    /// The API of a running engine.
    pub const fn new(
        engine: EngineHandle,
        payloads: PayloadBuilder,
        pool: TransactionPool,
    ) -> Self {
        Self { engine, payloads, pool }
    }

    /// The engine behind the API.
    pub const fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    fn spec(&self) -> &Arc<ChainSpec> {
        self.engine.live().spec()
    }

    fn fork(&self, timestamp: u64) -> ApiFork {
        ApiFork::at(self.spec(), timestamp)
    }

    // -- newPayload -------------------------------------------------------------------------------

    /// `engine_newPayloadV1`.
    ///
    /// # Errors
    /// [`EngineApiError`]; this holds for all methods below.
    pub async fn new_payload_v1(&self, payload: ExecutionPayloadV1) -> ApiResult<PayloadStatus> {
        if self.fork(payload.timestamp) >= ApiFork::Shanghai {
            return Err(EngineApiError::UnsupportedFork("engine_newPayloadV1 ends with Paris"));
        }
        let sidecar = ExecutionPayloadSidecar::none();
        self.new_payload(ExecutionPayload::V1(payload), sidecar, block_of_payload).await
    }

    /// `engine_newPayloadV2`.
    pub async fn new_payload_v2(
        &self,
        payload: ExecutionPayloadInputV2,
    ) -> ApiResult<PayloadStatus> {
        let fork = self.fork(payload.execution_payload.timestamp);
        if fork >= ApiFork::Cancun {
            return Err(EngineApiError::UnsupportedFork("engine_newPayloadV2 ends with Shanghai"));
        }
        check_withdrawals(fork, payload.withdrawals.is_some())
            .map_err(|what| EngineApiError::InvalidParams(what.into()))?;
        let sidecar = ExecutionPayloadSidecar::none();
        self.new_payload(payload.into_payload(), sidecar, block_of_payload).await
    }

    /// `engine_newPayloadV3`.
    pub async fn new_payload_v3(
        &self,
        payload: ExecutionPayloadV3,
        versioned_hashes: Vec<B256>,
        parent_beacon_block_root: B256,
    ) -> ApiResult<PayloadStatus> {
        if self.fork(payload.timestamp()) != ApiFork::Cancun {
            return Err(EngineApiError::UnsupportedFork("engine_newPayloadV3 is for Cancun"));
        }
        let cancun = CancunPayloadFields { parent_beacon_block_root, versioned_hashes };
        let sidecar = ExecutionPayloadSidecar::v3(cancun);
        self.new_payload(ExecutionPayload::V3(payload), sidecar, block_of_payload).await
    }

    /// `engine_newPayloadV4`.
    pub async fn new_payload_v4(
        &self,
        payload: ExecutionPayloadV3,
        versioned_hashes: Vec<B256>,
        parent_beacon_block_root: B256,
        requests: Vec<Bytes>,
    ) -> ApiResult<PayloadStatus> {
        if !matches!(self.fork(payload.timestamp()), ApiFork::Prague | ApiFork::Osaka) {
            let what = "engine_newPayloadV4 is for Prague and Osaka";
            return Err(EngineApiError::UnsupportedFork(what));
        }
        let cancun = CancunPayloadFields { parent_beacon_block_root, versioned_hashes };
        let prague = PraguePayloadFields::new(check_requests(requests)?);
        let sidecar = ExecutionPayloadSidecar::v4(cancun, prague);
        self.new_payload(ExecutionPayload::V3(payload), sidecar, block_of_payload).await
    }

    /// `engine_newPayloadV5`.
    pub async fn new_payload_v5(
        &self,
        payload: ExecutionPayloadV4,
        versioned_hashes: Vec<B256>,
        parent_beacon_block_root: B256,
        requests: Vec<Bytes>,
    ) -> ApiResult<PayloadStatus> {
        if self.fork(payload.timestamp()) < ApiFork::Amsterdam {
            return Err(EngineApiError::UnsupportedFork("engine_newPayloadV5 is for Amsterdam"));
        }
        let cancun = CancunPayloadFields { parent_beacon_block_root, versioned_hashes };
        let prague = PraguePayloadFields::new(check_requests(requests)?);
        let sidecar = ExecutionPayloadSidecar::v4(cancun, prague);
        self.new_payload(ExecutionPayload::V4(payload), sidecar, block_of_payload).await
    }

    /// `into_block` converts the payload, with its checks that need no state.
    async fn new_payload(
        &self,
        payload: ExecutionPayload,
        sidecar: ExecutionPayloadSidecar,
        into_block: fn(ExecutionData) -> std::result::Result<Block, PayloadError>,
    ) -> ApiResult<PayloadStatus> {
        let span = debug_span!(
            "newPayload",
            number = payload.block_number() as i64,
            hash = %payload.block_hash(),
            transactions = payload.transactions().len() as i64,
            gas = payload.as_v1().gas_used as i64,
            status = field::Empty,
        );
        let verified = self.verify_payload(payload, sidecar, into_block).instrument(span.clone());
        let verified = verified.await;
        if let Ok(verified) = &verified {
            span.record("status", verified.status.as_str());
        }
        verified
    }

    async fn verify_payload(
        &self,
        payload: ExecutionPayload,
        sidecar: ExecutionPayloadSidecar,
        into_block: fn(ExecutionData) -> std::result::Result<Block, PayloadError>,
    ) -> ApiResult<PayloadStatus> {
        let live = self.engine.live().clone();
        self.engine.targets().note_client_call();
        let (hash, parent) = (payload.block_hash(), payload.parent_hash());
        let access_list = payload.block_access_list().cloned();
        // Recovering signers takes milliseconds, so it must not block the async runtime.
        let span = debug_span!("prepare");
        let prepared = tokio::task::spawn_blocking(move || {
            let _entered = span.entered();
            let data = ExecutionData::new(payload, sidecar);
            // Cheap: the clone shares the transactions.
            let again = data.clone();
            let block =
                into_block(data).map_err(|error| RefusedPayload::Payload(error.to_string()))?;
            // The hash covers all that is checked from here on, and a valid block stays valid.
            let known = live.view().and_then(|view| view.header(&hash));
            if known.is_ok_and(|header| header.is_some()) {
                return Ok(None);
            }
            let spec = live.spec();
            let prepared = prepare(spec, block).and_then(|block| match &access_list {
                Some(list) => block.with_access_list(list),
                None => Ok(block),
            });
            prepared.map(Some).map_err(|error| {
                let block = into_block(again).ok();
                let whole = block.and_then(|block| recover_senders(spec, block).ok());
                RefusedPayload::Block(Box::new(error), whole.map(Arc::new))
            })
        });
        let prepared = prepared.await.map_err(|_| EngineError::Panicked)?;
        match prepared {
            Ok(Some(block)) => Ok(self.engine.new_block(block).await?),
            Ok(None) => Ok(PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))),
            Err(RefusedPayload::Payload(validation_error)) => {
                let status = PayloadStatusEnum::Invalid { validation_error };
                Ok(PayloadStatus::from_status(status))
            }
            Err(RefusedPayload::Block(error, block)) if error.is_invalid_block() => {
                let reason = error.to_string();
                Ok(self.engine.reject(RejectedBlock { hash, parent, reason, block }).await?)
            }
            Err(RefusedPayload::Block(error, _)) => {
                Err(EngineError::from(PipelineError::from(*error)).into())
            }
        }
    }

    // -- forkchoiceUpdated ------------------------------------------------------------------------

    /// `engine_forkchoiceUpdatedV1` to `V4`.
    pub async fn fork_choice_updated(
        &self,
        version: u8,
        state: ForkchoiceState,
        attributes: Option<PayloadAttributes>,
    ) -> ApiResult<ForkchoiceUpdated> {
        let check = |attributes: &PayloadAttributes| self.check_attributes(version, attributes);
        self.update_fork_choice(version, state, attributes, check).await
    }

    /// `check` decides whether the attributes fit the call.
    async fn update_fork_choice(
        &self,
        version: u8,
        state: ForkchoiceState,
        attributes: Option<PayloadAttributes>,
        check: impl Fn(&PayloadAttributes) -> ApiResult<()> + Send,
    ) -> ApiResult<ForkchoiceUpdated> {
        self.engine.targets().note_client_call();
        let (head, builds) = (state.head_block_hash, attributes.is_some());
        let span = debug_span!("forkchoiceUpdated", %head, builds);
        let outcome = self.engine.forkchoice(state).instrument(span.clone()).await?;
        let updated = ForkchoiceUpdated::new(outcome.status);
        let (Some(attributes), Some(head)) = (attributes, outcome.head) else {
            return Ok(updated);
        };
        // The new head is set, even if the attributes turn out to be invalid.
        check(&attributes)?;
        if attributes.timestamp <= head.timestamp {
            let what = format!(
                "timestamp {} is not after {}, that of the head",
                attributes.timestamp, head.timestamp
            );
            return Err(EngineApiError::InvalidAttributes(what));
        }
        if let Some(obstacle) = self.payloads.obstacle() {
            return Err(EngineApiError::InvalidAttributes(obstacle));
        }
        let started = span.in_scope(|| self.payloads.start(version, head, attributes));
        Ok(updated.with_payload_id(started?))
    }

    fn check_attributes(&self, version: u8, attributes: &PayloadAttributes) -> ApiResult<()> {
        let fork = self.fork(attributes.timestamp);
        let has_root = attributes.parent_beacon_block_root.is_some();
        let has_slot = attributes.slot_number.is_some();
        let invalid = |what: &str| Err(EngineApiError::InvalidAttributes(what.into()));
        let fits = match version {
            1 => fork == ApiFork::Paris,
            2 => fork <= ApiFork::Shanghai,
            3 => (ApiFork::Cancun..ApiFork::Amsterdam).contains(&fork),
            _ => fork >= ApiFork::Amsterdam,
        };
        match version {
            1 if attributes.withdrawals.is_some() => return invalid("V1 has no withdrawals"),
            1 | 2 if has_root => return invalid("parentBeaconBlockRoot is from V3 on"),
            3 if !has_root => return invalid("parentBeaconBlockRoot is missing"),
            3 if attributes.withdrawals.is_none() => return invalid("withdrawals are missing"),
            4 if !has_root || !has_slot => {
                return invalid("parentBeaconBlockRoot and slotNumber must be there");
            }
            _ => {}
        }
        if !fits {
            let what = "the attributes' time belongs to another version of the method";
            return Err(EngineApiError::UnsupportedFork(what));
        }
        check_withdrawals(fork, attributes.withdrawals.is_some())
            .map_err(|what| EngineApiError::InvalidAttributes(what.into()))
    }

    // -- getPayload -------------------------------------------------------------------------------

    /// `engine_getPayloadV1`.
    pub async fn get_payload_v1(&self, id: PayloadId) -> ApiResult<ExecutionPayloadV1> {
        let (payload, block) = self.payload(id, "engine_getPayloadV1", &[ApiFork::Paris]).await?;
        Ok(ExecutionPayloadV1::from_block_unchecked(payload.hash(), &block))
    }

    /// `engine_getPayloadV2`.
    pub async fn get_payload_v2(&self, id: PayloadId) -> ApiResult<ExecutionPayloadEnvelopeV2> {
        let forks = [ApiFork::Paris, ApiFork::Shanghai];
        let (payload, block) = self.payload(id, "engine_getPayloadV2", &forks).await?;
        Ok(ExecutionPayloadEnvelopeV2 {
            execution_payload: ExecutionPayloadFieldV2::from_block_unchecked(
                payload.hash(),
                &block,
            ),
            block_value: payload.value,
        })
    }

    /// `engine_getPayloadV3`.
    pub async fn get_payload_v3(&self, id: PayloadId) -> ApiResult<ExecutionPayloadEnvelopeV3> {
        let (payload, block) = self.payload(id, "engine_getPayloadV3", &[ApiFork::Cancun]).await?;
        envelope_v3(&payload, &block)
    }

    /// `engine_getPayloadV4`.
    pub async fn get_payload_v4(&self, id: PayloadId) -> ApiResult<ExecutionPayloadEnvelopeV4> {
        let (payload, block) = self.payload(id, "engine_getPayloadV4", &[ApiFork::Prague]).await?;
        envelope_v4(&payload, &block)
    }

    /// `engine_getPayloadV5`.
    pub async fn get_payload_v5(&self, id: PayloadId) -> ApiResult<ExecutionPayloadEnvelopeV5> {
        let (payload, block) = self.payload(id, "engine_getPayloadV5", &[ApiFork::Osaka]).await?;
        envelope_v5(&payload, &block)
    }

    /// `engine_getPayloadV6`.
    pub async fn get_payload_v6(&self, id: PayloadId) -> ApiResult<ExecutionPayloadEnvelopeV6> {
        let (payload, block) =
            self.payload(id, "engine_getPayloadV6", &[ApiFork::Amsterdam]).await?;
        envelope_v6(&payload, &block)
    }

    async fn payload(
        &self,
        id: PayloadId,
        method: &'static str,
        forks: &[ApiFork],
    ) -> ApiResult<(Arc<BuiltPayload>, Block)> {
        let payloads = self.payloads.clone();
        // The first build may still be running.
        let resolving = tokio::task::spawn_blocking(move || payloads.resolve(id));
        let resolved = resolving.instrument(debug_span!("getPayload", %id)).await;
        let payload = resolved.map_err(|_| EngineError::Panicked)??;
        let payload = payload.ok_or(EngineApiError::UnknownPayload)?;
        let block = payload.block.block();
        if !forks.contains(&self.fork(block.timestamp())) {
            return Err(EngineApiError::UnsupportedFork(method));
        }
        // The consensus client most probably sends it back as a new payload.
        self.engine.built(payload.block.clone());
        let block = block.clone_block();
        Ok((payload, block))
    }

    // -- the rest ---------------------------------------------------------------------------------

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LiveView) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let live = self.engine.live().clone();
        let task =
            tokio::task::spawn_blocking(move || work(&live.view().map_err(EngineError::from)?));
        task.await.map_err(|_| EngineError::Panicked)?
    }

    /// `engine_getBlobsV1`: one entry per hash, null for an unknown blob. For Cancun and Prague
    /// only, since blobs have cell proofs from Osaka on.
    pub fn blobs_v1(&self, hashes: &[B256]) -> ApiResult<Vec<Option<BlobAndProofV1>>> {
        let blobs = self.blobs_with_proof(hashes)?;
        Ok(blobs.iter().map(|blob| blob.as_ref()?.v1()).collect())
    }

    /// `engine_getBlobsV2`: all blobs or null.
    pub fn blobs_v2(&self, hashes: &[B256]) -> ApiResult<Option<Vec<BlobAndProofV2>>> {
        Ok(self.blobs_v3(hashes)?.and_then(|blobs| blobs.into_iter().collect()))
    }

    /// `engine_getBlobsV3`: one entry per hash, null for an unknown blob; null as a whole before
    /// Osaka.
    pub fn blobs_v3(&self, hashes: &[B256]) -> ApiResult<Option<Vec<Option<BlobAndProofV2>>>> {
        let blobs = self.blobs_with_cell_proofs(hashes)?;
        Ok(blobs.map(|blobs| blobs.iter().map(|blob| blob.as_ref()?.v2()).collect()))
    }

    /// The fork of the head.
    fn head_fork(&self) -> ApiFork {
        self.fork(self.engine.live().head().timestamp())
    }
}

impl BuiltPayload {
    fn hash(&self) -> B256 {
        self.block.block().hash()
    }
}

/// Why a payload was refused before it was sent to the engine.
enum RefusedPayload {
    Payload(String),
    /// The error, and the block if its senders could be recovered.
    Block(Box<InvalidBlockError>, Option<Arc<RecoveredBlock>>),
}

/// Converts a payload to its block, and checks block hash and versioned hashes.
///
/// # Errors
/// If a transaction cannot be decoded, or the block has another hash, or other blobs.
pub fn block_of_payload(data: ExecutionData) -> std::result::Result<Block, PayloadError> {
    let sidecar = data.sidecar.clone();
    let block = hashed_block(data)?;
    if let Some(expected) = sidecar.versioned_hashes() {
        let transactions = block.body.transactions.iter();
        let hashes = transactions.flat_map(|tx| tx.blob_versioned_hashes().unwrap_or_default());
        if !hashes.eq(expected) {
            return Err(PayloadError::InvalidVersionedHashes);
        }
    }
    Ok(block)
}

/// Converts a payload to its block, and checks the block hash.
fn hashed_block(data: ExecutionData) -> std::result::Result<Block, PayloadError> {
    let consensus = data.block_hash();
    let block = data.try_into_block::<Transaction>()?;
    let execution = block.header.hash_slow();
    match execution == consensus {
        true => Ok(block),
        false => Err(PayloadError::BlockHash { execution, consensus }),
    }
}

fn check_withdrawals(
    fork: ApiFork,
    has_withdrawals: bool,
) -> std::result::Result<(), &'static str> {
    match (fork >= ApiFork::Shanghai, has_withdrawals) {
        (true, false) => Err("withdrawals are missing, which Shanghai demands"),
        (false, true) => Err("withdrawals before Shanghai"),
        _ => Ok(()),
    }
}

/// Requests must be in ascending order of their types, each with data (EIP-7685).
fn check_requests(requests: Vec<Bytes>) -> ApiResult<Requests> {
    let invalid = |what: &str| Err(EngineApiError::InvalidParams(what.into()));
    if requests.iter().any(|request| request.len() < 2) {
        return invalid("executionRequests has an entry without data");
    }
    if !requests.is_sorted_by(|a, b| a[0] < b[0]) {
        return invalid("executionRequests are not in ascending order of their types");
    }
    Ok(Requests::new(requests))
}

const fn check_count(len: u64, max: u64) -> ApiResult<()> {
    if len > max { Err(EngineApiError::TooLarge { len, max }) } else { Ok(()) }
}

fn envelope_v3(payload: &BuiltPayload, block: &Block) -> ApiResult<ExecutionPayloadEnvelopeV3> {
    let sidecars = payload.sidecars.iter().map(|sidecar| match &**sidecar {
        BlobSidecar::Eip4844(sidecar) => Ok(sidecar.clone()),
        BlobSidecar::Eip7594(_) => Err(wrong_proofs()),
    });
    Ok(ExecutionPayloadEnvelopeV3 {
        execution_payload: ExecutionPayloadV3::from_block_unchecked(payload.hash(), block),
        block_value: payload.value,
        blobs_bundle: BlobsBundleV1::new(sidecars.collect::<ApiResult<Vec<_>>>()?),
        should_override_builder: false,
    })
}

pub(crate) fn envelope_v4(
    payload: &BuiltPayload,
    block: &Block,
) -> ApiResult<ExecutionPayloadEnvelopeV4> {
    Ok(ExecutionPayloadEnvelopeV4 {
        envelope_inner: envelope_v3(payload, block)?,
        execution_requests: payload.requests.clone(),
    })
}

pub(crate) fn envelope_v5(
    payload: &BuiltPayload,
    block: &Block,
) -> ApiResult<ExecutionPayloadEnvelopeV5> {
    Ok(ExecutionPayloadEnvelopeV5 {
        execution_payload: ExecutionPayloadV3::from_block_unchecked(payload.hash(), block),
        block_value: payload.value,
        blobs_bundle: bundle_v2(payload)?,
        should_override_builder: false,
        execution_requests: payload.requests.clone(),
    })
}

pub(crate) fn envelope_v6(
    payload: &BuiltPayload,
    block: &Block,
) -> ApiResult<ExecutionPayloadEnvelopeV6> {
    let access_list = payload.access_list.clone().unwrap_or_default();
    Ok(ExecutionPayloadEnvelopeV6 {
        execution_payload: ExecutionPayloadV4::from_block_unchecked_with_bal(
            payload.hash(),
            block,
            access_list,
        ),
        block_value: payload.value,
        blobs_bundle: bundle_v2(payload)?,
        should_override_builder: false,
        execution_requests: payload.requests.clone(),
    })
}

fn bundle_v2(payload: &BuiltPayload) -> ApiResult<BlobsBundleV2> {
    let sidecars = payload.sidecars.iter().map(|sidecar| match &**sidecar {
        BlobSidecar::Eip7594(sidecar) => Ok(sidecar.clone()),
        BlobSidecar::Eip4844(_) => Err(wrong_proofs()),
    });
    Ok(BlobsBundleV2::new(sidecars.collect::<ApiResult<Vec<_>>>()?))
}

fn wrong_proofs() -> EngineApiError {
    let reason = "a blob transaction's proofs are those of another fork".into();
    EngineError::Build { reason }.into()
}
