use super::*;
use crate::{
    simulation::{PeerSimulation, SimulatedPeer, have, id},
    standing::FIRST_BATCH,
};
use std::ops::{Deref, DerefMut};

const LIMITS: BodyLimits =
    BodyLimits { patience: Duration::from_secs(2), most_bytes: 64 << 20, needed: 0 };

fn named(number: u64) -> Arc<SealedHeader> {
    // Not empty, so that a peer is asked for it.
    let header = Header { number, transactions_root: B256::ZERO, ..Header::default() };
    Arc::new(SealedHeader { hash: header.hash_slow(), header })
}

fn landed(wants: &[Arc<SealedHeader>], size: usize) -> BodyOutcome {
    let one = |named: &Arc<SealedHeader>| MatchedBody {
        named: named.clone(),
        body: BlockBody::default(),
        size,
    };
    BodyOutcome::Bodies(wants.iter().map(one).collect())
}

fn numbers(flight: &BodyFlight) -> Vec<u64> {
    flight.wants.iter().map(|named| named.header.number).collect()
}

/// A scheduler with its own peer standings.
#[derive(Default)]
struct BodyHarness {
    bodies: BodyScheduler,
    standings: StandingTable,
}

impl BodyHarness {
    /// Wants bodies 1 to `count`.
    fn wanting(count: u64) -> Self {
        let mut book = Self::default();
        for number in 1..=count {
            assert!(book.want_ahead(&named(number)));
        }
        book
    }

    fn assign(
        &mut self,
        peers: &[(PeerId, BlockRange)],
        limits: BodyLimits,
        now: Instant,
    ) -> Vec<BodyFlight> {
        self.bodies.assign(&mut self.standings, peers, limits, now)
    }

    fn land(&mut self, id: u64, outcome: BodyOutcome, now: Instant) -> usize {
        self.bodies.land(id, outcome, &mut self.standings, now).0
    }
}

impl Deref for BodyHarness {
    type Target = BodyScheduler;

    fn deref(&self) -> &BodyScheduler {
        &self.bodies
    }
}

impl DerefMut for BodyHarness {
    fn deref_mut(&mut self) -> &mut BodyScheduler {
        &mut self.bodies
    }
}

#[test]
fn the_lowest_are_asked_for_first_and_each_of_one_peer() {
    let now = Instant::now();
    let mut book = BodyHarness::wanting(100);
    let flights = book.assign(&have(&[(1, 0), (2, 0)]), LIMITS, now);
    let got: Vec<_> = flights.iter().flat_map(numbers).collect();
    assert_eq!(got, (1..=100).collect::<Vec<_>>());
    assert!(flights.iter().all(|flight| flight.wants.len() <= FIRST_BATCH));
    assert_eq!(flights.iter().filter(|flight| flight.peer == id(1)).count(), 2);
    assert!(book.assign(&have(&[(3, 0)]), LIMITS, now).is_empty(), "nothing is left");
    // The answer was fast and complete, so the next request is larger.
    let used = book.land(flights[0].id, landed(&flights[0].wants, 10), now);
    assert_eq!(used, FIRST_BATCH);
    let mut book = BodyHarness::wanting(4_096);
    let mut most = 0;
    for _ in 0..8 {
        for flight in book.assign(&have(&[(1, 0)]), LIMITS, now) {
            most = most.max(flight.wants.len());
            book.land(flight.id, landed(&flight.wants, 10), now);
        }
    }
    assert_eq!(most, MOST_BATCH);
}

#[test]
fn what_is_late_is_asked_of_another_and_counts_once() {
    let start = Instant::now();
    let mut book = BodyHarness::wanting(20);
    let first = book.assign(&have(&[(1, 0)]), LIMITS, start).remove(0);
    let peers = have(&[(1, 0), (2, 0)]);
    assert!(book.assign(&peers, LIMITS, start + Duration::from_millis(400)).is_empty());
    let late = start + Duration::from_millis(500);
    let second = book.assign(&peers, LIMITS, late);
    assert_eq!(second.len(), 1);
    assert_eq!((second[0].peer, numbers(&second[0])), (id(2), numbers(&first)));
    assert!(book.assign(&peers, LIMITS, late).is_empty(), "asked twice is enough");
    assert_eq!(book.land(second[0].id, landed(&second[0].wants, 10), late), 20);
    assert_eq!(book.land(first.id, landed(&first.wants, 10), late), 0);
    assert_eq!(book.ready_bytes, 200);
    assert!(book.is_idle() && book.asked.is_empty() && book.queue.is_empty());
}

#[test]
fn what_was_left_out_is_asked_for_again() {
    let now = Instant::now();
    let mut book = BodyHarness::wanting(20);
    let flight = book.assign(&have(&[(1, 0)]), LIMITS, now).remove(0);
    assert_eq!(book.land(flight.id, landed(&flight.wants[..7], 10), now), 7);
    let flight = book.assign(&have(&[(1, 0)]), LIMITS, now).remove(0);
    assert_eq!(numbers(&flight), (8..=14).collect::<Vec<_>>(), "as many as came");
    book.land(flight.id, BodyOutcome::Failed, now);
    // The peer is left alone for a while, and other peers are not.
    assert!(book.assign(&have(&[(1, 0)]), LIMITS, now).is_empty());
    let flight = book.assign(&have(&[(1, 0), (2, 0)]), LIMITS, now).remove(0);
    assert_eq!((flight.peer, numbers(&flight)), (id(2), (8..=14).collect()));
    // A peer that has sent a wrong body is never asked again.
    book.land(flight.id, BodyOutcome::Wrong(Vec::new()), now);
    assert!(book.standings.ban(id(2)) && !book.standings.ban(id(2)));
    let later = now + Duration::from_secs(3600);
    assert!(book.assign(&have(&[(2, 0)]), LIMITS, later).is_empty());
    assert!(book.standings.is_banned(&id(2)));
}

