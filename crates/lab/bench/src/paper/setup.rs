//! The workloads of the papers' experiments, and how they are scaled down.

/// A workload and its parameters, in the terms of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentSetup {
    /// `bench state`: pairs of a read and a write.
    State {
        /// Number of preloaded keys; `None` for `fresh`: each pair inserts a new key.
        keys: Option<u64>,
        /// Number of measured pairs.
        pairs: u64,
        /// Pairs per commit.
        commit_every: u64,
        /// Memory for caches in MB, if the paper states it.
        cache_mb: Option<u32>,
        /// Number of proofs made and verified at the end.
        proofs: u64,
        /// A cap on memory in MiB, with the page cache. It is not scaled.
        memory_limit_mb: Option<u64>,
    },
    /// `bench transfers`, `erc20` or `uniswap`: signed transactions in blocks.
    Chain {
        /// Name of the workload.
        workload: &'static str,
        /// Number of receivers.
        accounts: u64,
        /// Number of senders.
        senders: u64,
        /// Number of measured transactions.
        txs: u64,
        /// Transactions per block, if the paper states it.
        txs_per_block: Option<u64>,
        /// Whether receivers follow a Zipf distribution.
        skewed: bool,
        /// Memory in MB for the store's caches and unfolded rows together, if the paper states it.
        cache_mb: Option<u32>,
        /// Blocks between merges of `lmpt`, if it takes part.
        merge_interval: Option<u64>,
        /// Whether tokens and markets are contracts of this program, not mainnet's.
        own_contracts: bool,
    },
    /// `bench smallbank`: transfers between accounts of ten contracts.
    SmallBank {
        /// Blocks.
        blocks: u64,
        /// Transactions per block.
        txs_per_block: u64,
        /// Memory for caches in MB, if the paper states it.
        cache_mb: Option<u32>,
        /// Number of pairs in a group of COLE's memory level.
        memory_pairs: u64,
    },
    /// `bench kvstore`: YCSB.
    KvStore {
        /// Number of transactions that load the base data.
        base: u64,
        /// Number of blocks of the running phase.
        blocks: u64,
        /// Transactions per block.
        txs_per_block: u64,
        /// Shares of reads and writes.
        mix: KvMix,
        /// Memory for caches in MB, if the paper states it.
        cache_mb: Option<u32>,
        /// Number of pairs in a group of COLE's memory level.
        memory_pairs: u64,
    },
    /// `bench provenance`: all values of a key in the latest blocks, with proof.
    Provenance {
        /// Number of keys, which are updated repeatedly.
        states: u64,
        /// Blocks.
        blocks: u64,
        /// Transactions per block.
        txs_per_block: u64,
        /// Numbers of blocks that queries reach back.
        ranges: &'static [u64],
        /// Number of pairs in a group of COLE's memory level.
        memory_pairs: u64,
        /// Number of queries of each range, if it differs from the default.
        queries: Option<u64>,
    },
    /// `replay` of mainnet.
    Replay {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
        /// Number of random accounts beside those of the blocks, if it differs from the default.
        pad_accounts: Option<u64>,
        /// Number of keys read, if it differs from the default.
        pairs: Option<u64>,
        /// A cap on memory in MiB, with the page cache. It is not scaled.
        memory_limit_mb: Option<u64>,
    },
    /// `bench locality`: Merkle trees in flat files, counted and timed, and rows of MDBX.
    Locality {
        /// Smallest and largest height.
        heights: (u32, u32),
        /// Number of leaves read for the timings; 0 for counts alone.
        samples: u64,
        /// Number of rows of MDBX.
        rows: u32,
        /// Whether batches without pages in the cache are timed too.
        cold: bool,
        /// Layouts of the trees, separated by commas; empty for all.
        layouts: &'static str,
        /// Tries, separated by commas.
        tries: &'static str,
        /// Where trees are timed: `file`, `mdbx`.
        media: &'static str,
        /// Bytes of a slot.
        slot_bytes: u32,
    },
    /// `bench trees`: Merkle search trees in memory.
    Trees {
        /// Number of elements of the tree.
        elements: u64,
        /// Inserts between two computations of the root; 0 for one at the end.
        hash_every: u64,
        /// Chunk sizes for which shapes and messages are measured too.
        shapes: &'static [u32],
    },
    /// `bench crypto`: operations on the points of curves.
    Crypto {
        /// Number of turns.
        rounds: u64,
        /// Number of additions in a turn.
        samples: u64,
    },
    /// `bench sync`: a new peer fetches the tree from others.
    Sync {
        /// Number of elements of the tree.
        elements: u64,
        /// Elements per chunk.
        chunk: u32,
        /// Number of serving peers.
        peers: u32,
        /// Number of lying peers.
        byzantine: u32,
        /// How many times the tree is fetched, if it differs from the default.
        seeds: Option<u64>,
    },
}

