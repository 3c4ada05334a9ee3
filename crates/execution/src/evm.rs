//! The EVM of this workspace: revm's, and three rules that revm does not have.
//!
//! * EIP-8037: the gas limit of a transaction, state gas included, has a cap ([`max_tx_gas_limit`]).
//! * Storage under a creation. An account may have storage, but neither nonce nor code: a contract that
//!   was created before Spurious Dragon with empty code is one, and a genesis file can say so. No rule
//!   keeps a contract from being created there: EIP-7610, which did, was withdrawn for all forks
//!   (execution-specs, pull request 3417). What becomes of the old slots no test of the specification
//!   says (execution-specs, issue 3635). Here they stay and the init code reads them, as in geth, by
//!   which this is held. revm takes all storage of a created contract for zero, unless it is told
//!   otherwise ([`BlockEvm::keep_storage`]). If the account was removed earlier in the block (EIP-161,
//!   SELFDESTRUCT), its slots went with it.
//! * Constantinople's net gas metering: see [`constantinople`](crate::constantinople).

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
pub(crate) trait BlockDatabase: Database<Error = ReadFailed> {
    /// The deadline, if there is one.
    fn deadline(&mut self) -> Option<&mut Deadline>;
}

impl BlockDatabase for &mut BlockState<'_> {
    fn deadline(&mut self) -> Option<&mut Deadline> {
        self.deadline.as_mut()
    }
}

impl BlockDatabase for Box<BlockState<'_>> {
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
    /// Accounts that were there before this transaction created a contract at their address.
    built_over: Vec<Address>,
}

impl<D: BlockDatabase> BlockEvm<D> {
    /// An EVM in the environment `env`; with `net_metering` SSTORE costs what EIP-1283 says.
    pub(crate) fn new(state: D, env: EvmEnv<SpecId>, net_metering: bool) -> Self {
        let mut revm = EthEvmBuilder::new(state, env).build().into_inner();
        if net_metering {
            constantinople::meter_net(&mut revm.instruction);
        }
        Self { revm, known: None, built_over: Vec::new() }
    }
}

impl<D: BlockDatabase, I: Inspector<EthEvmContext<D>>> BlockEvm<D, I> {
    /// The same EVM, seen by `inspector` from now on.
    pub(crate) fn inspected_by<J: Inspector<EthEvmContext<D>>>(
        self,
        inspector: J,
    ) -> BlockEvm<D, J> {
        let Self { revm, known, built_over } = self;
        BlockEvm { revm: revm.with_inspector(inspector), known, built_over }
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
        let built_over = std::mem::take(&mut self.built_over);
        let has_nonce = self.revm.ctx.cfg.spec.is_enabled_in(SpecId::SPURIOUS_DRAGON);
        let journal = self.revm.ctx.journal_mut();
        if !has_nonce {
            // Before EIP-161 revm drops what happened to an empty account that was there before, unless
            // it is called created.
            for address in &built_over {
                let account = journal.inner.state.get_mut(address);
                account.filter(|account| account.is_created_locally()).map(Account::mark_created);
            }
        }
        let mut state = journal.finalize();
        for address in built_over {
            // What has destroyed itself is left without a nonce (EIP-8246), and without its storage.
            let keeps_storage = |account: &&mut Account| account.info.nonce > 0 || !has_nonce;
            state.get_mut(&address).filter(keeps_storage).map(Account::unmark_created);
        }
        Ok(ResultAndState::new(result?, state))
    }

    /// Has the init code at `address` read what was stored there before, if there was an account.
    fn keep_storage(&mut self, address: Address) {
        let Some(account) = self.revm.ctx.journal_mut().inner.state.get_mut(&address) else {
            return;
        };
        if !account.is_loaded_as_not_existing() {
            // It still counts as created in this transaction (EIP-6780): another flag says so.
            account.unmark_created();
            self.built_over.push(address);
        }
    }
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
        let data = match self.revm.frame_init(init)? {
            ItemOrResult::Item(frame) => &frame.data,
            ItemOrResult::Result(result) => return Ok(ItemOrResult::Result(result)),
        };
        if let FrameData::Create(CreateFrame { created_address }) = *data {
            self.keep_storage(created_address);
        }
        Ok(ItemOrResult::Item(self.revm.frame_stack.get()))
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
