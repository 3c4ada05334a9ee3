//! `erc7562Tracer`: what bundlers need to check the validation rules of ERC-7562.

use super::{
    FrameEnd, FrameStart, OpcodeStep, TraceJson, TracerHooks, TracerNeeds, TransactionEnd,
    state::CurrentState,
    step_errors::NO_GAS_FOR_CODE,
    tree::{CallTree, joined},
};
use crate::RpcResult;
use alloy_primitives::{Address, B256, Bytes, Log, U64, U256};
use revm::bytecode::opcode;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use std::collections::{BTreeMap, BTreeSet};

/// Configuration in the request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Erc7562Config {
    /// Opcodes that are not counted.
    ignored_opcodes: Option<Vec<U64>>,
    with_log: Option<bool>,
}

#[derive(Default)]
pub(super) struct Erc7562Tracer {
    ignored: BTreeSet<u8>,
    with_log: bool,
    tree: CallTree<FrameAccesses>,
    /// The previous opcode in any frame, and the top of the stack before it.
    last: Option<(u8, Option<U256>)>,
    preimages: BTreeSet<Bytes>,
    recorded: usize,
}

/// What the code of one frame accesses.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameAccesses {
    accessed_slots: AccessedSlots,
    ext_code_access_info: Vec<Address>,
    #[serde(serialize_with = "by_hex")]
    used_opcodes: BTreeMap<u8, u64>,
    contract_size: BTreeMap<Address, ContractSize>,
    out_of_gas: bool,
    /// All inputs of KECCAK256; only in the outermost frame.
    #[serde(rename = "keccak", skip_serializing_if = "Vec::is_empty")]
    preimages: Vec<Bytes>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessedSlots {
    reads: BTreeMap<B256, [B256; 1]>,
    writes: BTreeMap<B256, u64>,
    transient_reads: BTreeMap<B256, u64>,
    transient_writes: BTreeMap<B256, u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContractSize {
    contract_size: usize,
    opcode: u8,
}

fn by_hex<S: Serializer>(counts: &BTreeMap<u8, u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(counts.len()))?;
    for (op, count) in counts {
        map.serialize_entry(&format!("{op:#x}"), count)?;
    }
    map.end()
}

impl Erc7562Tracer {
    pub(super) fn new(config: Erc7562Config) -> Self {
        let ignored = match config.ignored_opcodes {
            Some(ignored) => ignored.iter().map(|op| op.byte(0)).collect(),
            None => ignored_by_default().collect(),
        };
        Self { ignored, with_log: config.with_log.unwrap_or_default(), ..Self::default() }
    }
}

/// Stack operations and plain arithmetic.
fn ignored_by_default() -> impl Iterator<Item = u8> {
    use opcode::*;
    (PUSH0..=SWAP16)
        .chain([POP, ADD, SUB, MUL, DIV, EQ, LT, GT, SLT, SGT, SHL, SHR, AND, OR, NOT, ISZERO])
}

const fn is_call(op: u8) -> bool {
    use opcode::{CALL, CALLCODE, DELEGATECALL, STATICCALL};
    matches!(op, CALL | CALLCODE | DELEGATECALL | STATICCALL)
}

const fn looks_at_code(op: u8) -> bool {
    use opcode::{EXTCODECOPY, EXTCODEHASH, EXTCODESIZE};
    matches!(op, EXTCODEHASH | EXTCODESIZE | EXTCODECOPY)
}

impl FrameAccesses {
    fn step(
        &mut self,
        step: &OpcodeStep<'_>,
        last: Option<(u8, Option<U256>)>,
        ignored: &BTreeSet<u8>,
    ) {
        let op = step.op;
        if let Some((before, top)) = last {
            // EXTCODESIZE followed by ISZERO is allowed (OP-051).
            let is_allowed = before == opcode::EXTCODESIZE && op == opcode::ISZERO;
            if let Some(top) = top.filter(|_| looks_at_code(before) && !is_allowed) {
                self.ext_code_access_info.push(Address::from_word(top.into()));
            }
            // GAS directly before a call is allowed (OP-012).
            if before == opcode::GAS && !is_call(op) {
                *self.used_opcodes.entry(opcode::GAS).or_default() += 1;
            }
        }
        if op != opcode::GAS && !ignored.contains(&op) {
            *self.used_opcodes.entry(op).or_default() += 1;
        }
    }

    fn look(&mut self, step: &OpcodeStep<'_>, state: &mut dyn CurrentState) {
        let op = step.op;
        if looks_at_code(op) || is_call(op) {
            let Some(address) = step.item_address(is_call(op).into()) else { return };
            self.contract_size.entry(address).or_insert_with(|| ContractSize {
                contract_size: state.code(address).len(),
                opcode: op,
            });
            return;
        }
        let Some(slot) = step.item(0) else { return };
        let key = B256::from(slot);
        let slots = &mut self.accessed_slots;
        match op {
            opcode::SLOAD if !slots.writes.contains_key(&key) => {
                let read = || [state.slot(step.address, slot).into()];
                slots.reads.entry(key).or_insert_with(read);
            }
            opcode::SSTORE => *slots.writes.entry(key).or_default() += 1,
            opcode::TLOAD => *slots.transient_reads.entry(key).or_default() += 1,
            opcode::TSTORE => *slots.transient_writes.entry(key).or_default() += 1,
            _ => {}
        }
    }
}

impl TracerHooks for Erc7562Tracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds { steps: true, failures: true, ..TracerNeeds::default() }
    }

    fn on_step(&mut self, step: &OpcodeStep<'_>, state: &mut dyn CurrentState) {
        if matches!(step.op, opcode::REVERT | opcode::RETURN) {
            self.last = None;
        }
        if let Some(node) = self.tree.current() {
            node.more.step(step, self.last, &self.ignored);
            node.more.look(step, state);
        }
        if step.op == opcode::KECCAK256
            && let Some(preimage) = step.memory_range(0, 1)
        {
            let len = preimage.len();
            if self.preimages.insert(preimage.into()) {
                self.recorded += 2 * len;
            }
        }
        self.last = Some((step.op, step.item(0)));
    }

    fn on_enter(&mut self, entry: &FrameStart) {
        self.tree.enter(entry);
    }

    fn on_exit(&mut self, exit: &FrameEnd) {
        let Some(node) = self.tree.exit(exit) else { return };
        // geth never sets it for the outermost frame.
        node.more.out_of_gas = exit.depth > 0
            && exit
                .error
                .as_deref()
                .is_some_and(|error| error.starts_with("out of gas") || error == NO_GAS_FOR_CODE);
    }

    fn on_log(&mut self, log: &Log, index: usize) {
        if self.with_log {
            self.tree.log(log, index);
        }
    }

    fn recorded(&self) -> usize {
        self.recorded
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        self.tree.end(end.tx.gas_limit, end.outcome.result.tx_gas_used());
        if self.with_log {
            self.tree.finalize_logs(end.logs_before);
        }
        let preimages = std::mem::take(&mut self.preimages);
        if let Some(root) = self.tree.root() {
            root.more.preimages = preimages.into_iter().collect();
        }
        self.tree.json(|node| joined(&node.frame, &node.more))
    }
}
