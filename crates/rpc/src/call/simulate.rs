//! `eth_simulateV1`: simulated blocks of calls on top of a block.
//!
//! A simulated block is complete except for its seal and signatures: its header commits to its
//! transactions, receipts, requests and state. The state root comes from the node's backend, as a
//! proposal that is dropped afterwards. It is zero where the base state can be read but not
//! extended.

use super::{
    apply_block_overrides, apply_state_overrides,
    overrides::override_header,
    payment::pays_blobs,
    roots::SimulatedRoots,
    transfers::LogCollector,
    unsigned::{block_json, transactions_root, unsigned_transaction},
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    context::ResolveBlock,
    convert::{self, LogPosition, RpcBlock},
    geth_errors::{TransactFailure, block_failure, codes, halt_text, revert_text},
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, TxReceipt,
    proofs::{calculate_receipt_root, calculate_withdrawals_root},
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, Bloom, Log, U256};
use alloy_rpc_types_eth::{
    BlockOverrides, TransactionRequest,
    simulate::{SimCallResult, SimulateError, SimulatedBlock},
    state::StateOverride,
};
use retrie_chainspec::primitives::{
    Block, BlockBody, Header, Receipt, RecoveredBlock, SealedHeader, Transaction, Withdrawals,
};
use retrie_consensus::{next_base_fee, next_excess_blob_gas};
use retrie_engine::{LiveView, PostState};
use retrie_execution::{
    CallRules, EvmSimulation, ExecutionInput, LayeredState, SimulatedBlockResult, TransactError,
    lowest_transaction_type, prepare_call,
};
use revm::{
    context::{
        TransactionType, TxEnv,
        result::{ExecutionResult, HaltReason, InvalidTransaction, Output},
    },
    primitives::hardfork::SpecId,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::{cmp::Ordering, sync::Arc, time::Instant};

/// Default seconds between blocks.
const BLOCK_TIME: u64 = 12;

/// The parameter of `eth_simulateV1`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SimulateRequest {
    block_state_calls: Vec<RequestedBlock>,
    #[serde(default, deserialize_with = "or_default")]
    trace_transfers: bool,
    #[serde(default, deserialize_with = "or_default")]
    validation: bool,
    #[serde(default, deserialize_with = "or_default")]
    return_full_transactions: bool,
}

/// Deserializes a field that may be null.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RequestedBlock {
    block_overrides: Option<SimulateBlockOverrides>,
    state_overrides: Option<StateOverride>,
    #[serde(deserialize_with = "or_default")]
    calls: Vec<TransactionRequest>,
}

#[derive(Debug, Default, Deserialize)]
struct SimulateBlockOverrides {
    #[serde(flatten)]
    block: BlockOverrides,
    #[serde(default)]
    withdrawals: Option<Withdrawals>,
}

