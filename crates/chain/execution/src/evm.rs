//! The EVM of this workspace: revm's, and three rules that revm does not have.
//!
//! * EIP-8037: the gas limit of a transaction, state gas included, has a cap
//!   ([`max_tx_gas_limit`]).
//! * Storage under a creation. An account can have storage without nonce and code: a contract
//!   created before Spurious Dragon with empty code, or an account of a genesis file. A contract
//!   may be created at its address: EIP-7610, which forbade it, was withdrawn for all forks
//!   (execution-specs, pull request 3417). No test of the specification defines the fate of the old
//!   slots (execution-specs, issue 3635). Here they stay and the init code reads them, as in geth,
//!   which this crate follows. revm assumes that all storage of a created contract is zero;
//!   [`BlockEvm::keep_storage`] changes that. If the account was removed earlier in the block
//!   (EIP-161, SELFDESTRUCT), its slots were removed with it.
//! * Constantinople's net gas metering: see [`constantinople`](crate::constantinople).

use crate::{
    block_state::{BlockState, ReadFailure},
    constantinople,
    deadline::{self, ExecutionDeadline},
};
use alloy_evm::{
    Database, Evm, EvmEnv,
    eth::{EthEvmBuilder, EthEvmContext},
    precompiles::PrecompilesMap,
};
use alloy_primitives::{Address, Bytes};
use revm::{
    context::{
        BlockEnv, CfgEnv, Context, ContextSetters, ContextTr, FrameStack, TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, ResultAndState},
    },
    context_interface::{Cfg, JournalTr, context::ContextError, result::InvalidTransaction},
    handler::{
        CreateFrame, EthFrame, EvmTr, FrameData, FrameInitOrResult, FrameResult, Handler,
        ItemOrResult, MainnetHandler, PrecompileProvider, SystemCallTx, evm::FrameInitResult,
        instructions::EthInstructions,
    },
    inspector::{Inspector, InspectorEvmTr, InspectorHandler, NoOpInspector},
    interpreter::{interpreter::EthInterpreter, interpreter_action::FrameInit},
    primitives::hardfork::SpecId,
    state::Account,
};

/// A [`BlockState`], borrowed or owned.
pub(crate) trait BlockDatabase: Database<Error = ReadFailure> {
    /// The deadline, if there is one.
    fn deadline(&mut self) -> Option<&mut ExecutionDeadline>;
}

impl BlockDatabase for &mut BlockState<'_> {
    fn deadline(&mut self) -> Option<&mut ExecutionDeadline> {
        self.deadline.as_mut()
    }
}

impl BlockDatabase for Box<BlockState<'_>> {
    fn deadline(&mut self) -> Option<&mut ExecutionDeadline> {
        self.deadline.as_mut()
    }
}

type EvmInstructions<D> = EthInstructions<EthInterpreter, EthEvmContext<D>>;
type InnerEvm<D, I> =
    revm::context::Evm<EthEvmContext<D>, I, EvmInstructions<D>, PrecompilesMap, EthFrame>;
/// The error of this EVM.
pub(crate) type BlockEvmError = EVMError<ReadFailure>;

/// `TX_MAX_TOTAL_GAS_LIMIT` of EIP-8037: the largest gas limit of a transaction from Amsterdam on.
const MAX_TOTAL_GAS: u64 = u32::MAX as u64;

/// The largest gas limit of a transaction: the cap of EIP-7825 from Osaka on, and the cap of
/// EIP-8037 from Amsterdam on, when the former limits execution gas only. Setting
/// `cfg.tx_gas_limit_cap` above both lifts both.
pub fn max_tx_gas_limit(cfg: &CfgEnv<SpecId>) -> u64 {
    let cap = cfg.tx_gas_limit_cap();
    if cfg.is_amsterdam_eip8037_enabled() { cap.max(MAX_TOTAL_GAS) } else { cap }
}

