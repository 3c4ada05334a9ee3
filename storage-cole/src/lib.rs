//! COLE, the column-based learned storage of Zhang et al. (FAST 2024), as a backend: every version of
//! every state, contiguous by state, in immutable runs that learned models index.
//!
//! # Vocabulary
//!
//! * **Pair**: a compound key <state key, block> with a value, or none (a deletion). Pairs are
//!   ordered by key, then block, and never change.
//! * **Memory level**: an MB-tree (B+-tree with digests) of the youngest pairs, whose **groups** hold
//!   B pairs and then are flushed.
//! * **Run**: an immutable sorted set of pairs on disk, in four files: **values**, **index** (models
//!   that predict pages), **merkle** (m-ary trees), **filter** (blocked Bloom filter).
//! * **Level**: up to T runs of one size in its **writing** group, and those that are being merged
//!   into a run of the next level in its **merging** group.
//! * **Checkpoint**: the end of a block at which a group is full. The work that was started at the
//!   one before is committed, the groups change roles, the next work starts. COLE* does the work in
//!   between in the background, COLE at once.
//! * **Source**: a group in memory or a run, as the root and proofs see it.
//! * **Horizon**: the oldest block whose state can be read, where merges drop old versions.
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
//! BLAKE2b-256 is collision resistant. Files that were fsynced and renamed are whole; nobody else
//! writes to them.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash`, `tree`, `filter`, `multi` | hashes under the root; parts of trees; where filters look; multi-proofs |
//! | `params`, `descriptor` | parameters; flags, and what lists of backends have of it |
//! | `memory` | the memory level; thinned, that of older blocks |
//! | `run` | runs: files, models, trees, merging |
//! | `levels` | the memory level and the runs; checkpoints and jobs |
//! | `state` | the structure of a block's state: levels, and which blocks there are |
//! | `row` | rows: pairs in memory, manifest |
//! | `backend`, `apply`, `scan`, `check` | the backend; one block; keys in order; the check of everything |
//! | `proof`, `wire`, [`verify()`] | building proofs; their bytes; checking them: pure, `no_std` |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod filter;
mod hash;
mod multi;
mod params;
mod tree;
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
mod proof;
#[cfg(feature = "std")]
mod row;
#[cfg(feature = "std")]
mod run;
#[cfg(feature = "std")]
mod scan;
#[cfg(feature = "std")]
mod state;

#[cfg(feature = "std")]
pub use backend::Cole;
#[cfg(feature = "std")]
pub use state::State;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
pub use params::{Params, ParamsError};
pub use verify::{verify, verify_versions};
