//! The experiments of each paper, with the paper's parameters or scaled down.

use super::{ExperimentSetup, KvMix, Paper};

/// One workload that a figure of a paper shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperExperiment {
    /// The figure: `Fig. 2a`.
    pub figure: &'static str,
    /// What is measured.
    pub title: &'static str,
    /// The workload and its parameters.
    pub setup: ExperimentSetup,
    /// Names of the backends in the figure. They need not exist here.
    pub backends: &'static [&'static str],
    /// Differences from the paper, or other figures from the same measurement; may be empty.
    pub note: &'static str,
}

/// The experiments of `paper` at `scale`: 1 is the paper's own size, smaller values are smaller in
/// proportion ([`ExperimentSetup::scaled`]). Experiments that are equal at a small scale are listed
/// once.
pub fn experiments(paper: Paper, scale: f64) -> Vec<PaperExperiment> {
    let all = match paper {
        Paper::Lvmt => lvmt(),
        Paper::Cole => cole(),
        Paper::Lmpt => lmpt(),
        Paper::Locality => locality(),
        Paper::Bavl => bavl(),
    };
    let mut scaled: Vec<PaperExperiment> = Vec::with_capacity(all.len());
    for experiment in all {
        let experiment = PaperExperiment { setup: experiment.setup.scaled(scale), ..experiment };
        if !scaled.contains(&experiment) {
            scaled.push(experiment);
        }
    }
    scaled
}

/// LVMT, section 6.
fn lvmt() -> Vec<PaperExperiment> {
    const STORES: &[&str] = &["raw", "lvmt", "lvmt@0/64", "lvmt@0/16", "mpt-archive"];
    const END_TO_END: &[&str] = &["raw", "lvmt", "lvmt@0/64", "lvmt@0/16", "mpt-archive", "lmpt"];
    const RANDOM: &str = "Random pairs of a read and a write: throughput, amplification, bytes";
    let mut all = Vec::new();
    let note = "With 5m receivers also Fig. 3: where the time goes.";
    for (workload, figure, title) in
        [("transfers", "Fig. 2a", "Transfers of ether"), ("erc20", "Fig. 2b", "Token transfers")]
    {
        for accounts in [1_000_000, 3_000_000, 5_000_000] {
            let (senders, txs) = (20_000, 5 * accounts);
            let setup = ExperimentSetup::Chain {
                workload,
                accounts,
                senders,
                txs,
                txs_per_block: None,
                skewed: false,
                cache_mb: None,
                merge_interval: None,
            };
            all.push(PaperExperiment { figure, title, setup, backends: END_TO_END, note });
        }
    }
    let state = |keys, cache_mb| ExperimentSetup::State {
        keys,
        pairs: 10_000_000,
        commit_every: 1000,
        cache_mb: Some(cache_mb),
        proofs: 0,
        memory_limit_mb: None,
    };
    let figure = "Figs. 4, 6, 7";
    for keys in [None, Some(1_000_000), Some(10_000_000), Some(100_000_000)] {
        let setup = state(keys, 1500);
        all.push(PaperExperiment { figure, title: RANDOM, setup, backends: STORES, note: "" });
    }
    all.push(PaperExperiment {
        figure,
        title: "Real accesses of mainnet",
        setup: ExperimentSetup::Replay {
            from: 13_500_000,
            to: 13_546_700,
            pad_accounts: None,
            memory_limit_mb: None,
        },
        backends: STORES,
        note: "Real blocks of our corpus instead of 13,500,000 to 13,546,700; accesses without the \
               EVM, as in the paper.",
    });
    for cache_mb in [1500, 800] {
        all.push(PaperExperiment {
            figure: "Fig. 5",
            title: "LVMT16 with less memory",
            setup: state(Some(10_000_000), cache_mb),
            backends: &["lvmt@0/16"],
            note: "The number of keys is our choice among the paper's. Caches keep the paper's \
                   size when keys are scaled down, so less memory may have no effect.",
        });
    }
    all
}

