//! The least seconds in which work can be done.

use super::{MachineLimits, NeededWork};

/// The least seconds in which some work can be done on this machine. The three times may overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LowerBound {
    /// Execution of the blocks on one core, one after the other.
    pub execution: f64,
    /// All computation, divided among all cores.
    pub cores: f64,
    /// Durable writes one after the other, or reads of pages by 16 threads, whichever takes longer.
    pub disk: f64,
}

impl LowerBound {
    /// The longest of the three times.
    pub fn seconds(&self) -> f64 {
        self.longest().1
    }

    /// What takes the longest: `execution`, `cores` or `disk`.
    pub fn resource(&self) -> &'static str {
        self.longest().0
    }

    /// The part of the limit that a run of these seconds reaches; `None` if there was nothing to do
    /// or no time.
    pub fn share_of(&self, seconds: f64) -> Option<f64> {
        let bound = self.seconds();
        (bound > 0.0 && seconds > 0.0).then(|| bound / seconds)
    }

    fn longest(&self) -> (&'static str, f64) {
        let times = [("execution", self.execution), ("cores", self.cores), ("disk", self.disk)];
        times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

impl MachineLimits {
    /// The least seconds for `work`.
    pub fn bound(&self, work: &NeededWork) -> LowerBound {
        let mut bound = LowerBound::default();
        for (mix, gas) in &work.gas {
            let cost = self.gas(mix);
            bound.execution += *gas as f64 * cost.alone;
            bound.cores += *gas as f64 * cost.together;
        }
        bound.cores += work.signatures as f64 * self.sender.together
            + work.lookups as f64 * self.lookup.together
            + self.hashing(work.hashes);
        let durable = self.disk.durable(work.commits, work.bytes);
        bound.disk = durable.max(work.pages * self.disk.page.together);
        bound
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HashWork, machine::tests::limits},
        *,
    };

    #[test]
    fn bound_is_the_longest_of_its_times() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        // 10^9 gas: 0.1 s on one core, 0.05 s on both.
        let execution = NeededWork::executing("cheap", 1_000_000_000);
        let bound = limits().bound(&execution);
        near(bound.execution, 0.1);
        near(bound.cores, 0.05);
        assert_eq!((bound.resource(), bound.seconds()), ("execution", bound.execution));
        // Senders too: 0.05 s and 0.2 s on both cores.
        let senders = NeededWork { signatures: 10_000, ..execution };
        let bound = limits().bound(&senders);
        near(bound.seconds(), 0.25);
        assert_eq!(bound.resource(), "cores");
        // 300 commits of a millisecond, and 10^7 bytes.
        let durable = NeededWork { commits: 300, bytes: 10_000_000, ..senders };
        let bound = limits().bound(&durable);
        near(bound.seconds(), 0.3 + 0.03);
        assert_eq!(bound.resource(), "disk");
        near(bound.share_of(0.66).unwrap_or_default(), 0.5);
        // Pages are read beside the writes.
        let pages = NeededWork { pages: 1e5, ..durable };
        near(limits().bound(&pages).seconds(), 1.0);
    }

    #[test]
    fn more_work_never_takes_less() {
        let limits = limits();
        let one = NeededWork {
            lookups: 1000,
            signatures: 10,
            commits: 1,
            bytes: 64_000,
            hashes: HashWork::branches(1000, 1_000_000) + HashWork::leaves(1000),
            pages: 20.0,
            ..NeededWork::executing("dear", 21_000)
        };
        let mut all = NeededWork::default();
        let mut last = limits.bound(&all);
        assert_eq!((last.seconds(), last.share_of(1.0)), (0.0, None));
        for _ in 0..5 {
            all += &one;
            let bound = limits.bound(&all);
            assert!(bound.execution > last.execution && bound.cores > last.cores);
            assert!(bound.disk > last.disk && bound.seconds() > last.seconds());
            last = bound;
        }
        let sum: NeededWork = [one.clone(), one.clone()].iter().sum();
        assert_eq!(sum.gas["dear"], 42_000);
        assert_eq!(limits.bound(&one).share_of(0.0), None, "no time was measured");
    }
}
