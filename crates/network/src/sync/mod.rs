//! Blocks from peers, for the follower that every other source has too.
//!
//! ```text
//!  follower --header of the head--> Way: headers downwards, each by the hash in the one above it
//!     ^   \--blocks upwards-------> Desk: bodies, from all peers at once, ahead of the follower
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
//! sends something else is reported. What a peer can do is to send nothing: whoever is late is asked
//! no more for a while, and somebody else is asked for the same.
//!
//! What lies in memory:
//!
//! | what | at most |
//! |---|---|
//! | headers | 32 segments of 1,024 and the uppermost one; 40 bytes for each segment beyond |
//! | bodies | 4,096, of 64 MiB about ([`SyncOptions::most_bytes`]) |
//! | requests | 2 to each peer |

mod desk;
#[cfg(test)]
mod tests;
mod way;

use crate::{
    eth::{HeadersFrom, PeerId, Request, Response},
    peers::{Offence, PeerInfo, Peers, RequestError},
};
use alloy_primitives::B256;
use desk::{Desk, Flight, Limits, Outcome};
use parking_lot::{Condvar, Mutex};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use retrie_sources::{BlockFetcher, BlockTag, FetchError};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::JoinSet};
use way::{Named, SEGMENT, Way, linked};

/// Headers of the first request downwards from a hash.
const FIRST_HEADERS: u64 = 64;
/// How often somebody who waits looks whether others should be asked.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress with headers goes to the log.
const TELL: Duration = Duration::from_secs(8);

/// How blocks are fetched.
#[derive(Clone, Copy, Debug)]
pub struct SyncOptions {
    /// How long one peer is waited for before another is asked for the same.
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
    NoWay {
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
    ways: Mutex<Ways>,
}

#[derive(Debug)]
struct Shared {
    peers: Peers,
    runtime: Handle,
    options: SyncOptions,
    figures: Arc<SyncFigures>,
    stop: Arc<AtomicBool>,
    desk: Mutex<Desk>,
    /// Number of the block that the follower waits for.
    needed: AtomicU64,
    /// Something has come, or failed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Ways {
    way: Option<Way>,
    /// The one before, until the new one meets it.
    older: Option<Way>,
    /// Who has answered for headers, the last one first.
    favourites: VecDeque<PeerId>,
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
            desk: Mutex::default(),
            needed: AtomicU64::new(0),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared), ways: Mutex::default() }
    }

    /// Figures of what has come.
    pub fn figures(&self) -> Arc<SyncFigures> {
        self.shared.figures.clone()
    }

    // -- headers ----------------------------------------------------------------------------------

    /// The header of this hash, and the way down from it.
    fn header(&self, hash: B256) -> Result<Arc<Named>, PeersError> {
        let mut ways = self.ways.lock();
        if let Some(named) = ways.way.as_ref().and_then(|way| way.by_hash(&hash)) {
            return Ok(named.clone());
        }
        let headers = self.shared.headers(hash, FIRST_HEADERS, &mut ways.favourites)?;
        let first = headers.first().cloned();
        let goes_on = ways.way.as_ref().is_some_and(|way| way.lowest().1 == hash);
        if goes_on {
            ways.extend(headers);
        } else {
            ways.begin(headers);
            self.shared.desk.lock().clear();
        }
        first.ok_or(PeersError::NobodyHas { hash, peers: 0 })
    }

    /// The header of this number on the way that was begun last.
    fn header_at(&self, number: u64) -> Result<Arc<Named>, PeersError> {
        let mut ways = self.ways.lock();
        let mut told = Instant::now();
        loop {
            let Some(way) = ways.way.as_ref().filter(|way| number <= way.head().0) else {
                return Err(PeersError::NoWay { number });
            };
            if let Some(named) = way.by_number(number) {
                return Ok(named.clone());
            }
            if let Some((top, count)) = way.gap_at(number) {
                let headers = self.shared.headers(top, count, &mut ways.favourites)?;
                if let Some(way) = ways.way.as_mut() {
                    way.fill(headers);
                }
                continue;
            }
            let (lowest, below) = way.lowest();
            if lowest <= number {
                return Err(PeersError::NoWay { number });
            }
            let head = way.head().0;
            if told.elapsed() >= TELL {
                told = Instant::now();
                tracing::info!(
                    "headers of peers: block {lowest} on the way from {head} down to {number}"
                );
            }
            let count = (lowest - number).min(SEGMENT as u64);
            let headers = self.shared.headers(below, count, &mut ways.favourites)?;
            ways.extend(headers);
        }
    }

    // -- bodies -----------------------------------------------------------------------------------

    /// The block of this header. Those above it are fetched meanwhile.
    fn block(&self, named: &Arc<Named>) -> Result<Block, PeersError> {
        let shared = &self.shared;
        let number = named.header.number;
        let begun = Instant::now();
        shared.needed.store(number, Ordering::Relaxed);
        let mut desk = shared.desk.lock();
        let mut seen = shared.figures.bodies.load(Ordering::Relaxed);
        let mut since = begun;
        loop {
            if let Some(landed) = desk.take(&named.hash) {
                self.look_ahead(&mut desk, number);
                shared.send_out(&mut desk);
                return Ok(Block { header: landed.named.header.clone(), body: landed.body });
            }
            if shared.stop.load(Ordering::Relaxed) {
                return Err(PeersError::Stopped);
            }
            // Each time: a new way forgets what was wanted.
            desk.need(named);
            self.look_ahead(&mut desk, number);
            if !shared.send_out(&mut desk) && desk.is_idle() {
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
            shared.changed.wait_for(&mut desk, LOOK.min(shared.options.patience));
        }
    }

    /// Wants the bodies of blocks above `number` whose headers are here, as many as there is room for.
    fn look_ahead(&self, desk: &mut Desk, number: u64) {
        // Whoever fetches headers at the moment looks ahead when it is done.
        let Some(mut ways) = self.ways.try_lock() else { return };
        let Some(way) = ways.way.as_mut() else { return };
        way.forget_below(number);
        for named in way.from(desk.next_ahead(number), desk::MOST_HELD) {
            if !desk.want_ahead(named) {
                return;
            }
        }
    }
}

