//! How writes reach the disk: one sequential journal record for each commit, an index in memory for
//! reads, and a background fold into the tables.
//!
//! ```text
//!  commit --append--> journal rows (in the chain's own transaction: durable at once)
//!         --insert--> active generation (memory)
//!                        | full: frozen
//!                     frozen generation --sorted slices--> tables     (thread `state-fold`)
//!                        | all slices committed: journal rows deleted, generation dropped
//! ```
//!
//! A reader takes the generations and a snapshot of the store at the same moment. Rows that a slice
//! folds later stay shadowed by their generation. Reopening replays the journal rows that no fold
//! has written: a patch needs exactly the value before it, so [`FoldProgress`] says how far an
//! interrupted fold came.

use super::{
    fold::FoldProgress,
    generation::RowGeneration,
    layer::RowKey,
    overlay::{DiffLayer, PreviousValue},
    record::{RecordValue, RecordWriter, decode_rows, read_record},
    undo::patched,
};
use crate::{KvRead, KvWrite};
use alloy_primitives::Bytes;
use retrie_state::{RowTable, StateError, StoreError};
use std::collections::HashMap;

/// Journal rows: key = sequence number (8 bytes, big-endian) || piece (4 bytes, big-endian).
pub(crate) const JOURNAL: RowTable = RowTable::framework(0xf1, "Journal");

/// Reads of fewer rows are not spread over threads.
const LEAST_READS: usize = 256;
/// Threads that read bases of patches. They wait for the disk, so they may be more than the cores.
const READERS: usize = 16;

/// Writes the record of commit `seq`; returns its bytes. `patches`: whether a value may be a patch
/// of the value before the commit.
pub(crate) fn write(
    txn: &mut dyn KvWrite,
    seq: u64,
    layer: &DiffLayer,
    patches: bool,
) -> Result<usize, StoreError> {
    let mut record = RecordWriter::new(&[]);
    for (table, key, row) in layer.iter() {
        let base = match &row.previous {
            PreviousValue::Known(previous) if patches => previous.as_ref(),
            _ => None,
        };
        record.push(table, key, row.next.as_ref(), base);
    }
    record.write(txn, JOURNAL, seq)
}

/// Reads the journal records after commit `folded` into one generation, without the rows that
/// `progress` says are in the tables.
pub(crate) fn replay(
    kv: &(dyn KvRead + Sync),
    tables: &[RowTable],
    folded: u64,
    tip: u64,
    progress: &FoldProgress,
) -> Result<RowGeneration, StateError> {
    let generation = RowGeneration::new(tables);
    for seq in folded + 1..=tip {
        let record = read_record(kv, JOURNAL, seq)?
            .ok_or_else(|| StateError::corrupt(JOURNAL.name, format!("record {seq} is missing")))?;
        let mut rows = Vec::new();
        decode_rows(JOURNAL, tables, &record, |table, key, value| {
            if !progress.covers(seq, table, key) {
                rows.push((table, RowKey::from_slice(key), value));
            }
        })?;
        let is_stored = |(table, key, value): &&(RowTable, RowKey, RecordValue)| {
            matches!(value, RecordValue::Patch(_)) && generation.get(*table, key, seq).is_none()
        };
        let stored = rows.iter().filter(is_stored).map(|(table, key, _)| (*table, &key[..]));
        let stored = read_all(kv, stored.collect())?;
        let mut layer = DiffLayer::default();
        for (table, key, value) in &rows {
            let next = match value {
                RecordValue::Absent => None,
                RecordValue::Whole(value) => Some(value.clone()),
                RecordValue::Patch(patch) => {
                    let base = generation.get(*table, key, seq);
                    let base = base.or_else(|| stored.get(&(*table, &key[..])).cloned()).flatten();
                    Some(patched(*table, base.as_ref(), patch)?)
                }
            };
            layer.overwrite(*table, key.clone(), PreviousValue::Unknown, next);
        }
        drop(stored);
        generation.insert(seq, &layer, seq);
    }
    Ok(generation)
}

/// A row's table and key.
type RowPlace<'a> = (RowTable, &'a [u8]);

/// Reads rows, on several threads if they are many: after a restart none may be in memory.
fn read_all<'a>(
    kv: &(dyn KvRead + Sync),
    rows: Vec<RowPlace<'a>>,
) -> Result<HashMap<RowPlace<'a>, Option<Bytes>>, StoreError> {
    let read = |part: &[RowPlace<'a>]| {
        let row = |place: &RowPlace<'a>| Ok((*place, kv.get(place.0, place.1)?));
        part.iter().map(row).collect::<Result<Vec<_>, StoreError>>()
    };
    if rows.len() < LEAST_READS {
        return Ok(read(&rows)?.into_iter().collect());
    }
    kv.expect_readers(READERS);
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = rows
            .chunks(rows.len().div_ceil(READERS))
            .map(|part| (part, std::thread::Builder::new().spawn_scoped(scope, || read(part))))
            .collect();
        let joined =
            |(part, thread): (_, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| {
                // Without a thread, this one reads.
                thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(|| read(part))
            };
        threads.into_iter().map(joined).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests;
