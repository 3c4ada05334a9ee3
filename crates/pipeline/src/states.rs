//! The states of one chain: the backend's own, and beside it, if there is one, that of a referee,
//! whose roots are Ethereum's. They move together or not at all.
//!
//! ```text
//!  begin(at) -> StatesSession --finish(delta)--> Proposals --seal(hash)-->
//!     StatesTxn: rows of the chain, commit | revert | load of each state --finish--> one commit
//! ```
//!
//! # Locks
//!
//! Whatever changes the states takes, in this order: the *turn* of these states, the write
//! transaction of the database, the own store, the referee's. The turn ends when the memory of both
//! stores has followed. Without it the transaction would be free once it is committed, and a second
//! thread that has it could wait for the referee's store, while the first one holds that and waits
//! for a fold of its own state, which needs the transaction.

use crate::{PipelineError, RootMismatch};
use alloy_primitives::B256;
use parking_lot::{Mutex, MutexGuard};
use retrie_chainspec::primitives::SealedHeader;
use retrie_db::{ChainRead, Db, ReadTxn, StateRootMode, WriteTxn};
use retrie_state::{
    AfterCommit, AnyBackend, At, BlockRef, ChunkId, FlatHistory, KvStore, Namespace, Proposal, Run,
    Session, StateDelta, StateError, StateKey, StateStore, StoreOptions, Table, Value,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Names of the referee's tables start with this.
const REFEREE_PREFIX: &str = "Referee";
/// First table id of the referee; backends' own ids lie below.
const REFEREE_FIRST_ID: u8 = 0x80;
/// The state directory within the datadir, for files of backends. What no block names is deleted
/// there, so it must be a folder that nobody else uses.
const STATE_FOLDER: &str = "db/state-files";

/// Which states are meant.
#[derive(Clone, Copy, Debug)]
pub enum StatesAt<'a> {
    /// Those of the durable tip.
    Tip,
    /// Those after the block of this hash, as in [`At::Block`].
    Block(B256),
    /// Those after proposals.
    Proposals(&'a Proposals),
}

impl<'a> StatesAt<'a> {
    /// Where that is in the backend's own store.
    pub const fn own(self) -> At<'a> {
        match self {
            Self::Tip => At::Tip,
            Self::Block(hash) => At::Block(hash),
            Self::Proposals(proposals) => At::Proposal(&proposals.own),
        }
    }

    fn referee(self) -> Result<At<'a>, StateError> {
        match self {
            Self::Proposals(proposals) => match &proposals.referee {
                Some(proposal) => Ok(At::Proposal(proposal)),
                // Made without it.
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
pub struct Proposals {
    /// In the backend's own.
    pub own: Proposal,
    /// In the referee's, if there is one.
    pub referee: Option<Proposal>,
}

impl Proposals {
    /// Their roots.
    pub fn roots(&self) -> Roots {
        Roots { own: self.own.root(), referee: self.referee.as_ref().map(Proposal::root) }
    }

    /// Rows that they write.
    pub fn rows(&self) -> usize {
        self.own.rows() + self.referee.as_ref().map_or(0, Proposal::rows)
    }
}

/// The root of one block's state in each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The backend's own.
    pub own: B256,
    /// The referee's.
    pub referee: Option<B256>,
}

impl Roots {
    /// The one that a block built on these states has in its header.
    pub fn header(&self) -> B256 {
        self.referee.unwrap_or(self.own)
    }
}

#[derive(Debug)]
struct Referee {
    store: StateStore,
    names: Namespace,
}

/// The states of one chain.
#[derive(Debug)]
pub struct States {
    own: StateStore,
    referee: Option<Referee>,
    root_mode: StateRootMode,
    turn: Mutex<()>,
}

/// The backends of a chain's states.
pub(crate) struct StateBackends {
    pub(crate) own: Arc<dyn AnyBackend>,
    pub(crate) referee: Option<Arc<dyn AnyBackend>>,
    pub(crate) root_mode: StateRootMode,
}

impl StateBackends {
    /// Refuses backends that cannot check header roots, where they shall.
    pub(crate) fn check(&self) -> Result<(), PipelineError> {
        let own = (self.root_mode == StateRootMode::Header).then_some(&self.own);
        for backend in own.into_iter().chain(&self.referee) {
            if !backend.capabilities().ethereum_root {
                return Err(PipelineError::NoHeaderRoot { backend: backend.identity().name });
            }
        }
        Ok(())
    }

    /// The tables that they need.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables = StateStore::tables(&*self.own);
        tables.extend(self.referee.iter().flat_map(|referee| referee_names(&**referee).tables()));
        tables
    }
}

impl States {
    /// Opens the states of a datadir, whose folders for files are made if they are missing.
    pub(crate) fn open(
        db: &Db,
        backends: StateBackends,
        options: StoreOptions,
    ) -> Result<Self, PipelineError> {
        let StateBackends { own, referee, root_mode } = backends;
        let dir = |is_referee| make_state_folder(db.datadir(), is_referee).map(Some);
        let kv = db.state_store();
        let own = StateStore::open(own, kv.clone(), StoreOptions { dir: dir(false)?, ..options })?;
        let referee = match referee {
            None => None,
            Some(backend) => {
                // Old states are read from the backend's own store.
                let options =
                    StoreOptions { dir: dir(true)?, flat_history: FlatHistory::Off, ..options };
                let names = referee_names(&*backend);
                let store = StateStore::open(backend, names.store(kv), options)?;
                Some(Referee { store, names })
            }
        };
        Ok(Self { own, referee, root_mode, turn: Mutex::new(()) })
    }

    /// One of the states that a snapshot shows, made by `backend`, to be read alone.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_one_to_read(
        read: &Arc<ReadTxn>,
        backend: Arc<dyn AnyBackend>,
        is_referee: bool,
    ) -> Result<StateStore, StateError> {
        let mut kv: Arc<dyn KvStore> = read.state_store();
        if is_referee {
            kv = referee_names(&*backend).store(kv);
        }
        let dir = Some(state_folder(read.datadir(), is_referee));
        StateStore::open(
            backend,
            kv,
            StoreOptions { dir, read_only: true, ..StoreOptions::default() },
        )
    }

    /// A store by itself, whose roots are those of the headers: for blocks that are built outside a
    /// datadir.
    pub const fn alone(own: StateStore) -> Self {
        Self { own, referee: None, root_mode: StateRootMode::Native, turn: Mutex::new(()) }
    }

    /// The backend's own state.
    pub const fn own(&self) -> &StateStore {
        &self.own
    }

    /// The referee's.
    pub fn referee(&self) -> Option<&StateStore> {
        self.referee.as_ref().map(|referee| &referee.store)
    }

    /// What header state roots mean to these.
    pub const fn root_mode(&self) -> StateRootMode {
        self.root_mode
    }

    /// The stores, the own one first, with whether it is the referee's.
    pub fn stores(&self) -> impl Iterator<Item = (&StateStore, bool)> {
        [(&self.own, false)].into_iter().chain(self.referee().map(|store| (store, true)))
    }

    /// The store whose roots are those of the headers of blocks that are built on these states, and
    /// where `at` is in it.
    fn of_headers<'a>(&self, at: StatesAt<'a>) -> Result<(&StateStore, At<'a>), StateError> {
        match &self.referee {
            Some(referee) => Ok((&referee.store, at.referee()?)),
            None => Ok((&self.own, at.own())),
        }
    }

    /// Oldest durable block that can be read, extended and reverted to in each of them.
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
    pub fn begin(&self, at: StatesAt<'_>) -> Result<StatesSession<'_>, StateError> {
        let own = self.own.begin(at.own())?;
        let referee = match &self.referee {
            Some(referee) => Some(referee.store.begin(at.referee()?)?),
            None => None,
        };
        Ok(StatesSession { own, referee })
    }

    /// What learns the roots that receipts before Byzantium hold, in a block on the states `at`.
    pub(crate) fn receipt_roots<'a>(
        &'a self,
        at: StatesAt<'a>,
    ) -> Result<ReceiptRoots<'a>, StateError> {
        let (store, at) = self.of_headers(at)?;
        Ok(ReceiptRoots { store, at, last: None, roots: Vec::new(), time: Duration::ZERO })
    }

    /// Whether all of them take the blocks of a run at once.
    pub fn apply_runs(&self) -> bool {
        self.stores().all(|(store, _)| store.backend().applies_runs())
    }

    /// Names the block that the proposals are the states of.
    pub fn seal(&self, proposals: &Proposals, hash: B256) {
        self.own.seal(&proposals.own, hash);
        if let (Some(referee), Some(proposal)) = (&self.referee, &proposals.referee) {
            referee.store.seal(proposal, hash);
        }
    }

    // -- roots ------------------------------------------------------------------------------------

    /// Compares computed roots with that of the block's header, as far as they can be. Returns how
    /// many header roots were compared: 0 or 1.
    ///
    /// # Errors
    /// [`PipelineError::StateRoot`] names the first that differs.
    pub fn check_roots(&self, header: &SealedHeader, roots: Roots) -> Result<u64, PipelineError> {
        let own = (self.root_mode != StateRootMode::Shadow).then_some((&self.own, roots.own));
        let refereed = self.referee().zip(roots.referee);
        let mut checked = 0;
        for (store, got) in own.into_iter().chain(refereed) {
            let expected = header.state_root;
            if got != expected {
                let backend = store.identity().name;
                let source = Box::new(RootMismatch { expected, got, backend });
                let (number, hash) = (header.number, header.hash());
                return Err(PipelineError::StateRoot { number, hash, source });
            }
            checked = 1;
        }
        Ok(checked)
    }

    /// Records the roots beside the stored block `hash`.
    pub(crate) fn write_roots(
        &self,
        txn: &mut WriteTxn,
        hash: B256,
        roots: Roots,
    ) -> Result<(), PipelineError> {
        txn.insert_root(&hash, self.own.identity().name, &roots.own)?;
        if let Some((store, root)) = self.referee().zip(roots.referee) {
            txn.insert_root(&hash, store.identity().name, &root)?;
        }
        Ok(())
    }

    /// Records beside the stored block `hash` that no root of it was computed, as it lies in a run.
    pub(crate) fn defer_roots(&self, txn: &mut WriteTxn, hash: B256) -> Result<(), PipelineError> {
        for (store, _) in self.stores() {
            txn.defer_root(&hash, store.identity().name)?;
        }
        Ok(())
    }

    /// The roots at the durable tip; `None` while there is none.
    pub fn tip_roots(&self) -> Option<Roots> {
        let root = |store: &StateStore| store.tip().map(|tip| tip.root);
        Some(Roots { own: root(&self.own)?, referee: self.referee().and_then(root) })
    }

    /// Fails unless all are at the tip of the chain.
    pub(crate) fn check_tips(&self, db: &Db) -> Result<(), PipelineError> {
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
                Err(PipelineError::RefereeBehind { referee: show(referee), backend: show(own) })
            }
            _ => Ok(()),
        }
    }

    // -- what changes them ------------------------------------------------------------------------

    /// Begins a transaction in which these states change, once the one before has come to its end.
    /// The thread must not hold a write transaction.
    pub(crate) fn begin_write<'a>(&'a self, db: &Db) -> Result<StatesTxn<'a>, PipelineError> {
        let turn = self.turn.lock();
        Ok(StatesTxn { states: self, after: Vec::new(), txn: db.begin_write()?, _turn: turn })
    }

    /// Folds all that is committed into the tables.
    pub(crate) fn flush(&self) -> Result<(), StateError> {
        self.stores().try_for_each(|(store, _)| store.flush())
    }

    /// Bytes of the files of all.
    pub(crate) fn file_bytes(&self) -> Result<u64, StateError> {
        self.stores().map(|(store, _)| Ok(store.stats()?.file_bytes)).sum()
    }
}

