//! LVMT, the multi-layer versioned multipoint trie of Li et al. (OSDI 2023), as a backend: a write
//! raises a version by one, and a commitment to versions follows by adding one precomputed point.
//!
//! # Vocabulary
//!
//! * **AMT**: authenticated multipoint evaluation tree, a commitment (one point of BN254's G1) to
//!   2^16 **entries** of six **slots**. A slot holds a **version** of 40 bits: slot 0 that of the
//!   sub-AMT below the entry, slots 1 to 5 those of keys.
//! * **Location** of a key: its hash; 16 bits a level choose an entry. **Way**: the entries passed
//!   from the root AMT down.
//! * **Tuple**: (key, version, value, level, slot), or (sub-AMT, version, commitment). Tuples are
//!   the leaves of a block's Merkle tree; the blocks' trees are the leaves of the **range**.
//! * **Root**: hash of the root AMT's commitment and the range.
//! * **Opening**: a proof of an entry's six versions, by the **quotients** of the nodes above it in
//!   the AMT's proof tree.
//! * **Proof shard**: the part of proof tree and Merkle trees that a node keeps.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> slot and new version of each key -> points to add, for all AMTs of all levels
//!             |                                      | one batch
//!             v                                      v
//!           records (rows)          tuples -> Merkle tree -> range -> root
//! ```
//!
//! What is stored, what a proof shows, and why it is sound: `docs/backends/lvmt.md`.
//!
//! # Assumptions
//!
//! BLAKE2b-256 is collision resistant. The public parameters come from powers of a tau that nobody
//! knows, and opening a commitment to two values is infeasible under them. Heights below 16 are for
//! tests.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash` | every hash, by domain |
//! | `point` | points, and the sum of many |
//! | `amt` | the mathematics of AMTs: domain, commitments, quotients |
//! | `params` | public parameters: the verifier's, tables, files, ceremonies |
//! | `descriptor` | flags, and what lists of backends have of it |
//! | `merkle` | trees in groups of 32, pruned groups, multi-proofs, the range |
//! | `record`, `second` | rows; those of the second level, and its array in memory |
//! | `state`, `tree` | the structure in memory; the root AMT's proof tree |
//! | `cache` | what structures in memory are made of |
//! | `backend`, `apply`, `bulk` | the backend; one block; loading a state |
//! | `collect`, `shard`, `check` | garbage collection; proof shards; the check of all rows |
//! | `proof`, [`verify()`] | building proofs, their bytes; checking them: pure, `no_std` |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod amt;
mod descriptor;
mod hash;
mod merkle;
mod params;
mod point;
mod proof;
mod verify;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod bulk;
#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod collect;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod second;
#[cfg(feature = "std")]
mod shard;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod tree;

#[cfg(feature = "std")]
pub use backend::{Lvmt, LvmtError};
#[cfg(feature = "std")]
pub use params::{FileFault, Params, ParamsError, Phase, Progress, PtauFault};
#[cfg(feature = "std")]
pub use shard::{ParseShardError, ProofShard};
#[cfg(feature = "std")]
pub use state::State;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;

pub use amt::{MAX_HEIGHT, SLOTS, VERSION_BITS};
pub use params::{Opening, VerifierParams, insecure_dev_tau};
pub use point::Point;
pub use proof::combine;
pub use verify::verify;
