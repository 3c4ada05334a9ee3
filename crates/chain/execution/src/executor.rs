//! Runs one block: pre-block changes, transactions, post-block changes.

use crate::{
    DatabaseError, ExecutionError, ExecutionInput, ExecutionOutcome, ExecutionTiming,
    ObserverError,
    block_state::{BlockState, ReadFailure, StateRules},
    constantinople,
    deposits::{DepositRequests, check_deposits},
    evm::BlockEvm,
    index_tables,
    parallel::ParallelExecution,
    receipts::BlockReceiptBuilder,
};
use alloy_consensus::{BlockHeader, transaction::Recovered};
use alloy_eips::{
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip8282::{BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS},
};
use alloy_evm::{
    Evm, EvmEnv,
    block::{
        BlockExecutionError, BlockExecutionResult, BlockExecutor, BlockValidationError,
        InternalBlockExecutionError,
    },
    eth::{EthBlockExecutionCtx, EthBlockExecutor, dao_fork, spec::EthExecutorSpec},
};
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::Address;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, Receipt, RecoveredBlock, Transaction},
};
use retrie_state::StateDelta;
use revm::{context_interface::result::EVMError, primitives::hardfork::SpecId};
use std::{borrow::Cow, time::Instant};

/// Called after each transaction with its index and the changes of this transaction alone.
///
/// The delta is relative to the state after the previous transaction. The delta of transaction 0
/// includes the changes before the transactions (system calls, the DAO's irregular transfer).
/// Rewards, withdrawals and other changes after the last transaction are in no delta of a
/// transaction. Applied in order, these deltas and then those changes give the block's delta.
pub type TransactionObserver<'a> = dyn FnMut(usize, StateDelta) -> Result<(), ObserverError> + 'a;

/// The EVM's environment in the block with this header: rule set, block fields, blob parameters.
pub fn evm_env(spec: &ChainSpec, header: &Header) -> EvmEnv<SpecId> {
    let blob_params = spec.blob_params_at_timestamp(header.timestamp);
    let rules = BlockRules::new(spec, header);
    let mut env = EvmEnv::for_eth_block(header, rules, spec.chain_id(), blob_params);
    if has_net_metering(spec, header.number) {
        constantinople::set_costs(&mut env.cfg_env);
    }
    env
}

/// Whether the block has Constantinople's EIP-1283, which Petersburg removed.
pub(crate) fn has_net_metering(spec: &ChainSpec, number: u64) -> bool {
    spec.is_constantinople_active_at_block(number) && !spec.is_petersburg_active_at_block(number)
}

/// Executes `block` on the state of its parent and returns the values that its header commits to,
/// and its delta. Nothing is written.
///
/// It does not check the header's commitments. The consensus crate does, before execution (header
/// and body) and after it (gas, receipts, requests).
///
/// # Errors
/// [`ExecutionError`]; see [`ExecutionError::is_invalid_block`] for verdicts about the block.
pub fn execute_block(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
) -> Result<ExecutionOutcome, ExecutionError> {
    run(spec, block, input, None, None, None)
}

/// Like [`execute_block`], and shows the delta of each single transaction to `observer`, whose
/// error ends the execution.
///
/// Needed for receipts before Byzantium, which contain a state root after every transaction.
pub fn execute_block_with_observer(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
    observer: &mut TransactionObserver<'_>,
) -> Result<ExecutionOutcome, ExecutionError> {
    run(spec, block, input, Some(observer), None, None)
}

/// Offers transactions for a block that is being built.
pub trait TransactionSource {
    /// The next transaction to try, `None` if no other one fits into `room`.
    fn next(&mut self, room: RemainingGas) -> Option<Recovered<Transaction>>;

    /// Reports that the last transaction may not be included in this block, and why.
    fn mark_invalid(&mut self, reason: &ExecutionError);

    /// Whether accounts with code may send transactions in spite of EIP-3607. Dev chains need it
    /// for impersonated accounts.
    fn senders_may_have_code(&self) -> bool {
        false
    }
}

