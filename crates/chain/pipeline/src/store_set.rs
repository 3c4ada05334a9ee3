//! The states of one chain: the own backend's and, if there is one, the referee's, whose roots
//! headers carry. Both change together or not at all.
//!
//! ```text
//!  begin(id) -> SessionSet --finish(delta)--> ProposalSet --seal(hash)-->
//!     StoreSetTxn: rows of the chain, commit | revert | load of each state --finish--> one commit
//! ```
//!
//! Both stores get every delta, whatever [kind](RootKind) of root a header carries, so a reorg across
//! the switch to the binary tree is like any other. The roots of stores that fit the header's time
//! are compared with it; other roots are recorded beside it. A chain whose headers carry the own
//! backend's roots (`StateRootMode::Native`) never switches.
//!
//! # Locks
//!
//! Every change of the states takes these locks in this order: the *turn* of the store set, the
//! write transaction of the database, the own store, the referee's store. The turn ends when the
//! memory of both stores has been updated. Without the turn there is a deadlock: the transaction is
//! free once it is committed; a second thread takes it and waits for the referee's store, while the
//! first thread holds that store and waits for a fold of its own state, which needs the
//! transaction.

use crate::{
    ChainSetupError, InvalidBlockError, PipelineError, RootKind, RootMismatch,
    preimages::DeltaPreimages,
    state_backends::{REFEREE_PREFIX, StateBackends, referee_names},
};
use alloy_primitives::B256;
use parking_lot::{Mutex, MutexGuard};
use retrie_chainspec::primitives::SealedHeader;
use retrie_db::{ChainRead, DatabaseEnv, ReadTxn, StateRootMode, WriteTxn};
use retrie_state::{
    AnyBackend, BackendKey, BackendProfile, BlockRef, ChunkId, DeltaBatch, StateDelta, StateError,
    StateKey, StateValue, StoreError,
};
use retrie_state_store::{
    AfterCommit, FlatHistory, KvStore, Proposal, RootTask, StateId, StateSession, StateStore,
    StoreOptions, TableNamespace,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// The state directory within the datadir, for files of backends. Files there that no block names
/// are deleted, so nothing else may use this folder.
const STATE_FOLDER: &str = "db/state-files";

/// Names one state in each store, as [`StateId`] does for one store.
#[derive(Clone, Copy, Debug)]
pub enum StoreSetId<'a> {
    /// The states of the durable tip.
    Tip,
    /// The states after the block with this hash, as in [`StateId::Block`].
    Block(B256),
    /// The states after a block that is not committed.
    Proposals(&'a ProposalSet),
}

impl<'a> StoreSetId<'a> {
    /// The state in the own store.
    pub const fn own(self) -> StateId<'a> {
        match self {
            Self::Tip => StateId::Tip,
            Self::Block(hash) => StateId::Block(hash),
            Self::Proposals(proposals) => StateId::Proposal(&proposals.own),
        }
    }

    fn referee(self) -> Result<StateId<'a>, StateError> {
        match self {
            Self::Proposals(proposals) => match &proposals.referee {
                Some(proposal) => Ok(StateId::Proposal(proposal)),
                // The proposal was made without a referee.
                None => {
                    Err(StateError::UnknownBlock { hash: proposals.own.hash().unwrap_or_default() })
                }
            },
            at => Ok(at.own()),
        }
    }
}

/// One block's state in each store, in memory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProposalSet {
    /// The own backend's proposal.
    pub own: Proposal,
    /// The referee's proposal, if there is a referee.
    pub referee: Option<Proposal>,
}

impl ProposalSet {
    /// The roots of the proposals.
    pub fn roots(&self) -> RootSet {
        RootSet { own: self.own.root(), referee: self.referee.as_ref().map(Proposal::root) }
    }

    /// Number of rows that the proposals write.
    pub fn rows(&self) -> usize {
        self.own.rows() + self.referee.as_ref().map_or(0, Proposal::rows)
    }
}

/// The root of one block's state in each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSet {
    /// The own backend's root.
    pub own: B256,
    /// The referee's root.
    pub referee: Option<B256>,
}

#[derive(Debug)]
pub(crate) struct RefereeStore {
    pub(crate) store: StateStore,
    pub(crate) names: TableNamespace,
    /// How it was opened.
    pub(crate) options: StoreOptions,
}

impl RefereeStore {
    fn profile(&self) -> BackendProfile {
        self.store.backend().profile()
    }
}

