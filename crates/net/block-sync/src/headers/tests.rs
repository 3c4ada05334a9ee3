use super::*;
use crate::simulation::{PeerSimulation, SimulatedPeer, id};

const PATIENCE: Duration = Duration::from_secs(2);

/// Headers 0 to `count` of a branch, the lowest first.
fn chain(count: u64, branch: u64) -> Vec<Arc<SealedHeader>> {
    let mut parent_hash = B256::ZERO;
    let header = |number| {
        let header = Header { number, parent_hash, gas_limit: branch, ..Header::default() };
        parent_hash = header.hash_slow();
        Arc::new(SealedHeader { hash: parent_hash, header })
    };
    (0..=count).map(header).collect()
}

/// The time that `peers` need to give the headers below the head of `chain`, and their offences.
fn time_of(
    peers: &[SimulatedPeer],
    chain: &[Arc<SealedHeader>],
    other: &[Arc<SealedHeader>],
) -> (Duration, Vec<(PeerId, PeerOffence)>) {
    let head = &chain[chain.len() - 1];
    let (mut headers, mut standings) = (HeaderScheduler::default(), StandingTable::default());
    let mut world = PeerSimulation::new(peers, head.header.number);
    let (mut lowest, mut below) = (head.header.number, head.header.parent_hash);
    while lowest > 1 {
        let offences = headers.want_down((lowest - 1, below), 1, &mut standings, world.now);
        world.punish(offences);
        if let Some(found) = headers.take(&below) {
            for named in found {
                assert_eq!((named.hash, named.header.number), (below, lowest - 1));
                (lowest, below) = (named.header.number, named.header.parent_hash);
            }
            continue;
        }
        let connected = world.connected();
        for flight in headers.assign(&mut standings, &connected, PATIENCE, world.now) {
            world.send(flight.peer, flight.count as usize, flight);
        }
        let wanted: u64 = headers.pieces.iter().map(|piece| piece.count).sum();
        assert!(wanted <= (MOST_PIECES * SEGMENT) as u64);
        let Some((flight, items)) = world.next() else { continue };
        let (from, top) = match flight.start {
            BlockHashOrNumber::Number(number) if world.peer(flight.peer).is_on_branch => {
                (other, number as usize)
            }
            BlockHashOrNumber::Number(number) => (chain, number as usize),
            BlockHashOrNumber::Hash(hash) => {
                let top = chain.iter().position(|named| named.hash == hash);
                (chain, top.expect("no hash that a peer made up is asked for"))
            }
        };
        let found: Vec<_> = from[..=top].iter().rev().take(items).cloned().collect();
        let outcome = match items {
            0 => HeaderOutcome::Failed,
            _ => HeaderOutcome::Linked(found),
        };
        let offences = headers.land(flight.id, outcome, &mut standings, world.now);
        world.punish(offences);
    }
    assert!(headers.pieces.is_empty());
    world.end()
}

/// Regression: the peer that answered first was asked for all headers: 55 in 100 s, one every 1.8
/// s.
#[test]
fn headers_come_as_fast_beside_peers_that_drip_or_are_slow_or_silent() {
    let chain = chain(40_000, 0);
    for honest in [SimulatedPeer::HONEST, SimulatedPeer::DISTANT] {
        let (alone, offences) = time_of(&[honest], &chain, &[]);
        assert!(offences.is_empty(), "{offences:?}");
        for bad in [SimulatedPeer::DRIPPING, SimulatedPeer::SLOW, SimulatedPeer::SILENT] {
            let (beside, offences) = time_of(&[bad, bad, bad, honest], &chain, &[]);
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

#[test]
fn pieces_come_from_all_peers_at_once() {
    let chain = chain(40_000, 0);
    let (one, _) = time_of(&[SimulatedPeer::HONEST], &chain, &[]);
    let (four, offences) = time_of(&[SimulatedPeer::HONEST; 4], &chain, &[]);
    assert!(four * 2 < one, "{four:?}, of one {one:?}");
    assert!(offences.is_empty(), "{offences:?}");
    // The limits of other clients are no offence.
    let (modest, offences) = time_of(&[SimulatedPeer::MODEST; 4], &chain, &[]);
    assert!(modest < one * 2, "{modest:?}");
    assert!(offences.is_empty(), "{offences:?}");
}

/// A number says nothing about the branch: another branch is detected where pieces join.
#[test]
fn headers_of_another_branch_are_found_where_they_join() {
    let (chain, other) = (chain(40_000, 0), chain(40_000, 1));
    let (alone, _) = time_of(&[SimulatedPeer::HONEST], &chain, &other);
    let peers = [SimulatedPeer::ON_BRANCH, SimulatedPeer::ON_BRANCH, SimulatedPeer::HONEST];
    let (beside, offences) = time_of(&peers, &chain, &other);
    assert!(beside <= alone * 3 / 2, "{beside:?}, {alone:?} without");
    for name in [1, 2] {
        assert!(offences.contains(&(id(name), PeerOffence::Empty)), "{offences:?}");
    }
    assert!(offences.iter().all(|(peer, _)| *peer != id(3)), "{offences:?}");
    // These peers have the headers by hash even so.
    let (by_hash, _) = time_of(&[SimulatedPeer::ON_BRANCH; 2], &chain, &other);
    assert!(by_hash < alone * 3, "{by_hash:?}");
}

#[test]
fn what_all_peers_were_asked_for_in_vain_is_hopeless_once() {
    let now = Instant::now();
    let (mut headers, mut standings) = (HeaderScheduler::default(), StandingTable::default());
    let peers = [1, 2].map(|name| (id(name), BlockRange::default()));
    let span = HeaderSpan { top: None, hash: B256::repeat_byte(1), count: 64 };
    headers.want(span, true);
    assert!(!headers.is_hopeless(&span.hash, &peers));
    for _ in 0..2 {
        for later in [Duration::ZERO, PATIENCE] {
            for flight in headers.assign(&mut standings, &peers, PATIENCE, now + later) {
                assert!(!headers.is_hopeless(&span.hash, &peers));
                let offences = headers.land(flight.id, HeaderOutcome::Failed, &mut standings, now);
                assert!(offences.is_empty());
            }
        }
        assert!(headers.is_hopeless(&span.hash, &peers));
        assert!(!headers.is_hopeless(&span.hash, &peers), "they may be asked again");
        for (peer, _) in &peers {
            standings.of(*peer).record(ServiceKind::Headers).serve(1, PATIENCE, now);
        }
    }
    headers.forget(&span.hash);
    assert_eq!(headers.take(&span.hash), None);
}
