//! `keccak256PreimageTracer`: what was hashed, by its hash.

use super::{Hooks, Needs, Step, Trace, TransactionEnd, events::json, state::CurrentState};
use crate::RpcResult;
use alloy_primitives::{B256, Bytes, keccak256};
use revm::bytecode::opcode;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct PreimageTracer {
    preimages: BTreeMap<B256, Bytes>,
    recorded: usize,
}

impl Hooks for PreimageTracer {
    fn needs(&self) -> Needs {
        Needs { steps: true, ..Needs::default() }
    }

    fn on_step(&mut self, step: &Step<'_>, _: &mut dyn CurrentState) {
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

    fn result(&mut self, _: &TransactionEnd<'_, '_>) -> RpcResult<Trace> {
        json(&self.preimages)
    }
}
