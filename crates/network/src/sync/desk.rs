//! Which bodies are wanted, who is asked for them, and what has come.
//!
//! A plain book: it asks nobody by itself, and time is told to it.

use super::way::Named;
use crate::eth::PeerId;
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

/// Requests under way to one peer.
pub(super) const PIPELINED: usize = 2;
/// Bodies in the first request to a peer, and in any later one.
const FIRST_BATCH: usize = 32;
const MOST_BATCH: usize = 512;
/// An answer that is faster than this, and whole, is followed by a larger request.
const FAST: Duration = Duration::from_millis(500);
/// Bodies here and wanted, at most, however small they are.
pub(super) const MOST_HELD: usize = 4096;
/// Bytes of a body before one has come, and of an answer at most where peers keep to geth's limits.
const FIRST_SIZE: usize = 16 << 10;
const ANSWER: usize = 2 << 20;
/// How long a peer is left alone that was of no use, at first and at most.
const FIRST_REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// What came for one body of a request.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) named: Arc<Named>,
    pub(super) body: BlockBody,
    /// Bytes of the body.
    pub(super) size: usize,
}

/// How a request has ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Bodies, each of which belongs to its header; fewer than asked for, if the others were left out.
    Bodies(Vec<Landed>),
    /// The same, and one that belongs to none of the headers: no honest peer sends that.
    Wrong(Vec<Landed>),
    /// Nothing.
    Failed,
    /// The peer has enough to do. No fault of it.
    Busy,
}

/// What bounds requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
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
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) peer: PeerId,
    pub(super) wants: Vec<Arc<Named>>,
}

#[derive(Debug)]
struct Out {
    peer: PeerId,
    wants: Vec<Arc<Named>>,
    since: Instant,
    /// Whether somebody else was asked for the same.
    is_doubled: bool,
}

#[derive(Debug)]
struct Standing {
    batch: usize,
    out: usize,
    rest: Duration,
    rests_until: Option<Instant>,
    /// Bodies a second, of late.
    rate: f64,
    is_banned: bool,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            batch: FIRST_BATCH,
            out: 0,
            rest: FIRST_REST,
            rests_until: None,
            rate: 0.0,
            is_banned: false,
        }
    }
}

impl Standing {
    fn is_free(&self, now: Instant) -> bool {
        let rests = self.rests_until.is_some_and(|until| now < until);
        !self.is_banned && !rests && self.out < PIPELINED
    }

    fn rest(&mut self, now: Instant) {
        self.rests_until = now.checked_add(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
        self.batch = (self.batch / 2).max(1);
    }
}

/// The book.
#[derive(Debug)]
pub(super) struct Desk {
    /// Wanted, by number, and with nobody asked for them.
    queue: BTreeSet<(u64, B256)>,
    wanted: HashMap<B256, Arc<Named>>,
    out: HashMap<u64, Out>,
    /// How many requests are under way for each.
    asked: HashMap<B256, usize>,
    ready: HashMap<B256, Landed>,
    ready_bytes: usize,
    /// Bytes of a body, of late.
    usual: usize,
    standings: HashMap<PeerId, Standing>,
    next_id: u64,
    /// Up to which number bodies are wanted.
    ahead: u64,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            wanted: HashMap::default(),
            out: HashMap::default(),
            asked: HashMap::default(),
            ready: HashMap::default(),
            ready_bytes: 0,
            usual: FIRST_SIZE,
            standings: HashMap::default(),
            next_id: 0,
            ahead: 0,
        }
    }
}

