//! Runs suites through the Engine API: blocks as payloads, in the version of their fork.
//!
//! ```text
//!  RLP -> block -> payload, V1 to V5 by its time -> newPayload -> VALID   -> forkchoiceUpdated
//!                                                              -> INVALID -> the head stays
//! ```
//!
//! A payload has less than a block: ommers, nonce, difficulty and list roots are missing, and the
//! block of a payload always has the right ones. So if only these are wrong in a bad block, its
//! payload has another hash and is rejected for that.
//!
//! A payload also has two items of which a header has only the hashes: requests (EIP-7685) and,
//! from Amsterdam on, the BAL (EIP-7928), which tests give for valid blocks. Both are taken from
//! the execution, as a proposer does. A bad block with other hashes is sent with the executed
//! items, so that its hash does not match. A bad block that cannot be executed is bad for another
//! reason. To be rejected for that reason, it is sent with the items that its valid transactions
//! yield, and with the hash that matches them.
//!
//! With parallel execution the engine executes transactions with these BALs. Each block, valid or
//! not, is first executed here serially and in parallel, with the BAL that comes with it and with
//! the BAL that the serial execution records: everything must be equal.

use crate::{
    blockchain::{
        BadBlocks, BlockEntry, BlockchainTest, ExpectedEnd, GenesisHeader, block_of,
        expected_refusal, genesis_spec,
    },
    format::{CaseResult, TestAlloc, TestConfig, TestVerdict, parse},
    worker::TestWorker,
};
use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_eips::eip7685::{EMPTY_REQUESTS_HASH, Requests};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes, hex, keccak256};
use alloy_rpc_types_engine::{
    ExecutionPayloadInputV2, ExecutionPayloadV1, ExecutionPayloadV3, ExecutionPayloadV4,
    ForkchoiceState, PayloadStatus, PayloadStatusEnum,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, RecoveredBlock, Transaction},
};
use retrie_engine::{
    BuilderConfig, Engine, EngineApi, EngineApiError, EngineConfig, LiveChain, PayloadBuilder,
    pool::{PoolConfig, TransactionPool},
};
use retrie_execution::{
    ExecutionError, ExecutionInput, ExecutionOutcome, RemainingGas, TransactionSource,
    execute_block, execute_block_in_parallel, fill_block,
};
use retrie_pipeline::{ChainStore, recover_senders};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::sync::Arc;

/// JSON-RPC code of invalid parameters.
const INVALID_PARAMS: i32 = -32602;

/// Runs a blockchain test; `None` if its chain begins before the merge.
pub(crate) fn run(
    json: &RawValue,
    bad_blocks: BadBlocks,
    worker: &TestWorker,
) -> Option<CaseResult> {
    run_with(json, bad_blocks, worker, |_| Ok(()))
}

/// As [`run`]; `check` judges each new head.
pub(crate) fn run_with(
    json: &RawValue,
    bad_blocks: BadBlocks,
    worker: &TestWorker,
    check: impl Fn(&LiveChain) -> TestVerdict,
) -> Option<CaseResult> {
    let begin = || {
        let test: BlockchainTest<'_> = parse(json)?;
        Ok((test.spec()?, test))
    };
    let (spec, test) = match begin() {
        Ok(begun) => begun,
        Err(error) => return Some(Err(error).into()),
    };
    if !is_merged(&spec) {
        return None;
    }
    let mut not_sent = 0;
    let verdict = drive(spec, test.end(), worker, |driver| {
        for (index, entry) in test.blocks.iter().enumerate() {
            let sent = driver.send_entry(entry, bad_blocks);
            let sent = sent.map_err(|error| format!("entry {index}: {error}"))?;
            not_sent += u64::from(sent == SendOutcome::NothingToSend);
            if sent == SendOutcome::Accepted {
                check(&driver.live).map_err(|error| format!("entry {index}: {error}"))?;
            }
        }
        Ok(())
    });
    Some(CaseResult { verdict, not_sent })
}

