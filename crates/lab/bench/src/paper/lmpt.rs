//! LMPT: its figures, and the experiments of sections III and V. One experiment is not in the
//! paper: the effect of the merge interval.

use super::{
    ExperimentSetup, PaperExperiment,
    registry::{ALGORITHM, FigureEntry, ILLUSTRATION, PlotEntry},
};

/// Throughput against the number of accounts.
const BY_ACCOUNTS: &[PlotEntry] = &[PlotEntry { x: Some(("accounts", "accounts")), y: &["tps"] }];

/// The figures in the paper's order.
pub(super) const FIGURES: &[FigureEntry] = &[
    FigureEntry::omitted("Fig. 1", "A Merkle Patricia trie", ILLUSTRATION),
    FigureEntry::omitted("Fig. 2", "Execution that waits for the disk", ILLUSTRATION),
    FigureEntry::omitted("Fig. 3", "A loop of the EVM and its reads of the database", ILLUSTRATION),
    FigureEntry::omitted("Fig. 4", "Authenticated and simple reads of LMPT", ILLUSTRATION),
    FigureEntry::measured(
        "Table I",
        "Throughput and hit rate of the trie for each size of its cache",
        &[PlotEntry { x: Some(("cache_mb", "MB of cache")), y: &["tps", "hit rate"] }],
    ),
    FigureEntry::omitted("Fig. 5", "Writes of LMPT and its merges", ILLUSTRATION),
    FigureEntry::omitted("Fig. 6", "The fields of LMPT", ALGORITHM),
    FigureEntry::omitted("Fig. 7", "Read and write", ALGORITHM),
    FigureEntry::omitted("Fig. 8", "The merge", ALGORITHM),
    FigureEntry::omitted("Fig. 9", "The merge in the background", ALGORITHM),
    FigureEntry::measured(
        "Fig. 10",
        "Throughput of payments against the accounts of the initial state",
        BY_ACCOUNTS,
    ),
    FigureEntry::measured(
        "Fig. 11",
        "Throughput of ERC-20 transfers against the accounts of the initial state",
        BY_ACCOUNTS,
    ),
    FigureEntry::measured(
        "Fig. 12",
        "Throughput of swaps on Uniswap against the accounts of the initial state",
        BY_ACCOUNTS,
    ),
    FigureEntry::measured(
        "Interval",
        "Not in the paper: throughput, memory and proofs against the blocks between two merges",
        &[PlotEntry {
            x: Some(("merge-interval", "blocks between merges")),
            y: &["ops_per_s", "memory MiB", "proof bytes"],
        }],
    ),
];

/// The experiments with the paper's sizes.
pub(super) fn experiments() -> Vec<PaperExperiment> {
    type LmptFigure = (&'static str, &'static str, &'static str, &'static [u64], Option<u64>);
    const WORKLOADS: [LmptFigure; 3] = [
        ("transfers", "Fig. 10", "Simple payments", &[1, 3, 10, 20], Some(150)),
        ("erc20", "Fig. 11", "ERC-20 transfers", &[1, 3, 5, 10], Some(20)),
        ("uniswap", "Fig. 12", "Uniswap, both swap functions", &[1, 3, 10], Some(200)),
    ];
    const STORES: &[&str] = &["raw", "mpt", "mpt-archive:prune", "mpt-archive", "lmpt"];
    const INTERVALS: &[&str] = &[
        "lmpt:merge-interval=20",
        "lmpt:merge-interval=100",
        "lmpt:merge-interval=500",
        "lmpt:merge-interval=2000",
    ];
    let txs = 500_000;
    let mut all = Vec::new();
    for cache_mb in [50, 100, 500, 1000] {
        let setup = ExperimentSetup::Chain {
            workload: "transfers",
            accounts: 1_000_000,
            senders: txs,
            txs,
            txs_per_block: Some(150),
            skewed: false,
            cache_mb: Some(cache_mb),
            merge_interval: None,
            own_contracts: false,
        };
        all.push(PaperExperiment::new(
            &["Table I"],
            "Memory for caches of the trie",
            setup,
            &["mpt-archive:prune"],
            "The paper does not state the number of accounts. The size is divided between nodes in \
             memory and rows that are not folded yet; the page cache is not bounded, so a miss costs \
             little. A hit is a node or a row found in either. Nothing is prefetched, so that each \
             lookup counts once.",
        ));
    }
    for (workload, figure, title, millions, txs_per_block) in WORKLOADS {
        for accounts in millions.iter().map(|millions| millions * 1_000_000) {
            // Swaps have no receivers.
            for skewed in
                [false, true].into_iter().filter(|skewed| !skewed || workload != "uniswap")
            {
                let setup = ExperimentSetup::Chain {
                    workload,
                    accounts,
                    senders: txs.min(accounts),
                    txs,
                    txs_per_block,
                    skewed,
                    cache_mb: None,
                    merge_interval: Some(500),
                    own_contracts: false,
                };
                let note = match (workload, skewed) {
                    ("uniswap", _) => "Swaps per block are ours: what fits the paper's gas.",
                    (_, true) => {
                        "Receivers by a Zipf distribution instead of the paper's trace of real \
                         ones, which is not published."
                    }
                    (_, false) => "",
                };
                all.push(PaperExperiment::new(&[figure], title, setup, STORES, note));
            }
        }
    }
    let setup = ExperimentSetup::State {
        keys: Some(1_000_000),
        pairs: 2_500_000,
        commit_every: 1000,
        cache_mb: None,
        proofs: 1000,
        memory_limit_mb: None,
    };
    let title = "Blocks between merges: throughput, memory, bytes of proofs";
    all.push(PaperExperiment::new(&["Interval"], title, setup, INTERVALS, "Not in the paper."));
    all
}
