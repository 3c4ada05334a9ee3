//! The locality of memory checking: its figures, and its experiments. Sections 3 and 4 are counted
//! in flat files, section 5 runs on MDBX.

use super::{
    ExperimentSetup, PaperExperiment,
    registry::{ALGORITHM, FigureEntry, ILLUSTRATION, PlotEntry},
};

/// Against the height of a tree, or log2 of the keys of a trie.
const fn by_height(y: &'static [&'static str]) -> PlotEntry {
    PlotEntry { x: Some(("height", "levels")), y }
}

/// The figures in the paper's order.
pub(super) const FIGURES: &[FigureEntry] = &[
    FigureEntry::measured(
        "Table 1",
        "Time of sequential and random accesses to rows: LevelDB in the paper, MDBX here",
        &[PlotEntry { x: None, y: &["us a row"] }],
    ),
    FigureEntry::omitted("Fig. 1", "How one memory checker is made from another", ILLUSTRATION),
    FigureEntry::omitted("Fig. 2", "Cut and paste of a permutation", ILLUSTRATION),
    FigureEntry::omitted("Fig. 3", "Copies of DupTree", ILLUSTRATION),
    FigureEntry::omitted("Fig. 4", "Copies of DupTree+", ILLUSTRATION),
    FigureEntry::omitted("Fig. 5", "Layers of DupTree++", ILLUSTRATION),
    FigureEntry::omitted("Fig. 6", "A trie by hash and by prefix", ILLUSTRATION),
    FigureEntry::measured(
        "Fig. 7a",
        "Time of random reads of a path against the height of the tree",
        &[by_height(&["ns", "read amplification"])],
    ),
    FigureEntry::measured(
        "Fig. 7b",
        "Time of random writes of a path against the height of the tree",
        &[by_height(&["ns", "write amplification"])],
    ),
    FigureEntry::measured(
        "Fig. 8a",
        "Bytes read, as the trie grows and for real accesses",
        &[by_height(&["read bytes"])],
    ),
    FigureEntry::measured(
        "Fig. 8b",
        "Bytes written, as the trie grows and for real accesses",
        &[by_height(&["write bytes"])],
    ),
    FigureEntry::measured(
        "Fig. 8c",
        "Bytes read and written, as the trie grows and for real accesses",
        &[by_height(&["read and write bytes"])],
    ),
    FigureEntry::measured(
        "Fig. 9",
        "Time of accesses, as the trie grows and for real ones",
        &[by_height(&["ns", "ops_per_s"])],
    ),
    FigureEntry::omitted("Fig. 10", "Subroutines", ALGORITHM),
    FigureEntry::omitted("Fig. 11", "DupTree", ALGORITHM),
    FigureEntry::omitted("Fig. 12", "DupTree++", ALGORITHM),
    FigureEntry::omitted("Fig. 13", "PrefixTree", ALGORITHM),
    FigureEntry::measured(
        "Section 4",
        "No figure of the paper: regions, pages and time of a path in a flat file, for each layout",
        &[by_height(&["regions", "pages", "slots", "ns"])],
    ),
    FigureEntry::measured(
        "Stores",
        "No figure of the paper: the layouts as state stores, on random pairs of a read and a write",
        &[PlotEntry { x: Some(("keys", "leaves")), y: &["ops_per_s", "rows written"] }],
    ),
];

