//! The check of `db verify`: every row of chunks and hashes is well-formed and fits the entries.

use crate::{
    ChunkEntries,
    chunk::{
        CHUNKS, HASHES, HashGroup, HashedEntry, group_key, group_row, make_chunks, read_entries,
        read_group_key,
    },
    state::{rebuild, root},
    tree::{ChunkPlace, ChunkTree},
};
use alloy_primitives::{B256, hex};
use rayon::prelude::*;
use retrie_state::{KeyRange, NodeRead, ScanDirection, StateError};

/// Chunks that are checked in parallel at a time.
const AT_ONCE: usize = 256;

/// Checks the rows of the state in `view`, whose recorded root is `recorded`; see
/// [`Backend::check`](retrie_state::Backend::check).
pub(crate) fn check(
    most: ChunkEntries,
    view: &dyn NodeRead,
    recorded: B256,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    // This fails for malformed rows, and for key-heights that do not form an AVL tree.
    let tree = match rebuild(view, most) {
        Ok(tree) => tree,
        Err(error @ StateError::Corrupt { .. }) => {
            report(error);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let found = root(most, &tree);
    if found != recorded {
        let what = format!("the rows lead to root {found}, recorded is {recorded}");
        report(StateError::corrupt(CHUNKS.name, what));
    }
    if tree.0.is_none() && !read_entries(view, None, None)?.is_empty() {
        report(StateError::corrupt(CHUNKS.name, "there are entries, and no chunks"));
    }
    foreign_rows(view, &tree, report)?;
    let places = tree.places();
    let is_alone = places.len() == 1;
    for places in places.chunks(AT_ONCE) {
        let faults = places
            .par_iter()
            .map(|place| faults(most, view, place, is_alone))
            .collect::<Result<Vec<_>, StateError>>()?;
        faults.into_iter().flatten().for_each(&mut *report);
    }
    Ok(())
}

/// Reports rows of hashes that belong to no chunk.
fn foreign_rows(
    view: &dyn NodeRead,
    tree: &ChunkTree,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    for row in view.scan(HASHES, KeyRange::ALL, ScanDirection::Forward)? {
        let (key, _) = row?;
        let is_own = read_group_key(&key).is_some_and(|(first, name)| {
            let groups = tree.starting_at(&first).map(|place| place.chunk.groups(&first.encode()));
            groups.is_some_and(|groups| groups.iter().any(|group| group.name == name))
        });
        if !is_own {
            report(StateError::corrupt(HASHES.name, format!("row {key}: no chunk has it")));
        }
    }
    Ok(())
}

/// All faults of one chunk.
fn faults(
    most: ChunkEntries,
    view: &dyn NodeRead,
    place: &ChunkPlace<'_>,
    is_alone: bool,
) -> Result<Vec<StateError>, StateError> {
    let (start, next) = (place.start(), place.next);
    let entries = read_entries(view, start.as_ref(), next.as_ref())?;
    let first = place.node.first.encode();
    let row = hex::encode(&first[..]);
    let mut faults = Vec::new();
    let mut wrong = |what: String| {
        faults.push(StateError::corrupt(CHUNKS.name, format!("row {row}: {what}")));
    };
    let count = place.chunk.count();
    if entries.len() != count {
        wrong(format!("it says {count} entries, {} are there", entries.len()));
        return Ok(faults);
    }
    if !is_alone && !most.holds(count) {
        let bounds = (most.least(), most.most());
        wrong(format!("a chunk of {count} entries, beside others of {} to {}", bounds.0, bounds.1));
    }
    if entries.first().is_some_and(|entry| entry.key != place.node.first) {
        wrong("its first key is not its row's key".to_owned());
    }
    match make_chunks(&[&entries]).pop() {
        Some(made) if made.chunk.parts().eq(place.chunk.parts()) => {}
        Some(_) => wrong("its hashes of parts do not match its entries".to_owned()),
        None => wrong("it has no entries".to_owned()),
    }
    let groups = place.chunk.groups(&first);
    for HashGroup { name, start, fence, .. } in groups.iter().skip(1) {
        let is_between = match entries.get(start - 1..=*start) {
            Some([last, first]) => {
                last.key.encode()[..] < *fence.bytes() && *fence.bytes() <= first.key.encode()[..]
            }
            _ => false,
        };
        if !is_between {
            wrong(format!("the fence of group {name} is not where the group begins"));
        }
    }
    for HashGroup { name, start, len, .. } in groups {
        let entries = entries.get(start..start + len).unwrap_or_default();
        let key = group_key(&first, name);
        let row = hex::encode(&key);
        let what = match view.get(HASHES, &key)? {
            Some(held) if held == group_row(entries) => continue,
            Some(held) => describe(&held, entries),
            None => "it is missing".to_owned(),
        };
        faults.push(StateError::corrupt(HASHES.name, format!("row {row}: {what}")));
    }
    Ok(faults)
}

/// The fault of a group's row: the first entry with a wrong hash, or a wrong length.
fn describe(held: &[u8], entries: &[HashedEntry]) -> String {
    let (hashes, _) = held.as_chunks::<32>();
    let wrong = entries.iter().zip(hashes).find(|(entry, held)| entry.hash != B256::from(**held));
    match wrong {
        Some((entry, _)) => format!("its hash of {} does not match the entry", entry.key),
        None => format!("it has {} bytes, not {} hashes", held.len(), entries.len()),
    }
}
