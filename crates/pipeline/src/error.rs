//! Why an import or a replay stopped. Every message names block or file and the cause.

use alloy_primitives::B256;
use retrie_consensus::ConsensusError;
use retrie_db::DbError;
use retrie_execution::ExecutionError;
use retrie_sources::{Bundle, SourceError};
use retrie_state::{StateError, StoreError};
use std::path::PathBuf;

/// Why the pipeline stopped. Blocks before the one named are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A block file or bundle cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A block breaks a rule of its header or body, or its outcome is not what its header says.
    #[error("block {number} ({hash}) is invalid: {source}")]
    InvalidBlock {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// The rule.
        source: Box<ConsensusError>,
    },
    /// A signature from which no sender can be recovered.
    #[error("block {number}: transaction {index} has an invalid signature")]
    InvalidSignature {
        /// Block number.
        number: u64,
        /// Index of the transaction.
        index: usize,
    },
    /// The parent is not known.
    #[error(
        "block {number} ({hash}) has the unknown parent {parent}; the last block known is {head}: \
         import the blocks in between first"
    )]
    UnknownParent {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// Hash of its parent.
        parent: B256,
        /// Number of the head.
        head: u64,
    },
    /// The first block of the chain is another one.
    #[error(
        "block 0 of the source is {got}, but chain {chain} starts with {expected}; check --chain"
    )]
    ForeignGenesis {
        /// Hash in the source.
        got: B256,
        /// Hash of the chain's genesis.
        expected: B256,
        /// Chain name.
        chain: String,
    },
    /// The state root computed is not the header's.
    #[error(
        "block {number} ({hash}): state root is {got} by backend {backend}, the header says \
         {expected}"
    )]
    StateRoot {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// Root in the header.
        expected: B256,
        /// Root computed.
        got: B256,
        /// Who computed it.
        backend: &'static str,
    },
    /// A backend whose roots are not Ethereum's was asked to check the header's.
    #[error(
        "backend {backend} does not compute Ethereum's state roots: use --state-root shadow, or \
         --referee mpt beside it"
    )]
    NoHeaderRoot {
        /// Backend name.
        backend: &'static str,
    },
    /// A witness bundle lists no pre-state, and none can be found.
    #[error(
        "a bundle of block {number} in {file} has no pre-state, and no backend opens its witness"
    )]
    MissingPreState {
        /// Block number.
        number: u64,
        /// The bundle.
        file: PathBuf,
    },
    /// A bundle's state cannot be opened or updated.
    #[error("{file}: block {number}: {source}")]
    Bundle {
        /// The bundle.
        file: PathBuf,
        /// Block number.
        number: u64,
        /// What failed.
        source: Box<StateError>,
    },
    /// Two states of one datadir disagree about the tip.
    #[error(
        "the referee's state is at block {referee}, the backend's at block {backend}: the datadir \
         was used without --referee; drop the flag, or import afresh with it"
    )]
    RefereeBehind {
        /// Tip of the referee.
        referee: String,
        /// Tip of the backend.
        backend: String,
    },
    /// Execution failed, or a transaction is invalid.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The state store failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The key-value store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain's tables failed.
    #[error(transparent)]
    Db(#[from] DbError),
    /// A directory or thread could not be made.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A thread of the pipeline died.
    #[error("the pipeline's {thread} thread stopped unexpectedly; see the log")]
    Thread {
        /// Its name.
        thread: &'static str,
    },
}

impl PipelineError {
    pub(crate) fn invalid(
        block: &retrie_chainspec::primitives::SealedBlock,
        source: ConsensusError,
    ) -> Self {
        Self::InvalidBlock {
            number: block.header().number,
            hash: block.hash(),
            source: Box::new(source),
        }
    }

    pub(crate) fn bundle(bundle: &Bundle, source: StateError) -> Self {
        Self::Bundle { file: bundle.file.clone(), number: bundle.number, source: Box::new(source) }
    }

    /// Whether the error is a verdict about a block, independent of this machine.
    pub fn is_invalid_block(&self) -> bool {
        match self {
            Self::InvalidBlock { .. } | Self::InvalidSignature { .. } | Self::StateRoot { .. } => {
                true
            }
            Self::Execution(error) => error.is_invalid_block(),
            _ => false,
        }
    }
}
