//! Snapshots: the state of a block as static objects that prove themselves (`docs/state-sync.md`).
//!
//! ```text
//!  StateProvider --answers, deepest first--> PackWriter --> chunks/00000000, ..
//!    (export)                                IndexWriter -> index/00000, ..     ObjectFolder: a folder,
//!                        headers, and last the manifest --> headers.rlp         a bucket, a web server
//!                                                           snapshot.json                |
//!  fetch_state <--answers, checked there-- SnapshotMirror (a StatePeer) <----------------'
//! ```
//!
//! | module | what |
//! |---|---|
//! | `manifest` | what the snapshot is of |
//! | `index` | where each answer lies |
//! | `answers` | the answer to an id, from the state of a datadir |
//! | `pack` | objects with answers |
//! | `export` | writes a snapshot |
//! | `mirror` | reads one, as a peer of state sync |
//! | `blocks` | the last blocks with their receipts, if the export was asked for them |
//!
//! Nothing in a snapshot is trusted: an answer is checked by its id, as that of a peer.

mod answers;
mod blocks;
mod export;
mod index;
mod manifest;
mod mirror;
mod pack;

pub use blocks::{BlockLookup, ExportedBlocks, SnapshotBlocks};
pub use export::{CodeLookup, ExportOptions, ExportProgress, SnapshotExport, SnapshotSource};
pub use manifest::{SnapshotManifest, SnapshotSubject};
pub use mirror::SnapshotMirror;

use alloy_primitives::B256;
use retrie_sources::SourceError;
use retrie_state::{ChunkId, ProofError, StateError};
use std::{io, path::PathBuf};

/// Name of the object with the headers.
const HEADERS: &str = "headers.rlp";
/// Largest answer that is read, in bytes.
const MAX_ANSWER: u32 = 16 << 20;

/// Why a snapshot could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The backend cannot give its state in chunks.
    #[error(
        "states of backend {backend} have no chunks that prove themselves: export from a datadir of \
         mpt, prefix, bavl or pbt (`retrie db migrate`)"
    )]
    Unsupported {
        /// The name of the backend.
        backend: &'static str,
    },
    /// Another snapshot is in the folder.
    #[error(
        "{} has a snapshot of block {number} ({hash}), chunks `{chunks}`: choose another place, or \
         replace it (--force)", folder.display()
    )]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The block of that snapshot.
        number: u64,
        /// Its hash.
        hash: B256,
        /// Format of its chunks.
        chunks: String,
    },
    /// The manifest is none that this program reads.
    #[error("{} is no manifest of a snapshot: {reason}", file.display())]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The state of the datadir contradicts its root.
    #[error(
        "chunk {id} of the datadir does not have the hash of its id ({source}): run `retrie db verify`"
    )]
    Damaged {
        /// Its id.
        id: ChunkId,
        /// What is wrong.
        source: ProofError,
    },
    /// The datadir lacks a part of its state.
    #[error("the datadir lacks {what}: run `retrie db verify`")]
    Missing {
        /// The part.
        what: String,
    },
    /// Receipts that their header's root does not prove.
    #[error(
        "the receipts of block {number} cannot be proven, as they are from before Byzantium, when \
         receipts had state roots: choose fewer blocks (--blocks)"
    )]
    UnprovenReceipts {
        /// Number of the block.
        number: u64,
    },
    /// An answer is larger than readers allow.
    #[error("{what} has {bytes} bytes; readers of snapshots take {MAX_ANSWER}")]
    TooLarge {
        /// The chunk or code.
        what: String,
        /// Its length.
        bytes: usize,
    },
    /// The user stopped it.
    #[error("stopped; the snapshot is not complete: run the same command again")]
    Stopped,
    /// An object could not be read or written.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The state could not be read, or the index not be sorted.
    #[error(transparent)]
    State(#[from] StateError),
    /// The copy of an index could not be written or read.
    #[error("the temporary file with the index of a snapshot failed: {0}")]
    IndexFile(io::Error),
}
