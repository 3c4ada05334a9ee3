//! Errors of the engine.

use alloy_primitives::B256;
use retrie_pipeline::PipelineError;
use retrie_state::StateError;

/// Why the engine did not execute a command. An invalid block is an answer and not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The consensus client names a safe or finalized block that is unknown, or no ancestor of the
    /// head it names.
    #[error("the {what} block {hash} is not an ancestor of the head")]
    InvalidForkchoice {
        /// `safe` or `finalized`.
        what: &'static str,
        /// The block named.
        hash: B256,
    },
    /// The consensus client names no head.
    #[error("the head block of a forkchoice update is the zero hash, which is no block")]
    ZeroHead,
    /// The head cannot be set back to this block, since it is not canonical.
    #[error(
        "block {hash} is not on the canonical chain: the head can only be set back to a canonical \
         block"
    )]
    NotCanonical {
        /// The block named.
        hash: B256,
    },
    /// The new head leaves the canonical chain below the oldest state that can be restored.
    #[error("block {number} ({hash}) cannot become the head: {source}")]
    TooDeepReorg {
        /// Number of the new head.
        number: u64,
        /// Its hash.
        hash: B256,
        /// The limit, and how to raise it.
        source: StateError,
    },
    /// Verification or storage failed for a reason other than the block.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A payload could not be built.
    #[error("the payload could not be built: {reason}")]
    Build {
        /// Why.
        reason: String,
    },
    /// A thread could not be started.
    #[error("starting a thread of the engine: {0}")]
    Thread(std::io::Error),
    /// The engine has ended; the log says why.
    #[error("the engine has stopped")]
    Stopped,
    /// The engine's thread has panicked.
    #[error("the engine's thread has panicked; what is durable is whole")]
    Panicked,
}
