//! The time of a dev chain.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 as the next blocks see them: the clock of the machine, moved as the user
/// wants it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Seconds that this is ahead of the machine's clock.
    offset: i64,
    /// Time of the next block, once.
    next: Option<u64>,
    /// Seconds from each block to the next, whatever the clock says.
    step: Option<u64>,
}

fn machine_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

impl Clock {
    /// Time of a block on a parent of this time.
    pub(super) fn of_child(&self, parent: u64) -> u64 {
        let next = match (self.next, self.step) {
            (Some(next), _) => next,
            (None, Some(step)) => parent.saturating_add(step),
            (None, None) => machine_time().saturating_add_signed(self.offset),
        };
        next.max(parent.saturating_add(1))
    }

    /// Takes note that a block has this time. After one whose time was set, or that had to be later
    /// than the clock says, the clock goes on from there.
    pub(super) fn sealed(&mut self, timestamp: u64) {
        let was_set = self.next == Some(timestamp);
        if was_set {
            self.next = None;
        }
        if was_set || timestamp > machine_time().saturating_add_signed(self.offset) {
            self.set(timestamp);
        }
    }

    /// Makes it `timestamp` now.
    pub(super) fn set(&mut self, timestamp: u64) {
        let (timestamp, now) = (i64::try_from(timestamp), i64::try_from(machine_time()));
        self.offset = timestamp.unwrap_or(i64::MAX).saturating_sub(now.unwrap_or_default());
    }

    /// Moves it on. Returns how far it is ahead of the machine's clock, in seconds.
    pub(super) fn advance(&mut self, seconds: u64) -> i64 {
        self.offset = self.offset.saturating_add_unsigned(seconds);
        self.offset
    }

    /// Sets the time of the next block.
    pub(super) const fn set_next(&mut self, timestamp: u64) {
        self.next = Some(timestamp);
    }

    /// Sets or ends a fixed distance between blocks, in seconds.
    pub(super) const fn set_step(&mut self, step: Option<u64>) {
        self.step = step;
    }

    /// The clock as it was at `then`: no time has passed since.
    pub(super) fn back_to(&self, then: Instant) -> Self {
        let passed = i64::try_from(then.elapsed().as_secs()).unwrap_or(i64::MAX);
        Self { offset: self.offset.saturating_sub(passed), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_later_than_their_parents() {
        let now = machine_time();
        let clock = Clock::default();
        assert!((now..now + 2).contains(&clock.of_child(5)));
        assert_eq!(clock.of_child(now + 100), now + 101);
    }

    #[test]
    fn a_time_that_was_set_is_that_of_one_block_and_the_clock_goes_on_from_it() {
        let mut clock = Clock::default();
        let future = machine_time() + 1_000_000;
        clock.set_next(future);
        assert_eq!(clock.of_child(7), future);
        clock.sealed(future);
        assert!((future + 1..future + 3).contains(&clock.of_child(future)));
        let past = machine_time() - 1_000;
        clock.set_next(past);
        clock.sealed(clock.of_child(7));
        assert!((past..past + 2).contains(&clock.of_child(7)));
    }

    #[test]
    fn time_adds_up_and_can_be_stepped() {
        let mut clock = Clock::default();
        assert_eq!((clock.advance(60), clock.advance(3600)), (60, 3660));
        let now = machine_time();
        assert!((now + 3660..now + 3662).contains(&clock.of_child(7)));
        clock.set_step(Some(12));
        assert_eq!(clock.of_child(100), 112);
    }
}
