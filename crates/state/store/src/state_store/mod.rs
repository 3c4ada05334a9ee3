//! [`StateStore`]: the contract that the client sees, the same for every backend.

mod check;
mod commit;
mod deltas;
mod history;
mod prefetch;
mod provider;
mod session;

pub use check::{StateCheck, StateCheckSink};
pub use commit::AfterCommit;
pub use prefetch::{PrefetchHandle, PrefetchObserver};
pub use provider::StateProvider;
pub use session::{RootTask, StateSession};

use crate::{
    FlatHistory, KvStore, Proposal,
    durable::{
        block_caches::BlockCaches,
        counters::{CounterSnapshot, NodeCounters},
        flat_history::{self, CHANGED_KEYS, CHANGES},
        fold::FoldProgress,
        fold_thread::FoldThread,
        generation::{DurableRows, LeaseTable},
        journal::{self, JOURNAL},
        overlay::{FILES, LayerStack, RowView},
        proposal::ProposalParent,
        state::{
            DurableState, DurableTip, META, MemoryState, RetainedBlocks, TipState, named_files,
            read_meta, remove_unnamed_files,
        },
        undo::{self, UNDO, UndoLayerCache},
    },
};
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use prefetch::PrefetchPool;
use provider::{ProviderBlock, StateOrigin};
use retrie_state::{
    AnyBackend, AnyCache, BackendIdentity, BackendStats, BlockRef, JobRunner, KeyForm, RowTable,
    StateError, StoreError, flat,
};
use std::{
    collections::{BTreeSet, HashMap},
    fmt, fs,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

/// Settings of a state store; none of them changes a root.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How many blocks can be reverted. 0 keeps no undo at all.
    pub retention: u64,
    /// How much flat history is kept; [`StateStore::flat_history`] reads old blocks with it. It may
    /// change from one opening to the next.
    pub flat_history: FlatHistory,
    /// The active generation is folded once it takes this much memory, in bytes; in a store that is
    /// small on disk already at a quarter of the store's size, but not below 256 MiB. A fold
    /// rewrites whole pages, so it costs less per row the more rows share a page. Two more
    /// generations may wait in memory meanwhile.
    pub fold_bytes: usize,
    /// The active generation is folded after this many commits, which bounds replay on reopening.
    pub fold_commits: usize,
    /// The form of keys that the backend gets. A store keeps the form it was created with; the
    /// caller remembers it.
    pub keys: KeyForm,
    /// Directory for the backend's immutable files; needed by backends that write any.
    pub dir: Option<PathBuf>,
    /// Maximum number of threads that [prefetch](StateSession::prefetch) keys while reads wait
    /// for the disk; 0 switches prefetching off. Each thread reads one key at a time, so the best
    /// number depends on the disk, not on the cores.
    pub read_threads: usize,
    /// Opens the store for reading only: it starts no thread, folds nothing, removes no file, and
    /// refuses commits. The store underneath must not change: use one that stays at a snapshot.
    pub read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            retention: 128,
            flat_history: FlatHistory::Off,
            fold_bytes: 512 << 20,
            fold_commits: 4096,
            keys: KeyForm::Plain,
            dir: None,
            read_threads: 16,
            read_only: false,
        }
    }
}

/// A state, and the parent of a block on top of it.
pub(crate) struct ResolvedState {
    state: StateProvider,
    parent: ProposalParent,
    base: Option<BlockRef>,
}

/// Names a state of a store.
#[derive(Clone, Copy, Debug)]
pub enum StateId<'a> {
    /// The durable tip.
    Tip,
    /// The state after the block of this hash: a sealed live proposal, or a durable block within
    /// the retention depth.
    Block(B256),
    /// The state after a proposal, sealed or not.
    Proposal(&'a Proposal),
}

