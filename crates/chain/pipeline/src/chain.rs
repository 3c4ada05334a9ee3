//! An open datadir: the chain's tables and its states.

use crate::{
    ChainSetupError, PipelineError, ProposalSet, RootKind, RootSet, StoreSet, StoreSetId,
    entries::SortedEntries, joining::JoinProgress, preimages::PreimageSorter,
    state_backends::StateBackends, store_set::EntrySource,
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{BlockBody, SealedHeader},
};
use retrie_db::{
    ChainRead, DatabaseEnv, DatadirMetadata, NewBlock, OpenOptions, ReadTxn, StateRootMode,
    WriteTxn,
};
use retrie_state::{
    Account, AnyBackend, BackendKey, BlockRef, DeltaBuilder, KeyForm, StateDelta, StateError,
    StateKey, StateValue, encode_slot,
};
use retrie_state_store::{
    EntrySorter, MemoryStore, StateId, StateStore, StoreGauges, StoreOptions, TableCounts,
};
use retrie_telemetry::{
    Metrics,
    state::{StateFigures, TableFigures},
};
use std::{path::PathBuf, sync::Arc};

/// The folder, within the datadir, of the database and of all other data of the chain.
pub(crate) const DB_FOLDER: &str = "db";

/// How to open a datadir.
#[derive(Clone)]
pub struct ChainOptions {
    /// Rules and genesis of the chain.
    pub spec: Arc<ChainSpec>,
    /// The state backend.
    pub backend: Arc<dyn AnyBackend>,
    /// A backend with the roots of headers that runs beside it on the same deltas.
    pub referee: Option<Arc<dyn AnyBackend>>,
    /// What header state roots mean.
    pub root_mode: StateRootMode,
    /// The datadir.
    pub datadir: PathBuf,
    /// Options of the database.
    pub db: OpenOptions,
    /// Options of the state store. Its directory is set here.
    pub store: StoreOptions,
}

impl ChainOptions {
    /// Rules and genesis of the chain that the datadir holds. A chain whose headers have the
    /// backend's own roots has its own genesis block, and a genesis file does not tell the root of
    /// the binary tree, if block 0 has that.
    ///
    /// # Errors
    /// As [`native_spec`]; [`ChainSetupError::NoBinaryGenesis`].
    pub fn own_spec(&self) -> Result<Arc<ChainSpec>, PipelineError> {
        match self.root_mode {
            StateRootMode::Native => native_spec(&self.spec, &self.backend),
            _ if self.spec.has_binary_genesis() => {
                let mut backends = std::iter::once(&self.backend).chain(&self.referee);
                let binary = backends.find(|backend| backend.profile().binary_root);
                let missing = || ChainSetupError::NoBinaryGenesis {
                    chain: self.spec.name().to_owned(),
                    own: self.backend.identity().name,
                    referee: self.referee.as_ref().map(|referee| referee.identity().name),
                };
                native_spec(&self.spec, binary.ok_or_else(missing)?)
            }
            StateRootMode::Header | StateRootMode::Shadow => Ok(self.spec.clone()),
        }
    }

