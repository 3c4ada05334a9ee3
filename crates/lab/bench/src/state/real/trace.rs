//! The trace: blocks of keys read and written, and their state.

use crate::state::block::{CommitBlock, KeyOp, ReadDigest};
use alloy_primitives::{B256, Bytes, Keccak256};
use retrie_pipeline::replay::{StatePadding, settle_code};
use retrie_state::{Account, StateKey, StateValue};
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
    blocks: Vec<TraceBlock>,
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

/// One block, its keys in order.
#[derive(Clone, Debug)]
struct TraceBlock {
    touches: Vec<KeyTouch>,
}

/// A key that a block reads, and its values before and after the block.
#[derive(Clone, Debug)]
struct KeyTouch {
    key: StateKey,
    before: Option<StateValue>,
    after: Option<StateValue>,
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
    /// The size of the trace, in the forward direction.
    pub fn figures(&self) -> TraceFigures {
        let touches = || self.blocks.iter().flat_map(|block| &block.touches);
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
        let touches = self.blocks.iter().flat_map(|block| &block.touches);
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
        (&self.blocks[place as usize].touches, back)
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

/// Builds a trace from blocks in order.
#[derive(Debug, Default)]
pub(super) struct TraceBuilder {
    /// The first observed value of each key.
    base: BTreeMap<StateKey, Option<StateValue>>,
    /// The state after the blocks so far.
    now: BTreeMap<StateKey, StateValue>,
    /// Accounts that a block has removed.
    removed: BTreeSet<StateKey>,
    blocks: Vec<TraceBlock>,
    codes: BTreeMap<B256, Bytes>,
}

impl TraceBuilder {
    /// The value of a key after the blocks so far; `None` if no block has accessed it.
    pub(super) fn get(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.base.contains_key(key).then(|| self.now.get(key).cloned())
    }

    /// Adds codes that accounts may have.
    pub(super) fn add_codes(&mut self, codes: impl IntoIterator<Item = (B256, Bytes)>) {
        self.codes.extend(codes);
    }

    /// Adds a block with the values `pre` before it, and `writes`.
    pub(super) fn push(
        &mut self,
        pre: BTreeMap<StateKey, Option<StateValue>>,
        mut writes: BTreeMap<StateKey, Option<StateValue>>,
    ) {
        // Accounts come before slots.
        for (key, value) in &pre {
            self.see(*key, value.clone());
        }
        for key in writes.keys() {
            self.see(*key, None);
        }
        self.reconcile_accounts(&pre, &mut writes);
        let mut keys: BTreeSet<_> = pre.into_keys().collect();
        keys.extend(writes.keys());
        let touches = keys.into_iter().map(|key| {
            let before = self.now.get(&key).cloned();
            let after = writes.remove(&key).unwrap_or_else(|| before.clone());
            match &after {
                Some(value) => self.now.insert(key, value.clone()),
                None => self.now.remove(&key),
            };
            KeyTouch { key, before, after }
        });
        let touches: Vec<_> = touches.collect();
        let gone = touches.iter().filter(|touch| touch.before.is_some() && touch.after.is_none());
        self.removed.extend(gone.map(|touch| touch.key));
        if !touches.is_empty() {
            self.blocks.push(TraceBlock { touches });
        }
    }

    /// Records the first value of a key. A slot exists only if its account existed at that time and
    /// was not removed before.
    fn see(&mut self, key: StateKey, value: Option<StateValue>) {
        if self.base.contains_key(&key) {
            return;
        }
        let value = value.filter(|_| match key {
            StateKey::Account(_) => true,
            StateKey::Slot(address, _) => {
                let account = StateKey::Account(address);
                let was_there = self.base.get(&account).is_some_and(Option::is_some);
                was_there && !self.removed.contains(&account)
            }
        });
        if let Some(value) = &value {
            self.now.insert(key, value.clone());
        }
        self.base.insert(key, value);
    }

    /// Keeps slots and accounts consistent: removing an account removes its slots. An account that
    /// was created in a gap between two blocks is created when one of its slots is first written.
    fn reconcile_accounts(
        &self,
        pre: &BTreeMap<StateKey, Option<StateValue>>,
        writes: &mut BTreeMap<StateKey, Option<StateValue>>,
    ) {
        let written: Vec<_> = writes.iter().map(|(key, value)| (*key, value.is_some())).collect();
        for (key, is_set) in written {
            let account = StateKey::Account(*key.address());
            match (key, is_set) {
                (StateKey::Account(address), false) => {
                    let all = StateKey::Slot(address, B256::ZERO)
                        ..=StateKey::Slot(address, B256::repeat_byte(0xff));
                    for (slot, _) in self.now.range(all) {
                        writes.insert(*slot, None);
                    }
                    writes.retain(|slot, value| {
                        slot.address() != &address || *slot == account || value.is_none()
                    });
                }
                (StateKey::Slot(..), true)
                    if !writes.contains_key(&account) && !self.now.contains_key(&account) =>
                {
                    let known = pre.get(&account).cloned().flatten();
                    let unknown = || Account { nonce: 1, ..Account::default() }.encode();
                    writes.insert(account, Some(known.unwrap_or_else(unknown)));
                }
                _ => {}
            }
        }
    }

    /// The trace, with a padded state.
    pub(super) fn build(self, padding: StatePadding) -> AccessTrace {
        let mut codes = self.codes;
        let mut settle = |key: &StateKey, value: &mut StateValue| match key {
            StateKey::Account(_) => settle_code(value, &mut codes),
            StateKey::Slot(..) => {}
        };
        let entry = |(key, value): (StateKey, Option<StateValue>)| Some((key, value?));
        let mut base: Vec<_> = self.base.into_iter().filter_map(entry).collect();
        base.iter_mut().for_each(|(key, value)| settle(key, value));
        let mut blocks = self.blocks;
        for KeyTouch { key, before, after } in blocks.iter_mut().flat_map(|of| &mut of.touches) {
            before.iter_mut().chain(after).for_each(|value| settle(key, value));
        }
        AccessTrace { base, padding, blocks, codes }
    }
}
