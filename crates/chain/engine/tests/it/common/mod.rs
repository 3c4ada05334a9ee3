//! Shared by the tests: nodes on every backend, and a consensus client's calls.
#![allow(dead_code, reason = "each test takes what it needs")]

use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadInputV2, ForkchoiceState, ForkchoiceUpdated,
    PayloadAttributes, PayloadStatus, PayloadStatusEnum,
};
use retrie_backends::BackendDescriptor;
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_db::{DbError, OpenError, OpenOptions, StateRootMode, SyncMode};
use retrie_engine::{
    BuilderConfig, Engine, EngineApi, EngineApiError, EngineConfig, LiveChain, PayloadBuilder,
    PoolMaintainer,
    pool::{PoolConfig, TransactionPool},
};
use retrie_pipeline::{
    ChainOptions, ChainStore, PipelineError, prepare,
    testkit::{TestChain, TestRules},
};
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use retrie_storage_mpt::Mpt;
use retrie_telemetry::Metrics;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Backend and root mode of a node. The backend is small, so that every few blocks something is
/// flushed, merged or collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeSetup {
    backend: &'static str,
    root_mode: StateRootMode,
    /// Whether the MPT runs beside it.
    has_referee: bool,
}

impl NodeSetup {
    pub(crate) const MPT: Self = Self::of("mpt", StateRootMode::Header);
    pub(crate) const ARCHIVE: Self = Self::of("mpt-archive", StateRootMode::Header);
    pub(crate) const RAW: Self = Self::of("raw", StateRootMode::Shadow);
    pub(crate) const REFEREED: Self = Self { has_referee: true, ..Self::RAW };
    pub(crate) const LVMT: Self = Self::of("lvmt", StateRootMode::Shadow);
    pub(crate) const LMPT: Self = Self::of("lmpt", StateRootMode::Shadow);
    pub(crate) const LVMT_NATIVE: Self = Self::of("lvmt", StateRootMode::Native);

    const fn of(backend: &'static str, root_mode: StateRootMode) -> Self {
        Self { backend, root_mode, has_referee: false }
    }

    /// All setups: every backend in root mode header or shadow, shadow also with a referee, and in
    /// root mode native.
    pub(crate) fn all() -> Vec<Self> {
        [Self::on_headers(), Self::refereed(), Self::native()].concat()
    }

    /// Every backend on blocks with Ethereum's roots.
    pub(crate) fn on_headers() -> Vec<Self> {
        let modes = |backend: &'static BackendDescriptor| {
            let shadow = Self::of(backend.name, StateRootMode::Shadow);
            let header = Self::of(backend.name, StateRootMode::Header);
            let has_root = backend.profile().ethereum_root;
            [has_root.then_some(header), (!has_root).then_some(shadow)].into_iter().flatten()
        };
        retrie_backends::all().flat_map(modes).collect()
    }

    /// Every backend without Ethereum's roots, with the MPT beside it.
    pub(crate) fn refereed() -> Vec<Self> {
        let mut all = Self::on_headers();
        all.retain(|setup| setup.root_mode == StateRootMode::Shadow);
        all.into_iter().map(|setup| Self { has_referee: true, ..setup }).collect()
    }

    /// Every backend with its own roots in the headers.
    pub(crate) fn native() -> Vec<Self> {
        let of = |name| Self::of(name, StateRootMode::Native);
        retrie_backends::names().into_iter().map(of).collect()
    }

    /// Setups that check the header's state root.
    pub(crate) fn checked() -> Vec<Self> {
        let mut all = Self::on_headers();
        all.retain(|setup| setup.root_mode == StateRootMode::Header);
        [all, Self::refereed()].concat()
    }

    /// The same setup without checks of the header's roots.
    pub(crate) const fn shadow(self) -> Self {
        Self { root_mode: StateRootMode::Shadow, ..self }
    }

    fn descriptor(self) -> &'static BackendDescriptor {
        retrie_backends::find(self.backend).unwrap()
    }

    pub(crate) fn backend(self) -> Arc<dyn AnyBackend> {
        (self.descriptor().small)()
    }

    pub(crate) fn is_cole(self) -> bool {
        self.descriptor().stored_name() == "cole"
    }

    pub(crate) const fn root_mode(self) -> StateRootMode {
        self.root_mode
    }

    /// A chain that builds blocks for this node.
    pub(crate) fn test_chain(self, rules: TestRules) -> TestChain {
        match self.root_mode() {
            StateRootMode::Native => TestChain::native(rules, self.backend()),
            _ => TestChain::new(rules, Arc::new(Mpt::default())),
        }
    }
}

