//! `retrie bench compare`: what has become slower or larger between two JSON reports.

use crate::output::{Output, grouped, say};
use eyre::bail;
use retrie_bench::report::{
    Document,
    compare::{Change, Verdict, compare},
    percent,
};
use std::path::PathBuf;

/// What the figures of the table mean, below `--help`.
const HELP: &str = "Results are matched by backend, workload and params. A figure that depends on time \
is judged relative to a yardstick of its own run (`raw`, or else the first backend that both files have), \
so a machine that is slower as a whole is no regression. It is called worse only if it is so by more than \
the threshold, and if the 99 % interval that the slices show (rank test of Mann and Whitney) lies below 0. \
Disk and amplification have no noise; changes of them below 1 % are not shown, and those between a \
stopped and a complete run, or between other params, are not judged. Nor is a figure that a run has but \
one of: the sustained rate, with its stalls and final flush, and tail latency.";

/// Arguments of `retrie bench compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The JSON report before.
    #[arg(value_name = "OLD.json")]
    old: PathBuf,
    /// The JSON report after.
    #[arg(value_name = "NEW.json")]
    new: PathBuf,
    /// Changes up to this are none.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    threshold: f64,
    /// End with exit code 1 if something is worse.
    #[arg(long)]
    fail: bool,
}

/// `5%`, `2.5 %` or `5`, as a fraction.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(points) if (0.0..=1000.0).contains(&points) => Ok(points / 100.0),
        _ => Err(format!("`{text}` is not a percentage such as 5% or 2.5%")),
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let (old, new) = (Document::read(&self.old)?, Document::read(&self.new)?);
        let comparison = compare(&old, &new, self.threshold)?;
        let out = Output::default();
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

fn print_change(out: &Output, change: &Change) -> eyre::Result<()> {
    let figure = |value: f64| match value {
        value if value >= 1000.0 => grouped(value.round() as u64),
        value => format!("{value:.2}"),
    };
    let interval = |(low, high): (f64, f64)| format!("{} to {}", percent(low), percent(high));
    let verdict = match change.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Same => "same",
        Verdict::Yardstick => "yardstick",
        Verdict::Unknown => "not judged",
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
