//! An open datadir: the chain's tables, the backend's state, and the referee's if there is one.

use crate::{PipelineError, error::RootMismatch};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{BlockBody, SealedHeader},
};
use retrie_db::{ChainRead, Db, Metadata, NewBlock, OpenOptions, StateRootMode, WriteTxn};
use retrie_state::{
    Account, AfterCommit, At, Backend, BlockRef, Changes, DeltaBuilder, MemoryStore, Namespace,
    Proposal, Sight, StateDelta, StateError, StateKey, StateStore, StoreOptions, TableCounts,
    Value, encode_slot,
};
use retrie_telemetry::{
    Metrics,
    state::{StateFigures, TableFigures},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Names of the referee's tables start with this.
const REFEREE_PREFIX: &str = "Referee";
/// First table id of the referee; backends' own ids lie below.
const REFEREE_FIRST_ID: u8 = 0x80;
/// The state directory within the datadir, for files of backends. What no block names is deleted
/// there, so it must be a folder that nobody else uses.
const STATE_FOLDER: &str = "db/state-files";
/// Of the datadir: the database, and all else that is kept of the chain.
pub(crate) const DB_FOLDER: &str = "db";

/// How to open a datadir.
pub struct ChainOptions {
    /// Rules and genesis of the chain.
    pub spec: Arc<ChainSpec>,
    /// The state backend.
    pub backend: Arc<dyn Backend>,
    /// A backend with Ethereum's roots that runs beside it on the same deltas.
    pub referee: Option<Arc<dyn Backend>>,
    /// What header state roots mean.
    pub root_mode: StateRootMode,
    /// The datadir.
    pub datadir: PathBuf,
    /// Options of the database.
    pub db: OpenOptions,
    /// Options of the state store; its directory is set here.
    pub store: StoreOptions,
}

impl std::fmt::Debug for ChainOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainOptions")
            .field("chain", &self.spec.name())
            .field("backend", &self.backend.identity().name)
            .field("datadir", &self.datadir)
            .finish_non_exhaustive()
    }
}

/// In the words of the metrics.
fn figures(sight: Sight) -> StateFigures {
    let Sight {
        counts,
        pending_bytes,
        disk_bytes,
        file_bytes,
        retained_file_bytes,
        first_retained,
    } = sight;
    let table = |(table, of): (&'static str, TableCounts)| TableFigures {
        table,
        reads: of.reads,
        read_bytes: of.read_bytes,
        writes: of.writes,
        write_bytes: of.write_bytes,
    };
    StateFigures {
        read_seconds: counts.read_time.as_secs_f64(),
        journal_bytes: counts.journal_bytes,
        undo_bytes: counts.undo_bytes,
        folded_rows: counts.folded_rows,
        tables: counts.tables.into_iter().map(table).collect(),
        pending_bytes,
        disk_bytes,
        file_bytes,
        retained_file_bytes,
        first_retained,
    }
}

/// The referee: a second state whose root is Ethereum's.
#[derive(Debug)]
pub(crate) struct Referee {
    pub(crate) store: StateStore,
    names: Namespace,
}

impl Referee {
    /// [`StateStore::bulk_load`] of its own state.
    pub(crate) fn load(
        &self,
        block: BlockRef,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        txn: &mut WriteTxn,
    ) -> Result<(B256, AfterCommit<'_>), StateError> {
        self.store.bulk_load(block, entries, &mut self.names.txn(txn))
    }
}

/// Where the state of genesis comes from.
enum Genesis<'a> {
    /// The specification has it all.
    Listed,
    /// So it does, but there is more; header roots do not know of that.
    Padded(Vec<(StateKey, Value)>),
    /// These are all.
    Loaded(&'a mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>),
}

/// An open datadir.
#[derive(Debug)]
pub struct Chain {
    pub(crate) spec: Arc<ChainSpec>,
    pub(crate) db: Db,
    pub(crate) store: StateStore,
    pub(crate) referee: Option<Referee>,
    pub(crate) root_mode: StateRootMode,
}

impl Chain {
    /// Opens or creates a datadir. A new one gets the genesis block; an existing one must hold the
    /// same chain, backend and root mode.
    ///
    /// # Errors
    /// [`PipelineError::NoHeaderRoot`] if header roots shall be checked by a backend that computes
    /// others; errors of database and state store.
    pub fn open(options: ChainOptions) -> Result<Self, PipelineError> {
        Self::open_with(options, Genesis::Listed)
    }

