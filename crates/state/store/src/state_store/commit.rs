//! All that changes the durable state: commit, revert, prune and bulk load inside the chain's own
//! transaction, and the [`AfterCommit`] step that updates memory.

use super::StateStore;
use crate::{
    DurableTip, EntrySorter, FlatHistory, KvWrite, Proposal,
    durable::{
        flat_history,
        generation::DurableRows,
        journal,
        overlay::{DiffLayer, FILES, LayerStack, RowView, RowWriter, check_file_name, check_key},
        record::delete_records,
        spill::{RecordSorter, RowSorter},
        state::{
            FOLDED, MAX_GENERATIONS, META, MemoryState, TipState, fold_failed, named_files,
            write_tip,
        },
        undo::{self, UNDO, UndoHead, UndoLayer},
    },
};
use alloy_primitives::{B256, Bytes};
use parking_lot::{MutexGuard, RwLockWriteGuard};
use retrie_state::{
    AnyBackend, AnyCache, BackendKey, BlockRef, BulkSink, BulkSorter, ChunkId, KeyForm, RowTable,
    StateError, StateKey, StateValue, StoreError,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// The backend's maintenance in a commit may write about as many rows as the commit's blocks, and
/// this many more to catch up.
const MAINTENANCE_BEYOND: usize = 4096;

impl StateStore {
    /// Makes a chain of sealed proposals durable inside `txn`, the chain's own transaction: the
    /// first extends the durable tip, each of the others its predecessor. After an error `txn` must
    /// be aborted. If a [batch](retrie_state::DeltaBatch) is among them, its last block is the oldest
    /// block that can be reverted to from then on.
    ///
    /// Nothing changes in memory until [`AfterCommit::run`], to be called once `txn` has committed.
    /// Dropping the returned value instead poisons the store. Until then this thread must not start
    /// another commit or revert.
    pub fn commit<'a>(
        &'a self,
        proposals: &[Proposal],
        txn: &mut dyn KvWrite,
    ) -> Result<AfterCommit<'a>, StateError> {
        let guard = self.lock_commit()?;
        let (parent, seq) = {
            let memory = self.durable.memory.lock();
            (memory.tip.as_ref().map(|state| state.tip), memory.seq + 1)
        };
        let blocks = chain_of(proposals, parent)?;
        let (Some(last), Some(first), Some(tip)) =
            (proposals.last(), blocks.first().copied(), blocks.last().copied())
        else {
            return Ok(AfterCommit::nothing(self, guard));
        };
        let mut layers: Vec<_> = proposals.iter().map(|p| p.0.layer.clone()).collect();
        let outdated = self.outdated_changes(parent, tip.block.number, &layers)?;
        layers.extend((outdated.len() > 0).then(|| Arc::new(outdated)));
        let first_kept = self.first_kept(proposals, tip);
        let layer = self.with_maintenance(first, first_kept, &last.0.cache, &layers)?;
        proposals.iter().for_each(|proposal| self.spare_files(&proposal.0.layer));
        self.check_files(&layer)?;
        undo::forget(txn, first_kept)?;
        let mut retired = BTreeMap::new();
        let mut below = parent;
        for (proposal, block) in proposals.iter().zip(&blocks) {
            let files = retired_by(&proposal.0.layer);
            if !files.is_empty() {
                retired.insert(block.block.number, files);
            }
            // The very first block has no state below it to revert to.
            if let Some(below) = below
                && block.block.number > first_kept
            {
                let head = UndoHead {
                    hash: block.block.hash,
                    root: block.root,
                    parent_hash: below.block.hash,
                    parent_root: below.root,
                };
                let (number, layer) = (block.block.number, &proposal.0.layer);
                let bytes = undo::write(txn, number, head, layer, self.durable.patches_rows())?;
                self.durable.counters.undo(bytes);
            }
            below = Some(*block);
        }
        self.write_journal(txn, &layer, seq)?;
        write_tip(txn, tip, seq)?;
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(MemoryUpdate {
                seq,
                layer: Some(layer),
                tip: TipState { tip, cache: last.0.cache.clone() },
                blocks,
                reverted_above: None,
                first_kept,
                is_bulk: false,
                proposals: proposals.to_vec(),
                retired,
            }),
        })
    }

    /// Takes the durable state back to block `to` inside `txn`. As with [`commit`](Self::commit),
    /// run the returned step once `txn` has committed. Readers and sessions wait in between.
    pub fn revert<'a>(
        &'a self,
        to: u64,
        txn: &mut dyn KvWrite,
    ) -> Result<AfterCommit<'a>, StateError> {
        let guard = self.lock_commit()?;
        let transition = self.transition.write();
        let (tip, seq, target) = {
            let memory = self.durable.memory.lock();
            let tip = memory.tip.as_ref().map(|state| state.tip);
            (tip, memory.seq + 1, memory.blocks.get(&to).copied())
        };
        let Some(tip) = tip else { return Err(self.beyond_retention(to)) };
        if to == tip.block.number {
            return Ok(AfterCommit::nothing(self, guard));
        }
        if to > tip.block.number {
            return Err(StateError::AboveTip { number: to, tip: tip.block });
        }
        let Some((hash, root)) = target else { return Err(self.beyond_retention(to)) };
        // New blocks above it will have their own history.
        self.pruned.fetch_min(to + 1, Ordering::Relaxed);
        let mut view = self.durable.durable_view(&self.durable.memory.lock())?;
        let undo = UndoLayer::read(&*txn, &self.durable.tables, to + 1..=tip.block.number)?;
        let layer = Arc::new(undo.writes(|table, key| view.lookup(table, key))?);
        delete_records(txn, UNDO, to + 1, tip.block.number + 1)?;
        self.write_journal(txn, &layer, seq)?;
        let tip = DurableTip { block: BlockRef::new(to, hash), root };
        write_tip(txn, tip, seq)?;

        // The target's cache is rebuilt before the transaction commits, as this may fail.
        view.stack = view.stack.pushed(layer.clone());
        let known = self.durable.memory.lock().caches.get_full(tip.block);
        let cache = match known {
            Some(cache) => cache,
            None => self.durable.backend.open(&view, self.options.dir.as_deref())?,
        };
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: Some(transition),
            change: Some(MemoryUpdate {
                seq,
                layer: Some(layer),
                tip: TipState { tip, cache },
                blocks: Vec::new(),
                reverted_above: Some(to),
                first_kept: 0,
                is_bulk: false,
                proposals: Vec::new(),
                retired: BTreeMap::new(),
            }),
        })
    }

    /// Deletes the undo of all but the last `keep` blocks inside `txn`.
    pub fn prune<'a>(
        &'a self,
        keep: u64,
        txn: &mut dyn KvWrite,
    ) -> Result<AfterCommit<'a>, StateError> {
        let guard = self.lock_commit()?;
        let (tip, seq) = {
            let memory = self.durable.memory.lock();
            (memory.tip.clone(), memory.seq)
        };
        let Some(tip) = tip else { return Ok(AfterCommit::nothing(self, guard)) };
        let first_kept = tip.tip.block.number.saturating_sub(keep);
        undo::forget(txn, first_kept)?;
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(MemoryUpdate {
                seq,
                layer: None,
                tip,
                blocks: Vec::new(),
                reverted_above: None,
                first_kept,
                is_bulk: false,
                proposals: Vec::new(),
                retired: BTreeMap::new(),
            }),
        })
    }

    /// Loads a whole state, sorted by key, as `block`, straight into the tables and inside `txn`.
    /// The state must be empty. There is no undo below this block. After an error `txn` must be
    /// aborted.
    ///
    /// If the backend needs codes, `txn` must already [have](crate::KvRead::code) those of all
    /// accounts.
    pub fn bulk_load<'a>(
        &'a self,
        block: BlockRef,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
        txn: &mut dyn KvWrite,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        let keys = self.options.keys;
        let mut entries = entries.map(|entry| entry.map(|(key, value)| (keys.key(&key), value)));
        match keys {
            KeyForm::Plain => self.bulk_load_keys(block, &mut entries, txn),
            KeyForm::Hashed => {
                let mut sorter = EntrySorter::in_dir(self.options.dir.as_deref());
                entries.try_for_each(|entry| {
                    let (key, value) = entry?;
                    sorter.put(&key, &value)
                })?;
                self.bulk_load_keys(block, &mut sorter.entries()?, txn)
            }
        }
    }

    /// As [`bulk_load`](Self::bulk_load) for keys that have the [form](Self::keys) of the store.
    pub fn bulk_load_keys<'a>(
        &'a self,
        block: BlockRef,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        txn: &mut dyn KvWrite,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        self.load(block, txn, None, |backend, sink| backend.bulk_load(block.number, entries, sink))
    }

    /// As [`bulk_load_keys`](Self::bulk_load_keys), with codes that `txn` need not have.
    pub(super) fn load_with_codes<'a>(
        &'a self,
        block: BlockRef,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        codes: &CodeLookup<'_>,
        txn: &mut dyn KvWrite,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        self.load(block, txn, Some(codes), |backend, sink| {
            backend.bulk_load(block.number, entries, sink)
        })
    }

    /// As [`bulk_load`](Self::bulk_load) for a state that came in [chunks](retrie_state::StateChunks):
    /// `parts` are the chunks that were answered with entries, sorted, each with its number of
    /// entries.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no chunks.
    pub fn load_chunks<'a>(
        &'a self,
        block: BlockRef,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        txn: &mut dyn KvWrite,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        self.load(block, txn, None, |backend, sink| {
            let chunks =
                backend.extensions().chunks.ok_or_else(|| self.durable.unsupported("chunks"))?;
            chunks.load(block.number, parts, entries, sink)
        })
    }

    fn load<'a>(
        &'a self,
        block: BlockRef,
        txn: &mut dyn KvWrite,
        codes: Option<&CodeLookup<'_>>,
        rows: impl FnOnce(&dyn AnyBackend, &mut dyn BulkSink) -> Result<B256, StateError>,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        let guard = self.lock_commit()?;
        let seq = {
            let memory = self.durable.memory.lock();
            if let Some(tip) = &memory.tip {
                return Err(StateError::NotEmpty { tip: tip.tip.block });
            }
            memory.seq + 1
        };
        let dir = self.options.dir.as_deref();
        let mut sink = TxnSink { txn: &mut *txn, codes, dir, spill: RowSorter::new(dir) };
        let root = rows(&*self.durable.backend, &mut sink)?;
        let spill = sink.spill;
        spill.append_to(txn)?;
        let tip = DurableTip { block, root };
        write_tip(txn, tip, seq)?;
        // The rows bypassed the journal, so all commits up to this one count as folded.
        txn.put(META, FOLDED, &seq.to_be_bytes())?;
        let after = AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(MemoryUpdate {
                seq,
                layer: None,
                // Opened by `run`, from the committed rows.
                tip: TipState { tip, cache: AnyCache::new(()) },
                blocks: vec![tip],
                reverted_above: None,
                first_kept: 0,
                is_bulk: true,
                proposals: Vec::new(),
                retired: BTreeMap::new(),
            }),
        };
        Ok((root, after))
    }

    /// Folds everything that is committed into the tables and waits for it. Changes no state. The
    /// caller must not hold a write transaction.
    pub fn flush(&self) -> Result<(), StateError> {
        let guard = self.lock_unpoisoned()?;
        let mut memory = self.durable.memory.lock();
        self.durable.freeze(&mut memory);
        let seq = memory.seq;
        // Not held while waiting: the fold thread needs the write transaction, and a thread that
        // waits for this lock may hold it.
        drop(guard);
        let is_folded = |memory: &MemoryState| {
            !memory.generations.iter().any(|g| !g.is_empty() && g.last_seq() <= seq)
        };
        memory.fold_error = None;
        self.durable.folding.notify_all();
        self.durable.await_fold(memory, is_folded).or_else(|_| {
            // That attempt may have begun before this call, for a reason that no longer exists.
            let mut memory = self.durable.memory.lock();
            memory.fold_error = None;
            self.durable.folding.notify_all();
            self.durable.await_fold(memory, is_folded)
        })
    }

    /// Waits until no fold and no job of the backend is under way, retired files are deleted, and
    /// caches of older blocks are compacted. Unlike [`flush`](Self::flush) it does not fold the
    /// active generation. The caller must not hold a write transaction.
    pub fn wait_idle(&self) -> Result<(), StateError> {
        self.jobs.wait_idle();
        let mut memory = self.durable.memory.lock();
        memory.clear_now = true;
        self.durable.folding.notify_all();
        self.durable.await_fold(memory, |memory| {
            let is_cleared = memory.doomed.is_empty() && memory.deleting.is_empty();
            memory.generations.len() < 2 && is_cleared && memory.caches.next_to_compact().is_none()
        })
    }

    fn lock_unpoisoned(&self) -> Result<MutexGuard<'_, ()>, StateError> {
        let guard = self.commit.lock();
        if self.durable.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        if self.options.read_only {
            return Err(StoreError::new("changing the state", "it was opened read-only").into());
        }
        Ok(guard)
    }

    fn lock_commit(&self) -> Result<MutexGuard<'_, ()>, StateError> {
        let guard = self.lock_unpoisoned()?;
        // After a failed fold, one commit is refused, and the fold is tried again.
        if let Some(error) = self.durable.memory.lock().fold_error.take() {
            self.durable.folding.notify_all();
            return Err(fold_failed(error));
        }
        Ok(guard)
    }

    /// The error for a block below [`retained`](Self::retained).
    pub fn beyond_retention(&self, number: u64) -> StateError {
        let memory = self.durable.memory.lock();
        StateError::BeyondRetention {
            number,
            first: memory.blocks.first_key_value().map_or(0, |(first, _)| *first),
            retention: self.options.retention,
        }
    }

    fn write_journal(
        &self,
        txn: &mut dyn KvWrite,
        layer: &DiffLayer,
        seq: u64,
    ) -> Result<(), StateError> {
        let bytes = journal::write(txn, seq, layer, self.durable.patches_rows())?;
        self.durable.counters.journal(bytes);
        Ok(())
    }

    /// The oldest block that is retained once `proposals`, which end with `tip`, are durable.
    /// Blocks below the end of a batch are not retained.
    fn first_kept(&self, proposals: &[Proposal], tip: DurableTip) -> u64 {
        let last_run = proposals.iter().rev().find(|proposal| proposal.is_batch());
        let by_depth = tip.block.number.saturating_sub(self.options.retention);
        last_run.map_or(by_depth, |run| by_depth.max(run.number()))
    }

    /// The net effect of `layers` (of the blocks from `first` on) and of the backend's maintenance,
    /// with `first_kept` as the oldest retained block.
    fn with_maintenance(
        &self,
        first: DurableTip,
        first_kept: u64,
        cache: &AnyCache,
        layers: &[Arc<DiffLayer>],
    ) -> Result<Arc<DiffLayer>, StateError> {
        let layer = match layers {
            [one] => one.clone(),
            many => Arc::new(DiffLayer::merged(many)),
        };
        let Some(maintenance) = self.durable.backend.extensions().maintenance else {
            return Ok(layer);
        };
        let first_retained = {
            let memory = self.durable.memory.lock();
            // The very first commit retains only its own blocks.
            let oldest = memory.blocks.first_key_value().map(|(number, _)| *number);
            let first = oldest.unwrap_or(first.block.number);
            first.max(first_kept)
        };
        let mut view = self.durable.durable_view(&self.durable.memory.lock())?;
        view.stack = view.stack.pushed(layer.clone());
        let mut writer = RowWriter::new(view, false);
        let budget = layer.len().saturating_add(MAINTENANCE_BEYOND);
        match maintenance.maintain(&mut writer, cache, first_retained, budget) {
            Ok(()) => self.maintenance_fails.store(false, Ordering::Relaxed),
            // The store underneath has failed, so the blocks' own rows may be lost too.
            Err(error @ StateError::Store(_)) => return Err(error),
            Err(error) => {
                self.log_maintenance_failure(&error);
                return Ok(layer);
            }
        }
        let (rows, _) = writer.finish();
        if rows.len() == 0 {
            return Ok(layer);
        }
        Ok(Arc::new(DiffLayer::merged(&[layer, Arc::new(rows)])))
    }

    /// Logs that maintenance failed. No block waits for maintenance; the next commit tries again.
    fn log_maintenance_failure(&self, error: &StateError) {
        let backend = self.identity().name;
        if self.maintenance_fails.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "maintenance of {backend} still fails");
        } else {
            tracing::error!(
                "maintenance of {backend} fails: {error}; blocks are committed without it, so the \
                 datadir grows: run `db verify` on it"
            );
        }
    }

    /// The deletions of old flat history, up to `parent`, that belong to a commit of `layers` (of
    /// the blocks above `parent` up to `tip`).
    fn outdated_changes(
        &self,
        parent: Option<DurableTip>,
        tip: u64,
        layers: &[Arc<DiffLayer>],
    ) -> Result<DiffLayer, StateError> {
        let (Some(parent), Some(last), true) = (parent, layers.last(), self.prunes) else {
            return Ok(DiffLayer::default());
        };
        let keep = match self.options.flat_history {
            FlatHistory::Last(blocks) => FlatHistory::Last(blocks.max(self.options.retention)),
            keep => keep,
        };
        let floor = flat_history::floor(keep, tip, last)?.min(parent.block.number + 1);
        let view = self.durable.durable_view(&self.durable.memory.lock())?;
        let written = layers.iter().map(|layer| layer.len()).sum();
        let from = self.pruned.load(Ordering::Relaxed);
        let (rows, first) = flat_history::outdated(&view, from, floor, written)?;
        self.pruned.store(first.unwrap_or(floor).max(from), Ordering::Relaxed);
        Ok(rows)
    }

    /// Keeps files that `layer` names again. If the commit fails, they stay until the next opening.
    fn spare_files(&self, layer: &DiffLayer) {
        for (name, next) in layer.rows(FILES) {
            if next.is_some() && self.durable.memory.lock().spare(&String::from_utf8_lossy(name)) {
                self.durable.folding.notify_all();
            }
        }
    }

    /// Fails if a file that `layer` names does not exist.
    fn check_files(&self, layer: &DiffLayer) -> Result<(), StateError> {
        let is_there =
            |name: &str| self.options.dir.as_deref().is_some_and(|dir| dir.join(name).is_file());
        let named = layer.rows(FILES).filter(|(_, next)| next.is_some());
        let mut names = named.map(|(name, _)| String::from_utf8_lossy(name));
        names.find(|name| !is_there(name)).map_or(Ok(()), |name| {
            let action = format!("publishing the state file {name}");
            Err(StoreError::new(action, "it is not in the state directory").into())
        })
    }

    /// The `files`, which no retained block names, that the durable tip does not name either.
    fn unnamed(&self, files: BTreeSet<String>) -> Result<BTreeSet<String>, StateError> {
        if files.is_empty() {
            return Ok(files);
        }
        let named = named_files(&self.durable.durable_view(&self.durable.memory.lock())?)?;
        Ok(files.difference(&named).cloned().collect())
    }
}

