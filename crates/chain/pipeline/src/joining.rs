//! [`JoiningReferee`]: a referee that joins a chain that has begun, or gone on, without it.
//!
//! ```text
//!  state of a durable block --entries--> bulk load of the referee's tables, in small transactions
//!  blocks above it --access list, or execution on the referee's own state--> deltas --> its commits
//!  level with the chain --> from the next opening on it is a referee like any other
//! ```
//!
//! This is the conversion of EIP-8347 for the partitioned binary tree, and the same for every other
//! backend. The chain goes on meanwhile: each transaction here ends as soon as another thread waits
//! for its turn, and is followed by a pause as long as it took.
//!
//! # Crashes
//!
//! The store has a tip from the last row of the load on. Without a tip, all its rows are deleted and
//! the load begins again. Above it, each commit has whole blocks.
//!
//! # Reorgs
//!
//! The loaded state is that of a block [`DEPTH`] below the tip. A referee whose tip is not canonical
//! any more goes back to an ancestor that is; if it does not retain one, it begins again.

use crate::{
    ChainOptions, ChainSetupError, ChainStore, InvalidBlockError, PipelineError, RootMismatch,
    StatePatch,
    entries::{PagedEntries, listed_state},
    store_set::RefereeStore,
    stored_context::StoredContext,
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use alloy_rlp::Decodable;
use parking_lot::Mutex;
use retrie_chainspec::primitives::SealedHeader;
use retrie_db::{ChainRead, CorruptRow, ReadError, ReadTxn, tables::ChainTable};
use retrie_execution::{BlockAccessList, CodeCache, ExecutionInput, LayeredState, execute_block};
use retrie_state::{
    Account, AnyBackend, BlockRef, DeltaBuilder, KeyRange, RowTable, ScanDirection, StateDelta,
    StateError, StateKey, StateReader, StoreError, TableRow, encode_slot,
};
use retrie_state_store::{
    KvRead, KvStore, KvTxn, KvWrite, Proposal, StateId, StateStore, StoreOptions, TableNamespace,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How far below the tip the block is whose state is loaded. Reorgs are rarely deeper.
const DEPTH: u64 = 32;
/// Blocks whose deltas are committed at a time.
const BATCH: usize = 32;
/// Bytes that a transaction of the load writes at most.
const STEP_BYTES: usize = 16 << 20;
/// The longest pause after a transaction.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Entries between two reports.
const REPORT: u64 = 1 << 12;
/// Memory for analysed codes.
const CODE_BYTES: u64 = 32 << 20;

/// How far a joining referee is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStep {
    /// It has done nothing yet.
    Begun,
    /// It loads the state of a block.
    Load {
        /// The block.
        block: BlockRef,
        /// Accounts and slots so far.
        entries: u64,
    },
    /// It applies the blocks above.
    CatchUp {
        /// Its last block.
        at: BlockRef,
        /// Root of its state.
        root: B256,
        /// Number of the chain's last durable block.
        tip: u64,
    },
}

impl std::fmt::Display for JoinStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begun => f.write_str("nothing is loaded yet"),
            Self::Load { block, entries } => {
                write!(f, "{entries} entries of the state after block {block} are loaded")
            }
            Self::CatchUp { at, tip, .. } => write!(f, "it is at block {} of {tip}", at.number),
        }
    }
}

impl JoinStep {
    /// Blocks that are missing; `None` while the state is not loaded.
    pub const fn missing(&self) -> Option<u64> {
        match self {
            Self::Begun | Self::Load { .. } => None,
            Self::CatchUp { at, tip, .. } => Some(tip.saturating_sub(at.number)),
        }
    }
}

/// What everybody may know of a joining referee. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct JoinProgress(Arc<Mutex<JoinStep>>);

impl JoinProgress {
    /// The last step.
    pub fn step(&self) -> JoinStep {
        *self.0.lock()
    }
}

