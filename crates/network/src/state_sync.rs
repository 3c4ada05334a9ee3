//! State sync: downloads the whole state of one block. One thread for each peer takes ids from a
//! stack, asks the peer, checks the answers, and pushes the ids that an answer names.
//!
//! | a peer that | is |
//! |---|---|
//! | gives an answer that does not match its id, or splits a part that is too small | never asked again |
//! | [`STRIKES`] times does not have what the state must have | never asked again |
//! | does not answer | asked again after a backoff that doubles, up to [`LONGEST_WAIT`] |
//! | is slow, or answers only a part of a request | asked for less at once; at the end of the sync other peers are asked for the same, the faster ones sooner |
//! | disconnects | asked again when it reconnects, with the standing that it had |

use crate::{
    chunk_queue::{CheckedAnswer, ChunkQueue, StateItem},
    spool::{AnswerSpool, SpoolError},
    state_peer::{StatePeer, StatePeerError},
};
use alloy_primitives::{B256, Bytes, keccak256};
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_state::{AnyBackend, ChunkId, ProofError, StateError};
use retrie_state_store::EntrySorter;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The longest backoff before a peer that failed is asked again.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How many times a peer may lack what the state must have.
pub const STRIKES: u32 = 5;
/// The first backoff after a failure.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of ids in one request.
const MAX_BATCH: usize = 256;
/// A complete answer faster than `QUICK` doubles the next request; one slower than `SLOW` halves
/// it.
const QUICK: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(1500);
/// At the end of a sync a peer is also asked for items that another peer has had for
/// `TIMES_AS_LONG` times the peer's own usual answer time, but at least `SOONEST` and at most
/// `LATEST`.
const TIMES_AS_LONG: u32 = 4;
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(2);
/// Maximum number of peers that are asked at once, and of peers whose standing is kept. The first
/// is more than there are slots, so that peers that give nothing do not keep out others.
const MAX_ASKED_PEERS: usize = 256;
const MAX_KNOWN_PEERS: usize = 4096;
/// Maximum number of peers whose reasons the final error lists.
const MAX_REASONS: usize = 16;
/// While a peer says that it prepares the state, the sync waits this many times its usual patience:
/// sorting the keys of a large state takes long.
const BUSY_PATIENCE: u32 = 6;
/// How often waiting threads check for work.
const WAKE_INTERVAL: Duration = Duration::from_millis(50);

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

/// The peers that a state sync may ask: a fixed list, or the peers that are connected now.
pub trait PeerSource: Send + Sync {
    /// The peers that are available now.
    fn peers(&self) -> Vec<Arc<dyn StatePeer>>;

    /// Whether further peers may come, so that waiting for them makes sense.
    fn may_grow(&self) -> bool {
        false
    }
}

