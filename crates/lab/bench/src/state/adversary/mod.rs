//! Attacks on state stores: keys and commits that an attacker can write, or make others write, to
//! slow a node down.
//!
//! Each [`AttackKind`] is a workload. Beside it runs a *baseline*: the same number of plain
//! operations on the plain state. So a report states for every store the cost of the attack,
//! independent of the machine.
//!
//! * **The plain state** has the same number of accounts and slots; all slots are in one contract.
//!   It models users and a token. The plain operation reads and writes a random key of it.
//! * An attack changes one thing: the additional keys, the written keys, the lengths of their
//!   values, or the division of operations into commits. In everything else its baseline is equal:
//!   if an attack is on few keys, the baseline writes equally few.
//! * Keys are ground for **Ethereum's trie**, whose hashes are public and have no salt. Every store
//!   gets the same keys, whichever hash function it uses.

mod grind;
mod scenario;

pub use grind::PathDepth;
pub(super) use grind::{GroundKeyKind, KeyGrinding};
pub use scenario::AttackScenario;
pub(super) use scenario::TOKEN;

use std::fmt;

/// The kind of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackKind {
    /// Accounts and slots whose hashes share long prefixes with other keys, which make a branch at
    /// every nibble. So their paths in Ethereum's trie are as long as the given amount of grinding
    /// allows.
    GroundKeys,
    /// A contract with very many slots.
    BigContract,
    /// Commits of a few operations.
    TinyBlocks,
    /// Ten empty commits after each commit with operations.
    EmptyBlocks,
    /// One slot is written repeatedly, in commits of a few operations, so that it has a version in
    /// each.
    OneSlot,
    /// Ranges of neighbouring slots are removed and set again, with values of 1 to 32 bytes, in
    /// commits of very different sizes. So pages become empty, and new data rarely fits freed
    /// pages.
    Churn,
}

impl AttackKind {
    /// All attacks.
    pub const ALL: [Self; 6] = [
        Self::GroundKeys,
        Self::BigContract,
        Self::TinyBlocks,
        Self::EmptyBlocks,
        Self::OneSlot,
        Self::Churn,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GroundKeys => "ground-keys",
            Self::BigContract => "big-contract",
            Self::TinyBlocks => "tiny-blocks",
            Self::EmptyBlocks => "empty-blocks",
            Self::OneSlot => "one-slot",
            Self::Churn => "churn",
        }
    }

    /// The attack with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attack| attack.name() == name)
    }
}

impl fmt::Display for AttackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