/// A referee that is not at the tip of its chain, and comes there beside it.
pub struct JoiningReferee {
    backend: Arc<dyn AnyBackend>,
    kv: Arc<dyn KvStore>,
    names: TableNamespace,
    options: StoreOptions,
    /// `None` during a load and after an error within one.
    store: Option<Arc<StateStore>>,
    codes: CodeCache,
    progress: JoinProgress,
}

impl std::fmt::Debug for JoiningReferee {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoiningReferee")
            .field("backend", &self.backend.identity().name)
            .field("step", &self.progress.step())
            .finish_non_exhaustive()
    }
}

impl ChainStore {
    /// As [`open`](Self::open); but a referee that is missing or behind may join. If it lacks at most
    /// `near` blocks (`None`: whatever it lacks), it is brought to the tip now. Otherwise, and if
    /// `stop` is set, the chain is open without it, and it is returned to
    /// [go on joining](JoiningReferee::advance).
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`JoiningReferee::advance`].
    /// [`RefereeBehind`](ChainSetupError::RefereeBehind) if no other store has the roots of the next
    /// headers.
    pub fn open_joined(
        options: ChainOptions,
        near: Option<u64>,
        stop: &AtomicBool,
        report: &mut dyn FnMut(JoinStep),
    ) -> Result<(Self, Option<JoiningReferee>), PipelineError> {
        let (chain, joining) = Self::open_beside(options.clone())?;
        let Some(mut joining) = joining else { return Ok((chain, None)) };
        let is_near = match near {
            None => true,
            Some(near) => joining.missing(&chain)?.is_some_and(|missing| missing <= near),
        };
        if !is_near || !joining.advance(&chain, stop, report)? {
            return Ok((chain, Some(joining)));
        }
        drop((joining, chain));
        Ok((Self::open(options)?, None))
    }

    fn open_beside(options: ChainOptions) -> Result<(Self, Option<JoiningReferee>), PipelineError> {
        let backend = options.referee.clone();
        let mut chain = Self::open_unleveled(options)?;
        let behind = chain.states.check_tips(&chain.db);
        let Err(PipelineError::Setup(ChainSetupError::RefereeBehind { .. })) = &behind else {
            return behind.map(|()| (chain, None));
        };
        let tip = chain.tip()?;
        let header = chain.db.begin_read()?.header(&tip.hash)?;
        let tip_time = header.map_or(0, |header| header.timestamp);
        let (Some(backend), Some(RefereeStore { store, names, options })) =
            (backend, chain.states.part_with_referee(tip_time))
        else {
            return behind.map(|()| (chain, None));
        };
        let joining = JoiningReferee {
            kv: names.store(chain.db.state_store()),
            options,
            names,
            store: Some(Arc::new(store)),
            backend,
            codes: CodeCache::new(CODE_BYTES),
            progress: JoinProgress(Arc::new(Mutex::new(JoinStep::Begun))),
        };
        chain.joining = Some(joining.progress.clone());
        Ok((chain, Some(joining)))
    }
}

/// Why a join ended before the referee was level.
enum JoinInterruption {
    /// The stop flag was set.
    Stopped,
    /// The block whose state was loaded is not canonical any more.
    Reorged,
}

type JoinOutcome = Result<Result<(), JoinInterruption>, PipelineError>;

impl JoiningReferee {
    /// How far it is, for others.
    pub const fn progress(&self) -> &JoinProgress {
        &self.progress
    }

    /// Brings the referee to the durable tip of the chain. Returns whether it is there; setting `stop`
    /// ends the work early. What is done so far is durable but for a load, which begins again.
    ///
    /// # Errors
    /// [`StateRoot`](InvalidBlockError::StateRoot) if the referee computes another root than a header
    /// has; if a block that is needed is pruned; errors of execution, of the database and the store.
    pub fn advance(
        &mut self,
        chain: &ChainStore,
        stop: &AtomicBool,
        report: &mut dyn FnMut(JoinStep),
    ) -> Result<bool, PipelineError> {
        loop {
            if self.tip()?.is_none() {
                match self.load(chain, stop, report)? {
                    Ok(()) => {}
                    Err(_) => return Ok(false),
                }
            }
            match self.catch_up(chain, stop, report)? {
                Ok(()) => return Ok(true),
                Err(JoinInterruption::Stopped) => return Ok(false),
                Err(JoinInterruption::Reorged) => {
                    let name = self.backend.identity().name;
                    tracing::info!(
                        "the joining referee {name} begins again: its block was reorged away"
                    );
                    self.clear()?;
                }
            }
        }
    }

