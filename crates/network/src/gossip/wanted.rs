//! Which transactions are wanted, who says that he has them, and who is asked.
//!
//! A plain book: it asks nobody by itself, and time is told to it.

use super::Announced;
use crate::eth::{PeerId, PooledTransaction};
use alloy_consensus::Typed2718;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, map::HashMap};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

/// Announcements of one peer that wait to be asked for.
pub(super) const MOST_PENDING: usize = 4096;
/// Hashes of one request.
pub(super) const MOST_ASKED: usize = 256;
/// Announced bytes with which a request has enough.
const ENOUGH: u64 = 128 << 10;
/// Bytes by which a length may be another than was announced: others count a byte more or less.
const TOLERANCE: u64 = 8;
/// Answers without anything, in a row, from which on a peer has announced what it has not.
const FORGIVEN: u32 = 4;
/// How long a peer with too much to do is left alone.
const REST: Duration = Duration::from_millis(250);

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
    Waiting,
    Asked(PeerId),
    /// The pool has it.
    Judged,
}

#[derive(Debug)]
struct Wanted {
    since: Instant,
    state: State,
    announcers: Vec<(PeerId, Announced)>,
}

#[derive(Debug, Default)]
struct PeerPart {
    /// What it has announced, the oldest first. Some of it may be wanted no more.
    pending: VecDeque<B256>,
    /// The request under way.
    under_way: Option<(Vec<B256>, Instant)>,
    /// Whether that is late, and nothing is expected of it.
    is_late: bool,
    /// Answers without anything, in a row.
    empty: u32,
    rests_until: Option<Instant>,
}

/// The book.
#[derive(Debug, Default)]
pub(super) struct WantedHashes {
    wanted: HashMap<B256, Wanted>,
    peers: BTreeMap<PeerId, PeerPart>,
    /// Who is asked first next time.
    turn: usize,
}

impl WantedHashes {
    /// A peer says that it has a transaction. False if it has said so of too many.
    pub(super) fn announce(&mut self, peer: PeerId, announced: Announced, now: Instant) -> bool {
        let part = self.peers.entry(peer).or_default();
        if part.pending.len() >= MOST_PENDING {
            let wanted = &self.wanted;
            part.pending.retain(|hash| {
                let by = |wanted: &Wanted| wanted.announcers.iter().any(|(one, _)| *one == peer);
                wanted.get(hash).is_some_and(by)
            });
            if part.pending.len() >= MOST_PENDING {
                return false;
            }
        }
        let wanted = self.wanted.entry(announced.hash).or_insert_with(|| Wanted {
            since: now,
            state: State::Waiting,
            announcers: Vec::new(),
        });
        if wanted.announcers.iter().all(|(one, _)| *one != peer) {
            wanted.announcers.push((peer, announced));
            part.pending.push_back(announced.hash);
        }
        true
    }

    /// Requests to be made now: of what was announced `delay` ago, one to a peer, no hash to two.
    pub(super) fn requests(&mut self, delay: Duration, now: Instant) -> Vec<(PeerId, Vec<B256>)> {
        let mut order: Vec<PeerId> = self.peers.keys().copied().collect();
        if !order.is_empty() {
            self.turn = (self.turn + 1) % order.len();
            order.rotate_left(self.turn);
        }
        let mut requests = Vec::new();
        for peer in order {
            let hashes = self.next_for(peer, delay, now);
            if !hashes.is_empty() {
                requests.push((peer, hashes));
            }
        }
        requests
    }

    fn next_for(&mut self, peer: PeerId, delay: Duration, now: Instant) -> Vec<B256> {
        let Some(part) = self.peers.get_mut(&peer) else { return Vec::new() };
        let rests = part.rests_until.is_some_and(|until| now < until);
        if part.under_way.is_some() || rests {
            return Vec::new();
        }
        let (mut hashes, mut bytes) = (Vec::new(), 0);
        let mut left = VecDeque::with_capacity(part.pending.len());
        for hash in part.pending.drain(..) {
            let Some(wanted) = self.wanted.get_mut(&hash) else { continue };
            let Some((_, announced)) = wanted.announcers.iter().find(|(one, _)| *one == peer)
            else {
                continue;
            };
            left.push_back(hash);
            let is_due =
                wanted.state == State::Waiting && now.duration_since(wanted.since) >= delay;
            if is_due && hashes.len() < MOST_ASKED && bytes < ENOUGH {
                bytes += announced.size.min(ENOUGH);
                wanted.state = State::Asked(peer);
                hashes.push(hash);
            }
        }
        part.pending = left;
        if !hashes.is_empty() {
            (part.under_way, part.is_late) = (Some((hashes.clone(), now)), false);
        }
        hashes
    }

