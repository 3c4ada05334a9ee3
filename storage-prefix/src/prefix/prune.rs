//! Forgetting old states, as much at a time as there is room for in a commit.

use super::{
    layout::Layout,
    row::{
        BLOCKS, GONE, SUPERSEDED, Superseded, block_key, block_number, decode_list, gone_at,
        lists_up_to,
    },
};
use retrie_state::{Direction, KeyRange, NodeWrite, StateError};

/// Forgets states before block `first_kept`, and rows that none of the others needs: about `budget`
/// rows.
pub(super) fn forget(
    view: &mut dyn NodeWrite,
    layout: Layout,
    first_kept: u64,
    budget: usize,
) -> Result<(), StateError> {
    let mut left = budget;
    // States first, so that none is opened whose rows are going.
    let end = block_key(first_kept);
    let old: Vec<_> = view
        .as_read()
        .scan(BLOCKS, KeyRange::new(&[], &end), Direction::Forward)?
        .take(left)
        .collect::<Result<_, _>>()?;
    for (key, _) in &old {
        view.delete(BLOCKS, key)?;
    }
    left -= old.len();
    let first = view.as_read().scan(BLOCKS, KeyRange::ALL, Direction::Forward)?.next();
    let Some((first, _)) = first.transpose()? else { return Ok(()) };
    let first = block_number(BLOCKS, &first)?;
    while left > 0 {
        let mut end = [0; 8];
        let range = lists_up_to(first, &mut end);
        let list = view.as_read().scan(SUPERSEDED, range, Direction::Forward)?.next();
        let Some((key, list)) = list.transpose()? else { return Ok(()) };
        let block = block_number(SUPERSEDED, &key)?;
        let entries = decode_list(block, &list)?;
        left = left.saturating_sub(entries.len() + 1);
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
    }
    Ok(())
}
