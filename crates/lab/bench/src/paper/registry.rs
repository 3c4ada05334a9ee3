//! The figures and tables of each paper, all of them, in the paper's order, and how they are found
//! by name.

use super::{Paper, bavl, cole, lmpt, locality, lvmt};
use retrie_report::{FigureOutline, FigurePlot, PlotAxis};

/// A figure or table of a paper, or a measurement of ours that goes with the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureEntry {
    /// The exact name: `Fig. 2a`, `Table I`. Measurements of ours have a word: `Interval`.
    pub name: &'static str,
    /// What it shows, in our words.
    pub caption: &'static str,
    /// What is plotted; empty without an experiment.
    pub plots: &'static [PlotEntry],
    /// How it is made.
    pub origin: FigureOrigin,
}

/// Metrics against a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlotEntry {
    /// Name and unit of the parameter; `None` for one value a system.
    pub x: Option<(&'static str, &'static str)>,
    /// The metrics, as in [`retrie_report::ReferenceFigure::metric`].
    pub y: &'static [&'static str],
}

/// How a figure is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureOrigin {
    /// By experiments of `bench paper`, which name it.
    Experiments,
    /// Not at all, for this reason.
    Omission(&'static str),
}

impl FigureEntry {
    /// A figure that experiments make.
    pub(super) const fn measured(
        name: &'static str,
        caption: &'static str,
        plots: &'static [PlotEntry],
    ) -> Self {
        Self { name, caption, plots, origin: FigureOrigin::Experiments }
    }

    /// A figure without an experiment, and the reason.
    pub(super) const fn omitted(
        name: &'static str,
        caption: &'static str,
        reason: &'static str,
    ) -> Self {
        Self { name, caption, plots: &[], origin: FigureOrigin::Omission(reason) }
    }

    /// Why `bench paper` does not run it; `None` if it does.
    pub const fn omission(&self) -> Option<&'static str> {
        match self.origin {
            FigureOrigin::Experiments => None,
            FigureOrigin::Omission(reason) => Some(reason),
        }
    }

    /// The figure in a report, made by `commands`.
    pub fn outline(&self, commands: Vec<String>) -> FigureOutline {
        let axis =
            |(param, unit): (&str, &str)| PlotAxis { param: param.into(), unit: unit.into() };
        let plot = |plot: &PlotEntry| FigurePlot {
            x: plot.x.map(axis),
            y: plot.y.iter().map(ToString::to_string).collect(),
        };
        FigureOutline {
            name: self.name.into(),
            caption: self.caption.into(),
            plots: self.plots.iter().map(plot).collect(),
            omission: self.omission().map(Into::into),
            commands,
        }
    }
}

/// The reason for pictures of a method.
pub(super) const ILLUSTRATION: &str = "an illustration: it measures nothing";
/// The reason for printed algorithms.
pub(super) const ALGORITHM: &str = "an algorithm in print: it measures nothing";

/// All figures and tables of `paper` in its order, then measurements of ours beside it.
pub const fn figures(paper: Paper) -> &'static [FigureEntry] {
    match paper {
        Paper::Lvmt => lvmt::FIGURES,
        Paper::Cole => cole::FIGURES,
        Paper::Lmpt => lmpt::FIGURES,
        Paper::Locality => locality::FIGURES,
        Paper::Bavl => bavl::FIGURES,
    }
}

/// A name that no figure of a paper has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the paper `{paper}` has no figure `{name}`: it has {}", known.join(", "))]
pub struct UnknownFigure {
    paper: Paper,
    name: String,
    known: Vec<&'static str>,
}

/// The figures of `paper` that `names` means, separated by commas: `Fig. 2a`, `Figure 2` for its
/// parts 2a and 2b, `Table I`, `4, 6` for Figs. 4 and 6. A number alone is a figure's, or a table's
/// if there is no such figure.
///
/// # Errors
/// [`UnknownFigure`] lists the names.
pub fn figures_named(
    paper: Paper,
    names: &str,
) -> Result<Vec<&'static FigureEntry>, UnknownFigure> {
    let mut found: Vec<&FigureEntry> = Vec::new();
    let mut kind = None;
    for name in names.split(',') {
        let (own, label) = parts(name);
        kind = own.or(kind);
        let of = |kind: Option<FigureKind>| -> Vec<&FigureEntry> {
            figures(paper)
                .iter()
                .filter(|figure| {
                    let (its, its_label) = parts(figure.name);
                    its == kind && is_label(&its_label, &label)
                })
                .collect()
        };
        let any = [Some(FigureKind::Figure), Some(FigureKind::Table), None];
        let kinds = if kind.is_some() { &[kind][..] } else { &any };
        let Some(these) = kinds.iter().map(|kind| of(*kind)).find(|these| !these.is_empty()) else {
            let known = figures(paper).iter().map(|figure| figure.name).collect();
            return Err(UnknownFigure { paper, name: name.trim().into(), known });
        };
        for figure in these {
            if !found.contains(&figure) {
                found.push(figure);
            }
        }
    }
    Ok(found)
}

