//! The body scheduler: which bodies are wanted, which peers are asked for them, and what has come.
//!
//! A pure state machine: it sends nothing itself, and the caller passes the time.

use crate::{
    skeleton::SealedHeader,
    standing::{FreePeer, PIPELINED, ServiceKind, StandingTable},
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH,
    proofs::{calculate_ommers_root, calculate_transaction_root, calculate_withdrawals_root},
};
use alloy_primitives::{B256, map::HashMap};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{BlockBody, Header};
use retrie_p2p::{
    eth::{BlockRange, PeerId},
    handle::PeerOffence,
};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// Minimum size of a request after short answers, and maximum size of any request, in bodies.
const LEAST_BATCH: usize = 8;
const MOST_BATCH: usize = 512;
/// A complete answer that is faster than this doubles the next request.
const FAST: Duration = Duration::from_millis(500);
/// Maximum number of bodies that are here or wanted, however small they are.
pub(crate) const MOST_HELD: usize = 4096;
/// Assumed size of a body before one has come, and of an answer at most, by geth's limits, in
/// bytes.
const FIRST_SIZE: usize = 16 << 10;
const ANSWER: usize = 2 << 20;
/// An answer that is slower than this halves the next request.
const SLOW: Duration = Duration::from_secs(2);
/// An answer with fewer bodies and fewer bytes than both of these is short, if the peer has more.
const FAIR_ANSWER: usize = 16;
const FAIR_BYTES: usize = 256 << 10;

/// A body that has come and matches its header.
#[derive(Debug)]
pub(crate) struct MatchedBody {
    pub(crate) named: Arc<SealedHeader>,
    pub(crate) body: BlockBody,
    /// Bytes of the body.
    pub(crate) size: usize,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum BodyOutcome {
    /// Bodies that match their headers; fewer than asked for, if the peer left some out.
    Bodies(Vec<MatchedBody>),
    /// As `Bodies`, but one more body matches none of the headers: no honest peer sends that.
    Wrong(Vec<MatchedBody>),
    /// Nothing.
    Failed,
    /// The peer is busy. This is no fault.
    Busy,
}

/// Limits on requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// A request that is open for longer than this is sent to a second peer that is free.
    pub(crate) patience: Duration,
    /// Maximum bytes of bodies that are here or under way.
    pub(crate) most_bytes: usize,
    /// Number of the block that the follower waits for.
    pub(crate) needed: u64,
}

/// A request to be sent.
#[derive(Debug)]
pub(crate) struct BodyFlight {
    pub(crate) id: u64,
    pub(crate) peer: PeerId,
    pub(crate) wants: Vec<Arc<SealedHeader>>,
}

#[derive(Debug)]
struct BodyRequest {
    peer: PeerId,
    /// The range of blocks that the peer serves.
    range: BlockRange,
    /// How many bodies were asked for.
    count: usize,
    /// The headers whose bodies are still needed.
    wants: Vec<Arc<SealedHeader>>,
    since: Instant,
    /// Whether a second peer was asked for the same bodies.
    is_doubled: bool,
}

/// Schedules requests for bodies, and keeps the bodies that have come.
#[derive(Debug)]
pub(crate) struct BodyScheduler {
    /// Wanted bodies that no peer is asked for, by block number.
    queue: BTreeSet<(u64, B256)>,
    wanted: HashMap<B256, Arc<SealedHeader>>,
    out: HashMap<u64, BodyRequest>,
    /// Number of open requests for each body.
    asked: HashMap<B256, usize>,
    ready: HashMap<B256, MatchedBody>,
    ready_bytes: usize,
    /// Moving average of a body's size in bytes.
    usual: usize,
    next_id: u64,
    /// Number of the highest block whose body is wanted.
    ahead: u64,
}

impl Default for BodyScheduler {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            wanted: HashMap::default(),
            out: HashMap::default(),
            asked: HashMap::default(),
            ready: HashMap::default(),
            ready_bytes: 0,
            usual: FIRST_SIZE,
            next_id: 0,
            ahead: 0,
        }
    }
}

