//! How many peers there are, and who.

use crate::{
    eth::PeerId,
    rlpx::DisconnectReason,
    session::{Gate, Place},
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::reputation::Reputation;

/// Places for peers, and who has them. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    us: PeerId,
    max_inbound: usize,
    max_outbound: usize,
    taken: Mutex<Taken>,
    reputation: Arc<Reputation>,
}

#[derive(Debug, Default)]
struct Taken {
    places: HashMap<PeerId, Occupied>,
    trusted: HashSet<PeerId>,
    fixed: HashSet<PeerId>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Occupied {
    ticket: u64,
    inbound: bool,
    /// Whether limits hold for it.
    counted: bool,
    /// Whether hello and status are exchanged.
    settled: bool,
}

/// How many peers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) inbound: usize,
    pub(super) outbound: usize,
}

impl Slots {
    pub(super) fn new(
        us: PeerId,
        max_inbound: usize,
        max_outbound: usize,
        reputation: Arc<Reputation>,
    ) -> Self {
        let taken = Mutex::default();
        Self(Arc::new(Inner { us, max_inbound, max_outbound, taken, reputation }))
    }

    /// Whether a node has a place already.
    pub(super) fn has(&self, id: &PeerId) -> bool {
        self.0.taken.lock().places.contains_key(id)
    }

    /// Places that are taken and for which limits hold.
    pub(super) fn counts(&self) -> Counts {
        self.0.taken.lock().counts()
    }

    /// How many more nodes may be dialled.
    pub(super) fn free_outbound(&self) -> usize {
        self.0.max_outbound.saturating_sub(self.counts().outbound)
    }

    /// Whether limits shall hold for a node from now on.
    pub(super) fn set_trusted(&self, id: PeerId, trusted: bool) {
        set(&mut self.0.taken.lock().trusted, id, trusted);
    }

    /// Whether a node is dialled again and again.
    pub(super) fn set_static(&self, id: PeerId, is_static: bool) {
        set(&mut self.0.taken.lock().fixed, id, is_static);
    }

    /// Whether limits do not hold for a node.
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

impl Taken {
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for place in self.places.values().filter(|place| place.counted) {
            *(if place.inbound { &mut counts.inbound } else { &mut counts.outbound }) += 1;
        }
        counts
    }
}

impl Gate for Slots {
    fn admit(&self, id: PeerId, inbound: bool) -> Result<Box<dyn Place>, DisconnectReason> {
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
            // Two that dial each other keep the connection that the one of the greater id has made:
            // both know which that is.
            let ours_counts = inner.us > id;
            let replaces = !other.settled && other.inbound != inbound && inbound != ours_counts;
            if !replaces {
                return Err(DisconnectReason::AlreadyConnected);
            }
        }
        let counted = !trusted && (!is_static || inbound);
        let counts = taken.counts();
        let full = if inbound {
            counts.inbound >= inner.max_inbound
        } else {
            counts.outbound >= inner.max_outbound
        };
        if counted && full {
            return Err(DisconnectReason::TooManyPeers);
        }
        let ticket = taken.next;
        taken.next += 1;
        taken.places.insert(id, Occupied { ticket, inbound, counted, settled: false });
        drop(taken);
        Ok(Box::new(Ticket { slots: self.clone(), id, ticket, trusted, is_static }))
    }
}

/// A place that is taken.
#[derive(Debug)]
struct Ticket {
    slots: Slots,
    id: PeerId,
    ticket: u64,
    trusted: bool,
    is_static: bool,
}

impl Place for Ticket {
    fn trusted(&self) -> bool {
        self.trusted
    }

    fn is_static(&self) -> bool {
        self.is_static
    }

    fn settle(&self) -> bool {
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

impl Drop for Ticket {
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

    fn slots(us: u8) -> Slots {
        Slots::new(PeerId::repeat_byte(us), 2, 1, Arc::default())
    }

    fn refused(slots: &Slots, id: u8, inbound: bool) -> DisconnectReason {
        slots.admit(PeerId::repeat_byte(id), inbound).unwrap_err()
    }

    #[test]
    fn places_are_counted_each_way_and_given_back() {
        let slots = slots(9);
        let first = slots.admit(PeerId::repeat_byte(1), true).unwrap();
        let _second = slots.admit(PeerId::repeat_byte(2), true).unwrap();
        assert_eq!(refused(&slots, 3, true), DisconnectReason::TooManyPeers);
        let _out = slots.admit(PeerId::repeat_byte(3), false).unwrap();
        assert_eq!(refused(&slots, 4, false), DisconnectReason::TooManyPeers);
        assert_eq!(slots.counts(), Counts { inbound: 2, outbound: 1 });
        drop(first);
        let _third = slots.admit(PeerId::repeat_byte(4), true).unwrap();
    }

    #[test]
    fn ourselves_and_those_who_are_there_are_told_so() {
        let slots = slots(9);
        assert_eq!(refused(&slots, 9, true), DisconnectReason::ConnectedToSelf);
        let place = slots.admit(PeerId::repeat_byte(1), true).unwrap();
        assert!(place.settle());
        assert_eq!(refused(&slots, 1, true), DisconnectReason::AlreadyConnected);
        assert_eq!(refused(&slots, 1, false), DisconnectReason::AlreadyConnected);
    }

    #[test]
    fn the_trusted_and_the_static_need_no_slot() {
        let slots = slots(9);
        let _one = slots.admit(PeerId::repeat_byte(1), false).unwrap();
        slots.set_static(PeerId::repeat_byte(2), true);
        slots.set_trusted(PeerId::repeat_byte(3), true);
        assert!(slots.admit(PeerId::repeat_byte(2), false).unwrap().is_static());
        assert!(slots.admit(PeerId::repeat_byte(3), true).unwrap().trusted());
        assert_eq!(slots.counts(), Counts { inbound: 0, outbound: 1 });
        slots.set_trusted(PeerId::repeat_byte(3), false);
        assert!(!slots.admit(PeerId::repeat_byte(3), true).unwrap().trusted());
    }

    /// Two nodes that dial each other at once once refused each other's connection, and had none.
    #[test]
    fn two_that_dial_each_other_keep_one_connection() {
        let (small, great) = (slots(1), slots(2));
        let [one, two] = [PeerId::repeat_byte(1), PeerId::repeat_byte(2)];
        // Each has dialled the other, and then hears of the other's connection.
        let small_out = small.admit(two, false).unwrap();
        let great_out = great.admit(one, false).unwrap();
        let small_in = small.admit(two, true).unwrap();
        assert_eq!(great.admit(one, true).unwrap_err(), DisconnectReason::AlreadyConnected);
        assert!(great_out.settle() && small_in.settle() && !small_out.settle());
        drop(small_out);
        assert!(small.has(&two), "a place that was lost is not given back twice");
    }
}
