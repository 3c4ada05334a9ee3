//! Generations: rows that are in the journal but not yet in the tables, in memory, and the reads of
//! a durable state through them.

use super::{layer::RowKey, overlay::DiffLayer, scan::ScanBatch};
use crate::KvSnapshot;
use alloy_primitives::Bytes;
use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};
use parking_lot::{Mutex, RwLock};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateError};
use smallvec::{SmallVec, smallvec};
use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    hash::BuildHasher,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Approximate memory of a generation entry beside its key and value, in bytes.
const ENTRY_OVERHEAD: usize = 96;

/// Versions of one row, oldest first: (sequence number of the commit, value).
type RowVersions = SmallVec<[(u64, Option<Bytes>); 1]>;

/// A hash table moves all its rows when it grows, which would stall a commit. So the rows of a
/// generation are spread over this many hash tables.
const SHARDS: usize = 64;

#[derive(Debug)]
struct GenerationTable {
    hasher: DefaultHashBuilder,
    shards: [GenerationShard; SHARDS],
    sorted: BTreeSet<RowKey>,
}

#[derive(Debug, Default)]
struct GenerationShard {
    rows: HashTable<(RowKey, RowVersions)>,
    /// Keys that are not in `sorted` yet. Sorting is lazy, as most tables are never read by range.
    unsorted: Vec<RowKey>,
}

impl Default for GenerationTable {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            shards: array::from_fn(|_| GenerationShard::default()),
            sorted: BTreeSet::new(),
        }
    }
}

impl GenerationTable {
    /// Hash of a key, and the index of its shard. The shard's hash table uses other bits of the
    /// hash.
    fn place(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, (hash >> 32) as usize % SHARDS)
    }

    fn versions(&self, key: &[u8]) -> Option<&RowVersions> {
        let (hash, shard) = self.place(key);
        let row = self.shards[shard].rows.find(hash, |(at, _)| at[..] == *key);
        row.map(|(_, versions)| versions)
    }

    fn entry(&mut self, key: &RowKey) -> (Entry<'_, (RowKey, RowVersions)>, &mut Vec<RowKey>) {
        let (hash, shard) = self.place(key);
        let Self { hasher, shards, .. } = self;
        let GenerationShard { rows, unsorted } = &mut shards[shard];
        (rows.entry(hash, |(at, _)| at == key, |(at, _)| hasher.hash_one(&at[..])), unsorted)
    }

    fn sort(&mut self) {
        for shard in &mut self.shards {
            self.sorted.extend(shard.unsorted.drain(..));
        }
    }
}

/// Rows of consecutive commits that are in the journal but not yet in the tables.
#[derive(Debug)]
pub(crate) struct RowGeneration {
    tables: Vec<(RowTable, RwLock<GenerationTable>)>,
    bytes: AtomicUsize,
    commits: AtomicUsize,
    last_seq: AtomicU64,
}

