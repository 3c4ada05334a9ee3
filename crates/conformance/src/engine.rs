//! The suites through the Engine API: blocks as payloads, in the version of their fork.
//!
//! ```text
//!  RLP -> block -> payload, V1 to V4 by its time -> newPayload -> VALID   -> forkchoiceUpdated
//!                                                              -> INVALID -> the head stays
//! ```
//!
//! A payload says less than a block: ommers, nonce, difficulty and roots of lists are not in it, and
//! the block that it stands for has the right ones. A bad block that is bad in these alone is another
//! block than its hash says, and refused for that. One thing a payload says that the block does not:
//! the requests (EIP-7685), of which the header has the hash. They are what execution gives, as they
//! would be on the side of its proposer; a bad block whose hash is of other requests is refused, as
//! nobody can say which.

use crate::{
    blockchain::{BadBlocks, End, GenesisHeader, Test, block_of, expected_refusal, genesis_spec},
    format::{Alloc, Config, Verdict, parse},
    worker::Worker,
};
use alloy_consensus::Transaction as _;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, hex};
use alloy_rpc_types_engine::{
    ExecutionPayloadInputV2, ExecutionPayloadV1, ExecutionPayloadV3, ExecutionPayloadV4,
    ForkchoiceState, PayloadStatus, PayloadStatusEnum,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_engine::{
    BuilderConfig, Engine, EngineApi, EngineApiError, EngineConfig, LiveChain, PayloadBuilder,
    pool::{Pool, PoolConfig},
};
use retrie_execution::execute_block;
use retrie_pipeline::{Chain, prepare};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::sync::Arc;

/// JSON-RPC code of parameters that make no sense.
const INVALID_PARAMS: i32 = -32602;

/// Runs a blockchain test; `None` if its chain begins before the merge.
pub(crate) fn run(json: &RawValue, bad_blocks: BadBlocks, worker: &Worker) -> Option<Verdict> {
    let begin = || {
        let test: Test<'_> = parse(json)?;
        Ok((test.spec()?, test))
    };
    let (spec, test) = match begin() {
        Ok(begun) => begun,
        Err(error) => return Some(Err(error)),
    };
    is_merged(&spec).then(|| {
        drive(spec, test.end(), worker, |driver| {
            for (index, entry) in test.blocks.iter().enumerate() {
                let named = |error: String| format!("entry {index}: {error}");
                let expected = expected_refusal(entry, bad_blocks).map_err(named)?;
                let sent = match block_of(entry).map_err(named)? {
                    Ok(block) => driver.send_block(&block).map_err(named)?,
                    Err(refusal) => Sent::Refused(refusal),
                };
                compare(expected, sent).map_err(named)?;
            }
            Ok(())
        })
    })
}

/// Whether all blocks of a chain are of proof of stake.
fn is_merged(spec: &ChainSpec) -> bool {
    let difficulty = spec.genesis_header().difficulty;
    spec.terminal_total_difficulty().is_some_and(|end| difficulty >= end)
}

/// A test that lists calls of the Engine API.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadTest<'a> {
    network: String,
    #[serde(default)]
    config: Config,
    pre: Alloc,
    genesis_block_header: GenesisHeader,
    #[serde(borrow)]
    engine_new_payloads: Vec<NewPayload<'a>>,
    lastblockhash: B256,
    post_state: Option<Alloc>,
    post_state_hash: Option<B256>,
}

/// A call of `engine_newPayload`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPayload<'a> {
    /// As they stand in the request.
    #[serde(borrow)]
    params: &'a RawValue,
    new_payload_version: String,
    forkchoice_updated_version: String,
    /// The block is invalid, for this reason.
    validation_error: Option<String>,
    /// The call is refused with this code.
    error_code: Option<String>,
}

/// Runs a test of payloads.
pub(crate) fn run_payloads(json: &RawValue, worker: &Worker) -> Verdict {
    let test: PayloadTest<'_> = parse(json)?;
    if test.engine_new_payloads.is_empty() {
        return Err("lists no payloads".into());
    }
    let spec = genesis_spec(&test.network, &test.config, &test.pre, &test.genesis_block_header)?;
    let end = End {
        head: test.lastblockhash,
        root: test.post_state_hash,
        state: test.post_state.as_ref(),
    };
    drive(spec, end, worker, |driver| {
        for (index, payload) in test.engine_new_payloads.iter().enumerate() {
            driver.send_call(payload).map_err(|error| format!("payload {index}: {error}"))?;
        }
        Ok(())
    })
}

