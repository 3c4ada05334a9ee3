//! The peaks of a growing tree: the tops of the largest complete subtrees, from left to right. They
//! are all that appending a leaf needs.

use crate::hash;
use alloc::vec::Vec;
use alloy_primitives::B256;

/// The peaks of a tree of `count` leaves: one for each bit of `count` that is set.
#[derive(Clone, Debug)]
pub(crate) struct RangePeaks {
    count: u64,
    peaks: Vec<B256>,
}

impl RangePeaks {
    /// The number of peaks of a tree of `count` leaves.
    pub(crate) const fn len(count: u64) -> usize {
        count.count_ones() as usize
    }

    /// These peaks; `None` if a tree of `count` leaves has another number of them.
    pub(crate) fn new(count: u64, peaks: Vec<B256>) -> Option<Self> {
        (peaks.len() == Self::len(count)).then_some(Self { count, peaks })
    }

    /// From left to right.
    #[cfg(feature = "std")]
    pub(crate) fn hashes(&self) -> &[B256] {
        &self.peaks
    }

    /// Appends a leaf.
    pub(crate) fn push(&mut self, leaf: B256) {
        let (mut node, mut rest) = (leaf, self.count);
        while rest & 1 == 1
            && let Some(left) = self.peaks.pop()
        {
            node = hash::node(&left, &node);
            rest >>= 1;
        }
        self.peaks.push(node);
        self.count += 1;
    }

    /// The top; zero without leaves.
    pub(crate) fn top(&self) -> B256 {
        let mut peaks = self.peaks.iter().rev();
        let last = peaks.next().copied().unwrap_or_default();
        peaks.fold(last, |right, left| hash::node(left, &right))
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::merkle;

    #[test]
    fn peaks_give_the_top_of_every_length() {
        let mut peaks = RangePeaks::new(0, Vec::new()).unwrap();
        let mut leaves = Vec::new();
        for n in 1..200u8 {
            leaves.push(B256::repeat_byte(n));
            peaks.push(B256::repeat_byte(n));
            assert_eq!(peaks.top(), merkle::top(&leaves), "{n} leaves");
            assert_eq!(peaks.hashes().len(), RangePeaks::len(n.into()));
        }
    }
}
