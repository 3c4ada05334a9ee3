//! The plan of a paper: its experiments at a size.

use super::{ExperimentSetup, Paper, PlanSize, bavl, cole, lmpt, locality, lvmt};

/// One workload that figures of a paper show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperExperiment {
    /// Exact names of the figures that it makes: `Fig. 2a`.
    pub figures: Vec<&'static str>,
    /// What is measured.
    pub title: &'static str,
    /// The workload and its parameters.
    pub setup: ExperimentSetup,
    /// Names of the backends in the figures.
    pub backends: &'static [&'static str],
    /// The hash function of tries that have a choice, if it is not Ethereum's.
    pub hash: Option<&'static str>,
    /// Differences from the paper; may be empty.
    pub note: String,
    /// Why its figures cannot be held against the paper's at this size.
    pub regime: Option<String>,
    /// Why it is not run at this size, or on this machine.
    pub omission: Option<String>,
}

impl PaperExperiment {
    /// An experiment with the paper's own size.
    pub(super) fn new(
        figures: &[&'static str],
        title: &'static str,
        setup: ExperimentSetup,
        backends: &'static [&'static str],
        note: &str,
    ) -> Self {
        Self {
            figures: figures.to_vec(),
            title,
            setup,
            backends,
            hash: None,
            note: note.into(),
            regime: None,
            omission: None,
        }
    }

    /// With this hash function for tries that have a choice.
    pub(super) const fn hashed_by(mut self, hash: &'static str) -> Self {
        self.hash = Some(hash);
        self
    }

    /// The names of its figures: `Fig. 4, Fig. 6a`.
    pub fn label(&self) -> String {
        self.figures.join(", ")
    }

    /// Adds a sentence to the note.
    pub fn add_note(&mut self, sentence: &str) {
        if !self.note.is_empty() {
            self.note.push(' ');
        }
        self.note.push_str(sentence);
    }

    /// Whether it measures all that `other` does.
    fn does(&self, other: &Self) -> bool {
        self.setup.covers(&other.setup)
            && self.hash == other.hash
            && self.backends.is_empty() == other.backends.is_empty()
            && other.backends.iter().all(|name| self.backends.contains(name))
    }

    /// Makes the figures of `other` too.
    fn add_figures(&mut self, other: &Self) {
        for name in &other.figures {
            if !self.figures.contains(name) {
                self.figures.push(name);
            }
        }
    }

    fn at(mut self, size: PlanSize) -> Self {
        let capped = self.setup.memory_limit_mb().is_some();
        self.setup = size.of(self.setup);
        let lvmt = self.backends.iter().any(|name| name.starts_with("lvmt"));
        let shallow = lvmt && self.setup.keys() < LVMT_ROOT_KEYS;
        if shallow {
            self.add_note(
                "LVMT has one level here, and two in the paper: its root AMT alone holds 300,000 \
                 keys, and its height is not scaled.",
            );
        }
        let regimes = [(size.is_smoke(), "smoke size"), (shallow, "one level of LVMT")].into_iter();
        let regimes: Vec<_> = regimes.filter(|(is, _)| *is).map(|(_, words)| words).collect();
        self.regime = (!regimes.is_empty()).then(|| regimes.join(", "));
        if capped && self.setup.keys() < CAPPED_KEYS {
            self.omission = Some("a state of this size always fits under its cap on memory".into());
        }
        self
    }
}

/// Keys that the root AMT of LVMT holds, so that more need a second level (LVMT, section 6).
const LVMT_ROOT_KEYS: u64 = 300_000;

/// Fewer keys than this fit under the caps on memory of all experiments.
const CAPPED_KEYS: u64 = 1 << 21;

