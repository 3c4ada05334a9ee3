//! LVMT: its figures, and the experiments of section 6.

use super::{
    ExperimentSetup, PaperExperiment,
    registry::{FigureEntry, ILLUSTRATION, PlotEntry},
};

/// Throughput against the number of receivers.
const BY_RECEIVERS: &[PlotEntry] = &[PlotEntry { x: Some(("accounts", "receivers")), y: &["tps"] }];
/// The parts of the time.
const PARTS: &[PlotEntry] = &[PlotEntry {
    x: None,
    y: &["execution engine us", "authenticated structure us", "key-value store us"],
}];

const fn by_keys(y: &'static [&'static str]) -> PlotEntry {
    PlotEntry { x: Some(("keys", "keys")), y }
}

/// The figures in the paper's order.
pub(super) const FIGURES: &[FigureEntry] = &[
    FigureEntry::measured(
        "Table 1",
        "Time to add two points of the curve's group G1, and to multiply one, on BLS12-381 and BN254",
        &[PlotEntry { x: None, y: &["ns"] }],
    ),
    FigureEntry::omitted(
        "Fig. 1",
        "The multi-level AMTs, the versioned store and what a block changes",
        ILLUSTRATION,
    ),
    FigureEntry::measured(
        "Fig. 2a",
        "Throughput of ether transfers for each number of receivers",
        BY_RECEIVERS,
    ),
    FigureEntry::measured(
        "Fig. 2b",
        "Throughput of ERC-20 transfers for each number of receivers",
        BY_RECEIVERS,
    ),
    FigureEntry::measured(
        "Fig. 3a",
        "Where the time of an ether transfer goes, at 5m receivers",
        PARTS,
    ),
    FigureEntry::measured(
        "Fig. 3b",
        "Where the time of an ERC-20 transfer goes, at 5m receivers",
        PARTS,
    ),
    FigureEntry::measured(
        "Fig. 4",
        "Throughput of the state stores alone, on random pairs of a read and a write and on real accesses",
        &[by_keys(&["ops_per_s"])],
    ),
    FigureEntry::measured(
        "Fig. 5",
        "Throughput of LVMT16 with a smaller memory budget",
        &[PlotEntry { x: Some(("cache_mb", "MB of cache")), y: &["ops_per_s"] }],
    ),
    FigureEntry::measured(
        "Fig. 6a",
        "Rows read from the key-value store for each key read",
        &[by_keys(&["read amplification"])],
    ),
    FigureEntry::measured(
        "Fig. 6b",
        "Rows written to the key-value store for each key written",
        &[by_keys(&["write amplification"])],
    ),
    FigureEntry::measured(
        "Fig. 7a",
        "Bytes read from the key-value store for each key read",
        &[by_keys(&["read bytes"])],
    ),
    FigureEntry::measured(
        "Fig. 7b",
        "Bytes written to the key-value store for each key written",
        &[by_keys(&["write bytes"])],
    ),
];

/// The experiments with the paper's sizes.
pub(super) fn experiments() -> Vec<PaperExperiment> {
    const STORES: &[&str] =
        &["raw", "lvmt", "lvmt@0/64", "lvmt@0/16", "mpt-archive:prune", "mpt-archive"];
    const END_TO_END: &[&str] =
        &["raw", "lvmt", "lvmt@0/64", "lvmt@0/16", "mpt-archive:prune", "mpt-archive", "lmpt"];
    const ALONE: &[&str] = &["Fig. 4", "Fig. 6a", "Fig. 6b", "Fig. 7a", "Fig. 7b"];
    const RANDOM: &str = "Random pairs of a read and a write: throughput, amplification, bytes";
    const MOST_RECEIVERS: u64 = 5_000_000;
    // The paper's MPT has the hash function of its LVMT.
    const HASH: &str = "blake2b";
    let crypto = ExperimentSetup::Crypto { rounds: 25, samples: 20_000 };
    let mut all = vec![PaperExperiment::new(
        &["Table 1"],
        "Arithmetic on curves",
        crypto,
        &[],
        "The paper does not say how it multiplies: `multiplication` is that of the library, \
         `double and add` goes bit by bit. Conversions are those of section 5.",
    )];
    for (workload, figures, title) in [
        ("transfers", ["Fig. 2a", "Fig. 3a"], "Transfers of ether"),
        ("erc20", ["Fig. 2b", "Fig. 3b"], "Token transfers"),
    ] {
        for accounts in [1_000_000, 3_000_000, MOST_RECEIVERS] {
            // Larger blocks where the paper's states are smallest: an axis of ours.
            let sizes: &[Option<u64>] = match accounts {
                1_000_000 => &[None, Some(2_000), Some(20_000)],
                _ => &[None],
            };
            for txs_per_block in sizes.iter().copied() {
                let setup = ExperimentSetup::Chain {
                    workload,
                    accounts,
                    senders: 20_000,
                    txs: 5 * accounts,
                    txs_per_block,
                    skewed: false,
                    cache_mb: None,
                    merge_interval: None,
                    own_contracts: false,
                };
                let figures = if accounts == MOST_RECEIVERS { &figures[..] } else { &figures[..1] };
                let note = "Blocks of 500 transactions unless the number is given; those of the \
                            paper's program have up to 20,000.";
                all.push(PaperExperiment::new(figures, title, setup, END_TO_END, note));
            }
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
    for keys in [None, Some(1_000_000), Some(10_000_000), Some(100_000_000)] {
        let run = PaperExperiment::new(ALONE, RANDOM, state(keys, 1500), STORES, "");
        all.push(run.hashed_by(HASH));
    }
    let replay = ExperimentSetup::Replay {
        from: 13_500_000,
        to: 13_546_700,
        pad_accounts: None,
        pairs: None,
        memory_limit_mb: None,
    };
    let real = PaperExperiment::new(
        ALONE,
        "Real accesses of mainnet",
        replay,
        STORES,
        "Real blocks of our corpus, forth and back, instead of 13,500,000 to 13,546,700; accesses \
         without the EVM, as in the paper.",
    );
    all.push(real.hashed_by(HASH));
    for cache_mb in [1500, 800] {
        all.push(PaperExperiment::new(
            &["Fig. 5"],
            "LVMT16 with less memory",
            state(Some(10_000_000), cache_mb),
            &["lvmt@0/16"],
            "The number of keys is our choice among the paper's. Caches keep the paper's size when \
             keys are scaled down, so less memory may have no effect.",
        ));
    }
    all
}
