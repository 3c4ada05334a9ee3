//! Bulk load: a whole state as the first block, directly into the tables.

use crate::{
    apply::first_meta,
    layer, leaf,
    record::{META, SNAPSHOT, STATE},
    snapshot::SnapshotChanges,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BulkSink, StateError, StateKey, StateValue, flat};
use retrie_storage_mpt::{LeafUpdate, Trie, TrieHash, trie::BuildSource};

/// Entries that are hashed together.
const CHUNK: usize = 4096;

/// Loads `entries` as block `number` and returns the root. Holds all of them in memory, with about
/// 150 bytes for each key beside the value.
pub(crate) fn load(
    number: u64,
    entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let (mut items, mut chunk) = (Vec::new(), Vec::with_capacity(CHUNK));
    let mut last = None;
    for entry in entries {
        let (key, value) = entry?;
        if last.is_some_and(|last| last >= key) {
            return Err(StateError::corrupt("bulk load", format!("{key} is out of order")));
        }
        last = Some(key);
        flat::put(sink, &key, &value)?;
        chunk.push((key, value));
        if chunk.len() == CHUNK {
            hash_into(&mut items, &mut chunk);
        }
    }
    hash_into(&mut items, &mut chunk);
    items.par_sort_unstable_by_key(|item: &LeafUpdate<u64>| item.key);
    let put = |part: SnapshotChanges| {
        let mut rows: Vec<_> = part.into_rows().collect();
        rows.par_sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows.iter().try_for_each(|(key, row)| sink.put_unordered(SNAPSHOT, key, row))
    };
    let snapshot = Trie::build(
        TrieHash::Keccak256,
        &BuildSource::default(),
        &items,
        &SnapshotChanges::new(0),
        put,
    )?;
    let meta = first_meta(number, snapshot);
    sink.put(META, STATE, &meta.encode())?;
    Ok(meta.root())
}

fn hash_into(items: &mut Vec<LeafUpdate<u64>>, chunk: &mut Vec<(StateKey, StateValue)>) {
    items.par_extend(chunk.par_drain(..).with_min_len(32).map(|(key, value)| {
        LeafUpdate::new(layer::path_of(&key), Some(leaf::encode(Some(&value))))
    }));
}
