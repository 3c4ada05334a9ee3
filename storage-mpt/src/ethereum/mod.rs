//! Ethereum's state as two layers of [tries](crate::trie): an account trie, whose leaves name the
//! root of a storage trie for each account (yellow paper 4.1). Every store with Ethereum's root can
//! use this module, whatever its row layout:
//!
//! | item | what |
//! |---|---|
//! | [`by_account`], [`AccountDelta`], [`slot_items`] | a block's delta, by account and as trie items |
//! | [`load()`], [`BulkLayout`] | bulk load of a whole state |
//! | [`StateTries`] | the tries of one state, for the functions below |
//! | [`prove()`], [`account_nodes`] | proof bytes, proofs of EIP-1186 |
//! | [`chunks`] | state sync: a whole state in chunks that prove themselves |
//! | [`ranges`] | leaves and nodes in the order of hashes, for `snap` |
//! | [`TrieCache`], [`CacheRoom`] | the branches that stay in memory between blocks, and how many may |
//! | [`TriePrefetch`] | branches prefetched while a block executes |
//! | [`RootTask`] | subtries updated while a block executes (state root task) |
//! | [`merge_nodes`] | the sibling nodes that a removal needs besides the proofs of the removed keys |

mod account_delta;
mod cache;
pub mod chunks;
mod load;
mod merge;
mod prefetch;
mod prove;
pub mod ranges;
mod root_task;

pub use account_delta::{AccountDelta, by_account, decode_account, refuse_orphan, slot_items};
pub use cache::{CacheRoom, TrieCache};
pub use load::{BulkLayout, load};
pub use merge::merge_nodes;
pub use prefetch::{PrefetchedSource, TriePrefetch};
pub use prove::{StateTries, account_nodes, prove};
pub use root_task::{EarlyTries, RootTask};
