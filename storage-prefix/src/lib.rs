//! Two Merkle trees with disk-friendly row layouts, after "The Locality of Memory Checking" (Wang
//! et al., CCS 2023).
//!
//! * [`prefix`]: PrefixTree (section 4.2): Ethereum's own trie with every version of its nodes.
//! * [`duptree`]: DupTree++ (section 4.1): a dense binary tree over indexed leaves.

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod descriptor;
pub mod duptree;
#[cfg(feature = "std")]
pub mod prefix;

#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
