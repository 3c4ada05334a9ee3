//! [`State`]: the structure of one block's state, as it is opened from rows and handed from block to
//! block.

use crate::{
    levels::Levels,
    row::{
        BLOCKS, MANIFEST, MEMORY, META, Manifest, memory_key, parse_blocks, parse_memory_key,
        read_memory_row,
    },
    run::RunInfo,
};
use retrie_state::{Direction, KeyRange, NodeRead, StateError, StateKey, Value};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

/// The structure of one block's state, or of an older block's within it.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) levels: Levels,
    /// The checkpoints that led here, as far as they are remembered.
    pub(crate) checkpoints: Checkpoints,
    /// Blocks before this one have no rows in [`MEMORY`] any more. A hint where to look for some,
    /// shared by all states since the store was opened: rows are removed without undo, so what is
    /// gone stays gone.
    pub(crate) rows_from: Arc<AtomicU64>,
    /// First and last block; `None` on the empty state.
    pub(crate) blocks: Option<(u64, u64)>,
    /// The block whose state is read: `u64::MAX` for the last one.
    pub(crate) as_of: u64,
}

impl State {
    /// The state that `view` shows, whose runs are in `dir`.
    pub(crate) fn open(view: &dyn NodeRead, dir: Option<&Path>) -> Result<Self, StateError> {
        let mut levels = match view.get(META, MANIFEST)? {
            None => Levels::default(),
            Some(row) => Levels::opened(Manifest::decode(&row, RunInfo::decode)?, dir)?,
        };
        let blocks = view.get(META, BLOCKS)?.map(|row| parse_blocks(&row)).transpose()?;
        read_memory(view, &mut levels)?;
        // The root says that nothing is known of the blocks before the first one.
        levels.horizon = levels.horizon.max(blocks.map_or(0, |(first, _)| first));
        let checkpoints = Checkpoints::opened(&levels);
        Ok(Self { levels, checkpoints, rows_from: Arc::default(), blocks, as_of: u64::MAX })
    }

    /// What is kept of it once its block is no longer among the latest, and about how many bytes that
    /// takes for itself.
    pub(crate) fn thinned(&self) -> Option<(Self, u64)> {
        let (_, number) = self.blocks?;
        let (levels, bytes) = self.levels.thinned(number);
        Some((Self { levels, ..self.clone() }, bytes))
    }
}

/// Puts the pairs of the memory level, which are in rows, into the two groups.
fn read_memory(view: &dyn NodeRead, levels: &mut Levels) -> Result<(), StateError> {
    let mut pairs: Vec<(StateKey, Option<Value>)> = Vec::new();
    let mut current = None;
    let first = memory_key(levels.merging_from, 0);
    let mut add = |block: u64, pairs: &mut Vec<(StateKey, Option<Value>)>| {
        let group = match block < levels.writing_from {
            true => &mut levels.merging,
            false => &mut levels.writing,
        };
        group.add_block(block, pairs.iter().map(|(key, value)| (*key, value)));
        pairs.clear();
    };
    for row in view.scan(MEMORY, KeyRange::from(&first), Direction::Forward)? {
        let (key, row) = row?;
        let (block, piece) = parse_memory_key(&key)?;
        match &mut current {
            Some((of, last)) if *of == block && u32::from(piece) == *last + 1 => *last += 1,
            Some((of, _)) if *of == block => return Err(lost(block)),
            _ if piece > 0 => return Err(lost(block)),
            _ => {
                if let Some((of, _)) = current.replace((block, 0u32)) {
                    add(of, &mut pairs);
                }
            }
        }
        read_memory_row(&key, &row, &mut pairs)?;
    }
    if let Some((of, _)) = current {
        add(of, &mut pairs);
    }
    Ok(())
}

fn lost(block: u64) -> StateError {
    StateError::corrupt(MEMORY.name, format!("a row of block {block} is missing"))
}

/// The checkpoints that led to a state, oldest first: after which block, and from which block on the
/// memory level had pairs then. So they tell which rows of pairs the states since a block can see.
/// Shared between states; after an opening only the last one is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoints(Arc<Vec<Checkpoint>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checkpoint {
    block: u64,
    merging_from: u64,
}

impl Checkpoints {
    /// Those that a state in rows tells of: the last one.
    pub(crate) fn opened(levels: &Levels) -> Self {
        let last = levels.writing_from.checked_sub(1);
        let last = last.map(|block| Checkpoint { block, merging_from: levels.merging_from });
        Self(Arc::new(last.into_iter().collect()))
    }

    /// Adds the one at the end of `block`, which `levels` have behind them.
    ///
    /// The further back, the fewer are kept: never more than a quarter of the way back lies between
    /// two of them. So they are few however long a chain is, and reach back however many there were.
    pub(crate) fn push(&mut self, block: u64, levels: &Levels) {
        let last = Checkpoint { block, merging_from: levels.merging_from };
        let mut kept: Vec<Checkpoint> = Vec::with_capacity(self.0.len() + 1);
        for (at, checkpoint) in self.0.iter().enumerate() {
            let after = self.0.get(at + 1).unwrap_or(&last).block;
            let is_needless = |before: &Checkpoint| {
                after.saturating_sub(before.block) <= block.saturating_sub(checkpoint.block) / 4
            };
            if !kept.last().is_some_and(is_needless) {
                kept.push(*checkpoint);
            }
        }
        kept.push(last);
        self.0 = Arc::new(kept);
    }

    /// The first block whose rows of pairs a state from block `first` on may see: those of the
    /// blocks before can go. `None` if that is not known.
    pub(crate) fn seen_from(&self, first: u64) -> Option<u64> {
        let end = self.0.partition_point(|checkpoint| checkpoint.block <= first);
        Some(self.0[..end].last()?.merging_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(block: u64) -> Levels {
        // The paper's COLE*: the group before the one that is written is being flushed.
        Levels { merging_from: block, writing_from: block + 1, ..Levels::default() }
    }

    #[test]
    fn rows_are_given_up_when_no_state_from_a_block_on_can_see_them() {
        let mut checkpoints = Checkpoints::default();
        assert_eq!(checkpoints.seen_from(u64::MAX), None);
        for block in [10, 20, 30] {
            let levels = Levels { merging_from: block - 9, ..Levels::default() };
            checkpoints.push(block, &levels);
        }
        assert_eq!(checkpoints.seen_from(9), None);
        assert_eq!(checkpoints.seen_from(10), Some(1));
        assert_eq!(checkpoints.seen_from(29), Some(11));
        assert_eq!(checkpoints.seen_from(1_000), Some(21));
    }

    #[test]
    fn only_the_last_checkpoint_is_known_after_opening() {
        assert_eq!(Checkpoints::opened(&Levels::default()).seen_from(u64::MAX), None);
        let opened = Checkpoints::opened(&after(7));
        assert_eq!((opened.seen_from(6), opened.seen_from(7)), (None, Some(7)));
    }

    #[test]
    fn however_many_checkpoints_there_are_few_are_kept_and_they_reach_back() {
        let mut checkpoints = Checkpoints::default();
        for block in 0..10_000 {
            checkpoints.push(block, &after(block));
            assert!(checkpoints.0.len() <= 120, "{}", checkpoints.0.len());
            // Never too early, and late by a third of the way back at most.
            for depth in [0, 1, 20, 128, 1_000] {
                let Some(first) = block.checked_sub(depth) else { continue };
                let seen = checkpoints.seen_from(first).unwrap();
                assert!(seen <= first && 3 * (first - seen) <= depth, "{seen} {first}");
            }
        }
    }
}