    /// Shows the state stores among `metrics`, as long as this datadir is open.
    pub fn show_in(&self, metrics: &Metrics) {
        let stores =
            [("state", Some(&self.store)), ("referee", self.referee.as_ref().map(|r| &r.store))];
        for (name, store) in stores {
            if let Some(store) = store {
                let watch = store.watch();
                let backend = store.identity().name;
                metrics.watch_state(name, backend, move || watch.look().map(figures));
            }
        }
    }

    /// As [`open`](Self::open), with more entries in the genesis state of a new datadir, sorted by
    /// key: a state of real size to measure on. Header roots are then those of another state, so
    /// they are not checked, whatever the options say, and there is no referee.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_padded(
        options: ChainOptions,
        padding: Vec<(StateKey, Value)>,
    ) -> Result<Self, PipelineError> {
        let options = ChainOptions { referee: None, root_mode: StateRootMode::Shadow, ..options };
        Self::open_with(options, Genesis::Padded(padding))
    }

    /// As [`open`](Self::open) for a new datadir, where `entries`, sorted by key, are the whole state
    /// of genesis. Its header must be of that state, but the specification need list no accounts
    /// but those with code. There is no referee.
    ///
    /// # Errors
    /// As [`open`](Self::open). [`PipelineError::StateRoot`] if header roots are checked and genesis
    /// has another one.
    pub fn create_loaded(
        options: ChainOptions,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    ) -> Result<Self, PipelineError> {
        let options = ChainOptions { referee: None, ..options };
        Self::open_with(options, Genesis::Loaded(entries))
    }

    fn open_with(options: ChainOptions, genesis: Genesis<'_>) -> Result<Self, PipelineError> {
        let chain = Self::open_stores(options)?;
        if chain.db.begin_read()?.tip()?.is_none() {
            match genesis {
                Genesis::Padded(padding) if !padding.is_empty() => {
                    chain.write_padded_genesis(padding)?;
                }
                Genesis::Listed | Genesis::Padded(_) => chain.write_genesis()?,
                Genesis::Loaded(entries) => {
                    let (_, codes) = genesis_delta(&chain.spec);
                    chain.load_genesis(&codes, entries)?;
                }
            }
        }
        chain.check_tips()?;
        Ok(chain)
    }

    /// Opens or creates the datadir, in which there may be no block yet.
    pub(crate) fn open_stores(options: ChainOptions) -> Result<Self, PipelineError> {
        let ChainOptions { spec, backend, referee, root_mode, datadir, mut db, store } = options;
        let identity = backend.identity().clone();
        if root_mode == StateRootMode::Header && !backend.capabilities().ethereum_root {
            return Err(PipelineError::NoHeaderRoot { backend: identity.name });
        }
        if let Some(referee) = &referee
            && !referee.capabilities().ethereum_root
        {
            return Err(PipelineError::NoHeaderRoot { backend: referee.identity().name });
        }
        let file = spec;
        let spec = match root_mode {
            StateRootMode::Native => native_spec(&file, &backend)?,
            StateRootMode::Header | StateRootMode::Shadow => file.clone(),
        };
        let names = referee.as_deref().map(referee_names);
        db.state_tables = StateStore::tables(&*backend);
        db.state_tables.extend(names.iter().flat_map(Namespace::tables));
        let db = Db::open_or_create(&datadir, &db)?;
        let expected = Metadata::new(spec.chain_id(), spec.genesis_hash(), &identity, root_mode);
        db.init_metadata(&expected)?;
        db.keep_spec(&file)?;

        let kv = db.state_store();
        let files = make_state_folder(&datadir, false)?;
        let state =
            StateStore::open(backend, kv.clone(), StoreOptions { dir: Some(files), ..store })?;
        let referee = match referee.zip(names) {
            None => None,
            Some((backend, names)) => {
                let files = make_state_folder(&datadir, true)?;
                // Old states are read from the backend's own store.
                let options = StoreOptions { dir: Some(files), changes: Changes::Off, ..store };
                let store = StateStore::open(backend, names.store(kv), options)?;
                Some(Referee { store, names })
            }
        };
        Ok(Self { spec, db, store: state, referee, root_mode })
    }

    /// Rules of the chain.
    pub const fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    /// The chain's tables.
    pub const fn db(&self) -> &Db {
        &self.db
    }

    /// The backend's state.
    pub const fn state(&self) -> &StateStore {
        &self.store
    }

    /// The referee's state, if there is one.
    pub fn referee(&self) -> Option<&StateStore> {
        self.referee.as_ref().map(|referee| &referee.store)
    }

    /// What header state roots mean.
    pub const fn root_mode(&self) -> StateRootMode {
        self.root_mode
    }

    /// The highest canonical block.
    pub fn tip(&self) -> Result<BlockRef, PipelineError> {
        let tip = self.db.begin_read()?.tip()?;
        Ok(tip.unwrap_or_else(|| BlockRef::new(0, self.spec.genesis_hash())))
    }

    /// Folds all committed state into its tables and syncs; for a short reopening and for honest
    /// sizes. Loses nothing if it is left out.
    pub fn flush(&self) -> Result<(), PipelineError> {
        self.store.flush()?;
        if let Some(referee) = &self.referee {
            referee.store.flush()?;
        }
        Ok(self.db.sync()?)
    }

    /// Commits proposals of backend and referee with whatever `rows` writes, in one transaction.
    pub(crate) fn commit(
        &self,
        proposals: &[Proposal],
        referee: &[Proposal],
        rows: impl FnOnce(&mut WriteTxn) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut txn = self.db.begin_write()?;
        rows(&mut txn)?;
        let after = self.store.commit(proposals, &mut txn)?;
        let referee_after = match &self.referee {
            None => None,
            Some(r) => Some(r.store.commit(referee, &mut r.names.txn(&mut txn))?),
        };
        txn.commit()?;
        after.run()?;
        referee_after.map_or(Ok(()), |after| Ok(after.run()?))
    }

    /// Takes chain and state back to block `number`, with whatever else `rows` does to the chain's
    /// tables, in one transaction.
    pub(crate) fn revert_with(
        &self,
        number: u64,
        rows: impl FnOnce(&mut WriteTxn) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut txn = self.db.begin_write()?;
        txn.unset_canonical_above(number)?;
        rows(&mut txn)?;
        let after = self.store.revert(number, &mut txn)?;
        let referee_after = match &self.referee {
            None => None,
            Some(r) => Some(r.store.revert(number, &mut r.names.txn(&mut txn))?),
        };
        txn.commit()?;
        after.run()?;
        referee_after.map_or(Ok(()), |after| Ok(after.run()?))
    }

    fn write_genesis(&self) -> Result<(), PipelineError> {
        let (delta, codes) = genesis_delta(&self.spec);
        let header = self.spec.genesis_header();
        let hash = header.hash();
        let proposal = self.store.begin(At::Tip)?.finish_as(0, &delta)?;
        self.store.seal(&proposal, hash);
        let mut referee = Vec::new();
        if let Some(r) = &self.referee {
            let proposal = r.store.begin(At::Tip)?.finish_as(0, &delta)?;
            r.store.seal(&proposal, hash);
            referee.push(proposal);
        }
        self.check_roots(0, hash, header.state_root, &proposal, referee.first())?;
        let roots = (proposal.root(), referee.first().map(Proposal::root));
        self.commit(&[proposal], &referee, |txn| {
            self.write_genesis_block(txn, &codes)?;
            self.write_roots(txn, hash, roots.0, roots.1)
        })
    }

    fn write_padded_genesis(
        &self,
        mut padding: Vec<(StateKey, Value)>,
    ) -> Result<(), PipelineError> {
        let (delta, codes) = genesis_delta(&self.spec);
        let own = delta.changes().iter().filter_map(|one| Some((one.key, one.next.clone()?)));
        let mut entries: Vec<_> = own.collect();
        entries.append(&mut padding);
        // Stable: where both have a key, genesis stays.
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        self.load_genesis(&codes, &mut entries.into_iter().map(Ok))
    }

    /// Writes the genesis block with the state of `entries`, all of it.
    fn load_genesis(
        &self,
        codes: &[(B256, Bytes)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    ) -> Result<(), PipelineError> {
        let header = self.spec.genesis_header();
        let (hash, expected) = (header.hash(), header.state_root);
        let mut txn = self.db.begin_write()?;
        self.write_genesis_block(&mut txn, codes)?;
        let (root, after) = self.store.bulk_load(BlockRef::new(0, hash), entries, &mut txn)?;
        if self.root_mode != StateRootMode::Shadow && root != expected {
            let backend = self.store.identity().name;
            let source = Box::new(RootMismatch { expected, got: root, backend });
            return Err(PipelineError::StateRoot { number: 0, hash, source });
        }
        self.write_roots(&mut txn, hash, root, None)?;
        txn.commit()?;
        Ok(after.run()?)
    }

    fn write_genesis_block(
        &self,
        txn: &mut WriteTxn,
        codes: &[(B256, Bytes)],
    ) -> Result<(), PipelineError> {
        write_genesis_block(txn, self.spec.genesis_header())?;
        for (hash, code) in codes {
            txn.insert_code(hash, code)?;
        }
        Ok(())
    }

    /// Records the root of each state beside the stored block `hash`.
    pub(crate) fn write_roots(
        &self,
        txn: &mut WriteTxn,
        hash: B256,
        root: B256,
        referee: Option<B256>,
    ) -> Result<(), PipelineError> {
        txn.insert_root(&hash, self.store.identity().name, &root)?;
        if let (Some(r), Some(root)) = (&self.referee, referee) {
            txn.insert_root(&hash, r.store.identity().name, &root)?;
        }
        Ok(())
    }

    /// Compares computed roots with the header's, as far as they can be. Returns how many were.
    pub(crate) fn check_roots(
        &self,
        number: u64,
        hash: B256,
        expected: B256,
        proposal: &Proposal,
        referee: Option<&Proposal>,
    ) -> Result<u64, PipelineError> {
        let own = (self.root_mode != StateRootMode::Shadow).then_some((&self.store, proposal));
        let refereed = self.referee.as_ref().map(|r| &r.store).zip(referee);
        let mut checked = 0;
        for (store, proposal) in own.into_iter().chain(refereed) {
            if proposal.root() != expected {
                let backend = store.identity().name;
                let source = Box::new(RootMismatch { expected, got: proposal.root(), backend });
                return Err(PipelineError::StateRoot { number, hash, source });
            }
            checked += 1;
        }
        Ok(checked.min(1))
    }

    pub(crate) fn check_tips(&self) -> Result<(), PipelineError> {
        let show = |store: &StateStore| {
            store.tip().map_or_else(|| "nothing".into(), |tip| tip.block.to_string())
        };
        let (chain, state) = (self.db.begin_read()?.tip()?, self.store.tip().map(|tip| tip.block));
        if chain != state {
            let chain = chain.map_or_else(|| "nothing".into(), |tip| tip.to_string());
            let what = format!("the state is at {}, the chain at {chain}", show(&self.store));
            return Err(StateError::corrupt("Meta", what).into());
        }
        match &self.referee {
            Some(r) if r.store.tip().map(|t| t.block) != self.store.tip().map(|t| t.block) => {
                Err(PipelineError::RefereeBehind {
                    referee: show(&r.store),
                    backend: show(&self.store),
                })
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the state on disk, after folding: table pages and files, the referee's included, but
    /// not the files that blocks below the tip alone still need.
    pub fn state_bytes(&self) -> Result<u64, PipelineError> {
        self.flush()?;
        let mut bytes = self.db.state_store().disk_bytes()? + self.store.stats()?.file_bytes;
        if let Some(referee) = &self.referee {
            bytes += referee.store.stats()?.file_bytes;
        }
        Ok(bytes)
    }
}

/// Writes block 0.
pub(crate) fn write_genesis_block(
    txn: &mut WriteTxn,
    header: &SealedHeader,
) -> Result<(), PipelineError> {
    // Where genesis is past Shanghai, its list of withdrawals is empty, not absent.
    let withdrawals = header.withdrawals_root.map(|_| Default::default());
    let body = BlockBody { withdrawals, ..BlockBody::default() };
    Ok(txn.insert_block(&NewBlock {
        hash: header.hash(),
        header: header.header(),
        body: &body,
        senders: &[],
        receipts: Some(&[]),
        total_difficulty: header.difficulty,
    })?)
}

/// Names of the tables of a referee.
pub(crate) fn referee_names(referee: &dyn Backend) -> Namespace {
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

/// The same chain with the genesis root that `backend` gives it: a chain of its own.
///
/// # Errors
/// If the state store fails.
pub fn native_spec(
    spec: &ChainSpec,
    backend: &Arc<dyn Backend>,
) -> Result<Arc<ChainSpec>, PipelineError> {
    // A genesis can be large enough for a backend to write files.
    let files = tempfile::tempdir().map_err(|source| PipelineError::Io {
        action: "creating a temporary folder for the state of genesis".into(),
        source,
    })?;
    let dir = Some(files.path().to_owned());
    let options = StoreOptions { retention: 0, dir, ..StoreOptions::default() };
    let store = StateStore::open(backend.clone(), Arc::new(MemoryStore::new()), options)?;
    let proposal = store.begin(At::Tip)?.finish_as(0, &genesis_delta(spec).0)?;
    Ok(Arc::new(spec.clone().with_genesis_state_root(proposal.root())))
}

/// The state of block 0 as its delta, and the codes of its contracts.
pub fn genesis_delta(spec: &ChainSpec) -> (StateDelta, Vec<(B256, Bytes)>) {
    let mut delta = DeltaBuilder::new();
    let mut codes = Vec::new();
    for (address, account) in spec.genesis_accounts() {
        let code_hash = match &account.code {
            Some(code) if !code.is_empty() => {
                let hash = keccak256(code);
                codes.push((hash, code.clone()));
                hash
            }
            _ => KECCAK256_EMPTY,
        };
        let state = Account {
            nonce: account.nonce.unwrap_or_default(),
            balance: account.balance,
            code_hash,
        };
        delta.change(StateKey::Account(*address), None, Some(state.encode()));
        for (slot, value) in account.storage.iter().flatten() {
            let value = encode_slot((*value).into());
            delta.change(StateKey::Slot(*address, *slot), None, value);
        }
    }
    (delta.build(), codes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ImportOptions, Importer,
        testkit::{Rules, TestChain},
    };
    use retrie_chainspec::primitives::Block;
    use retrie_db::SyncMode;
    use retrie_storage_mpt::Mpt;
    use retrie_telemetry::Metrics;

    fn import(chain: &Chain, blocks: &[Block]) -> BlockRef {
        std::thread::scope(|scope| {
            let metrics = Metrics::new().unwrap();
            let mut importer =
                Importer::new(chain, ImportOptions::default(), metrics, scope).unwrap();
            for block in blocks {
                importer.import(block.clone()).unwrap();
            }
            importer.flush().unwrap();
            importer.head()
        })
    }

    /// A reorg takes the chain back in one transaction and commits the branch in the next. Killed in
    /// between, it leaves a short chain and two branches of stored blocks.
    #[test]
    fn reorg_that_was_cut_off_is_made_up_for_by_importing_again() {
        for rules in [Rules::Byzantium, Rules::Cancun] {
            let mut made = TestChain::new(rules, Arc::new(Mpt::default()));
            let genesis = made.genesis();
            let trunk = *made.branch(genesis, 2, 12, 0).last().unwrap();
            let old = *made.branch(trunk, 3, 12, 1).last().unwrap();
            let new = *made.branch(trunk, 4, 5, 2).last().unwrap();
            let [old, new] = [old, new].map(|tip| (tip, made.path(genesis, tip)));
            let dir = tempfile::tempdir().unwrap();
            let chain = Chain::open(ChainOptions {
                spec: made.spec.clone(),
                backend: Arc::new(Mpt::default()),
                referee: None,
                root_mode: StateRootMode::Header,
                datadir: dir.path().to_owned(),
                db: OpenOptions {
                    map_limit: 1 << 30,
                    sync: SyncMode::NoSync,
                    ..OpenOptions::default()
                },
                store: StoreOptions::default(),
            })
            .unwrap();
            assert_eq!(import(&chain, &old.1).hash, old.0);
            for (tip, blocks) in [&old, &new, &old, &new] {
                chain.revert_with(2, |_| Ok(())).unwrap();
                assert_eq!(chain.tip().unwrap().hash, trunk);
                assert_eq!(import(&chain, blocks).hash, *tip, "{rules:?}");
                assert_eq!(chain.tip().unwrap().hash, *tip, "{rules:?}");
            }
            // Both in one file, as it was when the reorg was cut off.
            chain.revert_with(2, |_| Ok(())).unwrap();
            let head = import(&chain, &[&old.1[..], &new.1].concat());
            assert_eq!(head.hash, new.0, "{rules:?}");
        }
    }
}