/// The gas that is left in a block that is being built.
#[derive(Clone, Copy, Debug)]
pub struct RemainingGas {
    /// Gas.
    pub gas: u64,
    /// Gas of blobs (EIP-4844).
    pub blob_gas: u64,
}

/// Like [`execute_block`] for a block whose transactions are not chosen yet: includes the
/// transactions that `source` offers, in order, except those that are invalid there. `template` has
/// the header as far as it is known, and no transactions.
///
/// # Errors
/// As [`execute_block`], but invalid transactions are no error.
pub fn fill_block(
    spec: &ChainSpec,
    template: &RecoveredBlock,
    input: ExecutionInput<'_>,
    source: &mut dyn TransactionSource,
) -> Result<(Vec<Recovered<Transaction>>, ExecutionOutcome), ExecutionError> {
    let mut filling = BlockFiller { source, included: Vec::new() };
    let outcome = run(spec, template, input, None, Some(&mut filling), None)?;
    Ok((filling.included, outcome))
}

pub(crate) struct BlockFiller<'a> {
    source: &'a mut dyn TransactionSource,
    included: Vec<Recovered<Transaction>>,
}

impl BlockFiller<'_> {
    /// Adds transactions to the block as long as there is room and some are offered.
    fn fill(
        &mut self,
        spec: &ChainSpec,
        header: &Header,
        executor: &mut BlockExecution<'_, '_, '_>,
    ) -> Result<(), ExecutionError> {
        let blob_limit = spec
            .blob_params_at_timestamp(header.timestamp)
            .map_or(0, |params| params.max_blob_gas_per_block());
        let has_state_gas = executor.evm().cfg_env().enable_amsterdam_eip8037;
        loop {
            // With EIP-8037 the gas limit holds twice: for state gas and for all other gas.
            let gas_used = if has_state_gas {
                executor.max_block_gas_used()
            } else {
                executor.cumulative_tx_gas_used
            };
            let room = RemainingGas {
                gas: header.gas_limit.saturating_sub(gas_used),
                blob_gas: blob_limit.saturating_sub(executor.blob_gas_used),
            };
            let Some(transaction) = self.source.next(room) else { return Ok(()) };
            match self.try_to_include(spec, header, executor, &transaction) {
                Ok(()) => self.included.push(transaction),
                Err(
                    refusal @ (ExecutionError::InvalidTransaction { .. }
                    | ExecutionError::InvalidDeposit { .. }),
                ) => self.source.mark_invalid(&refusal),
                Err(error) => return Err(error),
            }
        }
    }

    /// Executes one more transaction. A transaction whose deposits would make the block invalid
    /// (EIP-6110) changes nothing.
    fn try_to_include(
        &self,
        spec: &ChainSpec,
        header: &Header,
        executor: &mut BlockExecution<'_, '_, '_>,
        transaction: &Recovered<Transaction>,
    ) -> Result<(), ExecutionError> {
        let (number, index) = (header.number, self.included.len());
        executor.evm_mut().db_mut().set_access_index(index as u64 + 1);
        let outcome = executor.execute_transaction_without_commit(transaction.as_recovered_ref());
        let outcome =
            map_execution_error(number, Some(index), executor.evm_mut().db_mut(), outcome)?;
        check_deposits(
            number,
            index,
            deposit_contract(spec, header),
            outcome.result.result.logs(),
        )?;
        executor.commit_transaction(outcome);
        map_execution_error(number, Some(index), executor.evm_mut().db_mut(), Ok(()))
    }
}

/// The chain's rules that alloy-evm gets for one block.
///
/// * Without the DAO fork: alloy-evm would drain the DAO's accounts after the transactions, but
///   EIP-779 (and [`run`]) does it before them.
/// * With Paris if the header is a proof-of-stake one: where the merge block is not known in
///   advance, Paris activates at a total difficulty, which is not part of a header.
/// * With Petersburg from Constantinople on: see [`constantinople`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRules<'a> {
    spec: &'a ChainSpec,
    is_pos: bool,
}

impl<'a> BlockRules<'a> {
    fn new(spec: &'a ChainSpec, header: &Header) -> Self {
        Self { spec, is_pos: spec.is_pos(header) }
    }
}

