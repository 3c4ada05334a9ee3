//! Runs a plan: each experiment, as often as it is repeated, with the stores that fit at once.

use super::{
    PaperArgs,
    plan::{PaperPlan, quoted, title},
    resume::resumed,
    work::ExperimentWork,
};
use crate::output::{CommandOutput, command_line, say};
use eyre::{WrapErr, eyre};
use retrie_bench::{
    cache::StateCache,
    paper::{FreeResources, PaperExperiment, RaceGroups, references},
};
use retrie_report::{BenchReport, BenchResult, FinishedStep, figure_verdicts};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// How the note about repetitions begins.
const REPEATED: &str = "Each experiment ran";

/// A run of a paper's experiments, from its start or continued.
pub(super) struct PaperSession {
    plan: PaperPlan,
    repeat: u32,
    report: BenchReport,
}

impl PaperSession {
    /// The run of a plan, continued from its file if that was asked for.
    pub(super) fn begin(args: &PaperArgs, plan: PaperPlan) -> eyre::Result<Self> {
        let mut report = BenchReport::new(command_line(), Vec::new());
        report.complete = false;
        report.paper = Some(plan.paper.short_title().into());
        report.references = references(plan.paper);
        report.figures = plan.outlines();
        report.notes.push(format!("{}, {}", plan.paper.citation(), plan.size));
        report.notes.extend(plan.paper.remarks().iter().map(ToString::to_string));
        if let Some(file) = args.report.json_file().filter(|_| args.resume)
            && let Some(found) = resumed(file, &report)?
        {
            report = found;
        }
        if args.repeat > 1 {
            // What ran once, before it was to be repeated, is the first repetition.
            for result in &mut report.results {
                result.repetition.get_or_insert(1);
            }
            report.notes.retain(|note| !note.starts_with(REPEATED));
            let times = format!("{REPEATED} {} times, the whole plan in turn", args.repeat);
            report.notes.insert(1, format!("{times}: values are means with 95 % intervals."));
        }
        Ok(Self { plan, repeat: args.repeat, report })
    }

    /// Runs what is not finished yet, and writes the report. Results measured before an error are
    /// kept.
    pub(super) fn run(mut self, out: CommandOutput, stop: &AtomicBool) -> eyre::Result<()> {
        say!(out, "{}\n{}", self.report.notes[0], self.report.machine);
        if !self.report.steps.is_empty() {
            say!(out, "continued after {} finished steps", self.report.steps.len());
        }
        let ended = self.steps(&out, stop);
        self.report.complete = ended.is_ok();
        for (figure, verdict) in figure_verdicts(&self.report) {
            say!(out, "\n{figure}: {verdict}");
        }
        out.report(&self.report)?;
        ended
    }

    fn steps(&mut self, out: &CommandOutput, stop: &AtomicBool) -> eyre::Result<()> {
        let experiments = self.plan.experiments.clone();
        let of = experiments.len();
        for repetition in 1..=self.repeat {
            for (number, experiment) in (1..).zip(&experiments) {
                let again = match self.repeat {
                    1 => String::new(),
                    repeat => format!(", repetition {repetition} of {repeat}"),
                };
                say!(out, "\n[{number}/{of}{again}] {}", title(experiment));
                let key = self.key(experiment, repetition);
                if self.report.steps.iter().any(|step| step.key == key) {
                    say!(out, "  finished before");
                    continue;
                }
                if stop.load(Ordering::Relaxed) {
                    return Err(eyre!("stopped before {}", title(experiment)));
                }
                let before = self.report.results.len();
                let is_done = self.step(experiment, repetition, out, stop);
                if is_done.wrap_err_with(|| title(experiment))? {
                    let results = self.report.results.len() - before;
                    self.report.steps.push(FinishedStep { key, results });
                    out.save(&self.report)?;
                }
            }
        }
        Ok(())
    }

    /// What tells a step from all others.
    fn key(&self, experiment: &PaperExperiment, repetition: u32) -> String {
        let words = self.plan.words(experiment, experiment.backends, false);
        format!("{}; {}; {repetition}", experiment.label(), quoted(&words))
    }

    /// Runs an experiment once; `false` if it does not run on this machine.
    fn step(
        &mut self,
        experiment: &PaperExperiment,
        repetition: u32,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<bool> {
        if !experiment.note.is_empty() {
            say!(out, "  {}", experiment.note);
            self.note(format!("{}: {}", title(experiment), experiment.note));
        }
        if let Some(reason) = &experiment.omission {
            say!(out, "  not run: {reason}");
            self.note(format!("{}: not run: {reason}.", title(experiment)));
            return Ok(false);
        }
        let groups = experiment.setup.groups(experiment.backends, &self.free());
        for refused in &groups.refused {
            say!(out, "  not run: {refused}");
            self.note(format!("{}: not run: {refused}.", title(experiment)));
        }
        let alone = groups.is_scratch && experiment.backends.len() > 1;
        if alone && !groups.groups.is_empty() {
            say!(out, "  one store at a time: together they need more disk or memory than is free");
        }
        let RaceGroups { groups, is_scratch, .. } = &groups;
        for backends in groups {
            let words = self.plan.words(experiment, backends, *is_scratch);
            say!(out, "  retrie bench {}", quoted(&words));
            let measured = ExperimentWork::of(&words)?.measure(out, stop)?;
            let of_step = |result| self.of_step(result, experiment, repetition, alone);
            let results: Vec<_> = measured.results.into_iter().map(of_step).collect();
            self.report.results.extend(results);
            measured.notes.into_iter().for_each(|note| self.note(note));
            measured.ended?;
        }
        Ok(!groups.is_empty())
    }

    fn of_step(
        &self,
        mut result: BenchResult,
        experiment: &PaperExperiment,
        repetition: u32,
        alone: bool,
    ) -> BenchResult {
        let params = &mut result.params;
        params.insert("figure".into(), experiment.label().into());
        if let Some(regime) = &experiment.regime {
            params.insert("regime".into(), regime.clone().into());
        }
        if alone {
            params.insert("raced".into(), "alone".into());
        }
        result.repetition = (self.repeat > 1).then_some(repetition);
        result
    }

    fn note(&mut self, note: String) {
        if !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    /// What is free now, where prepared states and temporary files are.
    fn free(&self) -> FreeResources {
        let temporary = std::env::temp_dir();
        let kept = match self.plan.state_cache() {
            Some("none") => None,
            Some(folder) => Some(PathBuf::from(folder)),
            None => StateCache::user_default().folder().map(Into::into),
        };
        FreeResources::measured(kept.as_deref().unwrap_or(&temporary), &temporary)
    }
}
