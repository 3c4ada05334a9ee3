//! [`EvmSimulation`]: executions that change no stored state: calls, estimates, traces, simulated
//! blocks.

use crate::{
    BlockAccessList, DatabaseError, ExecutionError, ExecutionInput,
    block_state::{BlockState, TouchedSlots},
    deadline::ExecutionDeadline,
    evm::{BlockEvm, BlockEvmError},
    executor::{
        self, block_executor, block_state, context_of, database_error, drain_dao, evm_env,
        has_net_metering, take_deposits,
    },
};
use alloy_eip7928::compute_block_access_list_hash;
use alloy_eips::eip7685::Requests;
use alloy_evm::{
    Evm, EvmEnv, FromRecoveredTx,
    block::BlockExecutor,
    eth::{EthBlockExecutionCtx, EthEvmContext},
    precompiles::PrecompilesMap,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use core::fmt;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, Receipt, RecoveredBlock, Withdrawal},
};
use retrie_state::{Account, StateDelta};
use revm::{
    DatabaseCommit, DatabaseRef,
    bytecode::Bytecode,
    context::{
        TxEnv,
        result::{EVMError, HaltReason, InvalidTransaction, ResultAndState},
    },
    inspector::Inspector,
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
    state::{AccountInfo, EvmState},
};
use std::{borrow::Cow, collections::BTreeMap, time::Instant};

/// Largest number of slots that clears of whole storages may list in a simulated block: its delta
/// lists each of them.
const CLEAR_LIMIT: usize = 100_000;

/// An execution in the environment of one block that changes no stored state.
///
/// It starts on the state of its input and continues with the [committed](Self::commit) changes. It
/// follows the rules of the block's fork; the flags of [`env_mut`](Self::env_mut) switch off the
/// checks that RPC calls may skip (nonces, base fee, the block's gas limit).
pub struct EvmSimulation<'a> {
    spec: &'a ChainSpec,
    env: EvmEnv<SpecId>,
    state: Box<BlockState<'a>>,
    net_metering: bool,
    /// Changes of the precompiles: removed from an address, or moved from one to another.
    removed_precompiles: Vec<Address>,
    moved_precompiles: Vec<(Address, Address)>,
}

/// The EVM context that an inspector gets.
pub type InspectorContext<'a> = EthEvmContext<Box<BlockState<'a>>>;

/// Changes of an account before an execution. `None` leaves a field unchanged.
#[derive(Clone, Debug, Default)]
pub struct AccountOverride {
    /// Balance, in wei.
    pub balance: Option<U256>,
    /// Nonce.
    pub nonce: Option<u64>,
    /// Code.
    pub code: Option<Bytes>,
    /// Whether all slots that are not listed become zero.
    pub clears_storage: bool,
    /// Slots and their values.
    pub slots: Vec<(U256, U256)>,
}

/// Why a simulated transaction has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// The transaction is not valid here.
    #[error(transparent)]
    Invalid(InvalidTransaction),
    /// State, code or ancestor hash could not be read.
    #[error(transparent)]
    Database(DatabaseError),
    /// The execution took too long.
    #[error("the execution was not finished by its deadline")]
    TimedOut,
    /// The EVM itself failed, e.g. a precompile without its implementation.
    #[error("the EVM failed: {0}")]
    Evm(String),
}

/// The results of a simulated block that are complete only after its transactions.
#[derive(Clone, Debug)]
pub struct SimulatedBlockResult {
    /// Requests to the consensus layer (EIP-7685), empty before Prague.
    pub requests: Requests,
    /// All changes since the simulation began.
    pub delta: StateDelta,
    /// Codes that accounts have now and did not have before, by hash.
    pub codes: Vec<(B256, Bytes)>,
    /// Accesses of the block (EIP-7928), from Amsterdam on.
    pub access_list: Option<BlockAccessList>,
}

impl SimulatedBlockResult {
    /// The header's `blockAccessListHash` (EIP-7928), from Amsterdam on.
    pub fn access_list_hash(&self) -> Option<B256> {
        self.access_list.as_deref().map(compute_block_access_list_hash)
    }
}

