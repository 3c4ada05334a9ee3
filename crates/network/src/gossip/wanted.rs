//! Which transactions are wanted, who says that he has them, and who is asked.
//!
//! A plain book: it asks nobody by itself, and time is told to it. Memory is bounded by the number of
//! peers, each of which has a budget of hashes; no call takes longer because a peer has announced much:
//!
//! ```text
//!  claims of a peer, 4,096: each is
//!     queued ------------> asked of this peer --> fetched --> judged: the hash is forgotten
//!       ^ ^                  | not delivered        | refused for what this peer has added
//!       | '-- of others who claim the hash <--------'
//!     not queued: while another peer is asked for the hash, or was, and the pool judges it
//! ```

use super::Announced;
use crate::eth::{PeerId, PooledTransaction};
use alloy_consensus::Typed2718;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, map::HashMap};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

/// Announcements of one peer that are remembered until somebody has sent what they name.
pub(super) const MOST_PENDING: usize = 4096;
/// Hashes of one request.
pub(super) const MOST_ASKED: usize = 256;
/// Announced bytes with which a request has enough; fetched bytes of a peer, not judged yet, with which
/// it is not asked for more.
const ENOUGH: u64 = 128 << 10;
/// Bytes by which a length may be another than was announced: others count a byte more or less.
const TOLERANCE: u64 = 8;
/// Bytes of an answer beyond twice those announced, at most.
const ANSWER_SLACK: u64 = 64 << 10;
/// Answers without anything, in a row, from which on a peer has announced what it has not.
const FORGIVEN: u32 = 4;
/// How long a peer with too much to do is left alone.
const REST: Duration = Duration::from_millis(250);
/// How long a transaction waits that the pool cannot take yet.
const PAUSE: Duration = Duration::from_secs(5);
/// How often a peer may leave a hash out at the end of an answer, as if it had had no room.
const LEFT_OUT: u32 = 3;

/// What a request was answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// Transactions; fewer than asked for, if the others are not there.
    Transactions(Vec<PooledTransaction>),
    /// The peer has too much to do.
    Busy,
    /// Nothing.
    Failed,
}

/// A request to be made.
#[derive(Debug)]
pub(super) struct WantedRequest {
    pub(super) peer: PeerId,
    pub(super) hashes: Vec<B256>,
    /// Bytes that the answer may have.
    pub(super) bytes: usize,
}

/// What is to be done with an answer.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// For the pool.
    pub(super) transactions: Vec<PooledTransaction>,
    /// Whether something is not what the peer has announced, or what it was asked for.
    pub(super) is_false: bool,
    /// Whether it has nothing of what it has announced, again and again: what was announced may have
    /// been mined meanwhile.
    pub(super) is_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// For any of its announcers.
    Waiting,
    /// Until others of its sender are in the pool.
    Paused,
    Asked(PeerId),
    /// The pool judges what this peer has sent.
    Fetched(PeerId),
}

#[derive(Debug)]
struct WantedHash {
    since: Instant,
    state: State,
    announcers: Vec<PeerId>,
    /// Peers that have let us wait for it.
    late: u32,
}

/// What a peer says of a transaction.
#[derive(Clone, Copy, Debug)]
struct HashClaim {
    announced: Announced,
    /// Whether the hash stands in the peer's queue.
    is_queued: bool,
    left_out: u32,
}

/// A request under way.
#[derive(Debug)]
struct HashRequest {
    asked: Vec<Announced>,
    since: Instant,
    /// Peers that have let us wait for one of the hashes.
    late: u32,
    /// Whether it is late, and nothing is expected of it.
    is_late: bool,
}

#[derive(Debug, Default)]
struct PeerPart {
    claims: HashMap<B256, HashClaim>,
    /// Claims to be asked for, the oldest first, and hashes that are claimed no more.
    queue: VecDeque<B256>,
    under_way: Option<HashRequest>,
    /// Bytes of what it has sent and is not judged yet.
    fetched: HashMap<B256, u64>,
    fetched_bytes: u64,
    fetched_since: Option<Instant>,
    /// Answers without anything, in a row.
    empty: u32,
    rests_until: Option<Instant>,
}

