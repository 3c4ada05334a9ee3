//! The workload: which keys there are, what is preloaded, and the stream of pairs. All of it follows
//! from the seed.

use crate::BenchError;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use rayon::prelude::*;
use retrie_state::{Account, StateKey, Value};
use serde::Serialize;

/// How many slots a contract has under [`Layout::Accounts`].
pub const SLOTS_PER_ACCOUNT: u64 = 100;

/// The one contract of [`Layout::OneContract`].
const CONTRACT: Address = Address::repeat_byte(0x57);

/// How keys of 32 bytes become state keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Every key is a slot of one contract: one large flat key space, as in the LVMT paper.
    #[default]
    OneContract,
    /// [`SLOTS_PER_ACCOUNT`] slots a contract: many small storages, and an account trie above.
    Accounts,
}

/// The keys at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// This many keys are preloaded; each pair reads and writes one of them.
    Preloaded(u64),
    /// None; each pair reads a new key, which is absent, and writes it.
    Fresh,
}

impl std::fmt::Display for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Preloaded(keys) => write!(f, "{keys}"),
            Self::Fresh => f.write_str("fresh"),
        }
    }
}

/// One variant of the workload: random pairs (read, then write) on a preloaded state.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The keys at the start.
    pub keys: Keys,
    /// Pairs measured.
    pub pairs: u64,
    /// Pairs a commit.
    pub commit_every: u64,
    /// Pairs before the measured ones.
    pub warmup: u64,
    /// Into how many slices the measured pairs are cut.
    pub slices: u64,
    /// How keys become state keys.
    pub layout: Layout,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

/// A read of `key`, then a write of `next` to it.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The key.
    pub key: StateKey,
    /// Its new value.
    pub next: Value,
}

impl Workload {
    /// Refuses what cannot be run, naming the flag.
    pub fn check(&self) -> Result<(), BenchError> {
        let refuse = |what: String| Err(BenchError::Workload { what });
        if let Keys::Preloaded(keys) = self.keys
            && !(1..u64::from(u32::MAX)).contains(&keys)
        {
            return refuse(format!(
                "--keys must lie between 1 and {}, or be `fresh`",
                u32::MAX - 1
            ));
        }
        if self.pairs == 0 || self.commit_every == 0 {
            return refuse("--pairs and --commit-every must be 1 at least".into());
        }
        if !(1..=self.commits()).contains(&self.slices) {
            return refuse(format!(
                "--slices must lie between 1 and {}, the number of measured commits",
                self.commits()
            ));
        }
        Ok(())
    }

    /// Number of measured commits; the last one may be short.
    pub fn commits(&self) -> u64 {
        self.pairs.div_ceil(self.commit_every.max(1))
    }

    /// What the preloaded state depends on.
    pub fn base(&self) -> Base {
        let keys = match self.keys {
            Keys::Preloaded(keys) => keys,
            Keys::Fresh => 0,
        };
        // The contracts of keys to come are there from the start: only slots are inserted.
        let contracts = match (self.layout, self.keys) {
            (Layout::OneContract, _) => 1,
            (Layout::Accounts, Keys::Preloaded(keys)) => keys.div_ceil(SLOTS_PER_ACCOUNT),
            (Layout::Accounts, Keys::Fresh) => {
                (self.warmup + self.pairs).div_ceil(SLOTS_PER_ACCOUNT)
            }
        };
        Base { keys, contracts, layout: self.layout, seed: self.seed }
    }

    /// Up to `count` keys that have a value at the end, spread evenly, and as many that never had
    /// one.
    pub fn keys_to_prove(&self, count: u64) -> [Vec<StateKey>; 2] {
        let base = self.base();
        let all = match self.keys {
            Keys::Preloaded(keys) => keys,
            Keys::Fresh => self.warmup + self.pairs,
        };
        let count = count.min(all);
        let present = (0..count).map(|n| base.key(n * all / count));
        [present.collect(), (all..all + count).map(|n| base.key(n)).collect()]
    }

    /// The stream of blocks, warm-up first.
    pub fn stream(&self) -> BlockStream<'_> {
        BlockStream { workload: self, random: Random(self.seed), next_key: 0 }
    }
}

/// The state before the first pair.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// Number of slots.
    pub keys: u64,
    contracts: u64,
    layout: Layout,
    seed: u64,
}

impl Base {
    /// A name for what it depends on, fit for a file name. The number at its end is the version of
    /// this module's rules.
    pub fn name(&self) -> String {
        let layout = match self.layout {
            Layout::OneContract => "one-contract",
            Layout::Accounts => "accounts",
        };
        format!("{}-keys-{layout}-{}-seed-{}-v1", self.keys, self.contracts, self.seed)
    }

    /// All state keys in order, slots with their number. 64 bytes a key in memory.
    pub fn sorted_keys(&self) -> Vec<(StateKey, u32)> {
        let accounts = (0..self.contracts).map(|n| (StateKey::Account(self.contract(n)), 0));
        let mut keys: Vec<_> = accounts.collect();
        // The number fits: `Workload::check` has seen to it.
        keys.par_extend((0..self.keys as u32).into_par_iter().map(|n| (self.key(n.into()), n)));
        keys.par_sort_unstable();
        keys
    }

