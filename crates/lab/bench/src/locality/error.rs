//! Errors of experiments on locality.

use std::{io, path::PathBuf};

/// Why an experiment on locality failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalityError {
    /// The tree does not fit into a file.
    #[error("a tree of height {height} is too high: {most} is the most")]
    Height {
        /// The height.
        height: u32,
        /// The largest supported height.
        most: u32,
    },
    /// A count differs from the theory.
    #[error("{what} should be {theory}, and {counted} were counted")]
    Mismatch {
        /// The figure, with layout and height.
        what: String,
        /// The expected value, in words.
        theory: String,
        /// The counted value.
        counted: String,
    },
    /// A slot that was read holds the wrong node.
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
        /// Index of the node among the nodes of that height.
        index: u64,
    },
    /// The files lie on tmpfs, so no read is cold.
    #[error("{} lies in memory (tmpfs), where no read is cold", folder.display())]
    InMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// The file could not be created, read or written.
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
    /// A row that was read differs from the row that was written.
    #[error("row {row} of MDBX does not hold what was written")]
    WrongRow {
        /// Its number.
        row: u64,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}
