//! The standing of peers in block sync: how fast each one is, whether it may be asked now, and how
//! often it gave less than it has.
//!
//! A pure state machine, like the schedulers that use it: the caller passes the time.

use alloy_primitives::map::HashMap;
use retrie_p2p::eth::{BlockRange, PeerId};
use std::{
    cmp::Ordering,
    time::{Duration, Instant},
};

/// Maximum number of open requests of one kind to one peer.
pub(crate) const PIPELINED: usize = 2;
/// The first and the longest time that a useless peer is left alone.
const FIRST_REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// The weight of an old rate beside a new one halves with each such time.
const RATE_HALF_LIFE: Duration = Duration::from_secs(30);
/// Number of short answers in a row that are no offence: the peer may be changing its chain.
const SHORT_FORGIVEN: u32 = 2;
/// A second peer is asked for the same items after this share of the patience, and after this many
/// times the time that the second peer needs itself.
const SHARE_OF_PATIENCE: u32 = 8;
const TIMES_AS_LONG: f64 = 4.0;
/// The first and the longest time that a peer on another branch is asked by hash alone.
const FIRST_OFF_BRANCH: Duration = Duration::from_secs(60);
const LONGEST_OFF_BRANCH: Duration = Duration::from_secs(3600);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    Headers,
    Bodies,
}

/// How a peer serves requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceRecord {
    /// Number of open requests.
    out: usize,
    /// Items a second, and when it was measured last.
    rate: Option<(f64, Instant)>,
    rest: Duration,
    rests_until: Option<Instant>,
    /// Short answers since the last one that was not short.
    short_answers: u32,
}

impl Default for ServiceRecord {
    fn default() -> Self {
        Self { out: 0, rate: None, rest: FIRST_REST, rests_until: None, short_answers: 0 }
    }
}

impl ServiceRecord {
    pub(crate) const fn begin(&mut self) {
        self.out += 1;
    }

    pub(crate) const fn end(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    fn is_free(&self, now: Instant) -> bool {
        self.out < PIPELINED && self.rests_until.is_none_or(|until| until <= now)
    }

    /// Items a second, as a moving average; `None` before the first answer.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate.map(|(rate, _)| rate)
    }

    /// Records an answer of `items` items.
    pub(crate) fn serve(&mut self, items: usize, took: Duration, now: Instant) {
        (self.rest, self.rests_until) = (FIRST_REST, None);
        let measured = items as f64 / took.as_secs_f64().max(1e-3);
        let rate = self.rate.map_or(measured, |(old, when)| {
            let halves = now.duration_since(when).as_secs_f64() / RATE_HALF_LIFE.as_secs_f64();
            let weight = 0.5 * 0.5_f64.powf(halves);
            old * weight + measured * (1.0 - weight)
        });
        self.rate = Some((rate, now));
    }

    /// Records an answer without a useful item, or a late one.
    pub(crate) fn fail(&mut self, now: Instant) {
        self.rests_until = now.checked_add(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
        self.rate = self.rate.map(|(rate, when)| (rate / 2.0, when));
    }

    /// Leaves a busy peer alone for a moment. This is no fault.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.rests_until = now.checked_add(FIRST_REST);
    }

    /// Records whether an answer had less than the peer has. True if that was so too many times in
    /// a row.
    pub(crate) fn judge_length(&mut self, is_short: bool, now: Instant) -> bool {
        if !is_short {
            self.short_answers = 0;
            return false;
        }
        self.short_answers = self.short_answers.saturating_add(1);
        // The answer was useful, but the pauses grow as after useless ones.
        self.rest = FIRST_REST * (1 << self.short_answers.min(6));
        self.rests_until = now.checked_add(self.rest.min(LONGEST_REST));
        self.short_answers > SHORT_FORGIVEN
    }
}

/// Number of bodies in the first request to a peer.
pub(crate) const FIRST_BATCH: usize = 32;

/// The standing of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerStanding {
    headers: ServiceRecord,
    bodies: ServiceRecord,
    /// Number of bodies in its next request.
    pub(crate) batch: usize,
    is_banned: bool,
    /// Until when it is not asked for headers by number, and how long the next such time is.
    off_branch: Option<(Instant, Duration)>,
}

impl Default for PeerStanding {
    fn default() -> Self {
        Self {
            headers: ServiceRecord::default(),
            bodies: ServiceRecord::default(),
            batch: FIRST_BATCH,
            is_banned: false,
            off_branch: None,
        }
    }
}

impl PeerStanding {
    pub(crate) const fn record(&mut self, kind: ServiceKind) -> &mut ServiceRecord {
        match kind {
            ServiceKind::Headers => &mut self.headers,
            ServiceKind::Bodies => &mut self.bodies,
        }
    }

    /// Records that the peer is on another branch than the head.
    pub(crate) fn mark_off_branch(&mut self, now: Instant) {
        let time = self.off_branch.map_or(FIRST_OFF_BRANCH, |(_, next)| next);
        self.off_branch = Some((now + time, (time * 2).min(LONGEST_OFF_BRANCH)));
    }
}

/// A peer that may be asked now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreePeer {
    pub(crate) id: PeerId,
    pub(crate) range: BlockRange,
    out: usize,
    rate: Option<f64>,
}

impl FreePeer {
    /// Orders by rate, the faster first. A peer without a measured rate counts as a quarter of
    /// `best`.
    fn by_rate(&self, other: &Self, best: f64) -> Ordering {
        let guess = best / TIMES_AS_LONG;
        other.rate.unwrap_or(guess).total_cmp(&self.rate.unwrap_or(guess))
    }

