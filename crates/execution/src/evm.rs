//! The EVM of this workspace: revm's, and three rules that revm does not have.
//!
//! * EIP-8037: the gas limit of a transaction, state gas included, has a cap ([`max_tx_gas_limit`]).
//! * EIP-7610: a creation collides with an account that has storage, though it has neither nonce nor
//!   code. The rule is retroactive. Such accounts come from contracts that were created before
//!   Spurious Dragon with empty code. revm's journal looks at nonce and code only, as it does not know
//!   an account's storage as a whole.
//! * Constantinople's net gas metering: see [`constantinople`](crate::constantinople).
//!
//! A creation that revm would refuse for its depth, balance or nonce never gets to the question, and
//! most others end it with one look at an account that revm loads next: it does not exist, or has a
//! nonce or code. Only what is left costs a listing of its storage.

use crate::{
    block_state::{BlockState, ReadFailed},
    constantinople,
    deadline::{self, Deadline},
};
use alloy_evm::{
    Database, Evm, EvmEnv,
    eth::{EthEvmBuilder, EthEvmContext},
    precompiles::PrecompilesMap,
};
use alloy_primitives::{Address, Bytes};
use revm::{
    context::{
        BlockEnv, CfgEnv, Context, ContextSetters, ContextTr, FrameStack, JournalTr, TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, ResultAndState},
    },
    context_interface::{
        Cfg, context::ContextError, journaled_state::account::JournaledAccountTr,
        result::InvalidTransaction,
    },
    handler::{
        EthFrame, EvmTr, FrameInitOrResult, FrameResult, Handler, ItemOrResult, MainnetHandler,
        PrecompileProvider, SystemCallTx, evm::FrameInitResult, instructions::EthInstructions,
    },
    inspector::{Inspector, InspectorEvmTr, InspectorHandler, NoOpInspector},
    interpreter::{
        CreateInputs, CreateOutcome, FrameInput, Gas, InstructionResult, InterpreterResult,
        interpreter::EthInterpreter, interpreter_action::FrameInit,
    },
    primitives::{constants::CALL_STACK_LIMIT, hardfork::SpecId},
};

/// A [`BlockState`], borrowed or owned.
pub(crate) trait BlockDatabase: Database<Error = ReadFailed> {
    /// Whether the account has storage, but neither nonce nor code (EIP-7610).
    fn has_nothing_but_storage(&mut self, address: Address) -> Result<bool, ReadFailed>;

    /// The deadline, if there is one.
    fn deadline(&mut self) -> Option<&mut Deadline>;
}

impl BlockDatabase for &mut BlockState<'_> {
    fn has_nothing_but_storage(&mut self, address: Address) -> Result<bool, ReadFailed> {
        BlockState::has_nothing_but_storage(self, address)
    }

    fn deadline(&mut self) -> Option<&mut Deadline> {
        self.deadline.as_mut()
    }
}

impl BlockDatabase for Box<BlockState<'_>> {
    fn has_nothing_but_storage(&mut self, address: Address) -> Result<bool, ReadFailed> {
        BlockState::has_nothing_but_storage(self, address)
    }

    fn deadline(&mut self) -> Option<&mut Deadline> {
        self.deadline.as_mut()
    }
}

type Instructions<D> = EthInstructions<EthInterpreter, EthEvmContext<D>>;
type Revm<D, I> =
    revm::context::Evm<EthEvmContext<D>, I, Instructions<D>, PrecompilesMap, EthFrame>;
/// How the EVM fails.
pub(crate) type Error = EVMError<ReadFailed>;

/// `TX_MAX_TOTAL_GAS_LIMIT` of EIP-8037: the most gas that a transaction may ask for from Amsterdam on.
const MAX_TOTAL_GAS: u64 = u32::MAX as u64;

/// The most gas that a transaction may ask for: a cap of EIP-7825 from Osaka on, one of EIP-8037 from
/// Amsterdam on, when the former is one of execution gas alone. Who lifts the former lifts both.
pub fn max_tx_gas_limit(cfg: &CfgEnv<SpecId>) -> u64 {
    let cap = cfg.tx_gas_limit_cap();
    if cfg.is_amsterdam_eip8037_enabled() { cap.max(MAX_TOTAL_GAS) } else { cap }
}

/// The EVM over the state of one block.
pub(crate) struct BlockEvm<D: Database, I = NoOpInspector> {
    revm: Revm<D, I>,
    /// The outcome of the next transaction, if it is known.
    known: Option<ResultAndState<HaltReason>>,
}

