//! Bulk load: a whole state as the first block, directly into the tables.

use crate::{
    apply::first_meta,
    layer, leaf,
    record::{META, SNAPSHOT, STATE},
    snapshot::SnapshotChanges,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BackendKey, BulkSink, StateError, StateValue, flat};
use retrie_storage_mpt::{LeafUpdate, TrieHash, trie::LeafSorter};

/// Entries that are hashed together.
const CHUNK: usize = 4096;

/// Loads `entries` as block `number` and returns the root, in the memory of the sorters of `sink`
/// and of a 256th of the keys.
pub(crate) fn load(
    number: u64,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let (mut leaves, mut chunk) = (LeafSorter::default(), Vec::with_capacity(CHUNK));
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
            leaves.extend(hashed(&mut chunk), sink)?;
        }
    }
    leaves.extend(hashed(&mut chunk), sink)?;
    let snapshot = leaves.build(TrieHash::Keccak256, &SnapshotChanges::new(0), |part| {
        part.into_rows().try_for_each(|(key, row)| sink.put_unordered(SNAPSHOT, &key, &row))
    })?;
    let meta = first_meta(number, snapshot);
    sink.put(META, STATE, &meta.encode())?;
    Ok(meta.root())
}

/// The leaves of these entries.
fn hashed(chunk: &mut Vec<(BackendKey, StateValue)>) -> Vec<LeafUpdate<u64>> {
    let leaf = |(key, value): (BackendKey, StateValue)| {
        LeafUpdate::new(layer::path_of(&key), Some(leaf::encode(Some(&value))))
    };
    chunk.par_drain(..).with_min_len(32).map(leaf).collect()
}
