//! Blocks from peers, for the follower that every other source has too.
//!
//! ```text
//!  follower --header of the head--> HeaderSkeleton: headers downwards, each by the hash in the one above
//!     ^  |                             ^--- HeaderScheduler: in pieces, from all peers at once
//!     |  \--blocks upwards-------> BodyScheduler: bodies, from all peers at once, ahead of the follower
//!     |                               |  ^
//!     '-----------blocks-------------'   '-- each held against the hashes in its header
//! ```
//!
//! | thread | work |
//! |---|---|
//! | the follower's | asks for headers and waits for them; wants bodies, and waits for the one it needs |
//! | tasks of the runtime, one for each request | wait for a peer, hold what has come against the headers |
//!
//! **Nobody is believed.** The head's hash is the consensus client's. A header counts if the one above
//! names its hash and its number is one less; a body counts if the roots in its header are those of
//! what is in it. So a peer cannot make this node import anything but the chain of that head, and who
//! sends something else is reported.
//!
//! **Nobody is waited for.** What a peer can do is to send nothing, or little, or late. `standing`
//! keeps how many items a second each peer gives. What is needed first is asked of the fastest one, and
//! of a second one when that one would be through by now; whoever gives less than it has, again and
//! again, is reported. So a sync is as fast as its fastest peer.
//!
//! What lies in memory:
//!
//! | what | at most |
//! |---|---|
//! | headers | 32 segments of 1,024 and the uppermost one; 40 bytes for each segment beyond |
//! | headers that nothing above has named yet | 15 pieces of 1,024 |
//! | bodies | 4,096, of 64 MiB about ([`SyncOptions::most_bytes`]) |
//! | requests | 2 for headers and 2 for bodies to each peer |

mod bodies;
mod headers;
#[cfg(test)]
mod simulation;
mod skeleton;
mod standing;
#[cfg(test)]
mod tests;

use crate::{
    eth::{BlockRange, HeadersFrom, PeerId, Request, Response},
    peers::{Offence, Peers, RequestError},
};
use alloy_primitives::B256;
use bodies::{BodyFlight, BodyLimits, BodyOutcome, BodyScheduler};
use headers::{HeaderFlight, HeaderOutcome, HeaderScheduler};
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use retrie_sources::{BlockFetcher, BlockTag, FetchError};
use skeleton::{HeaderSkeleton, HeaderSpan, NamedHeader};
use standing::PeerStandings;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Headers of the first request downwards from a hash.
const FIRST_HEADERS: u64 = 64;
/// How often somebody who waits looks whether others should be asked.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress with headers goes to the log.
const TELL: Duration = Duration::from_secs(8);

/// How blocks are fetched.
#[derive(Clone, Copy, Debug)]
pub struct SyncOptions {
    /// How long one peer is waited for, at most, before another is asked for the same.
    pub patience: Duration,
    /// How long nothing of use may come from anybody before the follower is told.
    pub stalled: Duration,
    /// Bytes of bodies that are here and not yet taken, about.
    pub most_bytes: usize,
}

impl Default for SyncOptions {
    /// 2 s, 30 s and 64 MiB.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            stalled: Duration::from_secs(30),
            most_bytes: 64 << 20,
        }
    }
}

/// Figures of what has come from peers.
#[derive(Debug, Default)]
pub struct SyncFigures {
    /// Headers that linked.
    pub headers: AtomicU64,
    /// Bodies that belonged to their headers.
    pub bodies: AtomicU64,
    /// Their bytes.
    pub body_bytes: AtomicU64,
    /// Answers of which something was wrong.
    pub wrong: AtomicU64,
    /// Requests without an answer of use.
    pub failed: AtomicU64,
}

/// Why peers gave no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Nobody is connected.
    #[error("no peer is connected")]
    NoPeers,
    /// All were asked.
    #[error(
        "none of {peers} peers has given block {hash}: it may be on a branch that they do not know"
    )]
    NobodyHas {
        /// Hash of the block.
        hash: B256,
        /// How many were asked.
        peers: usize,
    },
    /// There are peers, and nothing comes.
    #[error("nothing has come of block {number} and those above it for {} s", after.as_secs())]
    Stalled {
        /// Number of the block.
        number: u64,
        /// How long.
        after: Duration,
    },
    /// A block above the head that was named, or no head was named.
    #[error("block {number} was asked for before a head at or above it")]
    AboveHead {
        /// Number of the block.
        number: u64,
    },
    /// Peers name no heads: a consensus client does.
    #[error("peers name no heads: a consensus client does, or --sync.head")]
    NoHeads,
    /// Told to stop.
    #[error("stopped")]
    Stopped,
}

