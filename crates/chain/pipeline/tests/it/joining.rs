//! Referees that join a chain that has begun without them.

use crate::common::{batches, import_into};
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_db::{ChainRead, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ChainSetupError, ChainStore, JoinStep, JoiningReferee, PipelineError, RootSet,
    testkit::{TestChain, TestRules, write_blocks},
    verify::{VerifyOptions, verify},
};
use retrie_sources::BlockSource;
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tempfile::TempDir;

fn small(name: &str) -> Arc<dyn AnyBackend> {
    (retrie_backends::find(name).unwrap().small)()
}

/// A datadir.
struct JoiningNode {
    dir: TempDir,
    spec: Arc<ChainSpec>,
    own: &'static str,
    referee: &'static str,
}

impl JoiningNode {
    fn new(spec: &Arc<ChainSpec>, own: &'static str, referee: &'static str) -> Self {
        Self { dir: TempDir::new().unwrap(), spec: spec.clone(), own, referee }
    }

    fn options(&self, referee: bool) -> ChainOptions {
        let backend = small(self.own);
        let is_header = backend.profile().ethereum_root;
        ChainOptions {
            spec: self.spec.clone(),
            backend,
            referee: referee.then(|| small(self.referee)),
            root_mode: if is_header { StateRootMode::Header } else { StateRootMode::Shadow },
            datadir: self.dir.path().join("data"),
            db: OpenOptions {
                map_limit: 1 << 30,
                growth_step: 1 << 20,
                sync: SyncMode::NoSync,
                ..OpenOptions::default()
            },
            store: StoreOptions::default(),
        }
    }

    fn open(&self, referee: bool) -> ChainStore {
        ChainStore::open(self.options(referee)).unwrap()
    }

    fn import(&self, referee: bool, blocks: &[Block]) -> Result<(), PipelineError> {
        self.import_to(&self.open(referee), blocks)
    }

    fn import_to(&self, chain: &ChainStore, blocks: &[Block]) -> Result<(), PipelineError> {
        let file = self.dir.path().join("blocks.rlp");
        write_blocks(&file, blocks);
        let sources = vec![BlockSource::open(&file).unwrap()];
        let stop = AtomicBool::new(false);
        import_into(chain, sources, 0..=u64::MAX, batches(3), &stop, &mut |_| {}).map(drop)
    }

    /// Lets the referee join while the datadir is closed.
    fn join(&self) {
        let never = AtomicBool::new(false);
        let options = self.options(true);
        let (_, joining) = ChainStore::open_joined(options, None, &never, &mut |_| {}).unwrap();
        assert!(joining.is_none());
    }

    /// Opens the datadir beside a referee that lacks something.
    fn open_beside(&self) -> (ChainStore, JoiningReferee) {
        let options = self.options(true);
        let never = AtomicBool::new(false);
        let (chain, joining) =
            ChainStore::open_joined(options, Some(0), &never, &mut |_| {}).unwrap();
        (chain, joining.expect("the referee lacks blocks"))
    }

    fn roots(&self) -> RootSet {
        self.open(true).states().tip_roots().unwrap()
    }

    fn check(&self) {
        self.check_with(true);
    }

    /// Checks the datadir, opened with the referee or without it.
    fn check_with(&self, referee: bool) {
        let chain = self.open(referee);
        chain.flush().unwrap();
        let scratch = TempDir::new().unwrap();
        let options = VerifyOptions {
            spec: self.spec.clone(),
            backend: &|name| Some(small(name)),
            max_findings: 10,
            scratch: scratch.path(),
        };
        let findings = verify(chain.db(), &options, &mut |_, _| {}).unwrap().findings;
        assert_eq!(findings, Vec::<String>::new(), "{}, {}", self.own, self.referee);
    }
}

/// A chain, and the roots of a datadir that had the referee from the start.
fn straight(rules: TestRules, blocks: u64) -> (TestChain, Vec<Block>) {
    let mut chain = TestChain::new(rules, small("mpt"));
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, blocks, 12, 0).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

fn roots_of_straight_import(node: &JoiningNode, blocks: &[Block]) -> RootSet {
    let straight = JoiningNode::new(&node.spec, node.own, node.referee);
    straight.import(true, blocks).unwrap();
    straight.roots()
}

#[test]
fn every_referee_ends_as_one_that_was_there_from_the_start() {
    for (rules, own, referee) in [
        (TestRules::Prague, "mpt", "pbt"),
        (TestRules::Byzantium, "raw", "pbt"),
        (TestRules::Amsterdam, "lvmt", "pbt"),
        (TestRules::Amsterdam, "raw", "mpt"),
        (TestRules::Byzantium, "cole", "prefix"),
        (TestRules::Prague, "pbt", "mpt"),
    ] {
        let (chain, blocks) = straight(rules, 52);
        let node = JoiningNode::new(&chain.spec, own, referee);
        node.import(false, &blocks[..45]).unwrap();
        let error = ChainStore::open(node.options(true)).unwrap_err();
        assert!(matches!(error, PipelineError::Setup(ChainSetupError::RefereeBehind { .. })));
        node.join();
        assert_eq!(node.roots(), roots_of_straight_import(&node, &blocks[..45]), "{own} {referee}");
        node.import(true, &blocks[45..48]).unwrap();
        // Left out for a while.
        node.import(false, &blocks[48..]).unwrap();
        node.check_with(false);
        node.join();
        assert_eq!(node.roots(), roots_of_straight_import(&node, &blocks), "{own} {referee}");
        node.check();
    }
}

