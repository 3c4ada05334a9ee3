//! LVMT, the multi-layer versioned multipoint trie of Li et al. (OSDI 2023), as a backend: a write
//! raises a version by one, and the commitment to all versions follows by adding one precomputed
//! point.
//!
//! # Vocabulary
//!
//! * **AMT**: authenticated multipoint evaluation tree, a commitment (one point of BN254's G1) to
//!   2^16 **entries** of six **slots**. A slot holds a **version** of 40 bits: slot 0 the version
//!   of the sub-AMT below the entry, slots 1 to 5 the versions of keys.
//! * **Location** of a key: its hash; each 16 bits choose the entry of one level. **Path**: the
//!   entries from the root AMT down (`EntryPath`).
//! * **Tuple**: (key, version, value, level, slot), or (sub-AMT, version, commitment). Tuples are
//!   the leaves of a block's Merkle tree; the tops of the blocks' trees are the leaves of the
//!   append-only tree over all blocks, the **range**.
//! * **Root**: the hash of the root AMT's commitment and the range.
//! * **Opening**: a proof of an entry's six versions, by the **quotients** of the nodes above the
//!   entry in the AMT's **proof tree**.
//! * **Proof shard**: the part of the proof tree and of the Merkle trees that a node keeps.
//! * **Second level**: the sub-AMTs right below the root AMT. Each block logs its changes there.
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
//! * BLAKE2b-256 is collision resistant.
//! * The public parameters are powers of a secret tau that all participants of the ceremony have
//!   deleted. Under them it is infeasible to open a commitment to two values.
//! * Heights below 16 are for tests.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash` | every hash, by domain |
//! | `point` | points of G1, and sums of many points |
//! | `amt` | the mathematics of AMTs: domain, commitments, quotients |
//! | `params` | public parameters: the verifier's part, tables, files, ceremonies |
//! | `descriptor` | flags and registration of the backend |
//! | `merkle` | Merkle trees in groups of 32, pruned groups, multi-proofs, the range |
//! | `record` | row encodings |
//! | `second_level` | rows of the second level |
//! | `state` | a block's state in memory |
//! | `proof_tree`, `sub_trees` | the proof trees of the root AMT and of the second level |
//! | `cache`, `state_array` | arrays that share chunks, records read before; arrays that all states share |
//! | `entries` | the entries of AMTs, read from rows |
//! | `backend` | the implementation of `Backend` |
//! | `apply`, `load` | applying a delta; bulk load |
//! | `garbage` | garbage collection of the Merkle trees |
//! | `shard` | proof shards |
//! | `check` | the check of all rows for `db verify` |
//! | `witness` | block witnesses: making them, and applying deltas to opened ones |
//! | `proof`, [`verify()`] | making proofs, their bytes; checking proofs: pure, `no_std` |

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
mod witness;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod entries;
#[cfg(feature = "std")]
mod garbage;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod proof_tree;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod second_level;
#[cfg(feature = "std")]
mod shard;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod state_array;
#[cfg(feature = "std")]
mod sub_trees;

#[cfg(feature = "std")]
pub use backend::{Lvmt, LvmtError};
#[cfg(feature = "std")]
pub use params::{FileFault, LvmtParams, ParamsError, PtauFault, SetupPhase, SetupProgress};
#[cfg(feature = "std")]
pub use shard::{ParseShardError, ProofShard};
#[cfg(feature = "std")]
pub use state::LvmtState;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;

pub use amt::{MAX_HEIGHT, SLOTS, VERSION_BITS};
pub use params::{EntryOpening, VerifierParams, insecure_dev_tau};
pub use point::G1Point;
pub use proof::combine;
pub use verify::verify;
