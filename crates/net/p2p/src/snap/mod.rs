//! The wire protocol `snap`, versions 1 (devp2p specification) and 2 (EIP-8189): ranges of accounts
//! and of storage with the nodes that prove them, contract codes, and what brings a state forward:
//! trie nodes in version 1, block access lists in version 2. Headers come by `eth`.
//!
//! | request | answer |
//! |---|---|
//! | `GetAccountRange` | accounts of a state from a hash on, in order, with the nodes on the paths to both ends |
//! | `GetStorageRanges` | slots of accounts, in order; nodes only if the last account is not whole |
//! | `GetByteCodes` | codes, by hash |
//! | `GetTrieNodes` | trie nodes, by path; in version 1 alone |
//! | `GetBlockAccessLists` | block access lists (EIP-7928), by block hash; in version 2 alone |
//!
//! `message` has the types, `codec` the encoding. Who asks checks the answers: they are as the peer
//! sent them, only in the right form.

mod codec;
mod message;
#[cfg(test)]
mod tests;

pub use codec::SnapDecodeError;
pub(crate) use codec::{is_response, limit, request_id};
pub use message::{
    SlimAccount, SnapLeaf, SnapMessage, SnapRequest, SnapResponse, SnapVersion, TrieNodePaths,
};

#[cfg(test)]
pub(crate) use tests::fuzz;

/// Its name in hello messages.
pub const NAME: &str = "snap";