/// A datadir.
pub(crate) struct TestNode {
    pub(crate) dir: Arc<TempDir>,
    pub(crate) spec: Arc<ChainSpec>,
    pub(crate) setup: NodeSetup,
    pub(crate) retention: u64,
    pub(crate) config: EngineConfig,
}

impl TestNode {
    pub(crate) fn new(spec: &Arc<ChainSpec>, setup: NodeSetup) -> Self {
        Self {
            dir: Arc::new(TempDir::new().unwrap()),
            spec: spec.clone(),
            setup,
            retention: 128,
            config: EngineConfig::default(),
        }
    }

    pub(crate) fn open(&self) -> ChainStore {
        self.open_at(self.dir.path())
    }

    pub(crate) fn open_at(&self, datadir: &Path) -> ChainStore {
        // A thread of the node before may be about to let go of the datadir.
        for _ in 0..500 {
            match self.try_open_at(datadir) {
                Err(PipelineError::Db(DbError::Open(OpenError::InUse { .. }))) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                opened => return opened.unwrap(),
            }
        }
        panic!("{} is in use", datadir.display())
    }

    fn try_open_at(&self, datadir: &Path) -> Result<ChainStore, PipelineError> {
        let referee = self.setup.has_referee.then(|| NodeSetup::MPT.backend());
        ChainStore::open(ChainOptions {
            spec: self.spec.clone(),
            backend: self.setup.backend(),
            referee,
            root_mode: self.setup.root_mode(),
            datadir: datadir.to_owned(),
            db: OpenOptions {
                map_limit: 1 << 30,
                growth_step: 1 << 20,
                sync: SyncMode::NoSync,
                ..OpenOptions::default()
            },
            store: StoreOptions { retention: self.retention, ..StoreOptions::default() },
        })
    }

    pub(crate) fn start(&self) -> RunningNode {
        RunningNode::on(Arc::new(self.open()), self.config, self.dir.clone())
    }
}

/// A running node, and its consensus client. Dropping it stops the node.
pub(crate) struct RunningNode {
    pub(crate) api: EngineApi,
    pub(crate) live: LiveChain,
    pub(crate) pool: TransactionPool,
    pub(crate) payloads: PayloadBuilder,
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) runtime: Runtime,
    /// Keeps the datadir, which may have no other owner.
    dir: Arc<TempDir>,
}

