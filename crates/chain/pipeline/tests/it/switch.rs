//! A chain that switches to the partitioned binary tree (EIP-8297) at its `binaryTrieTime`.

use crate::common::{DatadirContents, batches, import_into, names_block};
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_db::{ChainRead, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainMigration, ChainOptions, ChainSetupError, ChainStore, ImportOptions, InvalidBlockError,
    PipelineError, RootKind,
    testkit::{BlockPlan, TestCall, TestChain, TestRules, write_blocks},
    verify::{VerifyOptions, verify},
};
use retrie_sources::BlockSource;
use retrie_state::{AnyBackend, KeyForm};
use retrie_state_store::StoreOptions;
use retrie_telemetry::Metrics;
use std::sync::{Arc, atomic::AtomicBool};
use tempfile::TempDir;

/// Own backend and referee.
type Pair = (&'static str, Option<&'static str>);

/// All pairs that check the roots on both sides of the switch.
const PAIRS: [Pair; 5] = [
    ("mpt", Some("pbt")),
    ("pbt", Some("mpt")),
    ("mpt-archive", Some("pbt")),
    ("pbt", Some("prefix")),
    ("prefix", Some("pbt")),
];

fn small(name: &str) -> Arc<dyn AnyBackend> {
    (retrie_backends::find(name).unwrap().small)()
}

/// A chain that switches with the block at `time`.
fn switching(time: u64) -> TestChain {
    TestChain::switching(TestRules::Amsterdam, small("mpt"), small("pbt"), time)
}

fn options(dir: &TempDir, spec: &Arc<ChainSpec>, pair: Pair, mode: StateRootMode) -> ChainOptions {
    ChainOptions {
        spec: spec.clone(),
        backend: small(pair.0),
        referee: pair.1.map(small),
        root_mode: mode,
        datadir: dir.path().join("data"),
        db: OpenOptions {
            map_limit: 1 << 30,
            growth_step: 1 << 20,
            sync: SyncMode::NoSync,
            ..OpenOptions::default()
        },
        store: StoreOptions::default(),
    }
}

/// A datadir that checks header roots.
struct SwitchingNode {
    dir: TempDir,
    spec: Arc<ChainSpec>,
    pair: Pair,
}

impl SwitchingNode {
    fn new(spec: &Arc<ChainSpec>, pair: Pair) -> Self {
        Self { dir: TempDir::new().unwrap(), spec: spec.clone(), pair }
    }

    fn open(&self) -> ChainStore {
        self.try_open(&self.spec).unwrap()
    }

    fn try_open(&self, spec: &Arc<ChainSpec>) -> Result<ChainStore, PipelineError> {
        ChainStore::open(options(&self.dir, spec, self.pair, StateRootMode::Header))
    }

    fn import(&self, blocks: &[Block], options: ImportOptions) -> Result<u64, PipelineError> {
        let file = self.dir.path().join("blocks.rlp");
        write_blocks(&file, blocks);
        let sources = vec![BlockSource::open(&file).unwrap()];
        let stop = AtomicBool::new(false);
        let all = 0..=u64::MAX;
        let report = import_into(&self.open(), sources, all, options, &stop, &mut |_| {})?;
        Ok(report.roots_checked)
    }

    fn tip(&self) -> B256 {
        self.open().tip().unwrap().hash
    }
}

fn hash(block: &Block) -> B256 {
    block.header.hash_slow()
}

#[test]
fn header_carries_the_root_of_the_tree_of_its_time() {
    // Blocks come every 12 seconds: the fifth is the first at 60 or later.
    for (time, first) in [(60, 5), (49, 5), (1, 1), (0, 0), (1_000_000, 999)] {
        let mut chain = switching(time);
        let tip = *chain.branch(chain.genesis(), 8, 12, 0).last().unwrap();
        let genesis = chain.block(chain.genesis()).clone();
        let blocks = [vec![genesis], chain.path(chain.genesis(), tip)].concat();
        for block in &blocks {
            let roots = chain.roots(hash(block));
            let (merkle, binary) = (roots.own, roots.referee.unwrap());
            assert_ne!(merkle, binary);
            let expected = if block.header.number >= first { binary } else { merkle };
            assert_eq!(block.header.state_root, expected, "time {time}, {}", block.header.number);
        }
        for pair in PAIRS {
            let node = SwitchingNode::new(&chain.spec, pair);
            assert_eq!(node.import(&blocks[1..], batches(3)).unwrap(), 8, "time {time} {pair:?}");
            let store = node.open();
            let read = store.db().begin_read().unwrap();
            for block in &blocks {
                let at = hash(block);
                let roots = chain.roots(at);
                let computed = |name: &str| read.root(&at, name).unwrap();
                assert_eq!(computed("pbt"), roots.referee, "{pair:?}");
                let names = [Some(pair.0), pair.1].into_iter().flatten();
                for name in names.filter(|name| *name != "pbt") {
                    assert_eq!(computed(name), Some(roots.own), "{pair:?}");
                }
                let kind =
                    if block.header.number >= first { RootKind::Binary } else { RootKind::Merkle };
                assert_eq!(store.root_kind(block.header.timestamp), kind);
            }
        }
    }
}

