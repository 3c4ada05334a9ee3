//! Exact counts of the regions, pages and slots that reads and writes of leaves touch, and of the
//! copies of nodes. No file is needed.

use super::{
    DenseTree, LocalityError, Region, SlotContent, TreeLayout,
    error::goes_on,
    region::{common_slots, pages, slots},
    theory::ExpectedCounts,
};
use crate::random::SplitMix64;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// If an access has more regions than this, random leaves are counted instead of all leaves.
const MANY: usize = 256;
/// So they are if those of all leaves together are more than this, and a path has fewer.
const MOST: u64 = 1 << 32;
/// Number of regions of all random leaves together, about.
const SOME: usize = 1 << 26;
/// Leaves per parallel task.
const CHUNK: u64 = 1 << 12;
/// Smallest number of random leaves.
const FEWEST: u64 = 16;

/// Sum and maximum of a figure over leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeafTally {
    /// The sum.
    pub total: u64,
    /// The largest.
    pub max: u64,
}

impl LeafTally {
    pub(super) fn add(&mut self, value: u64) {
        self.total += value;
        self.max = self.max.max(value);
    }

    fn join(self, other: Self) -> Self {
        Self { total: self.total + other.total, max: self.max.max(other.max) }
    }
}

/// The regions, pages and slots that reads, or writes, of leaves touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct AccessCounts {
    /// Number of counted leaves.
    pub(crate) leaves: u64,
    /// Whether all leaves of the tree were counted; otherwise they were chosen at random.
    pub(crate) all: bool,
    /// Regions per leaf: the locality.
    pub(crate) regions: LeafTally,
    /// Distinct pages of 4096 bytes per leaf.
    pub(crate) pages: LeafTally,
    /// Slots per leaf.
    pub(crate) slots: LeafTally,
}

impl AccessCounts {
    fn of(mut self, regions: &[Region], content: SlotContent) -> Self {
        self.leaves += 1;
        self.regions.add(regions.len() as u64);
        self.pages.add(pages(regions, content));
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

    /// The mean per leaf of `tally`.
    pub(crate) fn mean(&self, tally: LeafTally) -> f64 {
        tally.total as f64 / self.leaves.max(1) as f64
    }
}

/// The counts of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeCounts {
    /// Reads, over all leaves.
    pub(crate) read: AccessCounts,
    /// Writes, over all leaves, or over random leaves if a write touches very many regions.
    pub(crate) write: AccessCounts,
    /// Copies of the node that has most.
    pub(crate) copies: u64,
}

/// Counts reads and writes of `tree`, and compares the counts with [`ExpectedCounts`].
///
/// # Errors
/// [`LocalityError::Mismatch`] if the counts differ; [`LocalityError::Stopped`].
pub(crate) fn count(tree: DenseTree, stop: &AtomicBool) -> Result<TreeCounts, LocalityError> {
    let read = over_leaves(tree, DenseTree::read, stop)?;
    let write = match tree.layout().has_copies() {
        true => over_leaves(tree, DenseTree::write, stop)?,
        false => read,
    };
    let counts = TreeCounts { read, write, copies: most_copies(tree, stop)? };
    ExpectedCounts::of(tree).check(tree, &counts)?;
    Ok(counts)
}

/// K of Theorem 3.9: the copies of the node on the path of leaf 0 that has most; all nodes of a
/// height have as many. Two leaves change the copies of their common ancestors, and nothing else in
/// common.
fn most_copies(tree: DenseTree, stop: &AtomicBool) -> Result<u64, LocalityError> {
    // Its writes change whole blocks.
    if tree.layout() == TreeLayout::Blocked {
        return Ok(1);
    }
    let (mut first, mut other) = (Vec::new(), Vec::new());
    tree.write(0, &mut first);
    let (mut most, mut above) = (0, 0);
    for height in (0..=tree.height()).rev() {
        goes_on(stop)?;
        // The lowest common ancestor with this leaf has this height.
        tree.write((1 << height) >> 1, &mut other);
        let common = common_slots(&first, &other);
        most = most.max(common - above);
        above = common;
    }
    Ok(most)
}

/// Counts one kind of access, over all leaves; those that have [very many](MANY) regions, or have
/// [very many](MOST) together and more than a path, over random leaves.
fn over_leaves(
    tree: DenseTree,
    access: fn(DenseTree, u64, &mut Vec<Region>),
    stop: &AtomicBool,
) -> Result<AccessCounts, LocalityError> {
    let mut regions = Vec::new();
    access(tree, 0, &mut regions);
    let some = (SOME / regions.len().max(1)) as u64;
    let is_path = regions.len() as u64 <= u64::from(tree.height()) + 1;
    let is_short = is_path || regions.len() as u64 <= MOST / tree.leaves();
    let counted = if regions.len() <= MANY && is_short || some >= tree.leaves() {
        let chunk = |chunk: u64| {
            let end = ((chunk + 1) * CHUNK).min(tree.leaves());
            tally(tree, access, chunk * CHUNK..end, stop)
        };
        let chunks = (0..tree.leaves().div_ceil(CHUNK)).into_par_iter().map(chunk);
        let counted = chunks.try_reduce(AccessCounts::default, |a, b| Ok(a.join(b)))?;
        AccessCounts { all: true, ..counted }
    } else {
        let mut random = SplitMix64::new(tree.height().into());
        let leaves = (0..some.max(FEWEST)).map(|_| random.below(tree.leaves()));
        tally(tree, access, leaves, stop)?
    };
    Ok(counted)
}

fn tally(
    tree: DenseTree,
    access: fn(DenseTree, u64, &mut Vec<Region>),
    mut leaves: impl Iterator<Item = u64>,
    stop: &AtomicBool,
) -> Result<AccessCounts, LocalityError> {
    let mut regions = Vec::new();
    leaves.try_fold(AccessCounts::default(), |counts, leaf| {
        goes_on(stop)?;
        access(tree, leaf, &mut regions);
        Ok(counts.of(&regions, tree.content()))
    })
}
