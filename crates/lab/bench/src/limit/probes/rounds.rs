//! Rounds of a probe: threads that repeat a piece of work for a while.

use super::super::{LimitError, UnitCost};
use retrie_report::stats::quantile;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A piece of work of a probe: the number of units that it did; 0 if there is nothing left to do.
/// Its argument is the number of the thread.
pub(super) type ProbeWork<'a> = dyn Fn(usize) -> Result<u64, LimitError> + Sync + 'a;

/// How often, how long, and on how many threads a probe works.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundPlan<'a> {
    rounds: u32,
    round: Duration,
    /// Threads of a round on all cores.
    pub(super) cores: usize,
    stop: &'a AtomicBool,
}

impl<'a> RoundPlan<'a> {
    pub(super) fn new(rounds: u32, round: Duration, stop: &'a AtomicBool) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { rounds, round, cores, stop }
    }

    /// Seconds for a unit of `work`: on one thread, and on a thread on each core.
    pub(super) fn unit_cost(&self, work: &ProbeWork<'_>) -> Result<UnitCost, LimitError> {
        self.cost_on([1, self.cores], &mut || Ok(()), work)
    }

    /// Seconds for a unit of `work`, on each of two numbers of threads. The rounds alternate, so
    /// that noise of the machine meets both. `prepare` is called, untimed, before each round.
    pub(super) fn cost_on(
        &self,
        threads: [usize; 2],
        prepare: &mut dyn FnMut() -> Result<(), LimitError>,
        work: &ProbeWork<'_>,
    ) -> Result<UnitCost, LimitError> {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..self.rounds {
            for (threads, costs) in threads.iter().zip(&mut costs) {
                prepare()?;
                costs.push(self.round(*threads, work)?);
            }
        }
        let [alone, together] = costs.map(|costs| quantile(costs.iter().copied(), 0.5));
        Ok(UnitCost { alone, together })
    }

    /// Seconds for a unit in one round: the threads' rates add up.
    fn round(&self, threads: usize, work: &ProbeWork<'_>) -> Result<f64, LimitError> {
        let barrier = Barrier::new(threads);
        let rates = thread::scope(|scope| {
            let thread = |number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    self.repeat(number, work)
                })
            };
            let running: Vec<_> = (0..threads).map(thread).collect();
            let ended = running.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            ended.collect::<Result<Vec<f64>, LimitError>>()
        })?;
        Ok(1.0 / rates.iter().sum::<f64>().max(f64::MIN_POSITIVE))
    }

    /// Units per second of one thread. It works once at least.
    fn repeat(&self, thread: usize, work: &ProbeWork<'_>) -> Result<f64, LimitError> {
        let (start, mut units) = (Instant::now(), 0);
        loop {
            let done = work(thread)?;
            units += done;
            let elapsed = start.elapsed();
            if done == 0 || elapsed >= self.round {
                return Ok(units as f64 / elapsed.as_secs_f64().max(1e-9));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(LimitError::Stopped);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn cost_is_the_time_of_a_unit_and_threads_share_it() {
        let stop = AtomicBool::new(false);
        let plan = RoundPlan { rounds: 3, round: Duration::from_millis(20), cores: 4, stop: &stop };
        let (calls, prepared) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(5));
            Ok(10)
        };
        let mut prepare = || {
            prepared.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let cost = plan.cost_on([1, 4], &mut prepare, &work).unwrap();
        assert!(cost.alone >= 0.5e-3, "five milliseconds for ten units: {cost:?}");
        assert!(cost.together < cost.alone, "threads sleep at once: {cost:?}");
        assert_eq!(prepared.into_inner(), 6);
        assert!(calls.into_inner() >= 15);
    }

    #[test]
    fn work_that_ends_or_fails_or_is_stopped_ends_the_round() {
        let stop = AtomicBool::new(false);
        let plan = RoundPlan { rounds: 1, round: Duration::MAX, cores: 2, stop: &stop };
        let left = AtomicU64::new(9);
        let work = |_| {
            let next =
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            Ok(u64::from(next.is_ok()))
        };
        let mut refill = || {
            left.store(9, Ordering::Relaxed);
            Ok(())
        };
        let cost = plan.cost_on([1, 2], &mut refill, &work).unwrap();
        assert!(cost.alone > 0.0 && cost.together > 0.0, "{cost:?}");
        let fails = |_| Err(LimitError::Setting { what: "no" });
        assert!(matches!(plan.unit_cost(&fails), Err(LimitError::Setting { .. })));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(plan.unit_cost(&|_| Ok(1)), Err(LimitError::Stopped)));
    }
}
