//! Putting one proof together.

use super::{
    Set,
    peer::{Fault, FaultKind, Peer, Standing},
};
use crate::{RpcError, RpcResult};
use alloy_primitives::{Address, B256, Bytes};
use futures::{
    future::{BoxFuture, join_all},
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use retrie_state::{ProofError, ProofHole};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep_until;

/// Pause before replicas that have all failed are asked again; doubled each time.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What is asked of peers.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The account.
    pub(crate) address: Address,
    /// Its slots.
    pub(crate) slots: Vec<B256>,
    /// The block after which they are to be proven, by hash: peers may have another head.
    pub(crate) block: B256,
}

/// Judges parts of one proof, of which this node has its own part.
pub(crate) trait Parts: Send + Sync {
    /// What this node's part and `others` lack together; an error if they do not fit together.
    fn holes(&self, others: &[Bytes]) -> Result<Vec<ProofHole>, ProofError>;

    /// Whether who keeps `shard` is to have what fills the hole.
    fn fills(&self, shard: &str, hole: &ProofHole) -> bool;

    /// The whole, once nothing is lacking, verified.
    fn finish(&self, others: &[Bytes]) -> Result<Bytes, ProofError>;

    /// Checks one part by itself.
    fn check(&self, part: &Bytes) -> RpcResult<Result<(), ProofError>>;
}

/// Why a proof could not be put together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatherError {
    /// Nobody has given a part that is needed.
    #[error("no node gives its part of the proof: {hole} lies in {shards}; {faults}")]
    Missing {
        /// Where it is kept, as far as peers have said.
        shards: String,
        /// What is missing.
        hole: ProofHole,
        /// What became of asking.
        faults: Faults,
    },
    /// Each part is right, and the whole is not.
    #[error("the parts of the proof are right, but not the whole: {0}")]
    Unsound(ProofError),
    /// This node cannot check parts.
    #[error(transparent)]
    Own(#[from] RpcError),
    /// A thread has ended.
    #[error("the thread that verified the proof has ended")]
    Ended,
}

/// What kept each peer from giving its part, the last thing of each.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<String, String>);

impl fmt::Display for Faults {
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

/// Holes that one shard fills.
#[derive(Debug)]
struct Need {
    holes: Vec<ProofHole>,
    /// No peer has said yet that it keeps that shard, so these may lie in several.
    is_guess: bool,
}

/// A part, and who gave it.
struct Given {
    peer: Arc<Peer>,
    part: Bytes,
}

/// One proof being put together.
struct Gathering<'a> {
    set: &'a Arc<Set>,
    ask: Arc<Ask>,
    parts: &'a Arc<dyn Parts>,
    deadline: Instant,
    faults: Mutex<Faults>,
}

