//! The race: contenders take turns on the same slices of a workload.
//!
//! ```text
//!  warm-up        the same parts on each, then flush        (untimed)
//!  slice 1        A: commit commit ... wait      B: commit commit ... wait
//!  slice 2        B: ...                         A: ...
//!  ...
//!  end            A: flush                       B: flush
//! ```
//!
//! * A `Contender` is open, and runs one slice in a turn. A `SliceSource` makes the slices
//!   outside the timed parts. There are three kinds of both: state stores
//!   ([`state`](crate::state)), clients on a chain, and clients on real blocks
//!   ([`clients`](crate::clients)).
//! * Contenders take turns slice by slice. Their order rotates and is reversed in every other
//!   slice, so that a slow moment of the machine affects all of them.
//! * **Deferred work counts for the contender that defers it.** A turn ends when no background work
//!   is running, so none of it runs in another contender's turn. Work that has not begun at the end
//!   is done in a timed *flush*.
//! * So there are two rates. The median of the slices is robust on a noisy machine, but does not
//!   contain a fold that happens in few slices. The sustained rate, all operations divided by all
//!   timed seconds, contains every fold and the final flush.
//! * A race that is stopped, or ends with an error, returns the slices that all contenders have
//!   run, unless a contender has a wrong state.
//! * A [`MemoryBudget`] divides the memory of each contender among its caches, its unfolded rows and,
//!   if memory can be capped, its pages. Then each contender races alone, under a cap of its budget.
//! * On *cold* terms the pages of a contender's files are dropped from the page cache before each of
//!   its measured turns. Its own caches and its unfolded rows stay.
//! * Under a memory limit the prepared states are dropped from the page cache, then memory is
//!   capped, and then the contenders are opened (`RaceGuard`). **All share one cap**: all are
//!   open while one runs, the caches of the others stay allocated, and its pages evict theirs. So
//!   each has less memory than it would have alone; for a figure of one contender under a cap, race
//!   it alone.

mod contender;
mod guard;
mod memory;
mod outcome;
mod step;
mod terms;

pub use memory::{MemoryBudget, MemoryTerms};
pub use outcome::{RaceOutcome, RaceResult};
pub use step::{RaceStep, TurnSummary};
pub use terms::RaceTerms;
pub(crate) use {
    contender::{
        Contender, CounterReading, RacePart, SliceSource, TimedTurn, turn_order, warmup_parts,
    },
    guard::{RaceGuard, drop_pages},
};

use crate::BenchError;
use outcome::SliceTurn;
use retrie_pipeline::report::peak_rss_bytes;
use std::{path::Path, time::Instant};

/// A contender in a race, and its outcome so far.
pub(crate) struct RaceLane<'a, C: Contender> {
    pub(crate) contender: C,
    pub(crate) outcome: RaceOutcome<C::Figures>,
    folder: &'a Path,
    /// Growth of anonymous memory while the contender was opened and during its turns, in bytes.
    memory_bytes: i64,
}

impl<'a, C: Contender> RaceLane<'a, C> {
    /// A contender whose files are in `folder`. `memory_bytes` is the growth of memory while it was
    /// opened ([`RaceGuard::open`]).
    pub(crate) const fn new(
        contender: C,
        outcome: RaceOutcome<C::Figures>,
        folder: &'a Path,
        memory_bytes: i64,
    ) -> Self {
        Self { contender, outcome, folder, memory_bytes }
    }

    /// Calls the contender, and says which disk is full if one is.
    pub(crate) fn call<T>(
        &mut self,
        call: impl FnOnce(&mut C) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        call(&mut self.contender).map_err(|error| error.on_disk(self.folder))
    }

    fn turn(
        &mut self,
        slice: &C::Slice,
        part: RacePart,
        guard: &RaceGuard<'_>,
    ) -> Result<SliceTurn, BenchError> {
        if !part.is_warmup {
            guard.cool(self.folder)?;
        }
        let before = crate::memory::anonymous();
        let timed = self.call(|contender| contender.run(slice, part, guard))?;
        self.memory_bytes += crate::memory::anonymous() - before;
        let mapped_bytes = crate::memory::mapped(self.folder);
        let disk_bytes = self.call(|contender| contender.disk_bytes())?;
        let (memory_bytes, reading) = (self.memory_bytes, self.contender.reading());
        Ok(SliceTurn { timed, memory_bytes, mapped_bytes, disk_bytes, reading })
    }
}