impl BodyScheduler {
    /// Wants the body of the block that the follower waits for.
    pub(crate) fn need(&mut self, named: &Arc<SealedHeader>) {
        if self.want(named) {
            // It was not fetched ahead, so neither were the bodies above it.
            self.ahead = named.header.number;
        }
    }

    /// Number of the first block above `number` whose body is not wanted yet.
    pub(crate) fn next_ahead(&self, number: u64) -> u64 {
        self.ahead.max(number).saturating_add(1)
    }

    /// Wants the body of a block ahead of the follower. False if there is no room.
    pub(crate) fn want_ahead(&mut self, named: &Arc<SealedHeader>) -> bool {
        if self.ready.len() + self.wanted.len() >= MOST_HELD {
            return false;
        }
        self.want(named);
        self.ahead = named.header.number;
        true
    }

    /// False if the body was wanted before, or is here.
    fn want(&mut self, named: &Arc<SealedHeader>) -> bool {
        if self.ready.contains_key(&named.hash) || self.wanted.contains_key(&named.hash) {
            return false;
        }
        if let Some(body) = empty_body(&named.header) {
            self.put(MatchedBody { named: named.clone(), body, size: 0 });
            return true;
        }
        self.queue.insert((named.header.number, named.hash));
        self.wanted.insert(named.hash, named.clone());
        true
    }

    /// Takes out the body of this block, if it has come.
    pub(crate) fn take(&mut self, hash: &B256) -> Option<MatchedBody> {
        let landed = self.ready.remove(hash)?;
        self.ready_bytes -= landed.size;
        Some(landed)
    }