impl PeerPart {
    fn enqueue(&mut self, hash: B256, is_first: bool) {
        let Some(claim) = self.claims.get_mut(&hash) else { return };
        if claim.is_queued {
            return;
        }
        claim.is_queued = true;
        if is_first {
            self.queue.push_front(hash);
        } else {
            self.queue.push_back(hash);
        }
        // As many were added since there were half as many.
        if self.queue.len() >= 2 * MOST_PENDING {
            let (claims, mut seen) = (&self.claims, HashSet::new());
            self.queue.retain(|hash| {
                claims.get(hash).is_some_and(|claim| claim.is_queued) && seen.insert(*hash)
            });
        }
    }

    fn may_be_asked(&self, now: Instant) -> bool {
        self.under_way.is_none()
            && self.fetched_bytes < ENOUGH
            && !self.queue.is_empty()
            && self.rests_until.is_none_or(|until| until <= now)
    }
}

/// The book.
#[derive(Debug, Default)]
pub(super) struct WantedHashes {
    wanted: HashMap<B256, WantedHash>,
    peers: BTreeMap<PeerId, PeerPart>,
    /// Those that wait, and until when.
    paused: VecDeque<(Instant, B256)>,
    /// Who is asked first next time.
    turn: usize,
}

impl WantedHashes {
    /// Whether a peer may announce more.
    pub(super) fn has_room(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_none_or(|part| part.claims.len() < MOST_PENDING)
    }

    /// A peer says that it has a transaction. False if it has said so of too many.
    pub(super) fn announce(&mut self, peer: PeerId, announced: Announced, now: Instant) -> bool {
        let part = self.peers.entry(peer).or_default();
        if part.claims.len() >= MOST_PENDING {
            return false;
        }
        let hash = announced.hash;
        if part.claims.contains_key(&hash) {
            return true;
        }
        part.claims.insert(hash, HashClaim { announced, is_queued: false, left_out: 0 });
        part.enqueue(hash, false);
        let (state, announcers) = (State::Waiting, Vec::new());
        let new = || WantedHash { since: now, state, announcers, late: 0 };
        self.wanted.entry(hash).or_insert_with(new).announcers.push(peer);
        true
    }

