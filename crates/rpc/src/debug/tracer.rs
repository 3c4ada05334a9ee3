//! Tracers of `debug_trace*` requests.

use super::{
    duration,
    tracers::{TraceJson, TracerConfig, TransactionEnd},
};
use crate::{
    RpcContext, RpcResult,
    replay::{ExecutionClock, ReplayScope, ReplayedTransaction, replay},
};
use alloy_primitives::B256;
use alloy_rpc_types_trace::{common::TraceResult, geth::GethDebugTracingOptions};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;
use revm_inspectors::tracing::TransactionContext;
use std::time::Duration;

/// The trace of a transaction, with its hash.
pub(super) type TransactionTrace = TraceResult<TraceJson, String>;

/// A tracer as a request describes it; makes one inspector for each transaction.
pub(super) struct TracerFactory {
    kind: TracerKind,
    pub(super) clock: ExecutionClock,
}

enum TracerKind {
    Native(TracerConfig),
    #[cfg(feature = "js-tracer")]
    Script(super::javascript::TracerScript),
}

/// The inspector of one transaction.
#[cfg(not(feature = "js-tracer"))]
pub(super) type TraceInspector = super::tracers::EventInspector;
#[cfg(feature = "js-tracer")]
pub(super) type TraceInspector = super::javascript::NativeOrScript;

impl TracerFactory {
    /// Parses the tracer options of a request. `timeout` bounds an execution unless the request
    /// sets its own timeout.
    ///
    /// # Errors
    /// If there is no tracer of this name, or its configuration is invalid.
    pub(super) fn new(options: GethDebugTracingOptions, timeout: Duration) -> RpcResult<Self> {
        let timeout = match &options.timeout {
            Some(text) => duration::parse(text)?,
            None => timeout,
        };
        let kind = match TracerConfig::new(&options)? {
            Some(config) => TracerKind::Native(config),
            #[cfg(feature = "js-tracer")]
            None => TracerKind::Script(super::javascript::TracerScript::new(options)),
            #[cfg(not(feature = "js-tracer"))]
            None => return Err(not_native(options.tracer.as_ref())),
        };
        let tracer = Self { kind, clock: ExecutionClock::new(timeout) };
        tracer.inspector()?;
        Ok(tracer)
    }

    /// An inspector for one transaction.
    ///
    /// # Errors
    /// If the tracer is a script that cannot be evaluated.
    pub(super) fn inspector(&self) -> RpcResult<TraceInspector> {
        match &self.kind {
            #[cfg(not(feature = "js-tracer"))]
            TracerKind::Native(config) => config.inspector(),
            #[cfg(feature = "js-tracer")]
            TracerKind::Native(config) => Ok(config.inspector()?.into()),
            #[cfg(feature = "js-tracer")]
            TracerKind::Script(script) => script.inspector(self.clock.deadline()),
        }
    }
}

#[cfg(not(feature = "js-tracer"))]
fn not_native(
    tracer: Option<&alloy_rpc_types_trace::geth::GethDebugTracerType>,
) -> crate::RpcError {
    let code = tracer.map_or("", |tracer| tracer.as_str());
    let shown: String = code.chars().take(40).collect();
    crate::RpcError::InvalidParams(format!(
        "tracer {shown:?} is not one of the native ones, and this node was built without tracers in \
         JavaScript (cargo feature js-tracer)"
    ))
}

/// Traces the selected transactions of a past block.
pub(super) fn trace_block(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    which: ReplayScope,
    options: GethDebugTracingOptions,
) -> RpcResult<Vec<TransactionTrace>> {
    let tracer = TracerFactory::new(options, rpc.limits.evm_timeout)?;
    replay(
        rpc,
        view,
        block,
        which,
        tracer.clock,
        || tracer.inspector(),
        |replayed| {
            let ReplayedTransaction { index, tx, mut inspector, outcome, logs_before, simulation } =
                replayed;
            let hash: B256 = *block.body().transactions[index].hash();
            let context = Some(TransactionContext {
                block_hash: Some(block.hash()),
                tx_hash: Some(hash),
                tx_index: Some(index),
            });
            let end = TransactionEnd { context, tx: &tx, outcome, simulation, logs_before };
            Ok(TraceResult::new_success(inspector.trace(&end)?, Some(hash)))
        },
    )
}