    /// Asks others for what was asked for longer ago than `patience`. Returns who is late.
    pub(super) fn give_up(&mut self, patience: Duration, now: Instant) -> Vec<PeerId> {
        let mut late = Vec::new();
        for (peer, part) in &mut self.peers {
            let Some((hashes, since)) = &part.under_way else { continue };
            if part.is_late || now.duration_since(*since) < patience {
                continue;
            }
            part.is_late = true;
            late.push((*peer, hashes.clone()));
        }
        for (peer, hashes) in &late {
            hashes.iter().for_each(|hash| self.leave(*peer, hash));
        }
        late.into_iter().map(|(peer, _)| peer).collect()
    }

    /// Takes the answer to the request that is under way to a peer.
    pub(super) fn answer(&mut self, peer: PeerId, answer: Answer, now: Instant) -> Delivery {
        let mut delivery = Delivery::default();
        let Some(part) = self.peers.get_mut(&peer) else { return delivery };
        let Some((asked, _)) = part.under_way.take() else { return delivery };
        let transactions = match answer {
            Answer::Transactions(transactions) => transactions,
            Answer::Busy => {
                part.rests_until = now.checked_add(REST);
                for hash in &asked {
                    if let Some(wanted) = self.wanted.get_mut(hash)
                        && wanted.state == State::Asked(peer)
                    {
                        wanted.state = State::Waiting;
                    }
                }
                return delivery;
            }
            Answer::Failed => {
                asked.iter().for_each(|hash| self.leave(peer, hash));
                return delivery;
            }
        };
        let places: HashMap<B256, usize> = asked.iter().copied().zip(0..).collect();
        part.empty = if transactions.is_empty() { part.empty.saturating_add(1) } else { 0 };
        delivery.is_empty = part.empty >= FORGIVEN;
        let mut given = HashSet::new();
        let mut last = None;
        for transaction in transactions {
            let hash = *transaction.tx_hash();
            let Some(place) = places.get(&hash).copied().filter(|_| given.insert(hash)) else {
                delivery.is_false = true;
                continue;
            };
            last = last.max(Some(place));
            let Some(wanted) = self.wanted.get_mut(&hash) else {
                // It was late, and nobody else has it.
                delivery.transactions.push(transaction);
                continue;
            };
            let announced = wanted.announcers.iter().find(|(one, _)| *one == peer);
            if announced.is_some_and(|(_, announced)| !is_as_announced(announced, &transaction)) {
                delivery.is_false = true;
                given.remove(&hash);
                continue;
            }
            if wanted.state != State::Judged {
                wanted.state = State::Judged;
                delivery.transactions.push(transaction);
            }
        }
        // What comes after the last one may have had no room; the others are not there.
        for (place, hash) in asked.iter().enumerate() {
            if given.contains(hash) {
                continue;
            }
            let may_follow = last.is_some_and(|last| place > last) && !delivery.is_false;
            match self.wanted.get_mut(hash) {
                Some(wanted) if may_follow && wanted.state == State::Asked(peer) => {
                    wanted.state = State::Waiting;
                }
                _ => self.leave(peer, hash),
            }
        }
        delivery
    }

    /// The pool is about to judge a transaction: nobody needs to be asked for it.
    pub(super) fn judge(&mut self, hash: B256, now: Instant) {
        let new = || Wanted { since: now, state: State::Judged, announcers: Vec::new() };
        self.wanted.entry(hash).or_insert_with(new).state = State::Judged;
    }

    /// The pool has judged a transaction for good.
    pub(super) fn done(&mut self, hash: &B256) {
        self.wanted.remove(hash);
    }

    /// What a peer has sent under this hash was of no use: another one is asked.
    pub(super) fn spoilt(&mut self, peer: PeerId, hash: &B256) {
        if let Some(wanted) = self.wanted.get_mut(hash)
            && wanted.state == State::Judged
        {
            wanted.state = State::Waiting;
        }
        self.leave(peer, hash);
    }

    /// A peer is gone.
    pub(super) fn disconnected(&mut self, peer: PeerId) {
        let Some(part) = self.peers.remove(&peer) else { return };
        part.pending.iter().for_each(|hash| self.leave(peer, hash));
    }

    /// Does not ask this peer for it any more.
    fn leave(&mut self, peer: PeerId, hash: &B256) {
        let Some(wanted) = self.wanted.get_mut(hash) else { return };
        wanted.announcers.retain(|(one, _)| *one != peer);
        if wanted.state == State::Asked(peer) {
            wanted.state = State::Waiting;
        }
        if wanted.announcers.is_empty() && wanted.state == State::Waiting {
            self.wanted.remove(hash);
        }
    }

    /// How many hashes are wanted.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }
}

fn is_as_announced(announced: &Announced, transaction: &PooledTransaction) -> bool {
    let size = transaction.encode_2718_len() as u64;
    announced.ty == transaction.ty() && announced.size.abs_diff(size) <= TOLERANCE
}
