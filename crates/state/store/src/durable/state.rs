//! [`DurableState`]: what the store, its state providers and its fold thread share of the durable
//! state in memory.

use super::{
    block_caches::BlockCaches,
    counters::{CounterSnapshot, NodeCounters},
    generation::{DurableRows, LeaseTable, RowGeneration},
    journal::JOURNAL,
    kv::{KvRead, KvStore, KvWrite},
    overlay::{FILES, LayerStack, RowView},
    proposal::{Proposal, ProposedBlock},
    record::record_id,
    undo::{self, UndoLayerCache},
};
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_state::{
    AnyBackend, AnyCache, BlockRef, CompactedCache, KeyForm, KeyRange, NodeRead, RowTable,
    ScanDirection, StateError, StoreError, TableRow, open_with_retry,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Rows of the framework itself: `tip` and `folded`.
pub(crate) const META: RowTable = RowTable::framework(0xf3, "Meta");
/// Row of [`META`]: [`encode_tip`].
pub(crate) const TIP: &[u8] = b"tip";
/// Row of [`META`]: sequence number (8 bytes, big-endian) of the last commit whose rows are all in
/// the tables.
pub(crate) const FOLDED: &[u8] = b"folded";
/// Row of [`META`]: [`FoldProgress`](super::fold::FoldProgress); absent while no fold is unfinished.
pub(crate) const FOLDING: &[u8] = b"folding";

/// Commits wait while more generations than these are in memory: the active one, the one being
/// folded, and one more.
pub(crate) const MAX_GENERATIONS: usize = 3;

/// Generations are not folded below this size. The fewer rows of a page a fold writes, the more
/// pages it writes for each row.
const LEAST_FOLD_BYTES: usize = 256 << 20;

/// Full caches of durable blocks of a backend without
/// [`CacheCompaction`](retrie_state::CacheCompaction).
const RETAINED_CACHES: usize = 8;

/// The durable tip: the last committed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableTip {
    /// Its block.
    pub block: BlockRef,
    /// Its root.
    pub root: B256,
}

/// The durable state, and its part in memory.
pub(crate) struct DurableState {
    pub(crate) backend: Arc<dyn AnyBackend>,
    pub(crate) kv: Arc<dyn KvStore>,
    pub(crate) tables: Vec<RowTable>,
    pub(crate) counters: Arc<NodeCounters>,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) poisoned: AtomicBool,
    pub(crate) undo: UndoLayerCache,
    pub(crate) memory: Mutex<MemoryState>,
    /// Signalled when the fold thread has work, and when it has finished some.
    pub(crate) folding: Condvar,
    /// [`StoreOptions::fold_bytes`](crate::StoreOptions::fold_bytes).
    pub(crate) fold_bytes: usize,
    /// The current size at which the active generation is frozen.
    pub(crate) fold_at: AtomicUsize,
    /// The directory of the backend's files.
    pub(crate) dir: Option<PathBuf>,
    /// The form of the backend's keys.
    pub(crate) keys: KeyForm,
}

pub(crate) struct MemoryState {
    pub(crate) tip: Option<TipState>,
    /// Sequence number of the last commit; never reused, a revert counts as one.
    pub(crate) seq: u64,
    /// Oldest first; the last one is active, those before it are frozen.
    pub(crate) generations: Vec<Arc<RowGeneration>>,
    /// Durable blocks that can be read and extended: number to (hash, root).
    pub(crate) blocks: BTreeMap<u64, (B256, B256)>,
    /// Files that only retained blocks still name, by the block that retired them.
    pub(crate) retired: BTreeMap<u64, Vec<String>>,
    /// Files that no block names any more, to be deleted once the commits so far are on disk. A
    /// commit that names one of them again removes it from the set.
    pub(crate) doomed: BTreeSet<String>,
    /// Doomed files that the fold thread is deleting now.
    pub(crate) deleting: BTreeSet<String>,
    /// Whether a thread waits for the deletion.
    pub(crate) clear_now: bool,
    /// Sealed proposals by block hash, as long as a caller holds them.
    pub(crate) proposals: HashMap<B256, Weak<ProposedBlock>>,
    /// Caches of durable blocks below the tip.
    pub(crate) caches: BlockCaches,
    /// Why the last fold failed. The fold thread pauses until a caller has taken the error.
    pub(crate) fold_error: Option<String>,
    pub(crate) closing: bool,
}

