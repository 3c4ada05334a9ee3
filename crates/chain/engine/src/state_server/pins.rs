//! Pins: which states are held, for which kind of client, and for how long.

use super::{ServerSlot, StateClient, StateServeError};
use alloy_primitives::B256;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A pin without requests expires after this time.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// A pin cannot be evicted within this time after a request.
const IN_USE: Duration = Duration::from_secs(20);
/// A pin of strangers or of JSON-RPC can be evicted after this time, even if it is in use.
const MAX_TURN: Duration = Duration::from_secs(600);
/// Largest age of a pin. A later request pins the state again, if it is still kept.
const MAX_AGE: Duration = Duration::from_secs(3600);

impl StateClient {
    /// Largest number of pins for this kind of client. Each pin keeps the database from reusing
    /// pages that were freed since.
    const fn share(self) -> usize {
        match self {
            Self::Trusted => 2,
            Self::Rpc | Self::Stranger => 1,
        }
    }
}

/// All pins, each for one kind of client. A state that two kinds fetch has two pins and one chunk
/// server.
#[derive(Default)]
pub(super) struct StatePinSet(Vec<StatePin>);

struct StatePin {
    block: B256,
    client: StateClient,
    since: Instant,
    /// Time of the last successful request.
    used: Option<Instant>,
    slot: ServerSlot,
}

impl StatePin {
    fn is_over(&self, now: Instant) -> bool {
        let idle_since = self.used.unwrap_or(self.since);
        now.duration_since(idle_since) > IDLE || now.duration_since(self.since) > MAX_AGE
    }

    /// Whether another state may replace it.
    fn may_go(&self, now: Instant) -> bool {
        let is_in_use = self.used.is_some_and(|used| now.duration_since(used) <= IN_USE);
        let has_turn = match self.client {
            StateClient::Trusted => true,
            StateClient::Rpc | StateClient::Stranger => now.duration_since(self.since) <= MAX_TURN,
        };
        !(is_in_use && has_turn)
    }
}

impl StatePinSet {
    pub(super) fn blocks(&self) -> impl Iterator<Item = B256> {
        self.0.iter().map(|pin| pin.block)
    }

    /// Drops expired pins. Returns whether none is left.
    pub(super) fn drop_expired(&mut self, now: Instant) -> bool {
        self.0.retain(|pin| !pin.is_over(now));
        self.0.is_empty()
    }

    /// The slot of the state after `block`, if it is pinned for this kind of client.
    pub(super) fn find(
        &mut self,
        now: Instant,
        client: StateClient,
        block: B256,
    ) -> Option<ServerSlot> {
        self.drop_expired(now);
        self.own(client, block).map(|pin| pin.slot.clone())
    }

    fn own(&mut self, client: StateClient, block: B256) -> Option<&mut StatePin> {
        self.0.iter_mut().find(|pin| pin.client == client && pin.block == block)
    }

    /// Pins the state after `block` for this kind of client. If the kind has all its pins, evicts
    /// the least recently used one. Returns the slot, and whether its server must be created.
    pub(super) fn pin(
        &mut self,
        now: Instant,
        client: StateClient,
        block: B256,
    ) -> Result<(ServerSlot, bool), StateServeError> {
        if let Some(slot) = self.find(now, client, block) {
            return Ok((slot, false));
        }
        let theirs = self.0.iter().enumerate().filter(|(_, pin)| pin.client == client);
        if theirs.clone().count() >= client.share() {
            let oldest = theirs.filter(|(_, pin)| pin.may_go(now)).min_by_key(|(_, pin)| pin.used);
            let (at, _) = oldest.ok_or(StateServeError::InUse(client.share()))?;
            self.0.remove(at);
        }
        let of_others = self.0.iter().find(|pin| pin.block == block);
        let (slot, is_new) = match of_others {
            Some(pin) => (pin.slot.clone(), false),
            None => (ServerSlot::default(), true),
        };
        self.0.push(StatePin { block, client, since: now, used: None, slot: slot.clone() });
        Ok((slot, is_new))
    }

