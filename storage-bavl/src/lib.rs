//! B+AVL ("B+AVL trees: towards data structures for robust and efficient blockchain state
//! synchronization", Cattaneo, Batista, Pedone): an AVL tree whose leaves are chunks of entries, each
//! with a hash tree of its own.
//!
//! # Vocabulary
//!
//! * **Entry**: a key with its value.
//! * **Chunk**: a run of entries in key order, at most M of them (256, or as `--bavl.chunk-entries`
//!   says), and at least half as many unless it is the only one. A leaf of the tree.
//! * **Position** of an entry: its place in its chunk, from 0 on.
//! * **Part** of a chunk: 16 positions, from a multiple of 16 on. A node of its hash tree.
//! * **Group**: 16 neighbouring entries of a chunk, or up to 24: one row of hashes. It keeps its entries
//!   when positions shift.
//! * **Fence**: bytes that are above the last key of a group and not above the first of the next one.
//! * **Separator** of an inner node: the smallest key on its right. It is never stored.
//! * **Key-height** of a chunk: height of the inner node whose separator is its first key; 0 of the
//!   first chunk. All key-heights in a row tell the shape of the tree (section IV.D).
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> Flat: the entries. A chunk is a range of it; there is no second copy
//!    '-> chunks it falls into
//!          | it stays in its place ---> groups that changed are written, the parts hashed in which
//!          |                            something changed or shifted
//!          | too large, too small, .. > it is read from Flat, put together with a neighbour and
//!          |                            cut anew
//!          '-> chunks, old for new -> AVL tree (in memory): rotations -> hashes -> root
//! ```
//!
//! # Assumptions
//!
//! BLAKE2b-256 is collision resistant. Deltas list every key once, in order, with its true previous
//! value: by its hash an entry is found in its group.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash` | what the root is made of |
//! | `read`, `verify` | bytes of proofs, and checking them: pure, `no_std` |
//! | `params` | how many entries a chunk holds |
//! | `fill` | how a run of entries is cut into chunks |
//! | `chunk` | a chunk in memory and its rows: parts, groups, fences |
//! | `tree` | the AVL tree, shared between blocks |
//! | `state`, `upper` | the structure of one block's state, rebuilt from rows; what is kept of older ones |
//! | `touch`, `regroup`, `apply` | a block: what stays in its place, what is cut anew, the tree |
//! | `load`, `prove`, `check` | whole states, proofs, `db verify` |
//! | `sync` | the tree handed out chunk by chunk, and put together again |
//! | `backend`, `descriptor` | the contract |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod hash;
mod params;
mod read;
mod verify;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
pub use params::{ChunkEntries, ChunkEntriesError};
pub use verify::{ChunkShown, Side, Step, hashes_in, verify, verify_chunk};

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod chunk;
#[cfg(feature = "std")]
mod fill;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod regroup;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod sync;
#[cfg(feature = "std")]
mod touch;
#[cfg(feature = "std")]
mod tree;
#[cfg(feature = "std")]
mod upper;

#[cfg(feature = "std")]
pub use backend::{Bavl, Shape};
#[cfg(feature = "std")]
pub use chunk::{CHUNKS, HASHES};
#[cfg(feature = "std")]
pub use state::State;
