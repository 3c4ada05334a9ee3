//! Merges several runs into one.

use super::{
    PairCursor, Run, RunBuilder, RunDescription,
    build::{PAUSE_EVERY, PauseCheck},
    merge_trees::merge_trees,
};
use retrie_state::StateError;
use std::sync::Arc;

/// What a merge may drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeCutoff {
    /// Of a key's pairs at or before this block, only the newest stays.
    pub(crate) block: u64,
    /// Whether there is no older run. Then the newest pair is dropped, too, if it is a deletion.
    pub(crate) is_deepest: bool,
}

/// Merges `inputs`, the newest first, into `out`. No two inputs may have the same pair. With a
/// `cutoff`, old pairs are dropped; the result is `None` if no pair is left. With version trees, which
/// keep a deletion as they keep every key, all pairs of an input must be newer than those behind it. `pause` is called about every thousand pairs;
/// if it fails, the merge ends and leaves no files.
pub(crate) fn merge(
    inputs: &[Arc<Run>],
    cutoff: Option<MergeCutoff>,
    mut out: RunBuilder,
    pause: PauseCheck<'_>,
) -> Result<Option<RunDescription>, StateError> {
    if out.has_trees() {
        return merge_trees(inputs, cutoff.map(|cutoff| cutoff.block), out, pause).map(Some);
    }
    let mut queue = CursorQueue::default();
    for run in inputs {
        queue.add(run.cursor_from_start())?;
    }
    let (mut read, mut held) = (0u64, HeldPair::default());
    while let Some(first) = queue.first() {
        if read.is_multiple_of(PAUSE_EVERY) {
            pause()?;
        }
        read += 1;
        let pair = first.pair();
        match cutoff {
            None => out.push(pair.key, pair.block, pair.value, None)?,
            Some(cutoff) => {
                let is_old = pair.block <= cutoff.block;
                if held.is_some && !(is_old && held.key == pair.key) {
                    held.release(cutoff, &mut out)?;
                }
                if is_old {
                    held.hold(pair.key, pair.block, pair.value);
                } else {
                    out.push(pair.key, pair.block, pair.value, None)?;
                }
            }
        }
        queue.advance()?;
    }
    if let Some(cutoff) = cutoff {
        held.release(cutoff, &mut out)?;
    }
    if out.pairs() == 0 {
        return Ok(None);
    }
    out.finish_pausing(pause).map(Some)
}

/// The newest pair of the current key at or before the cutoff.
#[derive(Default)]
pub(super) struct HeldPair {
    is_some: bool,
    pub(super) key: Vec<u8>,
    pub(super) block: u64,
    value: Vec<u8>,
    present: bool,
}

impl HeldPair {
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.present.then_some(&*self.value)
    }

    pub(super) fn hold(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
        (self.is_some, self.block, self.present) = (true, block, value.is_some());
    }

    fn release(&mut self, cutoff: MergeCutoff, out: &mut RunBuilder) -> Result<(), StateError> {
        let stays = self.is_some && (self.present || !cutoff.is_deepest);
        self.is_some = false;
        match stays {
            true => out.push(&self.key, self.block, self.value(), None),
            false => Ok(()),
        }
    }
}

/// Cursors, ordered by their current pairs.
#[derive(Default)]
pub(super) struct CursorQueue<'a> {
    cursors: Vec<PairCursor<'a>>,
    /// The cursors that have a pair; the lowest pair is last.
    order: Vec<usize>,
}

impl<'a> CursorQueue<'a> {
    pub(super) fn add(&mut self, cursor: PairCursor<'a>) -> Result<(), StateError> {
        self.cursors.push(cursor);
        self.step(self.cursors.len() - 1)
    }

    pub(super) fn first(&self) -> Option<&PairCursor<'a>> {
        self.order.last().map(|at| &self.cursors[*at])
    }

    /// The number of the cursor with the first pair.
    pub(super) fn first_number(&self) -> Option<usize> {
        self.order.last().copied()
    }

    /// Moves past the first pair.
    pub(super) fn advance(&mut self) -> Result<(), StateError> {
        match self.order.pop() {
            Some(at) => self.step(at),
            None => Ok(()),
        }
    }

    fn step(&mut self, at: usize) -> Result<(), StateError> {
        if self.cursors[at].advance()? {
            let key = |at: usize| {
                let pair = self.cursors[at].pair();
                (pair.key, pair.block)
            };
            let new = key(at);
            let place = self.order.partition_point(|other| key(*other) > new);
            self.order.insert(place, at);
        }
        Ok(())
    }
}
