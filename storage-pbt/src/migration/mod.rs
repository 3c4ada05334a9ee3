//! The offline migration of EIP-8347: the files that a node reads to get the partitioned tree of an
//! *anchor*, a final block, and the check that they are right.
//!
//! # Vocabulary
//!
//! * **Preimage file**: all addresses and slots of a state. [`PreimageReader`], [`PreimageWriter`].
//! * **Snapshot**: all leaves of a tree, in one of three layouts. [`SnapshotReader`],
//!   [`SnapshotWriter`], [`SnapshotLayout`].
//! * **Digest**: keccak-256 of a file. One state has one file of each kind and layout, byte for byte.
//!   [`FileDigest`].
//! * **Dual check**: the leaves have the root that the snapshot claims, and the same state as
//!   Ethereum's trie has the state root of the anchor's header. [`DualCheck`].
//!
//! ```text
//!  entries, codes --> StateExport --> preimage file ---.
//!                                 '-> snapshot --------+--> DualCheck --> CheckedState
//!                                      header's root --'                  entries, codes
//! ```
//!
//! # The dual check
//!
//! Leaves come in the order of BLAKE3 hashes, Ethereum's trie needs that of keccak-256. What has to come
//! in another order goes through a sorter (`BulkSorter`), so memory is bounded.
//!
//! ```text
//!  preimages --sorted by leaf--> wanted leaves --.
//!  snapshot: headers, storages ------------------+--join--> accounts, slots --sorted--> state root
//!      |     headers --> code hash, size --sorted--> groups of chunks --.
//!      |     chunks ----------------------------------------------------+--join--> codes, checked
//!      '---> root of the leaves
//! ```
//!
//! # Assumptions
//!
//! The caller trusts the state root. Everything else is proven by it: no file can be wrong in a way that
//! passes, unless keccak-256 or the hash of the tree has a collision. Files that fail leave nothing
//! behind; the caller uses a [`CheckedState`] or nothing.

mod check;
mod code;
mod error;
mod export;
mod file;
mod leaf;
mod mpt;
mod preimages;
mod snapshot;
#[cfg(test)]
mod tests;

pub use check::{CheckedState, DualCheck};
pub use error::MigrationError;
pub use export::{CodeLookup, LeafSet, StateExport};
pub use file::{FileDigest, FilePlace, MigrationFile};
pub use leaf::{TreeKey, TreeLeaf};
pub use preimages::{Preimage, PreimageReader, PreimageWriter};
pub use snapshot::{
    GroupCounts, SnapshotLayout, SnapshotReader, SnapshotSummary, SnapshotTotals, SnapshotWriter,
};

use crate::hash::TreeHash;
use retrie_state::BulkSorter;
use std::fmt;

/// What the work needs from its caller.
pub struct MigrationContext<'a> {
    /// The hash function of the tree.
    pub hash: TreeHash,
    /// Makes sorters, whose memory is bounded. Up to four are in use at a time.
    pub sorters: &'a dyn Fn() -> Box<dyn BulkSorter>,
    /// Is told now and then how far the work is; the work stops if it returns false.
    pub watch: &'a mut dyn FnMut(MigrationProgress) -> bool,
}

impl fmt::Debug for MigrationContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigrationContext").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// How far the work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationProgress {
    /// What is counted.
    pub step: MigrationStep,
    /// How many so far.
    pub done: u64,
}

/// A step of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// Entries of the state are read.
    Entries,
    /// Preimages are read, or written.
    Preimages,
    /// Leaves of the snapshot are read, or written.
    Leaves,
    /// Codes are put together.
    Codes,
    /// Entries are hashed as Ethereum's trie.
    Hashing,
}

impl fmt::Display for MigrationStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Entries => "entries of the state",
            Self::Preimages => "preimages",
            Self::Leaves => "leaves",
            Self::Codes => "codes",
            Self::Hashing => "entries hashed",
        })
    }
}

/// Records between two calls of [`MigrationContext::watch`].
const WATCH_EVERY: u64 = 1 << 12;

impl MigrationContext<'_> {
    /// Tells how many are done, now and then.
    fn tell(&mut self, step: MigrationStep, done: u64) -> Result<(), MigrationError> {
        let is_due = done.is_multiple_of(WATCH_EVERY);
        if is_due && !(self.watch)(MigrationProgress { step, done }) {
            return Err(MigrationError::Stopped);
        }
        Ok(())
    }

    fn sorter(&self) -> Box<dyn BulkSorter> {
        (self.sorters)()
    }
}

/// Checks that a record follows the one before it.
fn check_order<T: Ord>(
    place: FilePlace,
    last: Option<T>,
    next: T,
    key: impl FnOnce() -> String,
) -> Result<(), MigrationError> {
    match last.map(|last| last.cmp(&next)) {
        None | Some(std::cmp::Ordering::Less) => Ok(()),
        Some(std::cmp::Ordering::Equal) => Err(MigrationError::Duplicate { place, key: key() }),
        Some(std::cmp::Ordering::Greater) => Err(MigrationError::Order { place, key: key() }),
    }
}
