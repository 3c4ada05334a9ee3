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
        /// Memory for caches in MB, if the paper states it.
        cache_mb: Option<u32>,
        /// Blocks between merges of `lmpt`, if it takes part.
        merge_interval: Option<u64>,
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
    },
    /// `replay` of mainnet.
    Replay {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
        /// Number of random accounts beside those of the blocks, if it differs from the default.
        pad_accounts: Option<u64>,
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

/// Smallest scaled number of keys, accounts, operations or transactions.
const FLOOR: u64 = 1000;
/// Smallest scaled number of blocks of a chain.
const FEWEST_BLOCKS: u64 = 20;
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
            Self::Sync { .. } => "sync",
        }
    }

    /// The experiment at `scale` of its size. Sizes of states and lengths of workloads are
    /// multiplied, rounded to two digits, and kept above a floor (1,000 keys, accounts, pairs,
    /// transactions or elements; 20 blocks), but never larger than the paper's own. A tree loses
    /// one level for each halving of its leaves. Parameters that determine the kind of work stay:
    /// pairs per commit (as long as there are ten commits), transactions per block, ranges, chunks,
    /// peers.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Self {
        let size = |paper: u64| shrink(paper, scale, FLOOR);
        let height = |paper: u64| shrink(paper, scale, FEWEST_BLOCKS);
        match self {
            Self::State { keys, pairs, commit_every, cache_mb, proofs, memory_limit_mb } => {
                let (keys, pairs) = (keys.map(size), size(pairs));
                let commit_every = commit_every.min((pairs / 10).max(1));
                Self::State { keys, pairs, commit_every, cache_mb, proofs, memory_limit_mb }
            }
            Self::Chain {
                accounts,
                senders,
                txs,
                workload,
                txs_per_block,
                skewed,
                cache_mb,
                merge_interval,
            } => {
                let (accounts, senders, txs) = (size(accounts), size(senders), size(txs));
                // The number of merges stays that of the paper's experiment.
                let interval = |paper| shrink(paper, scale, SHORTEST_INTERVAL);
                Self::Chain {
                    accounts,
                    senders,
                    txs,
                    workload,
                    txs_per_block,
                    skewed,
                    cache_mb,
                    merge_interval: merge_interval.map(interval),
                }
            }
            Self::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs } => {
                let (blocks, memory_pairs) = (height(blocks), size(memory_pairs));
                Self::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs }
            }
            Self::KvStore { base, blocks, txs_per_block, mix, cache_mb, memory_pairs } => {
                let (base, blocks) = (size(base), height(blocks));
                let memory_pairs = size(memory_pairs);
                Self::KvStore { base, blocks, txs_per_block, mix, cache_mb, memory_pairs }
            }
            Self::Provenance { states, blocks, txs_per_block, ranges, memory_pairs } => {
                // The chain must be as long as the longest query.
                let longest = ranges.iter().copied().max().unwrap_or(0);
                let blocks = height(blocks).max(longest);
                let memory_pairs = size(memory_pairs);
                Self::Provenance { states, blocks, txs_per_block, ranges, memory_pairs }
            }
            Self::Replay { from, to, pad_accounts, memory_limit_mb } => {
                let to = from + height(to - from + 1) - 1;
                Self::Replay { from, to, pad_accounts: pad_accounts.map(size), memory_limit_mb }
            }
            Self::Locality { heights: (low, high), samples, rows } => {
                // A tree with half the leaves has one level less.
                let lower =
                    |height: u32| height.saturating_sub(-scale.log2().min(0.0) as u32).max(1);
                let heights = (lower(low), lower(high));
                // Never more than the paper's own.
                let rows = size(rows.into()).try_into().unwrap_or(rows);
                Self::Locality { heights, samples: size(samples), rows }
            }
            Self::Trees { elements, hash_every, shapes } => {
                Self::Trees { elements: size(elements), hash_every, shapes }
            }
            Self::Sync { elements, chunk, peers, byzantine } => {
                Self::Sync { elements: size(elements), chunk, peers, byzantine }
            }
        }
    }
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
        };
        assert_eq!(past(100_000, 450_000).scaled(0.01), past(1000, 4500));
        assert_eq!(past(100_000, 450_000).scaled(1e-4), past(128, FLOOR));
    }
}
