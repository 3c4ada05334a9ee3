//! [`EventInspector`]: converts revm's inspector calls to geth's tracer hooks.

use super::{
    FrameEnd, FrameStart, OpcodeStep, TraceJson, TracerHooks, TracerNeeds, TransactionEnd,
    authorizations::authorization_refund,
    gas_cost::{StepCost, is_defined, step_cost},
    state::CurrentState,
    step_errors,
};
use crate::{RpcError, RpcResult, replay::TraceRecorder};
use alloy_primitives::{Address, Bytes, Log, TxKind, U256};
use retrie_execution::InspectorContext;
use revm::{
    bytecode::opcode,
    context_interface::{ContextTr, CreateScheme},
    inspector::Inspector,
    interpreter::{
        CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome, FrameInput,
        InstructionResult, Interpreter, InterpreterAction, InterpreterResult,
        interpreter_types::{Jumps, LegacyBytecode, LoopControl, ReturnData, RuntimeFlag},
    },
    primitives::hardfork::SpecId,
};
use std::collections::BTreeMap;

/// Most stack items that an opcode without an immediate operand reads.
const MOST_ITEMS: usize = 7;

/// Calls the hooks of the tracers of one transaction.
pub(crate) struct EventInspector {
    tracers: Vec<Box<dyn TracerHooks>>,
    /// The tracers' names, for a mux.
    names: Option<Vec<String>>,
    needs: TracerNeeds,
    frames: Vec<OpenFrame>,
    /// Whether a first frame was entered.
    has_begun: bool,
    step: PendingStep,
    /// Refunds of authorizations (EIP-7702), which count from the first step on.
    first_refund: Option<u64>,
    /// Number of logs that are not reverted.
    logs: usize,
    recorded: usize,
}

/// A frame that has not ended.
struct OpenFrame {
    gas_limit: u64,
    /// Refunds of this frame and of its successful inner frames.
    refunded: i64,
    /// The error, if a step has failed.
    error: Option<String>,
    logs_before: usize,
}

/// A step before its execution, kept until its result is known.
#[derive(Default)]
struct PendingStep {
    is_set: bool,
    pc: usize,
    op: u8,
    gas: u64,
    height: usize,
    stack: Vec<U256>,
    memory: Vec<u8>,
    memory_size: usize,
    return_data: Vec<u8>,
    quote: StepCost,
    /// The beneficiary and the balance of a SELFDESTRUCT.
    inheritance: Option<(Address, U256)>,
}

impl EventInspector {
    pub(super) fn new(tracers: Vec<Box<dyn TracerHooks>>, names: Option<Vec<String>>) -> Self {
        let needs = tracers.iter().fold(TracerNeeds::default(), |all, one| all.and(one.needs()));
        Self {
            tracers,
            names,
            needs,
            frames: Vec::new(),
            has_begun: false,
            step: PendingStep::default(),
            first_refund: None,
            logs: 0,
            recorded: 0,
        }
    }

    /// The trace of the executed transaction. A mux gives one trace per tracer, by name.
    ///
    /// # Errors
    /// If the state before the transaction cannot be read.
    pub(crate) fn trace(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        if !self.has_begun {
            self.start(end.simulation.env().cfg_env.spec);
            self.halt_at_once(end);
        }
        let mut traces = Vec::with_capacity(self.tracers.len());
        for tracer in &mut self.tracers {
            traces.push(tracer.result(end)?);
        }
        match &self.names {
            Some(names) => json(&names.iter().zip(traces).collect::<BTreeMap<_, _>>()),
            None => traces.pop().ok_or_else(|| RpcError::Internal("there is no tracer".into())),
        }
    }

    /// Reports a transaction that ran out of gas before its first frame, possible from Amsterdam on
    /// (EIP-2780).
    fn halt_at_once(&mut self, end: &TransactionEnd<'_, '_>) {
        let tx = end.tx;
        let (kind, to) = match tx.kind {
            TxKind::Call(to) => (opcode::CALL, to),
            TxKind::Create => (opcode::CREATE, tx.caller.create(tx.nonce)),
        };
        let (input, value) = (tx.data.clone(), Some(tx.value));
        let entry =
            FrameStart { kind, from: tx.caller, to, input, gas: tx.gas_limit, value, depth: 0 };
        let error = Some("out of gas".into());
        let exit = FrameEnd { output: Bytes::new(), gas_used: tx.gas_limit, error, depth: 0 };
        self.emit(|tracer| tracer.on_enter(&entry));
        self.emit(|tracer| tracer.on_exit(&exit));
    }

    fn emit(&mut self, mut event: impl FnMut(&mut dyn TracerHooks)) {
        self.tracers.iter_mut().for_each(|tracer| event(tracer.as_mut()));
        self.recorded = self.tracers.iter().map(|tracer| tracer.recorded()).sum();
    }