impl<D: BlockDatabase> BlockEvm<D> {
    /// An EVM in the environment `env`; with `net_metering` SSTORE costs what EIP-1283 says.
    pub(crate) fn new(state: D, env: EvmEnv<SpecId>, net_metering: bool) -> Self {
        let mut revm = EthEvmBuilder::new(state, env).build().into_inner();
        if net_metering {
            constantinople::meter_net(&mut revm.instruction);
        }
        Self { revm, known: None }
    }
}

impl<D: BlockDatabase, I: Inspector<EthEvmContext<D>>> BlockEvm<D, I> {
    /// The same EVM, seen by `inspector` from now on.
    pub(crate) fn inspected_by<J: Inspector<EthEvmContext<D>>>(
        self,
        inspector: J,
    ) -> BlockEvm<D, J> {
        BlockEvm { revm: self.revm.with_inspector(inspector), known: self.known }
    }

    /// The same EVM with other precompiles. Warm are those of the fork nevertheless (EIP-2929).
    pub(crate) fn with_precompiles(mut self, precompiles: PrecompilesMap) -> Self {
        let of_the_fork = std::mem::replace(&mut self.revm.precompiles, precompiles);
        let warm = PrecompileProvider::<EthEvmContext<D>>::warm_addresses(&of_the_fork);
        self.revm.ctx.journal_mut().warm_precompiles(warm);
        self
    }

    /// The same EVM, which asks the state's [deadline](crate::deadline) as it goes.
    pub(crate) fn watching_the_clock(mut self) -> Self {
        deadline::watch(&mut self.revm.instruction);
        self
    }

    /// Runs `tx` before the eyes of the inspector.
    pub(crate) fn inspect(&mut self, tx: TxEnv) -> Result<ResultAndState<HaltReason>, Error> {
        self.begin(tx)?;
        let result = MainnetHandler::default().inspect_run(self);
        self.settle(result)
    }
}

impl<D: BlockDatabase, I> BlockEvm<D, I> {
    /// Gives the next transaction this outcome, instead of executing it.
    pub(crate) fn foresee(&mut self, outcome: Option<ResultAndState<HaltReason>>) {
        self.known = outcome;
    }

    /// Puts `tx` before the handler, unless it asks for too much gas.
    fn begin(&mut self, tx: TxEnv) -> Result<(), Error> {
        let (gas_limit, cap) = (tx.gas_limit, max_tx_gas_limit(&self.revm.ctx.cfg));
        if gas_limit > cap {
            return Err(InvalidTransaction::TxGasLimitGreaterThanCap { gas_limit, cap }.into());
        }
        self.revm.ctx.set_tx(tx);
        Ok(())
    }

    /// Ends what the handler has run: takes its changes out of the journal.
    fn settle(
        &mut self,
        result: Result<ExecutionResult<HaltReason>, Error>,
    ) -> Result<ResultAndState<HaltReason>, Error> {
        let state = self.revm.ctx.journal_mut().finalize();
        Ok(ResultAndState::new(result?, state))
    }
}

/// Whether this creation meets an account that has nothing but storage (EIP-7610). If so, all that a
/// collision leaves behind is done: the caller's nonce is used up and the address is warm.
fn collides_with_storage<D: BlockDatabase>(
    context: &mut EthEvmContext<D>,
    depth: usize,
    inputs: &CreateInputs,
) -> Result<bool, ReadFailed> {
    let journal = context.journal_mut();
    let caller = &journal.load_account(inputs.caller())?.data.info;
    let nonce = caller.nonce;
    // These are refused before the address matters, and leave the nonce alone.
    if depth > CALL_STACK_LIMIT as usize || caller.balance < inputs.value() || nonce == u64::MAX {
        return Ok(false);
    }
    let address = inputs.created_address(nonce);
    if !journal.db_mut().has_nothing_but_storage(address)? {
        return Ok(false);
    }
    journal.load_account_mut(inputs.caller())?.data.bump_nonce();
    journal.load_account(address)?;
    Ok(true)
}

/// All gas is gone and nothing is created.
fn collision(inputs: &CreateInputs) -> FrameResult {
    FrameResult::Create(CreateOutcome {
        result: InterpreterResult {
            result: InstructionResult::CreateCollision,
            gas: Gas::new_with_regular_gas_and_reservoir(inputs.gas_limit(), inputs.reservoir()),
            output: Bytes::new(),
        },
        address: None,
        charged_create_state_gas: inputs.charged_create_state_gas(),
    })
}

