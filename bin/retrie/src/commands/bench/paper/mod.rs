//! `retrie bench paper`: runs a paper's experiments, scaled to fit this machine, beside the paper's
//! own figures.
//!
//! Each experiment is an ordinary `retrie bench` command ([`work`]), and its command line is
//! printed ([`words`]), so that it can be run alone and varied.

mod words;
mod work;

use crate::output::{CommandOutput, ReportArgs, command_line, say};
use eyre::{Context, bail, eyre};
use retrie_bench::paper::{Paper, PaperExperiment, experiments, references};
use retrie_report::BenchReport;
use std::sync::atomic::{AtomicBool, Ordering};
use work::ExperimentWork;

/// Arguments of `retrie bench paper`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PaperArgs {
    /// The paper: lvmt, cole, lmpt, locality or bavl.
    #[arg(value_name = "PAPER")]
    paper: Paper,
    /// Scale of state sizes and run lengths; 1 is the paper's own.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01, value_parser = parse_scale)]
    scale: f64,
    /// Only the figures whose name contains this text (`Fig. 2a`, `4`).
    #[arg(long, value_name = "TEXT")]
    figure: Option<String>,
    /// Print the commands without running them.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// More flags for every race, after `--`: `-- --sync none --retention 0`.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let fits = scale.is_finite() && scale > 0.0 && scale <= 1.0;
    if fits { Ok(scale) } else { Err("it lies above 0, and is 1 at most".into()) }
}

impl PaperArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let mut experiments = experiments(self.paper, self.scale);
        if let Some(text) = &self.figure {
            experiments.retain(|experiment| experiment.figure.contains(text.as_str()));
            if experiments.is_empty() {
                bail!("the paper `{}` has no experiment for --figure {text}", self.paper);
            }
        }
        // Invalid flags are found before the first run.
        let plan: Vec<_> = experiments
            .iter()
            .map(|experiment| Ok((experiment, self.step(experiment)?)))
            .collect::<eyre::Result<_>>()?;
        let out = CommandOutput::open(&self.report)?;
        let mut report = BenchReport::new(command_line(), Vec::new());
        report.references = references(self.paper);
        report.notes.push(format!("{}, at {} of its size", self.paper.citation(), self.scale));
        report.notes.extend(self.paper.remarks().iter().map(ToString::to_string));
        say!(out, "{}\n{}", report.notes[0], report.machine);
        let of = plan.len();
        let mut ended = Ok(());
        for (number, (experiment, step)) in (1..).zip(plan) {
            if stop.load(Ordering::Relaxed) {
                ended = Err(eyre!("stopped before {}", title(experiment)));
            }
            if ended.is_err() {
                break;
            }
            say!(out, "\n[{number}/{of}] {}", title(experiment));
            say!(out, "  retrie bench {}", step.words.join(" "));
            if !experiment.note.is_empty() {
                say!(out, "  {}", experiment.note);
                let note = format!("{}: {}", title(experiment), experiment.note);
                if !report.notes.contains(&note) {
                    report.notes.push(note);
                }
            }
            if self.dry_run {
                continue;
            }
            // The results measured before an error are kept.
            ended = step.work.measure(&out, stop).and_then(|mut measured| {
                for result in &mut measured.results {
                    result.params.insert("figure".into(), experiment.figure.into());
                }
                report.results.extend(measured.results);
                let known = |note: &String| report.notes.contains(note);
                measured.notes.retain(|note| !known(note));
                report.notes.append(&mut measured.notes);
                measured.ended
            });
            ended = ended.wrap_err_with(|| title(experiment));
        }
        report.complete = ended.is_ok();
        if !self.dry_run {
            out.report(&report)?;
        }
        ended
    }

    /// The step for an experiment.
    fn step(&self, experiment: &PaperExperiment) -> eyre::Result<ExperimentStep> {
        let mut words = words::words(&experiment.setup);
        // The extra flags are only for stores.
        let flags = if experiment.backends.is_empty() { &[] } else { &self.flags[..] };
        if !experiment.backends.is_empty() {
            words.extend(["--backends".into(), experiment.backends.join(",")]);
        }
        let work = ExperimentWork::new(experiment, &words, flags);
        words.extend_from_slice(flags);
        let work = work.wrap_err_with(|| format!("retrie bench {}", words.join(" ")))?;
        Ok(ExperimentStep { words, work })
    }
}

/// An experiment's command, ready to run.
struct ExperimentStep {
    /// The words after `retrie bench`.
    words: Vec<String>,
    work: ExperimentWork,
}

fn title(experiment: &PaperExperiment) -> String {
    format!("{}, {}", experiment.figure, experiment.title)
}