/// `eth_simulateV1(request, block)`.
pub(super) fn simulate(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Vec<Value>> {
    let request: SimulateRequest = args.object()?;
    let block = args.block_or_latest()?;
    if request.block_state_calls.is_empty() {
        return Err(coded(codes::INVALID_PARAMS, "empty input"));
    }
    if request.block_state_calls.len() as u64 > rpc.limits.max_simulate_blocks {
        return Err(coded(codes::CLIENT_LIMIT, "too many blocks"));
    }
    let state = view.state_after(block)?;
    let base = state.header().clone();
    let blocks = complete(request.block_state_calls, &base, rpc.limits.max_simulate_blocks)?;
    let gas = if rpc.limits.gas_cap == 0 { u64::MAX } else { rpc.limits.gas_cap };
    let mut simulator = BlockSimulator {
        rpc,
        rules: if request.validation { CallRules::Valid } else { CallRules::Lenient },
        with_transfers: request.trace_transfers,
        is_full: request.return_full_transactions,
        end: Instant::now() + rpc.limits.evm_timeout,
        gas,
        parent: base.clone(),
        ancestors: vec![(base.number, base.hash())],
        roots: SimulatedRoots::new(&state),
        state: LayeredState::new(&state),
    };
    let simulated = blocks.into_iter().map(|block| simulator.block(block));
    simulated.map(|block| block_json(block?)).collect()
}

fn coded(code: i32, message: impl Into<String>) -> RpcError {
    RpcError::Coded { code, message: message.into() }
}

/// Gives every block its number and time, and fills gaps between numbers with empty blocks.
fn complete(
    requested: Vec<RequestedBlock>,
    base: &Header,
    most: u64,
) -> RpcResult<Vec<RequestedBlock>> {
    let mut blocks = Vec::with_capacity(requested.len());
    let (mut number, mut time) = (base.number, base.timestamp);
    for mut block in requested {
        let overrides = block.block_overrides.get_or_insert_default();
        let next = overrides.block.number.unwrap_or_else(|| U256::from(number) + U256::from(1));
        if next <= U256::from(number) {
            let message = format!("block numbers must be in order: {next} <= {number}");
            return Err(coded(codes::BLOCK_NUMBER, message));
        }
        if next - U256::from(base.number) > U256::from(most) {
            return Err(coded(codes::CLIENT_LIMIT, "too many blocks"));
        }
        while U256::from(number + 1) < next {
            number += 1;
            time = time.saturating_add(BLOCK_TIME);
            let block = BlockOverrides {
                number: Some(U256::from(number)),
                time: Some(time),
                ..BlockOverrides::default()
            };
            let block_overrides = Some(SimulateBlockOverrides { block, withdrawals: None });
            blocks.push(RequestedBlock { block_overrides, ..RequestedBlock::default() });
        }
        number += 1;
        let next_time = overrides.block.time.unwrap_or_else(|| time.saturating_add(BLOCK_TIME));
        if next_time <= time {
            let message = format!("block timestamps must be in order: {next_time} <= {time}");
            return Err(coded(codes::BLOCK_TIMESTAMP, message));
        }
        time = next_time;
        overrides.block.number = Some(next);
        overrides.block.time = Some(time);
        blocks.push(block);
    }
    Ok(blocks)
}

/// The simulated blocks so far, and the gas and time that are left.
struct BlockSimulator<'a> {
    rpc: &'a RpcContext,
    rules: CallRules,
    with_transfers: bool,
    is_full: bool,
    end: Instant,
    /// Gas that the remaining calls may use together.
    gas: u64,
    parent: SealedHeader,
    /// Numbers and hashes of the base block and of the simulated blocks.
    ancestors: Vec<(u64, B256)>,
    roots: SimulatedRoots<'a>,
    state: LayeredState<&'a PostState>,
}

/// The results of one block's calls.
#[derive(Default)]
struct ExecutedCalls {
    transactions: Vec<Transaction>,
    senders: Vec<Address>,
    receipts: Vec<Receipt>,
    results: Vec<SimCallResult>,
    logs: Vec<Vec<(usize, Log)>>,
    gas_used: u64,
    blob_gas_used: u64,
}