impl PeerSource for Vec<Arc<dyn StatePeer>> {
    fn peers(&self) -> Self {
        self.clone()
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

/// Downloads the state of `backend` that has this root, which is the state after `block`. Answers
/// are kept in a folder of `datadir`; a later run resumes from them, for this state or another one.
///
/// `tell` is called about ten times a second.
///
/// # Errors
/// [`StateSyncError`]. Only that folder is left then.
pub fn fetch_state(
    backend: &Arc<dyn AnyBackend>,
    (block, root): (B256, B256),
    roster: &dyn PeerSource,
    datadir: &Path,
    options: StateSyncOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&StateSyncProgress),
) -> Result<FetchedState, StateSyncError> {
    let name = backend.identity().name;
    let chunks =
        backend.extensions().chunks.ok_or(StateSyncError::Unsupported { backend: name })?;
    let folder = sync_dir(datadir);
    fs::create_dir_all(&folder).map_err(|source| {
        let action = format!("creating folder {}", folder.display());
        StateSyncError::Io { action, source }
    })?;
    let spool = AnswerSpool::open(&folder.join("answers"))?;
    let resumed = spool.len() as u64;
    let entries = EntrySorter::new(&folder);
    let mut work =
        ChunkQueue::new(chunks.root_chunk(root), spool, entries, chunks.load_needs_parts());
    work.progress.resumed = resumed;
    let shared = Arc::new(StateSyncShared {
        backend: backend.clone(),
        block,
        state: Mutex::new(Some(StateSyncInner { work, standing: Vec::new(), ended: None })),
        wake: Condvar::new(),
    });
    // This thread takes the answers that are on disk, looks for new peers, and reports progress.
    shared.watch(roster, options, stop, tell);
    let state = shared.state.lock().take().ok_or(StateSyncError::Stopped)?;
    let progress = state.progress();
    let StateSyncInner { work, ended, .. } = state;
    ended.unwrap_or(Err(StateSyncError::Stopped))?;
    let ChunkQueue { spool, entries, parts, codes, .. } = work;
    let mut parts = parts.unwrap_or_default();
    parts.sort_unstable();
    let codes = FetchedCodes { hashes: codes.into_iter().collect(), spool };
    Ok(FetchedState { entries, parts, codes, progress })
}

/// How a peer has behaved.
#[derive(Debug)]
struct StatePeerStanding {
    peer: Arc<dyn StatePeer>,
    /// Whether a thread asks it now.
    is_asked: bool,
    /// Whether its last answer was that it prepares the state.
    is_busy: bool,
    /// Why it is never asked again, if so.
    banned: Option<String>,
    /// Its last failure.
    failed: Option<String>,
    failures: u32,
    strikes: u32,
    not_before: Option<Instant>,
    /// How many ids to ask for at once.
    batch: usize,
    /// Moving average of its answer time.
    usual: Option<Duration>,
}

struct StateSyncInner {
    work: ChunkQueue,
    standing: Vec<StatePeerStanding>,
    ended: Option<Result<(), StateSyncError>>,
}

struct StateSyncShared {
    backend: Arc<dyn AnyBackend>,
    block: B256,
    /// `None` once the sync is over.
    state: Mutex<Option<StateSyncInner>>,
    wake: Condvar,
}

/// The result for one item of a request.
enum ItemOutcome {
    Taken(Bytes, CheckedAnswer),
    /// The answer ended before this item.
    Left,
    /// The peer does not have it.
    Missing,
    Wrong(ProofError),
}

impl StateSyncShared {
    /// Starts a thread for each of these peers that has none. The threads are not joined: a peer
    /// may stay silent long after the sync is complete.
    fn start_peer_threads(self: &Arc<Self>, peers: Vec<Arc<dyn StatePeer>>) {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return };
        let mut asked =
            state.standing.iter().filter(|one| one.is_asked && one.banned.is_none()).count();
        for peer in peers {
            if asked >= MAX_ASKED_PEERS {
                return;
            }
            let Some(at) = state.admit_peer(&peer) else { continue };
            asked += 1;
            let asking = self.clone();
            let thread = std::thread::Builder::new().name(format!("sync-{at}"));
            if let Err(source) = thread.spawn(move || asking.ask(at, &*peer)) {
                let action = "starting a thread".to_owned();
                state.end(Err(StateSyncError::Io { action, source }));
            }
        }
    }

    /// Asks one peer until the sync is over, or the peer is banned or disconnected.
    fn ask(&self, at: usize, peer: &dyn StatePeer) {
        while let Some(items) = self.next(at) {
            let started = Instant::now();
            let answers = self.request(peer, &items);
            let took = started.elapsed();
            let is_gone = answers.is_err() && !peer.is_available();
            let outcomes = answers.map(|answers| self.check(&items, answers));
            let settled = match self.state.lock().as_mut().filter(|state| state.ended.is_none()) {
                Some(state) if is_gone => {
                    state.peer_gone(at, items);
                    Ok(Vec::new())
                }
                Some(state) => state.apply_answers(at, peer.name(), items, outcomes, took),
                None => Ok(Vec::new()),
            };
            self.wake.notify_all();
            match settled {
                Ok(liars) => liars.iter().for_each(|liar| liar.report_lie()),
                Err(error) => self.end(Err(error)),
            }
            if is_gone {
                return;
            }
        }
    }