    /// The kind of state root that headers with this timestamp carry, unless they carry the
    /// backend's own ([`StateRootMode::Native`]).
    pub fn root_kind(&self, timestamp: u64) -> RootKind {
        let time = StateBackends::binary_tree_time(&self.spec, self.root_mode);
        RootKind::at(time, timestamp)
    }
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

/// Converts store gauges to the figures that the metrics show.
fn figures(gauges: StoreGauges) -> StateFigures {
    let StoreGauges {
        counts,
        pending_bytes,
        disk_bytes,
        file_bytes,
        retained_file_bytes,
        first_retained,
    } = gauges;
    let table = |(table, of): (&'static str, TableCounts)| TableFigures {
        table,
        reads: of.reads,
        read_bytes: of.read_bytes,
        writes: of.writes,
        write_bytes: of.write_bytes,
    };
    StateFigures {
        read_seconds: counts.read_time.as_secs_f64(),
        job_wait_seconds: counts.job_wait.as_secs_f64(),
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

/// Where the state of genesis comes from.
enum GenesisState<'a> {
    /// All of it is in the specification.
    Listed,
    /// The specification's state and these entries, which header roots do not include.
    Padded(Vec<(StateKey, StateValue)>),
    /// These entries are the whole state.
    Loaded(&'a mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>),
}

/// An open datadir.
#[derive(Debug)]
pub struct ChainStore {
    pub(crate) spec: Arc<ChainSpec>,
    pub(crate) db: DatabaseEnv,
    pub(crate) states: StoreSet,
    /// The referee that still has to join.
    pub(crate) joining: Option<JoinProgress>,
}

/// Which header field commits to the writes of a block, as far as this node can check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCheck {
    /// The state root: it commits to the whole state, whatever came before.
    StateRoot,
    /// The hash of the block access list (EIP-7928), which has every value that the block writes:
    /// if the state before the block is right, so is the state after it.
    AccessList,
    /// None: the writes are checked only as far as gas, receipts and requests depend on them.
    Nothing,
}

impl WriteCheck {
    /// Its name: `stateRoot`, `blockAccessList`, `nothing`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StateRoot => "stateRoot",
            Self::AccessList => "blockAccessList",
            Self::Nothing => "nothing",
        }
    }
}

impl ChainStore {
    /// Opens or creates a datadir. A new one gets the genesis block; an existing one must hold the
    /// same chain, backend and root mode.
    ///
    /// # Errors
    /// [`NoHeaderRoot`](crate::ChainSetupError::NoHeaderRoot) if header roots are to be checked by a
    /// backend that computes other roots; errors of database and state store.
    pub fn open(options: ChainOptions) -> Result<Self, PipelineError> {
        Self::open_with(options, GenesisState::Listed)
    }

    /// Shows the state stores in `metrics` while this datadir is open.
    pub fn register_metrics(&self, metrics: &Metrics) {
        for (store, is_referee) in self.states.stores() {
            let watch = store.watch();
            let name = if is_referee { "referee" } else { "state" };
            metrics.watch_state(name, store.identity().name, move || watch.read().map(figures));
        }
    }

