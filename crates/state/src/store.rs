//! [`StateStore`]: the contract that the client sees, the same for every backend.

use crate::{
    Backend, BackendStats, BlockRef, BulkSink, Direction, Identity, Jobs, KeyRange,
    KvStore, KvWrite, NodeRead, Proposal, Session, StateError, StateKey, StateProof, StateView,
    StoreError, Table, Value,
    backend::Cache,
    counters::{Counters, Counts},
    flat,
    journal::{self, DurableView, Generation, JOURNAL, Leases, RecordWriter},
    overlay::{FILES, Layer, LayerStack, View},
    proposal::{Parent, ProposalInner},
    session::Resolved,
    undo::{self, UNDO, UndoHead},
};
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, fs,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

/// Rows of the framework itself: `tip` and `folded`.
const META: Table = Table::framework(0xf3, "Meta");
const TIP: &[u8] = b"tip";
const FOLDED: &[u8] = b"folded";

/// Commits wait once this many generations are in memory: the active one, the one being folded,
/// and one more.
const MAX_GENERATIONS: usize = 3;

/// How a state store behaves; none of it changes a root.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How many blocks can be reverted. 0 keeps no undo at all.
    pub retention: u64,
    /// The active generation is folded once it takes this much memory, in bytes.
    pub fold_bytes: usize,
    /// The active generation is folded after this many commits, which bounds replay on reopening.
    pub fold_commits: usize,
    /// Directory for the backend's immutable files; needed by backends that write any.
    pub dir: Option<PathBuf>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { retention: 128, fold_bytes: 64 << 20, fold_commits: 4096, dir: None }
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
    /// Bytes of immutable files in use.
    pub file_bytes: u64,
    /// Oldest durable block that can be read, extended or reverted to.
    pub first_retained: Option<u64>,
}

// ---------------------------------------------------------------------------------------------
// The store
// ---------------------------------------------------------------------------------------------

/// A backend's state in a key-value store: sessions on any block, atomic commits, reverts, proofs.
///
/// | work | thread | completion point |
/// |---|---|---|
/// | `begin`, reads, `finish` | any, several at once | returns |
/// | `commit`, `revert`, `bulk_load` | one at a time | the caller's transaction commits, then [`AfterCommit::run`] |
/// | fold of a frozen generation | `state-fold` | its last slice commits |
/// | jobs | `state-job-0` | [`Jobs::wait`] at the block that needs the output |
pub struct StateStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: StoreOptions,
    pub(crate) jobs: Arc<Jobs>,
    commit: Mutex<()>,
    /// Held for writing while a revert is between its transaction and memory, as readers of blocks
    /// below the tip read undo rows from the tables.
    transition: RwLock<()>,
    folder: Option<std::thread::JoinHandle<()>>,
}

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    kv: Arc<dyn KvStore>,
    tables: Vec<Table>,
    counters: Arc<Counters>,
    leases: Arc<Leases>,
    poisoned: AtomicBool,
    inner: Mutex<Inner>,
    /// Signalled whenever the folder should look, or has finished a generation.
    folding: Condvar,
}

struct Inner {
    tip: Option<TipState>,
    /// Sequence number of the last commit; never reused, a revert counts as one.
    seq: u64,
    /// Oldest first; the last one is active, those before it are frozen.
    generations: Vec<Arc<Generation>>,
    /// Durable blocks that can be read and extended: number to (hash, root).
    blocks: BTreeMap<u64, (B256, B256)>,
    proposals: HashMap<B256, Weak<ProposalInner>>,
    fold_error: Option<String>,
    closing: bool,
}

#[derive(Clone)]
struct TipState {
    tip: Tip,
    cache: Cache,
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
        tables.extend([flat::TABLE, JOURNAL, UNDO, META, FILES]);
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
        let jobs = Arc::new(Jobs::new(options.dir.clone()));
        let counters = Arc::new(Counters::default());
        let leases = Arc::new(Leases::default());
        let snapshot = kv.snapshot()?;

