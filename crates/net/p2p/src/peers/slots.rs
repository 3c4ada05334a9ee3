//! Slots: how many peers there may be, and which nodes have a slot.

use crate::{
    eth::PeerId,
    rlpx::DisconnectReason,
    session::{PeerAdmission, PeerSlot},
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    manager::{is_private_ip, subnet},
    reputation::ReputationTable,
};

/// Limits on the number of peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotLimits {
    /// Inbound peers.
    pub(super) inbound: usize,
    /// Outbound peers.
    pub(super) outbound: usize,
    /// Inbound peers of one address or subnet.
    pub(super) inbound_of: SubnetLimits,
}

/// Maximum number of inbound peers from one network, so that one host, or an attacker who rents a
/// few, cannot take all slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetLimits {
    /// Inbound peers of one address.
    pub of_address: usize,
    /// Inbound peers of one /24 (IPv4) or /64 (IPv6).
    pub of_subnet: usize,
    /// Whether the limits hold for this machine and for private networks, too.
    pub counts_near: bool,
}

impl Default for SubnetLimits {
    fn default() -> Self {
        Self { of_address: 2, of_subnet: 4, counts_near: false }
    }
}

/// The slots for peers, and which node has which. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct SlotPool(Arc<SlotPoolInner>);

#[derive(Debug)]
struct SlotPoolInner {
    us: PeerId,
    limits: SlotLimits,
    taken: Mutex<SlotTable>,
    reputation: Arc<ReputationTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    places: HashMap<PeerId, OccupiedSlot>,
    trusted: HashSet<PeerId>,
    fixed: HashSet<PeerId>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct OccupiedSlot {
    ticket: u64,
    ip: IpAddr,
    inbound: bool,
    /// Whether slot limits hold for it.
    counted: bool,
    /// Whether hello and status messages are exchanged.
    settled: bool,
}

/// Number of slots that are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotCounts {
    pub(super) inbound: usize,
    pub(super) outbound: usize,
}

impl SlotPool {
    pub(super) fn new(us: PeerId, limits: SlotLimits, reputation: Arc<ReputationTable>) -> Self {
        Self(Arc::new(SlotPoolInner { us, limits, taken: Mutex::default(), reputation }))
    }

    /// Whether a node has a slot.
    pub(super) fn has(&self, id: &PeerId) -> bool {
        self.0.taken.lock().places.contains_key(id)
    }

    /// The slots that are taken and count for the limits.
    pub(super) fn counts(&self) -> SlotCounts {
        self.0.taken.lock().counts()
    }

    /// How many more nodes may be dialled.
    pub(super) fn free_outbound(&self) -> usize {
        self.0.limits.outbound.saturating_sub(self.counts().outbound)
    }

    /// Adds a node to the trusted ones, or removes it.
    pub(super) fn set_trusted(&self, id: PeerId, trusted: bool) {
        set(&mut self.0.taken.lock().trusted, id, trusted);
    }

    /// Adds a node to the static ones, or removes it.
    pub(super) fn set_static(&self, id: PeerId, is_static: bool) {
        set(&mut self.0.taken.lock().fixed, id, is_static);
    }

    /// Whether a node is trusted.
    pub(super) fn is_trusted(&self, id: &PeerId) -> bool {
        self.0.taken.lock().trusted.contains(id)
    }
}

fn set(all: &mut HashSet<PeerId>, id: PeerId, member: bool) {
    if member {
        all.insert(id);
    } else {
        all.remove(&id);
    }
}

impl SlotTable {
    fn counts(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for place in self.places.values().filter(|place| place.counted) {
            *(if place.inbound { &mut counts.inbound } else { &mut counts.outbound }) += 1;
        }
        counts
    }

    /// Whether the address or the subnet of `ip` has its maximum of inbound peers.
    fn is_network_full(&self, ip: IpAddr, share: &SubnetLimits) -> bool {
        let SubnetLimits { of_address, of_subnet, counts_near } = *share;
        if is_private_ip(ip) && !counts_near {
            return false;
        }
        let inbound = self.places.values().filter(|place| place.counted && place.inbound);
        let of_subnet_now = inbound
            .filter(|place| place.ip.is_ipv4() == ip.is_ipv4() && subnet(place.ip) == subnet(ip));
        let (mut same_address, mut same_subnet) = (0, 0);
        for place in of_subnet_now {
            same_subnet += 1;
            same_address += usize::from(place.ip == ip);
        }
        same_address >= of_address || same_subnet >= of_subnet
    }
}

