//! The plan of a run: the experiments of some figures, and what each needs.

use super::{words::words, work::ExperimentWork};
use crate::{
    commands::bench::chain::data_folder,
    output::{CommandOutput, say},
};
use eyre::WrapErr;
use retrie_bench::{
    chain::ContractSet,
    paper::{ExperimentSetup, FigureEntry, Paper, PaperExperiment, PlanSize, experiments, figures},
};
use retrie_report::FigureOutline;
use std::path::Path;

/// The experiments of a run, in the paper's order.
#[derive(Debug)]
pub(super) struct PaperPlan {
    pub(super) paper: Paper,
    pub(super) size: PlanSize,
    pub(super) experiments: Vec<PaperExperiment>,
    /// More flags for stores.
    pub(super) flags: Vec<String>,
}

impl PaperPlan {
    /// The experiments that make one of `figures`, with the user's `flags` for stores. What lacks
    /// data has the reason, or runs with contracts of this program.
    ///
    /// # Errors
    /// If a command is not valid with these flags.
    pub(super) fn new(
        paper: Paper,
        size: PlanSize,
        figures: &[&FigureEntry],
        flags: &[String],
    ) -> eyre::Result<Self> {
        let mut all = experiments(paper, size);
        all.retain(|one| figures.iter().any(|figure| one.figures.contains(&figure.name)));
        let data = data_folder();
        all.iter_mut().for_each(|experiment| adapt(experiment, &data));
        let plan = Self { paper, size, experiments: all, flags: flags.into() };
        for experiment in &plan.experiments {
            let words = plan.words(experiment, experiment.backends, false);
            ExperimentWork::of(&words)
                .wrap_err_with(|| format!("retrie bench {}", words.join(" ")))?;
        }
        Ok(plan)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.experiments.is_empty()
    }

    /// The words after `retrie bench` of an experiment with some of its backends, on states that
    /// are not kept if `is_scratch`.
    pub(super) fn words(
        &self,
        experiment: &PaperExperiment,
        backends: &[&str],
        is_scratch: bool,
    ) -> Vec<String> {
        let mut words = words(&experiment.setup, backends);
        // Only with a trie that has a choice is the flag allowed.
        let has_choice = backends.iter().any(|name| name.starts_with("mpt-archive"));
        if let Some(hash) = experiment.hash.filter(|_| has_choice) {
            words.extend(["--hash".to_owned(), hash.to_owned()]);
        }
        // The extra flags are only for stores.
        if !experiment.backends.is_empty() {
            words.extend_from_slice(&self.flags);
            if is_scratch && self.state_cache().is_none() {
                words.extend([STATE_CACHE.to_owned(), "none".to_owned()]);
            }
        }
        words
    }

    /// The folder of prepared states that the user's flags name.
    pub(super) fn state_cache(&self) -> Option<&str> {
        let mut flags = self.flags.iter();
        while let Some(flag) = flags.next() {
            match flag.strip_prefix(STATE_CACHE) {
                Some("") => return flags.next().map(String::as_str),
                Some(rest) => return rest.strip_prefix('='),
                None => {}
            }
        }
        None
    }

    /// All figures of the paper, with the commands of this run.
    pub(super) fn outlines(&self) -> Vec<FigureOutline> {
        let outline = |figure: &FigureEntry| {
            let (mut commands, mut reasons) = (Vec::new(), Vec::new());
            for one in self.experiments.iter().filter(|one| one.figures.contains(&figure.name)) {
                let words = self.words(one, one.backends, false);
                match &one.omission {
                    None => commands.push(format!("retrie bench {}", quoted(&words))),
                    Some(reason) => reasons.push(reason.clone()),
                }
            }
            let mut outline = figure.outline(commands);
            if outline.omission.is_none() && outline.commands.is_empty() {
                outline.omission = reasons.into_iter().next();
            }
            outline
        };
        figures(self.paper).iter().map(outline).collect()
    }

    /// Prints the commands, without running them.
    pub(super) fn print(&self, out: &CommandOutput) -> eyre::Result<()> {
        let of = self.experiments.len();
        for (number, experiment) in (1..).zip(&self.experiments) {
            say!(out, "\n[{number}/{of}] {}", title(experiment));
            let words = self.words(experiment, experiment.backends, false);
            say!(out, "  retrie bench {}", quoted(&words));
            if let Some(reason) = &experiment.omission {
                say!(out, "  not run: {reason}");
            }
            if !experiment.note.is_empty() {
                say!(out, "  {}", experiment.note);
            }
        }
        Ok(())
    }
}

const STATE_CACHE: &str = "--state-cache";

