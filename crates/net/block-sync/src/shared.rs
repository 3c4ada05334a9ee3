//! [`BlockSyncShared`]: the requests to peers, and the waiting for them.

use crate::{
    BlockSyncFigures, BlockSyncOptions,
    bodies::{self, BodyFlight, BodyLimits, BodyOutcome, BodyScheduler},
    error::BlockSyncError,
    headers::{self, HeaderFlight, HeaderOutcome, HeaderScheduler},
    skeleton::{HeaderSpan, SealedHeader},
    standing::StandingTable,
};
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_p2p::{
    eth::{BlockRange, EthRequest, EthResponse, GetBlockHeaders, PeerId},
    handle::{NetworkHandle, PeerOffence, RequestError},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// How often a waiting thread checks whether other peers must be asked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What the threads that wait for blocks share with the requests.
#[derive(Debug)]
pub(crate) struct BlockSyncShared {
    pub(crate) peers: NetworkHandle,
    pub(crate) runtime: Handle,
    pub(crate) options: BlockSyncOptions,
    pub(crate) figures: Arc<BlockSyncFigures>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) schedulers: Mutex<BlockSyncSchedulers>,
    /// Number of the block that the follower waits for.
    pub(crate) needed: AtomicU64,
    /// Notified when an answer has come or a request has failed.
    pub(crate) changed: Condvar,
}

/// What is wanted and asked for, and how each peer has served.
#[derive(Debug, Default)]
pub(crate) struct BlockSyncSchedulers {
    pub(crate) headers: HeaderScheduler,
    pub(crate) bodies: BodyScheduler,
    pub(crate) standings: StandingTable,
}

impl BlockSyncShared {
    pub(crate) fn new(
        peers: NetworkHandle,
        options: BlockSyncOptions,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            peers,
            runtime,
            options,
            figures: Arc::default(),
            stop,
            schedulers: Mutex::default(),
            needed: AtomicU64::new(0),
            changed: Condvar::new(),
        }
    }

    /// The headers of a span, whose highest hash is trusted.
    pub(crate) fn headers_of(
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
    pub(crate) fn headers_down(
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
    pub(crate) fn wait(&self, schedulers: &mut MutexGuard<'_, BlockSyncSchedulers>) {
        self.changed.wait_for(schedulers, CHECK_INTERVAL.min(self.options.patience));
    }

    /// Counts headers that were linked to the head.
    pub(crate) fn count(&self, headers: &[Arc<SealedHeader>]) {
        self.figures.headers.fetch_add(headers.len() as u64, Ordering::Relaxed);
    }

    /// The connected peers that are not banned here, and their ranges of blocks.
    fn usable(&self, schedulers: &BlockSyncSchedulers) -> Vec<(PeerId, BlockRange)> {
        let connected = self.peers.connected();
        let peers = connected.iter().map(|peer| (peer.id, peer.range));
        peers.filter(|(peer, _)| !schedulers.standings.is_banned(peer)).collect()
    }

    /// Sends the requests that are due. False if there is no peer to ask.
    pub(crate) fn send_out(self: &Arc<Self>, schedulers: &mut BlockSyncSchedulers) -> bool {
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
