//! `4byteTracer`: counts calls by function selector and size of the arguments.

use super::{
    FrameStart, TraceJson, TracerHooks, TracerNeeds, TransactionEnd, events::json,
    flat::precompiles,
};
use crate::RpcResult;
use alloy_primitives::{Address, hex, map::HashSet};
use revm::{bytecode::opcode, primitives::hardfork::SpecId};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct FourByteTracer {
    precompiles: HashSet<Address>,
    counts: BTreeMap<String, u64>,
}

impl TracerHooks for FourByteTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds::default()
    }

    fn on_start(&mut self, spec: SpecId) {
        self.precompiles = precompiles(spec);
    }

    fn on_enter(&mut self, entry: &FrameStart) {
        use opcode::{CALL, CALLCODE, DELEGATECALL, STATICCALL};
        let Some((selector, arguments)) = entry.input.split_at_checked(4) else { return };
        let is_call = matches!(entry.kind, CALL | CALLCODE | DELEGATECALL | STATICCALL);
        if is_call && !self.precompiles.contains(&entry.to) {
            let key = format!("{}-{}", hex::encode_prefixed(selector), arguments.len());
            *self.counts.entry(key).or_default() += 1;
        }
    }

    fn result(&mut self, _: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        json(&self.counts)
    }
}
