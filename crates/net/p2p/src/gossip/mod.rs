//! Transaction gossip between the peers and the pool.
//!
//! ```text
//!  pool --new transactions--> TxGossiper --full, to a few-----------------------> peers
//!    ^                         |   ^  '--hashes, to all that do not know them--->   |
//!    |                         |   '--hashes and full transactions <----------------|
//!    '----PoolJudge------------'------requests for unknown hashes------------------>'
//! ```
//!
//! | work | done by |
//! |---|---|
//! | which peer knows which transaction, announcements, requests | one task, which handles the gossip of each peer in turn |
//! | one request to a peer | a task, one at a time for each peer |
//! | judging transactions | the thread `gossip`; for blob transactions `gossip-blobs`, since their proofs take long. Both serve the peer first that has cost least |
//!
//! A transaction without blobs is sent in full to about the square root of the number of peers, and
//! its hash to the others. Of a blob transaction only the hash is sent. An announced hash is
//! requested after a short delay, in which the full transaction may come from another peer. One
//! peer is asked; another one is asked if the first is late, does not have the transaction, or
//! sends something else than it has announced. What one peer sends never makes the node forget the
//! announcements of other peers, unless the pool would judge their transaction the same: the hash
//! does not cover the sidecar.
//!
//! On eth/72 (EIP-8070) blobs with cell proofs travel apart from their transactions. This node is a
//! provider of all of them: it announces all cells, fetches from peers that announce all cells of a
//! blob, and asks for those that make up the blob. It samples none.
//!
//! | for each peer | at most |
//! |---|---|
//! | hashes that the peer is known to have | 32,768, about 30 bytes each |
//! | announcements of the peer that wait to be requested | 4,096 |
//! | hashes that wait to be announced to the peer | 4,096, the newest |
//! | requests | 1, of 256 hashes and about 128 KiB, on eth/72 and the cells of 16 blobs; none while 128 KiB of its transactions wait for the pool |
//! | unrequested transactions that wait for the pool | 1 MiB; see `gossip_queue` |
//! | work of the pool for the peer | 2,000 signatures or 15 blobs a second, 10,000 or 78 at once |

mod fetch;
mod judge;
mod pool;
mod recent;
#[cfg(test)]
mod tests;
mod tx_fetcher;

pub use pool::{FreshFuture, FreshTransactions, FreshUpdate, PoolVerdict, TxAnnouncement, TxPool};

use crate::{
    eth::{NewPooledTransactionHashes, PeerId, PooledTransaction, TxGossip},
    gossip_queue::{GossipReceiver, ReceivedGossip, SharePermit},
    handle::{NetworkHandle, PeerEvent, PeerInfo, PeerOffence},
};
use alloy_consensus::Typed2718;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::B256;
use judge::{JudgeJob, PoolJudge};
use recent::{ExpiringHashes, RecentHashes};
use retrie_chainspec::CellMask;
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};
use tx_fetcher::{FetchOutcome, TxFetcher};

/// Hashes that are remembered as known to a peer.
const KNOWN: usize = 32_768;
/// Maximum number of refused transactions that are remembered, and for how long.
const REFUSED: usize = 32_768;
const REFUSED_FOR: Duration = Duration::from_secs(300);
/// Maximum number of hashes that wait to be announced to a peer, and of hashes in one message.
const MOST_OWED: usize = 4096;
/// A message of full transactions ends with the one that reaches this many bytes.
const ENOUGH: usize = 100 << 10;
/// EIP-2718 type of transactions with blobs.
const BLOB: u8 = 3;
/// How long gossip to a peer pauses after its queue was full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(500);

/// Timing of transaction gossip.
#[derive(Clone, Copy, Debug)]
pub struct GossipOptions {
    /// How long new transactions are collected before they are sent.
    pub interval: Duration,
    /// How long after an announcement the transaction is requested.
    pub delay: Duration,
    /// How long to wait for one peer before another one is asked.
    pub patience: Duration,
}

impl Default for GossipOptions {
    /// 50 ms, 200 ms and 5 s.
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            delay: Duration::from_millis(200),
            patience: Duration::from_secs(5),
        }
    }
}

