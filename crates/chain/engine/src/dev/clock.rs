//! [`DevClock`]: the time of a dev chain.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Timestamps for the next blocks, in seconds since 1970: the machine's clock plus an offset that
/// the user sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DevClock {
    /// Seconds that this clock is ahead of the machine's clock.
    offset: i64,
    /// Time of the next block only.
    next: Option<u64>,
    /// Fixed number of seconds between blocks, instead of the clock.
    step: Option<u64>,
}

fn machine_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

impl DevClock {
    /// Timestamp of a block whose parent has timestamp `parent`.
    pub(super) fn next_timestamp(&self, parent: u64) -> u64 {
        let next = match (self.next, self.step) {
            (Some(next), _) => next,
            (None, Some(step)) => parent.saturating_add(step),
            (None, None) => machine_time().saturating_add_signed(self.offset),
        };
        next.max(parent.saturating_add(1))
    }

    /// Records the timestamp of a sealed block. If the timestamp was set by the user, or is ahead
    /// of the clock, the clock continues from it.
    pub(super) fn note_sealed(&mut self, timestamp: u64) {
        let was_set = self.next == Some(timestamp);
        if was_set {
            self.next = None;
        }
        if was_set || timestamp > machine_time().saturating_add_signed(self.offset) {
            self.set(timestamp);
        }
    }

    /// Sets the clock to `timestamp`.
    pub(super) fn set(&mut self, timestamp: u64) {
        let (timestamp, now) = (i64::try_from(timestamp), i64::try_from(machine_time()));
        self.offset = timestamp.unwrap_or(i64::MAX).saturating_sub(now.unwrap_or_default());
    }

    /// Moves the clock forward. Returns its offset to the machine's clock in seconds.
    pub(super) fn advance(&mut self, seconds: u64) -> i64 {
        self.offset = self.offset.saturating_add_unsigned(seconds);
        self.offset
    }

    /// Sets the time of the next block.
    pub(super) const fn set_next(&mut self, timestamp: u64) {
        self.next = Some(timestamp);
    }

    /// Sets or clears the fixed number of seconds between blocks.
    pub(super) const fn set_step(&mut self, step: Option<u64>) {
        self.step = step;
    }

    /// The clock set back to its time at `then`.
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
        let clock = DevClock::default();
        assert!((now..now + 2).contains(&clock.next_timestamp(5)));
        assert_eq!(clock.next_timestamp(now + 100), now + 101);
    }

    #[test]
    fn a_time_that_was_set_is_that_of_one_block_and_the_clock_goes_on_from_it() {
        let mut clock = DevClock::default();
        let future = machine_time() + 1_000_000;
        clock.set_next(future);
        assert_eq!(clock.next_timestamp(7), future);
        clock.note_sealed(future);
        assert!((future + 1..future + 3).contains(&clock.next_timestamp(future)));
        let past = machine_time() - 1_000;
        clock.set_next(past);
        clock.note_sealed(clock.next_timestamp(7));
        assert!((past..past + 2).contains(&clock.next_timestamp(7)));
    }

    #[test]
    fn time_adds_up_and_can_be_stepped() {
        let mut clock = DevClock::default();
        assert_eq!((clock.advance(60), clock.advance(3600)), (60, 3660));
        let now = machine_time();
        assert!((now + 3660..now + 3662).contains(&clock.next_timestamp(7)));
        clock.set_step(Some(12));
        assert_eq!(clock.next_timestamp(100), 112);
    }
}
