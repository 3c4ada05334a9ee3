//! The expected counts, from formulas alone: no slot is computed here.
//!
//! | layout | regions of a read, h being the height and n = 2^h |
//! |---|---|
//! | `naive` | h + 1, but h on the left half: the root and its left child are neighbours |
//! | `third` | (h + 1)/3 + 4/9 + 2/9 (-1)^h / n on average (Theorem 3.4), h/2 + 1 rounded down at most (Lemma 3.14) |
//! | `duptree` | as a naive tree of height b = log2 h rounded up, and one more unless the last node of that tree is on the path |
//! | `duptree-plus` | one for each step of h -> b -> ... -> 0 at most (a discrete log*) |
//! | `duptree-plus-plus` | h / log P rounded up, exactly: the records, without the root |
//! | `blocked` | the same, with the root; 1 for a single leaf |
//!
//! Theorem 3.9 bounds the mean regions of a read from below, where no node has more than K copies:
//! its proof holds for every constant c below log K / (2 log K + 4), so for K >= 2 and h >= log K
//! the mean is at least h / (2 log K + 4). Without copies the least mean is that of `third`
//! (Theorem 3.4). Neither holds for `blocked`, which reads more than the path.

use super::{
    DenseTree, LocalityError, TreeLayout,
    count::{LeafTally, TreeCounts},
    layouts::lower,
};
use serde::Serialize;

/// The expected counts of a tree in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpectedCounts {
    /// Regions of reads, over all leaves.
    pub read_regions: LeafTally,
    /// Slots that each write changes, with all copies.
    pub write_slots: u64,
    /// K: the largest number of copies of a node.
    pub copies: u64,
}

impl ExpectedCounts {
    /// The expected counts of `tree`.
    pub(crate) fn of(tree: DenseTree) -> Self {
        let height = tree.height();
        let (h, n) = (u64::from(height), tree.leaves());
        let per_leaf = |regions: u64| LeafTally { total: regions * n, max: regions };
        let levels = tree.levels();
        let layers = h.div_ceil(levels.into());
        let (read_regions, write_slots, copies) = match tree.layout() {
            TreeLayout::Naive => (naive(height), h + 1, 1),
            TreeLayout::Third => (third(height), h + 1, 1),
            TreeLayout::DupTree => {
                (duptree(height), duptree_writes(height, false), root_copies(height))
            }
            TreeLayout::DupTreePlus => {
                (duptree_plus(height), duptree_writes(height, true), duptree_plus_copies(height))
            }
            TreeLayout::DupTreePlusPlus => {
                (per_leaf(layers), record_writes(height, levels), record_copies(height, levels))
            }
            TreeLayout::Blocked => (per_leaf(layers.max(1)), block_writes(height, levels), 1),
        };
        Self { read_regions, write_slots, copies }
    }

    /// The least mean of the regions of a read of `tree`, by Theorem 3.9, or without copies by
    /// Theorem 3.4. `None` if its reads take more than the path.
    pub(crate) fn least_mean_regions(&self, tree: DenseTree) -> Option<f64> {
        let height = match tree.layout() {
            TreeLayout::Blocked => return None,
            // Without the root there are two trees, each with the bound of its height.
            TreeLayout::DupTreePlusPlus => match tree.height().checked_sub(1) {
                Some(height) => height,
                None => return Some(0.0),
            },
            _ => tree.height(),
        };
        let log_copies = (self.copies as f64).log2();
        Some(match self.copies {
            0 | 1 => third(height).total as f64 / (1_u64 << height) as f64,
            // The base case of the proof: every leaf takes a region.
            _ if f64::from(height) < log_copies => 1.0,
            _ => f64::from(height) / (2.0 * log_copies + 4.0),
        })
    }

