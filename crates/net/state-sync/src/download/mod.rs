//! The download: fetches the whole state of one block. One thread for each peer takes ids from the
//! queue, asks the peer, checks the answers, and pushes the ids that an answer names.
//!
//! ```text
//!  threads: `sync-N` asks peer N --answers--> StateChunks::open --checked, under one lock--.
//!     ^                                                                                  v
//!     '--ids-- ChunkQueue (queue) <-- SplitLedger (splits), StatePeerStanding (standing)
//!                  |
//!                  '--> AnswerSpool (spool) on disk, EntrySorter --> FetchedState
//! ```
//!
//! | a peer that | is |
//! |---|---|
//! | gives an answer that does not match its id, or splits a part that is too small | never asked again |
//! | `STRIKES` times does not have what the state must have | never asked again |
//! | does not answer | asked again after a backoff that doubles, up to `LONGEST_WAIT` |
//! | is slow, or answers only a part of a request | asked for less at once; at the end of the sync other peers are asked for the same, the faster ones sooner |
//! | disconnects | asked again when it reconnects, with the standing that it had |

mod queue;
mod shared;
mod splits;
mod spool;
mod standing;
mod threads;

pub use spool::SpoolError;

use crate::{format::StateFormat, peer::PeerSource};
use alloy_primitives::{B256, Bytes};
use queue::ChunkQueue;
use retrie_state::{ChunkId, StateError};
use retrie_state_store::EntrySorter;
use shared::StateDownload;
use spool::AnswerSpool;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};
use threads::DownloadThreads;

/// How patient a state sync is.
#[derive(Clone, Copy, Debug)]
pub struct StateSyncOptions {
    /// How long the sync goes on without any answer before it gives up.
    pub patience: Duration,
}

impl Default for StateSyncOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(300) }
    }
}

/// Progress of a state sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateSyncProgress {
    /// Answers that were accepted.
    pub answers: u64,
    /// Bytes of the accepted answers.
    pub bytes: u64,
    /// Accounts and slots in the accepted answers.
    pub entries: u64,
    /// Contract codes in the accepted answers.
    pub codes: u64,
    /// Estimated share of the state that is fetched, by the shape of the tree; 1 is all of it.
    pub share: f64,
    /// Answers that were on disk from earlier runs.
    pub resumed: u64,
    /// Number of peers that are never asked again.
    pub banned: usize,
}

/// Why a state could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateSyncError {
    /// The backend cannot serve its state in chunks.
    #[error("states of backend {backend} cannot be fetched in chunks")]
    Unsupported {
        /// The name of the backend.
        backend: &'static str,
    },
    /// No peer is left, or none has answered for too long.
    #[error("no peer gives the state of block {block}: {}", reasons.join("; "))]
    NoPeers {
        /// Hash of the block.
        block: B256,
        /// The reason for each peer.
        reasons: Vec<String>,
    },
    /// The user stopped it. The fetched answers are kept on disk.
    #[error("stopped; what was fetched is kept, start again to go on")]
    Stopped,
    /// The spool file failed.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Sorting the entries failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A folder or a thread could not be created.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: io::Error,
    },
}

/// The whole state, checked.
#[derive(Debug)]
pub struct FetchedState {
    /// Accounts and slots, sorted on disk.
    pub entries: EntrySorter,
    /// The chunks that had entries, sorted, and their numbers of entries; for
    /// [`StateChunks::load`](retrie_state::StateChunks::load) of backends that need them.
    pub parts: Vec<(ChunkId, u64)>,
    /// The codes of all contracts.
    pub codes: FetchedCodes,
    /// The final progress.
    pub progress: StateSyncProgress,
}

/// The codes of all contracts, on disk.
#[derive(Debug)]
pub struct FetchedCodes {
    hashes: Vec<B256>,
    spool: AnswerSpool,
}

impl FetchedCodes {
    /// Each code with its hash.
    pub fn iter(&mut self) -> impl Iterator<Item = Result<(B256, Bytes), StateSyncError>> {
        let Self { hashes, spool } = self;
        hashes.iter().map(|hash| {
            let code = spool.code(hash)?;
            let lost = || SpoolError {
                action: "reading a code back from",
                path: spool.path().to_owned(),
                source: io::Error::other(format!("code {hash} is damaged; start again")),
            };
            Ok((*hash, code.ok_or_else(lost)?))
        })
    }
}

/// The folder in which a state sync into `datadir` keeps its answers.
pub fn sync_dir(datadir: &Path) -> PathBuf {
    datadir.join("sync")
}

/// Removes the folder with the answers of a state sync into `datadir`.
///
/// # Errors
/// If the folder cannot be removed.
pub fn remove_sync_dir(datadir: &Path) -> Result<(), StateSyncError> {
    let folder = sync_dir(datadir);
    match fs::remove_dir_all(&folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StateSyncError::Io { action: format!("removing {}", folder.display()), source })
        }
        _ => Ok(()),
    }
}

/// Downloads the state that has this root in `format`, which is the state after `block`. Answers
/// are kept in a folder of `datadir`; a later run resumes from them, for this state or another one.
///
/// `tell` is called about ten times a second.
///
/// # Errors
/// [`StateSyncError`]. Only that folder is left then.
pub fn fetch_state(
    format: &StateFormat,
    (block, root): (B256, B256),
    peers: &dyn PeerSource,
    datadir: &Path,
    options: StateSyncOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&StateSyncProgress),
) -> Result<FetchedState, StateSyncError> {
    if !format.is_supported() {
        return Err(StateSyncError::Unsupported { backend: format.backend().identity().name });
    }
    let folder = sync_dir(datadir);
    fs::create_dir_all(&folder).map_err(|source| {
        let action = format!("creating folder {}", folder.display());
        StateSyncError::Io { action, source }
    })?;
    let spool = AnswerSpool::open(&folder.join("answers"))?;
    let resumed = spool.len() as u64;
    let entries = EntrySorter::new(&folder);
    let mut queue = ChunkQueue::new(format.whole(root), spool, entries, format.needs_parts());
    queue.progress.resumed = resumed;
    let threads = DownloadThreads::new(format.clone(), block, queue);
    // This thread takes the answers that are on disk, looks for new peers, and reports progress.
    threads.watch(peers, options, stop, tell);
    let state = threads.take().ok_or(StateSyncError::Stopped)?;
    let progress = state.progress();
    let StateDownload { queue, ended, .. } = state;
    ended.unwrap_or(Err(StateSyncError::Stopped))?;
    let ChunkQueue { spool, entries, parts, codes, .. } = queue;
    let mut parts = parts.unwrap_or_default();
    parts.sort_unstable();
    let codes = FetchedCodes { hashes: codes.into_iter().collect(), spool };
    Ok(FetchedState { entries, parts, codes, progress })
}