/// Counters of gossip, in transactions.
#[derive(Debug, Default)]
pub struct GossipFigures {
    /// Sent in full.
    pub sent: AtomicU64,
    /// Announced to peers.
    pub announced: AtomicU64,
    /// Announced by peers, and unknown here.
    pub heard: AtomicU64,
    /// Sent by peers beyond their limits, or announced with an impossible size.
    pub overheard: AtomicU64,
    /// Received as answers to requests.
    pub fetched: AtomicU64,
    /// Accepted by the pool.
    pub taken: AtomicU64,
    /// Refused by the pool.
    pub refused: AtomicU64,
    /// Known by hash, and not received yet.
    pub wanted: AtomicU64,
}

/// The gossip task, before it runs.
#[derive(Debug)]
pub struct TxGossiper {
    peers: NetworkHandle,
    heard: GossipReceiver,
    pool: Arc<dyn TxPool>,
    options: GossipOptions,
    figures: Arc<GossipFigures>,
    events: broadcast::Receiver<PeerEvent>,
    fresh: Box<dyn FreshTransactions>,
}

/// An event for the gossip task from a thread or another task.
#[derive(Debug)]
enum GossipEvent {
    Judged(PeerId, B256, PoolVerdict),
    Answered(PeerId, FetchOutcome),
}

/// The gossip state of one peer.
#[derive(Debug)]
struct GossipPeer {
    hashes: RecentHashes,
    /// Transactions to be announced to it, the oldest first.
    owed: VecDeque<TxAnnouncement>,
    /// Until when gossip to it pauses.
    rests_until: Option<Instant>,
    /// Whether blobs travel apart from their transactions.
    elides_blobs: bool,
}

impl GossipPeer {
    fn new(elides_blobs: bool) -> Self {
        let hashes = RecentHashes::new(KNOWN);
        Self { hashes, owed: VecDeque::new(), rests_until: None, elides_blobs }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    fn owe(&mut self, announced: TxAnnouncement) {
        if !self.hashes.contains(&announced.hash) {
            self.owed.push_back(announced);
            while self.owed.len() > MOST_OWED {
                self.owed.pop_front();
            }
        }
    }
}

struct GossipTask {
    peers: NetworkHandle,
    pool: Arc<dyn TxPool>,
    options: GossipOptions,
    figures: Arc<GossipFigures>,
    known: BTreeMap<PeerId, GossipPeer>,
    wanted: TxFetcher,
    refused: ExpiringHashes,
    /// New transactions of the pool, to be sent.
    fresh: Vec<TxAnnouncement>,
    /// A random key: it decides which peers get which transaction in full.
    lot: RandomState,
    judge: PoolJudge,
    /// For blob transactions.
    blob_judge: PoolJudge,
    news: mpsc::UnboundedSender<GossipEvent>,
}

impl TxGossiper {
    /// Makes the task for these peers, their gossip, and a pool. It misses no event from now on.
    pub fn new(
        peers: NetworkHandle,
        heard: GossipReceiver,
        pool: Arc<dyn TxPool>,
        options: GossipOptions,
    ) -> Self {
        let (events, fresh) = (peers.events(), pool.fresh());
        Self { peers, heard, pool, options, figures: Arc::default(), events, fresh }
    }

    /// The counters of gossip.
    pub fn figures(&self) -> Arc<GossipFigures> {
        self.figures.clone()
    }

    /// Runs until the network, the gossip queue or the pool ends.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub async fn run(self) -> std::io::Result<()> {
        let Self { peers, mut heard, pool, options, figures, mut events, mut fresh } = self;
        let (news, mut inbox) = mpsc::unbounded_channel();
        let judge = PoolJudge::start("gossip", pool.clone(), news.clone())?;
        let blob_judge = PoolJudge::start("gossip-blobs", pool.clone(), news.clone())?;
        let mut task = GossipTask {
            peers,
            pool,
            options,
            figures,
            known: BTreeMap::new(),
            wanted: TxFetcher::default(),
            refused: ExpiringHashes::new(REFUSED, REFUSED_FOR, Instant::now()),
            fresh: Vec::new(),
            lot: RandomState::new(),
            judge,
            blob_judge,
            news,
        };
        task.sync_peers();
        let mut tick = tokio::time::interval(options.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(PeerEvent::Connected(peer)) => task.connected(&peer),
                    Ok(PeerEvent::Disconnected(peer)) => task.disconnected(peer.info.id),
                    Ok(PeerEvent::RangeUpdate(..)) => {}
                    Err(RecvError::Lagged(_)) => task.sync_peers(),
                    Err(RecvError::Closed) => return Ok(()),
                },
                told = heard.recv() => match told {
                    Some(told) => {
                        task.hear(told);
                        task.figures.overheard.fetch_add(heard.take_dropped(), Ordering::Relaxed);
                    }
                    None => return Ok(()),
                },
                one = fresh.next() => match one {
                    Some(FreshUpdate::One(announced)) => {
                        task.wanted.forget(&announced.hash);
                        task.fresh.push(announced);
                    }
                    Some(FreshUpdate::Missed) => task.owe_all(),
                    None => return Ok(()),
                },
                Some(news) = inbox.recv() => task.handle_event(news),
                _ = tick.tick() => task.tick(),
            }
        }
    }
}

