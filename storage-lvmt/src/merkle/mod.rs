//! Merkle trees in the shape of RFC 6962: *n* leaves split at the largest power of two below *n*.
//!
//! The same tree comes out if the leaves are paired level by level, and a last leaf without a
//! neighbour moves up as it is. So 32 neighbours, a *group*, are a tree of their own, and the rest
//! of the tree is the tree over the tops of all groups. Trees are stored as groups
//! ([`MerkleGroup`]): the groups of level 0 hold the leaves, the groups of a higher level hold the
//! tops of the groups below. The last level has one group.
//!
//! A *multi-proof* shows that some leaves belong to a top: it consists of the tops of the largest
//! subtrees without any of these leaves, from left to right. For no leaves it is the top itself.

#[cfg(feature = "std")]
mod build;
#[cfg(feature = "std")]
mod group;
mod peaks;
#[cfg(feature = "std")]
mod prove;
#[cfg(feature = "std")]
mod range;
#[cfg(all(test, feature = "std"))]
mod tests;

#[cfg(feature = "std")]
pub(crate) use build::{TreeBuilder, TreePrefix};
#[cfg(feature = "std")]
pub(crate) use group::MerkleGroup;
pub(crate) use peaks::RangePeaks;
#[cfg(feature = "std")]
pub(crate) use prove::prove;
#[cfg(feature = "std")]
pub(crate) use range::RangeEdge;

use crate::hash;
use alloy_primitives::B256;

/// Leaves of a full group.
#[cfg(feature = "std")]
pub(crate) const GROUP: usize = 32;

/// log2 of [`GROUP`].
#[cfg(feature = "std")]
const GROUP_BITS: u32 = 5;

/// The position at which a tree of `n > 1` leaves splits: the largest power of two below `n`.
pub(crate) const fn split(n: u64) -> u64 {
    1 << (n - 1).ilog2()
}

/// The top over `leaves`; zero if there are none.
pub(crate) fn top(leaves: &[B256]) -> B256 {
    match leaves {
        [] => B256::ZERO,
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len() as u64) as usize);
            hash::node(&top(left), &top(right))
        }
    }
}

/// The number of hashes in a multi-proof of the leaves `shown` (by position, ascending, below `n`)
/// in a tree of `n` leaves. Takes `O(log n)` for each leaf shown.
pub(crate) fn siblings(n: u64, shown: &[u64]) -> usize {
    fn below(start: u64, n: u64, shown: &[u64]) -> usize {
        match (n, shown) {
            (_, []) => 1,
            (1, _) => 0,
            _ => {
                let middle = start + split(n);
                let (left, right) = shown.split_at(shown.partition_point(|at| *at < middle));
                below(start, middle - start, left) + below(middle, start + n - middle, right)
            }
        }
    }
    if n == 0 { 0 } else { below(0, n, shown) }
}

/// The top of a tree of `n` leaves, from the leaves `shown` (position and hash, ascending, below
/// `n`) and their multi-proof `siblings`. `None` if the multi-proof is too short. Hashes that are
/// left over stay in the iterator.
pub(crate) fn verify_many(
    n: u64,
    shown: &[(u64, B256)],
    siblings: &mut impl Iterator<Item = B256>,
) -> Option<B256> {
    fn below(
        start: u64,
        n: u64,
        shown: &[(u64, B256)],
        siblings: &mut impl Iterator<Item = B256>,
    ) -> Option<B256> {
        match (n, shown) {
            (_, []) => siblings.next(),
            (1, [(_, leaf)]) => Some(*leaf),
            // The same position twice.
            (1, _) => None,
            _ => {
                let middle = start + split(n);
                let (left, right) = shown.split_at(shown.partition_point(|(at, _)| *at < middle));
                let left = below(start, middle - start, left, siblings)?;
                let right = below(middle, start + n - middle, right, siblings)?;
                Some(hash::node(&left, &right))
            }
        }
    }
    match (n, shown) {
        (0, []) => Some(B256::ZERO),
        (_, [.., (last, _)]) if *last >= n => None,
        _ => below(0, n, shown, siblings),
    }
}

/// The number of levels of groups over `n` leaves; 0 without leaves.
#[cfg(feature = "std")]
pub(crate) const fn levels(n: u64) -> u8 {
    match n {
        0 => 0,
        1 => 1,
        // Each level consumes five bits of the last position.
        _ => ((n - 1).ilog2() / GROUP_BITS) as u8 + 1,
    }
}

/// The number of leaves that all groups of `level` hold together, in a tree of `n` leaves.
#[cfg(feature = "std")]
const fn width(n: u64, level: u8) -> u64 {
    let shift = GROUP_BITS * level as u32;
    if n == 0 || shift >= u64::BITS { (n > 0) as u64 } else { ((n - 1) >> shift) + 1 }
}

/// The number of leaves in group `group` of `level`, in a tree of `n` leaves; 0 if there is no such
/// group.
#[cfg(feature = "std")]
pub(crate) fn group_size(n: u64, level: u8, group: u64) -> u8 {
    let before = group.saturating_mul(GROUP as u64);
    width(n, level).saturating_sub(before).min(GROUP as u64) as u8
}
