//! Errors of experiments on locality.

use crate::BenchError;
use std::{
    fmt, io,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

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
    /// The disk has too little space for a file or database.
    #[error(
        "{what} takes {} in {}, where {} are free: {} are missing",
        DiskAmount(*bytes),
        folder.display(),
        DiskAmount(*free),
        DiskAmount(bytes.saturating_sub(*free))
    )]
    NoSpace {
        /// The tree.
        what: String,
        /// The folder.
        folder: PathBuf,
        /// Bytes that it takes.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
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
    #[error("{tree}: slot {slot} does not hold node {index} of height {node_height}")]
    WrongNode {
        /// Layout and height of the tree.
        tree: String,
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
    /// A row of a tree is missing, or rows have other lengths than were written.
    #[error("the rows of {tree} in MDBX are not those that were written: {what}")]
    WrongRows {
        /// The tree.
        tree: String,
        /// What was found.
        what: String,
    },
    /// One of our state stores failed.
    #[error("the state store `{name}`: {source}")]
    Store {
        /// Its name.
        name: String,
        /// The cause.
        source: Box<BenchError>,
    },
    /// A store has no proofs, so it has no reads of paths.
    #[error("the state store `{name}` makes no proofs: it has no paths to read")]
    NoProofs {
        /// Its name.
        name: String,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

/// Whether the user has not asked to stop.
///
/// # Errors
/// [`LocalityError::Stopped`].
pub(super) fn goes_on(stop: &AtomicBool) -> Result<(), LocalityError> {
    if stop.load(Ordering::Relaxed) { Err(LocalityError::Stopped) } else { Ok(()) }
}

/// A size in GiB, with one digit after the point.
struct DiskAmount(u64);

impl fmt::Display for DiskAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GiB", self.0 as f64 / f64::from(1 << 30))
    }
}