/// The environment of a block that may not exist. Its header may combine the time of a late fork
/// with a block number before the merge; the fork's rules then need a `prevrandao`, which
/// [`evm_env`] sets by number only.
pub fn simulated_env(spec: &ChainSpec, header: &Header) -> EvmEnv<SpecId> {
    let mut env = evm_env(spec, header);
    if env.cfg_env.spec.is_enabled_in(SpecId::MERGE) {
        env.block_env.prevrandao.get_or_insert(header.mix_hash);
    }
    env
}

impl<'a> EvmSimulation<'a> {
    /// A simulation in the environment of the block with this header, on `input`. BLOCKHASH of an
    /// unknown block gives zero.
    pub fn new(spec: &'a ChainSpec, header: &Header, input: ExecutionInput<'a>) -> Self {
        let env = simulated_env(spec, header);
        let mut state = Box::new(block_state(header, &env, input));
        state.hashes = Some(BTreeMap::new());
        state.clear_limit = Some(CLEAR_LIMIT);
        let net_metering = has_net_metering(spec, header.number);
        Self {
            spec,
            env,
            state,
            net_metering,
            removed_precompiles: Vec::new(),
            moved_precompiles: Vec::new(),
        }
    }

    /// A simulation before the first transaction of `block`; `input` is the state of its parent.
    ///
    /// # Errors
    /// As [`before_transactions`](Self::before_transactions).
    pub fn of_block(
        spec: &'a ChainSpec,
        block: &RecoveredBlock,
        input: ExecutionInput<'a>,
    ) -> Result<Self, ExecutionError> {
        let mut simulation = Self::new(spec, block.header(), input);
        simulation.state.hashes = None;
        simulation.state.clear_limit = None;
        // The block was valid when it was built, and dev chains include transactions of contracts.
        simulation.env.cfg_env.disable_eip3607 = true;
        simulation.before_transactions(block.header())?;
        Ok(simulation)
    }

    /// The EVM's environment.
    pub const fn env(&self) -> &EvmEnv<SpecId> {
        &self.env
    }

    /// The EVM's environment, to change it.
    pub const fn env_mut(&mut self) -> &mut EvmEnv<SpecId> {
        &mut self.env
    }

    /// Executions end with [`TransactError::TimedOut`] after `end`.
    pub const fn set_deadline(&mut self, end: Instant) {
        self.state.deadline = Some(ExecutionDeadline::new(end));
    }

    /// Sets the hash that BLOCKHASH gives for block `number`.
    pub fn set_block_hash(&mut self, number: u64, hash: B256) {
        self.state.hashes.get_or_insert_default().insert(number, hash);
    }

