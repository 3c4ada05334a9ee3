//! Shared by the tests: datadirs to import into, and the comparison of their contents.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod failing;
pub mod late;

use alloy_primitives::{B256, Bytes, U256, keccak256};
use retrie_backends::BackendDescriptor;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Receipt},
};
use retrie_db::{ChainRead, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ChainStore, CommitLimits, ImportOptions, PipelineError, import,
    report::ImportReport,
    testkit::{TestChain, TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state::{AnyBackend, BackendKey, BlockRef, KeyRange, ScanDirection, StateValue};
use retrie_state_store::{StateId, StateStore, StoreOptions};
use retrie_storage_cole::{Cole, ColeParams};
use retrie_storage_mpt::Mpt;
use retrie_telemetry::Metrics;
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tempfile::TempDir;

pub fn test_chain(rules: TestRules) -> TestChain {
    TestChain::new(rules, Arc::new(Mpt::default()))
}

/// Backend and checks of a datadir. The backend has small parameters, so that it flushes, merges or
/// collects every few blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSetup {
    backend: &'static str,
    root_mode: StateRootMode,
    /// `--referee mpt`.
    has_referee: bool,
}

impl NodeSetup {
    pub const MPT: Self = Self::of("mpt", StateRootMode::Header);
    pub const MPT_SHADOW: Self = Self::of("mpt", StateRootMode::Shadow);
    pub const RAW: Self = Self::of("raw", StateRootMode::Shadow);
    pub const REFEREED: Self = Self { has_referee: true, ..Self::RAW };

    const fn of(backend: &'static str, root_mode: StateRootMode) -> Self {
        Self { backend, root_mode, has_referee: false }
    }

    /// Every backend alone, and with a referee if its roots are not Ethereum's.
    pub fn all() -> Vec<Self> {
        let setups = |backend: &'static BackendDescriptor| match backend.profile().ethereum_root {
            true => vec![Self::of(backend.name, StateRootMode::Header)],
            false => {
                let alone = Self::of(backend.name, StateRootMode::Shadow);
                vec![alone, Self { has_referee: true, ..alone }]
            }
        };
        retrie_backends::all().flat_map(setups).collect()
    }

    /// The setups that check header roots.
    pub fn checked() -> Vec<Self> {
        Self::all().into_iter().filter(|setup| setup.checks_roots()).collect()
    }

    pub fn checks_roots(self) -> bool {
        self.has_referee || self.root_mode == StateRootMode::Header
    }

    fn descriptor(self) -> &'static BackendDescriptor {
        retrie_backends::find(self.backend).unwrap()
    }

    pub fn backend(self) -> Arc<dyn AnyBackend> {
        (self.descriptor().small)()
    }

    pub fn has_referee(self) -> bool {
        self.has_referee
    }

    pub fn is_cole(self) -> bool {
        self.descriptor().stored_name() == "cole"
    }
}

/// COLE* with other parameters, but the same size ratio.
pub fn cole_of(params: ColeParams) -> Arc<dyn AnyBackend> {
    Arc::new(Cole::new(ColeParams { size_ratio: 2, ..params }).unwrap())
}

/// A datadir.
pub struct TestNode {
    pub dir: TempDir,
    pub spec: Arc<ChainSpec>,
    pub setup: NodeSetup,
    pub retention: u64,
}

impl TestNode {
    pub fn new(spec: &Arc<ChainSpec>, setup: NodeSetup) -> Self {
        Self { dir: TempDir::new().unwrap(), spec: spec.clone(), setup, retention: 128 }
    }

    pub fn try_open(&self, setup: NodeSetup) -> Result<ChainStore, PipelineError> {
        ChainStore::open(self.options(setup))
    }

    pub fn options(&self, setup: NodeSetup) -> ChainOptions {
        let referee = setup.has_referee.then(|| NodeSetup::MPT.backend());
        ChainOptions {
            spec: self.spec.clone(),
            backend: setup.backend(),
            referee,
            root_mode: setup.root_mode,
            datadir: self.dir.path().join("data"),
            db: OpenOptions {
                map_limit: 1 << 30,
                growth_step: 1 << 20,
                sync: SyncMode::NoSync,
                ..OpenOptions::default()
            },
            store: StoreOptions { retention: self.retention, ..StoreOptions::default() },
        }
    }

    pub fn open(&self) -> ChainStore {
        self.try_open(self.setup).unwrap()
    }

    /// Opens the datadir, imports a file of these blocks, and closes it.
    pub fn import(&self, blocks: &[Block]) -> Result<ImportReport, PipelineError> {
        self.import_with(blocks, ImportOptions::default())
    }

    pub fn import_with(
        &self,
        blocks: &[Block],
        options: ImportOptions,
    ) -> Result<ImportReport, PipelineError> {
        self.import_range(blocks, 0..=u64::MAX, options)
    }

    pub fn import_range(
        &self,
        blocks: &[Block],
        range: RangeInclusive<u64>,
        options: ImportOptions,
    ) -> Result<ImportReport, PipelineError> {
        let file = self.dir.path().join("blocks.rlp");
        write_blocks(&file, blocks);
        let sources = vec![BlockSource::open(&file).unwrap()];
        import_into(&self.open(), sources, range, options, &AtomicBool::new(false), &mut |_| {})
    }