impl Ways {
    /// A new way. What the one before knew is taken over where they meet.
    fn begin(&mut self, headers: Vec<Arc<Named>>) {
        let older = self.way.take().or_else(|| self.older.take());
        self.older = older;
        let headers = self.until_older(headers);
        self.way = Way::new(headers);
        self.meet();
    }

    fn extend(&mut self, headers: Vec<Arc<Named>>) {
        let headers = self.until_older(headers);
        if let Some(way) = &mut self.way {
            way.extend(headers);
        }
        self.meet();
    }

    /// The headers above the head of the older way.
    fn until_older(&self, mut headers: Vec<Arc<Named>>) -> Vec<Arc<Named>> {
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
        let (Some(way), Some(older)) = (&mut self.way, &self.older) else { return };
        let (number, below) = way.lowest();
        if below == older.head().1 {
            if let Some(older) = self.older.take() {
                way.join(older);
            }
        } else if number <= older.head().0 {
            // It has passed beside it.
            self.older = None;
        }
    }
}

impl Shared {
    /// Headers from `top` downwards, at least one. The one who answered last is asked first, and
    /// another beside it if it takes too long.
    fn headers(
        self: &Arc<Self>,
        top: B256,
        count: u64,
        favourites: &mut VecDeque<PeerId>,
    ) -> Result<Vec<Arc<Named>>, PeersError> {
        let connected = self.usable();
        if connected.is_empty() {
            return Err(PeersError::NoPeers);
        }
        let place =
            |id: &PeerId| favourites.iter().position(|one| one == id).unwrap_or(favourites.len());
        let mut order: Vec<PeerId> = connected.iter().map(|peer| peer.id).collect();
        order.sort_by_key(place);
        let count = count.min(SEGMENT as u64);
        let (peer, headers) = self.runtime.block_on(self.first_of(&order, top, count))?;
        favourites.retain(|one| *one != peer && order.contains(one));
        favourites.push_front(peer);
        self.figures.headers.fetch_add(headers.len() as u64, Ordering::Relaxed);
        Ok(headers)
    }

