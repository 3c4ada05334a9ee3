//! Why an export stopped.

use alloy_primitives::B256;
use parquet::errors::ParquetError;
use retrie_consensus::ConsensusError;
use retrie_db::DbError;
use retrie_execution::ExecutionError;
use retrie_pipeline::PipelineError;
use retrie_report::ReportError;
use retrie_sources::SourceError;
use retrie_state::StateError;
use std::{io, path::PathBuf};

/// Why an export stopped. Files under their final names are complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The database cannot be read.
    #[error(transparent)]
    Db(#[from] DbError),
    /// A bundle cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A bundle cannot be executed.
    #[error(transparent)]
    Bundle(Box<PipelineError>),
    /// A report cannot be read.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A block does not exist.
    #[error("block {number} is not stored")]
    NoBlock {
        /// Number.
        number: u64,
    },
    /// Some of the requested blocks do not exist.
    #[error("blocks {from} to {to} are not all there: the chain has {first} to {last}")]
    MissingBlocks {
        /// First requested block.
        from: u64,
        /// Last requested block.
        to: u64,
        /// First existing block.
        first: u64,
        /// Last existing block.
        last: u64,
    },
    /// The state of a block's parent, on which the block would be executed, is not kept.
    #[error(
        "the changes of block {number} are unknown: the state of its parent is not kept ({source})"
    )]
    NoState {
        /// Number.
        number: u64,
        /// Why.
        source: Box<StateError>,
    },
    /// The state cannot be opened.
    #[error("opening the state: {0}")]
    State(Box<StateError>),
    /// A block cannot be executed.
    #[error("block {number} ({hash}): {source}")]
    Execution {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// Why.
        source: Box<ExecutionError>,
    },
    /// The outcome of a block does not match its header.
    #[error("block {number} ({hash}): {source}")]
    Outcome {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// The difference.
        source: Box<ConsensusError>,
    },
    /// A contract code that the state names is missing.
    #[error("block {number}: code {hash} of account {address} is missing")]
    NoCode {
        /// Block that changed it.
        number: u64,
        /// keccak-256 of the code.
        hash: B256,
        /// The account.
        address: alloy_primitives::Address,
    },
    /// A value of the state does not decode.
    #[error("block {number}: the value of {key} is not canonical")]
    BadValue {
        /// Block that changed it.
        number: u64,
        /// The key.
        key: retrie_state::StateKey,
    },
    /// A number does not fit the type of its column.
    #[error(
        "block {number}: {column} is {value}, which does not fit into the 32 bits of its column"
    )]
    TooLarge {
        /// Number.
        number: u64,
        /// Column.
        column: &'static str,
        /// The value.
        value: u64,
    },
    /// Two bundles of one block number have different blocks.
    #[error(
        "{} holds block {number} ({hash}), but another bundle has another block {number}: export \
         them into different folders",
        file.display()
    )]
    TwoBlocks {
        /// Number.
        number: u64,
        /// Hash of one.
        hash: B256,
        /// Its file.
        file: PathBuf,
    },
    /// A file cannot be written or read.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written as Parquet.
    #[error("{}: cannot write it as Parquet: {source}", path.display())]
    Parquet {
        /// File.
        path: PathBuf,
        /// The cause.
        source: Box<ParquetError>,
    },
    /// A file under a name that the export would write is damaged.
    #[error("{} is not whole: {what}", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A file under a name that the export would write holds something else.
    #[error("{} holds something else: {what}", path.display())]
    OtherContent {
        /// File.
        path: PathBuf,
        /// The content.
        what: String,
    },
    /// Another file of the same table has some of the blocks, which would then be exported twice.
    #[error(
        "{} also has some of the blocks {first} to {last}, which would be exported twice",
        path.display()
    )]
    Overlap {
        /// File.
        path: PathBuf,
        /// First block of the chunk.
        first: u64,
        /// Last block of the chunk.
        last: u64,
    },
    /// Another process is writing this file.
    #[error("another export is writing {}", path.display())]
    Busy {
        /// File.
        path: PathBuf,
    },
    /// The user has stopped it.
    #[error(
        "stopped before block {number}; {files} files are complete, and the same command continues \
         from there"
    )]
    Stopped {
        /// The block.
        number: u64,
        /// Files written or found in this run.
        files: u64,
    },
}

impl From<PipelineError> for ExportError {
    fn from(error: PipelineError) -> Self {
        Self::Bundle(Box::new(error))
    }
}
