//! Ethereum's state as two layers of [tries](crate::trie): an account trie, whose leaves name the root
//! of a storage trie for each account (yellow paper 4.1). What every layout of it shares, and another
//! store with Ethereum's root would use:
//!
//! | | |
//! |---|---|
//! | [`by_account`], [`Touched`], [`slot_items`] | a block's delta as the tries see it |
//! | [`load`], [`Layout`] | a whole state at once |
//! | [`Tries`] | the tries of one state, for what follows |
//! | [`prove`], [`account_proof`] | proof bytes, proofs of EIP-1186 |
//! | [`chunks`] | a whole state in parts that prove themselves |
//! | [`Upper`] | what of them stays in memory |
//! | [`Ahead`] | what of them is fetched while a block executes |
//! | [`Foretold`] | what of them is made while a block executes |
//! | [`merge_nodes`] | what a removal needs beyond the proofs of what is removed |

mod ahead;
mod bulk;
pub mod chunks;
mod foretold;
mod merge;
mod proof;
mod touched;
mod upper;

pub use ahead::{Ahead, Over};
pub use bulk::{Layout, load};
pub use foretold::{Foretold, Told};
pub use merge::merge_nodes;
pub use proof::{Tries, account_proof, prove};
pub use touched::{Touched, by_account, decode_account, refuse_orphan, slot_items};
pub use upper::{MAX_CACHED_BRANCHES, Upper};