/// A request on the Engine API.
#[derive(Debug, Deserialize)]
pub(crate) struct EngineCall {
    method: String,
    params: Vec<Value>,
}

impl EngineCall {
    /// The parameters as the specification has them. Those that geth has written name what a version
    /// lacks as null, and have requests in base64, as Go has bytes in JSON.
    fn params(&self) -> Result<String, String> {
        let mut params = self.params.clone();
        if let Some(Value::Object(payload)) = params.first_mut() {
            payload.retain(|_, value| !value.is_null());
        }
        if let Some(Value::Array(requests)) = params.get_mut(3) {
            for request in requests {
                let text = request.as_str().ok_or("a request is no text")?;
                if !text.starts_with("0x") {
                    let bytes = BASE64_STANDARD.decode(text).map_err(|error| error.to_string())?;
                    *request = Value::from(hex::encode_prefixed(bytes));
                }
            }
        }
        serde_json::to_string(&params).map_err(|error| error.to_string())
    }

    /// What comes after `prefix` in the method's name.
    fn version(&self, prefix: &str) -> Result<&str, String> {
        self.method.strip_prefix(prefix).ok_or_else(|| format!("{} is no {prefix}", self.method))
    }
}

/// Sends payloads, all of them valid, and then the one update that makes the last one the head. The
/// first one is genesis, which no payload can say (it has a difficulty), and is left out.
pub(crate) fn run_calls(
    spec: ChainSpec,
    payloads: &[EngineCall],
    update: &EngineCall,
    end: End<'_>,
    worker: &Worker,
) -> Verdict {
    drive(spec, end, worker, |driver| {
        for (index, payload) in payloads.iter().enumerate().skip(1) {
            driver.send_valid(payload).map_err(|error| format!("call {index}: {error}"))?;
        }
        let version = update.version("engine_forkchoiceUpdatedV")?;
        let version = version.parse().map_err(|error| format!("{version}: {error}"))?;
        let state = update.params.first().cloned().unwrap_or_default();
        let state = serde_json::from_value(state).map_err(|error| error.to_string())?;
        driver.update(version, state)
    })
}

/// A payload, and what goes with it in its version of the call.
enum Call {
    V1(ExecutionPayloadV1),
    V2(ExecutionPayloadInputV2),
    V3(ExecutionPayloadV3, Vec<B256>, B256),
    V4(ExecutionPayloadV3, Vec<B256>, B256, Vec<Bytes>),
    V5(ExecutionPayloadV4, Vec<B256>, B256, Vec<Bytes>),
}

impl Call {
    fn hash(&self) -> B256 {
        match self {
            Self::V1(payload) => payload.block_hash,
            Self::V2(payload) => payload.execution_payload.block_hash,
            Self::V3(payload, ..) | Self::V4(payload, ..) => {
                payload.payload_inner.payload_inner.block_hash
            }
            Self::V5(payload, ..) => payload.payload_inner.payload_inner.payload_inner.block_hash,
        }
    }

    /// The parameters of a request.
    fn parse(version: &str, params: &str) -> Result<Self, String> {
        let parsed = match version {
            "1" => serde_json::from_str(params).map(|(payload,)| Self::V1(payload)),
            "2" => serde_json::from_str(params).map(|(payload,)| Self::V2(payload)),
            "3" => serde_json::from_str(params)
                .map(|(payload, hashes, root)| Self::V3(payload, hashes, root)),
            "4" => serde_json::from_str(params)
                .map(|(payload, hashes, root, requests)| Self::V4(payload, hashes, root, requests)),
            "5" => serde_json::from_str(params)
                .map(|(payload, hashes, root, requests)| Self::V5(payload, hashes, root, requests)),
            other => return Err(format!("engine_newPayloadV{other} is not known here")),
        };
        parsed.map_err(|error| error.to_string())
    }
}

/// What became of a block.
#[derive(Debug)]
enum Sent {
    /// It is valid, and the head.
    Accepted,
    /// It is not, and the head is as before.
    Refused(String),
}

fn compare(expected: Option<&str>, sent: Sent) -> Verdict {
    match (expected, sent) {
        (None, Sent::Accepted) | (Some(_), Sent::Refused(_)) => Ok(()),
        (None, Sent::Refused(why)) => Err(format!("a valid block is refused: {why}")),
        (Some(why), Sent::Accepted) => Err(format!("it is accepted, expected is {why}")),
    }
}

/// A consensus client of one test.
struct Driver<'a> {
    api: EngineApi,
    live: LiveChain,
    worker: &'a Worker,
}

