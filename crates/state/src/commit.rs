//! The one way in which anything becomes durable: commit, revert, prune and bulk load inside the
//! chain's own transaction, and the [`AfterCommit`] step that lets memory follow.

use crate::{
    BlockRef, BulkSink, Changes, KvWrite, Proposal, StateError, StateKey, StateStore, StoreError,
    Table, Tip, Value, changes,
    journal::{DurableView, JOURNAL, RecordWriter, delete_records},
    overlay::{FILES, Layer, LayerStack, View, check_file_name, check_key},
    shared::{FOLDED, Inner, MAX_GENERATIONS, META, TipState, fold_failed, named_files, write_tip},
    spill::Spill,
    undo::{self, UNDO, UndoHead},
};
use alloy_primitives::B256;
use parking_lot::{MutexGuard, RwLockWriteGuard};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

impl StateStore {
    /// Makes a chain of sealed proposals durable inside `txn`, the chain's own transaction: the
    /// first extends the durable tip, each of the others its predecessor. After an error `txn` must
    /// be aborted.
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
            let inner = self.shared.inner.lock();
            (inner.tip.as_ref().map(|state| state.tip), inner.seq + 1)
        };
        let blocks = chain_of(proposals, parent)?;
        let (Some(last), Some(tip)) = (proposals.last(), blocks.last().copied()) else {
            return Ok(AfterCommit::nothing(self, guard));
        };
        let mut layers: Vec<_> = proposals.iter().map(|p| p.0.layer.clone()).collect();
        let outdated = self.outdated_changes(parent, tip.block.number, &layers)?;
        layers.extend((outdated.len() > 0).then(|| Arc::new(outdated)));
        let layer = match &layers[..] {
            [one] => one.clone(),
            many => Arc::new(Layer::merged(many)),
        };
        proposals.iter().for_each(|proposal| self.spare_files(&proposal.0.layer));
        self.check_files(&layer)?;
        let retention = self.options.retention;
        undo::prune(txn, tip.block.number, retention)?;
        let mut retired = BTreeMap::new();
        let mut below = parent;
        for (proposal, block) in proposals.iter().zip(&blocks) {
            let files = retired_by(&proposal.0.layer);
            if !files.is_empty() {
                retired.insert(block.block.number, files);
            }
            let is_out_of_reach = block.block.number.saturating_add(retention) <= tip.block.number;
            // The first block of all has no state below it to return to.
            if let Some(below) = below
                && !is_out_of_reach
            {
                let head = UndoHead {
                    hash: block.block.hash,
                    root: block.root,
                    parent_hash: below.block.hash,
                    parent_root: below.root,
                };
                let bytes = undo::write(txn, block.block.number, head, &proposal.0.layer)?;
                self.shared.counters.undo(bytes);
            }
            below = Some(*block);
        }
        self.write_journal(txn, &layer, seq)?;
        write_tip(txn, tip, seq)?;
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(Installation {
                seq,
                layer: Some(layer),
                tip: TipState { tip, cache: last.0.cache.clone() },
                blocks,
                reverted_above: None,
                first_kept: tip.block.number.saturating_sub(self.options.retention),
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
            let inner = self.shared.inner.lock();
            let tip = inner.tip.as_ref().map(|state| state.tip);
            (tip, inner.seq + 1, inner.blocks.get(&to).copied())
        };
        let Some(tip) = tip else { return Err(self.beyond_retention(to)) };
        if to == tip.block.number {
            return Ok(AfterCommit::nothing(self, guard));
        }
        if to > tip.block.number {
            return Err(StateError::AboveTip { number: to, tip: tip.block });
        }
        let Some((hash, root)) = target else { return Err(self.beyond_retention(to)) };
        // Blocks above it come anew, with history of their own.
        self.pruned.fetch_min(to + 1, Ordering::Relaxed);
        let mut layer = Layer::default();
        undo::onto(&*txn, &self.shared.tables, to + 1..=tip.block.number, &mut layer)?;
        delete_records(txn, UNDO, to + 1, tip.block.number + 1)?;
        let layer = Arc::new(layer);
        self.write_journal(txn, &layer, seq)?;
        let tip = Tip { block: BlockRef::new(to, hash), root };
        write_tip(txn, tip, seq)?;

        // The target's in-memory structure is rebuilt before anything becomes true.
        let mut view = self.shared.durable_view(&self.shared.inner.lock())?;
        view.stack = view.stack.pushed(layer.clone());
        let known = self.shared.inner.lock().cache_of(tip.block);
        let cache = match known {
            Some(cache) => cache,
            None => self.shared.backend.open(&view, &self.jobs)?,
        };
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: Some(transition),
            change: Some(Installation {
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

    /// Forgets the undo of all but the last `keep` blocks inside `txn`.
    pub fn prune<'a>(
        &'a self,
        keep: u64,
        txn: &mut dyn KvWrite,
    ) -> Result<AfterCommit<'a>, StateError> {
        let guard = self.lock_commit()?;
        let (tip, seq) = {
            let inner = self.shared.inner.lock();
            (inner.tip.clone(), inner.seq)
        };
        let Some(tip) = tip else { return Ok(AfterCommit::nothing(self, guard)) };
        undo::prune(txn, tip.tip.block.number, keep)?;
        let first_kept = tip.tip.block.number.saturating_sub(keep);
        Ok(AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(Installation {
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
    pub fn bulk_load<'a>(
        &'a self,
        block: BlockRef,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        txn: &mut dyn KvWrite,
    ) -> Result<(B256, AfterCommit<'a>), StateError> {
        let guard = self.lock_commit()?;
        let seq = {
            let inner = self.shared.inner.lock();
            if let Some(tip) = &inner.tip {
                return Err(StateError::NotEmpty { tip: tip.tip.block });
            }
            inner.seq + 1
        };
        let dir = self.options.dir.as_deref();
        let mut sink = Sink { txn: &mut *txn, dir, spill: Spill::new(dir) };
        let root = self.shared.backend.bulk_load(block.number, entries, &mut sink)?;
        let spill = sink.spill;
        spill.append_to(txn)?;
        let tip = Tip { block, root };
        write_tip(txn, tip, seq)?;
        // The rows went past the journal, so the journal counts as folded up to here.
        txn.put(META, FOLDED, &seq.to_be_bytes())?;
        let after = AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(Installation {
                seq,
                layer: None,
                // Opened by `run`, from the committed rows.
                tip: TipState { tip, cache: Arc::new(()) },
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
        let mut inner = self.shared.inner.lock();
        self.shared.freeze(&mut inner);
        let seq = inner.seq;
        // Not while waiting: the folder needs the write transaction, which may belong to a thread
        // that waits to commit.
        drop(guard);
        let is_folded =
            |inner: &Inner| !inner.generations.iter().any(|g| !g.is_empty() && g.last_seq() <= seq);
        inner.fold_error = None;
        self.shared.folding.notify_all();
        self.shared.await_fold(inner, is_folded).or_else(|_| {
            // That attempt may have begun before this call, and failed for reasons that are gone.
            let mut inner = self.shared.inner.lock();
            inner.fold_error = None;
            self.shared.folding.notify_all();
            self.shared.await_fold(inner, is_folded)
        })
    }

    /// Waits until no fold and no job of the backend is under way and retired files are gone. Unlike
    /// [`flush`](Self::flush) it folds nothing before its time. The caller must not hold a write
    /// transaction.
    pub fn settle(&self) -> Result<(), StateError> {
        self.jobs.settle();
        let mut inner = self.shared.inner.lock();
        inner.clear_now = true;
        self.shared.folding.notify_all();
        self.shared.await_fold(inner, |inner| {
            inner.generations.len() < 2 && inner.doomed.is_empty() && inner.going.is_empty()
        })
    }

    fn lock_unpoisoned(&self) -> Result<MutexGuard<'_, ()>, StateError> {
        let guard = self.commit.lock();
        if self.shared.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        if self.options.read_only {
            return Err(StoreError::new("changing the state", "it was opened read-only").into());
        }
        Ok(guard)
    }

    fn lock_commit(&self) -> Result<MutexGuard<'_, ()>, StateError> {
        let guard = self.lock_unpoisoned()?;
        // A commit that would add to what cannot be folded is refused, and the fold tried again.
        if let Some(error) = self.shared.inner.lock().fold_error.take() {
            self.shared.folding.notify_all();
            return Err(fold_failed(error));
        }
        Ok(guard)
    }

    /// The error for a block below [`retained`](Self::retained).
    pub fn beyond_retention(&self, number: u64) -> StateError {
        let inner = self.shared.inner.lock();
        StateError::BeyondRetention {
            number,
            first: inner.blocks.first_key_value().map_or(0, |(first, _)| *first),
            retention: self.options.retention,
        }
    }

    fn write_journal(
        &self,
        txn: &mut dyn KvWrite,
        layer: &Layer,
        seq: u64,
    ) -> Result<(), StateError> {
        let mut record = RecordWriter::new(&[]);
        for (table, key, row) in layer.iter() {
            record.push(table, key, row.next.as_ref().map(|value| &value[..]));
        }
        self.shared.counters.journal(record.write(txn, JOURNAL, seq)?);
        Ok(())
    }

    /// What a commit of `layers`, those of the blocks from `parent` to `tip`, deletes of the flat
    /// history up to `parent`.
    fn outdated_changes(
        &self,
        parent: Option<Tip>,
        tip: u64,
        layers: &[Arc<Layer>],
    ) -> Result<Layer, StateError> {
        let (Some(parent), Some(last), true) = (parent, layers.last(), self.prunes) else {
            return Ok(Layer::default());
        };
        let keep = match self.options.changes {
            Changes::Last(blocks) => Changes::Last(blocks.max(self.options.retention)),
            keep => keep,
        };
        let floor = changes::floor(keep, tip, last)?.min(parent.block.number + 1);
        let view = self.shared.durable_view(&self.shared.inner.lock())?;
        let written = layers.iter().map(|layer| layer.len()).sum();
        let from = self.pruned.load(Ordering::Relaxed);
        let (rows, first) = changes::outdated(&view, from, floor, written)?;
        self.pruned.store(first.unwrap_or(floor).max(from), Ordering::Relaxed);
        Ok(rows)
    }

    /// Keeps files that are named anew. If the commit fails they stay until the next opening.
    fn spare_files(&self, layer: &Layer) {
        layer.for_table(FILES, |name, next| {
            if next.is_some() && self.shared.inner.lock().spare(&String::from_utf8_lossy(name)) {
                self.shared.folding.notify_all();
            }
        });
    }

    /// Refuses to name files that are not there.
    fn check_files(&self, layer: &Layer) -> Result<(), StateError> {
        let mut missing = None;
        layer.for_table(FILES, |name, next| {
            let name = String::from_utf8_lossy(name);
            let there = |dir: &Path| dir.join(&*name).is_file();
            if next.is_some() && !self.options.dir.as_deref().is_some_and(there) {
                missing = Some(name.into_owned());
            }
        });
        missing.map_or(Ok(()), |name| {
            let action = format!("publishing the state file {name}");
            Err(StoreError::new(action, "it is not in the state directory").into())
        })
    }

    /// Those of `files`, which no retained block names, that the durable tip does not name either.
    fn unnamed(&self, files: BTreeSet<String>) -> Result<BTreeSet<String>, StateError> {
        if files.is_empty() {
            return Ok(files);
        }
        let named = named_files(&self.shared.durable_view(&self.shared.inner.lock())?)?;
        Ok(files.difference(&named).cloned().collect())
    }
}

/// The files that the block of `layer` retires.
fn retired_by(layer: &Layer) -> Vec<String> {
    let mut files = Vec::new();
    layer.for_table(FILES, |name, next| {
        if next.is_none() {
            files.push(String::from_utf8_lossy(name).into_owned());
        }
    });
    files
}

/// The blocks of `proposals`, if they extend `tip` one after the other.
fn chain_of(proposals: &[Proposal], mut tip: Option<Tip>) -> Result<Vec<Tip>, StateError> {
    let mut blocks = Vec::with_capacity(proposals.len());
    for proposal in proposals {
        let number = proposal.number();
        let block = proposal.block().ok_or(StateError::Unsealed { number })?;
        if !proposal.0.stands_on(tip.map(|tip| tip.block)) {
            let tip = tip.map_or_else(BlockRef::default, |tip| tip.block);
            return Err(StateError::NotOnTip { number, tip });
        }
        let new = Tip { block, root: proposal.root() };
        blocks.push(new);
        tip = Some(new);
    }
    Ok(blocks)
}

// ---------------------------------------------------------------------------------------------
// After the commit
// ---------------------------------------------------------------------------------------------

/// What remains to be done once the chain's transaction has committed: memory follows disk, files
/// go. Dropped without [`run`](Self::run), it poisons the store, as the transaction's fate is then
/// unknown.
#[must_use = "run it once the transaction has committed"]
pub struct AfterCommit<'a> {
    store: &'a StateStore,
    guard: Option<MutexGuard<'a, ()>>,
    transition: Option<RwLockWriteGuard<'a, ()>>,
    change: Option<Installation>,
}

struct Installation {
    seq: u64,
    layer: Option<Arc<Layer>>,
    tip: TipState,
    blocks: Vec<Tip>,
    reverted_above: Option<u64>,
    /// Durable blocks below this one are out of reach from now on.
    first_kept: u64,
    /// A bulk load leaves rows but no in-memory structure.
    is_bulk: bool,
    proposals: Vec<Proposal>,
    /// Files that each of the blocks retires.
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

    /// Installs the committed state in memory. Waits only when folding lags far behind, so the
    /// caller must not hold a write transaction.
    ///
    /// # Errors
    /// If the state that a bulk load has left cannot be opened: it is durable, the store poisoned.
    pub fn run(mut self) -> Result<(), StateError> {
        let (store, shared) = (self.store, &self.store.shared);
        if let Some(change) = &mut self.change
            && change.is_bulk
        {
            let snapshot = shared.kv.snapshot()?;
            let durable = DurableView::new(Vec::new(), change.seq, snapshot, &shared.leases);
            let view = View {
                stack: LayerStack::default(),
                reverse: None,
                durable: Arc::new(durable),
                counters: shared.counters.clone(),
            };
            change.tip.cache = shared.backend.open(&view, &store.jobs)?;
            shared.set_fold_at()?;
        }
        let Some(change) = self.change.take() else { return Ok(()) };
        let active = shared.inner.lock().generations.last().cloned();
        if let (Some(layer), Some(active)) = (&change.layer, active) {
            // Readers do not see these versions before `seq` is raised below.
            active.insert(change.seq, layer, shared.leases.oldest(change.seq - 1));
        }
        let mut inner = shared.inner.lock();
        inner.seq = change.seq;
        if let Some(to) = change.reverted_above {
            inner.blocks.split_off(&(to + 1));
            inner.retired.split_off(&(to + 1));
        }
        for tip in change.blocks {
            inner.blocks.insert(tip.block.number, (tip.block.hash, tip.root));
        }
        inner.blocks = inner.blocks.split_off(&change.first_kept);
        inner.retired.extend(change.retired);
        let retired = inner.retired.split_off(&(change.first_kept + 1));
        let let_go = std::mem::replace(&mut inner.retired, retired);
        let mut files: BTreeSet<String> = let_go.into_values().flatten().collect();
        files.retain(|file| !inner.retired.values().flatten().any(|retained| retained == file));
        if let Some(left) = inner.tip.replace(change.tip) {
            inner.remember(left.tip.block.hash, left.cache);
        }
        for proposal in &change.proposals {
            // The chain below need not be kept for their sake.
            proposal.0.rest_on_durable();
            if let Some(hash) = proposal.hash() {
                inner.remember(hash, proposal.0.cache.clone());
            }
        }
        let active = inner.generations.last();
        if active.is_some_and(|active| {
            active.bytes() > shared.fold_at.load(Ordering::Relaxed)
                || active.commits() >= store.options.fold_commits
        }) {
            shared.freeze(&mut inner);
        }
        drop(inner);
        match store.unnamed(files) {
            Ok(files) if files.is_empty() => {}
            Ok(files) => {
                shared.inner.lock().doomed.extend(files);
                shared.folding.notify_all();
            }
            Err(error) => {
                tracing::warn!(%error, "retired state files stay until the next opening");
            }
        }
        drop(self.transition.take());
        drop(self.guard.take());
        // This commit is durable and installed whatever the folder says; the next one is told.
        let _ = shared
            .await_fold(shared.inner.lock(), |inner| inner.generations.len() <= MAX_GENERATIONS);
        Ok(())
    }
}

impl Drop for AfterCommit<'_> {
    fn drop(&mut self) {
        if self.change.is_some() {
            self.store.shared.poisoned.store(true, Ordering::Release);
        }
    }
}

/// Bulk rows straight into a transaction.
struct Sink<'a> {
    txn: &'a mut dyn KvWrite,
    dir: Option<&'a Path>,
    spill: Spill,
}

impl BulkSink for Sink<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        Ok(self.txn.append(table, key, value)?)
    }

    fn put_unordered(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        check_key(table, key)?;
        self.spill.put(table, key, value)
    }

    fn dir(&self) -> Option<&Path> {
        self.dir
    }

    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        check_file_name(name)?;
        Ok(self.txn.put(FILES, name.as_bytes(), &[])?)
    }
}
