//! The state before the first block.

use super::{
    adversary::Scene,
    real::Trace,
    workload::{Layout, SLOTS_PER_ACCOUNT},
};
use crate::random::{Random, numbered, slot_value};
use alloy_primitives::{Address, B256, U256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, Value};
use std::sync::Arc;

/// The one contract of [`Layout::OneContract`].
const CONTRACT: Address = Address::repeat_byte(0x57);

/// What the state before the first block depends on.
#[derive(Clone, Debug)]
pub enum Base {
    /// Random slots.
    Random(RandomBase),
    /// What the blocks of a trace find, and padding.
    Real(Arc<Trace>),
    /// That of an attack, or of its baseline.
    Adversary(Arc<Scene>),
}

/// Random slots in contracts of random addresses.
#[derive(Clone, Copy, Debug)]
pub struct RandomBase {
    /// Number of slots.
    pub(super) keys: u64,
    pub(super) contracts: u64,
    pub(super) layout: Layout,
    pub(super) seed: u64,
}

/// All entries of a state in key order.
#[derive(Debug)]
pub enum SortedEntries {
    /// Keys and their numbers, from which values are made on the way: 64 bytes an entry in memory.
    Random(RandomBase, Vec<(StateKey, u32)>),
    /// The same, of an attack.
    Adversary(Arc<Scene>, Vec<(StateKey, u32)>),
    /// Keys and values.
    Listed(Vec<(StateKey, Value)>),
}

impl SortedEntries {
    /// How many there are.
    pub const fn len(&self) -> usize {
        match self {
            Self::Random(_, keys) | Self::Adversary(_, keys) => keys.len(),
            Self::Listed(entries) => entries.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at a place in the order.
    pub fn get(&self, at: usize) -> Option<(StateKey, Value)> {
        match self {
            Self::Random(base, keys) => keys.get(at).map(|(key, n)| (*key, base.value(key, *n))),
            Self::Adversary(scene, keys) => {
                keys.get(at).map(|(key, n)| (*key, scene.entry_value(key, *n)))
            }
            Self::Listed(entries) => entries.get(at).cloned(),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (StateKey, Value)> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl Base {
    /// A name for what it depends on, fit for a file name. The number at its end is the version of
    /// the rules by which it is made.
    pub fn name(&self) -> String {
        match self {
            Self::Random(base) => base.name(),
            Self::Real(trace) => trace.base_name(),
            Self::Adversary(scene) => scene.base_name(),
        }
    }

    /// All of its entries.
    pub fn entries(&self) -> SortedEntries {
        match self {
            Self::Random(base) => SortedEntries::Random(*base, base.sorted_keys()),
            Self::Real(trace) => SortedEntries::Listed(trace.base_entries()),
            Self::Adversary(scene) => SortedEntries::Adversary(scene.clone(), scene.sorted_keys()),
        }
    }
}

impl RandomBase {
    fn name(&self) -> String {
        let layout = match self.layout {
            Layout::OneContract => "one-contract",
            Layout::Accounts => "accounts",
        };
        format!("{}-keys-{layout}-{}-seed-{}-v1", self.keys, self.contracts, self.seed)
    }

    /// All state keys in order, slots with their number.
    fn sorted_keys(&self) -> Vec<(StateKey, u32)> {
        let accounts = (0..self.contracts).map(|n| (StateKey::Account(self.contract(n)), 0));
        let mut keys: Vec<_> = accounts.collect();
        // The number fits: `Workload::check` has seen to it.
        keys.par_extend((0..self.keys as u32).into_par_iter().map(|n| (self.key(n.into()), n)));
        keys.par_sort_unstable();
        keys
    }

    fn value(&self, key: &StateKey, n: u32) -> Value {
        match key {
            StateKey::Account(_) => {
                Account { nonce: 1, balance: U256::from(1), ..Default::default() }.encode()
            }
            StateKey::Slot(..) => self.slot(n.into()),
        }
    }

    /// What the `n`th key holds before the first block, if it is one of those that are preloaded.
    pub(super) fn preloaded(&self, n: u64) -> Option<Value> {
        (n < self.keys).then(|| self.slot(n))
    }

    fn slot(&self, n: u64) -> Value {
        slot_value(&mut Random::new(self.seed ^ (n << 32 | 0x5eed)))
    }

    /// The `n`th key.
    pub(super) fn key(&self, n: u64) -> StateKey {
        let slot = B256::from(numbered(b'k', self.seed, n));
        let contract = match self.layout {
            Layout::OneContract => CONTRACT,
            Layout::Accounts => self.contract(n / SLOTS_PER_ACCOUNT),
        };
        StateKey::Slot(contract, slot)
    }

    fn contract(&self, n: u64) -> Address {
        match self.layout {
            Layout::OneContract => CONTRACT,
            Layout::Accounts => Address::from_slice(&numbered(b'a', self.seed, n)[..20]),
        }
    }
}