impl EthereumHardforks for BlockRules<'_> {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        match fork {
            EthereumHardfork::Dao => ForkCondition::Never,
            EthereumHardfork::Paris if self.is_pos => ForkCondition::ZERO_BLOCK,
            EthereumHardfork::Petersburg => {
                self.spec.ethereum_fork_activation(EthereumHardfork::Constantinople)
            }
            fork => self.spec.ethereum_fork_activation(fork),
        }
    }
}

impl EthExecutorSpec for BlockRules<'_> {
    /// alloy-evm does not use it here: [`take_deposits`] reads the deposits, since alloy-evm
    /// accepts logs of other layouts too, and assumes mainnet's contract where a chain names none.
    fn deposit_contract_address(&self) -> Option<Address> {
        self.spec.deposit_contract()
    }
}

/// Executes all of a block. Outcomes of transactions come from `ahead`, where it has them.
pub(crate) fn run(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
    mut observer: Option<&mut TransactionObserver<'_>>,
    filling: Option<&mut BlockFiller<'_>>,
    ahead: Option<&ParallelExecution>,
) -> Result<ExecutionOutcome, ExecutionError> {
    let start = Instant::now();
    let header = block.header();
    let number = header.number;
    check_ommers(number, &block.body().ommers)?;

    let mut env = evm_env(spec, header);
    if let Some(BlockFiller { source, .. }) = &filling {
        env.cfg_env.disable_eip3607 = source.senders_may_have_code();
    }
    let tables = input.hashes;
    let mut state = block_state(header, &env, input);
    if observer.is_some() {
        state.open_window();
    }
    drain_dao(spec, number, &mut state)?;

    let context = EthBlockExecutionCtx {
        ommers: &block.body().ommers,
        withdrawals: block.body().withdrawals.as_ref().map(|list| Cow::Borrowed(list.as_slice())),
        tx_count_hint: Some(block.body().transactions.len()),
        ..context_of(header)
    };
    let mut executor = block_executor(spec, header, env, context, &mut state);

    let outcome = executor.apply_pre_execution_changes();
    map_execution_error(number, None, executor.evm_mut().db_mut(), outcome)?;

    let mut were_ahead = 0;
    for (index, transaction) in block.transactions_recovered().enumerate() {
        executor.evm_mut().db_mut().set_access_index(index as u64 + 1);
        if let Some(ahead) = ahead {
            let known = ahead.outcome(index, executor.evm_mut().db_mut());
            were_ahead += u64::from(known.is_some());
            executor.evm_mut().set_next_outcome(known);
        }
        let outcome = executor.execute_transaction(transaction);
        let state = executor.evm_mut().db_mut();
        map_execution_error(number, Some(index), state, outcome)?;
        if let Some(observer) = &mut observer {
            observer(index, state.take_window()).map_err(|source| ExecutionError::Observer {
                number,
                index,
                source,
            })?;
        }
    }

    let included = match filling {
        Some(filling) => {
            filling.fill(spec, header, &mut executor)?;
            &filling.included[..]
        }
        None => &[],
    };

    let transactions = executor.receipts.len() as u64;
    executor.evm_mut().db_mut().set_access_index(transactions + 1);
    let included = included.iter().map(|transaction| *transaction.tx_hash());
    let hashes = block.body().transactions.iter().map(|transaction| *transaction.tx_hash());
    index_tables::store_roots(spec, header, hashes.chain(included), tables, &mut executor)?;
    let deposits = take_deposits(spec, header, &mut executor)?;
    let outcome = executor.finish().map(|(_, result)| result);
    let result = deposits.complete(map_execution_error(number, None, &mut state, outcome)?);

    let outcome = outcome_of(number, start, &mut state, result)?;
    Ok(ExecutionOutcome { precomputed_transactions: were_ahead, ..outcome })
}