/// COLE, section 8.
fn cole() -> Vec<PaperExperiment> {
    const ALL: &[&str] = &["mpt-archive", "cole", "cole-sync"];
    const HEIGHTS: [u64; 4] = [100, 1000, 10_000, 100_000];
    const NOTE: &str = "One caller and empty banks, as in the authors' program; `cole-sync` is COLE, `cole` COLE*. At \
         10^4 and 10^5 blocks also Fig. 11: latencies. LIPP and CMI are not built here: \
         scripts/compare/cole runs the authors'.";
    const KV_NOTE: &str = "As the authors' YCSB files have it, half of the writes insert new keys. Figs. 8 and 11 alike.";
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
    let blocks = 100_000;
    let past = |ranges, memory_pairs| ExperimentSetup::Provenance {
        states: 100,
        blocks,
        txs_per_block,
        ranges,
        memory_pairs,
    };
    let run =
        |figure, title, note, setup| PaperExperiment { figure, title, setup, backends: ALL, note };
    let mut all = Vec::new();
    let title = "SmallBank: disk and throughput against height";
    all.extend(HEIGHTS.map(|blocks| run("Fig. 8", title, NOTE, bank(blocks))));
    let title = "KVStore: disk and throughput against height";
    let mixed = HEIGHTS.map(|blocks| store(blocks, KvMix::ReadWrite));
    all.extend(mixed.map(|setup| run("Fig. 9", title, KV_NOTE, setup)));
    let title = "KVStore: other shares of reads and writes";
    let mixes = [KvMix::ReadOnly, KvMix::ReadWrite, KvMix::WriteOnly];
    all.extend(mixes.map(|mix| run("Fig. 10", title, KV_NOTE, store(100_000, mix))));
    all.push(PaperExperiment {
        backends: &[
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
        ],
        ..run("Fig. 12", "SmallBank: size ratio between levels", "", bank(100_000))
    });
    let title = "Provenance queries: time and proof size against range";
    all.push(run("Fig. 13", title, "", past(&[2, 4, 8, 16, 32, 64, 128], memory_pairs)));
    let title = "Provenance queries: fanout of the Merkle file";
    let note = "The paper lists these fanouts; the range is that of the authors' program. The memory \
                level is smaller than elsewhere, so that queries reach the runs.";
    all.push(PaperExperiment {
        backends: &[
            "cole:fanout=2",
            "cole:fanout=4",
            "cole:fanout=8",
            "cole:fanout=16",
            "cole:fanout=32",
            "cole:fanout=64",
        ],
        ..run("Table 2", title, note, past(&[32], 100_000))
    });
    all
}

/// LMPT, section V, and one experiment that is not in the paper: the effect of the merge interval.
fn lmpt() -> Vec<PaperExperiment> {
    type LmptFigure = (&'static str, &'static str, &'static str, &'static [u64], Option<u64>);
    const FIGURES: [LmptFigure; 3] = [
        ("transfers", "Fig. 10", "Simple payments", &[1, 3, 10, 20], Some(150)),
        ("erc20", "Fig. 11", "ERC-20 transfers", &[1, 3, 5, 10], Some(20)),
        ("uniswap", "Fig. 12", "Uniswap, both swap functions", &[1, 3, 10], Some(200)),
    ];
    const STORES: &[&str] = &["raw", "mpt", "mpt-archive", "lmpt"];
    const INTERVALS: &[&str] = &[
        "lmpt:merge-interval=20",
        "lmpt:merge-interval=100",
        "lmpt:merge-interval=500",
        "lmpt:merge-interval=2000",
    ];
    let txs = 500_000;
    let chain = |workload, accounts: u64, txs_per_block, skewed| ExperimentSetup::Chain {
        workload,
        accounts,
        senders: txs.min(accounts),
        txs,
        txs_per_block,
        skewed,
        cache_mb: None,
        merge_interval: Some(500),
    };
    let mut all = Vec::new();
    for cache_mb in [50, 100, 500, 1000] {
        all.push(PaperExperiment {
            figure: "Table I",
            title: "Memory for caches of the trie",
            setup: ExperimentSetup::Chain {
                workload: "transfers",
                accounts: 1_000_000,
                senders: txs,
                txs,
                txs_per_block: Some(150),
                skewed: false,
                cache_mb: Some(cache_mb),
                merge_interval: None,
            },
            backends: &["mpt-archive"],
            note: "The paper does not state the number of accounts. Only the memory for rows that \
                   are not folded yet is bounded here, not the page cache, so the effect is small.",
        });
    }
    for (workload, figure, title, millions, txs_per_block) in FIGURES {
        for accounts in millions.iter().map(|millions| millions * 1_000_000) {
            // Swaps have no receivers.
            for skewed in
                [false, true].into_iter().filter(|skewed| !skewed || workload != "uniswap")
            {
                all.push(PaperExperiment {
                    figure,
                    title,
                    setup: chain(workload, accounts, txs_per_block, skewed),
                    backends: STORES,
                    note: match (workload, skewed) {
                        ("uniswap", _) => "Swaps per block are ours: what fits the paper's gas.",
                        (_, true) => {
                            "Receivers by a Zipf distribution instead of the paper's trace of real \
                             ones, which is not published."
                        }
                        (_, false) => "",
                    },
                });
            }
        }
    }
    all.push(PaperExperiment {
        figure: "Interval",
        title: "Blocks between merges: throughput, memory, bytes of proofs",
        setup: ExperimentSetup::State {
            keys: Some(1_000_000),
            pairs: 2_500_000,
            commit_every: 1000,
            cache_mb: None,
            proofs: 1000,
            memory_limit_mb: None,
        },
        backends: INTERVALS,
        note: "Not in the paper.",
    });
    all
}