#[test]
fn bodies_that_are_not_taken_keep_others_from_coming_but_for_the_needed_one() {
    let now = Instant::now();
    let limits = BodyLimits { most_bytes: 1 << 20, needed: 1, ..LIMITS };
    let mut book = BodyHarness::wanting(4_000);
    let peers = have(&[(1, 0)]);
    let mut flights = book.assign(&peers, limits, now);
    let mut came = Vec::new();
    while let Some(flight) = flights.pop() {
        came.extend(flight.wants.clone());
        book.land(flight.id, landed(&flight.wants, 100 << 10), now);
        flights.extend(book.assign(&peers, limits, now));
    }
    let most = 2 * FIRST_BATCH + MOST_BATCH;
    assert!(came.len() <= most, "{} came", came.len());
    // One body is taken, and there is still no room; the needed body comes even so.
    book.take(&came[0].hash).unwrap();
    assert!(book.assign(&peers, limits, now).is_empty());
    let next = came.iter().map(|named| named.header.number).max().unwrap() + 1;
    let flights = book.assign(&peers, BodyLimits { needed: next, ..limits }, now);
    assert_eq!(flights.iter().flat_map(numbers).collect::<Vec<_>>(), [next]);
}

#[test]
fn pruned_peers_are_asked_for_what_they_have() {
    let mut book = BodyHarness::wanting(20);
    let flights = book.assign(&have(&[(1, 15)]), LIMITS, Instant::now());
    assert_eq!(flights.iter().flat_map(numbers).collect::<Vec<_>>(), (15..=20).collect::<Vec<_>>());
}

#[test]
fn what_was_wanted_before_a_new_skeleton_is_forgotten() {
    let now = Instant::now();
    let mut book = BodyHarness::wanting(20);
    let flight = book.assign(&have(&[(1, 0)]), LIMITS, now).remove(0);
    book.clear();
    assert_eq!(book.land(flight.id, landed(&flight.wants, 10), now), 0);
    assert!(book.is_idle() && book.ready.is_empty() && book.asked.is_empty());
    assert_eq!(book.next_ahead(5), 6);
}

#[test]
fn bodies_are_held_against_their_headers() {
    let of = |body: &BlockBody, number| {
        let header = Header {
            number,
            transactions_root: calculate_transaction_root(&body.transactions),
            ommers_hash: calculate_ommers_root(&body.ommers),
            withdrawals_root: body.withdrawals.as_ref().map(|all| calculate_withdrawals_root(all)),
            ..Header::default()
        };
        Arc::new(SealedHeader { hash: header.hash_slow(), header })
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
        BodyOutcome::Bodies(all) => (all.len(), false),
        BodyOutcome::Wrong(all) => (all.len(), true),
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
    // A header of an empty block needs no peer.
    let mut book = BodyHarness::default();
    let empty = of(&BlockBody { withdrawals: Some(Default::default()), ..BlockBody::default() }, 9);
    book.need(&empty);
    assert_eq!(book.take(&empty.hash).unwrap().body.withdrawals, Some(Default::default()));
}

/// The time that `peers` need to give `count` bodies, of which the lowest is always waited for.
fn time_of(peers: &[SimulatedPeer], count: u64) -> (Duration, Vec<(PeerId, PeerOffence)>) {
    let mut book = BodyHarness::default();
    let mut world = PeerSimulation::new(peers, count);
    let wanted: Vec<_> = (1..=count).map(named).collect();
    let (mut needed, mut ahead) = (1, 0);
    while needed <= count {
        while ahead < count as usize && book.want_ahead(&wanted[ahead]) {
            ahead += 1;
        }
        if book.take(&wanted[needed as usize - 1].hash).is_some() {
            needed += 1;
            continue;
        }
        let limits = BodyLimits { needed, ..LIMITS };
        for flight in book.assign(&world.connected(), limits, world.now) {
            world.send(flight.peer, flight.wants.len(), flight);
        }
        let Some((flight, items)) = world.next() else { continue };
        let outcome = match items {
            0 => BodyOutcome::Failed,
            items => landed(&flight.wants[..items], 1_000),
        };
        let now = world.now;
        let BodyHarness { bodies, standings } = &mut book;
        let (_, offence) = bodies.land(flight.id, outcome, standings, now);
        world.punish(offence.map(|offence| (flight.peer, offence)));
    }
    world.end()
}

/// Regression: a slow peer kept the lowest wanted body for the whole of its time, again and again.
#[test]
fn bodies_come_as_fast_beside_peers_that_drip_or_are_slow_or_silent() {
    const COUNT: u64 = 20_000;
    for honest in [SimulatedPeer::HONEST, SimulatedPeer::DISTANT] {
        let (alone, offences) = time_of(&[honest], COUNT);
        assert!(offences.is_empty(), "{offences:?}");
        for bad in [SimulatedPeer::DRIPPING, SimulatedPeer::SLOW, SimulatedPeer::SILENT] {
            let (beside, offences) = time_of(&[bad, bad, bad, honest], COUNT);
            assert!(beside <= alone * 3 / 2, "{bad:?}: {beside:?}, {alone:?} without");
            let is_blamed = |name| offences.contains(&(id(name), PeerOffence::ShortAnswer));
            assert!(!is_blamed(4), "{offences:?}");
            if honest == SimulatedPeer::DISTANT {
                // There was time enough to find them.
                let drips = bad == SimulatedPeer::DRIPPING;
                assert!((1..=3).all(|name| is_blamed(name) == drips), "{bad:?}: {offences:?}");
            }
        }
    }
}
