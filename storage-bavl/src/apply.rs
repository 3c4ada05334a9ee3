//! Applies a block's delta to the tree.

use crate::{
    ChunkEntries,
    chunk::{
        CHUNKS, HASHES, HashedEntry, NewChunk, PART, group_key, group_row, make_chunks,
        read_entries,
    },
    regroup::{ChunkContent, ChunkRegion, regroup},
    tree::{ChunkEdit, ChunkPlace, ChunkTree, TreeNode},
    update::{RowChange, TouchedChunk, touched_chunks, update},
};
use alloy_primitives::{Bytes, hex};
use rayon::prelude::*;
use retrie_state::{BackendDelta, NodeRead, NodeWrite, StateError, flat};
use std::collections::{BTreeMap, BTreeSet};

/// Chunks that one thread takes at a time: enough to hash them together efficiently.
const AT_ONCE: usize = 16;

/// Applies `delta` to the state of `tree` and returns the new tree.
pub(crate) fn apply(
    most: ChunkEntries,
    view: &mut dyn NodeWrite,
    tree: &ChunkTree,
    delta: &BackendDelta,
) -> Result<ChunkTree, StateError> {
    flat::apply(view, delta)?;
    if delta.changes().is_empty() {
        return Ok(tree.clone());
    }
    let regions = match tree.0 {
        Some(_) => regions(view.as_read(), most, tree, touched_chunks(tree, delta.changes()))?,
        None => {
            let entries = read_entries(view.as_read(), None, None)?;
            let new = most.cut(&entries).into_iter().map(|run| ChunkContent::Entries(run.to_vec()));
            vec![ChunkRegion { old: Vec::new(), new: new.collect() }]
        }
    };
    let (edits, mut rows) = edits(view.as_read(), tree, regions)?;
    let new = tree.edit(&edits);
    shape_rows(tree, &new, &edits, &mut rows);
    new.hash_all();
    rows.into_iter().try_for_each(|row| row.write(view))?;
    Ok(new)
}

/// The regions of the touched chunks and of the neighbours they merge with. `view` shows the
/// entries after the block.
fn regions<'a>(
    view: &dyn NodeRead,
    most: ChunkEntries,
    tree: &'a ChunkTree,
    touched: Vec<TouchedChunk<'a>>,
) -> Result<Vec<ChunkRegion<'a>>, StateError> {
    let (moved, same): (Vec<_>, Vec<_>) =
        touched.iter().copied().partition(|touched| !touched.stays(most));
    let updated = same
        .par_chunks(AT_ONCE)
        .map(|same| update(view, same))
        .collect::<Result<Vec<_>, StateError>>()?;
    let read = moved
        .par_iter()
        .map(|touched| read_touched(view, touched))
        .collect::<Result<Vec<_>, StateError>>()?;
    let (mut updated, mut read) = (updated.into_iter().flatten(), read.into_iter());
    let contents = touched.iter().filter_map(|touched| {
        let content = match touched.stays(most) {
            true => ChunkContent::Same(touched.place, updated.next()?),
            false => ChunkContent::Entries(read.next()?),
        };
        Some((touched.place, content))
    });
    regroup(view, most, tree, contents)
}

/// Reads the entries in a chunk's range. Their number must be the old count plus the delta's
/// changes.
fn read_touched(
    view: &dyn NodeRead,
    touched: &TouchedChunk<'_>,
) -> Result<Vec<HashedEntry>, StateError> {
    let ChunkPlace { node, next, .. } = &touched.place;
    let entries = read_entries(view, touched.place.start().as_ref(), next.as_ref())?;
    if touched.count_after() == Some(entries.len()) {
        return Ok(entries);
    }
    let count = touched.place.chunk.count();
    let what = format!(
        "the chunk from {} on had {count} entries, and has {} after {} changes",
        node.first,
        entries.len(),
        touched.changes.len()
    );
    Err(StateError::corrupt(CHUNKS.name, what))
}

