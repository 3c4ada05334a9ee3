//! Merges runs with version trees: a key's tree is joined from its trees in the inputs, the oldest
//! first. What a merge drops leaves its digest in the tree, so the top of the run is the same.

use super::{
    Run, RunBuilder, RunDescription,
    build::{PAUSE_EVERY, PauseCheck},
    merge::{CursorQueue, HeldPair},
    version_file::{EntryWalk, VersionFile},
    version_tree::{SINGLE, StepReader, TreeStep},
};
use crate::hash;
use retrie_state::StateError;
use std::sync::Arc;

/// Merges `inputs`, the newest first, into `out`. Of each key the pairs are dropped that a newer one
/// at or before the block `cutoff` follows.
pub(super) fn merge_trees(
    inputs: &[Arc<Run>],
    cutoff: Option<u64>,
    mut out: RunBuilder,
    pause: PauseCheck<'_>,
) -> Result<RunDescription, StateError> {
    let sources = || inputs.iter().map(|run| &run.description().source);
    let first_block = sources().map(|source| source.first_block).min().unwrap_or_default();
    out.inherit(sources().map(|source| source.pairs).sum(), first_block);
    let mut merge = TreeMerge { queue: CursorQueue::default(), cutoff, held: HeldPair::default() };
    let mut trees = Vec::with_capacity(inputs.len());
    for run in inputs {
        merge.queue.add(run.cursor_from_start())?;
        let file = run.version_file()?;
        trees.push((file, file.entries(0)?));
    }
    // The key of the tree that is being joined.
    let (mut key, mut steps) = (Vec::new(), 0u64);
    while let (Some(number), Some(first)) = (merge.queue.first_number(), merge.queue.first()) {
        let is_new = first.pair().key != key;
        if is_new {
            out.end_key()?;
            key.clear();
            key.extend_from_slice(first.pair().key);
        }
        let (file, entries) = &mut trees[number];
        merge.add_tree(number, &key, file, entries, &mut out, &mut || {
            steps += 1;
            if steps % PAUSE_EVERY == 1 { pause() } else { Ok(()) }
        })?;
        if !is_new {
            out.join_step()?;
        }
    }
    out.finish_pausing(pause)
}

struct TreeMerge<'a> {
    queue: CursorQueue<'a>,
    cutoff: Option<u64>,
    held: HeldPair,
}

impl TreeMerge<'_> {
    /// Adds the tree that input `number` has of `key`.
    fn add_tree(
        &mut self,
        number: usize,
        key: &[u8],
        file: &VersionFile,
        entries: &mut EntryWalk<'_>,
        out: &mut RunBuilder,
        pause: PauseCount<'_>,
    ) -> Result<(), StateError> {
        let entry = entries.next()?;
        let wrong = || file.wrong_tree(entry.number);
        let before = out.parts();
        for step in StepReader::new(entry.tree.as_deref().unwrap_or(SINGLE)) {
            match step.map_err(|_| wrong())? {
                TreeStep::Pruned(digest) => out.prune_step(digest)?,
                TreeStep::Join(stored) => {
                    let digest = out.join_step()?;
                    if stored.is_some_and(|stored| stored != digest) {
                        return Err(wrong());
                    }
                }
                TreeStep::Pair => {
                    pause()?;
                    let first = self.queue.first().filter(|first| first.pair().key == key);
                    if first.is_none() || self.queue.first_number() != Some(number) {
                        return Err(wrong());
                    }
                    self.move_pair(out)?;
                }
            }
        }
        if out.parts() == before + 1 { Ok(()) } else { Err(wrong()) }
    }

    /// Adds the first pair, or its digest if a newer one at or before the cutoff follows.
    fn move_pair(&mut self, out: &mut RunBuilder) -> Result<(), StateError> {
        let Some(first) = self.queue.first() else { return Ok(()) };
        let pair = first.pair();
        let Some(cutoff) = self.cutoff.filter(|cutoff| pair.block <= *cutoff) else {
            out.push_step(pair.key, pair.block, pair.value)?;
            return self.queue.advance();
        };
        self.held.hold(pair.key, pair.block, pair.value);
        self.queue.advance()?;
        let held = &self.held;
        let next = self.queue.first().map(|next| next.pair());
        match next.is_some_and(|next| next.key == held.key && next.block <= cutoff) {
            true => out.prune_step(hash::pair(&held.key, held.block, held.value())),
            false => out.push_step(&held.key, held.block, held.value()),
        }
    }
}

/// Called for each pair.
type PauseCount<'a> = &'a mut dyn FnMut() -> Result<(), StateError>;
