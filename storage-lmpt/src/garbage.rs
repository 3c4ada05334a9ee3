//! The work of commits beside their blocks: writing rows of a merge ahead of its publication, and
//! removing garbage of merges.
//!
//! Neither has undo, so neither may depend on a block that can be reverted. The boundary of a merge
//! determines its rows; its garbage is needed until its publication. Once these blocks cannot be
//! reverted, all retained states, and all states that can still be proposed, agree with the work
//! done here.

use crate::{
    garbage_lists,
    record::{
        LAYERS, LISTS, META, SNAPSHOT, ahead_key, generation_range, has_block_rows, published,
        published_key, rows_ahead,
    },
    snapshot::{RowOrigin, branch_key},
    state::{GarbageHints, LmptState},
};
use alloy_primitives::Bytes;
use retrie_state::{KeyRange, NodeWrite, RowTable, ScanDirection, StateError, TableRow};
use std::collections::{BTreeMap, btree_map::Entry};

/// The cost of removing a row, in units of the budget. Rows of layers may be as large as a page.
fn cost(row: &Bytes) -> usize {
    1 + row.len() / 1024
}

/// Writes and removes about `budget` rows. It implements the clean-up step of
/// [`Backend`](retrie_state::Backend).
pub(crate) fn write_and_clean(
    view: &mut dyn NodeWrite,
    state: &LmptState,
    first_retained: u64,
    budget: usize,
) -> Result<(), StateError> {
    // The next boundary waits for the rows of the merge; garbage can wait.
    let ahead = write_ahead(view, state, first_retained, budget - budget / 4)?;
    remove_garbage(view, &mut state.hints.lock(), first_retained, budget - ahead)
}

/// Writes rows of the merge under way that are not in the store yet. Returns their number.
fn write_ahead(
    view: &mut dyn NodeWrite,
    state: &LmptState,
    first_retained: u64,
    most: usize,
) -> Result<usize, StateError> {
    let (Some(meta), Some(merge)) = (&state.meta, &state.merge) else { return Ok(0) };
    if meta.delta_from > first_retained {
        return Ok(0);
    }
    let generation = meta.merging();
    let done = rows_ahead(view.as_read(), generation)?;
    let rows = merge.progress.rows(usize::try_from(done).unwrap_or(usize::MAX), most);
    for made in rows.iter() {
        view.put(made.table, &RowOrigin::Ahead.key(&made.key), made.row.clone())?;
    }
    if !rows.is_empty() {
        let done = (done + rows.len() as u64).to_be_bytes().to_vec();
        view.put(META, &ahead_key(generation), done.into())?;
    }
    Ok(rows.len())
}

/// Removes layer rows of merged generations, and the garbage of their merges, the oldest first.
fn remove_garbage(
    view: &mut dyn NodeWrite,
    hints: &mut GarbageHints,
    first_retained: u64,
    mut left: usize,
) -> Result<(), StateError> {
    // This commit may still fail. So the hints name the rows that existed before it. A removed row
    // is skipped once more, until its removal is folded.
    let mut is_first = true;
    while left > 0 {
        let next = published(view.as_read(), hints.published)?.next().transpose()?;
        let Some((generation, _)) = next.filter(|(_, block)| *block <= first_retained) else {
            return Ok(());
        };
        let rows = some_rows(view, LAYERS, generation, &hints.layers, left)?;
        // Removing the rows of a list costs far more than reading the list.
        let lists = some_rows(view, LISTS, generation, &hints.lists, 1 + left / 1024)?;
        if is_first {
            is_first = false;
            hints.published = generation;
            let first = |rows: &[TableRow]| rows.first().map(|(key, _)| key.to_vec());
            first(&rows).into_iter().for_each(|key| hints.layers = key);
            first(&lists).into_iter().for_each(|key| hints.lists = key);
        }
        for (key, row) in &rows {
            left = left.saturating_sub(cost(row));
            view.delete(LAYERS, key)?;
        }
        for (key, list) in &lists {
            if left == 0 {
                return Ok(());
            }
            left = left.saturating_sub(remove_listed(view, generation, list)? + 1);
            view.delete(LISTS, key)?;
        }
        if rows.is_empty() && lists.is_empty() {
            left = left.saturating_sub(2);
            view.delete(META, &ahead_key(generation))?;
            view.delete(META, &published_key(generation))?;
        }
    }
    Ok(())
}

/// Some rows of `generation`, from key `from` on, that cost about `most`.
fn some_rows(
    view: &dyn NodeWrite,
    table: RowTable,
    generation: u64,
    from: &[u8],
    most: usize,
) -> Result<Vec<TableRow>, StateError> {
    let (start, end) = generation_range(generation);
    let start = from.max(&start[..]);
    if start >= &end[..] {
        return Ok(Vec::new());
    }
    let rows = view.scan(table, KeyRange::new(start, &end), ScanDirection::Forward)?;
    let mut taken = 0;
    rows.take_while(|row| {
        let is_within = taken < most;
        taken += row.as_ref().map_or(0, |(_, row)| cost(row));
        is_within
    })
    .collect()
}

/// Removes the rows that a list names. Returns the number of writes.
fn remove_listed(
    view: &mut dyn NodeWrite,
    generation: u64,
    list: &Bytes,
) -> Result<usize, StateError> {
    let entries = garbage_lists::decode(generation, list)?;
    let (mut mixed, mut writes) = (BTreeMap::new(), 0);
    for (path, stamp) in &entries {
        let key = branch_key(path, *stamp);
        let is_mixed = match mixed.entry(*stamp) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(has_block_rows(view.as_read(), *stamp)?),
        };
        // A read would tell which of the rows exists; an unnecessary deletion costs less.
        let origins: &[RowOrigin] = match (*stamp, is_mixed) {
            (0, _) => &[RowOrigin::Block],
            (_, true) => &RowOrigin::ALL,
            (_, false) => &[RowOrigin::Ahead],
        };
        for origin in origins {
            view.delete(SNAPSHOT, &origin.key(&key))?;
        }
        writes += origins.len();
    }
    Ok(writes)
}
