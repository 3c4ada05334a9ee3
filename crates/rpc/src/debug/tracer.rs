//! The tracers of `debug_trace*`.

#[cfg(feature = "js-tracer")]
use super::javascript;
use super::{duration, form::as_geth};
use crate::{
    RpcContext, RpcError, RpcResult,
    replay::{Clock, Replayed, Which, replay},
};
use alloy_primitives::B256;
use alloy_rpc_types_trace::geth::{
    GethDebugBuiltInTracerType, GethDebugTracerType, GethDebugTracingOptions, GethTrace,
    TraceResult,
};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::View;
use retrie_execution::Simulation;
use revm::context::{
    TxEnv,
    result::{HaltReason, ResultAndState},
};
use revm_inspectors::tracing::{DebugInspector, DebugInspectorError, TransactionContext};
use serde_json::{Value, json};
use std::{fmt, time::Duration};

/// A tracer as a request describes it: makes an inspector for each transaction.
pub(super) struct Tracer {
    options: GethDebugTracingOptions,
    /// Of a call trace only the outermost frame is shown.
    only_top_call: bool,
    pub(super) clock: Clock,
}

impl Tracer {
    /// The tracer that a request asks for. If it does not say how long an execution may take,
    /// that is `timeout`.
    ///
    /// # Errors
    /// If there is none of this name, or its configuration is wrong.
    pub(super) fn new(mut options: GethDebugTracingOptions, timeout: Duration) -> RpcResult<Self> {
        if let Some(GethDebugTracerType::JsTracer(code)) = &options.tracer
            && !cfg!(feature = "js-tracer")
            && !code.is_empty()
        {
            let shown: String = code.chars().take(40).collect();
            return Err(RpcError::InvalidParams(format!(
                "tracer {shown:?} is not one of the native ones, and this node was built without \
                 tracers in JavaScript (cargo feature js-tracer)"
            )));
        }
        let timeout = match &options.timeout {
            Some(text) => duration::parse(text)?,
            None => timeout,
        };
        let only_top_call = prepare(&mut options);
        #[cfg(feature = "js-tracer")]
        if let Some(GethDebugTracerType::JsTracer(code)) = &mut options.tracer {
            *code = javascript::failing_whole(code);
        }
        let tracer = Self { options, only_top_call, clock: Clock::new(timeout) };
        tracer.inspector()?;
        Ok(tracer)
    }

    /// An inspector for one transaction.
    pub(super) fn inspector(&self) -> RpcResult<DebugInspector> {
        let inspector = DebugInspector::new(self.options.clone()).map_err(failure)?;
        #[cfg(feature = "js-tracer")]
        if let DebugInspector::Js(inspector) = inspector {
            let deadline = self.clock.deadline();
            return Ok(DebugInspector::Js(javascript::interrupted_at(deadline, *inspector).into()));
        }
        Ok(inspector)
    }
}

/// Makes the configuration one that revm-inspectors takes; says whether only the outermost call is to
/// be shown.
fn prepare(options: &mut GethDebugTracingOptions) -> bool {
    use GethDebugBuiltInTracerType as BuiltIn;
    let config = &mut options.tracer_config.0;
    match &options.tracer {
        Some(GethDebugTracerType::BuiltInTracer(BuiltIn::CallTracer)) => {
            // Logs are numbered through all frames, so all are needed first.
            let only_top_call = config.as_object_mut().and_then(|map| map.remove("onlyTopCall"));
            only_top_call == Some(json!(true))
        }
        Some(GethDebugTracerType::BuiltInTracer(BuiltIn::MuxTracer)) => {
            // As in geth any tracer may have a configuration, and none needs one.
            for (tracer, config) in config.as_object_mut().into_iter().flatten() {
                let takes_none = matches!(&**tracer, "4byteTracer" | "noopTracer");
                *config = match config.take() {
                    Value::Object(map) if takes_none && map.is_empty() => Value::Null,
                    Value::Null if !takes_none => json!({}),
                    config => config,
                };
            }
            false
        }
        _ => false,
    }
}

impl Tracer {
    /// What the inspector makes of a transaction whose changes are not yet part of the state, and
    /// which comes after `logs_before` logs of its block.
    pub(super) fn trace(
        &self,
        inspector: &mut DebugInspector,
        context: Option<TransactionContext>,
        tx: &TxEnv,
        outcome: &ResultAndState<HaltReason>,
        simulation: &mut Simulation<'_>,
        logs_before: usize,
    ) -> RpcResult<GethTrace> {
        let block = simulation.env().block_env.clone();
        let trace =
            inspector.get_result(context, tx, &block, outcome, simulation).map_err(failure)?;
        let mut trace = as_geth(trace, &outcome.state, simulation, logs_before)?;
        if self.only_top_call
            && let GethTrace::CallTracer(frame) = &mut trace
        {
            frame.calls.clear();
            // The calls between which they lie are not there.
            frame.logs.iter_mut().for_each(|log| log.position = Some(0));
        }
        Ok(trace)
    }
}

/// Traces transactions of a past block.
pub(super) fn trace_block(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    options: GethDebugTracingOptions,
) -> RpcResult<Vec<TraceResult>> {
    let tracer = Tracer::new(options, rpc.limits.evm_timeout)?;
    replay(
        rpc,
        view,
        block,
        which,
        tracer.clock,
        || tracer.inspector(),
        |replayed| {
            let Replayed { index, tx, mut inspector, outcome, logs_before, simulation } = replayed;
            let hash: B256 = *block.body().transactions[index].hash();
            let context = TransactionContext {
                block_hash: Some(block.hash()),
                tx_hash: Some(hash),
                tx_index: Some(index),
            };
            let (inspector, context) = (&mut inspector, Some(context));
            let result = tracer.trace(inspector, context, &tx, outcome, simulation, logs_before)?;
            Ok(TraceResult::new_success(result, Some(hash)))
        },
    )
}

fn failure<E: fmt::Display>(error: DebugInspectorError<E>) -> RpcError {
    match error {
        DebugInspectorError::Database(error) => RpcError::Internal(error.to_string()),
        error => RpcError::Rejected(error.to_string()),
    }
}
