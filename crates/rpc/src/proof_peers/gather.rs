//! Gathers the parts of one proof from peers.

use super::{
    PeerSet,
    peer::{FaultKind, PeerFault, ReplicaStanding, ShardPeer},
};
use crate::{RpcError, RpcResult};
use alloy_primitives::{B256, Bytes};
use futures::{
    future::{BoxFuture, join_all},
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use retrie_light_client::AccountReads;
use retrie_state::{ProofError, ProofHole};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep_until;

/// Pause before failed replicas are asked again; doubled each time.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What peers are asked for.
#[derive(Clone, Debug)]
pub(crate) struct PartRequest {
    /// The accounts and their slots.
    pub(crate) reads: Vec<AccountReads>,
    /// Hash of the block whose state is proven; peers may have another head.
    pub(crate) block: B256,
}

/// Checks and combines the parts of one proof, of which this node has its own part.
pub(crate) trait ProofAssembler: Send + Sync {
    /// The holes left by this node's part and `others` together; an error if they contradict.
    fn holes(&self, others: &[Bytes]) -> Result<Vec<ProofHole>, ProofError>;

    /// Whether the keeper of `shard` must have what fills the hole.
    fn fills(&self, shard: &str, hole: &ProofHole) -> bool;

    /// Combines and verifies the proof, once it has no holes.
    fn finish(&self, others: &[Bytes]) -> Result<Bytes, ProofError>;

    /// Checks one part by itself.
    fn check(&self, part: &Bytes) -> RpcResult<Result<(), ProofError>>;
}

/// Why a proof could not be gathered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatherError {
    /// No peer returned a part that is needed.
    #[error("no peer returned a part of the proof: {hole} lies in {shards}; {faults}")]
    Missing {
        /// The shards that keep it, as far as peers have reported.
        shards: String,
        /// The hole.
        hole: ProofHole,
        /// The fault of each peer.
        faults: FaultSummary,
    },
    /// Every part is valid, but the combined proof is not.
    #[error("each part of the proof is valid, but the combined proof is not: {0}")]
    Unsound(ProofError),
    /// This node cannot check parts.
    #[error(transparent)]
    Own(#[from] RpcError),
    /// A verifying thread has panicked.
    #[error("the thread that verified the proof has ended")]
    Ended,
}

/// The last fault of each peer, by name.
#[derive(Debug, Default)]
pub(crate) struct FaultSummary(BTreeMap<String, String>);

impl fmt::Display for FaultSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no peer that could be asked has it");
        }
        for (at, (peer, reason)) in self.0.iter().enumerate() {
            write!(f, "{}{peer}: {reason}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// The holes of a proof that one shard fills.
#[derive(Debug)]
struct ShardNeed {
    holes: Vec<ProofHole>,
    /// No known peer keeps these holes, so they may belong to several shards.
    is_guess: bool,
}

/// A part, and the peer that returned it.
struct ReceivedPart {
    peer: Arc<ShardPeer>,
    part: Bytes,
}

/// The gathering of one proof.
struct ProofGathering<'a> {
    set: &'a Arc<PeerSet>,
    ask: Arc<PartRequest>,
    parts: &'a Arc<dyn ProofAssembler>,
    deadline: Instant,
    faults: Mutex<FaultSummary>,
}

pub(super) async fn gather(
    set: &Arc<PeerSet>,
    ask: PartRequest,
    parts: Arc<dyn ProofAssembler>,
) -> Result<Bytes, GatherError> {
    let deadline = Instant::now() + set.config.timeout;
    let ask = Arc::new(ask);
    let gathering = ProofGathering { set, ask, parts: &parts, deadline, faults: Mutex::default() };
    let mut given: Vec<ReceivedPart> = Vec::new();
    // Each round ends with the proof, with a peer set aside, or with an error.
    loop {
        let others: Vec<_> = given.iter().map(|given| given.part.clone()).collect();
        match parts.holes(&others) {
            Ok(holes) if holes.is_empty() => {
                let finish = { move |parts: &dyn ProofAssembler| parts.finish(&others) };
                match gathering.work(finish).await? {
                    Ok(whole) => return Ok(whole),
                    Err(error) => given = gathering.drop_invalid_parts(given, error).await?,
                }
            }
            Ok(holes) => {
                let needs = gathering.needs(holes);
                let fetched = join_all(needs.iter().map(|need| gathering.fetch(need))).await;
                let mut guessed = false;
                for (need, fetched) in needs.iter().zip(fetched) {
                    match fetched {
                        Some(part) => given.push(part),
                        // Meanwhile probes may have found which peer keeps the holes.
                        None if need.is_guess && gathering.has_time() => guessed = true,
                        None => return Err(gathering.missing(need)),
                    }
                }
                if guessed {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // Each part fits this node's own, but two peers contradict each other.
            Err(error) => given = gathering.drop_invalid_parts(given, error).await?,
        }
    }
}

impl ProofGathering<'_> {
    /// Whether there is time for another round.
    fn has_time(&self) -> bool {
        Instant::now() + LONGEST_PAUSE < self.deadline
    }

    /// Runs work that takes some milliseconds of processor time, on a blocking thread.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ProofAssembler) -> T + Send + 'static,
    ) -> Result<T, GatherError> {
        let place = self.set.working.clone().acquire_owned().await;
        let parts = self.parts.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&*parts)
        });
        task.await.map_err(|_| GatherError::Ended)
    }

    /// Checks each part by itself after all parts together failed. Keeps the valid parts; peers
    /// that returned invalid ones are set aside.
    async fn drop_invalid_parts(
        &self,
        given: Vec<ReceivedPart>,
        error: ProofError,
    ) -> Result<Vec<ReceivedPart>, GatherError> {
        let mut honest = Vec::with_capacity(given.len());
        let count = given.len();
        for ReceivedPart { peer, part } in given {
            let of = part.clone();
            match self.work(move |parts| parts.check(&of)).await?? {
                Ok(()) => honest.push(ReceivedPart { peer, part }),
                Err(error) => self.note(&peer, peer.report_wrong(&error.to_string())),
            }
        }
        if honest.len() < count { Ok(honest) } else { Err(GatherError::Unsound(error)) }
    }

    /// Assigns holes to shards: few shards, and preferably those with a healthy peer.
    fn needs(&self, mut holes: Vec<ProofHole>) -> Vec<ShardNeed> {
        let mut shards = BTreeMap::<String, ReplicaStanding>::new();
        for peer in &*self.set.peers.read() {
            let standing = peer.standing();
            if let Some(shard) = peer.shard().filter(|_| standing != ReplicaStanding::SetAside) {
                let best = shards.entry(shard).or_insert(standing);
                *best = standing.min(*best);
            }
        }
        let mut needs = Vec::new();
        while !holes.is_empty() {
            let filled =
                |shard: &str| holes.iter().filter(|hole| self.parts.fills(shard, hole)).count();
            let best = shards
                .iter()
                .map(|(shard, standing)| (filled(shard), Reverse(*standing), shard))
                .filter(|(count, ..)| *count > 0)
                .max_by_key(|(count, standing, _)| (*standing, *count));
            let Some((_, _, shard)) = best else {
                // Peers that have not reported their shard may keep these holes.
                needs.push(ShardNeed { holes: std::mem::take(&mut holes), is_guess: true });
                break;
            };
            let (here, rest) = holes.iter().partition(|hole| self.parts.fills(shard, hole));
            needs.push(ShardNeed { holes: here, is_guess: false });
            holes = rest;
        }
        needs
    }

    /// Peers that may fill the holes: first healthy peers, then doubtful ones, each ordered by
    /// requests in flight.
    fn replicas(&self, need: &ShardNeed) -> (Vec<Arc<ShardPeer>>, Vec<Arc<ShardPeer>>) {
        let fills = |shard: &str| need.holes.iter().all(|hole| self.parts.fills(shard, hole));
        let mut replicas: Vec<_> = self
            .set
            .peers
            .read()
            .iter()
            .filter_map(|peer| {
                // A peer that has not reported its shard may keep any.
                let standing = match peer.shard() {
                    Some(shard) => fills(&shard).then(|| peer.standing())?,
                    None => peer.standing().max(ReplicaStanding::Doubtful),
                };
                let order = (standing, peer.in_flight(), rand::random::<u32>());
                (standing != ReplicaStanding::SetAside).then(|| (order, peer.clone()))
            })
            .collect();
        replicas.sort_by_key(|(order, _)| *order);
        let (well, doubtful): (Vec<_>, Vec<_>) = replicas
            .into_iter()
            .partition(|((standing, ..), _)| *standing == ReplicaStanding::Healthy);
        let peers = |replicas: Vec<(_, Arc<ShardPeer>)>| -> Vec<_> {
            replicas.into_iter().map(|(_, peer)| peer).collect()
        };
        (peers(well), peers(doubtful))
    }

    /// A part that fills the holes of `need`; `None` if no peer returns one in time.
    async fn fetch(&self, need: &ShardNeed) -> Option<ReceivedPart> {
        let mut pause = PAUSE;
        loop {
            let (well, doubtful) = self.replicas(need);
            if well.is_empty() && doubtful.is_empty() {
                return None;
            }
            for replicas in [well, doubtful] {
                if let Some(given) = self.first_good(need, replicas).await {
                    return Some(given);
                }
            }
            // A lagging peer may catch up, and an unreachable peer may come back.
            if Instant::now() + pause >= self.deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The first good part from these replicas. The next replica is asked when one fails, and when
    /// one is slow.
    async fn first_good(
        &self,
        need: &ShardNeed,
        replicas: Vec<Arc<ShardPeer>>,
    ) -> Option<ReceivedPart> {
        type PeerAnswer = (Arc<ShardPeer>, Result<Bytes, PeerFault>);
        let mut running = FuturesUnordered::<BoxFuture<'_, PeerAnswer>>::new();
        let mut replicas = replicas.into_iter();
        let request = |peer: Arc<ShardPeer>, is_hedge| -> BoxFuture<'_, PeerAnswer> {
            let answer = peer.clone().ask(self.set.clone(), self.ask.clone(), is_hedge);
            Box::pin(async move { (peer, answer.await) })
        };
        let hedge = self.set.config.hedge.unwrap_or_else(|| self.set.latencies.p95());
        running.push(request(replicas.next()?, false));
        let mut hedge_at = Instant::now() + hedge;
        loop {
            tokio::select! {
                biased;
                Some((peer, answer)) = running.next() => {
                    match answer.and_then(|part| self.judge(need, &peer, part)) {
                        Ok(part) => return Some(ReceivedPart { peer, part }),
                        Err(fault) => self.note(&peer, fault),
                    }
                    match replicas.next() {
                        Some(next) => running.push(request(next, false)),
                        None if running.is_empty() => return None,
                        None => {}
                    }
                }
                () = sleep_until(self.deadline.into()) => {
                    self.faults.lock().late();
                    return None;
                }
                () = sleep_until(hedge_at.into()), if replicas.len() > 0 => {
                    running.extend(replicas.next().map(|next| request(next, true)));
                    hedge_at = Instant::now() + hedge;
                }
            }
        }
    }

    /// Checks that a part fits this node's own part and fills the holes of `need`, or one of them
    /// if the shard was a guess. Whether the part is true shows only when the combined proof is
    /// verified.
    fn judge(&self, need: &ShardNeed, peer: &ShardPeer, part: Bytes) -> Result<Bytes, PeerFault> {
        let left = match self.parts.holes(std::slice::from_ref(&part)) {
            Ok(left) => left,
            Err(error) => return Err(peer.report_wrong(&error.to_string())),
        };
        let mut still = need.holes.iter().map(|hole| left.contains(hole));
        let lacks = if need.is_guess { still.all(|lacks| lacks) } else { still.any(|lacks| lacks) };
        if lacks { Err(peer.report_lacking()) } else { Ok(part) }
    }

    fn note(&self, peer: &ShardPeer, fault: PeerFault) {
        tracing::debug!(peer = peer.name(), %fault, "a proof peer did not return its part");
        if fault.kind != FaultKind::Busy || !self.faults.lock().0.contains_key(peer.name()) {
            self.faults.lock().0.insert(peer.name().to_owned(), fault.reason);
        }
    }

    fn missing(&self, need: &ShardNeed) -> GatherError {
        // A need has at least one hole.
        let hole = need.holes.first().copied();
        let hole = hole.unwrap_or(ProofHole { what: "part", number: 0 });
        let peers = self.set.peers.read();
        let shards: BTreeSet<_> = peers
            .iter()
            .filter_map(|peer| peer.shard())
            .filter(|shard| self.parts.fills(shard, &hole))
            .collect();
        let shards = match shards.is_empty() {
            true => "a shard that no peer keeps".to_owned(),
            false => format!("shard {}", shards.into_iter().collect::<Vec<_>>().join(" or ")),
        };
        let faults = std::mem::take(&mut *self.faults.lock());
        GatherError::Missing { shards, hole, faults }
    }
}

impl FaultSummary {
    /// Notes that the deadline passed.
    fn late(&mut self) {
        self.0.insert("others".to_owned(), "no answer in time".to_owned());
    }
}
