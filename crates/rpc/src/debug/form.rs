//! Traces in the very form that geth gives them, where revm-inspectors has another.

use crate::{
    RpcError, RpcResult,
    words::{TransactFailure, stack_words},
};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY};
use alloy_rpc_types_trace::geth::{
    AccountState, CallFrame, DiffMode, GethTrace, PreStateFrame, PreStateMode, StructLog,
    mux::MuxFrame,
};
use retrie_execution::Simulation;
use revm::{
    DatabaseRef,
    bytecode::opcode::OpCode,
    state::{AccountInfo, EvmState},
};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;

/// The trace of a transaction that changes the state of `simulation` by `changes`, and comes after
/// `logs_before` logs of its block.
pub(super) fn as_geth(
    trace: GethTrace,
    changes: &EvmState,
    simulation: &Simulation<'_>,
    logs_before: usize,
) -> RpcResult<GethTrace> {
    Ok(match trace {
        GethTrace::Default(mut frame) => {
            complete_steps(&mut frame.struct_logs);
            GethTrace::Default(frame)
        }
        GethTrace::CallTracer(mut frame) => {
            number_logs(&mut frame, logs_before);
            GethTrace::CallTracer(frame)
        }
        GethTrace::PreStateTracer(frame) => prestate(frame, changes, simulation)?,
        GethTrace::MuxTracer(MuxFrame(traces)) => {
            let one =
                |(tracer, trace)| Ok((tracer, as_geth(trace, changes, simulation, logs_before)?));
            GethTrace::MuxTracer(MuxFrame(traces.into_iter().map(one).collect::<RpcResult<_>>()?))
        }
        other => other,
    })
}

// -- steps ----------------------------------------------------------------------------------------

/// Leaves out what is empty, words errors, and counts refunds through all frames.
fn complete_steps(steps: &mut [StructLog]) {
    // The counter at the last step of each frame that has not ended.
    let mut refunds: Vec<u64> = Vec::new();
    for step in steps {
        refunds.truncate((step.depth as usize).saturating_sub(1));
        // A frame has its own counter, which may be below zero.
        let own = step.refund_counter.unwrap_or_default();
        let refund = refunds.last().unwrap_or(&0).wrapping_add(own);
        refunds.push(refund);
        step.refund_counter = (refund != 0).then_some(refund);
        step.memory = step.memory.take().filter(|memory| !memory.is_empty());
        step.return_data = step.return_data.take().filter(|data| !data.is_empty());
        step.error = error_words(step);
    }
}

/// Why a step was not executed; `step` says it by the name that revm has for it. Steps that fail
/// after their gas was taken have no error.
fn error_words(step: &StructLog) -> Option<String> {
    let status = step.error.as_deref()?;
    let status = status.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')'))?;
    match status {
        "OutOfGas" | "MemoryOOG" | "MemoryLimitOOG" | "ReentrancySentryOOG" => {
            Some("out of gas".into())
        }
        "InvalidOperandOOG" => Some("gas uint64 overflow".into()),
        "StackUnderflow" | "StackOverflow" => {
            let is_named = |code: &OpCode| code.as_str() == step.op;
            let opcode = (0..=u8::MAX).filter_map(OpCode::new).find(is_named);
            let stack = step.stack.as_ref().map(Vec::len);
            let words = opcode.zip(stack).map(|(opcode, len)| stack_words(opcode.get(), len));
            // Without a stack in the trace nobody knows its size.
            Some(words.unwrap_or_else(|| "stack underflow or limit reached".into()))
        }
        _ => None,
    }
}

// -- logs -----------------------------------------------------------------------------------------

/// Numbers logs as their block does: those of frames that failed have none, and are not shown.
fn number_logs(frame: &mut CallFrame, logs_before: usize) {
    if frame.error.is_some() {
        frame.logs.clear();
    }
    let mut indices = Vec::new();
    indices_of(frame, &mut indices);
    indices.sort_unstable_by_key(|index| **index);
    for (index, place) in (logs_before as u64..).zip(indices) {
        *place = Some(index);
    }
}

fn indices_of<'a>(frame: &'a mut CallFrame, indices: &mut Vec<&'a mut Option<u64>>) {
    indices.extend(frame.logs.iter_mut().map(|log| &mut log.index));
    for call in &mut frame.calls {
        indices_of(call, indices);
    }
}

// -- accounts -------------------------------------------------------------------------------------

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WithCodeHash {
    #[serde(flatten)]
    state: AccountState,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_hash: Option<B256>,
}

/// Adds hashes of codes, and leaves out of the accounts before the transaction those that were not
/// there.
fn prestate(
    frame: PreStateFrame,
    changes: &EvmState,
    simulation: &Simulation<'_>,
) -> RpcResult<GethTrace> {
    let info = |address| simulation.basic_ref(address).map_err(TransactFailure::database);
    let before = |accounts: BTreeMap<Address, AccountState>| {
        let mut shown = BTreeMap::new();
        for (address, state) in accounts {
            if let Some(info) = info(address)?.filter(|info| !info.is_empty()) {
                shown.insert(address, WithCodeHash { state, code_hash: code_hash(&info) });
            }
        }
        Ok::<_, RpcError>(shown)
    };
    let shown = match frame {
        PreStateFrame::Default(PreStateMode(accounts)) => json!(before(accounts)?),
        PreStateFrame::Diff(DiffMode { pre, post }) => {
            let mut after = BTreeMap::new();
            for (address, state) in post {
                let old = info(address)?.as_ref().and_then(code_hash);
                let new = changes.get(&address).and_then(|account| code_hash(&account.info));
                let code_hash = (old != new).then(|| new.unwrap_or_default());
                after.insert(address, WithCodeHash { state, code_hash });
            }
            json!({ "post": after, "pre": before(pre)? })
        }
    };
    Ok(GethTrace::JS(shown))
}

/// The hash of an account's code, if it has code.
fn code_hash(info: &AccountInfo) -> Option<B256> {
    let hash = info.code_hash;
    (hash != KECCAK256_EMPTY && !hash.is_zero()).then_some(hash)
}
