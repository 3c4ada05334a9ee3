//! Migration: the chain of a datadir into a new datadir, on another backend. [`ChainMigration`].
//!
//! ```text
//!  blocks up to the first state --rows--> new datadir, some thousand blocks a commit
//!  that state: codes of its accounts ---> some thousand a commit
//!              its entries -------------> bulk load of each store, with the last of these blocks
//!  blocks above it --------------------> executed, as an import does
//! ```
//!
//! The first state is the tip's; with history it is the state that the chain began with. So nothing
//! is executed below a tip, and nothing is loaded above genesis.
//!
//! # Crashes
//!
//! With its identity the new datadir gets a note that it is incomplete. Only a migration of the
//! same kind opens a datadir with this note. It continues after the last commit: the chain's tip
//! shows how many blocks there are, the store's tip whether the state is loaded. The load is one
//! transaction, which also removes the note if no block has to be executed. The old datadir is only
//! read, as a snapshot. Data that the new datadir already has may be pruned in the old one between
//! two runs of the command.

use crate::{
    AnchorError, ChainOptions, ChainStore, ImportEnd, ImportOptions, MigrateError, PipelineError,
    RootSet, StoreSet,
    dump::code_of,
    entries::{PagedEntries, SortedEntries, listed_state},
    import::import_from,
    preimages::{MissingPreimages, PlainKeys, PreimageSorter},
    report::ImportReport,
    store_set::EntrySource,
    stream::BlockStream,
    verify::referee_name,
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_chainspec::primitives::{Block, BlockBody, SealedHeader};
use retrie_db::{
    ChainRead, DatabaseEnv, DbError, NewBlock, OpenError, OpenOptions, ReadError, ReadTxn, WriteTxn,
};
use retrie_state::{Account, AnyBackend, BackendKey, BlockRef, StateError, StateValue, StoreError};
use retrie_state_store::{EntrySorter, StateProvider, StateStore};
use retrie_telemetry::Metrics;
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Blocks whose rows are committed at a time ...
const BATCH_BLOCKS: u64 = 4096;
/// ... unless they take this many bytes before.
const BATCH_BYTES: usize = 32 << 20;
/// Codes that are committed at a time.
const BATCH_CODES: usize = 1024;
/// Preimages that are committed at a time.
const BATCH_PREIMAGES: usize = 1 << 18;
/// Entries between two checks of the stop flag.
const STEP: u64 = 1 << 12;

/// Notes in the new datadir until it is complete.
const TIP_NOTE: &str = "moving the latest state here has not come to its end";
const HISTORY_NOTE: &str = "moving the chain here with its history has not come to its end";

/// A chain that is moved to another backend.
pub struct ChainMigration<'a> {
    /// The old datadir.
    pub from: &'a Arc<ReadTxn>,
    /// The backend of the old datadir.
    pub backend: Arc<dyn AnyBackend>,
    /// The new datadir and its backend, with the chain of the old datadir.
    pub to: ChainOptions,
    /// Whether all blocks are executed again, so that the new datadir has every state that an
    /// import leaves. Otherwise only the latest state is moved.
    pub history: bool,
    /// The last block of the new chain; `None` is the tip.
    pub until: Option<u64>,
}

impl std::fmt::Debug for ChainMigration<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Migration").field("to", &self.to).field("history", &self.history).finish()
    }
}

/// How far a migration is.
#[derive(Clone, Copy, Debug)]
pub enum MigrationStep<'a> {
    /// Blocks are copied.
    Rows {
        /// Blocks copied so far, those of earlier runs included.
        done: u64,
        /// Blocks to copy.
        total: u64,
    },
    /// Accounts are searched for code.
    Codes {
        /// Accounts.
        accounts: u64,
    },
    /// The preimages of hashed keys are looked up.
    Preimages {
        /// Accounts and slots.
        entries: u64,
    },
    /// Entries are given to the stores. Each store gets all of them.
    Entries {
        /// Accounts and slots.
        entries: u64,
    },
    /// Blocks are executed.
    Blocks {
        /// Progress of the import.
        report: &'a ImportReport,
        /// Blocks to execute in this run.
        total: u64,
    },
}