impl GossipTask {
    // -- peers ------------------------------------------------------------------------------------

    /// Brings the known peers in line with the connected ones.
    fn sync_peers(&mut self) {
        let connected = self.peers.connected();
        let is_gone = |peer: &PeerId| connected.iter().all(|one| one.id != *peer);
        let gone: Vec<PeerId> = self.known.keys().filter(|peer| is_gone(peer)).copied().collect();
        gone.into_iter().for_each(|peer| self.disconnected(peer));
        connected.iter().for_each(|peer| self.connected(peer));
    }

    fn connected(&mut self, peer: &PeerInfo) {
        let mut is_new = false;
        let known = self.known.entry(peer.id).or_insert_with(|| {
            is_new = true;
            GossipPeer::new(peer.version.elides_blobs())
        });
        if is_new {
            known.owed.extend(self.pool.newest(MOST_OWED).into_iter().rev());
        }
    }

    fn disconnected(&mut self, peer: PeerId) {
        self.known.remove(&peer);
        self.judge.forget(peer);
        self.blob_judge.forget(peer);
        self.wanted.disconnected(peer);
    }

    /// Whether a peer is connected. Gossip of a peer may arrive before its connect event, and after
    /// its disconnect event; in the latter case nothing is recorded for it.
    fn is_present(&mut self, peer: PeerId) -> bool {
        if self.known.contains_key(&peer) {
            return true;
        }
        let connected = self.peers.connected();
        let found = connected.iter().find(|one| one.id == peer);
        found.is_some_and(|found| {
            self.connected(found);
            true
        })
    }

    fn elides_blobs(&self, peer: &PeerId) -> bool {
        self.known.get(peer).is_some_and(|known| known.elides_blobs)
    }

    // -- what comes -------------------------------------------------------------------------------

    fn hear(&mut self, told: ReceivedGossip) {
        let ReceivedGossip { peer, gossip, permit } = told;
        let now = Instant::now();
        let is_here = self.is_present(peer);
        match gossip {
            TxGossip::Hashes(hashes) if is_here => self.hear_hashes(peer, hashes, now),
            TxGossip::Hashes(_) => {}
            TxGossip::Transactions(transactions) => {
                if is_here {
                    self.note_known(peer, transactions.iter().map(PooledTransaction::tx_hash));
                }
                if transactions.iter().any(|transaction| transaction.ty() == BLOB) {
                    // EIP-4844: blob transactions must not be sent without a request.
                    self.peers.report(peer, PeerOffence::BadTransaction);
                    return;
                }
                self.judge(peer, transactions, Some(permit));
            }
        }
    }

    fn hear_hashes(&mut self, peer: PeerId, told: NewPooledTransactionHashes, now: Instant) {
        self.note_known(peer, &told.hashes);
        if !self.pool.is_open() {
            return;
        }
        let has_blobs = !self.elides_blobs(&peer) || told.cells.contains(CellMask::BLOB);
        let (count, mut noted, mut known) = (told.hashes.len(), 0, 0);
        for ((hash, ty), size) in told.hashes.into_iter().zip(told.types).zip(told.sizes) {
            if !self.wanted.has_room(&peer) {
                break;
            }
            // A peer that samples does not have the blobs; others do.
            let is_sampled = ty == BLOB && !has_blobs;
            if is_sampled || self.refused.contains(&hash) || self.pool.contains(&hash) {
                known += 1;
            } else if size <= self.pool.max_size(ty)
                && self.wanted.announce(peer, TxAnnouncement { hash, ty, size }, now)
            {
                noted += 1;
            }
        }
        self.figures.heard.fetch_add(noted, Ordering::Relaxed);
        self.figures.overheard.fetch_add(count as u64 - noted - known, Ordering::Relaxed);
        if self.options.delay.is_zero() {
            self.ask(now);
        }
    }

