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
    region::slots,
};
use crate::random::SplitMix64;
use retrie_report::stats::quantile;
use std::{path::PathBuf, sync::atomic::AtomicBool, time::Duration};

/// Writes per batch (section 5.1.2).
pub(super) const WRITES: u64 = 10_000;
/// Largest number of regions of a batch.
const MOST_REGIONS: u64 = 1 << 20;
/// Largest number of bytes of a batch, which is in memory.
const MOST_BYTES: u64 = 1 << 29;

/// The parameters of a timing.
#[derive(Clone, Debug)]
pub struct TimingConfig {
    /// Number of leaves read in all batches together. A batch of writes has as many, up to 10,000.
    /// Batches are shorter if an access has very many regions or bytes.
    pub samples: u64,
    /// Whether cold batches run in addition to the cached ones.
    pub cold: bool,
    /// Folder of the file.
    pub folder: PathBuf,
    /// Seed of the leaves.
    pub seed: u64,
}

impl TimingConfig {
    /// Accesses per batch.
    pub(super) fn batch(&self, phase: AccessPhase) -> u64 {
        match phase {
            AccessPhase::Read => (self.samples / phase.batches()).max(1),
            AccessPhase::Write | AccessPhase::Insert => self.samples.clamp(1, WRITES),
        }
    }
}

/// The regions of a leaf that a read or a write takes.
type LeafAccess = fn(DenseTree, u64, &mut Vec<super::Region>);

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPhase {
    /// A read of a leaf or key with its path.
    Read,
    /// A write of a leaf, with all copies of the nodes above.
    Write,
    /// An insert of a new key into a trie.
    Insert,
}

impl AccessPhase {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Insert => "insert",
        }
    }

    /// Number of batches.
    pub(super) const fn batches(self) -> u64 {
        match self {
            Self::Read => 10,
            Self::Write | Self::Insert => 3,
        }
    }
}

/// Where the file's pages are when a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What an access does.
    pub(crate) phase: AccessPhase,
    /// Where the pages of the file were; `None` for rows of MDBX.
    pub(crate) pages: Option<PageState>,
    /// Accesses per batch.
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
        for phase in [AccessPhase::Read, AccessPhase::Write] {
            timings.push(batches(&file, (phase, pages), timed, &mut random, stop)?);
        }
    }
    Ok(timings)
}

fn batches(
    file: &TreeFile,
    (phase, pages): (AccessPhase, PageState),
    timed: &TimingConfig,
    random: &mut SplitMix64,
    stop: &AtomicBool,
) -> Result<BatchTiming, LocalityError> {
    let tree = file.tree();
    let access: LeafAccess = match phase {
        AccessPhase::Read => DenseTree::read,
        AccessPhase::Write | AccessPhase::Insert => DenseTree::write,
    };
    let batch = timed.batch(phase).clamp(1, most_at_once(tree, access));
    let mut buffer = Vec::new();
    let mut timing = BatchTiming { phase, pages: Some(pages), batch, batches: Vec::new() };
    if pages == PageState::Cached {
        file.warm(stop)?;
    }
    for _ in 0..phase.batches() {
        let leaves = (0..batch).map(|_| random.below(tree.leaves()));
        let accesses = AccessBatch::of(tree, access, leaves);
        let is_cold = pages == PageState::Cold;
        timing.batches.push(match phase {
            AccessPhase::Read => {
                if is_cold {
                    file.evict_pages()?;
                }
                file.read(&accesses, &mut buffer, stop)?
            }
            _ => file.write(&accesses, is_cold, &mut buffer, stop)?,
        });
    }
    Ok(timing)
}

/// Largest number of accesses of a batch.
fn most_at_once(tree: DenseTree, access: LeafAccess) -> u64 {
    let mut regions = Vec::new();
    access(tree, 0, &mut regions);
    let bytes = slots(&regions) * tree.content().bytes();
    let most = (MOST_REGIONS / (regions.len() as u64).max(1)).min(MOST_BYTES / bytes.max(1));
    most.max(1)
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
            for (timing, phase) in
                timings.iter().zip([AccessPhase::Read, AccessPhase::Write].into_iter().cycle())
            {
                assert_eq!(timing.phase, phase);
                let (batches, batch) = if phase == AccessPhase::Read { (10, 4) } else { (3, 40) };
                assert_eq!((timing.batches.len(), timing.batch), (batches, batch), "{layout}");
                assert!(timing.median_micros() > 0.0 && timing.ops() == batches as u64 * batch);
            }
            assert!(timings.len() == 2 || timings.len() == 4, "{layout}");
        }
    }

    #[test]
    fn a_batch_of_writes_is_short_where_each_of_them_changes_the_whole_file() {
        let tree = |layout| DenseTree::new(layout, 16).unwrap();
        let at_once = |tree| most_at_once(tree, DenseTree::write);
        assert!(at_once(tree(TreeLayout::Naive)) > WRITES);
        assert!(at_once(tree(TreeLayout::DupTreePlusPlus)) > WRITES);
        // 2^12 units: one region in each, and a few in the leaf's own unit.
        assert!((200..=256).contains(&at_once(tree(TreeLayout::DupTree))));
        // Two blocks of up to 256 KiB.
        let large = tree(TreeLayout::Blocked).with_subtrees("4096".parse().unwrap());
        assert!((2000..2100).contains(&most_at_once(large, DenseTree::read)));
    }
}
