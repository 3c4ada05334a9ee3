//! Block sync: blocks from peers, for the follower. It has the same interface as every other source
//! of blocks.
//!
//! ```text
//!  follower --head's header--> HeaderSkeleton: headers downwards, by parent hash
//!     ^  |                             ^--- HeaderScheduler: in pieces, from all peers at once
//!     |  '--blocks upwards-------> BodyScheduler: ahead of the follower, from all peers at once
//!     |                               |  ^
//!     '-----------blocks--------------'  '-- each body is checked against its header
//! ```
//!
//! | thread | work |
//! |---|---|
//! | the follower's | asks for headers and waits for them; wants bodies, and waits for the one it needs |
//! | tasks of the runtime, one for each request | wait for the peer, check the answer against the headers |
//!
//! **No peer is trusted.** The hash of the head comes from the consensus client. A header counts if
//! the one above names its hash and its number is one less. A body counts if it matches the roots
//! in its header. So peers cannot make this node import anything but the chain of that head, and a
//! peer that sends something else is reported.
//!
//! **No peer is waited for.** What a peer can do is to send nothing, little, or late. `standing`
//! measures how many items a second each peer gives. What is needed first is asked of the fastest
//! peer, and then of a second peer, once that one would have been faster. A peer that several times
//! in a row gives less than it has is reported. So block sync is as fast as the fastest peer.
//!
//! Memory:
//!
//! | what | at most |
//! |---|---|
//! | headers | 32 segments of 1,024 and the highest one; 40 bytes for each further segment |
//! | headers that no trusted header has named yet | 15 pieces of 1,024 |
//! | bodies | 4,096, of about 64 MiB ([`BlockSyncOptions::most_bytes`]) |
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
    eth::{BlockRange, EthRequest, EthResponse, GetBlockHeaders, PeerId},
    peers::{NetworkHandle, PeerOffence, RequestError},
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
use skeleton::{HeaderSkeleton, HeaderSpan, SealedHeader};
use standing::StandingTable;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Number of headers in the first request downwards from a hash.
const FIRST_HEADERS: u64 = 64;
/// How often a waiting thread checks whether other peers must be asked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How often the progress with headers is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(8);

/// Options of block sync.
#[derive(Clone, Copy, Debug)]
pub struct BlockSyncOptions {
    /// How long to wait for one peer, at most, before another one is asked for the same.
    pub patience: Duration,
    /// How long nothing useful may come from any peer before the follower gets an error.
    pub stalled: Duration,
    /// Maximum bytes of bodies that are here and not taken yet, approximately.
    pub most_bytes: usize,
}

impl Default for BlockSyncOptions {
    /// 2 s, 30 s and 64 MiB.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            stalled: Duration::from_secs(30),
            most_bytes: 64 << 20,
        }
    }
}

/// Counters of block sync.
#[derive(Debug, Default)]
pub struct BlockSyncFigures {
    /// Headers that were linked to the head.
    pub headers: AtomicU64,
    /// Bodies that matched their headers.
    pub bodies: AtomicU64,
    /// Their bytes.
    pub body_bytes: AtomicU64,
    /// Wrong answers.
    pub wrong: AtomicU64,
    /// Requests without a useful answer.
    pub failed: AtomicU64,
}

/// Why peers gave no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockSyncError {
    /// No peer is connected.
    #[error("no peer is connected")]
    NoPeers,
    /// All peers were asked, and none has the block.
    #[error(
        "none of {peers} peers has given block {hash}: it may be on a branch that they do not know"
    )]
    UnknownBlock {
        /// Hash of the block.
        hash: B256,
        /// How many peers were asked.
        peers: usize,
    },
    /// Peers are connected, but nothing useful comes.
    #[error("no peer has sent block {number} or a later one for {} s", after.as_secs())]
    Stalled {
        /// Number of the block.
        number: u64,
        /// How long.
        after: Duration,
    },
    /// The block is above the head that was named, or no head was named.
    #[error("block {number} was asked for before a head at or above it")]
    AboveHead {
        /// Number of the block.
        number: u64,
    },
    /// Peers do not name heads; a consensus client does.
    #[error("peers name no heads: a consensus client does, or --sync.head")]
    NoHeads,
    /// Block sync was stopped.
    #[error("stopped")]
    Stopped,
}

