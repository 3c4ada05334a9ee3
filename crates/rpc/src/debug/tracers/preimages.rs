//! `keccak256PreimageTracer`: the inputs of KECCAK256, by their hash.

use super::{
    OpcodeStep, TraceJson, TracerHooks, TracerNeeds, TransactionEnd, events::json,
    state::CurrentState,
};
use crate::RpcResult;
use alloy_primitives::{B256, Bytes, keccak256};
use revm::bytecode::opcode;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct PreimageTracer {
    preimages: BTreeMap<B256, Bytes>,
    recorded: usize,
}

impl TracerHooks for PreimageTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds { steps: true, ..TracerNeeds::default() }
    }

    fn on_step(&mut self, step: &OpcodeStep<'_>, _: &mut dyn CurrentState) {
        if step.op != opcode::KECCAK256 {
            return;
        }
        if let Some(preimage) = step.memory_range(0, 1) {
            let (hash, len) = (keccak256(&preimage), preimage.len());
            if self.preimages.insert(hash, preimage.into()).is_none() {
                self.recorded += 2 * len;
            }
        }
    }

    fn recorded(&self) -> usize {
        self.recorded
    }

    fn result(&mut self, _: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        json(&self.preimages)
    }
}
