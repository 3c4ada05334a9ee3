//! The papers whose structures are raced here: their figures, and the experiments that make them.
//!
//! * [`figures`]: every figure and table of a paper, by its exact name, with what makes it or the
//!   reason why nothing does.
//! * [`experiments`]: a paper's experiments with its parameters, or at another [`PlanSize`].
//! * [`references`]: values that a paper's text states, and values of its authors' program measured
//!   on our machine. No value is read off a plot.
//! * [`RaceGroups`]: which stores fit on this machine at once, estimated.

mod bavl;
mod cole;
mod lmpt;
mod locality;
mod lvmt;
mod measures;
mod needs;
mod plan;
mod references;
mod registry;
mod setup;
mod size;

pub use measures::{add_phases, shape_results};
pub use needs::{FreeResources, RaceGroups};
pub use plan::{PaperExperiment, experiments};
pub use references::references;
pub use registry::{FigureEntry, FigureOrigin, PlotEntry, UnknownFigure, figures, figures_named};
pub use setup::{ExperimentSetup, KvMix};
pub use size::{PlanPreset, PlanSize, UnknownPreset};

use std::{fmt, str::FromStr};

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paper {
    /// LVMT: multi-layer versioned multipoint trie.
    Lvmt,
    /// COLE: column-based learned storage.
    Cole,
    /// LMPT: layered Merkle Patricia trie.
    Lmpt,
    /// The locality of memory checking: `PrefixTree` and `DupTree`.
    Locality,
    /// B+AVL trees.
    Bavl,
}

impl Paper {
    /// All papers.
    pub const ALL: [Self; 5] = [Self::Lvmt, Self::Cole, Self::Lmpt, Self::Locality, Self::Bavl];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lvmt => "lvmt",
            Self::Cole => "cole",
            Self::Lmpt => "lmpt",
            Self::Locality => "locality",
            Self::Bavl => "bavl",
        }
    }

    /// The full title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Lvmt => "LVMT: An Efficient Authenticated Storage for Blockchain",
            Self::Cole => "COLE: A Column-based Learned Storage for Blockchain Systems",
            Self::Lmpt => {
                "LMPT: A Novel Authenticated Data Structure to Eliminate Storage Bottlenecks for \
                 High Performance Blockchains"
            }
            Self::Locality => "The Locality of Memory Checking",
            Self::Bavl => {
                "B+AVL trees: towards data structures for robust and efficient blockchain state \
                 synchronization"
            }
        }
    }

    /// The short title, for sources of figures.
    pub const fn short_title(self) -> &'static str {
        match self {
            Self::Lvmt => "LVMT",
            Self::Cole => "COLE",
            Self::Lmpt => "LMPT",
            Self::Locality => "The Locality of Memory Checking",
            Self::Bavl => "B+AVL",
        }
    }

    /// Remarks for readers of its figures.
    pub const fn remarks(self) -> &'static [&'static str] {
        match self {
            Self::Lvmt => &[
                "`mpt-archive:prune` is the paper's MPT: nodes by hash, deleted by the block that \
                 replaces them. `mpt-archive` never deletes, which spares half of the writes.",
                "mLSM has no row: its paper holds a design without implementation or figures (LVMT, \
                 section 7).",
                "RainBlock has no maintained code: its rows are those of the version in the LVMT \
                 authors' program.",
                "The authors' program syncs nothing to disk and keeps no undo.",
            ],
            Self::Cole => &[
                "`cole-sync` is the paper's COLE, with synchronous merges; `cole` is its COLE*, with \
                 asynchronous ones.",
            ],
            Self::Lmpt => &[
                "`mpt-archive:prune` is the paper's MPT, that of OpenEthereum, which deletes the \
                 nodes that a block replaces; `mpt-archive` never deletes.",
                "The authors' program was not measured on a machine of ours.",
            ],
            Self::Locality => &[
                "Locality pays when data is larger than memory; the rows measured on a machine of \
                 ours fitted into it.",
            ],
            Self::Bavl => &["`avlplus` is the paper's baseline, the AVL+ tree of Tendermint."],
        }
    }

    /// The authors.
    pub const fn authors(self) -> &'static str {
        match self {
            Self::Lvmt => {
                "Chenxing Li, Sidi Mohamed Beillahi, Guang Yang, Ming Wu, Wei Xu, Fan Long"
            }
            Self::Cole => "Ce Zhang, Cheng Xu, Haibo Hu, Jianliang Xu",
            Self::Lmpt => {
                "Jemin Andrew Choi, Sidi Mohamed Beillahi, Srisht Fateh Singh, Panagiotis \
                 Michalopoulos, Peilun Li, Andreas Veneris, Fan Long"
            }
            Self::Locality => "Weijie Wang, Yujie Lu, Charalampos Papamanthou, Fan Zhang",
            Self::Bavl => "Michele Cattaneo, Eliã Batista, Fernando Pedone",
        }
    }

    /// The citation: authors, title and, if it is known, venue.
    pub fn citation(self) -> String {
        let work = format!("{}. {}.", self.authors(), self.title());
        match self {
            Self::Lvmt => format!("{work} OSDI 2023."),
            Self::Cole => format!("{work} FAST 2024."),
            Self::Locality => format!("{work} CCS 2023."),
            Self::Lmpt | Self::Bavl => work,
        }
    }
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No paper has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no paper `{0}`: it is lvmt, cole, lmpt, locality or bavl")]
pub struct UnknownPaper(String);

impl FromStr for Paper {
    type Err = UnknownPaper;

    fn from_str(text: &str) -> Result<Self, UnknownPaper> {
        let found = Self::ALL.into_iter().find(|paper| paper.name() == text);
        found.ok_or_else(|| UnknownPaper(text.into()))
    }
}

/// The text of a paper, if the folder of texts lies beside the data folder.
///
/// # Panics
/// Without it, if data is required.
#[cfg(test)]
fn text_of(paper: Paper) -> Option<String> {
    let folder = retrie_state_testkit::data::folder().join("../papers");
    if !folder.is_dir() {
        let required = std::env::var_os("RETRIE_REQUIRE_DATA").is_some();
        assert!(!required, "the papers' texts are not beside the data");
        eprintln!("the papers' texts are not here: nothing was compared");
        return None;
    }
    let file = match paper {
        Paper::Locality => "locality-of-memory-checking.txt".to_owned(),
        paper => format!("{paper}.txt"),
    };
    Some(std::fs::read_to_string(folder.join(file)).unwrap())
}