/// What a store holds, for `db stats`.
#[derive(Clone, Debug)]
pub struct StoreStats {
    /// The backend's own counts.
    pub backend: BackendStats,
    /// Rows committed but not yet folded into the tables, in bytes of memory.
    pub pending_bytes: u64,
    /// Number of journal rows.
    pub journal_rows: u64,
    /// Number of undo rows.
    pub undo_rows: u64,
    /// Bytes of the immutable files of the durable tip.
    pub file_bytes: u64,
    /// Bytes of the immutable files that only retained blocks below the tip still need.
    pub retained_file_bytes: u64,
    /// Oldest durable block that can be read, extended or reverted to.
    pub first_retained: Option<u64>,
}

/// Reads the gauges of a [`StateStore`] as long as the store is open.
#[derive(Clone, Debug)]
pub struct StoreWatch {
    durable: Weak<DurableState>,
    jobs: Weak<JobRunner>,
    dir: Option<PathBuf>,
}

/// Gauges of a store, as a [`StoreWatch`] reads them.
#[derive(Clone, Debug)]
pub struct StoreGauges {
    /// Counts at the node interface since opening.
    pub counts: CounterSnapshot,
    /// Bytes of memory of rows that are committed but not yet folded into the tables.
    pub pending_bytes: u64,
    /// Bytes of live pages; immutable files are not counted.
    pub disk_bytes: u64,
    /// As in [`StoreStats`].
    pub file_bytes: u64,
    /// As in [`StoreStats`].
    pub retained_file_bytes: u64,
    /// Oldest durable block that can be read, extended or reverted to.
    pub first_retained: Option<u64>,
}

impl StoreWatch {
    /// The gauges now; `None` once the store is closed.
    pub fn read(&self) -> Option<StoreGauges> {
        let (durable, jobs) = (self.durable.upgrade()?, self.jobs.upgrade()?);
        let disk_bytes = durable.kv.disk_bytes().ok()?;
        let view = durable.durable_view(&durable.memory.lock()).ok()?;
        let (file_bytes, retained_file_bytes) =
            durable.file_bytes(self.dir.as_deref(), &view).ok()?;
        drop(view);
        let memory = durable.memory.lock();
        Some(StoreGauges {
            counts: durable.counts(jobs.wait_time()),
            pending_bytes: memory.pending_bytes(),
            disk_bytes,
            file_bytes,
            retained_file_bytes,
            first_retained: memory.blocks.first_key_value().map(|(number, _)| *number),
        })
    }
}

/// A backend's state in a key-value store: sessions on any block, atomic commits, reverts, proofs.
///
/// | work | thread | completion point |
/// |---|---|---|
/// | `begin`, reads, `finish` | any, several at once | returns |
/// | `commit`, `revert`, `prune`, `bulk_load` | one at a time | the caller's transaction commits, then [`AfterCommit::run`](crate::AfterCommit::run) |
/// | fold of a frozen generation | `state-fold` | its last slice commits |
/// | compaction of the cache of an older block | `state-fold` | it is compacted; the full cache serves until then |
/// | deletion of retired files | `state-fold` | [`wait_idle`](Self::wait_idle), at the latest the next opening |
/// | prefetch of keys that a block will need | `state-read-N` | none: the block reads each key again |
/// | jobs | `state-job-N` | [`JobRunner::wait`] at the block that needs the output |
///
/// Dropping it waits for a fold or a deletion under way, so do not drop it while this thread has a
/// write transaction of the same database.
pub struct StateStore {
    pub(crate) durable: Arc<DurableState>,
    pub(crate) options: StoreOptions,
    /// Whether there is or will be flat history that commits must prune.
    pub(crate) prunes: bool,
    /// No block below this one has flat history; a search that starts here does not scan deleted
    /// rows.
    pub(crate) pruned: AtomicU64,
    /// Whether the backend's maintenance failed in the last commit.
    pub(crate) maintenance_fails: AtomicBool,
    pub(crate) jobs: Arc<JobRunner>,
    readers: PrefetchPool,
    pub(crate) commit: Mutex<()>,
    /// Held for writing from the start of a revert's transaction until memory is updated, as
    /// readers of blocks below the tip read undo rows from the tables.
    pub(crate) transition: RwLock<()>,
    folder: Option<std::thread::JoinHandle<()>>,
}

