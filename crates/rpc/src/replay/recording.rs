//! Bounds the size of the traces of one request.
//!
//! Loops of cheap instructions can make traces of many gigabytes within seconds. So the bytes that
//! an inspector records are counted during the execution, and the execution ends when they exceed
//! the limit of a response.

use crate::{RpcError, RpcResult};
use alloy_primitives::{Address, Log, U256};
use retrie_execution::InspectorContext;
use revm::{
    bytecode::opcode::SELFDESTRUCT,
    context_interface::{ContextTr, context::ContextError},
    handler::FrameResult,
    inspector::Inspector,
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, FrameInput, InstructionResult,
        Interpreter,
        interpreter_types::{InputsTr, Jumps, LoopControl},
    },
};
use revm_inspectors::tracing::TracingInspector;

/// Approximate bytes of a step without stack and memory, of a call, and of a log without its data.
const STEP: usize = 128;
const CALL: usize = 512;
const LOG: usize = 128;

/// What an inspector records of each step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordedSteps {
    /// Number of steps that it still records.
    most: u64,
    has_stack: bool,
    has_memory: bool,
}

/// An inspector whose recorded bytes can be counted.
pub(crate) trait TraceRecorder {
    /// What it records of each step, unless it counts its bytes itself.
    fn steps(&self) -> RecordedSteps {
        RecordedSteps::default()
    }

    /// Bytes recorded so far, if it counts them itself.
    fn recorded(&self) -> usize {
        0
    }
}

impl TraceRecorder for TracingInspector {
    fn steps(&self) -> RecordedSteps {
        let config = self.config();
        RecordedSteps {
            most: match config.step_limit {
                _ if !config.record_steps => 0,
                Some(limit) => limit.get(),
                None => u64::MAX,
            },
            has_stack: config.record_stack_snapshots.is_all()
                || config.record_stack_snapshots.is_full(),
            has_memory: config.record_memory_snapshots,
        }
    }
}

/// Bytes that the traces of one request may still record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceBudget {
    limit: usize,
    recorded: usize,
}

impl TraceBudget {
    /// At most `limit` bytes.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, recorded: 0 }
    }

    /// Wraps an inspector so that the execution fails when it records too much.
    pub(crate) fn watch<'r, I: TraceRecorder>(
        &'r mut self,
        inspector: &'r mut I,
    ) -> LimitedInspector<'r, I> {
        LimitedInspector {
            steps: inspector.steps(),
            inspector,
            recording: self,
            counted: 0,
            own_heir: None,
        }
    }

    /// Fails if too much was recorded.
    ///
    /// # Errors
    /// The error of a response that is too large.
    pub(crate) fn check(&self) -> RpcResult<()> {
        if !self.is_exceeded() {
            return Ok(());
        }
        Err(RpcError::Coded {
            code: jsonrpsee::types::error::OVERSIZED_RESPONSE_CODE,
            message: format!(
                "{}: the trace takes more than {} bytes (--rpc.max-response-size)",
                jsonrpsee::types::error::OVERSIZED_RESPONSE_MSG,
                self.limit
            ),
        })
    }

    const fn is_exceeded(&self) -> bool {
        self.recorded > self.limit
    }

    const fn add(&mut self, bytes: usize) {
        self.recorded = self.recorded.saturating_add(bytes);
    }
}

/// An inspector with a limit on what it records.
pub(crate) struct LimitedInspector<'r, I> {
    inspector: &'r mut I,
    recording: &'r mut TraceBudget,
    steps: RecordedSteps,
    /// Of the bytes that the inspector counts itself, those already added to the total.
    counted: usize,
    /// A contract that executes SELFDESTRUCT with itself as beneficiary, and its balance.
    own_heir: Option<(Address, U256)>,
}

impl<I: TraceRecorder> LimitedInspector<'_, I> {
    fn count_step(&mut self, interp: &Interpreter) {
        let recorded = self.inspector.recorded();
        self.recording.add(recorded.saturating_sub(self.counted));
        self.counted = recorded;
        if self.steps.most == 0 {
            return;
        }
        self.steps.most -= 1;
        let mut bytes = STEP;
        if self.steps.has_stack {
            bytes += 32 * interp.stack.len();
        }
        if self.steps.has_memory {
            bytes += interp.memory.len();
        }
        self.recording.add(bytes);
    }

    /// Remembers a SELFDESTRUCT whose beneficiary is the contract itself. revm's journal has no
    /// entry for it if the contract stays (EIP-6780), and no balance if that stays (EIP-8246), so
    /// revm does not report it to the inspector, or only in part. geth always reports it.
    fn note_own_heir(&mut self, interp: &Interpreter, context: &InspectorContext<'_>) {
        self.own_heir = None;
        if interp.bytecode.opcode() != SELFDESTRUCT {
            return;
        }
        let contract = interp.input.target_address();
        if interp.stack.peek(0).is_ok_and(|heir| Address::from_word(heir.into()) == contract) {
            let account = context.journal().state.get(&contract);
            self.own_heir = account.map(|account| (contract, account.info.balance));
        }
    }
}

impl<'a, I> Inspector<InspectorContext<'a>> for LimitedInspector<'_, I>
where
    I: TraceRecorder + Inspector<InspectorContext<'a>>,
{
    fn initialize_interp(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        self.inspector.initialize_interp(interp, context);
    }

    fn step(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        self.count_step(interp);
        if !self.recording.is_exceeded() {
            self.note_own_heir(interp, context);
            return self.inspector.step(interp, context);
        }
        *context.error() = Err(ContextError::Custom("the trace is too large".into()));
        // Replaces a pending call or return.
        interp.bytecode.action().take();
        interp.bytecode.reset_action();
        interp.halt_fatal();
    }

    fn step_end(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        self.inspector.step_end(interp, context);
        if let Some((contract, balance)) = self.own_heir.take()
            && interp.bytecode.instruction_result() == Some(InstructionResult::SelfDestruct)
        {
            self.inspector.selfdestruct(contract, contract, balance);
        }
    }

    fn log(&mut self, context: &mut InspectorContext<'a>, log: Log) {
        self.recording.add(LOG + log.data.data.len());
        self.inspector.log(context, log);
    }

    fn log_full(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>, log: Log) {
        self.recording.add(LOG + log.data.data.len());
        self.inspector.log_full(interp, context, log);
    }

    fn call(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        self.recording.add(CALL + inputs.input.len());
        self.inspector.call(context, inputs)
    }

    fn call_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        self.recording.add(outcome.result.output.len());
        self.inspector.call_end(context, inputs, outcome);
    }

    fn create(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        self.recording.add(CALL + inputs.init_code().len());
        self.inspector.create(context, inputs)
    }

    fn create_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        self.recording.add(outcome.result.output.len());
        self.inspector.create_end(context, inputs, outcome);
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        // `step_end` has reported a contract that is its own beneficiary.
        if contract != target {
            self.inspector.selfdestruct(contract, target, value);
        }
    }

    fn frame_start(
        &mut self,
        context: &mut InspectorContext<'a>,
        frame_input: &mut FrameInput,
    ) -> Option<FrameResult> {
        self.inspector.frame_start(context, frame_input)
    }

    fn frame_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        frame_input: &FrameInput,
        frame_result: &mut FrameResult,
    ) {
        self.inspector.frame_end(context, frame_input, frame_result);
    }
}
