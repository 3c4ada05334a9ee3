//! Errors of the Engine API.

use crate::EngineError;

/// Why a call failed, with the codes of the specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineApiError {
    /// The payload is unknown or was dropped.
    #[error("Unknown payload")]
    UnknownPayload,
    /// The request asks for too many items.
    #[error("Too large request: {len} items, at most {max}")]
    TooLarge {
        /// Number of requested items.
        len: u64,
        /// Largest allowed number.
        max: u64,
    },
    /// The method version does not match the fork.
    #[error("Unsupported fork: {0}")]
    UnsupportedFork(&'static str),
    /// The payload attributes are invalid, or this node cannot build payloads.
    #[error("Invalid payload attributes: {0}")]
    InvalidAttributes(String),
    /// The parameters are invalid.
    #[error("Invalid params: {0}")]
    InvalidParams(String),
    /// Blocks have no execution witnesses.
    #[error("backend {backend} has no execution witness of this block: {why}")]
    NoWitness {
        /// The backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The engine refused the command or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl EngineApiError {
    /// The JSON-RPC error code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::UnknownPayload => -38001,
            Self::Engine(EngineError::InvalidForkchoice { .. } | EngineError::ZeroHead) => -38002,
            Self::InvalidAttributes(_) => -38003,
            Self::TooLarge { .. } => -38004,
            Self::UnsupportedFork(_) => -38005,
            Self::Engine(EngineError::TooDeepReorg { .. }) => -38006,
            Self::InvalidParams(_) => -32602,
            Self::NoWitness { .. } => -32000,
            Self::Engine(_) => -32603,
        }
    }
}
