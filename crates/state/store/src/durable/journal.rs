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
//! folds later stay shadowed by their generation. Reopening replays the journal rows that no
//! finished fold covers; an interrupted fold is simply repeated.

use super::{
    overlay::{DiffLayer, RowKey},
    scan::ScanBatch,
};
use crate::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use alloy_primitives::Bytes;
use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};
use parking_lot::{Mutex, RwLock};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateError, StoreError};
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
    time::{Duration, Instant},
};

/// Journal rows: key = sequence number (8 bytes, big-endian) || piece (4 bytes, big-endian).
pub(crate) const JOURNAL: RowTable = RowTable::framework(0xf1, "Journal");

/// Largest piece of a record in bytes: with MDBX's node header a piece still fits into one page,
/// while a value of 4,096 bytes takes two.
pub(crate) const PIECE: usize = 4030;

/// Approximate memory of a generation entry beside its key and value, in bytes.
const ENTRY_OVERHEAD: usize = 96;

// ---------------------------------------------------------------------------------------------
// Records: sequences of row changes, checksummed and cut into pieces
// ---------------------------------------------------------------------------------------------

/// Encodes row changes: `table (1) || key length (2, LE) || key || value length + 1, or 0 for a
/// deletion (4, LE) || value`.
#[derive(Debug)]
pub(crate) struct RecordWriter(Vec<u8>);

impl RecordWriter {
    /// A record that starts with `header`.
    pub(crate) fn new(header: &[u8]) -> Self {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(header);
        Self(bytes)
    }

    pub(crate) fn push(&mut self, table: RowTable, key: &[u8], value: Option<&[u8]>) {
        self.0.push(table.id);
        self.0.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.0.extend_from_slice(key);
        match value {
            None => self.0.extend_from_slice(&0u32.to_le_bytes()),
            Some(value) => {
                self.0.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
                self.0.extend_from_slice(value);
            }
        }
    }

    /// Writes the record under `id`, cut into pieces; returns its bytes. The first eight bytes are
    /// the length of the rest (4, LE) and its CRC-32 (4, LE).
    pub(crate) fn write(
        mut self,
        txn: &mut dyn KvWrite,
        table: RowTable,
        id: u64,
    ) -> Result<usize, StoreError> {
        let len = u32::try_from(self.0.len() - 8).map_err(|_| {
            StoreError::new(
                format!("writing record {id} of table {}", table.name),
                "it exceeds 4 GiB; commit fewer blocks at once",
            )
        })?;
        let crc = crc32fast::hash(&self.0[8..]);
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0[4..8].copy_from_slice(&crc.to_le_bytes());
        for (piece, bytes) in self.0.chunks(PIECE).enumerate() {
            txn.append(table, &record_key(id, piece as u32), bytes)?;
        }
        Ok(self.0.len())
    }
}

pub(crate) fn record_key(id: u64, piece: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// The record id in the key of a row.
pub(crate) fn record_id(table: RowTable, key: &[u8]) -> Result<u64, StateError> {
    match key.first_chunk::<8>() {
        Some(id) if key.len() == 12 => Ok(u64::from_be_bytes(*id)),
        _ => Err(StateError::corrupt(table.name, "a row key is not 12 bytes long")),
    }
}

/// Reads and checks the whole record `id`; `None` if there is none.
pub(crate) fn read_record(
    kv: &dyn KvRead,
    table: RowTable,
    id: u64,
) -> Result<Option<Vec<u8>>, StateError> {
    let (start, end) = (record_key(id, 0), record_key(id, u32::MAX));
    let range = KeyRange::new(&start, &end);
    let bad = |what: &str| StateError::corrupt(table.name, format!("record {id}: {what}"));
    let pieces = kv.scan(table, range, ScanDirection::Forward, usize::MAX)?;
    if pieces.is_empty() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    for (n, (key, piece)) in pieces.iter().enumerate() {
        if key[..] != record_key(id, n as u32) {
            return Err(bad("a piece is missing"));
        }
        bytes.extend_from_slice(piece);
    }
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| bad("too short"))?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(0) as usize != rest.len() {
        return Err(bad("a piece is missing"));
    }
    if word(4) != crc32fast::hash(rest) {
        return Err(bad("checksum mismatch"));
    }
    bytes.drain(..8);
    Ok(Some(bytes))
}

/// The row changes of a record after its header.
pub(crate) fn decode_rows(
    source: RowTable,
    tables: &[RowTable],
    mut bytes: &[u8],
    mut row: impl FnMut(RowTable, &[u8], Option<Bytes>),
) -> Result<(), StateError> {
    let bad = |what: &str| StateError::corrupt(source.name, what.to_owned());
    while let Some((&id, rest)) = bytes.split_first() {
        let table = tables
            .iter()
            .find(|table| table.id == id)
            .ok_or_else(|| bad(&format!("a record names the unknown table {id:#x}")))?;
        let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(|| bad("record cut short"))?;
        let len = u16::from_le_bytes(*len) as usize;
        let (key, rest) = rest.split_at_checked(len).ok_or_else(|| bad("record cut short"))?;
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| bad("record cut short"))?;
        let len = u32::from_le_bytes(*len) as usize;
        let (value, rest) = match len.checked_sub(1) {
            None => (None, rest),
            Some(len) => {
                let (value, rest) =
                    rest.split_at_checked(len).ok_or_else(|| bad("record cut short"))?;
                (Some(Bytes::copy_from_slice(value)), rest)
            }
        };
        row(*table, key, value);
        bytes = rest;
    }
    Ok(())
}