    /// The account as it is now.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn account(&mut self, address: Address) -> Result<Option<Account>, DatabaseError> {
        self.state.account(address)
    }

    /// The slots of the account that the block has read or written so far.
    pub fn touched_slots(&self, address: &Address) -> TouchedSlots {
        self.state.touched_slots(address)
    }

    /// Whether there is a precompile at this address.
    pub fn is_precompile(&self, address: &Address) -> bool {
        if self.moved_precompiles.iter().any(|(_, to)| to == address) {
            return true;
        }
        let standard = Precompiles::new(PrecompileSpecId::from_spec_id(self.env.cfg_env.spec));
        standard.contains(address) && !self.removed_precompiles.contains(address)
    }

    /// Moves the precompile at `from` to `to`.
    pub fn move_precompile(&mut self, from: Address, to: Address) {
        self.moved_precompiles.push((from, to));
    }

    /// Removes the precompile at this address, so that the account's own code runs.
    pub fn remove_precompile(&mut self, address: Address) {
        self.removed_precompiles.push(address);
    }

    /// Changes an account.
    pub fn override_account(
        &mut self,
        address: Address,
        changed: AccountOverride,
    ) -> Result<(), DatabaseError> {
        let before = self.state.account(address)?;
        let mut account = before.unwrap_or_default();
        if let Some(balance) = changed.balance {
            account.balance = balance;
        }
        if let Some(nonce) = changed.nonce {
            account.nonce = nonce;
        }
        if let Some(code) = changed.code {
            account.code_hash = if code.is_empty() { KECCAK256_EMPTY } else { keccak256(&code) };
            // Code that looks like a delegation (EIP-7702) but is none runs as plain code; before
            // Prague there are no delegations.
            let has_delegations = self.env.cfg_env.spec.is_enabled_in(SpecId::PRAGUE);
            let delegating = Bytecode::new_raw_checked(code.clone()).ok();
            let code = delegating
                .filter(|_| has_delegations)
                .unwrap_or_else(|| Bytecode::new_legacy(code));
            self.state.insert_code(account.code_hash, code);
        }
        let is_unchanged = account == before.unwrap_or_default();
        if is_unchanged && !changed.clears_storage && changed.slots.is_empty() {
            return Ok(());
        }
        self.state.set(address, account, changed.clears_storage, changed.slots)
    }

    /// All changes since the simulation began, and the codes that accounts have now and did not
    /// have before.
    ///
    /// # Errors
    /// If an account whose storage is cleared cannot be read.
    pub fn changes(&mut self) -> Result<(StateDelta, Vec<(B256, Bytes)>), DatabaseError> {
        self.state.finish()
    }

    /// Applies the changes before the transactions of the block with this header: the DAO's
    /// irregular transfer and the system calls.
    ///
    /// # Errors
    /// As [`execute_block`](crate::execute_block).
    pub fn before_transactions(&mut self, header: &Header) -> Result<(), ExecutionError> {
        drain_dao(self.spec, header.number, &mut self.state)?;
        let env = self.env.clone();
        let mut executor =
            block_executor(self.spec, header, env, context_of(header), &mut self.state);
        let outcome = executor.apply_pre_execution_changes();
        executor::map_execution_error(header.number, None, executor.evm_mut().db_mut(), outcome)
    }

    /// Applies the changes after the transactions of the block with this header: requests, rewards
    /// and withdrawals.
    ///
    /// # Errors
    /// As [`execute_block`](crate::execute_block).
    pub fn after_transactions(
        &mut self,
        header: &Header,
        receipts: Vec<Receipt>,
        withdrawals: Option<&[Withdrawal]>,
    ) -> Result<SimulatedBlockResult, ExecutionError> {
        let number = header.number;
        self.begin_transaction(receipts.len());
        let context = EthBlockExecutionCtx {
            withdrawals: withdrawals.map(Cow::Borrowed),
            ..context_of(header)
        };
        let env = self.env.clone();
        let mut executor = block_executor(self.spec, header, env, context, &mut self.state);
        executor.receipts = receipts;
        let deposits = take_deposits(self.spec, header, &mut executor)?;
        let outcome = executor.finish().map(|(_, result)| result);
        let result = deposits.complete(executor::map_execution_error(
            number,
            None,
            &mut self.state,
            outcome,
        )?);
        let (delta, codes) =
            self.state.finish().map_err(|error| database_error(number, None, error))?;
        let access_list = self.state.take_access_list();
        Ok(SimulatedBlockResult { requests: result.requests, delta, codes, access_list })
    }

    /// Sets the block access index (EIP-7928) to that of transaction `index`, or with the number of
    /// transactions as `index` to what follows them.
    pub const fn begin_transaction(&mut self, index: usize) {
        self.state.set_access_index(index as u64 + 1);
    }

    /// Executes a transaction of a block at its index. The caller can commit its changes.
    ///
    /// # Errors
    /// As [`transact`](Self::transact).
    pub fn replay<I>(
        &mut self,
        block: &RecoveredBlock,
        index: usize,
        inspector: Option<&mut I>,
    ) -> Result<(TxEnv, ResultAndState<HaltReason>), TransactError>
    where
        I: Inspector<InspectorContext<'a>>,
    {
        let body = block.body();
        let (transaction, sender) = (&body.transactions[index], block.senders()[index]);
        let tx = TxEnv::from_recovered_tx(transaction, sender);
        self.begin_transaction(index);
        let outcome = match inspector {
            Some(inspector) => self.inspect(tx.clone(), inspector),
            None => self.transact(tx.clone()),
        };
        Ok((tx, outcome?))
    }

    /// Executes a transaction. The state stays as it is until the outcome is committed.
    ///
    /// # Errors
    /// [`TransactError`].
    pub fn transact(&mut self, tx: TxEnv) -> Result<ResultAndState<HaltReason>, TransactError> {
        let mut evm = self.evm();
        let outcome = evm.transact_raw(tx);
        self.state = evm.into_db();
        self.map_transact_error(outcome)
    }

    /// Executes a transaction with an `inspector`. The state stays as it is until the outcome is
    /// committed.
    ///
    /// # Errors
    /// [`TransactError`].
    pub fn inspect<I>(
        &mut self,
        tx: TxEnv,
        inspector: &mut I,
    ) -> Result<ResultAndState<HaltReason>, TransactError>
    where
        I: Inspector<InspectorContext<'a>>,
    {
        let mut evm = self.evm().inspected_by(inspector);
        let outcome = evm.inspect(tx);
        self.state = evm.into_db();
        self.map_transact_error(outcome)
    }

    /// Moves the state into an EVM; the caller must move it back.
    fn evm(&mut self) -> BlockEvm<Box<BlockState<'a>>> {
        let nothing = Box::new(self.state.fresh());
        let state = std::mem::replace(&mut self.state, nothing);
        let has_deadline = state.deadline.is_some();
        let mut evm = BlockEvm::new(state, self.env.clone(), self.net_metering);
        if let Some(precompiles) = self.precompiles() {
            evm = evm.with_precompiles(precompiles);
        }
        if has_deadline { evm.with_deadline_checks() } else { evm }
    }

    /// Makes the changes of a transaction part of the state.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn commit(&mut self, changes: EvmState) -> Result<(), DatabaseError> {
        self.state.commit(changes);
        self.state.take_failure().map_or(Ok(()), Err)
    }

    /// The precompiles, if they are not the standard ones.
    fn precompiles(&self) -> Option<PrecompilesMap> {
        if self.removed_precompiles.is_empty() && self.moved_precompiles.is_empty() {
            return None;
        }
        let spec = PrecompileSpecId::from_spec_id(self.env.cfg_env.spec);
        let standard = Precompiles::new(spec);
        let mut precompiles = PrecompilesMap::from_static(standard);
        for address in &self.removed_precompiles {
            precompiles.apply_precompile(address, |_| None);
        }
        for (from, to) in &self.moved_precompiles {
            let mut moved = None;
            PrecompilesMap::from_static(standard).apply_precompile(from, |precompile| {
                moved = precompile;
                None
            });
            precompiles.apply_precompile(to, |_| moved);
        }
        Some(precompiles)
    }

    fn map_transact_error(
        &mut self,
        outcome: Result<ResultAndState<HaltReason>, BlockEvmError>,
    ) -> Result<ResultAndState<HaltReason>, TransactError> {
        if let Some(failure) = self.state.take_failure() {
            return Err(TransactError::Database(failure));
        }
        if self.state.deadline.as_ref().is_some_and(ExecutionDeadline::has_passed) {
            return Err(TransactError::TimedOut);
        }
        outcome.map_err(|error| match error {
            EVMError::Transaction(invalid) => TransactError::Invalid(invalid),
            error => TransactError::Evm(error.to_string()),
        })
    }
}

/// The state as it is now.
impl DatabaseRef for EvmSimulation<'_> {
    type Error = DatabaseError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, DatabaseError> {
        self.state.basic_ref(address)
    }

    fn code_by_hash_ref(&self, code_hash: B256) -> Result<Bytecode, DatabaseError> {
        self.state.code_by_hash_ref(code_hash)
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, DatabaseError> {
        self.state.storage_ref(address, index)
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, DatabaseError> {
        self.state.block_hash_ref(number)
    }
}

impl fmt::Debug for EvmSimulation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("number", &self.env.block_env.number)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
