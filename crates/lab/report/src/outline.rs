//! The figures of a paper in a report: what each shows, and which commands made it. And the steps
//! of a run, so that a stopped one can be continued.

use serde::{Deserialize, Serialize};

/// A figure or table of a paper, in the paper's order. A result belongs to the figures that its
/// param `figure` names, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FigureOutline {
    /// The exact name: `Fig. 2a`, `Table I`.
    pub name: String,
    /// What it shows, in our words.
    pub caption: String,
    /// What is plotted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<FigurePlot>,
    /// Why nothing was measured for it: an illustration, a system that is not built here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omission: Option<String>,
    /// The commands that measured it, or that would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Metrics of a figure against a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FigurePlot {
    /// The parameter along the x axis; `None` for one value a system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<PlotAxis>,
    /// The metrics, named as in [`ReferenceFigure::metric`](crate::ReferenceFigure::metric).
    pub y: Vec<String>,
}

/// A parameter along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlotAxis {
    /// The param of the results, or a flag in the name of a backend (`cole:size-ratio=4`).
    pub param: String,
    /// Its unit, or what it counts: `keys`, `MB`.
    pub unit: String,
}

/// A step of a run that has ended. Its results follow those of the steps before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedStep {
    /// Figures, command and repetition.
    pub key: String,
    /// Number of its results.
    pub results: usize,
}