impl<D: BlockDatabase, I> EvmTr for BlockEvm<D, I> {
    type Context = EthEvmContext<D>;
    type Instructions = Instructions<D>;
    type Precompiles = PrecompilesMap;
    type Frame = EthFrame;

    fn all(
        &self,
    ) -> (&Self::Context, &Self::Instructions, &Self::Precompiles, &FrameStack<Self::Frame>) {
        self.revm.all()
    }

    fn all_mut(
        &mut self,
    ) -> (
        &mut Self::Context,
        &mut Self::Instructions,
        &mut Self::Precompiles,
        &mut FrameStack<Self::Frame>,
    ) {
        self.revm.all_mut()
    }

    fn frame_init(
        &mut self,
        init: FrameInit,
    ) -> Result<FrameInitResult<'_, Self::Frame>, ContextError<ReadFailed>> {
        deadline::check(&mut self.revm.ctx)?;
        if let FrameInput::Create(inputs) = &init.frame_input
            && collides_with_storage(&mut self.revm.ctx, init.depth, inputs)?
        {
            return Ok(ItemOrResult::Result(collision(inputs)));
        }
        self.revm.frame_init(init)
    }

    fn frame_run(&mut self) -> Result<FrameInitOrResult<Self::Frame>, ContextError<ReadFailed>> {
        self.revm.frame_run()
    }

    fn frame_return_result(
        &mut self,
        result: FrameResult,
    ) -> Result<Option<FrameResult>, ContextError<ReadFailed>> {
        self.revm.frame_return_result(result)
    }
}

type All<'e, D, I> = (
    &'e EthEvmContext<D>,
    &'e Instructions<D>,
    &'e PrecompilesMap,
    &'e FrameStack<EthFrame>,
    &'e I,
);
type AllMut<'e, D, I> = (
    &'e mut EthEvmContext<D>,
    &'e mut Instructions<D>,
    &'e mut PrecompilesMap,
    &'e mut FrameStack<EthFrame>,
    &'e mut I,
);

impl<D: BlockDatabase, I: Inspector<EthEvmContext<D>>> InspectorEvmTr for BlockEvm<D, I> {
    type Inspector = I;

    fn all_inspector(&self) -> All<'_, D, I> {
        self.revm.all_inspector()
    }

    fn all_mut_inspector(&mut self) -> AllMut<'_, D, I> {
        self.revm.all_mut_inspector()
    }
}

impl<D: BlockDatabase, I> Evm for BlockEvm<D, I> {
    type DB = D;
    type Tx = TxEnv;
    type Error = Error;
    type HaltReason = HaltReason;
    type Spec = SpecId;
    type BlockEnv = BlockEnv;
    type Precompiles = PrecompilesMap;
    type Inspector = I;

    fn block(&self) -> &BlockEnv {
        &self.revm.ctx.block
    }

    fn cfg_env(&self) -> &CfgEnv<SpecId> {
        &self.revm.ctx.cfg
    }

    fn chain_id(&self) -> u64 {
        self.revm.ctx.cfg.chain_id
    }

    fn transact_raw(&mut self, tx: TxEnv) -> Result<ResultAndState<HaltReason>, Error> {
        if let Some(known) = self.known.take() {
            return Ok(known);
        }
        self.begin(tx)?;
        let result = MainnetHandler::default().run(self);
        self.settle(result)
    }

    fn transact_system_call(
        &mut self,
        caller: Address,
        contract: Address,
        data: Bytes,
    ) -> Result<ResultAndState<HaltReason>, Error> {
        self.revm.ctx.set_tx(TxEnv::new_system_tx_with_caller(caller, contract, data));
        let result = MainnetHandler::default().run_system_call(self);
        self.settle(result)
    }

    fn finish(self) -> (Self::DB, EvmEnv<SpecId>) {
        let Context { block: block_env, cfg: cfg_env, journaled_state, .. } = self.revm.ctx;
        (journaled_state.database, EvmEnv { block_env, cfg_env })
    }

    /// There is nothing to enable: `transact` never inspects, and `inspect` always does.
    fn set_inspector_enabled(&mut self, _: bool) {}

    fn components(&self) -> (&Self::DB, &I, &PrecompilesMap) {
        let revm = &self.revm;
        (&revm.ctx.journaled_state.database, &revm.inspector, &revm.precompiles)
    }

    fn components_mut(&mut self) -> (&mut Self::DB, &mut I, &mut PrecompilesMap) {
        let revm = &mut self.revm;
        (&mut revm.ctx.journaled_state.database, &mut revm.inspector, &mut revm.precompiles)
    }
}