/// The BAL of a block in a test.
fn access_list_of(entry: &BlockEntry<'_>) -> Result<Option<Bytes>, String> {
    let Some(rlp) = entry.get("blockAccessListRLP") else { return Ok(None) };
    serde_json::from_str(rlp.get()).map_err(|error| format!("blockAccessListRLP: {error}"))
}

/// Whether all blocks of a chain are proof of stake.
fn is_merged(spec: &ChainSpec) -> bool {
    let difficulty = spec.genesis_header().difficulty;
    spec.terminal_total_difficulty().is_some_and(|end| difficulty >= end)
}

/// A test that lists Engine API calls.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadTest<'a> {
    network: String,
    #[serde(default)]
    config: TestConfig,
    pre: TestAlloc,
    genesis_block_header: GenesisHeader,
    #[serde(borrow)]
    engine_new_payloads: Vec<NewPayload<'a>>,
    lastblockhash: B256,
    post_state: Option<TestAlloc>,
    post_state_hash: Option<B256>,
}

/// A call of `engine_newPayload`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPayload<'a> {
    /// Unchanged parameters of the request.
    #[serde(borrow)]
    params: &'a RawValue,
    new_payload_version: String,
    forkchoice_updated_version: String,
    /// Why the block is invalid.
    validation_error: Option<String>,
    /// Error code with which the call is refused.
    error_code: Option<String>,
}

/// Runs a payload test.
pub(crate) fn run_payloads(json: &RawValue, worker: &TestWorker) -> CaseResult {
    let mut not_sent = 0;
    let verdict = send_payloads(json, worker, &mut not_sent);
    CaseResult { verdict, not_sent }
}

fn send_payloads(json: &RawValue, worker: &TestWorker, not_sent: &mut u64) -> TestVerdict {
    let test: PayloadTest<'_> = parse(json)?;
    if test.engine_new_payloads.is_empty() {
        return Err("lists no payloads".into());
    }
    let spec = genesis_spec(&test.network, &test.config, &test.pre, &test.genesis_block_header)?;
    let end = ExpectedEnd {
        head: test.lastblockhash,
        root: test.post_state_hash,
        state: test.post_state.as_ref(),
    };
    drive(spec, end, worker, |driver| {
        for (index, payload) in test.engine_new_payloads.iter().enumerate() {
            let sent = driver.send_call(payload);
            let sent = sent.map_err(|error| format!("payload {index}: {error}"))?;
            *not_sent += u64::from(sent == SendOutcome::NothingToSend);
        }
        Ok(())
    })
}

/// A request of the Engine API.
#[derive(Debug, Deserialize)]
pub(crate) struct EngineCall {
    method: String,
    params: Vec<Value>,
}

impl EngineCall {
    /// The parameters in the specification's form. geth writes fields that a version lacks as null,
    /// and requests in base64, as Go encodes bytes in JSON.
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

    /// The part of the method's name after `prefix`.
    fn version(&self, prefix: &str) -> Result<&str, String> {
        self.method.strip_prefix(prefix).ok_or_else(|| format!("{} is no {prefix}", self.method))
    }
}

