//! The commands of experiments, with their arguments.

use crate::{
    commands::bench::{
        crypto::CryptoArgs, locality::LocalityArgs, measurement::RaceMeasurement, race::BenchRace,
        tree_sync::TreeFetchArgs, trees::TreesArgs,
    },
    output::CommandOutput,
};
use clap::Parser;
use std::sync::atomic::AtomicBool;

/// The command of an experiment.
#[derive(Debug, clap::Subcommand)]
pub(super) enum ExperimentWork {
    #[command(flatten)]
    Race(Box<BenchRace>),
    /// Counts and times in flat files and in rows.
    Locality(LocalityArgs),
    /// Trees in memory.
    Trees(TreesArgs),
    /// The same trees, fetched from peers.
    Sync(TreeFetchArgs),
    /// Operations on curves.
    Crypto(CryptoArgs),
}

/// The command line after `retrie bench`.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true)]
struct BenchLine {
    #[command(subcommand)]
    work: ExperimentWork,
}

impl ExperimentWork {
    /// The work of a command line, so that what is run is what is printed. A flag that the
    /// experiment sets cannot be given again; further `--backends` race beside its own.
    pub(super) fn of(words: &[String]) -> Result<Self, clap::Error> {
        Ok(BenchLine::try_parse_from(words)?.work)
    }

    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        match self {
            Self::Race(race) => race.measure(out, stop),
            Self::Locality(args) => args.measured(out, stop),
            Self::Trees(args) => args.measured(out, stop),
            Self::Sync(args) => args.measured(out, stop),
            Self::Crypto(args) => args.measured(out, stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::words::words, *};
    use retrie_bench::paper::{ExperimentSetup, Paper, PlanPreset, PlanSize, experiments};

    #[test]
    fn every_experiment_of_every_paper_is_a_valid_command() {
        let sizes = PlanPreset::ALL.map(PlanSize::Preset);
        for paper in Paper::ALL {
            for size in sizes.into_iter().chain([0.01, 1e-6].map(PlanSize::Scale)) {
                for experiment in experiments(paper, size) {
                    let words = words(&experiment.setup, experiment.backends);
                    let line = ExperimentWork::of(&words);
                    assert!(line.is_ok(), "{paper}: {words:?}: {}", line.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn flags_that_the_experiment_sets_are_refused_and_backends_are_added() {
        let all = experiments(Paper::Bavl, PlanSize::Scale(0.01));
        let state = all.iter().find(|one| matches!(one.setup, ExperimentSetup::State { .. }));
        let state = state.unwrap();
        let words = words(&state.setup, state.backends);
        let with = |flags: &[&str]| {
            let flags = flags.iter().map(ToString::to_string);
            ExperimentWork::of(&words.iter().cloned().chain(flags).collect::<Vec<_>>())
        };
        for flags in [&["--pairs", "5"][..], &["--pairs=5"]] {
            let error = with(flags).unwrap_err().to_string();
            assert!(error.contains("cannot be used multiple times"), "{error}");
        }
        let work = with(&["--sync", "none", "--backends", "raw"]).unwrap();
        let ExperimentWork::Race(race) = work else { panic!("{work:?}") };
        let BenchRace::State(args) = *race else { panic!("{race:?}") };
        assert_eq!(args.stores.backends, ["bavl", "mpt", "mpt-archive", "raw"]);
    }
}
