//! Exact counts: what reads and writes of leaves touch.

use super::{
    LocalityError, Region, Tree,
    region::{pages, slots},
    theory::Theory,
};
use crate::random::Random;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// An access of more regions than these is counted for some leaves, chosen at random,
const MANY: usize = 256;
/// as many as have about this number of regions together.
const SOME: usize = 1 << 26;
/// Leaves of a task.
const CHUNK: u64 = 1 << 12;
/// Fewest leaves that are chosen.
const FEWEST: u64 = 16;

/// Sum and maximum of a figure over leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The sum.
    pub total: u64,
    /// The largest.
    pub max: u64,
}

impl Tally {
    pub(super) fn add(&mut self, value: u64) {
        self.total += value;
        self.max = self.max.max(value);
    }

    fn join(self, other: Self) -> Self {
        Self { total: self.total + other.total, max: self.max.max(other.max) }
    }
}

/// What reads, or writes, of leaves touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Leaves that were counted.
    pub leaves: u64,
    /// Whether these are all leaves of the tree; else they were chosen at random.
    pub all: bool,
    /// Regions of a leaf: the locality.
    pub regions: Tally,
    /// Distinct pages of [`PAGE_BYTES`](super::PAGE_BYTES).
    pub pages: Tally,
    /// Slots.
    pub slots: Tally,
}

impl Counts {
    fn of(mut self, regions: &[Region]) -> Self {
        self.leaves += 1;
        self.regions.add(regions.len() as u64);
        self.pages.add(pages(regions));
        self.slots.add(slots(regions));
        self
    }

    fn join(self, other: Self) -> Self {
        Self {
            leaves: self.leaves + other.leaves,
            all: self.all,
            regions: self.regions.join(other.regions),
            pages: self.pages.join(other.pages),
            slots: self.slots.join(other.slots),
        }
    }

    /// The mean of one of its figures.
    pub fn mean(&self, tally: Tally) -> f64 {
        tally.total as f64 / self.leaves.max(1) as f64
    }
}

/// What reads and writes of a tree touch.
#[derive(Clone, Copy, Debug)]
pub struct TreeCounts {
    /// Of reads, over all leaves.
    pub read: Counts,
    /// Of writes, over all leaves or, where a write touches very many regions, some.
    pub write: Counts,
}

/// Counts reads and writes of `tree`, and holds them against [`Theory`].
///
/// # Errors
/// [`LocalityError::Mismatch`] if theory says something else; [`LocalityError::Stopped`].
pub fn count(tree: Tree, stop: &AtomicBool) -> Result<TreeCounts, LocalityError> {
    let read = over_leaves(tree, Tree::read, stop)?;
    let write = over_leaves(tree, Tree::write, stop)?;
    Theory::of(tree).check(tree, &read, &write)?;
    Ok(TreeCounts { read, write })
}

/// Counts one kind of access, over all leaves unless each has [very many](MANY) regions.
fn over_leaves(
    tree: Tree,
    access: fn(Tree, u64, &mut Vec<Region>),
    stop: &AtomicBool,
) -> Result<Counts, LocalityError> {
    let mut regions = Vec::new();
    access(tree, 0, &mut regions);
    let some = (SOME / regions.len().max(1)) as u64;
    let counted = if regions.len() <= MANY || some >= tree.leaves() {
        let chunk = |chunk: u64| {
            let end = ((chunk + 1) * CHUNK).min(tree.leaves());
            tally(tree, access, chunk * CHUNK..end, stop)
        };
        let chunks = (0..tree.leaves().div_ceil(CHUNK)).into_par_iter().map(chunk);
        let counted = chunks.try_reduce(Counts::default, |a, b| Ok(a.join(b)))?;
        Counts { all: true, ..counted }
    } else {
        let mut random = Random::new(tree.height().into());
        let leaves = (0..some.max(FEWEST)).map(|_| random.below(tree.leaves()));
        tally(tree, access, leaves, stop)?
    };
    Ok(counted)
}

fn tally(
    tree: Tree,
    access: fn(Tree, u64, &mut Vec<Region>),
    mut leaves: impl Iterator<Item = u64>,
    stop: &AtomicBool,
) -> Result<Counts, LocalityError> {
    let mut regions = Vec::new();
    leaves.try_fold(Counts::default(), |counts, leaf| {
        if stop.load(Ordering::Relaxed) {
            return Err(LocalityError::Stopped);
        }
        access(tree, leaf, &mut regions);
        Ok(counts.of(&regions))
    })
}