#[test]
fn chain_goes_on_and_reorganizes_while_a_referee_joins() {
    let mut made = TestChain::new(TestRules::Cancun, small("mpt"));
    let genesis = made.genesis();
    let fork = *made.branch(genesis, 60, 12, 0).last().unwrap();
    let old = *made.branch(fork, 4, 12, 1).last().unwrap();
    let new = *made.branch(fork, 9, 12, 2).last().unwrap();
    let [trunk, old, new] =
        [(genesis, fork), (fork, old), (fork, new)].map(|(from, to)| made.path(from, to));
    let node = JoiningNode::new(&made.spec, "mpt", "pbt");
    node.import(false, &trunk[..40]).unwrap();
    let (chain, mut joining) = node.open_beside();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let joiner = scope.spawn(|| {
            let never = AtomicBool::new(false);
            while !is_over.load(Ordering::Relaxed) {
                assert!(joining.advance(&chain, &never, &mut |_| {}).unwrap());
            }
            joining.advance(&chain, &never, &mut |_| {}).unwrap()
        });
        for blocks in [&trunk[40..], &old, &new] {
            node.import_to(&chain, blocks).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(joiner.join().unwrap());
    });
    assert_eq!(chain.joining().unwrap().step().missing(), Some(0));
    drop((joining, chain));
    let blocks = [&trunk[..], &new].concat();
    assert_eq!(node.roots(), roots_of_straight_import(&node, &blocks));
    node.check();
}

#[test]
fn join_that_is_stopped_anywhere_goes_on() {
    let (chain, blocks) = straight(TestRules::Cancun, 120);
    let node = JoiningNode::new(&chain.spec, "raw", "pbt");
    node.import(false, &blocks).unwrap();
    for round in 0.. {
        assert!(round < 20, "it does not go on");
        let (options, never) = (node.options(true), AtomicBool::new(false));
        let opened = ChainStore::open_joined(options, Some(0), &never, &mut |_| {}).unwrap();
        let (chain, Some(mut joining)) = opened else { break };
        let (stop, mut steps) = (AtomicBool::new(false), 0);
        joining
            .advance(&chain, &stop, &mut |_| {
                stop.store(steps == round, Ordering::Relaxed);
                steps += 1;
            })
            .unwrap();
        drop((joining, chain));
        node.check_with(false);
    }
    assert_eq!(node.roots(), roots_of_straight_import(&node, &blocks));
    node.check();
}

#[test]
fn referee_whose_block_was_reorged_away_begins_again() {
    let mut made = TestChain::new(TestRules::Cancun, small("mpt"));
    let genesis = made.genesis();
    let fork = *made.branch(genesis, 5, 12, 0).last().unwrap();
    let old = *made.branch(fork, 60, 12, 1).last().unwrap();
    let new = *made.branch(fork, 8, 12, 2).last().unwrap();
    let [trunk, old, new] =
        [(genesis, fork), (fork, old), (fork, new)].map(|(from, to)| made.path(from, to));
    let node = JoiningNode::new(&made.spec, "mpt", "pbt");
    node.import(false, &[&trunk[..], &old].concat()).unwrap();
    let (chain, mut joining) = node.open_beside();
    let never = AtomicBool::new(false);
    assert!(joining.advance(&chain, &never, &mut |_| {}).unwrap());
    chain.unwind(5, &mut |_| {}).unwrap();
    node.import_to(&chain, &new).unwrap();
    let mut loads = Vec::new();
    let mut watch = |step| {
        if let JoinStep::Load { block, .. } = step {
            loads.push(block.number);
        }
    };
    assert!(joining.advance(&chain, &never, &mut watch).unwrap());
    assert_eq!(loads, [0], "the state of genesis is 32 blocks below, or the oldest");
    drop((joining, chain));
    assert_eq!(node.roots(), roots_of_straight_import(&node, &[&trunk[..], &new].concat()));
    node.check();
}

#[test]
fn blocks_that_only_the_joining_referee_can_check_wait_for_it() {
    let mut made = TestChain::switching(TestRules::Amsterdam, small("mpt"), small("pbt"), 240);
    let tip = *made.branch(made.genesis(), 24, 12, 0).last().unwrap();
    let blocks = made.path(made.genesis(), tip);
    // The chain learns of the switch when it has 12 blocks. Block 20 is the first past it.
    let node = JoiningNode::new(&made.spec, "mpt", "pbt");
    let before = Arc::new(ChainSpec::clone(&made.spec).with_binary_tree_time(None));
    let unaware = JoiningNode { dir: node.dir, spec: before, own: "mpt", referee: "pbt" };
    unaware.import(false, &blocks[..12]).unwrap();
    let node = JoiningNode { spec: made.spec.clone(), ..unaware };
    let (chain, mut joining) = node.open_beside();
    let error = node.import_to(&chain, &blocks[12..]).unwrap_err();
    let is_waiting = matches!(
        error,
        PipelineError::Setup(ChainSetupError::RefereeJoining { number: 20, referee: "pbt", .. })
    );
    assert!(is_waiting, "{error:?}");
    assert_eq!(chain.db().begin_read().unwrap().tip().unwrap().unwrap().number, 19);
    let never = AtomicBool::new(false);
    assert!(joining.advance(&chain, &never, &mut |_| {}).unwrap());
    drop((joining, chain));
    node.import(true, &blocks[19..]).unwrap();
    assert_eq!(node.roots(), roots_of_straight_import(&node, &blocks));
    node.check();
}
