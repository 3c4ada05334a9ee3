//! A block.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, Entry, HASHES, Made, PART, group_key, group_row, make, read_entries},
    regroup::{Content, Region, regroup},
    touch::{RowChange, Touched, touched, update},
    tree::{Edit, Node, Place, Tree},
};
use alloy_primitives::{Bytes, hex};
use rayon::prelude::*;
use retrie_state::{NodeRead, NodeWrite, StateDelta, StateError, flat};
use std::collections::{BTreeMap, BTreeSet};

/// Chunks that one thread takes at a time: enough to be hashed together.
const AT_ONCE: usize = 16;

/// Applies `delta` to the state of `tree`; the tree of the new one.
pub(crate) fn apply(
    most: ChunkEntries,
    view: &mut dyn NodeWrite,
    tree: &Tree,
    delta: &StateDelta,
) -> Result<Tree, StateError> {
    flat::apply(view, delta)?;
    if delta.changes().is_empty() {
        return Ok(tree.clone());
    }
    let regions = match tree.0 {
        Some(_) => regions(view.as_read(), most, tree, touched(tree, delta.changes()))?,
        None => {
            let entries = read_entries(view.as_read(), None, None)?;
            let new = most.cut(&entries).into_iter().map(|run| Content::Run(run.to_vec()));
            vec![Region { old: Vec::new(), new: new.collect() }]
        }
    };
    let (edits, mut rows) = edits(view.as_read(), tree, regions)?;
    let new = tree.edit(&edits);
    shape_rows(tree, &new, &edits, &mut rows);
    new.hash_all();
    rows.into_iter().try_for_each(|row| row.write(view))?;
    Ok(new)
}

/// What has become of touched chunks, and of neighbours that they need. The entries are in `view`.
fn regions<'a>(
    view: &dyn NodeRead,
    most: ChunkEntries,
    tree: &'a Tree,
    touched: Vec<Touched<'a>>,
) -> Result<Vec<Region<'a>>, StateError> {
    let (moved, same): (Vec<_>, Vec<_>) =
        touched.iter().copied().partition(|touched| !touched.stays(most));
    let updated = same
        .par_chunks(AT_ONCE)
        .map(|same| update(view, same))
        .collect::<Result<Vec<_>, StateError>>()?;
    let read = moved
        .par_iter()
        .map(|touched| run(view, touched))
        .collect::<Result<Vec<_>, StateError>>()?;
    let (mut updated, mut read) = (updated.into_iter().flatten(), read.into_iter());
    let contents = touched.iter().filter_map(|touched| {
        let content = match touched.stays(most) {
            true => Content::Same(touched.place, updated.next()?),
            false => Content::Run(read.next()?),
        };
        Some((touched.place, content))
    });
    regroup(view, most, tree, contents)
}

/// The entries in a chunk's range, which must be as many as before and after the delta it says.
fn run(view: &dyn NodeRead, touched: &Touched<'_>) -> Result<Vec<Entry>, StateError> {
    let Place { node, next, .. } = &touched.place;
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

/// Makes the new chunks, with the rows of their groups. The edits are one for each old chunk.
fn edits(
    view: &dyn NodeRead,
    tree: &Tree,
    regions: Vec<Region<'_>>,
) -> Result<(Vec<Edit>, Vec<RowChange>), StateError> {
    let runs: Vec<&[Entry]> = regions
        .iter()
        .flat_map(|region| &region.new)
        .filter_map(|content| match content {
            Content::Run(run) => Some(&run[..]),
            Content::Same(..) => None,
        })
        .collect();
    let made = runs
        .par_chunks(AT_ONCE)
        .map(|runs| {
            let rows = runs.iter().map(|run| group_rows(view, tree, run));
            let rows = rows.collect::<Result<Vec<_>, StateError>>()?;
            Ok(make(runs).into_iter().zip(rows).collect::<Vec<_>>())
        })
        .collect::<Result<Vec<_>, StateError>>()?;
    drop(runs);
    let mut made = made.into_iter().flatten();
    let (mut edits, mut rows) = (Vec::new(), Vec::new());
    for Region { old, new } in regions {
        let start = edits.len();
        edits.extend(old.iter().map(|place| Edit { old: place.node.first, new: Vec::new() }));
        let mut gone = old.iter().peekable();
        for content in new {
            let node = match content {
                Content::Same(_, updated) => {
                    rows.extend(updated.rows);
                    updated.node
                }
                Content::Run(_) => {
                    let Some((Made { first, chunk, hash }, own)) = made.next() else { continue };
                    rows.extend(own);
                    Node::chunk(first, chunk, hash)
                }
            };
            // Old chunks that do not begin where a new one does lose their rows.
            while let Some(old) = gone.next_if(|old| old.node.first < node.first) {
                rows.extend(rows_of_gone(view, old)?);
            }
            let _ = gone.next_if(|old| old.node.first == node.first);
            // It takes the place of the old one in whose range it begins.
            if edits.len() == start {
                edits.push(Edit { old: node.first, new: Vec::new() });
            }
            let own = &mut edits[start..];
            let at = own.partition_point(|edit| edit.old <= node.first).saturating_sub(1);
            own[at].new.push(node);
        }
        for old in gone {
            rows.extend(rows_of_gone(view, old)?);
        }
    }
    Ok((edits, rows))
}

/// The rows of groups of a new chunk, where they change.
fn group_rows(
    view: &dyn NodeRead,
    tree: &Tree,
    run: &[Entry],
) -> Result<Vec<RowChange>, StateError> {
    let Some(first) = run.first() else { return Ok(Vec::new()) };
    let encoded = first.key.encode();
    let before = tree.begins(&first.key).map(|place| place.chunk.groups(&encoded));
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

/// The removal of the rows of an old chunk's groups.
fn rows_of_gone(view: &dyn NodeRead, old: &Place<'_>) -> Result<Vec<RowChange>, StateError> {
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

/// The rows of chunks that change from one tree to the next: of chunks that do, and of those whose
/// key-height does.
fn shape_rows(old: &Tree, new: &Tree, edits: &[Edit], rows: &mut Vec<RowChange>) {
    for edit in edits.iter().filter(|edit| new.begins(&edit.old).is_none()) {
        if let Some(Place { chunk, key_height, .. }) = old.begins(&edit.old) {
            let previous = Some(chunk.row(key_height));
            let key = edit.old.encode().to_vec();
            rows.push(RowChange { table: CHUNKS, key, previous, next: None });
        }
    }
    for (node, key_height) in new.new_places() {
        let before = old.begins(&node.first);
        let crate::tree::Kind::Chunk(chunk) = &node.kind else { continue };
        let is_same = before.is_some_and(|old| old.key_height == key_height && old.chunk == chunk);
        if !is_same {
            let previous = before.map(|old| old.chunk.row(old.key_height));
            let (key, next) = (node.first.encode().to_vec(), Some(chunk.row(key_height)));
            rows.push(RowChange { table: CHUNKS, key, previous, next });
        }
    }
}
