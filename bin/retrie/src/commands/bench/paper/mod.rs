//! `retrie bench paper`: runs a paper's experiments beside the values that the paper states, and
//! reports them figure by figure.
//!
//! Each experiment is an ordinary `retrie bench` command: its line ([`words`]) is printed, and what
//! runs is that line, parsed ([`work`]).
//!
//! ```text
//!  figures --> experiments at a size --> plan, without what lacks data (plan)
//!                                          |
//!           for each repetition and experiment: fits? --> races --> JSON (run; continued by resume)
//! ```

mod plan;
mod resume;
mod run;
mod words;
mod work;

use crate::output::{CommandOutput, ReportArgs, say};
use plan::PaperPlan;
use retrie_bench::paper::{FigureEntry, Paper, PlanPreset, PlanSize, figures, figures_named};
use run::PaperSession;
use std::sync::atomic::AtomicBool;

/// Scale without `--scale` and `--preset`.
const SCALE: f64 = 0.01;

/// Arguments of `retrie bench paper`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PaperArgs {
    /// The paper: lvmt, cole, lmpt, locality or bavl.
    #[arg(value_name = "PAPER")]
    paper: Paper,
    /// Sizes: `paper`, the paper's own; `laptop`, what a machine of 2 cores and 24 GiB does within an
    /// hour a repetition, all five papers together; `smoke`, everything in minutes, without any data, to see that it runs.
    #[arg(long, value_name = "PRESET", conflicts_with = "scale")]
    preset: Option<PlanPreset>,
    /// Scale of state sizes and run lengths; 1 is the paper's own [default: 0.01].
    #[arg(long, value_name = "FACTOR", value_parser = parse_scale)]
    scale: Option<f64>,
    /// Only these figures and tables, by name, separated by commas: `Fig. 2a`, `2` for all parts of
    /// Fig. 2, `Table I`. A figure without an experiment answers with the reason.
    #[arg(long, value_name = "NAMES")]
    figure: Option<String>,
    /// Run the whole plan this many times. The report has means with 95 % intervals (Student's t).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Continue a stopped run from its --json file: finished experiments are kept. The command must
    /// be the same but for --repeat, on the same machine and version. Without the file the run
    /// begins.
    #[arg(long, requires = "json")]
    resume: bool,
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
        let figures = self.figures()?;
        // Invalid flags are found before the first run.
        let plan = PaperPlan::new(self.paper, self.size(), &figures, &self.flags)?;
        if self.dry_run || plan.is_empty() {
            let out = CommandOutput::open(&self.report)?;
            print_reasons(&out, &figures)?;
            return plan.print(&out);
        }
        // Before the output is opened, which may replace the file.
        let run = PaperSession::begin(&self, plan)?;
        let out = CommandOutput::open(&self.report)?;
        print_reasons(&out, &figures)?;
        run.run(out, stop)
    }

    fn size(&self) -> PlanSize {
        let scale = PlanSize::Scale(self.scale.unwrap_or(SCALE));
        self.preset.map_or(scale, PlanSize::Preset)
    }

    /// The figures that are asked for, or all that have experiments.
    fn figures(&self) -> eyre::Result<Vec<&'static FigureEntry>> {
        Ok(match &self.figure {
            Some(names) => figures_named(self.paper, names)?,
            None => {
                figures(self.paper).iter().filter(|figure| figure.omission().is_none()).collect()
            }
        })
    }
}

/// Prints why figures have no experiment.
fn print_reasons(out: &CommandOutput, figures: &[&FigureEntry]) -> eyre::Result<()> {
    for figure in figures {
        if let Some(reason) = figure.omission() {
            say!(out, "{}: {}; not run: {reason}", figure.name, figure.caption);
        }
    }
    Ok(())
}