    fn start(&mut self, spec: SpecId) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.emit(|tracer| tracer.on_start(spec));
        }
    }

    fn enter(&mut self, entry: &FrameStart) {
        self.emit(|tracer| tracer.on_enter(entry));
        let (gas_limit, logs_before) = (entry.gas, self.logs);
        self.frames.push(OpenFrame { gas_limit, refunded: 0, error: None, logs_before });
    }

    fn exit(&mut self, result: &InterpreterResult, own_error: impl FnOnce() -> Option<String>) {
        let Some(frame) = self.frames.pop() else { return };
        let error = match result.result {
            InstructionResult::Revert => Some("execution reverted".into()),
            reason if reason.is_ok() => own_error(),
            _ => frame.error.or_else(own_error),
        };
        if error.is_some() {
            self.logs = frame.logs_before;
        }
        let left = if result.is_halt() { 0 } else { result.gas.remaining() };
        let exit = FrameEnd {
            output: result.output.clone(),
            gas_used: frame.gas_limit.saturating_sub(left),
            error,
            depth: self.frames.len(),
        };
        self.emit(|tracer| tracer.on_exit(&exit));
    }

    /// The cost of the step just executed, without the gas that a creation passes to its frame.
    fn cost(&self, interp: &mut Interpreter) -> u64 {
        // State gas (EIP-8037) may be paid from the same gas but is not part of the cost.
        if interp.runtime_flag.spec_id().is_enabled_in(SpecId::AMSTERDAM) {
            return self.step.quote.cost;
        }
        let child = match interp.bytecode.action() {
            Some(InterpreterAction::NewFrame(FrameInput::Create(inputs))) => inputs.gas_limit(),
            _ => 0,
        };
        self.step.gas.saturating_sub(interp.gas.remaining()).saturating_sub(child)
    }

    /// The transaction's refund counter, including the last step.
    fn refund(
        &mut self,
        interp: &Interpreter,
        context: &mut InspectorContext<'_>,
        own: i64,
    ) -> u64 {
        let first = *self.first_refund.get_or_insert_with(|| authorization_refund(context));
        if let Some(frame) = self.frames.last_mut() {
            frame.refunded = interp.gas.refunded();
        }
        let counted: i64 = self.frames.iter().map(|frame| frame.refunded).sum();
        first.wrapping_add_signed(counted + own)
    }
}

/// Results of steps.
impl EventInspector {
    /// Stores the frame's error, and returns the step's error if the step was not executed.
    fn fail_step(&mut self, failure: InstructionResult, interp: &Interpreter) -> Option<String> {
        let op = self.step.op;
        let mut error = self.step.quote.error.take();
        // For an opcode that the fork does not have, revm may take gas first.
        let is_defined = is_defined(op, interp.runtime_flag.spec_id());
        if error.is_none() && is_defined && step_errors::is_lack_of_gas(failure) {
            error = Some("out of gas".into());
        }
        let executed = || step_errors::step_error(failure, op, self.step.height, interp);
        let words = error.clone().unwrap_or_else(executed);
        if let Some(frame) = self.frames.last_mut() {
            frame.error = Some(words);
        }
        error
    }

    fn emit_step(
        &mut self,
        has_failed: bool,
        error: Option<&str>,
        interp: &mut Interpreter,
        context: &mut InspectorContext<'_>,
    ) {
        let quoted = &self.step.quote;
        let (cost, own_refund) = match has_failed {
            true => (quoted.cost, quoted.refund),
            false => (self.cost(interp), 0),
        };
        let refund = self.refund(interp, context, own_refund);
        let before = &self.step;
        let step = OpcodeStep {
            pc: before.pc,
            op: before.op,
            gas: before.gas,
            cost,
            depth: self.frames.len(),
            refund,
            error,
            address: interp.input.target_address,
            stack: &before.stack,
            memory: &before.memory,
            memory_size: before.memory_size,
            return_data: &before.return_data,
            after: interp,
        };
        for tracer in &mut self.tracers {
            tracer.on_step(&step, context);
        }
        self.recorded = self.tracers.iter().map(|tracer| tracer.recorded()).sum();
    }

    /// Reports a SELFDESTRUCT as a frame, as geth does.
    fn end_contract(&mut self, from: Address, (to, balance): (Address, U256)) {
        let (kind, depth) = (opcode::SELFDESTRUCT, self.frames.len());
        let (input, value) = (Bytes::new(), Some(balance));
        let entry = FrameStart { kind, from, to, input, gas: 0, value, depth };
        let exit = FrameEnd { output: Bytes::new(), gas_used: 0, error: None, depth };
        self.emit(|tracer| tracer.on_enter(&entry));
        self.emit(|tracer| tracer.on_exit(&exit));
    }
}

