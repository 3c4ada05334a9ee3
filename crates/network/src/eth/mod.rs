//! The wire protocol `eth`, versions 69 (EIP-7642), 70 (EIP-7975) and 71 (EIP-8159).
//!
//! [`message`] names what is said, `codec` is how it looks in bytes.

mod codec;
pub mod message;
#[cfg(test)]
mod tests;

pub use codec::{DecodeError, MAX_ITEMS, MAX_TRANSACTIONS, id, is_response, limit, request_id};
pub use message::{
    BlockRange, BlockReceipt, Gossip, HeadersFrom, Message, NewPooledTransactionHashes, PeerId,
    PooledTransaction, Request, Response, Status, Version,
};

#[cfg(test)]
pub(crate) use tests::fuzz;