    /// The first answer that is right.
    async fn first_of(
        self: &Arc<Self>,
        order: &[PeerId],
        top: B256,
        count: u64,
    ) -> Result<(PeerId, Vec<Arc<Named>>), PeersError> {
        let mut asked = JoinSet::new();
        let mut next = order.iter().copied();
        let mut ask = |asked: &mut JoinSet<_>| {
            let Some(peer) = next.next() else { return false };
            let shared = self.clone();
            asked.spawn(async move { (peer, shared.ask_headers(peer, top, count).await) });
            true
        };
        ask(&mut asked);
        let begun = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(PeersError::Stopped);
            }
            if begun.elapsed() >= self.options.stalled {
                return Err(PeersError::NobodyHas { hash: top, peers: order.len() });
            }
            tokio::select! {
                answer = asked.join_next() => match answer {
                    Some(Ok((peer, Some(headers)))) => return Ok((peer, headers)),
                    Some(_) => {
                        ask(&mut asked);
                    }
                    None => {
                        return Err(PeersError::NobodyHas { hash: top, peers: order.len() });
                    }
                },
                () = tokio::time::sleep(self.options.patience) => {
                    ask(&mut asked);
                }
            }
        }
    }

    /// What one peer answers, if it is right and not nothing.
    async fn ask_headers(&self, peer: PeerId, top: B256, count: u64) -> Option<Vec<Arc<Named>>> {
        let from = HeadersFrom { start: top.into(), limit: count, skip: 0, reverse: true };
        match self.peers.request(peer, Request::Headers(from)).await {
            Ok(Response::Headers(headers)) if headers.is_empty() => None,
            Ok(Response::Headers(headers)) => match linked(top, headers) {
                Ok(headers) => Some(headers),
                Err(_) => {
                    self.has_lied(peer, "headers that do not link");
                    None
                }
            },
            Ok(_) => {
                self.has_lied(peer, "another answer than was asked for");
                None
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "no headers");
                self.figures.failed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn has_lied(&self, peer: PeerId, what: &str) {
        // Of several requests under way to it each may have failed.
        if self.desk.lock().ban(peer) {
            tracing::debug!(%peer, "a peer has sent {what}");
            self.figures.wrong.fetch_add(1, Ordering::Relaxed);
            self.peers.report(peer, Offence::WrongData);
        }
    }

    /// The peers that have not lied.
    fn usable(&self) -> Vec<Arc<PeerInfo>> {
        let mut connected = self.peers.connected();
        let desk = self.desk.lock();
        connected.retain(|peer| !desk.is_banned(&peer.id));
        connected
    }

    /// Sends the requests that can be sent now. False if there is nobody to send them to.
    fn send_out(self: &Arc<Self>, desk: &mut Desk) -> bool {
        let connected = self.peers.connected();
        // What a peer has said of its head may be old: it is not held to it.
        let peers: Vec<_> = connected.iter().map(|peer| (peer.id, peer.range.earliest)).collect();
        let SyncOptions { patience, most_bytes, .. } = self.options;
        let needed = self.needed.load(Ordering::Relaxed);
        let limits = Limits { patience, most_bytes, needed };
        for flight in desk.assign(&peers, limits, Instant::now()) {
            let shared = self.clone();
            self.runtime.spawn(async move { shared.fly(flight).await });
        }
        peers.iter().any(|(peer, _)| !desk.is_banned(peer))
    }

    async fn fly(self: Arc<Self>, flight: Flight) {
        let Flight { id, peer, wants } = flight;
        let hashes = wants.iter().map(|named| named.hash).collect();
        let answer = self.peers.request(peer, Request::Bodies(hashes)).await;
        let outcome = match answer {
            Ok(Response::Bodies(bodies)) => {
                // Roots of hundreds of transactions take their time.
                let checked = tokio::task::spawn_blocking(move || desk::check(&wants, bodies));
                checked.await.unwrap_or(Outcome::Failed)
            }
            Ok(_) => Outcome::Wrong(Vec::new()),
            Err(RequestError::Busy(_)) => Outcome::Busy,
            Err(error) => {
                tracing::debug!(%peer, %error, "no bodies");
                Outcome::Failed
            }
        };
        self.land(id, peer, outcome);
    }

    fn land(self: &Arc<Self>, id: u64, peer: PeerId, outcome: Outcome) {
        let (is_nothing, bytes) = match &outcome {
            Outcome::Bodies(all) | Outcome::Wrong(all) => {
                (all.is_empty(), all.iter().map(|landed| landed.size).sum::<usize>())
            }
            Outcome::Failed => (true, 0),
            Outcome::Busy => (false, 0),
        };
        let figures = &self.figures;
        if matches!(outcome, Outcome::Wrong(_)) {
            self.has_lied(peer, "a body of none of the blocks asked for, or another answer");
        } else if is_nothing {
            figures.failed.fetch_add(1, Ordering::Relaxed);
        }
        let mut desk = self.desk.lock();
        let used = desk.land(id, outcome, Instant::now());
        figures.bodies.fetch_add(used as u64, Ordering::Relaxed);
        figures.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.send_out(&mut desk);
        drop(desk);
        self.changed.notify_all();
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
