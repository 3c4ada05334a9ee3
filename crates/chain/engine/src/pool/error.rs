//! Why the pool refuses a transaction.

use alloy_eips::eip4844::BlobTransactionValidationError;
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::EthereumHardfork;
use retrie_state::StateError;

/// Why a transaction is refused. Tools match on these messages, so their wording is geth's.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The same transaction is already in the pool.
    #[error("already known")]
    AlreadyKnown,
    /// The rules of the next block, or limits of this node, refuse the transaction.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The sender's account cannot send it.
    #[error(transparent)]
    Sender(#[from] SenderError),
    /// It does not fit beside the others in the pool.
    #[error(transparent)]
    Conflict(#[from] PoolConflictError),
    /// The head state cannot be read; says nothing about the transaction.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a transaction is refused without a look at the state: by the rules of the next block, or by
/// a limit of this node.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// No sender can be recovered from the signature.
    #[error("invalid sender: invalid transaction v, r, s values")]
    InvalidSignature,
    /// Signed for another chain (EIP-155).
    #[error("invalid sender: invalid chain id for signer: have {got} want {expected}")]
    ChainId {
        /// Chain id of the transaction.
        got: u64,
        /// Chain id of this chain.
        expected: u64,
    },
    /// The transaction type belongs to a later fork.
    #[error("transaction type not supported: type {ty} rejected, pool not yet in {fork}")]
    TypeNotActive {
        /// EIP-2718 type byte.
        ty: u8,
        /// The fork that introduces it.
        fork: EthereumHardfork,
    },
    /// The node accepts no blob transactions.
    #[error("transaction type not supported: tx type 3 not supported by this pool")]
    BlobsDisabled,
    /// The encoding is too long.
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized {
        /// Its length in bytes.
        size: usize,
        /// Configured limit in bytes.
        limit: usize,
    },
    /// The initialisation code is too long (EIP-3860).
    #[error("max initcode size exceeded: code size {size} limit {limit}")]
    InitCodeSize {
        /// Its length in bytes.
        size: usize,
        /// Limit of the fork in bytes.
        limit: usize,
    },
    /// The gas limit is above the cap for a transaction (EIP-7825, or the configured limit).
    #[error("transaction gas limit too high (cap: {cap}, tx: {got})")]
    GasLimitTooHigh {
        /// The limit.
        cap: u64,
        /// Gas limit of the transaction.
        got: u64,
    },
    /// The gas limit is above the block's.
    #[error("exceeds block gas limit")]
    ExceedsBlockGasLimit,
    /// The gas limit is below the intrinsic gas.
    #[error("intrinsic gas too low: gas {got}, minimum needed {needed}")]
    IntrinsicGas {
        /// Gas limit of the transaction.
        got: u64,
        /// Its intrinsic gas.
        needed: u64,
    },
    /// The gas limit is below the floor for the data (EIP-7623).
    #[error("insufficient gas for floor data gas cost: gas {got}, minimum needed {needed}")]
    FloorDataGas {
        /// Gas limit of the transaction.
        got: u64,
        /// The floor.
        needed: u64,
    },
    /// The tip is larger than the whole fee (EIP-1559).
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFeeCap {
        /// Maximum priority fee per gas in wei.
        tip: u128,
        /// Maximum fee per gas in wei.
        fee_cap: u128,
    },
    /// The fee is below the smallest possible base fee.
    #[error("transaction underpriced: gas fee cap {fee_cap}, minimum needed {minimum}")]
    Underpriced {
        /// Maximum fee per gas in wei.
        fee_cap: u128,
        /// The smallest base fee there is.
        minimum: u128,
    },
    /// The tip is below the configured minimum.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {minimum}")]
    TipTooLow {
        /// Maximum priority fee per gas in wei.
        tip: u128,
        /// Configured minimum in wei.
        minimum: u128,
    },
    /// The blob fee is below the smallest possible one.
    #[error(
        "transaction gas price below minimum: blob fee cap {fee_cap}, minimum needed {minimum}"
    )]
    BlobFeeTooLow {
        /// Maximum fee per blob gas in wei.
        fee_cap: u128,
        /// The smallest blob fee there is, in wei.
        minimum: u128,
    },
    /// The fee of a local transaction is above the cap (`--rpc.txfeecap`).
    #[error(
        "tx fee ({:.2} ether) exceeds the configured cap ({:.2} ether)",
        ether(fee),
        ether(&U256::from(*cap))
    )]
    FeeCapExceeded {
        /// Gas limit times maximum fee per gas, in wei.
        fee: U256,
        /// Configured cap in wei.
        cap: u128,
    },
    /// The largest nonce cannot be used (EIP-2681).
    #[error("nonce has max value")]
    NonceMax,
    /// A set-code transaction without authorizations (EIP-7702).
    #[error("set code tx must have at least one authorization tuple")]
    EmptyAuthorizations,
    /// A blob transaction without blobs (EIP-4844).
    #[error("blobless blob transaction")]
    NoBlobs,
    /// More blobs than a transaction may carry.
    #[error("transaction blob limit exceeded: blob count {have}, limit {permitted}")]
    TooManyBlobs {
        /// Number of blobs.
        have: u64,
        /// Limit of the fork.
        permitted: u64,
    },
    /// Its sidecar is refused.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
}

