//! Builds a trie from leaves that come in any order, in bounded memory.

use super::{
    BuiltSubtrie, LeafUpdate, Trie,
    source::{BuildSource, UpdateRecorder},
    stamp::RowStamp,
};
use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;
use rayon::prelude::*;
use retrie_state::{BulkSink, BulkSorter, StateError, wire::WireReader};

/// Leaves that are kept in memory; further ones go to a sorter.
const IN_MEMORY: usize = 1 << 16;

/// The leaves of one trie, in any order, for a bulk load. Up to 65,536 of them are in memory, more
/// in a [`BulkSorter`].
pub struct LeafSorter<S> {
    few: Vec<LeafUpdate<S>>,
    many: Option<Box<dyn BulkSorter>>,
}

impl<S> std::fmt::Debug for LeafSorter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeafSorter").field("few", &self.few.len()).finish_non_exhaustive()
    }
}

impl<S> Default for LeafSorter<S> {
    fn default() -> Self {
        Self { few: Vec::new(), many: None }
    }
}

impl<S: RowStamp> LeafSorter<S> {
    /// Adds leaves: items with values, no two with one key.
    ///
    /// # Errors
    /// Errors of the sorter of `sink`.
    pub fn extend(
        &mut self,
        items: impl IntoIterator<Item = LeafUpdate<S>>,
        sink: &dyn BulkSink,
    ) -> Result<(), StateError> {
        self.few.extend(items);
        if self.few.len() > IN_MEMORY {
            let sorter = self.many.get_or_insert_with(|| sink.sorter());
            spill(&mut self.few, &mut **sorter)?;
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_none()
    }

    /// Builds the trie, in 256 parts if there are many leaves; `part` takes the recorder of each,
    /// so that neither leaves nor recorded rows are all in memory at once.
    ///
    /// # Errors
    /// Errors of the sorter and of `part`.
    pub fn build<R: UpdateRecorder<Stamp = S>>(
        self,
        with: TrieHash,
        recorder: &R,
        mut part: impl FnMut(R) -> Result<(), StateError>,
    ) -> Result<Trie<S>, StateError> {
        let Self { mut few, many } = self;
        let source = BuildSource::<S>::default();
        let mut subtries = Vec::new();
        let mut build = |slot: Nibbles, items: &[LeafUpdate<S>]| {
            let mut recorded = recorder.fork();
            subtries.extend(BuiltSubtrie::build(with, &source, &slot, items, &mut recorded));
            part(recorded)
        };
        match many {
            None => {
                few.par_sort_unstable_by_key(|item| item.key);
                build(Nibbles::new(), &few)?;
            }
            Some(mut sorter) => {
                spill(&mut few, &mut *sorter)?;
                // All leaves of one first byte.
                let mut group: Vec<LeafUpdate<S>> = few;
                for row in sorter.sorted()? {
                    let item = decode(&row?)?;
                    if group.first().is_some_and(|first| first.key[0] != item.key[0]) {
                        build(first_byte(&group), &group)?;
                        group.clear();
                    }
                    group.push(item);
                }
                if !group.is_empty() {
                    build(first_byte(&group), &group)?;
                }
            }
        }
        let mut recorded = recorder.fork();
        let trie = Trie::join(with, &source, &subtries, &mut recorded);
        part(recorded)?;
        Ok(trie)
    }
}

/// The slot of all keys with the first byte of these.
fn first_byte<S>(group: &[LeafUpdate<S>]) -> Nibbles {
    group.first().map_or_else(Nibbles::new, |item| Nibbles::unpack(&item.key[..1]))
}

fn spill<S: RowStamp>(
    items: &mut Vec<LeafUpdate<S>>,
    sorter: &mut dyn BulkSorter,
) -> Result<(), StateError> {
    let mut row = Vec::new();
    for LeafUpdate { key, value, stamp } in items.drain(..) {
        row.clear();
        stamp.put(&mut row);
        row.extend_from_slice(&value.unwrap_or_default());
        sorter.put(key.as_slice(), &row)?;
    }
    Ok(())
}

/// Reads a leaf that [`spill`] wrote.
fn decode<S: RowStamp>((key, row): &(Vec<u8>, Vec<u8>)) -> Result<LeafUpdate<S>, StateError> {
    let mut reader = WireReader::new(row);
    let stamp = S::take(&mut reader);
    match (B256::try_from(&key[..]), stamp) {
        (Ok(key), Some(stamp)) => {
            let value = Bytes::copy_from_slice(reader.rest());
            Ok(LeafUpdate { key, value: Some(value), stamp })
        }
        _ => Err(StateError::corrupt("bulk load", "a sorted row is not a leaf")),
    }
}