impl PeerAdmission for SlotPool {
    fn admit(
        &self,
        id: PeerId,
        ip: IpAddr,
        inbound: bool,
    ) -> Result<Box<dyn PeerSlot>, DisconnectReason> {
        let ip = ip.to_canonical();
        let inner = &self.0;
        let mut taken = inner.taken.lock();
        let trusted = taken.trusted.contains(&id);
        let is_static = taken.fixed.contains(&id);
        if id == inner.us {
            return Err(DisconnectReason::ConnectedToSelf);
        }
        if !trusted && inner.reputation.is_banned(&id) {
            return Err(DisconnectReason::UselessPeer);
        }
        if let Some(other) = taken.places.get(&id) {
            // If two nodes dial each other, they keep the connection that the node with the greater
            // id made. Both nodes know which one that is.
            let ours_counts = inner.us > id;
            let replaces = !other.settled && other.inbound != inbound && inbound != ours_counts;
            if !replaces {
                return Err(DisconnectReason::AlreadyConnected);
            }
        }
        let counted = !trusted && (!is_static || inbound);
        let counts = taken.counts();
        let full = if inbound {
            counts.inbound >= inner.limits.inbound
                || !is_static && taken.is_network_full(ip, &inner.limits.inbound_of)
        } else {
            counts.outbound >= inner.limits.outbound
        };
        if counted && full {
            return Err(DisconnectReason::TooManyPeers);
        }
        let ticket = taken.next;
        taken.next += 1;
        taken.places.insert(id, OccupiedSlot { ticket, ip, inbound, counted, settled: false });
        drop(taken);
        Ok(Box::new(SlotTicket { slots: self.clone(), id, ticket, trusted, is_static }))
    }
}

/// A taken slot.
#[derive(Debug)]
struct SlotTicket {
    slots: SlotPool,
    id: PeerId,
    ticket: u64,
    trusted: bool,
    is_static: bool,
}

impl PeerSlot for SlotTicket {
    fn trusted(&self) -> bool {
        self.trusted
    }

    fn is_static(&self) -> bool {
        self.is_static
    }

    fn confirm(&self) -> bool {
        let mut taken = self.slots.0.taken.lock();
        match taken.places.get_mut(&self.id) {
            Some(place) if place.ticket == self.ticket => {
                place.settled = true;
                true
            }
            _ => false,
        }
    }
}

