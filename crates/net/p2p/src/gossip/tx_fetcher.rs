//! The fetcher of announced transactions: which hashes are wanted, which peers have announced them,
//! and which peer is asked.
//!
//! A pure state machine: it sends nothing itself, and the caller passes the time. The number of
//! peers bounds its memory, since each peer has a budget of hashes. No call takes longer because a
//! peer has announced much:
//!
//! ```text
//!  claims of a peer, 4,096: each is
//!     queued ------------> asked of this peer --> fetched --> judged: the hash is forgotten
//!       ^ ^                  | not delivered        | refused for what this peer has added
//!       | '-- of others who claim the hash <--------'
//!     not queued: while another peer is asked for the hash, or was, and the pool judges it
//! ```

use super::TxAnnouncement;
use crate::eth::{PeerId, PooledTransaction};
use alloy_consensus::Typed2718;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, map::HashMap};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

/// Maximum number of announcements of one peer that wait for their transactions.
pub(super) const MOST_PENDING: usize = 4096;
/// Maximum number of hashes in one request.
pub(super) const MOST_ASKED: usize = 256;
/// A request ends with the hash that reaches this many announced bytes; and while this many fetched
/// bytes of a peer wait for the pool, it is not asked for more.
const ENOUGH: u64 = 128 << 10;
/// Allowed difference between the announced and the real size: other clients count a byte more or
/// less.
const TOLERANCE: u64 = 8;
/// An answer may have twice the announced bytes plus this many.
const ANSWER_SLACK: u64 = 64 << 10;
/// After this many empty answers in a row a peer is asked more rarely.
const FORGIVEN: u32 = 4;
/// How long a busy peer is left alone.
const REST: Duration = Duration::from_millis(250);
/// How long a peer is left alone at most whose answers are empty.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// How long a transaction waits that the pool cannot accept yet.
const PAUSE: Duration = Duration::from_secs(5);
/// How often a peer may leave out a hash at the end of an answer, as if it did not fit.
const LEFT_OUT: u32 = 3;

/// The result of a request.
#[derive(Debug)]
pub(super) enum FetchOutcome {
    /// Transactions. Hashes that are left out are not available, or did not fit.
    Transactions(Vec<PooledTransaction>),
    /// Transactions whose blobs came apart, each after its bytes without them.
    WithCells(Vec<(u64, PooledTransaction)>),
    /// The peer is busy.
    Busy,
    /// No valid answer.
    Failed,
}

/// A request to be sent.
#[derive(Debug)]
pub(super) struct TxRequest {
    pub(super) peer: PeerId,
    pub(super) hashes: Vec<B256>,
    /// What the peer has announced of them.
    pub(super) asked: Vec<TxAnnouncement>,
    /// Maximum bytes of the answer.
    pub(super) bytes: usize,
}

/// The outcome of an answer.
#[derive(Debug, Default)]
pub(super) struct TxDelivery {
    /// Transactions for the pool.
    pub(super) transactions: Vec<PooledTransaction>,
    /// Whether a transaction was not requested, or differs from its announcement.
    pub(super) is_false: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashState {
    /// Any of its announcers may be asked.
    Waiting,
    /// It waits for earlier transactions of its sender.
    Paused,
    Asked(PeerId),
    /// The pool judges what this peer has sent.
    Fetched(PeerId),
}

#[derive(Debug)]
struct WantedHash {
    since: Instant,
    state: HashState,
    announcers: Vec<PeerId>,
    /// Number of peers that were late with it.
    late: u32,
}

/// The announcement of a transaction by one peer.
#[derive(Clone, Copy, Debug)]
struct HashClaim {
    announced: TxAnnouncement,
    /// Whether the hash is in the peer's queue.
    is_queued: bool,
    left_out: u32,
}

/// An open request.
#[derive(Debug)]
struct HashRequest {
    asked: Vec<TxAnnouncement>,
    since: Instant,
    /// The highest number of late peers of its hashes.
    late: u32,
    /// Whether it is late; its hashes are free for other peers then.
    is_late: bool,
}

#[derive(Debug, Default)]
struct AnnouncingPeer {
    claims: HashMap<B256, HashClaim>,
    /// Hashes to ask for, the oldest first. It may also contain hashes that are not claimed any
    /// more.
    queue: VecDeque<B256>,
    under_way: Option<HashRequest>,
    /// Bytes of each transaction that it has sent and that is not judged yet.
    fetched: HashMap<B256, u64>,
    fetched_bytes: u64,
    fetched_since: Option<Instant>,
    /// Empty answers in a row.
    empty: u32,
    rests_until: Option<Instant>,
}

impl AnnouncingPeer {
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
        // At most every 4,096 insertions: the claims alone are half of that limit.
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

/// All wanted hashes and all peers that have announced some.
#[derive(Debug, Default)]
pub(super) struct TxFetcher {
    wanted: HashMap<B256, WantedHash>,
    peers: BTreeMap<PeerId, AnnouncingPeer>,
    /// Paused hashes, and until when.
    paused: VecDeque<(Instant, B256)>,
    /// Rotates which peer is asked first.
    turn: usize,
}

impl TxFetcher {
    /// Whether a peer may announce more.
    pub(super) fn has_room(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_none_or(|part| part.claims.len() < MOST_PENDING)
    }