    /// Waits until the peer may be asked and there is something to ask for; `None` at the end.
    fn next(&self, at: usize) -> Option<Vec<StateItem>> {
        let mut guard = self.state.lock();
        loop {
            let state = guard.as_mut().filter(|state| state.ended.is_none())?;
            let standing = state.standing.get(at).filter(|standing| standing.banned.is_none())?;
            if standing.not_before.is_none_or(|time| time <= Instant::now()) {
                let (most, patience) = (standing.batch, standing.patience());
                let items = state.work.take(at, most, patience);
                if !items.is_empty() {
                    return Some(items);
                }
            }
            self.wake.wait_for(&mut guard, WAKE_INTERVAL);
        }
    }

    fn request(
        &self,
        peer: &dyn StatePeer,
        items: &[StateItem],
    ) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let (mut ids, mut hashes) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                StateItem::Chunk(id) => ids.push(id.clone()),
                StateItem::Code(hash) => hashes.push(*hash),
            }
        }
        let answers =
            if hashes.is_empty() { peer.chunks(self.block, &ids) } else { peer.codes(&hashes) }?;
        if answers.is_empty() || answers.len() > items.len() {
            let (got, asked) = (answers.len(), items.len());
            return Err(StatePeerError::new(format!("{got} answers to {asked} requested items")));
        }
        Ok(answers)
    }

    /// Checks the answers, without the lock.
    fn check(&self, items: &[StateItem], answers: Vec<Option<Bytes>>) -> Vec<ItemOutcome> {
        let mut answers = answers.into_iter();
        let check = |item| match answers.next() {
            None => ItemOutcome::Left,
            Some(None) => ItemOutcome::Missing,
            Some(Some(answer)) => match self.open(item, &answer) {
                Ok(checked) => ItemOutcome::Taken(answer, checked),
                Err(error) => ItemOutcome::Wrong(error),
            },
        };
        items.iter().map(check).collect()
    }

    fn open(&self, item: &StateItem, answer: &[u8]) -> Result<CheckedAnswer, ProofError> {
        match item {
            StateItem::Chunk(id) => {
                let chunks = self.backend.extensions().chunks;
                let chunks = chunks.ok_or(ProofError::Malformed { what: "no chunks" })?;
                Ok(CheckedAnswer::Chunk(chunks.open(id, answer)?))
            }
            StateItem::Code(hash) if keccak256(answer) == *hash => Ok(CheckedAnswer::Code),
            StateItem::Code(_) => Err(ProofError::RootMismatch),
        }
    }

    /// Takes the answers that are on disk, reports progress, and detects the end.
    fn watch(
        self: &Arc<Self>,
        roster: &dyn PeerSource,
        options: StateSyncOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&StateSyncProgress),
    ) {
        let may_grow = roster.may_grow();
        self.start_peer_threads(roster.peers());
        let mut told = Instant::now();
        let mut guard = self.state.lock();
        while let Some(state) = guard.as_mut() {
            if told.elapsed() >= WAKE_INTERVAL {
                told = Instant::now();
                let progress = state.progress();
                MutexGuard::unlocked(&mut guard, || {
                    tell(&progress);
                    if may_grow {
                        self.start_peer_threads(roster.peers());
                    }
                });
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                // The answers in the buffer go to the file.
                let flushed = state.work.spool.flush();
                state.end(Err(flushed.map_or_else(Into::into, |()| StateSyncError::Stopped)));
            } else if state.work.is_done() {
                let flushed = state.work.spool.flush();
                state.end(flushed.map_err(Into::into));
            } else if let Some(error) = self.give_up_reason(state, options, may_grow) {
                state.end(Err(error));
            }
            if state.ended.is_some() {
                self.wake.notify_all();
                return;
            }
            let Some((item, place)) = state.work.take_spooled() else {
                self.wake.wait_for(&mut guard, WAKE_INTERVAL);
                continue;
            };
            let read = state.work.spool.flush().and_then(|()| state.work.spool.read(place));
            let answer = match read {
                Ok(answer) => answer,
                Err(error) => {
                    state.end(Err(error.into()));
                    continue;
                }
            };
            let opened = MutexGuard::unlocked(&mut guard, || self.open(&item, &answer));
            let Some(state) = guard.as_mut() else { return };
            let taken = match opened {
                Ok(checked) => state.work.accept(None, &item, &answer, checked),
                Err(error) => {
                    tracing::warn!(%error, "an answer on disk is damaged; it is asked for again");
                    state.work.spool.forget(item.kind(), item.id());
                    state.work.give_back(None, item);
                    Ok(Vec::new())
                }
            };
            if let Err(error) = taken {
                state.end(Err(error));
            }
            self.wake.notify_all();
        }
    }

    /// The error that ends the sync, if no peer is left to ask or none has answered for too long.
    fn give_up_reason(
        &self,
        state: &StateSyncInner,
        options: StateSyncOptions,
        may_grow: bool,
    ) -> Option<StateSyncError> {
        let is_left = may_grow || state.standing.iter().any(|one| one.banned.is_none());
        let is_busy = |one: &StatePeerStanding| one.is_busy && one.is_asked && one.banned.is_none();
        let patience = match state.standing.iter().any(is_busy) {
            true => options.patience.saturating_mul(BUSY_PATIENCE),
            false => options.patience,
        };
        if is_left && state.work.moved.elapsed() < patience {
            return None;
        }
        let reason = |one: &StatePeerStanding| {
            let why = one.banned.as_ref().or(one.failed.as_ref());
            format!("{}: {}", one.peer.name(), why.map_or("no answer yet", |why| why))
        };
        let mut reasons: Vec<_> = state.standing.iter().take(MAX_REASONS).map(reason).collect();
        match state.standing.len() {
            0 => reasons.push(
                "no peer that hands out such states was connected: nodes serve peers they trust \
                 (--trusted-peers there), or all peers (--rchk.serve all there)"
                    .to_owned(),
            ),
            count if count > MAX_REASONS => reasons.push(format!("{} more", count - MAX_REASONS)),
            _ => {}
        }
        Some(StateSyncError::NoPeers { block: self.block, reasons })
    }

    fn end(&self, how: Result<(), StateSyncError>) {
        if let Some(state) = self.state.lock().as_mut() {
            state.end(how);
        }
        self.wake.notify_all();
    }
}