impl<'a> Inspector<InspectorContext<'a>> for EventInspector {
    fn step(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        let op = interp.bytecode.opcode();
        let needs = self.needs;
        let is_wanted = needs.steps || needs.failures || op == opcode::SELFDESTRUCT;
        // revm executes a STOP for empty code; geth executes nothing.
        if !is_wanted || interp.bytecode.bytecode_len() == 0 {
            return;
        }
        let inheritance = (op == opcode::SELFDESTRUCT).then(|| {
            let heir = interp.stack.peek(0).unwrap_or_default();
            let balance = context.balance(interp.input.target_address);
            (Address::from_word(heir.into()), balance)
        });
        let quote = match needs.steps || needs.failures {
            true => step_cost(interp, context),
            false => StepCost::default(),
        };
        let (pc, gas, height) = (interp.bytecode.pc(), interp.gas.remaining(), interp.stack.len());
        let step = &mut self.step;
        let PendingStep { mut stack, mut memory, mut return_data, .. } = std::mem::take(step);
        let items = interp.stack.data();
        let least = if needs.stack { 0 } else { height.saturating_sub(MOST_ITEMS) };
        stack.clear();
        stack.extend_from_slice(&items[least..]);
        memory.clear();
        if needs.memory {
            memory.extend_from_slice(&interp.memory.context_memory());
        }
        return_data.clear();
        if needs.return_data {
            return_data.extend_from_slice(interp.return_data.buffer());
        }
        let is_set = true;
        *step = PendingStep {
            is_set,
            pc,
            op,
            gas,
            height,
            stack,
            memory,
            memory_size: interp.memory.len(),
            return_data,
            quote,
            inheritance,
        };
    }

    fn step_end(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        if !std::mem::take(&mut self.step.is_set) {
            return;
        }
        let result = interp.bytecode.instruction_result();
        let failure =
            result.filter(|result| !result.is_ok() && *result != InstructionResult::Revert);
        let error = failure.and_then(|failure| self.fail_step(failure, interp));
        if self.needs.steps {
            self.emit_step(failure.is_some(), error.as_deref(), interp, context);
        }
        if let Some(inheritance) = self.step.inheritance.take()
            && result == Some(InstructionResult::SelfDestruct)
        {
            self.end_contract(interp.input.target_address, inheritance);
        }
    }

    fn log(&mut self, _: &mut InspectorContext<'a>, log: Log) {
        let index = self.logs;
        self.logs += 1;
        self.emit(|tracer| tracer.on_log(&log, index));
    }

    fn call(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        self.start(context.cfg().spec);
        let value = Some(inputs.call_value());
        let CallInputs { caller, target_address, bytecode_address, .. } = *inputs;
        let (kind, from, to, value) = match inputs.scheme {
            CallScheme::Call => (opcode::CALL, caller, target_address, value),
            CallScheme::CallCode => (opcode::CALLCODE, caller, bytecode_address, value),
            CallScheme::DelegateCall => {
                (opcode::DELEGATECALL, target_address, bytecode_address, value)
            }
            CallScheme::StaticCall => (opcode::STATICCALL, caller, target_address, None),
        };
        let input = inputs.input.bytes(context);
        let (gas, depth) = (inputs.gas_limit, self.frames.len());
        self.enter(&FrameStart { kind, from, to, input, gas, value, depth });
        None
    }

    fn call_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        let result = &outcome.result;
        self.exit(result, || step_errors::call_error(context, inputs, result.result));
    }

    fn create(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        self.start(context.cfg().spec);
        let from = inputs.caller();
        let kind = match inputs.scheme() {
            CreateScheme::Create2 { .. } => opcode::CREATE2,
            _ => opcode::CREATE,
        };
        let to = inputs.created_address(context.nonce(from));
        let (input, value) = (inputs.init_code().clone(), Some(inputs.value()));
        let (gas, depth) = (inputs.gas_limit(), self.frames.len());
        self.enter(&FrameStart { kind, from, to, input, gas, value, depth });
        None
    }

    fn create_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        _: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        let (result, has_address) = (&outcome.result, outcome.address.is_some());
        self.exit(result, || step_errors::creation_error(context, result, has_address));
    }
}

impl TraceRecorder for EventInspector {
    fn recorded(&self) -> usize {
        self.recorded
    }
}

/// Serializes a trace.
pub(super) fn json(value: &impl serde::Serialize) -> RpcResult<TraceJson> {
    serde_json::value::to_raw_value(value).map_err(|error| RpcError::Internal(error.to_string()))
}
