//! Logs of a simulated transaction, with an optional log for every ether transfer.

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

/// Collects logs in order, and drops the logs of failed frames.
///
/// A transfer is logged like an ERC-20 transfer of a token at `0xeeee..ee`. Such logs are in the
/// response, but not in the receipt.
#[derive(Debug)]
pub(super) struct LogCollector {
    with_transfers: bool,
    /// Logs of each open frame, the outermost frame first.
    frames: Vec<Vec<(usize, Log)>>,
    done: Vec<(usize, Log)>,
    /// Number of logs so far in the block, dropped ones included.
    count: usize,
    /// The sender whose nonce wraps to zero with the next transaction.
    wrapping: Option<Address>,
    /// A contract that executes SELFDESTRUCT, its beneficiary, and its balance.
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

    /// Sets the sender whose nonce is at its maximum before the next transaction, which is a call.
    /// The EVM does not increment such a nonce; where nonces are not checked, geth wraps it to
    /// zero.
    pub(super) const fn wrap_nonce(&mut self, sender: Option<Address>) {
        self.wrapping = sender;
    }

    /// The logs of the last transaction, each with its index in the block.
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
        // If this read fails, the EVM's own read fails too and reports the error.
        if let Ok(heir) = interp.stack.peek(0)
            && let Ok(account) = context.journal_mut().load_account(contract)
        {
            let balance = account.data.info.balance;
            self.inheritance = Some((contract, Address::from_word(heir.into()), balance));
        }
    }

    /// As in geth, SELFDESTRUCT transfers the balance even if the beneficiary is the contract
    /// itself. revm reports that case only where its journal has an entry.
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
        // Before the outermost frame starts, so that a revert does not undo it. If this read fails,
        // the EVM's own read fails too and reports the error.
        if let Some(sender) = self.wrapping.take()
            && let Ok(mut sender) = context.journal_mut().load_account_mut(sender)
        {
            sender.data.set_nonce(0);
        }
        self.frames.push(Vec::new());
        // A CALLCODE does not move its value.
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
