//! A simulation of peers that answer after a delay, with a simulated clock: a test shows how a
//! scheduler handles slow peers without waiting for them.

use retrie_p2p::{
    eth::{BlockRange, PeerId},
    handle::PeerOffence,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often the caller checks whether other peers must be asked.
const LOOK: Duration = Duration::from_millis(50);
/// The time after which a request without an answer fails.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Number of equal offences after which a peer is disconnected.
const SHORT_ANSWERS: usize = 4;

/// How a simulated peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedPeer {
    /// Time until an answer begins.
    delay: Duration,
    /// Time for each item of an answer.
    each: Duration,
    /// Maximum number of items in an answer.
    most: usize,
    /// Whether it answers requests by number with headers of another branch.
    pub(crate) is_on_branch: bool,
}

impl SimulatedPeer {
    /// 50 ms delay, 10,000 items a second.
    pub(crate) const HONEST: Self = Self {
        delay: Duration::from_millis(50),
        each: Duration::from_micros(100),
        most: 1024,
        is_on_branch: false,
    };
    /// 300 ms delay, 1,000 items a second.
    pub(crate) const DISTANT: Self =
        Self { delay: Duration::from_millis(300), each: Duration::from_millis(1), ..Self::HONEST };
    /// One item in each answer, just within the patience.
    pub(crate) const DRIPPING: Self =
        Self { delay: Duration::from_millis(1800), most: 1, ..Self::HONEST };
    /// Complete answers, just within the patience.
    pub(crate) const SLOW: Self = Self { delay: Duration::from_millis(1900), ..Self::HONEST };
    /// No answers.
    pub(crate) const SILENT: Self = Self { delay: TIMEOUT, most: 0, ..Self::HONEST };
    /// Headers of another branch.
    pub(crate) const ON_BRANCH: Self = Self { is_on_branch: true, ..Self::HONEST };
    /// Answers of 192 headers, the lowest limit of a known client.
    pub(crate) const MODEST: Self = Self { most: 192, ..Self::HONEST };
}

pub(crate) fn id(name: u8) -> PeerId {
    PeerId::repeat_byte(name)
}

/// Peers by name, and the lowest block that each has. Their heads are unknown.
pub(crate) fn have(peers: &[(u8, u64)]) -> Vec<(PeerId, BlockRange)> {
    let range = |earliest| BlockRange { earliest, ..BlockRange::default() };
    peers.iter().map(|(name, earliest)| (id(*name), range(*earliest))).collect()
}

/// Peers with the names 1, 2, and so on, and the requests `R` that are open.
pub(crate) struct PeerSimulation<R> {
    begun: Instant,
    pub(crate) now: Instant,
    peers: Vec<(PeerId, SimulatedPeer)>,
    head: u64,
    /// By the time of the answer.
    flights: BTreeMap<(Instant, u64), (R, usize)>,
    sent: u64,
    offences: Vec<(PeerId, PeerOffence)>,
}

impl<R> PeerSimulation<R> {
    /// All peers have blocks 0 to `head`.
    pub(crate) fn new(peers: &[SimulatedPeer], head: u64) -> Self {
        let begun = Instant::now();
        let peers = (1..).zip(peers).map(|(name, peer)| (id(name), *peer)).collect();
        let (flights, offences) = (BTreeMap::new(), Vec::new());
        Self { begun, now: begun, peers, head, flights, sent: 0, offences }
    }

    pub(crate) fn connected(&self) -> Vec<(PeerId, BlockRange)> {
        let range = BlockRange { latest: self.head, ..BlockRange::default() };
        self.peers.iter().map(|(peer, _)| (*peer, range)).collect()
    }

    pub(crate) fn peer(&self, id: PeerId) -> SimulatedPeer {
        let found = self.peers.iter().find(|(peer, _)| *peer == id);
        // A disconnected peer does not answer.
        found.map_or(SimulatedPeer::SILENT, |(_, peer)| *peer)
    }

    pub(crate) fn send(&mut self, to: PeerId, items: usize, request: R) {
        let peer = self.peer(to);
        let items = items.min(peer.most);
        let answered = self.now + peer.delay + peer.each * items as u32;
        self.flights.insert((answered, self.sent), (request, items));
        self.sent += 1;
    }

    /// The next answer, if it comes before the next check. Moves the clock to it, or to the check.
    pub(crate) fn next(&mut self) -> Option<(R, usize)> {
        let look = self.now + LOOK;
        let next = self.flights.first_key_value().map(|(key, _)| *key);
        let Some(key) = next.filter(|(time, _)| *time <= look) else {
            self.now = look;
            return None;
        };
        self.now = key.0;
        self.flights.remove(&key)
    }

    /// Records offences, and disconnects a peer that has too many.
    pub(crate) fn punish(&mut self, offences: impl IntoIterator<Item = (PeerId, PeerOffence)>) {
        for offence in offences {
            self.offences.push(offence);
            let of_peer = self.offences.iter().filter(|one| **one == offence).count();
            if of_peer >= SHORT_ANSWERS {
                self.peers.retain(|(peer, _)| *peer != offence.0);
            }
        }
    }

    /// The elapsed time, and the offences of the peers.
    pub(crate) fn end(self) -> (Duration, Vec<(PeerId, PeerOffence)>) {
        (self.now - self.begun, self.offences)
    }
}
