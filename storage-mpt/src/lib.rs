//! Ethereum's Merkle Patricia trie (yellow paper, appendix D) as two backends: one algorithm, three
//! layouts of rows. Their root is the `stateRoot` of a mainnet header, their proofs follow
//! EIP-1186.
//!
//! * [`Mpt`] (`mpt`): rows by path, latest state only. The default backend, and the reference for
//!   tests of the others. This page is about it.
//! * [`MptArchive`] (`mpt-archive`): nodes by hash, every version kept; see the module `archive`.
//!   [`PrunedMpt`] (`mpt-archive:prune`): nodes by hash, latest state only; see `pruned`.
//!
//! # Vocabulary
//!
//! * **Key**: 32 bytes, keccak-256 of an address (account trie) or of a slot (storage trie).
//! * **Path**: the first *n* nibbles of a key. A **slot** of the trie is a position where a node
//!   can hang: the root, or one of the 16 children of a branch. Its path names it.
//! * **Branch**, **extension**, **leaf**: the three kinds of nodes. Between a slot and the branch
//!   below it there may be an extension: the branch's path is then longer than the slot's.
//! * **Reference** of a node: how its parent names it: the keccak-256 of its RLP, or the RLP itself
//!   if that is shorter than 32 bytes (an *embedded* node).
//! * **Link** ([`NodeLink`](trie::NodeLink)): what hangs at a slot: a leaf, a branch in memory, or
//!   a branch of which only path and reference are known and which is loaded when it is needed.
//! * **Item** ([`LeafUpdate`]): a hashed key with its new value, one change of a batch.
//! * **Stamp** ([`RowStamp`](trie::RowStamp)): the version of a row, in tries that keep old
//!   versions.
//!
//! # How a block goes through
//!
//! ```text
//!  delta -> flat state (values by plain key: reads use it)
//!    |
//!    +--> per account: slots, hashed and sorted --> storage trie update --+   in parallel
//!    |                                                                    v
//!    +--> accounts + storage roots, hashed and sorted --> account trie update --> root
//!                                                              |
//!                       rows of the branches that changed  <---+---> cache of the child block
//! ```
//!
//! [`Trie::update`](trie::Trie::update) is the one primitive: a recursive descent over a sorted
//! batch in which every touched branch is read once, hashed once and written once. Whether a branch
//! survives is decided after all its children are done, so one batch may mix insertions and
//! deletions.
//!
//! # What is stored
//!
//! One row for each branch, keyed by its path ([`trie::record`] documents the bytes), and one row
//! for the root of each trie. The row of a branch also holds its leaves and the extensions below
//! it. The upper branches of a large trie are *split*: their row holds no references, because every
//! child's row starts with its own. So a changed upper branch costs about 40 bytes and not 532.
//! Split branches stay in memory (`MAX_CACHED_BRANCHES` of storage tries at most, about 1 KiB
//! each), so the references are rarely read.
//!
//! # Assumptions
//!
//! All keys have 32 bytes, so a branch has no value of its own. keccak-256 is collision resistant.
//! An absent account has no storage.
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | [`trie`] | the data structure, its rows on disk; other trie stores build on it |
//! | [`ethereum`] | an account trie over storage tries: deltas, loading, proofs |
//! | [`Mpt`] | the backend over rows by path |
//! | [`MptArchive`] | the backend over nodes by hash; its rows, its check |
//! | [`PrunedMpt`] | its layout that deletes old nodes |
//! | `decode` | nodes decoded from RLP, as links or in place |
//! | [`verify`] | checking proofs, and the format of their bytes: pure, `no_std` |
//! | `witness`, [`block_witness`] | partial tries opened from the nodes of a witness; its bytes |
//! | `audit` | which nodes of a witness are needed |
//! | `descriptor` | registration of both backends and their proof formats |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
mod hash;
pub mod leaf;
pub mod verify;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::{PROOF_FORMATS, proof_format};
pub use hash::TrieHash;

#[cfg(feature = "std")]
mod archive;
#[cfg(feature = "std")]
mod audit;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
pub mod block_witness;
#[cfg(feature = "std")]
mod decode;
#[cfg(feature = "std")]
pub mod ethereum;
#[cfg(feature = "std")]
mod pruned;
#[cfg(feature = "std")]
pub mod trie;
#[cfg(feature = "std")]
mod witness;

#[cfg(feature = "std")]
pub use archive::{KEYS, MptArchive, NODES, ROOTS};
#[cfg(feature = "std")]
pub use backend::{ACCOUNT_NODES, Mpt, MptCache, STORAGE_NODES};
#[cfg(feature = "std")]
pub use pruned::{PRUNED_KEYS, PRUNED_NODES, PrunedMpt};
#[cfg(feature = "std")]
pub use trie::{LeafUpdate, MemorySource, Trie};
#[cfg(feature = "std")]
pub use witness::{PartialMpt, WitnessNodes};
