//! Which bodies are wanted, who is asked for them, and what has come.
//!
//! A plain book: it asks nobody by itself, and time is told to it.

use super::{
    skeleton::NamedHeader,
    standing::{FreePeer, PIPELINED, PeerStandings, ServiceKind},
};
use crate::{
    eth::{BlockRange, PeerId},
    handle::Offence,
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH,
    proofs::{calculate_ommers_root, calculate_transaction_root, calculate_withdrawals_root},
};
use alloy_primitives::{B256, map::HashMap};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{BlockBody, Header};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bodies of a request, at most, and after short answers.
const LEAST_BATCH: usize = 8;
const MOST_BATCH: usize = 512;
/// An answer that is faster than this, and whole, is followed by a larger request.
const FAST: Duration = Duration::from_millis(500);
/// Bodies here and wanted, at most, however small they are.
pub(super) const MOST_HELD: usize = 4096;
/// Bytes of a body before one has come, and of an answer at most where peers keep to geth's limits.
const FIRST_SIZE: usize = 16 << 10;
const ANSWER: usize = 2 << 20;
/// An answer that is slower than this is followed by a smaller one.
const SLOW: Duration = Duration::from_secs(2);
/// An answer with fewer bodies and fewer bytes than both of these, from a peer that has more, is short.
const FAIR_ANSWER: usize = 16;
const FAIR_BYTES: usize = 256 << 10;

/// What came for one body of a request.
#[derive(Debug)]
pub(super) struct LandedBody {
    pub(super) named: Arc<NamedHeader>,
    pub(super) body: BlockBody,
    /// Bytes of the body.
    pub(super) size: usize,
}

/// How a request has ended.
#[derive(Debug)]
pub(super) enum BodyOutcome {
    /// Bodies, each of which belongs to its header; fewer than asked for, if the others were left out.
    Bodies(Vec<LandedBody>),
    /// The same, and one that belongs to none of the headers: no honest peer sends that.
    Wrong(Vec<LandedBody>),
    /// Nothing.
    Failed,
    /// The peer has enough to do. No fault of it.
    Busy,
}

/// What bounds requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Something that was asked for longer ago is asked for once more, of somebody who has nothing else
    /// to do.
    pub(super) patience: Duration,
    /// Bytes that are here or under way.
    pub(super) most_bytes: usize,
    /// Number of the block that somebody waits for.
    pub(super) needed: u64,
}

/// A request to be sent.
#[derive(Debug)]
pub(super) struct BodyFlight {
    pub(super) id: u64,
    pub(super) peer: PeerId,
    pub(super) wants: Vec<Arc<NamedHeader>>,
}

#[derive(Debug)]
struct BodyRequest {
    peer: PeerId,
    /// What the peer said it has.
    range: BlockRange,
    /// How many were asked for.
    count: usize,
    /// Those that are still of use.
    wants: Vec<Arc<NamedHeader>>,
    since: Instant,
    /// Whether somebody else was asked for the same.
    is_doubled: bool,
}

/// The book.
#[derive(Debug)]
pub(super) struct BodyScheduler {
    /// Wanted, by number, and with nobody asked for them.
    queue: BTreeSet<(u64, B256)>,
    wanted: HashMap<B256, Arc<NamedHeader>>,
    out: HashMap<u64, BodyRequest>,
    /// How many requests are under way for each.
    asked: HashMap<B256, usize>,
    ready: HashMap<B256, LandedBody>,
    ready_bytes: usize,
    /// Bytes of a body, of late.
    usual: usize,
    next_id: u64,
    /// Up to which number bodies are wanted.
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
    /// Wants the body of a block that somebody waits for.
    pub(super) fn need(&mut self, named: &Arc<NamedHeader>) {
        if self.want(named) {
            // It has not come ahead, and neither have those above it.
            self.ahead = named.header.number;
        }
    }

    /// Number of the first block whose body may be wanted ahead of block `number`.
    pub(super) fn next_ahead(&self, number: u64) -> u64 {
        self.ahead.max(number).saturating_add(1)
    }

    /// Wants the body of a block ahead of those that somebody waits for. False if there is no room.
    pub(super) fn want_ahead(&mut self, named: &Arc<NamedHeader>) -> bool {
        if self.ready.len() + self.wanted.len() >= MOST_HELD {
            return false;
        }
        self.want(named);
        self.ahead = named.header.number;
        true
    }

    /// False if it was wanted before, or is here.
    fn want(&mut self, named: &Arc<NamedHeader>) -> bool {
        if self.ready.contains_key(&named.hash) || self.wanted.contains_key(&named.hash) {
            return false;
        }
        if let Some(body) = empty_body(&named.header) {
            self.put(LandedBody { named: named.clone(), body, size: 0 });
            return true;
        }
        self.queue.insert((named.header.number, named.hash));
        self.wanted.insert(named.hash, named.clone());
        true
    }

    /// The body of this block, if it has come. It is here no longer.
    pub(super) fn take(&mut self, hash: &B256) -> Option<LandedBody> {
        let landed = self.ready.remove(hash)?;
        self.ready_bytes -= landed.size;
        Some(landed)
    }