/// Executes one transaction alone in the block with this header, on `input.state`: no system calls,
/// no rewards, nothing else of the block. The state tests of the public suites need this.
///
/// # Errors
/// As [`execute_block`]; the state is then unchanged.
pub fn execute_transaction(
    spec: &ChainSpec,
    header: &Header,
    transaction: Recovered<&Transaction>,
    input: ExecutionInput<'_>,
) -> Result<ExecutionOutcome, ExecutionError> {
    let start = Instant::now();
    let number = header.number;
    let env = evm_env(spec, header);
    let mut state = block_state(header, &env, input);
    let mut executor = block_executor(spec, header, env, context_of(header), &mut state);
    executor.evm_mut().db_mut().set_access_index(1);
    let outcome = executor.execute_transaction(transaction);
    map_execution_error(number, Some(0), executor.evm_mut().db_mut(), outcome)?;
    let result = BlockExecutionResult {
        receipts: std::mem::take(&mut executor.receipts),
        requests: Default::default(),
        gas_used: executor.cumulative_tx_gas_used,
        blob_gas_used: executor.blob_gas_used,
    };
    outcome_of(number, start, &mut state, result)
}

/// Makes the irregular transfer of EIP-779, if this is its block.
pub(crate) fn drain_dao(
    spec: &ChainSpec,
    number: u64,
    state: &mut BlockState<'_>,
) -> Result<(), ExecutionError> {
    if spec.ethereum_fork_activation(EthereumHardfork::Dao).transitions_at_block(number) {
        state
            .drain(&dao_fork::DAO_HARDFORK_ACCOUNTS, dao_fork::DAO_HARDFORK_BENEFICIARY)
            .map_err(|error| database_error(number, None, error))?;
    }
    Ok(())
}

pub(crate) fn block_state<'a>(
    header: &Header,
    env: &EvmEnv<SpecId>,
    input: ExecutionInput<'a>,
) -> BlockState<'a> {
    let rules = StateRules {
        clears_empty: env.cfg_env.spec.is_enabled_in(SpecId::SPURIOUS_DRAGON),
        has_access_list: env.cfg_env.spec.is_enabled_in(SpecId::AMSTERDAM),
    };
    BlockState::new(input, rules, header.number, header.parent_hash)
}

/// The context that alloy-evm needs, for a block without ommers and withdrawals.
pub(crate) fn context_of(header: &Header) -> EthBlockExecutionCtx<'_> {
    EthBlockExecutionCtx {
        parent_hash: header.parent_hash,
        parent_beacon_block_root: header.parent_beacon_block_root,
        ommers: &[],
        withdrawals: None,
        extra_data: header.extra_data.clone(),
        tx_count_hint: None,
        slot_number: header.slot_number(),
    }
}

/// alloy-evm's executor of one block.
pub(crate) type BlockExecution<'s, 'a, 'b> =
    EthBlockExecutor<'b, BlockEvm<&'s mut BlockState<'a>>, BlockRules<'b>, BlockReceiptBuilder>;

pub(crate) fn block_executor<'s, 'a, 'b>(
    spec: &'b ChainSpec,
    header: &'b Header,
    env: EvmEnv<SpecId>,
    context: EthBlockExecutionCtx<'b>,
    state: &'s mut BlockState<'a>,
) -> BlockExecution<'s, 'a, 'b> {
    let evm = BlockEvm::new(state, env, has_net_metering(spec, header.number));
    EthBlockExecutor::new(evm, context, BlockRules::new(spec, header), BlockReceiptBuilder)
}

fn outcome_of(
    number: u64,
    start: Instant,
    state: &mut BlockState<'_>,
    result: BlockExecutionResult<Receipt>,
) -> Result<ExecutionOutcome, ExecutionError> {
    let (delta, codes) = state.finish().map_err(|error| database_error(number, None, error))?;
    let access_list = state.take_access_list();
    Ok(ExecutionOutcome {
        receipts: result.receipts,
        gas_used: result.gas_used,
        blob_gas_used: result.blob_gas_used,
        requests: result.requests,
        delta,
        codes,
        access_list,
        accesses: state.database().read_counts(),
        precomputed_transactions: 0,
        timing: ExecutionTiming { total: start.elapsed(), storage: state.database().read_time() },
    })
}