#[derive(Clone)]
pub(crate) struct TipState {
    pub(crate) tip: DurableTip,
    pub(crate) cache: AnyCache,
}

impl MemoryState {
    /// Keeps a file that a block names again from being deleted.
    pub(crate) fn spare(&mut self, file: &str) -> bool {
        self.doomed.remove(file) | self.deleting.remove(file)
    }

    /// Files that states below the durable tip name. The tip may name some of them again.
    pub(crate) fn retired_files(&self) -> BTreeSet<String> {
        self.retired.values().flatten().cloned().collect()
    }

    /// Memory of rows that are committed but not folded, in bytes.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.generations.iter().map(|generation| generation.bytes() as u64).sum()
    }

    /// Keeps the full cache of a durable block below the tip. The oldest full cache is queued for
    /// compaction on the fold thread.
    pub(crate) fn remember(&mut self, block: BlockRef, cache: AnyCache, backend: &dyn AnyBackend) {
        let compaction = backend.extensions().cache_compaction;
        let retained = compaction.map_or(RETAINED_CACHES, |by| by.retained_caches());
        let oldest = self.caches.remember(block, cache, retained);
        if let Some((block, cache)) = oldest
            && let Some(by) = compaction
            && by.compacted_cache_bytes() > 0
            && let Some(cache) = self.caches.queue_compaction(block, cache)
        {
            self.keep_compacted(block, by.compact_cache(&cache), by.compacted_cache_bytes());
        }
    }

    pub(crate) fn keep_compacted(
        &mut self,
        block: BlockRef,
        thinned: Option<CompactedCache>,
        bytes: u64,
    ) {
        // Some blocks of a large commit are not retained.
        if self.is_durable(block)
            && let Some(thinned) = thinned
        {
            self.caches.keep_compacted(block, thinned, bytes);
        }
    }

    /// The cache of a durable block, if it is in memory.
    pub(crate) fn cache_of(&self, block: BlockRef) -> Option<AnyCache> {
        if let Some(state) = &self.tip
            && state.tip.block == block
        {
            return Some(state.cache.clone());
        }
        self.caches.get(block).filter(|_| self.is_durable(block))
    }

    pub(crate) fn tip_block(&self) -> Option<BlockRef> {
        self.tip.as_ref().map(|state| state.tip.block)
    }

    pub(crate) fn is_durable(&self, block: BlockRef) -> bool {
        self.blocks.get(&block.number).is_some_and(|(hash, _)| *hash == block.hash)
    }

    /// The durable block of this hash and its root.
    pub(crate) fn durable(&self, hash: B256) -> Option<(BlockRef, B256)> {
        let found = self.blocks.iter().find(|(_, (at, _))| *at == hash);
        found.map(|(number, (_, root))| (BlockRef::new(*number, hash), *root))
    }

    pub(crate) fn live_proposal(&self, hash: B256) -> Option<Proposal> {
        self.proposals.get(&hash).and_then(Weak::upgrade).map(Proposal)
    }
}

impl DurableState {
    /// Whether records may have [patches](super::patch): whether the rows that a block writes, and
    /// those below, are the same each time that the block is executed. They need not be if the
    /// backend's root depends on more than the state (a sweep of old rows may stand elsewhere), or
    /// if its maintenance changes rows without undo.
    pub(crate) fn patches_rows(&self) -> bool {
        let is_determined = self.backend.profile().state_determined_root;
        is_determined && self.backend.extensions().maintenance.is_none()
    }

    /// The counts since opening; blocks have waited `job_wait` for jobs.
    pub(crate) fn counts(&self, job_wait: Duration) -> CounterSnapshot {
        let caches = self.backend.cache_lookups();
        CounterSnapshot { caches, ..self.counters.counts(&self.tables, job_wait) }
    }

    /// The error for an operation that the backend does not support.
    pub(crate) fn unsupported(&self, what: &'static str) -> StateError {
        StateError::Unsupported { backend: self.backend.identity().name, what }
    }

    /// The durable state now. The caller holds the lock on `memory`, which makes the view complete:
    /// a generation is dropped only after its fold has committed, so a snapshot taken under the
    /// lock has all rows that the generations lack.
    pub(crate) fn durable_view(&self, memory: &MemoryState) -> Result<RowView, StateError> {
        let snapshot = self.kv.snapshot()?;
        let generations = memory.generations.iter().filter(|g| !g.is_empty()).cloned().collect();
        let durable = DurableRows::new(generations, memory.seq, snapshot, &self.leases);
        Ok(RowView {
            stack: LayerStack::default(),
            reverse: Vec::new(),
            durable: Arc::new(durable),
            counters: self.counters.clone(),
            is_timed: true,
        })
    }