/// Runs `calls` on an engine of its own, and compares the `end`.
fn drive(
    spec: ChainSpec,
    end: End<'_>,
    worker: &Worker,
    calls: impl FnOnce(&Driver<'_>) -> Verdict,
) -> Verdict {
    worker.with_chain(spec, |chain: &Arc<Chain>| {
        let engine = Engine::start(chain.clone(), EngineConfig::default(), worker.metrics.clone())
            .map_err(|error| error.to_string())?;
        let live = engine.handle().live().clone();
        let pool = Pool::new(PoolConfig::default(), live.spec().clone());
        let payloads = PayloadBuilder::new(live.clone(), pool.clone(), BuilderConfig::default());
        let api = EngineApi::new(engine.handle().clone(), payloads, pool);
        let verdict = calls(&Driver { api, live, worker });
        let stopped = engine.stop().map_err(|error| error.to_string());
        verdict.and(stopped).and_then(|()| end.check(chain))
    })
}

impl Driver<'_> {
    /// Sends a block as its proposer would.
    fn send_block(&self, block: &Block) -> Result<Sent, String> {
        match self.call_of(block)? {
            Ok(call) => self.send(call),
            Err(refusal) => Ok(Sent::Refused(refusal)),
        }
    }

    /// The call for a block; the inner error says why there is none.
    fn call_of(&self, block: &Block) -> Result<Result<Call, String>, String> {
        let spec = self.live.spec();
        let hash = block.header.hash_slow();
        let time = block.header.timestamp;
        if spec.is_amsterdam_active_at_timestamp(time) {
            return Err("payloads of Amsterdam need an access list, which blocks lack".into());
        }
        if !spec.is_cancun_active_at_timestamp(time) {
            let payload = ExecutionPayloadV1::from_block_unchecked(hash, block);
            let withdrawals = block.body.withdrawals.clone().map(|list| list.into_inner());
            let is_v1 = !spec.is_shanghai_active_at_timestamp(time) && withdrawals.is_none();
            return Ok(Ok(if is_v1 {
                Call::V1(payload)
            } else {
                Call::V2(ExecutionPayloadInputV2 { execution_payload: payload, withdrawals })
            }));
        }
        let payload = ExecutionPayloadV3::from_block_unchecked(hash, block);
        let transactions = block.body.transactions.iter();
        let hashes = transactions.flat_map(|tx| tx.blob_versioned_hashes().unwrap_or_default());
        let hashes = hashes.copied().collect();
        let root = block.header.parent_beacon_block_root.unwrap_or_default();
        if !spec.is_prague_active_at_timestamp(time) {
            return Ok(Ok(Call::V3(payload, hashes, root)));
        }
        let requests = self.requests(block)?;
        Ok(requests.map(|requests| Call::V4(payload, hashes, root, requests)))
    }

    /// The requests of a block, where execution gives those of its header.
    fn requests(&self, block: &Block) -> Result<Result<Vec<Bytes>, String>, String> {
        let expected = block.header.requests_hash.unwrap_or(EMPTY_REQUESTS_HASH);
        if expected == EMPTY_REQUESTS_HASH {
            return Ok(Ok(Vec::new()));
        }
        let unknown = |why: String| Ok(Err(format!("its requests are not known: {why}")));
        let spec = self.live.spec();
        let block = match prepare(spec, block.clone()) {
            Ok(block) => block,
            Err(error) => return unknown(error.to_string()),
        };
        let view = self.live.view().map_err(|error| error.to_string())?;
        let parent = match view.state(&block.parent_hash()) {
            Ok(parent) => parent,
            Err(error) => return unknown(error.to_string()),
        };
        let block = block.block();
        match execute_block(&spec.for_header(block.header()), block, parent.input()) {
            Ok(outcome) if outcome.requests.requests_hash() == expected => {
                Ok(Ok(outcome.requests.take()))
            }
            Ok(outcome) => unknown(format!(
                "its execution gives those of {}",
                outcome.requests.requests_hash()
            )),
            Err(error) => unknown(error.to_string()),
        }
    }

    /// Sends a call as it stands, and compares the answer with what the test says.
    fn send_call(&self, payload: &NewPayload<'_>) -> Verdict {
        let code = payload.error_code.as_deref().map(str::parse::<i32>).transpose();
        let code = code.map_err(|error| format!("errorCode: {error}"))?;
        let before = self.live.head().hash();
        let call = match (Call::parse(&payload.new_payload_version, payload.params.get()), code) {
            (Ok(call), _) => call,
            (Err(_), Some(INVALID_PARAMS)) => return Ok(()),
            (Err(error), _) => return Err(format!("parameters: {error}")),
        };
        let hash = call.hash();
        match (self.new_payload(call), code) {
            (Err(error), Some(code)) if error.code() == code => return Ok(()),
            (Err(error), _) => return Err(error.to_string()),
            (Ok(status), Some(code)) => return Err(format!("{}, expected {code}", status.status)),
            (Ok(status), None) => {
                let sent = self.after(hash, before, status)?;
                compare(payload.validation_error.as_deref(), sent)?;
            }
        }
        if payload.validation_error.is_none() {
            let version = &payload.forkchoice_updated_version;
            let version = version.parse().map_err(|error| format!("{version}: {error}"))?;
            self.lead(version, hash)?;
        }
        Ok(())
    }

    /// Sends a payload that must be valid; the head stays.
    fn send_valid(&self, payload: &EngineCall) -> Verdict {
        let before = self.live.head().hash();
        let call = Call::parse(payload.version("engine_newPayloadV")?, &payload.params()?)?;
        let hash = call.hash();
        let status = self.new_payload(call).map_err(|error| error.to_string())?;
        compare(None, self.after(hash, before, status)?)
    }

    fn send(&self, call: Call) -> Result<Sent, String> {
        let before = self.live.head().hash();
        let hash = call.hash();
        let version = match &call {
            Call::V1(_) => 1,
            Call::V2(_) => 2,
            Call::V3(..) | Call::V4(..) => 3,
            Call::V5(..) => 4,
        };
        let status = match self.new_payload(call) {
            Ok(status) => status,
            Err(error) if error.code() == INVALID_PARAMS => {
                return Ok(Sent::Refused(error.to_string()));
            }
            Err(error) => return Err(error.to_string()),
        };
        let sent = self.after(hash, before, status)?;
        if matches!(sent, Sent::Accepted) {
            self.lead(version, hash)?;
        }
        Ok(sent)
    }

    fn new_payload(&self, call: Call) -> Result<PayloadStatus, EngineApiError> {
        let api = &self.api;
        self.worker.runtime.block_on(async {
            match call {
                Call::V1(payload) => api.new_payload_v1(payload).await,
                Call::V2(payload) => api.new_payload_v2(payload).await,
                Call::V3(payload, hashes, root) => api.new_payload_v3(payload, hashes, root).await,
                Call::V4(payload, hashes, root, requests) => {
                    api.new_payload_v4(payload, hashes, root, requests).await
                }
                Call::V5(payload, hashes, root, requests) => {
                    api.new_payload_v5(payload, hashes, root, requests).await
                }
            }
        })
    }

    /// Judges the answer to a payload; the head must not have moved.
    fn after(&self, hash: B256, before: B256, status: PayloadStatus) -> Result<Sent, String> {
        if self.live.head().hash() != before {
            return Err("the head moved with newPayload".into());
        }
        let latest = status.latest_valid_hash;
        match status.status {
            PayloadStatusEnum::Valid if latest == Some(hash) => Ok(Sent::Accepted),
            PayloadStatusEnum::Valid => Err(format!("VALID with latestValidHash {latest:?}")),
            PayloadStatusEnum::Invalid { validation_error } => {
                if latest.is_some_and(|latest| !self.is_known(latest)) {
                    return Err(format!("INVALID with latestValidHash {latest:?}"));
                }
                Ok(Sent::Refused(validation_error))
            }
            // It stands on a block that was refused for what no payload says of it.
            PayloadStatusEnum::Syncing => Ok(Sent::Refused("its parent is not known".into())),
            other => Err(format!("the status is {other}")),
        }
    }

    fn is_known(&self, hash: B256) -> bool {
        let header = self.live.view().and_then(|view| view.header(&hash));
        matches!(header, Ok(Some(_)))
    }

    /// Makes a valid block the head.
    fn lead(&self, version: u8, hash: B256) -> Verdict {
        self.update(version, ForkchoiceState { head_block_hash: hash, ..Default::default() })
    }

    fn update(&self, version: u8, state: ForkchoiceState) -> Verdict {
        let hash = state.head_block_hash;
        let updated =
            self.worker.runtime.block_on(self.api.fork_choice_updated(version, state, None));
        let status = updated.map_err(|error| error.to_string())?.payload_status;
        if status != PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash)) {
            return Err(format!("forkchoiceUpdated of a valid block: {status:?}"));
        }
        if self.live.head().hash() != hash {
            return Err("forkchoiceUpdated did not move the head".into());
        }
        Ok(())
    }
}
