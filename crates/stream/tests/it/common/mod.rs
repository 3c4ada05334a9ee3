//! Shared by the tests: nodes, and an indexer that believes nothing.
#![allow(dead_code, unreachable_pub, missing_docs)]

use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatusEnum};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_engine::{Engine, EngineConfig, LiveChain};
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportOptions, import, prepare,
    testkit::{TestChain, TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state_store::{FlatHistory, StoreOptions};
use retrie_storage_mpt::Mpt;
use retrie_stream::StreamCursor;
use retrie_telemetry::Metrics;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

pub fn test_chain(rules: TestRules) -> TestChain {
    TestChain::new(rules, Arc::new(Mpt::default()))
}

/// Blocks that can be reverted.
const RETENTION: u64 = 64;

fn open(
    dir: &TempDir,
    spec: &Arc<ChainSpec>,
    flat_history: FlatHistory,
    retention: u64,
) -> ChainStore {
    let options = ChainOptions {
        spec: spec.clone(),
        backend: Arc::new(Mpt::default()),
        referee: None,
        root_mode: StateRootMode::Header,
        datadir: dir.path().join("data"),
        db: OpenOptions {
            map_limit: 1 << 30,
            growth_step: 1 << 20,
            sync: SyncMode::NoSync,
            ..OpenOptions::default()
        },
        store: StoreOptions { flat_history, retention, ..StoreOptions::default() },
    };
    ChainStore::open(options).unwrap()
}

/// A chain that was imported from a file, without an engine.
pub fn imported(
    chain: &TestChain,
    tip: B256,
    flat_history: FlatHistory,
) -> (TempDir, Arc<ChainStore>) {
    imported_with(chain, tip, flat_history, RETENTION)
}

/// As [`imported`], with this retention.
pub fn imported_with(
    chain: &TestChain,
    tip: B256,
    flat_history: FlatHistory,
    retention: u64,
) -> (TempDir, Arc<ChainStore>) {
    let dir = TempDir::new().unwrap();
    let store = open(&dir, &chain.spec, flat_history, retention);
    import_blocks(&store, &dir, &chain.path(chain.genesis(), tip));
    (dir, Arc::new(store))
}

/// Imports blocks above the tip, unseen by every [`LiveChain`].
pub fn import_blocks(store: &ChainStore, dir: &TempDir, blocks: &[Block]) {
    let file = dir.path().join("chain.rlp");
    write_blocks(&file, blocks);
    let sources = vec![BlockSource::open(&file).unwrap()];
    let (stop, metrics) = (AtomicBool::new(false), Metrics::new().unwrap());
    let options = ImportOptions::default();
    let outcome =
        import(store, sources, 0..=u64::MAX, options, &metrics, &stop, &mut |_| {}).unwrap();
    outcome.end.unwrap();
}

/// A running node.
pub struct TestNode {
    pub engine: Engine,
    pub dir: TempDir,
    runtime: Runtime,
}

impl TestNode {
    pub fn new(spec: &Arc<ChainSpec>, flat_history: FlatHistory) -> Self {
        let dir = TempDir::new().unwrap();
        let chain = Arc::new(open(&dir, spec, flat_history, RETENTION));
        let engine =
            Engine::start(chain, EngineConfig::default(), Metrics::new().unwrap()).unwrap();
        Self { engine, dir, runtime: Builder::new_current_thread().enable_all().build().unwrap() }
    }

    pub fn live(&self) -> &LiveChain {
        self.engine.handle().live()
    }

    pub fn add(&self, blocks: &[Block]) {
        for block in blocks {
            let prepared = prepare(self.live().spec(), block.clone()).unwrap();
            let status = self.runtime.block_on(self.engine.handle().new_block(prepared)).unwrap();
            assert!(
                matches!(status.status, PayloadStatusEnum::Valid | PayloadStatusEnum::Accepted),
                "{status:?}"
            );
        }
    }

    /// Sets the head; with `is_final` blocks of other branches are dropped.
    pub fn set_head(&self, head: B256, is_final: bool) {
        let other = if is_final { head } else { B256::ZERO };
        let state = ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: other,
            finalized_block_hash: other,
        };
        let outcome = self.runtime.block_on(self.engine.handle().forkchoice(state)).unwrap();
        assert_eq!(outcome.status.status, PayloadStatusEnum::Valid);
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An indexer: it keeps the chain and the state as the records tell them, and checks that each record
/// fits the ones before it.
#[derive(Default)]
pub struct TestIndexer {
    pub sequence: u64,
    /// Number, hash, kinds of records seen, and the delta of each block.
    pub blocks: Vec<IndexedBlock>,
    /// Accounts and slots.
    pub state: BTreeMap<String, Value>,
    pub reverts: usize,
    pub undone: usize,
}

pub struct IndexedBlock {
    pub number: u64,
    pub hash: String,
    pub kinds: Vec<String>,
    pub delta: Value,
}

pub fn number_of(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

impl TestIndexer {
    pub fn take(&mut self, json: &str) {
        let record: Value = serde_json::from_str(json).unwrap();
        let text = record["cursor"].as_str().unwrap();
        assert!(json.starts_with(&format!("{{\"cursor\":\"{text}\",\"type\":\"")), "{json}");
        let cursor: StreamCursor = text.parse().unwrap();
        self.sequence += 1;
        assert_eq!(cursor.sequence, self.sequence, "no gap and no double");
        assert_eq!(json!(cursor.block.hash), record["hash"]);
        assert_eq!(cursor.block.number, number_of(&record["number"]));
        assert_eq!(cursor.kind.name(), record["type"]);
        match record["type"].as_str().unwrap() {
            "revert" => self.revert(&record),
            kind => self.add(kind, &record),
        }
    }

    fn add(&mut self, kind: &str, record: &Value) {
        let (number, hash) = (number_of(&record["number"]), record["hash"].as_str().unwrap());
        if kind == "block" {
            let block = &record["block"];
            assert_eq!(block["hash"], hash);
            if let Some(parent) = self.blocks.last() {
                assert_eq!(parent.kinds, ["block", "receipts", "delta"]);
                assert_eq!(parent.number + 1, number);
                assert_eq!(block["parentHash"], parent.hash);
            }
            let (hash, kinds) = (hash.to_owned(), vec!["block".into()]);
            self.blocks.push(IndexedBlock { number, hash, kinds, delta: Value::Null });
            return;
        }
        let last = self.blocks.last_mut().unwrap();
        assert_eq!((last.number, last.hash.as_str()), (number, hash));
        last.kinds.push(kind.into());
        if kind == "receipts" {
            let receipts = record["receipts"].as_array().unwrap();
            assert!(receipts.iter().all(|receipt| receipt["blockHash"] == hash));
            return;
        }
        last.delta = record["delta"].clone();
        apply(&mut self.state, &record["delta"], ["from", "to"]);
    }

    fn revert(&mut self, record: &Value) {
        self.reverts += 1;
        let undone = record["undone"].as_array().unwrap();
        self.undone += undone.len();
        for block in undone {
            let Some(last) = self.blocks.pop() else { continue };
            assert_eq!(block["hash"], last.hash);
            assert_eq!(number_of(&block["number"]), last.number);
            if !last.delta.is_null() {
                apply(&mut self.state, &last.delta, ["to", "from"]);
            }
        }
        if let Some(last) = self.blocks.last() {
            assert_eq!(record["hash"], last.hash);
        }
    }

    /// Asserts that it has the whole chain up to `head`.
    pub fn assert_at(&self, live: &LiveChain) {
        let view = live.view().unwrap();
        let last = self.blocks.last().unwrap();
        assert_eq!(last.hash, view.head().hash().to_string());
        assert_eq!(last.kinds.len(), 3);
        for block in &self.blocks {
            let hash = view.canonical_hash(block.number).unwrap().unwrap();
            assert_eq!(block.hash, hash.to_string());
        }
    }

    pub fn is_at(&self, head: B256) -> bool {
        let is_head = |last: &IndexedBlock| last.hash == head.to_string() && last.kinds.len() == 3;
        self.blocks.last().is_some_and(is_head)
    }

    /// The account in the state of the indexer.
    pub fn account(&self, address: &str) -> Value {
        self.state.get(&address.to_lowercase()).cloned().unwrap_or_default()
    }
}

/// Applies a delta, forwards or backwards, and checks that the values before are those of the state.
fn apply(state: &mut BTreeMap<String, Value>, delta: &Value, [before, after]: [&str; 2]) {
    assert!(delta.is_object(), "{delta}");
    let zero = json!(B256::ZERO);
    for change in delta["accounts"].as_array().unwrap() {
        let key = change["address"].as_str().unwrap().to_lowercase();
        assert_ne!(change[before], change[after]);
        assert_eq!(state.get(&key).cloned().unwrap_or_default(), change[before], "{key}");
        state.insert(key, change[after].clone());
    }
    for change in delta["storage"].as_array().unwrap() {
        let key = format!("{} {}", change["address"], change["slot"]);
        assert_ne!(change[before], change[after]);
        assert_eq!(*state.get(&key).unwrap_or(&zero), change[before], "{key}");
        state.insert(key, change[after].clone());
    }
}

/// The lines of a file of records.
pub fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}