    pub fn tip(&self) -> BlockRef {
        self.open().tip().unwrap()
    }

    /// The canonical chain of the datadir, with the lookup of all transactions of `known` blocks.
    pub fn picture(&self, known: &[Block]) -> DatadirContents {
        DatadirContents::of(&self.open(), known)
    }
}

pub fn import_into(
    chain: &ChainStore,
    sources: Vec<BlockSource>,
    range: RangeInclusive<u64>,
    options: ImportOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportReport, PipelineError> {
    let metrics = Metrics::new().unwrap();
    let outcome = import(chain, sources, range, options, &metrics, stop, progress)?;
    assert_eq!(outcome.report.tip.hash, chain.tip().unwrap().hash, "the tip told is durable");
    outcome.end.map(|_| outcome.report)
}

/// Commits of `blocks` blocks each, whatever time they take.
pub fn batches(blocks: usize) -> ImportOptions {
    let options = ImportOptions::default();
    let batch = CommitLimits { blocks, time: Duration::from_secs(3600), ..options.commit_limits };
    ImportOptions { commit_limits: batch, ..options }
}

/// The canonical chain of a datadir, and the whole state at its tip.
#[derive(Debug, PartialEq, Eq)]
pub struct DatadirContents {
    pub tip: BlockRef,
    pub blocks: Vec<CanonicalBlock>,
    /// Block number and index by hash, of the transactions that the caller knows.
    pub lookup: BTreeMap<B256, Option<(u64, u32)>>,
    pub root: B256,
    pub state: Vec<(BackendKey, StateValue)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct CanonicalBlock {
    pub hash: B256,
    pub total_difficulty: U256,
    pub receipts: Vec<Receipt>,
    pub access_list: Option<Bytes>,
    pub roots: Vec<(String, B256)>,
}

impl DatadirContents {
    pub fn of(chain: &ChainStore, known: &[Block]) -> Self {
        let read = chain.db().begin_read().unwrap();
        let tip = chain.tip().unwrap();
        assert_eq!(chain.state().tip().unwrap().block, tip, "state and chain have one tip");
        let block = |number| {
            let hash = read.canonical_hash(number).unwrap().expect("no gap in the chain");
            let access_list = read.access_list(&hash).unwrap();
            let named = read.header(&hash).unwrap().unwrap().block_access_list_hash;
            assert_eq!(access_list.as_ref().map(keccak256), named.filter(|_| number > 0));
            CanonicalBlock {
                hash,
                total_difficulty: read.total_difficulty(&hash).unwrap().unwrap(),
                receipts: read.receipts(&hash).unwrap().unwrap(),
                access_list,
                roots: read.roots(&hash).unwrap(),
            }
        };
        assert_eq!(read.canonical_hash(tip.number + 1).unwrap(), None);
        let transactions = known.iter().flat_map(|block| &block.body.transactions);
        let place = |hash: &B256| {
            let stored = read.transaction_by_hash(hash).unwrap()?;
            assert_eq!(stored.transaction.tx_hash(), hash);
            assert_eq!(read.canonical_hash(stored.block.number).unwrap(), Some(stored.block.hash));
            Some((stored.block.number, stored.index))
        };
        Self {
            tip,
            blocks: (0..=tip.number).map(block).collect(),
            lookup: transactions.map(|tx| (*tx.tx_hash(), place(tx.tx_hash()))).collect(),
            root: chain.state().root(StateId::Tip).unwrap(),
            state: chain
                .state()
                .at(StateId::Tip)
                .and_then(|state| state.entries(None, 100_000))
                .unwrap(),
        }
    }
}

pub type StoredRows = BTreeMap<(&'static str, Bytes), Bytes>;

/// All rows of the backend's state and its history, folded. Undo records have no fixed order, so
/// only their lengths are compared.
pub fn rows(chain: &ChainStore) -> StoredRows {
    chain.flush().unwrap();
    let snapshot = chain.db().state_store().snapshot().unwrap();
    let tables = StateStore::tables(chain.state().backend());
    let of =
        |table| snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
    let rows = tables.into_iter().flat_map(|table| {
        of(table).into_iter().map(move |(key, value)| {
            let value = match table.name {
                "Undo" => value.len().to_be_bytes().to_vec().into(),
                _ => value,
            };
            ((table.name, key), value)
        })
    });
    rows.collect()
}

/// Restores the parent hashes of consecutive blocks.
pub fn link(blocks: &mut [Block]) {
    for at in 1..blocks.len() {
        blocks[at].header.parent_hash = blocks[at - 1].header.hash_slow();
    }
}

/// Initialisation code that deploys `runtime`.
pub fn init_code(runtime: &[u8]) -> Vec<u8> {
    let len = runtime.len() as u8;
    // CODECOPY(0, 12, len), RETURN(0, len)
    let head = [0x60, len, 0x60, 0x0c, 0x60, 0x00, 0x39, 0x60, len, 0x60, 0x00, 0xf3];
    [&head[..], runtime].concat()
}

/// The message of an error, which must be one line and name the block.
pub fn names_block(error: &PipelineError, number: u64) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "more than one line: {text}");
    assert!(text.contains(&format!("block {number}")), "block {number} is not named: {text}");
    text
}