impl From<PeersError> for FetchError {
    fn from(error: PeersError) -> Self {
        Self::new(error)
    }
}

/// Blocks of the connected peers.
#[derive(Debug)]
pub struct PeerBlocks {
    shared: Arc<Shared>,
    skeletons: Mutex<Skeletons>,
}

#[derive(Debug)]
struct Shared {
    peers: Peers,
    runtime: Handle,
    options: SyncOptions,
    figures: Arc<SyncFigures>,
    stop: Arc<AtomicBool>,
    schedulers: Mutex<Schedulers>,
    /// Number of the block that the follower waits for.
    needed: AtomicU64,
    /// Something has come, or failed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Schedulers {
    headers: HeaderScheduler,
    bodies: BodyScheduler,
    standings: PeerStandings,
}

#[derive(Debug, Default)]
struct Skeletons {
    current: Option<HeaderSkeleton>,
    /// The one before, until the new one meets it.
    older: Option<HeaderSkeleton>,
}

impl PeerBlocks {
    /// Of these peers. Requests are made on `runtime`; whoever waits is told off once `stop` is set.
    pub fn new(peers: Peers, options: SyncOptions, runtime: Handle, stop: Arc<AtomicBool>) -> Self {
        let shared = Shared {
            peers,
            runtime,
            options,
            figures: Arc::default(),
            stop,
            schedulers: Mutex::default(),
            needed: AtomicU64::new(0),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared), skeletons: Mutex::default() }
    }

    /// Figures of what has come.
    pub fn figures(&self) -> Arc<SyncFigures> {
        self.shared.figures.clone()
    }

    // -- headers ----------------------------------------------------------------------------------

    /// The header of this hash, and the skeleton below it.
    fn header(&self, hash: B256) -> Result<Arc<NamedHeader>, PeersError> {
        let mut skeletons = self.skeletons.lock();
        let current = skeletons.current.as_ref();
        if let Some(named) = current.and_then(|skeleton| skeleton.by_hash(&hash)) {
            return Ok(named.clone());
        }
        let goes_on = current.is_some_and(|skeleton| skeleton.lowest().1 == hash);
        let span = HeaderSpan { top: None, hash, count: FIRST_HEADERS };
        let headers = self.shared.headers_of(span)?;
        let first = headers.first().cloned();
        if goes_on {
            skeletons.extend(headers);
        } else {
            skeletons.begin(headers);
            let mut schedulers = self.shared.schedulers.lock();
            schedulers.headers.clear();
            schedulers.bodies.clear();
        }
        first.ok_or(PeersError::NobodyHas { hash, peers: 0 })
    }

    /// The header of this number on the skeleton that was begun last.
    fn header_at(&self, number: u64) -> Result<Arc<NamedHeader>, PeersError> {
        let mut skeletons = self.skeletons.lock();
        let mut told = Instant::now();
        loop {
            let current = skeletons.current.as_mut();
            let Some(skeleton) = current.filter(|skeleton| number <= skeleton.head().0) else {
                return Err(PeersError::AboveHead { number });
            };
            if let Some(named) = skeleton.by_number(number) {
                return Ok(named.clone());
            }
            if let Some(span) = skeleton.gap_at(number) {
                skeleton.fill(self.shared.headers_of(span)?);
                continue;
            }
            let (lowest, below) = skeleton.lowest();
            if lowest <= number {
                return Err(PeersError::AboveHead { number });
            }
            let head = skeleton.head().0;
            if told.elapsed() >= TELL {
                told = Instant::now();
                tracing::info!(
                    "headers of peers: block {lowest} on the way from {head} down to {number}"
                );
            }
            // What the older skeleton knows is not fetched again.
            let bottom = skeletons.older_head().filter(|older| *older < lowest - 1);
            let bottom = bottom.map_or(number, |older| number.max(older + 1));
            let headers = self.shared.headers_down((lowest - 1, below), bottom)?;
            skeletons.extend(headers);
        }
    }

    // -- bodies -----------------------------------------------------------------------------------

    /// The block of this header. Those above it are fetched meanwhile.
    fn block(&self, named: &Arc<NamedHeader>) -> Result<Block, PeersError> {
        let shared = &self.shared;
        let number = named.header.number;
        let begun = Instant::now();
        shared.needed.store(number, Ordering::Relaxed);
        let mut schedulers = shared.schedulers.lock();
        let mut seen = shared.figures.bodies.load(Ordering::Relaxed);
        let mut since = begun;
        loop {
            if let Some(landed) = schedulers.bodies.take(&named.hash) {
                self.look_ahead(&mut schedulers, number);
                shared.send_out(&mut schedulers);
                return Ok(Block { header: landed.named.header.clone(), body: landed.body });
            }
            if shared.stop.load(Ordering::Relaxed) {
                return Err(PeersError::Stopped);
            }
            // Each time: a new skeleton forgets what was wanted.
            schedulers.bodies.need(named);
            self.look_ahead(&mut schedulers, number);
            if !shared.send_out(&mut schedulers) && schedulers.bodies.is_idle() {
                return Err(PeersError::NoPeers);
            }
            let bodies = shared.figures.bodies.load(Ordering::Relaxed);
            if bodies != seen {
                (seen, since) = (bodies, Instant::now());
            }
            let after = shared.options.stalled;
            if since.elapsed() >= after {
                return Err(PeersError::Stalled { number, after });
            }
            shared.wait(&mut schedulers);
        }
    }

    /// Wants the bodies of blocks above `number`, as many as there is room for, and the headers that
    /// these need.
    fn look_ahead(&self, schedulers: &mut Schedulers, number: u64) {
        // Whoever fetches headers at the moment looks ahead when it is done.
        let Some(mut skeletons) = self.skeletons.try_lock() else { return };
        let Some(skeleton) = skeletons.current.as_mut() else { return };
        skeleton.forget_below(number);
        let Schedulers { headers, bodies, .. } = schedulers;
        loop {
            for named in skeleton.from(bodies.next_ahead(number), bodies::MOST_HELD) {
                if !bodies.want_ahead(named) {
                    return;
                }
            }
            let Some(span) = skeleton.gap_at(bodies.next_ahead(number)) else { return };
            let Some(found) = headers.take(&span.hash) else {
                headers.want(span, false);
                return;
            };
            self.shared.count(&found);
            skeleton.fill(found);
        }
    }
}

