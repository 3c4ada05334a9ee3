//! How much the traces of one request may hold.
//!
//! Loops of cheap instructions make traces of many gigabytes within a few seconds. So what an
//! inspector records is counted as it goes, and an execution ends when that is more than an answer
//! may have.

use crate::{RpcError, RpcResult};
use alloy_primitives::{Address, Log, U256};
use retrie_execution::BlockContext;
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

/// Bytes of a step without stack and memory; of a call; of a log without its data.
const STEP: usize = 128;
const CALL: usize = 512;
const LOG: usize = 128;

/// What an inspector records of each step, if it does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    /// So many of them are recorded.
    most: u64,
    has_stack: bool,
    has_memory: bool,
}

/// An inspector that can tell what it records.
pub(crate) trait Recorder {
    /// What it records of each step, if it does not count that itself.
    fn steps(&self) -> Steps {
        Steps::default()
    }

    /// Bytes that it has recorded so far, if it counts them itself.
    fn recorded(&self) -> usize {
        0
    }
}

impl Recorder for TracingInspector {
    fn steps(&self) -> Steps {
        let config = self.config();
        Steps {
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

/// Bytes that the traces of one request may still come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    limit: usize,
    recorded: usize,
}

impl Recording {
    /// At most `limit` bytes.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, recorded: 0 }
    }

    /// The same inspector; the execution fails when it records too much.
    pub(crate) fn watch<'r, I: Recorder>(&'r mut self, inspector: &'r mut I) -> Watched<'r, I> {
        Watched { steps: inspector.steps(), inspector, recording: self, counted: 0, own_heir: None }
    }

    /// Fails if too much was recorded.
    ///
    /// # Errors
    /// As for answers that turn out too large.
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

/// An inspector that may only record so much.
pub(crate) struct Watched<'r, I> {
    inspector: &'r mut I,
    recording: &'r mut Recording,
    steps: Steps,
    /// Of what the inspector counts itself, so many bytes are part of the recording.
    counted: usize,
    /// A contract that is about to destroy itself for its own benefit, and its balance.
    own_heir: Option<(Address, U256)>,
}

impl<I: Recorder> Watched<'_, I> {
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

    /// Of a contract that destroys itself for its own benefit the journal says nothing where the
    /// contract stays (EIP-6780), and no balance where that stays (EIP-8246): the library does not tell
    /// the inspector, or not all. geth tells always.
    fn note_own_heir(&mut self, interp: &Interpreter, context: &BlockContext<'_>) {
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

impl<'a, I> Inspector<BlockContext<'a>> for Watched<'_, I>
where
    I: Recorder + Inspector<BlockContext<'a>>,
{
    fn initialize_interp(&mut self, interp: &mut Interpreter, context: &mut BlockContext<'a>) {
        self.inspector.initialize_interp(interp, context);
    }

    fn step(&mut self, interp: &mut Interpreter, context: &mut BlockContext<'a>) {
        self.count_step(interp);
        if !self.recording.is_exceeded() {
            self.note_own_heir(interp, context);
            return self.inspector.step(interp, context);
        }
        *context.error() = Err(ContextError::Custom("the trace is too large".into()));
        // In place of a call or return that may be due.
        interp.bytecode.action().take();
        interp.bytecode.reset_action();
        interp.halt_fatal();
    }

    fn step_end(&mut self, interp: &mut Interpreter, context: &mut BlockContext<'a>) {
        self.inspector.step_end(interp, context);
        if let Some((contract, balance)) = self.own_heir.take()
            && interp.bytecode.instruction_result() == Some(InstructionResult::SelfDestruct)
        {
            self.inspector.selfdestruct(contract, contract, balance);
        }
    }

    fn log(&mut self, context: &mut BlockContext<'a>, log: Log) {
        self.recording.add(LOG + log.data.data.len());
        self.inspector.log(context, log);
    }

    fn log_full(&mut self, interp: &mut Interpreter, context: &mut BlockContext<'a>, log: Log) {
        self.recording.add(LOG + log.data.data.len());
        self.inspector.log_full(interp, context, log);
    }

    fn call(
        &mut self,
        context: &mut BlockContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        self.recording.add(CALL + inputs.input.len());
        self.inspector.call(context, inputs)
    }

    fn call_end(
        &mut self,
        context: &mut BlockContext<'a>,
        inputs: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        self.recording.add(outcome.result.output.len());
        self.inspector.call_end(context, inputs, outcome);
    }

    fn create(
        &mut self,
        context: &mut BlockContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        self.recording.add(CALL + inputs.init_code().len());
        self.inspector.create(context, inputs)
    }

    fn create_end(
        &mut self,
        context: &mut BlockContext<'a>,
        inputs: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        self.recording.add(outcome.result.output.len());
        self.inspector.create_end(context, inputs, outcome);
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        // Of the others `step_end` has told.
        if contract != target {
            self.inspector.selfdestruct(contract, target, value);
        }
    }

    fn frame_start(
        &mut self,
        context: &mut BlockContext<'a>,
        frame_input: &mut FrameInput,
    ) -> Option<FrameResult> {
        self.inspector.frame_start(context, frame_input)
    }

    fn frame_end(
        &mut self,
        context: &mut BlockContext<'a>,
        frame_input: &FrameInput,
        frame_result: &mut FrameResult,
    ) {
        self.inspector.frame_end(context, frame_input, frame_result);
    }
}
