//! [`DownloadThreads`]: a thread that watches the download, and one for each peer that is asked.

use super::{
    StateSyncError, StateSyncOptions, StateSyncProgress,
    older::{OlderChunk, OlderLeaves, OlderOutcome},
    queue::{CheckedAnswer, ChunkQueue, ItemKind, KnownItem, StateItem},
    shared::{ItemOutcome, StateDownload},
    standing::StatePeerStanding,
};
use crate::{
    format::StateFormat,
    peer::{PeerSource, StatePeer, StatePeerError},
};
use alloy_primitives::{B256, Bytes, keccak256};
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_state::{ProofError, RangeChanges, TrieLeaf};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Maximum number of peers that are asked at once: more than there are slots, so that peers that
/// give nothing do not keep out others.
const MAX_ASKED_PEERS: usize = 256;
/// Maximum number of peers whose reasons the final error lists.
const MAX_REASONS: usize = 16;
/// While a peer says that it prepares the state, the sync waits this many times its usual patience:
/// sorting the keys of a large state takes long.
const BUSY_PATIENCE: u32 = 6;
/// How often waiting threads check for work.
const WAKE_INTERVAL: Duration = Duration::from_millis(50);

/// The threads of a download, and what they share.
pub(super) struct DownloadThreads {
    format: StateFormat,
    block: B256,
    /// What is known to have changed since the spool's first state.
    changes: Arc<RangeChanges>,
    /// `None` once the sync is over.
    state: Mutex<Option<StateDownload>>,
    wake: Condvar,
}

impl DownloadThreads {
    /// A download of the state after `block`. No thread runs yet.
    pub(super) fn new(
        format: StateFormat,
        block: B256,
        changes: Arc<RangeChanges>,
        queue: ChunkQueue,
    ) -> Arc<Self> {
        let state = Mutex::new(Some(StateDownload { queue, standing: Vec::new(), ended: None }));
        Arc::new(Self { format, block, changes, state, wake: Condvar::new() })
    }

