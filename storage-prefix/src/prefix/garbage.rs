//! Garbage collection: forgets old states, step by step, as far as a commit has room.

use super::{
    layout::PrefixLayout,
    pack,
    record::{
        BLOCKS, GarbageProgress, SUPERSEDED, SupersededRow, block_key, block_number, decode_list,
        deleted_at, list_key,
    },
};
use retrie_state::{KeyRange, NodeRead, NodeWrite, RowTable, ScanDirection, StateError};
use std::collections::BTreeMap;

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
    let mut packs = PackRemovals::new();
    for (block, key, entries) in due(view.as_read(), &forgotten, first, left)? {
        for entry in &entries {
            // If the key was deleted again later, it belongs to a later list.
            if let SupersededRow::Key(key) = entry
                && deleted_at(view.as_read(), key)? != Some(block)
            {
                continue;
            }
            let (table, key, tag) = entry.row_key();
            match tag {
                None => view.delete(table, &key)?,
                Some(tag) => packs.entry((table, layout.key(&key).into())).or_default().push(tag),
            }
        }
        view.delete(SUPERSEDED, &key)?;
        forgotten.lists = key;
    }
    remove_rows(view, layout, packs)?;
    if forgotten != before { forgotten.write(view) } else { Ok(()) }
}

/// Places of rows in packs, by table and stored key.
type PackRemovals = BTreeMap<(RowTable, Vec<u8>), Vec<u8>>;

/// Removes rows from packs, and packs that are empty then.
fn remove_rows(
    view: &mut dyn NodeWrite,
    layout: PrefixLayout,
    packs: PackRemovals,
) -> Result<(), StateError> {
    for ((table, key), tags) in packs {
        let Some(stored) = view.get(table, &key)? else { continue };
        let corrupt = || StateError::corrupt(table.name, "the row of a pack is malformed");
        let pack = layout.unpadded(stored.clone()).ok_or_else(corrupt)?;
        let left = pack::without(&pack, &tags).ok_or_else(corrupt)?;
        let next = if left.is_empty() {
            None
        } else {
            Some(layout.row_left(left, &stored).ok_or_else(corrupt)?)
        };
        view.replace(table, &key, Some(stored), next)?;
    }
    Ok(())
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
