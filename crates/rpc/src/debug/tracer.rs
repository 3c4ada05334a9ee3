//! The tracers of `debug_trace*`.

use super::{
    duration,
    tracers::{Trace, TracerConfig, TransactionEnd},
};
use crate::{
    RpcContext, RpcResult,
    replay::{Clock, Replayed, Which, replay},
};
use alloy_primitives::B256;
use alloy_rpc_types_trace::{common::TraceResult, geth::GethDebugTracingOptions};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::View;
use revm_inspectors::tracing::TransactionContext;
use std::time::Duration;

/// The trace of a transaction, and its hash.
pub(super) type TransactionTrace = TraceResult<Trace, String>;

/// A tracer as a request describes it: makes an inspector for each transaction.
pub(super) struct Tracer {
    kind: TracerKind,
    pub(super) clock: Clock,
}

enum TracerKind {
    Native(TracerConfig),
    #[cfg(feature = "js-tracer")]
    Script(super::javascript::Script),
}

/// What looks at one transaction.
#[cfg(not(feature = "js-tracer"))]
pub(super) type TraceInspector = super::tracers::EventInspector;
#[cfg(feature = "js-tracer")]
pub(super) type TraceInspector = super::javascript::NativeOrScript;

impl Tracer {
    /// The tracer that a request asks for. If it does not say how long an execution may take,
    /// that is `timeout`.
    ///
    /// # Errors
    /// If there is none of this name, or its configuration is wrong.
    pub(super) fn new(options: GethDebugTracingOptions, timeout: Duration) -> RpcResult<Self> {
        let timeout = match &options.timeout {
            Some(text) => duration::parse(text)?,
            None => timeout,
        };
        let kind = match TracerConfig::new(&options)? {
            Some(config) => TracerKind::Native(config),
            #[cfg(feature = "js-tracer")]
            None => TracerKind::Script(super::javascript::Script::new(options)),
            #[cfg(not(feature = "js-tracer"))]
            None => return Err(not_native(options.tracer.as_ref())),
        };
        let tracer = Self { kind, clock: Clock::new(timeout) };
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

/// Traces transactions of a past block.
pub(super) fn trace_block(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    options: GethDebugTracingOptions,
) -> RpcResult<Vec<TransactionTrace>> {
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