/// Deletes the records `from..to`; returns the number of deleted rows.
pub(crate) fn delete_records(
    txn: &mut dyn KvWrite,
    table: RowTable,
    from: u64,
    to: u64,
) -> Result<usize, StoreError> {
    let (start, end) = (record_key(from, 0), record_key(to, 0));
    let mut deleted = 0;
    loop {
        let rows = txn.scan(table, KeyRange::new(&start, &end), ScanDirection::Forward, 512)?;
        for (key, _) in &rows {
            txn.delete(table, key)?;
        }
        deleted += rows.len();
        if rows.len() < 512 {
            return Ok(deleted);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Generations
// ---------------------------------------------------------------------------------------------

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

    fn table(&self, table: RowTable) -> Option<&RwLock<GenerationTable>> {
        self.tables.iter().find(|(t, _)| t.id == table.id).map(|(_, slot)| slot)
    }

    /// The newest version of a row at or before commit `seq`.
    fn get(&self, table: RowTable, key: &[u8], seq: u64) -> Option<Option<Bytes>> {
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
            layer.for_table(*table, |key, next| {
                added += next.as_ref().map_or(0, |value| value.len()) as isize;
                match slot.entry(key) {
                    (Entry::Vacant(entry), unsorted) => {
                        entry.insert((key.clone(), smallvec![(seq, next.clone())]));
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
                        versions.push((seq, next.clone()));
                    }
                }
            });
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
    fn final_rows(&self, table: RowTable) -> Vec<(RowKey, Option<Bytes>)> {
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

    pub(crate) fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        for generation in self.generations.iter().rev() {
            if let Some(value) = generation.get(table, key, self.seq) {
                return Ok(value);
            }
        }
        Ok(self.snapshot.get(table, key)?)
    }
}

// ---------------------------------------------------------------------------------------------
// Replay and fold
// ---------------------------------------------------------------------------------------------

/// Reads the journal records after commit `folded` into one generation.
pub(crate) fn replay(
    kv: &dyn KvRead,
    tables: &[RowTable],
    folded: u64,
    tip: u64,
) -> Result<RowGeneration, StateError> {
    let generation = RowGeneration::new(tables);
    for seq in folded + 1..=tip {
        let record = read_record(kv, JOURNAL, seq)?
            .ok_or_else(|| StateError::corrupt(JOURNAL.name, format!("record {seq} is missing")))?;
        let mut layer = DiffLayer::default();
        decode_rows(JOURNAL, tables, &record, |table, key, value| {
            layer.overwrite(table, RowKey::from_slice(key), value);
        })?;
        generation.insert(seq, &layer, seq);
    }
    Ok(generation)
}

/// How long one slice of a fold may hold the write transaction.
const SLICE: Duration = Duration::from_millis(8);
/// The same if a commit waits for the transaction.
const SHORT_SLICE: Duration = Duration::from_millis(1);

/// A write transaction that is committed and reopened whenever it has been open long enough.
struct SlicedTxn<'a, P> {
    kv: &'a dyn KvStore,
    txn: Box<dyn KvTxn + 'a>,
    opened: Instant,
    /// Called between two slices.
    pause: P,
}

impl<'a, P: Fn()> SlicedTxn<'a, P> {
    fn begin(kv: &'a dyn KvStore, pause: P) -> Result<Self, StoreError> {
        Ok(Self { kv, txn: kv.begin_write()?, opened: Instant::now(), pause })
    }

    fn next_if_due(mut self) -> Result<Self, StoreError> {
        let limit = if self.txn.is_awaited() { SHORT_SLICE } else { SLICE };
        if self.opened.elapsed() > limit {
            self.txn.commit()?;
            (self.pause)();
            self.txn = self.kv.begin_write()?;
            self.opened = Instant::now();
        }
        Ok(self)
    }
}

/// Writes a frozen generation into the tables in slices. Then it calls `retire`, which deletes one
/// of the generation's journal records and returns whether more are left, until none is. Returns
/// the number of rows.
pub(crate) fn fold(
    kv: &dyn KvStore,
    generation: &RowGeneration,
    pause: impl Fn(),
    mut retire: impl FnMut(&mut dyn KvWrite) -> Result<bool, StoreError>,
) -> Result<usize, StoreError> {
    let mut folded = 0;
    for (table, _) in &generation.tables {
        // Sorting takes long, so no transaction is open: a commit must not wait for it.
        let rows = generation.final_rows(*table);
        if rows.is_empty() {
            continue;
        }
        let mut slices = SlicedTxn::begin(kv, &pause)?;
        for (n, (key, value)) in rows.into_iter().enumerate() {
            match value {
                Some(value) => slices.txn.put(*table, &key, &value)?,
                None => drop(slices.txn.delete(*table, &key)?),
            }
            folded += 1;
            if n % 16 == 15 {
                slices = slices.next_if_due()?;
            }
        }
        slices.txn.commit()?;
    }
    let mut slices = SlicedTxn::begin(kv, &pause)?;
    while retire(&mut *slices.txn)? {
        slices = slices.next_if_due()?;
    }
    slices.txn.commit()?;
    Ok(folded)
}

#[cfg(test)]
mod tests;
