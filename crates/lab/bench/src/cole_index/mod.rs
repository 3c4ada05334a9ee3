//! The learned index of COLE's runs (section 4.1) against fence keys and binary search, over the
//! same value pages: time and pages of a lookup, bytes of the index.
//!
//! A run is built by the store's own code ([`ComparedRun`](retrie_storage_cole::ComparedRun)), in
//! one piece, as the largest level of a store is. Lookups skip the filter: they show what the index
//! costs where the filter lets a key pass. All pages are in memory when the clock runs, so pages
//! read are counted beside the times: each is a read from disk for a run that is larger than memory.
//!
//! * [`KeyLayout`]: the state keys.
//! * [`measure`]: the searches in turns, each lookup checked.
//! * [`report`]: the results.

pub mod measure;
mod pairs;
pub mod report;

pub use pairs::{KeyLayout, UnknownLayout};

use retrie_state::StateError;
use retrie_storage_cole::ParamsError;
use std::{io, path::PathBuf};

/// Why indexes could not be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexBenchError {
    /// There is nothing to measure.
    #[error("{what} must be 1 at least")]
    Nothing {
        /// The setting that is 0.
        what: &'static str,
    },
    /// A parameter of the run is out of its range.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// A search returned another version than was put in.
    #[error("`{search}` finds {found} for key {key} at block {block}, and should find {expected}")]
    Wrong {
        /// Name of the search.
        search: &'static str,
        /// The encoded key, in hexadecimal.
        key: String,
        /// The block.
        block: u64,
        /// What it found.
        found: String,
        /// What the run has.
        expected: String,
    },
    /// The folder for the run could not be made.
    #[error("making a folder in {} failed: {source}", folder.display())]
    Folder {
        /// The folder above it.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The run could not be written or read.
    #[error(transparent)]
    Run(#[from] StateError),
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}