/// A trunk of two blocks, and two branches that both switch with their third block.
struct ForkedChain {
    chain: TestChain,
    trunk: Vec<Block>,
    old: Vec<Block>,
    new: Vec<Block>,
}

impl ForkedChain {
    fn new() -> Self {
        let mut chain = switching(60);
        let genesis = chain.genesis();
        let trunk = *chain.branch(genesis, 2, 12, 0).last().unwrap();
        let old = *chain.branch(trunk, 6, 12, 1).last().unwrap();
        let new = *chain.branch(trunk, 9, 12, 2).last().unwrap();
        let [trunk, old, new] =
            [(genesis, trunk), (trunk, old), (trunk, new)].map(|(from, to)| chain.path(from, to));
        Self { chain, trunk, old, new }
    }
}

#[test]
fn reorg_across_the_switch_gives_the_state_of_a_straight_import() {
    let fork = ForkedChain::new();
    let all = [&fork.trunk[..], &fork.old, &fork.new].concat();
    for pair in PAIRS {
        let contents = |node: &SwitchingNode| DatadirContents::of(&node.open(), &all);
        let straight = SwitchingNode::new(&fork.chain.spec, pair);
        straight.import(&[&fork.trunk[..], &fork.new].concat(), batches(4)).unwrap();
        let node = SwitchingNode::new(&fork.chain.spec, pair);
        node.import(&[&fork.trunk[..], &fork.old].concat(), batches(3)).unwrap();
        assert_eq!(node.tip(), hash(fork.old.last().unwrap()));
        for _ in 0..2 {
            // A reorg within the import, and one in two steps, each past the switch.
            node.import(&fork.new, batches(2)).unwrap();
            assert_eq!(contents(&node), contents(&straight), "{pair:?}");
            assert_eq!(node.open().unwind(2, &mut |_| {}).unwrap(), 15, "{pair:?}");
            node.import(&fork.old, batches(2)).unwrap();
            assert_eq!(node.tip(), hash(fork.old.last().unwrap()));
        }
    }
}

#[test]
fn wrong_root_on_either_side_is_refused_in_the_name_of_its_store() {
    let mut chain = switching(60);
    let tip = *chain.branch(chain.genesis(), 7, 12, 0).last().unwrap();
    let blocks = chain.path(chain.genesis(), tip);
    for pair in PAIRS {
        let merkle = if pair.0 == "pbt" { pair.1.unwrap() } else { pair.0 };
        for (number, store) in [(4, merkle), (5, "pbt"), (7, "pbt")] {
            let index = number - 1;
            let roots = chain.roots(hash(&blocks[index]));
            // A root of nothing, and the root of the other tree.
            let other = if store == "pbt" { roots.own } else { roots.referee.unwrap() };
            for wrong in [B256::repeat_byte(1), other] {
                let mut file = blocks[..number].to_vec();
                file[index].header.state_root = wrong;
                let node = SwitchingNode::new(&chain.spec, pair);
                let error = node.import(&file, ImportOptions::default()).unwrap_err();
                let text = names_block(&error, number as u64);
                assert!(text.contains(store), "{pair:?}: {text}");
                let PipelineError::Invalid(InvalidBlockError::StateRoot { source, .. }) = error
                else {
                    panic!("{text}")
                };
                assert_eq!((source.expected, source.backend), (wrong, store));
                assert_eq!(node.tip(), hash(&blocks[index - 1]));
            }
        }
    }
}