/// Why the sidecar of a blob transaction is refused. The hash of the transaction does not cover it.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// A blob transaction without sidecar. This happens to transactions of reverted blocks whose
    /// sidecar was dropped.
    #[error("missing sidecar in blob transaction")]
    Missing,
    /// The sidecar does not have one blob per hash.
    #[error("invalid number of {blobs} blobs compared to {hashes} blob hashes")]
    BlobCount {
        /// Number of blobs in the sidecar.
        blobs: usize,
        /// Number of versioned hashes in the transaction.
        hashes: usize,
    },
    /// The sidecar has the wrong kind of proofs: blob proofs before Osaka, cell proofs from Osaka
    /// on (EIP-7594).
    #[error("Wrong sidecar format: unexpected sidecar version, want: {expected}, got: {got}")]
    Version {
        /// Accepted version: 0 with blob proofs, 1 with cell proofs.
        expected: u8,
        /// Version of the sidecar.
        got: u8,
    },
    /// Hashes, commitments or proofs of the blobs are wrong (EIP-4844, EIP-7594).
    #[error("KZG verification error: {0}")]
    Wrong(#[source] BlobTransactionValidationError),
}

/// Why the sender's account cannot send a transaction.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// The sender has code that is not a delegation (EIP-3607).
    #[error("sender not an eoa: address {address}, codehash: {code_hash}")]
    NotEoa {
        /// The sender.
        address: Address,
        /// Hash of its code.
        code_hash: B256,
    },
    /// The nonce has been used.
    #[error("nonce too low: next nonce {next}, tx nonce {got}")]
    NonceTooLow {
        /// Next nonce of the sender.
        next: u64,
        /// Nonce of the transaction.
        got: u64,
    },
    /// The sender cannot pay for the transaction.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, \
         overshot {}",
        cost.saturating_sub(*balance)
    )]
    InsufficientFunds {
        /// Balance of the sender in wei.
        balance: U256,
        /// Largest cost (value, gas and blob gas), in wei.
        cost: U256,
    },
}

/// Why a transaction does not fit beside the others in the pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolConflictError {
    /// A blob transaction leaves a nonce gap.
    #[error("nonce too high: tx nonce {got}, gapped nonce {next}")]
    NonceTooHigh {
        /// Nonce of the transaction.
        got: u64,
        /// Next nonce of the sender, with its pooled transactions.
        next: u64,
    },
    /// The sender cannot pay for all its blob transactions.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, \
         tx cost {cost}, overshot {}",
        queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    InsufficientFundsForQueue {
        /// Balance of the sender in wei.
        balance: U256,
        /// Cost of its other transactions in the pool, in wei.
        queued: U256,
        /// Cost of this one in wei.
        cost: U256,
    },
    /// A pooled transaction of the same nonce exists, and the new one does not pay enough more.
    #[error("replacement transaction underpriced")]
    ReplacementUnderpriced,
    /// The sender has reached the limit of pooled transactions.
    #[error("account limit exceeded: pooled {pooled} txs")]
    AccountLimitExceeded {
        /// Number of its pooled transactions.
        pooled: usize,
    },
    /// The pool is full of better transactions.
    #[error("txpool is full")]
    PoolFull,
    /// The sender has pooled transactions of the other kind: an account has either blob
    /// transactions or others in the pool.
    #[error("address already reserved")]
    AddressReserved,
    /// A delegated sender has reached the limit of pooled transactions (EIP-7702).
    #[error("in-flight transaction limit reached for delegated accounts")]
    InFlightLimitReached,
    /// A delegated sender leaves a nonce gap (EIP-7702).
    #[error("gapped-nonce tx from delegated accounts")]
    OutOfOrderDelegated,
    /// An authority has several transactions in the pool, which the delegation could invalidate
    /// (EIP-7702).
    #[error("authority already reserved")]
    AuthorityReserved,
}

impl PoolError {
    /// JSON-RPC code: -32000 for every refusal, as in geth, and -32603 (internal error) where the
    /// node itself failed.
    pub const fn code(&self) -> i32 {
        match self {
            Self::State(_) => -32603,
            _ => -32000,
        }
    }
}

/// Wei as ether, for messages.
fn ether(wei: &U256) -> f64 {
    f64::from(*wei) / 1e18
}
