//! B+AVL trees: their figures, and the experiments of section V.

use super::{
    ExperimentSetup, PaperExperiment,
    registry::{FigureEntry, ILLUSTRATION, PlotEntry},
};

const fn by_chunk(y: &'static [&'static str]) -> PlotEntry {
    PlotEntry { x: Some(("chunk", "elements a chunk")), y }
}

/// The figures in the paper's order.
pub(super) const FIGURES: &[FigureEntry] = &[
    FigureEntry::omitted(
        "Table I",
        "Complexity, proof size and self-verifiable chunks of the structures",
        "theory: it measures nothing",
    ),
    FigureEntry::measured(
        "Fig. 1",
        "Time to write and to read back a whole tree in messages, against the size of a chunk",
        &[by_chunk(&["serialize ms", "deserialize ms"])],
    ),
    FigureEntry::omitted("Fig. 2", "An AVL* tree and a Merkle B+tree", ILLUSTRATION),
    FigureEntry::omitted("Fig. 3", "A B+AVL tree", ILLUSTRATION),
    FigureEntry::omitted("Fig. 4", "How chunks become a tree again", ILLUSTRATION),
    FigureEntry::measured(
        "Fig. 5",
        "Time of an insert and of a search in memory, against the size of the tree",
        &[PlotEntry { x: Some(("elements", "elements")), y: &["ns"] }],
    ),
    FigureEntry::measured(
        "Fig. 6",
        "Hashes of a proof against the size of a chunk",
        &[by_chunk(&["proof hashes", "proof hashes least", "proof hashes most"])],
    ),
    FigureEntry::measured(
        "Fig. 7",
        "Chunks over the fewest possible, against the size of a chunk: means over the growth of the tree",
        &[by_chunk(&["chunks over fewest possible"])],
    ),
    FigureEntry::measured(
        "Table II",
        "Chunks over the fewest possible: mean and deviation over the growth of the tree",
        &[by_chunk(&["chunks over fewest possible", "deviation of chunks"])],
    ),
    FigureEntry::measured(
        "Fig. 8",
        "Time to fetch a tree from peers, and chunks sent, without a liar and with one",
        &[
            by_chunk(&["mean ms", "chunks"]),
            PlotEntry { x: Some(("peers", "peers")), y: &["mean ms"] },
        ],
    ),
    FigureEntry::measured(
        "Fig. 9",
        "Phases of fetching a tree, and its time against the number of liars",
        &[PlotEntry {
            x: Some(("byzantine", "liars")),
            y: &["mean ms", "transfer ms", "read ms", "rebuild ms", "sender ms"],
        }],
    ),
    FigureEntry::measured(
        "Table III",
        "Summary: every measure over that of the baseline tree",
        &[PlotEntry { x: None, y: &[] }],
    ),
    FigureEntry::measured(
        "On disk",
        "Not in the paper: the B+AVL tree as a durable state store beside tries",
        &[PlotEntry { x: Some(("keys", "keys")), y: &["ops_per_s", "proof bytes", "disk MiB"] }],
    ),
];

/// The experiments with the paper's sizes.
pub(super) fn experiments() -> Vec<PaperExperiment> {
    let trees = |figures: &[&'static str], title, elements, hash_every, shapes, note| {
        let setup = ExperimentSetup::Trees { elements, hash_every, shapes };
        PaperExperiment::new(figures, title, setup, &[], note)
    };
    let mut all = Vec::new();
    for (hash_every, note) in [
        (1, "The root is calculated after each insert, as the paper and its program do."),
        (0, "The root is calculated once, after all inserts. Not in the paper."),
        (1000, "The root is calculated after every 1,000 inserts: a block's. Not in the paper."),
    ] {
        let title = "Inserts and searches in memory";
        let figures = ["Fig. 5", "Table III"];
        all.extend(
            [1000, 10_000, 100_000, 1_000_000]
                .map(|elements| trees(&figures, title, elements, hash_every, &[], note)),
        );
    }
    all.push(trees(
        &["Fig. 1", "Fig. 6", "Fig. 7", "Table II", "Table III"],
        "Proofs, space and messages against chunk size",
        1_000_000,
        0,
        &[16, 64, 256, 1024, 4096],
        "Of Fig. 7 the means alone, without the curve of growth and the distribution.",
    ));
    let state = |keys, pairs, proofs| ExperimentSetup::State {
        keys,
        pairs,
        commit_every: 1000,
        cache_mb: None,
        proofs,
        memory_limit_mb: None,
    };
    for keys in [None, Some(1_000_000)] {
        all.push(PaperExperiment::new(
            &["On disk"],
            "Random reads and writes, durable, proofs",
            state(keys, 1_000_000, 1000),
            &["bavl", "mpt", "mpt-archive"],
            "Not in the paper: the same backends as in a node.",
        ));
    }
    let sync = |figure, title, chunk, peers, byzantine| {
        let elements = 100_000;
        let setup = ExperimentSetup::Sync { elements, chunk, peers, byzantine, seeds: None };
        let note = "Round trips are typical ones between regions of Europe, lines have 100 Mbit/s.";
        PaperExperiment::new(&[figure, "Table III"], title, setup, &[], note)
    };
    for liars in [0, 1] {
        let title = "Synchronisation against chunk size";
        all.extend([16, 64, 256, 1024, 4096].map(|chunk| sync("Fig. 8", title, chunk, 9, liars)));
        let title = "Synchronisation against number of peers";
        all.extend([3, 6, 12].map(|peers| sync("Fig. 8", title, 256, peers, liars)));
    }
    let title = "Synchronisation against number of liars";
    all.extend([0, 1, 2, 3, 4].map(|liars| sync("Fig. 9", title, 256, 9, liars)));
    all
}
