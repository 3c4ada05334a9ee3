//! Why the pool refuses a transaction.

use alloy_eips::eip4844::BlobTransactionValidationError;
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::EthereumHardfork;
use retrie_state::StateError;

/// Why a transaction is not taken. Tools match on these messages, so they are worded as geth words
/// them.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The very same transaction is in the pool.
    #[error("already known")]
    AlreadyKnown,
    /// The signature leads to no sender.
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
    /// The sender has code that is no delegation (EIP-3607).
    #[error("sender not an eoa: address {address}, codehash: {code_hash}")]
    SenderNotEoa {
        /// The sender.
        address: Address,
        /// Hash of its code.
        code_hash: B256,
    },
    /// The type of transaction comes with a later fork.
    #[error("transaction type not supported: type {ty} rejected, pool not yet in {fork}")]
    TypeNotActive {
        /// EIP-2718 type byte.
        ty: u8,
        /// The fork that brings it.
        fork: EthereumHardfork,
    },
    /// The node takes no blob transactions.
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
    /// More gas than a transaction may ask for (EIP-7825, or the configured limit).
    #[error("transaction gas limit too high (cap: {cap}, tx: {got})")]
    GasLimitTooHigh {
        /// The limit.
        cap: u64,
        /// Gas limit of the transaction.
        got: u64,
    },
    /// More gas than a block has.
    #[error("exceeds block gas limit")]
    ExceedsBlockGasLimit,
    /// Less gas than the transaction costs before it runs.
    #[error("intrinsic gas too low: gas {got}, minimum needed {needed}")]
    IntrinsicGas {
        /// Gas limit of the transaction.
        got: u64,
        /// Its intrinsic gas.
        needed: u64,
    },
    /// Less gas than the floor for its data (EIP-7623).
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
    /// The fee is one that no block will ever take.
    #[error("transaction underpriced: gas fee cap {fee_cap}, minimum needed {minimum}")]
    Underpriced {
        /// Maximum fee per gas in wei.
        fee_cap: u128,
        /// The smallest base fee there is.
        minimum: u128,
    },
    /// The tip is below what this node asks for.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {minimum}")]
    TipTooLow {
        /// Maximum priority fee per gas in wei.
        tip: u128,
        /// Configured minimum in wei.
        minimum: u128,
    },
    /// The blob fee is one that no block will ever take.
    #[error(
        "transaction gas price below minimum: blob fee cap {fee_cap}, minimum needed {minimum}"
    )]
    BlobFeeTooLow {
        /// Maximum fee per blob gas in wei.
        fee_cap: u128,
        /// The smallest blob fee there is, in wei.
        minimum: u128,
    },
    /// A local transaction would pay suspiciously much.
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
    /// The nonce has been used.
    #[error("nonce too low: next nonce {next}, tx nonce {got}")]
    NonceTooLow {
        /// Next nonce of the sender.
        next: u64,
        /// Nonce of the transaction.
        got: u64,
    },
    /// A blob transaction leaves a gap.
    #[error("nonce too high: tx nonce {got}, gapped nonce {next}")]
    NonceTooHigh {
        /// Nonce of the transaction.
        got: u64,
        /// Next nonce of the sender, with its pooled transactions.
        next: u64,
    },
    /// The largest nonce cannot be used (EIP-2681).
    #[error("nonce has max value")]
    NonceMax,
    /// The sender cannot pay for the transaction.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, \
         overshot {}",
        cost.saturating_sub(*balance)
    )]
    InsufficientFunds {
        /// Balance of the sender in wei.
        balance: U256,
        /// Value, gas and blob gas at most, in wei.
        cost: U256,
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
    /// A pooled transaction of this nonce pays as much, or nearly.
    #[error("replacement transaction underpriced")]
    ReplacementUnderpriced,
    /// The sender has as many transactions in the pool as one may have.
    #[error("account limit exceeded: pooled {pooled} txs")]
    AccountLimitExceeded {
        /// How many.
        pooled: usize,
    },
    /// The pool is full of better ones.
    #[error("txpool is full")]
    PoolFull,
    /// An account has either blob transactions in the pool or others, never both.
    #[error("address already reserved")]
    AddressReserved,
    /// A delegated sender has as many transactions in the pool as it may have (EIP-7702).
    #[error("in-flight transaction limit reached for delegated accounts")]
    InFlightLimitReached,
    /// A delegated sender leaves a nonce gap (EIP-7702).
    #[error("gapped-nonce tx from delegated accounts")]
    OutOfOrderDelegated,
    /// An authority has several transactions in the pool, which the delegation could invalidate
    /// (EIP-7702).
    #[error("authority already reserved")]
    AuthorityReserved,
    /// A set-code transaction without authorizations (EIP-7702).
    #[error("set code tx must have at least one authorization tuple")]
    EmptyAuthorizations,
    /// A blob transaction without sidecar. Those of reorganised blocks come so, if it is not kept any
    /// more.
    #[error("missing sidecar in blob transaction")]
    MissingSidecar,
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
    /// The sidecar has not one blob per hash.
    #[error("invalid number of {blobs} blobs compared to {hashes} blob hashes")]
    BlobCount {
        /// Number of blobs in the sidecar.
        blobs: usize,
        /// Number of versioned hashes in the transaction.
        hashes: usize,
    },
    /// Blob proofs belong to the forks before Osaka, cell proofs to those from Osaka on (EIP-7594).
    #[error("Wrong sidecar format: unexpected sidecar version, want: {expected}, got: {got}")]
    SidecarVersion {
        /// Version that is taken: 0 with blob proofs, 1 with cell proofs.
        expected: u8,
        /// Version of the sidecar.
        got: u8,
    },
    /// Hashes, commitments or proofs of the blobs are wrong (EIP-4844, EIP-7594).
    #[error("KZG verification error: {0}")]
    Sidecar(#[source] BlobTransactionValidationError),
    /// The head state cannot be read; no fault of the transaction.
    #[error(transparent)]
    State(#[from] StateError),
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
