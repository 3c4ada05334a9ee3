//! A trace in memory, and the commits that replay it.

use crate::state::{
    block::{CommitBlock, KeyOp, ReadDigest},
    real::TraceFigures,
};
use alloy_primitives::{B256, Bytes, Keccak256};
use retrie_pipeline::replay::StatePadding;
use retrie_state::{StateKey, StateValue};
use std::{collections::BTreeMap, fmt};

/// A trace: the keys that blocks read and write, and the state before the first block, which holds
/// what the first access of each key finds. It runs forward only, once.
///
/// Memory: about 70 bytes and a value a key, 4 a read, 8 and a value a write.
#[derive(Clone)]
pub struct RecordedTrace {
    pub(super) source: String,
    pub(super) padding: StatePadding,
    /// The keys, by number.
    pub(super) keys: Vec<StateKey>,
    /// The value of each key before the first block.
    pub(super) first: Vec<ValueRef>,
    /// The numbers of the keys, in key order.
    pub(super) order: Vec<u32>,
    pub(super) blocks: Vec<RecordedBlock>,
    /// The number of a key, shifted left by one; bit 0 says whether the block writes it.
    pub(super) touches: Vec<u32>,
    /// The values that blocks write, in order.
    pub(super) writes: Vec<ValueRef>,
    /// The bytes of all values.
    pub(super) values: Bytes,
    pub(super) codes: BTreeMap<B256, Bytes>,
    pub(super) figures: TraceFigures,
}

/// A block of a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBlock {
    pub(super) number: u64,
    /// Where its touches end; they begin where those of the block before end.
    pub(super) end: usize,
}

/// A value among [`RecordedTrace::values`]: its place, shifted left by 8, and its length. Length 0
/// is an absent value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueRef(u64);

impl ValueRef {
    /// `len` is below 256.
    pub(super) const fn new(start: usize, len: usize) -> Self {
        Self((start as u64) << 8 | len as u64)
    }

    pub(super) const fn is_some(self) -> bool {
        self.0 & 0xff != 0
    }
}

impl fmt::Debug for RecordedTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedTrace")
            .field("source", &self.source)
            .field("figures", &self.figures)
            .finish_non_exhaustive()
    }
}

impl RecordedTrace {
    /// Where its blocks are from, as the maker says.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The size of the trace. Keys that no block accesses, such as contracts of slots, are not
    /// counted.
    pub const fn figures(&self) -> TraceFigures {
        self.figures
    }

    /// Numbers of the first and the last block.
    pub fn range(&self) -> Option<(u64, u64)> {
        Some((self.blocks.first()?.number, self.blocks.last()?.number))
    }

    /// The padding of the state.
    pub const fn padding(&self) -> &StatePadding {
        &self.padding
    }

    /// The codes, by keccak-256, that accounts have. A trace has none, so each code is stood in for
    /// by the bytes of its hash.
    pub const fn codes(&self) -> &BTreeMap<B256, Bytes> {
        &self.codes
    }

    fn value(&self, of: ValueRef) -> Option<StateValue> {
        let start = (of.0 >> 8) as usize;
        of.is_some().then(|| self.values.slice(start..start + (of.0 & 0xff) as usize))
    }

    /// The entries before the first block in key order, without padding.
    fn first_entries(&self) -> impl Iterator<Item = (StateKey, StateValue)> {
        self.order.iter().filter_map(|id| {
            let id = *id as usize;
            Some((self.keys[id], self.value(self.first[id])?))
        })
    }

    /// The touches of the `at`th block.
    fn touches(&self, at: usize) -> &[u32] {
        let start = at.checked_sub(1).map_or(0, |before| self.blocks[before].end);
        &self.touches[start..self.blocks[at].end]
    }

    /// Number of accounts before the first block, with padding.
    pub(crate) fn accounts(&self) -> u64 {
        let of = |(key, first): (&StateKey, &ValueRef)| {
            matches!(key, StateKey::Account(_)) && first.is_some()
        };
        let own = self.keys.iter().zip(&self.first).filter(|entry| of(*entry)).count();
        own as u64 + self.padding.accounts
    }