/// The life of one block on top of its parent's states.
#[derive(Debug)]
pub struct StatesSession<'a> {
    own: Session<'a>,
    referee: Option<Session<'a>>,
}

impl<'a> StatesSession<'a> {
    /// The session on the backend's own state, from which the block reads.
    pub const fn own(&self) -> &Session<'a> {
        &self.own
    }

    /// Says that `keys` will probably be written.
    pub fn hint(&self, keys: &[StateKey]) {
        self.own.hint(keys);
        if let Some(referee) = &self.referee {
            referee.hint(keys);
        }
    }

    /// Says that `keys` have been read, and will probably be written, to those for whom that is news.
    pub(crate) fn hint_read(&self, keys: &[StateKey]) {
        self.all().filter(|session| session.heeds_reads()).for_each(|session| session.hint(keys));
    }

    /// Whether there are any.
    pub(crate) fn heeds_reads(&self) -> bool {
        self.all().any(Session::heeds_reads)
    }

    /// Says what the block has written since this was last called, to those that make something of it.
    pub(crate) fn foretell(&self, writes: &StateDelta) {
        let heeding = self.all().filter(|session| session.heeds_writes());
        heeding.for_each(|session| session.foretell(writes));
    }

    /// Whether there are any.
    pub(crate) fn heeds_writes(&self) -> bool {
        self.all().any(Session::heeds_writes)
    }

    fn all(&self) -> impl Iterator<Item = &Session<'a>> {
        std::iter::once(&self.own).chain(&self.referee)
    }

    /// Applies the block's delta in memory. Also returns how long the own state took.
    ///
    /// # Errors
    /// As [`Session::finish`].
    pub fn finish(self, delta: &StateDelta) -> Result<(Proposals, Duration), StateError> {
        let number = self.own.number();
        self.finish_as(number, delta)
    }

    /// The same as block `number`, as [`Session::finish_as`].
    ///
    /// # Errors
    /// As [`Session::finish_as`].
    pub fn finish_as(
        self,
        number: u64,
        delta: &StateDelta,
    ) -> Result<(Proposals, Duration), StateError> {
        self.finish_each(|session| session.finish_as(number, delta))
    }

    /// Applies a run of blocks in memory, at once.
    ///
    /// # Errors
    /// As [`Session::finish_run`].
    pub fn finish_run(self, run: &Run) -> Result<(Proposals, Duration), StateError> {
        self.finish_each(|session| session.finish_run(run))
    }

    fn finish_each(
        self,
        finish: impl Fn(Session<'a>) -> Result<Proposal, StateError>,
    ) -> Result<(Proposals, Duration), StateError> {
        let start = Instant::now();
        let own = finish(self.own)?;
        let took = start.elapsed();
        let referee = self.referee.map(finish).transpose()?;
        Ok((Proposals { own, referee }, took))
    }
}

