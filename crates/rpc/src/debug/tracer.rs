//! The tracers of `debug_trace*`.

use super::{
    duration,
    replay::{Replayed, Which, replay},
};
use crate::{RpcContext, RpcError, RpcResult};
use alloy_primitives::B256;
use alloy_rpc_types_trace::geth::{
    GethDebugTracerType, GethDebugTracingOptions, GethTrace, TraceResult,
};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::View;
use retrie_execution::Simulation;
use revm::context::{
    TxEnv,
    result::{HaltReason, ResultAndState},
};
use revm_inspectors::tracing::{
    DebugInspector, DebugInspectorError, TraceLimitBehavior, TraceLimits, TransactionContext,
};
use std::{fmt, time::Duration};

/// However long a caller wants to wait, a trace takes no longer.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// How long a trace may execute if the request does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// With `enableMemory` every step copies the memory: a trace that becomes larger ends.
const MAX_RECORDED_BYTES: usize = 1 << 30;

/// A tracer as a request describes it: makes an inspector for each transaction.
pub(super) struct Tracer {
    options: GethDebugTracingOptions,
    pub(super) timeout: Duration,
}

impl Tracer {
    /// The tracer that a request asks for.
    ///
    /// # Errors
    /// If there is none of this name, or its configuration is wrong.
    pub(super) fn new(options: GethDebugTracingOptions) -> RpcResult<Self> {
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
            Some(text) => duration::parse(text)?.min(LONGEST),
            None => DEFAULT_TIMEOUT,
        };
        let tracer = Self { options, timeout };
        tracer.inspector()?;
        Ok(tracer)
    }

    /// An inspector for one transaction.
    pub(super) fn inspector(&self) -> RpcResult<DebugInspector> {
        let inspector = DebugInspector::new(self.options.clone()).map_err(failure)?;
        let limits = TraceLimits::default()
            .set_max_recorded_bytes(Some(MAX_RECORDED_BYTES))
            .set_behavior(TraceLimitBehavior::Halt);
        Ok(match inspector {
            DebugInspector::Default(inspector, config) => {
                DebugInspector::Default(inspector.with_limits(limits), config)
            }
            inspector => inspector,
        })
    }
}

/// What the inspector makes of a transaction whose changes are not yet part of the state.
pub(super) fn trace(
    inspector: &mut DebugInspector,
    context: Option<TransactionContext>,
    tx: &TxEnv,
    outcome: &ResultAndState<HaltReason>,
    simulation: &mut Simulation<'_>,
) -> RpcResult<GethTrace> {
    let block = simulation.env().block_env.clone();
    inspector.get_result(context, tx, &block, outcome, simulation).map_err(failure)
}

/// Traces transactions of a past block.
pub(super) fn trace_block(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    options: GethDebugTracingOptions,
) -> RpcResult<Vec<TraceResult>> {
    let tracer = Tracer::new(options)?;
    replay(
        rpc,
        view,
        block,
        which,
        tracer.timeout,
        || tracer.inspector(),
        |replayed| {
            let Replayed { index, tx, mut inspector, outcome, simulation } = replayed;
            let hash: B256 = *block.body().transactions[index].hash();
            let context = TransactionContext {
                block_hash: Some(block.hash()),
                tx_hash: Some(hash),
                tx_index: Some(index),
            };
            let result = trace(&mut inspector, Some(context), &tx, outcome, simulation)?;
            Ok(TraceResult::new_success(result, Some(hash)))
        },
    )
}

fn failure<E: fmt::Display>(error: DebugInspectorError<E>) -> RpcError {
    match error {
        DebugInspectorError::Database(error) => RpcError::Internal(error.to_string()),
        error => RpcError::InvalidParams(error.to_string()),
    }
}