/// The files that the block of `layer` retires.
fn retired_by(layer: &DiffLayer) -> Vec<String> {
    let retired = layer.rows(FILES).filter(|(_, next)| next.is_none());
    retired.map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

/// The blocks of `proposals`, if they extend `tip` one after the other.
fn chain_of(
    proposals: &[Proposal],
    mut tip: Option<DurableTip>,
) -> Result<Vec<DurableTip>, StateError> {
    let mut blocks = Vec::with_capacity(proposals.len());
    for proposal in proposals {
        let number = proposal.number();
        let block = proposal.block().ok_or(StateError::Unsealed { number })?;
        if !proposal.0.stands_on(tip.map(|tip| tip.block)) {
            let tip = tip.map_or_else(BlockRef::default, |tip| tip.block);
            return Err(StateError::NotOnTip { number, tip });
        }
        let new = DurableTip { block, root: proposal.root() };
        blocks.push(new);
        tip = Some(new);
    }
    Ok(blocks)
}

// ---------------------------------------------------------------------------------------------
// After the commit
// ---------------------------------------------------------------------------------------------

/// The step after the chain's transaction has committed: it updates memory and lets retired files
/// be deleted. If it is dropped without [`run`](Self::run), the store is poisoned, as it does not
/// know whether the transaction committed.
#[must_use = "run it once the transaction has committed"]
pub struct AfterCommit<'a> {
    store: &'a StateStore,
    guard: Option<MutexGuard<'a, ()>>,
    transition: Option<RwLockWriteGuard<'a, ()>>,
    change: Option<MemoryUpdate>,
}

