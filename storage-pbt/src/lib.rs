//! The partitioned binary tree (EIP-8297), the tree that Ethereum plans to replace its trie by. Its
//! root is a function of the state alone.
//!
//! # Vocabulary
//!
//! * **Leaf**: a key of 34 or 66 bytes with a value of 32. **Branch**: where the keys below differ in
//!   a bit for the first time, its *split*; the bits since the branch above are its *prefix*.
//! * **Zone**: the first byte of a key: account headers, code, storage.
//! * **Stem**: a key without its last byte, the *sub-index*. Up to 256 leaves share a stem: the
//!   **header** of an account, a **group** of slots or of code chunks.
//! * **Path**: 32 bytes, the hash in a stem that differs between the stems of one tree.
//! * **Unit**: what a path leads to: a stem, or the storage of an account, a tree of its own.
//! * **Page**: the branches within one nibble of the path, as one row. An **exit** of a page is a unit
//!   or a deeper page.
//! * **Subtree**: a leaf or branch whose place may still change.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> flat state (values by plain key: reads use it)
//!    |
//!    +--> per account: groups of slots ---> its storage, a tree --+   in parallel
//!    +--> accounts that come to a code, and leave it -> chunks --+|
//!    +--> accounts and slots in headers ------------------+      ||
//!                                                         v      vv
//!                            trees of three zones:     headers codes storages --> root
//!                                                         |
//!                                       rows of pages <---+---> pages in memory
//! ```
//!
//! # Assumptions
//!
//! The hash function is collision resistant. Deltas list every key once, with its true previous value,
//! and bring the code of each account that has a new one. Slots belong to accounts.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | [`hash`] | hashing leaves and branches, [`Subtree`](hash::Subtree), the sweep over sorted leaves |
//! | [`key`], [`leaf`] | keys and values of the tree (EIP-8297) |
//! | [`verify`] | bytes of proofs, and checking them: pure, `no_std` |
//! | `page`, `tree` | pages and their rows; changing and building a tree of them |
//! | `stem`, `code` | rows of stems and of codes |
//! | `units` | what hangs in each tree |
//! | `state` | the pages of one block's state that are in memory |
//! | `apply`, `load`, `prefetch`, `prove` | a block, a whole state, pages loaded ahead, proofs |
//! | `witness` | block witnesses: a partial tree, and how a block changes it |
//! | `state_sync` | serving the tree in chunks, and checking the answers |
//! | `backend`, `descriptor` | the `Backend` implementation and registration |
//! | [`migration`] | the files of EIP-8347, and the check that they are right |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
pub mod hash;
pub mod key;
pub mod leaf;
pub mod verify;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod code;
#[cfg(feature = "std")]
mod load;
#[cfg(feature = "std")]
pub mod migration;
#[cfg(feature = "std")]
mod page;
#[cfg(feature = "algebraic")]
mod poseidon2;
#[cfg(feature = "std")]
mod prefetch;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod row;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod state_sync;
#[cfg(feature = "std")]
mod stem;
#[cfg(feature = "std")]
mod tree;
#[cfg(feature = "std")]
mod units;
#[cfg(feature = "std")]
mod witness;

#[cfg(feature = "std")]
pub use backend::Pbt;
#[cfg(feature = "std")]
pub use code::CODES;
#[cfg(feature = "std")]
pub use page::{NODES, STORAGE_NODES};
#[cfg(feature = "std")]
pub use state::PbtState;
#[cfg(feature = "std")]
pub use stem::STEMS;