/// The state roots in receipts before Byzantium (EIP-658): one throw-away proposal a transaction.
pub(crate) struct ReceiptRoots<'a> {
    store: &'a StateStore,
    at: At<'a>,
    last: Option<Proposal>,
    roots: Vec<B256>,
    time: Duration,
}

impl ReceiptRoots<'_> {
    /// Takes the delta of the next transaction.
    pub(crate) fn push(&mut self, delta: &StateDelta) -> Result<(), StateError> {
        let start = Instant::now();
        let at = self.last.as_ref().map_or(self.at, At::Proposal);
        let proposal = self.store.begin(at)?.finish(delta)?;
        self.roots.push(proposal.root());
        self.last = Some(proposal);
        self.time += start.elapsed();
        Ok(())
    }

    /// The roots, and how long they took.
    pub(crate) fn finish(self) -> (Vec<B256>, Duration) {
        (self.roots, self.time)
    }
}

/// The whole entries of a state in key order, to be read once for each store.
pub(crate) trait EntrySource {
    /// Begins at the first.
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(StateKey, Value), StateError>>, PipelineError>;
}

/// A write transaction of the database in which states change. Dropping it aborts, and leaves
/// stores that have been told to change unusable.
pub(crate) struct StatesTxn<'a> {
    states: &'a States,
    after: Vec<AfterCommit<'a>>,
    txn: WriteTxn,
    _turn: MutexGuard<'a, ()>,
}

