//! Why a block could not be executed.

use crate::DepositLayoutError;
use alloy_evm::block::BlockValidationError;
use alloy_primitives::{Address, B256};
use retrie_log_tables::TableSpan;
use retrie_state::StateError;

/// Why a read of the EVM failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The state could not be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// An account names a code that is not stored.
    #[error(
        "code {hash} of {} is not stored; the code table is incomplete, import again or complete \
         the bundle",
        display_owner(.address)
    )]
    MissingCode {
        /// keccak-256 of the code.
        hash: B256,
        /// An account with this code, where known.
        address: Option<Address>,
    },
    /// A simulated block clears a storage that is too large to be listed.
    #[error(
        "clearing the storage of account {address} needs more than the {limit} slots that this \
         simulated block may still clear"
    )]
    StorageTooLarge {
        /// The account.
        address: Address,
        /// Slots that may still be cleared.
        limit: usize,
    },
    /// A block of a chain with index tables stores the root of a table whose blocks are not all known.
    #[error(
        "the index table of blocks {} to {} (EIP-8304) needs their receipts, which are not all there: \
         keep those of the last 320 blocks, or start from an older block",
        .0.first(), .0.last()
    )]
    MissingTable(TableSpan),
    /// BLOCKHASH needs an ancestor whose hash is not known.
    #[error("hash of ancestor block {number} is not known; provide the headers before this block")]
    MissingBlockHash {
        /// Number of the ancestor.
        number: u64,
    },
}

fn display_owner(address: &Option<Address>) -> String {
    address.map_or_else(|| "an account".into(), |address| format!("account {address}"))
}

impl revm::context::DBErrorMarker for DatabaseError {}

/// The error of an observer.
pub type ObserverError = Box<dyn core::error::Error + Send + Sync>;

/// Why the execution of a block failed.
///
/// [`InvalidTransaction`](Self::InvalidTransaction) and [`InvalidBlock`](Self::InvalidBlock) are
/// verdicts about the block ([`is_invalid_block`](Self::is_invalid_block)); all others say nothing
/// about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutionError {
    /// A transaction of the block may not be included there.
    #[error("block {number}: transaction {index} is invalid: {source}")]
    InvalidTransaction {
        /// Block number.
        number: u64,
        /// Index of the transaction in the block.
        index: usize,
        /// The rule it breaks.
        source: Box<BlockValidationError>,
    },
    /// The block breaks a rule outside its transactions (system call, requests, ommers, header).
    #[error("block {number} is invalid: {reason}")]
    InvalidBlock {
        /// Block number.
        number: u64,
        /// The rule it breaks.
        reason: String,
    },
    /// A log of the deposit contract does not have the layout of EIP-6110.
    #[error(
        "block {number} is invalid: log {log} of transaction {transaction} is no deposit \
         (EIP-6110): {source}"
    )]
    InvalidDeposit {
        /// Block number.
        number: u64,
        /// Index of the transaction in the block.
        transaction: usize,
        /// Index of the log in the transaction.
        log: usize,
        /// How it differs.
        source: DepositLayoutError,
    },
    /// State, code or ancestor hash could not be read.
    #[error("block {number}, {}: {source}", display_place(.index))]
    Database {
        /// Block number.
        number: u64,
        /// Index of the transaction; `None` around the transactions (system calls, rewards).
        index: Option<usize>,
        /// What failed.
        source: Box<DatabaseError>,
    },
    /// The EVM itself failed, e.g. a precompile without its implementation.
    #[error("block {number}, {}: the EVM failed: {reason}", display_place(.index))]
    Evm {
        /// Block number.
        number: u64,
        /// Index of the transaction; `None` around the transactions.
        index: Option<usize>,
        /// Its message.
        reason: String,
    },
    /// The observer stopped the execution.
    #[error("block {number}, after transaction {index}: {source}")]
    Observer {
        /// Block number.
        number: u64,
        /// Index of the transaction it was called for.
        index: usize,
        /// Its error.
        source: ObserverError,
    },
}

fn display_place(index: &Option<usize>) -> String {
    index.map_or_else(
        || "before or after its transactions".into(),
        |index| format!("transaction {index}"),
    )
}

impl ExecutionError {
    /// The block that could not be executed.
    pub const fn block_number(&self) -> Option<u64> {
        match self {
            Self::InvalidTransaction { number, .. }
            | Self::InvalidBlock { number, .. }
            | Self::InvalidDeposit { number, .. }
            | Self::Database { number, .. }
            | Self::Evm { number, .. }
            | Self::Observer { number, .. } => Some(*number),
        }
    }

    /// Whether the error is a verdict about the block, independent of this machine.
    pub const fn is_invalid_block(&self) -> bool {
        matches!(
            self,
            Self::InvalidTransaction { .. }
                | Self::InvalidBlock { .. }
                | Self::InvalidDeposit { .. }
        )
    }

    /// The state error underneath, if that is the cause.
    pub fn as_state(&self) -> Option<&StateError> {
        match self {
            Self::Database { source, .. } => match &**source {
                DatabaseError::State(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }
}