impl BlockSimulator<'_> {
    fn block(&mut self, requested: RequestedBlock) -> RpcResult<SimulatedBlock<RpcBlock>> {
        // The EVM checks the deadline too, but blocks without calls also take time.
        if Instant::now() >= self.end {
            let time = self.rpc.limits.evm_timeout;
            return Err(RpcError::Rejected(format!("execution aborted (timeout = {time:?})")));
        }
        let SimulateBlockOverrides { block: overrides, withdrawals } =
            requested.block_overrides.unwrap_or_default();
        let header = self.header(&overrides)?;
        let spec = self.rpc.live.spec().for_header(&header);
        // From Amsterdam on the EVM emits a log for each transfer (EIP-7708).
        let has_transfer_logs = spec.is_amsterdam_active_at_timestamp(header.timestamp);
        let has_withdrawals = spec.is_shanghai_active_at_timestamp(header.timestamp);
        let withdrawals = has_withdrawals.then(|| withdrawals.unwrap_or_default());

        let codes = self.state.below().view().live().codes();
        let input = ExecutionInput::new(&self.state, &self.state, &self.state);
        let mut simulation = EvmSimulation::new(&spec, &header, input.with_code_cache(codes));
        simulation.set_deadline(self.end);
        for (number, hash) in &self.ancestors {
            simulation.set_block_hash(*number, *hash);
        }
        apply_block_overrides(&mut simulation, &overrides)?;
        if let Some(accounts) = requested.state_overrides {
            apply_state_overrides(&mut simulation, accounts)?;
        }
        simulation.before_transactions(&header).map_err(block_failure)?;
        let calls = CallExecutor {
            rpc: self.rpc,
            rules: self.rules,
            header: &header,
            gas: &mut self.gas,
            collector: LogCollector::new(self.with_transfers && !has_transfer_logs),
            executed: ExecutedCalls::default(),
        };
        let mut executed = calls.execute(&mut simulation, requested.calls)?;
        let receipts = std::mem::take(&mut executed.receipts);
        let end = simulation
            .after_transactions(
                &header,
                receipts.clone(),
                withdrawals.as_deref().map(Vec::as_slice),
            )
            .map_err(block_failure)?;
        drop(simulation);
        self.seal(header, withdrawals, executed, &receipts, end)
    }

    /// The header as it is before execution.
    fn header(&self, overrides: &BlockOverrides) -> RpcResult<Header> {
        let parent = &self.parent;
        let mut header = Header {
            parent_hash: parent.hash(),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: parent.beneficiary,
            difficulty: parent.difficulty,
            gas_limit: parent.gas_limit,
            slot_number: parent.slot_number.map(|slot| slot.saturating_add(1)),
            ..Header::default()
        };
        // Proof of stake has no difficulty, even if the request overrides it.
        let is_merged = |header: &Header| {
            let spec = self.rpc.live.spec();
            parent.difficulty.is_zero()
                || spec.is_shanghai_active_at_timestamp(header.timestamp)
                || spec.is_paris_active_at_block(header.number)
        };
        override_header(&mut header, overrides)?;
        if is_merged(&header) {
            header.difficulty = U256::ZERO;
        }
        let spec = self.rpc.live.spec().for_header(&header);
        let refused = |error: retrie_consensus::ConsensusError| {
            RpcError::Rejected(format!("block {} can have no child: {error}", parent.number))
        };
        if overrides.base_fee.is_none() && spec.is_london_active_at_block(header.number) {
            header.base_fee_per_gas = match self.rules {
                CallRules::Valid => next_base_fee(&spec, parent).map_err(refused)?,
                // A nonzero base fee would reject transactions without fees.
                _ => Some(0),
            };
        }
        header.excess_blob_gas =
            next_excess_blob_gas(&spec, parent, header.timestamp).map_err(refused)?;
        header.parent_beacon_block_root = spec
            .is_cancun_active_at_timestamp(header.timestamp)
            .then(|| overrides.beacon_root.unwrap_or_default());
        Ok(header)
    }

    /// Completes the header, and makes the block the parent of the next one.
    fn seal(
        &mut self,
        mut header: Header,
        withdrawals: Option<Withdrawals>,
        executed: ExecutedCalls,
        receipts: &[Receipt],
        end: SimulatedBlockResult,
    ) -> RpcResult<SimulatedBlock<RpcBlock>> {
        let spec = self.rpc.live.spec().for_header(&header);
        let with_bloom: Vec<_> = receipts.iter().map(TxReceipt::with_bloom_ref).collect();
        header.receipts_root = calculate_receipt_root(&with_bloom);
        header.logs_bloom =
            receipts.iter().fold(Bloom::ZERO, |bloom, receipt| bloom | receipt.bloom());
        header.transactions_root = transactions_root(&executed.transactions);
        header.withdrawals_root =
            withdrawals.as_deref().map(|list| calculate_withdrawals_root(list));
        header.gas_used = executed.gas_used;
        if spec.is_cancun_active_at_timestamp(header.timestamp) {
            header.blob_gas_used = Some(executed.blob_gas_used);
        }
        if spec.is_prague_active_at_timestamp(header.timestamp) {
            header.requests_hash = Some(end.requests.requests_hash());
        }
        header.block_access_list_hash = end.access_list_hash();
        header.state_root = self.roots.after(&end.delta, header.timestamp)?;

        let body = BlockBody { transactions: executed.transactions, ommers: vec![], withdrawals };
        let block = RecoveredBlock::new_unhashed(Block { header, body }, executed.senders);
        let header = block.clone_sealed_header();
        let transactions = &block.body().transactions;
        let mut calls = executed.results;
        for (index, (call, logs)) in calls.iter_mut().zip(executed.logs).enumerate() {
            let transaction = *transactions[index].hash();
            call.logs = logs
                .into_iter()
                .map(|(at, log)| {
                    let position = LogPosition {
                        transaction,
                        transaction_index: index,
                        index: at,
                        is_removed: false,
                    };
                    convert::log(log, &header, position)
                })
                .collect();
        }
        self.state.push_delta(Arc::new(end.delta), end.codes);
        self.ancestors.push((header.number, header.hash()));
        self.parent = header;
        Ok(SimulatedBlock { inner: convert::block(&block, self.is_full), calls })
    }
}