/// Makes the new chunks, with the rows of their groups. There is one edit for each old chunk.
fn edits(
    view: &dyn NodeRead,
    tree: &ChunkTree,
    regions: Vec<ChunkRegion<'_>>,
) -> Result<(Vec<ChunkEdit>, Vec<RowChange>), StateError> {
    let runs: Vec<&[HashedEntry]> = regions
        .iter()
        .flat_map(|region| &region.new)
        .filter_map(|content| match content {
            ChunkContent::Entries(run) => Some(&run[..]),
            ChunkContent::Same(..) => None,
        })
        .collect();
    let made = runs
        .par_chunks(AT_ONCE)
        .map(|runs| {
            let rows = runs.iter().map(|run| group_rows(view, tree, run));
            let rows = rows.collect::<Result<Vec<_>, StateError>>()?;
            Ok(make_chunks(runs).into_iter().zip(rows).collect::<Vec<_>>())
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    drop(runs);
    let mut made = made.into_iter().flatten();
    let (mut edits, mut rows) = (Vec::new(), Vec::new());
    for ChunkRegion { old, new } in regions {
        let start = edits.len();
        edits.extend(old.iter().map(|place| ChunkEdit { old: place.node.first, new: Vec::new() }));
        let mut gone = old.iter().peekable();
        for content in new {
            let node = match content {
                ChunkContent::Same(_, updated) => {
                    rows.extend(updated.rows);
                    updated.node
                }
                ChunkContent::Entries(_) => {
                    let Some((NewChunk { first, chunk, hash }, own)) = made.next() else {
                        continue;
                    };
                    rows.extend(own);
                    TreeNode::chunk(first, chunk, hash)
                }
            };
            // An old chunk's rows are deleted, unless a new chunk begins with the same key.
            while let Some(old) = gone.next_if(|old| old.node.first < node.first) {
                rows.extend(deleted_rows(view, old)?);
            }
            let _ = gone.next_if(|old| old.node.first == node.first);
            // The new chunk replaces the old chunk in whose range it begins.
            if edits.len() == start {
                edits.push(ChunkEdit { old: node.first, new: Vec::new() });
            }
            let own = &mut edits[start..];
            let at = own.partition_point(|edit| edit.old <= node.first).saturating_sub(1);
            own[at].new.push(node);
        }
        for old in gone {
            rows.extend(deleted_rows(view, old)?);
        }
    }
    Ok((edits, rows))
}

/// The changed rows of a new chunk's groups.
fn group_rows(
    view: &dyn NodeRead,
    tree: &ChunkTree,
    run: &[HashedEntry],
) -> Result<Vec<RowChange>, StateError> {
    let Some(first) = run.first() else { return Ok(Vec::new()) };
    let encoded = first.key.encode();
    let before = tree.starting_at(&first.key).map(|place| place.chunk.groups(&encoded));
    let before: BTreeSet<u16> = before.into_iter().flatten().map(|group| group.name).collect();
    let new = run.chunks(PART).enumerate().map(|(name, group)| (name as u16, group_row(group)));
    let mut new: BTreeMap<u16, Bytes> = new.collect();
    let mut rows = Vec::new();
    for name in before.iter().copied().chain((0..new.len() as u16).filter(|n| !before.contains(n)))
    {
        let key = group_key(&encoded, name);
        let previous = if before.contains(&name) { Some(old_row(view, &key)?) } else { None };
        let next = new.remove(&name);
        if previous != next {
            rows.push(RowChange { table: HASHES, key, previous, next });
        }
    }
    Ok(rows)
}

/// Deletes the rows of an old chunk's groups.
fn deleted_rows(view: &dyn NodeRead, old: &ChunkPlace<'_>) -> Result<Vec<RowChange>, StateError> {
    let first = old.node.first.encode();
    let gone = old.chunk.groups(&first).into_iter().map(|group| {
        let key = group_key(&first, group.name);
        let previous = Some(old_row(view, &key)?);
        Ok(RowChange { table: HASHES, key, previous, next: None })
    });
    gone.collect()
}

fn old_row(view: &dyn NodeRead, key: &[u8]) -> Result<Bytes, StateError> {
    view.get(HASHES, key)?.ok_or_else(|| {
        let row = hex::encode(key);
        StateError::corrupt(HASHES.name, format!("row {row}: it is missing"))
    })
}

/// The changed rows in `CHUNKS`: rows of chunks whose content or key-height changed.
fn shape_rows(old: &ChunkTree, new: &ChunkTree, edits: &[ChunkEdit], rows: &mut Vec<RowChange>) {
    for edit in edits.iter().filter(|edit| new.starting_at(&edit.old).is_none()) {
        if let Some(ChunkPlace { chunk, key_height, .. }) = old.starting_at(&edit.old) {
            let previous = Some(chunk.row(key_height));
            let key = edit.old.encode().to_vec();
            rows.push(RowChange { table: CHUNKS, key, previous, next: None });
        }
    }
    for (node, key_height) in new.new_places() {
        let before = old.starting_at(&node.first);
        let crate::tree::NodeKind::Chunk(chunk) = &node.kind else { continue };
        let is_same = before.is_some_and(|old| old.key_height == key_height && old.chunk == chunk);
        if !is_same {
            let previous = before.map(|old| old.chunk.row(old.key_height));
            let (key, next) = (node.first.encode().to_vec(), Some(chunk.row(key_height)));
            rows.push(RowChange { table: CHUNKS, key, previous, next });
        }
    }
}
