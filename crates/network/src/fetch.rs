//! Getting a whole state: a thread for each peer takes ids from a stack, asks, checks, and puts what the
//! answer names onto it.
//!
//! | a peer that | is |
//! |---|---|
//! | gives an answer that is not what its id names, or splits what is too little for that | never asked again |
//! | does not have what the state must have, [`STRIKES`] times | never asked again |
//! | does not answer | asked again after a wait that doubles, up to [`LONGEST_WAIT`] |
//! | is slow, or gives less than it was asked for | given less at once; at the end others are asked too, the sooner the faster they are |
//! | is gone | asked again when it is there again, with the standing that it had |

use crate::{
    peer::{Peer, PeerError},
    spool::{Spool, SpoolError},
    work::{Checked, Item, Work},
};
use alloy_primitives::{B256, Bytes, keccak256};
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_state::{AnyBackend, ChunkId, EntrySorter, ProofError, StateError};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The longest wait before a peer that failed is asked again.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How often a peer may not have what the state must have.
pub const STRIKES: u32 = 5;
/// The first such wait.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Ids that one request asks for, at most.
const MOST: usize = 256;
/// A request that took less asks for more the next time, one that took longer for less.
const QUICK: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(1500);
/// At the end a peer is asked for what another one has had for this many times as long as it would take
/// itself, and within these bounds.
const TIMES_AS_LONG: u32 = 4;
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(2);
/// Peers that are asked at once, more than there are slots for, so that those who give nothing keep out
/// none who would; and of whom a standing is kept, at most.
const MOST_ASKED: usize = 256;
const MOST_KNOWN: usize = 4096;
/// Peers whose reasons are told in the end, at most.
const MOST_TOLD: usize = 16;
/// So many times the usual is a fetch patient while a peer says that it makes the state ready: sorting the
/// keys of a large one takes long.
const BUSY_PATIENCE: u32 = 6;
/// How often waiting threads look whether there is something to do.
const LOOK: Duration = Duration::from_millis(50);

/// How patient a fetch is.
#[derive(Clone, Copy, Debug)]
pub struct FetchOptions {
    /// How long nothing may come before it gives up.
    pub patience: Duration,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(300) }
    }
}

/// Who may be asked: a list, or those who are connected at the time.
pub trait Roster: Send + Sync {
    /// Those who are there now.
    fn peers(&self) -> Vec<Arc<dyn Peer>>;

    /// Whether others may come, and it is worth while to wait for them.
    fn may_grow(&self) -> bool {
        false
    }
}

impl Roster for Vec<Arc<dyn Peer>> {
    fn peers(&self) -> Self {
        self.clone()
    }
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Answers that were taken, and their bytes.
    pub answers: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Accounts and slots in them.
    pub entries: u64,
    /// Contract codes.
    pub codes: u64,
    /// Share of the state, guessed from its shape; 1 is all of it.
    pub share: f64,
    /// Answers that a former run had fetched.
    pub resumed: u64,
    /// Peers that are never asked again.
    pub banned: usize,
}

/// Why a state could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A backend that does not hand states out.
    #[error("states of backend {backend} cannot be fetched in chunks")]
    Unsupported {
        /// Its name.
        backend: &'static str,
    },
    /// No peer is left, or none has answered for long.
    #[error("no peer gives the state of block {block}: {}", reasons.join("; "))]
    NoPeers {
        /// Hash of the block.
        block: B256,
        /// Of each peer, why not.
        reasons: Vec<String>,
    },
    /// The user stopped it. What was fetched is kept.
    #[error("stopped; what was fetched is kept, start again to go on")]
    Stopped,
    /// Answers cannot be kept.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Entries cannot be sorted.
    #[error(transparent)]
    State(#[from] StateError),
    /// A folder or thread cannot be had.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: io::Error,
    },
}

/// A whole state, checked.
#[derive(Debug)]
pub struct Fetched {
    /// Accounts and slots, sorted on disk.
    pub entries: EntrySorter,
    /// The chunks that these came in, sorted, for [`Chunks::load`](retrie_state::Chunks::load) of
    /// backends that need them.
    pub parts: Vec<(ChunkId, u64)>,
    /// The codes of all contracts.
    pub codes: Codes,
    /// How it went.
    pub progress: Progress,
}

/// The codes of all contracts, on disk.
#[derive(Debug)]
pub struct Codes {
    hashes: Vec<B256>,
    spool: Spool,
}

