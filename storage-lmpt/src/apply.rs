//! A block: at a boundary the layers move on, then its changes go into the delta.

use crate::{
    Params,
    hash::lineage,
    layer, leaf,
    merge::{Merge, Merges},
    row::{META, Meta, SNAPSHOT, STATE, mixed_key, published_key, settled},
    snapshot::{Changes, Origin, Snapshot, rows},
    state::{EMPTY, Layers, State},
};
use alloy_primitives::Bytes;
use rayon::prelude::*;
use retrie_state::{Applied, ApplyContext, NodeWrite, StateDelta, StateError, flat};
use retrie_storage_mpt::{Item, Trie, TrieHash};
use std::sync::Arc;

/// Applies `delta` as the next block on `parent`.
pub(crate) fn apply(
    params: &Params,
    merges: &Merges,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &State,
    delta: &StateDelta,
) -> Result<Applied<State>, StateError> {
    let Some(before) = &parent.meta else { return first(context.number, view, parent, delta) };
    let mut layers = parent.layers(view.as_read())?.clone();
    let mut meta = before.clone();
    let mut merge = parent.merge.clone();
    if let Some(merge) = &merge {
        merge.look_at(view.as_read());
    } else if !layers.intermediate.is_empty() {
        merge = Some(merges.start(context.jobs, view.as_read(), before, &layers.intermediate));
    }
    let blocks = context.number.saturating_sub(meta.delta_from);
    if params.is_boundary(blocks, meta.delta_keys) {
        if let Some(merge) = merge.take() {
            publish(context, view, &mut meta, &merge)?;
        }
        layers = Layers { intermediate: Arc::new(layers.delta.into()), ..Layers::default() };
        meta.intermediate = meta.delta;
        meta.generation += 1;
        (meta.delta_from, meta.delta_keys) = (context.number, 0);
    }
    flat::apply(view, delta)?;
    let (trie, new) = layer::apply(view, (meta.generation, context.number), &layers.delta, delta)?;
    meta.delta = trie.hash();
    meta.delta_keys += new;
    layers.delta = trie;
    view.replace(META, STATE, Some(before.encode()), Some(meta.encode()))?;
    Ok(Applied { root: meta.root(), cache: parent.child(meta, layers, merge, delta.len()) })
}

/// The merged snapshot takes the place of the one before, with the rows that are not settled yet.
fn publish(
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    meta: &mut Meta,
    merge: &Merge,
) -> Result<(), StateError> {
    let merged = merge.wait(context.jobs)?;
    let generation = meta.merging();
    let settled = settled(view.as_read(), generation)?;
    let (from, all) = (usize::try_from(settled).unwrap_or(usize::MAX), merged.progress.len());
    if from > all {
        let what = format!("{settled} rows of generation {generation} are settled, of {all}");
        return Err(StateError::corrupt(META.name, what));
    }
    tracing::debug!(block = context.number, generation, settled, rows = all, "publishing a merge");
    if from < all {
        view.replace(META, &mixed_key(generation), None, Some(Bytes::new()))?;
    }
    for made in merged.progress.rows(from, usize::MAX).iter() {
        view.replace(made.table, &Origin::Block.key(&made.key), None, Some(made.row.clone()))?;
    }
    let number = context.number.to_be_bytes().to_vec();
    view.replace(META, &published_key(generation), None, Some(number.into()))?;
    meta.snapshot = merged.trie.clone();
    meta.lineage = merge.lineage();
    Ok(())
}

/// The first block of all goes straight into the snapshot.
fn first(
    number: u64,
    view: &mut dyn NodeWrite,
    parent: &State,
    delta: &StateDelta,
) -> Result<Applied<State>, StateError> {
    let mut items: Vec<_> = delta
        .changes()
        .par_iter()
        .with_min_len(32)
        .filter_map(|change| {
            let value = leaf::encode(Some(change.next.as_ref()?));
            Some(Item::new(layer::path_of(&change.key), Some(value)))
        })
        .collect();
    items.par_sort_unstable_by_key(|item| item.key);
    let mut changes = Changes::new(0);
    let source = Snapshot(view.as_read());
    let empty = Trie::empty(TrieHash::Keccak256);
    let snapshot = empty.update(&rows(&source), &items, &mut changes)?;
    flat::apply(view, delta)?;
    for (key, row) in changes.into_rows() {
        view.replace(SNAPSHOT, &key, None, Some(row))?;
    }
    let meta = first_meta(number, snapshot);
    view.replace(META, STATE, None, Some(meta.encode()))?;
    Ok(Applied { root: meta.root(), cache: parent.child(meta, Layers::default(), None, 0) })
}

/// The state after block `number`, the first one, which left this snapshot.
pub(crate) fn first_meta(number: u64, snapshot: Trie<u64>) -> Meta {
    Meta {
        generation: 1,
        delta_from: number.saturating_add(1),
        delta_keys: 0,
        delta: EMPTY,
        intermediate: EMPTY,
        lineage: lineage::first(&snapshot.hash()),
        snapshot,
    }
}
