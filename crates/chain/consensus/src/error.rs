//! Why a block is invalid.

use alloy_primitives::{B256, Bloom, Bytes, U256};
use retrie_chainspec::{EthereumHardfork, primitives::SealedHeader};

/// A rule of the protocol that a header, body or execution result breaks.
///
/// `got` is the value in the block, `expected` the value that the rules demand. [`InvalidBlock`]
/// adds number and hash of the block; see [`Self::in_block`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConsensusError {
    // --- header against its parent ---
    /// The parent hash names another block.
    #[error("parent hash is {got}, expected {expected}")]
    ParentHash {
        /// In the header.
        got: B256,
        /// Hash of the parent.
        expected: B256,
    },
    /// The number does not follow the parent's.
    #[error("number is {got}, expected {expected}")]
    Number {
        /// In the header.
        got: u64,
        /// Parent's number plus one.
        expected: u64,
    },
    /// The timestamp is not later than the parent's.
    #[error("timestamp {got} is not later than the parent's {parent}")]
    Timestamp {
        /// In the header, in seconds.
        got: u64,
        /// Parent's, in seconds.
        parent: u64,
    },
    /// The timestamp lies too far ahead of the local clock.
    #[error("timestamp {got} lies more than {allowed} s ahead of the local clock ({now})")]
    FutureTimestamp {
        /// In the header, in seconds.
        got: u64,
        /// Local time, in seconds.
        now: u64,
        /// Tolerance, in seconds.
        allowed: u64,
    },
    /// The gas limit changed by more than a 1024th of the parent's.
    #[error("gas limit {got} is not within {parent} plus or minus less than {bound}")]
    GasLimitChange {
        /// In the header.
        got: u64,
        /// Parent's, times the elasticity multiplier in the first block of London (EIP-1559).
        parent: u64,
        /// The change must be smaller than this.
        bound: u64,
    },
    /// Wrong base fee (EIP-1559).
    #[error("base fee is {got} wei, expected {expected} wei")]
    BaseFee {
        /// In the header.
        got: u64,
        /// From the parent's gas.
        expected: u64,
    },
    /// The parent's base fee leaves no room for the next one in 64 bits.
    #[error("base fee of the parent is {parent} wei, the next one would not fit into 64 bits")]
    BaseFeeOverflow {
        /// Parent's base fee.
        parent: u64,
    },
    /// Wrong proof-of-work difficulty.
    #[error("difficulty is {got}, expected {expected}")]
    Difficulty {
        /// In the header.
        got: U256,
        /// From the parent's difficulty, time and ommers.
        expected: U256,
    },
    /// Wrong running total of blob gas above the target (EIP-4844, EIP-7918).
    #[error("excess blob gas is {got}, expected {expected}")]
    ExcessBlobGas {
        /// In the header.
        got: u64,
        /// From the parent.
        expected: u64,
    },
    /// The parent's blob gas leaves no room for the next excess in 64 bits.
    #[error(
        "parent has excess blob gas {excess} and used {used}, the next excess would not fit into \
         64 bits"
    )]
    ExcessBlobGasOverflow {
        /// Parent's excess blob gas.
        excess: u64,
        /// Parent's blob gas used.
        used: u64,
    },
    /// A proof-of-work block whose parent already reached the terminal total difficulty
    /// (EIP-3675).
    #[error(
        "proof-of-work block after the merge: parent's total difficulty {parent_total_difficulty} \
         reaches the terminal {terminal}"
    )]
    ProofOfWorkAfterMerge {
        /// Sum of difficulties up to the parent.
        parent_total_difficulty: U256,
        /// Terminal total difficulty.
        terminal: U256,
    },
    /// A proof-of-stake block whose parent does not reach the terminal total difficulty
    /// (EIP-3675).
    #[error(
        "proof-of-stake block before the merge: parent's total difficulty \
         {parent_total_difficulty} is below the terminal {terminal}"
    )]
    ProofOfStakeBeforeMerge {
        /// Sum of difficulties up to the parent.
        parent_total_difficulty: U256,
        /// Terminal total difficulty.
        terminal: U256,
    },

    // --- header alone ---
    /// More than 32 bytes of extra data.
    #[error("extra data has {got} bytes, at most {max} are allowed")]
    ExtraDataTooLong {
        /// Length in bytes.
        got: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// The ten blocks from the DAO fork on carry (or, on a chain that refused the fork, do not
    /// carry) the text `dao-hard-fork` (EIP-779).
    #[error("extra data is {got}, which {} \"dao-hard-fork\" near the DAO fork", if *.support { "must be" } else { "must not be" })]
    DaoExtraData {
        /// In the header.
        got: Bytes,
        /// Whether the chain supports the fork.
        support: bool,
    },
    /// Gas limit below the protocol's minimum.
    #[error("gas limit {got} is below the minimum {min}")]
    GasLimitTooLow {
        /// In the header.
        got: u64,
        /// Minimum.
        min: u64,
    },
    /// Gas limit above 2^63 - 1.
    #[error("gas limit {got} is above the maximum {max}")]
    GasLimitTooHigh {
        /// In the header.
        got: u64,
        /// Maximum.
        max: u64,
    },
    /// The block claims to use more gas than its limit.
    #[error("gas used {got} is above the gas limit {limit}")]
    GasUsedAboveLimit {
        /// In the header.
        got: u64,
        /// Gas limit of the same header.
        limit: u64,
    },
    /// A proof-of-stake header with a difficulty (EIP-3675).
    #[error("difficulty is {got}, expected 0 after the merge")]
    NonZeroDifficulty {
        /// In the header.
        got: U256,
    },
    /// A proof-of-stake header with a nonce (EIP-3675).
    #[error("nonce is {got:#018x}, expected 0 after the merge")]
    NonZeroNonce {
        /// In the header, big-endian.
        got: u64,
    },
    /// A proof-of-stake header that commits to ommers (EIP-3675).
    #[error("ommers hash is {got}, expected that of no ommers after the merge")]
    OmmersAfterMerge {
        /// In the header.
        got: B256,
    },
    /// A header field that the active forks demand is absent.
    #[error("header field {field} is missing, required from {fork} on")]
    MissingField {
        /// Name of the field.
        field: &'static str,
        /// Fork that introduced it.
        fork: EthereumHardfork,
    },
    /// A header field whose fork is not active yet is present.
    #[error("header field {field} is present, allowed only from {fork} on")]
    UnexpectedField {
        /// Name of the field.
        field: &'static str,
        /// Fork that introduces it.
        fork: EthereumHardfork,
    },
    /// Blob gas is no multiple of the gas of one blob (EIP-4844).
    #[error("blob gas used {got} is no multiple of {per_blob}")]
    BlobGasNotMultiple {
        /// In the header.
        got: u64,
        /// Gas of one blob.
        per_blob: u64,
    },
    /// More blobs than the block may carry.
    #[error("blob gas used {got} is above the maximum {max}")]
    BlobGasAboveMax {
        /// In the header.
        got: u64,
        /// Maximum at the block's time.
        max: u64,
    },

    // --- body ---
    /// The transactions do not match the header.
    #[error("transactions root is {got}, expected {expected} by the header")]
    TransactionsRoot {
        /// Of the body.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// The ommers do not match the header.
    #[error("ommers hash is {got}, expected {expected} by the header")]
    OmmersHash {
        /// Of the body.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// The withdrawals do not match the header (EIP-4895).
    #[error("withdrawals root is {got}, expected {expected} by the header")]
    WithdrawalsRoot {
        /// Of the body.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// The header commits to withdrawals, the body has no list of them.
    #[error("body has no withdrawals, the header commits to {expected}")]
    MissingWithdrawals {
        /// In the header.
        expected: B256,
    },
    /// The body has withdrawals, the header does not commit to them.
    #[error("body has {count} withdrawals, the header commits to none")]
    UnexpectedWithdrawals {
        /// Number of withdrawals.
        count: usize,
    },
    /// The encoded block is too large (EIP-7934).
    #[error("block has {got} bytes of RLP, at most {max} are allowed")]
    BlockTooLarge {
        /// Size in bytes.
        got: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// A transaction of a type that is not active yet.
    #[error("transaction {index} has type {ty}, allowed only from {fork} on")]
    TransactionType {
        /// Position in the block.
        index: usize,
        /// EIP-2718 type.
        ty: u8,
        /// Fork that introduces it.
        fork: EthereumHardfork,
    },
    /// The blobs of the transactions use other blob gas than the header states (EIP-4844).
    #[error("transactions use {got} blob gas, expected {expected} by the header")]
    BlobGasUsed {
        /// Sum over the body (or execution).
        got: u64,
        /// In the header.
        expected: u64,
    },

    // --- ommers ---
    /// More than two ommers.
    #[error("block has {got} ommers, at most {max} are allowed")]
    TooManyOmmers {
        /// Number of ommers.
        got: usize,
        /// Limit.
        max: usize,
    },
    /// The same ommer twice in this block.
    #[error("ommer {hash} is listed twice")]
    DuplicateOmmer {
        /// Hash of the ommer.
        hash: B256,
    },
    /// An ommer that an ancestor already includes.
    #[error("ommer {hash} is already included by ancestor {included_by}")]
    OmmerAlreadyIncluded {
        /// Hash of the ommer.
        hash: B256,
        /// Hash of the ancestor.
        included_by: B256,
    },
    /// An ommer that is an ancestor of the block.
    #[error("ommer {hash} is an ancestor of the block")]
    OmmerIsAncestor {
        /// Hash of the ommer.
        hash: B256,
    },
    /// An ommer whose parent is not a second to seventh generation ancestor.
    #[error("ommer {hash} has parent {parent}, which is no ancestor 2 to 7 generations back")]
    OmmerWithoutAncestor {
        /// Hash of the ommer.
        hash: B256,
        /// Its parent hash.
        parent: B256,
    },
    /// An ommer whose header is not valid itself.
    #[error("ommer {hash}: {error}")]
    InvalidOmmer {
        /// Hash of the ommer.
        hash: B256,
        /// What is wrong with it.
        #[source]
        error: Box<Self>,
    },
    /// An ancestor needed to check ommers is not in the database.
    #[error("ancestor {hash} is unknown: import the blocks before this one first")]
    UnknownAncestor {
        /// Hash of the ancestor.
        hash: B256,
    },
    /// Reading an ancestor failed. This says nothing about the block.
    #[error("cannot read ancestor {hash}: {reason}")]
    AncestorLookup {
        /// Hash of the ancestor.
        hash: B256,
        /// The provider's message.
        reason: String,
    },

    // --- after execution ---
    /// Execution used another amount of gas than the header states.
    #[error("execution used {got} gas, expected {expected} by the header")]
    GasUsed {
        /// By execution.
        got: u64,
        /// In the header.
        expected: u64,
    },
    /// Not one receipt (or intermediate state root) per transaction.
    #[error("execution gave {got} {what}, expected {expected}, one per transaction")]
    ReceiptCount {
        /// Receipts or state roots.
        what: &'static str,
        /// By execution.
        got: usize,
        /// Number of transactions.
        expected: usize,
    },
    /// The receipts of execution do not match the header.
    #[error("receipts root is {got}, expected {expected} by the header")]
    ReceiptsRoot {
        /// By execution.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// The logs of execution do not match the header.
    #[error("logs bloom is {got}, expected {expected} by the header")]
    LogsBloom {
        /// By execution.
        got: Box<Bloom>,
        /// In the header.
        expected: Box<Bloom>,
    },
    /// The requests to the consensus layer (EIP-7685) that execution gave do not match the header.
    #[error("requests hash is {got}, expected {expected} by the header")]
    RequestsHash {
        /// By execution.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// Execution gave requests before they exist (Prague).
    #[error("execution gave {count} requests, the header commits to none")]
    UnexpectedRequests {
        /// Number of requests.
        count: usize,
    },
    /// A block access list came with a block that commits to none.
    #[error("a block access list came with a block that commits to none")]
    UnexpectedAccessList,
    /// The block access list that came with a block is not the one that its header commits to.
    #[error(
        "the block access list that came with the block has hash {got}, expected {expected} by \
         the header"
    )]
    AccessListMismatch {
        /// Hash of the list that came.
        got: B256,
        /// In the header.
        expected: B256,
    },
    /// The header commits to bytes that are no well-formed block access list.
    #[error("the block access list is malformed: {reason}")]
    MalformedAccessList {
        /// What is wrong with its encoding or its order.
        reason: String,
    },
    /// The block access list is longer than the block's gas limit allows (EIP-7928).
    #[error(
        "the block access list has {items} accounts and slots, at most {limit} are allowed with a \
         gas limit of {gas_limit}"
    )]
    AccessListItems {
        /// Accounts and slots in the list.
        items: u64,
        /// Largest number allowed.
        limit: u64,
        /// In the header.
        gas_limit: u64,
    },
    /// The block access list that execution built does not match the header (EIP-7928).
    #[error("block access list hash is {got}, expected {expected} by the header")]
    BlockAccessListHash {
        /// By execution.
        got: B256,
        /// In the header.
        expected: B256,
    },
}

impl ConsensusError {
    /// Adds the number and hash of the block.
    pub fn in_block(self, header: &SealedHeader) -> InvalidBlock {
        InvalidBlock { number: header.number, hash: header.hash(), error: self }
    }

    /// Whether the error is about this node rather than about the block. The block may then be
    /// valid, and the caller must not remember it as invalid.
    pub const fn is_local(&self) -> bool {
        matches!(
            self,
            Self::UnknownAncestor { .. }
                | Self::AncestorLookup { .. }
                | Self::FutureTimestamp { .. }
        )
    }
}

/// A refused block and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block {number} ({hash}): {error}")]
pub struct InvalidBlock {
    /// Number of the block.
    pub number: u64,
    /// Hash of the block.
    pub hash: B256,
    /// The broken rule.
    #[source]
    pub error: ConsensusError,
}