impl StateSyncInner {
    fn end(&mut self, how: Result<(), StateSyncError>) {
        self.ended.get_or_insert(how);
    }

    /// The peer's index in `standing`, if a new thread must ask it.
    fn admit_peer(&mut self, peer: &Arc<dyn StatePeer>) -> Option<usize> {
        let known = self.standing.iter().position(|one| one.peer.name() == peer.name());
        let at = known.unwrap_or(self.standing.len());
        match self.standing.get_mut(at) {
            Some(one) if one.is_asked || one.banned.is_some() => return None,
            Some(one) => (one.peer, one.is_asked) = (peer.clone(), true),
            None if at >= MAX_KNOWN_PEERS => return None,
            None => self.standing.push(StatePeerStanding::of(peer.clone())),
        }
        Some(at)
    }

    /// Records that a peer has disconnected.
    fn peer_gone(&mut self, at: usize, items: Vec<StateItem>) {
        items.into_iter().for_each(|item| self.work.give_back(Some(at), item));
        if let Some(one) = self.standing.get_mut(at) {
            one.is_asked = false;
            one.failed = Some("it has disconnected".into());
        }
    }

    fn progress(&self) -> StateSyncProgress {
        let banned = self.standing.iter().filter(|one| one.banned.is_some()).count();
        StateSyncProgress { banned, ..self.work.progress }
    }