struct MemoryUpdate {
    seq: u64,
    layer: Option<Arc<DiffLayer>>,
    tip: TipState,
    blocks: Vec<DurableTip>,
    reverted_above: Option<u64>,
    /// Durable blocks below this one are no longer retained.
    first_kept: u64,
    /// Whether it is a bulk load, which leaves rows but no cache.
    is_bulk: bool,
    proposals: Vec<Proposal>,
    /// Files that each block retires.
    retired: BTreeMap<u64, Vec<String>>,
}

impl fmt::Debug for AfterCommit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterCommit").finish_non_exhaustive()
    }
}

impl<'a> AfterCommit<'a> {
    const fn nothing(store: &'a StateStore, guard: MutexGuard<'a, ()>) -> Self {
        Self { store, guard: Some(guard), transition: None, change: None }
    }

    /// Installs the committed state in memory. It waits if folding lags far behind, so the caller
    /// must not hold a write transaction.
    ///
    /// # Errors
    /// If the state of a bulk load cannot be opened: the state is durable, but the store is
    /// poisoned.
    pub fn run(mut self) -> Result<(), StateError> {
        let (store, durable) = (self.store, &self.store.durable);
        if let Some(change) = &mut self.change
            && change.is_bulk
        {
            let snapshot = durable.kv.snapshot()?;
            let rows = DurableRows::new(Vec::new(), change.seq, snapshot, &durable.leases);
            let view = RowView {
                stack: LayerStack::default(),
                reverse: Vec::new(),
                durable: Arc::new(rows),
                counters: durable.counters.clone(),
                is_timed: true,
            };
            change.tip.cache = durable.backend.open(&view, store.options.dir.as_deref())?;
            durable.set_fold_at()?;
        }
        let Some(change) = self.change.take() else { return Ok(()) };
        let active = durable.memory.lock().generations.last().cloned();
        if let (Some(layer), Some(active)) = (&change.layer, active) {
            // Readers do not see these versions before `seq` is raised below.
            active.insert(change.seq, layer, durable.leases.oldest(change.seq - 1));
        }
        let mut memory = durable.memory.lock();
        memory.seq = change.seq;
        if let Some(to) = change.reverted_above {
            memory.blocks.split_off(&(to + 1));
            memory.retired.split_off(&(to + 1));
            memory.caches.revert_to(to);
        }
        for tip in change.blocks {
            memory.blocks.insert(tip.block.number, (tip.block.hash, tip.root));
        }
        memory.blocks = memory.blocks.split_off(&change.first_kept);
        memory.retired.extend(change.retired);
        let retired = memory.retired.split_off(&(change.first_kept + 1));
        let let_go = std::mem::replace(&mut memory.retired, retired);
        let mut files: BTreeSet<String> = let_go.into_values().flatten().collect();
        files.retain(|file| !memory.retired.values().flatten().any(|retained| retained == file));
        memory.caches.drop_before(change.first_kept);
        let backend = &*durable.backend;
        if let Some(left) = memory.tip.replace(change.tip)
            && change.reverted_above.is_none_or(|to| left.tip.block.number <= to)
        {
            memory.remember(left.tip.block, left.cache, backend);
        }
        for proposal in &change.proposals {
            // So that live proposals do not keep the chain below in memory.
            proposal.0.rest_on_durable();
            if let Some(hash) = proposal.hash() {
                let block = BlockRef::new(proposal.0.number, hash);
                memory.remember(block, proposal.0.cache.clone(), backend);
            }
        }
        let active = memory.generations.last();
        if active.is_some_and(|active| {
            active.bytes() > durable.fold_at.load(Ordering::Relaxed)
                || active.commits() >= store.options.fold_commits
        }) {
            durable.freeze(&mut memory);
        }
        let is_leaving = memory.caches.next_to_compact().is_some();
        drop(memory);
        if is_leaving {
            durable.folding.notify_all();
        }
        match store.unnamed(files) {
            Ok(files) if files.is_empty() => {}
            Ok(files) => {
                durable.memory.lock().doomed.extend(files);
                durable.folding.notify_all();
            }
            Err(error) => {
                tracing::warn!(%error, "retired state files stay until the next opening");
            }
        }
        drop(self.transition.take());
        drop(self.guard.take());
        // This commit is durable and installed even if the fold fails; the next commit reports it.
        let _ = durable.await_fold(durable.memory.lock(), |memory| {
            memory.generations.len() <= MAX_GENERATIONS
        });
        Ok(())
    }
}

