//! The trace: blocks of keys read and written, and their state.

use super::model::{BlockAccesses, KeyTouch};
use crate::state::block::{CommitBlock, KeyOp, ReadDigest};
use alloy_primitives::{B256, Bytes, Keccak256};
use retrie_pipeline::replay::{StatePadding, settle_code};
use retrie_state::{StateKey, StateValue};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Blocks of real accesses, and a matching state.
#[derive(Clone)]
pub struct AccessTrace {
    /// In key order.
    base: Vec<(StateKey, StateValue)>,
    padding: StatePadding,
    /// The keys of each block, in order.
    blocks: Vec<Vec<KeyTouch>>,
    codes: BTreeMap<B256, Bytes>,
}

/// The size of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFigures {
    /// Number of blocks.
    pub blocks: u64,
    /// Number of keys read, summed over blocks.
    pub reads: u64,
    /// Number of keys written or removed.
    pub writes: u64,
    /// Number of keys removed.
    pub deletes: u64,
    /// Number of distinct keys.
    pub keys: u64,
}

impl KeyTouch {
    fn op(&self, back: bool) -> KeyOp {
        let next = if back { &self.before } else { &self.after };
        match next {
            _ if self.before == self.after => KeyOp::Read(self.key),
            Some(value) => KeyOp::Write(self.key, value.clone()),
            None => KeyOp::Delete(self.key),
        }
    }
}

impl fmt::Debug for AccessTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessTrace").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

impl AccessTrace {
    /// The trace of blocks in order, on a padded state. Blocks without keys are left out.
    pub(super) fn new(blocks: Vec<BlockAccesses>, padding: StatePadding) -> Self {
        let mut codes = BTreeMap::new();
        let mut of_blocks = Vec::with_capacity(blocks.len());
        for block in blocks {
            codes.extend(block.codes);
            if !block.touches.is_empty() {
                of_blocks.push(block.touches);
            }
        }
        let mut settle = |key: &StateKey, value: &mut StateValue| match key {
            StateKey::Account(_) => settle_code(value, &mut codes),
            StateKey::Slot(..) => {}
        };
        for KeyTouch { key, before, after } in of_blocks.iter_mut().flatten() {
            before.iter_mut().chain(after).for_each(|value| settle(key, value));
        }
        // The first block that touches a key meets its first value.
        let mut first = BTreeMap::new();
        for touch in of_blocks.iter().flatten() {
            first.entry(touch.key).or_insert_with(|| touch.before.clone());
        }
        let base = first.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Self { base, padding, blocks: of_blocks, codes }
    }

    /// The size of the trace, in the forward direction.
    pub fn figures(&self) -> TraceFigures {
        let touches = || self.blocks.iter().flatten();
        let writes = || touches().filter(|touch| touch.before != touch.after);
        TraceFigures {
            blocks: self.blocks.len() as u64,
            reads: touches().count() as u64,
            writes: writes().count() as u64,
            deletes: writes().filter(|touch| touch.after.is_none()).count() as u64,
            keys: touches().map(|touch| touch.key).collect::<BTreeSet<_>>().len() as u64,
        }
    }

    /// The padding of the state.
    pub const fn padding(&self) -> &StatePadding {
        &self.padding
    }

    /// The codes, by keccak-256, that accounts have before or after a block.
    pub const fn codes(&self) -> &BTreeMap<B256, Bytes> {
        &self.codes
    }

    /// A name for the state, valid as a file name.
    pub(crate) fn base_name(&self) -> String {
        let mut hasher = Keccak256::new();
        for (key, value) in &self.base {
            hasher.update(&*key.encode());
            hasher.update((value.len() as u64).to_be_bytes());
            hasher.update(value);
        }
        let digest = hasher.finalize().to_string();
        format!("real-{}-{}-v1", &digest[2..18], self.padding.name())
    }

    /// The state: the keys that the blocks read, and padding.
    pub(crate) fn base_entries(&self) -> Vec<(StateKey, StateValue)> {
        let mut entries = self.base.clone();
        entries.extend(self.padding.entries());
        // A stable sort, so a key of both keeps the value of the blocks.
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        entries
    }

    /// Keys that always have a value, in order.
    pub(crate) fn lasting_keys(&self) -> Vec<StateKey> {
        let touches = self.blocks.iter().flatten();
        let gone = touches.filter(|touch| touch.before.is_none() || touch.after.is_none());
        let gone: BTreeSet<_> = gone.map(|touch| touch.key).collect();
        self.base.iter().map(|(key, _)| *key).filter(|key| !gone.contains(key)).collect()
    }

    /// The `number`th block of the endless sequence forward and backward.
    pub(crate) fn block(&self, number: u64) -> CommitBlock {
        let (touches, back) = self.at(number);
        let ops = touches.iter().map(|touch| touch.op(back)).collect();
        CommitBlock { ops, expected: read(touches, back) }
    }

    /// A read-only block of the keys of the `number`th block, with the values after it.
    pub(crate) fn read_back(&self, number: u64) -> CommitBlock {
        let (touches, back) = self.at(number);
        let ops = touches.iter().map(|touch| KeyOp::Read(touch.key)).collect();
        CommitBlock { ops, expected: read(touches, !back) }
    }

    fn at(&self, number: u64) -> (&[KeyTouch], bool) {
        let len = self.blocks.len() as u64;
        let place = number % len;
        let back = number / len % 2 == 1;
        let place = if back { len - 1 - place } else { place };
        (&self.blocks[place as usize], back)
    }

    /// Number of blocks from the `first`th on that together read at least `accesses` keys.
    pub(crate) fn blocks_for(&self, first: u64, accesses: u64) -> u64 {
        let mut left = accesses;
        let mut number = first;
        while left > 0 {
            left = left.saturating_sub(self.at(number).0.len() as u64);
            number += 1;
        }
        number - first
    }
}

/// The values of a block's keys before it, in the forward or backward direction.
fn read(touches: &[KeyTouch], back: bool) -> ReadDigest {
    let mut reads = ReadDigest::default();
    for touch in touches {
        let value = if back { &touch.after } else { &touch.before };
        reads.note(value.as_ref().map(|value| &value[..]));
    }
    reads
}
