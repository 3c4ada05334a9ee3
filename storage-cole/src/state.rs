//! [`ColeState`]: the structure in memory of one block's state. It is opened from rows and passed
//! from block to block.

use crate::{
    ColeParams,
    levels::LsmLevels,
    record::{
        BLOCKS, MANIFEST, MEMORY, META, RunManifest, memory_key, parse_blocks, parse_memory_key,
        read_memory_row,
    },
    run::RunDescription,
};
use retrie_state::{BackendKey, KeyRange, NodeRead, ScanDirection, StateError, StateValue};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

/// The structure in memory of one block's state, or of an older block's state within it.
#[derive(Clone, Debug)]
pub struct ColeState {
    pub(crate) levels: LsmLevels,
    /// The checkpoints up to this block that are still remembered.
    pub(crate) checkpoints: CheckpointLog,
    /// Blocks before this one have no rows in [`MEMORY`] any more. All states since the store was
    /// opened share this hint of where to look for rows. Rows are removed without undo, so the hint
    /// never has to go back.
    pub(crate) rows_from: Arc<AtomicU64>,
    /// The first and the last block; `None` on the empty state.
    pub(crate) blocks: Option<(u64, u64)>,
    /// The block whose state is read; `u64::MAX` for the last one.
    pub(crate) as_of: u64,
}

impl ColeState {
    /// The state that `view` shows, of a store with these parameters. Its runs are in `dir`.
    pub(crate) fn open(
        params: &ColeParams,
        view: &dyn NodeRead,
        dir: Option<&Path>,
    ) -> Result<Self, StateError> {
        let mut levels = match view.get(META, MANIFEST)? {
            None => LsmLevels::default(),
            Some(row) => {
                LsmLevels::from_manifest(RunManifest::decode(&row, RunDescription::decode)?, dir)?
            }
        };
        let blocks = view.get(META, BLOCKS)?.map(|row| parse_blocks(&row)).transpose()?;
        read_memory(view, &mut levels)?;
        // The root says that the store has no history of the blocks before the first one.
        let first = blocks.map_or(0, |(first, _)| first);
        levels.horizon = levels.horizon.max(first);
        levels.root_horizon = if params.version_trees { first } else { levels.horizon };
        let checkpoints = CheckpointLog::from_levels(&levels);
        Ok(Self { levels, checkpoints, rows_from: Arc::default(), blocks, as_of: u64::MAX })
    }

    /// The compacted structure for blocks below the latest ones, and about how many bytes it takes
    /// for itself.
    pub(crate) fn compacted(&self) -> Option<(Self, u64)> {
        let (_, number) = self.blocks?;
        let (levels, bytes) = self.levels.compacted(number);
        Some((Self { levels, ..self.clone() }, bytes))
    }
}

/// Adds the pairs in the rows of the memory level to the two groups.
fn read_memory(view: &dyn NodeRead, levels: &mut LsmLevels) -> Result<(), StateError> {
    let mut pairs: Vec<(BackendKey, Option<StateValue>)> = Vec::new();
    let mut current = None;
    let first = memory_key(levels.merging_from, 0);
    let mut add = |block: u64, pairs: &mut Vec<(BackendKey, Option<StateValue>)>| {
        let group = match block < levels.writing_from {
            true => &mut levels.merging,
            false => &mut levels.writing,
        };
        group.add_block(block, pairs.iter().map(|(key, value)| (*key, value)));
        pairs.clear();
    };
    for row in view.scan(MEMORY, KeyRange::from(&first), ScanDirection::Forward)? {
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

/// The checkpoints up to a state, oldest first: after which block, and the first block that had
/// pairs in the memory level then. They tell which rows of pairs the states from a block on can
/// read. The list is shared between states. After an opening only the last checkpoint is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointLog(Arc<Vec<Checkpoint>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checkpoint {
    block: u64,
    merging_from: u64,
}

impl CheckpointLog {
    /// The checkpoint that a state in rows tells of: the last one.
    pub(crate) fn from_levels(levels: &LsmLevels) -> Self {
        let last = levels.writing_from.checked_sub(1);
        let last = last.map(|block| Checkpoint { block, merging_from: levels.merging_from });
        Self(Arc::new(last.into_iter().collect()))
    }

    /// Adds the checkpoint at the end of `block`, after which the levels are `levels`.
    ///
    /// Of older checkpoints fewer are kept: the gap between two of them is at most a quarter of
    /// their distance from the tip. So the list stays short on a long chain, and still reaches far
    /// back.
    pub(crate) fn push(&mut self, block: u64, levels: &LsmLevels) {
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

    /// The first block whose rows of pairs a state from block `first` on may read. Rows of older
    /// blocks can be removed. `None` if this is not known.
    pub(crate) fn seen_from(&self, first: u64) -> Option<u64> {
        let end = self.0.partition_point(|checkpoint| checkpoint.block <= first);
        Some(self.0[..end].last()?.merging_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(block: u64) -> LsmLevels {
        // As in the paper's COLE*: the group before the one that is written is being flushed.
        LsmLevels { merging_from: block, writing_from: block + 1, ..LsmLevels::default() }
    }

    #[test]
    fn rows_are_given_up_when_no_state_from_a_block_on_can_see_them() {
        let mut checkpoints = CheckpointLog::default();
        assert_eq!(checkpoints.seen_from(u64::MAX), None);
        for block in [10, 20, 30] {
            let levels = LsmLevels { merging_from: block - 9, ..LsmLevels::default() };
            checkpoints.push(block, &levels);
        }
        assert_eq!(checkpoints.seen_from(9), None);
        assert_eq!(checkpoints.seen_from(10), Some(1));
        assert_eq!(checkpoints.seen_from(29), Some(11));
        assert_eq!(checkpoints.seen_from(1_000), Some(21));
    }

    #[test]
    fn only_the_last_checkpoint_is_known_after_opening() {
        assert_eq!(CheckpointLog::from_levels(&LsmLevels::default()).seen_from(u64::MAX), None);
        let opened = CheckpointLog::from_levels(&after(7));
        assert_eq!((opened.seen_from(6), opened.seen_from(7)), (None, Some(7)));
    }

    #[test]
    fn however_many_checkpoints_there_are_few_are_kept_and_they_reach_back() {
        let mut checkpoints = CheckpointLog::default();
        for block in 0..10_000 {
            checkpoints.push(block, &after(block));
            assert!(checkpoints.0.len() <= 120, "{}", checkpoints.0.len());
            // Never too early, and at most a third of the distance too late.
            for depth in [0, 1, 20, 128, 1_000] {
                let Some(first) = block.checked_sub(depth) else { continue };
                let seen = checkpoints.seen_from(first).unwrap();
                assert!(seen <= first && 3 * (first - seen) <= depth, "{seen} {first}");
            }
        }
    }
}
