//! Multi-proofs of complete m-ary trees: from some of the leaves to the top.

use crate::hash;
use alloc::vec::Vec;
use alloy_primitives::B256;

/// Climbs from the `known` leaves (ascending, distinct, below `leaves`) to the top, layer by layer.
/// `missing` returns the children of a node that are not known, by layer (0: the leaves) and index,
/// from left to right; `node` combines children into their parent. Returns the top, or `None` if no
/// leaf was known.
pub(crate) fn climb<T: Copy, E>(
    fanout: u8,
    leaves: u64,
    mut known: Vec<(u64, T)>,
    mut missing: impl FnMut(u32, u64) -> Result<T, E>,
    node: impl Fn(&[T]) -> T,
) -> Result<Option<T>, E> {
    // Every layer is narrower than the one below, so the loop ends.
    let fanout = u64::from(fanout.max(2));
    let (mut layer, mut width) = (0, leaves);
    let mut children = Vec::with_capacity(fanout as usize);
    while width > 1 {
        let mut above = Vec::with_capacity(known.len());
        for siblings in known.chunk_by(|(a, _), (b, _)| a / fanout == b / fanout) {
            let parent = siblings[0].0 / fanout;
            let first = parent * fanout;
            let mut siblings = siblings.iter().peekable();
            children.clear();
            for index in first..first.saturating_add(fanout).min(width) {
                children.push(match siblings.next_if(|(at, _)| *at == index) {
                    Some((_, child)) => *child,
                    None => missing(layer, index)?,
                });
            }
            above.push((parent, node(&children)));
        }
        (known, layer, width) = (above, layer + 1, width.div_ceil(fanout));
    }
    Ok(known.first().map(|(_, top)| *top))
}

/// The top over the `known` leaves with the `hashes` of their multi-proof. `None` if there are too
/// few or too many hashes, or no leaf.
pub(crate) fn top(
    fanout: u8,
    leaves: u64,
    known: Vec<(u64, B256)>,
    hashes: &[B256],
) -> Option<B256> {
    let mut hashes = hashes.iter();
    let next = |_, _| hashes.next().copied().ok_or(());
    let top = climb(fanout, leaves, known, next, |children| hash::node(children)).ok()?;
    top.filter(|_| hashes.next().is_none())
}
