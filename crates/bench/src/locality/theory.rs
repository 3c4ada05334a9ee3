//! What the counts must be, from formulas alone: no slot is computed here.
//!
//! | layout | regions of a read, h being the height and n = 2^h |
//! |---|---|
//! | `naive` | h + 1, but h on the left half: the root and its left child are neighbours |
//! | `third` | (h + 1)/3 + 4/9 + 2/9 (-1)^h / n on average (Theorem 3.4), h/2 + 1 rounded down at most (Lemma 3.14) |
//! | `duptree` | those of a naive tree of height b = log2 h rounded up, and one more unless the last node of that tree is on the path |
//! | `duptree-plus` | one for each step of h -> b -> ... -> 0 at most (a discrete log*) |
//! | `duptree-plus-plus` | h/5 rounded up, exactly: the records, without the root |
//! | `blocked` | the same, with the root; 1 for a single leaf |

use super::{
    Layout, LocalityError, Tree,
    count::{Counts, Tally},
    layouts::{LEVELS, lower},
};
use serde::Serialize;

/// What theory says of a tree in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Theory {
    /// Regions of reads, over all leaves.
    pub read_regions: Tally,
    /// Slots that any write changes, all copies counted.
    pub write_slots: u64,
}

impl Theory {
    /// That of `tree`.
    pub fn of(tree: Tree) -> Self {
        let height = tree.height();
        let (h, n) = (u64::from(height), tree.leaves());
        let per_leaf = |regions: u64| Tally { total: regions * n, max: regions };
        let (read_regions, write_slots) = match tree.layout() {
            Layout::Naive => (naive(height), h + 1),
            Layout::Third => (third(height), h + 1),
            Layout::DupTree => (duptree(height), duptree_writes(height, false)),
            Layout::DupTreePlus => (duptree_plus(height), duptree_writes(height, true)),
            Layout::DupTreePlusPlus => (per_leaf(h.div_ceil(LEVELS.into())), record_writes(height)),
            Layout::Blocked => (per_leaf(h.div_ceil(LEVELS.into()).max(1)), block_writes(height)),
        };
        Self { read_regions, write_slots }
    }

    /// Holds counts against it. Reads are those of all leaves.
    pub(super) fn check(
        &self,
        tree: Tree,
        read: &Counts,
        write: &Counts,
    ) -> Result<(), LocalityError> {
        let of = |what: &str, theory: String, counted: String| {
            let what = format!("{}, height {}: {what}", tree.layout(), tree.height());
            Err(LocalityError::Mismatch { what, theory, counted })
        };
        if read.leaves != tree.leaves() {
            return of("leaves read", tree.leaves().to_string(), read.leaves.to_string());
        }
        if read.regions != self.read_regions {
            let words = |tally: Tally| {
                format!("{} for all leaves together and {} at most", tally.total, tally.max)
            };
            return of("regions of reads", words(self.read_regions), words(read.regions));
        }
        let each = Tally { total: self.write_slots * write.leaves, max: self.write_slots };
        if write.slots != each {
            let counted = format!("{} on average", write.mean(write.slots));
            return of("slots that a write changes", self.write_slots.to_string(), counted);
        }
        Ok(())
    }
}

fn naive(height: u32) -> Tally {
    let (h, n) = (u64::from(height), 1 << height);
    // The left half has one less; a single leaf has no half.
    Tally { total: (h + 1) * n - n / 2, max: h + 1 }
}

/// Delta(h) of Theorem 3.4 in whole numbers.
fn third(height: u32) -> Tally {
    let (h, n) = (u64::from(height), 1 << height);
    let nine_fold = 3 * (h + 1) * n + 4 * n;
    let nine_fold = if height.is_multiple_of(2) { nine_fold + 2 } else { nine_fold - 2 };
    Tally { total: nine_fold / 9, max: h / 2 + 1 }
}

/// The ancestors above a subtree follow its last slot, which holds its last leaf: on the path of one
/// leaf they make no region of their own.
fn duptree(height: u32) -> Tally {
    let Some(below) = lower(height) else { return Tally { total: 1, max: 1 } };
    let inner = naive(below);
    let (units, leaves) = (1 << (height - below), 1 << below);
    // Where the right half is a single leaf, or none, nothing exceeds the left one.
    let max = match below {
        0 | 1 => inner.max,
        _ => inner.max + 1,
    };
    Tally { total: units * (inner.total + leaves - 1), max }
}

/// The last slot of a tree made in the same way holds its root, on the paths of its last unit's leaves.
fn duptree_plus(height: u32) -> Tally {
    let Some(below) = lower(height) else { return Tally { total: 1, max: 1 } };
    let inner = duptree_plus(below);
    let (units, leaves) = (1 << (height - below), 1 << below);
    let (joined, max) = match lower(below) {
        None => (1, 1),
        Some(lowest) => (1 << lowest, inner.max + 1),
    };
    Tally { total: units * (inner.total + leaves - joined), max }
}

/// The ancestor at height k stands in each of the 2^(k - b) units below it.
fn duptree_writes(height: u32, is_recursive: bool) -> u64 {
    let Some(below) = lower(height) else { return 1 };
    let inner = if is_recursive { duptree_writes(below, true) } else { u64::from(below) + 1 };
    inner + (2 << (height - below)) - 2
}

/// A node that is k levels above the bottom of its layer stands in 2^k records.
fn record_writes(height: u32) -> u64 {
    let (full, rest) = (height / LEVELS, height % LEVELS);
    let of_layer = |levels: u32| (1_u64 << levels) - 1;
    u64::from(full) * of_layer(LEVELS) + of_layer(rest)
}

/// All nodes of the blocks: 62 of a full one, and the root of the tree.
fn block_writes(height: u32) -> u64 {
    let (full, rest) = (height / LEVELS, height % LEVELS);
    let of_block = |levels: u32| (2_u64 << levels) - 2;
    u64::from(full) * of_block(LEVELS) + of_block(rest) + 1
}