impl From<BlockSyncError> for FetchError {
    fn from(error: BlockSyncError) -> Self {
        Self::new(error)
    }
}

/// The blocks of the connected peers.
#[derive(Debug)]
pub struct PeerBlocks {
    shared: Arc<BlockSyncShared>,
    skeletons: Mutex<SkeletonPair>,
}

#[derive(Debug)]
struct BlockSyncShared {
    peers: NetworkHandle,
    runtime: Handle,
    options: BlockSyncOptions,
    figures: Arc<BlockSyncFigures>,
    stop: Arc<AtomicBool>,
    schedulers: Mutex<BlockSyncSchedulers>,
    /// Number of the block that the follower waits for.
    needed: AtomicU64,
    /// Notified when an answer has come or a request has failed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BlockSyncSchedulers {
    headers: HeaderScheduler,
    bodies: BodyScheduler,
    standings: StandingTable,
}

#[derive(Debug, Default)]
struct SkeletonPair {
    current: Option<HeaderSkeleton>,
    /// The previous skeleton, until the current one reaches it.
    older: Option<HeaderSkeleton>,
}

impl PeerBlocks {
    /// Takes blocks from these peers. Requests run on `runtime`; waiting callers get an error once
    /// `stop` is set.
    pub fn new(
        peers: NetworkHandle,
        options: BlockSyncOptions,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let shared = BlockSyncShared {
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

    /// The counters of block sync.
    pub fn figures(&self) -> Arc<BlockSyncFigures> {
        self.shared.figures.clone()
    }

    // -- headers ----------------------------------------------------------------------------------

    /// The header with this hash. It begins a skeleton below it, unless it is in the current one.
    fn header(&self, hash: B256) -> Result<Arc<SealedHeader>, BlockSyncError> {
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
        first.ok_or(BlockSyncError::UnknownBlock { hash, peers: 0 })
    }

    /// The header with this number on the current skeleton.
    fn header_at(&self, number: u64) -> Result<Arc<SealedHeader>, BlockSyncError> {
        let mut skeletons = self.skeletons.lock();
        let mut told = Instant::now();
        loop {
            let current = skeletons.current.as_mut();
            let Some(skeleton) = current.filter(|skeleton| number <= skeleton.head().0) else {
                return Err(BlockSyncError::AboveHead { number });
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
                return Err(BlockSyncError::AboveHead { number });
            }
            let head = skeleton.head().0;
            if told.elapsed() >= LOG_INTERVAL {
                told = Instant::now();
                tracing::info!(
                    "headers from peers: at block {lowest}, from {head} down to {number}"
                );
            }
            // Headers in the older skeleton are not fetched again.
            let bottom = skeletons.older_head().filter(|older| *older < lowest - 1);
            let bottom = bottom.map_or(number, |older| number.max(older + 1));
            let headers = self.shared.headers_down((lowest - 1, below), bottom)?;
            skeletons.extend(headers);
        }
    }

    // -- bodies -----------------------------------------------------------------------------------

    /// The block with this header. The blocks above it are fetched meanwhile.
    fn block(&self, named: &Arc<SealedHeader>) -> Result<Block, BlockSyncError> {
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
                return Err(BlockSyncError::Stopped);
            }
            // In each round, since a new skeleton clears the wanted bodies.
            schedulers.bodies.need(named);
            self.look_ahead(&mut schedulers, number);
            if !shared.send_out(&mut schedulers) && schedulers.bodies.is_idle() {
                return Err(BlockSyncError::NoPeers);
            }
            let bodies = shared.figures.bodies.load(Ordering::Relaxed);
            if bodies != seen {
                (seen, since) = (bodies, Instant::now());
            }
            let after = shared.options.stalled;
            if since.elapsed() >= after {
                return Err(BlockSyncError::Stalled { number, after });
            }
            shared.wait(&mut schedulers);
        }
    }