/// The outcome of a migration.
#[derive(Clone, Debug)]
pub struct MigrationOutcome {
    /// Whether the migration is complete, or was stopped.
    pub end: ImportEnd,
    /// The block whose state was loaded, or genesis.
    pub first_state: BlockRef,
    /// Entries of this state that were loaded in this run, summed over all stores.
    pub entries: u64,
    /// Header roots that a store of the new datadir has checked in this run.
    pub roots_checked: u64,
    /// The blocks executed in this run. Its tip is set even if there were none.
    pub executed: ImportReport,
    /// The tip of the new datadir.
    pub tip: BlockRef,
    /// The roots at the tip; `None` while no state is loaded.
    pub roots: Option<RootSet>,
}

/// What an unfinished migration with history has left in the new datadir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedMigration {
    /// The last block with a state.
    pub tip: BlockRef,
    /// Name of the referee, if there is one.
    pub referee: Option<String>,
}

impl UnfinishedMigration {
    /// Reads `datadir`, to which the chain of `from` is being moved; `None` while it has no state.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(datadir: &Path, from: &ReadTxn) -> Result<Option<Self>, PipelineError> {
        let unfinished = Some(HISTORY_NOTE.to_owned());
        let db = match DatabaseEnv::open(
            datadir,
            &OpenOptions { unfinished, ..OpenOptions::read_only() },
        ) {
            // A kill while the datadir was created can leave it without tables.
            Err(DbError::Open(OpenError::NoDatadir { .. } | OpenError::NotADatabase { .. })) => {
                return Ok(None);
            }
            db => db?,
        };
        let read = db.begin_read()?;
        let (Some(metadata), Some(tip)) = (read.metadata()?, read.tip()?) else { return Ok(None) };
        // The first state is written with its block, after all blocks below it.
        if tip.number < from.anchor()? {
            return Ok(None);
        }
        Ok(Some(Self { tip, referee: referee_name(&read, &metadata)? }))
    }
}

impl ChainMigration<'_> {
    /// Moves the chain, or continues to move it.
    ///
    /// `progress` is called often. Setting `stop` ends the run; if blocks are being executed, it
    /// ends after the current block. Everything done so far is durable, and the same migration
    /// continues from it.
    ///
    /// # Errors
    /// [`MigrateError`]; [`RefereeBehind`](crate::ChainSetupError::RefereeBehind) if the referee was
    /// left out for a while;
    /// [`AnchorError::NotEmpty`] if the new datadir is already complete;
    /// [`StateRoot`](crate::InvalidBlockError::StateRoot) if a store of the new datadir checks header
    /// roots and computes another one; errors of executing blocks, of databases and stores.
    pub fn run(
        self,
        metrics: &Metrics,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<MigrationOutcome, PipelineError> {
        let Self { from, backend, mut to, history, until } = self;
        let nothing = || MigrateError::Nothing { datadir: from.datadir().to_owned() };
        let tip = last_block(from, from.tip()?.ok_or_else(nothing)?, until)?;
        let genesis = from.metadata()?.ok_or_else(nothing)?.genesis;
        check_genesis(genesis, &to)?;
        let old = StoreSet::open_read_only(from, backend, false)?;
        let begun = if history { UnfinishedMigration::read(&to.datadir, from)? } else { None };
        if let Some(begun) = begun.as_ref().filter(|begun| begun.tip.number > tip.number) {
            let datadir = to.datadir;
            return Err(MigrateError::PastLast { datadir, tip: begun.tip, last: tip }.into());
        }
        let first_state = match (history, &begun) {
            (false, _) => tip,
            (true, None) => first_state_block(from, &old)?,
            (true, Some(begun)) => {
                check_bodies(from, begun.tip.number + 1)?;
                anchor_of(from)?
            }
        };
        // The state of genesis is in the specification, and the other states are executed.
        let is_loaded = begun.is_none() && !(history && first_state.number == 0);
        if is_loaded && to.store.keys.is_plain() {
            check_preimages(from, &old, first_state, stop, progress)?;
        }
        let note = if history { HISTORY_NOTE } else { TIP_NOTE };
        to.db.unfinished = Some(note.to_owned());
        let first_header = from.header(&first_state.hash)?;
        let first_time = first_header.map(|header| header.timestamp);
        let chain = ChainStore::open_stores(to, first_time)?;
        let run = MigrationTask { from, old: &old, chain: &chain, first_state, history, stop };
        run.accept_datadir(note)?;
        if let Some(begun) = &begun {
            run.check_stores(begun)?;
        }
        run.drop_non_canonical()?;
        let mut migrated = MigrationOutcome {
            end: ImportEnd::Stopped,
            first_state,
            entries: 0,
            roots_checked: 0,
            executed: ImportReport::default(),
            tip: first_state,
            roots: None,
        };
        let has_state = run.create_first_state(&mut migrated, progress)?;
        if has_state && (!history || run.execute(tip, metrics, &mut migrated, progress)?) {
            chain.states.check_tips(&chain.db)?;
            run.mark_complete()?;
            migrated.end = ImportEnd::Complete;
        }
        // Stores that were stopped during the load are unusable, and empty.
        if has_state {
            chain.flush()?
        } else {
            chain.db.sync()?
        }
        migrated.tip = chain.db.begin_read()?.tip()?.unwrap_or(first_state);
        migrated.roots = chain.states.tip_roots();
        Ok(migrated)
    }
}

