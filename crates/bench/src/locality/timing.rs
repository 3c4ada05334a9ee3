//! How long reads and writes of random leaves take on a file.
//!
//! A batch is timed as a whole: one `pread` for each region of each read, or one `pwrite` for each
//! region of each write and one `fdatasync` at the end of all. Which regions these are was computed
//! before, and what was read is checked after. *Cold* batches begin with none of the file's pages in
//! the page cache (what one read brings in, the next one finds); *cached* ones with all of them, if
//! memory has room for the file. Nothing is read ahead.

use super::{
    LocalityError, Tree,
    file::{Batch, TreeFile},
};
use crate::{figures::quantile, random::Random};
use serde::Serialize;
use std::{path::PathBuf, sync::atomic::AtomicBool, time::Duration};

/// Batches of reads.
const READ_BATCHES: u64 = 10;
/// Batches of writes.
const WRITE_BATCHES: u64 = 3;
/// Writes of a batch (section 5.1.2).
const WRITES: u64 = 10_000;
/// Regions that a batch of writes changes, at most, however many leaves these are.
const MOST_REGIONS: u64 = 1 << 20;

/// What is timed.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Leaves that are read in all; writes are as many a batch, up to 10,000.
    pub samples: u64,
    /// Cold batches beside the cached ones.
    pub cold: bool,
    /// Folder of the file.
    pub folder: PathBuf,
    /// Seed of the leaves.
    pub seed: u64,
}

/// What is done with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl Operation {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    const fn access(self) -> fn(Tree, u64, &mut Vec<super::Region>) {
        match self {
            Self::Read => Tree::read,
            Self::Write => Tree::write,
        }
    }
}

/// Where pages are when a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// In the page cache.
    Cached,
    /// On disk alone.
    Cold,
}

impl Pages {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Cold => "cold",
        }
    }
}

/// Batches of one kind.
#[derive(Clone, Debug)]
pub struct Timing {
    /// What was done.
    pub operation: Operation,
    /// Where the pages were.
    pub pages: Pages,
    /// Leaves of each batch.
    pub batch: u64,
    /// How long each batch took.
    pub batches: Vec<Duration>,
}

impl Timing {
    /// The microseconds an operation takes in the median batch.
    pub fn median_micros(&self) -> f64 {
        quantile(self.micros(), 0.5)
    }

    /// Interquartile range of the batches over their median.
    pub fn spread(&self) -> f64 {
        match self.median_micros() {
            0.0 => 0.0,
            median => (quantile(self.micros(), 0.75) - quantile(self.micros(), 0.25)) / median,
        }
    }

    /// Operations in all.
    pub const fn ops(&self) -> u64 {
        self.batch * self.batches.len() as u64
    }

    /// Seconds in all.
    pub fn seconds(&self) -> f64 {
        self.batches.iter().map(Duration::as_secs_f64).sum()
    }

    /// Microseconds of an operation in each batch.
    pub fn micros(&self) -> impl Iterator<Item = f64> {
        self.batches.iter().map(|batch| batch.as_secs_f64() * 1e6 / self.batch as f64)
    }
}

/// Writes the file of `tree` and times reads and writes of it.
///
/// # Errors
/// If the file cannot be made or read, or a slot does not hold its node; if reads are to be cold and
/// the folder lies in memory; [`LocalityError::Stopped`].
pub fn time(tree: Tree, timed: &Timed, stop: &AtomicBool) -> Result<Vec<Timing>, LocalityError> {
    let file = TreeFile::create(&timed.folder, tree, stop)?;
    if timed.cold && file.is_in_memory()? {
        return Err(LocalityError::InMemory { folder: timed.folder.clone() });
    }
    let mut random = Random::new(timed.seed);
    let mut timings = Vec::new();
    for pages in [Pages::Cached, Pages::Cold] {
        if pages == Pages::Cold && !timed.cold {
            continue;
        }
        for operation in [Operation::Read, Operation::Write] {
            timings.push(batches(&file, tree, (operation, pages), timed, &mut random, stop)?);
        }
    }
    Ok(timings)
}

fn batches(
    file: &TreeFile,
    tree: Tree,
    (operation, pages): (Operation, Pages),
    timed: &Timed,
    random: &mut Random,
    stop: &AtomicBool,
) -> Result<Timing, LocalityError> {
    let (count, batch) = match operation {
        Operation::Read => (READ_BATCHES, (timed.samples / READ_BATCHES).max(1)),
        Operation::Write => (WRITE_BATCHES, timed.samples.clamp(1, writes_at_once(tree))),
    };
    let mut buffer = Vec::new();
    let mut timing = Timing { operation, pages, batch, batches: Vec::new() };
    if pages == Pages::Cached {
        file.warm(stop)?;
    }
    for _ in 0..count {
        let leaves = (0..batch).map(|_| random.below(tree.leaves()));
        let accesses = Batch::of(tree, operation.access(), leaves);
        let is_cold = pages == Pages::Cold;
        timing.batches.push(match operation {
            Operation::Read => {
                if is_cold {
                    file.chill()?;
                }
                file.read(&accesses, &mut buffer, stop)?
            }
            Operation::Write => file.write(&accesses, is_cold, &mut buffer, stop)?,
        });
    }
    Ok(timing)
}

/// Writes of a batch: fewer where each changes very many regions.
fn writes_at_once(tree: Tree) -> u64 {
    let mut regions = Vec::new();
    tree.write(0, &mut regions);
    (MOST_REGIONS / (regions.len() as u64).max(1)).clamp(1, WRITES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::Layout;

    #[test]
    fn every_layout_is_timed_cached_and_cold() {
        let stop = AtomicBool::new(false);
        let folder = std::env::temp_dir();
        let timed = Timed { samples: 40, cold: true, folder, seed: 1 };
        for layout in Layout::ALL {
            let tree = Tree::new(layout, 9).unwrap();
            let timings = match time(tree, &timed, &stop) {
                Err(LocalityError::InMemory { .. }) => {
                    time(tree, &Timed { cold: false, ..timed.clone() }, &stop)
                }
                timings => timings,
            };
            let timings = timings.unwrap();
            for (timing, operation) in
                timings.iter().zip([Operation::Read, Operation::Write].into_iter().cycle())
            {
                assert_eq!(timing.operation, operation);
                let (batches, batch) = match operation {
                    Operation::Read => (10, 4),
                    Operation::Write => (3, 40),
                };
                assert_eq!((timing.batches.len(), timing.batch), (batches, batch), "{layout}");
                assert!(timing.median_micros() > 0.0 && timing.ops() == batches as u64 * batch);
            }
            assert!(timings.len() == 2 || timings.len() == 4, "{layout}");
        }
    }

    #[test]
    fn a_batch_of_writes_is_short_where_each_of_them_changes_the_whole_file() {
        let at_once = |layout| writes_at_once(Tree::new(layout, 16).unwrap());
        assert_eq!(at_once(Layout::Naive), WRITES);
        assert_eq!(at_once(Layout::DupTreePlusPlus), WRITES);
        // 2^12 units, a region in each and some in the leaf's own.
        assert!((200..=256).contains(&at_once(Layout::DupTree)));
    }
}