        let meta = snapshot.get(META, TIP)?.map(|row| decode_tip(&row)).transpose()?;
        let folded = match snapshot.get(META, FOLDED)? {
            None => 0,
            Some(row) => u64::from_be_bytes(row[..].try_into().map_err(|_| {
                StateError::corrupt(META.name, "the row `folded` is not a sequence number")
            })?),
        };
        let seq = meta.map_or(0, |(_, seq)| seq);
        let replayed = Arc::new(journal::replay(&*snapshot, &tables, folded, seq)?);
        let mut blocks = BTreeMap::new();
        if let Some((first, last)) = undo::span(&*snapshot)? {
            for number in first..=last {
                let (head, _) = undo::read(&*snapshot, &tables, number)?;
                blocks.insert(number, (head.hash, head.root));
                if let (true, Some(parent)) = (number == first, number.checked_sub(1)) {
                    blocks.insert(parent, (head.parent_hash, head.parent_root));
                }
            }
        }
        let view = View {
            stack: LayerStack::default(),
            reverse: None,
            durable: Arc::new(DurableView::new(vec![replayed.clone()], seq, snapshot, &leases)),
            counters: counters.clone(),
        };
        let tip = match meta {
            None => None,
            Some((tip, _)) => {
                blocks.insert(tip.block.number, (tip.block.hash, tip.root));
                Some(TipState { tip, cache: backend.open(&view, &jobs)? })
            }
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
                proposals: HashMap::new(),
                fold_error: None,
                closing: false,
            }),
            folding: Condvar::new(),
        });
        shared.remove_unnamed_files(&view, options.dir.as_deref())?;
        let folder = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("state-fold".into())
                .spawn(move || shared.fold_loop())
                .map_err(|error| StoreError::new("starting the thread state-fold", error))?
        };
        Ok(Self {
            shared,
            options,
            jobs,
            commit: Mutex::new(()),
            transition: RwLock::new(()),
            folder: Some(folder),
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

    /// Counts at the node interface since opening.
    pub fn counts(&self) -> Counts {
        self.shared.counters.counts()
    }

    /// The job runner (the test-kit slows it down).
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Opens a session whose parent is `at`.
    pub fn begin(&self, at: At<'_>) -> Result<Session<'_>, StateError> {
        Ok(Session { store: self, state: self.resolve(at)? })
    }

    /// A reader of the state `at`.
    pub fn reader(&self, at: At<'_>) -> Result<StateView, StateError> {
        let state = self.resolve(at)?;
        Ok(StateView { shared: self.shared.clone(), view: state.view, cache: state.cache })
    }

    /// Root of the state `at`.
    pub fn root(&self, at: At<'_>) -> Result<B256, StateError> {
        Ok(self.resolve(at)?.at.map_or_else(|| self.shared.backend.empty_root(), |at| at.2))
    }

    /// Gives a proposal its block hash, under which [`At::Block`] finds it from now on.
    pub fn seal(&self, proposal: &Proposal, hash: B256) {
        if proposal.0.hash.set(hash).is_ok() {
            let mut inner = self.shared.inner.lock();
            if inner.proposals.len() >= 64 {
                inner.proposals.retain(|_, proposal| proposal.strong_count() > 0);
            }
            inner.proposals.insert(hash, Arc::downgrade(&proposal.0));
        }
    }

    /// A proof of the values of `keys` at `at`, which must be a block (durable or sealed).
    pub fn prove(&self, at: At<'_>, keys: &[StateKey]) -> Result<StateProof, StateError> {
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
        let bytes = self.shared.backend.prove(&state.view, &state.cache, keys)?;
        Ok(StateProof {
            backend: identity.name.into(),
            version: identity.version,
            hash: identity.hash.name().into(),
            params: identity.params,
            block: BlockRef::new(number, hash),
            root,
            bytes,
        })
    }

    /// Makes a chain of sealed proposals durable inside `txn`, the chain's own transaction: the
    /// first extends the durable tip, each of the others its predecessor.
    ///
    /// Nothing changes in memory until [`AfterCommit::run`], to be called once `txn` has committed.
    /// Dropping the returned value instead poisons the store.
    pub fn commit<'a>(
        &'a self,
        proposals: &[Proposal],
        txn: &mut dyn KvWrite,
    ) -> Result<AfterCommit<'a>, StateError> {
        let guard = self.lock_commit()?;
        let (mut tip, seq) = {
            let inner = self.shared.inner.lock();
            (inner.tip.as_ref().map(|state| state.tip), inner.seq + 1)
        };
        let mut blocks = Vec::with_capacity(proposals.len());
        for proposal in proposals {
            let number = proposal.number();
            let block = proposal.block().ok_or(StateError::Unsealed { number })?;
            if proposal.0.parent_block() != tip.map(|tip| tip.block) {
                let tip = tip.map_or_else(BlockRef::default, |tip| tip.block);
                return Err(StateError::NotOnTip { number, tip });
            }
            if let (Some(tip), true) = (tip, self.options.retention > 0) {
                let head = UndoHead {
                    hash: block.hash,
                    root: proposal.root(),
                    parent_hash: tip.block.hash,
                    parent_root: tip.root,
                };
                self.shared.counters.undo(undo::write(txn, number, head, &proposal.0.layer)?);
            }
            let new = Tip { block, root: proposal.root() };
            blocks.push(new);
            tip = Some(new);
        }
        let (Some(last), Some(tip)) = (proposals.last(), tip) else {
            return Ok(AfterCommit::nothing(self, guard));
        };
        let layer = match proposals {
            [one] => one.0.layer.clone(),
            many => {
                let layers: Vec<_> = many.iter().map(|p| p.0.layer.clone()).collect();
                Arc::new(Layer::merged(&layers))
            }
        };
        self.write_journal(txn, &layer, seq)?;
        txn.put(META, TIP, &encode_tip(tip, seq))?;
        let files = self.prune_within(txn, tip.block.number, self.options.retention)?;
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
                proposals: proposals.to_vec(),
                files,
            }),
        })
    }

    /// Takes the durable state back to block `to` inside `txn`. As with [`commit`](Self::commit),
    /// run the returned step once `txn` has committed.
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
        let Some(tip) = tip else { return Ok(AfterCommit::nothing(self, guard)) };
        if to == tip.block.number {
            return Ok(AfterCommit::nothing(self, guard));
        }
        let Some((hash, root)) = target else { return Err(self.beyond_retention(to)) };
        let mut layer = Layer::default();
        for number in (to + 1..=tip.block.number).rev() {
            let (_, rows) = undo::read(txn, &self.shared.tables, number)?;
            for (table, key, previous) in rows {
                layer.overwrite(table, key, previous);
            }
        }
        journal::delete_records(txn, UNDO, to + 1, tip.block.number + 1)?;
        let layer = Arc::new(layer);
        self.write_journal(txn, &layer, seq)?;
        let tip = Tip { block: BlockRef::new(to, hash), root };
        txn.put(META, TIP, &encode_tip(tip, seq))?;

        // The target's in-memory structure is rebuilt before anything becomes true.
        let mut view = self.durable_view(None)?;
        view.stack = view.stack.pushed(layer.clone());
        let cache = self.shared.backend.open(&view, &self.jobs)?;
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
                proposals: Vec::new(),
                files: Vec::new(),
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
        let files = self.prune_within(txn, tip.tip.block.number, keep)?;
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
                proposals: Vec::new(),
                files,
            }),
        })
    }

    /// Loads a whole state, sorted by key, as `block`, straight into the tables and inside `txn`.
    /// The state must be empty. There is no undo below this block.
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
        let mut sink = Sink { txn };
        let root = self.shared.backend.bulk_load(block.number, entries, &mut sink)?;
        let tip = Tip { block, root };
        txn.put(META, TIP, &encode_tip(tip, seq))?;
        // The rows went past the journal, so the journal counts as folded up to here.
        txn.put(META, FOLDED, &seq.to_be_bytes())?;
        let after = AfterCommit {
            store: self,
            guard: Some(guard),
            transition: None,
            change: Some(Installation {
                seq,
                layer: None,
                tip: TipState { tip, cache: Arc::new(()) },
                blocks: vec![tip],
                reverted_above: None,
                proposals: Vec::new(),
                files: Vec::new(),
            }),
        };
        Ok((root, after))
    }

    /// Folds everything that is committed into the tables and waits for it. Changes no state.
    pub fn flush(&self) -> Result<(), StateError> {
        let guard = self.lock_commit()?;
        let mut inner = self.shared.inner.lock();
        self.freeze(&mut inner);
        let seq = inner.seq;
        // Not while waiting: the folder needs the write transaction, which may belong to a thread
        // that waits to commit.
        drop(guard);
        self.await_fold(inner, |inner| {
            !inner.generations.iter().any(|g| !g.is_empty() && g.last_seq() <= seq)
        })
    }

    /// What the store holds at its durable tip.
    pub fn stats(&self) -> Result<StoreStats, StateError> {
        let state = self.resolve(At::Tip)?;
        let snapshot = &state.view.durable.snapshot;
        let mut file_bytes = 0;
        if let Some(dir) = &self.options.dir {
            for row in state.view.scan(FILES, KeyRange::ALL, Direction::Forward)? {
                let path = dir.join(&*String::from_utf8_lossy(&row?.0));
                file_bytes += fs::metadata(path).map_or(0, |meta| meta.len());
            }
        }
        let inner = self.shared.inner.lock();
        Ok(StoreStats {
            backend: self.shared.backend.stats(&state.view, &state.cache)?,
            pending_bytes: inner.generations.iter().map(|g| g.bytes() as u64).sum(),
            journal_rows: snapshot.count(JOURNAL)?,
            undo_rows: snapshot.count(UNDO)?,
            file_bytes,
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

    // -- internals ------------------------------------------------------------------------------

    fn lock_commit(&self) -> Result<MutexGuard<'_, ()>, StateError> {
        let guard = self.commit.lock();
        if self.shared.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        if let Some(error) = &self.shared.inner.lock().fold_error {
            return Err(StoreError::new("folding the journal", error.clone()).into());
        }
        Ok(guard)
    }

    fn beyond_retention(&self, number: u64) -> StateError {
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

    /// Drops undo records that lie deeper than `keep` blocks below `tip`.
    fn prune_within(
        &self,
        txn: &mut dyn KvWrite,
        tip: u64,
        keep: u64,
    ) -> Result<Vec<String>, StateError> {
        match undo::span(txn)? {
            Some((first, _)) if first + keep <= tip => {
                undo::prune(txn, &self.shared.tables, first, tip + 1 - keep)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The durable state right now; with `inner` given, under its lock.
    fn durable_view(&self, inner: Option<&Inner>) -> Result<View, StateError> {
        let locked;
        let inner = match inner {
            Some(inner) => inner,
            None => {
                locked = self.shared.inner.lock();
                &locked
            }
        };
        // Under the lock: a generation is dropped only after its fold has committed, so a snapshot
        // taken now has all that these generations lack.
        let snapshot = self.shared.kv.snapshot()?;
        let generations = inner.generations.iter().filter(|g| !g.is_empty()).cloned().collect();
        Ok(View {
            stack: LayerStack::default(),
            reverse: None,
            durable: Arc::new(DurableView::new(
                generations,
                inner.seq,
                snapshot,
                &self.shared.leases,
            )),
            counters: self.shared.counters.clone(),
        })
    }

    fn resolve(&self, at: At<'_>) -> Result<Resolved, StateError> {
        let _still = self.transition.read();
        if self.shared.poisoned.load(Ordering::Acquire) {
            return Err(StateError::Poisoned);
        }
        let inner = self.shared.inner.lock();
        let proposal = match at {
            At::Tip => {
                let tip = inner.tip.as_ref().map(|state| state.tip.block);
                return self.resolve_durable(inner, tip);
            }
            At::Proposal(proposal) => proposal.clone(),
            At::Block(hash) => {
                let durable = inner.blocks.iter().find(|(_, (at, _))| *at == hash);
                if let Some((number, _)) = durable {
                    let block = BlockRef::new(*number, hash);
                    return self.resolve_durable(inner, Some(block));
                }
                let live = inner.proposals.get(&hash).and_then(Weak::upgrade);
                Proposal(live.ok_or(StateError::UnknownBlock { hash })?)
            }
        };
        // Walk down to the nearest durable ancestor; usually the cached stack starts there.
        let tip = inner.tip.as_ref().map(|state| state.tip.block);
        let (stack, base) = if proposal.0.base == tip
            && proposal.block().is_none_or(|block| !inner.is_durable(block))
        {
            (proposal.0.stack.clone(), tip)
        } else {
            let mut layers = Vec::new();
            let mut at = Parent::Proposal(proposal.clone());
            let base = loop {
                at = match at {
                    Parent::Durable(block) => break block,
                    Parent::Proposal(proposal) => match proposal.block() {
                        Some(block) if inner.is_durable(block) => break Some(block),
                        _ => {
                            layers.push(proposal.0.layer.clone());
                            let parent = proposal.0.parent.lock().clone();
                            parent
                        }
                    },
                };
            };
            let stack = layers
                .into_iter()
                .rev()
                .fold(LayerStack::default(), |stack, layer| stack.pushed(layer));
            (stack, base)
        };
        let mut view = self.view_of_durable(&inner, base)?;
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
        let view = self.view_of_durable(&inner, block)?;
        let tip = inner.tip.clone();
        let root = block.and_then(|block| inner.blocks.get(&block.number)).map(|(_, root)| *root);
        drop(inner);
        let cache = match tip {
            Some(state) if Some(state.tip.block) == block => state.cache,
            _ => self.shared.backend.open(&view, &self.jobs)?,
        };
        let at = block.zip(root).map(|(block, root)| (block.number, Some(block.hash), root));
        Ok(Resolved { view, cache, at, parent: Parent::Durable(block), base: block })
    }

    /// The durable state of `block`, through undo if it lies below the tip.
    fn view_of_durable(&self, inner: &Inner, block: Option<BlockRef>) -> Result<View, StateError> {
        let mut view = self.durable_view(Some(inner))?;
        let tip = inner.tip.as_ref().map(|state| state.tip.block);
        if block == tip {
            return Ok(view);
        }
        let (Some(block), Some(tip)) = (block, tip) else {
            return Err(StateError::UnknownBlock { hash: B256::ZERO });
        };
        if !inner.is_durable(block) {
            return Err(StateError::UnknownBlock { hash: block.hash });
        }
        let mut reverse = Layer::default();
        for number in (block.number + 1..=tip.number).rev() {
            let (_, rows) = undo::read(&*view.durable.snapshot, &self.shared.tables, number)?;
            for (table, key, previous) in rows {
                reverse.overwrite(table, key, previous);
            }
        }
        view.reverse = Some(Arc::new(reverse));
        Ok(view)
    }

    /// Hands the active generation to the folder.
    fn freeze(&self, inner: &mut Inner) {
        if inner.generations.last().is_some_and(|active| !active.is_empty()) {
            inner.generations.push(Arc::new(Generation::new(&self.shared.tables)));
            self.shared.folding.notify_all();
        }
    }

    /// Waits for the folder until `done`.
    fn await_fold(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        done: impl Fn(&Inner) -> bool,
    ) -> Result<(), StateError> {
        while !done(&inner) {
            if let Some(error) = &inner.fold_error {
                return Err(StoreError::new("folding the journal", error.clone()).into());
            }
            self.shared.folding.wait(&mut inner);
        }
        Ok(())
    }
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

impl Inner {
    fn is_durable(&self, block: BlockRef) -> bool {
        self.blocks.get(&block.number).is_some_and(|(hash, _)| *hash == block.hash)
    }
}

impl Shared {
    /// Thread `state-fold`: folds frozen generations, oldest first, until the store closes.
    fn fold_loop(&self) {
        let mut inner = self.inner.lock();
        loop {
            if inner.closing {
                return;
            }
            if inner.generations.len() < 2 || inner.fold_error.is_some() {
                self.folding.wait(&mut inner);
                continue;
            }
            let generation = inner.generations[0].clone();
            drop(inner);
            let last = generation.last_seq();
            let outcome = journal::fold(&*self.kv, &generation, std::thread::yield_now, |txn| {
                let first = txn.seek(JOURNAL, Some(&[]), Direction::Forward)?;
                let first = first.and_then(|(key, _)| journal::record_id(JOURNAL, &key).ok());
                journal::delete_records(txn, JOURNAL, first.unwrap_or(0), last + 1)?;
                txn.put(META, FOLDED, &last.to_be_bytes())
            });
            inner = self.inner.lock();
            match outcome {
                Ok(rows) => {
                    self.counters.folded(rows);
                    inner.generations.remove(0);
                }
                Err(error) => {
                    tracing::error!(%error, "folding the state journal failed; nothing is lost");
                    inner.fold_error = Some(error.to_string());
                }
            }
            self.folding.notify_all();
        }
    }

    /// Deletes files that neither the tip nor any retained block names.
    fn remove_unnamed_files(
        &self,
        view: &View,
        dir: Option<&std::path::Path>,
    ) -> Result<(), StateError> {
        let Some(dir) = dir else { return Ok(()) };
        let fail = |error| StoreError::new(format!("reading {}", dir.display()), error);
        let mut named = BTreeSet::new();
        for row in view.scan(FILES, KeyRange::ALL, Direction::Forward)? {
            named.insert(String::from_utf8_lossy(&row?.0).into_owned());
        }
        let snapshot = &*view.durable.snapshot;
        if let Some((first, last)) = undo::span(snapshot)? {
            for number in first..=last {
                let (_, rows) = undo::read(snapshot, &self.tables, number)?;
                let files = rows.iter().filter(|(table, ..)| *table == FILES);
                named.extend(files.map(|(_, key, _)| String::from_utf8_lossy(key).into_owned()));
            }
        }
        for entry in fs::read_dir(dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !named.contains(&name) && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::remove_file(entry.path()).map_err(fail)?;
            }
        }
        Ok(())
    }
}

// ---------------------------------------------------------------------------------------------
// After-commit steps
// ---------------------------------------------------------------------------------------------

/// What remains to be done once the chain's transaction has committed: memory follows disk, jobs
/// start, files go. Dropped without [`run`](Self::run), it poisons the store, as the transaction's
/// fate is then unknown.
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
    proposals: Vec<Proposal>,
    files: Vec<String>,
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

    /// Installs the committed state in memory. Waits only when folding lags far behind.
    pub fn run(mut self) -> Result<(), StateError> {
        let Some(change) = self.change.take() else { return Ok(()) };
        let (store, shared) = (self.store, &self.store.shared);
        let active = shared.inner.lock().generations.last().cloned();
        if let (Some(layer), Some(active)) = (&change.layer, active) {
            // Readers do not see these versions before `seq` is raised below.
            active.insert(change.seq, layer, shared.leases.oldest(change.seq - 1));
        }
        let mut inner = shared.inner.lock();
        inner.seq = change.seq;
        if let Some(to) = change.reverted_above {
            inner.blocks.split_off(&(to + 1));
        }
        for tip in change.blocks {
            inner.blocks.insert(tip.block.number, (tip.block.hash, tip.root));
            inner.proposals.remove(&tip.block.hash);
        }
        let number = change.tip.tip.block.number;
        while let Some(first) = inner.blocks.first_entry()
            && first.key() + store.options.retention < number
        {
            first.remove();
        }
        // A bulk load leaves rows but no cache.
        let is_bulk = change.layer.is_none() && inner.tip.is_none();
        inner.tip = Some(change.tip);
        for proposal in &change.proposals {
            if let Some(block) = proposal.0.parent_block() {
                *proposal.0.parent.lock() = Parent::Durable(Some(block));
            }
        }
        let active = inner.generations.last();
        if active.is_some_and(|active| {
            active.bytes() > store.options.fold_bytes
                || active.commits() >= store.options.fold_commits
        }) {
            store.freeze(&mut inner);
        }
        drop(inner);
        if is_bulk {
            let view = store.durable_view(None)?;
            let cache = shared.backend.open(&view, &store.jobs)?;
            if let Some(state) = &mut shared.inner.lock().tip {
                state.cache = cache;
            }
        }
        if let Some(dir) = &store.options.dir {
            for file in change.files {
                // What cannot be deleted now is removed at the next open.
                if let Err(error) = fs::remove_file(dir.join(&file)) {
                    tracing::debug!(file, %error, "state file not removed");
                }
            }
        }
        drop(self.transition.take());
        drop(self.guard.take());
        store.await_fold(shared.inner.lock(), |inner| inner.generations.len() <= MAX_GENERATIONS)
    }
}

impl Drop for AfterCommit<'_> {
    fn drop(&mut self) {
        if self.change.is_some() {
            self.store.shared.poisoned.store(true, Ordering::Release);
        }
    }
}

/// Bulk rows into a transaction: appended while they come in order, else put.
struct Sink<'a> {
    txn: &'a mut dyn KvWrite,
}

impl BulkSink for Sink<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        Ok(self.txn.append(table, key, value)?)
    }
}

/// `number (8, BE) || hash || root || seq (8, BE)`.
fn encode_tip(tip: Tip, seq: u64) -> [u8; 80] {
    let mut row = [0; 80];
    row[..8].copy_from_slice(&tip.block.number.to_be_bytes());
    row[8..40].copy_from_slice(tip.block.hash.as_slice());
    row[40..72].copy_from_slice(tip.root.as_slice());
    row[72..].copy_from_slice(&seq.to_be_bytes());
    row
}

fn decode_tip(row: &[u8]) -> Result<(Tip, u64), StateError> {
    let row: &[u8; 80] = row
        .try_into()
        .map_err(|_| StateError::corrupt(META.name, "the row `tip` is not 80 bytes long"))?;
    let word =
        |at: usize| row[at..at + 8].iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let tip = Tip {
        block: BlockRef::new(word(0), B256::from_slice(&row[8..40])),
        root: B256::from_slice(&row[40..72]),
    };
    Ok((tip, word(72)))
}
