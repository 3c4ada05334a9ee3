//! LMPT ("LMPT: A Novel Authenticated Data Structure to Eliminate Storage Bottlenecks for High
//! Performance Blockchains", ICBC 2022) as a backend: a Merkle Patricia trie in three layers.
//! Recent changes are in two small tries in memory. Background jobs merge them into a large trie on
//! disk.
//!
//! # Vocabulary
//!
//! * **Delta**, **intermediate**, **snapshot**: the three tries, newest first. Each is a Merkle
//!   Patricia trie over keccak-256 of the encoded state key. The first two are the **small
//!   layers**.
//! * **Flat**: the values by plain key; reads use it.
//! * **Leaf**: a tag and the value. In a small layer it may be a **tombstone**: the key is absent,
//!   whatever the layers below contain.
//! * **Boundary**: a block that starts a new delta. The old delta becomes the intermediate trie.
//!   The merge of the old intermediate trie must be finished by then: its snapshot is *published*.
//! * **Generation**: the number of a delta, from 1 on. A trie keeps its generation as intermediate
//!   trie, and it is the stamp of the rows that its merge makes in the snapshot. The first block is
//!   generation 0: it goes directly into the snapshot.
//! * **Made row** (`MadeRow`): a row that the merge has finished: no later key of the merge is
//!   below its path. A merge does not read a made row again; the branches that it may still need
//!   stay in memory.
//! * **Row written ahead**: a made row that a commit has written before the merge is published.
//!   `docs/formats/lmpt.md` calls it *settled*.
//! * **Garbage**: rows of the snapshot that a merge has replaced. A merge lists them.
//! * **Lineage**: a digest of all merges so far, in order. It determines the rows of a snapshot.
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
//!                       '-- written ahead, commit by commit (garbage.rs)
//! ```
//!
//! | when | what |
//! |---|---|
//! | a boundary | waits for the merge; its snapshot replaces the old one |
//! | the first block after it, or after an opening | starts the job that merges the frozen trie |
//! | a commit, once the boundary cannot be reverted | writes some rows of the job ahead |
//! | a commit, once the next boundary cannot be reverted | removes garbage of the merge |
//!
//! # Assumptions
//!
//! * keccak-256 is collision resistant.
//! * Deltas list every key once, with its true previous value.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | `hash`, `leaf` | root and leaves |
//! | `params` | when a block is a boundary |
//! | `record` | row encodings, except those of the snapshot trie |
//! | `layer` | small layers, and their rows |
//! | `snapshot` | rows of the snapshot: two origins, and the changes of a merge |
//! | `garbage_lists` | lists of rows that a merge has replaced |
//! | `merge` | the merge job |
//! | `state` | the structure in memory of a block's state |
//! | `backend`, `descriptor` | the implementation of `Backend`; flags and registration |
//! | `apply`, `load` | applying a delta; bulk load |
//! | `garbage` | what commits do beside blocks: writing rows ahead, removing garbage |
//! | `witness` | block witnesses |
//! | `prove`, `verify` | making proofs; checking proofs: pure, `no_std` |
//! | `check` | the check of all rows for `db verify` |

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
mod garbage;
#[cfg(feature = "std")]
mod garbage_lists;
#[cfg(feature = "std")]
mod layer;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
mod merge;
#[cfg(feature = "std")]
mod params;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod snapshot;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod witness;

#[cfg(feature = "std")]
pub use backend::Lmpt;
#[cfg(feature = "std")]
pub use params::{LmptParams, ParamsError};
#[cfg(feature = "std")]
pub use record::{LAYERS, LISTS, META, SNAPSHOT};
#[cfg(feature = "std")]
pub use state::LmptState;