impl RunningNode {
    pub(crate) fn on(chain: Arc<ChainStore>, config: EngineConfig, dir: Arc<TempDir>) -> Self {
        let metrics = Metrics::new().unwrap();
        let engine = Engine::start(chain, config, metrics.clone()).unwrap();
        let live = engine.handle().live().clone();
        let pool = TransactionPool::new(PoolConfig::default(), live.spec().clone());
        let payloads = PayloadBuilder::new(live.clone(), pool.clone(), BuilderConfig::default());
        let api = EngineApi::new(engine.handle().clone(), payloads.clone(), pool.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self { api, live, pool, payloads, engine, metrics, runtime, dir }
    }

    /// Keeps the pool at the head.
    pub(crate) fn maintainer(&self) -> PoolMaintainer {
        PoolMaintainer::start(&self.live, self.pool.clone()).unwrap()
    }

    pub(crate) fn head(&self) -> B256 {
        self.live.head().hash()
    }

    /// `engine_newPayload` in the version of the block's fork, without requests.
    pub(crate) fn send(&self, block: &Block) -> PayloadStatus {
        self.send_as(hash(block), block)
    }

    /// The same for a block whose verification may fail.
    pub(crate) fn try_to_send(&self, block: &Block) -> Result<PayloadStatus, EngineApiError> {
        self.send_payload_of(hash(block), block)
    }

    /// The same with any hash.
    pub(crate) fn send_as(&self, hash: B256, block: &Block) -> PayloadStatus {
        self.send_payload_of(hash, block).unwrap()
    }

    fn send_payload_of(&self, hash: B256, block: &Block) -> Result<PayloadStatus, EngineApiError> {
        let (payload, _) = ExecutionPayload::from_block_unchecked(hash, block);
        let root = block.header.parent_beacon_block_root.unwrap_or_default();
        let requests = block.header.requests_hash.map(|_| Vec::new());
        self.send_payload(payload, Vec::new(), root, requests)
    }

    /// Sends a payload with the parameters beside it.
    pub(crate) fn send_payload(
        &self,
        payload: ExecutionPayload,
        hashes: Vec<B256>,
        root: B256,
        requests: Option<Vec<Bytes>>,
    ) -> Result<PayloadStatus, EngineApiError> {
        let api = &self.api;
        self.runtime.block_on(async {
            match (payload, requests) {
                (ExecutionPayload::V1(payload), _) => api.new_payload_v1(payload).await,
                (ExecutionPayload::V2(payload), _) => {
                    api.new_payload_v2(ExecutionPayloadInputV2 {
                        execution_payload: payload.payload_inner,
                        withdrawals: Some(payload.withdrawals),
                    })
                    .await
                }
                (ExecutionPayload::V3(payload), None) => {
                    api.new_payload_v3(payload, hashes, root).await
                }
                (ExecutionPayload::V3(payload), Some(requests)) => {
                    api.new_payload_v4(payload, hashes, root, requests).await
                }
                (ExecutionPayload::V4(payload), requests) => {
                    api.new_payload_v5(payload, hashes, root, requests.unwrap_or_default()).await
                }
            }
        })
    }

    /// Sends a block to the engine directly, also one that no payload can carry.
    pub(crate) fn insert(&self, block: &Block) -> PayloadStatus {
        let block = prepare(self.live.spec(), block.clone()).unwrap();
        self.runtime.block_on(self.engine.handle().new_block(block)).unwrap()
    }

    pub(crate) fn fcu(
        &self,
        version: u8,
        state: ForkchoiceState,
        attributes: Option<PayloadAttributes>,
    ) -> Result<ForkchoiceUpdated, EngineApiError> {
        self.runtime.block_on(self.api.fork_choice_updated(version, state, attributes))
    }

    /// Makes a block the head, which must succeed. Safe and finalized stay unset.
    pub(crate) fn lead(&self, hash: B256) {
        let updated = self.fcu(3, only_head(hash), None).unwrap();
        assert_eq!(updated.payload_status, valid(hash));
    }

    /// Sends blocks, each of which must be valid, and makes the last one the head.
    pub(crate) fn follow(&self, blocks: &[Block]) {
        for block in blocks {
            assert_eq!(self.send(block), valid(hash(block)));
        }
        if let Some(last) = blocks.last() {
            self.lead(hash(last));
        }
    }

    pub(crate) fn flush(&self) {
        self.runtime.block_on(self.engine.handle().flush()).unwrap();
    }

    /// Stops everything; the datadir is closed then.
    pub(crate) fn stop(self) {
        let Self { api, live, pool, payloads, engine, metrics, runtime, dir: _dir } = self;
        let chain = Arc::downgrade(live.chain());
        engine.stop().unwrap();
        drop((api, live, pool, payloads, metrics, runtime));
        // Builder and follower threads end soon.
        let start = Instant::now();
        while chain.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the datadir is still open");
            std::thread::yield_now();
        }
    }
}

pub(crate) fn hash(block: &Block) -> B256 {
    block.header.hash_slow()
}

pub(crate) fn valid(hash: B256) -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))
}

pub(crate) fn syncing() -> PayloadStatus {
    PayloadStatus::from_status(PayloadStatusEnum::Syncing)
}

/// The reason of an `INVALID` whose last valid ancestor is this one.
pub(crate) fn invalid(status: PayloadStatus, latest_valid: Option<B256>) -> String {
    assert_eq!(status.latest_valid_hash, latest_valid, "{status:?}");
    match status.status {
        PayloadStatusEnum::Invalid { validation_error } => validation_error,
        other => panic!("{other}, not INVALID"),
    }
}

/// Only a head, without safe and finalized.
pub(crate) fn only_head(head: B256) -> ForkchoiceState {
    ForkchoiceState { head_block_hash: head, ..Default::default() }
}

/// Attributes of a payload at `timestamp`, with the fields that each fork adds up to Prague.
pub(crate) fn attributes(live: &LiveChain, timestamp: u64) -> PayloadAttributes {
    use alloy_hardforks::EthereumHardforks;
    let spec = live.spec();
    PayloadAttributes {
        timestamp,
        prev_randao: B256::repeat_byte(0x33),
        suggested_fee_recipient: Address::repeat_byte(0xfe),
        withdrawals: spec.is_shanghai_active_at_timestamp(timestamp).then(Vec::new),
        parent_beacon_block_root: spec
            .is_cancun_active_at_timestamp(timestamp)
            .then(|| B256::repeat_byte(0x44)),
        slot_number: None,
        target_gas_limit: None,
    }
}

/// A chain of `count` blocks, and the blocks.
pub(crate) fn line(setup: NodeSetup, rules: TestRules, count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = setup.test_chain(rules);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, count, 12, 1).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

/// A changed copy of the block.
pub(crate) fn with(block: &Block, change: impl FnOnce(&mut Block)) -> Block {
    let mut block = block.clone();
    change(&mut block);
    block
}

/// The JSON-RPC code of an error.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, EngineApiError>) -> i32 {
    result.expect_err("an error").code()
}
