//! The block, transaction and receipt types that every crate of this workspace uses.
//!
//! They are the types reth uses for Ethereum, so that its codecs (`reth-codecs`) and block traits
//! apply to them. Blob transactions are kept without their sidecar, as blocks carry them.

/// Block header, with every field up to Amsterdam (block access list hash, slot number).
pub type Header = alloy_consensus::Header;

/// A signed transaction of any type; EIP-4844 ones without sidecar.
pub type Transaction = alloy_consensus::EthereumTxEnvelope<alloy_consensus::TxEip4844>;

/// EIP-2718 transaction type byte.
pub type TxType = alloy_consensus::TxType;

/// Transactions, ommers and (from Shanghai on) withdrawals of a block.
pub type BlockBody = alloy_consensus::BlockBody<Transaction>;

/// Header and body.
pub type Block = alloy_consensus::Block<Transaction>;

/// Outcome of one transaction, without its bloom.
///
/// It has a `success` flag and no state root: receipts of blocks before Byzantium, which commit to
/// an intermediate state root instead, cannot be encoded from it alone.
pub type Receipt = alloy_consensus::EthereumReceipt<TxType>;

/// Header together with its hash (computed at most once).
pub type SealedHeader = reth_primitives_traits::SealedHeader<Header>;

/// Block together with its hash (computed at most once).
pub type SealedBlock = reth_primitives_traits::SealedBlock<Block>;

/// Sealed block together with the sender of each of its transactions.
pub type RecoveredBlock = reth_primitives_traits::RecoveredBlock<Block>;

pub use alloy_eips::{eip4895::Withdrawal, eip4895::Withdrawals, eip7685::Requests};