/// The EVM over the state of one block.
pub(crate) struct BlockEvm<D: Database, I = NoOpInspector> {
    revm: InnerEvm<D, I>,
    /// The outcome of the next transaction, if it was executed in advance.
    known: Option<ResultAndState<HaltReason>>,
    /// Accounts that existed before this transaction created a contract at their address.
    built_over: Vec<Address>,
}

impl<D: BlockDatabase> BlockEvm<D> {
    /// An EVM in the environment `env`; with `net_metering` SSTORE has the costs of EIP-1283.
    pub(crate) fn new(state: D, env: EvmEnv<SpecId>, net_metering: bool) -> Self {
        let mut revm = EthEvmBuilder::new(state, env).build().into_inner();
        if net_metering {
            constantinople::meter_net(&mut revm.instruction);
        }
        Self { revm, known: None, built_over: Vec::new() }
    }
}

impl<D: BlockDatabase, I: Inspector<EthEvmContext<D>>> BlockEvm<D, I> {
    /// The same EVM with `inspector`.
    pub(crate) fn inspected_by<J: Inspector<EthEvmContext<D>>>(
        self,
        inspector: J,
    ) -> BlockEvm<D, J> {
        let Self { revm, known, built_over } = self;
        BlockEvm { revm: revm.with_inspector(inspector), known, built_over }
    }

    /// The same EVM with other precompiles. The fork's own precompiles stay the warm addresses
    /// (EIP-2929).
    pub(crate) fn with_precompiles(mut self, precompiles: PrecompilesMap) -> Self {
        let of_the_fork = std::mem::replace(&mut self.revm.precompiles, precompiles);
        let warm = PrecompileProvider::<EthEvmContext<D>>::warm_addresses(&of_the_fork);
        self.revm.ctx.journal_mut().warm_precompiles(warm);
        self
    }

    /// The same EVM, which checks the state's [deadline](crate::deadline) during execution.
    pub(crate) fn with_deadline_checks(mut self) -> Self {
        deadline::install_clock_check(&mut self.revm.instruction);
        self
    }

    /// Runs `tx` with the inspector.
    pub(crate) fn inspect(
        &mut self,
        tx: TxEnv,
    ) -> Result<ResultAndState<HaltReason>, BlockEvmError> {
        self.begin(tx)?;
        let result = MainnetHandler::default().inspect_run(self);
        self.finish_transaction(result)
    }
}

impl<D: BlockDatabase, I> BlockEvm<D, I> {
    /// Sets the outcome of the next transaction, which is then not executed.
    pub(crate) fn set_next_outcome(&mut self, outcome: Option<ResultAndState<HaltReason>>) {
        self.known = outcome;
    }

    /// Sets `tx` as the transaction to run, unless its gas limit is too high.
    fn begin(&mut self, tx: TxEnv) -> Result<(), BlockEvmError> {
        let (gas_limit, cap) = (tx.gas_limit, max_tx_gas_limit(&self.revm.ctx.cfg));
        if gas_limit > cap {
            return Err(InvalidTransaction::TxGasLimitGreaterThanCap { gas_limit, cap }.into());
        }
        self.revm.ctx.set_tx(tx);
        Ok(())
    }

    /// Finishes a transaction: takes its changes out of the journal.
    fn finish_transaction(
        &mut self,
        result: Result<ExecutionResult<HaltReason>, BlockEvmError>,
    ) -> Result<ResultAndState<HaltReason>, BlockEvmError> {
        let built_over = std::mem::take(&mut self.built_over);
        let has_nonce = self.revm.ctx.cfg.spec.is_enabled_in(SpecId::SPURIOUS_DRAGON);
        let journal = self.revm.ctx.journal_mut();
        if !has_nonce {
            // Before EIP-161 revm drops the changes of an existing empty account, unless it has the
            // flag `Created`.
            for address in &built_over {
                let account = journal.inner.state.get_mut(address);
                account.filter(|account| account.is_created_locally()).map(Account::mark_created);
            }
        }
        let mut state = journal.finalize();
        for address in built_over {
            // A contract that destroyed itself has no nonce (EIP-8246) and loses its storage.
            let keeps_storage = |account: &&mut Account| account.info.nonce > 0 || !has_nonce;
            state.get_mut(&address).filter(keeps_storage).map(Account::unmark_created);
        }
        Ok(ResultAndState::new(result?, state))
    }