impl fmt::Debug for StateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateStore")
            .field("backend", self.identity())
            .field("tip", &self.tip())
            .finish_non_exhaustive()
    }
}

impl StateStore {
    /// All tables that a store of `backend` needs: the backend's and the framework's tables.
    pub fn tables(backend: &dyn AnyBackend) -> Vec<RowTable> {
        let mut tables = backend.profile().tables.to_vec();
        tables.extend([flat::TABLE, JOURNAL, UNDO, META, FILES, CHANGES, CHANGED_KEYS]);
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Opens the state in `kv`: replays the journal, removes files that no block names, and
    /// rebuilds the backend's cache of the durable tip.
    pub fn open(
        backend: Arc<dyn AnyBackend>,
        kv: Arc<dyn KvStore>,
        options: StoreOptions,
    ) -> Result<Self, StateError> {
        let tables = Self::tables(&*backend);
        if let Some(pair) = tables.windows(2).find(|pair| pair[0].id == pair[1].id) {
            let action = format!("opening the tables {} and {}", pair[0].name, pair[1].name);
            return Err(StoreError::new(action, "both have the same id").into());
        }
        let jobs = if options.read_only { JobRunner::without_threads } else { JobRunner::new };
        let counters = Arc::new(NodeCounters::default());
        let jobs = Arc::new(jobs(options.dir.clone()));
        let leases = Arc::new(LeaseTable::default());
        let snapshot = kv.snapshot()?;
        let (tip, seq, folded) = read_meta(&*snapshot)?;
        let progress = FoldProgress::read(&*snapshot)?;
        let replayed = Arc::new(journal::replay(&*snapshot, &tables, folded, seq, &progress)?);
        let RetainedBlocks { blocks, retired } = RetainedBlocks::read(&*snapshot, &tables, tip)?;
        let view = RowView {
            stack: LayerStack::default(),
            reverse: Vec::new(),
            durable: Arc::new(DurableRows::new(vec![replayed.clone()], seq, snapshot, &leases)),
            counters: counters.clone(),
            is_timed: true,
        };
        if let Some(dir) = options.dir.as_ref().filter(|_| !options.read_only) {
            let fail = |error| StoreError::new(format!("creating {}", dir.display()), error);
            fs::create_dir_all(dir).map_err(fail)?;
            // Before the backend restarts its jobs, which write files of their own.
            let mut files = named_files(&view)?;
            files.extend(retired.values().flatten().cloned());
            if let Some(job_files) = backend.extensions().job_files {
                files.extend(job_files.pending_files(&view)?);
            }
            remove_unnamed_files(&*kv, dir, &files)?;
        }
        let first_kept = flat_history::first_block(&view, 0)?;
        let tip = match tip {
            None => None,
            Some(tip) => {
                Some(TipState { tip, cache: backend.open(&view, options.dir.as_deref())? })
            }
        };
        let durable = Arc::new(DurableState {
            backend,
            kv,
            tables,
            counters,
            leases,
            poisoned: AtomicBool::new(false),
            undo: UndoLayerCache::default(),
            memory: Mutex::new(MemoryState {
                tip,
                seq,
                generations: vec![replayed],
                blocks,
                retired,
                doomed: BTreeSet::new(),
                deleting: BTreeSet::new(),
                clear_now: false,
                proposals: HashMap::new(),
                caches: BlockCaches::default(),
                fold_error: None,
                closing: false,
            }),
            folding: Condvar::new(),
            fold_bytes: options.fold_bytes,
            fold_at: AtomicUsize::new(0),
            keys: options.keys,
            dir: options.dir.clone(),
        });
        durable.set_fold_at()?;
        let start_folder = || {
            let durable = durable.clone();
            std::thread::Builder::new()
                .name("state-fold".into())
                .spawn(move || FoldThread::new(&durable).run())
                .map_err(|error| StoreError::new("starting the thread state-fold", error))
        };
        let folder = (!options.read_only).then(start_folder).transpose()?;
        Ok(Self {
            durable,
            pruned: AtomicU64::new(first_kept.unwrap_or(0)),
            maintenance_fails: AtomicBool::new(false),
            prunes: first_kept.is_some() || options.flat_history != FlatHistory::Off,
            readers: PrefetchPool::new(options.read_threads),
            options,
            jobs,
            commit: Mutex::new(()),
            transition: RwLock::new(()),
            folder,
        })
    }

    /// The backend's identity.
    pub fn identity(&self) -> &BackendIdentity {
        self.durable.backend.identity()
    }

    /// The backend, with its capabilities and extensions.
    pub fn backend(&self) -> &dyn AnyBackend {
        &*self.durable.backend
    }

    /// The form of keys that the backend gets.
    pub const fn keys(&self) -> KeyForm {
        self.options.keys
    }

    /// The durable tip; `None` while the state is empty.
    pub fn tip(&self) -> Option<DurableTip> {
        self.durable.memory.lock().tip.as_ref().map(|state| state.tip)
    }

    /// How many blocks can be reverted, once the chain has that many.
    pub const fn retention(&self) -> u64 {
        self.options.retention
    }

    /// Numbers of the durable blocks that can be read, extended and reverted to; `None` while the
    /// state is empty.
    pub fn retained(&self) -> Option<std::ops::RangeInclusive<u64>> {
        let memory = self.durable.memory.lock();
        let first = memory.blocks.first_key_value()?.0;
        Some(*first..=*memory.blocks.last_key_value()?.0)
    }

    /// Counts at the node interface since opening, in total and for each table.
    pub fn counts(&self) -> CounterSnapshot {
        self.durable.counts(self.jobs.wait_time())
    }

    /// Gauges of the store, for metrics; the watch does not keep the store open.
    pub fn watch(&self) -> StoreWatch {
        let dir = self.options.dir.clone();
        StoreWatch { durable: Arc::downgrade(&self.durable), jobs: Arc::downgrade(&self.jobs), dir }
    }

    /// Names of the backend's files that the durable tip or a retained block below it names.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn named_files(&self) -> Result<BTreeSet<String>, StateError> {
        let view = self.durable.durable_view(&self.durable.memory.lock())?;
        let mut files = named_files(&view)?;
        let snapshot = &*view.durable.snapshot;
        let retained = RetainedBlocks::read(snapshot, &self.durable.tables, self.tip())?;
        files.extend(retained.retired.into_values().flatten());
        Ok(files)
    }