/// The experiments of `paper` at a size. Of experiments that are equal at a small size, or one of
/// which measures all that the other does, one is listed, under the figures of both: no store is
/// measured twice on the same work.
pub fn experiments(paper: Paper, size: PlanSize) -> Vec<PaperExperiment> {
    let all = match paper {
        Paper::Lvmt => lvmt::experiments(),
        Paper::Cole => cole::experiments(),
        Paper::Lmpt => lmpt::experiments(),
        Paper::Locality => locality::experiments(),
        Paper::Bavl => bavl::experiments(),
    };
    let mut plan: Vec<PaperExperiment> = Vec::with_capacity(all.len());
    for experiment in all {
        let experiment = experiment.at(size);
        match plan.iter_mut().find(|other| other.does(&experiment)) {
            Some(other) => other.add_figures(&experiment),
            None => {
                // One that does more than an earlier one takes its place.
                match plan.iter_mut().find(|other| experiment.does(other)) {
                    Some(other) => {
                        let smaller = std::mem::replace(other, experiment);
                        other.add_figures(&smaller);
                    }
                    None => plan.push(experiment),
                }
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::{super::PlanPreset, *};
    use retrie_backends::{FlagValues, lane};

    #[test]
    fn backends_are_ours_with_flags_that_they_have() {
        let all = Paper::ALL.into_iter().flat_map(|paper| experiments(paper, PlanSize::default()));
        for name in all.flat_map(|experiment| experiment.backends) {
            // A baseline that only races have.
            if *name == crate::cmi::NAME {
                continue;
            }
            if let Err(why) = lane(name, &FlagValues::default()) {
                panic!("{name}: {why}");
            }
        }
    }

    #[test]
    fn the_preset_paper_is_the_paper_and_small_sizes_are_small() {
        for paper in Paper::ALL {
            let own = experiments(paper, PlanSize::default());
            let small = experiments(paper, PlanSize::Scale(0.001));
            assert!(!small.is_empty() && small.len() <= own.len(), "{paper}");
            for experiment in own.iter().chain(&small) {
                let texts = [experiment.title, experiment.setup.workload()];
                assert!(texts.iter().all(|text| !text.is_empty()), "{experiment:?}");
                // Only experiments on trees and files alone have no backends.
                let alone = matches!(
                    experiment.setup,
                    ExperimentSetup::Locality { .. }
                        | ExperimentSetup::Trees { .. }
                        | ExperimentSetup::Sync { .. }
                        | ExperimentSetup::Crypto { .. }
                );
                assert_eq!(experiment.backends.is_empty(), alone, "{experiment:?}");
            }
        }
        let largest = ExperimentSetup::Chain {
            workload: "transfers",
            accounts: 5_000_000,
            senders: 20_000,
            txs: 25_000_000,
            txs_per_block: None,
            skewed: false,
            cache_mb: None,
            merge_interval: None,
            own_contracts: false,
        };
        let has = |size, setup| experiments(Paper::Lvmt, size).iter().any(|run| run.setup == setup);
        assert!(has(PlanSize::default(), largest));
        assert!(has(PlanSize::Scale(0.1), largest.scaled(0.1)));
        // The variants of one backend run in one race.
        let varied: Vec<_> = experiments(Paper::Cole, PlanSize::Scale(0.01))
            .iter()
            .flat_map(|run| run.backends)
            .filter_map(|name| name.split_once(':'))
            .collect();
        let count = |wanted: &str| varied.iter().filter(|(_, flag)| *flag == wanted).count();
        assert_eq!((count("size-ratio=6"), count("fanout=64"), count("fanout=6")), (2, 2, 0));
        // A capped race has one store only, because stores would share the cap.
        for run in experiments(Paper::Locality, PlanSize::default()) {
            assert!(run.setup.memory_limit_mb().is_none() || run.backends.len() == 1, "{run:?}");
        }
        assert_eq!("cole".parse::<Paper>(), Ok(Paper::Cole));
        assert!("rainblock".parse::<Paper>().is_err());
    }

    /// Once the smallest size had the same race with three stores and with four, and its report
    /// could not be compared.
    #[test]
    fn no_store_is_measured_twice_on_the_same_work() {
        let sizes = PlanPreset::ALL.map(PlanSize::Preset);
        for size in sizes.into_iter().chain([0.1, 0.01, 1e-6].map(PlanSize::Scale)) {
            for paper in Paper::ALL {
                let plan = experiments(paper, size);
                for (n, one) in plan.iter().enumerate() {
                    for other in &plan[..n] {
                        let alike =
                            one.setup.covers(&other.setup) || other.setup.covers(&one.setup);
                        let shared = one.backends.iter().any(|name| other.backends.contains(name));
                        let twins = alike && (shared || one.backends.is_empty());
                        // Fig. 5 of LVMT runs its store alone, with both sizes of memory.
                        let is_apart = one.figures != other.figures;
                        assert!(!twins || is_apart, "{paper} {size}: {one:?} {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_size_at_which_figures_cannot_be_compared_is_named() {
        let regimes = |size| -> Vec<_> {
            let all = experiments(Paper::Lvmt, size);
            all.iter().map(|run| (run.setup.keys(), run.regime.clone())).collect()
        };
        let own = regimes(PlanSize::default());
        assert!(own.iter().all(|(_, regime)| regime.is_none()), "{own:?}");
        for (keys, regime) in regimes(PlanSize::Scale(0.01)) {
            let said = regime.is_some_and(|regime| regime == "one level of LVMT");
            // `bench crypto` has no state.
            assert_eq!(said, keys > 0 && keys < LVMT_ROOT_KEYS, "{keys}");
        }
        let smoke = regimes(PlanSize::Preset(PlanPreset::Smoke));
        assert!(smoke.iter().all(|(_, regime)| regime.is_some()), "{smoke:?}");
    }
}