impl Skeletons {
    /// A new skeleton. What the one before knew is taken over where they meet.
    fn begin(&mut self, headers: Vec<Arc<NamedHeader>>) {
        let older = self.current.take().or_else(|| self.older.take());
        self.older = older;
        let headers = self.until_older(headers);
        self.current = HeaderSkeleton::new(headers);
        self.meet();
    }

    fn extend(&mut self, headers: Vec<Arc<NamedHeader>>) {
        let headers = self.until_older(headers);
        if let Some(skeleton) = &mut self.current {
            skeleton.extend(headers);
        }
        self.meet();
    }

    /// Number of the head of the older skeleton.
    fn older_head(&self) -> Option<u64> {
        self.older.as_ref().map(|older| older.head().0)
    }

    /// The headers above the head of the older skeleton.
    fn until_older(&self, mut headers: Vec<Arc<NamedHeader>>) -> Vec<Arc<NamedHeader>> {
        if let Some(older) = &self.older {
            let head = older.head().1;
            if let Some(at) = headers.iter().position(|named| named.hash == head)
                && at > 0
            {
                headers.truncate(at);
            }
        }
        headers
    }

    fn meet(&mut self) {
        let (Some(skeleton), Some(older)) = (&mut self.current, &self.older) else { return };
        let (number, below) = skeleton.lowest();
        if below == older.head().1 {
            if let Some(older) = self.older.take() {
                skeleton.join(older);
            }
        } else if number <= older.head().0.saturating_add(1) {
            // It has passed beside it.
            self.older = None;
        }
    }
}