pub(super) async fn gather(
    set: &Arc<Set>,
    ask: Ask,
    parts: Arc<dyn Parts>,
) -> Result<Bytes, GatherError> {
    let deadline = Instant::now() + set.config.timeout;
    let ask = Arc::new(ask);
    let gathering = Gathering { set, ask, parts: &parts, deadline, faults: Mutex::default() };
    let mut given: Vec<Given> = Vec::new();
    // Each turn ends with the proof, or with a peer set aside, or it is the last one.
    loop {
        let others: Vec<_> = given.iter().map(|given| given.part.clone()).collect();
        match parts.holes(&others) {
            Ok(holes) if holes.is_empty() => {
                let finish = { move |parts: &dyn Parts| parts.finish(&others) };
                match gathering.work(finish).await? {
                    Ok(whole) => return Ok(whole),
                    Err(error) => given = gathering.honest(given, error).await?,
                }
            }
            Ok(holes) => {
                let needs = gathering.needs(holes);
                let fetched = join_all(needs.iter().map(|need| gathering.fetch(need))).await;
                let mut guessed = false;
                for (need, fetched) in needs.iter().zip(fetched) {
                    match fetched {
                        Some(part) => given.push(part),
                        // Peers may have said meanwhile what they keep.
                        None if need.is_guess && gathering.has_time() => guessed = true,
                        None => return Err(gathering.missing(need)),
                    }
                }
                if guessed {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // Each fits what this node knows: two peers contradict each other.
            Err(error) => given = gathering.honest(given, error).await?,
        }
    }
}

impl Gathering<'_> {
    /// Whether there is time for another turn.
    fn has_time(&self) -> bool {
        Instant::now() + LONGEST_PAUSE < self.deadline
    }

    /// Runs what takes a processor for some milliseconds.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Parts) -> T + Send + 'static,
    ) -> Result<T, GatherError> {
        let place = self.set.working.clone().acquire_owned().await;
        let parts = self.parts.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&*parts)
        });
        task.await.map_err(|_| GatherError::Ended)
    }

    /// The parts that are right by themselves, as not all together are. Who gave others is set aside.
    async fn honest(
        &self,
        given: Vec<Given>,
        error: ProofError,
    ) -> Result<Vec<Given>, GatherError> {
        let mut honest = Vec::with_capacity(given.len());
        let count = given.len();
        for Given { peer, part } in given {
            let of = part.clone();
            match self.work(move |parts| parts.check(&of)).await?? {
                Ok(()) => honest.push(Given { peer, part }),
                Err(error) => self.note(&peer, peer.is_wrong(&error.to_string())),
            }
        }
        if honest.len() < count { Ok(honest) } else { Err(GatherError::Unsound(error)) }
    }

    /// Sorts holes by the shards that fill them: few shards, and such that a peer that is well keeps.
    fn needs(&self, mut holes: Vec<ProofHole>) -> Vec<Need> {
        let mut shards = BTreeMap::<String, Standing>::new();
        for peer in &*self.set.peers.read() {
            let standing = peer.standing();
            if let Some(shard) = peer.shard().filter(|_| standing != Standing::SetAside) {
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
                // Peers that have not said what they keep may have it.
                needs.push(Need { holes: std::mem::take(&mut holes), is_guess: true });
                break;
            };
            let (here, rest) = holes.iter().partition(|hole| self.parts.fills(shard, hole));
            needs.push(Need { holes: here, is_guess: false });
            holes = rest;
        }
        needs
    }

    /// Peers that may fill the holes: those that are well, then the others, those with the least to do
    /// first.
    fn replicas(&self, need: &Need) -> (Vec<Arc<Peer>>, Vec<Arc<Peer>>) {
        let fills = |shard: &str| need.holes.iter().all(|hole| self.parts.fills(shard, hole));
        let mut replicas: Vec<_> = self
            .set
            .peers
            .read()
            .iter()
            .filter_map(|peer| {
                // Who has said nothing yet may keep anything.
                let standing = match peer.shard() {
                    Some(shard) => fills(&shard).then(|| peer.standing())?,
                    None => peer.standing().max(Standing::Doubtful),
                };
                let order = (standing, peer.in_flight(), rand::random::<u32>());
                (standing != Standing::SetAside).then(|| (order, peer.clone()))
            })
            .collect();
        replicas.sort_by_key(|(order, _)| *order);
        let (well, doubtful): (Vec<_>, Vec<_>) =
            replicas.into_iter().partition(|((standing, ..), _)| *standing == Standing::Well);
        let peers = |replicas: Vec<(_, Arc<Peer>)>| -> Vec<_> {
            replicas.into_iter().map(|(_, peer)| peer).collect()
        };
        (peers(well), peers(doubtful))
    }

    /// A part that fills the holes of `need`; `None` if nobody has given one in time.
    async fn fetch(&self, need: &Need) -> Option<Given> {
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
            // What is behind catches up, and what is gone may come back.
            if Instant::now() + pause >= self.deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The first good answer of these replicas. The next one is asked when one has failed, and also when
    /// one is slow.
    async fn first_good(&self, need: &Need, replicas: Vec<Arc<Peer>>) -> Option<Given> {
        type Answer = (Arc<Peer>, Result<Bytes, Fault>);
        let mut running = FuturesUnordered::<BoxFuture<'_, Answer>>::new();
        let mut replicas = replicas.into_iter();
        let request = |peer: Arc<Peer>, is_hedge| -> BoxFuture<'_, Answer> {
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
                        Ok(part) => return Some(Given { peer, part }),
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

    /// Whether a part fits what this node knows of the proof, and fills what it was asked for, or some of
    /// it where that was a guess. Whether it is true shows when the whole is verified.
    fn judge(&self, need: &Need, peer: &Peer, part: Bytes) -> Result<Bytes, Fault> {
        let left = match self.parts.holes(std::slice::from_ref(&part)) {
            Ok(left) => left,
            Err(error) => return Err(peer.is_wrong(&error.to_string())),
        };
        let mut still = need.holes.iter().map(|hole| left.contains(hole));
        let lacks = if need.is_guess { still.all(|lacks| lacks) } else { still.any(|lacks| lacks) };
        if lacks { Err(peer.lacks()) } else { Ok(part) }
    }

    fn note(&self, peer: &Peer, fault: Fault) {
        tracing::debug!(peer = peer.name(), %fault, "a proof peer has not given its part");
        if fault.kind != FaultKind::Busy || !self.faults.lock().0.contains_key(peer.name()) {
            self.faults.lock().0.insert(peer.name().to_owned(), fault.reason);
        }
    }

    fn missing(&self, need: &Need) -> GatherError {
        // There is one at least.
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

impl Faults {
    /// Notes that time was up.
    fn late(&mut self) {
        self.0.insert("others".to_owned(), "no answer in time".to_owned());
    }
}
