//! The wire protocol `snap`, version 1 (devp2p specification): ranges of accounts and of storage
//! with the nodes that prove them, contract codes, and trie nodes. Headers come by `eth`.
//!
//! | request | answer |
//! |---|---|
//! | `GetAccountRange` | accounts of a state from a hash on, in order, with the nodes on the paths to both ends |
//! | `GetStorageRanges` | slots of accounts, in order; nodes only if the last account is not whole |
//! | `GetByteCodes` | codes, by hash |
//! | `GetTrieNodes` | trie nodes, by path |
//!
//! `message` has the types, `codec` the encoding. Who asks checks the answers: they are as the peer
//! sent them, only in the right form.

mod codec;
mod message;
#[cfg(test)]
mod tests;

pub use codec::SnapDecodeError;
pub(crate) use codec::{is_response, limit, request_id};
pub use message::{SlimAccount, SnapLeaf, SnapMessage, SnapRequest, SnapResponse, TrieNodePaths};

#[cfg(test)]
pub(crate) use tests::fuzz;

/// Its name in hello messages.
pub const NAME: &str = "snap";
/// The version of this module.
pub(crate) const VERSION: u64 = 1;