    /// Blocks between it and the durable tip of the chain; `None` if its state is not loaded.
    ///
    /// # Errors
    /// If the database or the store fails.
    pub fn missing(&mut self, chain: &ChainStore) -> Result<Option<u64>, PipelineError> {
        let tip = chain.tip()?.number;
        Ok(self.tip()?.map(|at| tip.saturating_sub(at.number)))
    }

    fn tell(&self, step: JoinStep, report: &mut dyn FnMut(JoinStep)) {
        *self.progress.0.lock() = step;
        report(step);
    }

    /// The store, opened again if an error has left none.
    fn store(&mut self) -> Result<Arc<StateStore>, StateError> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let (backend, kv) = (self.backend.clone(), self.kv.clone());
        let store = Arc::new(StateStore::open(backend, kv, self.options.clone())?);
        self.store = Some(store.clone());
        Ok(store)
    }

    fn tip(&mut self) -> Result<Option<BlockRef>, StateError> {
        Ok(self.store()?.tip().map(|tip| tip.block))
    }

    // -- the load ---------------------------------------------------------------------------------

    /// Deletes all rows of the store.
    fn clear(&mut self) -> Result<(), PipelineError> {
        // Its fold thread must not write any more.
        self.store = None;
        for table in StateStore::tables(&*self.backend) {
            let mut txn = self.kv.begin_write().map_err(StateError::from)?;
            txn.clear(table).map_err(StateError::from)?;
            txn.commit().map_err(StateError::from)?;
        }
        Ok(())
    }

    fn load(
        &mut self,
        chain: &ChainStore,
        stop: &AtomicBool,
        report: &mut dyn FnMut(JoinStep),
    ) -> JoinOutcome {
        self.clear()?;
        let store = self.store()?;
        // An error leaves the store unusable, and rows without a tip.
        self.store = None;
        let read = chain.db.begin_read()?;
        let (block, header) = loaded_block(chain, &read)?;
        let state = listed_state(chain.state(), block)?;
        drop(read);
        let (mut count, mut is_stopped) = (0, false);
        let mut entries = PagedEntries::new(&state, None).map(|entry| {
            if count % REPORT == 0 {
                self.tell(JoinStep::Load { block, entries: count }, report);
                is_stopped = stop.load(Ordering::Relaxed);
            }
            count += 1;
            match is_stopped {
                true => Err(StoreError::new("loading the state", "it was stopped").into()),
                false => entry,
            }
        });
        let mut txn = SteppedTxn::new(&*self.kv, stop);
        let loaded = store.bulk_load_keys(block, &mut entries, &mut txn);
        drop(entries);
        let (root, after) = match loaded {
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(Err(JoinInterruption::Stopped)),
            loaded => loaded?,
        };
        self.check_root(chain, &header, root)?;
        txn.commit().map_err(StateError::from)?;
        after.run()?;
        self.store = Some(store);
        let mut rows = chain.states.begin_write(&chain.db)?;
        rows.rows().insert_root(&block.hash, self.backend.identity().name, &root)?;
        rows.finish()?;
        tracing::info!(
            "the joining referee {} has loaded the state after block {block}: {count} entries, root {root}",
            self.backend.identity().name
        );
        Ok(Ok(()))
    }

    /// Compares the referee's root with that of a header that carries one of its kind.
    fn check_root(
        &self,
        chain: &ChainStore,
        header: &SealedHeader,
        got: B256,
    ) -> Result<(), PipelineError> {
        let is_native = chain.root_mode() == retrie_db::StateRootMode::Native;
        let fits = chain.root_kind(header.timestamp).is_of(&self.backend.profile());
        if is_native || !fits || header.state_root == got {
            return Ok(());
        }
        let (number, hash, expected) = (header.number, header.hash(), header.state_root);
        let backend = self.backend.identity().name;
        let source = Box::new(RootMismatch { expected, got, backend });
        Err(InvalidBlockError::StateRoot { number, hash, source }.into())
    }

    // -- the blocks above -------------------------------------------------------------------------

    fn catch_up(
        &mut self,
        chain: &ChainStore,
        stop: &AtomicBool,
        report: &mut dyn FnMut(JoinStep),
    ) -> JoinOutcome {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(Err(JoinInterruption::Stopped));
            }
            let read = Arc::new(chain.db.begin_read()?);
            let store = self.store()?;
            let Some(at) = store.tip() else { return Ok(Err(JoinInterruption::Reorged)) };
            let tip = read.tip()?.unwrap_or(at.block);
            if !read.is_canonical(&at.block.hash)? {
                match fork_point(&read, &store, at.block)? {
                    Some(number) => self.revert(chain, number)?,
                    None => return Ok(Err(JoinInterruption::Reorged)),
                }
                continue;
            }
            self.tell(JoinStep::CatchUp { at: at.block, root: at.root, tip: tip.number }, report);
            if at.block.number >= tip.number {
                return Ok(Ok(()));
            }
            let written = self.apply(chain, &read, at.block, tip.number)?;
            std::thread::sleep(written.min(LONGEST_PAUSE));
        }
    }

    fn revert(&mut self, chain: &ChainStore, number: u64) -> Result<(), PipelineError> {
        let store = self.store()?;
        let mut txn = chain.states.begin_write(&chain.db)?;
        txn.with_store(|rows| store.revert(number, &mut self.names.txn(rows)))?;
        txn.finish()
    }

    /// Applies the next blocks above `at`, at most up to `tip`, in one commit. Returns how long that
    /// kept other writers waiting.
    fn apply(
        &mut self,
        chain: &ChainStore,
        read: &ReadTxn,
        at: BlockRef,
        tip: u64,
    ) -> Result<Duration, PipelineError> {
        let store = self.store()?;
        let mut proposals: Vec<(B256, Proposal)> = Vec::new();
        for number in (at.number + 1..=tip).take(BATCH) {
            let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
            let hash = read.canonical_hash(number)?.ok_or_else(lost)?;
            let session = match proposals.last() {
                None => store.begin(StateId::Tip)?,
                Some((_, below)) => store.begin(StateId::Proposal(below))?,
            };
            let (header, delta) = self.delta_of(chain, read, &session.reader(), hash)?;
            let proposal = session.finish(&delta)?;
            self.check_root(chain, &header, proposal.root())?;
            store.seal(&proposal, hash);
            proposals.push((hash, proposal));
        }
        let mut txn = chain.states.begin_write(&chain.db)?;
        let begun = Instant::now();
        for (hash, proposal) in &proposals {
            txn.rows().insert_root(hash, self.backend.identity().name, &proposal.root())?;
        }
        let chained: Vec<Proposal> = proposals.into_iter().map(|(_, proposal)| proposal).collect();
        txn.with_store(|rows| store.commit(&chained, &mut self.names.txn(rows)))?;
        txn.finish()?;
        Ok(begun.elapsed())
    }

    /// What the stored block `hash` changes in the state of its parent: by its access list if that is
    /// kept, else by execution.
    fn delta_of(
        &self,
        chain: &ChainStore,
        read: &ReadTxn,
        state: &dyn StateReader,
        hash: B256,
    ) -> Result<(SealedHeader, StateDelta), PipelineError> {
        let unknown = || StateError::UnknownBlock { hash };
        let header = SealedHeader::new(read.header(&hash)?.ok_or_else(unknown)?, hash);
        let patch = StatePatch::stored(read, &hash)?;
        if let (None, Some(list)) = (&patch, access_list(read, &hash)?) {
            return Ok((header, delta_of_list(state, &list)?));
        }
        let block = read.recovered_block(&hash)?.ok_or_else(unknown)?;
        let mut below = LayeredState::new(state);
        patch.iter().for_each(|patch| below.push_delta(patch.delta.clone(), []));
        let stored = StoredContext(read);
        let input = ExecutionInput::new(&below, &stored, &stored).with_code_cache(&self.codes);
        let outcome = execute_block(&chain.spec.for_header(&header), &block, input)?;
        let delta = match patch {
            Some(patch) => patch.delta.then(&outcome.delta),
            None => outcome.delta,
        };
        Ok((header, delta))
    }
}

