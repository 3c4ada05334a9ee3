//! Transactions between peers and the pool.
//!
//! ```text
//!  pool --new ones--> Gossiper --whole, to a few--------------------> peers
//!    ^                 |   ^  '--hashes, to all who do not know them-->   |
//!    |                 |   '--hashes and whole ones <---------------------|
//!    '----judged-------'------asked for, what is not known--------------->'
//! ```
//!
//! | work | done by |
//! |---|---|
//! | who knows what, who is told and asked | one task, which takes what it is told of each peer in turn |
//! | a request to a peer | a task each, one at a time for each peer |
//! | the pool's judgement | the thread `gossip`; of those with blobs `gossip-blobs`, as their proofs take long. Both take next what is of the peer that has cost least |
//!
//! A transaction without blobs goes whole to the square root of the number of peers, and its hash to
//! the others; one with blobs goes by its hash alone. A hash that comes is asked for after a moment, in
//! which the transaction may come whole from somebody else; of one peer, and of another if that one is
//! late, has it not, or sends something else than it has announced. What one peer sends never makes the
//! node forget that others have announced a transaction, unless the pool would judge the same of theirs:
//! of a sidecar the hash says nothing.
//!
//! | of each peer | at most |
//! |---|---|
//! | hashes that it is known to know | 32,768, some 30 bytes each |
//! | its announcements that wait to be asked for | 4,096 |
//! | hashes that it has not been told yet | 4,096, the newest |
//! | requests | 1, of 256 hashes and about 128 KiB; none while 128 KiB of it wait for the pool |
//! | transactions it has told, until they are judged | 1 MiB; more in [`heard`](crate::heard) |
//! | the pool's work for it | 2,000 signatures or 15 blobs a second, 10,000 or 78 at once |

mod judge;
mod pool;
mod recent;
#[cfg(test)]
mod tests;
mod wanted;

pub use pool::{Announced, Fresh, FreshFuture, FreshTransactions, TxPool, Verdict};

use crate::{
    eth::{Gossip, NewPooledTransactionHashes, PeerId, PooledTransaction, Request, Response},
    heard::{GossipReceiver, Heard, SharePermit},
    peers::{Event, Offence, Peers, RequestError},
};
use alloy_consensus::Typed2718;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::B256;
use judge::{Judge, JudgeJob};
use recent::{Passing, Recent};
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
use wanted::{Answer, WantedHashes, WantedRequest};

/// Hashes that a peer is known to know.
const KNOWN: usize = 32_768;
/// Refused transactions that are remembered, and how long.
const REFUSED: usize = 32_768;
const REFUSED_FOR: Duration = Duration::from_secs(300);
/// Hashes that a peer has not been told yet, and those of one message.
const MOST_OWED: usize = 4096;
/// Bytes of whole transactions with which a message has enough.
const ENOUGH: usize = 100 << 10;
/// EIP-2718 type of transactions with blobs.
const BLOB: u8 = 3;
/// How long a peer is told nothing that has not read what it was told.
const UNREAD: Duration = Duration::from_millis(500);

