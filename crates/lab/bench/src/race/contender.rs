//! The interface between the race and its workloads.

use super::{RaceGuard, RaceLane, RaceOutcome};
use crate::{BenchError, limit::NeededWork};
use retrie_pipeline::report::TimeBreakdown;
use retrie_state_store::CounterSnapshot;
use std::{fmt, time::Duration};

/// An open participant of a race. The race measures memory around its turns, and times its final
/// flush.
pub(crate) trait Contender {
    /// The input of a turn, equal for all contenders.
    type Slice;
    /// Figures that only this kind of workload has.
    type Figures;

    /// Runs a slice, and waits until no background work of it is running. Calls
    /// [`RaceGuard::check`] before each commit or block, and returns its error.
    fn run(
        &mut self,
        slice: &Self::Slice,
        part: RacePart,
        guard: &RaceGuard<'_>,
    ) -> Result<TimedTurn, BenchError>;

    /// Does all work that earlier turns have deferred.
    fn flush(&mut self) -> Result<(), BenchError>;

    /// The counters since the contender was opened.
    fn reading(&self) -> CounterReading;

    /// Bytes of live pages and files. It is called after each turn, so it should be cheap.
    fn disk_bytes(&self) -> Result<u64, BenchError>;

    /// Adds the figures of its kind to the outcome, after all contenders have flushed.
    fn note_end(&self, outcome: &mut RaceOutcome<Self::Figures>) -> Result<(), BenchError>;
}

/// The input of a race, slice by slice.
pub(crate) trait SliceSource<C: Contender> {
    /// Number of parts of the warm-up.
    fn warmup_parts(&self) -> u64;

    /// Number of measured slices.
    fn slices(&self) -> u64;

    /// The input of the next part: those of the warm-up come first.
    fn take(&mut self, part: RacePart) -> Result<C::Slice, BenchError>;

    /// Checks the contenders, and measures outside the slices, after all have flushed.
    fn finish(
        &mut self,
        lanes: &mut [RaceLane<'_, C>],
        guard: &RaceGuard<'_>,
    ) -> Result<(), BenchError> {
        let _ = (lanes, guard);
        Ok(())
    }
}

/// A part of a race: the `number`th of the `of` parts of the warm-up, or a measured slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RacePart {
    pub(crate) is_warmup: bool,
    /// Counts from 1.
    pub(crate) number: u64,
    pub(crate) of: u64,
}

impl RacePart {
    /// The number of `total` blocks or commits that belong to this part, if they are divided
    /// evenly.
    pub(crate) const fn share(self, total: u64) -> u64 {
        total * self.number / self.of - total * (self.number - 1) / self.of
    }

    /// The order of `lanes` contenders in this part. It rotates, and is reversed in every other
    /// slice.
    pub(super) fn turn_order(self, lanes: usize) -> Vec<usize> {
        turn_order(lanes, if self.is_warmup { 0 } else { self.number })
    }
}

impl fmt::Display for RacePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_warmup {
            true => f.write_str("warm-up"),
            false => write!(f, "slice {}", self.number),
        }
    }
}

/// The number of parts in which `warmup` blocks or commits are run before `slices` slices of
/// `measured`: each has about a slice, so that a long warm-up is never in memory as a whole.
pub(crate) const fn warmup_parts(warmup: u64, measured: u64, slices: u64) -> u64 {
    warmup.div_ceil(measured.div_ceil(slices))
}

/// The order of `lanes` contenders in slice `slice`. It rotates, and is reversed in every other
/// slice.
pub(crate) fn turn_order(lanes: usize, slice: u64) -> Vec<usize> {
    let first = (slice / 2) as usize;
    let mut order: Vec<_> = (0..lanes).map(|lane| (lane + first) % lanes).collect();
    if slice.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// The times of a turn.
#[derive(Clone, Debug)]
pub(crate) struct TimedTurn {
    /// Number of operations or transactions.
    pub(crate) ops: u64,
    /// Time of the turn, with the wait for background work.
    pub(crate) elapsed: Duration,
    /// The part of this time that was spent waiting for background work.
    pub(crate) settling: Duration,
    /// Durations of the commits or blocks.
    pub(crate) latencies: Vec<Duration>,
    /// The work that the turn needed in any case.
    pub(crate) needed: NeededWork,
}

/// The counters of a contender since it was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterReading {
    /// Rows read and written, if the contender counts them.
    pub(crate) counts: Option<CounterSnapshot>,
    /// How the time was spent, without flushes, if the contender knows it. The time of row reads is
    /// part of the authenticated structure if `counts` has it.
    pub(crate) spent: Option<TimeBreakdown>,
    /// Number of keys read, and of keys written or removed.
    pub(crate) keys: (u64, u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_comes_first_and_last_equally_often() {
        for lanes in 1..=4 {
            let (mut first, mut last) = (vec![0; lanes], vec![0; lanes]);
            for slice in 0..(2 * lanes * 3) as u64 {
                let order = turn_order(lanes, slice);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..lanes).collect::<Vec<_>>());
                first[order[0]] += 1;
                last[order[lanes - 1]] += 1;
            }
            assert_eq!((&first, &last), (&vec![6; lanes], &vec![6; lanes]), "{lanes} lanes");
        }
    }

    #[test]
    fn parts_are_about_a_slice_and_add_up() {
        // Ten blocks in four slices: three at most.
        assert_eq!([0, 1, 3, 4, 30].map(|warmup| warmup_parts(warmup, 10, 4)), [0, 1, 1, 2, 10]);
        let share = |number| RacePart { is_warmup: false, number, of: 4 }.share(10);
        assert_eq!([1, 2, 3, 4].map(share), [2, 3, 2, 3]);
    }
}
