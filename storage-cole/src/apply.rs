//! One block: its pairs into the memory level, the checkpoints at its end, its root.

use crate::{
    Params,
    backend::State,
    hash::{self, Batch},
    levels::{Levels, Stored, no_dir},
    row::{BLOCKS, MANIFEST, MEMORY, META, blocks_row, memory_key, memory_rows},
    run::{RunBuilder, RunInfo},
};
use alloy_primitives::B256;
use retrie_state::{
    Applied, ApplyContext, BulkSink, NodeWrite, StateDelta, StateError, StateKey, Value,
};
use std::{path::Path, sync::Arc};

/// How many blocks' rows one block removes that have left the memory level. Two keeps pace with any
/// number of blocks.
const CLEANED: u64 = 2;

pub(crate) fn apply(
    params: &Params,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &State,
    delta: &StateDelta,
) -> Result<Applied, StateError> {
    let (number, jobs) = (context.number, context.jobs);
    let mut levels = parent.levels.clone();
    levels.resume(params, jobs);
    if parent.blocks.is_none() {
        levels.horizon = number;
    }
    let pairs = delta.changes().iter().map(|change| (change.key, &change.next));
    let mut changed = false;
    if parent.blocks.is_none() && is_large(delta.len(), params) {
        let dir = jobs.dir().ok_or_else(no_dir)?;
        let stored = first_run(params, dir, number, pairs)?;
        for name in stored.run.info().file_names() {
            view.publish_file(&name)?;
        }
        levels.place_first(stored, params);
        (levels.merging_from, levels.writing_from) = (number + 1, number + 1);
        changed = true;
    } else {
        for (piece, row) in memory_rows(pairs.clone()).into_iter().enumerate() {
            let key = memory_key(number, piece_number(piece)?);
            view.replace(MEMORY, &key, None, Some(row))?;
        }
        levels.writing.add_block(number, pairs);
    }
    changed |= levels.checkpoint(number, params, jobs, view)?;
    if changed {
        view.put(META, MANIFEST, levels.manifest().encode(RunInfo::encode))?;
    }
    let rows_from = parent.blocks.map_or(number, |_| parent.rows_from);
    let rows_from = clean(view, rows_from, levels.merging_from)?;
    let old = parent.blocks.map(|(first, last)| blocks_row(first, last));
    let first = parent.blocks.map_or(number, |(first, _)| first);
    view.replace(META, BLOCKS, old, Some(blocks_row(first, number)))?;
    let root = levels.root();
    let state = State { levels, rows_from, blocks: Some((first, number)), as_of: u64::MAX };
    Ok(Applied { root, cache: Arc::new(state) })
}

/// Whether the first block of a store is a run of its own.
const fn is_large(pairs: usize, params: &Params) -> bool {
    pairs as u64 >= params.memory_pairs
}

fn piece_number(piece: usize) -> Result<u16, StateError> {
    u16::try_from(piece).map_err(|_| StateError::Exhausted {
        backend: "cole",
        what: "pieces of a block's pairs".into(),
        limit: u16::MAX.into(),
    })
}

/// The run of a store's first block.
fn first_run<'a>(
    params: &Params,
    dir: &Path,
    number: u64,
    pairs: impl Iterator<Item = (StateKey, &'a Option<Value>)> + Clone,
) -> Result<Arc<Stored>, StateError> {
    let (mut batch, mut leaves) = (Batch::default(), Vec::new());
    for (key, value) in pairs.clone() {
        batch.pair(&key.encode(), number, value.as_ref().map(|value| &value[..]));
        if batch.len() >= 1024 {
            batch.finish_into(&mut leaves);
        }
    }
    batch.finish_into(&mut leaves);
    // Named by its content: a sibling's first block is another one.
    let id = hash::work(&params.digest(), &[], &leaves);
    let stem = alloy_primitives::hex::encode(&id[..16]);
    let mut builder = RunBuilder::new(dir, &stem, params)?;
    for ((key, value), leaf) in pairs.zip(leaves) {
        let value = value.as_ref().map(|value| &value[..]);
        builder.push(&key.encode(), number, value, Some(leaf))?;
    }
    Stored::open(dir, builder.finish()?)
}

/// Removes rows of blocks from `from` on that have left the memory level; says from where on there
/// may be rows.
fn clean(view: &mut dyn NodeWrite, from: u64, memory_from: u64) -> Result<u64, StateError> {
    let to = memory_from.min(from.saturating_add(CLEANED));
    for block in from..to {
        for piece in 0..=u16::MAX {
            let key = memory_key(block, piece);
            match view.get(MEMORY, &key)? {
                Some(row) => view.replace(MEMORY, &key, Some(row), None)?,
                None => break,
            }
        }
    }
    Ok(to.max(from))
}

/// As [`apply`] of the same entries as the first block, straight into the tables.
pub(crate) fn bulk_load(
    params: &Params,
    number: u64,
    entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut levels = Levels { horizon: number, ..Levels::default() };
    let mut held: Vec<(StateKey, Option<Value>)> = Vec::new();
    while !is_large(held.len(), params)
        && let Some(entry) = entries.next()
    {
        let (key, value) = entry?;
        held.push((key, Some(value)));
    }
    if is_large(held.len(), params) {
        let dir = sink.dir().ok_or_else(no_dir)?.to_owned();
        // There is one load in the life of a store.
        let mut builder = RunBuilder::new(&dir, &format!("load-{number}"), params)?;
        let rest = entries.map(|entry| entry.map(|(key, value)| (key, Some(value))));
        for entry in held.into_iter().map(Ok).chain(rest) {
            let (key, value) = entry?;
            let value = value.as_ref().map(|value| &value[..]);
            builder.push(&key.encode(), number, value, None)?;
        }
        let stored = Stored::open(&dir, builder.finish()?)?;
        for name in stored.run.info().file_names() {
            sink.publish_file(&name)?;
        }
        levels.place_first(stored, params);
        (levels.merging_from, levels.writing_from) = (number + 1, number + 1);
    } else {
        let pairs = held.iter().map(|(key, value)| (*key, value));
        for (piece, row) in memory_rows(pairs.clone()).iter().enumerate() {
            sink.put(MEMORY, &memory_key(number, piece_number(piece)?), row)?;
        }
        levels.writing.add_block(number, pairs);
    }
    sink.put(META, BLOCKS, &blocks_row(number, number))?;
    if levels.runs().next().is_some() {
        sink.put(META, MANIFEST, &levels.manifest().encode(RunInfo::encode))?;
    }
    Ok(levels.root())
}
