//! Calls of past transactions.

use super::calls::{CallInspector, CallRecord};
use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_heavy,
    geth_errors::opcode_name,
    replay::{ExecutionClock, ReplayScope, ReplayedTransaction, replay},
};
use alloy_primitives::{Address, B256, Bytes, U256};
use jsonrpsee::RpcModule;
use retrie_engine::LiveView;
use revm::{bytecode::opcode, context::result::ExecutionResult};
use serde::Serialize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "ots_getInternalOperations", |rpc, view, args| {
        let calls = executed(rpc, &view, args.hash()?)?.calls;
        Ok(calls.into_iter().filter_map(InternalOperation::of).collect::<Vec<_>>())
    });
    register_heavy(module, "ots_traceTransaction", |rpc, view, args| {
        let calls = executed(rpc, &view, args.hash()?)?.calls;
        Ok(calls.into_iter().map(TraceEntry::from).collect::<Vec<_>>())
    });
    register_heavy(module, "ots_getTransactionError", |rpc, view, args| {
        error(rpc, &view, args.hash()?)
    });
}

/// A transfer of ether within a transaction, a creation or a SELFDESTRUCT; also one that a failed call
/// took back.
#[derive(Clone, Debug, Serialize)]
struct InternalOperation {
    /// 0: transfer, 1: SELFDESTRUCT, 2: CREATE, 3: CREATE2.
    #[serde(rename = "type")]
    kind: u8,
    from: Address,
    to: Address,
    value: U256,
}

impl InternalOperation {
    /// `None` for the transaction itself, and for calls without value.
    fn of(call: CallRecord) -> Option<Self> {
        let CallRecord { op, depth, from, to, value, .. } = call;
        let value = value.unwrap_or_default();
        let kind = match op {
            _ if depth == 0 => return None,
            opcode::CALL if !value.is_zero() => 0,
            opcode::SELFDESTRUCT => 1,
            opcode::CREATE => 2,
            opcode::CREATE2 => 3,
            _ => return None,
        };
        Some(Self { kind, from, to, value })
    }
}

/// A call in the form of `ots_traceTransaction`.
#[derive(Clone, Debug, Serialize)]
struct TraceEntry {
    #[serde(rename = "type")]
    kind: String,
    depth: usize,
    from: Address,
    to: Address,
    value: Option<U256>,
    input: Bytes,
    output: Bytes,
}

impl From<CallRecord> for TraceEntry {
    fn from(call: CallRecord) -> Self {
        let CallRecord { op, depth, from, to, value, input, output } = call;
        Self { kind: opcode_name(op).into_owned(), depth, from, to, value, input, output }
    }
}

/// What a transaction did.
struct ExecutedCalls {
    /// Its calls, without those of precompiles.
    calls: Vec<CallRecord>,
    /// What it returned if it was reverted.
    reverted: Option<Bytes>,
}

fn executed(rpc: &RpcContext, view: &LiveView, hash: B256) -> RpcResult<ExecutedCalls> {
    let not_found = || RpcError::Rejected("transaction not found".into());
    let found = view.transaction(&hash)?.ok_or_else(not_found)?;
    let block = view.block(&found.block.hash)?.ok_or_else(not_found)?;
    let which = ReplayScope::Only(found.index as usize);
    let clock = ExecutionClock::new(rpc.limits.evm_timeout);
    let inspector = || Ok(CallInspector::default());
    let mut executed = replay(rpc, view, &block, which, clock, inspector, |replayed| {
        let ReplayedTransaction { inspector, outcome, simulation, .. } = replayed;
        let mut calls = inspector.calls;
        // As in Erigon: a precompile has no calls of its own. A transfer to one is shown.
        calls.retain(|call| {
            let has_value = call.value.is_some_and(|value| !value.is_zero());
            call.depth == 0 || has_value || !simulation.is_precompile(&call.to)
        });
        let reverted = match &outcome.result {
            ExecutionResult::Revert { output, .. } => Some(output.clone()),
            _ => None,
        };
        Ok(ExecutedCalls { calls, reverted })
    })?;
    executed.pop().ok_or_else(not_found)
}

/// What a transaction returned when it was reverted; nothing if it succeeded or halted.
fn error(rpc: &RpcContext, view: &LiveView, hash: B256) -> RpcResult<Bytes> {
    let not_found = || RpcError::Rejected("transaction not found".into());
    let found = view.transaction(&hash)?.ok_or_else(not_found)?;
    let receipts = view.receipts(&found.block.hash)?;
    let receipt = receipts.as_ref().and_then(|receipts| receipts.get(found.index as usize));
    if receipt.is_some_and(|receipt| receipt.success) {
        return Ok(Bytes::new());
    }
    Ok(executed(rpc, view, hash)?.reverted.unwrap_or_default())
}