/// How gossip behaves.
#[derive(Clone, Copy, Debug)]
pub struct GossipOptions {
    /// How long new transactions are collected before they are told.
    pub interval: Duration,
    /// How long it is waited for a transaction whose hash has come, before it is asked for.
    pub delay: Duration,
    /// How long one peer is waited for before another is asked.
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

/// Figures of what was told and heard: transactions each.
#[derive(Debug, Default)]
pub struct GossipFigures {
    /// Sent whole.
    pub sent: AtomicU64,
    /// Announced to a peer.
    pub announced: AtomicU64,
    /// Announced by a peer, and not known.
    pub heard: AtomicU64,
    /// Told by a peer that had told too many, or announced with more bytes than there can be.
    pub overheard: AtomicU64,
    /// Fetched.
    pub fetched: AtomicU64,
    /// Taken into the pool.
    pub taken: AtomicU64,
    /// Refused by the pool.
    pub refused: AtomicU64,
    /// Wanted, and not here yet.
    pub wanted: AtomicU64,
}

/// Passes transactions on.
#[derive(Debug)]
pub struct Gossiper {
    peers: Peers,
    heard: GossipReceiver,
    pool: Arc<dyn TxPool>,
    options: GossipOptions,
    figures: Arc<GossipFigures>,
    events: broadcast::Receiver<Event>,
    fresh: Box<dyn FreshTransactions>,
}

/// What somebody else has found out for the task.
#[derive(Debug)]
enum News {
    Judged(PeerId, B256, Verdict),
    Answered(PeerId, Answer),
}

/// What is known of a peer.
#[derive(Debug)]
struct Known {
    hashes: Recent,
    /// To be announced to it, the oldest first.
    owed: VecDeque<Announced>,
    /// Until when it is told nothing.
    rests_until: Option<Instant>,
}

impl Known {
    fn new() -> Self {
        Self { hashes: Recent::new(KNOWN), owed: VecDeque::new(), rests_until: None }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    fn owe(&mut self, announced: Announced) {
        if !self.hashes.contains(&announced.hash) {
            self.owed.push_back(announced);
            while self.owed.len() > MOST_OWED {
                self.owed.pop_front();
            }
        }
    }
}

struct Task {
    peers: Peers,
    pool: Arc<dyn TxPool>,
    options: GossipOptions,
    figures: Arc<GossipFigures>,
    known: BTreeMap<PeerId, Known>,
    wanted: WantedHashes,
    refused: Passing,
    /// New here, to be told.
    fresh: Vec<Announced>,
    /// Decides who gets which transaction whole.
    lot: RandomState,
    judge: Judge,
    /// Of those with blobs.
    blob_judge: Judge,
    news: mpsc::UnboundedSender<News>,
}

impl Gossiper {
    /// Between these peers, what they tell, and a pool. Nothing is missed from here on.
    pub fn new(
        peers: Peers,
        heard: GossipReceiver,
        pool: Arc<dyn TxPool>,
        options: GossipOptions,
    ) -> Self {
        let (events, fresh) = (peers.events(), pool.fresh());
        Self { peers, heard, pool, options, figures: Arc::default(), events, fresh }
    }

    /// Figures of what was told and heard.
    pub fn figures(&self) -> Arc<GossipFigures> {
        self.figures.clone()
    }

    /// Passes transactions on until nothing can be heard any more.
    ///
    /// # Errors
    /// If no thread can be started.
    pub async fn run(self) -> std::io::Result<()> {
        let Self { peers, mut heard, pool, options, figures, mut events, mut fresh } = self;
        let (news, mut inbox) = mpsc::unbounded_channel();
        let judge = Judge::start("gossip", pool.clone(), news.clone())?;
        let blob_judge = Judge::start("gossip-blobs", pool.clone(), news.clone())?;
        let mut task = Task {
            peers,
            pool,
            options,
            figures,
            known: BTreeMap::new(),
            wanted: WantedHashes::default(),
            refused: Passing::new(REFUSED, REFUSED_FOR, Instant::now()),
            fresh: Vec::new(),
            lot: RandomState::new(),
            judge,
            blob_judge,
            news,
        };
        task.meet();
        let mut tick = tokio::time::interval(options.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(Event::Connected(peer)) => task.connected(peer.id),
                    Ok(Event::Disconnected(peer)) => task.disconnected(peer),
                    Ok(Event::RangeUpdate(..)) => {}
                    Err(RecvError::Lagged(_)) => task.meet(),
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
                    Some(Fresh::One(announced)) => {
                        task.wanted.done(&announced.hash);
                        task.fresh.push(announced);
                    }
                    Some(Fresh::Missed) => task.owe_all(),
                    None => return Ok(()),
                },
                Some(news) = inbox.recv() => task.learn(news),
                _ = tick.tick() => task.tick(),
            }
        }
    }
}

impl Task {
    // -- peers ------------------------------------------------------------------------------------