/// Sends payloads, all of them valid, and then the one forkchoice update that makes the last one
/// the head. The first payload is the genesis block and is skipped, as a payload cannot express its
/// difficulty.
pub(crate) fn run_calls(
    spec: ChainSpec,
    payloads: &[EngineCall],
    update: &EngineCall,
    end: ExpectedEnd<'_>,
    worker: &TestWorker,
) -> TestVerdict {
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

/// A payload and the other parameters of its version.
pub(crate) enum PayloadCall {
    V1(ExecutionPayloadV1),
    V2(ExecutionPayloadInputV2),
    V3(ExecutionPayloadV3, Vec<B256>, B256),
    V4(ExecutionPayloadV3, Vec<B256>, B256, Vec<Bytes>),
    V5(ExecutionPayloadV4, Vec<B256>, B256, Vec<Bytes>),
}

impl PayloadCall {
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
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// It is valid and the head.
    Accepted,
    /// It is invalid, and the head is unchanged.
    Refused(String),
    /// There was nothing to send.
    NothingToSend,
}

fn compare(expected: Option<&str>, sent: &SendOutcome) -> TestVerdict {
    match (expected, sent) {
        (None, SendOutcome::Accepted)
        | (Some(_), SendOutcome::Refused(_) | SendOutcome::NothingToSend) => Ok(()),
        (None, SendOutcome::Refused(why)) => Err(format!("a valid block is refused: {why}")),
        (None, SendOutcome::NothingToSend) => Err("a valid block cannot be sent".into()),
        (Some(why), SendOutcome::Accepted) => Err(format!("it is accepted, expected is {why}")),
    }
}

/// A block, and the items that its payload has beside it.
struct PayloadBlock {
    block: Block,
    requests: Vec<Bytes>,
    access_list: Bytes,
}

/// The result of executing a block.
enum PayloadExecution {
    /// With all its transactions.
    Complete(Box<ExecutionOutcome>),
    /// With its valid transactions only; others were left out.
    Partial(Box<ExecutionOutcome>),
    /// None: the block is invalid even without transactions, or has no parent.
    Impossible,
}

/// Compares parallel with serial execution; the number of reads, too, if the BAL is correct
/// (`is_true`).
fn same_outcome(
    serial: &Result<ExecutionOutcome, ExecutionError>,
    parallel: &Result<ExecutionOutcome, ExecutionError>,
    is_true: bool,
) -> TestVerdict {
    let (one, other) = match (serial, parallel) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(one), Err(other)) if one.to_string() == other.to_string() => return Ok(()),
        (one, other) => return Err(format!("there is {other:?}, serially {one:?}")),
    };
    let differs = [
        ("receipts", one.receipts != other.receipts),
        ("gas", one.gas_used != other.gas_used),
        ("blob gas", one.blob_gas_used != other.blob_gas_used),
        ("requests", one.requests != other.requests),
        ("changes", one.delta != other.delta),
        ("codes", one.codes != other.codes),
        ("the access list", one.access_list != other.access_list),
        ("the count of reads", is_true && one.accesses != other.accesses),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(format!("{what} differs")),
        None => Ok(()),
    }
}

/// Offers transactions in order, and ignores which are rejected.
struct TransactionList(std::vec::IntoIter<Recovered<Transaction>>);

impl TransactionSource for TransactionList {
    fn next(&mut self, _: RemainingGas) -> Option<Recovered<Transaction>> {
        self.0.next()
    }

    fn mark_invalid(&mut self, _: &ExecutionError) {}
}

/// The consensus client of one test.
pub(crate) struct ConsensusDriver<'a> {
    api: EngineApi,
    pub(crate) live: LiveChain,
    pub(crate) pool: TransactionPool,
    worker: &'a TestWorker,
}

