//! The pairs of a run: generated in order, found by number.

use super::{IndexBenchError, measure::IndexBenchConfig};
use crate::random::{SplitMix64, slot_value};
use alloy_primitives::{Address, B256, U256};
use retrie_state::{BackendKey, EncodedKey, StateKey, StateValue};
use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
};

/// How state keys lie among all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLayout {
    /// Accounts with random addresses, as far from a line as hashed keys are.
    Random,
    /// Every second slot of ten contracts, from slot 0 on: keys on ten lines.
    Dense,
}

impl KeyLayout {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Random, Self::Dense];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Dense => "dense",
        }
    }
}

impl fmt::Display for KeyLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No layout has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout of keys `{0}`: it is random or dense")]
pub struct UnknownLayout(String);

impl FromStr for KeyLayout {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| UnknownLayout(text.into()))
    }
}

/// Contracts of the dense layout, as many as in the paper's workloads (section 8.1.2).
const CONTRACTS: u64 = 10;
/// Blocks from one version of a key to the next.
const BLOCKS_BETWEEN: u64 = 16;
/// Keys generated between two looks at the stop flag.
const LOOK: usize = 1 << 16;

/// A lookup and its answer: the block of the version found, and the value.
#[derive(Clone, Debug)]
pub(super) struct IndexLookup {
    pub(super) key: EncodedKey,
    pub(super) block: u64,
    pub(super) expected: Option<(u64, Option<StateValue>)>,
}

/// The pairs of a run: each key has the same number of versions.
#[derive(Debug)]
pub(super) struct PairSet {
    keys: u64,
    versions: u64,
    seed: u64,
    source: KeySource,
}

#[derive(Debug)]
enum KeySource {
    /// The first eight bytes of the addresses, in order.
    Random(Vec<u64>),
    /// The contracts, in order, and the number of slots of each; the last one may have fewer.
    Dense(Vec<Address>, u64),
}

impl PairSet {
    pub(super) fn new(
        config: &IndexBenchConfig,
        stop: &AtomicBool,
    ) -> Result<Self, IndexBenchError> {
        let IndexBenchConfig { keys, versions, layout, seed, .. } = *config;
        let mut random = SplitMix64::new(seed);
        let source = match layout {
            KeyLayout::Random => {
                let mut heads = Vec::with_capacity(keys as usize);
                while heads.len() < keys as usize {
                    let missing = keys as usize - heads.len();
                    heads.extend((0..missing.min(LOOK)).map(|_| random.next()));
                    if stop.load(Ordering::Relaxed) {
                        return Err(IndexBenchError::Stopped);
                    }
                    if heads.len() == keys as usize {
                        heads.sort_unstable();
                        heads.dedup();
                    }
                }
                KeySource::Random(heads)
            }
            KeyLayout::Dense => {
                let mut contracts: Vec<_> =
                    (0..CONTRACTS).map(|_| address(random.next(), seed)).collect();
                contracts.sort_unstable();
                KeySource::Dense(contracts, keys.div_ceil(CONTRACTS))
            }
        };
        Ok(Self { keys, versions, seed, source })
    }

    /// All pairs in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (EncodedKey, u64, Option<StateValue>)> {
        (0..self.keys).flat_map(move |n| {
            let key = self.key(n);
            (0..self.versions)
                .map(move |version| (key, block(n, version), Some(self.value(n, version))))
        })
    }

    /// The key number `n` in order.
    fn key(&self, n: u64) -> EncodedKey {
        match &self.source {
            KeySource::Random(heads) => self.account(heads[n as usize]),
            KeySource::Dense(contracts, slots) => {
                slot(contracts[(n / slots) as usize], 2 * (n % slots))
            }
        }
    }

    fn account(&self, head: u64) -> EncodedKey {
        BackendKey::from(StateKey::Account(address(head, self.seed))).encode()
    }

    fn value(&self, n: u64, version: u64) -> StateValue {
        slot_value(&mut SplitMix64::new(self.seed ^ (n * self.versions + version)))
    }

    /// A lookup of a random version, at a block before the next one.
    pub(super) fn present(&self, random: &mut SplitMix64) -> IndexLookup {
        let (n, version) = (random.below(self.keys), random.below(self.versions));
        let since = block(n, version);
        IndexLookup {
            key: self.key(n),
            block: since + random.below(BLOCKS_BETWEEN),
            expected: Some((since, Some(self.value(n, version)))),
        }
    }

    /// A lookup of a key without versions.
    pub(super) fn absent(&self, random: &mut SplitMix64) -> IndexLookup {
        let key = match &self.source {
            KeySource::Random(heads) => {
                let mut head = random.next();
                while heads.binary_search(&head).is_ok() {
                    head = random.next();
                }
                self.account(head)
            }
            KeySource::Dense(contracts, slots) => {
                let contract = contracts[random.index(contracts)];
                slot(contract, 2 * random.below(*slots) + 1)
            }
        };
        IndexLookup { key, block: u64::MAX, expected: None }
    }
}

/// The block of a version of key number `n`.
const fn block(n: u64, version: u64) -> u64 {
    1 + n % BLOCKS_BETWEEN + version * BLOCKS_BETWEEN
}

/// The address that begins with these eight bytes.
fn address(head: u64, seed: u64) -> Address {
    let mut random = SplitMix64::new(head ^ seed);
    let mut bytes = [0; 24];
    for (word, out) in [head, random.next(), random.next()].iter().zip(bytes.chunks_exact_mut(8)) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    Address::from_slice(&bytes[..20])
}

fn slot(contract: Address, number: u64) -> EncodedKey {
    let slot = B256::from(U256::from(number));
    BackendKey::from(StateKey::Slot(contract, slot)).encode()
}