    /// Compares those known here with those who are connected.
    fn meet(&mut self) {
        let connected: Vec<PeerId> = self.peers.connected().iter().map(|peer| peer.id).collect();
        let gone: Vec<PeerId> =
            self.known.keys().filter(|peer| !connected.contains(peer)).copied().collect();
        gone.into_iter().for_each(|peer| self.disconnected(peer));
        connected.into_iter().for_each(|peer| self.connected(peer));
    }

    fn connected(&mut self, peer: PeerId) {
        let mut is_new = false;
        let known = self.known.entry(peer).or_insert_with(|| {
            is_new = true;
            Known::new()
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

    /// Whether a peer is there. Its connection may be told of after its first word, and its last word
    /// looked at after its end: then nothing of it is kept.
    fn meets(&mut self, peer: PeerId) -> bool {
        let is_known = self.known.contains_key(&peer);
        if !is_known && self.peers.connected().iter().any(|one| one.id == peer) {
            self.connected(peer);
            return true;
        }
        is_known
    }

    // -- what comes -------------------------------------------------------------------------------

    fn hear(&mut self, told: Heard) {
        let Heard { peer, gossip, permit } = told;
        let now = Instant::now();
        let is_here = self.meets(peer);
        match gossip {
            Gossip::Hashes(hashes) if is_here => self.hear_hashes(peer, hashes, now),
            Gossip::Hashes(_) => {}
            Gossip::Transactions(transactions) => {
                if is_here {
                    self.note_known(peer, transactions.iter().map(PooledTransaction::tx_hash));
                }
                if transactions.iter().any(|transaction| transaction.ty() == BLOB) {
                    // EIP-4844: these are never sent without being asked for.
                    self.peers.report(peer, Offence::BadTransaction);
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
        let (count, mut noted, mut known) = (told.hashes.len(), 0, 0);
        for ((hash, ty), size) in told.hashes.into_iter().zip(told.types).zip(told.sizes) {
            if !self.wanted.has_room(&peer) {
                break;
            }
            if self.refused.contains(&hash) || self.pool.contains(&hash) {
                known += 1;
            } else if size <= self.pool.max_size(ty)
                && self.wanted.announce(peer, Announced { hash, ty, size }, now)
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

    /// Has the pool judge what a peer has sent. While it waits for that, others who have announced the
    /// same may send it as well: it may wait long for the other transactions of its peer.
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
                self.wanted.done(&hash);
                continue;
            }
            let permit = permit.as_mut().map(|permit| permit.split(&transaction));
            let judge = if transaction.ty() == BLOB { &self.blob_judge } else { &self.judge };
            let job = JudgeJob { peer, transaction, permit };
            if is_here {
                judge.push(job);
            } else {
                judge.push_left(job);
            }
        }
    }

    fn learn(&mut self, news: News) {
        let now = Instant::now();
        match news {
            News::Judged(peer, hash, verdict) => self.judged(peer, &hash, verdict, now),
            News::Answered(peer, answer) => {
                let delivery = self.wanted.answer(peer, answer, now);
                if delivery.is_false {
                    self.peers.report(peer, Offence::BadAnnouncement);
                } else if delivery.is_empty {
                    self.peers.report(peer, Offence::Empty);
                }
                let fetched = delivery.transactions.len() as u64;
                self.figures.fetched.fetch_add(fetched, Ordering::Relaxed);
                self.judge(peer, delivery.transactions, None);
            }
        }
        self.ask(now);
    }

    fn judged(&mut self, peer: PeerId, hash: &B256, verdict: Verdict, now: Instant) {
        let figures = &self.figures;
        match verdict {
            Verdict::Taken => {
                figures.taken.fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Known => {}
            _ => {
                figures.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.wanted.release(&peer, hash);
        match verdict {
            Verdict::BadSidecar | Verdict::SidecarForm => {
                self.wanted.spoilt(peer, hash);
                let is_bad = verdict == Verdict::BadSidecar;
                let offence = if is_bad { Offence::BadTransaction } else { Offence::SidecarForm };
                self.peers.report(peer, offence);
            }
            Verdict::TooEarly => self.wanted.postpone(peer, hash, now),
            Verdict::Invalid => {
                self.refused.insert(hash);
                self.wanted.done(hash);
                self.peers.report(peer, Offence::BadTransaction);
            }
            Verdict::Refused { for_good: true } => {
                self.refused.insert(hash);
                self.wanted.done(hash);
            }
            Verdict::Taken | Verdict::Known | Verdict::Refused { for_good: false } => {
                self.wanted.done(hash);
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
        self.tell(now);
        self.ask(now);
        self.figures.wanted.store(self.wanted.len() as u64, Ordering::Relaxed);
    }

    /// Asks for what is wanted.
    fn ask(&mut self, now: Instant) {
        for request in self.wanted.requests(self.options.delay, now) {
            let WantedRequest { peer, hashes, bytes } = request;
            let (peers, news) = (self.peers.clone(), self.news.clone());
            tokio::spawn(async move {
                let request = Request::PooledTransactions(hashes);
                let answer = peers.request_within(peer, request, bytes).await;
                let answer = match answer {
                    Ok(Response::PooledTransactions(transactions)) => {
                        Answer::Transactions(transactions)
                    }
                    Err(RequestError::Busy(_)) => Answer::Busy,
                    Ok(_) | Err(_) => Answer::Failed,
                };
                // The task may have ended.
                let _ = news.send(News::Answered(peer, answer));
            });
        }
    }

    /// Owes all peers the newest of the pool, after some went by unseen.
    fn owe_all(&mut self) {
        let newest = self.pool.newest(MOST_OWED);
        for known in self.known.values_mut() {
            for announced in newest.iter().rev() {
                known.owe(*announced);
            }
        }
    }

    /// Tells what is new, and what is owed.
    fn tell(&mut self, now: Instant) {
        let fresh = std::mem::take(&mut self.fresh);
        let few = self.known.len().isqrt().max(1);
        let mut whole = BTreeMap::<PeerId, Vec<Announced>>::new();
        for announced in fresh {
            let mut ignorant: Vec<_> = self
                .known
                .iter()
                .filter(|(_, known)| !known.hashes.contains(&announced.hash))
                .map(|(peer, _)| *peer)
                .collect();
            // For each transaction others; what is owed to a peer already is not overtaken.
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
        peers.into_iter().for_each(|peer| self.pay(peer, now));
    }

    fn send_whole(&mut self, peer: PeerId, all: Vec<Announced>, now: Instant) {
        let mut rest = all.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut message, mut told, mut bytes) = (Vec::new(), Vec::new(), 0);
            while bytes < ENOUGH
                && let Some(announced) = rest.next()
            {
                // It may have been mined, or dropped.
                let Some(transaction) = self.pool.pooled(&announced.hash) else { continue };
                bytes += transaction.encode_2718_len();
                message.push(transaction);
                told.push(announced);
            }
            if message.is_empty() {
                return;
            }
            let is_told = self.peers.send(peer, Gossip::Transactions(message));
            let Some(known) = self.known.get_mut(&peer) else { return };
            for announced in &told {
                if is_told {
                    known.hashes.insert(&announced.hash);
                } else {
                    known.owe(*announced);
                }
            }
            if !is_told {
                known.rests_until = Some(now + UNREAD);
                rest.by_ref().for_each(|announced| known.owe(announced));
                return;
            }
            self.figures.sent.fetch_add(told.len() as u64, Ordering::Relaxed);
        }
    }

    /// Announces what is owed to a peer, as far as it reads.
    fn pay(&mut self, peer: PeerId, now: Instant) {
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
            message.types.push(announced.ty);
            message.sizes.push(announced.size);
            message.hashes.push(announced.hash);
        }
        let count = message.hashes.len() as u64;
        if self.peers.send(peer, Gossip::Hashes(message)) {
            for announced in known.owed.drain(..) {
                known.hashes.insert(&announced.hash);
            }
            self.figures.announced.fetch_add(count, Ordering::Relaxed);
        } else {
            known.rests_until = Some(now + UNREAD);
        }
    }
}