/// Figures, title and regime of an experiment.
pub(super) fn title(experiment: &PaperExperiment) -> String {
    let regime = experiment.regime.as_ref();
    let regime = regime.map_or_else(String::new, |regime| format!(" ({regime})"));
    format!("{}: {}{regime}", experiment.label(), experiment.title)
}

/// Words as a shell takes them: real names have no other special characters.
pub(super) fn quoted(words: &[String]) -> String {
    let word = |word: &String| match word.contains(' ') {
        true => format!("'{word}'"),
        false => word.clone(),
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Finds what an experiment lacks in the folder of real data.
fn adapt(experiment: &mut PaperExperiment, data: &Path) {
    match &mut experiment.setup {
        ExperimentSetup::Replay { .. } => {
            let folder = data.join("mainnet");
            let parts = ["witness", "prestate", "diffs"];
            let missing = parts.iter().find(|part| !folder.join(part).is_dir());
            if let (Some(missing), None) = (missing, &experiment.omission) {
                experiment.omission = Some(format!(
                    "it needs real blocks of mainnet, and there is no {}: RETRIE_DATA names the \
                     folder above `mainnet`",
                    folder.join(missing).display()
                ));
            }
        }
        ExperimentSetup::Chain { workload: "erc20" | "uniswap", own_contracts, .. }
            if !*own_contracts =>
        {
            if let Err(error) = ContractSet::mainnet(data) {
                *own_contracts = true;
                experiment.add_note(&format!(
                    "With contracts of this program, because mainnet's are missing: {error}."
                ));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_bench::paper::PlanPreset;
    use std::collections::BTreeSet;

    fn all_figures(paper: Paper) -> Vec<&'static FigureEntry> {
        figures(paper).iter().collect()
    }

    /// What CI runs of `bench paper NAME --dry-run --preset smoke`, for all papers.
    #[test]
    fn the_smoke_plan_of_every_paper_needs_no_data_and_covers_every_figure() {
        for paper in Paper::ALL {
            let size = PlanSize::Preset(PlanPreset::Smoke);
            let mut plan = PaperPlan::new(paper, size, &all_figures(paper), &[]).unwrap();
            let nowhere = Path::new("/nowhere");
            plan.experiments = experiments(paper, size);
            plan.experiments.iter_mut().for_each(|experiment| adapt(experiment, nowhere));
            plan.print(&CommandOutput::default()).unwrap();
            let planned: BTreeSet<_> = plan
                .experiments
                .iter()
                .filter(|experiment| experiment.omission.is_none())
                .flat_map(|experiment| experiment.figures.iter().copied())
                .collect();
            for outline in plan.outlines() {
                let is_planned = planned.contains(outline.name.as_str());
                assert_eq!(is_planned, outline.omission.is_none(), "{paper}, {}", outline.name);
                assert_eq!(is_planned, !outline.commands.is_empty(), "{paper}, {}", outline.name);
            }
            for experiment in &plan.experiments {
                let needs = matches!(experiment.setup, ExperimentSetup::Replay { .. });
                let capped = experiment.setup.memory_limit_mb().is_some();
                assert_eq!(experiment.omission.is_some(), needs || capped, "{experiment:?}");
            }
        }
    }

    #[test]
    fn missing_data_is_named_or_replaced() {
        let mut all = experiments(Paper::Lvmt, PlanSize::Scale(0.01));
        all.iter_mut().for_each(|experiment| adapt(experiment, Path::new("/nowhere")));
        let replay = all.iter().find_map(|one| one.omission.clone()).unwrap();
        assert!(replay.contains("/nowhere/mainnet/witness"), "{replay}");
        let tokens = all.iter().find(|one| one.figures.contains(&"Fig. 2b")).unwrap();
        assert!(tokens.note.contains("contracts of this program"), "{}", tokens.note);
        assert!(words(&tokens.setup, tokens.backends).join(" ").contains("--contracts own"));
    }

    #[test]
    fn a_state_that_is_not_kept_says_so_unless_the_user_chose_a_folder() {
        let figures = all_figures(Paper::Lvmt);
        let line = |flags: &[&str]| {
            let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
            let plan =
                PaperPlan::new(Paper::Lvmt, PlanSize::Scale(0.01), &figures, &flags).unwrap();
            let last = plan.experiments.last().unwrap();
            (plan.words(last, &["raw"], true).join(" "), plan.state_cache().map(str::to_owned))
        };
        assert!(line(&[]).0.ends_with("--backends raw --state-cache none"));
        let (words, folder) = line(&["--state-cache=/disk", "--sync", "none"]);
        assert_eq!((words.contains("none --state"), folder.as_deref()), (false, Some("/disk")));
        assert_eq!(line(&["--state-cache", "none"]).1.as_deref(), Some("none"));
    }
}
