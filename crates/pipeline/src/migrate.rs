//! The chain of a datadir into a new one, on another backend: [`Migration`].
//!
//! ```text
//!  blocks up to the first state --rows--> new datadir, some thousand blocks a commit
//!  that state: codes of its accounts ---> some thousand a commit
//!              its entries -------------> bulk load of each store, with the last of these blocks
//!  blocks above it --------------------> executed, as an import does
//! ```
//!
//! The first state is that of the tip, or, with history, the one that the chain began with: there
//! is nothing to execute below a tip, and nothing to load above genesis.
//!
//! # Crashes
//!
//! With its identity the new datadir gets a note that it is not whole, which keeps out everybody
//! but a migration of the same kind. That goes on where the last commit was: blocks are found by the
//! tip of the chain, a loaded state by that of the store. The load itself is one transaction, which
//! also removes the note if nothing is to be executed. The old datadir is only read, as a snapshot;
//! what is not needed of it any more, as it is in the new one, may go between two runs.

use crate::{
    AnchorError, Chain, ChainOptions, End, ImportOptions, MigrateError, PipelineError, Roots,
    States,
    dump::code_of,
    entries::{Entries, listed_state},
    import::import_from,
    report::ImportReport,
    states::EntrySource,
    stream::BlockStream,
    verify::referee_name,
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_chainspec::primitives::{Block, BlockBody, SealedHeader};
use retrie_db::{ChainRead, Db, DbError, NewBlock, OpenOptions, ReadTxn, WriteTxn};
use retrie_state::{
    Account, AnyBackend, BlockRef, StateAt, StateError, StateKey, StateStore, StoreError, Value,
};
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
/// Entries between two looks at the signal to stop.
const STEP: u64 = 1 << 12;

/// What is noted in the new datadir until it is whole.
const TIP_NOTE: &str = "moving the latest state here has not come to its end";
const HISTORY_NOTE: &str = "moving the chain here with its history has not come to its end";

/// A chain to be moved.
pub struct Migration<'a> {
    /// The old datadir.
    pub from: &'a Arc<ReadTxn>,
    /// The backend that it was made by.
    pub backend: Arc<dyn AnyBackend>,
    /// The new datadir, on its backend, with the chain of the old one.
    pub to: ChainOptions,
    /// Whether all blocks are executed again, so that every state is there that an import leaves,
    /// or the latest state alone is moved.
    pub history: bool,
    /// The block that the new chain ends with, if not the tip.
    pub until: Option<u64>,
}

impl std::fmt::Debug for Migration<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Migration").field("to", &self.to).field("history", &self.history).finish()
    }
}

/// How far a migration is.
#[derive(Clone, Copy, Debug)]
pub enum MigrationStep<'a> {
    /// So many blocks of so many were copied.
    Rows {
        /// Blocks copied, those of earlier runs included.
        done: u64,
        /// Blocks to be copied in all.
        total: u64,
    },
    /// So many accounts were searched for code.
    Codes {
        /// Accounts.
        accounts: u64,
    },
    /// So many entries were handed to the stores: all of them once a store.
    Entries {
        /// Accounts and slots.
        entries: u64,
    },
    /// Blocks are executed.
    Blocks {
        /// How far that is.
        report: &'a ImportReport,
        /// Blocks to be executed in this run.
        total: u64,
    },
}

/// What a migration gave.
#[derive(Clone, Debug)]
pub struct Migrated {
    /// Whether it came to its end, or was told to stop.
    pub end: End,
    /// The block whose state was loaded, or genesis.
    pub first_state: BlockRef,
    /// Entries of that state, where it was loaded in this run; of all stores.
    pub entries: u64,
    /// Header roots that a store of the new datadir was compared with in this run.
    pub roots_checked: u64,
    /// The blocks that this run has executed; the tip also where there were none.
    pub executed: ImportReport,
    /// The tip of the new datadir.
    pub tip: BlockRef,
    /// Its roots; `None` while no state has been loaded.
    pub roots: Option<Roots>,
}

/// What a migration with history has left where it did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The last block whose state is there.
    pub tip: BlockRef,
    /// Name of the referee, if there is one.
    pub referee: Option<String>,
}

impl Begun {
    /// Looks into `datadir`, to which the chain of `from` is being moved; `None` while no state is
    /// there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn look(datadir: &Path, from: &ReadTxn) -> Result<Option<Self>, PipelineError> {
        let unfinished = Some(HISTORY_NOTE.to_owned());
        let db = match Db::open(datadir, &OpenOptions { unfinished, ..OpenOptions::read_only() }) {
            // A kill while it was made can leave it without tables.
            Err(DbError::NoDatadir { .. } | DbError::NotADatabase { .. }) => return Ok(None),
            db => db?,
        };
        let read = db.begin_read()?;
        let (Some(metadata), Some(tip)) = (read.metadata()?, read.tip()?) else { return Ok(None) };
        // The first state comes with its block, after all blocks below it.
        if tip.number < from.anchor()? {
            return Ok(None);
        }
        Ok(Some(Self { tip, referee: referee_name(&read, &metadata)? }))
    }
}

