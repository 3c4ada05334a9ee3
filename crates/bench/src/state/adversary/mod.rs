//! Attacks on state stores: what somebody writes, or makes others write, to slow a node down.
//!
//! Each [`Attack`] is a workload, and beside it runs a *baseline*: as many operations of the plain kind
//! on the plain state. So a report says of every store what the attack costs it, whatever the machine.
//!
//! * **The plain state** has as many accounts as it has slots, and the slots are those of one contract:
//!   people, and a token. The plain operation reads a random one of them and writes it.
//! * An attack changes one thing: which keys are there beside these, which are written, how long their
//!   values are, or how the operations are cut into commits. Whatever else it is, its baseline is too:
//!   where few keys are attacked, equally few are written in the baseline.
//! * Keys are ground against **Ethereum's trie**, whose hashes are public and have no salt. Every store
//!   gets the same keys, whatever it hashes.

mod grind;
mod scene;

pub use grind::Depth;
pub(super) use grind::{Grinding, Kind};
pub use scene::Scene;
pub(super) use scene::TOKEN;

use std::fmt;

/// What is done to the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Accounts and slots whose hashes share long prefixes, with others that make a branch at every
    /// nibble of them: paths in Ethereum's trie as long as so much grinding makes them.
    GroundKeys,
    /// A contract of very many slots.
    BigContract,
    /// Commits of a few operations.
    TinyBlocks,
    /// Ten commits that change nothing after each that does.
    EmptyBlocks,
    /// One slot written again and again, in commits of a few operations, so that it has a version in
    /// each.
    OneSlot,
    /// Runs of neighbouring slots removed and set again, with values of 1 to 32 bytes, in commits of
    /// very different sizes: pages empty, and what is written into freed pages never has the size of
    /// what was there.
    Churn,
}

impl Attack {
    /// All of them.
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

    /// The one called so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attack| attack.name() == name)
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
