//! Tracers in JavaScript: their limits and how they end.

use super::tracers::{EventInspector, TraceJson, TransactionEnd};
use crate::{RpcError, RpcResult, replay::TraceRecorder};
use alloy_primitives::{Address, Log, U256};
use alloy_rpc_types_trace::geth::{GethDebugTracerType, GethDebugTracingOptions};
use retrie_execution::InspectorContext;
use revm::{
    inspector::Inspector,
    interpreter::{CallInputs, CallOutcome, CreateInputs, CreateOutcome, Interpreter},
};
use revm_inspectors::tracing::js::{JsInspector, JsInspectorInterrupt};
use serde_json::Value;
use std::time::Instant;

/// A tracer in JavaScript.
pub(super) struct TracerScript {
    code: String,
    config: Value,
}

impl TracerScript {
    pub(super) fn new(options: GethDebugTracingOptions) -> Self {
        let code = options.tracer.as_ref().map_or("", GethDebugTracerType::as_str);
        Self { code: failing_whole(code), config: options.tracer_config.into_json() }
    }

    /// An inspector for one transaction; it stops at the deadline.
    ///
    /// # Errors
    /// If the script cannot be evaluated.
    pub(super) fn inspector(&self, deadline: Instant) -> RpcResult<NativeOrScript> {
        let inspector = JsInspector::new(self.code.clone(), self.config.clone())
            .map_err(|error| RpcError::Rejected(error.to_string()))?;
        Ok(NativeOrScript::Script(interrupted_at(deadline, inspector).into()))
    }
}

/// The inspector of one transaction: a native tracer or a script.
pub(super) enum NativeOrScript {
    Native(Box<EventInspector>),
    Script(Box<JsInspector>),
}

impl From<EventInspector> for NativeOrScript {
    fn from(inspector: EventInspector) -> Self {
        Self::Native(inspector.into())
    }
}

impl NativeOrScript {
    pub(super) fn trace(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        let inspector = match self {
            Self::Native(inspector) => return inspector.trace(end),
            Self::Script(inspector) => inspector,
        };
        inspector.set_transaction_context(end.context.unwrap_or_default());
        let block = &end.simulation.env().block_env;
        let result = inspector.json_result(end.outcome.clone(), end.tx, block, end.simulation);
        let result = result.map_err(|error| RpcError::Rejected(error.to_string()))?;
        serde_json::value::to_raw_value(&result)
            .map_err(|error| RpcError::Internal(error.to_string()))
    }
}

impl TraceRecorder for NativeOrScript {
    fn recorded(&self) -> usize {
        match self {
            Self::Native(inspector) => inspector.recorded(),
            Self::Script(_) => 0,
        }
    }
}

macro_rules! delegate {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            NativeOrScript::Native(inspector) => Inspector::<InspectorContext<'a>>::$method(&mut **inspector, $($argument),*),
            NativeOrScript::Script(inspector) => Inspector::<InspectorContext<'a>>::$method(&mut **inspector, $($argument),*),
        }
    };
}

impl<'a> Inspector<InspectorContext<'a>> for NativeOrScript {
    fn initialize_interp(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        delegate!(self.initialize_interp(interp, context))
    }

    fn step(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        delegate!(self.step(interp, context))
    }

    fn step_end(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>) {
        delegate!(self.step_end(interp, context))
    }

    fn log(&mut self, context: &mut InspectorContext<'a>, log: Log) {
        delegate!(self.log(context, log))
    }

    fn log_full(&mut self, interp: &mut Interpreter, context: &mut InspectorContext<'a>, log: Log) {
        delegate!(self.log_full(interp, context, log))
    }

    fn call(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CallInputs,
    ) -> Option<CallOutcome> {
        delegate!(self.call(context, inputs))
    }

    fn call_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &CallInputs,
        outcome: &mut CallOutcome,
    ) {
        delegate!(self.call_end(context, inputs, outcome))
    }

    fn create(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &mut CreateInputs,
    ) -> Option<CreateOutcome> {
        delegate!(self.create(context, inputs))
    }

    fn create_end(
        &mut self,
        context: &mut InspectorContext<'a>,
        inputs: &CreateInputs,
        outcome: &mut CreateOutcome,
    ) {
        delegate!(self.create_end(context, inputs, outcome))
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        delegate!(self.selfdestruct(contract, target, value))
    }
}

/// Wraps a tracer so that it has no result once one of its functions has failed, as in geth.
///
/// revm-inspectors only reverts the frame in which a function fails, which would leave an
/// incomplete trace. JavaScript cannot catch that a function exceeded a limit of iterations or
/// recursion. So the wrapper records whether each call returned.
fn failing_whole(code: &str) -> String {
    format!(
        r#"(function (tracer) {{
            let running = null, failed = false, failure;
            const whole = {{}};
            for (const name of ["setup", "enter", "exit", "step", "fault", "result"]) {{
                if (typeof tracer[name] !== "function") {{
                    if (name in tracer) whole[name] = tracer[name];
                    continue;
                }}
                whole[name] = function (a, b) {{
                    if (failed) throw failure;
                    if (running !== null) {{
                        throw new Error("the tracer's " + running + " exceeded a limit of iterations or recursion");
                    }}
                    running = name;
                    try {{
                        const value = tracer[name](a, b);
                        running = null;
                        return value;
                    }} catch (error) {{
                        failed = true;
                        failure = error;
                        throw error;
                    }}
                }};
            }}
            return whole;
        }})({code}
        )"#
    )
}

/// Stops a script at the deadline. The execution itself checks the clock only every few steps.
fn interrupted_at(deadline: Instant, inspector: JsInspector) -> JsInspector {
    let interrupt = JsInspectorInterrupt::new();
    let late = interrupt.clone();
    tokio::spawn(async move {
        tokio::time::sleep_until(deadline.into()).await;
        late.interrupt();
    });
    inspector.with_interrupt(interrupt)
}