    /// Wants the bodies of the blocks above `number`, as many as there is room for, and the headers
    /// that these need.
    fn look_ahead(&self, schedulers: &mut BlockSyncSchedulers, number: u64) {
        // If another thread holds the skeletons, it is fetching headers and looks ahead afterwards.
        let Some(mut skeletons) = self.skeletons.try_lock() else { return };
        let Some(skeleton) = skeletons.current.as_mut() else { return };
        skeleton.forget_below(number);
        let BlockSyncSchedulers { headers, bodies, .. } = schedulers;
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

impl SkeletonPair {
    /// Begins a new skeleton. It takes over the headers of the previous one where it reaches it.
    fn begin(&mut self, headers: Vec<Arc<SealedHeader>>) {
        let older = self.current.take().or_else(|| self.older.take());
        self.older = older;
        let headers = self.until_older(headers);
        self.current = HeaderSkeleton::new(headers);
        self.meet();
    }

    fn extend(&mut self, headers: Vec<Arc<SealedHeader>>) {
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

    /// Keeps the headers above the head of the older skeleton.
    fn until_older(&self, mut headers: Vec<Arc<SealedHeader>>) -> Vec<Arc<SealedHeader>> {
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
            // It has passed the older head on another branch.
            self.older = None;
        }
    }
}

impl BlockSyncShared {
    /// The headers of a span, whose highest hash is trusted.
    fn headers_of(
        self: &Arc<Self>,
        span: HeaderSpan,
    ) -> Result<Vec<Arc<SealedHeader>>, BlockSyncError> {
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

    /// The highest headers of those from block `top`, whose hash is trusted, down to block
    /// `bottom`. The headers below are fetched meanwhile.
    fn headers_down(
        self: &Arc<Self>,
        top: (u64, B256),
        bottom: u64,
    ) -> Result<Vec<Arc<SealedHeader>>, BlockSyncError> {
        self.headers(top.1, |schedulers, now| {
            let BlockSyncSchedulers { headers, standings, .. } = schedulers;
            headers.want_down(top, bottom, standings, now)
        })
    }

    /// Waits for the headers that begin with this hash; `want` tells the scheduler which they are.
    fn headers(
        self: &Arc<Self>,
        hash: B256,
        want: impl Fn(&mut BlockSyncSchedulers, Instant) -> Vec<(PeerId, PeerOffence)>,
    ) -> Result<Vec<Arc<SealedHeader>>, BlockSyncError> {
        let mut schedulers = self.schedulers.lock();
        let (mut seen, mut since) = (schedulers.headers.arrived(), Instant::now());
        loop {
            self.punish(want(&mut schedulers, Instant::now()));
            if let Some(headers) = schedulers.headers.take(&hash) {
                self.count(&headers);
                return Ok(headers);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(BlockSyncError::Stopped);
            }
            let peers = self.usable(&schedulers);
            if peers.is_empty() {
                return Err(BlockSyncError::NoPeers);
            }
            self.send_out(&mut schedulers);
            let arrived = schedulers.headers.arrived();
            if arrived != seen {
                (seen, since) = (arrived, Instant::now());
            }
            let has_stalled = since.elapsed() >= self.options.stalled;
            if has_stalled || schedulers.headers.is_hopeless(&hash, &peers) {
                return Err(BlockSyncError::UnknownBlock { hash, peers: peers.len() });
            }
            self.wait(&mut schedulers);
        }
    }

    /// Waits until an answer has come, or it is time to check whether other peers must be asked.
    fn wait(&self, schedulers: &mut MutexGuard<'_, BlockSyncSchedulers>) {
        self.changed.wait_for(schedulers, CHECK_INTERVAL.min(self.options.patience));
    }

    fn count(&self, headers: &[Arc<SealedHeader>]) {
        self.figures.headers.fetch_add(headers.len() as u64, Ordering::Relaxed);
    }

    /// The connected peers that are not banned here, and their ranges of blocks.
    fn usable(&self, schedulers: &BlockSyncSchedulers) -> Vec<(PeerId, BlockRange)> {
        let connected = self.peers.connected();
        let peers = connected.iter().map(|peer| (peer.id, peer.range));
        peers.filter(|(peer, _)| !schedulers.standings.is_banned(peer)).collect()
    }

    /// Sends the requests that are due. False if there is no peer to ask.
    fn send_out(self: &Arc<Self>, schedulers: &mut BlockSyncSchedulers) -> bool {
        let peers = self.usable(schedulers);
        let BlockSyncOptions { patience, most_bytes, .. } = self.options;
        let needed = self.needed.load(Ordering::Relaxed);
        let limits = BodyLimits { patience, most_bytes, needed };
        let (now, BlockSyncSchedulers { headers, bodies, standings }) =
            (Instant::now(), schedulers);
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
        let from = GetBlockHeaders { start, limit: count, skip: 0, reverse: true };
        let outcome = match self.peers.request(peer, EthRequest::Headers(from)).await {
            Ok(EthResponse::Headers(headers)) => {
                // Hashing a thousand headers takes time.
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
        let BlockSyncSchedulers { headers, standings, .. } = &mut *schedulers;
        let offences = headers.land(id, outcome, standings, Instant::now());
        self.landed(schedulers, offences);
    }

    async fn fly_for_bodies(self: Arc<Self>, flight: BodyFlight) {
        let BodyFlight { id, peer, wants } = flight;
        let hashes = wants.iter().map(|named| named.hash).collect();
        let outcome = match self.peers.request(peer, EthRequest::Bodies(hashes)).await {
            Ok(EthResponse::Bodies(bodies)) => {
                // Computing the roots of hundreds of bodies takes time.
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
        let BlockSyncSchedulers { bodies, standings, .. } = &mut *schedulers;
        let (used, offence) = bodies.land(id, outcome, standings, Instant::now());
        let figures = &self.figures;
        figures.failed.fetch_add(is_nothing.into(), Ordering::Relaxed);
        figures.bodies.fetch_add(used as u64, Ordering::Relaxed);
        figures.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.landed(schedulers, offence.map(|offence| (peer, offence)).into_iter().collect());
    }

    /// Ends the handling of an answer or a failure: reports offences, sends new requests, wakes
    /// waiting threads.
    fn landed(
        self: &Arc<Self>,
        mut schedulers: MutexGuard<'_, BlockSyncSchedulers>,
        mut offences: Vec<(PeerId, PeerOffence)>,
    ) {
        // Several open requests to one lying peer may have failed: it is reported once.
        offences.retain(|(peer, offence)| {
            *offence != PeerOffence::WrongData || schedulers.standings.ban(*peer)
        });
        // Reported before the waiting threads wake: they may find that no peer is left.
        self.punish(offences);
        self.send_out(&mut schedulers);
        drop(schedulers);
        self.changed.notify_all();
    }

    fn punish(&self, offences: Vec<(PeerId, PeerOffence)>) {
        for (peer, offence) in offences {
            tracing::debug!(%peer, ?offence, "a peer has committed an offence in block sync");
            if offence == PeerOffence::WrongData {
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

    fn is_available(&self) -> bool {
        !self.shared.peers.connected().is_empty()
    }

    fn check_chain(&self, _: &ChainSpec, _: Option<Duration>) -> Result<(), FetchError> {
        // Peers of other chains are never connected.
        Ok(())
    }

    fn tagged(&self, _: BlockTag) -> Result<(B256, Header), FetchError> {
        Err(BlockSyncError::NoHeads.into())
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
