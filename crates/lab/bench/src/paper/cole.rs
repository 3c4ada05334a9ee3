//! COLE: its figures, and the experiments of section 8 and of its appendix.

use super::{
    ExperimentSetup, KvMix, PaperExperiment,
    registry::{FigureEntry, ILLUSTRATION, PlotEntry},
};

const fn by_height(y: &'static [&'static str]) -> PlotEntry {
    PlotEntry { x: Some(("blocks", "blocks")), y }
}

const HEIGHT: &[PlotEntry] = &[by_height(&["tps", "disk MiB"])];

/// Queries and their proofs, against a parameter.
const fn queries(x: (&'static str, &'static str)) -> PlotEntry {
    PlotEntry { x: Some(x), y: &["query us", "verify us", "proof bytes"] }
}

/// The figures in the paper's order.
pub(super) const FIGURES: &[FigureEntry] = &[
    FigureEntry::omitted("Fig. 1", "A Merkle Patricia trie of two blocks", ILLUSTRATION),
    FigureEntry::omitted("Fig. 2", "A block with its Merkle trees", ILLUSTRATION),
    FigureEntry::omitted("Fig. 3", "The levels of COLE", ILLUSTRATION),
    FigureEntry::omitted("Fig. 4", "A write that merges two levels", ILLUSTRATION),
    FigureEntry::omitted("Fig. 5", "How a Merkle file is made", ILLUSTRATION),
    FigureEntry::omitted(
        "Fig. 6",
        "The two groups of a level with asynchronous merges",
        ILLUSTRATION,
    ),
    FigureEntry::omitted("Fig. 7", "An asynchronous merge", ILLUSTRATION),
    FigureEntry::omitted(
        "Table 1",
        "Asymptotic costs of MPT, COLE and COLE*",
        "theory: it measures nothing",
    ),
    FigureEntry::omitted(
        "Table 2",
        "The parameters of the experiments",
        "the parameters of Figs. 8 to 14: it measures nothing",
    ),
    FigureEntry::measured("Fig. 8", "SmallBank: disk and throughput against block height", HEIGHT),
    FigureEntry::measured("Fig. 9", "KVStore: disk and throughput against block height", HEIGHT),
    FigureEntry::measured(
        "Fig. 10",
        "KVStore: throughput of reads alone, of reads and writes, and of writes alone",
        &[PlotEntry { x: Some(("reads", "% of reads")), y: &["tps"] }],
    ),
    FigureEntry::measured(
        "Fig. 11",
        "Latency of blocks of SmallBank and KVStore, with its tail",
        &[by_height(&["p50 ms", "p99 ms", "max ms"])],
    ),
    FigureEntry::measured(
        "Fig. 12",
        "SmallBank: throughput and latency against the size ratio of the levels",
        &[PlotEntry { x: Some(("size-ratio", "size ratio")), y: &["tps", "p50 ms", "max ms"] }],
    ),
    FigureEntry::measured(
        "Fig. 13",
        "Provenance queries: time and size of proofs against the range of blocks",
        &[queries(("range", "blocks of a query"))],
    ),
    FigureEntry::measured(
        "Fig. 14",
        "Provenance queries: time and size of proofs against the fanout of the Merkle file",
        &[queries(("fanout", "fanout"))],
    ),
];

/// The experiments with the paper's sizes.
pub(super) fn experiments() -> Vec<PaperExperiment> {
    const ALL: &[&str] = &["mpt-archive", "cole", "cole-sync"];
    /// As far as the paper could run it.
    const WITH_CMI: &[&str] = &["mpt-archive", "cole", "cole-sync", "cmi"];
    const HIGHEST_CMI: u64 = 10_000;
    const RATIOS: &[&str] = &[
        "cole:size-ratio=2",
        "cole:size-ratio=4",
        "cole:size-ratio=6",
        "cole:size-ratio=8",
        "cole:size-ratio=10",
        "cole:size-ratio=12",
        "cole-sync:size-ratio=2",
        "cole-sync:size-ratio=4",
        "cole-sync:size-ratio=6",
        "cole-sync:size-ratio=8",
        "cole-sync:size-ratio=10",
        "cole-sync:size-ratio=12",
    ];
    const FANOUTS: &[&str] = &[
        "cole:fanout=2",
        "cole:fanout=4",
        "cole:fanout=8",
        "cole:fanout=16",
        "cole:fanout=32",
        "cole:fanout=64",
        "cole-sync:fanout=2",
        "cole-sync:fanout=4",
        "cole-sync:fanout=8",
        "cole-sync:fanout=16",
        "cole-sync:fanout=32",
        "cole-sync:fanout=64",
    ];
    const HEIGHTS: [u64; 4] = [100, 1000, 10_000, 100_000];
    const NOTE: &str = "One caller and empty banks, as in the authors' program; `cole-sync` is COLE, `cole` COLE*. \
         `cmi` runs up to 10^4 blocks, as in the paper. LIPP is not built here: scripts/compare/cole runs \
         the authors'.";
    const KV_NOTE: &str = "As the authors' YCSB files have it, half of the writes insert new keys.";
    let txs_per_block = 100;
    // The authors' program has 64 MB for either store, which is this number of pairs in memory.
    let (cache_mb, memory_pairs) = (Some(64), 450_000);
    let bank =
        |blocks| ExperimentSetup::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs };
    let base = 100_000;
    let store = |blocks, mix| ExperimentSetup::KvStore {
        base,
        blocks,
        txs_per_block,
        mix,
        cache_mb,
        memory_pairs,
    };
    let longest = 100_000;
    let past = |ranges, memory_pairs| ExperimentSetup::Provenance {
        states: 100,
        blocks: longest,
        txs_per_block,
        ranges,
        memory_pairs,
        queries: None,
    };
    // The paper shows the latencies of the two longest chains.
    let shown = |height: &'static str, blocks: u64| match blocks {
        10_000.. => vec![height, "Fig. 11"],
        _ => vec![height],
    };
    let stores = |blocks| if blocks <= HIGHEST_CMI { WITH_CMI } else { ALL };
    let mut all = Vec::new();
    for blocks in HEIGHTS {
        let title = "SmallBank: disk, throughput and latency against height";
        all.push(PaperExperiment::new(
            &shown("Fig. 8", blocks),
            title,
            bank(blocks),
            stores(blocks),
            NOTE,
        ));
    }
    for blocks in HEIGHTS {
        let title = "KVStore: disk, throughput and latency against height";
        let setup = store(blocks, KvMix::ReadWrite);
        all.push(PaperExperiment::new(
            &shown("Fig. 9", blocks),
            title,
            setup,
            stores(blocks),
            KV_NOTE,
        ));
    }
    for mix in [KvMix::ReadOnly, KvMix::ReadWrite, KvMix::WriteOnly] {
        let title = "KVStore: other shares of reads and writes";
        let setup = store(longest, mix);
        all.push(PaperExperiment::new(&["Fig. 10"], title, setup, ALL, KV_NOTE));
    }
    let title = "SmallBank: size ratio between levels";
    all.push(PaperExperiment::new(&["Fig. 12"], title, bank(longest), RATIOS, ""));
    let title = "Provenance queries: time and proof size against range";
    let setup = past(&[2, 4, 8, 16, 32, 64, 128], memory_pairs);
    all.push(PaperExperiment::new(&["Fig. 13"], title, setup, ALL, ""));
    let title = "Provenance queries: fanout of the Merkle file";
    let note = "The memory level is smaller than elsewhere, so that queries reach the runs.";
    all.push(PaperExperiment::new(&["Fig. 14"], title, past(&[16], 100_000), FANOUTS, note));
    all
}