    /// Applies the result of a request. Returns the peers that are now known to have lied.
    fn apply_answers(
        &mut self,
        at: usize,
        name: &str,
        items: Vec<StateItem>,
        outcomes: Result<Vec<ItemOutcome>, StatePeerError>,
        took: Duration,
    ) -> Result<Vec<Arc<dyn StatePeer>>, StateSyncError> {
        let mut liars = Vec::new();
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                items.into_iter().for_each(|item| self.work.give_back(Some(at), item));
                let standing = &mut self.standing[at];
                if standing.failures == 0 {
                    tracing::debug!(peer = name, %error, "a peer gave no answer");
                }
                standing.is_busy = error.is_busy();
                standing.fail(error.to_string());
                return Ok(liars);
            }
        };
        let (mut taken, mut left, mut missing) = (0, 0, 0);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                ItemOutcome::Taken(answer, checked) => {
                    taken += 1;
                    for liar in self.work.accept(Some(at), &item, &answer, checked)? {
                        liars.extend(
                            self.ban(liar, "it split a part that is too small to split".into()),
                        );
                    }
                    continue;
                }
                ItemOutcome::Left => left += 1,
                ItemOutcome::Missing => missing += 1,
                ItemOutcome::Wrong(error) => {
                    let what = match &item {
                        StateItem::Chunk(id) => format!("chunk {id}"),
                        StateItem::Code(hash) => format!("code {hash}"),
                    };
                    liars.extend(self.ban(at, format!("{what} is not what it sent: {error}")));
                    tracing::warn!(peer = name, %error, "wrong answer; the peer is banned");
                }
            }
            self.work.give_back(Some(at), item);
        }
        let standing = &mut self.standing[at];
        standing.is_busy = false;
        if missing > 0 {
            standing.strikes += 1;
            let why = "it does not have that state (another block, or another backend)";
            standing.fail(why.into());
            if standing.strikes >= STRIKES {
                self.ban(at, why.into());
            }
        } else {
            standing.failures = 0;
            standing.failed = None;
            standing.strikes = standing.strikes.saturating_sub(u32::from(taken > 0));
            standing.usual =
                Some(standing.usual.map_or(took, |usual| usual.saturating_add(took) / 2));
            standing.batch = if left > 0 {
                // More did not fit into the answer, or the peer gives one item at a time.
                taken
            } else if took > SLOW {
                standing.batch / 2
            } else if took < QUICK && taken >= standing.batch {
                standing.batch * 2
            } else {
                standing.batch
            };
            standing.batch = standing.batch.clamp(1, MAX_BATCH);
        }
        Ok(liars)
    }

    /// Bans a peer from this sync.
    fn ban(&mut self, at: usize, why: String) -> Option<Arc<dyn StatePeer>> {
        let standing = self.standing.get_mut(at)?;
        standing.banned.get_or_insert(why);
        Some(standing.peer.clone())
    }
}

impl StatePeerStanding {
    const fn of(peer: Arc<dyn StatePeer>) -> Self {
        Self {
            peer,
            is_asked: true,
            is_busy: false,
            banned: None,
            failed: None,
            failures: 0,
            strikes: 0,
            not_before: None,
            batch: 1,
            usual: None,
        }
    }

    /// How long other peers may take for an item before this peer is asked for it, too.
    fn patience(&self) -> Duration {
        let usual = self.usual.map(|usual| usual.saturating_mul(TIMES_AS_LONG));
        usual.map_or(SOONEST * 2, |times| times.clamp(SOONEST, LATEST))
    }

    /// Records a failure: the peer is asked again after a backoff.
    fn fail(&mut self, why: String) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
        self.failures += 1;
        self.failed = Some(why);
        self.not_before = Instant::now().checked_add(wait);
        self.batch = (self.batch / 2).max(1);
    }
}
