//! Forgetting old states, as much at a time as there is room for in a commit.

use super::{
    layout::Layout,
    row::{
        BLOCKS, Forgotten, GONE, SUPERSEDED, Superseded, block_key, block_number, decode_list,
        gone_at, list_key,
    },
};
use retrie_state::{Direction, KeyRange, NodeRead, NodeWrite, StateError};

/// Number of the first block whose state is kept, if any is.
pub(super) fn first_kept(
    view: &dyn NodeRead,
    forgotten: &Forgotten,
) -> Result<Option<u64>, StateError> {
    let range = KeyRange::from(&forgotten.blocks);
    let first = view.scan(BLOCKS, range, Direction::Forward)?.next().transpose()?;
    first.map(|(key, _)| block_number(BLOCKS, &key)).transpose()
}

/// Forgets states before block `wanted`, and rows that none of the others needs: about `budget` rows.
pub(super) fn forget(
    view: &mut dyn NodeWrite,
    layout: Layout,
    wanted: u64,
    budget: usize,
) -> Result<(), StateError> {
    let before = Forgotten::read(view.as_read())?;
    let (mut forgotten, mut left) = (before, budget);
    // States first, so that none is opened whose rows are going.
    let end = block_key(wanted);
    if forgotten.blocks < end {
        let old: Vec<_> = view
            .as_read()
            .scan(BLOCKS, KeyRange::new(&forgotten.blocks, &end), Direction::Forward)?
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
            // It may have been deleted again since, and then belongs to a later list.
            if let Superseded::Key(key) = entry
                && gone_at(view.as_read(), key)? != Some(block)
            {
                continue;
            }
            let (table, key) = entry.row_key();
            let key = if table == GONE { key.into() } else { layout.key(&key) };
            view.delete(table, &key)?;
        }
        view.delete(SUPERSEDED, &key)?;
        forgotten.lists = key;
    }
    if forgotten != before { forgotten.write(view) } else { Ok(()) }
}

/// A list with its block and key.
type List = (u64, [u8; 12], Vec<Superseded>);

/// Lists of blocks up to `first`, as many as hold about `budget` entries.
fn due(
    view: &dyn NodeRead,
    forgotten: &Forgotten,
    first: u64,
    budget: usize,
) -> Result<Vec<List>, StateError> {
    let (mut lists, mut left) = (Vec::new(), budget);
    let end = list_key(first.saturating_add(1), 0);
    if left == 0 || forgotten.lists >= end {
        return Ok(lists);
    }
    for stored in
        view.scan(SUPERSEDED, KeyRange::new(&forgotten.lists, &end), Direction::Forward)?
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