impl Codes {
    /// Each, with its hash.
    pub fn iter(&mut self) -> impl Iterator<Item = Result<(B256, Bytes), FetchError>> {
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

/// Where a fetch into `datadir` keeps what it has.
pub fn folder(datadir: &Path) -> PathBuf {
    datadir.join("sync")
}

/// Forgets what a fetch into `datadir` has kept.
///
/// # Errors
/// If the folder cannot be removed.
pub fn forget(datadir: &Path) -> Result<(), FetchError> {
    let folder = folder(datadir);
    match fs::remove_dir_all(&folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FetchError::Io { action: format!("removing {}", folder.display()), source })
        }
        _ => Ok(()),
    }
}

/// Fetches the state with this root of `backend`, which is that after `block`, from these peers. What
/// comes is kept in a folder of `datadir`, from which a later run goes on, for this state or another.
///
/// `tell` is called about ten times a second.
///
/// # Errors
/// [`FetchError`]; it leaves nothing but that folder.
pub fn fetch(
    backend: &Arc<dyn AnyBackend>,
    (block, root): (B256, B256),
    roster: &dyn Roster,
    datadir: &Path,
    options: FetchOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&Progress),
) -> Result<Fetched, FetchError> {
    let name = backend.identity().name;
    let chunks = backend.chunks().ok_or(FetchError::Unsupported { backend: name })?;
    let folder = folder(datadir);
    fs::create_dir_all(&folder).map_err(|source| {
        let action = format!("creating folder {}", folder.display());
        FetchError::Io { action, source }
    })?;
    let spool = Spool::open(&folder.join("answers"))?;
    let resumed = spool.len() as u64;
    let entries = EntrySorter::new(&folder);
    let mut work = Work::new(chunks.whole(root), spool, entries, chunks.loads_by_parts());
    drop(chunks);
    work.progress.resumed = resumed;
    let shared = Arc::new(Shared {
        backend: backend.clone(),
        block,
        state: Mutex::new(Some(State { work, standing: Vec::new(), ended: None })),
        wake: Condvar::new(),
    });
    // This thread reads what a former run has fetched, looks who is there, and tells.
    shared.watch(roster, options, stop, tell);
    let state = shared.state.lock().take().ok_or(FetchError::Stopped)?;
    let progress = state.progress();
    let State { work, ended, .. } = state;
    ended.unwrap_or(Err(FetchError::Stopped))?;
    let Work { spool, entries, parts, codes, .. } = work;
    let mut parts = parts.unwrap_or_default();
    parts.sort_unstable();
    let codes = Codes { hashes: codes.into_iter().collect(), spool };
    Ok(Fetched { entries, parts, codes, progress })
}

/// How a peer behaves.
#[derive(Debug)]
struct Standing {
    peer: Arc<dyn Peer>,
    /// Whether a thread asks it.
    is_asked: bool,
    /// Whether its last answer was that it makes the state ready.
    is_busy: bool,
    /// Why it is never asked again.
    banned: Option<String>,
    /// What it failed with last.
    failed: Option<String>,
    failures: u32,
    strikes: u32,
    not_before: Option<Instant>,
    /// Ids to ask for at once.
    batch: usize,
    /// How long its answers take, of late.
    usual: Option<Duration>,
}

struct State {
    work: Work,
    standing: Vec<Standing>,
    ended: Option<Result<(), FetchError>>,
}

struct Shared {
    backend: Arc<dyn AnyBackend>,
    block: B256,
    /// `None` once the fetch is over.
    state: Mutex<Option<State>>,
    wake: Condvar,
}

/// What came of one item.
enum Outcome {
    Taken(Bytes, Checked),
    /// Not answered, as the answer was full.
    Left,
    /// The peer does not have it.
    Missing,
    Wrong(ProofError),
}

impl Shared {
    /// Has all peers asked who are there and are not asked yet. Nobody waits for their threads: a peer may
    /// be silent long after all is there.
    fn call_up(self: &Arc<Self>, peers: Vec<Arc<dyn Peer>>) {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else { return };
        let mut asked =
            state.standing.iter().filter(|one| one.is_asked && one.banned.is_none()).count();
        for peer in peers {
            if asked >= MOST_ASKED {
                return;
            }
            let Some(at) = state.call_up(&peer) else { continue };
            asked += 1;
            let asking = self.clone();
            let thread = std::thread::Builder::new().name(format!("sync-{at}"));
            if let Err(source) = thread.spawn(move || asking.ask(at, &*peer)) {
                let action = "starting a thread".to_owned();
                state.end(Err(FetchError::Io { action, source }));
            }
        }
    }

