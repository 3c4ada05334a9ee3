//! `callTracer`: the tree of calls.

use super::{
    FrameEnd, FrameStart, TraceJson, TracerHooks, TracerNeeds, TransactionEnd,
    events::json,
    tree::{CallTree, joined},
};
use crate::RpcResult;
use alloy_primitives::Log;
use retrie_execution::EvmSimulation;
use revm::{
    context::result::{ExecutionResult, HaltReason},
    primitives::hardfork::SpecId,
};
use serde::{Deserialize, Serialize};

/// Configuration in the request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CallTracerConfig {
    only_top_call: Option<bool>,
    with_log: Option<bool>,
}

#[derive(Default)]
pub(super) struct CallTracer {
    only_top_call: bool,
    with_log: bool,
    tree: CallTree<()>,
    depth: usize,
}

impl CallTracer {
    pub(super) fn new(config: CallTracerConfig) -> Self {
        Self {
            only_top_call: config.only_top_call.unwrap_or_default(),
            with_log: config.with_log.unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl TracerHooks for CallTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds { failures: true, ..TracerNeeds::default() }
    }

    fn on_enter(&mut self, entry: &FrameStart) {
        self.depth = entry.depth;
        if !self.only_top_call || entry.depth == 0 {
            self.tree.enter(entry);
        }
    }

    fn on_exit(&mut self, exit: &FrameEnd) {
        self.depth = exit.depth.saturating_sub(1);
        if !self.only_top_call || exit.depth == 0 {
            self.tree.exit(exit);
        }
    }

    fn on_log(&mut self, log: &Log, index: usize) {
        if self.with_log && (!self.only_top_call || self.depth == 0) {
            self.tree.log(log, index);
        }
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        let result = &end.outcome.result;
        self.tree.end(end.tx.gas_limit, result.tx_gas_used());
        if self.with_log {
            self.tree.finalize_logs(end.logs_before);
        }
        let dimensions = GasDimensions::of(end.simulation, result);
        self.tree.json(|node| match (&dimensions, node.parent) {
            (Some(dimensions), None) => joined(&node.frame, dimensions),
            _ => json(&node.frame),
        })
    }
}

/// Gas of a transaction in two dimensions, from Amsterdam on (EIP-8037).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GasDimensions {
    #[serde(with = "alloy_serde::quantity")]
    execution_gas_used: u64,
    #[serde(with = "alloy_serde::quantity")]
    state_gas_used: u64,
    #[serde(with = "alloy_serde::quantity")]
    gas_refund: u64,
}

impl GasDimensions {
    /// `None` before Amsterdam.
    pub(super) fn of(
        simulation: &EvmSimulation<'_>,
        result: &ExecutionResult<HaltReason>,
    ) -> Option<Self> {
        let gas = result.gas();
        simulation.env().cfg_env.spec.is_enabled_in(SpecId::AMSTERDAM).then(|| Self {
            execution_gas_used: gas.block_regular_gas_used(),
            state_gas_used: gas.block_state_gas_used(),
            gas_refund: gas.final_refunded(),
        })
    }
}