/// Runs `calls` on a new engine, and checks the `end`.
fn drive(
    spec: ChainSpec,
    end: ExpectedEnd<'_>,
    worker: &TestWorker,
    calls: impl FnOnce(&ConsensusDriver<'_>) -> TestVerdict,
) -> TestVerdict {
    worker
        .with_chain(spec, |chain| with_engine(chain, worker, calls).and_then(|()| end.check(chain)))
}

/// Runs `calls` on a new engine.
pub(crate) fn with_driver(
    spec: ChainSpec,
    worker: &TestWorker,
    calls: impl FnOnce(&ConsensusDriver<'_>) -> TestVerdict,
) -> TestVerdict {
    worker.with_chain(spec, |chain| with_engine(chain, worker, calls))
}

fn with_engine(
    chain: &Arc<ChainStore>,
    worker: &TestWorker,
    calls: impl FnOnce(&ConsensusDriver<'_>) -> TestVerdict,
) -> TestVerdict {
    let parallel_execution = worker.parallel_execution;
    let config = EngineConfig { parallel_execution, ..EngineConfig::default() };
    let engine = Engine::start(chain.clone(), config, worker.metrics.clone())
        .map_err(|error| error.to_string())?;
    let live = engine.handle().live().clone();
    let pool = TransactionPool::new(PoolConfig::default(), live.spec().clone());
    let payloads = PayloadBuilder::new(live.clone(), pool.clone(), BuilderConfig::default());
    let api = EngineApi::new(engine.handle().clone(), payloads, pool.clone());
    let verdict = calls(&ConsensusDriver { api, live, pool, worker });
    let stopped = engine.stop().map_err(|error| error.to_string());
    verdict.and(stopped)
}

impl ConsensusDriver<'_> {
    /// Sends the block of an entry, and compares the outcome with the expected one.
    fn send_entry(
        &self,
        entry: &BlockEntry<'_>,
        bad_blocks: BadBlocks,
    ) -> Result<SendOutcome, String> {
        let expected = expected_refusal(entry, bad_blocks)?;
        let sent = match (block_of(entry)?, expected) {
            (Ok(block), _) => self.send_block(block, access_list_of(entry)?)?,
            (Err(_), Some(_)) => SendOutcome::NothingToSend,
            (Err(why), None) => return Err(format!("a valid block is {why}")),
        };
        compare(expected, &sent)?;
        Ok(sent)
    }

    /// Sends a block as its proposer would, with its BAL if it is known.
    fn send_block(&self, block: Block, access_list: Option<Bytes>) -> Result<SendOutcome, String> {
        self.send(self.call_of(block, access_list)?)
    }

    /// The Engine API call for a block.
    fn call_of(&self, block: Block, access_list: Option<Bytes>) -> Result<PayloadCall, String> {
        let spec = self.live.spec();
        let time = block.header.timestamp;
        if !spec.is_cancun_active_at_timestamp(time) {
            let hash = block.header.hash_slow();
            let payload = ExecutionPayloadV1::from_block_unchecked(hash, &block);
            let withdrawals = block.body.withdrawals.map(|list| list.into_inner());
            let is_v1 = !spec.is_shanghai_active_at_timestamp(time) && withdrawals.is_none();
            return Ok(if is_v1 {
                PayloadCall::V1(payload)
            } else {
                PayloadCall::V2(ExecutionPayloadInputV2 { execution_payload: payload, withdrawals })
            });
        }
        let is_amsterdam = spec.is_amsterdam_active_at_timestamp(time);
        let PayloadBlock { block, requests, access_list } =
            self.payload_block(block, access_list, is_amsterdam)?;
        if is_amsterdam && self.worker.parallel_execution {
            self.execute_both_ways(&block, &access_list)?;
        }
        let payload = ExecutionPayloadV3::from_block_unchecked(block.header.hash_slow(), &block);
        let transactions = block.body.transactions.iter();
        let hashes = transactions.flat_map(|tx| tx.blob_versioned_hashes().unwrap_or_default());
        let hashes = hashes.copied().collect();
        let root = block.header.parent_beacon_block_root.unwrap_or_default();
        Ok(if is_amsterdam {
            let slot_number = block.header.slot_number.unwrap_or_default();
            let payload = ExecutionPayloadV4 {
                payload_inner: payload,
                block_access_list: access_list,
                slot_number,
            };
            PayloadCall::V5(payload, hashes, root, requests)
        } else if spec.is_prague_active_at_timestamp(time) {
            PayloadCall::V4(payload, hashes, root, requests)
        } else {
            PayloadCall::V3(payload, hashes, root)
        })
    }

    /// The items of a block's payload: see the top of this module.
    fn payload_block(
        &self,
        mut block: Block,
        access_list: Option<Bytes>,
        is_amsterdam: bool,
    ) -> Result<PayloadBlock, String> {
        let has_requests = !matches!(block.header.requests_hash, None | Some(EMPTY_REQUESTS_HASH));
        if !has_requests && (access_list.is_some() || !is_amsterdam) {
            let access_list = access_list.unwrap_or_default();
            return Ok(PayloadBlock { block, requests: Vec::new(), access_list });
        }
        let (outcome, is_whole) = match self.execute(&block)? {
            PayloadExecution::Complete(outcome) => (Some(outcome), true),
            PayloadExecution::Partial(outcome) => (Some(outcome), false),
            PayloadExecution::Impossible => (None, false),
        };
        let (requests, computed) = match outcome {
            Some(outcome) => (outcome.requests, outcome.access_list.unwrap_or_default()),
            None => (Requests::default(), Vec::new()),
        };
        let access_list = access_list.unwrap_or_else(|| alloy_rlp::encode(&computed).into());
        if !is_whole {
            let header = &mut block.header;
            header.requests_hash = header.requests_hash.map(|_| requests.requests_hash());
            let hash = keccak256(&access_list);
            header.block_access_list_hash = header.block_access_list_hash.map(|_| hash);
        }
        Ok(PayloadBlock { block, requests: requests.take(), access_list })
    }

    /// Executes a block serially and in parallel, and compares everything.
    fn execute_both_ways(&self, block: &Block, list: &[u8]) -> TestVerdict {
        let spec = self.live.spec();
        // A block without senders, without a parent or with a malformed BAL is never executed.
        let Ok(block) = recover_senders(spec, block.clone()) else { return Ok(()) };
        let view = self.live.view().map_err(|error| error.to_string())?;
        let Ok(parent) = view.state(&block.header().parent_hash) else { return Ok(()) };
        let spec = spec.for_header(block.header());
        // A code cache would save reads in the second execution.
        let input = ExecutionInput { code_cache: None, ..parent.input() };
        let serial = execute_block(&spec, &block, input);
        let recorded = serial.as_ref().ok().and_then(|outcome| outcome.access_list.clone());
        let came = retrie_consensus::validate_access_list(block.sealed_block(), list).ok();
        let untrue = came.filter(|list| Some(list) != recorded.as_ref());
        for list in untrue.iter().chain(&recorded) {
            let is_true = Some(list) == recorded.as_ref();
            let parallel = execute_block_in_parallel(&spec, &block, input, list, 2);
            same_outcome(&serial, &parallel, is_true)
                .map_err(|what| format!("in parallel {what}"))?;
            if let (Ok(outcome), true) = (parallel, is_true) {
                self.worker.transactions.count(&outcome);
            }
        }
        Ok(())
    }

    /// The result of executing a block, valid or not.
    fn execute(&self, block: &Block) -> Result<PayloadExecution, String> {
        let spec = self.live.spec();
        let Ok(block) = recover_senders(spec, block.clone()) else {
            return Ok(PayloadExecution::Impossible);
        };
        let view = self.live.view().map_err(|error| error.to_string())?;
        let Ok(parent) = view.state(&block.header().parent_hash) else {
            return Ok(PayloadExecution::Impossible);
        };
        let spec = spec.for_header(block.header());
        match execute_block(&spec, &block, parent.input()) {
            Ok(outcome) => return Ok(PayloadExecution::Complete(Box::new(outcome))),
            Err(ExecutionError::InvalidTransaction { .. }) => {}
            Err(error) if error.is_invalid_block() => return Ok(PayloadExecution::Impossible),
            Err(error) => return Err(error.to_string()),
        }
        let transactions: Vec<_> =
            block.transactions_recovered().map(|transaction| transaction.cloned()).collect();
        let mut template = block.into_block();
        template.body.transactions.clear();
        let template = RecoveredBlock::new_unhashed(template, Vec::new());
        let mut valid = TransactionList(transactions.into_iter());
        match fill_block(&spec, &template, parent.input(), &mut valid) {
            Ok((_, outcome)) => Ok(PayloadExecution::Partial(Box::new(outcome))),
            Err(error) if error.is_invalid_block() => Ok(PayloadExecution::Impossible),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a call unchanged, and compares the answer with the expected one.
    fn send_call(&self, payload: &NewPayload<'_>) -> Result<SendOutcome, String> {
        let code = payload.error_code.as_deref().map(str::parse::<i32>).transpose();
        let code = code.map_err(|error| format!("errorCode: {error}"))?;
        let before = self.live.head().hash();
        let call =
            match (PayloadCall::parse(&payload.new_payload_version, payload.params.get()), code) {
                (Ok(call), _) => call,
                (Err(_), Some(INVALID_PARAMS)) => return Ok(SendOutcome::NothingToSend),
                (Err(error), _) => return Err(format!("parameters: {error}")),
            };
        let hash = call.hash();
        let sent = match (self.new_payload(call), code) {
            (Err(error), Some(code)) if error.code() == code => {
                return Ok(SendOutcome::Refused(error.to_string()));
            }
            (Err(error), _) => return Err(error.to_string()),
            (Ok(status), Some(code)) => return Err(format!("{}, expected {code}", status.status)),
            (Ok(status), None) => self.check_status(hash, before, status)?,
        };
        compare(payload.validation_error.as_deref(), &sent)?;
        if sent == SendOutcome::Accepted {
            let version = &payload.forkchoice_updated_version;
            let version = version.parse().map_err(|error| format!("{version}: {error}"))?;
            self.make_head(version, hash)?;
        }
        Ok(sent)
    }

    /// Sends a payload that must be valid. The head stays.
    fn send_valid(&self, payload: &EngineCall) -> TestVerdict {
        let before = self.live.head().hash();
        let call = PayloadCall::parse(payload.version("engine_newPayloadV")?, &payload.params()?)?;
        let hash = call.hash();
        let status = self.new_payload(call).map_err(|error| error.to_string())?;
        compare(None, &self.check_status(hash, before, status)?)
    }

    pub(crate) fn send(&self, call: PayloadCall) -> Result<SendOutcome, String> {
        let before = self.live.head().hash();
        let hash = call.hash();
        let version = match &call {
            PayloadCall::V1(_) => 1,
            PayloadCall::V2(_) => 2,
            PayloadCall::V3(..) | PayloadCall::V4(..) => 3,
            PayloadCall::V5(..) => 4,
        };
        let status = match self.new_payload(call) {
            Ok(status) => status,
            Err(error) if error.code() == INVALID_PARAMS => {
                return Ok(SendOutcome::Refused(error.to_string()));
            }
            Err(error) => return Err(error.to_string()),
        };
        let sent = self.check_status(hash, before, status)?;
        if sent == SendOutcome::Accepted {
            self.make_head(version, hash)?;
        }
        Ok(sent)
    }

    fn new_payload(&self, call: PayloadCall) -> Result<PayloadStatus, EngineApiError> {
        let api = &self.api;
        self.worker.runtime.block_on(async {
            match call {
                PayloadCall::V1(payload) => api.new_payload_v1(payload).await,
                PayloadCall::V2(payload) => api.new_payload_v2(payload).await,
                PayloadCall::V3(payload, hashes, root) => {
                    api.new_payload_v3(payload, hashes, root).await
                }
                PayloadCall::V4(payload, hashes, root, requests) => {
                    api.new_payload_v4(payload, hashes, root, requests).await
                }
                PayloadCall::V5(payload, hashes, root, requests) => {
                    api.new_payload_v5(payload, hashes, root, requests).await
                }
            }
        })
    }

    /// Checks the answer to a payload. The head must not have moved.
    fn check_status(
        &self,
        hash: B256,
        before: B256,
        status: PayloadStatus,
    ) -> Result<SendOutcome, String> {
        if self.live.head().hash() != before {
            return Err("the head moved with newPayload".into());
        }
        let latest = status.latest_valid_hash;
        match status.status {
            PayloadStatusEnum::Valid if latest == Some(hash) => Ok(SendOutcome::Accepted),
            PayloadStatusEnum::Valid => Err(format!("VALID with latestValidHash {latest:?}")),
            PayloadStatusEnum::Invalid { validation_error } => {
                if latest.is_some_and(|latest| !self.is_known(latest)) {
                    return Err(format!("INVALID with latestValidHash {latest:?}"));
                }
                Ok(SendOutcome::Refused(validation_error))
            }
            // Its parent was rejected for a fault that no payload can express.
            PayloadStatusEnum::Syncing => {
                Ok(SendOutcome::Refused("its parent is not known".into()))
            }
            other => Err(format!("the status is {other}")),
        }
    }

    fn is_known(&self, hash: B256) -> bool {
        let header = self.live.view().and_then(|view| view.header(&hash));
        matches!(header, Ok(Some(_)))
    }

    /// Makes a valid block the head.
    fn make_head(&self, version: u8, hash: B256) -> TestVerdict {
        self.update(version, ForkchoiceState { head_block_hash: hash, ..Default::default() })
    }

    fn update(&self, version: u8, state: ForkchoiceState) -> TestVerdict {
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