    /// Forgets all bodies that are wanted or here. Answers to open requests are ignored then.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.wanted.clear();
        self.ready.clear();
        self.asked.clear();
        (self.ready_bytes, self.ahead) = (0, 0);
        for out in self.out.values_mut() {
            out.wants.clear();
        }
    }

    /// Whether bodies that are here or under way use at least `most` bytes, by estimate.
    fn is_full(&self, most: usize) -> bool {
        let under_way = self.out.values().map(|out| (out.wants.len() * self.usual).min(ANSWER));
        self.ready_bytes + under_way.sum::<usize>() >= most
    }

    /// The requests to send now to these connected peers, given their ranges of blocks.
    pub(crate) fn assign(
        &mut self,
        standings: &mut StandingTable,
        peers: &[(PeerId, BlockRange)],
        limits: BodyLimits,
        now: Instant,
    ) -> Vec<BodyFlight> {
        let mut flights = Vec::new();
        // The body that the follower needs is asked of the fastest peer, even if other peers are
        // idle.
        for peer in standings.fastest(peers, ServiceKind::Bodies, now) {
            if let Some(wants) = self.needed_for(&peer, standings, limits, now) {
                flights.push(self.send(&peer, wants, standings, now));
                break;
            }
        }
        // One request for each peer, and only then a second one: one of the peers may be slow.
        for _ in 0..PIPELINED {
            for peer in standings.free(peers, ServiceKind::Bodies, now) {
                if let Some(wants) = self.next_for(&peer, standings, limits, now) {
                    flights.push(self.send(&peer, wants, standings, now));
                }
            }
        }
        flights
    }

    fn send(
        &mut self,
        peer: &FreePeer,
        wants: Vec<Arc<SealedHeader>>,
        standings: &mut StandingTable,
        now: Instant,
    ) -> BodyFlight {
        for named in &wants {
            *self.asked.entry(named.hash).or_default() += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        let request = BodyRequest {
            peer: peer.id,
            range: peer.range,
            count: wants.len(),
            wants: wants.clone(),
            since: now,
            is_doubled: false,
        };
        self.out.insert(id, request);
        standings.of(peer.id).record(ServiceKind::Bodies).begin();
        BodyFlight { id, peer: peer.id, wants }
    }

    /// The body that the follower needs and those above it, if no peer was asked for it or the
    /// asked peer is slow.
    fn needed_for(
        &mut self,
        peer: &FreePeer,
        standings: &mut StandingTable,
        limits: BodyLimits,
        now: Instant,
    ) -> Option<Vec<Arc<SealedHeader>>> {
        let lowest = self.queue.range((peer.range.earliest, B256::ZERO)..).next();
        if lowest.is_some_and(|(lowest, _)| *lowest <= limits.needed) {
            return self.next_for(peer, standings, limits, now);
        }
        self.double(peer, standings, limits.patience, limits.needed, now)
    }

    fn next_for(
        &mut self,
        peer: &FreePeer,
        standings: &mut StandingTable,
        limits: BodyLimits,
        now: Instant,
    ) -> Option<Vec<Arc<SealedHeader>>> {
        let mut batch = standings.of(peer.id).batch;
        if self.is_full(limits.most_bytes) {
            // The needed body is fetched even so: it makes room.
            let is_needed = self.queue.first().is_some_and(|(lowest, _)| *lowest <= limits.needed);
            batch = usize::from(is_needed);
        }
        let from = (peer.range.earliest, B256::ZERO);
        let first: Vec<_> = self.queue.range(from..).take(batch).copied().collect();
        if first.is_empty() {
            return self.double(peer, standings, limits.patience, u64::MAX, now);
        }
        for key in &first {
            self.queue.remove(key);
        }
        let wants: Vec<_> =
            first.iter().filter_map(|(_, hash)| self.wanted.get(hash).cloned()).collect();
        (!wants.is_empty()).then_some(wants)
    }

    /// The missing bodies of another peer's slow request: slow compared to the time that this peer
    /// would need. Takes the request with the lowest missing block, up to block `highest`.
    fn double(
        &mut self,
        peer: &FreePeer,
        standings: &mut StandingTable,
        patience: Duration,
        highest: u64,
        now: Instant,
    ) -> Option<Vec<Arc<SealedHeader>>> {
        let wanted = &self.wanted;
        let is_missing = |named: &&Arc<SealedHeader>| {
            named.header.number >= peer.range.earliest && wanted.contains_key(&named.hash)
        };
        let lowest = |out: &BodyRequest| {
            let missing = out.wants.iter().filter(is_missing);
            missing.map(|named| named.header.number).min().filter(|lowest| *lowest <= highest)
        };
        let late = self.out.values_mut().filter(|out| {
            let took = now.duration_since(out.since);
            !out.is_doubled && out.peer != peer.id && took >= peer.hedge_after(out.count, patience)
        });
        let (_, out) =
            late.filter_map(|out| Some((lowest(out)?, out))).min_by_key(|(lowest, _)| *lowest)?;
        out.is_doubled = true;
        if now.duration_since(out.since) >= patience {
            standings.of(out.peer).record(ServiceKind::Bodies).fail(now);
        }
        Some(out.wants.iter().filter(is_missing).cloned().collect())
    }

    /// Applies the result of a request. Returns how many bodies were useful, and the offence of the
    /// peer, if any.
    pub(crate) fn land(
        &mut self,
        id: u64,
        outcome: BodyOutcome,
        standings: &mut StandingTable,
        now: Instant,
    ) -> (usize, Option<PeerOffence>) {
        let Some(request) = self.out.remove(&id) else { return (0, None) };
        let offence = judge(&request, &outcome, standings, now);
        let bodies = match outcome {
            BodyOutcome::Bodies(bodies) | BodyOutcome::Wrong(bodies) => bodies,
            BodyOutcome::Failed | BodyOutcome::Busy => Vec::new(),
        };
        let mut used = 0;
        for landed in bodies {
            if self.wanted.remove(&landed.named.hash).is_some() {
                self.queue.remove(&(landed.named.header.number, landed.named.hash));
                self.usual = (self.usual * 7 + landed.size) / 8;
                self.put(landed);
                used += 1;
            }
        }
        for named in request.wants {
            let hash = named.hash;
            let Some(asked) = self.asked.get_mut(&hash) else { continue };
            *asked = asked.saturating_sub(1);
            if *asked > 0 {
                continue;
            }
            self.asked.remove(&hash);
            if self.wanted.contains_key(&hash) {
                self.queue.insert((named.header.number, hash));
            }
        }
        (used, offence)
    }

    fn put(&mut self, landed: MatchedBody) {
        self.ready_bytes += landed.size;
        self.ready.insert(landed.named.hash, landed);
    }

    /// Whether no request is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }
}