    /// Takes the download away from its threads, which end.
    pub(super) fn take(&self) -> Option<StateDownload> {
        self.state.lock().take()
    }

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
            let outcomes = answers.map(|answers| self.check(peer, &items, answers));
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
                let items = state.queue.take(at, most, patience);
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
                StateItem::Chunk(id) | StateItem::Node(id) => ids.push(id.clone()),
                StateItem::Code(hash) => hashes.push(*hash),
            }
        }
        let answers = match items.first().map(StateItem::kind) {
            Some(ItemKind::Code) => peer.codes(&hashes),
            Some(ItemKind::Node) => peer.nodes(self.block, &ids),
            _ => peer.chunks(self.block, &ids),
        }?;
        if answers.is_empty() || answers.len() > items.len() {
            let (got, asked) = (answers.len(), items.len());
            return Err(StatePeerError::new(format!("{got} answers to {asked} requested items")));
        }
        Ok(answers)
    }

    /// Checks the answers, without the lock.
    fn check(
        &self,
        peer: &dyn StatePeer,
        items: &[StateItem],
        answers: Vec<Option<Bytes>>,
    ) -> Vec<ItemOutcome> {
        let mut answers = answers.into_iter();
        let check = |item: &StateItem| match answers.next() {
            None => ItemOutcome::Left,
            Some(None) => ItemOutcome::Missing,
            Some(Some(answer)) => match self.open(item, &answer) {
                Ok(checked) => ItemOutcome::Taken(answer, checked),
                Err(error) => {
                    let may_be_mistake = match item {
                        StateItem::Chunk(id) => peer.may_be_mistaken(id, &answer),
                        StateItem::Node(_) | StateItem::Code(_) => false,
                    };
                    ItemOutcome::Wrong { error, may_be_mistake }
                }
            },
        };
        items.iter().map(check).collect()
    }

    fn open(&self, item: &StateItem, answer: &[u8]) -> Result<CheckedAnswer, ProofError> {
        match item {
            StateItem::Chunk(id) | StateItem::Node(id) => {
                self.format.open(id, answer).map(CheckedAnswer::Chunk)
            }
            StateItem::Code(hash) if keccak256(answer) == *hash => Ok(CheckedAnswer::Code),
            StateItem::Code(_) => Err(ProofError::RootMismatch),
        }
    }

    /// Takes the answers that are on disk, reports progress, and detects the end.
    pub(super) fn watch(
        self: &Arc<Self>,
        peers: &dyn PeerSource,
        options: StateSyncOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&StateSyncProgress),
    ) {
        let may_grow = peers.may_grow();
        let mut leaves = OlderLeaves::default();
        self.start_peer_threads(peers.peers());
        let mut told = Instant::now();
        let mut guard = self.state.lock();
        while let Some(state) = guard.as_mut() {
            if told.elapsed() >= WAKE_INTERVAL {
                told = Instant::now();
                let progress = state.progress();
                MutexGuard::unlocked(&mut guard, || {
                    tell(&progress);
                    if may_grow {
                        self.start_peer_threads(peers.peers());
                    }
                });
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                // The answers in the buffer go to the file.
                let flushed = state.queue.spool.flush();
                state.end(Err(flushed.map_or_else(Into::into, |()| StateSyncError::Stopped)));
            } else if state.queue.is_done() {
                let flushed = state.queue.spool.flush();
                state.end(flushed.map_err(Into::into));
            } else if let Some(error) = self.give_up_reason(state, options, may_grow) {
                state.end(Err(error));
            }
            if state.ended.is_some() {
                self.wake.notify_all();
                return;
            }
            match self.take_known(&mut guard, &mut leaves) {
                Ok(true) => {
                    self.wake.notify_all();
                }
                Ok(false) => {
                    // The next item may be one for peers now.
                    self.wake.notify_all();
                    self.wake.wait_for(&mut guard, WAKE_INTERVAL);
                }
                Err(error) => {
                    if let Some(state) = guard.as_mut() {
                        state.end(Err(error));
                    }
                }
            }
        }
    }

    /// Takes one item that is on disk, or may be. Returns false if the next item is not.
    fn take_known(
        &self,
        guard: &mut MutexGuard<'_, Option<StateDownload>>,
        leaves: &mut OlderLeaves,
    ) -> Result<bool, StateSyncError> {
        let Some(queue) = guard.as_mut().map(|state| &mut state.queue) else { return Ok(false) };
        let known = queue.take_known()?;
        let (item, id, entry) = match known {
            None => return Ok(false),
            Some(KnownItem::Spooled(item, id, entry)) => (item, id, entry),
            Some(KnownItem::Older { id, place, leaves: base, older }) => {
                let old = leaves.read(base, &mut queue.spool)?;
                let storage = |account, root| self.storage(account, root);
                let made = MutexGuard::unlocked(guard, || {
                    let (format, changes) = (&self.format, &self.changes);
                    OlderChunk::of(format, &id, &place, (&old, older), changes, storage)
                });
                let Some(queue) = guard.as_mut().map(|state| &mut state.queue) else {
                    return Ok(false);
                };
                let OlderChunk { outcome, count } = made;
                let is_same = matches!(outcome, OlderOutcome::Same { .. });
                queue.compared(&place, &older, count, is_same);
                match outcome {
                    OlderOutcome::Same { changed, opened } => {
                        queue.accept_older(&id, base, &changed, &opened)?;
                    }
                    OlderOutcome::Other { as_node } => {
                        queue.not_older(id, as_node && queue.is_sparse(&place));
                    }
                }
                return Ok(true);
            }
        };
        let answer = queue.spool.answer(&id, entry)?;
        let opened = MutexGuard::unlocked(guard, || self.open(&item, &answer));
        let Some(queue) = guard.as_mut().map(|state| &mut state.queue) else { return Ok(false) };
        match opened {
            Ok(checked) => {
                queue.accept(None, &item, &answer, checked)?;
            }
            Err(error) => {
                tracing::warn!(%error, "an answer on disk is damaged; it is asked for again");
                queue.spool.forget(&id);
                queue.give_back(None, item);
            }
        }
        Ok(true)
    }

    /// All leaves of the storage trie that an account had under a root, if they are on disk in one
    /// answer.
    fn storage(&self, account: B256, root: B256) -> Option<Vec<TrieLeaf>> {
        let id = self.format.storage(account, root)?;
        let mut guard = self.state.lock();
        let spool = &mut guard.as_mut()?.queue.spool;
        let entry = spool.chunk(&id)?;
        // If the file cannot be read, the next use of it says so.
        self.format.unpack_leaves(&spool.answer(&id, entry).ok()?)
    }

    /// The error that ends the sync, if no peer is left to ask or none has answered for too long.
    fn give_up_reason(
        &self,
        state: &StateDownload,
        options: StateSyncOptions,
        may_grow: bool,
    ) -> Option<StateSyncError> {
        let is_left = may_grow || state.standing.iter().any(|one| one.banned.is_none());
        let is_busy = |one: &StatePeerStanding| one.is_busy && one.is_asked && one.banned.is_none();
        let patience = match state.standing.iter().any(is_busy) {
            true => options.patience.saturating_mul(BUSY_PATIENCE),
            false => options.patience,
        };
        if is_left && state.queue.moved.elapsed() < patience {
            return None;
        }
        let reason = |one: &StatePeerStanding| {
            let why = one.banned.as_ref().or(one.failed.as_ref());
            format!("{}: {}", one.peer.name(), why.map_or("no answer yet", |why| why))
        };
        let mut reasons: Vec<_> = state.standing.iter().take(MAX_REASONS).map(reason).collect();
        match state.standing.len() {
            0 => reasons.push(
                match self.format {
                    StateFormat::Ranges(_) => "no peer that speaks snap/1 was connected",
                    StateFormat::Chunks(_) => {
                        "no peer that hands out such states was connected: nodes serve peers they \
                         trust (--trusted-peers there), or all peers (--rchk.serve all there)"
                    }
                }
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
