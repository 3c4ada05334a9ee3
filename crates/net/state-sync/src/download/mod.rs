//! The download: fetches the whole state of one block. One thread for each peer takes ids from the
//! queue, asks the peer, checks the answers, and pushes the ids that an answer names. When all answers
//! are on disk, they are put together.
//!
//! ```text
//!  threads: `sync-N` asks peer N --answers--> StateChunks::open --checked, under one lock--.
//!     ^                                                                                  v
//!     '--ids-- ChunkQueue (queue) <-- SplitLedger (splits), StatePeerStanding (standing)
//!                  ^
//!                  v
//!              AnswerSpool (spool) on disk --StateAssembly (assembly)--> FetchedState
//!                  ^
//!                  '-- older: chunks made of leaves of earlier states
//! ```
//!
//! When another state is wanted, because the chain has moved on, a chunk with everything below it is
//! skipped if it is on disk. A chunk that has changed is asked for as a node, and so are the changed
//! ones below it, down to a few leaves: the others come from the older chunk.
//!
//! | a peer that | is |
//! |---|---|
//! | gives an answer that does not match its id, or splits a part that is too small | never asked again |
//! | `STRIKES` times does not have what the state must have | never asked again |
//! | does not answer | asked again after a backoff that doubles, up to `LONGEST_WAIT` |
//! | is slow, or answers only a part of a request | asked for less at once; at the end of the sync other peers are asked for the same, the faster ones sooner |
//! | disconnects | asked again when it reconnects, with the standing that it had |

mod assembly;
mod older;
mod queue;
mod shared;
mod splits;
mod spool;
mod standing;
mod threads;

pub use spool::SpoolError;

use crate::{format::StateFormat, peer::PeerSource};
use alloy_primitives::{B256, Bytes};
use assembly::StateAssembly;
use queue::{ChunkQueue, StateItem};
use retrie_state::{ChunkId, RangeChanges, StateError};
use retrie_state_store::EntrySorter;
use shared::StateDownload;
use spool::AnswerSpool;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
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
    /// Whether all answers are on disk, and only have to be put together.
    pub is_fetched: bool,
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

/// How often the download goes on for answers on disk that turned out to be damaged.
const REPAIRS: usize = 3;

/// Fetches states into a folder of a datadir. What is fetched for one state is used for the next one,
/// also after a restart.
#[derive(Debug)]
pub struct StateFetcher {
    format: StateFormat,
    folder: PathBuf,
    /// `None` only while threads have it.
    spool: Option<AnswerSpool>,
    changes: Arc<RangeChanges>,
}

impl StateFetcher {
    /// Opens what earlier runs fetched into `datadir`.
    ///
    /// # Errors
    /// [`StateSyncError::Unsupported`] if the backend of `format` has no chunks,
    /// [`StateSyncError::Spool`] or [`StateSyncError::Io`] if the folder cannot be used.
    pub fn open(format: StateFormat, datadir: &Path) -> Result<Self, StateSyncError> {
        if let Some(backend) = format.unsupported() {
            return Err(StateSyncError::Unsupported { backend });
        }
        let folder = sync_dir(datadir);
        fs::create_dir_all(&folder).map_err(|source| {
            let action = format!("creating folder {}", folder.display());
            StateSyncError::Io { action, source }
        })?;
        let mut fetcher = Self { format, folder, spool: None, changes: Arc::default() };
        fetcher.spool = Some(fetcher.take_spool()?);
        Ok(fetcher)
    }

    fn take_spool(&mut self) -> Result<AnswerSpool, StateSyncError> {
        match self.spool.take() {
            Some(spool) => Ok(spool),
            None => Ok(AnswerSpool::open(&self.folder.join("answers"), self.format.clone())?),
        }
    }

    /// How states are cut.
    pub const fn format(&self) -> &StateFormat {
        &self.format
    }

    /// The block whose state was wanted first, and its number.
    pub fn first_state(&self) -> Option<(u64, B256)> {
        self.spool.as_ref()?.first_state()
    }

    /// Says what blocks after [`first_state`](Self::first_state) up to the state that is wanted next
    /// changed, as far as it is known. Nothing depends on whether it is true but how much is
    /// fetched.
    pub fn set_changes(&mut self, changes: RangeChanges) {
        self.changes = Arc::new(changes);
    }

    /// Fetches the state after block `block`, which has this root in the fetcher's format.
    ///
    /// `tell` is called about ten times a second.
    ///
    /// # Errors
    /// [`StateSyncError`]. What was fetched is kept.
    pub fn fetch(
        &mut self,
        (number, block): (u64, B256),
        root: B256,
        peers: &dyn PeerSource,
        options: StateSyncOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&StateSyncProgress),
    ) -> Result<FetchedState, StateSyncError> {
        let mut spool = self.take_spool()?;
        let resumed = spool.len() as u64;
        spool.begin_state(number, block)?;
        self.spool = Some(spool);
        let whole = self.format.whole(root);
        let mut wanted: Vec<_> = whole.clone().map(StateItem::Chunk).into_iter().collect();
        for _ in 0..REPAIRS {
            let mut progress = self.download(block, wanted, peers, options, stop, tell)?;
            progress.is_fetched = true;
            let mut spool = self.take_spool()?;
            let StateAssembly { entries, mut parts, codes, missing } = StateAssembly::of(
                (&self.format, &self.folder),
                whole.clone(),
                &mut spool,
                stop,
                tell,
                &mut progress,
            )?;
            let lost = codes.iter().filter(|code| !spool.has_code(code));
            wanted = lost.copied().map(StateItem::Code).collect();
            wanted.extend(missing.into_iter().map(StateItem::Chunk));
            if wanted.is_empty() {
                parts.sort_unstable();
                (progress.codes, progress.resumed) = (codes.len() as u64, resumed);
                progress.answers += progress.codes;
                progress.bytes += codes.iter().map(|code| spool.code_bytes(code)).sum::<u64>();
                let codes = FetchedCodes { hashes: codes.into_iter().collect(), spool };
                return Ok(FetchedState { entries, parts, codes, progress });
            }
            self.spool = Some(spool);
        }
        let path = self.folder.join("answers");
        let what = "answers in the file are damaged again and again: check the disk";
        Err(SpoolError { action: "reading", path, source: io::Error::other(what) }.into())
    }

    /// Downloads items and all that is below them.
    fn download(
        &mut self,
        block: B256,
        wanted: Vec<StateItem>,
        peers: &dyn PeerSource,
        options: StateSyncOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&StateSyncProgress),
    ) -> Result<StateSyncProgress, StateSyncError> {
        let spool = self.take_spool()?;
        let queue = ChunkQueue::new(self.format.clone(), wanted, spool);
        let threads = DownloadThreads::new(self.format.clone(), block, self.changes.clone(), queue);
        // This thread takes the answers that are on disk, looks for new peers, and reports progress.
        threads.watch(peers, options, stop, tell);
        let state = threads.take().ok_or(StateSyncError::Stopped)?;
        let progress = state.progress();
        let StateDownload { queue, ended, .. } = state;
        self.spool = Some(queue.spool);
        ended.unwrap_or(Err(StateSyncError::Stopped))?;
        Ok(progress)
    }
}