impl Shared {
    /// The headers of a span, whose uppermost hash is trusted.
    fn headers_of(self: &Arc<Self>, span: HeaderSpan) -> Result<Vec<Arc<NamedHeader>>, PeersError> {
        let found = self.headers(span.hash, |schedulers, _| {
            schedulers.headers.want(span, true);
            Vec::new()
        });
        if found.is_err() {
            // It may be a head that no peer will ever know.
            self.schedulers.lock().headers.forget(&span.hash);
        }
        found
    }

    /// The uppermost headers of those from block `top`, whose hash is trusted, down to block `bottom`.
    /// Those below are fetched meanwhile.
    fn headers_down(
        self: &Arc<Self>,
        top: (u64, B256),
        bottom: u64,
    ) -> Result<Vec<Arc<NamedHeader>>, PeersError> {
        self.headers(top.1, |schedulers, now| {
            let Schedulers { headers, standings, .. } = schedulers;
            headers.want_down(top, bottom, standings, now)
        })
    }

    /// Waits for the headers that begin with this one; `want` says which they are.
    fn headers(
        self: &Arc<Self>,
        hash: B256,
        want: impl Fn(&mut Schedulers, Instant) -> Vec<(PeerId, Offence)>,
    ) -> Result<Vec<Arc<NamedHeader>>, PeersError> {
        let mut schedulers = self.schedulers.lock();
        let (mut seen, mut since) = (schedulers.headers.arrived(), Instant::now());
        loop {
            self.punish(want(&mut schedulers, Instant::now()));
            if let Some(headers) = schedulers.headers.take(&hash) {
                self.count(&headers);
                return Ok(headers);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(PeersError::Stopped);
            }
            let peers = self.usable(&schedulers);
            if peers.is_empty() {
                return Err(PeersError::NoPeers);
            }
            self.send_out(&mut schedulers);
            let arrived = schedulers.headers.arrived();
            if arrived != seen {
                (seen, since) = (arrived, Instant::now());
            }
            let has_stalled = since.elapsed() >= self.options.stalled;
            if has_stalled || schedulers.headers.is_hopeless(&hash, &peers) {
                return Err(PeersError::NobodyHas { hash, peers: peers.len() });
            }
            self.wait(&mut schedulers);
        }
    }

    /// Waits until something has come, or it is time to look whether others should be asked.
    fn wait(&self, schedulers: &mut MutexGuard<'_, Schedulers>) {
        self.changed.wait_for(schedulers, LOOK.min(self.options.patience));
    }

    fn count(&self, headers: &[Arc<NamedHeader>]) {
        self.figures.headers.fetch_add(headers.len() as u64, Ordering::Relaxed);
    }

    /// The peers that have not lied, and what they say they have.
    fn usable(&self, schedulers: &Schedulers) -> Vec<(PeerId, BlockRange)> {
        let connected = self.peers.connected();
        let peers = connected.iter().map(|peer| (peer.id, peer.range));
        peers.filter(|(peer, _)| !schedulers.standings.is_banned(peer)).collect()
    }

    /// Sends the requests that can be sent now. False if there is nobody to send them to.
    fn send_out(self: &Arc<Self>, schedulers: &mut Schedulers) -> bool {
        let peers = self.usable(schedulers);
        let SyncOptions { patience, most_bytes, .. } = self.options;
        let needed = self.needed.load(Ordering::Relaxed);
        let limits = BodyLimits { patience, most_bytes, needed };
        let (now, Schedulers { headers, bodies, standings }) = (Instant::now(), schedulers);
        standings.retain(&peers);
        for flight in headers.assign(standings, &peers, patience, now) {
            let shared = self.clone();
            self.runtime.spawn(async move { shared.fly_for_headers(flight).await });
        }
        for flight in bodies.assign(standings, &peers, limits, now) {
            let shared = self.clone();
            self.runtime.spawn(async move { shared.fly_for_bodies(flight).await });
        }
        !peers.is_empty()
    }