    /// Forgets all that is wanted or here. Answers to requests under way are of no use then.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.wanted.clear();
        self.ready.clear();
        self.asked.clear();
        (self.ready_bytes, self.ahead) = (0, 0);
        for out in self.out.values_mut() {
            out.wants.clear();
        }
    }

    /// Whether bodies that are here or under way take more than so many bytes, about.
    fn is_full(&self, most: usize) -> bool {
        let under_way = self.out.values().map(|out| (out.wants.len() * self.usual).min(ANSWER));
        self.ready_bytes + under_way.sum::<usize>() >= most
    }

    /// Requests to be sent now to these peers, who are connected and have said which blocks they have.
    pub(super) fn assign(
        &mut self,
        standings: &mut PeerStandings,
        peers: &[(PeerId, BlockRange)],
        limits: BodyLimits,
        now: Instant,
    ) -> Vec<BodyFlight> {
        let mut flights = Vec::new();
        // What somebody waits for goes to the fastest, though others may have nothing to do.
        for peer in standings.fastest(peers, ServiceKind::Bodies, now) {
            if let Some(wants) = self.needed_for(&peer, standings, limits, now) {
                flights.push(self.send(&peer, wants, standings, now));
                break;
            }
        }
        // A request each, and only then a second one: one of them may be slow.
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
        wants: Vec<Arc<NamedHeader>>,
        standings: &mut PeerStandings,
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

    /// The block that somebody waits for and those above it, if nobody was asked for it or somebody
    /// takes long.
    fn needed_for(
        &mut self,
        peer: &FreePeer,
        standings: &mut PeerStandings,
        limits: BodyLimits,
        now: Instant,
    ) -> Option<Vec<Arc<NamedHeader>>> {
        let lowest = self.queue.range((peer.range.earliest, B256::ZERO)..).next();
        if lowest.is_some_and(|(lowest, _)| *lowest <= limits.needed) {
            return self.next_for(peer, standings, limits, now);
        }
        self.double(peer, standings, limits.patience, limits.needed, now)
    }

    fn next_for(
        &mut self,
        peer: &FreePeer,
        standings: &mut PeerStandings,
        limits: BodyLimits,
        now: Instant,
    ) -> Option<Vec<Arc<NamedHeader>>> {
        let mut batch = standings.of(peer.id).batch;
        if self.is_full(limits.most_bytes) {
            // What somebody waits for comes all the same: it makes room.
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

    /// Of what other peers take too long for, beside what this one would take, the lowest; up to block
    /// `highest`.
    fn double(
        &mut self,
        peer: &FreePeer,
        standings: &mut PeerStandings,
        patience: Duration,
        highest: u64,
        now: Instant,
    ) -> Option<Vec<Arc<NamedHeader>>> {
        let wanted = &self.wanted;
        let is_missing = |named: &&Arc<NamedHeader>| {
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

    /// Takes what a request has come to. Returns how many bodies were of use, and what the peer did
    /// wrong.
    pub(super) fn land(
        &mut self,
        id: u64,
        outcome: BodyOutcome,
        standings: &mut PeerStandings,
        now: Instant,
    ) -> (usize, Option<Offence>) {
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

    fn put(&mut self, landed: LandedBody) {
        self.ready_bytes += landed.size;
        self.ready.insert(landed.named.hash, landed);
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }
}

/// Takes down how a peer has served a request, and sets the size of the next one. Returns what it did
/// wrong.
fn judge(
    request: &BodyRequest,
    outcome: &BodyOutcome,
    standings: &mut PeerStandings,
    now: Instant,
) -> Option<Offence> {
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
            return matches!(other, BodyOutcome::Wrong(_)).then_some(Offence::WrongData);
        }
    };
    record.serve(bodies.len(), took, now);
    let is_short = is_short(request, bodies);
    // A peer that is asked for few cannot show that it gives many.
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
        BodyOutcome::Wrong(_) => Some(Offence::WrongData),
        _ => is_too_often.then_some(Offence::ShortAnswer),
    }
}

/// Bytes of these bodies.
pub(super) fn size(bodies: &[LandedBody]) -> usize {
    bodies.iter().map(|landed| landed.size).sum()
}

/// Whether an answer has less than any client's limits, though the peer has said that it has more.
fn is_short(request: &BodyRequest, bodies: &[LandedBody]) -> bool {
    let numbers = || request.wants.iter().map(|named| named.header.number);
    let (Some(lowest), Some(highest)) = (numbers().min(), numbers().max()) else { return false };
    bodies.len() < request.count.min(FAIR_ANSWER)
        && size(bodies) < FAIR_BYTES
        && request.range.earliest <= lowest
        && highest <= request.range.latest
}

/// The body of a block whose header says that there is nothing in it.
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

/// Whether a body is that of this header, by the hashes in the header.
fn belongs(header: &Header, body: &BlockBody) -> bool {
    calculate_transaction_root(&body.transactions) == header.transactions_root
        && calculate_ommers_root(&body.ommers) == header.ommers_hash
        && body.withdrawals.as_ref().map(|all| calculate_withdrawals_root(all))
            == header.withdrawals_root
}

/// Holds bodies against the headers of a request, in its order: some may have been left out, and one
/// that belongs to none of those that follow is wrong.
pub(super) fn check(wants: &[Arc<NamedHeader>], bodies: Vec<BlockBody>) -> BodyOutcome {
    let mut landed = Vec::with_capacity(bodies.len().min(wants.len()));
    let mut left = wants.iter();
    for body in bodies {
        let Some(named) = left.find(|named| belongs(&named.header, &body)) else {
            return BodyOutcome::Wrong(landed);
        };
        let size = body.length();
        landed.push(LandedBody { named: named.clone(), body, size });
    }
    BodyOutcome::Bodies(landed)
}

#[cfg(test)]
mod tests;
