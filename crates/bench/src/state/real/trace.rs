//! The trace: blocks of keys read and written, and the state they stand on.

use crate::state::block::{Block, Op, Reads};
use alloy_primitives::{B256, Keccak256};
use retrie_pipeline::replay::Padding;
use retrie_state::{Account, StateKey, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Blocks of real accesses on a state that they fit.
#[derive(Clone)]
pub struct Trace {
    /// In key order.
    base: Vec<(StateKey, Value)>,
    padding: Padding,
    blocks: Vec<TraceBlock>,
}

/// How large a trace is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFigures {
    /// Number of blocks.
    pub blocks: u64,
    /// Keys read, block by block.
    pub reads: u64,
    /// Keys written, removed ones included.
    pub writes: u64,
    /// Keys removed.
    pub deletes: u64,
    /// Different keys.
    pub keys: u64,
}

/// One block, its keys in order.
#[derive(Clone, Debug)]
struct TraceBlock {
    touches: Vec<Touch>,
}

/// A key that a block reads, and what it leaves there.
#[derive(Clone, Debug)]
struct Touch {
    key: StateKey,
    before: Option<Value>,
    after: Option<Value>,
}

impl Touch {
    fn op(&self, back: bool) -> Op {
        let next = if back { &self.before } else { &self.after };
        match next {
            _ if self.before == self.after => Op::Read(self.key),
            Some(value) => Op::Write(self.key, value.clone()),
            None => Op::Delete(self.key),
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

impl Trace {
    /// Number, size and kinds of its accesses, on the way forth.
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

    /// The padding of its state.
    pub const fn padding(&self) -> &Padding {
        &self.padding
    }

    /// A name for its state, fit for a file name.
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

    /// Its state: what the blocks find, and padding.
    pub(crate) fn base_entries(&self) -> Vec<(StateKey, Value)> {
        let mut entries = self.base.clone();
        entries.extend(self.padding.entries());
        // Stable: a key of both keeps the value that the blocks know.
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

    /// The `number`th block of the endless way forth and back.
    pub(crate) fn block(&self, number: u64) -> Block {
        let (touches, back) = self.at(number);
        let ops = touches.iter().map(|touch| touch.op(back)).collect();
        Block { ops, expected: read(touches, back) }
    }

    /// A block that only reads what the `number`th block has left.
    pub(crate) fn read_back(&self, number: u64) -> Block {
        let (touches, back) = self.at(number);
        let ops = touches.iter().map(|touch| Op::Read(touch.key)).collect();
        Block { ops, expected: read(touches, !back) }
    }

    fn at(&self, number: u64) -> (&[Touch], bool) {
        let len = self.blocks.len() as u64;
        let place = number % len;
        let back = number / len % 2 == 1;
        let place = if back { len - 1 - place } else { place };
        (&self.blocks[place as usize].touches, back)
    }

    /// How many blocks from the `first`th on have `accesses` keys read, at least.
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

/// What the keys of a block hold before it on the way forth, or before it on the way back.
fn read(touches: &[Touch], back: bool) -> Reads {
    let mut reads = Reads::default();
    for touch in touches {
        let value = if back { &touch.after } else { &touch.before };
        reads.note(value.as_ref().map(|value| &value[..]));
    }
    reads
}

/// Puts blocks together, in the order they come.
#[derive(Debug, Default)]
pub(super) struct TraceBuilder {
    /// The first value seen of each key.
    base: BTreeMap<StateKey, Option<Value>>,
    /// The state after the blocks so far.
    now: BTreeMap<StateKey, Value>,
    /// Accounts that were removed at some time.
    removed: BTreeSet<StateKey>,
    blocks: Vec<TraceBlock>,
}

impl TraceBuilder {
    /// The value that a key has after the blocks so far; `None` if no block has touched it.
    pub(super) fn get(&self, key: &StateKey) -> Option<Option<Value>> {
        self.base.contains_key(key).then(|| self.now.get(key).cloned())
    }

    /// Adds a block that finds `pre` and leaves `writes`.
    pub(super) fn push(
        &mut self,
        pre: BTreeMap<StateKey, Option<Value>>,
        mut writes: BTreeMap<StateKey, Option<Value>>,
    ) {
        // Accounts come before slots.
        for (key, value) in &pre {
            self.see(*key, value.clone());
        }
        for key in writes.keys() {
            self.see(*key, None);
        }
        self.settle_accounts(&pre, &mut writes);
        let mut keys: BTreeSet<_> = pre.into_keys().collect();
        keys.extend(writes.keys());
        let touches = keys.into_iter().map(|key| {
            let before = self.now.get(&key).cloned();
            let after = writes.remove(&key).unwrap_or_else(|| before.clone());
            match &after {
                Some(value) => self.now.insert(key, value.clone()),
                None => self.now.remove(&key),
            };
            Touch { key, before, after }
        });
        let touches: Vec<_> = touches.collect();
        let gone = touches.iter().filter(|touch| touch.before.is_some() && touch.after.is_none());
        self.removed.extend(gone.map(|touch| touch.key));
        if !touches.is_empty() {
            self.blocks.push(TraceBlock { touches });
        }
    }

    /// Takes note of the first value of a key. A slot is only there with its account, all the time
    /// that is to come.
    fn see(&mut self, key: StateKey, value: Option<Value>) {
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

    /// Keeps slots and accounts together: an account that goes takes its slots with it, and one that
    /// came to be in a gap between two blocks is made when a slot of it is first written.
    fn settle_accounts(
        &self,
        pre: &BTreeMap<StateKey, Option<Value>>,
        writes: &mut BTreeMap<StateKey, Option<Value>>,
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

    /// The trace, on a padded state.
    pub(super) fn build(self, padding: Padding) -> Trace {
        let entry = |(key, value): (StateKey, Option<Value>)| Some((key, value?));
        let base = self.base.into_iter().filter_map(entry).collect();
        Trace { base, padding, blocks: self.blocks }
    }
}