impl RowGeneration {
    pub(crate) fn new(tables: &[RowTable]) -> Self {
        Self {
            tables: tables.iter().map(|table| (*table, RwLock::default())).collect(),
            bytes: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
            last_seq: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn commits(&self) -> usize {
        self.commits.load(Relaxed)
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq.load(Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commits() == 0
    }

    /// The tables, in the order in which a fold writes them.
    pub(crate) fn tables(&self) -> impl Iterator<Item = RowTable> {
        self.tables.iter().map(|(table, _)| *table)
    }

    fn table(&self, table: RowTable) -> Option<&RwLock<GenerationTable>> {
        self.tables.iter().find(|(t, _)| t.id == table.id).map(|(_, slot)| slot)
    }

    /// The newest version of a row at or before commit `seq`.
    pub(crate) fn get(&self, table: RowTable, key: &[u8], seq: u64) -> Option<Option<Bytes>> {
        let slot = self.table(table)?.read();
        let versions = slot.versions(key)?;
        versions.iter().rev().find(|(at, _)| *at <= seq).map(|(_, value)| value.clone())
    }

    /// Adds the rows of commit `seq`. Versions that no reader at `oldest_reader` or later can see
    /// are dropped.
    pub(crate) fn insert(&self, seq: u64, layer: &DiffLayer, oldest_reader: u64) {
        let mut added = 0isize;
        for (table, slot) in &self.tables {
            let mut slot = slot.write();
            for (key, next) in layer.rows(*table) {
                added += next.map_or(0, |value| value.len()) as isize;
                match slot.entry(key) {
                    (Entry::Vacant(entry), unsorted) => {
                        entry.insert((key.clone(), smallvec![(seq, next.cloned())]));
                        unsorted.push(key.clone());
                        added += (key.len() + ENTRY_OVERHEAD) as isize;
                    }
                    (Entry::Occupied(mut entry), _) => {
                        let (_, versions) = entry.get_mut();
                        // The last version at or before the oldest reader must stay.
                        let keep =
                            versions.iter().rposition(|(at, _)| *at <= oldest_reader).unwrap_or(0);
                        for (_, value) in versions.drain(..keep) {
                            added -= value.map_or(0, |value| value.len()) as isize;
                        }
                        versions.push((seq, next.cloned()));
                    }
                }
            }
        }
        if added >= 0 {
            self.bytes.fetch_add(added as usize, Relaxed);
        } else {
            self.bytes.fetch_sub(added.unsigned_abs().min(self.bytes()), Relaxed);
        }
        self.commits.fetch_add(1, Relaxed);
        self.last_seq.store(seq, Relaxed);
    }

    /// Up to `limit` keys of a range that is not empty, in `direction`, as of commit `seq`.
    pub(crate) fn batch(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        seq: u64,
        limit: usize,
    ) -> ScanBatch {
        let Some(slot) = self.table(table) else { return ScanBatch::default() };
        if slot.read().shards.iter().any(|shard| !shard.unsorted.is_empty()) {
            slot.write().sort();
        }
        let slot = slot.read();
        // Keys added since the sort belong to later commits, which no reader of this range sees.
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = slot.sorted.range::<[u8], _>((Bound::Included(range.start), end));
        let keys: &mut dyn Iterator<Item = &RowKey> = match direction {
            ScanDirection::Forward => &mut { keys },
            ScanDirection::Backward => &mut keys.rev(),
        };
        let (mut rows, mut last, mut seen) = (Vec::new(), None, 0);
        for key in keys.take(limit) {
            seen += 1;
            last = Some(key);
            let versions = slot.versions(key);
            let at_seq = versions.and_then(|v| v.iter().rev().find(|(at, _)| *at <= seq));
            if let Some((_, value)) = at_seq {
                rows.push((Bytes::copy_from_slice(key), value.clone()));
            }
        }
        let more = if seen == limit { last.map(|key| Bytes::copy_from_slice(key)) } else { None };
        (rows, more)
    }

    /// The final value of every row of one table, in key order.
    pub(crate) fn final_rows(&self, table: RowTable) -> Vec<(RowKey, Option<Bytes>)> {
        let Some(slot) = self.table(table) else { return Vec::new() };
        let slot = slot.read();
        let mut rows: Vec<_> = slot
            .shards
            .iter()
            .flat_map(|shard| &shard.rows)
            .filter_map(|(key, versions)| Some((key.clone(), versions.last()?.1.clone())))
            .collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows
    }
}

// ---------------------------------------------------------------------------------------------
// Readers
// ---------------------------------------------------------------------------------------------

/// The commits that live readers see, so that the versions of these commits stay.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable(Mutex<BTreeMap<u64, usize>>);

impl LeaseTable {
    fn add(self: &Arc<Self>, seq: u64) -> ReaderLease {
        *self.0.lock().entry(seq).or_default() += 1;
        ReaderLease { leases: self.clone(), seq }
    }

    /// The oldest commit that a reader sees, or `tip`.
    pub(crate) fn oldest(&self, tip: u64) -> u64 {
        self.0.lock().first_key_value().map_or(tip, |(seq, _)| (*seq).min(tip))
    }
}

#[derive(Debug)]
struct ReaderLease {
    leases: Arc<LeaseTable>,
    seq: u64,
}

impl Drop for ReaderLease {
    fn drop(&mut self) {
        let mut leases = self.leases.0.lock();
        if let Some(count) = leases.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.seq);
            }
        }
    }
}

/// The durable state right after one commit.
pub(crate) struct DurableRows {
    /// Oldest first.
    pub(crate) generations: Vec<Arc<RowGeneration>>,
    pub(crate) seq: u64,
    pub(crate) snapshot: KvSnapshot,
    _lease: ReaderLease,
}

impl DurableRows {
    pub(crate) fn new(
        generations: Vec<Arc<RowGeneration>>,
        seq: u64,
        snapshot: KvSnapshot,
        leases: &Arc<LeaseTable>,
    ) -> Self {
        Self { generations, seq, snapshot, _lease: leases.add(seq) }
    }

    /// What the generations say of a row; `None` if only the tables know it.
    pub(crate) fn unfolded(&self, table: RowTable, key: &[u8]) -> Option<Option<Bytes>> {
        self.generations.iter().rev().find_map(|generation| generation.get(table, key, self.seq))
    }

    /// A row of the tables.
    pub(crate) fn folded(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.snapshot.get(table, key)?)
    }

    #[cfg(test)]
    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.unfolded(table, key).map_or_else(|| self.folded(table, key), Ok)
    }
}

#[cfg(test)]
mod tests;