impl Desk {
    /// Wants the body of a block that somebody waits for.
    pub(super) fn need(&mut self, named: &Arc<Named>) {
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
    pub(super) fn want_ahead(&mut self, named: &Arc<Named>) -> bool {
        if self.ready.len() + self.wanted.len() >= MOST_HELD {
            return false;
        }
        self.want(named);
        self.ahead = named.header.number;
        true
    }

    /// False if it was wanted before, or is here.
    fn want(&mut self, named: &Arc<Named>) -> bool {
        if self.ready.contains_key(&named.hash) || self.wanted.contains_key(&named.hash) {
            return false;
        }
        if let Some(body) = empty_body(&named.header) {
            self.put(Landed { named: named.clone(), body, size: 0 });
            return true;
        }
        self.queue.insert((named.header.number, named.hash));
        self.wanted.insert(named.hash, named.clone());
        true
    }

    /// The body of this block, if it has come. It is here no longer.
    pub(super) fn take(&mut self, hash: &B256) -> Option<Landed> {
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

    /// Requests to be sent now to these peers, who are connected and have bodies from a number on.
    pub(super) fn assign(
        &mut self,
        peers: &[(PeerId, u64)],
        limits: Limits,
        now: Instant,
    ) -> Vec<Flight> {
        self.standings
            .retain(|id, standing| standing.out > 0 || peers.iter().any(|(peer, _)| peer == id));
        let mut free = Vec::new();
        for (id, earliest) in peers {
            let standing = self.standings.entry(*id).or_default();
            if standing.is_free(now) {
                free.push((*id, *earliest, standing.out, standing.rate));
            }
        }
        // Those who have nothing to do first, and of them the fastest.
        free.sort_by(|a, b| a.2.cmp(&b.2).then(b.3.total_cmp(&a.3)));
        let mut flights = Vec::new();
        // A request each, and only then a second one: one of them may be slow.
        for _ in 0..PIPELINED {
            for (peer, earliest, ..) in &free {
                if self.standings.get(peer).is_some_and(|standing| standing.is_free(now)) {
                    flights.extend(self.next_for(*peer, *earliest, limits, now));
                }
            }
        }
        flights
    }

    fn next_for(
        &mut self,
        peer: PeerId,
        earliest: u64,
        limits: Limits,
        now: Instant,
    ) -> Option<Flight> {
        let mut batch = self.standings.get(&peer)?.batch;
        if self.is_full(limits.most_bytes) {
            // What somebody waits for comes all the same: it makes room.
            let is_needed = self.queue.first().is_some_and(|(lowest, _)| *lowest <= limits.needed);
            batch = usize::from(is_needed);
        }
        let first: Vec<_> =
            self.queue.range((earliest, B256::ZERO)..).take(batch).copied().collect();
        let wants: Vec<_> = if first.is_empty() {
            self.double(peer, limits.patience, now)?
        } else {
            for key in &first {
                self.queue.remove(key);
            }
            first.iter().filter_map(|(_, hash)| self.wanted.get(hash).cloned()).collect()
        };
        if wants.is_empty() {
            return None;
        }
        for named in &wants {
            *self.asked.entry(named.hash).or_default() += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        let out = Out { peer, wants: wants.clone(), since: now, is_doubled: false };
        self.out.insert(id, out);
        self.standings.entry(peer).or_default().out += 1;
        Some(Flight { id, peer, wants })
    }

    /// What another peer was asked for too long ago: of all of that the lowest.
    fn double(
        &mut self,
        peer: PeerId,
        patience: Duration,
        now: Instant,
    ) -> Option<Vec<Arc<Named>>> {
        let wanted = &self.wanted;
        let lowest = |out: &Out| {
            let missing = out.wants.iter().filter(|named| wanted.contains_key(&named.hash));
            missing.map(|named| named.header.number).min()
        };
        let late = self.out.iter_mut().filter(|(_, out)| {
            !out.is_doubled && out.peer != peer && now.duration_since(out.since) >= patience
        });
        let (_, out) = late
            .filter_map(|(_, out)| Some((lowest(out)?, out)))
            .min_by_key(|(lowest, _)| *lowest)?;
        out.is_doubled = true;
        let missing = out.wants.iter().filter(|named| wanted.contains_key(&named.hash));
        let missing = missing.cloned().collect();
        let slow = out.peer;
        if let Some(standing) = self.standings.get_mut(&slow) {
            standing.rest(now);
        }
        Some(missing)
    }

    /// Takes what a request has come to. Returns how many bodies were of use.
    pub(super) fn land(&mut self, id: u64, outcome: Outcome, now: Instant) -> usize {
        let Some(Out { peer, wants, since, .. }) = self.out.remove(&id) else { return 0 };
        let asked = wants.len();
        let took = now.duration_since(since);
        let (bodies, is_busy) = match outcome {
            Outcome::Bodies(bodies) | Outcome::Wrong(bodies) => (bodies, false),
            Outcome::Failed => (Vec::new(), false),
            Outcome::Busy => (Vec::new(), true),
        };
        if let Some(standing) = self.standings.get_mut(&peer) {
            standing.out = standing.out.saturating_sub(1);
            if is_busy {
                standing.rests_until = now.checked_add(FIRST_REST);
            } else if bodies.is_empty() {
                standing.rest(now);
            } else {
                (standing.rest, standing.rests_until) = (FIRST_REST, None);
                let rate = bodies.len() as f64 / took.as_secs_f64().max(1e-3);
                standing.rate =
                    if standing.rate == 0.0 { rate } else { (standing.rate + rate) / 2.0 };
                if bodies.len() < asked {
                    standing.batch = bodies.len();
                } else if took < FAST && asked >= standing.batch {
                    standing.batch = (standing.batch * 2).min(MOST_BATCH);
                }
            }
        }
        let mut used = 0;
        for landed in bodies {
            if self.wanted.remove(&landed.named.hash).is_some() {
                self.queue.remove(&(landed.named.header.number, landed.named.hash));
                self.usual = (self.usual * 7 + landed.size) / 8;
                self.put(landed);
                used += 1;
            }
        }
        for named in wants {
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
        used
    }

    fn put(&mut self, landed: Landed) {
        self.ready_bytes += landed.size;
        self.ready.insert(landed.named.hash, landed);
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether this peer has sent what no honest one sends.
    pub(super) fn is_banned(&self, peer: &PeerId) -> bool {
        self.standings.get(peer).is_some_and(|standing| standing.is_banned)
    }

    /// Never asks this peer again, as long as it is connected. False if that was so before.
    pub(super) fn ban(&mut self, peer: PeerId) -> bool {
        !std::mem::replace(&mut self.standings.entry(peer).or_default().is_banned, true)
    }
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
pub(super) fn check(wants: &[Arc<Named>], bodies: Vec<BlockBody>) -> Outcome {
    let mut landed = Vec::with_capacity(bodies.len().min(wants.len()));
    let mut left = wants.iter();
    for body in bodies {
        let Some(named) = left.find(|named| belongs(&named.header, &body)) else {
            return Outcome::Wrong(landed);
        };
        let size = body.length();
        landed.push(Landed { named: named.clone(), body, size });
    }
    Outcome::Bodies(landed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { patience: Duration::from_secs(2), most_bytes: 64 << 20, needed: 0 };

    fn id(name: u8) -> PeerId {
        PeerId::repeat_byte(name)
    }

    fn named(number: u64) -> Arc<Named> {
        // Not empty, so that somebody is asked for it.
        let header = Header { number, transactions_root: B256::ZERO, ..Header::default() };
        Arc::new(Named { hash: header.hash_slow(), header })
    }

    fn landed(wants: &[Arc<Named>], size: usize) -> Outcome {
        let one =
            |named: &Arc<Named>| Landed { named: named.clone(), body: BlockBody::default(), size };
        Outcome::Bodies(wants.iter().map(one).collect())
    }

    fn numbers(flight: &Flight) -> Vec<u64> {
        flight.wants.iter().map(|named| named.header.number).collect()
    }

    fn wanting(count: u64) -> Desk {
        let mut desk = Desk::default();
        for number in 1..=count {
            assert!(desk.want_ahead(&named(number)));
        }
        desk
    }

    #[test]
    fn the_lowest_are_asked_for_first_and_each_of_one_peer() {
        let now = Instant::now();
        let mut desk = wanting(100);
        let flights = desk.assign(&[(id(1), 0), (id(2), 0)], LIMITS, now);
        let got: Vec<_> = flights.iter().flat_map(numbers).collect();
        assert_eq!(got, (1..=100).collect::<Vec<_>>());
        assert!(flights.iter().all(|flight| flight.wants.len() <= FIRST_BATCH));
        assert_eq!(flights.iter().filter(|flight| flight.peer == id(1)).count(), 2);
        assert!(desk.assign(&[(id(3), 0)], LIMITS, now).is_empty(), "nothing is left");
        // Fast and whole: more at once next time.
        let used = desk.land(flights[0].id, landed(&flights[0].wants, 10), now);
        assert_eq!(used, FIRST_BATCH);
        let mut desk = wanting(4_096);
        let mut most = 0;
        for _ in 0..8 {
            for flight in desk.assign(&[(id(1), 0)], LIMITS, now) {
                most = most.max(flight.wants.len());
                desk.land(flight.id, landed(&flight.wants, 10), now);
            }
        }
        assert_eq!(most, MOST_BATCH);
    }

    #[test]
    fn what_is_late_is_asked_of_another_and_counts_once() {
        let start = Instant::now();
        let mut desk = wanting(20);
        let first = desk.assign(&[(id(1), 0)], LIMITS, start).remove(0);
        let peers = [(id(1), 0), (id(2), 0)];
        assert!(desk.assign(&peers, LIMITS, start + Duration::from_secs(1)).is_empty());
        let late = start + Duration::from_secs(2);
        let second = desk.assign(&peers, LIMITS, late);
        assert_eq!(second.len(), 1);
        assert_eq!((second[0].peer, numbers(&second[0])), (id(2), numbers(&first)));
        assert!(desk.assign(&peers, LIMITS, late).is_empty(), "asked twice is enough");
        assert_eq!(desk.land(second[0].id, landed(&second[0].wants, 10), late), 20);
        assert_eq!(desk.land(first.id, landed(&first.wants, 10), late), 0);
        assert_eq!(desk.ready_bytes, 200);
        assert!(desk.is_idle() && desk.asked.is_empty() && desk.queue.is_empty());
    }

    #[test]
    fn what_was_left_out_is_asked_for_again() {
        let now = Instant::now();
        let mut desk = wanting(20);
        let flight = desk.assign(&[(id(1), 0)], LIMITS, now).remove(0);
        assert_eq!(desk.land(flight.id, landed(&flight.wants[..7], 10), now), 7);
        let flight = desk.assign(&[(id(1), 0)], LIMITS, now).remove(0);
        assert_eq!(numbers(&flight), (8..=14).collect::<Vec<_>>(), "as many as came");
        desk.land(flight.id, Outcome::Failed, now);
        // It rests, and others do not.
        assert!(desk.assign(&[(id(1), 0)], LIMITS, now).is_empty());
        let flight = desk.assign(&[(id(1), 0), (id(2), 0)], LIMITS, now).remove(0);
        assert_eq!((flight.peer, numbers(&flight)), (id(2), (8..=14).collect()));
        // Whoever has sent a wrong one is never asked again.
        desk.land(flight.id, Outcome::Wrong(Vec::new()), now);
        assert!(desk.ban(id(2)) && !desk.ban(id(2)));
        let later = now + Duration::from_secs(3600);
        assert!(desk.assign(&[(id(2), 0)], LIMITS, later).is_empty());
        assert!(desk.is_banned(&id(2)));
    }

    #[test]
    fn bodies_that_are_not_taken_keep_others_from_coming_but_for_the_needed_one() {
        let now = Instant::now();
        let limits = Limits { most_bytes: 1 << 20, needed: 1, ..LIMITS };
        let mut desk = wanting(4_000);
        let peers = [(id(1), 0)];
        let mut flights = desk.assign(&peers, limits, now);
        let mut came = Vec::new();
        while let Some(flight) = flights.pop() {
            came.extend(flight.wants.clone());
            desk.land(flight.id, landed(&flight.wants, 100 << 10), now);
            flights.extend(desk.assign(&peers, limits, now));
        }
        let most = 2 * FIRST_BATCH + MOST_BATCH;
        assert!(came.len() <= most, "{} came", came.len());
        // One is taken, and it is not enough; the one that is needed comes nevertheless.
        desk.take(&came[0].hash).unwrap();
        assert!(desk.assign(&peers, limits, now).is_empty());
        let next = came.iter().map(|named| named.header.number).max().unwrap() + 1;
        let flights = desk.assign(&peers, Limits { needed: next, ..limits }, now);
        assert_eq!(flights.iter().flat_map(numbers).collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn pruned_peers_are_asked_for_what_they_have() {
        let mut desk = wanting(20);
        let flights = desk.assign(&[(id(1), 15)], LIMITS, Instant::now());
        assert_eq!(
            flights.iter().flat_map(numbers).collect::<Vec<_>>(),
            (15..=20).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_was_wanted_before_a_new_way_is_forgotten() {
        let now = Instant::now();
        let mut desk = wanting(20);
        let flight = desk.assign(&[(id(1), 0)], LIMITS, now).remove(0);
        desk.clear();
        assert_eq!(desk.land(flight.id, landed(&flight.wants, 10), now), 0);
        assert!(desk.is_idle() && desk.ready.is_empty() && desk.asked.is_empty());
        assert_eq!(desk.next_ahead(5), 6);
    }

    #[test]
    fn bodies_are_held_against_their_headers() {
        let of = |body: &BlockBody, number| {
            let header = Header {
                number,
                transactions_root: calculate_transaction_root(&body.transactions),
                ommers_hash: calculate_ommers_root(&body.ommers),
                withdrawals_root: body
                    .withdrawals
                    .as_ref()
                    .map(|all| calculate_withdrawals_root(all)),
                ..Header::default()
            };
            Arc::new(Named { hash: header.hash_slow(), header })
        };
        let body = |number| BlockBody {
            ommers: vec![Header { number, ..Header::default() }],
            withdrawals: (number > 2).then(Default::default),
            ..BlockBody::default()
        };
        let bodies: Vec<BlockBody> = (1..=4).map(body).collect();
        let wants: Vec<_> = bodies.iter().zip(1..).map(|(body, number)| of(body, number)).collect();
        let count = |bodies: &[&BlockBody]| match check(
            &wants,
            bodies.iter().map(|body| (*body).clone()).collect(),
        ) {
            Outcome::Bodies(all) => (all.len(), false),
            Outcome::Wrong(all) => (all.len(), true),
            other => panic!("{other:?}"),
        };
        let [one, two, three, four] = [0, 1, 2, 3].map(|at| &bodies[at]);
        assert_eq!(count(&[one, two, three, four]), (4, false));
        assert_eq!(count(&[one, four]), (2, false), "some may be left out");
        assert_eq!(count(&[]), (0, false));
        assert_eq!(count(&[two, one]), (1, true), "in order");
        assert_eq!(count(&[one, one]), (1, true));
        let bare = BlockBody { withdrawals: None, ..three.clone() };
        assert_eq!(count(&[&bare]), (0, true));
        let more = BlockBody { withdrawals: Some(Default::default()), ..one.clone() };
        assert_eq!(count(&[&more]), (0, true));
        // A header that says that there is nothing needs nobody.
        let mut desk = Desk::default();
        let empty =
            of(&BlockBody { withdrawals: Some(Default::default()), ..BlockBody::default() }, 9);
        desk.need(&empty);
        assert_eq!(desk.take(&empty.hash).unwrap().body.withdrawals, Some(Default::default()));
    }
}
