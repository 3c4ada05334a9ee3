//! Why an experiment failed.

use std::{io, path::PathBuf};

/// Why an experiment on locality failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalityError {
    /// No file could hold the tree.
    #[error("a tree of height {height} is too high: {most} is the most")]
    Height {
        /// The height.
        height: u32,
        /// The greatest there is.
        most: u32,
    },
    /// What was counted is not what theory says.
    #[error("{what} should be {theory}, and {counted} were counted")]
    Mismatch {
        /// Which figure, of which layout and height.
        what: String,
        /// What it must be, in words.
        theory: String,
        /// What it is.
        counted: String,
    },
    /// A slot that was read does not hold the node that it should.
    #[error(
        "{layout}, height {height}: slot {slot} does not hold node {index} of height {node_height}"
    )]
    WrongNode {
        /// The layout's name.
        layout: &'static str,
        /// Height of the tree.
        height: u32,
        /// The slot.
        slot: u64,
        /// Height of the node.
        node_height: u32,
        /// Its place among the nodes of that height.
        index: u64,
    },
    /// The files lie in memory.
    #[error("{} lies in memory (tmpfs), where no read is cold", folder.display())]
    InMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// The file could not be made, read or written.
    #[error("{action} {} failed: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// MDBX failed.
    #[error("rows of MDBX: {action} failed: {source}")]
    Rows {
        /// What was attempted.
        action: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A row that was read is not the one that was written.
    #[error("row {row} of MDBX does not hold what was written")]
    WrongRow {
        /// Its number.
        row: u64,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}
