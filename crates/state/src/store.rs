//! [`StateStore`]: the contract that the client sees, the same for every backend.

use crate::{
    AccountNodes, AccountProofs, Backend, BackendStats, BlockRef, Changes, Identity, Jobs, KvStore,
    Proposal, Session, StateError, StateKey, StateProof, StateView, StoreError, Table, Value,
    changes::{self, CHANGED_KEYS, CHANGES},
    counters::{Counters, Counts},
    flat,
    journal::{self, DurableView, JOURNAL, Leases},
    overlay::{FILES, Layer, LayerStack, View},
    proposal::Parent,
    session::Resolved,
    shared::{
        Inner, META, Retained, Shared, TipState, named_files, read_meta, remove_unnamed_files,
    },
    undo::{self, UNDO},
};
use alloy_primitives::{Address, B256, Bytes};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt, fs,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

/// How a state store behaves; none of it changes a root.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How many blocks can be reverted. 0 keeps no undo at all.
    pub retention: u64,
    /// How much flat history is kept: by it the state of old blocks is read, see
    /// [`StateStore::past`]. It may change from one opening to the next.
    pub changes: Changes,
    /// The active generation is folded once it takes this much memory, in bytes; or earlier in a
    /// store that is small on disk: at a quarter of its size, but not below 64 MiB. A fold rewrites
    /// whole pages, so the denser its rows lie the less each of them costs. Two more generations
    /// may wait in memory meanwhile.
    pub fold_bytes: usize,
    /// The active generation is folded after this many commits, which bounds replay on reopening.
    pub fold_commits: usize,
    /// Directory for the backend's immutable files; needed by backends that write any.
    pub dir: Option<PathBuf>,
    /// For reading alone: no thread is started, nothing is folded, no file removed, and commits are
    /// refused. The store underneath must not move: give one that stays at a snapshot.
    pub read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            retention: 128,
            changes: Changes::Off,
            fold_bytes: 512 << 20,
            fold_commits: 4096,
            dir: None,
            read_only: false,
        }
    }
}

/// Which state is meant.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    /// The durable tip.
    Tip,
    /// The state after the block of this hash: a sealed live proposal, or a durable block within
    /// the retention depth.
    Block(B256),
    /// The state after a proposal, sealed or not.
    Proposal(&'a Proposal),
}

/// The durable tip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Its block.
    pub block: BlockRef,
    /// Its root.
    pub root: B256,
}

/// What a store holds, for `db stats`.
#[derive(Clone, Debug)]
pub struct StoreStats {
    /// The backend's own counts.
    pub backend: BackendStats,
    /// Rows committed but not yet folded into the tables, in bytes of memory.
    pub pending_bytes: u64,
    /// Rows of the journal.
    pub journal_rows: u64,
    /// Rows of undo.
    pub undo_rows: u64,
    /// Bytes of the immutable files of the durable tip.
    pub file_bytes: u64,
    /// Bytes of those that retained blocks below it alone still need.
    pub retained_file_bytes: u64,
    /// Oldest durable block that can be read, extended or reverted to.
    pub first_retained: Option<u64>,
}

/// Looks at a [`StateStore`] for as long as it is open.
#[derive(Clone, Debug)]
pub struct StoreWatch {
    shared: Weak<Shared>,
    dir: Option<PathBuf>,
}