    /// As [`open`](Self::open), with more entries in the genesis state of a new datadir, sorted by
    /// key, so that measurements run on a state of real size. Header roots are then not checked,
    /// whatever the options say, as they are roots of another state. There is no referee.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_padded(
        options: ChainOptions,
        padding: Vec<(StateKey, StateValue)>,
    ) -> Result<Self, PipelineError> {
        let options = ChainOptions { referee: None, root_mode: StateRootMode::Shadow, ..options };
        Self::open_with(options, GenesisState::Padded(padding))
    }

    /// As [`open`](Self::open) for a new datadir, where `entries`, sorted by key, are the whole
    /// genesis state. The genesis header must have this state's root, but the specification needs
    /// to list only the accounts with code. There is no referee.
    ///
    /// # Errors
    /// As [`open`](Self::open). [`StateRoot`](crate::InvalidBlockError::StateRoot) if header
    /// roots are checked and the genesis state has another root.
    pub fn create_with_state(
        options: ChainOptions,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
    ) -> Result<Self, PipelineError> {
        let options = ChainOptions { referee: None, ..options };
        Self::open_with(options, GenesisState::Loaded(entries))
    }

    fn open_with(options: ChainOptions, genesis: GenesisState<'_>) -> Result<Self, PipelineError> {
        let chain = Self::open_unchecked(options, genesis)?;
        chain.states.check_tips(&chain.db)?;
        Ok(chain)
    }

    /// The same, but the referee may be missing or behind.
    pub(crate) fn open_unleveled(options: ChainOptions) -> Result<Self, PipelineError> {
        Self::open_unchecked(options, GenesisState::Listed)
    }

    fn open_unchecked(
        options: ChainOptions,
        genesis: GenesisState<'_>,
    ) -> Result<Self, PipelineError> {
        let chain = Self::open_stores(options, None)?;
        if chain.db.begin_read()?.tip()?.is_none() {
            match genesis {
                GenesisState::Padded(padding) if !padding.is_empty() => {
                    chain.write_padded_genesis(padding)?;
                }
                GenesisState::Listed | GenesisState::Padded(_) => chain.write_genesis()?,
                GenesisState::Loaded(entries) => {
                    let (_, codes) = genesis_delta(&chain.spec);
                    chain.load_genesis(&codes, entries)?;
                }
            }
        }
        Ok(chain)
    }

    /// Opens or creates the datadir. It may still have no block; then it will begin with the state
    /// of a block with the timestamp `first`, by default of genesis.
    pub(crate) fn open_stores(
        options: ChainOptions,
        first: Option<u64>,
    ) -> Result<Self, PipelineError> {
        let spec = options.own_spec()?;
        let ChainOptions { spec: file, backend, referee, root_mode, datadir, mut db, store } =
            options;
        let identity = backend.identity().clone();
        let backends = StateBackends {
            own: backend,
            referee,
            root_mode,
            keys: store.keys,
            binary_tree_time: StateBackends::binary_tree_time(&spec, root_mode),
        };
        backends.check()?;
        let first = first.unwrap_or_else(|| spec.genesis_header().timestamp);
        if !datadir.join(DB_FOLDER).exists() {
            backends.check_eras(spec.name(), first)?;
        }
        db.state_tables = backends.tables();
        let (retention, preimages) = (db.retention, db.preimages);
        if preimages == Some(true) && store.keys.is_plain() {
            return Err(ChainSetupError::PlainPreimages { datadir }.into());
        }
        let db = DatabaseEnv::open_or_create(&datadir, &db)?;
        let first = first_state_time(&db.begin_read()?)?.unwrap_or(first);
        backends.check_eras(spec.name(), first)?;
        check_binary_tree_time(&db, &spec)?;
        let expected = DatadirMetadata::new(
            spec.chain_id(),
            spec.genesis_hash(),
            &identity,
            store.keys,
            root_mode,
        );
        db.init_metadata(&expected)?;
        db.store_spec(&file)?;
        retention.map_or(Ok(()), |retention| db.store_retention(retention))?;
        preimages.map_or(Ok(()), |keeps| db.store_keeping_of_preimages(keeps))?;
        let states = StoreSet::open(&db, backends, store)?;
        Ok(Self { spec, db, states, joining: None })
    }

    /// Rules of the chain.
    pub const fn spec(&self) -> &Arc<ChainSpec> {
        &self.spec
    }

    /// The chain's tables.
    pub const fn db(&self) -> &DatabaseEnv {
        &self.db
    }

    /// The states.
    pub const fn states(&self) -> &StoreSet {
        &self.states
    }

    /// The backend's state.
    pub const fn state(&self) -> &StateStore {
        self.states.own()
    }

    /// The referee's state, if there is one.
    pub fn referee(&self) -> Option<&StateStore> {
        self.states.referee()
    }

    /// How far the referee is that joins this chain, if there is one.
    pub const fn joining(&self) -> Option<&JoinProgress> {
        self.joining.as_ref()
    }

    /// What header state roots mean.
    pub const fn root_mode(&self) -> StateRootMode {
        self.states.root_mode()
    }

    /// The kind of state root that headers with this timestamp carry, unless they carry the
    /// backend's own ([`StateRootMode::Native`]).
    pub const fn root_kind(&self, timestamp: u64) -> RootKind {
        self.states.root_kind(timestamp)
    }

    /// The time from which on headers carry the root of the binary tree; `None` if they never do, or
    /// carry the backend's own roots.
    pub const fn binary_tree_time(&self) -> Option<u64> {
        self.states.binary_tree_time()
    }

    /// Whether computed roots, the backend's own or the referee's, are compared with the header
    /// roots.
    pub fn checks_roots(&self) -> bool {
        let is_of_headers = |store: &StateStore| {
            let profile = store.backend().profile();
            profile.ethereum_root || profile.binary_root && self.binary_tree_time().is_some()
        };
        self.root_mode() != StateRootMode::Shadow || self.referee().is_some_and(is_of_headers)
    }

    /// Which header field the writes of a block with this timestamp are checked against.
    pub fn write_check(&self, timestamp: u64) -> WriteCheck {
        if self.checks_roots() {
            WriteCheck::StateRoot
        } else if self.spec.is_amsterdam_active_at_timestamp(timestamp) {
            WriteCheck::AccessList
        } else {
            WriteCheck::Nothing
        }
    }

    /// The highest canonical block.
    pub fn tip(&self) -> Result<BlockRef, PipelineError> {
        let tip = self.db.begin_read()?.tip()?;
        Ok(tip.unwrap_or_else(|| BlockRef::new(0, self.spec.genesis_hash())))
    }

    /// Folds all committed state into its tables and syncs. This makes the next opening fast and
    /// sizes exact; no data is lost without it.
    pub fn flush(&self) -> Result<(), PipelineError> {
        self.states.flush()?;
        Ok(self.db.sync()?)
    }

    /// Commits sealed proposals and the rows that `rows` writes, in one transaction.
    pub(crate) fn commit(
        &self,
        proposals: &[ProposalSet],
        rows: impl FnOnce(&mut WriteTxn) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut txn = self.states.begin_write(&self.db)?;
        rows(txn.rows())?;
        txn.commit(proposals)?;
        txn.finish()
    }

    /// Takes chain and states back to block `number`, and writes what `rows` writes, in one
    /// transaction.
    pub(crate) fn revert_with(
        &self,
        number: u64,
        rows: impl FnOnce(&mut WriteTxn) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut txn = self.states.begin_write(&self.db)?;
        txn.rows().unset_canonical_above(number)?;
        rows(txn.rows())?;
        txn.revert(number)?;
        txn.finish()
    }

    pub(crate) fn write_genesis(&self) -> Result<(), PipelineError> {
        let (delta, codes) = genesis_delta(&self.spec);
        let header = self.spec.genesis_header();
        let (proposals, _) = self.states.begin(StoreSetId::Tip)?.finish_as(0, &delta)?;
        self.states.seal(&proposals, header.hash());
        let roots = proposals.roots();
        self.states.check_roots(header, roots)?;
        let preimages = self.states.preimages_of([Arc::new(delta)]);
        self.commit(&[proposals], |txn| {
            txn.insert_preimages(preimages.iter())?;
            insert_codes(txn, &codes)?;
            self.write_genesis_block(txn, roots)
        })
    }

    fn write_padded_genesis(
        &self,
        mut padding: Vec<(StateKey, StateValue)>,
    ) -> Result<(), PipelineError> {
        let (delta, codes) = genesis_delta(&self.spec);
        let own = delta.changes().iter().filter_map(|one| Some((one.key, one.next.clone()?)));
        let mut entries: Vec<_> = own.collect();
        entries.append(&mut padding);
        // The sort is stable: if both have a key, the genesis value stays.
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        let mut entries = entries.into_iter().map(Ok);
        self.load_genesis(&codes, &mut entries)
    }

    /// Writes the genesis block with `entries` as its whole state.
    fn load_genesis(
        &self,
        codes: &[(B256, Bytes)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
    ) -> Result<(), PipelineError> {
        let header = self.spec.genesis_header();
        let mut txn = self.states.begin_write(&self.db)?;
        let block = BlockRef::new(0, header.hash());
        // Before the state, as a backend may need them.
        insert_codes(txn.rows(), codes)?;
        let roots = match self.state().keys() {
            KeyForm::Plain => txn.load(block, &mut SingleUseEntries(Some(entries)))?,
            keys @ KeyForm::Hashed => {
                let mut sorter = EntrySorter::new(self.db.datadir());
                let mut preimages = self.preimage_sorter();
                for entry in entries {
                    let (key, value) = entry?;
                    sorter.put(&keys.key(&key), &value)?;
                    preimages.put(&key)?;
                }
                preimages.write(txn.rows())?;
                txn.load(block, &mut SortedEntries(sorter))?
            }
        };
        self.states.check_roots(header, roots)?;
        self.write_genesis_block(txn.rows(), roots)?;
        txn.finish()
    }

    /// Sorts the preimages of a state, if the datadir keeps them.
    pub(crate) fn preimage_sorter(&self) -> PreimageSorter {
        PreimageSorter::new(self.states.keeps_preimages().then(|| self.db.datadir()))
    }

    fn write_genesis_block(&self, txn: &mut WriteTxn, roots: RootSet) -> Result<(), PipelineError> {
        let header = self.spec.genesis_header();
        write_genesis_block(txn, header)?;
        self.states.write_roots(txn, header.hash(), roots)
    }

    /// Bytes of the state on disk, after folding: table pages and files, the referee's included.
    /// Files that only blocks below the tip need are not counted.
    pub fn state_bytes(&self) -> Result<u64, PipelineError> {
        self.flush()?;
        Ok(self.db.state_store().disk_bytes()? + self.states.file_bytes()?)
    }
}

