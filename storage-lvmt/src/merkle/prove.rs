//! Making multi-proofs from stored groups.

use super::{GROUP_BITS, MerkleGroup, group_size, levels, split};
use alloy_primitives::B256;
use retrie_state::StateError;

/// The multi-proof of the leaves at `shown` (ascending, below `n`) in a tree of `n` leaves. `read`
/// returns a group by level, number and size, or `None` if it has no row. It is called once for
/// each group, in ascending order within a level. The result is `None` if a hash that is needed was
/// pruned.
///
/// # Errors
/// Those of `read`.
pub(crate) fn prove(
    n: u64,
    shown: &[u64],
    mut read: impl FnMut(u8, u64, u8) -> Result<Option<MerkleGroup>, StateError>,
) -> Result<Option<Vec<B256>>, StateError> {
    let mut source = GroupSource { n, read: &mut read, groups: Vec::new() };
    source.groups.resize_with(levels(n).into(), || None);
    let mut siblings = Vec::with_capacity(super::siblings(n, shown));
    let last = levels(n).saturating_sub(1);
    let whole = n == 0 || source.collect(0, n, last, shown, &mut siblings)?;
    Ok(whole.then_some(siblings))
}

struct GroupSource<'r> {
    n: u64,
    read: &'r mut dyn FnMut(u8, u64, u8) -> Result<Option<MerkleGroup>, StateError>,
    /// The last group read of each level.
    groups: Vec<Option<(u64, Option<MerkleGroup>)>>,
}

impl GroupSource<'_> {
    /// Adds the siblings within the subtree of `len` leaves from `start` on, whose top is in a
    /// group of `level`. Returns whether no hash is missing.
    fn collect(
        &mut self,
        start: u64,
        len: u64,
        level: u8,
        shown: &[u64],
        siblings: &mut Vec<B256>,
    ) -> Result<bool, StateError> {
        match (len, shown) {
            (_, []) => {
                let hash = self.subtree(start, len, level)?;
                siblings.extend(hash);
                Ok(hash.is_some())
            }
            (1, _) => Ok(true),
            _ => {
                // The halves meet in the group that holds the top of the left half, which is
                // complete. The right half may be narrower, and then it is the whole of a lower
                // group.
                let level = (split(len).ilog2() / GROUP_BITS) as u8;
                let middle = start + split(len);
                let (left, right) = shown.split_at(shown.partition_point(|at| *at < middle));
                Ok(self.collect(start, middle - start, level, left, siblings)?
                    && self.collect(middle, start + len - middle, level, right, siblings)?)
            }
        }
    }

    /// The top of the subtree of `len` leaves from `start` on, from its group in `level`.
    fn subtree(&mut self, start: u64, len: u64, level: u8) -> Result<Option<B256>, StateError> {
        let shift = u32::from(level) * GROUP_BITS;
        let (at, len) = (start >> shift, ((len - 1) >> shift) + 1);
        let number = at >> GROUP_BITS;
        let slot = &mut self.groups[usize::from(level)];
        let group = match slot {
            Some((read, group)) if *read == number => group,
            _ => {
                let size = group_size(self.n, level, number);
                &slot.insert((number, (self.read)(level, number, size)?)).1
            }
        };
        let at = (at % super::GROUP as u64) as u8;
        Ok(group.as_ref().and_then(|group| group.subtree(at, len as u8)))
    }
}
