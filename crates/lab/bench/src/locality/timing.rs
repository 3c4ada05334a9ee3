//! Times reads and writes of random leaves in a file.
//!
//! A batch is timed as a whole: one `pread` for each region of each read, or one `pwrite` for each
//! region of each write and one `fdatasync` at the end. The regions are computed before, and the
//! read bytes are checked afterwards. A *cold* batch begins with none of the file's pages in the
//! page cache (a read finds the pages that earlier reads of the batch have loaded); a *cached*
//! batch begins with all of them, if the file fits into memory. There is no readahead.

use super::{
    DenseTree, LocalityError,
    file::{AccessBatch, TreeFile},
};
use crate::random::SplitMix64;
use retrie_report::stats::quantile;
use serde::Serialize;
use std::{path::PathBuf, sync::atomic::AtomicBool, time::Duration};

/// Batches of reads.
const READ_BATCHES: u64 = 10;
/// Batches of writes.
const WRITE_BATCHES: u64 = 3;
/// Writes per batch (section 5.1.2).
const WRITES: u64 = 10_000;
/// Largest number of regions that a batch of writes changes.
const MOST_REGIONS: u64 = 1 << 20;

/// The parameters of a timing.
#[derive(Clone, Debug)]
pub struct TimingConfig {
    /// Number of leaves read in all batches together. A batch of writes has as many, up to 10,000.
    pub samples: u64,
    /// Whether cold batches run in addition to the cached ones.
    pub cold: bool,
    /// Folder of the file.
    pub folder: PathBuf,
    /// Seed of the leaves.
    pub seed: u64,
}

/// The operation on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LeafOperation {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl LeafOperation {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    const fn access(self) -> fn(DenseTree, u64, &mut Vec<super::Region>) {
        match self {
            Self::Read => DenseTree::read,
            Self::Write => DenseTree::write,
        }
    }
}

/// Where the file's pages are when a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageState {
    /// In the page cache.
    Cached,
    /// On disk alone.
    Cold,
}

impl PageState {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Cold => "cold",
        }
    }
}

/// The times of the batches of one kind.
#[derive(Clone, Debug)]
pub(crate) struct BatchTiming {
    /// The operation.
    pub(crate) operation: LeafOperation,
    /// Where the pages were.
    pub(crate) pages: PageState,
    /// Leaves per batch.
    pub(crate) batch: u64,
    /// Duration of each batch.
    pub(crate) batches: Vec<Duration>,
}

impl BatchTiming {
    /// Microseconds per operation in the median batch.
    pub(crate) fn median_micros(&self) -> f64 {
        quantile(self.micros(), 0.5)
    }

    /// Interquartile range of the batches over their median.
    pub(crate) fn spread(&self) -> f64 {
        match self.median_micros() {
            0.0 => 0.0,
            median => (quantile(self.micros(), 0.75) - quantile(self.micros(), 0.25)) / median,
        }
    }

    /// Number of operations of all batches.
    pub(crate) const fn ops(&self) -> u64 {
        self.batch * self.batches.len() as u64
    }

    /// Seconds of all batches.
    pub(crate) fn seconds(&self) -> f64 {
        self.batches.iter().map(Duration::as_secs_f64).sum()
    }

    /// Microseconds per operation in each batch.
    pub(crate) fn micros(&self) -> impl Iterator<Item = f64> {
        self.batches.iter().map(|batch| batch.as_secs_f64() * 1e6 / self.batch as f64)
    }
}