impl StatesTxn<'_> {
    /// The transaction, for the rows of the chain.
    pub(crate) const fn rows(&mut self) -> &mut WriteTxn {
        &mut self.txn
    }

    /// Makes sealed proposals durable, each the child of the one before.
    pub(crate) fn commit(&mut self, proposals: &[Proposals]) -> Result<(), StateError> {
        let own: Vec<Proposal> = proposals.iter().map(|of| of.own.clone()).collect();
        self.after.push(self.states.own.commit(&own, &mut self.txn)?);
        if let Some(Referee { store, names }) = &self.states.referee {
            let of: Vec<Proposal> = proposals.iter().filter_map(|of| of.referee.clone()).collect();
            self.after.push(store.commit(&of, &mut names.txn(&mut self.txn))?);
        }
        Ok(())
    }

    /// Takes the durable states back to block `number`.
    pub(crate) fn revert(&mut self, number: u64) -> Result<(), StateError> {
        self.after.push(self.states.own.revert(number, &mut self.txn)?);
        if let Some(Referee { store, names }) = &self.states.referee {
            self.after.push(store.revert(number, &mut names.txn(&mut self.txn))?);
        }
        Ok(())
    }

    /// Loads the states, which must be empty, as those of `block`.
    pub(crate) fn load(
        &mut self,
        block: BlockRef,
        source: &mut impl EntrySource,
    ) -> Result<Roots, PipelineError> {
        let (own, after) =
            self.states.own.bulk_load(block, &mut source.entries()?, &mut self.txn)?;
        self.after.push(after);
        self.load_referee(block, own, source)
    }

    /// The same of a state whose entries came in these chunks.
    pub(crate) fn load_chunks(
        &mut self,
        block: BlockRef,
        parts: &[(ChunkId, u64)],
        source: &mut impl EntrySource,
    ) -> Result<Roots, PipelineError> {
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
    ) -> Result<Roots, PipelineError> {
        let mut referee = None;
        if let Some(Referee { store, names }) = &self.states.referee {
            let mut txn = names.txn(&mut self.txn);
            let (root, after) = store.bulk_load(block, &mut source.entries()?, &mut txn)?;
            referee = Some(root);
            self.after.push(after);
        }
        Ok(Roots { own, referee })
    }

    /// Commits, and lets memory follow.
    pub(crate) fn finish(self) -> Result<(), PipelineError> {
        let Self { _turn, after, txn, .. } = self;
        txn.commit()?;
        for after in after {
            after.run()?;
        }
        Ok(())
    }
}

/// Names of the tables of a referee.
fn referee_names(referee: &dyn AnyBackend) -> Namespace {
    Namespace::new(REFEREE_PREFIX, REFEREE_FIRST_ID, &StateStore::tables(referee))
}

/// Where the files of a state lie, or of the referee's.
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