/// Reads and writes of [`ExperimentSetup::KvStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMix {
    /// Reads only.
    ReadOnly,
    /// As many reads as writes.
    ReadWrite,
    /// Writes only.
    WriteOnly,
}

/// Accounts of the state of real accesses, if the paper does not say: the default of `bench state`.
const REPLAYED_ACCOUNTS: u64 = 1_000_000;
/// Smallest scaled number of keys, accounts, operations or transactions.
const FLOOR: u64 = 1000;
/// Smallest scaled number of blocks of a chain.
const FEWEST_BLOCKS: u64 = 20;
/// Smallest scaled height of a full tree, which has about as many leaves as the floor.
const LOWEST: u32 = 10;
/// Smallest scaled height of a tree in a file.
const LOWEST_FILE: u32 = 6;
/// Smallest scaled number of blocks between two merges.
const SHORTEST_INTERVAL: u64 = 5;

impl ExperimentSetup {
    /// The bench command that runs it: `state`, `transfers`, `smallbank`, ...
    pub const fn workload(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::Chain { workload, .. } => workload,
            Self::SmallBank { .. } => "smallbank",
            Self::KvStore { .. } => "kvstore",
            Self::Provenance { .. } => "provenance",
            Self::Replay { .. } => "replay",
            Self::Locality { .. } => "locality",
            Self::Trees { .. } => "trees",
            Self::Crypto { .. } => "crypto",
            Self::Sync { .. } => "sync",
        }
    }

    /// Whether it measures all that `other` does: the same, or more heights.
    pub fn covers(&self, other: &Self) -> bool {
        let mut narrowed = *self;
        if let (Self::Locality { heights, .. }, Self::Locality { heights: (low, high), .. }) =
            (&mut narrowed, other)
            && heights.0 <= *low
            && *high <= heights.1
        {
            *heights = (*low, *high);
        }
        narrowed == *other
    }

    /// The cap on memory in MiB, if there is one.
    pub const fn memory_limit_mb(&self) -> Option<u64> {
        match self {
            Self::State { memory_limit_mb, .. } | Self::Replay { memory_limit_mb, .. } => {
                *memory_limit_mb
            }
            _ => None,
        }
    }

    /// Number of keys of the state, at its end if it grows.
    pub const fn keys(&self) -> u64 {
        match *self {
            Self::State { keys: Some(keys), .. } => keys,
            Self::State { pairs, .. } => pairs,
            Self::Chain { accounts, senders, .. } => accounts + senders,
            Self::SmallBank { blocks, txs_per_block, .. } => blocks * txs_per_block,
            Self::KvStore { base, blocks, txs_per_block, .. } => base + blocks * txs_per_block / 4,
            Self::Provenance { states, .. } => states,
            Self::Replay { pad_accounts: Some(accounts), .. } => accounts,
            Self::Replay { .. } => REPLAYED_ACCOUNTS,
            Self::Locality { heights: (_, high), .. } => 1 << high,
            Self::Trees { elements, .. } | Self::Sync { elements, .. } => elements,
            Self::Crypto { .. } => 0,
        }
    }

    /// The experiment at `scale` of its size. Sizes of states and lengths of workloads are
    /// multiplied, rounded to two digits, and kept above a floor (1,000 keys, accounts, pairs,
    /// transactions or elements; 20 blocks), but never larger than the paper's own. A tree loses
    /// one level for each halving of its leaves. Parameters that determine the kind of work stay:
    /// pairs per commit (as long as there are ten commits), transactions per block, ranges, chunks,
    /// peers.
    #[must_use]
    pub fn scaled(mut self, scale: f64) -> Self {
        let size = |paper: &mut u64| *paper = shrink(*paper, scale, FLOOR);
        let height = |paper: &mut u64| *paper = shrink(*paper, scale, FEWEST_BLOCKS);
        // A tree with half the leaves has one level less.
        let levels = -scale.log2().min(0.0) as u32;
        match &mut self {
            Self::State { keys, pairs, commit_every, .. } => {
                match keys {
                    Some(keys) if is_full_tree(*keys) => {
                        let height = (*keys + 2).ilog2();
                        *keys = (1 << height.saturating_sub(levels).clamp(LOWEST, height)) - 2;
                    }
                    Some(keys) => size(keys),
                    None => {}
                }
                size(pairs);
                *commit_every = (*commit_every).min((*pairs / 10).max(1));
            }
            Self::Chain { accounts, senders, txs, merge_interval, .. } => {
                [accounts, senders, txs].into_iter().for_each(size);
                // The number of merges stays that of the paper's experiment.
                if let Some(blocks) = merge_interval {
                    *blocks = shrink(*blocks, scale, SHORTEST_INTERVAL);
                }
            }
            Self::SmallBank { blocks, memory_pairs, .. } => {
                height(blocks);
                size(memory_pairs);
            }
            Self::KvStore { base, blocks, memory_pairs, .. } => {
                size(base);
                height(blocks);
                size(memory_pairs);
            }
            Self::Provenance { blocks, ranges, memory_pairs, .. } => {
                height(blocks);
                // The chain must be as long as the longest query.
                *blocks = (*blocks).max(ranges.iter().copied().max().unwrap_or(0));
                size(memory_pairs);
            }
            Self::Replay { from, to, pad_accounts, .. } => {
                *to = *from + shrink(*to - *from + 1, scale, FEWEST_BLOCKS) - 1;
                pad_accounts.iter_mut().for_each(size);
            }
            Self::Locality { heights: (low, high), samples, rows, .. } => {
                for height in [low, high] {
                    *height = height.saturating_sub(levels).clamp(LOWEST_FILE, *height);
                }
                if *samples > 0 {
                    size(samples);
                }
                // Never more than the paper's own.
                *rows = shrink((*rows).into(), scale, FLOOR).try_into().unwrap_or(*rows);
            }
            Self::Trees { elements, .. } | Self::Sync { elements, .. } => size(elements),
            Self::Crypto { samples, .. } => size(samples),
        }
        self
    }
}