/// A race of open contenders.
pub(crate) struct Race<'a, C: Contender> {
    pub(crate) lanes: Vec<RaceLane<'a, C>>,
    pub(crate) guard: &'a RaceGuard<'a>,
}

impl<C: Contender> Race<'_, C> {
    /// Runs the race. The outcomes are in the order of the lanes.
    ///
    /// # Errors
    /// If the race ends before all contenders have run a slice, or a contender has a wrong state. A
    /// later error is in [`RaceResult::ended`].
    pub(crate) fn run(
        mut self,
        source: &mut dyn SliceSource<C>,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<C::Figures>, BenchError> {
        let ended = self
            .run_slices(source, progress)
            .and_then(|()| self.flush())
            .and_then(|()| source.finish(&mut self.lanes, self.guard));
        let nothing = self.lanes.iter().any(|lane| lane.outcome.turns.is_empty());
        let ended = match ended {
            Err(error) if nothing || error.is_wrong_state() => return Err(error),
            ended => ended,
        };
        let peak = peak_rss_bytes().saturating_sub(self.guard.balloon_bytes());
        let memory_cap = self.guard.memory_cap(self.lanes.len());
        let mut outcomes: Vec<_> = self.lanes.into_iter().map(|lane| lane.outcome).collect();
        for outcome in &mut outcomes {
            (outcome.peak_rss_bytes, outcome.memory_cap) = (peak, memory_cap);
        }
        Ok(RaceResult { outcomes, ended })
    }

    /// Runs warm-up and slices.
    fn run_slices(
        &mut self,
        source: &mut dyn SliceSource<C>,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<(), BenchError> {
        let (parts, slices) = (source.warmup_parts(), source.slices());
        for number in 1..=parts {
            let part = RacePart { is_warmup: true, number, of: parts };
            self.slice(&source.take(part)?, part)?;
        }
        for lane in &mut self.lanes {
            lane.call(C::flush)?;
            lane.outcome.begin(lane.contender.reading());
        }
        for number in 1..=slices {
            progress(RaceStep::Racing { done: number - 1, total: slices });
            let part = RacePart { is_warmup: false, number, of: slices };
            let turns = self.slice(&source.take(part)?, part)?;
            // Only now, when all contenders have run the slice.
            for (lane, turn) in self.lanes.iter_mut().zip(turns) {
                progress(RaceStep::Turn(TurnSummary {
                    backend: &lane.outcome.backend,
                    ops: turn.timed.ops,
                    latencies: &turn.timed.latencies,
                    disk_bytes: turn.disk_bytes,
                }));
                lane.outcome.add_turn(turn);
            }
        }
        Ok(())
    }

    /// Runs one turn of every contender. The turns are in the order of the lanes.
    fn slice(&mut self, slice: &C::Slice, part: RacePart) -> Result<Vec<SliceTurn>, BenchError> {
        let mut turns: Vec<_> = self.lanes.iter().map(|_| None).collect();
        for number in part.turn_order(self.lanes.len()) {
            turns[number] = Some(self.lanes[number].turn(slice, part, self.guard)?);
        }
        Ok(turns.into_iter().flatten().collect())
    }

    /// The final flush.
    fn flush(&mut self) -> Result<(), BenchError> {
        let mut flushed = Vec::new();
        for lane in &mut self.lanes {
            self.guard.check()?;
            let start = Instant::now();
            lane.call(C::flush)?;
            flushed.push((start.elapsed(), lane.call(|contender| contender.disk_bytes())?));
        }
        // Only now, when all contenders have flushed: a rate with the flush is not compared with a
        // rate without.
        for (lane, (elapsed, disk_bytes)) in self.lanes.iter_mut().zip(flushed) {
            lane.outcome.add_flush(elapsed, disk_bytes, lane.contender.reading());
            lane.contender.note_end(&mut lane.outcome)?;
        }
        Ok(())
    }
}