/// The experiments with the paper's sizes.
pub(super) fn experiments() -> Vec<PaperExperiment> {
    /// The paper's baseline, its records, and our blocks.
    const TREES: &[&str] =
        &["duptree:layout=naive", "duptree:layout=dup", "duptree:layout=blocked"];
    const TRIES: &[&str] = &["prefix", "prefix:order=hash", "prefix:pad=64", "mpt-archive"];
    /// A memory limit in MiB that is smaller than the larger states on disk.
    const LITTLE: Option<u64> = Some(1024);
    const REAL: &[&str] = &["Fig. 8a", "Fig. 8b", "Fig. 8c", "Fig. 9"];
    let counted = ExperimentSetup::Locality {
        heights: (27, 27),
        samples: 0,
        rows: 0,
        cold: false,
        layouts: "",
        tries: "none",
        media: "file",
        slot_bytes: 32,
    };
    let timed = ExperimentSetup::Locality {
        heights: (18, 24),
        samples: 2_000,
        rows: 1_000_000,
        cold: true,
        layouts: "",
        tries: "simple-mpt,prefix-tree,prefix-tree:pad=64",
        media: "file",
        slot_bytes: 32,
    };
    // A slot with the hashes of both children makes a path an authentication path.
    let paths = |heights| ExperimentSetup::Locality {
        heights,
        samples: 100_000,
        rows: 0,
        cold: false,
        layouts: "naive,duptree-plus-plus,blocked",
        tries: "none",
        media: "mdbx",
        slot_bytes: 64,
    };
    let growth = ExperimentSetup::Locality {
        heights: (16, 22),
        samples: 20_000,
        rows: 0,
        cold: false,
        layouts: "none",
        tries: "simple-mpt,prefix-tree,prefix-tree:pad=64,prefix,prefix:pad=64",
        media: "mdbx",
        slot_bytes: 32,
    };
    let note =
        "Counts are exact and held against theory; times with and without pages in the cache.";
    let mut all = vec![
        PaperExperiment::new(
            &["Table 1", "Section 4"],
            "Layouts in flat files; rows of MDBX",
            timed,
            &[],
            note,
        ),
        PaperExperiment::new(&["Section 4"], "A larger tree, counted", counted, &[], note),
    ];
    let note = "Paths in rows of MDBX, 10,000 writes a commit. The paper's heights go on to 30, ours to \
                27.";
    for heights in [(18, 24), (25, 25), (26, 26), (27, 27)] {
        let title = "Reads and writes of paths in rows";
        all.push(PaperExperiment::new(&["Fig. 7a", "Fig. 7b"], title, paths(heights), &[], note));
    }
    let title = "Tries as they grow: bytes and time of reads and inserts";
    let note = "Random keys; the paper replays mainnet's first four million blocks. A read is a proof, \
                siblings included.";
    all.push(PaperExperiment::new(REAL, title, growth, &[], note));
    let trie = |backends, memory_limit_mb| {
        let setup = ExperimentSetup::Replay {
            from: 0,
            to: 3_999_999,
            pad_accounts: Some(10_000_000),
            pairs: None,
            memory_limit_mb,
        };
        let title = "Real accesses of mainnet: bytes read and written, and time";
        let note = "Real blocks of our corpus on ten million random accounts instead of mainnet's \
                    first four million; accesses without the EVM, as in the paper.";
        PaperExperiment::new(REAL, title, setup, backends, note)
    };
    // Stores that race under one cap share it, so each capped race has one store.
    all.push(trie(TRIES, None));
    all.extend(TRIES.chunks(1).map(|one| trie(one, LITTLE)));
    // With the contract's account and the leaf before all keys, the tree is exactly full.
    let tree = |height: u32, backends, memory_limit_mb| {
        let setup = ExperimentSetup::State {
            keys: Some((1 << height) - 2),
            pairs: 100_000,
            commit_every: 10_000,
            cache_mb: None,
            proofs: 0,
            memory_limit_mb,
        };
        let title = "Layouts as state stores";
        let note = "Pairs of a read and a write; a read takes the value from a flat table and touches \
                    no tree. `layout=naive` is a row a node.";
        PaperExperiment::new(&["Stores"], title, setup, backends, note)
    };
    all.extend((18..=24).map(|height| tree(height, TREES, None)));
    for height in [22, 24] {
        all.extend(TREES.chunks(1).map(|one| tree(height, one, LITTLE)));
    }
    all
}