/// Checks, after the transactions, the contracts that requests are read from, and reads the
/// deposits. It takes the receipts from the executor, so that alloy-evm looks for no deposits in
/// them.
pub(crate) fn take_deposits(
    spec: &ChainSpec,
    header: &Header,
    executor: &mut BlockExecution<'_, '_, '_>,
) -> Result<DepositRequests, ExecutionError> {
    check_request_contracts(spec, header, executor.evm_mut().db_mut())?;
    let receipts = std::mem::take(&mut executor.receipts);
    DepositRequests::read(header.number, deposit_contract(spec, header), receipts)
}

/// The contract whose logs are deposits in this block, if there is one (EIP-6110).
fn deposit_contract(spec: &ChainSpec, header: &Header) -> Option<Address> {
    spec.deposit_contract().filter(|_| spec.is_prague_active_at_timestamp(header.timestamp))
}

/// A block is invalid if, after its transactions, a contract that requests are read from has no
/// code (EIP-7002 and EIP-7251, from Amsterdam on EIP-8282).
fn check_request_contracts(
    spec: &ChainSpec,
    header: &Header,
    state: &mut BlockState<'_>,
) -> Result<(), ExecutionError> {
    const PRAGUE: [Address; 2] =
        [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS];
    const AMSTERDAM: [Address; 2] =
        [BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS];
    let (number, time) = (header.number, header.timestamp);
    let prague = spec.is_prague_active_at_timestamp(time).then_some(PRAGUE);
    let amsterdam = spec.is_amsterdam_active_at_timestamp(time).then_some(AMSTERDAM);
    for contract in prague.into_iter().chain(amsterdam).flatten() {
        let has_code = state.has_code(contract);
        if !has_code.map_err(|error| database_error(number, None, error))? {
            let reason = format!("the system contract {contract} has no code");
            return Err(ExecutionError::InvalidBlock { number, reason });
        }
    }
    Ok(())
}

/// Refuses ommers of more than seven generations, whose reward (yellow paper 11.3) would be
/// negative.
fn check_ommers(number: u64, ommers: &[Header]) -> Result<(), ExecutionError> {
    const OLDEST: u64 = 7;
    for ommer in ommers {
        if ommer.number >= number || number - ommer.number > OLDEST {
            return Err(ExecutionError::InvalidBlock {
                number,
                reason: format!(
                    "ommer of height {} is not one of its recent ancestors' siblings",
                    ommer.number
                ),
            });
        }
    }
    Ok(())
}

/// Maps a result of alloy-evm to an [`ExecutionError`]; if a read failed, that failure is the
/// cause.
pub(crate) fn map_execution_error<T>(
    number: u64,
    index: Option<usize>,
    state: &mut BlockState<'_>,
    outcome: Result<T, BlockExecutionError>,
) -> Result<T, ExecutionError> {
    if let Some(failure) = state.take_failure() {
        return Err(database_error(number, index, failure));
    }
    outcome.map_err(|error| match (error, index) {
        (
            BlockExecutionError::Validation(
                source @ (BlockValidationError::InvalidTx { .. }
                | BlockValidationError::TransactionGasLimitMoreThanAvailableBlockGas {
                    ..
                }),
            ),
            Some(index),
        ) => ExecutionError::InvalidTransaction { number, index, source: Box::new(source) },
        (BlockExecutionError::Validation(error), _) => {
            ExecutionError::InvalidBlock { number, reason: error.to_string() }
        }
        (BlockExecutionError::Internal(error), _) => internal_error(number, index, &error),
    })
}

fn internal_error(
    number: u64,
    index: Option<usize>,
    error: &InternalBlockExecutionError,
) -> ExecutionError {
    let reason = error.to_string();
    match error.downcast_evm::<EVMError<ReadFailure>>() {
        // A header without a field its fork demands.
        Some(EVMError::Header(_)) => ExecutionError::InvalidBlock { number, reason },
        _ => ExecutionError::Evm { number, index, reason },
    }
}

pub(crate) fn database_error(
    number: u64,
    index: Option<usize>,
    source: DatabaseError,
) -> ExecutionError {
    ExecutionError::Database { number, index, source: Box::new(source) }
}
