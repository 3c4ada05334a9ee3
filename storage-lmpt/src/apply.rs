//! Applies one block: moves the layers on at a boundary, then adds the changes to the delta.

use crate::{
    LmptParams,
    hash::lineage,
    layer, leaf,
    merge::{MergeJob, MergeRegistry},
    record::{LmptMeta, META, SNAPSHOT, STATE, block_rows_key, published_key, rows_ahead},
    snapshot::{RowOrigin, SnapshotChanges, SnapshotView, rows},
    state::{EMPTY, LmptState, SmallLayers},
};
use alloy_primitives::Bytes;
use rayon::prelude::*;
use retrie_state::{ApplyContext, ApplyOutput, BackendDelta, NodeWrite, StateError, flat};
use retrie_storage_mpt::{LeafUpdate, Trie, TrieHash};
use std::sync::Arc;

/// Applies `delta` as the next block on `parent`.
pub(crate) fn apply(
    params: &LmptParams,
    merges: &MergeRegistry,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &LmptState,
    delta: &BackendDelta,
) -> Result<ApplyOutput<LmptState>, StateError> {
    let Some(before) = &parent.meta else { return first(context.number, view, parent, delta) };
    let mut layers = parent.layers(view.as_read())?.clone();
    let mut meta = before.clone();
    let mut merge = parent.merge.clone();
    if let Some(merge) = &merge {
        merge.use_view(view.as_read());
    } else if !layers.intermediate.is_empty() {
        merge = Some(merges.start(context.jobs, view.as_read(), before, &layers.intermediate));
    }
    let blocks = context.number.saturating_sub(meta.delta_from);
    if params.is_boundary(blocks, meta.delta_keys) {
        if let Some(merge) = merge.take() {
            publish(context, view, &mut meta, &merge)?;
        }
        layers =
            SmallLayers { intermediate: Arc::new(layers.delta.into()), ..SmallLayers::default() };
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
    Ok(ApplyOutput { root: meta.root(), cache: parent.child(meta, layers, merge, delta.len()) })
}

/// Publishes a merge: replaces the snapshot, and writes the rows that were not written ahead.
fn publish(
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    meta: &mut LmptMeta,
    merge: &MergeJob,
) -> Result<(), StateError> {
    let merged = merge.wait(context.jobs)?;
    let generation = meta.merging();
    let settled = rows_ahead(view.as_read(), generation)?;
    let (from, all) = (usize::try_from(settled).unwrap_or(usize::MAX), merged.progress.len());
    if from > all {
        let what = format!("{settled} of {all} rows of generation {generation} are written ahead");
        return Err(StateError::corrupt(META.name, what));
    }
    tracing::debug!(block = context.number, generation, settled, rows = all, "publishing a merge");
    if from < all {
        view.replace(META, &block_rows_key(generation), None, Some(Bytes::new()))?;
    }
    for made in merged.progress.rows(from, usize::MAX).iter() {
        view.replace(made.table, &RowOrigin::Block.key(&made.key), None, Some(made.row.clone()))?;
    }
    let number = context.number.to_be_bytes().to_vec();
    view.replace(META, &published_key(generation), None, Some(number.into()))?;
    meta.snapshot = merged.trie.clone();
    meta.lineage = merge.lineage();
    Ok(())
}

/// Applies the very first block, directly to the snapshot.
fn first(
    number: u64,
    view: &mut dyn NodeWrite,
    parent: &LmptState,
    delta: &BackendDelta,
) -> Result<ApplyOutput<LmptState>, StateError> {
    let mut items: Vec<_> = delta
        .changes()
        .par_iter()
        .with_min_len(32)
        .filter_map(|change| {
            let value = leaf::encode(Some(change.next.as_ref()?));
            Some(LeafUpdate::new(layer::path_of(&change.key), Some(value)))
        })
        .collect();
    items.par_sort_unstable_by_key(|item| item.key);
    let mut changes = SnapshotChanges::new(0);
    let source = SnapshotView(view.as_read());
    let empty = Trie::empty(TrieHash::Keccak256);
    let snapshot = empty.update(&rows(&source), &items, &mut changes)?;
    flat::apply(view, delta)?;
    for (key, row) in changes.into_rows() {
        view.replace(SNAPSHOT, &key, None, Some(row))?;
    }
    let meta = first_meta(number, snapshot);
    view.replace(META, STATE, None, Some(meta.encode()))?;
    Ok(ApplyOutput {
        root: meta.root(),
        cache: parent.child(meta, SmallLayers::default(), None, 0),
    })
}

/// The state after the first block, number `number`, which made this snapshot.
pub(crate) fn first_meta(number: u64, snapshot: Trie<u64>) -> LmptMeta {
    LmptMeta {
        generation: 1,
        delta_from: number.saturating_add(1),
        delta_keys: 0,
        delta: EMPTY,
        intermediate: EMPTY,
        lineage: lineage::first(&snapshot.hash()),
        snapshot,
    }
}