impl Drop for SlotTicket {
    fn drop(&mut self) {
        let mut taken = self.slots.0.taken.lock();
        if taken.places.get(&self.id).is_some_and(|place| place.ticket == self.ticket) {
            taken.places.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn slots(us: u8) -> SlotPool {
        let share = SubnetLimits::default();
        with_limits(us, SlotLimits { inbound: 2, outbound: 1, inbound_of: share })
    }

    fn with_limits(us: u8, limits: SlotLimits) -> SlotPool {
        SlotPool::new(PeerId::repeat_byte(us), limits, Arc::default())
    }

    fn refused(slots: &SlotPool, id: u8, inbound: bool) -> DisconnectReason {
        slots.admit(PeerId::repeat_byte(id), NEAR, inbound).unwrap_err()
    }

    #[test]
    fn places_are_counted_each_way_and_given_back() {
        let slots = slots(9);
        let first = slots.admit(PeerId::repeat_byte(1), NEAR, true).unwrap();
        let _second = slots.admit(PeerId::repeat_byte(2), NEAR, true).unwrap();
        assert_eq!(refused(&slots, 3, true), DisconnectReason::TooManyPeers);
        let _out = slots.admit(PeerId::repeat_byte(3), NEAR, false).unwrap();
        assert_eq!(refused(&slots, 4, false), DisconnectReason::TooManyPeers);
        assert_eq!(slots.counts(), SlotCounts { inbound: 2, outbound: 1 });
        drop(first);
        let _third = slots.admit(PeerId::repeat_byte(4), NEAR, true).unwrap();
    }

    #[test]
    fn ourselves_and_those_who_are_there_are_told_so() {
        let slots = slots(9);
        assert_eq!(refused(&slots, 9, true), DisconnectReason::ConnectedToSelf);
        let place = slots.admit(PeerId::repeat_byte(1), NEAR, true).unwrap();
        assert!(place.confirm());
        assert_eq!(refused(&slots, 1, true), DisconnectReason::AlreadyConnected);
        assert_eq!(refused(&slots, 1, false), DisconnectReason::AlreadyConnected);
    }

    #[test]
    fn the_trusted_and_the_static_need_no_slot() {
        let slots = slots(9);
        let _one = slots.admit(PeerId::repeat_byte(1), NEAR, false).unwrap();
        slots.set_static(PeerId::repeat_byte(2), true);
        slots.set_trusted(PeerId::repeat_byte(3), true);
        assert!(slots.admit(PeerId::repeat_byte(2), NEAR, false).unwrap().is_static());
        assert!(slots.admit(PeerId::repeat_byte(3), NEAR, true).unwrap().trusted());
        assert_eq!(slots.counts(), SlotCounts { inbound: 0, outbound: 1 });
        slots.set_trusted(PeerId::repeat_byte(3), false);
        assert!(!slots.admit(PeerId::repeat_byte(3), NEAR, true).unwrap().trusted());
    }

    /// Regression: two nodes that dialled each other at once refused each other's connection.
    #[test]
    fn two_that_dial_each_other_keep_one_connection() {
        let (small, great) = (slots(1), slots(2));
        let [one, two] = [PeerId::repeat_byte(1), PeerId::repeat_byte(2)];
        // Each has dialled the other, and then gets the other's connection.
        let small_out = small.admit(two, NEAR, false).unwrap();
        let great_out = great.admit(one, NEAR, false).unwrap();
        let small_in = small.admit(two, NEAR, true).unwrap();
        assert_eq!(great.admit(one, NEAR, true).unwrap_err(), DisconnectReason::AlreadyConnected);
        assert!(great_out.confirm() && small_in.confirm() && !small_out.confirm());
        drop(small_out);
        assert!(small.has(&two), "a place that was lost is not given back twice");
    }

    /// Regression: one host could take all thirty inbound slots.
    #[test]
    fn one_host_and_one_network_have_a_share_of_the_places_of_those_who_dial() {
        let share = SubnetLimits { of_address: 2, of_subnet: 3, counts_near: false };
        let slots = with_limits(9, SlotLimits { inbound: 30, outbound: 9, inbound_of: share });
        let v4 = |third, last| IpAddr::from(Ipv4Addr::new(8, 8, third, last));
        let v6 = |network, last| IpAddr::from(Ipv6Addr::new(0x2a00, 1, 1, network, 0, 0, 0, last));
        let mut next = 10;
        let mut held = Vec::new();
        let mut is_let_in = |ip: IpAddr, inbound| {
            next += 1;
            let admitted = slots.admit(PeerId::repeat_byte(next), ip, inbound);
            let reason = admitted.map(|place| held.push(place)).err();
            assert!(reason.is_none_or(|reason| reason == DisconnectReason::TooManyPeers));
            reason.is_none()
        };
        let mapped = IpAddr::from(Ipv4Addr::new(8, 8, 1, 1).to_ipv6_mapped());
        assert!(is_let_in(v4(1, 1), true) && is_let_in(mapped, true));
        assert!(!is_let_in(v4(1, 1), true) && !is_let_in(mapped, true), "the address has two");
        assert!(is_let_in(v4(1, 2), true) && !is_let_in(v4(1, 3), true), "the subnet has three");
        assert!(is_let_in(v4(2, 1), true), "another one");
        assert!(is_let_in(v4(1, 1), false), "who is dialled was chosen by us");
        assert!((1..=3).all(|last| is_let_in(v6(1, last), true)));
        assert!(!is_let_in(v6(1, 4), true) && is_let_in(v6(2, 1), true));
        assert!((0..9).all(|_| is_let_in(NEAR, true)), "this machine's own");

        slots.set_trusted(PeerId::repeat_byte(1), true);
        slots.set_static(PeerId::repeat_byte(2), true);
        for named in [1, 2] {
            held.push(slots.admit(PeerId::repeat_byte(named), v4(1, 1), true).unwrap());
        }
        held.clear();
        assert!(slots.admit(PeerId::repeat_byte(200), v4(1, 1), true).is_ok(), "given back");
        let share = SubnetLimits { counts_near: true, ..share };
        let slots = with_limits(9, SlotLimits { inbound: 30, outbound: 9, inbound_of: share });
        let places: Vec<_> =
            (1..9).map(|n| slots.admit(PeerId::repeat_byte(n), NEAR, true)).collect();
        assert_eq!(places.iter().filter(|place| place.is_ok()).count(), 2);
    }
}