    fn note_known<'a>(&mut self, peer: PeerId, hashes: impl IntoIterator<Item = &'a B256>) {
        if let Some(known) = self.known.get_mut(&peer) {
            for hash in hashes {
                known.hashes.insert(hash);
            }
        }
    }

    /// Hands transactions of a peer to the pool. Until they are judged, other peers that have
    /// announced the same may send them as well: the other transactions of this peer may delay
    /// them.
    fn judge(
        &mut self,
        peer: PeerId,
        transactions: Vec<PooledTransaction>,
        mut permit: Option<SharePermit>,
    ) {
        let (is_open, is_here) = (self.pool.is_open(), self.known.contains_key(&peer));
        for transaction in transactions {
            let hash = *transaction.tx_hash();
            if !is_open || self.refused.contains(&hash) {
                self.wanted.release(&peer, &hash);
                self.wanted.forget(&hash);
                continue;
            }
            let permit = permit.as_mut().map(|permit| permit.split(&transaction));
            let judge = if transaction.ty() == BLOB { &self.blob_judge } else { &self.judge };
            let job = JudgeJob { peer, transaction, permit };
            if is_here {
                judge.push(job);
            } else {
                judge.push_orphan(job);
            }
        }
    }

    fn handle_event(&mut self, news: GossipEvent) {
        let now = Instant::now();
        match news {
            GossipEvent::Judged(peer, hash, verdict) => self.judged(peer, &hash, verdict, now),
            GossipEvent::Answered(peer, answer) => {
                let delivery = self.wanted.answer(peer, answer, now);
                if delivery.is_false {
                    self.peers.report(peer, PeerOffence::BadAnnouncement);
                }
                let fetched = delivery.transactions.len() as u64;
                self.figures.fetched.fetch_add(fetched, Ordering::Relaxed);
                self.judge(peer, delivery.transactions, None);
            }
        }
        self.ask(now);
    }

    fn judged(&mut self, peer: PeerId, hash: &B256, verdict: PoolVerdict, now: Instant) {
        let figures = &self.figures;
        match verdict {
            PoolVerdict::Taken => {
                figures.taken.fetch_add(1, Ordering::Relaxed);
            }
            PoolVerdict::Known => {}
            _ => {
                figures.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.wanted.release(&peer, hash);
        match verdict {
            PoolVerdict::BadSidecar | PoolVerdict::SidecarForm => {
                self.wanted.reject(peer, hash);
                let is_bad = verdict == PoolVerdict::BadSidecar;
                let offence =
                    if is_bad { PeerOffence::BadTransaction } else { PeerOffence::SidecarForm };
                self.peers.report(peer, offence);
            }
            PoolVerdict::TooEarly => self.wanted.postpone(peer, hash, now),
            PoolVerdict::Invalid => {
                self.refused.insert(hash);
                self.wanted.forget(hash);
                self.peers.report(peer, PeerOffence::BadTransaction);
            }
            PoolVerdict::Refused { for_good: true } => {
                self.refused.insert(hash);
                self.wanted.forget(hash);
            }
            PoolVerdict::Taken | PoolVerdict::Known | PoolVerdict::Refused { for_good: false } => {
                self.wanted.forget(hash);
            }
        }
    }

    // -- what goes --------------------------------------------------------------------------------

    fn tick(&mut self) {
        let now = Instant::now();
        self.refused.forget(now);
        for peer in self.wanted.give_up(self.options.patience, now) {
            tracing::debug!(%peer, "a peer is late with transactions");
        }
        self.send_due(now);
        self.ask(now);
        self.figures.wanted.store(self.wanted.len() as u64, Ordering::Relaxed);
    }

    /// Sends the requests that are due.
    fn ask(&mut self, now: Instant) {
        for request in self.wanted.requests(self.options.delay, now) {
            let (peer, peers, news) = (request.peer, self.peers.clone(), self.news.clone());
            let elides_blobs = self.elides_blobs(&peer);
            tokio::spawn(async move {
                let answer = match elides_blobs {
                    true => fetch::with_cells(&peers, request).await,
                    false => fetch::whole(&peers, request).await,
                };
                // The gossip task may have ended.
                let _ = news.send(GossipEvent::Answered(peer, answer));
            });
        }
    }

    /// Announces the newest transactions of the pool to all peers, after some updates were missed.
    fn owe_all(&mut self) {
        let newest = self.pool.newest(MOST_OWED);
        for known in self.known.values_mut() {
            for announced in newest.iter().rev() {
                known.owe(*announced);
            }
        }
    }

    /// Sends new transactions, and announcements that are due.
    fn send_due(&mut self, now: Instant) {
        let fresh = std::mem::take(&mut self.fresh);
        let few = self.known.len().isqrt().max(1);
        let mut whole = BTreeMap::<PeerId, Vec<TxAnnouncement>>::new();
        for announced in fresh {
            let mut ignorant: Vec<_> = self
                .known
                .iter()
                .filter(|(_, known)| !known.hashes.contains(&announced.hash))
                .map(|(peer, _)| *peer)
                .collect();
            // Different peers for each transaction. A peer that has announcements waiting gets them
            // first.
            ignorant.sort_by_cached_key(|peer| self.lot.hash_one((announced.hash, peer)));
            let few = if announced.ty == BLOB { 0 } else { few };
            for (place, peer) in ignorant.into_iter().enumerate() {
                let rests = self.known.get(&peer).is_none_or(|known| known.rests(now));
                if place < few && !rests {
                    whole.entry(peer).or_default().push(announced);
                } else if let Some(known) = self.known.get_mut(&peer) {
                    known.owe(announced);
                }
            }
        }
        for (peer, announced) in whole {
            self.send_whole(peer, announced, now);
        }
        let peers: Vec<PeerId> = self.known.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.announce_owed(peer, now));
    }

    fn send_whole(&mut self, peer: PeerId, all: Vec<TxAnnouncement>, now: Instant) {
        let mut rest = all.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut message, mut told, mut bytes) = (Vec::new(), Vec::new(), 0);
            while bytes < ENOUGH
                && let Some(announced) = rest.next()
            {
                // It may have been mined or dropped.
                let Some(transaction) = self.pool.pooled(&announced.hash) else { continue };
                bytes += transaction.encode_2718_len();
                message.push(transaction);
                told.push(announced);
            }
            if message.is_empty() {
                return;
            }
            let is_told = self.peers.send(peer, TxGossip::Transactions(message));
            let Some(known) = self.known.get_mut(&peer) else { return };
            for announced in &told {
                if is_told {
                    known.hashes.insert(&announced.hash);
                } else {
                    known.owe(*announced);
                }
            }
            if !is_told {
                known.rests_until = Some(now + FULL_QUEUE_PAUSE);
                rest.by_ref().for_each(|announced| known.owe(announced));
                return;
            }
            self.figures.sent.fetch_add(told.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sends the waiting announcements to a peer.
    fn announce_owed(&mut self, peer: PeerId, now: Instant) {
        let Some(known) = self.known.get_mut(&peer) else { return };
        if known.owed.is_empty() || known.rests(now) {
            return;
        }
        let (hashes, mut seen) = (&known.hashes, HashSet::new());
        known.owed.retain(|one| !hashes.contains(&one.hash) && seen.insert(one.hash));
        if known.owed.is_empty() {
            return;
        }
        let mut message = NewPooledTransactionHashes::default();
        for announced in &known.owed {
            let mut size = announced.size;
            if announced.ty == BLOB && known.elides_blobs {
                message.cells = CellMask::ALL;
                size = self.pool.size_without_blobs(&announced.hash).unwrap_or(size);
            }
            message.types.push(announced.ty);
            message.sizes.push(size);
            message.hashes.push(announced.hash);
        }
        let count = message.hashes.len() as u64;
        if self.peers.send(peer, TxGossip::Hashes(message)) {
            for announced in known.owed.drain(..) {
                known.hashes.insert(&announced.hash);
            }
            self.figures.announced.fetch_add(count, Ordering::Relaxed);
        } else {
            known.rests_until = Some(now + FULL_QUEUE_PAUSE);
        }
    }
}
