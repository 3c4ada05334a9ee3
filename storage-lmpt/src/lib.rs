//! LMPT ("LMPT: A Novel Authenticated Data Structure to Eliminate Storage Bottlenecks for High
//! Performance Blockchains", ICBC 2022): three tries in layers. Recent changes are in small tries in
//! memory, which are merged into a large one on disk in the background.
//!
//! # Vocabulary
//!
//! * **Delta**, **intermediate**, **snapshot**: the three tries, newest first. Each is one Merkle
//!   Patricia trie over keccak-256 of the encoded state key. The first two are the **small layers**.
//! * **Leaf**: a tag and the value; in the small layers it may be a **tombstone**: the key is absent,
//!   whatever the layers below have.
//! * **Boundary**: a block that begins with a new delta. The delta before becomes the intermediate
//!   trie, and what the intermediate trie was is merged by then: the merged snapshot is *published*.
//! * **Generation**: number of a delta, from 1 on. A trie keeps it as intermediate trie, and the rows
//!   that its merge makes in the snapshot bear it as stamp. The first block is generation 0: it goes
//!   straight into the snapshot.
//! * **Made** row: one that the merge is done with: no key to come lies below its path. A merge reads no
//!   made row again; of what it may still need it keeps the branches in memory.
//! * **Settled** row: one that the merge has made and a commit has written before it is published.
//! * **Lineage**: a digest of all that was merged, in order: what the rows of a snapshot depend on.
//!
//! # How a block goes through
//!
//! ```text
//!  delta of the block -> Flat (what reads are answered from)
//!    '-> layer rows (generation, key) --'-> delta trie --------.
//!                                           intermediate trie --+--> root
//!                                              | merge (job)    |
//!                                              v                |
//!                     rows (path, generation), snapshot trie --'
//!                       |            '-- published at the next boundary, with the rows left over
//!                       '-- settle: written ahead, commit by commit
//! ```
//!
//! | moment | what |
//! |---|---|
//! | a boundary | the merge is waited for; its snapshot takes the place of the one before |
//! | the first block after it, or after opening | a job starts: the frozen trie into the snapshot |
//! | a commit, once the boundary cannot be reverted | some of the rows that the job has made are written |
//! | a commit, once the next boundary cannot be reverted | rows that it made useless are removed |
//!
//! # Assumptions
//!
//! keccak-256 is collision resistant. Deltas list every key once, with its true previous value.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash`, `leaf` | root and leaves |
//! | `verify` | bytes of proofs, and checking them: pure, `no_std` |
//! | `params` | when there is a boundary |
//! | `row` | rows beside those of the snapshot trie |
//! | `layer` | small tries, and their rows |
//! | `snapshot` | the rows of the snapshot: two origins, what a merge makes of them |
//! | `lists` | lists of rows that a merge made useless |
//! | `merge` | the job |
//! | `state` | the structure of one block's state |
//! | `apply`, `load`, `settle`, `prove`, `check` | what the backend does with all these |
//! | `backend`, `descriptor` | the contract |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod hash;
mod leaf;
mod verify;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
pub use hash::root;
pub use verify::verify;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod layer;
#[cfg(feature = "std")]
mod lists;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod merge;
#[cfg(feature = "std")]
mod params;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod row;
#[cfg(feature = "std")]
mod settle;
#[cfg(feature = "std")]
mod snapshot;
#[cfg(feature = "std")]
mod state;

#[cfg(feature = "std")]
pub use backend::Lmpt;
#[cfg(feature = "std")]
pub use params::{Params, ParamsError};
#[cfg(feature = "std")]
pub use row::{LAYERS, LISTS, META, SNAPSHOT};
#[cfg(feature = "std")]
pub use state::State;
