//! Reorg storms: blocks in any order, heads on any branch, restarts in between. In the end the
//! datadir equals that of a plain import of the last chain, and every view in between shows a
//! consistent chain.

use crate::common::{NodeSetup, RunningNode, TestNode, hash, syncing, valid};
use alloy_primitives::{B256, U256};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_chainspec::primitives::{Block, Receipt};
use retrie_db::ChainRead;
use retrie_engine::{EngineConfig, LiveChain, LiveView};
use retrie_pipeline::{
    BlockImporter, ChainStore, HeadChange, ImportOptions,
    testkit::{TestChain, TestRules, TestWallet},
};
use retrie_state::{BackendKey, StateReader, StateValue};
use retrie_state_store::StateId;
use retrie_state_testkit::sample;
use retrie_telemetry::Metrics;
use std::{
    collections::{BTreeMap, HashSet},
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

/// How deep the deepest reorgs are.
const DEPTH: usize = 64;
/// Calls of the consensus client between two restarts.
const STEPS: usize = 120;

/// Two long branches and some short ones.
struct BlockForest {
    chain: TestChain,
    /// Parents first.
    blocks: Vec<Block>,
    left: B256,
    right: B256,
    tips: Vec<B256>,
}

impl BlockForest {
    fn grow(setup: NodeSetup, rng: &mut StdRng) -> Self {
        let mut chain = setup.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let mut hashes = chain.branch(genesis, DEPTH as u64 + 5, 12, 1);
        let left = hashes[hashes.len() - 1];
        hashes.extend(chain.branch(hashes[4], DEPTH as u64 + 1, 12, 2));
        let right = hashes[hashes.len() - 1];
        let mut tips = vec![left, right];
        for salt in 3..7 {
            let parent = hashes[rng.random_range(0..hashes.len())];
            hashes.extend(chain.branch(parent, rng.random_range(1..8), 12, salt));
            tips.extend(hashes.last());
        }
        let blocks = hashes.iter().map(|hash| chain.block(*hash).clone()).collect();
        Self { chain, blocks, left, right, tips }
    }

    fn any(&self, rng: &mut StdRng) -> &Block {
        &self.blocks[rng.random_range(0..self.blocks.len())]
    }
}

/// The canonical chain of a datadir, and the whole state at its tip.
#[derive(Debug, PartialEq)]
struct DatadirContents {
    blocks: Vec<CanonicalBlock>,
    /// Block and index of each transaction of the forest.
    lookup: BTreeMap<B256, Option<(u64, u32)>>,
    root: B256,
    state: Vec<(BackendKey, StateValue)>,
}

#[derive(Debug, PartialEq)]
struct CanonicalBlock {
    hash: B256,
    total_difficulty: U256,
    receipts: Vec<Receipt>,
    roots: Vec<(String, B256)>,
}

impl DatadirContents {
    fn of(chain: &ChainStore, forest: &BlockForest) -> Self {
        let read = chain.db().begin_read().unwrap();
        let tip = chain.tip().unwrap();
        assert_eq!(chain.state().tip().unwrap().block, tip, "state and chain have one tip");
        assert_eq!(read.canonical_hash(tip.number + 1).unwrap(), None);
        let block = |number| {
            let hash = read.canonical_hash(number).unwrap().expect("no gap in the chain");
            CanonicalBlock {
                hash,
                total_difficulty: read.total_difficulty(&hash).unwrap().unwrap(),
                receipts: read.receipts(&hash).unwrap().unwrap(),
                roots: read.roots(&hash).unwrap(),
            }
        };
        let place = |hash: &B256| {
            let stored = read.transaction_by_hash(hash).unwrap()?;
            Some((stored.block.number, stored.index))
        };
        let transactions = forest.blocks.iter().flat_map(|block| &block.body.transactions);
        Self {
            blocks: (0..=tip.number).map(block).collect(),
            lookup: transactions.map(|tx| (*tx.tx_hash(), place(tx.tx_hash()))).collect(),
            root: chain.state().root(StateId::Tip).unwrap(),
            state: chain
                .state()
                .at(StateId::Tip)
                .and_then(|state| state.entries(None, usize::MAX))
                .unwrap(),
        }
    }
}

/// The contents after a plain import of the chain up to `tip`.
fn straight(forest: &BlockForest, setup: NodeSetup, tip: B256) -> DatadirContents {
    let node = TestNode::new(&forest.chain.spec, setup);
    let chain = node.open();
    let metrics = Metrics::new().unwrap();
    std::thread::scope(|scope| {
        let mut importer =
            BlockImporter::new(&chain, ImportOptions::default(), metrics, scope).unwrap();
        for block in forest.chain.path(forest.chain.genesis(), tip) {
            importer.import(block).unwrap();
        }
        importer.flush().unwrap();
    });
    DatadirContents::of(&chain, forest)
}

/// The canonical chain as built from head events.
struct EventChain {
    events: Receiver<Arc<HeadChange>>,
    chain: Vec<B256>,
    /// Number of blocks that the deepest reorg reverted.
    deepest: usize,
}

impl EventChain {
    fn new(live: &LiveChain) -> Self {
        let events = live.subscribe();
        Self { events, chain: canonical(live), deepest: 0 }
    }

    fn catch_up(&mut self) {
        while let Ok(change) = self.events.try_recv() {
            let HeadChange { head, ancestor, reverted, committed, .. } = &*change;
            let gone = self.chain.split_off(*ancestor as usize + 1);
            let reverted: Vec<_> = reverted.iter().map(|block| block.block.hash()).collect();
            assert_eq!(gone, reverted);
            self.deepest = self.deepest.max(gone.len());
            for block in committed {
                assert_eq!(block.block.parent_hash, self.chain[self.chain.len() - 1]);
                assert_eq!(block.receipts.len(), block.block.body().transactions.len());
                self.chain.push(block.block.hash());
            }
            assert_eq!(self.chain.last(), Some(&head.hash()));
        }
    }
}

fn canonical(live: &LiveChain) -> Vec<B256> {
    let view = live.view().unwrap();
    (0..=view.head().number).map(|n| view.canonical_hash(n).unwrap().unwrap()).collect()
}

/// Checks views of the chain until `stop` is set; returns the number of heads seen.
fn watch(live: &LiveChain, stop: &AtomicBool) -> usize {
    let mut seen = HashSet::new();
    while !stop.load(Ordering::Relaxed) {
        let view = live.view().unwrap();
        let head = view.head().clone();
        assert_eq!(view.canonical_hash(head.number).unwrap(), Some(head.hash()));
        assert_eq!(view.canonical_hash(head.number + 1).unwrap(), None);
        if seen.insert(head.hash()) {
            walk_down(&view);
        }
        // Each block has one transaction of this wallet.
        let account = view.state(&head.hash()).and_then(|state| {
            Ok(StateReader::account(&state, &TestWallet::new(0).address)?.expect("funded"))
        });
        match account {
            Ok(account) => assert_eq!(account.nonce, head.number),
            // The store has moved past this view: then the head changes soon.
            Err(error) => {
                let start = Instant::now();
                while live.head().hash() == head.hash() {
                    assert!(start.elapsed() < Duration::from_secs(20), "{error}");
                    std::thread::yield_now();
                }
            }
        }
    }
    seen.len()
}

/// Checks that the canonical blocks form a chain, with blocks and receipts.
fn walk_down(view: &LiveView) {
    let mut expected = view.head().hash();
    for number in (0..=view.head().number).rev() {
        assert_eq!(view.canonical_hash(number).unwrap(), Some(expected), "block {number}");
        assert!(view.is_canonical(&expected).unwrap());
        let block = view.block(&expected).unwrap().expect("a canonical block");
        assert_eq!(block.number, number);
        if number > 0 {
            let receipts = view.receipts(&expected).unwrap().expect("its receipts");
            assert_eq!(receipts.len(), block.body().transactions.len());
        }
        expected = block.parent_hash;
    }
}

/// Blocks that the node has called valid and still knows.
fn known(running: &RunningNode, forest: &BlockForest) -> HashSet<B256> {
    let view = running.live.view().unwrap();
    let all = forest.blocks.iter().map(hash).chain([forest.chain.genesis()]);
    all.filter(|hash| view.header(hash).unwrap().is_some()).collect()
}

fn lead(running: &RunningNode, told: &mut EventChain, head: B256) {
    running.lead(head);
    told.catch_up();
    assert_eq!(running.head(), head);
    assert_eq!(told.chain.last(), Some(&head));
}

/// The calls between two restarts.
fn stretch(running: &RunningNode, forest: &BlockForest, rng: &mut StdRng, told: &mut EventChain) {
    let mut known = known(running, forest);
    for _ in 0..STEPS {
        match rng.random_range(0..10) {
            // Blocks that can be verified, a few at a time.
            0..=5 => {
                let fits = |block: &&Block| {
                    !known.contains(&hash(block)) && known.contains(&block.header.parent_hash)
                };
                let mut next: Vec<_> = forest.blocks.iter().filter(fits).collect();
                while !next.is_empty() && rng.random_bool(0.8) {
                    let block = next.swap_remove(rng.random_range(0..next.len()));
                    assert_eq!(running.send(block), valid(hash(block)));
                    known.insert(hash(block));
                    let children = forest.blocks.iter();
                    next.extend(children.filter(|child| child.header.parent_hash == hash(block)));
                }
            }
            // Any block.
            6 | 7 => {
                let block = forest.any(rng);
                let status = running.send(block);
                if status == valid(hash(block)) {
                    known.insert(hash(block));
                } else {
                    assert_eq!(status, syncing());
                    assert!(!known.contains(&block.header.parent_hash));
                }
            }
            _ => {
                let head = hash(forest.any(rng));
                if known.contains(&head) {
                    lead(running, told, head);
                }
            }
        }
    }
}

fn storm(setup: NodeSetup, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let forest = BlockForest::grow(setup, &mut rng);
    let mut node = TestNode::new(&forest.chain.spec, setup);
    for last in [false, false, true] {
        node.config = EngineConfig {
            persistence_threshold: rng.random_range(0..6),
            memory_blocks: rng.random_range(0..4),
            ..EngineConfig::default()
        };
        let running = node.start();
        let mut told = EventChain::new(&running.live);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&running.live, &stop));
            // Stops the watcher also if this thread panics.
            let done = StopGuard(&stop);
            stretch(&running, &forest, &mut rng, &mut told);
            if last {
                for block in &forest.blocks {
                    assert_eq!(running.send(block), valid(hash(block)));
                }
                for head in [forest.left, forest.right, forest.left, forest.right] {
                    lead(&running, &mut told, head);
                }
                assert!(told.deepest >= DEPTH);
                if setup.is_cole() {
                    running.flush();
                    let stats = running.live.chain().state().stats().unwrap();
                    let merged = stats.file_bytes > 0 && stats.retained_file_bytes > 0;
                    assert!(merged, "runs have replaced others: {stats:?}");
                }
            }
            drop(done);
            assert!(watcher.join().unwrap() > 1, "it has seen the chain move");
        });
        assert_eq!(told.chain, canonical(&running.live));
        let tip = if last {
            let tip = forest.tips[rng.random_range(0..forest.tips.len())];
            lead(&running, &mut told, tip);
            tip
        } else {
            running.head()
        };
        running.stop();
        let chain = node.open();
        assert_eq!(chain.tip().unwrap().hash, tip, "what is canonical is durable after a stop");
        let got = DatadirContents::of(&chain, &forest);
        assert!(got == straight(&forest, setup, tip), "{setup:?} {seed}: not as imported");
    }
}

struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs one storm per setup, each with its own seed.
fn storms(setups: impl IntoIterator<Item = NodeSetup>, first_seed: u64) {
    for (seed, setup) in (first_seed..).zip(setups) {
        println!("{setup:?}, seed {seed}");
        storm(setup, seed);
    }
}

#[test]
fn every_backend_ends_as_if_imported_straight() {
    storms(sample::of(NodeSetup::on_headers(), 3).into_iter().chain([NodeSetup::MPT.shadow()]), 1);
}

#[test]
fn every_backend_with_its_own_roots_ends_as_if_imported_straight() {
    storms(sample::of(NodeSetup::native(), 3), 21);
}

#[test]
fn every_backend_with_a_referee_ends_as_if_imported_straight() {
    storms(sample::of(NodeSetup::refereed(), 3), 41);
}

/// A copy of an open datadir's files, as after a crash now. No commit is running.
fn crash_image(node: &TestNode) -> Arc<TempDir> {
    fn copy(from: &std::path::Path, to: &std::path::Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &to);
            } else if let Err(error) = std::fs::copy(entry.path(), to) {
                // A background job has renamed its file; no commit refers to it yet.
                let is_temporary = entry.path().extension().is_some_and(|end| end == "tmp");
                assert!(is_temporary && error.kind() == ErrorKind::NotFound, "{entry:?}: {error}");
            }
        }
    }
    let image = Arc::new(TempDir::new().unwrap());
    copy(node.dir.path(), image.path());
    image
}

