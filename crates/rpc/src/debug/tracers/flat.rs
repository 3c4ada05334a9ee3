//! `flatCallTracer`: a flat list of calls in OpenEthereum's form, with geth's gas: the outermost
//! call has the gas of the transaction.

use super::{
    FrameEnd, FrameStart, TraceJson, TracerHooks, TracerNeeds, TransactionEnd,
    events::json,
    step_errors::NO_GAS_FOR_CODE,
    tree::{CallFrame, CallNode, CallTree, REVERTED},
};
use crate::{RpcResult, geth_errors::opcode_name};
use alloy_primitives::{Address, B256, Bytes, U256, map::HashSet};
use revm::{
    bytecode::opcode,
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};
use serde::{Deserialize, Serialize};

/// Configuration in the request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FlatCallTracerConfig {
    convert_parity_errors: Option<bool>,
    include_precompiles: Option<bool>,
}

pub(super) struct FlatCallTracer {
    converts_errors: bool,
    includes_precompiles: bool,
    /// Precompiles, whose calls are left out.
    left_out: HashSet<Address>,
    tree: CallTree<()>,
}

/// The precompiles of a fork at their original addresses.
pub(super) fn precompiles(spec: SpecId) -> HashSet<Address> {
    Precompiles::new(PrecompileSpecId::from_spec_id(spec)).addresses().copied().collect()
}

impl FlatCallTracer {
    pub(super) fn new(config: FlatCallTracerConfig) -> Self {
        Self {
            converts_errors: config.convert_parity_errors.unwrap_or_default(),
            includes_precompiles: config.include_precompiles.unwrap_or_default(),
            left_out: HashSet::default(),
            tree: CallTree::default(),
        }
    }

    fn shown<'a>(
        &self,
        node: &'a CallNode<()>,
        address: &'a [usize],
        at: &TracePosition,
    ) -> FlatFrame<'a> {
        let frame = &node.frame;
        let error = frame.error.as_deref();
        let has_result = error.is_none_or(|error| error == REVERTED);
        let (kind, action, result) = parts(frame);
        FlatFrame {
            action,
            block_hash: at.block_hash,
            block_number: at.block_number,
            error: error.map(|error| match self.converts_errors {
                true => parity_error(error),
                false => error,
            }),
            result: result.filter(|_| has_result),
            subtraces: node.children.len(),
            trace_address: address,
            transaction_hash: at.transaction_hash,
            transaction_position: at.transaction_position,
            kind,
        }
    }
}

impl TracerHooks for FlatCallTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds { failures: true, ..TracerNeeds::default() }
    }

    fn on_start(&mut self, spec: SpecId) {
        if !self.includes_precompiles {
            self.left_out = precompiles(spec);
        }
    }

    fn on_enter(&mut self, entry: &FrameStart) {
        self.tree.enter(entry);
        if let Some(node) = self.tree.current().filter(|_| entry.depth > 0) {
            node.frame.value.get_or_insert_default();
        }
    }

    fn on_exit(&mut self, exit: &FrameEnd) {
        let Some(node) = self.tree.exit(exit) else { return };
        let is_call = matches!(node.frame.kind, opcode::CALL | opcode::STATICCALL);
        let to = node.frame.to.unwrap_or_default();
        if exit.depth > 0 && is_call && self.left_out.contains(&to) {
            self.tree.remove_last();
        }
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        self.tree.end(end.tx.gas_limit, end.outcome.result.tx_gas_used());
        let place = TracePosition::of(end);
        let mut addresses: Vec<Vec<usize>> = vec![Vec::new(); self.tree.nodes().len()];
        for (at, node) in self.tree.nodes().iter().enumerate() {
            for (index, child) in node.children.iter().enumerate() {
                addresses[*child] = [&addresses[at][..], &[index]].concat();
            }
        }
        let nodes = self.tree.nodes().iter().zip(&addresses);
        json(&nodes.map(|(node, address)| self.shown(node, address, &place)).collect::<Vec<_>>())
    }
}

/// The position of the transaction; empty for a hypothetical call.
#[derive(Default)]
struct TracePosition {
    block_hash: Option<B256>,
    block_number: u64,
    transaction_hash: Option<B256>,
    transaction_position: u64,
}

impl TracePosition {
    fn of(end: &TransactionEnd<'_, '_>) -> Self {
        let Some(context) = &end.context else { return Self::default() };
        Self {
            block_hash: context.block_hash,
            block_number: end.simulation.env().block_env.number.saturating_to(),
            transaction_hash: context.tx_hash,
            transaction_position: context.tx_index.unwrap_or_default() as u64,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FlatFrame<'a> {
    action: FlatAction<'a>,
    block_hash: Option<B256>,
    block_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<FlatResult<'a>>,
    subtraces: usize,
    trace_address: &'a [usize],
    transaction_hash: Option<B256>,
    transaction_position: u64,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlatAction<'a> {
    #[serde(rename = "address", skip_serializing_if = "Option::is_none")]
    destroyed: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Address>,
    #[serde(with = "alloy_serde::quantity::opt", skip_serializing_if = "Option::is_none")]
    gas: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    init: Option<&'a Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_address: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<U256>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlatResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a Bytes>,
    #[serde(with = "alloy_serde::quantity")]
    gas_used: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Bytes>,
}

fn parts(frame: &CallFrame) -> (&'static str, FlatAction<'_>, Option<FlatResult<'_>>) {
    let name = || Some(opcode_name(frame.kind).to_lowercase());
    let CallFrame { from, gas, gas_used, to, input, output, value, .. } = frame;
    let (from, gas, to, value, gas_used) = (Some(*from), Some(*gas), *to, *value, *gas_used);
    match frame.kind {
        opcode::CREATE | opcode::CREATE2 => {
            let (init, creation_method) = (Some(input), name());
            let action =
                FlatAction { creation_method, from, gas, init, value, ..FlatAction::default() };
            let (address, code) = (to, Some(output));
            ("create", action, Some(FlatResult { address, code, gas_used, output: None }))
        }
        opcode::SELFDESTRUCT => {
            let (destroyed, balance, refund_address) = (from, value, to);
            let action = FlatAction { destroyed, balance, refund_address, ..FlatAction::default() };
            ("suicide", action, None)
        }
        _ => {
            let (input, call_type) = (Some(input), name());
            let action =
                FlatAction { call_type, from, gas, input, to, value, ..FlatAction::default() };
            let output = Some(output);
            ("call", action, Some(FlatResult { gas_used, output, ..FlatResult::default() }))
        }
    }
}

/// OpenEthereum's text for an error, where it differs from geth's.
fn parity_error(error: &str) -> &str {
    match error {
        NO_GAS_FOR_CODE | "out of gas" | "gas uint64 overflow" | "max code size exceeded" => {
            "Out of gas"
        }
        "invalid jump destination" => "Bad jump destination",
        REVERTED => "Reverted",
        "return data out of bounds" => "Out of bounds",
        "stack limit reached 1024 (1023)" => "Out of stack",
        "precompiled failed" | "invalid input length" => "Built-in failed",
        _ if error.starts_with("out of gas:") => "Out of gas",
        _ if error.starts_with("invalid opcode:") => "Bad instruction",
        _ if error.starts_with("stack underflow") => "Stack underflow",
        _ => error,
    }
}
