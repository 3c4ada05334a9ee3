//! `retrie bench merge`: merges the reports of a replay's parts.

use crate::{
    commands::replay::table::print_summary,
    output::{CommandOutput, ReportArgs, command_line, say},
};
use eyre::bail;
use retrie_pipeline::{
    replay::PartSpec,
    report::{MergeSummary, ReplayReport},
};
use retrie_report::merge::{PartReport, merge};
use std::path::PathBuf;

/// Arguments of `retrie bench merge`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MergeArgs {
    /// Write the merged report as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write it as one HTML page with plots to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Files written by `retrie replay --part I/N --json`, in any order. A part given twice with
    /// the same results counts once.
    #[arg(value_name = "JSON", required = true)]
    reports: Vec<PathBuf>,
}

impl MergeArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let reports = self.reports.iter().map(|path| PartReport::read(path));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        let report = merge(&reports, command_line())?;
        let out = CommandOutput::open(&ReportArgs::files_only(self.json, self.report))?;
        if let Some(merged) = &report.merged {
            print_merged(&out, merged)?;
        }
        print_summary(&out, &report.results)?;
        print_failed(&out, &report)?;
        out.report(&report)?;
        verdict(&report)
    }
}

fn list(parts: &[PartSpec]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn print_merged(out: &CommandOutput, merged: &MergeSummary) -> eyre::Result<()> {
    say!(out, "{} of {} parts", merged.runs.len(), merged.parts);
    if !merged.repeated.is_empty() {
        say!(
            out,
            "given twice, with the same results, and counted once: {}",
            list(&merged.repeated)
        );
    }
    for spread in &merged.spread {
        say!(
            out,
            "\n{}: TPS of a machine {:.0} at the least, {:.0} in the median, {:.0} at most; of all {:.0}",
            spread.backend,
            spread.tps_min,
            spread.tps_median,
            spread.tps_max,
            spread.tps_sum
        );
        for machine in &spread.machines {
            say!(
                out,
                "  {:<24} {:>4} parts {:>10.3} s {:>9.0} TPS  {}",
                machine.host,
                machine.parts,
                machine.seconds,
                machine.tps,
                machine.machine
            );
        }
    }
    Ok(())
}

fn print_failed(out: &CommandOutput, report: &ReplayReport) -> eyre::Result<()> {
    for result in &report.results {
        let failed = result.part.iter().flat_map(|part| &part.failed_blocks);
        let failed: Vec<_> = failed.map(ToString::to_string).collect();
        if !failed.is_empty() {
            say!(out, "{}: {} failed blocks: {}", result.backend, failed.len(), failed.join(", "));
        }
    }
    Ok(())
}

/// An error if parts are missing, or a check has failed.
fn verdict(report: &ReplayReport) -> eyre::Result<()> {
    let missing = report.merged.as_ref().map_or(&[][..], |merged| &merged.missing);
    let mut failures = report.results.iter().flat_map(|result| &result.failures);
    match (missing, failures.next()) {
        ([], None) => Ok(()),
        ([], Some(failure)) => bail!("not all checks held: {failure}"),
        (missing, None) => bail!("parts are missing: {}", list(missing)),
        (missing, Some(failure)) => {
            bail!("parts are missing: {}; and not all checks held: {failure}", list(missing))
        }
    }
}