/// The timestamp of the first canonical block with a state; `None` if there is no block.
fn first_state_time(read: &ReadTxn) -> Result<Option<u64>, PipelineError> {
    let Some(hash) = read.canonical_hash(read.anchor()?)? else { return Ok(None) };
    Ok(read.header(&hash)?.map(|header| header.timestamp))
}

/// Refuses a chain that switches to the binary tree at another time than the one that the datadir
/// was made for, if its blocks are past one of the two. On a chain of native roots nothing switches.
fn check_binary_tree_time(db: &DatabaseEnv, spec: &ChainSpec) -> Result<(), PipelineError> {
    let read = db.begin_read()?;
    let (Some(tip), Some(metadata)) = (read.tip()?, read.metadata()?) else { return Ok(()) };
    let Some(kept) = read.genesis_file()? else { return Ok(()) };
    let (kept, given) = (kept.binary_tree_time(), spec.binary_tree_time());
    let earlier = kept.into_iter().chain(given).min();
    let tip_time = read.header(&tip.hash)?.map_or(0, |header| header.timestamp);
    let is_decided = earlier.is_some_and(|time| time <= tip_time);
    if kept == given || !is_decided || metadata.state_root == StateRootMode::Native {
        return Ok(());
    }
    let datadir = db.datadir().to_owned();
    Err(ChainSetupError::BinaryTreeTime { datadir, kept, given, tip, tip_time }.into())
}