/// The last block of the new chain.
fn last_block(
    from: &ReadTxn,
    tip: BlockRef,
    until: Option<u64>,
) -> Result<BlockRef, PipelineError> {
    let Some(number) = until.filter(|number| *number != tip.number) else { return Ok(tip) };
    let hash = if number < tip.number { from.canonical_hash(number)? } else { None };
    let first = from.anchor()?;
    match hash {
        Some(hash) if number >= first => Ok(BlockRef::new(number, hash)),
        _ => Err(MigrateError::NoLast { number, first, tip }.into()),
    }
}

/// Checks that the new datadir would have the same headers as the old one.
fn check_genesis(genesis: B256, to: &ChainOptions) -> Result<(), PipelineError> {
    let other = to.own_spec()?.genesis_hash();
    if genesis == other {
        return Ok(());
    }
    let backend = to.backend.identity().name;
    Err(MigrateError::OtherGenesis { genesis, backend, other }.into())
}

/// The block whose state the chain began with.
fn anchor_of(from: &ReadTxn) -> Result<BlockRef, PipelineError> {
    let anchor = from.anchor()?;
    let lost = || StateError::corrupt("Canonical", format!("block {anchor} is missing"));
    Ok(BlockRef::new(anchor, from.canonical_hash(anchor)?.ok_or_else(lost)?))
}

/// The block whose state the chain began with. Checks that this state is available, and that all
/// blocks above it can be executed.
fn first_state_block(from: &ReadTxn, old: &StateStore) -> Result<BlockRef, PipelineError> {
    let first = anchor_of(from)?;
    check_bodies(from, first.number + 1)?;
    // The state of genesis is in the specification.
    if first.number > 0
        && let Err(source) = listed_state(old, first)
    {
        let (number, source) = (first.number, Box::new(source));
        return Err(MigrateError::NoFirstState { number, source }.into());
    }
    Ok(first)
}

/// Checks that all keys of the state after `block` have a plain form that is known.
fn check_preimages(
    from: &ReadTxn,
    old: &StateStore,
    block: BlockRef,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(MigrationStep<'_>),
) -> Result<(), PipelineError> {
    let state = listed_state(old, block)?;
    let mut count = |entries| progress(MigrationStep::Preimages { entries });
    let missing = MissingPreimages::of(from, &state, stop, &mut count)?;
    if missing.is_none() {
        return Ok(());
    }
    Err(MigrateError::NoPreimages { block, missing }.into())
}

/// Checks that the blocks from `first` on can be executed.
fn check_bodies(from: &ReadTxn, first: u64) -> Result<(), PipelineError> {
    match from.bodies_pruned_below()? {
        bodies if bodies > first => Err(MigrateError::NoBodies { first, last: bodies - 1 }.into()),
        _ => Ok(()),
    }
}

/// A running migration.
struct MigrationTask<'a> {
    from: &'a Arc<ReadTxn>,
    old: &'a StateStore,
    chain: &'a ChainStore,
    first_state: BlockRef,
    history: bool,
    stop: &'a AtomicBool,
}

