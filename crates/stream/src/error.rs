//! Errors of streams.

use crate::CursorTextError;
use retrie_engine::EngineError;
use retrie_pipeline::PipelineError;
use retrie_state::BlockRef;
use std::{io, path::PathBuf};

/// Why a stream cannot start, or cannot go on now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The chain cannot be read.
    #[error(transparent)]
    Chain(#[from] PipelineError),
    /// The block of the position, or one below it, was undone and is not known any more.
    #[error(
        "block {block} of the stream is not known: it was undone and forgotten, or this node does not \
         have it yet, and the position does not say what was below it; resume from an older cursor, \
         or begin a new stream"
    )]
    UnknownBlock {
        /// The block.
        block: BlockRef,
    },
    /// A cursor names a block by the wrong number.
    #[error("the cursor says that block {block} exists, but its hash belongs to block {number}")]
    WrongNumber {
        /// The block of the cursor.
        block: BlockRef,
        /// The number of the block with that hash.
        number: u64,
    },
    /// The cursor file is not usable.
    #[error(transparent)]
    CursorFile(#[from] CursorFileError),
    /// The sink did not take the records.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A record cannot be written as JSON.
    #[error("writing a record of block {block} as JSON: {source}")]
    Json {
        /// The block.
        block: BlockRef,
        /// The cause.
        source: serde_json::Error,
    },
    /// A thread cannot start.
    #[error(transparent)]
    Thread(Box<EngineError>),
}

impl From<EngineError> for StreamError {
    fn from(error: EngineError) -> Self {
        Self::Thread(Box::new(error))
    }
}

/// Why a cursor file is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CursorFileError {
    /// It cannot be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// `reading`, `writing`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not what a stream writes.
    #[error(
        "{} is not the cursor file of a stream: {reason}; restore it, or move it and the records \
         away to begin a new stream",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It belongs to another chain.
    #[error(
        "{} belongs to a stream of the chain that begins with block {found}, and this chain begins \
         with {expected}: name another target",
        path.display()
    )]
    OtherChain {
        /// The file.
        path: PathBuf,
        /// The genesis block in the file.
        found: String,
        /// The genesis block of this chain.
        expected: String,
    },
}

/// Why a sink did not take records. The stream tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// A file cannot be opened, read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// `opening`, `writing`, ..
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process writes the file.
    #[error("{} is written by another process, or by another stream of this one", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file has records, and its cursor file is missing.
    #[error(
        "{} has records, but its cursor file {} is missing: restore it, or move the records away to \
         begin a new stream",
        path.display(),
        cursor.display()
    )]
    NoCursorFile {
        /// The file of records.
        path: PathBuf,
        /// The missing file.
        cursor: PathBuf,
    },
    /// The file is shorter than it was at the last checkpoint.
    #[error(
        "{} has {found} bytes, and had {expected} at the last checkpoint: records are lost; restore \
         it, or empty it to go on behind them",
        path.display()
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it had.
        expected: u64,
    },
    /// An address cannot be listened on.
    #[error("listening on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The broker did not acknowledge records.
    #[error("the broker of {topic} did not take records: {reason}")]
    Broker {
        /// The target.
        topic: String,
        /// What the client library says.
        reason: String,
    },
    /// The program was built without a sink.
    #[error("this program was built without the feature `{feature}`, which {target} needs")]
    NotBuilt {
        /// The cargo feature.
        feature: &'static str,
        /// The target.
        target: String,
    },
}

/// Why the request of a WebSocket client is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientRequestError {
    /// It is not JSON of the right form.
    #[error(
        "the first message must be {{\"from\": NUMBER, \"latest\" or \"earliest\"}} or \
         {{\"cursor\": CURSOR, \"recent\": [[NUMBER, HASH], ..]}}, with \"records\" if not all kinds \
         are wanted: {0}"
    )]
    Form(String),
    /// The cursor is none.
    #[error(transparent)]
    Cursor(#[from] CursorTextError),
    /// No message came in time.
    #[error("no message came within {0} seconds")]
    TooLate(u64),
}