    /// The value of a [sorted key](Self::sorted_keys).
    pub fn value(&self, key: &StateKey, n: u32) -> Value {
        match key {
            StateKey::Account(_) => {
                Account { nonce: 1, balance: U256::from(1), ..Default::default() }.encode()
            }
            StateKey::Slot(..) => Random(self.seed ^ (u64::from(n) << 32 | 0x5eed)).value(),
        }
    }

    /// The `n`th key.
    fn key(&self, n: u64) -> StateKey {
        let slot = B256::from(self.hash(b'k', n));
        let contract = match self.layout {
            Layout::OneContract => CONTRACT,
            Layout::Accounts => self.contract(n / SLOTS_PER_ACCOUNT),
        };
        StateKey::Slot(contract, slot)
    }

    fn contract(&self, n: u64) -> Address {
        match self.layout {
            Layout::OneContract => CONTRACT,
            Layout::Accounts => Address::from_slice(&self.hash(b'a', n)[..20]),
        }
    }

    fn hash(&self, domain: u8, n: u64) -> [u8; 32] {
        let mut input = [domain; 17];
        input[1..9].copy_from_slice(&self.seed.to_be_bytes());
        input[9..].copy_from_slice(&n.to_be_bytes());
        keccak256(input).0
    }
}

/// Blocks of pairs, made as they are asked for.
#[derive(Clone, Debug)]
pub struct BlockStream<'a> {
    workload: &'a Workload,
    random: Random,
    next_key: u64,
}

impl BlockStream<'_> {
    /// The next `pairs` pairs, cut into commits.
    pub fn take(&mut self, pairs: u64) -> Vec<Vec<Pair>> {
        let every = self.workload.commit_every;
        let base = self.workload.base();
        (0..pairs.div_ceil(every))
            .map(|n| {
                let len = every.min(pairs - n * every);
                (0..len)
                    .map(|_| Pair { key: base.key(self.choose()), next: self.random.value() })
                    .collect()
            })
            .collect()
    }

    fn choose(&mut self) -> u64 {
        match self.workload.keys {
            Keys::Preloaded(keys) => self.random.next() % keys,
            Keys::Fresh => {
                self.next_key += 1;
                self.next_key - 1
            }
        }
    }
}

/// A reproducible stream of numbers (splitmix64).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 32 bytes without a leading zero, as slot values are stored.
    fn value(&mut self) -> Value {
        let mut value = B256::ZERO;
        for word in value.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_be_bytes());
        }
        value[0] |= 1;
        Bytes::copy_from_slice(value.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn workload(keys: Keys, layout: Layout) -> Workload {
        Workload { keys, pairs: 950, commit_every: 100, warmup: 50, slices: 3, layout, seed: 7 }
    }

    #[test]
    fn preloaded_state_is_sorted_and_has_every_key_of_the_stream() {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(Keys::Preloaded(550), layout);
            let base = workload.base();
            let sorted = base.sorted_keys();
            assert!(sorted.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let contracts = if layout == Layout::OneContract { 1 } else { 6 };
            assert_eq!(sorted.len(), 550 + contracts);
            let keys: BTreeSet<_> = sorted.iter().map(|(key, _)| *key).collect();
            let blocks = workload.stream().take(950);
            assert_eq!((blocks.len(), blocks[9].len()), (10, 50));
            assert!(blocks.iter().flatten().all(|pair| keys.contains(&pair.key)));
            assert!(keys.iter().all(|key| keys.contains(&StateKey::Account(*key.address()))));
            for (key, n) in sorted {
                let value = base.value(&key, n);
                match key {
                    StateKey::Account(_) => assert!(Account::decode(&value).is_some()),
                    StateKey::Slot(..) => assert!(value.len() == 32 && value[0] != 0),
                }
            }
        }
    }

    #[test]
    fn fresh_keys_are_new_and_their_contracts_known() {
        for layout in [Layout::OneContract, Layout::Accounts] {
            let workload = workload(Keys::Fresh, layout);
            let sorted = workload.base().sorted_keys();
            let known: BTreeSet<_> = sorted.iter().map(|(key, _)| *key).collect();
            let mut stream = workload.stream();
            let mut blocks = stream.take(50);
            blocks.extend(stream.take(950));
            let keys: BTreeSet<_> = blocks.iter().flatten().map(|pair| pair.key).collect();
            assert_eq!(keys.len(), 1000);
            assert!(known.is_disjoint(&keys));
            assert!(keys.iter().all(|key| known.contains(&StateKey::Account(*key.address()))));
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let good = workload(Keys::Preloaded(10), Layout::OneContract);
        assert!(good.check().is_ok());
        let refused = [
            Workload { keys: Keys::Preloaded(0), ..good.clone() },
            Workload { keys: Keys::Preloaded(1 << 32), ..good.clone() },
            Workload { pairs: 0, ..good.clone() },
            Workload { commit_every: 0, ..good.clone() },
            Workload { slices: 0, ..good.clone() },
            Workload { slices: 11, ..good },
        ];
        for workload in refused {
            assert!(workload.check().is_err(), "{workload:?}");
        }
    }
}