impl Drop for AfterCommit<'_> {
    fn drop(&mut self) {
        if self.change.is_some() {
            self.store.durable.poisoned.store(true, Ordering::Release);
        }
    }
}

/// Finds the code of a keccak-256.
pub(super) type CodeLookup<'a> = dyn Fn(&B256) -> Result<Option<Bytes>, StoreError> + 'a;

/// Writes the rows of a bulk load straight into a transaction.
struct TxnSink<'a> {
    txn: &'a mut dyn KvWrite,
    /// Where codes are, if not in `txn`.
    codes: Option<&'a CodeLookup<'a>>,
    dir: Option<&'a Path>,
    spill: RowSorter,
}

impl BulkSink for TxnSink<'_> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        Ok(self.txn.append(table, key, value)?)
    }

    fn put_unordered(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError> {
        check_key(table, key)?;
        self.spill.put(table, key, value)
    }

    fn sorter(&self) -> Box<dyn BulkSorter> {
        Box::new(RecordSorter::new(self.dir))
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(match self.codes {
            Some(code) => code(hash)?,
            None => self.txn.code(hash)?,
        })
    }

    fn dir(&self) -> Option<&Path> {
        self.dir
    }

    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        check_file_name(name)?;
        Ok(self.txn.put(FILES, name.as_bytes(), &[])?)
    }
}
