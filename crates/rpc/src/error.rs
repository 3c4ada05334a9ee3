//! Errors as they go over the wire: codes of the specification, words of geth.

use alloy_primitives::{B256, Bytes};
use jsonrpsee::types::{ErrorObjectOwned, error::INTERNAL_ERROR_CODE};
use retrie_db::DbError;
use retrie_engine::{StatesError, pool::PoolError};
use retrie_pipeline::PipelineError;
use retrie_state::StateError;
use std::time::Duration;

/// What a method returns.
pub type RpcResult<T> = Result<T, RpcError>;

/// An execution that was to be that of a stored block, and gave something else.
#[derive(Debug, thiserror::Error)]
#[error(
    "block {number} ({hash}) cannot be executed again as it was: {what} {executed}, and {stored} is \
     stored; the state before it, or its rules, are others than they were"
)]
pub struct ReplayMismatch {
    /// Number of the block.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// What differs.
    pub what: String,
    /// What it came to.
    pub executed: String,
    /// What is stored of it.
    pub stored: String,
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// A block that nobody knows.
    #[error("header not found")]
    HeaderNotFound,
    /// A block named by a tag that has none yet.
    #[error("{0} block not found")]
    NoSuchTag(&'static str),
    /// A block that was asked for as canonical and is not (EIP-1898).
    #[error("hash is not currently canonical")]
    NotCanonical,
    /// A filter that was never installed, was uninstalled, or has expired.
    #[error("filter not found")]
    FilterNotFound,
    /// Parameters that make no sense.
    #[error("{0}")]
    InvalidParams(String),
    /// A request that cannot be served, as geth words it.
    #[error("{0}")]
    Rejected(String),
    /// An execution that was reverted, with what it returned.
    #[error("{message}")]
    Reverted {
        /// `execution reverted`, and the reason if there is one.
        message: String,
        /// Return data.
        output: Bytes,
    },
    /// An execution that halted: out of gas, an invalid instruction.
    #[error("{0}")]
    Halted(String),
    /// A transaction that is in the pool, and was not mined while its sender waited (EIP-7966).
    #[error(
        "The transaction was added to the transaction pool but wasn't processed in {:?}",
        .waited
    )]
    NotMinedInTime {
        /// Its hash.
        hash: B256,
        /// How long the sender waited.
        waited: Duration,
    },
    /// An error with a code of its own.
    #[error("{message}")]
    Coded {
        /// JSON-RPC code.
        code: i32,
        /// What is wrong.
        message: String,
    },
    /// The chain, the state or the database failed, or does not have what was asked for.
    #[error(transparent)]
    Chain(#[from] PipelineError),
    /// A block that does not execute again as it did.
    #[error(transparent)]
    Replay(#[from] ReplayMismatch),
    /// Something that must not happen.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<DbError> for RpcError {
    fn from(error: DbError) -> Self {
        Self::Chain(error.into())
    }
}

impl From<StateError> for RpcError {
    fn from(error: StateError) -> Self {
        Self::Chain(error.into())
    }
}

impl From<StatesError> for RpcError {
    fn from(error: StatesError) -> Self {
        match error {
            StatesError::Chain(error) => Self::Chain(error),
            busy => Self::Coded { code: Self::BUSY, message: busy.to_string() },
        }
    }
}

impl From<PoolError> for RpcError {
    fn from(error: PoolError) -> Self {
        Self::Rejected(error.to_string())
    }
}

impl RpcError {
    /// As tools for dev chains expect it: an execution that halted has reverted without data.
    pub(crate) fn for_dev_tools(self) -> Self {
        match self {
            Self::Halted(message) => Self::Reverted { message, output: Bytes::new() },
            error => error,
        }
    }

    /// Code of a request for a body that is not kept (EIP-4444), as geth numbers it.
    pub const PRUNED: i32 = 4444;
    /// Code of a request that was understood and cannot be served.
    pub const SERVER: i32 = -32000;
    /// Code of a method that does not exist.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Code of parameters that make no sense.
    pub const INVALID_PARAMS: i32 = -32602;
    /// Code of a request for which there is no room now, as others hold it (EIP-1474).
    pub const BUSY: i32 = -32005;
    /// Code of a request of a batch that came to its end before the request was answered, as geth's.
    pub const TIMED_OUT: i32 = -32002;
    /// Code of a request that asks for more than this node gives at once.
    pub const CLIENT_LIMIT: i32 = -38026;
    /// Code of an execution that was reverted.
    pub const REVERTED: i32 = 3;
    /// Code of a transaction that is in the pool, and was not mined in time (EIP-7966).
    pub const NOT_MINED_IN_TIME: i32 = 4;

    fn code(&self) -> i32 {
        match self {
            Self::InvalidParams(_) => Self::INVALID_PARAMS,
            Self::Reverted { .. } => Self::REVERTED,
            Self::NotMinedInTime { .. } => Self::NOT_MINED_IN_TIME,
            Self::Coded { code, .. } => *code,
            Self::Internal(_) => INTERNAL_ERROR_CODE,
            Self::Chain(error) if error.is_pruned() => Self::PRUNED,
            Self::HeaderNotFound
            | Self::NoSuchTag(_)
            | Self::NotCanonical
            | Self::FilterNotFound
            | Self::Rejected(_)
            | Self::Halted(_)
            | Self::Replay(_)
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
        let message = match error.code() {
            RpcError::PRUNED => "pruned history unavailable".to_owned(),
            _ => error.to_string(),
        };
        Self::owned(error.code(), message, data)
    }
}