    /// Bytes of the files that `view`, the durable tip, names, and of the files that only retained
    /// blocks below it still name.
    pub(crate) fn file_bytes(
        &self,
        dir: Option<&Path>,
        view: &RowView,
    ) -> Result<(u64, u64), StateError> {
        let Some(dir) = dir else { return Ok((0, 0)) };
        let named = named_files(view)?;
        let retired = self.memory.lock().retired_files();
        Ok((bytes_of(dir, named.iter()), bytes_of(dir, retired.difference(&named))))
    }

    /// Sets the size at which generations are frozen from the size of the tables.
    pub(crate) fn set_fold_at(&self) -> Result<(), StoreError> {
        let share = usize::try_from(self.kv.disk_bytes()? / 4).unwrap_or(usize::MAX);
        self.fold_at.store(share.max(LEAST_FOLD_BYTES).min(self.fold_bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Hands the active generation to the fold thread.
    pub(crate) fn freeze(&self, memory: &mut MemoryState) {
        if memory.generations.last().is_some_and(|active| !active.is_empty()) {
            memory.generations.push(Arc::new(RowGeneration::new(&self.tables)));
            self.folding.notify_all();
        }
    }

    /// Waits until `done`, or until the fold thread has failed.
    pub(crate) fn await_fold(
        &self,
        mut memory: MutexGuard<'_, MemoryState>,
        done: impl Fn(&MemoryState) -> bool,
    ) -> Result<(), StateError> {
        while !done(&memory) {
            if let Some(error) = &memory.fold_error {
                return Err(fold_failed(error.clone()));
            }
            self.folding.wait(&mut memory);
        }
        Ok(())
    }
}

pub(crate) fn fold_failed(error: String) -> StateError {
    StoreError::new("folding the journal into the tables", error).into()
}

// ---------------------------------------------------------------------------------------------
// Opening
// ---------------------------------------------------------------------------------------------

/// Reads the tip, the sequence number of the last commit, and that of the last folded commit.
pub(crate) fn read_meta(kv: &dyn KvRead) -> Result<(Option<DurableTip>, u64, u64), StateError> {
    let meta = kv.get(META, TIP)?.map(|row| decode_tip(&row)).transpose()?;
    let folded = match kv.get(META, FOLDED)? {
        None => 0,
        Some(row) => u64::from_be_bytes(row[..].try_into().map_err(|_| {
            StateError::corrupt(META.name, "the row `folded` is not a sequence number")
        })?),
    };
    let (tip, seq) = meta.map_or((None, 0), |(tip, seq)| (Some(tip), seq));
    // The end of a fold deletes the records it covers in the transaction that moves `folded`.
    let id = |row: Option<TableRow>| row.map(|(key, _)| record_id(JOURNAL, &key)).transpose();
    let first = id(kv.seek(JOURNAL, Some(&[]), ScanDirection::Forward)?)?;
    let last = id(kv.seek(JOURNAL, None, ScanDirection::Backward)?)?;
    let journalled = first.zip(last).unwrap_or((seq + 1, seq));
    if folded > seq || journalled != (folded + 1, seq) {
        let what = format!(
            "the row `folded` says that commits up to {folded} of {seq} are in the tables, but the \
             journal does not continue from there"
        );
        return Err(StateError::corrupt(META.name, what));
    }
    Ok((tip, seq, folded))
}

/// The retained blocks, read from undo records, and the files that only they still name.
#[derive(Debug, Default)]
pub(crate) struct RetainedBlocks {
    /// Number to (hash, root), including the oldest block that can be reverted to.
    pub(crate) blocks: BTreeMap<u64, (B256, B256)>,
    /// The files that each block retired.
    pub(crate) retired: BTreeMap<u64, Vec<String>>,
}

impl RetainedBlocks {
    /// Reads all undo records, which must lead to `tip`.
    pub(crate) fn read(
        kv: &dyn KvRead,
        tables: &[RowTable],
        tip: Option<DurableTip>,
    ) -> Result<Self, StateError> {
        let mut retained = Self::default();
        let bad = |number: u64| {
            let what = format!("the record of block {number} does not fit the chain around it");
            StateError::corrupt(undo::UNDO.name, what)
        };
        if let Some((first, last)) = undo::span(kv)? {
            for number in first..=last {
                let (head, rows) = undo::read(kv, tables, number)?;
                let parent = number.checked_sub(1).ok_or_else(|| bad(number))?;
                let below = (head.parent_hash, head.parent_root);
                if *retained.blocks.entry(parent).or_insert(below) != below {
                    return Err(bad(number));
                }
                retained.blocks.insert(number, (head.hash, head.root));
                let retired: Vec<String> = undo::retired_files(&rows).collect();
                if !retired.is_empty() {
                    retained.retired.insert(number, retired);
                }
            }
            if tip.is_none_or(|tip| {
                (last, retained.blocks.get(&last))
                    != (tip.block.number, Some(&(tip.block.hash, tip.root)))
            }) {
                return Err(bad(last));
            }
        }
        if let Some(tip) = tip {
            retained.blocks.insert(tip.block.number, (tip.block.hash, tip.root));
        }
        Ok(retained)
    }
}

/// Names of the files that belong to the state of `view`.
pub(crate) fn named_files(view: &dyn NodeRead) -> Result<BTreeSet<String>, StateError> {
    view.scan(FILES, KeyRange::ALL, ScanDirection::Forward)?
        .map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned()))
        .collect()
}

/// The files of `dir` that are not in `named`, with their sizes.
pub(crate) fn unnamed_files(
    dir: &Path,
    named: &BTreeSet<String>,
) -> std::io::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in open_with_retry(|| fs::read_dir(dir))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !named.contains(&name)
            && let Ok(about) = entry.metadata()
            && about.is_file()
        {
            files.push((name, about.len()));
        }
    }
    Ok(files)
}

