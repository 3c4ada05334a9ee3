//! The Zipf distribution from which a trace with given counts is drawn.

use crate::random::ZipfDistribution;

/// Terms of a sum that are added one by one. Those after them are added in groups, each as often as
/// its middle: the error is below 10^-5.
const EXACT: u64 = 1000;
/// Numbers of items that are tried, at most.
const MOST_ITEMS: u64 = 1 << 40;
/// Steps of a bisection.
const STEPS: u32 = 40;

/// The counts that a distribution is fitted to.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceCounts {
    /// Number of blocks.
    pub(super) blocks: u64,
    /// Accesses, summed over blocks. A block accesses a key once.
    pub(super) reads: u64,
    /// Distinct keys in all blocks.
    pub(super) keys: u64,
}

/// The number of items of a Zipf distribution with the constant of YCSB, so that blocks that draw
/// until they have their number of distinct items have `keys` distinct ones together, on average.
///
/// `None` if no number of items gives so many.
pub(super) fn fit(counts: &TraceCounts) -> Option<u64> {
    let a_block = counts.reads as f64 / counts.blocks as f64;
    let keys = counts.keys as f64;
    let distinct = |items: u64| {
        // Draws for a block: some are of an item that the block has already.
        let zipf = ZipfWeights::new(items);
        let draws = bisect(a_block, a_block * 1000.0, |draws| zipf.distinct(draws) >= a_block);
        zipf.distinct(draws * counts.blocks as f64)
    };
    let (low, high) = ((counts.keys as f64).ln(), (MOST_ITEMS as f64).ln());
    let items = |log: f64| log.exp().round() as u64;
    if distinct(items(high)) < keys {
        return None;
    }
    Some(items(bisect(low, high, |log| distinct(items(log)) >= keys)))
}

/// The least number of a range for which `is_enough` holds, by halving.
fn bisect(mut low: f64, mut high: f64, is_enough: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        *(if is_enough(middle) { &mut high } else { &mut low }) = middle;
    }
    high
}

/// The weights of the items, in groups.
struct ZipfWeights {
    /// The probability of each item of a group, and their number.
    groups: Vec<(f64, f64)>,
}

impl ZipfWeights {
    fn new(items: u64) -> Self {
        let mut groups = Vec::new();
        let mut first = 1;
        while first <= items {
            let len = if first <= EXACT { 1 } else { first / 100 }.min(items - first + 1);
            let middle = first as f64 + (len - 1) as f64 / 2.0;
            groups.push((middle.powf(-ZipfDistribution::YCSB), len as f64));
            first += len;
        }
        let sum: f64 = groups.iter().map(|(weight, len)| weight * len).sum();
        groups.iter_mut().for_each(|(weight, _)| *weight /= sum);
        Self { groups }
    }

    /// The expected number of distinct items among this many draws.
    fn distinct(&self, draws: f64) -> f64 {
        let of = |(p, len): &(f64, f64)| -len * (draws * (-p).ln_1p()).exp_m1();
        self.groups.iter().map(of).sum()
    }
}