/// The figures of `paper` that a sentence mentions: `section 6, Figs. 4 and 6a`.
pub(super) fn figures_in(paper: Paper, text: &str) -> Vec<&'static FigureEntry> {
    let mut kind = None;
    let mut found = Vec::new();
    for word in text.split([' ', ',', ';']).filter(|word| !word.is_empty()) {
        match FigureKind::of(word) {
            Some(named) => kind = Some(named),
            None if word == "and" => {}
            None => {
                let label = word.to_lowercase();
                let of_kind = figures(paper).iter().filter(|figure| {
                    let (its, its_label) = parts(figure.name);
                    its.is_some() && its == kind && is_label(&its_label, &label)
                });
                let before = found.len();
                found.extend(of_kind);
                if found.len() == before {
                    kind = None;
                }
            }
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FigureKind {
    Figure,
    Table,
}

impl FigureKind {
    /// `Fig.`, `figures`, `Table`.
    fn of(word: &str) -> Option<Self> {
        match word.to_lowercase().trim_end_matches('.') {
            "fig" | "figs" | "figure" | "figures" => Some(Self::Figure),
            "table" | "tables" => Some(Self::Table),
            _ => None,
        }
    }
}

/// The kind and the label of a name in small letters: figure and `2a`.
fn parts(name: &str) -> (Option<FigureKind>, String) {
    let name = name.trim();
    let start = name.find(|letter: char| letter.is_whitespace() || letter.is_ascii_digit());
    let (word, rest) = name.split_at(start.unwrap_or(name.len()));
    match FigureKind::of(word) {
        Some(kind) => (Some(kind), rest.trim().to_lowercase()),
        None => (None, name.to_lowercase()),
    }
}

/// Whether `wanted` is `label`, or the number of a figure that `label` is a part of.
fn is_label(label: &str, wanted: &str) -> bool {
    let part = label.strip_prefix(wanted).unwrap_or("-");
    let numbered = wanted.ends_with(|last: char| last.is_ascii_digit());
    part.is_empty() || (numbered && part.len() == 1 && part.as_bytes()[0].is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{PlanSize, plan::experiments, text_of},
        *,
    };

    fn names(paper: Paper, text: &str) -> Vec<&'static str> {
        figures_named(paper, text).unwrap().iter().map(|figure| figure.name).collect()
    }

    #[test]
    fn figures_are_found_by_their_exact_names() {
        for text in ["Fig. 2a", "2a", "figure 2A", "Fig.2a"] {
            assert_eq!(names(Paper::Lvmt, text), ["Fig. 2a"], "{text}");
        }
        assert_eq!(names(Paper::Lvmt, "Fig. 2"), ["Fig. 2a", "Fig. 2b"]);
        assert_eq!(names(Paper::Lvmt, "Figs. 4, 5"), ["Fig. 4", "Fig. 5"]);
        assert_eq!(names(Paper::Cole, "1"), ["Fig. 1"], "not 10 to 14, nor Table 1");
        assert_eq!(names(Paper::Bavl, "Table I"), ["Table I"], "not II and III");
        assert_eq!(names(Paper::Bavl, "II"), ["Table II"]);
        assert_eq!(names(Paper::Lmpt, "interval"), ["Interval"]);
        for text in ["Fig. 99", "", "a", "Table 4"] {
            let error = figures_named(Paper::Lvmt, text).unwrap_err().to_string();
            assert!(error.contains("Fig. 2b"), "{error}");
        }
    }

    #[test]
    fn a_sentence_names_its_figures() {
        let named = |text| -> Vec<_> {
            figures_in(Paper::Cole, text).iter().map(|figure| figure.name).collect()
        };
        assert_eq!(named("section 8.2.1, Figs. 8 and 9"), ["Fig. 8", "Fig. 9"]);
        assert_eq!(named("authors' program"), [""; 0]);
    }

    /// Every caption in the text of a paper is in the registry.
    #[test]
    fn no_figure_of_a_paper_is_missing() {
        for paper in Paper::ALL {
            let Some(text) = text_of(paper) else { return };
            let mut captions = 0;
            for line in text.lines() {
                let Some((head, _)) = line.trim().split_once(':') else { continue };
                let words: Vec<_> = head.split_whitespace().collect();
                let [word, _] = words[..] else { continue };
                if FigureKind::of(word).is_some() {
                    captions += 1;
                    assert!(figures_named(paper, head).is_ok(), "{paper} has no `{head}`");
                }
            }
            assert!(captions >= 8, "{paper}: {captions} captions were found in the text");
        }
    }

    #[test]
    fn every_figure_has_experiments_or_a_reason() {
        for paper in Paper::ALL {
            let all = figures(paper);
            let planned = experiments(paper, PlanSize::default());
            let made = |name| planned.iter().any(|run| run.figures.contains(&name));
            for (n, figure) in all.iter().enumerate() {
                assert!(all[..n].iter().all(|other| other.name != figure.name), "{figure:?}");
                assert!(!figure.caption.is_empty(), "{figure:?}");
                let measured = figure.origin == FigureOrigin::Experiments;
                assert_eq!(made(figure.name), measured, "{paper}, {}", figure.name);
                assert_eq!(figure.plots.is_empty(), !measured, "{paper}, {}", figure.name);
            }
            for run in &planned {
                for name in &run.figures {
                    assert!(all.iter().any(|figure| figure.name == *name), "{paper}, {name}");
                }
            }
        }
    }
}