#[test]
fn stores_must_check_the_roots_of_both_sides() {
    let dir = TempDir::new().unwrap();
    let open = |time: u64, pair, mode| {
        let chain = switching(time);
        ChainStore::open(options(&dir, &chain.spec, pair, mode)).map(drop)
    };
    let (header, shadow) = (StateRootMode::Header, StateRootMode::Shadow);
    for (pair, mode, missing) in [
        (("mpt", None), header, RootKind::Binary),
        (("pbt", None), header, RootKind::Merkle),
        (("raw", Some("pbt")), shadow, RootKind::Merkle),
        (("raw", Some("mpt")), shadow, RootKind::Binary),
        (("pbt", Some("mpt")), shadow, RootKind::Binary),
    ] {
        let error = open(60, pair, mode).unwrap_err();
        let text = error.to_string();
        let PipelineError::Setup(ChainSetupError::UncheckedRoots { time: 60, kind, .. }) = error
        else {
            panic!("{pair:?}: {text}")
        };
        assert_eq!(kind, missing, "{text}");
        assert!(text.contains("binaryTrieTime") && text.contains(pair.0), "{text}");
        assert!(!dir.path().join("data").exists(), "{pair:?} left a datadir");
    }
    // Nothing is checked, or all headers carry the binary root.
    for (time, pair, mode) in
        [(60, ("raw", None), shadow), (0, ("pbt", None), header), (0, ("raw", Some("pbt")), shadow)]
    {
        let dir = TempDir::new().unwrap();
        let chain = switching(time);
        let opened = ChainStore::open(options(&dir, &chain.spec, pair, mode));
        assert_eq!(opened.unwrap().tip().unwrap().hash, chain.genesis(), "{pair:?}");
    }
    let error = open(0, ("raw", None), shadow).unwrap_err();
    let is_missing = matches!(error, PipelineError::Setup(ChainSetupError::NoBinaryGenesis { .. }));
    assert!(is_missing, "{error}");
    // No header of a chain that never switches carries a root of the binary tree. A referee keeps its
    // roots beside them.
    let plain = TestChain::new(TestRules::Amsterdam, small("mpt"));
    let beside = TempDir::new().unwrap();
    let chain =
        ChainStore::open(options(&beside, &plain.spec, ("raw", Some("pbt")), shadow)).unwrap();
    assert!(!chain.checks_roots() && chain.states().tip_roots().unwrap().referee.is_some());
    let error = ChainStore::open(options(&dir, &plain.spec, ("pbt", None), header)).unwrap_err();
    let is_missing =
        matches!(error, PipelineError::Setup(ChainSetupError::NoHeaderRoot { backend: "pbt" }));
    assert!(is_missing, "{error}");
    // The tree is one over plain keys.
    let chain = switching(60);
    let mut hashed = options(&dir, &chain.spec, ("mpt", Some("pbt")), header);
    hashed.store.keys = KeyForm::Hashed;
    let error = ChainStore::open(hashed).unwrap_err();
    assert!(
        matches!(error, PipelineError::Setup(ChainSetupError::HashedBinaryTree { .. })),
        "{error}"
    );
}

#[test]
fn time_of_the_switch_stays_once_blocks_are_past_it() {
    let chain_of = |time: Option<u64>| {
        let spec = ChainSpec::clone(&switching(60).spec);
        Arc::new(spec.with_binary_tree_time(time))
    };
    let mut chain = switching(60);
    let tip = *chain.branch(chain.genesis(), 7, 12, 0).last().unwrap();
    let blocks = chain.path(chain.genesis(), tip);
    let node = SwitchingNode::new(&chain.spec, ("mpt", Some("pbt")));
    // Block 3 is at 36.
    node.import(&blocks[..3], ImportOptions::default()).unwrap();
    node.try_open(&chain_of(Some(37))).unwrap();
    for past in [36, 12, 0] {
        let error = node.try_open(&chain_of(Some(past))).unwrap_err();
        let text = error.to_string();
        let is_past = matches!(
            error,
            PipelineError::Setup(ChainSetupError::BinaryTreeTime {
                kept: Some(37),
                tip_time: 36,
                ..
            })
        );
        assert!(is_past || past == 0, "{text}");
    }
    node.try_open(&chain_of(Some(60))).unwrap();
    node.import(&blocks[3..], ImportOptions::default()).unwrap();
    for other in [Some(61), Some(1000), Some(48)] {
        let error = node.try_open(&chain_of(other)).unwrap_err();
        let text = error.to_string();
        let is_past = matches!(error, PipelineError::Setup(ChainSetupError::BinaryTreeTime { .. }));
        assert!(is_past, "{other:?}: {text}");
    }
    node.try_open(&chain_of(Some(60))).unwrap();
}