/// The state stores of one chain.
#[derive(Debug)]
pub struct StoreSet {
    own: StateStore,
    referee: Option<RefereeStore>,
    /// Name of a referee that still has to join.
    unjoined: Option<&'static str>,
    root_mode: StateRootMode,
    binary_tree_time: Option<u64>,
    keeps_preimages: bool,
    turn: Mutex<()>,
}

impl StoreSet {
    /// Opens the stores of a datadir. Creates missing folders for files.
    pub(crate) fn open(
        db: &DatabaseEnv,
        backends: StateBackends,
        options: StoreOptions,
    ) -> Result<Self, PipelineError> {
        let StateBackends { own, referee, root_mode, binary_tree_time, .. } = backends;
        let dir = |is_referee| make_state_folder(db.datadir(), is_referee).map(Some);
        let keeps_preimages = !options.keys.is_plain() && db.begin_read()?.keeps_preimages()?;
        let kv = db.state_store();
        let own = StateStore::open(own, kv.clone(), StoreOptions { dir: dir(false)?, ..options })?;
        let referee = match referee {
            None => None,
            Some(backend) => {
                // Old states are read from the own store only.
                let options =
                    StoreOptions { dir: dir(true)?, flat_history: FlatHistory::Off, ..options };
                let names = referee_names(&*backend);
                let store = StateStore::open(backend, names.store(kv), options.clone())?;
                Some(RefereeStore { store, names, options })
            }
        };
        let turn = Mutex::new(());
        let unjoined = None;
        Ok(Self { own, referee, unjoined, root_mode, binary_tree_time, keeps_preimages, turn })
    }