    /// Compares measured counts with the expected ones. `read` must cover all leaves.
    pub(super) fn check(
        &self,
        tree: DenseTree,
        TreeCounts { read, write, copies }: &TreeCounts,
    ) -> Result<(), LocalityError> {
        let of = |what: &str, theory: String, counted: String| {
            Err(LocalityError::Mismatch { what: format!("{tree}: {what}"), theory, counted })
        };
        if read.leaves != tree.leaves() {
            return of("leaves read", tree.leaves().to_string(), read.leaves.to_string());
        }
        if read.regions != self.read_regions {
            let words = |tally: LeafTally| {
                format!("{} for all leaves together and {} at most", tally.total, tally.max)
            };
            return of("regions of reads", words(self.read_regions), words(read.regions));
        }
        let each = LeafTally { total: self.write_slots * write.leaves, max: self.write_slots };
        if write.slots != each {
            let counted = format!("{} on average", write.mean(write.slots));
            return of("slots that a write changes", self.write_slots.to_string(), counted);
        }
        if *copies != self.copies {
            let [theory, counted] = [self.copies, *copies].map(|copies| copies.to_string());
            return of("most copies of a node", theory, counted);
        }
        let mean = read.mean(read.regions);
        match self.least_mean_regions(tree) {
            Some(least) if mean < least => {
                let theory = format!("{least} at least, by Theorem 3.9");
                of("mean regions of a read", theory, mean.to_string())
            }
            _ => Ok(()),
        }
    }
}

fn naive(height: u32) -> LeafTally {
    let (h, n) = (u64::from(height), 1 << height);
    // A leaf of the left half has one region less. A single leaf has no halves.
    LeafTally { total: (h + 1) * n - n / 2, max: h + 1 }
}

/// Delta(h) of Theorem 3.4 in integers.
fn third(height: u32) -> LeafTally {
    let (h, n) = (u64::from(height), 1 << height);
    let nine_fold = 3 * (h + 1) * n + 4 * n;
    let nine_fold = if height.is_multiple_of(2) { nine_fold + 2 } else { nine_fold - 2 };
    LeafTally { total: nine_fold / 9, max: h / 2 + 1 }
}

/// The ancestors of a subtree follow its last slot, which holds its last leaf. So they make no
/// additional region on the path of that leaf.
fn duptree(height: u32) -> LeafTally {
    let Some(below) = lower(height) else { return LeafTally { total: 1, max: 1 } };
    let inner = naive(below);
    let (units, leaves) = (1 << (height - below), 1 << below);
    // If the right half is a single leaf, or missing, no path exceeds those of the left half.
    let max = match below {
        0 | 1 => inner.max,
        _ => inner.max + 1,
    };
    LeafTally { total: units * (inner.total + leaves - 1), max }
}

/// The last slot of a recursive tree holds its root, which is on the paths of the leaves of its
/// last unit.
fn duptree_plus(height: u32) -> LeafTally {
    let Some(below) = lower(height) else { return LeafTally { total: 1, max: 1 } };
    let inner = duptree_plus(below);
    let (units, leaves) = (1 << (height - below), 1 << below);
    let (joined, max) = match lower(below) {
        None => (1, 1),
        Some(lowest) => (1 << lowest, inner.max + 1),
    };
    LeafTally { total: units * (inner.total + leaves - joined), max }
}

/// The ancestor at height k has a copy in each of the 2^(k - b) units below it.
fn duptree_writes(height: u32, is_recursive: bool) -> u64 {
    let Some(below) = lower(height) else { return 1 };
    let inner = if is_recursive { duptree_writes(below, true) } else { u64::from(below) + 1 };
    inner + (2 << (height - below)) - 2
}

/// A node k levels above the bottom of its layer has a copy in 2^k records.
fn record_writes(height: u32, levels: u32) -> u64 {
    let (full, rest) = (height / levels, height % levels);
    let of_layer = |levels: u32| (1_u64 << levels) - 1;
    u64::from(full) * of_layer(levels) + of_layer(rest)
}

/// All nodes of the blocks: 2P - 2 of a full block, and the root of the tree.
fn block_writes(height: u32, levels: u32) -> u64 {
    let (full, rest) = (height / levels, height % levels);
    let of_block = |levels: u32| (2_u64 << levels) - 2;
    u64::from(full) * of_block(levels) + of_block(rest) + 1
}

/// Copies of the root in DupTree: one in each unit.
fn root_copies(height: u32) -> u64 {
    lower(height).map_or(1, |below| 1 << (height - below))
}

/// The roots of the lower trees are duplicated in the same way.
fn duptree_plus_copies(height: u32) -> u64 {
    lower(height).map_or(1, |below| root_copies(height).max(duptree_plus_copies(below)))
}

/// P / 2 for the highest nodes of a layer; 0 for a single leaf, which is the root.
fn record_copies(height: u32, levels: u32) -> u64 {
    height.min(levels).checked_sub(1).map_or(0, |above| 1 << above)
}
