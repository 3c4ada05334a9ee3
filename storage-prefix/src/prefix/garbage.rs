//! Garbage collection: forgets old states, step by step, as far as a commit has room.

use super::{
    layout::PrefixLayout,
    record::{
        BLOCKS, DELETED_KEYS, GarbageProgress, SUPERSEDED, SupersededRow, block_key, block_number,
        decode_list, deleted_at, list_key,
    },
};
use retrie_state::{KeyRange, NodeRead, NodeWrite, ScanDirection, StateError};

/// Number of the first block whose state is kept, if there is one.
pub(super) fn first_kept(
    view: &dyn NodeRead,
    forgotten: &GarbageProgress,
) -> Result<Option<u64>, StateError> {
    let range = KeyRange::from(&forgotten.blocks);
    let first = view.scan(BLOCKS, range, ScanDirection::Forward)?.next().transpose()?;
    first.map(|(key, _)| block_number(BLOCKS, &key)).transpose()
}

/// Forgets the states before block `wanted`, and deletes rows that no other state needs: about
/// `budget` rows.
pub(super) fn collect_garbage(
    view: &mut dyn NodeWrite,
    layout: PrefixLayout,
    wanted: u64,
    budget: usize,
) -> Result<(), StateError> {
    let before = GarbageProgress::read(view.as_read())?;
    let (mut forgotten, mut left) = (before, budget);
    // The blocks' rows first, so that a state with deleted rows cannot be opened.
    let end = block_key(wanted);
    if forgotten.blocks < end {
        let old: Vec<_> = view
            .as_read()
            .scan(BLOCKS, KeyRange::new(&forgotten.blocks, &end), ScanDirection::Forward)?
            .take(left)
            .collect::<Result<_, _>>()?;
        for (key, _) in &old {
            view.delete(BLOCKS, key)?;
        }
        left -= old.len();
    }
    let Some(first) = first_kept(view.as_read(), &forgotten)? else { return Ok(()) };
    forgotten.blocks = block_key(first);
    for (block, key, entries) in due(view.as_read(), &forgotten, first, left)? {
        for entry in &entries {
            // If the key was deleted again later, it belongs to a later list.
            if let SupersededRow::Key(key) = entry
                && deleted_at(view.as_read(), key)? != Some(block)
            {
                continue;
            }
            let (table, key) = entry.row_key();
            let key = if table == DELETED_KEYS { key.into() } else { layout.key(&key) };
            view.delete(table, &key)?;
        }
        view.delete(SUPERSEDED, &key)?;
        forgotten.lists = key;
    }
    if forgotten != before { forgotten.write(view) } else { Ok(()) }
}

/// A list that is due for deletion, with its block and key.
type DueList = (u64, [u8; 12], Vec<SupersededRow>);

/// Lists of blocks up to `first`, with about `budget` entries in total.
fn due(
    view: &dyn NodeRead,
    forgotten: &GarbageProgress,
    first: u64,
    budget: usize,
) -> Result<Vec<DueList>, StateError> {
    let (mut lists, mut left) = (Vec::new(), budget);
    let end = list_key(first.saturating_add(1), 0);
    if left == 0 || forgotten.lists >= end {
        return Ok(lists);
    }
    for stored in
        view.scan(SUPERSEDED, KeyRange::new(&forgotten.lists, &end), ScanDirection::Forward)?
    {
        let (key, list) = stored?;
        let block = block_number(SUPERSEDED, &key)?;
        let key = key[..].try_into().map_err(|_| {
            StateError::corrupt(SUPERSEDED.name, format!("the key {key} names no list"))
        })?;
        let entries = decode_list(block, &list)?;
        left = left.saturating_sub(entries.len() + 1);
        lists.push((block, key, entries));
        if left == 0 {
            break;
        }
    }
    Ok(lists)
}
