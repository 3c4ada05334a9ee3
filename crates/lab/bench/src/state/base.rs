//! The state before the first block.

use super::{
    adversary::AttackScenario,
    real::AccessTrace,
    trace::RecordedTrace,
    workload::{KeyLayout, SLOTS_PER_ACCOUNT},
};
use crate::random::{SplitMix64, numbered, slot_value};
use alloy_primitives::{Address, B256, Bytes, U256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, StateValue};
use std::sync::Arc;

/// The one contract of [`KeyLayout::OneContract`].
const CONTRACT: Address = Address::repeat_byte(0x57);

/// The state before the first block, by the data from which it is made.
#[derive(Clone, Debug)]
pub enum StateBase {
    /// Random slots.
    Random(RandomBase),
    /// The keys that the blocks of a trace read, and padding.
    Real(Arc<AccessTrace>),
    /// What the blocks of a trace file find, and padding.
    Trace(Arc<RecordedTrace>),
    /// The state of an attack or of its baseline.
    Adversary(Arc<AttackScenario>),
}

/// Random slots in contracts with random addresses.
#[derive(Clone, Copy, Debug)]
pub struct RandomBase {
    /// Number of slots.
    pub(super) keys: u64,
    pub(super) contracts: u64,
    pub(super) layout: KeyLayout,
    pub(super) seed: u64,
}

/// All entries of a state in key order.
#[derive(Debug)]
pub enum SortedEntries {
    /// Keys and their numbers, from which values are derived on access: 64 bytes per entry in
    /// memory.
    Random(RandomBase, Vec<(StateKey, u32)>),
    /// The same for an attack.
    Adversary(Arc<AttackScenario>, Vec<(StateKey, u32)>),
    /// Keys and values of real blocks.
    Real(Arc<AccessTrace>, Vec<(StateKey, StateValue)>),
    /// Keys and values of a trace file.
    Trace(Arc<RecordedTrace>, Vec<(StateKey, StateValue)>),
    /// Keys and values.
    Listed(Vec<(StateKey, StateValue)>),
}

impl SortedEntries {
    /// Number of entries.
    pub const fn len(&self) -> usize {
        match self {
            Self::Random(_, keys) | Self::Adversary(_, keys) => keys.len(),
            Self::Real(_, entries) | Self::Trace(_, entries) | Self::Listed(entries) => {
                entries.len()
            }
        }
    }

    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at index `at`.
    pub fn get(&self, at: usize) -> Option<(StateKey, StateValue)> {
        match self {
            Self::Random(base, keys) => keys.get(at).map(|(key, n)| (*key, base.value(key, *n))),
            Self::Adversary(scene, keys) => {
                keys.get(at).map(|(key, n)| (*key, scene.entry_value(key, *n)))
            }
            Self::Real(_, entries) | Self::Trace(_, entries) | Self::Listed(entries) => {
                entries.get(at).cloned()
            }
        }
    }

    /// The codes, by keccak-256, that accounts have before the first block or after a later one.
    pub fn codes(&self) -> impl Iterator<Item = (&B256, &Bytes)> {
        let codes = match self {
            Self::Real(trace, _) => Some(trace.codes()),
            Self::Trace(trace, _) => Some(trace.codes()),
            Self::Random(..) | Self::Adversary(..) | Self::Listed(_) => None,
        };
        codes.into_iter().flatten()
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (StateKey, StateValue)> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl StateBase {
    /// A name for the content, valid as a file name. The number at its end is the version of the
    /// rules by which the state is made.
    pub fn name(&self) -> String {
        match self {
            Self::Random(base) => base.name(),
            Self::Real(trace) => trace.base_name(),
            Self::Trace(trace) => trace.base_name(),
            Self::Adversary(scene) => scene.base_name(),
        }
    }

    /// All entries of the state.
    pub fn entries(&self) -> SortedEntries {
        match self {
            Self::Random(base) => SortedEntries::Random(*base, base.sorted_keys()),
            Self::Real(trace) => SortedEntries::Real(trace.clone(), trace.base_entries()),
            Self::Trace(trace) => SortedEntries::Trace(trace.clone(), trace.base_entries()),
            Self::Adversary(scene) => SortedEntries::Adversary(scene.clone(), scene.sorted_keys()),
        }
    }
}

impl RandomBase {
    fn name(&self) -> String {
        let layout = match self.layout {
            KeyLayout::OneContract => "one-contract",
            KeyLayout::Accounts => "accounts",
        };
        format!("{}-keys-{layout}-{}-seed-{}-v1", self.keys, self.contracts, self.seed)
    }

    /// All state keys in order, with the numbers of slots.
    fn sorted_keys(&self) -> Vec<(StateKey, u32)> {
        let accounts = (0..self.contracts).map(|n| (StateKey::Account(self.contract(n)), 0));
        let mut keys: Vec<_> = accounts.collect();
        // The number fits, because `StoreWorkload::check` limits it.
        keys.par_extend((0..self.keys as u32).into_par_iter().map(|n| (self.key(n.into()), n)));
        keys.par_sort_unstable();
        keys
    }

    fn value(&self, key: &StateKey, n: u32) -> StateValue {
        match key {
            StateKey::Account(_) => {
                Account { nonce: 1, balance: U256::from(1), ..Default::default() }.encode()
            }
            StateKey::Slot(..) => self.slot(n.into()),
        }
    }

    /// The value of the `n`th key before the first block; `None` if it is not preloaded.
    pub(super) fn preloaded(&self, n: u64) -> Option<StateValue> {
        (n < self.keys).then(|| self.slot(n))
    }

    fn slot(&self, n: u64) -> StateValue {
        slot_value(&mut SplitMix64::new(self.seed ^ (n << 32 | 0x5eed)))
    }

    /// The `n`th key.
    pub(super) fn key(&self, n: u64) -> StateKey {
        let slot = B256::from(numbered(b'k', self.seed, n));
        let contract = match self.layout {
            KeyLayout::OneContract => CONTRACT,
            KeyLayout::Accounts => self.contract(n / SLOTS_PER_ACCOUNT),
        };
        StateKey::Slot(contract, slot)
    }

    fn contract(&self, n: u64) -> Address {
        match self.layout {
            KeyLayout::OneContract => CONTRACT,
            KeyLayout::Accounts => Address::from_slice(&numbered(b'a', self.seed, n)[..20]),
        }
    }
}
