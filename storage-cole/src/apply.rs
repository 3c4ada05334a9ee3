//! One block: its pairs into the memory level, the checkpoints at its end, its root.

use crate::{
    Params,
    hash::{self, Batch},
    levels::{Levels, Stored, no_dir},
    row::{BLOCKS, MANIFEST, MEMORY, META, blocks_row, memory_key, memory_rows, parse_memory_key},
    run::{RunBuilder, RunInfo},
    state::State,
};
use alloy_primitives::B256;
use retrie_state::{
    Applied, ApplyContext, BulkSink, Direction, KeyRange, NodeWrite, Row, StateDelta, StateError,
    StateKey, Value,
};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

pub(crate) fn apply(
    params: &Params,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &State,
    delta: &StateDelta,
) -> Result<Applied<State>, StateError> {
    let (number, jobs) = (context.number, context.jobs);
    let mut levels = parent.levels.whole();
    levels.resume(params, jobs);
    if parent.blocks.is_none() {
        levels.horizon = number;
    }
    let pairs = delta.changes().iter().map(|change| (change.key, &change.next));
    let mut at_checkpoint = false;
    if parent.blocks.is_none() && is_large(delta.len(), params) {
        let dir = jobs.dir().ok_or_else(no_dir)?;
        let stored = first_run(params, dir, number, pairs)?;
        for name in stored.run.info().file_names() {
            view.publish_file(&name)?;
        }
        levels.place_first(stored, params);
        (levels.merging_from, levels.writing_from) = (number + 1, number + 1);
        at_checkpoint = true;
    } else {
        for (piece, row) in memory_rows(pairs.clone()).into_iter().enumerate() {
            let key = memory_key(number, piece_number(piece)?);
            view.replace(MEMORY, &key, None, Some(row))?;
        }
        levels.writing.add_block(number, pairs);
    }
    at_checkpoint |= levels.checkpoint(number, params, jobs, view)?;
    let mut checkpoints = parent.checkpoints.clone();
    if at_checkpoint {
        view.put(META, MANIFEST, levels.manifest().encode(RunInfo::encode))?;
        checkpoints.push(number, &levels);
    }
    let old = parent.blocks.map(|(first, last)| blocks_row(first, last));
    let first = parent.blocks.map_or(number, |(first, _)| first);
    view.replace(META, BLOCKS, old, Some(blocks_row(first, number)))?;
    let root = levels.root();
    let (rows_from, blocks) = (parent.rows_from.clone(), Some((first, number)));
    let state = State { levels, checkpoints, rows_from, blocks, as_of: u64::MAX };
    Ok(Applied { root, cache: state })
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

/// Removes rows of pairs, some `budget` of them, that no state from block `first_retained` on reads: the
/// memory level of all of these begins at a later block.
pub(crate) fn settle(
    view: &mut dyn NodeWrite,
    state: &State,
    first_retained: u64,
    budget: usize,
) -> Result<(), StateError> {
    let from = state.rows_from.load(Ordering::Relaxed);
    let Some(to) = state.checkpoints.seen_from(first_retained).filter(|to| from < *to) else {
        return Ok(());
    };
    let (start, end) = (memory_key(from, 0), memory_key(to, 0));
    let rows = view.scan(MEMORY, KeyRange::new(&start, &end), Direction::Forward)?;
    let rows = rows.take(budget).collect::<Result<Vec<Row>, _>>()?;
    // Whether the commit comes about is not known yet: the hint follows with the next one.
    let gone =
        rows.first().map_or(Ok(to), |(key, _)| parse_memory_key(key).map(|(block, _)| block));
    state.rows_from.fetch_max(gone?, Ordering::Relaxed);
    rows.into_iter().try_for_each(|(key, row)| view.replace(MEMORY, &key, Some(row), None))
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