    /// Lets the init code at `address` read the storage of an account that existed there before.
    fn keep_storage(&mut self, address: Address) {
        let Some(account) = self.revm.ctx.journal_mut().inner.state.get_mut(&address) else {
            return;
        };
        if !account.is_loaded_as_not_existing() {
            // The account still counts as created in this transaction (EIP-6780), by another flag.
            account.unmark_created();
            self.built_over.push(address);
        }
    }
}

impl<D: BlockDatabase, I> EvmTr for BlockEvm<D, I> {
    type Context = EthEvmContext<D>;
    type Instructions = EvmInstructions<D>;
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
    ) -> Result<FrameInitResult<'_, Self::Frame>, ContextError<ReadFailure>> {
        deadline::check(&mut self.revm.ctx)?;
        let data = match self.revm.frame_init(init)? {
            ItemOrResult::Item(frame) => &frame.data,
            ItemOrResult::Result(result) => return Ok(ItemOrResult::Result(result)),
        };
        if let FrameData::Create(CreateFrame { created_address }) = *data {
            self.keep_storage(created_address);
        }
        Ok(ItemOrResult::Item(self.revm.frame_stack.get()))
    }

    fn frame_run(&mut self) -> Result<FrameInitOrResult<Self::Frame>, ContextError<ReadFailure>> {
        self.revm.frame_run()
    }

    fn frame_return_result(
        &mut self,
        result: FrameResult,
    ) -> Result<Option<FrameResult>, ContextError<ReadFailure>> {
        self.revm.frame_return_result(result)
    }
}

type EvmParts<'e, D, I> = (
    &'e EthEvmContext<D>,
    &'e EvmInstructions<D>,
    &'e PrecompilesMap,
    &'e FrameStack<EthFrame>,
    &'e I,
);
type EvmPartsMut<'e, D, I> = (
    &'e mut EthEvmContext<D>,
    &'e mut EvmInstructions<D>,
    &'e mut PrecompilesMap,
    &'e mut FrameStack<EthFrame>,
    &'e mut I,
);

impl<D: BlockDatabase, I: Inspector<EthEvmContext<D>>> InspectorEvmTr for BlockEvm<D, I> {
    type Inspector = I;

    fn all_inspector(&self) -> EvmParts<'_, D, I> {
        self.revm.all_inspector()
    }

    fn all_mut_inspector(&mut self) -> EvmPartsMut<'_, D, I> {
        self.revm.all_mut_inspector()
    }
}

impl<D: BlockDatabase, I> Evm for BlockEvm<D, I> {
    type DB = D;
    type Tx = TxEnv;
    type Error = BlockEvmError;
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

    fn transact_raw(&mut self, tx: TxEnv) -> Result<ResultAndState<HaltReason>, BlockEvmError> {
        if let Some(known) = self.known.take() {
            return Ok(known);
        }
        self.begin(tx)?;
        let result = MainnetHandler::default().run(self);
        self.finish_transaction(result)
    }

    fn transact_system_call(
        &mut self,
        caller: Address,
        contract: Address,
        data: Bytes,
    ) -> Result<ResultAndState<HaltReason>, BlockEvmError> {
        self.revm.ctx.set_tx(TxEnv::new_system_tx_with_caller(caller, contract, data));
        let result = MainnetHandler::default().run_system_call(self);
        self.finish_transaction(result)
    }

    fn finish(self) -> (Self::DB, EvmEnv<SpecId>) {
        let Context { block: block_env, cfg: cfg_env, journaled_state, .. } = self.revm.ctx;
        (journaled_state.database, EvmEnv { block_env, cfg_env })
    }

    /// Has no effect: `transact` never inspects, and `inspect` always does.
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
