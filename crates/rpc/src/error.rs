//! Errors of requests: codes of the specifications, texts of geth.

use alloy_primitives::{B256, Bytes};
use jsonrpsee::types::{ErrorObjectOwned, error::INTERNAL_ERROR_CODE};
use retrie_db::{ChainRead, DbError, ReadError};
use retrie_engine::{LiveView, StateServeError, pool::PoolError};
use retrie_execution::CallRequestError;
use retrie_pipeline::PipelineError;
use retrie_state::StateError;
use std::time::Duration;

/// The result of a method.
pub type RpcResult<T> = Result<T, RpcError>;

/// A replay of a stored block with another outcome than the stored one.
#[derive(Debug, thiserror::Error)]
#[error(
    "block {number} ({hash}) cannot be executed again as it was: {what} {executed}, but {stored} \
     is stored; the parent's state or the chain's rules have changed"
)]
pub struct ReplayMismatch {
    /// Number of the block.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// What differs.
    pub what: String,
    /// The value of the replay.
    pub executed: String,
    /// The stored value.
    pub stored: String,
}

/// Why a search by address was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressIndexError {
    /// There is no index, or nothing is in it yet.
    #[error(
        "this node has no index of addresses: start it with --index.addresses (if that is set, the \
         first step of the index is still to come)"
    )]
    Off,
    /// Too many blocks are above the index.
    #[error(
        "the index of addresses ends at block {indexed}, and the search goes up to block {wanted}: \
         the index is still being made, or --index.addresses is not set any more; try again later"
    )]
    Behind {
        /// The last indexed block.
        indexed: u64,
        /// The last block of the search.
        wanted: u64,
    },
    /// A block that the search needs is gone.
    #[error("block {number} is not kept")]
    NoBlock {
        /// Its number.
        number: u64,
    },
    /// The index has no answer, and the search among old states lacks one of them.
    #[error(
        "this search needs --index.addresses (and that its blocks are indexed), or the state of \
         block {number}: {reason}"
    )]
    NoState {
        /// Number of the block.
        number: u64,
        /// Why its state cannot be read.
        reason: String,
    },
    /// The block is known, and its internal calls are not.
    #[error(
        "the internal calls of block {number} are not known: the state before it was not kept when \
         it was indexed"
    )]
    NoTrace {
        /// Number of the block.
        number: u64,
    },
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// There is no such block.
    #[error("header not found")]
    HeaderNotFound,
    /// No block has this tag yet.
    #[error("{0} block not found")]
    NoSuchTag(&'static str),
    /// The request requires a canonical block, and the block is not (EIP-1898).
    #[error("hash is not currently canonical")]
    NotCanonical,
    /// A filter that was never installed, was uninstalled, or has expired.
    #[error("filter not found")]
    FilterNotFound,
    /// Invalid parameters.
    #[error("{0}")]
    InvalidParams(String),
    /// A request that cannot be served, with geth's text.
    #[error("{0}")]
    Rejected(String),
    /// An execution that reverted.
    #[error("{message}")]
    Reverted {
        /// `execution reverted`, with the reason if there is one.
        message: String,
        /// Return data.
        output: Bytes,
    },
    /// An execution that halted: out of gas, an invalid instruction.
    #[error("{0}")]
    Halted(String),
    /// The pool has the transaction, but no block included it before the timeout (EIP-7966).
    #[error(
        "The transaction was added to the transaction pool but wasn't processed in {:?}",
        .waited
    )]
    NotMinedInTime {
        /// Its hash.
        hash: B256,
        /// The timeout of the request.
        waited: Duration,
    },
    /// An error with its own code.
    #[error("{message}")]
    Coded {
        /// JSON-RPC code.
        code: i32,
        /// The text.
        message: String,
    },
    /// The chain, the state or the database failed or lacks the data.
    #[error(transparent)]
    Chain(#[from] PipelineError),
    /// Receipts, and logs in them, that are no longer there.
    #[error("receipts are kept from block {first} on, and block {number} is older")]
    PrunedReceipts {
        /// The block that was asked for.
        number: u64,
        /// From this block on all blocks have their receipts.
        first: u64,
    },
    /// A replay that differs from the stored outcome.
    #[error(transparent)]
    Replay(#[from] ReplayMismatch),
    /// A search by address.
    #[error(transparent)]
    AddressIndex(#[from] AddressIndexError),
    /// A bug.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<DbError> for RpcError {
    fn from(error: DbError) -> Self {
        Self::Chain(error.into())
    }
}

impl From<ReadError> for RpcError {
    fn from(error: ReadError) -> Self {
        Self::Chain(error.into())
    }
}

impl From<StateError> for RpcError {
    fn from(error: StateError) -> Self {
        Self::Chain(error.into())
    }
}

impl From<StateServeError> for RpcError {
    fn from(error: StateServeError) -> Self {
        match error {
            StateServeError::Chain(error) => Self::Chain(error),
            busy => Self::Coded { code: Self::BUSY, message: busy.to_string() },
        }
    }
}

impl From<CallRequestError> for RpcError {
    fn from(error: CallRequestError) -> Self {
        Self::Rejected(error.to_string())
    }
}

impl From<PoolError> for RpcError {
    fn from(error: PoolError) -> Self {
        Self::Rejected(error.to_string())
    }
}

impl RpcError {
    /// The form that tools for dev chains expect: a halted execution is a revert without data.
    pub(crate) fn for_dev_tools(self) -> Self {
        match self {
            Self::Halted(message) => Self::Reverted { message, output: Bytes::new() },
            error => error,
        }
    }

    /// Code for bodies, receipts and logs that are not kept (EIP-4444), as in geth and reth.
    pub const PRUNED: i32 = 4444;
    /// Code of a valid request that cannot be served.
    pub const SERVER: i32 = -32000;
    /// Code of a method that does not exist.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Code of invalid parameters.
    pub const INVALID_PARAMS: i32 = -32602;
    /// Code of a request for which the server has no capacity now (EIP-1474).
    pub const BUSY: i32 = -32005;
    /// Code of a batch entry that was not answered before the batch timeout, as in geth.
    pub const TIMED_OUT: i32 = -32002;
    /// Code of a request that exceeds a limit of this node.
    pub const CLIENT_LIMIT: i32 = -38026;
    /// Code of an execution that was reverted.
    pub const REVERTED: i32 = 3;
    /// Code of a pooled transaction that was not mined before the timeout (EIP-7966).
    pub const NOT_MINED_IN_TIME: i32 = 4;

    /// The error for a known block without receipts: they were pruned, or the block, on a branch, was
    /// never executed.
    pub(crate) fn no_receipts(view: &LiveView, hash: &B256) -> Self {
        let pruned = || -> RpcResult<Option<Self>> {
            let first = view.durable().receipts_pruned_below()?;
            let number = view.block_number(hash)?.filter(|number| *number < first);
            Ok(number.map(|number| Self::PrunedReceipts { number, first }))
        };
        match pruned() {
            Ok(Some(pruned)) => pruned,
            Ok(None) => Self::Rejected(format!("the receipts of block {hash} are not kept")),
            Err(error) => error,
        }
    }

    /// The text that clients get.
    pub(crate) fn client_message(&self) -> String {
        match self.code() {
            Self::PRUNED => "pruned history unavailable".to_owned(),
            _ => self.to_string(),
        }
    }

    /// Whether the state of a block is not kept, or no longer.
    pub(crate) fn lacks_state(&self) -> bool {
        matches!(self, Self::Chain(error) if error.lacks_state())
    }

    /// The code of the error.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::InvalidParams(_) => Self::INVALID_PARAMS,
            Self::Reverted { .. } => Self::REVERTED,
            Self::NotMinedInTime { .. } => Self::NOT_MINED_IN_TIME,
            Self::Coded { code, .. } => *code,
            Self::Internal(_) => INTERNAL_ERROR_CODE,
            Self::Chain(error) if error.is_pruned() => Self::PRUNED,
            Self::PrunedReceipts { .. } => Self::PRUNED,
            Self::HeaderNotFound
            | Self::NoSuchTag(_)
            | Self::NotCanonical
            | Self::FilterNotFound
            | Self::Rejected(_)
            | Self::Halted(_)
            | Self::Replay(_)
            | Self::AddressIndex(_)
            | Self::Chain(_) => Self::SERVER,
        }
    }
}

impl From<RpcError> for ErrorObjectOwned {
    fn from(error: RpcError) -> Self {
        let data = match &error {
            RpcError::Reverted { output, .. } => Some(output.clone()),
            RpcError::NotMinedInTime { hash, .. } => Some(Bytes::copy_from_slice(hash.as_slice())),
            _ => None,
        };
        Self::owned(error.code(), error.client_message(), data)
    }
}