    /// Records an announcement. False if the peer's budget is used up.
    pub(super) fn announce(
        &mut self,
        peer: PeerId,
        announced: TxAnnouncement,
        now: Instant,
    ) -> bool {
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
        let (state, announcers) = (HashState::Waiting, Vec::new());
        let new = || WantedHash { since: now, state, announcers, late: 0 };
        self.wanted.entry(hash).or_insert_with(new).announcers.push(peer);
        true
    }

    /// The requests to send now, for hashes announced at least `delay` ago: one for each peer, and
    /// each hash in only one.
    pub(super) fn requests(&mut self, delay: Duration, now: Instant) -> Vec<TxRequest> {
        while let Some((until, hash)) = self.paused.front().copied()
            && until <= now
        {
            self.paused.pop_front();
            if self.wanted.get(&hash).is_some_and(|wanted| wanted.state == HashState::Paused) {
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

    /// Takes hashes from the peer's queue for one request. A hash that it skips leaves the queue,
    /// and comes back with [`ask_again`](Self::ask_again).
    fn next_for(&mut self, peer: PeerId, delay: Duration, now: Instant) -> Option<TxRequest> {
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
                if wanted.state == HashState::Waiting {
                    if now.saturating_duration_since(wanted.since) < delay {
                        break;
                    }
                    wanted.state = HashState::Asked(peer);
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
        let most = bytes.saturating_mul(2).saturating_add(ANSWER_SLACK);
        let bytes = usize::try_from(most).unwrap_or(usize::MAX);
        let open = HashRequest { asked: asked.clone(), since: now, late, is_late: false };
        part.under_way = Some(open);
        Some(TxRequest { peer, hashes, asked, bytes })
    }

    /// Frees hashes that were requested, or wait for the pool, for longer than `patience`, so that
    /// other peers are asked: after half of the time for each peer that was late already. Returns
    /// the late peers.
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
            // Its transactions may wait for each other in the pool.
            if part.fetched_since.is_some_and(|since| now >= since + patience) {
                part.fetched_since = None;
                slow.extend(part.fetched.keys().map(|hash| (*peer, *hash)));
            }
        }
        for (peer, hash) in slow {
            if self.wanted.get(&hash).is_some_and(|wanted| wanted.state == HashState::Fetched(peer))
            {
                self.leave(peer, &hash);
            }
        }
        for (peer, hashes) in &late {
            for hash in hashes.iter().rev() {
                if let Some(wanted) = self.wanted.get_mut(hash)
                    && wanted.state == HashState::Asked(*peer)
                {
                    wanted.late += 1;
                }
                self.leave(*peer, hash);
            }
        }
        late.into_iter().map(|(peer, _)| peer).collect()
    }

    /// Applies the answer to the open request of a peer.
    pub(super) fn answer(
        &mut self,
        peer: PeerId,
        answer: FetchOutcome,
        now: Instant,
    ) -> TxDelivery {
        let Some(part) = self.peers.get_mut(&peer) else { return TxDelivery::default() };
        let Some(request) = part.under_way.take() else { return TxDelivery::default() };
        match answer {
            FetchOutcome::Transactions(transactions) => {
                let sized = transactions.into_iter().map(|one| (one.encode_2718_len() as u64, one));
                return self.take(peer, &request.asked, sized.collect(), now);
            }
            FetchOutcome::WithCells(transactions) => {
                return self.take(peer, &request.asked, transactions, now);
            }
            FetchOutcome::Busy => {
                part.rests_until = now.checked_add(REST);
                for TxAnnouncement { hash, .. } in request.asked.iter().rev() {
                    if self.is_asked(peer, hash) {
                        self.ask_again(hash);
                    }
                }
            }
            FetchOutcome::Failed => {
                request.asked.iter().rev().for_each(|one| self.leave(peer, &one.hash))
            }
        }
        TxDelivery::default()
    }

    fn take(
        &mut self,
        peer: PeerId,
        asked: &[TxAnnouncement],
        transactions: Vec<(u64, PooledTransaction)>,
        now: Instant,
    ) -> TxDelivery {
        let mut delivery = TxDelivery::default();
        let Some(part) = self.peers.get_mut(&peer) else { return delivery };
        let places: HashMap<B256, usize> = asked.iter().map(|one| one.hash).zip(0..).collect();
        part.empty = if transactions.is_empty() { part.empty.saturating_add(1) } else { 0 };
        // No offence: blocks may include transactions before they are requested.
        if let Some(doublings) = part.empty.checked_sub(FORGIVEN) {
            let rest = REST.saturating_mul(1 << doublings.min(16)).min(LONGEST_REST);
            part.rests_until = now.checked_add(rest);
        }
        let mut given = HashSet::new();
        let mut last = None;
        for (sent, transaction) in transactions {
            let hash = *transaction.tx_hash();
            let Some(place) = places.get(&hash).copied().filter(|_| !given.contains(&hash)) else {
                delivery.is_false = true;
                continue;
            };
            last = last.max(Some(place));
            if !is_as_announced(&asked[place], transaction.ty(), sent) {
                delivery.is_false = true;
                continue;
            }
            given.insert(hash);
            let size = transaction.encode_2718_len() as u64;
            // If the hash is not wanted any more, the answer was late, and no other peer has the
            // hash.
            if let Some(wanted) = self.wanted.get_mut(&hash) {
                if matches!(wanted.state, HashState::Fetched(_)) {
                    continue;
                }
                wanted.state = HashState::Fetched(peer);
            }
            if part.fetched.insert(hash, size).is_none() {
                part.fetched_bytes += size;
            }
            part.fetched_since.get_or_insert(now);
            delivery.transactions.push(transaction);
        }
        // Hashes after the last delivered one may not have fitted; the others are not available.
        for (place, TxAnnouncement { hash, .. }) in asked.iter().enumerate().rev() {
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
        self.wanted.get(hash).is_some_and(|wanted| wanted.state == HashState::Asked(peer))
    }

    fn may_leave_out(&mut self, peer: PeerId, hash: &B256) -> bool {
        let claim = self.peers.get_mut(&peer).and_then(|part| part.claims.get_mut(hash));
        claim.is_some_and(|claim| {
            claim.left_out += 1;
            claim.left_out <= LEFT_OUT
        })
    }

    /// Records that the pool is done with a transaction of a peer, so that the peer may be asked
    /// for more.
    pub(super) fn release(&mut self, peer: &PeerId, hash: &B256) {
        let Some(part) = self.peers.get_mut(peer) else { return };
        if let Some(bytes) = part.fetched.remove(hash) {
            part.fetched_bytes -= bytes;
        }
        if part.fetched.is_empty() {
            part.fetched_since = None;
        }
    }

    /// Forgets a hash: the pool would judge the transaction the same from any peer.
    pub(super) fn forget(&mut self, hash: &B256) {
        let Some(wanted) = self.wanted.remove(hash) else { return };
        for peer in wanted.announcers {
            if let Some(part) = self.peers.get_mut(&peer) {
                part.claims.remove(hash);
            }
        }
    }

    /// Records that what the peer has sent for this hash is useless: another peer is asked.
    pub(super) fn reject(&mut self, peer: PeerId, hash: &B256) {
        self.leave(peer, hash);
    }

    /// Records that the pool cannot accept the transaction yet: another peer is asked after a
    /// pause. If no other peer has announced the hash, it is forgotten.
    pub(super) fn postpone(&mut self, peer: PeerId, hash: &B256, now: Instant) {
        if let Some(wanted) = self.wanted.get_mut(hash)
            && wanted.state == HashState::Fetched(peer)
        {
            wanted.state = HashState::Paused;
            self.paused.push_back((now + PAUSE, *hash));
        }
        self.leave(peer, hash);
    }

    /// Removes a peer that is gone.
    pub(super) fn disconnected(&mut self, peer: PeerId) {
        let Some(part) = self.peers.remove(&peer) else { return };
        part.claims.keys().chain(part.fetched.keys()).for_each(|hash| self.leave(peer, hash));
    }

    /// Removes the peer from the announcers of a hash.
    fn leave(&mut self, peer: PeerId, hash: &B256) {
        if let Some(part) = self.peers.get_mut(&peer) {
            part.claims.remove(hash);
        }
        let Some(wanted) = self.wanted.get_mut(hash) else { return };
        wanted.announcers.retain(|one| *one != peer);
        let was_its =
            wanted.state == HashState::Asked(peer) || wanted.state == HashState::Fetched(peer);
        let is_free = was_its || matches!(wanted.state, HashState::Waiting | HashState::Paused);
        if wanted.announcers.is_empty() && is_free {
            self.wanted.remove(hash);
        } else if was_its {
            self.ask_again(hash);
        }
    }

    /// Frees a hash: it becomes the first in the queues of all its announcers.
    fn ask_again(&mut self, hash: &B256) {
        let Some(wanted) = self.wanted.get_mut(hash) else { return };
        wanted.state = HashState::Waiting;
        for peer in &wanted.announcers {
            if let Some(part) = self.peers.get_mut(peer) {
                part.enqueue(*hash, true);
            }
        }
    }

    /// The number of wanted hashes.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }
}

/// Whether a transaction has the announced type, and about the announced size in bytes.
pub(super) fn is_as_announced(announced: &TxAnnouncement, ty: u8, size: u64) -> bool {
    announced.ty == ty && announced.size.abs_diff(size) <= TOLERANCE
}

#[cfg(test)]
mod tests;