/// The locality of memory checking: sections 3 and 4 counted in flat files, section 5 on MDBX.
fn locality() -> Vec<PaperExperiment> {
    /// The paper's baseline, its records, and our blocks.
    const TREES: &[&str] =
        &["duptree:layout=naive", "duptree:layout=dup", "duptree:layout=blocked"];
    const TRIES: &[&str] = &["prefix", "prefix:order=hash", "prefix:pad=64", "mpt-archive"];
    /// A memory limit in MiB that is smaller than the larger states on disk.
    const LITTLE: Option<u64> = Some(1024);
    let files = |figure, title, heights, samples, rows| PaperExperiment {
        figure,
        title,
        setup: ExperimentSetup::Locality { heights, samples, rows },
        backends: &[],
        note: "Counts are exact and held against theory; times with and without pages in the cache.",
    };
    // With the contract's account and the leaf before all keys, the tree is exactly full.
    let tree = |height: u32, backends, memory_limit_mb| PaperExperiment {
        figure: "Fig. 7",
        title: "Random reads and writes against the height of the tree",
        setup: ExperimentSetup::State {
            keys: Some((1 << height) - 2),
            pairs: 100_000,
            commit_every: 10_000,
            cache_mb: None,
            proofs: 0,
            memory_limit_mb,
        },
        backends,
        note: "The baseline is `layout=naive`, a row a node; the paper's heights go on to 30.",
    };
    let trie = |backends, memory_limit_mb| PaperExperiment {
        figure: "Figs. 8, 9",
        title: "Real accesses of mainnet: bytes read and written, and time",
        setup: ExperimentSetup::Replay {
            from: 0,
            to: 3_999_999,
            pad_accounts: Some(10_000_000),
            memory_limit_mb,
        },
        backends,
        note: "Real blocks of our corpus on ten million random accounts instead of mainnet's first \
               four million; accesses without the EVM, as in the paper.",
    };
    // Stores that race under one cap share it, so each capped race has one store.
    let mut all = vec![
        files(
            "Table 1, section 4",
            "Layouts in flat files; rows of MDBX",
            (18, 24),
            2_000,
            1_000_000,
        ),
        files("Section 4", "A larger tree, counted", (26, 26), 0, 0),
    ];
    all.extend((18..=24).map(|height| tree(height, TREES, None)));
    for height in [22, 24] {
        all.extend(TREES.chunks(1).map(|one| tree(height, one, LITTLE)));
    }
    all.push(trie(TRIES, None));
    all.extend(TRIES.chunks(1).map(|one| trie(one, LITTLE)));
    all
}

