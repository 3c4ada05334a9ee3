//! `retrie bench compare`: shows what became slower or larger between two JSON reports.

use crate::output::{CommandOutput, grouped, say};
use eyre::bail;
use retrie_report::{
    ReportDocument,
    compare::{ChangeVerdict, FigureChange, compare},
    percent,
};
use std::path::PathBuf;

/// The meaning of the table's figures, for the end of `--help`.
const HELP: &str = "Results are matched by backend, workload and params. A figure that depends on time \
is judged relative to a yardstick of its own run (`raw`, or else the first backend that both files have), \
so a machine that is slower as a whole does not count as a regression. A figure is worse only if the change \
exceeds the threshold and its 99 % interval over the slices (rank test of Mann and Whitney) lies below 0. \
Disk and amplification have no noise: changes below 1 % are not shown, and changes between a stopped and a \
complete run, or between different params, are not judged. Figures with a single value in each run are not \
judged either: the sustained rate with its stalls and final flush, and tail latency. If both files repeat \
their measurements (bench paper --repeat), these figures too are judged, by the noise between repetitions \
(Welch's test, whose error of 1 % is divided among all figures).";

/// An interval up to ten times the old value says nothing.
const WIDEST: f64 = 9.0;

/// Arguments of `retrie bench compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CompareArgs {
    /// The older JSON report.
    #[arg(value_name = "OLD.json")]
    old: PathBuf,
    /// The newer JSON report.
    #[arg(value_name = "NEW.json")]
    new: PathBuf,
    /// Changes up to this threshold do not count.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    threshold: f64,
    /// Exit with code 1 if a figure is worse.
    #[arg(long)]
    fail: bool,
}

/// Parses `5%`, `2.5 %` or `5` as a fraction.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(points) if (0.0..=1000.0).contains(&points) => Ok(points / 100.0),
        _ => Err(format!("`{text}` is not a percentage such as 5% or 2.5%")),
    }
}

impl CompareArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let (old, new) = (ReportDocument::read(&self.old)?, ReportDocument::read(&self.new)?);
        let comparison = compare(&old, &new, self.threshold)?;
        let out = CommandOutput::default();
        say!(out, "old: {} ({})", old.name, old.report.command);
        say!(out, "new: {} ({})", new.name, new.report.command);
        for remark in &comparison.remarks {
            say!(out, "note: {remark}");
        }
        for pair in &comparison.pairs {
            match &pair.yardstick {
                Some(name) => say!(out, "\n{}, held against {name}", pair.what),
                None => say!(out, "\n{}", pair.what),
            }
            say!(
                out,
                "  {:<17} {:>14} {:>14} {:>9} {:>10}  {:<19} verdict",
                "",
                "old",
                "new",
                "change",
                "relative",
                "noise"
            );
            for change in &pair.changes {
                print_change(&out, change)?;
            }
        }
        let sides = [("old", &comparison.only_old), ("new", &comparison.only_new)];
        for (side, names) in sides.into_iter().filter(|(_, names)| !names.is_empty()) {
            say!(out, "\nonly in the {side} file:");
            for name in names {
                say!(out, "  {name}");
            }
        }
        let worse = comparison.regressions();
        say!(out, "\n{} worse by more than {:.1} %", worse.len(), self.threshold * 100.0);
        match &worse[..] {
            [] => Ok(()),
            [first, rest @ ..] if self.fail => match rest.len() {
                0 => bail!("regression: {first}"),
                more => bail!("{} regressions: {first}; and {more} more", worse.len()),
            },
            _ => Ok(()),
        }
    }
}

fn print_change(out: &CommandOutput, change: &FigureChange) -> eyre::Result<()> {
    let figure = |value: f64| match value {
        value if value >= 1000.0 => grouped(value.round() as u64),
        value => format!("{value:.2}"),
    };
    let interval = |(low, high): (f64, f64)| match high {
        _ if high > WIDEST => "too few repetitions".into(),
        _ => format!("{} to {}", percent(low), percent(high)),
    };
    let verdict = match change.verdict {
        ChangeVerdict::Better => "better",
        ChangeVerdict::Worse => "WORSE",
        ChangeVerdict::Same => "same",
        ChangeVerdict::Yardstick => "yardstick",
        ChangeVerdict::Unknown => "not judged",
    };
    say!(
        out,
        "  {:<17} {:>14} {:>14} {:>9} {:>10}  {:<19} {verdict}",
        change.metric,
        figure(change.old),
        figure(change.new),
        percent(change.change),
        change.relative.map_or_else(|| "-".into(), percent),
        change.interval.map_or_else(|| "-".into(), interval),
    );
    Ok(())
}