/// Entries with plain keys that can be read only once. Enough if there is no referee.
struct SingleUseEntries<'a>(
    Option<&'a mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>>,
);

impl EntrySource for SingleUseEntries<'_> {
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, PipelineError>
    {
        let gone = || StateError::corrupt("state", "these entries were read before");
        let entries = self.0.take().ok_or_else(gone)?;
        Ok(entries.map(|entry| entry.map(|(key, value)| (key.into(), value))))
    }
}

fn insert_codes(txn: &mut WriteTxn, codes: &[(B256, Bytes)]) -> Result<(), PipelineError> {
    codes.iter().try_for_each(|(hash, code)| Ok(txn.insert_code(hash, code)?))
}

/// Writes block 0.
pub(crate) fn write_genesis_block(
    txn: &mut WriteTxn,
    header: &SealedHeader,
) -> Result<(), PipelineError> {
    // If genesis is past Shanghai, its list of withdrawals is empty, not absent.
    let withdrawals = header.withdrawals_root.map(|_| Default::default());
    let body = BlockBody { withdrawals, ..BlockBody::default() };
    Ok(txn.insert_block(&NewBlock {
        hash: header.hash(),
        header: header.header(),
        body: &body,
        senders: &[],
        receipts: Some(&[]),
        access_list: None,
        total_difficulty: header.difficulty,
    })?)
}

/// The same chain with the genesis root that `backend` computes. It is a chain of its own.
///
/// # Errors
/// If the state store fails.
pub fn native_spec(
    spec: &ChainSpec,
    backend: &Arc<dyn AnyBackend>,
) -> Result<Arc<ChainSpec>, PipelineError> {
    // A genesis can be large enough for a backend to write files.
    let files = tempfile::tempdir().map_err(|source| PipelineError::Io {
        action: "creating a temporary folder for the state of genesis".into(),
        source,
    })?;
    let dir = Some(files.path().to_owned());
    let options = StoreOptions { retention: 0, dir, ..StoreOptions::default() };
    let store = StateStore::open(backend.clone(), Arc::new(MemoryStore::new()), options)?;
    let proposal = store.begin(StateId::Tip)?.finish_as(0, &genesis_delta(spec).0)?;
    Ok(Arc::new(spec.clone().with_genesis_state_root(proposal.root())))
}