#[test]
fn node_that_dies_loses_no_durable_block_and_goes_on() {
    for setup in sample::of(NodeSetup::all(), 3) {
        let mut chain = setup.test_chain(TestRules::Cancun);
        let genesis = chain.genesis();
        let main = chain.branch(genesis, 8, 12, 1);
        let side = chain.branch(main[1], 9, 12, 2);
        let blocks = chain.path(genesis, main[7]);
        let all = [blocks.clone(), chain.path(main[1], side[8])].concat();
        let forest =
            BlockForest { chain, blocks: all, left: main[7], right: side[8], tips: Vec::new() };
        let mut node = TestNode::new(&forest.chain.spec, setup);
        // Three blocks are one commit, the fourth and fifth wait.
        node.config = EngineConfig { persistence_threshold: 2, ..EngineConfig::default() };
        let running = node.start();
        for block in &blocks[..5] {
            running.follow(std::slice::from_ref(block));
            let durable = block.header.number / 3 * 3;
            let start = Instant::now();
            while running.live.chain().tip().unwrap().number < durable {
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "block {durable} is not durable"
                );
                std::thread::yield_now();
            }
        }
        assert_eq!(running.live.head().number, 5);
        let image = crash_image(&node);
        running.stop();

        let reopened = Arc::new(node.open_at(image.path()));
        assert_eq!(reopened.tip().unwrap().hash, main[2], "{setup:?}");
        let got = DatadirContents::of(&reopened, &forest);
        assert!(got == straight(&forest, setup, main[2]), "{setup:?}: not as imported");
        // It continues, also on the other branch.
        let running = RunningNode::on(reopened, node.config, image.clone());
        assert_eq!(running.send(&blocks[4]), syncing());
        running.follow(&blocks[3..]);
        running.follow(&forest.chain.path(main[1], side[8]));
        running.stop();
        let reopened = node.open_at(image.path());
        let got = DatadirContents::of(&reopened, &forest);
        assert!(got == straight(&forest, setup, side[8]), "{setup:?}: not as imported");
    }
}
