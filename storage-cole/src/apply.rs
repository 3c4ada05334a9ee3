//! Applies one block: adds its pairs to the memory level, runs the checkpoints at its end, computes
//! its root. Also bulk load, and removing old rows.

use crate::{
    ColeParams,
    hash::{self, HashBatch},
    levels::{LsmLevels, StoredRun, no_dir},
    record::{
        BLOCKS, MANIFEST, MEMORY, META, blocks_row, memory_key, memory_rows, parse_memory_key,
    },
    run::{RunBuilder, RunDescription},
    state::ColeState,
};
use alloy_primitives::B256;
use retrie_state::{
    ApplyContext, ApplyOutput, BackendDelta, BackendKey, BulkSink, KeyRange, NodeWrite,
    ScanDirection, StateError, StateValue, TableRow,
};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

pub(crate) fn apply(
    params: &ColeParams,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &ColeState,
    delta: &BackendDelta,
) -> Result<ApplyOutput<ColeState>, StateError> {
    let (number, jobs) = (context.number, context.jobs);
    let mut levels = parent.levels.whole();
    levels.resume(params, jobs);
    if parent.blocks.is_none() {
        (levels.horizon, levels.root_horizon) = (number, number);
    }
    let pairs = delta.changes().iter().map(|change| (change.key, &change.next));
    let mut at_checkpoint = false;
    if parent.blocks.is_none() && is_large(delta.len(), params) {
        let dir = jobs.dir().ok_or_else(no_dir)?;
        let stored = first_run(params, dir, number, pairs)?;
        for name in stored.run.description().file_names() {
            view.publish_file(&name)?;
        }
        levels.add_first_run(stored, params);
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
        view.put(META, MANIFEST, levels.manifest().encode(RunDescription::encode))?;
        checkpoints.push(number, &levels);
    }
    let old = parent.blocks.map(|(first, last)| blocks_row(first, last));
    let first = parent.blocks.map_or(number, |(first, _)| first);
    view.replace(META, BLOCKS, old, Some(blocks_row(first, number)))?;
    let root = levels.root();
    let (rows_from, blocks) = (parent.rows_from.clone(), Some((first, number)));
    let state = ColeState { levels, checkpoints, rows_from, blocks, as_of: u64::MAX };
    Ok(ApplyOutput { root, cache: state })
}

/// Whether the first block of a store makes a run of its own.
const fn is_large(pairs: usize, params: &ColeParams) -> bool {
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
    params: &ColeParams,
    dir: &Path,
    number: u64,
    pairs: impl Iterator<Item = (BackendKey, &'a Option<StateValue>)> + Clone,
) -> Result<Arc<StoredRun>, StateError> {
    let (mut batch, mut leaves) = (HashBatch::default(), Vec::new());
    for (key, value) in pairs.clone() {
        batch.pair(&key.encode(), number, value.as_ref().map(|value| &value[..]));
        if batch.len() >= 1024 {
            batch.finish_into(&mut leaves);
        }
    }
    batch.finish_into(&mut leaves);
    // The name depends on the content: the first block of a fork has another name.
    let id = hash::run_id(&params.digest(), &[], &leaves);
    let stem = alloy_primitives::hex::encode(&id[..16]);
    let mut builder = RunBuilder::new(dir, &stem, params)?;
    for ((key, value), leaf) in pairs.zip(leaves) {
        let value = value.as_ref().map(|value| &value[..]);
        builder.push(&key.encode(), number, value, Some(leaf))?;
    }
    StoredRun::open(dir, builder.finish()?)
}

/// Removes about `budget` rows of pairs that no state from block `first_retained` on reads: the
/// memory levels of all these states begin at a later block.
pub(crate) fn remove_old_rows(
    view: &mut dyn NodeWrite,
    state: &ColeState,
    first_retained: u64,
    budget: usize,
) -> Result<(), StateError> {
    let from = state.rows_from.load(Ordering::Relaxed);
    let Some(to) = state.checkpoints.seen_from(first_retained).filter(|to| from < *to) else {
        return Ok(());
    };
    let (start, end) = (memory_key(from, 0), memory_key(to, 0));
    let rows = view.scan(MEMORY, KeyRange::new(&start, &end), ScanDirection::Forward)?;
    let rows = rows.take(budget).collect::<Result<Vec<TableRow>, _>>()?;
    // The commit may still fail. So the hint names the rows that existed before it.
    let gone =
        rows.first().map_or(Ok(to), |(key, _)| parse_memory_key(key).map(|(block, _)| block));
    state.rows_from.fetch_max(gone?, Ordering::Relaxed);
    rows.into_iter().try_for_each(|(key, row)| view.replace(MEMORY, &key, Some(row), None))
}

/// Loads `entries` directly into the tables, with the same result as [`apply`] of the first block.
pub(crate) fn bulk_load(
    params: &ColeParams,
    number: u64,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let (horizon, root_horizon) = (number, number);
    let mut levels = LsmLevels { horizon, root_horizon, ..LsmLevels::default() };
    let mut held: Vec<(BackendKey, Option<StateValue>)> = Vec::new();
    while !is_large(held.len(), params)
        && let Some(entry) = entries.next()
    {
        let (key, value) = entry?;
        held.push((key, Some(value)));
    }
    if is_large(held.len(), params) {
        let dir = sink.dir().ok_or_else(no_dir)?.to_owned();
        // A store is loaded once, so the name is unique.
        let mut builder = RunBuilder::new(&dir, &format!("load-{number}"), params)?;
        let rest = entries.map(|entry| entry.map(|(key, value)| (key, Some(value))));
        for entry in held.into_iter().map(Ok).chain(rest) {
            let (key, value) = entry?;
            let value = value.as_ref().map(|value| &value[..]);
            builder.push(&key.encode(), number, value, None)?;
        }
        let stored = StoredRun::open(&dir, builder.finish()?)?;
        for name in stored.run.description().file_names() {
            sink.publish_file(&name)?;
        }
        levels.add_first_run(stored, params);
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
        sink.put(META, MANIFEST, &levels.manifest().encode(RunDescription::encode))?;
    }
    Ok(levels.root())
}