/// The block whose state is loaded, and its header.
fn loaded_block(
    chain: &ChainStore,
    read: &ReadTxn,
) -> Result<(BlockRef, SealedHeader), PipelineError> {
    let lost = |what: String| StateError::corrupt("Canonical", what);
    let tip = read.tip()?.ok_or_else(|| lost("the datadir has no block".into()))?;
    let first = chain.state().retained().map_or(tip.number, |kept| *kept.start());
    let number = tip.number.saturating_sub(DEPTH).max(first);
    let missing = || lost(format!("block {number} is missing"));
    let hash = read.canonical_hash(number)?.ok_or_else(missing)?;
    let header = read.header(&hash)?.ok_or_else(missing)?;
    Ok((BlockRef::new(number, hash), SealedHeader::new(header, hash)))
}

/// The last canonical ancestor of `block` that the store retains; `None` if it retains none.
fn fork_point(
    read: &ReadTxn,
    store: &StateStore,
    block: BlockRef,
) -> Result<Option<u64>, PipelineError> {
    let first = store.retained().map_or(block.number, |kept| *kept.start());
    let (mut number, mut hash) = (block.number, block.hash);
    while number > first {
        let Some(header) = read.header(&hash)? else { return Ok(None) };
        (number, hash) = (number - 1, header.parent_hash);
        if read.is_canonical(&hash)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// The block access list (EIP-7928) of a stored block, if it is kept.
fn access_list(read: &ReadTxn, hash: &B256) -> Result<Option<BlockAccessList>, PipelineError> {
    let Some(row) = read.access_list(hash)? else { return Ok(None) };
    let list = BlockAccessList::decode(&mut &row[..]).map_err(|error| {
        let (table, key) = (ChainTable::AccessLists.name().to_owned(), hash.to_string());
        ReadError::from(CorruptRow { table, key, what: format!("it does not decode: {error}") })
    })?;
    Ok(Some(list))
}

/// The values after a block with this access list, on the state of its parent. Accounts that are then
/// empty are gone (EIP-161).
fn delta_of_list(
    state: &dyn StateReader,
    list: &BlockAccessList,
) -> Result<StateDelta, StateError> {
    let mut delta = DeltaBuilder::new();
    for account in list.iter().filter(|account| account.has_changes()) {
        let address = account.address;
        let key = StateKey::Account(address);
        let previous = state.get(&key)?;
        let bad = || StateError::corrupt("state", format!("account {address} is not canonical"));
        let before = match &previous {
            Some(value) => Account::decode(value).ok_or_else(bad)?,
            None => Account { code_hash: KECCAK256_EMPTY, ..Account::default() },
        };
        if let Some((hash, code)) = account.code_post_state_with_hash() {
            delta.add_code(hash, code.clone());
        }
        let after = Account {
            nonce: account.nonce_post_state().unwrap_or(before.nonce),
            balance: account.balance_post_state().unwrap_or(before.balance),
            code_hash: account.code_hash_post_state().unwrap_or(before.code_hash),
        };
        let is_empty =
            after.nonce == 0 && after.balance.is_zero() && after.code_hash == KECCAK256_EMPTY;
        let next = (!is_empty).then(|| after.encode());
        if next != previous {
            delta.change(key, previous, next);
        }
        for (slot, value) in account.storage_post_states() {
            let key = StateKey::Slot(address, slot.into());
            let (previous, next) = (state.get(&key)?, encode_slot(value));
            if next != previous {
                delta.change(key, previous, next);
            }
        }
    }
    Ok(delta.build())
}

/// Writes that are committed in steps: when another thread waits, and every [`STEP_BYTES`]. After each
/// step there is a pause as long as the step. Rows of the framework say that the load is complete: they
/// come last, and are committed together.
struct SteppedTxn<'a> {
    kv: &'a dyn KvStore,
    stop: &'a AtomicBool,
    txn: Option<Box<dyn KvTxn + 'a>>,
    begun: Instant,
    bytes: usize,
}

impl<'a> SteppedTxn<'a> {
    fn new(kv: &'a dyn KvStore, stop: &'a AtomicBool) -> Self {
        Self { kv, stop, txn: None, begun: Instant::now(), bytes: 0 }
    }

    /// The open transaction, to which `bytes` of `table` will be written.
    fn open(&mut self, table: RowTable, bytes: usize) -> Result<&mut (dyn KvTxn + 'a), StoreError> {
        let is_full =
            self.bytes > STEP_BYTES || self.txn.as_ref().is_some_and(|txn| txn.is_awaited());
        if is_full
            && table.id < RowTable::FRAMEWORK
            && let Some(txn) = self.txn.take()
        {
            txn.commit()?;
            if self.stop.load(Ordering::Relaxed) {
                return Err(StoreError::new("loading the state", "it was stopped"));
            }
            std::thread::sleep(self.begun.elapsed().min(LONGEST_PAUSE));
        }
        self.bytes += bytes;
        match &mut self.txn {
            Some(txn) => Ok(&mut **txn),
            none => {
                (self.begun, self.bytes) = (Instant::now(), bytes);
                Ok(&mut **none.insert(self.kv.begin_write()?))
            }
        }
    }

    fn commit(mut self) -> Result<(), StoreError> {
        self.txn.take().map_or(Ok(()), KvTxn::commit)
    }

    /// Reads in the open transaction, or in a snapshot of what is committed.
    fn reading<T>(
        &self,
        read: impl FnOnce(&dyn KvRead) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &self.txn {
            Some(txn) => read(&**txn),
            None => read(&*self.kv.snapshot()?),
        }
    }
}

impl KvRead for SteppedTxn<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.reading(|rows| rows.get(table, key))
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.reading(|rows| rows.seek(table, key, direction))
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.reading(|rows| rows.scan(table, range, direction, limit))
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.reading(|rows| rows.count(table))
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
        self.reading(|rows| rows.code(hash))
    }
}

impl KvWrite for SteppedTxn<'_> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.open(table, key.len() + value.len())?.put(table, key, value)
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.open(table, key.len() + value.len())?.append(table, key, value)
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        self.open(table, key.len())?.delete(table, key)
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        self.open(table, 0)?.clear(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state_store::MemoryStore;

    #[test]
    fn rows_that_say_that_a_load_is_complete_are_committed_together() {
        let (kv, stop) = (MemoryStore::new(), AtomicBool::new(false));
        let (rows, meta) = (RowTable::new(1, "Rows"), RowTable::framework(0xf3, "Meta"));
        let count = |table| kv.snapshot().unwrap().count(table).unwrap();
        let mut txn = SteppedTxn::new(&kv, &stop);
        let large = vec![0; STEP_BYTES + 1];
        txn.put(rows, b"a", &large).unwrap();
        txn.put(rows, b"b", &large).unwrap();
        assert_eq!(count(rows), 1, "a step is committed once it is full");
        txn.put(meta, b"tip", b"").unwrap();
        txn.put(meta, b"folded", b"").unwrap();
        assert_eq!((count(rows), count(meta)), (1, 0));
        txn.commit().unwrap();
        assert_eq!((count(rows), count(meta)), (2, 2));
    }
}