    /// How long another peer's request for `items` items may be open before this peer is asked for
    /// the same.
    pub(crate) fn hedge_after(&self, items: usize, patience: Duration) -> Duration {
        let soonest = patience / SHARE_OF_PATIENCE;
        let Some(rate) = self.rate.filter(|rate| *rate > 0.0) else { return soonest * 2 };
        let seconds = TIMES_AS_LONG * items as f64 / rate;
        Duration::try_from_secs_f64(seconds).unwrap_or(patience).clamp(soonest, patience)
    }
}

fn best_rate(peers: &[FreePeer]) -> f64 {
    peers.iter().filter_map(|peer| peer.rate).fold(0.0, f64::max)
}

/// The standings of all peers.
#[derive(Debug, Default)]
pub(crate) struct StandingTable(HashMap<PeerId, PeerStanding>);

impl StandingTable {
    /// Removes peers that are disconnected and have no open request.
    pub(crate) fn retain(&mut self, connected: &[(PeerId, BlockRange)]) {
        self.0.retain(|id, standing| {
            standing.headers.out + standing.bodies.out > 0
                || connected.iter().any(|(peer, _)| peer == id)
        });
    }

    /// The peers that may be asked now: idle ones first, then by rate.
    pub(crate) fn free(
        &mut self,
        peers: &[(PeerId, BlockRange)],
        kind: ServiceKind,
        now: Instant,
    ) -> Vec<FreePeer> {
        let mut free = Vec::new();
        for (id, range) in peers {
            let standing = self.0.entry(*id).or_default();
            let is_banned = standing.is_banned;
            let record = standing.record(kind);
            if !is_banned && record.is_free(now) {
                let (out, rate) = (record.out, record.rate());
                free.push(FreePeer { id: *id, range: *range, out, rate });
            }
        }
        let best = best_rate(&free);
        free.sort_by(|a, b| a.out.cmp(&b.out).then_with(|| a.by_rate(b, best)));
        free
    }

    /// The peers that may be asked now, by rate alone.
    pub(crate) fn fastest(
        &mut self,
        peers: &[(PeerId, BlockRange)],
        kind: ServiceKind,
        now: Instant,
    ) -> Vec<FreePeer> {
        let mut free = self.free(peers, kind, now);
        let best = best_rate(&free);
        free.sort_by(|a, b| a.by_rate(b, best));
        free
    }

    /// Whether the peer was on another branch than the head recently.
    pub(crate) fn is_off_branch(&self, id: &PeerId, now: Instant) -> bool {
        let until = self.0.get(id).and_then(|standing| standing.off_branch);
        until.is_some_and(|(until, _)| now < until)
    }

    pub(crate) fn of(&mut self, id: PeerId) -> &mut PeerStanding {
        self.0.entry(id).or_default()
    }

    /// Whether this peer has sent what no honest peer sends.
    pub(crate) fn is_banned(&self, id: &PeerId) -> bool {
        self.0.get(id).is_some_and(|standing| standing.is_banned)
    }

    /// Bans this peer while it is connected. False if it was banned before.
    pub(crate) fn ban(&mut self, id: PeerId) -> bool {
        !std::mem::replace(&mut self.of(id).is_banned, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_follow_what_is_measured_and_old_ones_count_less() {
        let now = Instant::now();
        let mut record = ServiceRecord::default();
        assert_eq!(record.rate(), None);
        record.serve(1000, SECOND, now);
        record.serve(500, SECOND, now);
        assert_eq!(record.rate(), Some(750.0));
        // After two half-lives an eighth of the weight is left.
        record.serve(150, SECOND, now + 2 * RATE_HALF_LIFE);
        assert_eq!(record.rate(), Some(750.0 / 8.0 + 150.0 * 7.0 / 8.0));
        let before = record.rate().unwrap();
        record.fail(now);
        assert_eq!(record.rate(), Some(before / 2.0));
    }

    #[test]
    fn short_answers_in_a_row_become_an_offence_and_a_whole_one_ends_the_row() {
        let now = Instant::now();
        let mut record = ServiceRecord::default();
        for _ in 0..SHORT_FORGIVEN {
            assert!(!record.judge_length(true, now));
        }
        assert!(record.judge_length(true, now));
        assert!(!record.is_free(now), "and it is asked less often");
        assert!(!record.judge_length(false, now));
        assert!(!record.judge_length(true, now));
    }

    #[test]
    fn the_fastest_peer_is_asked_soonest_for_what_another_is_slow_with() {
        let (now, patience) = (Instant::now(), 2 * SECOND);
        let mut standings = StandingTable::default();
        let peers = [1, 2, 3].map(|name| (PeerId::repeat_byte(name), BlockRange::default()));
        standings.of(peers[1].0).record(ServiceKind::Headers).serve(100, SECOND, now);
        standings.of(peers[2].0).record(ServiceKind::Headers).serve(10_000, SECOND, now);
        let fastest = standings.fastest(&peers, ServiceKind::Headers, now);
        let after: Vec<_> = fastest.iter().map(|peer| peer.hedge_after(1000, patience)).collect();
        // A peer that was never asked may be better than a slow one.
        assert_eq!(fastest.iter().map(|peer| peer.id[0]).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!(after, [4 * SECOND / 10, SECOND / 2, patience]);
        // One peer has an open request: the idle peers come before it.
        standings.of(peers[2].0).record(ServiceKind::Headers).begin();
        assert_eq!(standings.free(&peers, ServiceKind::Headers, now)[2].id, peers[2].0);
        assert_eq!(standings.fastest(&peers, ServiceKind::Headers, now)[0].id, peers[2].0);
    }
}
