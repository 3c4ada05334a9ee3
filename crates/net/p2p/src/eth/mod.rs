//! The wire protocol `eth`, versions 69 (EIP-7642), 70 (EIP-7975), 71 (EIP-8159) and 72
//! (EIP-8070).
//!
//! `message` has the types, `codec` the encoding.

mod codec;
mod message;
#[cfg(test)]
mod tests;

pub use codec::{EthDecodeError, id};
pub(crate) use codec::{MAX_ITEMS, is_response, limit, request_id};
pub use message::{
    BlockRange, BlockReceipt, EthMessage, EthRequest, EthResponse, EthVersion, GetBlockHeaders,
    NewPooledTransactionHashes, PeerId, PooledTransaction, Status, TxGossip,
};

#[cfg(test)]
pub(crate) use tests::fuzz;