/// Executes the calls of one block.
struct CallExecutor<'a> {
    rpc: &'a RpcContext,
    rules: CallRules,
    header: &'a Header,
    gas: &'a mut u64,
    collector: LogCollector,
    executed: ExecutedCalls,
}

impl CallExecutor<'_> {
    fn execute(
        mut self,
        simulation: &mut EvmSimulation<'_>,
        calls: Vec<TransactionRequest>,
    ) -> RpcResult<ExecutedCalls> {
        let block_env = simulation.env().block_env.clone();
        for (index, mut request) in calls.into_iter().enumerate() {
            let tx = self.prepare(simulation, &mut request)?;
            let recorded_type = recorded_type(simulation, &request);
            if self.rules == CallRules::Valid {
                self.check_nonce(simulation, &tx)?;
            }
            simulation.begin_transaction(index);
            // The EVM rejects the maximum nonce even where nonces are not checked.
            let is_valid = self.rules == CallRules::Valid;
            let mut executed = TxEnv { nonce: if is_valid { tx.nonce } else { 0 }, ..tx.clone() };
            if !is_valid && !pays_blobs(&tx) {
                // The sender still pays for its blobs, and its code sees the blob fee.
                let blob = block_env.blob_excess_gas_and_price.as_ref();
                executed.max_fee_per_blob_gas = blob.map_or(0, |blob| blob.blob_gasprice);
            }
            let wraps =
                !is_valid && tx.kind.is_call() && self.nonce(simulation, tx.caller)? == u64::MAX;
            self.collector.wrap_nonce(wraps.then_some(tx.caller));
            let outcome = simulation.inspect(executed, &mut self.collector).map_err(|error| {
                let time = self.rpc.limits.evm_timeout;
                TransactFailure::new(error, &tx, block_env.basefee, time).in_block()
            })?;
            simulation.env_mut().block_env.clone_from(&block_env);
            simulation.commit(outcome.state).map_err(TransactFailure::database)?;
            self.record(tx, recorded_type, with_nonce_overflow(outcome.result));
        }
        Ok(self.executed)
    }

    /// The current nonce of an account.
    fn nonce(&self, simulation: &mut EvmSimulation<'_>, address: Address) -> RpcResult<u64> {
        let account = simulation.account(address).map_err(TransactFailure::database)?;
        Ok(account.unwrap_or_default().nonce)
    }

    /// Checks the nonce before the EVM, which checks fees first: geth reports the nonce error.
    fn check_nonce(&self, simulation: &mut EvmSimulation<'_>, tx: &TxEnv) -> RpcResult<()> {
        let (state, tx_nonce) = (self.nonce(simulation, tx.caller)?, tx.nonce);
        let wrong = match tx_nonce.cmp(&state) {
            Ordering::Less => InvalidTransaction::NonceTooLow { tx: tx_nonce, state },
            Ordering::Greater => InvalidTransaction::NonceTooHigh { tx: tx_nonce, state },
            Ordering::Equal if state == u64::MAX => InvalidTransaction::NonceOverflowInTransaction,
            Ordering::Equal => return Ok(()),
        };
        let (base_fee, time) = (simulation.env().block_env.basefee, self.rpc.limits.evm_timeout);
        Err(TransactFailure::new(TransactError::Invalid(wrong), tx, base_fee, time).in_block())
    }

    fn prepare(
        &self,
        simulation: &mut EvmSimulation<'_>,
        request: &mut TransactionRequest,
    ) -> RpcResult<TxEnv> {
        if request.nonce.is_none() {
            request.nonce = Some(self.nonce(simulation, request.from.unwrap_or_default())?);
        }
        let (used, limit) = (self.executed.gas_used, self.header.gas_limit);
        let remaining = limit.saturating_sub(used);
        let gas = *request.gas.get_or_insert(remaining);
        if gas > remaining {
            let message =
                format!("block gas limit reached: remaining: {remaining}, required: {gas}");
            return Err(coded(codes::BLOCK_GAS_LIMIT, message));
        }
        if *self.gas == 0 {
            return Err(coded(codes::CLIENT_LIMIT, "gas limit of the request reached"));
        }
        Ok(prepare_call(simulation, request.clone(), self.rules, *self.gas)?)
    }

    fn record(
        &mut self,
        tx: TxEnv,
        recorded_type: TransactionType,
        result: ExecutionResult<HaltReason>,
    ) {
        let gas = *result.gas();
        let gas_used = gas.tx_gas_used();
        let max_used = gas.total_gas_spent().max(gas.floor_gas());
        *self.gas = self.gas.saturating_sub(gas_used);
        let executed = &mut self.executed;
        executed.gas_used += gas_used;
        if recorded_type == TransactionType::Eip4844 {
            executed.blob_gas_used +=
                alloy_eips::eip4844::DATA_GAS_PER_BLOB * tx.blob_hashes.len() as u64;
        }
        let success = result.is_success();
        let error = match &result {
            ExecutionResult::Success { .. } => None,
            ExecutionResult::Revert { output, .. } => Some(SimulateError {
                code: RpcError::REVERTED,
                message: revert_text(output),
                data: Some(output.clone()),
            }),
            ExecutionResult::Halt { reason, .. } => Some(SimulateError {
                code: codes::VM_ERROR,
                message: halt_text(reason),
                data: None,
            }),
        };
        let return_data = match &result {
            // A failed call has no return data; the output of a revert is in the error.
            ExecutionResult::Success { output, .. } => output.data().clone(),
            _ => Default::default(),
        };
        let caller = tx.caller;
        let transaction = unsigned_transaction(tx, recorded_type);
        executed.receipts.push(Receipt {
            tx_type: transaction.tx_type(),
            success,
            cumulative_gas_used: executed.gas_used,
            logs: result.into_logs(),
        });
        executed.senders.push(caller);
        executed.transactions.push(transaction);
        executed.logs.push(self.collector.take());
        executed.results.push(SimCallResult {
            return_data,
            logs: Vec::new(),
            gas_used,
            max_used_gas: Some(max_used),
            status: success,
            error,
        });
    }
}

/// A creation whose sender has the maximum nonce creates nothing. revm reports success, geth a
/// failure.
fn with_nonce_overflow(result: ExecutionResult<HaltReason>) -> ExecutionResult<HaltReason> {
    match result {
        ExecutionResult::Success { gas, logs, output: Output::Create(_, None), .. } => {
            ExecutionResult::Halt { reason: HaltReason::NonceOverflow, gas, logs }
        }
        result => result,
    }
}

/// The transaction type that the block shows. A request with a gas price is a legacy transaction,
/// even with an access list; before London every transaction is.
fn recorded_type(simulation: &EvmSimulation<'_>, request: &TransactionRequest) -> TransactionType {
    let spec = simulation.env().cfg_env.spec;
    if request.gas_price.is_some() || !spec.is_enabled_in(SpecId::LONDON) {
        return TransactionType::Legacy;
    }
    lowest_transaction_type(spec, request)
}