/// Deletes the files of `dir` that are not in `named`, the files that the last commit of `kv`
/// names.
pub(crate) fn remove_unnamed_files(
    kv: &dyn KvStore,
    dir: &Path,
    named: &BTreeSet<String>,
) -> Result<(), StateError> {
    let fail = |error| StoreError::new(format!("clearing up {}", dir.display()), error);
    let files = unnamed_files(dir, named).map_err(fail)?;
    if !files.is_empty() {
        // A power failure must not lead back to a commit that names them.
        kv.sync()?;
    }
    for (name, _) in files {
        fs::remove_file(dir.join(name)).map_err(fail)?;
    }
    Ok(())
}

/// Total bytes of the `files` that exist in `dir`.
pub(crate) fn bytes_of<'a>(dir: &Path, files: impl Iterator<Item = &'a String>) -> u64 {
    files.map(|name| fs::metadata(dir.join(name)).map_or(0, |about| about.len())).sum()
}

// ---------------------------------------------------------------------------------------------
// The row `tip`
// ---------------------------------------------------------------------------------------------

/// `number (8, BE) || hash || root || seq (8, BE)`.
fn encode_tip(tip: DurableTip, seq: u64) -> [u8; 80] {
    let mut row = [0; 80];
    row[..8].copy_from_slice(&tip.block.number.to_be_bytes());
    row[8..40].copy_from_slice(tip.block.hash.as_slice());
    row[40..72].copy_from_slice(tip.root.as_slice());
    row[72..].copy_from_slice(&seq.to_be_bytes());
    row
}

fn decode_tip(row: &[u8]) -> Result<(DurableTip, u64), StateError> {
    let row: &[u8; 80] = row
        .try_into()
        .map_err(|_| StateError::corrupt(META.name, "the row `tip` is not 80 bytes long"))?;
    let word =
        |at: usize| row[at..at + 8].iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let tip = DurableTip {
        block: BlockRef::new(word(0), B256::from_slice(&row[8..40])),
        root: B256::from_slice(&row[40..72]),
    };
    if word(72) == u64::MAX {
        return Err(StateError::corrupt(META.name, "the row `tip` has an impossible sequence"));
    }
    Ok((tip, word(72)))
}

/// Writes the tip as of commit `seq`.
pub(crate) fn write_tip(
    txn: &mut dyn KvWrite,
    tip: DurableTip,
    seq: u64,
) -> Result<(), StoreError> {
    txn.put(META, TIP, &encode_tip(tip, seq))
}