/// Writes the file of `tree` and times reads and writes of it.
///
/// # Errors
/// If the file cannot be created or read, or a slot holds a wrong node; if cold batches are
/// requested and the folder lies in memory; [`LocalityError::Stopped`].
pub(crate) fn time(
    tree: DenseTree,
    timed: &TimingConfig,
    stop: &AtomicBool,
) -> Result<Vec<BatchTiming>, LocalityError> {
    let file = TreeFile::create(&timed.folder, tree, stop)?;
    if timed.cold && file.is_in_memory()? {
        return Err(LocalityError::InMemory { folder: timed.folder.clone() });
    }
    let mut random = SplitMix64::new(timed.seed);
    let mut timings = Vec::new();
    for pages in [PageState::Cached, PageState::Cold] {
        if pages == PageState::Cold && !timed.cold {
            continue;
        }
        for operation in [LeafOperation::Read, LeafOperation::Write] {
            timings.push(batches(&file, tree, (operation, pages), timed, &mut random, stop)?);
        }
    }
    Ok(timings)
}

fn batches(
    file: &TreeFile,
    tree: DenseTree,
    (operation, pages): (LeafOperation, PageState),
    timed: &TimingConfig,
    random: &mut SplitMix64,
    stop: &AtomicBool,
) -> Result<BatchTiming, LocalityError> {
    let (count, batch) = match operation {
        LeafOperation::Read => (READ_BATCHES, (timed.samples / READ_BATCHES).max(1)),
        LeafOperation::Write => (WRITE_BATCHES, timed.samples.clamp(1, writes_at_once(tree))),
    };
    let mut buffer = Vec::new();
    let mut timing = BatchTiming { operation, pages, batch, batches: Vec::new() };
    if pages == PageState::Cached {
        file.warm(stop)?;
    }
    for _ in 0..count {
        let leaves = (0..batch).map(|_| random.below(tree.leaves()));
        let accesses = AccessBatch::of(tree, operation.access(), leaves);
        let is_cold = pages == PageState::Cold;
        timing.batches.push(match operation {
            LeafOperation::Read => {
                if is_cold {
                    file.evict_pages()?;
                }
                file.read(&accesses, &mut buffer, stop)?
            }
            LeafOperation::Write => file.write(&accesses, is_cold, &mut buffer, stop)?,
        });
    }
    Ok(timing)
}

/// Writes per batch; fewer if each write changes very many regions.
fn writes_at_once(tree: DenseTree) -> u64 {
    let mut regions = Vec::new();
    tree.write(0, &mut regions);
    (MOST_REGIONS / (regions.len() as u64).max(1)).clamp(1, WRITES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::TreeLayout;

    #[test]
    fn every_layout_is_timed_cached_and_cold() {
        let stop = AtomicBool::new(false);
        let folder = std::env::temp_dir();
        let timed = TimingConfig { samples: 40, cold: true, folder, seed: 1 };
        for layout in TreeLayout::ALL {
            let tree = DenseTree::new(layout, 9).unwrap();
            let timings = match time(tree, &timed, &stop) {
                Err(LocalityError::InMemory { .. }) => {
                    time(tree, &TimingConfig { cold: false, ..timed.clone() }, &stop)
                }
                timings => timings,
            };
            let timings = timings.unwrap();
            for (timing, operation) in
                timings.iter().zip([LeafOperation::Read, LeafOperation::Write].into_iter().cycle())
            {
                assert_eq!(timing.operation, operation);
                let (batches, batch) = match operation {
                    LeafOperation::Read => (10, 4),
                    LeafOperation::Write => (3, 40),
                };
                assert_eq!((timing.batches.len(), timing.batch), (batches, batch), "{layout}");
                assert!(timing.median_micros() > 0.0 && timing.ops() == batches as u64 * batch);
            }
            assert!(timings.len() == 2 || timings.len() == 4, "{layout}");
        }
    }

    #[test]
    fn a_batch_of_writes_is_short_where_each_of_them_changes_the_whole_file() {
        let at_once = |layout| writes_at_once(DenseTree::new(layout, 16).unwrap());
        assert_eq!(at_once(TreeLayout::Naive), WRITES);
        assert_eq!(at_once(TreeLayout::DupTreePlusPlus), WRITES);
        // 2^12 units: one region in each, and a few in the leaf's own unit.
        assert!((200..=256).contains(&at_once(TreeLayout::DupTree)));
    }
}
