//! What commits do beside their blocks: rows of a merge ahead of its publication, and removing what
//! merges made useless.
//!
//! Neither has undo, so neither may touch what a block that can be reverted decides. The rows of a
//! merge are decided by its boundary; what it made useless is needed until its publication. Once these
//! blocks cannot be reverted, every state that is retained, and every one that can still be proposed,
//! agrees with what is done here.

use crate::{
    lists,
    row::{
        LAYERS, LISTS, META, SNAPSHOT, generation_range, is_mixed, published, published_key,
        settled, settled_key,
    },
    snapshot::{Origin, branch_key},
    state::{Hints, State},
};
use alloy_primitives::Bytes;
use retrie_state::{Direction, KeyRange, NodeWrite, Row, StateError, Table};
use std::collections::{BTreeMap, btree_map::Entry};

/// What removing a row takes of a budget: rows of layers may be as large as a page.
fn cost(row: &Bytes) -> usize {
    1 + row.len() / 1024
}

/// Writes some `budget` of rows; see [`Backend::settle`](retrie_state::Backend::settle).
pub(crate) fn settle(
    view: &mut dyn NodeWrite,
    state: &State,
    first_retained: u64,
    budget: usize,
) -> Result<(), StateError> {
    // The next boundary waits for the rows of the merge; what is useless can wait.
    let ahead = write_ahead(view, state, first_retained, budget - budget / 4)?;
    clean_up(view, &mut state.hints.lock(), first_retained, budget - ahead)
}

/// Writes rows of the merge under way that no block has written; returns how many.
fn write_ahead(
    view: &mut dyn NodeWrite,
    state: &State,
    first_retained: u64,
    most: usize,
) -> Result<usize, StateError> {
    let (Some(meta), Some(merge)) = (&state.meta, &state.merge) else { return Ok(0) };
    if meta.delta_from > first_retained {
        return Ok(0);
    }
    let generation = meta.merging();
    let done = settled(view.as_read(), generation)?;
    let rows = merge.progress.rows(usize::try_from(done).unwrap_or(usize::MAX), most);
    for made in rows.iter() {
        view.put(made.table, &Origin::Settled.key(&made.key), made.row.clone())?;
    }
    if !rows.is_empty() {
        let done = (done + rows.len() as u64).to_be_bytes().to_vec();
        view.put(META, &settled_key(generation), done.into())?;
    }
    Ok(rows.len())
}

/// Removes layer rows of merged generations, and what their merges made useless, the oldest first.
fn clean_up(
    view: &mut dyn NodeWrite,
    hints: &mut Hints,
    first_retained: u64,
    mut left: usize,
) -> Result<(), StateError> {
    // Whether this commit comes about is not known yet, so hints say what was there before it: a row
    // that was removed is stepped over once, until its removal is folded.
    let mut is_first = true;
    while left > 0 {
        let next = published(view.as_read(), hints.published)?.next().transpose()?;
        let Some((generation, _)) = next.filter(|(_, block)| *block <= first_retained) else {
            return Ok(());
        };
        let rows = some_rows(view, LAYERS, generation, &hints.layers, left)?;
        // What a list names costs far more than the list.
        let lists = some_rows(view, LISTS, generation, &hints.lists, 1 + left / 1024)?;
        if is_first {
            is_first = false;
            hints.published = generation;
            let first = |rows: &[Row]| rows.first().map(|(key, _)| key.to_vec());
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
            view.delete(META, &settled_key(generation))?;
            view.delete(META, &published_key(generation))?;
        }
    }
    Ok(())
}

/// Some rows of `generation`, none before `from`, that cost about `most`.
fn some_rows(
    view: &dyn NodeWrite,
    table: Table,
    generation: u64,
    from: &[u8],
    most: usize,
) -> Result<Vec<Row>, StateError> {
    let (start, end) = generation_range(generation);
    let start = from.max(&start[..]);
    if start >= &end[..] {
        return Ok(Vec::new());
    }
    let rows = view.scan(table, KeyRange::new(start, &end), Direction::Forward)?;
    let mut taken = 0;
    rows.take_while(|row| {
        let is_within = taken < most;
        taken += row.as_ref().map_or(0, |(_, row)| cost(row));
        is_within
    })
    .collect()
}

/// Removes the rows that a list names; returns how many writes that took.
fn remove_listed(
    view: &mut dyn NodeWrite,
    generation: u64,
    list: &Bytes,
) -> Result<usize, StateError> {
    let entries = lists::decode(generation, list)?;
    let (mut mixed, mut writes) = (BTreeMap::new(), 0);
    for (path, stamp) in &entries {
        let key = branch_key(path, *stamp);
        let is_mixed = match mixed.entry(*stamp) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(is_mixed(view.as_read(), *stamp)?),
        };
        // Which one there is a read would tell: a needless deletion costs less.
        let origins: &[Origin] = match (*stamp, is_mixed) {
            (0, _) => &[Origin::Block],
            (_, true) => &Origin::ALL,
            (_, false) => &[Origin::Settled],
        };
        for origin in origins {
            view.delete(SNAPSHOT, &origin.key(&key))?;
        }
        writes += origins.len();
    }
    Ok(writes)
}