    /// Names of files that unfinished jobs of the durable tip may have written
    /// ([`JobFiles`](retrie_state::JobFiles)).
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn pending_files(&self) -> Result<Vec<String>, StateError> {
        let Some(job_files) = self.backend().extensions().job_files else { return Ok(Vec::new()) };
        let view = self.durable.durable_view(&self.durable.memory.lock())?;
        job_files.pending_files(&view)
    }

    /// The job runner (the test-kit slows it down).
    pub fn jobs(&self) -> &JobRunner {
        &self.jobs
    }

    /// From now on every [prefetch](StateSession::prefetch) counts as a read from disk (for the
    /// test-kit, whose states are in memory).
    pub fn prefetch_as_from_disk(&self) {
        self.readers.wait_always();
    }

    /// Opens a session whose parent is `at`.
    pub fn begin(&self, at: StateId<'_>) -> Result<StateSession<'_>, StateError> {
        Ok(StateSession { store: self, parent: self.resolve(at)? })
    }

    /// The state `at`.
    pub fn at(&self, at: StateId<'_>) -> Result<StateProvider, StateError> {
        Ok(self.resolve(at)?.state)
    }

    /// Root of the state `at`.
    pub fn root(&self, at: StateId<'_>) -> Result<B256, StateError> {
        self.refuse_if_poisoned()?;
        let memory = self.durable.memory.lock();
        match at {
            StateId::Tip => Ok(memory
                .tip
                .as_ref()
                .map_or_else(|| self.durable.backend.profile().empty_root, |state| state.tip.root)),
            StateId::Proposal(proposal) => Ok(proposal.root()),
            StateId::Block(hash) => memory
                .durable(hash)
                .map(|(_, root)| root)
                .or_else(|| memory.live_proposal(hash).map(|proposal| proposal.root()))
                .ok_or(StateError::UnknownBlock { hash }),
        }
    }

    /// Gives a proposal its block hash. [`StateId::Block`] finds the proposal by it as long as a
    /// caller holds the proposal. A proposal keeps the first hash it gets.
    pub fn seal(&self, proposal: &Proposal, hash: B256) {
        if proposal.0.hash.set(hash).is_ok() {
            let mut memory = self.durable.memory.lock();
            if memory.proposals.len() >= 64 && memory.proposals.len().is_power_of_two() {
                memory.proposals.retain(|_, proposal| proposal.strong_count() > 0);
            }
            // If a block is proposed twice, the map must keep a live proposal; which one does not
            // matter.
            if memory.live_proposal(hash).is_none() {
                memory.proposals.insert(hash, Arc::downgrade(&proposal.0));
            }
        }
    }

    /// What the store holds at its durable tip.
    pub fn stats(&self) -> Result<StoreStats, StateError> {
        let state = self.at(StateId::Tip)?;
        let snapshot = &state.view.durable.snapshot;
        let (file_bytes, retained_file_bytes) =
            self.durable.file_bytes(self.options.dir.as_deref(), &state.view)?;
        let backend = self.durable.backend.stats(&state.view, &state.cache)?;
        let (journal_rows, undo_rows) = (snapshot.count(JOURNAL)?, snapshot.count(UNDO)?);
        let memory = self.durable.memory.lock();
        Ok(StoreStats {
            backend,
            pending_bytes: memory.pending_bytes(),
            journal_rows,
            undo_rows,
            file_bytes,
            retained_file_bytes,
            first_retained: memory.blocks.first_key_value().map(|(number, _)| *number),
        })
    }

    // -- finding a state ------------------------------------------------------------------------

    fn refuse_if_poisoned(&self) -> Result<(), StateError> {
        if self.durable.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        Ok(())
    }

    fn resolve(&self, at: StateId<'_>) -> Result<ResolvedState, StateError> {
        let _still = self.transition.read();
        self.refuse_if_poisoned()?;
        let memory = self.durable.memory.lock();
        let proposal = match at {
            StateId::Tip => {
                let tip = memory.tip_block();
                return self.resolve_durable(memory, tip);
            }
            StateId::Proposal(proposal) => match proposal.block() {
                // The durable rows may come from another proposal of the same block. Rows on which
                // no root depends may differ between the two, and a cache goes with its rows.
                Some(block) if memory.is_durable(block) => {
                    return self.resolve_durable(memory, Some(block));
                }
                _ => proposal.clone(),
            },
            StateId::Block(hash) => {
                if let Some((block, _)) = memory.durable(hash) {
                    return self.resolve_durable(memory, Some(block));
                }
                memory.live_proposal(hash).ok_or(StateError::UnknownBlock { hash })?
            }
        };
        // If the tip has not changed since the proposal was made, its base is still its nearest
        // durable ancestor.
        let (base, stack) = if proposal.0.base == memory.tip_block() {
            (proposal.0.base, proposal.0.stack.clone())
        } else {
            above_durable(&memory, &proposal)?
        };
        let mut view = self.view_of_durable(memory, base)?;
        view.stack = stack;
        let block = ProviderBlock {
            number: proposal.0.number,
            hash: proposal.hash(),
            root: proposal.0.root,
        };
        let state = self.state(view, proposal.0.cache.clone(), Some(block));
        Ok(ResolvedState { state, parent: ProposalParent::Proposal(proposal), base })
    }

    fn resolve_durable(
        &self,
        memory: MutexGuard<'_, MemoryState>,
        block: Option<BlockRef>,
    ) -> Result<ResolvedState, StateError> {
        let root = block.and_then(|block| memory.blocks.get(&block.number)).map(|(_, root)| *root);
        let known = block.and_then(|block| memory.cache_of(block));
        let since = memory.caches.now();
        let view = self.view_of_durable(memory, block)?;
        let cache = match known {
            Some(cache) => cache,
            None => {
                let cache = self.durable.backend.open(&view, self.options.dir.as_deref())?;
                if let Some(block) = block {
                    let mut memory = self.durable.memory.lock();
                    memory.caches.remember_opened(block, cache.clone(), since);
                }
                cache
            }
        };
        let at = block.zip(root).map(|(block, root)| ProviderBlock {
            number: block.number,
            hash: Some(block.hash),
            root,
        });
        let state = self.state(view, cache, at);
        Ok(ResolvedState { state, parent: ProposalParent::Durable(block), base: block })
    }

    fn state(&self, view: RowView, cache: AnyCache, block: Option<ProviderBlock>) -> StateProvider {
        StateProvider { durable: self.durable.clone(), view, cache, block, kind: StateOrigin::Own }
    }

    /// The durable state of `block`, through undo if it lies below the tip.
    fn view_of_durable(
        &self,
        memory: MutexGuard<'_, MemoryState>,
        block: Option<BlockRef>,
    ) -> Result<RowView, StateError> {
        let mut view = self.durable.durable_view(&memory)?;
        let tip = memory.tip_block();
        if block == tip {
            return Ok(view);
        }
        let unknown = |block: Option<BlockRef>| StateError::UnknownBlock {
            hash: block.map_or(B256::ZERO, |block| block.hash),
        };
        let (Some(at), Some(tip)) = (block, tip) else { return Err(unknown(block)) };
        if !memory.is_durable(at) {
            return Err(unknown(block));
        }
        let blocks = memory.blocks.range(at.number + 1..).map(|(number, at)| (*number, *at));
        let blocks = blocks.collect();
        drop(memory);
        let snapshot = &*view.durable.snapshot;
        // The snapshot may be one commit ahead of memory, and that commit may have pruned.
        if undo::span(snapshot)?.is_none_or(|(first, _)| at.number + 1 < first) {
            return Err(self.beyond_retention(at.number));
        }
        let (tables, span) = (&self.durable.tables, (at.number + 1, tip.number));
        view.reverse = self.durable.undo.reverse_layers(snapshot, tables, span, &blocks)?;
        Ok(view)
    }
}

/// The nearest durable ancestor of a proposal, and the layers above it.
fn above_durable(
    memory: &MemoryState,
    proposal: &Proposal,
) -> Result<(Option<BlockRef>, LayerStack), StateError> {
    let mut layers = Vec::new();
    let mut at = ProposalParent::Proposal(proposal.clone());
    let base = loop {
        at = match at {
            ProposalParent::Durable(Some(block)) if !memory.is_durable(block) => {
                // The parent was durable when the child was proposed, and has been reverted since.
                match memory.live_proposal(block.hash) {
                    Some(proposal) => ProposalParent::Proposal(proposal),
                    None => return Err(StateError::UnknownBlock { hash: block.hash }),
                }
            }
            ProposalParent::Durable(block) => break block,
            ProposalParent::Proposal(proposal) => match proposal.block() {
                Some(block) if memory.is_durable(block) => break Some(block),
                _ => {
                    layers.push(proposal.0.layer.clone());
                    proposal.0.parent()
                }
            },
        };
    };
    let stack = if proposal.0.base == base {
        proposal.0.stack.clone()
    } else {
        let layers = layers.into_iter().rev();
        layers.fold(LayerStack::default(), |stack, layer| stack.pushed(layer))
    };
    Ok((base, stack))
}

impl Drop for StateStore {
    fn drop(&mut self) {
        self.readers.close();
        self.durable.memory.lock().closing = true;
        self.durable.folding.notify_all();
        if let Some(folder) = self.folder.take() {
            // A panic of the fold thread has been reported already; the rows are in the journal.
            let _ = folder.join();
        }
    }
}
