//! The work that a workload needs, whatever store does it.

use super::trie::HashWork;
use std::{
    collections::BTreeMap,
    iter::Sum,
    ops::{Add, AddAssign},
};

/// Bytes of a changed key and its value, where a workload counts keys alone: an address and a small
/// account. A slot has more.
pub const CHANGED_KEY_BYTES: u64 = 32;

/// The work that a workload needs, whatever store does it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NeededWork {
    /// Keys looked up in memory.
    pub lookups: u64,
    /// Signatures whose sender is recovered.
    pub signatures: u64,
    /// Gas executed, by the name of the mix of transactions. A mix that was not measured costs what
    /// the cheapest measured one does.
    pub gas: BTreeMap<String, u64>,
    /// Nodes of tries hashed; none for stores without Ethereum's root.
    pub hashes: HashWork,
    /// Durable commits, one after the other.
    pub commits: u64,
    /// Bytes written durably.
    pub bytes: u64,
    /// Pages read from the disk.
    pub pages: f64,
}

impl NeededWork {
    /// Execution of transactions whose senders are known.
    pub fn executing(mix: impl Into<String>, gas: u64) -> Self {
        Self { gas: BTreeMap::from([(mix.into(), gas)]), ..Self::default() }
    }
}

impl AddAssign<&Self> for NeededWork {
    fn add_assign(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.signatures += other.signatures;
        for (mix, gas) in &other.gas {
            *self.gas.entry(mix.clone()).or_default() += gas;
        }
        self.hashes += other.hashes;
        self.commits += other.commits;
        self.bytes += other.bytes;
        self.pages += other.pages;
    }
}

impl Add<&Self> for NeededWork {
    type Output = Self;

    fn add(mut self, other: &Self) -> Self {
        self += other;
        self
    }
}

impl<'a> Sum<&'a Self> for NeededWork {
    fn sum<I: Iterator<Item = &'a Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
