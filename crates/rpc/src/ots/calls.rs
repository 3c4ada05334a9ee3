//! [`CallInspector`]: the calls of a transaction in the order of their start, without the gas and the
//! error texts that geth's tracers find out step by step.

use crate::replay::TraceRecorder;
use alloy_primitives::{Address, Bytes, U256};
use retrie_execution::InspectorContext;
use revm::{
    bytecode::opcode,
    context_interface::{ContextTr, CreateScheme},
    inspector::Inspector,
    interpreter::{CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome},
};

/// A call, a creation or a SELFDESTRUCT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallRecord {
    /// Its opcode; CALL or CREATE for the transaction itself.
    pub(super) op: u8,
    /// 0 for the transaction itself.
    pub(super) depth: usize,
    pub(super) from: Address,
    /// The recipient, the created contract, or the beneficiary.
    pub(super) to: Address,
    /// `None` for calls that pass no value of their own.
    pub(super) value: Option<U256>,
    pub(super) input: Bytes,
    /// What it returned, also if it was reverted.
    pub(super) output: Bytes,
}

/// Records the calls of one transaction, failed ones too.
#[derive(Debug, Default)]
pub(super) struct CallInspector {
    pub(super) calls: Vec<CallRecord>,
    /// Positions of the calls that have not ended.
    open: Vec<usize>,
}

impl CallInspector {
    fn enter(&mut self, op: u8, (from, to): (Address, Address), value: Option<U256>, input: Bytes) {
        let (at, depth) = (self.calls.len(), self.open.len());
        self.calls.push(CallRecord { op, depth, from, to, value, input, output: Bytes::new() });
        self.open.push(at);
    }

    fn exit(&mut self, output: &Bytes) {
        let open = self.open.pop();
        if let Some(call) = open.and_then(|at| self.calls.get_mut(at)) {
            call.output = output.clone();
        }
    }
}

/// Calls alone: no steps.
impl TraceRecorder for CallInspector {}

impl<'a> Inspector<InspectorContext<'a>> for CallInspector {
    fn call(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        let value = Some(inputs.call_value());
        let CallInputs { caller, target_address, bytecode_address, .. } = *inputs;
        let (op, between, value) = match inputs.scheme {
            CallScheme::Call => (opcode::CALL, (caller, target_address), value),
            CallScheme::CallCode => (opcode::CALLCODE, (caller, bytecode_address), value),
            CallScheme::DelegateCall => {
                (opcode::DELEGATECALL, (target_address, bytecode_address), None)
            }
            CallScheme::StaticCall => (opcode::STATICCALL, (caller, target_address), None),
        };
        let input = inputs.input.bytes(context);
        self.enter(op, between, value, input);
        None
    }

    fn call_end(
        &mut self,
        _: &mut InspectorContext<'a>,
        _: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        self.exit(&outcome.result.output);
    }

    fn create(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        let op = match inputs.scheme() {
            CreateScheme::Create2 { .. } => opcode::CREATE2,
            _ => opcode::CREATE,
        };
        // An account that executes code is in the journal, and so is the sender.
        let creator = inputs.caller();
        let nonce = context.journal().state.get(&creator).map_or(0, |account| account.info.nonce);
        let between = (creator, inputs.created_address(nonce));
        self.enter(op, between, Some(inputs.value()), inputs.init_code().clone());
        None
    }

    fn create_end(
        &mut self,
        _: &mut InspectorContext<'a>,
        _: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        self.exit(&outcome.result.output);
    }

    fn selfdestruct(&mut self, contract: Address, beneficiary: Address, value: U256) {
        let between = (contract, beneficiary);
        self.enter(opcode::SELFDESTRUCT, between, Some(value), Bytes::new());
        self.exit(&Bytes::new());
    }
}