    /// One of the states in a snapshot, made by `backend`, opened to be read only.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn open_read_only(
        read: &Arc<ReadTxn>,
        backend: Arc<dyn AnyBackend>,
        is_referee: bool,
    ) -> Result<StateStore, StateError> {
        let mut kv: Arc<dyn KvStore> = read.state_store();
        if is_referee {
            kv = referee_names(&*backend).store(kv);
        }
        let dir = Some(state_folder(read.datadir(), is_referee));
        let keys = match read.metadata() {
            Ok(metadata) => metadata.map(|metadata| metadata.keys.into()).unwrap_or_default(),
            Err(error) => {
                let action = format!("reading the identity of {}", read.datadir().display());
                return Err(StoreError::new(action, error).into());
            }
        };
        let options = StoreOptions { dir, keys, read_only: true, ..StoreOptions::default() };
        StateStore::open(backend, kv, options)
    }

    /// A store without a referee, whose roots are those of the headers: for blocks that are built
    /// outside a datadir.
    pub const fn single(own: StateStore) -> Self {
        Self {
            own,
            referee: None,
            unjoined: None,
            root_mode: StateRootMode::Native,
            binary_tree_time: None,
            keeps_preimages: false,
            turn: Mutex::new(()),
        }
    }

    /// Two stores beside each other, for blocks of a chain that switches to the binary tree and that
    /// are built outside a datadir. Both have header roots, each at its time.
    pub fn pair(own: StateStore, referee: StateStore, binary_tree_time: u64) -> Self {
        let names = referee_names(referee.backend());
        Self {
            referee: Some(RefereeStore { store: referee, names, options: StoreOptions::default() }),
            root_mode: StateRootMode::Header,
            binary_tree_time: Some(binary_tree_time),
            ..Self::single(own)
        }
    }

    /// The backend's own state.
    pub const fn own(&self) -> &StateStore {
        &self.own
    }

    /// The referee's state.
    pub fn referee(&self) -> Option<&StateStore> {
        self.referee.as_ref().map(|referee| &referee.store)
    }

    /// Takes the referee out, which is not at the tip of the chain and will join later. `None` if
    /// there is none, or if no other store has the roots that headers carry after `tip_time`.
    pub(crate) fn part_with_referee(&mut self, tip_time: u64) -> Option<RefereeStore> {
        let fits = self.root_kind(tip_time).is_of(&self.own.backend().profile());
        if self.root_mode == StateRootMode::Header && !fits {
            return None;
        }
        let referee = self.referee.take()?;
        self.unjoined = Some(referee.store.identity().name);
        Some(referee)
    }

    /// What header state roots mean for these stores.
    pub const fn root_mode(&self) -> StateRootMode {
        self.root_mode
    }

    /// The stores, the own one first. The flag tells whether it is the referee's.
    pub fn stores(&self) -> impl Iterator<Item = (&StateStore, bool)> {
        [(&self.own, false)].into_iter().chain(self.referee().map(|store| (store, true)))
    }

    /// The time from which on headers carry the binary tree's root.
    pub const fn binary_tree_time(&self) -> Option<u64> {
        self.binary_tree_time
    }

    /// The kind of root that headers with this timestamp carry.
    pub const fn root_kind(&self, timestamp: u64) -> RootKind {
        RootKind::at(self.binary_tree_time, timestamp)
    }

    /// The root that the header of a block with these states and this timestamp carries. If no store
    /// computes it, the root of a store that it does not carry.
    pub fn header_root(&self, roots: RootSet, timestamp: u64) -> B256 {
        let kind = self.root_kind(timestamp);
        match (&self.referee, roots.referee) {
            (Some(referee), Some(root)) if kind.is_of(&referee.profile()) => root,
            (_, Some(root)) if !kind.is_of(&self.own.backend().profile()) => root,
            _ => roots.own,
        }
    }

    /// The store with the root of the other kind than headers with this timestamp carry, and whether
    /// it is the referee's.
    pub fn shadow_store(&self, timestamp: u64) -> Option<(&StateStore, bool)> {
        if self.root_mode == StateRootMode::Native {
            return None;
        }
        let kind = self.root_kind(timestamp).other();
        self.stores().find(|(store, _)| kind.is_of(&store.backend().profile()))
    }

    /// The store whose roots are in receipts before Byzantium of blocks built on these states, and
    /// the state `at` in it.
    fn receipt_store<'a>(
        &self,
        at: StoreSetId<'a>,
    ) -> Result<(&StateStore, StateId<'a>), StateError> {
        match &self.referee {
            Some(referee) if referee.profile().ethereum_root => Ok((&referee.store, at.referee()?)),
            _ => Ok((&self.own, at.own())),
        }
    }

    /// Oldest durable block that can be read, extended and reverted to in every store.
    pub fn first_retained(&self) -> Option<u64> {
        let mut first = 0;
        for (store, _) in self.stores() {
            first = first.max(*store.retained()?.start());
        }
        Some(first)
    }

    /// The error for a block below [`first_retained`](Self::first_retained).
    pub fn beyond_retention(&self, number: u64) -> StateError {
        let is_kept =
            |store: &StateStore| store.retained().is_some_and(|kept| number >= *kept.start());
        let store = self.stores().map(|(store, _)| store).find(|store| !is_kept(store));
        store.unwrap_or(&self.own).beyond_retention(number)
    }

    // -- blocks -----------------------------------------------------------------------------------

    /// Begins a block on the states `at`.
    ///
    /// # Errors
    /// As [`StateStore::begin`].
    pub fn begin(&self, at: StoreSetId<'_>) -> Result<SessionSet<'_>, StateError> {
        let own = self.own.begin(at.own())?;
        let referee = match &self.referee {
            Some(referee) => Some(referee.store.begin(at.referee()?)?),
            None => None,
        };
        Ok(SessionSet { own, referee })
    }

    /// Computes the roots in receipts before Byzantium, for a block on the states `at`.
    pub(crate) fn receipt_roots<'a>(
        &'a self,
        at: StoreSetId<'a>,
    ) -> Result<ReceiptRoots<'a>, StateError> {
        let (store, at) = self.receipt_store(at)?;
        Ok(ReceiptRoots { store, at, last: None, roots: Vec::new(), time: Duration::ZERO })
    }

    /// Whether all stores can apply the blocks of a batch at once.
    pub fn applies_batches(&self) -> bool {
        self.stores().all(|(store, _)| store.backend().applies_batches())
    }

    /// Names the block whose states the proposals are.
    pub fn seal(&self, proposals: &ProposalSet, hash: B256) {
        self.own.seal(&proposals.own, hash);
        if let (Some(referee), Some(proposal)) = (&self.referee, &proposals.referee) {
            referee.store.seal(proposal, hash);
        }
    }

    /// Whether the preimages of hashed keys are kept.
    pub const fn keeps_preimages(&self) -> bool {
        self.keeps_preimages
    }

    /// The preimages of the keys that these deltas write, if they are kept.
    pub(crate) fn preimages_of(
        &self,
        deltas: impl IntoIterator<Item = Arc<StateDelta>>,
    ) -> DeltaPreimages {
        match self.keeps_preimages {
            true => DeltaPreimages::new(deltas.into_iter().collect()),
            false => DeltaPreimages::default(),
        }
    }

    // -- roots ------------------------------------------------------------------------------------

    /// Compares computed roots with the header's root, where the root mode and the header's time
    /// allow it. Returns how many header roots were compared: 0 or 1.
    ///
    /// # Errors
    /// [`InvalidBlockError::StateRoot`] for the first root that differs;
    /// [`ChainSetupError::RefereeJoining`] if only a referee that still has to join can check it.
    pub fn check_roots(&self, header: &SealedHeader, roots: RootSet) -> Result<u64, PipelineError> {
        let kind = self.root_kind(header.timestamp);
        let fits = |store: &StateStore| kind.is_of(&store.backend().profile());
        let is_own = match self.root_mode {
            StateRootMode::Header => fits(&self.own),
            StateRootMode::Shadow => false,
            StateRootMode::Native => true,
        };
        let own = is_own.then_some((&self.own, roots.own));
        let refereed = self.referee().zip(roots.referee).filter(|(store, _)| fits(store));
        let mut checked = 0;
        for (store, got) in own.into_iter().chain(refereed) {
            let expected = header.state_root;
            if got != expected {
                let backend = store.identity().name;
                let source = Box::new(RootMismatch { expected, got, backend });
                let (number, hash) = (header.number, header.hash());
                return Err(InvalidBlockError::StateRoot { number, hash, source }.into());
            }
            checked = 1;
        }
        if let (0, StateRootMode::Header, Some(referee)) = (checked, self.root_mode, self.unjoined)
        {
            let number = header.number;
            return Err(ChainSetupError::RefereeJoining { number, kind, referee }.into());
        }
        Ok(checked)
    }

    /// Records the roots for the stored block `hash`.
    pub(crate) fn write_roots(
        &self,
        txn: &mut WriteTxn,
        hash: B256,
        roots: RootSet,
    ) -> Result<(), PipelineError> {
        txn.insert_root(&hash, self.own.identity().name, &roots.own)?;
        if let Some((store, root)) = self.referee().zip(roots.referee) {
            txn.insert_root(&hash, store.identity().name, &root)?;
        }
        Ok(())
    }

    /// Records for the stored block `hash` that its root was not computed, as it is within a batch.
    pub(crate) fn defer_roots(&self, txn: &mut WriteTxn, hash: B256) -> Result<(), PipelineError> {
        for (store, _) in self.stores() {
            txn.defer_root(&hash, store.identity().name)?;
        }
        Ok(())
    }

    /// The roots at the durable tip; `None` if there is no tip.
    pub fn tip_roots(&self) -> Option<RootSet> {
        let root = |store: &StateStore| store.tip().map(|tip| tip.root);
        Some(RootSet { own: root(&self.own)?, referee: self.referee().and_then(root) })
    }

    /// Fails unless all stores are at the tip of the chain.
    pub(crate) fn check_tips(&self, db: &DatabaseEnv) -> Result<(), PipelineError> {
        let tip = |store: &StateStore| store.tip().map(|tip| tip.block);
        let show =
            |block: Option<BlockRef>| block.map_or_else(|| "nothing".into(), |at| at.to_string());
        let (chain, own) = (db.begin_read()?.tip()?, tip(&self.own));
        if chain != own {
            let what = format!("the state is at {}, the chain at {}", show(own), show(chain));
            return Err(StateError::corrupt("Meta", what).into());
        }
        match self.referee().map(tip) {
            Some(referee) if referee != own => {
                Err(ChainSetupError::RefereeBehind { referee: show(referee), backend: show(own) }
                    .into())
            }
            _ => Ok(()),
        }
    }

    // -- what changes them ------------------------------------------------------------------------

    /// Begins a transaction that changes the states, once the transaction before has ended. The
    /// calling thread must not hold a write transaction.
    pub(crate) fn begin_write<'a>(
        &'a self,
        db: &DatabaseEnv,
    ) -> Result<StoreSetTxn<'a>, PipelineError> {
        let turn = self.turn.lock();
        Ok(StoreSetTxn { states: self, after: Vec::new(), txn: db.begin_write()?, _turn: turn })
    }

    /// Folds everything that is committed into the tables.
    pub(crate) fn flush(&self) -> Result<(), StateError> {
        self.stores().try_for_each(|(store, _)| store.flush())
    }

    /// Bytes of the files of all stores.
    pub(crate) fn file_bytes(&self) -> Result<u64, StateError> {
        self.stores().map(|(store, _)| Ok(store.stats()?.file_bytes)).sum()
    }
}

