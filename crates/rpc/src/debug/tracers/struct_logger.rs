//! The struct logger: records every step.

use super::{
    OpcodeStep, TraceJson, TracerHooks, TracerNeeds, TransactionEnd, calls::GasDimensions,
    events::json, state::CurrentState,
};
use crate::{RpcError, RpcResult, geth_errors::opcode_name};
use alloy_primitives::{Address, B256, Bytes, U256, hex, map::HashMap};
use alloy_rpc_types_trace::geth::GethDefaultTracingOptions;
use revm::bytecode::opcode;
use serde::Serialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap};

pub(super) struct StructLogger {
    options: GethDefaultTracingOptions,
    /// Slots of each contract that were read or written so far.
    storage: HashMap<Address, BTreeMap<B256, B256>>,
    /// The steps so far in JSON, comma-separated.
    steps: String,
    /// Their size as geth counts it, for the option `limit`.
    size: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StructLogEntry<'s> {
    pc: usize,
    op: Cow<'static, str>,
    gas: u64,
    gas_cost: u64,
    depth: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<&'s [U256]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_data: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<&'s BTreeMap<B256, B256>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund: Option<u64>,
}

impl StructLogger {
    pub(super) fn new(options: GethDefaultTracingOptions) -> Self {
        Self { options, storage: HashMap::default(), steps: String::new(), size: 0 }
    }

    /// The known slots of the contract, if the step reads or writes a slot.
    fn storage(
        &mut self,
        step: &OpcodeStep<'_>,
        state: &mut dyn CurrentState,
    ) -> Option<&BTreeMap<B256, B256>> {
        if !self.options.is_storage_enabled() {
            return None;
        }
        let slot = step.item(0)?;
        let value = match step.op {
            opcode::SLOAD => state.slot(step.address, slot),
            opcode::SSTORE => step.item(1)?,
            _ => return None,
        };
        let storage = self.storage.entry(step.address).or_default();
        storage.insert(slot.into(), value.into());
        Some(storage)
    }
}

impl TracerHooks for StructLogger {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds {
            steps: true,
            stack: self.options.is_stack_enabled(),
            memory: self.options.is_memory_enabled(),
            return_data: self.options.is_return_data_enabled(),
            failures: true,
        }
    }

    fn on_step(&mut self, step: &OpcodeStep<'_>, state: &mut dyn CurrentState) {
        let limit = self.options.limit.unwrap_or_default();
        if limit != 0 && self.size > limit {
            return;
        }
        let (stack, memory, return_data) = (
            self.options.is_stack_enabled(),
            self.options.is_memory_enabled(),
            self.options.is_return_data_enabled() && !step.return_data.is_empty(),
        );
        let storage = self.storage(step, state);
        let shown = StructLogEntry {
            pc: step.pc,
            op: opcode_name(step.op),
            gas: step.gas,
            gas_cost: step.cost,
            depth: step.depth,
            error: step.error,
            stack: stack.then_some(step.stack),
            return_data: return_data.then(|| hex::encode_prefixed(step.return_data)),
            memory: match memory {
                true => step.memory.chunks(32).map(hex::encode_prefixed).collect(),
                false => Vec::new(),
            },
            storage,
            refund: (step.refund != 0).then_some(step.refund),
        };
        // Serializing numbers and text cannot fail.
        let text = serde_json::to_string(&shown).unwrap_or_default();
        // Go's JSON encoder escapes each of these characters to six.
        let escaped = text.bytes().filter(|byte| matches!(byte, b'<' | b'>' | b'&')).count();
        self.size += (text.len() + 5 * escaped) as u64;
        if !self.steps.is_empty() {
            self.steps.push(',');
        }
        self.steps.push_str(&text);
    }

    fn recorded(&self) -> usize {
        self.steps.len()
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        let result = &end.outcome.result;
        let head = StructLogSummary {
            gas: result.tx_gas_used(),
            failed: !result.is_success(),
            dimensions: GasDimensions::of(end.simulation, result),
            return_value: result.output().cloned().unwrap_or_default(),
        };
        let head = json(&head)?;
        let head = head.get().trim_end_matches('}');
        let steps = std::mem::take(&mut self.steps);
        RawValue::from_string(format!("{head},\"structLogs\":[{steps}]}}"))
            .map_err(|error| RpcError::Internal(error.to_string()))
    }
}

/// The trace without its steps.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StructLogSummary {
    gas: u64,
    failed: bool,
    #[serde(flatten)]
    dimensions: Option<GasDimensions>,
    return_value: Bytes,
}
