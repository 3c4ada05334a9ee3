//! Why a trace file cannot be read, and why none could be made.

use crate::state::real::TraceError;
use parquet::errors::ParquetError;
use retrie_sources::{RpcError, SourceError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a trace file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct TraceFileError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub fault: TraceFault,
}

/// What is wrong with a trace file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// It cannot be read.
    #[error("reading failed: {0}")]
    Io(io::Error),
    /// It is another file.
    #[error("this is no trace file: make one with `retrie bench trace make`")]
    NotATrace,
    /// It has another version.
    #[error(
        "the trace has version {found}, and this program reads version {}: make it again",
        super::format::VERSION
    )]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Its end is missing.
    #[error("the trace is truncated: its end is missing; make or copy it again")]
    Truncated,
    /// Its bytes have changed.
    #[error("the trace is damaged: its checksum differs; make or copy it again")]
    Checksum,
    /// Its checksum is right, and its content is not.
    #[error("after {blocks} blocks the trace is no trace: {what}")]
    Content {
        /// Number of whole blocks before.
        blocks: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// Why a trace could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeTraceError {
    /// The blocks of the data folder cannot be read.
    #[error(transparent)]
    Corpus(#[from] TraceError),
    /// The node gave no usable answer.
    #[error(transparent)]
    Node(#[from] RpcError),
    /// The two lists of answers about a block have different lengths.
    #[error(
        "block {number}: the prestate tracer answered for {touched} transactions, and with diffMode \
         for {changed}: ask for both again"
    )]
    UnequalAnswers {
        /// Number of the block.
        number: u64,
        /// Transactions with a prestate.
        touched: usize,
        /// Transactions with a diff.
        changed: usize,
    },
    /// A line of a file is no answer about a block.
    #[error(
        "{}, line {line}: {source}; a line is {{\"number\": N, \"diff\": RESULT, \"prestate\": \
         RESULT}} with results of debug_traceBlockByNumber",
        file.display()
    )]
    Answer {
        /// The file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// A file or folder cannot be read.
    #[error("{action} {} failed: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Files of Parquet tables are missing.
    #[error(
        "{} has no file {table}__{range}.parquet: export balance_diffs, nonce_diffs, code_diffs and \
         storage_diffs of the same blocks into it",
        folder.display()
    )]
    MissingTable {
        /// The folder.
        folder: PathBuf,
        /// The table.
        table: &'static str,
        /// The blocks in a file's name, or `*`.
        range: String,
    },
    /// A Parquet file cannot be read.
    #[error("{}: {source}", file.display())]
    Parquet {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: ParquetError,
    },
    /// A row of a Parquet file is not one of its table.
    #[error("{}: a row has no usable `{column}`: is this a table of state changes?", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// The column.
        column: &'static str,
    },
    /// A block does not come after the one before it.
    #[error("block {number} comes after block {after}: put the blocks in rising order, each once")]
    Order {
        /// Number of the block.
        number: u64,
        /// The block before it.
        after: u64,
    },
    /// No block accesses a key.
    #[error("no block accesses a key: there is nothing to write")]
    NoBlocks,
    /// A synthetic trace cannot have these counts.
    #[error("{0}")]
    Recipe(String),
    /// The trace file cannot be created, or not be completed.
    #[error(transparent)]
    Target(Box<SourceError>),
    /// The trace file cannot be written.
    #[error("writing {} failed: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

impl MakeTraceError {
    /// An error of reading, or of writing, a file or folder.
    pub(super) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }
}
