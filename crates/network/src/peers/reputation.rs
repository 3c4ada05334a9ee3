//! What peers have done wrong.

use crate::{eth::PeerId, handle::Offence, rlpx::DisconnectReason};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Points at which a peer is disconnected and banned.
const LIMIT: f64 = 100.0;

/// Points that are forgiven in a second.
const FORGIVEN: f64 = 0.1;

/// For how long who has broken the protocol, or sent wrong data, is not talked to.
const BAN: Duration = Duration::from_secs(3600);

/// For how long who has been of no use is not.
const SHORT_BAN: Duration = Duration::from_secs(300);

/// Nodes that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// Offences of nodes, by their ids.
#[derive(Debug, Default)]
pub(super) struct Reputation(Mutex<HashMap<PeerId, Record>>);

#[derive(Clone, Copy, Debug)]
struct Record {
    points: f64,
    seen: Instant,
    banned_until: Option<Instant>,
}

/// What follows from an offence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Why it is disconnected, if it is.
    pub(super) disconnect: Option<DisconnectReason>,
    /// Whether it is not talked to for a while.
    pub(super) banned: bool,
}

impl Reputation {
    /// Writes down an offence. Trusted peers are disconnected, and not banned.
    pub(super) fn report(&self, id: PeerId, offence: Offence, trusted: bool) -> Verdict {
        self.report_at(id, offence, trusted, Instant::now())
    }

    fn report_at(&self, id: PeerId, offence: Offence, trusted: bool, now: Instant) -> Verdict {
        let (points, ban, reason) = match offence {
            Offence::Timeout => (30.0, SHORT_BAN, DisconnectReason::Timeout),
            Offence::Empty => (10.0, SHORT_BAN, DisconnectReason::UselessPeer),
            Offence::SidecarForm => (10.0, SHORT_BAN, DisconnectReason::UselessPeer),
            Offence::ShortAnswer => (30.0, SHORT_BAN, DisconnectReason::UselessPeer),
            Offence::BadAnnouncement => (LIMIT, SHORT_BAN, DisconnectReason::SubprotocolError),
            Offence::BadTransaction => (LIMIT, SHORT_BAN, DisconnectReason::SubprotocolError),
            Offence::WrongData => (LIMIT, BAN, DisconnectReason::SubprotocolError),
            Offence::Breach(reason) => (LIMIT, BAN, reason),
        };
        let mut records = self.0.lock();
        if !records.contains_key(&id) && records.len() >= MAX_REMEMBERED {
            forget_one(&mut records, now);
        }
        let record =
            records.entry(id).or_insert(Record { points: 0.0, seen: now, banned_until: None });
        let forgiven = (now - record.seen).as_secs_f64() * FORGIVEN;
        record.points = (record.points - forgiven).max(0.0) + points;
        record.seen = now;
        if record.points < LIMIT {
            return Verdict { disconnect: None, banned: false };
        }
        // A trusted one may come again at once, and with nothing on its account.
        record.points = 0.0;
        if !trusted {
            record.banned_until = Some(now + ban);
        }
        Verdict { disconnect: Some(reason), banned: !trusted }
    }

    /// Whether a node is not talked to.
    pub(super) fn is_banned(&self, id: &PeerId) -> bool {
        let records = self.0.lock();
        let until = records.get(id).and_then(|record| record.banned_until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// Forgives a node all.
    pub(super) fn forgive(&self, id: &PeerId) {
        self.0.lock().remove(id);
    }
}

/// Makes room: of those who are not banned the one that was longest quiet goes, or of all.
fn forget_one(records: &mut HashMap<PeerId, Record>, now: Instant) {
    let banned = |record: &Record| record.banned_until.is_some_and(|until| until > now);
    let oldest = records.iter().min_by_key(|(_, record)| (banned(record), record.seen));
    if let Some(id) = oldest.map(|(id, _)| *id) {
        records.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId::ZERO;

    #[test]
    fn slowness_is_forgiven_with_time_and_lies_are_not() {
        let reputation = Reputation::default();
        let start = Instant::now();
        let slow = |seconds| {
            let now = start + Duration::from_secs(seconds);
            reputation.report_at(PEER, Offence::Timeout, false, now).disconnect
        };
        assert_eq!([slow(0), slow(1), slow(2), slow(900)], [None; 4]);
        assert_eq!([slow(901), slow(902)], [None; 2]);
        assert_eq!(slow(903), Some(DisconnectReason::Timeout));
        let other = PeerId::repeat_byte(1);
        let verdict = reputation.report(other, Offence::WrongData, false);
        assert!(verdict.banned && reputation.is_banned(&other));
        reputation.forgive(&other);
        assert!(!reputation.is_banned(&other));
    }

    #[test]
    fn trusted_peers_are_never_banned() {
        let reputation = Reputation::default();
        let verdict = reputation.report(PEER, Offence::WrongData, true);
        assert_eq!(verdict.disconnect, Some(DisconnectReason::SubprotocolError));
        assert!(!verdict.banned && !reputation.is_banned(&PEER));
    }

    #[test]
    fn memory_is_bounded_and_bans_are_kept_longest() {
        let reputation = Reputation::default();
        let banned = PeerId::repeat_byte(0xff);
        reputation.report(banned, Offence::WrongData, false);
        for number in 0..5000_u64 {
            let mut id = PeerId::ZERO;
            id[..8].copy_from_slice(&number.to_be_bytes());
            reputation.report(id, Offence::Empty, false);
        }
        assert_eq!(reputation.0.lock().len(), MAX_REMEMBERED);
        assert!(reputation.is_banned(&banned));
    }
}