#[test]
fn whole_datadir_is_verified_on_both_sides() {
    let mut chain = switching(60);
    let tip = *chain.branch(chain.genesis(), 8, 12, 0).last().unwrap();
    let blocks = chain.path(chain.genesis(), tip);
    for pair in [PAIRS[0], PAIRS[1]] {
        let node = SwitchingNode::new(&chain.spec, pair);
        node.import(&blocks, ImportOptions::default()).unwrap();
        let store = node.open();
        store.flush().unwrap();
        let backend = |name: &str| Some(small(name));
        let scratch = TempDir::new().unwrap();
        let check = |spec: &Arc<ChainSpec>| {
            let options = VerifyOptions {
                spec: spec.clone(),
                backend: &backend,
                max_findings: 10,
                scratch: scratch.path(),
            };
            verify(store.db(), &options, &mut |_, _| {}).unwrap().findings
        };
        assert_eq!(check(&chain.spec), Vec::<String>::new(), "{pair:?}");
        // By the rules of a chain that switches later, the blocks in between have wrong roots.
        let later = ChainSpec::clone(&chain.spec).with_binary_tree_time(Some(84));
        let findings = check(&Arc::new(later));
        assert!(findings.iter().any(|line| line.contains("the root of mpt is")), "{findings:?}");
    }
}

#[test]
fn chain_migrates_across_the_switch_with_and_without_its_history() {
    let mut chain = switching(60);
    let tip = *chain.branch(chain.genesis(), 8, 12, 0).last().unwrap();
    let next = chain.extend(tip, BlockPlan::new([TestCall::transfer(0, Default::default(), 1)]));
    for (from, to) in [(PAIRS[0], PAIRS[1]), (PAIRS[1], PAIRS[4]), (PAIRS[4], PAIRS[0])] {
        let old = SwitchingNode::new(&chain.spec, from);
        old.import(&chain.path(chain.genesis(), tip), ImportOptions::default()).unwrap();
        let store = old.open();
        let read = Arc::new(store.db().begin_read().unwrap());
        for history in [false, true] {
            let new = SwitchingNode::new(&chain.spec, to);
            let migration = ChainMigration {
                from: &read,
                backend: small(from.0),
                to: options(&new.dir, &new.spec, new.pair, StateRootMode::Header),
                history,
                until: None,
            };
            let (metrics, stop) = (Metrics::new().unwrap(), AtomicBool::new(false));
            let migrated = migration.run(&metrics, &stop, &mut |_| {}).unwrap();
            let checked = if history { 8 } else { 1 };
            assert!(migrated.roots_checked >= checked, "{from:?} {to:?} {history} {migrated:?}");
            let roots = chain.roots(tip);
            let computed = |name| new.open().db().begin_read().unwrap().root(&tip, name).unwrap();
            assert_eq!(computed("pbt"), roots.referee, "{from:?} {to:?} {history}");
            new.import(&chain.path(tip, next), ImportOptions::default()).unwrap();
            assert_eq!(new.tip(), next);
        }
    }
}

#[test]
fn merkle_store_can_be_left_behind_after_the_switch() {
    let mut chain = switching(60);
    let before = *chain.branch(chain.genesis(), 4, 12, 0).last().unwrap();
    let tip = *chain.branch(before, 4, 12, 1).last().unwrap();
    let next = chain.extend(tip, BlockPlan::new([TestCall::transfer(0, Default::default(), 1)]));
    let pair = ("mpt", Some("pbt"));
    let migrate = |node: &SwitchingNode, to: &SwitchingNode| {
        let store = node.open();
        let from = Arc::new(store.db().begin_read().unwrap());
        let migration = ChainMigration {
            from: &from,
            backend: small("mpt"),
            to: options(&to.dir, &to.spec, to.pair, StateRootMode::Header),
            history: false,
            until: None,
        };
        let (metrics, stop) = (Metrics::new().unwrap(), AtomicBool::new(false));
        migration.run(&metrics, &stop, &mut |_| {})
    };
    for (at, works) in [(before, false), (tip, true)] {
        let node = SwitchingNode::new(&chain.spec, pair);
        node.import(&chain.path(chain.genesis(), at), ImportOptions::default()).unwrap();
        let alone = SwitchingNode::new(&chain.spec, ("pbt", None));
        let migrated = migrate(&node, &alone);
        if !works {
            let error = migrated.unwrap_err();
            let is_unchecked =
                matches!(error, PipelineError::Setup(ChainSetupError::UncheckedRoots { .. }));
            assert!(is_unchecked, "{error}");
            continue;
        }
        assert_eq!(migrated.unwrap().roots_checked, 1);
        alone.import(&chain.path(tip, next), ImportOptions::default()).unwrap();
        assert_eq!(alone.tip(), next);
    }
}