impl MigrationTask<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Accepts an empty datadir, or one that an unfinished migration of the same kind has left.
    fn accept_datadir(&self, note: &str) -> Result<(), PipelineError> {
        let read = self.chain.db.begin_read()?;
        let datadir = || self.chain.db.datadir().to_owned();
        match (read.unfinished()?, read.tip()?) {
            (Some(found), _) if found == note => Ok(()),
            (Some(found), _) => {
                Err(MigrateError::OtherMigration { datadir: datadir(), found }.into())
            }
            (None, Some(tip)) => Err(AnchorError::NotEmpty { datadir: datadir(), tip }.into()),
            (None, None) => {
                let mut txn = self.chain.db.begin_write()?;
                txn.set_unfinished(Some(note))?;
                Ok(txn.commit()?)
            }
        }
    }

    /// Checks that the stores are those of the unfinished migration.
    fn check_stores(&self, begun: &UnfinishedMigration) -> Result<(), PipelineError> {
        let given = self.chain.referee().map(|store| store.identity().name);
        if begun.referee.as_deref() != given {
            let name = |referee: Option<&str>| referee.unwrap_or("none").to_owned();
            let (found, given) = (name(begun.referee.as_deref()), name(given));
            let datadir = self.chain.db.datadir().to_owned();
            return Err(MigrateError::OtherReferee { datadir, found, given }.into());
        }
        self.chain.states.check_tips(&self.chain.db)
    }

    /// Marks the datadir as complete.
    fn mark_complete(&self) -> Result<(), PipelineError> {
        let mut txn = self.chain.db.begin_write()?;
        txn.set_unfinished(None)?;
        Ok(txn.commit()?)
    }

    /// The old chain may have had a reorg between two runs.
    fn drop_non_canonical(&self) -> Result<(), PipelineError> {
        let read = self.chain.db.begin_read()?;
        let (Some(first), Some(tip)) = (read.first()?, read.tip()?) else { return Ok(()) };
        let mut number = tip.number;
        while read.canonical_hash(number)? != self.from.canonical_hash(number)? {
            if number == first.number {
                let datadir = self.chain.db.datadir().to_owned();
                return Err(MigrateError::Diverged { datadir, tip }.into());
            }
            number -= 1;
        }
        drop(read);
        if self.chain.state().tip().is_some() {
            if number == tip.number {
                return Ok(());
            }
            return match self.chain.unwind(number, &mut |_| {}) {
                Err(
                    PipelineError::State(StateError::BeyondRetention { .. })
                    | PipelineError::Anchor(_),
                ) => {
                    let datadir = self.chain.db.datadir().to_owned();
                    Err(MigrateError::Diverged { datadir, tip }.into())
                }
                unwound => unwound.map(drop),
            };
        }
        // The block of the first state is written together with the state.
        number = number.min(self.first_state.number.saturating_sub(1));
        if number == tip.number {
            return Ok(());
        }
        let mut txn = self.chain.db.begin_write()?;
        txn.unset_canonical_above(number)?;
        txn.remove_blocks_above(number)?;
        Ok(txn.commit()?)
    }

    // -- rows -------------------------------------------------------------------------------------

    /// Copies the blocks below the first state. Returns whether all are copied.
    fn copy_rows(
        &self,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let total = self.first_state.number;
        let first = self.from.first()?.map_or(0, |first| first.number);
        let mut next = self.chain.db.begin_read()?.tip()?.map_or(first, |tip| tip.number + 1);
        while next < total {
            let mut txn = self.chain.db.begin_write()?;
            let (until, mut bytes) = (total.min(next + BATCH_BLOCKS), 0);
            while next < until && bytes < BATCH_BYTES && !self.is_stopped() {
                bytes += self.copy_block(&mut txn, next)?;
                next += 1;
                progress(MigrationStep::Rows { done: next, total });
            }
            txn.commit()?;
            if self.is_stopped() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies the canonical block `number`; returns its size in bytes, roughly.
    fn copy_block(&self, txn: &mut WriteTxn, number: u64) -> Result<usize, PipelineError> {
        let read = self.from;
        let lost = || StateError::corrupt("Canonical", format!("block {number} is missing"));
        let hash = read.canonical_hash(number)?.ok_or_else(lost)?;
        let header = read.header(&hash)?.ok_or_else(lost)?;
        let total_difficulty = read.total_difficulty(&hash)?.unwrap_or_default();
        let bytes = match read.recovered_block(&hash) {
            Ok(block) => {
                let block = block.ok_or_else(lost)?;
                let receipts = read.receipts(&hash)?;
                let list = read.access_list(&hash)?;
                let access_list = list.as_ref().map(AsRef::as_ref);
                let new = NewBlock::recovered(&block, receipts.as_deref(), total_difficulty);
                txn.insert_block(&NewBlock { access_list, ..new })?;
                2 * Block::rlp_length_for(&header, block.body())
            }
            Err(ReadError::Pruned(_)) => {
                txn.insert_header(hash, &header, total_difficulty)?;
                Block::rlp_length_for(&header, &BlockBody::default())
            }
            Err(error) => return Err(error.into()),
        };
        // Copies roots that the stores of the new datadir would have computed.
        let roots = read.roots(&hash)?;
        let kind = self.chain.root_kind(header.timestamp);
        for (store, _) in self.chain.states.stores() {
            let name = store.identity().name;
            let is_same = |(of, root): &&(String, B256)| of == name && *root == header.state_root;
            if kind.is_of(&store.backend().profile())
                && let Some((_, root)) = roots.iter().find(is_same)
            {
                txn.insert_root(&hash, name, root)?;
            }
        }
        Ok(bytes)
    }

    // -- the first state --------------------------------------------------------------------------

    /// Creates the first state. Returns whether it is complete.
    fn create_first_state(
        &self,
        migrated: &mut MigrationOutcome,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        if self.chain.state().tip().is_some() {
            return Ok(true);
        }
        if self.history && self.first_state.number == 0 {
            self.chain.write_genesis()?;
            return Ok(true);
        }
        let state = listed_state(self.old, self.first_state)?;
        if !self.copy_rows(progress)?
            || !self.copy_codes(&state, progress)?
            || !self.copy_preimages()?
        {
            return Ok(false);
        }
        self.load(&state, migrated, progress)
    }

    /// Copies the codes of all accounts. Returns whether all are copied.
    fn copy_codes(
        &self,
        state: &StateProvider,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let mut accounts = 0;
        let mut codes = BTreeSet::new();
        for entry in PagedEntries::new(state, None) {
            let (BackendKey::Account(account_key), value) = entry? else { break };
            let bad =
                || StateError::corrupt("state", format!("account {account_key} is not canonical"));
            let account = Account::decode(&value).ok_or_else(bad)?;
            if account.code_hash != KECCAK256_EMPTY {
                codes.insert(account.code_hash);
            }
            accounts += 1;
            if codes.len() >= BATCH_CODES {
                self.write_codes(&std::mem::take(&mut codes))?;
            }
            if accounts % STEP == 0 {
                progress(MigrationStep::Codes { accounts });
                if self.is_stopped() {
                    return Ok(false);
                }
            }
        }
        self.write_codes(&codes)?;
        Ok(!self.is_stopped())
    }

    fn write_codes(&self, hashes: &BTreeSet<B256>) -> Result<(), PipelineError> {
        let mut txn = self.chain.db.begin_write()?;
        for hash in hashes {
            txn.insert_code(hash, &code_of(self.from, hash)?)?;
        }
        Ok(txn.commit()?)
    }

    /// Copies all preimages, if the new datadir keeps them. Returns whether all are copied.
    fn copy_preimages(&self) -> Result<bool, PipelineError> {
        if !self.chain.states.keeps_preimages() {
            return Ok(true);
        }
        let mut next = Some(B256::ZERO);
        while let Some(start) = next {
            if self.is_stopped() {
                return Ok(false);
            }
            let page = self.from.preimages_from(&start, BATCH_PREIMAGES)?;
            // The first of the next page comes twice.
            next = page.last().map(|(hash, _)| *hash).filter(|_| page.len() == BATCH_PREIMAGES);
            let mut txn = self.chain.db.begin_write()?;
            txn.insert_preimages(page)?;
            txn.commit()?;
        }
        Ok(true)
    }

    /// Loads the first state with its block, in one transaction. Returns whether it is loaded.
    fn load(
        &self,
        state: &StateProvider,
        migrated: &mut MigrationOutcome,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let Self { chain, from, first_state: block, .. } = self;
        let lost = || StateError::UnknownBlock { hash: block.hash };
        let header = from.header(&block.hash)?.ok_or_else(lost)?;
        let header = SealedHeader::new(header, block.hash);
        let mut txn = chain.states.begin_write(&chain.db)?;
        self.copy_block(txn.rows(), block.number)?;
        let mut source =
            MigratedEntries { state, stop: self.stop, progress, entries: 0, was_stopped: false };
        let roots = match (state.keys(), chain.state().keys()) {
            (from, to) if from == to => txn.load(*block, &mut source),
            _ => {
                let mut preimages = chain.preimage_sorter();
                self.rehashed(&mut source, &mut preimages).and_then(|mut sorted| {
                    preimages.write(txn.rows())?;
                    txn.load(*block, &mut sorted)
                })
            }
        };
        let roots = match roots {
            Err(_) if source.was_stopped => return Ok(false),
            loaded => loaded?,
        };
        migrated.entries = source.entries;
        migrated.roots_checked += chain.states.check_roots(&header, roots)?;
        chain.states.write_roots(txn.rows(), block.hash, roots)?;
        txn.rows().set_anchor_on_copies(block.number, from)?;
        if !self.history {
            txn.rows().set_unfinished(None)?;
        }
        txn.finish()?;
        Ok(true)
    }

    /// The entries of `source` with keys in the form of the new datadir, sorted in its folder. The
    /// preimages of keys that were plain go to `preimages`.
    fn rehashed(
        &self,
        source: &mut MigratedEntries<'_, '_>,
        preimages: &mut PreimageSorter,
    ) -> Result<SortedEntries, PipelineError> {
        let to = self.chain.state().keys();
        let (mut sorter, mut plain) =
            (EntrySorter::new(self.chain.db.datadir()), PlainKeys::new(self.from));
        for entry in source.entries()? {
            let (key, value) = entry?;
            let known = plain.key(&key)?.ok_or_else(|| StateError::HashedKeys {
                what: format!("{key} cannot be moved to a datadir of plain keys"),
            })?;
            sorter.put(&to.key(&known), &value)?;
            preimages.put(&known)?;
        }
        Ok(SortedEntries(sorter))
    }

    // -- blocks above it --------------------------------------------------------------------------

    /// Executes the blocks up to `tip`. Returns whether all are executed.
    fn execute(
        &self,
        tip: BlockRef,
        metrics: &Metrics,
        migrated: &mut MigrationOutcome,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let first = self.chain.tip()?.number + 1;
        if first > tip.number {
            return Ok(true);
        }
        check_bodies(self.from, first)?;
        let stream =
            || BlockStream::stored(self.chain.spec.clone(), self.from.clone(), first..=tip.number);
        let outcome = import_from(
            self.chain,
            stream,
            ImportOptions::default(),
            metrics,
            self.stop,
            &mut |report| progress(MigrationStep::Blocks { report, total: tip.number + 1 - first }),
        )?;
        migrated.roots_checked += outcome.report.roots_checked;
        migrated.executed = outcome.report;
        Ok(outcome.end? == ImportEnd::Complete)
    }
}

/// The entries of the moved state. They are read once for each store.
struct MigratedEntries<'a, 'b> {
    state: &'a StateProvider,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(MigrationStep<'b>),
    entries: u64,
    /// Whether the entries have ended with an error because the stop flag was set.
    was_stopped: bool,
}

impl EntrySource for MigratedEntries<'_, '_> {
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, PipelineError>
    {
        let Self { state, stop, progress, entries, was_stopped } = self;
        Ok(PagedEntries::new(state, None).map(move |entry| {
            *entries += 1;
            if *entries % STEP == 0 {
                progress(MigrationStep::Entries { entries: *entries });
                if stop.load(Ordering::Relaxed) {
                    *was_stopped = true;
                    return Err(StoreError::new("loading the state", "it was stopped").into());
                }
            }
            entry
        }))
    }
}