/// B+AVL, section V.
fn bavl() -> Vec<PaperExperiment> {
    let trees = |figure, title, elements, hash_every, shapes, note| PaperExperiment {
        figure,
        title,
        setup: ExperimentSetup::Trees { elements, hash_every, shapes },
        backends: &[],
        note,
    };
    let mut all = Vec::new();
    for (hash_every, note) in [
        (0, "The root is calculated once, after all inserts."),
        (1, "The root is calculated after each insert, as the authors' program does."),
        (1000, "The root is calculated after every 1,000 inserts: a block's. Not in the paper."),
    ] {
        let title = "Inserts and searches in memory";
        all.extend(
            [1000, 10_000, 100_000, 1_000_000]
                .map(|elements| trees("Fig. 5", title, elements, hash_every, &[], note)),
        );
    }
    all.push(trees(
        "Figs. 1, 6, 7, Table II",
        "Proofs, space and messages against chunk size",
        1_000_000,
        0,
        &[16, 64, 256, 1024, 4096],
        "The AVL* tree is not built.",
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
        all.push(PaperExperiment {
            figure: "On disk",
            title: "Random reads and writes, durable, proofs",
            setup: state(keys, 1_000_000, 1000),
            backends: &["bavl", "mpt", "mpt-archive"],
            note: "Not in the paper: the same backends as in a node.",
        });
    }
    let sync = |figure, title, chunk, peers, byzantine| PaperExperiment {
        figure,
        title,
        setup: ExperimentSetup::Sync { elements: 100_000, chunk, peers, byzantine },
        backends: &[],
        note: "Round trips are typical ones between regions of Europe, lines have 100 Mbit/s.",
    };
    for liars in [0, 1] {
        let title = "Synchronisation against chunk size";
        all.extend([16, 64, 256, 1024, 4096].map(|chunk| sync("Fig. 8", title, chunk, 9, liars)));
        let title = "Synchronisation against number of peers";
        all.extend([3, 6, 12].map(|peers| sync("Fig. 8", title, 256, peers, liars)));
    }
    let title = "Synchronisation against number of liars";
    all.extend([1, 2, 3, 4].map(|liars| sync("Fig. 9", title, 256, 9, liars)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_backends::{FlagValues, lane};

    #[test]
    fn backends_are_ours_with_flags_that_they_have() {
        let all = Paper::ALL.into_iter().flat_map(|paper| experiments(paper, 1.0));
        for name in all.flat_map(|experiment| experiment.backends) {
            if let Err(why) = lane(name, &FlagValues::default()) {
                panic!("{name}: {why}");
            }
        }
    }

    #[test]
    fn scale_one_is_the_paper_and_small_scales_are_small() {
        for paper in Paper::ALL {
            let (own, small) = (experiments(paper, 1.0), experiments(paper, 0.001));
            assert!(!small.is_empty() && small.len() <= own.len(), "{paper}");
            for experiment in own.iter().chain(&small) {
                let texts = [experiment.figure, experiment.title, experiment.setup.workload()];
                assert!(texts.iter().all(|text| !text.is_empty()), "{experiment:?}");
                // Only experiments on trees and files alone have no backends.
                let alone = matches!(
                    experiment.setup,
                    ExperimentSetup::Locality { .. }
                        | ExperimentSetup::Trees { .. }
                        | ExperimentSetup::Sync { .. }
                );
                assert_eq!(experiment.backends.is_empty(), alone, "{experiment:?}");
            }
        }
        let largest = ExperimentSetup::Chain {
            workload: "transfers",
            accounts: 5_000_000,
            senders: 20_000,
            txs: 25_000_000,
            txs_per_block: None,
            skewed: false,
            cache_mb: None,
            merge_interval: None,
        };
        assert!(experiments(Paper::Lvmt, 1.0).iter().any(|run| run.setup == largest));
        let tenth = largest.scaled(0.1);
        assert!(experiments(Paper::Lvmt, 0.1).iter().any(|run| run.setup == tenth));
        // The variants of one backend run in one race.
        let varied: Vec<_> = experiments(Paper::Cole, 0.01)
            .iter()
            .flat_map(|run| run.backends)
            .filter_map(|name| name.split_once(':'))
            .collect();
        let count = |wanted: &str| varied.iter().filter(|(_, flag)| *flag == wanted).count();
        assert_eq!(varied.len(), 18);
        assert_eq!((count("size-ratio=6"), count("fanout=64"), count("fanout=6")), (2, 1, 0));
        // A capped race has one store only, because stores would share the cap.
        for run in experiments(Paper::Locality, 1.0) {
            let (ExperimentSetup::State { memory_limit_mb, .. }
            | ExperimentSetup::Replay { memory_limit_mb, .. }) = run.setup
            else {
                continue;
            };
            assert!(memory_limit_mb.is_none() || run.backends.len() == 1, "{run:?}");
        }
        assert_eq!("cole".parse::<Paper>(), Ok(Paper::Cole));
        assert!("rainblock".parse::<Paper>().is_err());
    }
}