/// What a [`StoreWatch`] sees.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Counts at the node interface since opening.
    pub counts: Counts,
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
    /// What there is to see; `None` once the store is closed.
    pub fn look(&self) -> Option<Sight> {
        let shared = self.shared.upgrade()?;
        let disk_bytes = shared.kv.disk_bytes().ok()?;
        let view = shared.durable_view(&shared.inner.lock()).ok()?;
        let (file_bytes, retained_file_bytes) =
            shared.file_bytes(self.dir.as_deref(), &view).ok()?;
        drop(view);
        let inner = shared.inner.lock();
        Some(Sight {
            counts: shared.counters.counts(&shared.tables),
            pending_bytes: inner.pending_bytes(),
            disk_bytes,
            file_bytes,
            retained_file_bytes,
            first_retained: inner.blocks.first_key_value().map(|(number, _)| *number),
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
/// | deletion of retired files | `state-fold` | [`settle`](Self::settle), at the latest the next opening |
/// | jobs | `state-job-N` | [`Jobs::wait`] at the block that needs the output |
///
/// Dropping it waits for a fold or a deletion under way, so not while this thread has a write
/// transaction of the same database.
pub struct StateStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: StoreOptions,
    /// Whether there is or will be flat history, of which commits delete what is not kept.
    pub(crate) prunes: bool,
    /// No block below this one has flat history; a search that starts here need not pass by what
    /// was deleted.
    pub(crate) pruned: AtomicU64,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) commit: Mutex<()>,
    /// Held for writing while a revert is between its transaction and memory, as readers of blocks
    /// below the tip read undo rows from the tables.
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
    /// All tables that a store of `backend` needs: the backend's and the framework's.
    pub fn tables(backend: &dyn Backend) -> Vec<Table> {
        let mut tables = backend.tables();
        tables.extend([flat::TABLE, JOURNAL, UNDO, META, FILES, CHANGES, CHANGED_KEYS]);
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Opens the state in `kv`: replays the journal, removes files that no block names, rebuilds
    /// the backend's in-memory structure of the durable tip.
    pub fn open(
        backend: Arc<dyn Backend>,
        kv: Arc<dyn KvStore>,
        options: StoreOptions,
    ) -> Result<Self, StateError> {
        let tables = Self::tables(&*backend);
        if let Some(pair) = tables.windows(2).find(|pair| pair[0].id == pair[1].id) {
            let action = format!("opening the tables {} and {}", pair[0].name, pair[1].name);
            return Err(StoreError::new(action, "both have the same id").into());
        }
        let jobs = if options.read_only { Jobs::at_rest } else { Jobs::new };
        let jobs = Arc::new(jobs(options.dir.clone()));
        let counters = Arc::new(Counters::default());
        let leases = Arc::new(Leases::default());
        let snapshot = kv.snapshot()?;
        let (tip, seq, folded) = read_meta(&*snapshot)?;
        let replayed = Arc::new(journal::replay(&*snapshot, &tables, folded, seq)?);
        let Retained { blocks, retired } = Retained::read(&*snapshot, &tables, tip)?;
        let view = View {
            stack: LayerStack::default(),
            reverse: None,
            durable: Arc::new(DurableView::new(vec![replayed.clone()], seq, snapshot, &leases)),
            counters: counters.clone(),
        };
        if let Some(dir) = options.dir.as_ref().filter(|_| !options.read_only) {
            let fail = |error| StoreError::new(format!("creating {}", dir.display()), error);
            fs::create_dir_all(dir).map_err(fail)?;
            // Before the backend restarts its jobs, which write files of their own.
            let mut files = named_files(&view)?;
            files.extend(retired.values().flatten().cloned());
            files.extend(backend.files_under_way(&view)?);
            remove_unnamed_files(&*kv, dir, &files)?;
        }
        let history = changes::first_block(&view, 0)?;
        let tip = match tip {
            None => None,
            Some(tip) => Some(TipState { tip, cache: backend.open(&view, &jobs)? }),
        };
        let shared = Arc::new(Shared {
            backend,
            kv,
            tables,
            counters,
            leases,
            poisoned: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                tip,
                seq,
                generations: vec![replayed],
                blocks,
                retired,
                doomed: BTreeSet::new(),
                going: BTreeSet::new(),
                clear_now: false,
                proposals: HashMap::new(),
                recent: VecDeque::new(),
                opened: VecDeque::new(),
                fold_error: None,
                closing: false,
            }),
            folding: Condvar::new(),
            fold_bytes: options.fold_bytes,
            fold_at: AtomicUsize::new(0),
            dir: options.dir.clone(),
        });
        shared.set_fold_at()?;
        let start_folder = || {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("state-fold".into())
                .spawn(move || shared.fold_loop())
                .map_err(|error| StoreError::new("starting the thread state-fold", error))
        };
        let folder = (!options.read_only).then(start_folder).transpose()?;
        Ok(Self {
            shared,
            pruned: AtomicU64::new(history.unwrap_or(0)),
            prunes: history.is_some() || options.changes != Changes::Off,
            options,
            jobs,
            commit: Mutex::new(()),
            transition: RwLock::new(()),
            folder,
        })
    }

    /// What the backend is.
    pub fn identity(&self) -> &Identity {
        self.shared.backend.identity()
    }

    /// The backend's algorithm: its capabilities and optional faculties.
    pub fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    /// The durable tip; `None` while the state is empty.
    pub fn tip(&self) -> Option<Tip> {
        self.shared.inner.lock().tip.as_ref().map(|state| state.tip)
    }

    /// Numbers of the durable blocks that can be read, extended and reverted to; `None` while the
    /// state is empty.
    pub fn retained(&self) -> Option<std::ops::RangeInclusive<u64>> {
        let inner = self.shared.inner.lock();
        let first = inner.blocks.first_key_value()?.0;
        Some(*first..=*inner.blocks.last_key_value()?.0)
    }

    /// Counts at the node interface since opening, in all and table by table.
    pub fn counts(&self) -> Counts {
        self.shared.counters.counts(&self.shared.tables)
    }

    /// A look at the store from outside, for metrics; it does not keep the store open.
    pub fn watch(&self) -> StoreWatch {
        let dir = self.options.dir.clone();
        StoreWatch { shared: Arc::downgrade(&self.shared), dir }
    }

    /// The job runner (the test-kit slows it down).
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Opens a session whose parent is `at`.
    pub fn begin(&self, at: At<'_>) -> Result<Session<'_>, StateError> {
        Ok(Session { store: self, state: self.resolve(at)? })
    }

    /// A reader of the state `at`. It stays at its block, whatever is committed, reverted or
    /// folded meanwhile.
    pub fn reader(&self, at: At<'_>) -> Result<StateView, StateError> {
        let state = self.resolve(at)?;
        Ok(StateView { shared: self.shared.clone(), view: state.view, cache: state.cache })
    }

    /// Root of the state `at`.
    pub fn root(&self, at: At<'_>) -> Result<B256, StateError> {
        self.refuse_if_poisoned()?;
        let inner = self.shared.inner.lock();
        match at {
            At::Tip => Ok(inner
                .tip
                .as_ref()
                .map_or_else(|| self.shared.backend.empty_root(), |state| state.tip.root)),
            At::Proposal(proposal) => Ok(proposal.root()),
            At::Block(hash) => inner
                .durable(hash)
                .map(|(_, root)| root)
                .or_else(|| inner.live_proposal(hash).map(|proposal| proposal.root()))
                .ok_or(StateError::UnknownBlock { hash }),
        }
    }

    /// Gives a proposal its block hash, under which [`At::Block`] finds it as long as somebody
    /// holds it. A proposal keeps the first hash it was given.
    pub fn seal(&self, proposal: &Proposal, hash: B256) {
        if proposal.0.hash.set(hash).is_ok() {
            let mut inner = self.shared.inner.lock();
            if inner.proposals.len() >= 64 && inner.proposals.len().is_power_of_two() {
                inner.proposals.retain(|_, proposal| proposal.strong_count() > 0);
            }
            // The same block proposed twice: either serves, but the map must not lose the one that
            // lives longer.
            if inner.live_proposal(hash).is_none() {
                inner.proposals.insert(hash, Arc::downgrade(&proposal.0));
            }
        }
    }

    /// A proof of the values of `keys` at `at`, which must be a block (durable or sealed).
    pub fn prove(&self, at: At<'_>, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let prove = |state: &Resolved| {
            Ok(((), self.shared.backend.prove(&state.view, &state.cache, keys)?))
        };
        Ok(self.prove_by(at, prove)?.1)
    }

    /// As much of the proof of `keys` as this node has. The `bytes` of several nodes' parts are put
    /// together by [`ProofShards::combine`](crate::ProofShards::combine).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`ProofShards`](crate::ProofShards).
    pub fn prove_part(&self, at: At<'_>, keys: &[StateKey]) -> Result<StateProof, StateError> {
        let backend = &self.shared.backend;
        let unsupported =
            || StateError::Unsupported { backend: backend.identity().name, what: "proof shards" };
        let shards = backend.proof_shards().ok_or_else(unsupported)?;
        let prove =
            |state: &Resolved| Ok(((), shards.prove_part(&state.view, &state.cache, keys)?));
        Ok(self.prove_by(at, prove)?.1)
    }

    /// The trie nodes that prove an account and its `slots` at `at`, for `eth_getProof` (EIP-1186).
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](crate::AccountProofs).
    pub fn account_nodes(
        &self,
        at: At<'_>,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError> {
        let state = self.resolve(at)?;
        let proofs = account_proofs(&*self.shared.backend)?;
        proofs.account_nodes(&state.view, &state.cache, address, slots)
    }

    /// The trie nodes that removing `removed` at `at` may merge, for execution witnesses.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] if the backend has no [`AccountProofs`](crate::AccountProofs).
    pub fn merge_nodes(&self, at: At<'_>, removed: &[StateKey]) -> Result<Vec<Bytes>, StateError> {
        let state = self.resolve(at)?;
        account_proofs(&*self.shared.backend)?.merge_nodes(&state.view, &state.cache, removed)
    }

    /// What `prove` finds at `at`, and its proof in the envelope.
    pub(crate) fn prove_by<T>(
        &self,
        at: At<'_>,
        prove: impl FnOnce(&Resolved) -> Result<(T, Bytes), StateError>,
    ) -> Result<(T, StateProof), StateError> {
        let identity = self.identity();
        if !self.shared.backend.capabilities().proofs {
            return Err(StateError::Unsupported { backend: identity.name, what: "proofs" });
        }
        let state = self.resolve(at)?;
        let (number, hash, root) = match state.at {
            Some((number, Some(hash), root)) => (number, hash, root),
            Some((number, None, _)) => return Err(StateError::Unsealed { number }),
            None => return Err(StateError::UnknownBlock { hash: B256::ZERO }),
        };
        let (found, bytes) = prove(&state)?;
        Ok((found, StateProof::of(identity, BlockRef::new(number, hash), root, bytes)))
    }

    /// What the store holds at its durable tip.
    pub fn stats(&self) -> Result<StoreStats, StateError> {
        let state = self.resolve(At::Tip)?;
        let snapshot = &state.view.durable.snapshot;
        let (file_bytes, retained_file_bytes) =
            self.shared.file_bytes(self.options.dir.as_deref(), &state.view)?;
        let backend = self.shared.backend.stats(&state.view, &state.cache)?;
        let (journal_rows, undo_rows) = (snapshot.count(JOURNAL)?, snapshot.count(UNDO)?);
        let inner = self.shared.inner.lock();
        Ok(StoreStats {
            backend,
            pending_bytes: inner.pending_bytes(),
            journal_rows,
            undo_rows,
            file_bytes,
            retained_file_bytes,
            first_retained: inner.blocks.first_key_value().map(|(number, _)| *number),
        })
    }

    /// Entries of the state `at` in key order from `start` on, at most `limit`.
    pub fn entries(
        &self,
        at: At<'_>,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let state = self.resolve(at)?;
        self.shared.backend.entries(&state.view, &state.cache, start, limit)
    }

    // -- finding a state ------------------------------------------------------------------------

    fn refuse_if_poisoned(&self) -> Result<(), StateError> {
        if self.shared.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        Ok(())
    }

    pub(crate) fn resolve(&self, at: At<'_>) -> Result<Resolved, StateError> {
        let _still = self.transition.read();
        self.refuse_if_poisoned()?;
        let inner = self.shared.inner.lock();
        let proposal = match at {
            At::Tip => {
                let tip = inner.tip_block();
                return self.resolve_durable(inner, tip);
            }
            At::Proposal(proposal) => proposal.clone(),
            At::Block(hash) => {
                if let Some((block, _)) = inner.durable(hash) {
                    return self.resolve_durable(inner, Some(block));
                }
                inner.live_proposal(hash).ok_or(StateError::UnknownBlock { hash })?
            }
        };
        // Walk down to the nearest durable ancestor.
        let mut layers = Vec::new();
        let mut at = Parent::Proposal(proposal.clone());
        let base = loop {
            at = match at {
                Parent::Durable(Some(block)) if !inner.is_durable(block) => {
                    // It was durable when the child was committed, and reverted since.
                    match inner.live_proposal(block.hash) {
                        Some(proposal) => Parent::Proposal(proposal),
                        None => return Err(StateError::UnknownBlock { hash: block.hash }),
                    }
                }
                Parent::Durable(block) => break block,
                Parent::Proposal(proposal) => match proposal.block() {
                    Some(block) if inner.is_durable(block) => break Some(block),
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
        let mut view = self.view_of_durable(inner, base)?;
        view.stack = stack;
        Ok(Resolved {
            view,
            cache: proposal.0.cache.clone(),
            at: Some((proposal.0.number, proposal.hash(), proposal.0.root)),
            parent: Parent::Proposal(proposal),
            base,
        })
    }

    fn resolve_durable(
        &self,
        inner: MutexGuard<'_, Inner>,
        block: Option<BlockRef>,
    ) -> Result<Resolved, StateError> {
        let root = block.and_then(|block| inner.blocks.get(&block.number)).map(|(_, root)| *root);
        let known = block.and_then(|block| inner.cache_of(block));
        let view = self.view_of_durable(inner, block)?;
        let cache = match known {
            Some(cache) => cache,
            None => {
                let cache = self.shared.backend.open(&view, &self.jobs)?;
                if let Some(block) = block {
                    self.shared.inner.lock().remember_opened(block.hash, cache.clone());
                }
                cache
            }
        };
        let at = block.zip(root).map(|(block, root)| (block.number, Some(block.hash), root));
        Ok(Resolved { view, cache, at, parent: Parent::Durable(block), base: block })
    }

    /// The durable state of `block`, through undo if it lies below the tip.
    fn view_of_durable(
        &self,
        inner: MutexGuard<'_, Inner>,
        block: Option<BlockRef>,
    ) -> Result<View, StateError> {
        let mut view = self.shared.durable_view(&inner)?;
        let tip = inner.tip_block();
        if block == tip {
            return Ok(view);
        }
        let unknown = |block: Option<BlockRef>| StateError::UnknownBlock {
            hash: block.map_or(B256::ZERO, |block| block.hash),
        };
        let (Some(at), Some(tip)) = (block, tip) else { return Err(unknown(block)) };
        if !inner.is_durable(at) {
            return Err(unknown(block));
        }
        drop(inner);
        let snapshot = &*view.durable.snapshot;
        // The snapshot may be one commit ahead of memory, and that commit may have pruned.
        if undo::span(snapshot)?.is_none_or(|(first, _)| at.number + 1 < first) {
            return Err(self.beyond_retention(at.number));
        }
        let mut reverse = Layer::default();
        undo::onto(snapshot, &self.shared.tables, at.number + 1..=tip.number, &mut reverse)?;
        view.reverse = Some(Arc::new(reverse));
        Ok(view)
    }
}

/// The backend's faculty of EIP-1186 proofs.
pub(crate) fn account_proofs(backend: &dyn Backend) -> Result<&dyn AccountProofs, StateError> {
    let unsupported = || StateError::Unsupported {
        backend: backend.identity().name,
        what: "proofs in the form of EIP-1186",
    };
    backend.account_proofs().ok_or_else(unsupported)
}

impl Drop for StateStore {
    fn drop(&mut self) {
        self.shared.inner.lock().closing = true;
        self.shared.folding.notify_all();
        if let Some(folder) = self.folder.take() {
            // A panic of the folder has already been reported; what it left is in the journal.
            let _ = folder.join();
        }
    }
}