    /// Records a successful request for the state after `block`.
    pub(super) fn touch(&mut self, now: Instant, client: StateClient, block: B256) {
        if let Some(pin) = self.own(client, block) {
            pin.used = Some(now);
        }
    }

    /// Drops all pins of a state whose server could not be created.
    pub(super) fn forget(&mut self, slot: &ServerSlot) {
        self.0.retain(|pin| !Arc::ptr_eq(&pin.slot, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::{StateClient::*, *};

    const SECOND: Duration = Duration::from_secs(1);

    fn block(n: u8) -> B256 {
        B256::repeat_byte(n)
    }

    /// Pins a state and uses it; returns whether the pin was granted.
    fn gets(pins: &mut StatePinSet, now: Instant, client: StateClient, n: u8) -> bool {
        let pinned = pins.pin(now, client, block(n)).is_ok();
        pins.touch(now, client, block(n));
        pinned
    }

    /// Regression: two states of strangers with a request every 20 s blocked all other clients.
    #[test]
    fn whatever_strangers_hold_the_trusted_and_callers_of_json_rpc_have_their_share() {
        let (mut pins, mut now) = (StatePinSet::default(), Instant::now());
        for round in 0..100 {
            now += SECOND;
            for n in 0..50 {
                gets(&mut pins, now, Stranger, n);
            }
            let of_strangers = pins.0.iter().filter(|pin| pin.client == Stranger).count();
            assert_eq!(of_strangers, 1, "round {round}");
            assert!(gets(&mut pins, now, Trusted, 100) && gets(&mut pins, now, Trusted, 101));
            assert!(gets(&mut pins, now, Rpc, 102));
            assert!(!gets(&mut pins, now, Trusted, 103) && !gets(&mut pins, now, Rpc, 104));
        }
    }

    #[test]
    fn a_stranger_holds_a_state_for_his_turn_if_others_wait_and_the_trusted_for_an_hour() {
        let (mut pins, start) = (StatePinSet::default(), Instant::now());
        for client in [Stranger, Rpc] {
            assert!(gets(&mut pins, start, client, 1));
            let mut now = start;
            while !gets(&mut pins, now, client, 2) {
                now += SECOND;
                // The first client keeps requesting.
                pins.touch(now, client, block(1));
            }
            assert!(now - start > MAX_TURN && now - start <= MAX_TURN + 2 * SECOND, "{client:?}");
        }
        let (mut pins, mut now) = (StatePinSet::default(), start);
        while now < start + MAX_AGE {
            assert!(gets(&mut pins, now, Trusted, 1) && gets(&mut pins, now, Trusted, 2));
            assert!(!gets(&mut pins, now, Trusted, 3));
            now += 10 * SECOND;
        }
        assert!(gets(&mut pins, now + 20 * SECOND, Trusted, 3), "an hour is over");
    }

    /// Regression: a request for a node that does not exist was enough to hold a state.
    #[test]
    fn a_state_of_which_nothing_was_given_makes_room_at_once() {
        let (mut pins, now) = (StatePinSet::default(), Instant::now());
        assert!(pins.pin(now, Stranger, block(1)).is_ok());
        assert!(gets(&mut pins, now, Stranger, 2), "it was of no use");
        assert!(pins.pin(now, Stranger, block(3)).is_err());
        assert!(pins.find(now + IDLE + SECOND, Stranger, block(2)).is_none());
        assert!(pins.drop_expired(now + IDLE + SECOND));
    }

    #[test]
    fn one_state_is_made_ready_once_for_all_who_ask() {
        let (mut pins, now) = (StatePinSet::default(), Instant::now());
        let (slot, is_new) = pins.pin(now, Rpc, block(1)).unwrap();
        assert!(is_new);
        for client in [Stranger, Trusted, Rpc] {
            let (same, is_new) = pins.pin(now, client, block(1)).unwrap();
            assert!(Arc::ptr_eq(&same, &slot) && !is_new);
        }
        pins.forget(&slot);
        assert!(pins.drop_expired(now), "all of them are gone");
    }
}