/// The state root tasks of one block, one for each store that has one.
#[derive(Debug)]
pub(crate) struct RootTaskSet<'s>(Vec<RootTask<'s>>);

impl RootTaskSet<'_> {
    /// Whether no store prepares its root.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`RootTask::prefetch`].
    pub(crate) fn prefetch(&self, keys: &[StateKey]) {
        self.0.iter().for_each(|task| task.prefetch(keys));
    }

    /// As [`RootTask::prepare_root`].
    pub(crate) fn prepare_root(&self, writes: &StateDelta) {
        self.0
            .iter()
            .filter(|task| task.prepares_root())
            .for_each(|task| task.prepare_root(writes));
    }

    /// Whether a task of the set [prepares its root](RootTask::prepares_root) from writes.
    pub(crate) fn prepares_root(&self) -> bool {
        self.0.iter().any(RootTask::prepares_root)
    }
}

/// The sessions on one block, on top of its parent's states.
#[derive(Debug)]
pub struct SessionSet<'a> {
    own: StateSession<'a>,
    referee: Option<StateSession<'a>>,
}

impl<'a> SessionSet<'a> {
    /// The session on the own store. The block reads from it.
    pub const fn own(&self) -> &StateSession<'a> {
        &self.own
    }

    /// The state root tasks of the stores whose backends prepare roots ahead of the delta.
    pub(crate) fn root_tasks(&self) -> RootTaskSet<'_> {
        RootTaskSet(self.all().filter_map(StateSession::root_task).collect())
    }

    fn all(&self) -> impl Iterator<Item = &StateSession<'a>> {
        std::iter::once(&self.own).chain(&self.referee)
    }

    /// Applies the block's delta in memory. Also returns how long the own store took.
    ///
    /// # Errors
    /// As [`StateSession::finish`].
    pub fn finish(self, delta: &StateDelta) -> Result<(ProposalSet, Duration), StateError> {
        let number = self.own.number();
        self.finish_as(number, delta)
    }

    /// The same as block `number`, as [`StateSession::finish_as`].
    ///
    /// # Errors
    /// As [`StateSession::finish_as`].
    pub fn finish_as(
        self,
        number: u64,
        delta: &StateDelta,
    ) -> Result<(ProposalSet, Duration), StateError> {
        self.finish_each(|session| session.finish_as(number, delta))
    }

    /// Applies a batch of blocks in memory, at once.
    ///
    /// # Errors
    /// As [`StateSession::finish_batch`].
    pub fn finish_batch(self, run: &DeltaBatch) -> Result<(ProposalSet, Duration), StateError> {
        self.finish_each(|session| session.finish_batch(run))
    }

    fn finish_each(
        self,
        finish: impl Fn(StateSession<'a>) -> Result<Proposal, StateError>,
    ) -> Result<(ProposalSet, Duration), StateError> {
        let start = Instant::now();
        let own = finish(self.own)?;
        let took = start.elapsed();
        let referee = self.referee.map(finish).transpose()?;
        Ok((ProposalSet { own, referee }, took))
    }
}

