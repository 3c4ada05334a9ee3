//! Logs of a simulated transaction, with a log for every transfer of ether if that is asked for.

use alloy_primitives::{Address, B256, Log, LogData, U256};
use revm::{
    bytecode::opcode,
    context_interface::{ContextTr, JournalTr, journaled_state::account::JournaledAccountTr},
    inspector::Inspector,
    interpreter::{
        CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome, CreateScheme,
        InstructionResult, Interpreter,
        interpreter_types::{Jumps, LoopControl},
    },
};
use revm_inspectors::transfer::{TRANSFER_EVENT_TOPIC, TRANSFER_LOG_EMITTER};

/// Collects logs in the order they happen, and forgets those of frames that fail.
///
/// Transfers are logged as an ERC-20 token at `0xeeee..ee` would log them; they are shown, but are
/// no part of the receipt.
#[derive(Debug)]
pub(super) struct LogCollector {
    with_transfers: bool,
    /// Logs of each frame that has not ended, the outermost first.
    frames: Vec<Vec<(usize, Log)>>,
    done: Vec<(usize, Log)>,
    /// Logs so far in the block, those forgotten included.
    count: usize,
    /// The sender whose nonce begins again at zero with the transaction that comes next.
    wrapping: Option<Address>,
    /// A contract that is about to end, who inherits from it, and how much.
    inheritance: Option<(Address, Address, U256)>,
}

impl LogCollector {
    /// With a log for every transfer if `with_transfers`.
    pub(super) const fn new(with_transfers: bool) -> Self {
        Self {
            with_transfers,
            frames: Vec::new(),
            done: Vec::new(),
            count: 0,
            wrapping: None,
            inheritance: None,
        }
    }

    /// Says whose nonce the next transaction, a call, uses up though it is the last: the EVM leaves it
    /// as it is, but where nobody looks at nonces it goes on from zero, as in geth.
    pub(super) const fn wrap_nonce(&mut self, sender: Option<Address>) {
        self.wrapping = sender;
    }

    /// The logs of the transaction that has just ended, each with its index in the block.
    pub(super) fn take(&mut self) -> Vec<(usize, Log)> {
        self.frames.clear();
        std::mem::take(&mut self.done)
    }

    fn push(&mut self, log: Log) {
        let at = (self.count, log);
        self.count += 1;
        self.frames.last_mut().unwrap_or(&mut self.done).push(at);
    }

    fn transfer(&mut self, from: Address, to: Address, value: U256) {
        if self.with_transfers && !value.is_zero() {
            let topics = vec![TRANSFER_EVENT_TOPIC, from.into_word(), to.into_word()];
            let value = B256::from(value);
            let data = LogData::new_unchecked(topics, value.into());
            self.push(Log { address: TRANSFER_LOG_EMITTER, data });
        }
    }

    fn end(&mut self, is_success: bool) {
        let logs = self.frames.pop().unwrap_or_default();
        if is_success {
            self.frames.last_mut().unwrap_or(&mut self.done).extend(logs);
        }
    }
}

impl<C: ContextTr> Inspector<C> for LogCollector {
    fn step(&mut self, interp: &mut Interpreter, context: &mut C) {
        if !self.with_transfers || interp.bytecode.opcode() != opcode::SELFDESTRUCT {
            return;
        }
        let contract = interp.input.target_address;
        // A read that fails here fails again where the EVM does it.
        if let Ok(heir) = interp.stack.peek(0)
            && let Ok(account) = context.journal_mut().load_account(contract)
        {
            let balance = account.data.info.balance;
            self.inheritance = Some((contract, Address::from_word(heir.into()), balance));
        }
    }

    /// As in geth, a contract that ends leaves its balance to its heir even if that is itself: revm tells of
    /// such an end only where the journal has it.
    fn step_end(&mut self, interp: &mut Interpreter, _: &mut C) {
        if let Some((contract, heir, balance)) = self.inheritance.take()
            && interp.bytecode.instruction_result() == Some(InstructionResult::SelfDestruct)
        {
            self.transfer(contract, heir, balance);
        }
    }

    fn log(&mut self, _: &mut C, log: Log) {
        self.push(log);
    }

    fn call(&mut self, context: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        // Before the outermost frame has anything to revert to. A read that fails here fails again
        // where the EVM does it, and is told there.
        if let Some(sender) = self.wrapping.take()
            && let Ok(mut sender) = context.journal_mut().load_account_mut(sender)
        {
            sender.data.set_nonce(0);
        }
        self.frames.push(Vec::new());
        // The value of a CALLCODE stays where it is.
        if inputs.scheme == CallScheme::Call {
            let value = inputs.call_value();
            self.transfer(inputs.transfer_from(), inputs.transfer_to(), value);
        }
        None
    }

    fn call_end(&mut self, _: &mut C, _: &CallInputs, outcome: &mut CallOutcome) {
        self.end(outcome.result.is_ok());
    }

    fn create(&mut self, context: &mut C, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        self.frames.push(Vec::new());
        let caller = context.journal_mut().load_account(inputs.caller());
        if let Ok(caller) = caller
            && !matches!(inputs.scheme(), CreateScheme::Custom { .. })
        {
            let created = inputs.created_address(caller.data.info.nonce);
            self.transfer(inputs.caller(), created, inputs.value());
        }
        None
    }

    fn create_end(&mut self, _: &mut C, _: &CreateInputs, outcome: &mut CreateOutcome) {
        self.end(outcome.result.is_ok());
    }
}