/// Whether `keys`, the contract's account and the leaf before all keys fill a binary tree.
pub(super) const fn is_full_tree(keys: u64) -> bool {
    keys > 2 && (keys + 2).is_power_of_two()
}

/// `paper` times `scale`, rounded to two digits, between `floor` and `paper`.
fn shrink(paper: u64, scale: f64, floor: u64) -> u64 {
    if scale >= 1.0 {
        return paper;
    }
    let exact = paper as f64 * scale;
    let unit = 10_f64.powf((exact.max(1.0).log10().floor() - 1.0).max(0.0));
    let rounded = ((exact / unit).round() * unit) as u64;
    rounded.clamp(floor.min(paper), paper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shrink_to_two_digits_and_not_below_the_floor() {
        assert_eq!(shrink(13_546_701, 1.0, FLOOR), 13_546_701, "scale 1 is the paper's own");
        assert_eq!(shrink(5_000_000, 0.1, FLOOR), 500_000);
        assert_eq!(shrink(1 << 20, 0.01, FLOOR), 10_000);
        assert_eq!(shrink(46_701, 0.5, FLOOR), 23_000);
        assert_eq!(shrink(1_000_000, 1e-6, FLOOR), FLOOR);
        assert_eq!(shrink(100, 0.01, FLOOR), 100, "no floor above the paper's own");
    }

    #[test]
    fn a_small_run_still_has_commits_and_its_queries_fit_into_the_chain() {
        let state = |pairs, commit_every| ExperimentSetup::State {
            keys: None,
            pairs,
            commit_every,
            cache_mb: None,
            proofs: 0,
            memory_limit_mb: Some(512),
        };
        assert_eq!(state(10_000_000, 1000).scaled(1e-4), state(1000, 100));
        let past = |blocks, memory_pairs| ExperimentSetup::Provenance {
            states: 100,
            blocks,
            txs_per_block: 100,
            ranges: &[2, 128, 4],
            memory_pairs,
            queries: None,
        };
        assert_eq!(past(100_000, 450_000).scaled(0.01), past(1000, 4500));
        assert_eq!(past(100_000, 450_000).scaled(1e-4), past(128, FLOOR));
        let tree = |height: u32| ExperimentSetup::State {
            keys: Some((1 << height) - 2),
            pairs: 100_000,
            commit_every: 10_000,
            cache_mb: None,
            proofs: 0,
            memory_limit_mb: None,
        };
        let ExperimentSetup::State { keys, .. } = tree(24).scaled(0.01) else { return };
        assert_eq!(keys, Some((1 << 18) - 2), "a full tree stays full");
    }
}