/// The state roots in receipts before Byzantium (EIP-658): one temporary proposal per transaction.
pub(crate) struct ReceiptRoots<'a> {
    store: &'a StateStore,
    at: StateId<'a>,
    last: Option<Proposal>,
    roots: Vec<B256>,
    time: Duration,
}

impl ReceiptRoots<'_> {
    /// Adds the delta of the next transaction.
    pub(crate) fn push(&mut self, delta: &StateDelta) -> Result<(), StateError> {
        let start = Instant::now();
        let at = self.last.as_ref().map_or(self.at, StateId::Proposal);
        let proposal = self.store.begin(at)?.finish(delta)?;
        self.roots.push(proposal.root());
        self.last = Some(proposal);
        self.time += start.elapsed();
        Ok(())
    }

    /// The roots, and how long their computation took.
    pub(crate) fn finish(self) -> (Vec<B256>, Duration) {
        (self.roots, self.time)
    }
}

/// All entries of a state in key order. They are read once for each store.
pub(crate) trait EntrySource {
    /// Starts from the first entry.
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, PipelineError>;
}

/// A write transaction of the database that changes the states. Dropping it aborts; stores that
/// have already been told to change are then unusable.
pub(crate) struct StoreSetTxn<'a> {
    states: &'a StoreSet,
    after: Vec<AfterCommit<'a>>,
    txn: WriteTxn,
    _turn: MutexGuard<'a, ()>,
}

