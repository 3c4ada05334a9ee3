//! B+AVL ("B+AVL trees: towards data structures for robust and efficient blockchain state
//! synchronization", Cattaneo, Batista, Pedone): an AVL tree whose leaves are chunks of entries,
//! each with a hash tree of its own.
//!
//! # Vocabulary
//!
//! * **Entry**: a key with its value.
//! * **Chunk**: successive entries in key order, a leaf of the tree. It holds at most M entries
//!   (256, or the value of `--bavl.chunk-entries`), and at least M / 2 unless it is the only chunk.
//! * **Position** of an entry: its index in its chunk, from 0.
//! * **Part** of a chunk: 16 positions, from a multiple of 16 on. A node of the chunk's hash tree.
//! * **Group**: neighbouring entries of a chunk whose hashes are one row: 16 in a new group, and at
//!   most 24 after insertions. It keeps its entries when positions shift.
//! * **Fence**: bytes above the last key of a group, and not above the first key of the next group.
//! * **Separator** of an inner node: the smallest key on its right. It is never stored.
//! * **Key-height** of a chunk: height of the inner node whose separator is the chunk's first key;
//!   0 for the first chunk. The key-heights of all chunks, in key order, determine the shape of the
//!   tree (section IV.D).
//! * **Path** of a node: the turns, left or right, from the top of the tree down to the node.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> flat state: the entries. A chunk is a range of it; there is no second copy
//!    '-> touched chunks
//!          | stays in place ----------> changed groups are written; parts with changed or shifted
//!          |                            entries are hashed
//!          | too large, too small, .. > read from the flat state, merged with a neighbour and cut
//!          |                            again
//!          '-> old chunks replaced by new -> AVL tree (in memory): rotations -> hashes -> root
//! ```
//!
//! # Assumptions
//!
//! BLAKE2b-256 is collision resistant. Deltas list every key once, in order, with its true previous
//! value: the hash of this value locates the entry in its group.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash` | all hashes under the root |
//! | `proof`, `verify` | bytes of proofs, and checking them: pure, `no_std` |
//! | `params` | number of entries in a chunk |
//! | `cut` | cutting entries into chunks |
//! | `chunk` | a chunk in memory and its rows: parts, groups, fences |
//! | `tree` | the AVL tree, shared between blocks |
//! | `state`, `upper` | the tree of one block's state, rebuilt from rows; the upper nodes kept of older blocks |
//! | `update`, `regroup`, `apply` | a block: chunks that stay in place, chunks that are cut again, the tree |
//! | `load`, `prove`, `check` | bulk load, making proofs, `db verify` |
//! | `state_sync` | serving the tree chunk by chunk, and checking the answers |
//! | `witness` | block witnesses: a partial tree, and how a block changes it |
//! | `backend`, `descriptor` | the `Backend` implementation, flags and registration |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod hash;
mod params;
mod proof;
mod verify;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
pub use params::{ChunkEntries, ChunkEntriesError};
pub use verify::{ChildSide, PathStep, VerifiedChunk, hashes_in, verify, verify_chunk};

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod chunk;
#[cfg(feature = "std")]
mod cut;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod regroup;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod state_sync;
#[cfg(feature = "std")]
mod tree;
#[cfg(feature = "std")]
mod update;
#[cfg(feature = "std")]
mod upper;
#[cfg(feature = "std")]
mod witness;

#[cfg(feature = "std")]
pub use backend::{Bavl, TreeShape};
#[cfg(feature = "std")]
pub use chunk::{CHUNKS, HASHES};
#[cfg(feature = "std")]
pub use state::BavlState;
