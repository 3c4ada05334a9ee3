//! Advice for errors of measurements and exports.

use super::{AdviceText, db, pipeline, say, source, typed};
use crate::commands::bench;
use retrie_bench::{BenchError, chain::MakeChainError};
use retrie_export::{BlockSourceError, ExportError, ExportFileError};
use std::{borrow::Cow, error::Error};

/// The advice for one error of a chain of causes.
pub(super) fn about(error: &(dyn Error + 'static)) -> AdviceText {
    typed::<BenchError>(error, race)
        .or_else(|| typed::<ExportError>(error, export))
        .or_else(|| typed::<BlockSourceError>(error, exported_block))
        .or_else(|| bench::advice::of(error).map(Cow::Owned))
}

fn race(error: &BenchError) -> AdviceText {
    match error {
        BenchError::MakeChain(MakeChainError::Pipeline(error)) => pipeline(error),
        _ => None,
    }
}

fn export(error: &ExportError) -> AdviceText {
    match error {
        ExportError::Block(error) => exported_block(error),
        ExportError::File(error) => exported_file(error),
        _ => None,
    }
}

fn exported_block(error: &BlockSourceError) -> AdviceText {
    match error {
        BlockSourceError::NoState { .. } => {
            say("begin with a later block (--from), or leave out the tables that end with _diffs")
        }
        BlockSourceError::Db(error) => db(error),
        BlockSourceError::Source(error) => source(error),
        BlockSourceError::Bundle(error) => pipeline(error),
        _ => None,
    }
}

fn exported_file(error: &ExportFileError) -> AdviceText {
    match error {
        ExportFileError::Damaged { .. } => say("delete it, or write all files anew (--overwrite)"),
        ExportFileError::OtherContent { .. } => {
            say("export into another folder, or write all files anew (--overwrite)")
        }
        ExportFileError::Overlap { .. } => {
            say("export into another folder, delete the file, or give the --chunk-size of before")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::for_error;
    use eyre::Report;
    use retrie_bench::RaceSetting;
    use retrie_pipeline::PipelineError;
    use retrie_state::StateError;

    #[test]
    fn causes_of_a_failed_race_are_found() {
        let beyond = || StateError::BeyondRetention { number: 3, first: 6, retention: 6 };
        let race = || BenchError::State { backend: "mpt".into(), source: beyond() };
        let made = MakeChainError::from(PipelineError::from(beyond()));
        let setting = BenchError::Setting { setting: RaceSetting::Blocks, what: "none".into() };
        let reports: [(BenchError, &str); 3] = [
            (race(), "--retention"),
            // The advice about a full disk comes before the advice about the command that filled
            // it.
            (
                BenchError::DiskFull { folder: "/data".into(), source: Box::new(race()) },
                "--state-cache",
            ),
            (made.into(), "--retention"),
        ];
        for (error, flag) in reports {
            let report = Report::new(error);
            let advice = for_error(&report).unwrap_or_else(|| panic!("no advice: {report:#}"));
            assert!(advice.contains(flag), "{report:#}: {advice}");
        }
        assert_eq!(for_error(&setting.into()).unwrap(), "change --blocks");
    }
}