impl<'a> StoreSetTxn<'a> {
    /// Changes a store beside the set, as `change` does with the rows of the database.
    pub(crate) fn with_store(
        &mut self,
        change: impl FnOnce(&mut WriteTxn) -> Result<AfterCommit<'a>, StateError>,
    ) -> Result<(), StateError> {
        self.after.push(change(&mut self.txn)?);
        Ok(())
    }
}

impl StoreSetTxn<'_> {
    /// The transaction, for the rows of the chain.
    pub(crate) const fn rows(&mut self) -> &mut WriteTxn {
        &mut self.txn
    }

    /// Makes sealed proposals durable. Each is the child of the one before.
    pub(crate) fn commit(&mut self, proposals: &[ProposalSet]) -> Result<(), StateError> {
        let own: Vec<Proposal> = proposals.iter().map(|of| of.own.clone()).collect();
        let journal = journal_span(&self.states.own).entered();
        self.after.push(self.states.own.commit(&own, &mut self.txn)?);
        drop(journal);
        if let Some(RefereeStore { store, names, .. }) = &self.states.referee {
            let _entered = journal_span(store).entered();
            let of: Vec<Proposal> = proposals.iter().filter_map(|of| of.referee.clone()).collect();
            self.after.push(store.commit(&of, &mut names.txn(&mut self.txn))?);
        }
        Ok(())
    }

    /// Reverts the durable states to block `number`.
    pub(crate) fn revert(&mut self, number: u64) -> Result<(), StateError> {
        self.after.push(self.states.own.revert(number, &mut self.txn)?);
        if let Some(RefereeStore { store, names, .. }) = &self.states.referee {
            self.after.push(store.revert(number, &mut names.txn(&mut self.txn))?);
        }
        Ok(())
    }

    /// Loads the states of `block`. The stores must be empty.
    pub(crate) fn load(
        &mut self,
        block: BlockRef,
        source: &mut impl EntrySource,
    ) -> Result<RootSet, PipelineError> {
        let (own, after) =
            self.states.own.bulk_load_keys(block, &mut source.entries()?, &mut self.txn)?;
        self.after.push(after);
        self.load_referee(block, own, source)
    }

    /// As [`load`](Self::load) for a state whose entries came in these chunks.
    pub(crate) fn load_chunks(
        &mut self,
        block: BlockRef,
        parts: &[(ChunkId, u64)],
        source: &mut impl EntrySource,
    ) -> Result<RootSet, PipelineError> {
        let (own, after) = {
            let mut entries = source.entries()?;
            self.states.own.load_chunks(block, parts, &mut entries, &mut self.txn)?
        };
        self.after.push(after);
        self.load_referee(block, own, source)
    }

    fn load_referee(
        &mut self,
        block: BlockRef,
        own: B256,
        source: &mut impl EntrySource,
    ) -> Result<RootSet, PipelineError> {
        let mut referee = None;
        if let Some(RefereeStore { store, names, .. }) = &self.states.referee {
            let mut txn = names.txn(&mut self.txn);
            let (root, after) = store.bulk_load_keys(block, &mut source.entries()?, &mut txn)?;
            referee = Some(root);
            self.after.push(after);
        }
        Ok(RootSet { own, referee })
    }

    /// Commits, and then updates the memory of the stores.
    pub(crate) fn finish(self) -> Result<(), PipelineError> {
        let Self { _turn, after, txn, .. } = self;
        let sync = tracing::debug_span!("sync");
        sync.in_scope(|| txn.commit())?;
        // Closes it: what follows changes memory.
        drop(sync);
        for after in after {
            after.run()?;
        }
        Ok(())
    }
}

/// The span of what a commit writes for one store: its journal and its undo rows.
fn journal_span(store: &StateStore) -> tracing::Span {
    tracing::debug_span!("journal", store = store.identity().name)
}

/// The folder for the files of the own state, or of the referee's.
pub fn state_folder(datadir: &Path, is_referee: bool) -> PathBuf {
    let mut folder = datadir.join(STATE_FOLDER);
    folder.extend(is_referee.then(|| REFEREE_PREFIX.to_lowercase()));
    folder
}

fn make_state_folder(datadir: &Path, is_referee: bool) -> Result<PathBuf, PipelineError> {
    let folder = state_folder(datadir, is_referee);
    std::fs::create_dir_all(&folder).map_err(|source| PipelineError::Io {
        action: format!("creating folder {}", folder.display()),
        source,
    })?;
    Ok(folder)
}