impl Migration<'_> {
    /// Moves the chain, or goes on with it.
    ///
    /// `progress` is called often. Setting `stop` ends the run, at a block boundary where blocks are
    /// executed: what is there is durable, and the same migration goes on from it.
    ///
    /// # Errors
    /// [`MigrateError`]; [`PipelineError::RefereeBehind`] if the referee was not there for a while;
    /// [`AnchorError::NotEmpty`] if the new datadir is whole already;
    /// [`PipelineError::StateRoot`] if a store of the new datadir checks header roots and gets
    /// another; those of executing blocks, of databases and stores.
    pub fn run(
        self,
        metrics: &Metrics,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<Migrated, PipelineError> {
        let Self { from, backend, mut to, history, until } = self;
        let nothing = || MigrateError::Nothing { datadir: from.datadir().to_owned() };
        let tip = last_of(from, from.tip()?.ok_or_else(nothing)?, until)?;
        let genesis = from.metadata()?.ok_or_else(nothing)?.genesis;
        check_genesis(genesis, &to)?;
        let old = States::open_one_to_read(from, backend, false)?;
        let begun = if history { Begun::look(&to.datadir, from)? } else { None };
        if let Some(begun) = begun.as_ref().filter(|begun| begun.tip.number > tip.number) {
            let datadir = to.datadir;
            return Err(MigrateError::PastLast { datadir, tip: begun.tip, last: tip }.into());
        }
        let first_state = match (history, &begun) {
            (false, _) => tip,
            (true, None) => first_with_state(from, &old)?,
            (true, Some(begun)) => {
                check_bodies(from, begun.tip.number + 1)?;
                anchor_of(from)?
            }
        };
        let note = if history { HISTORY_NOTE } else { TIP_NOTE };
        to.db.unfinished = Some(note.to_owned());
        let chain = Chain::open_stores(to)?;
        let run = Run { from, old: &old, chain: &chain, first_state, history, stop };
        run.claim(note)?;
        if let Some(begun) = &begun {
            run.check_stores(begun)?;
        }
        run.drop_what_is_not_canonical()?;
        let mut migrated = Migrated {
            end: End::Stopped,
            first_state,
            entries: 0,
            roots_checked: 0,
            executed: ImportReport::default(),
            tip: first_state,
            roots: None,
        };
        let has_state = run.lay_first_state(&mut migrated, progress)?;
        if has_state && (!history || run.execute(tip, metrics, &mut migrated, progress)?) {
            chain.states.check_tips(&chain.db)?;
            run.release()?;
            migrated.end = End::Complete;
        }
        // Stores that were stopped while they were loaded can do nothing more, and have nothing.
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

/// The block that the new chain shall end with.
fn last_of(from: &ReadTxn, tip: BlockRef, until: Option<u64>) -> Result<BlockRef, PipelineError> {
    let Some(number) = until.filter(|number| *number != tip.number) else { return Ok(tip) };
    let hash = if number < tip.number { from.canonical_hash(number)? } else { None };
    let first = from.anchor()?;
    match hash {
        Some(hash) if number >= first => Ok(BlockRef::new(number, hash)),
        _ => Err(MigrateError::NoLast { number, first, tip }.into()),
    }
}

/// The headers that the new datadir would have are those of the old one.
fn check_genesis(genesis: B256, to: &ChainOptions) -> Result<(), PipelineError> {
    let other = to.own_spec()?.genesis_hash();
    if genesis == other {
        return Ok(());
    }
    let backend = to.backend.identity().name;
    Err(MigrateError::OtherGenesis { genesis, backend, other }.into())
}

/// The block with whose state the chain began.
fn anchor_of(from: &ReadTxn) -> Result<BlockRef, PipelineError> {
    let anchor = from.anchor()?;
    let lost = || StateError::corrupt("Canonical", format!("block {anchor} is missing"));
    Ok(BlockRef::new(anchor, from.canonical_hash(anchor)?.ok_or_else(lost)?))
}

/// The block with whose state the chain began, if that is there, and all blocks above it can be
/// executed.
fn first_with_state(from: &ReadTxn, old: &StateStore) -> Result<BlockRef, PipelineError> {
    let first = anchor_of(from)?;
    check_bodies(from, first.number + 1)?;
    // That of genesis is in the specification.
    if first.number > 0
        && let Err(source) = listed_state(old, first)
    {
        let (number, source) = (first.number, Box::new(source));
        return Err(MigrateError::NoFirstState { number, source }.into());
    }
    Ok(first)
}

/// The blocks from `first` on can be executed.
fn check_bodies(from: &ReadTxn, first: u64) -> Result<(), PipelineError> {
    match from.bodies_pruned_below()? {
        bodies if bodies > first => Err(MigrateError::NoBodies { first, last: bodies - 1 }.into()),
        _ => Ok(()),
    }
}

/// A migration under way.
struct Run<'a> {
    from: &'a Arc<ReadTxn>,
    old: &'a StateStore,
    chain: &'a Chain,
    first_state: BlockRef,
    history: bool,
    stop: &'a AtomicBool,
}

impl Run<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Takes an empty datadir, or one that this kind of migration has left.
    fn claim(&self, note: &str) -> Result<(), PipelineError> {
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

    /// The stores are those that the states were made by.
    fn check_stores(&self, begun: &Begun) -> Result<(), PipelineError> {
        let given = self.chain.referee().map(|store| store.identity().name);
        if begun.referee.as_deref() != given {
            let name = |referee: Option<&str>| referee.unwrap_or("none").to_owned();
            let (found, given) = (name(begun.referee.as_deref()), name(given));
            let datadir = self.chain.db.datadir().to_owned();
            return Err(MigrateError::OtherReferee { datadir, found, given }.into());
        }
        self.chain.states.check_tips(&self.chain.db)
    }

    /// The datadir is whole.
    fn release(&self) -> Result<(), PipelineError> {
        let mut txn = self.chain.db.begin_write()?;
        txn.set_unfinished(None)?;
        Ok(txn.commit()?)
    }

    /// The old chain may have changed its branch between two runs.
    fn drop_what_is_not_canonical(&self) -> Result<(), PipelineError> {
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
        // The block of the first state is written with it.
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

    /// Copies blocks below that of the first state. Says whether all are there.
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

    /// Copies the canonical block `number`; returns about how many bytes it has.
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
                let new = NewBlock::recovered(&block, receipts.as_deref(), total_difficulty);
                txn.insert_block(&new)?;
                2 * Block::rlp_length_for(&header, block.body())
            }
            Err(DbError::Pruned { .. }) => {
                txn.insert_header(hash, &header, total_difficulty)?;
                Block::rlp_length_for(&header, &BlockBody::default())
            }
            Err(error) => return Err(error.into()),
        };
        // Roots that the stores of the new datadir would have got.
        let roots = read.roots(&hash)?;
        for (store, _) in self.chain.states.stores() {
            let name = store.identity().name;
            let is_same = |(of, root): &&(String, B256)| of == name && *root == header.state_root;
            if store.backend().capabilities().ethereum_root
                && let Some((_, root)) = roots.iter().find(is_same)
            {
                txn.insert_root(&hash, name, root)?;
            }
        }
        Ok(bytes)
    }

    // -- the first state --------------------------------------------------------------------------

    /// Says whether the first state is there.
    fn lay_first_state(
        &self,
        migrated: &mut Migrated,
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
        if !self.copy_rows(progress)? || !self.copy_codes(&state, progress)? {
            return Ok(false);
        }
        self.load(&state, migrated, progress)
    }

    /// Copies the codes of all accounts. Says whether all are there.
    fn copy_codes(
        &self,
        state: &StateAt,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let mut accounts = 0;
        let mut codes = BTreeSet::new();
        for entry in Entries::new(state, None) {
            let (StateKey::Account(address), value) = entry? else { break };
            let bad =
                || StateError::corrupt("state", format!("account {address} is not canonical"));
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

    /// Loads the first state with its block, in one transaction. Says whether it is there.
    fn load(
        &self,
        state: &StateAt,
        migrated: &mut Migrated,
        progress: &mut dyn FnMut(MigrationStep<'_>),
    ) -> Result<bool, PipelineError> {
        let Self { chain, from, first_state: block, .. } = self;
        let lost = || StateError::UnknownBlock { hash: block.hash };
        let header = from.header(&block.hash)?.ok_or_else(lost)?;
        let header = SealedHeader::new(header, block.hash);
        let mut txn = chain.states.begin_write(&chain.db)?;
        self.copy_block(txn.rows(), block.number)?;
        let mut source =
            Listed { state, stop: self.stop, progress, entries: 0, was_stopped: false };
        let roots = match txn.load(*block, &mut source) {
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

    // -- blocks above it --------------------------------------------------------------------------

    /// Executes the blocks up to `tip`. Says whether all are there.
    fn execute(
        &self,
        tip: BlockRef,
        metrics: &Metrics,
        migrated: &mut Migrated,
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
        Ok(outcome.end? == End::Complete)
    }
}

/// The entries of a state, once for each store.
struct Listed<'a, 'b> {
    state: &'a StateAt,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(MigrationStep<'b>),
    entries: u64,
    /// Whether the entries have ended with an error as it was told to stop.
    was_stopped: bool,
}

impl EntrySource for Listed<'_, '_> {
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(StateKey, Value), StateError>>, PipelineError> {
        let Self { state, stop, progress, entries, was_stopped } = self;
        Ok(Entries::new(state, None).map(move |entry| {
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