/// Records how a peer has served a request, and sets the size of its next one. Returns the offence
/// of the peer, if any.
fn judge(
    request: &BodyRequest,
    outcome: &BodyOutcome,
    standings: &mut StandingTable,
    now: Instant,
) -> Option<PeerOffence> {
    let standing = standings.of(request.peer);
    let took = now.duration_since(request.since);
    let batch = standing.batch;
    let record = standing.record(ServiceKind::Bodies);
    record.end();
    let bodies = match outcome {
        BodyOutcome::Bodies(bodies) | BodyOutcome::Wrong(bodies) if !bodies.is_empty() => bodies,
        BodyOutcome::Busy => {
            record.pause(now);
            return None;
        }
        other => {
            record.fail(now);
            standing.batch = (batch / 2).max(1);
            return matches!(other, BodyOutcome::Wrong(_)).then_some(PeerOffence::WrongData);
        }
    };
    record.serve(bodies.len(), took, now);
    let is_short = is_short(request, bodies);
    // A small request cannot show that a peer gives complete answers.
    let is_judged = is_short || request.count >= LEAST_BATCH;
    let is_too_often = is_judged && record.judge_length(is_short, now);
    standing.batch = if is_short {
        bodies.len().max(LEAST_BATCH)
    } else if bodies.len() < request.count {
        bodies.len()
    } else if took < FAST && request.count >= batch {
        (batch * 2).min(MOST_BATCH)
    } else if took > SLOW {
        (batch / 2).max(1)
    } else {
        batch
    };
    match outcome {
        BodyOutcome::Wrong(_) => Some(PeerOffence::WrongData),
        _ => is_too_often.then_some(PeerOffence::ShortAnswer),
    }
}

/// Total bytes of these bodies.
pub(crate) fn size(bodies: &[MatchedBody]) -> usize {
    bodies.iter().map(|landed| landed.size).sum()
}

/// Whether an answer has less than any client's limits, though the peer's range covers the request.
fn is_short(request: &BodyRequest, bodies: &[MatchedBody]) -> bool {
    let numbers = || request.wants.iter().map(|named| named.header.number);
    let (Some(lowest), Some(highest)) = (numbers().min(), numbers().max()) else { return false };
    bodies.len() < request.count.min(FAIR_ANSWER)
        && size(bodies) < FAIR_BYTES
        && request.range.earliest <= lowest
        && highest <= request.range.latest
}

/// The body of a block whose header says that it is empty.
fn empty_body(header: &Header) -> Option<BlockBody> {
    let withdrawals = match header.withdrawals_root {
        None => None,
        Some(EMPTY_ROOT_HASH) => Some(Default::default()),
        Some(_) => return None,
    };
    let is_empty =
        header.transactions_root == EMPTY_ROOT_HASH && header.ommers_hash == EMPTY_OMMER_ROOT_HASH;
    is_empty.then(|| BlockBody { withdrawals, ..BlockBody::default() })
}

/// Whether a body matches this header, by the hashes in the header.
fn belongs(header: &Header, body: &BlockBody) -> bool {
    calculate_transaction_root(&body.transactions) == header.transactions_root
        && calculate_ommers_root(&body.ommers) == header.ommers_hash
        && body.withdrawals.as_ref().map(|all| calculate_withdrawals_root(all))
            == header.withdrawals_root
}

/// Matches bodies to the headers of a request, in the order of the request. The peer may leave some
/// out, but a body that matches none of the remaining headers is wrong.
pub(crate) fn check(wants: &[Arc<SealedHeader>], bodies: Vec<BlockBody>) -> BodyOutcome {
    let mut landed = Vec::with_capacity(bodies.len().min(wants.len()));
    let mut left = wants.iter();
    for body in bodies {
        let Some(named) = left.find(|named| belongs(&named.header, &body)) else {
            return BodyOutcome::Wrong(landed);
        };
        let size = body.length();
        landed.push(MatchedBody { named: named.clone(), body, size });
    }
    BodyOutcome::Bodies(landed)
}

#[cfg(test)]
mod tests;