    /// Asks one peer until all is done, or it is banned or gone.
    fn ask(&self, at: usize, peer: &dyn Peer) {
        while let Some(items) = self.next(at) {
            let started = Instant::now();
            let answers = self.request(peer, &items);
            let took = started.elapsed();
            let is_gone = answers.is_err() && !peer.is_there();
            let outcomes = answers.map(|answers| self.check(&items, answers));
            let settled = match self.state.lock().as_mut().filter(|state| state.ended.is_none()) {
                Some(state) if is_gone => {
                    state.lose(at, items);
                    Ok(Vec::new())
                }
                Some(state) => state.settle(at, peer.name(), items, outcomes, took),
                None => Ok(Vec::new()),
            };
            self.wake.notify_all();
            match settled {
                Ok(liars) => liars.iter().for_each(|liar| liar.has_lied()),
                Err(error) => self.end(Err(error)),
            }
            if is_gone {
                return;
            }
        }
    }

    /// What to ask a peer for, once there is something and it may be asked; `None` at the end.
    fn next(&self, at: usize) -> Option<Vec<Item>> {
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
            self.wake.wait_for(&mut guard, LOOK);
        }
    }

    fn request(&self, peer: &dyn Peer, items: &[Item]) -> Result<Vec<Option<Bytes>>, PeerError> {
        let (mut ids, mut hashes) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                Item::Chunk(id) => ids.push(id.clone()),
                Item::Code(hash) => hashes.push(*hash),
            }
        }
        let answers =
            if hashes.is_empty() { peer.chunks(self.block, &ids) } else { peer.codes(&hashes) }?;
        if answers.is_empty() || answers.len() > items.len() {
            let (got, asked) = (answers.len(), items.len());
            return Err(PeerError::new(format!("{got} answers to {asked} questions")));
        }
        Ok(answers)
    }

    /// What the answers are worth, without the lock.
    fn check(&self, items: &[Item], answers: Vec<Option<Bytes>>) -> Vec<Outcome> {
        let mut answers = answers.into_iter();
        let check = |item| match answers.next() {
            None => Outcome::Left,
            Some(None) => Outcome::Missing,
            Some(Some(answer)) => match self.open(item, &answer) {
                Ok(checked) => Outcome::Taken(answer, checked),
                Err(error) => Outcome::Wrong(error),
            },
        };
        items.iter().map(check).collect()
    }

    fn open(&self, item: &Item, answer: &[u8]) -> Result<Checked, ProofError> {
        match item {
            Item::Chunk(id) => {
                let chunks = self.backend.chunks();
                let chunks = chunks.ok_or(ProofError::Malformed { what: "no chunks" })?;
                Ok(Checked::Chunk(chunks.open(id, answer)?))
            }
            Item::Code(hash) if keccak256(answer) == *hash => Ok(Checked::Code),
            Item::Code(_) => Err(ProofError::RootMismatch),
        }
    }

    /// Reads what is on disk already, tells how far it is, and finds the end.
    fn watch(
        self: &Arc<Self>,
        roster: &dyn Roster,
        options: FetchOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&Progress),
    ) {
        let may_grow = roster.may_grow();
        self.call_up(roster.peers());
        let mut told = Instant::now();
        let mut guard = self.state.lock();
        while let Some(state) = guard.as_mut() {
            if told.elapsed() >= LOOK {
                told = Instant::now();
                let progress = state.progress();
                MutexGuard::unlocked(&mut guard, || {
                    tell(&progress);
                    if may_grow {
                        self.call_up(roster.peers());
                    }
                });
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                // What is kept back goes to the file.
                let flushed = state.work.spool.flush();
                state.end(Err(flushed.map_or_else(Into::into, |()| FetchError::Stopped)));
            } else if state.work.is_done() {
                let flushed = state.work.spool.flush();
                state.end(flushed.map_err(Into::into));
            } else if let Some(error) = self.hopeless(state, options, may_grow) {
                state.end(Err(error));
            }
            if state.ended.is_some() {
                self.wake.notify_all();
                return;
            }
            let Some((item, place)) = state.work.take_known() else {
                self.wake.wait_for(&mut guard, LOOK);
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

    /// Whether nobody is left to ask.
    fn hopeless(&self, state: &State, options: FetchOptions, may_grow: bool) -> Option<FetchError> {
        let is_left = may_grow || state.standing.iter().any(|one| one.banned.is_none());
        let is_busy = |one: &Standing| one.is_busy && one.is_asked && one.banned.is_none();
        let patience = match state.standing.iter().any(is_busy) {
            true => options.patience.saturating_mul(BUSY_PATIENCE),
            false => options.patience,
        };
        if is_left && state.work.moved.elapsed() < patience {
            return None;
        }
        let reason = |one: &Standing| {
            let why = one.banned.as_ref().or(one.failed.as_ref());
            format!("{}: {}", one.peer.name(), why.map_or("no answer yet", |why| why))
        };
        let mut reasons: Vec<_> = state.standing.iter().take(MOST_TOLD).map(reason).collect();
        match state.standing.len() {
            0 => reasons.push(
                "no peer that hands out such states was there: nodes hand them out to peers that they \
                 trust (--trusted-peers there), or to all (--rchk.serve all there)"
                    .to_owned(),
            ),
            count if count > MOST_TOLD => reasons.push(format!("{} more", count - MOST_TOLD)),
            _ => {}
        }
        Some(FetchError::NoPeers { block: self.block, reasons })
    }

    fn end(&self, how: Result<(), FetchError>) {
        if let Some(state) = self.state.lock().as_mut() {
            state.end(how);
        }
        self.wake.notify_all();
    }
}

impl State {
    fn end(&mut self, how: Result<(), FetchError>) {
        self.ended.get_or_insert(how);
    }

    /// Its place among the standings, if a thread shall ask it from now on.
    fn call_up(&mut self, peer: &Arc<dyn Peer>) -> Option<usize> {
        let known = self.standing.iter().position(|one| one.peer.name() == peer.name());
        let at = known.unwrap_or(self.standing.len());
        match self.standing.get_mut(at) {
            Some(one) if one.is_asked || one.banned.is_some() => return None,
            Some(one) => (one.peer, one.is_asked) = (peer.clone(), true),
            None if at >= MOST_KNOWN => return None,
            None => self.standing.push(Standing::of(peer.clone())),
        }
        Some(at)
    }

    /// A peer cannot be asked any more.
    fn lose(&mut self, at: usize, items: Vec<Item>) {
        items.into_iter().for_each(|item| self.work.give_back(Some(at), item));
        if let Some(one) = self.standing.get_mut(at) {
            one.is_asked = false;
            one.failed = Some("it is gone".into());
        }
    }

    fn progress(&self) -> Progress {
        let banned = self.standing.iter().filter(|one| one.banned.is_some()).count();
        Progress { banned, ..self.work.progress }
    }

    /// What a request came to: who has lied, as now is known.
    fn settle(
        &mut self,
        at: usize,
        name: &str,
        items: Vec<Item>,
        outcomes: Result<Vec<Outcome>, PeerError>,
        took: Duration,
    ) -> Result<Vec<Arc<dyn Peer>>, FetchError> {
        let mut liars = Vec::new();
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                items.into_iter().for_each(|item| self.work.give_back(Some(at), item));
                let standing = &mut self.standing[at];
                if standing.failures == 0 {
                    tracing::debug!(peer = name, %error, "a peer gives nothing");
                }
                standing.is_busy = error.is_busy();
                standing.fail(error.to_string());
                return Ok(liars);
            }
        };
        let (mut taken, mut left, mut missing) = (0, 0, 0);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Taken(answer, checked) => {
                    taken += 1;
                    for liar in self.work.accept(Some(at), &item, &answer, checked)? {
                        liars.extend(
                            self.ban(liar, "it split what is too little to be split".into()),
                        );
                    }
                    continue;
                }
                Outcome::Left => left += 1,
                Outcome::Missing => missing += 1,
                Outcome::Wrong(error) => {
                    let what = match &item {
                        Item::Chunk(id) => format!("chunk {id}"),
                        Item::Code(hash) => format!("code {hash}"),
                    };
                    liars.extend(self.ban(at, format!("{what} is not what it sent: {error}")));
                    tracing::warn!(peer = name, %error, "a peer lies; it is not asked again");
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
                // More did not fit, or it gives one at a time.
                taken
            } else if took > SLOW {
                standing.batch / 2
            } else if took < QUICK && taken >= standing.batch {
                standing.batch * 2
            } else {
                standing.batch
            };
            standing.batch = standing.batch.clamp(1, MOST);
        }
        Ok(liars)
    }

    /// Never has a peer asked again.
    fn ban(&mut self, at: usize, why: String) -> Option<Arc<dyn Peer>> {
        let standing = self.standing.get_mut(at)?;
        standing.banned.get_or_insert(why);
        Some(standing.peer.clone())
    }
}

impl Standing {
    const fn of(peer: Arc<dyn Peer>) -> Self {
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

    /// How long others may take for what this peer could be asked for.
    fn patience(&self) -> Duration {
        let usual = self.usual.map(|usual| usual.saturating_mul(TIMES_AS_LONG));
        usual.map_or(SOONEST * 2, |times| times.clamp(SOONEST, LATEST))
    }

    /// It is asked again after a wait.
    fn fail(&mut self, why: String) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
        self.failures += 1;
        self.failed = Some(why);
        self.not_before = Instant::now().checked_add(wait);
        self.batch = (self.batch / 2).max(1);
    }
}