/// The state of block 0 as a delta, and the codes of its contracts, which the delta has too.
pub fn genesis_delta(spec: &ChainSpec) -> (StateDelta, Vec<(B256, Bytes)>) {
    let mut delta = DeltaBuilder::new();
    let mut codes = Vec::new();
    for (address, account) in spec.genesis_accounts() {
        let code_hash = match &account.code {
            Some(code) if !code.is_empty() => {
                let hash = keccak256(code);
                codes.push((hash, code.clone()));
                delta.add_code(hash, code.clone());
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
        BlockImporter, ImportOptions,
        testkit::{TestChain, TestRules},
    };
    use retrie_chainspec::primitives::Block;
    use retrie_db::SyncMode;
    use retrie_storage_mpt::Mpt;
    use retrie_storage_raw::Raw;
    use retrie_telemetry::Metrics;
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    fn import(chain: &ChainStore, blocks: &[Block]) -> BlockRef {
        std::thread::scope(|scope| {
            let metrics = Metrics::new().unwrap();
            let mut importer =
                BlockImporter::new(chain, ImportOptions::default(), metrics, scope).unwrap();
            for block in blocks {
                importer.import(block.clone()).unwrap();
            }
            importer.flush().unwrap();
            importer.head()
        })
    }

    /// A reorg takes the chain back in one transaction and commits the branch in the next one. A
    /// kill between the two leaves a short chain and two branches of stored blocks.
    #[test]
    fn reorg_that_was_cut_off_is_made_up_for_by_importing_again() {
        for rules in [TestRules::Byzantium, TestRules::Cancun] {
            let mut made = TestChain::new(rules, Arc::new(Mpt::default()));
            let genesis = made.genesis();
            let trunk = *made.branch(genesis, 2, 12, 0).last().unwrap();
            let old = *made.branch(trunk, 3, 12, 1).last().unwrap();
            let new = *made.branch(trunk, 4, 5, 2).last().unwrap();
            let [old, new] = [old, new].map(|tip| (tip, made.path(genesis, tip)));
            let dir = tempfile::tempdir().unwrap();
            let chain = ChainStore::open(ChainOptions {
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
            // Both branches in one file, in the order they had when the reorg was cut off.
            chain.revert_with(2, |_| Ok(())).unwrap();
            let head = import(&chain, &[&old.1[..], &new.1].concat());
            assert_eq!(head.hash, new.0, "{rules:?}");
        }
    }

    /// A commit of a state with much in memory waits for a fold, which needs the write transaction.
    /// Another thread, which held the transaction and waited for the referee's store, once waited
    /// for ever.
    #[test]
    fn commits_of_two_threads_beside_a_referee_do_not_wait_for_each_other() {
        let mut made = TestChain::new(TestRules::Cancun, Arc::new(Mpt::default()));
        let genesis = made.genesis();
        let tip = *made.branch(genesis, 60, 12, 0).last().unwrap();
        let blocks = made.path(genesis, tip);
        let dir = tempfile::tempdir().unwrap();
        let store = StoreOptions { fold_bytes: 1, fold_commits: 1, ..StoreOptions::default() };
        let chain = ChainStore::open(ChainOptions {
            spec: made.spec.clone(),
            backend: Arc::new(Raw),
            referee: Some(Arc::new(Mpt::default())),
            root_mode: StateRootMode::Shadow,
            datadir: dir.path().to_owned(),
            db: OpenOptions {
                map_limit: 1 << 30,
                sync: SyncMode::NoSync,
                ..OpenOptions::default()
            },
            store,
        });
        let chain = Arc::new(chain.unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let (done, wait) = std::sync::mpsc::channel();
        let other = {
            let (chain, is_over) = (chain.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    chain.commit(&[], |_| Ok(())).unwrap();
                }
            })
        };
        std::thread::spawn(move || {
            for block in blocks {
                import(&chain, &[block]);
            }
            done.send(chain.tip().unwrap().hash).unwrap();
        });
        // If the test fails, threads that wait for ever are left behind.
        let imported = wait.recv_timeout(Duration::from_secs(120));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(imported, Ok(tip), "two commits wait for each other");
        other.join().unwrap();
    }
}