    /// Requests to be made now: of what was announced `delay` ago, one to a peer, no hash to two.
    pub(super) fn requests(&mut self, delay: Duration, now: Instant) -> Vec<WantedRequest> {
        while let Some((until, hash)) = self.paused.front().copied()
            && until <= now
        {
            self.paused.pop_front();
            if self.wanted.get(&hash).is_some_and(|wanted| wanted.state == State::Paused) {
                self.ask_again(&hash);
            }
        }
        let mut order: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, part)| part.may_be_asked(now))
            .map(|(peer, _)| *peer)
            .collect();
        if !order.is_empty() {
            self.turn = (self.turn + 1) % order.len();
            order.rotate_left(self.turn);
        }
        order.into_iter().filter_map(|peer| self.next_for(peer, delay, now)).collect()
    }

    /// Takes as many hashes from the peer's queue as make a request. What it passes over leaves the
    /// queue: it comes back with [`ask_again`](Self::ask_again).
    fn next_for(&mut self, peer: PeerId, delay: Duration, now: Instant) -> Option<WantedRequest> {
        let part = self.peers.get_mut(&peer)?;
        let (mut asked, mut bytes, mut late) = (Vec::new(), 0_u64, 0);
        while asked.len() < MOST_ASKED
            && part.fetched_bytes.saturating_add(bytes) < ENOUGH
            && let Some(hash) = part.queue.front()
        {
            if let Some(claim) = part.claims.get_mut(hash)
                && let Some(wanted) = self.wanted.get_mut(hash)
                && claim.is_queued
            {
                if wanted.state == State::Waiting {
                    if now.saturating_duration_since(wanted.since) < delay {
                        break;
                    }
                    wanted.state = State::Asked(peer);
                    bytes = bytes.saturating_add(claim.announced.size);
                    late = late.max(wanted.late);
                    asked.push(claim.announced);
                }
                claim.is_queued = false;
            }
            part.queue.pop_front();
        }
        if asked.is_empty() {
            return None;
        }
        let hashes = asked.iter().map(|announced| announced.hash).collect();
        part.under_way = Some(HashRequest { asked, since: now, late, is_late: false });
        let most = bytes.saturating_mul(2).saturating_add(ANSWER_SLACK);
        Some(WantedRequest { peer, hashes, bytes: usize::try_from(most).unwrap_or(usize::MAX) })
    }

    /// Asks others for what was asked for, or waits for the pool, longer than `patience`: half as long
    /// after each peer that was late already. Returns who has not answered.
    pub(super) fn give_up(&mut self, patience: Duration, now: Instant) -> Vec<PeerId> {
        let (mut late, mut slow) = (Vec::new(), Vec::new());
        for (peer, part) in &mut self.peers {
            if let Some(request) = &mut part.under_way
                && !request.is_late
                && now >= request.since + patience / (1 << request.late.min(3))
            {
                request.is_late = true;
                late.push((*peer, request.asked.iter().map(|one| one.hash).collect::<Vec<_>>()));
            }
            // Its transactions may wait for each other.
            if part.fetched_since.is_some_and(|since| now >= since + patience) {
                part.fetched_since = None;
                slow.extend(part.fetched.keys().map(|hash| (*peer, *hash)));
            }
        }
        for (peer, hash) in slow {
            if self.wanted.get(&hash).is_some_and(|wanted| wanted.state == State::Fetched(peer)) {
                self.leave(peer, &hash);
            }
        }
        for (peer, hashes) in &late {
            for hash in hashes.iter().rev() {
                if let Some(wanted) = self.wanted.get_mut(hash)
                    && wanted.state == State::Asked(*peer)
                {
                    wanted.late += 1;
                }
                self.leave(*peer, hash);
            }
        }
        late.into_iter().map(|(peer, _)| peer).collect()
    }

    /// Takes the answer to the request that is under way to a peer.
    pub(super) fn answer(&mut self, peer: PeerId, answer: Answer, now: Instant) -> Delivery {
        let Some(part) = self.peers.get_mut(&peer) else { return Delivery::default() };
        let Some(request) = part.under_way.take() else { return Delivery::default() };
        match answer {
            Answer::Transactions(transactions) => {
                return self.take(peer, &request.asked, transactions, now);
            }
            Answer::Busy => {
                part.rests_until = now.checked_add(REST);
                for Announced { hash, .. } in request.asked.iter().rev() {
                    if self.is_asked(peer, hash) {
                        self.ask_again(hash);
                    }
                }
            }
            Answer::Failed => {
                request.asked.iter().rev().for_each(|one| self.leave(peer, &one.hash))
            }
        }
        Delivery::default()
    }

    fn take(
        &mut self,
        peer: PeerId,
        asked: &[Announced],
        transactions: Vec<PooledTransaction>,
        now: Instant,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let Some(part) = self.peers.get_mut(&peer) else { return delivery };
        let places: HashMap<B256, usize> = asked.iter().map(|one| one.hash).zip(0..).collect();
        part.empty = if transactions.is_empty() { part.empty.saturating_add(1) } else { 0 };
        delivery.is_empty = part.empty >= FORGIVEN;
        let mut given = HashSet::new();
        let mut last = None;
        for transaction in transactions {
            let hash = *transaction.tx_hash();
            let Some(place) = places.get(&hash).copied().filter(|_| !given.contains(&hash)) else {
                delivery.is_false = true;
                continue;
            };
            last = last.max(Some(place));
            let size = transaction.encode_2718_len() as u64;
            if !is_as_announced(&asked[place], transaction.ty(), size) {
                delivery.is_false = true;
                continue;
            }
            given.insert(hash);
            // If nobody wants it any more it was late, and nobody else has it.
            if let Some(wanted) = self.wanted.get_mut(&hash) {
                if matches!(wanted.state, State::Fetched(_)) {
                    continue;
                }
                wanted.state = State::Fetched(peer);
            }
            if part.fetched.insert(hash, size).is_none() {
                part.fetched_bytes += size;
            }
            part.fetched_since.get_or_insert(now);
            delivery.transactions.push(transaction);
        }
        // What comes after the last one may have had no room; the others are not there.
        for (place, Announced { hash, .. }) in asked.iter().enumerate().rev() {
            if given.contains(hash) {
                continue;
            }
            let may_follow = last.is_some_and(|last| place > last) && !delivery.is_false;
            if may_follow && self.is_asked(peer, hash) && self.may_leave_out(peer, hash) {
                self.ask_again(hash);
            } else {
                self.leave(peer, hash);
            }
        }
        delivery
    }

    fn is_asked(&self, peer: PeerId, hash: &B256) -> bool {
        self.wanted.get(hash).is_some_and(|wanted| wanted.state == State::Asked(peer))
    }

    fn may_leave_out(&mut self, peer: PeerId, hash: &B256) -> bool {
        let claim = self.peers.get_mut(&peer).and_then(|part| part.claims.get_mut(hash));
        claim.is_some_and(|claim| {
            claim.left_out += 1;
            claim.left_out <= LEFT_OUT
        })
    }

    /// The pool has judged what a peer has sent, or will not: it may be asked for more.
    pub(super) fn release(&mut self, peer: &PeerId, hash: &B256) {
        let Some(part) = self.peers.get_mut(peer) else { return };
        if let Some(bytes) = part.fetched.remove(hash) {
            part.fetched_bytes -= bytes;
        }
        if part.fetched.is_empty() {
            part.fetched_since = None;
        }
    }

    /// The pool has judged a transaction, and would judge the same of any peer.
    pub(super) fn done(&mut self, hash: &B256) {
        let Some(wanted) = self.wanted.remove(hash) else { return };
        for peer in wanted.announcers {
            if let Some(part) = self.peers.get_mut(&peer) {
                part.claims.remove(hash);
            }
        }
    }

    /// What a peer has sent under this hash was of no use: another one is asked.
    pub(super) fn spoilt(&mut self, peer: PeerId, hash: &B256) {
        self.leave(peer, hash);
    }

    /// The pool cannot take yet what a peer has sent: another one is asked after a while. Once none is
    /// left the hash is forgotten.
    pub(super) fn postpone(&mut self, peer: PeerId, hash: &B256, now: Instant) {
        if let Some(wanted) = self.wanted.get_mut(hash)
            && wanted.state == State::Fetched(peer)
        {
            wanted.state = State::Paused;
            self.paused.push_back((now + PAUSE, *hash));
        }
        self.leave(peer, hash);
    }

    /// A peer is gone.
    pub(super) fn disconnected(&mut self, peer: PeerId) {
        let Some(part) = self.peers.remove(&peer) else { return };
        part.claims.keys().chain(part.fetched.keys()).for_each(|hash| self.leave(peer, hash));
    }

    /// Does not ask this peer for it any more.
    fn leave(&mut self, peer: PeerId, hash: &B256) {
        if let Some(part) = self.peers.get_mut(&peer) {
            part.claims.remove(hash);
        }
        let Some(wanted) = self.wanted.get_mut(hash) else { return };
        wanted.announcers.retain(|one| *one != peer);
        let was_its = wanted.state == State::Asked(peer) || wanted.state == State::Fetched(peer);
        let is_free = was_its || matches!(wanted.state, State::Waiting | State::Paused);
        if wanted.announcers.is_empty() && is_free {
            self.wanted.remove(hash);
        } else if was_its {
            self.ask_again(hash);
        }
    }

    /// Puts a hash first into the queues of all who have announced it.
    fn ask_again(&mut self, hash: &B256) {
        let Some(wanted) = self.wanted.get_mut(hash) else { return };
        wanted.state = State::Waiting;
        for peer in &wanted.announcers {
            if let Some(part) = self.peers.get_mut(peer) {
                part.enqueue(*hash, true);
            }
        }
    }

    /// How many hashes are wanted.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }
}

fn is_as_announced(announced: &Announced, ty: u8, size: u64) -> bool {
    announced.ty == ty && announced.size.abs_diff(size) <= TOLERANCE
}

#[cfg(test)]
mod tests;
