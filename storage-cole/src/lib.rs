//! COLE, the column-based learned storage of Zhang et al. (FAST 2024), as a backend: all versions
//! of a state key are stored side by side, in immutable runs that learned models index.
//!
//! # Vocabulary
//!
//! * **Pair**: a compound key <state key, block> with a value, or with none (a deletion). Pairs are
//!   ordered by key, then by block, and never change.
//! * **Memory level**: the newest pairs, in two MB-trees (Merkle B+-trees). Each of the two
//!   **groups** holds about B pairs before it is flushed.
//! * **Run**: an immutable sorted set of pairs on disk, in four files: **values**, **index**
//!   (learned models that predict pages), **merkle** (m-ary trees), **filter** (blocked Bloom
//!   filter).
//! * **Version tree** (COLE+): in a run of a store that has them, the tree over the versions of a key.
//!   The tree of the run is then one over keys.
//! * **Level**: up to T runs of one size in the **writing** group, and the runs that are being
//!   merged into a run of the next level, in the **merging** group.
//! * **Checkpoint**: the end of a block after which a group is full. At a checkpoint the run that
//!   the last checkpoint started is committed, the groups change roles, and the next run is
//!   started. COLE* makes runs in the background between checkpoints, COLE during the block.
//! * **Source**: a group in memory or a run, as the root and proofs see it.
//! * **Horizon**: the oldest block whose state can be read, because merges drop old versions.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> pairs -> rows of the block, MB-tree -> full? -> commit, swap, start -> root
//!                                                           run files  |
//!                                                  jobs: flush, merge <-'
//! ```
//!
//! What is stored, what a proof shows, and why it is sound: `docs/backends/cole.md`.
//!
//! # Assumptions
//!
//! * BLAKE2b-256 is collision resistant.
//! * Files that were fsynced and renamed are whole. No other process writes to them.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash`, `shown_tree`, `filter`, `multi_proof` | hashes under the root; trees in proofs; Bloom filters; multi-proofs |
//! | `params`, `descriptor` | parameters; flags and registration |
//! | `memory` | the memory level, whole or compacted |
//! | `run` | runs: files, learned models, trees, merges; [`ComparedRun`], to measure the index |
//! | `levels` | the memory level and the runs; checkpoints and jobs |
//! | `state` | the structure in memory of a block's state |
//! | `record` | row encodings: pairs in memory, manifest |
//! | `backend` | the implementation of `Backend` |
//! | `apply` | applying a delta, bulk load, removing old rows |
//! | `scan`, `check` | keys in order; the check of everything for `db verify` |
//! | `prove`, `wire`, [`verify()`] | making proofs; their bytes; checking proofs: pure, `no_std` |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod filter;
mod hash;
mod multi_proof;
mod params;
mod shown_tree;
mod verify;
mod wire;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod levels;
#[cfg(feature = "std")]
mod memory;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod run;
#[cfg(feature = "std")]
mod scan;
#[cfg(feature = "std")]
mod state;

#[cfg(feature = "std")]
pub use backend::Cole;
#[cfg(feature = "std")]
pub use run::{ComparedRun, PageSearch, PagesRead, RunPair};
#[cfg(feature = "std")]
pub use state::ColeState;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
pub use params::{ColeParams, ParamsError};
pub use verify::{verify, verify_versions};