    /// A name for the state, valid as a file name.
    pub(crate) fn base_name(&self) -> String {
        let mut hasher = Keccak256::new();
        for (key, value) in self.first_entries() {
            hasher.update(&*key.encode());
            hasher.update((value.len() as u64).to_be_bytes());
            hasher.update(value);
        }
        let digest = hasher.finalize().to_string();
        format!("trace-{}-{}-v1", &digest[2..18], self.padding.name())
    }

    /// The state before the first block, with padding.
    pub(crate) fn base_entries(&self) -> Vec<(StateKey, StateValue)> {
        let mut entries: Vec<_> = self.first_entries().collect();
        if !self.padding.is_none() {
            entries.extend(self.padding.entries());
            // A stable sort, so a key of both keeps the value of the trace.
            entries.sort_by_key(|(key, _)| *key);
            entries.dedup_by_key(|(key, _)| *key);
        }
        entries
    }

    /// Keys that always have a value, in order.
    pub(crate) fn lasting_keys(&self) -> Vec<StateKey> {
        let mut lasts: Vec<bool> = self.first.iter().map(|first| first.is_some()).collect();
        let written = self.touches.iter().filter(|touch| **touch & 1 == 1);
        for (touch, value) in written.zip(&self.writes) {
            lasts[(touch >> 1) as usize] &= value.is_some();
        }
        let lasting = self.order.iter().filter(|id| lasts[**id as usize]);
        lasting.map(|id| self.keys[*id as usize]).collect()
    }

    /// Number of blocks from the `first`th on that together read at least `accesses` keys, or that
    /// are left.
    pub(crate) fn blocks_for(&self, first: u64, accesses: u64) -> u64 {
        let len = self.blocks.len();
        let first = usize::try_from(first).unwrap_or(len).min(len);
        let start = first.checked_sub(1).map_or(0, |before| self.blocks[before].end);
        let end = start.saturating_add(usize::try_from(accesses).unwrap_or(usize::MAX));
        // The first block that ends there or later is the last that is needed.
        let whole = self.blocks[first..].partition_point(|block| block.end < end);
        let needed = if accesses == 0 { 0 } else { (first + whole + 1).min(len) - first };
        needed as u64
    }

    /// Replays the trace from its first block on.
    pub(crate) fn cursor(&self) -> TraceCursor<'_> {
        TraceCursor { trace: self, now: self.first.clone(), block: 0, writes: 0 }
    }
}

/// The state of a replay: what each key holds after the blocks so far.
#[derive(Clone, Debug)]
pub(crate) struct TraceCursor<'a> {
    trace: &'a RecordedTrace,
    now: Vec<ValueRef>,
    /// Number of blocks so far, and of writes.
    block: usize,
    writes: usize,
}

impl TraceCursor<'_> {
    fn digest(&self, touches: &[u32]) -> ReadDigest {
        let mut reads = ReadDigest::default();
        for touch in touches {
            let value = self.trace.value(self.now[(touch >> 1) as usize]);
            reads.note(value.as_ref().map(|value| &value[..]));
        }
        reads
    }

    /// The next block; `None` after the last.
    pub(crate) fn next_block(&mut self) -> Option<CommitBlock> {
        if self.block == self.trace.blocks.len() {
            return None;
        }
        let trace = self.trace;
        let touches = trace.touches(self.block);
        // Reads see the state before the block.
        let expected = self.digest(touches);
        let ops = touches.iter().map(|touch| {
            let id = (touch >> 1) as usize;
            let key = trace.keys[id];
            if touch & 1 == 0 {
                return KeyOp::Read(key);
            }
            let next = trace.writes[self.writes];
            self.writes += 1;
            self.now[id] = next;
            trace.value(next).map_or(KeyOp::Delete(key), |value| KeyOp::Write(key, value))
        });
        let ops = ops.collect();
        self.block += 1;
        Some(CommitBlock { ops, expected })
    }

    /// A read-only block of the keys of the last block, with the values after it.
    pub(crate) fn read_back(&self) -> CommitBlock {
        let Some(last) = self.block.checked_sub(1) else { return CommitBlock::default() };
        let touches = self.trace.touches(last);
        let key = |touch: &u32| KeyOp::Read(self.trace.keys[(touch >> 1) as usize]);
        CommitBlock { ops: touches.iter().map(key).collect(), expected: self.digest(touches) }
    }
}