    async fn fly_for_headers(self: Arc<Self>, flight: HeaderFlight) {
        let HeaderFlight { id, peer, start, count } = flight;
        let from = HeadersFrom { start, limit: count, skip: 0, reverse: true };
        let outcome = match self.peers.request(peer, Request::Headers(from)).await {
            Ok(Response::Headers(headers)) => {
                // A thousand hashes take their time.
                let checked = tokio::task::spawn_blocking(move || headers::check(start, headers));
                checked.await.unwrap_or(HeaderOutcome::Failed)
            }
            Ok(_) => HeaderOutcome::Wrong,
            Err(RequestError::Busy(_)) => HeaderOutcome::Busy,
            Err(error) => {
                tracing::debug!(%peer, %error, "no headers");
                HeaderOutcome::Failed
            }
        };
        if matches!(outcome, HeaderOutcome::Failed) {
            self.figures.failed.fetch_add(1, Ordering::Relaxed);
        }
        let mut schedulers = self.schedulers.lock();
        let Schedulers { headers, standings, .. } = &mut *schedulers;
        let offences = headers.land(id, outcome, standings, Instant::now());
        self.landed(schedulers, offences);
    }

    async fn fly_for_bodies(self: Arc<Self>, flight: BodyFlight) {
        let BodyFlight { id, peer, wants } = flight;
        let hashes = wants.iter().map(|named| named.hash).collect();
        let outcome = match self.peers.request(peer, Request::Bodies(hashes)).await {
            Ok(Response::Bodies(bodies)) => {
                // Roots of hundreds of transactions take their time.
                let checked = tokio::task::spawn_blocking(move || bodies::check(&wants, bodies));
                checked.await.unwrap_or(BodyOutcome::Failed)
            }
            Ok(_) => BodyOutcome::Wrong(Vec::new()),
            Err(RequestError::Busy(_)) => BodyOutcome::Busy,
            Err(error) => {
                tracing::debug!(%peer, %error, "no bodies");
                BodyOutcome::Failed
            }
        };
        let (is_nothing, bytes) = match &outcome {
            BodyOutcome::Bodies(all) => (all.is_empty(), bodies::size(all)),
            BodyOutcome::Wrong(all) => (false, bodies::size(all)),
            BodyOutcome::Failed => (true, 0),
            BodyOutcome::Busy => (false, 0),
        };
        let mut schedulers = self.schedulers.lock();
        let Schedulers { bodies, standings, .. } = &mut *schedulers;
        let (used, offence) = bodies.land(id, outcome, standings, Instant::now());
        let figures = &self.figures;
        figures.failed.fetch_add(is_nothing.into(), Ordering::Relaxed);
        figures.bodies.fetch_add(used as u64, Ordering::Relaxed);
        figures.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.landed(schedulers, offence.map(|offence| (peer, offence)).into_iter().collect());
    }

    /// Something has come, or failed: others may be asked, and whoever waits looks at it.
    fn landed(
        self: &Arc<Self>,
        mut schedulers: MutexGuard<'_, Schedulers>,
        mut offences: Vec<(PeerId, Offence)>,
    ) {
        // Of several requests under way to a liar each may have failed.
        offences.retain(|(peer, offence)| {
            *offence != Offence::WrongData || schedulers.standings.ban(*peer)
        });
        // Whoever waits may see that nobody is left, and by then that has been reported.
        self.punish(offences);
        self.send_out(&mut schedulers);
        drop(schedulers);
        self.changed.notify_all();
    }

    fn punish(&self, offences: Vec<(PeerId, Offence)>) {
        for (peer, offence) in offences {
            tracing::debug!(%peer, ?offence, "a peer has served blocks badly");
            if offence == Offence::WrongData {
                self.figures.wrong.fetch_add(1, Ordering::Relaxed);
            }
            self.peers.report(peer, offence);
        }
    }
}

impl BlockFetcher for PeerBlocks {
    fn name(&self) -> &str {
        "the peers"
    }

    fn is_there(&self) -> bool {
        !self.shared.peers.connected().is_empty()
    }

    fn check_chain(&self, _: &ChainSpec, _: Option<Duration>) -> Result<(), FetchError> {
        // Those of other chains are not let in.
        Ok(())
    }

    fn tagged(&self, _: BlockTag) -> Result<(B256, Header), FetchError> {
        Err(PeersError::NoHeads.into())
    }

    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError> {
        Ok(self.header(hash)?.header.clone())
    }

    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError> {
        let named = self.header(hash)?;
        Ok(self.block(&named)?)
    }

    fn block_by_number(&self, number: u64) -> Result<Block, FetchError> {
        let named = self.header_at(number)?;
        Ok(self.block(&named)?)
    }
}
