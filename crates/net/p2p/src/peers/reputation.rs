//! The reputation of peers: what offences cost.

use crate::{eth::PeerId, handle::PeerOffence, rlpx::DisconnectReason};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Points at which a peer is disconnected and banned.
const LIMIT: f64 = 100.0;

/// Points that are forgiven in a second.
const FORGIVEN: f64 = 0.1;

/// How long a node is banned that has broken the protocol or sent wrong data.
const BAN: Duration = Duration::from_secs(3600);

/// How long a node is banned that was only useless.
const SHORT_BAN: Duration = Duration::from_secs(300);

/// Maximum number of nodes that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// The offences of nodes, by node id.
#[derive(Debug, Default)]
pub(super) struct ReputationTable(Mutex<HashMap<PeerId, PeerReputation>>);

#[derive(Clone, Copy, Debug)]
struct PeerReputation {
    points: f64,
    seen: Instant,
    banned_until: Option<Instant>,
}

/// What follows from an offence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReputationVerdict {
    /// The reason to disconnect the peer, if it must be.
    pub(super) disconnect: Option<DisconnectReason>,
    /// Whether the node is banned for a while.
    pub(super) banned: bool,
}

impl ReputationTable {
    /// Records an offence. Trusted peers are disconnected but never banned.
    pub(super) fn report(
        &self,
        id: PeerId,
        offence: PeerOffence,
        trusted: bool,
    ) -> ReputationVerdict {
        self.report_at(id, offence, trusted, Instant::now())
    }

    fn report_at(
        &self,
        id: PeerId,
        offence: PeerOffence,
        trusted: bool,
        now: Instant,
    ) -> ReputationVerdict {
        let (points, ban, reason) = match offence {
            PeerOffence::Timeout => (30.0, SHORT_BAN, DisconnectReason::Timeout),
            PeerOffence::Empty => (10.0, SHORT_BAN, DisconnectReason::UselessPeer),
            PeerOffence::SidecarForm => (10.0, SHORT_BAN, DisconnectReason::UselessPeer),
            PeerOffence::ShortAnswer => (30.0, SHORT_BAN, DisconnectReason::UselessPeer),
            PeerOffence::BadAnnouncement => (LIMIT, SHORT_BAN, DisconnectReason::SubprotocolError),
            PeerOffence::BadTransaction => (LIMIT, SHORT_BAN, DisconnectReason::SubprotocolError),
            PeerOffence::WrongData => (LIMIT, BAN, DisconnectReason::SubprotocolError),
            PeerOffence::Breach(reason) => (LIMIT, BAN, reason),
        };
        let mut records = self.0.lock();
        if !records.contains_key(&id) && records.len() >= MAX_REMEMBERED {
            forget_one(&mut records, now);
        }
        let record = records.entry(id).or_insert(PeerReputation {
            points: 0.0,
            seen: now,
            banned_until: None,
        });
        let forgiven = (now - record.seen).as_secs_f64() * FORGIVEN;
        record.points = (record.points - forgiven).max(0.0) + points;
        record.seen = now;
        if record.points < LIMIT {
            return ReputationVerdict { disconnect: None, banned: false };
        }
        // A trusted peer may reconnect at once, and starts without points.
        record.points = 0.0;
        if !trusted {
            record.banned_until = Some(now + ban);
        }
        ReputationVerdict { disconnect: Some(reason), banned: !trusted }
    }

    /// Whether a node is banned now.
    pub(super) fn is_banned(&self, id: &PeerId) -> bool {
        let records = self.0.lock();
        let until = records.get(id).and_then(|record| record.banned_until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// Forgets all offences of a node.
    pub(super) fn forgive(&self, id: &PeerId) {
        self.0.lock().remove(id);
    }
}

/// Makes room: removes the record that was quiet longest, if possible one without a ban.
fn forget_one(records: &mut HashMap<PeerId, PeerReputation>, now: Instant) {
    let banned = |record: &PeerReputation| record.banned_until.is_some_and(|until| until > now);
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
        let reputation = ReputationTable::default();
        let start = Instant::now();
        let slow = |seconds| {
            let now = start + Duration::from_secs(seconds);
            reputation.report_at(PEER, PeerOffence::Timeout, false, now).disconnect
        };
        assert_eq!([slow(0), slow(1), slow(2), slow(900)], [None; 4]);
        assert_eq!([slow(901), slow(902)], [None; 2]);
        assert_eq!(slow(903), Some(DisconnectReason::Timeout));
        let other = PeerId::repeat_byte(1);
        let verdict = reputation.report(other, PeerOffence::WrongData, false);
        assert!(verdict.banned && reputation.is_banned(&other));
        reputation.forgive(&other);
        assert!(!reputation.is_banned(&other));
    }

    #[test]
    fn trusted_peers_are_never_banned() {
        let reputation = ReputationTable::default();
        let verdict = reputation.report(PEER, PeerOffence::WrongData, true);
        assert_eq!(verdict.disconnect, Some(DisconnectReason::SubprotocolError));
        assert!(!verdict.banned && !reputation.is_banned(&PEER));
    }

    #[test]
    fn memory_is_bounded_and_bans_are_kept_longest() {
        let reputation = ReputationTable::default();
        let banned = PeerId::repeat_byte(0xff);
        reputation.report(banned, PeerOffence::WrongData, false);
        for number in 0..5000_u64 {
            let mut id = PeerId::ZERO;
            id[..8].copy_from_slice(&number.to_be_bytes());
            reputation.report(id, PeerOffence::Empty, false);
        }
        assert_eq!(reputation.0.lock().len(), MAX_REMEMBERED);
        assert!(reputation.is_banned(&banned));
    }
}
