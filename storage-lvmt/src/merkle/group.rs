//! A group: up to 32 neighbours of one level of a tree, whole or pruned to the hashes that proofs
//! need.

use super::{GROUP, split};
use crate::hash;
use alloy_primitives::B256;

/// Up to 32 neighbouring leaves. Some of them are *kept*: they can still be proven.
///
/// A group holds, from left to right, the hashes of the kept leaves and the tops of the largest
/// subtrees without kept leaves. These are exactly the siblings on the paths of the kept leaves. So
/// one set of kept leaves has one form, in whatever order leaves were pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MerkleGroup {
    /// Leaves, 1 to 32.
    size: u8,
    /// Bit *i* (from the least significant) says whether leaf *i* is kept. At least one leaf is.
    kept: u32,
    hashes: Vec<B256>,
}

impl MerkleGroup {
    /// All of `leaves`, 1 to 32 of them.
    #[cfg(test)]
    pub(crate) fn full(leaves: &[B256]) -> Self {
        assert!((1..=GROUP).contains(&leaves.len()), "{} leaves in a group", leaves.len());
        let size = leaves.len() as u8;
        Self { size, kept: all(size), hashes: leaves.to_vec() }
    }

    /// Bytes of its row: `kept` (4, BE), then the hashes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self.kept, &self.hashes)
    }

    /// Reads the bytes of [`encode`](Self::encode) for a group of `size` leaves; `None` if they are
    /// malformed.
    pub(crate) fn decode(bytes: &[u8], size: u8) -> Option<Self> {
        let (kept, hashes) = bytes.split_first_chunk()?;
        let kept = u32::from_be_bytes(*kept);
        let (hashes, []) = hashes.as_chunks::<32>() else { return None };
        if kept == 0 || size as usize > GROUP || kept & !all(size) != 0 {
            return None;
        }
        let hashes: Vec<_> = hashes.iter().map(B256::from).collect();
        (hashes.len() == count(kept, 0, size)).then_some(Self { size, kept, hashes })
    }

    /// The number of leaves, kept or not.
    pub(crate) const fn size(&self) -> u8 {
        self.size
    }

    /// Bit *i* (from the least significant) says whether leaf *i* is kept.
    pub(crate) const fn kept(&self) -> u32 {
        self.kept
    }

    /// All leaves, if no leaf is pruned.
    pub(crate) fn leaves(&self) -> Option<&[B256]> {
        (self.kept == all(self.size)).then_some(&self.hashes)
    }

    /// The hash of leaf `at`, if it is kept.
    pub(crate) fn leaf(&self, at: u8) -> Option<B256> {
        self.subtree(at, 1).filter(|_| self.kept & bit(at) != 0)
    }

    /// The top over all its leaves.
    pub(crate) fn top(&self) -> B256 {
        fold(self.kept, 0, self.size, &mut self.hashes.iter())
    }

    /// The top of the subtree of `len` leaves from `start` on. `None` if it lies inside a pruned
    /// subtree, or if there is no such subtree.
    pub(crate) fn subtree(&self, start: u8, len: u8) -> Option<B256> {
        let (mut from, mut size) = (0, self.size);
        let mut hashes = &self.hashes[..];
        while (from, size) != (start, len) {
            if size <= 1 || within(self.kept, from, size) == 0 {
                return None;
            }
            let left = split(size.into()) as u8;
            if start < from + left {
                size = left;
            } else {
                hashes = &hashes[count(self.kept, from, left)..];
                (from, size) = (from + left, size - left);
            }
        }
        Some(fold(self.kept, start, len, &mut hashes.iter()))
    }

    /// The same group with only the leaves in `keep`, which must be kept here. `None` if `keep` is
    /// empty: an empty group has no row.
    pub(crate) fn prune(&self, keep: u32) -> Option<Self> {
        assert_eq!(keep & !self.kept, 0, "a pruned leaf cannot come back");
        if keep == 0 {
            return None;
        }
        let mut hashes = Vec::with_capacity(count(keep, 0, self.size));
        self.collect(keep, 0, self.size, &mut self.hashes.iter(), &mut hashes);
        Some(Self { size: self.size, kept: keep, hashes })
    }

    fn collect<'a>(
        &self,
        keep: u32,
        start: u8,
        len: u8,
        from: &mut impl Iterator<Item = &'a B256>,
        to: &mut Vec<B256>,
    ) {
        if len == 1 || within(keep, start, len) == 0 {
            return to.push(fold(self.kept, start, len, from));
        }
        let left = split(len.into()) as u8;
        self.collect(keep, start, left, from, to);
        self.collect(keep, start + left, len - left, from, to);
    }
}

/// The row of a group with these `kept` leaves and hashes.
pub(super) fn encode(kept: u32, hashes: &[B256]) -> Vec<u8> {
    let mut row = Vec::with_capacity(4 + hashes.len() * 32);
    row.extend_from_slice(&kept.to_be_bytes());
    hashes.iter().for_each(|hash| row.extend_from_slice(&hash[..]));
    row
}

/// The bitmap of a group of `size` leaves that are all kept.
pub(super) const fn all(size: u8) -> u32 {
    if size == 0 { 0 } else { u32::MAX >> (32 - size as u32) }
}

const fn bit(at: u8) -> u32 {
    if at < 32 { 1 << at } else { 0 }
}

/// The part of `kept` in the subtree of `len` leaves from `start` on.
const fn within(kept: u32, start: u8, len: u8) -> u32 {
    kept & (all(len) << start)
}

/// The number of hashes that stand for the subtree of `len` leaves from `start` on.
fn count(kept: u32, start: u8, len: u8) -> usize {
    if len == 1 || within(kept, start, len) == 0 {
        return 1;
    }
    let left = split(len.into()) as u8;
    count(kept, start, left) + count(kept, start + left, len - left)
}

/// The top of the subtree of `len` leaves from `start` on, whose hashes are next in `hashes`.
fn fold<'a>(kept: u32, start: u8, len: u8, hashes: &mut impl Iterator<Item = &'a B256>) -> B256 {
    if len == 1 || within(kept, start, len) == 0 {
        // `hashes` has `count` hashes: checked when the group was made.
        return *hashes.next().expect("as many hashes as the bitmap asks for");
    }
    let left = split(len.into()) as u8;
    let left_top = fold(kept, start, left, hashes);
    hash::node(&left_top, &fold(kept, start + left, len - left, hashes))
}
