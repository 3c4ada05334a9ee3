//! What an import leaves: resuming, commit sizes, ranges, stopping, shadow roots and the referee.

use crate::common::{NodeSetup, TestNode, batches, import_into, names_block, test_chain};
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_chainspec::primitives::Block;
use retrie_db::{ChainRead, DbError, MetadataError, OpenError};
use retrie_execution::CodeCache;
use retrie_pipeline::{
    BlockAttributes, BlockBuilder, BlockImporter, BlockRangeError, BuildParent, ChainSetupError,
    ChainStore, ImportOptions, InvalidBlockError, PipelineError, StoreSetId,
    testkit::{
        BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, WALLETS, signed,
        write_blocks,
    },
};
use retrie_sources::BlockSource;
use retrie_state::StateReader;
use retrie_state_testkit::sample;
use retrie_telemetry::Metrics;
use std::sync::atomic::{AtomicBool, Ordering};

fn straight(rules: TestRules, count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, count, 12, 0).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

#[test]
fn batch_size_and_backend_do_not_change_the_chain() {
    for rules in [TestRules::Frontier, TestRules::Byzantium, TestRules::Cancun, TestRules::Prague] {
        let (chain, blocks) = straight(rules, 14);
        for setup in NodeSetup::all().into_iter().chain([NodeSetup::MPT_SHADOW]) {
            let mut pictures = [1, 3, 1000].map(|batch| {
                let node = TestNode::new(&chain.spec, setup);
                let report = node.import_with(&blocks, batches(batch)).unwrap();
                let checked = if setup.checks_roots() { 14 } else { 0 };
                assert_eq!(report.roots_checked, checked, "{setup:?}");
                node.picture(&blocks)
            });
            assert_eq!(pictures[0], pictures[1], "{rules:?} {setup:?}");
            assert_eq!(pictures[0], pictures[2], "{rules:?} {setup:?}");
            let picture = &mut pictures[0];
            assert_eq!(picture.tip.number, 14);
            assert!(picture.lookup.values().all(Option::is_some));
        }
    }
}

#[test]
fn ommers_are_accepted_and_paid() {
    for rules in [TestRules::Frontier, TestRules::Byzantium] {
        let mut chain = test_chain(rules);
        let genesis = chain.genesis();
        let trunk = chain.branch(genesis, 3, 12, 0);
        let [one, two] = [1, 2].map(|salt| *chain.branch(trunk[1], 1, 12, salt).last().unwrap());
        let ommers = [one, two].map(|hash| chain.block(hash).header.clone());
        let nephew = chain.extend(trunk[2], BlockPlan::new([]).with_ommers(ommers));
        for setup in sample::of(NodeSetup::checked(), 3) {
            for batch in [1, 1000] {
                let node = TestNode::new(&chain.spec, setup);
                node.import_with(&chain.path(genesis, nephew), batches(batch)).unwrap();
                assert_eq!(node.tip().hash, nephew);
            }
        }
    }
}

#[test]
fn two_runs_are_one_run_and_known_blocks_change_nothing() {
    let (chain, blocks) = straight(TestRules::Byzantium, 12);
    for setup in sample::of(NodeSetup::checked(), 3) {
        let one = TestNode::new(&chain.spec, setup);
        one.import(&blocks).unwrap();
        let expected = one.picture(&blocks);
        for cut in [1, 5, 11] {
            let node = TestNode::new(&chain.spec, setup);
            node.import(&blocks[..cut]).unwrap();
            // The second file overlaps the first.
            let report = node.import(&blocks).unwrap();
            assert_eq!(report.known_blocks, cut as u64);
            assert_eq!(report.blocks, 12 - cut as u64);
            assert_eq!(node.picture(&blocks), expected, "{setup:?} cut {cut}");
            let report = node.import(&blocks).unwrap();
            assert_eq!((report.blocks, report.txs, report.known_blocks), (0, 0, 12));
            assert_eq!(report.tip.hash, expected.tip.hash);
            assert_eq!(node.picture(&blocks), expected, "{setup:?} again");
        }
        let twice: Vec<_> =
            blocks.iter().flat_map(|block| [block.clone(), block.clone()]).collect();
        let node = TestNode::new(&chain.spec, setup);
        assert_eq!(node.import_with(&twice, batches(2)).unwrap().known_blocks, 12);
        assert_eq!(node.picture(&blocks), expected, "{setup:?} duplicates");
    }
}

#[test]
fn genesis_in_the_file_is_compared() {
    let (chain, blocks) = straight(TestRules::Byzantium, 2);
    let genesis = chain.block(chain.genesis()).clone();
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    let report = node.import(&[&[genesis][..], &blocks].concat()).unwrap();
    assert_eq!((report.blocks, report.known_blocks), (2, 1));
    let (foreign, _) = straight(TestRules::Cancun, 1);
    let foreign = foreign.block(foreign.genesis()).clone();
    let error = node.import(&[foreign]).unwrap_err();
    assert!(
        matches!(error, PipelineError::Setup(ChainSetupError::ForeignGenesis { .. })),
        "{error:?}"
    );
    names_block(&error, 0);
    assert_eq!(node.tip().number, 2);
}

#[test]
fn range_is_kept_to_and_must_be_reached() {
    let (chain, blocks) = straight(TestRules::Byzantium, 8);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    let report = node.import_range(&blocks, 0..=3, ImportOptions::default()).unwrap();
    assert_eq!((report.blocks, report.tip.number), (3, 3));
    let report = node.import_range(&blocks, 4..=6, ImportOptions::default()).unwrap();
    assert_eq!((report.blocks, report.known_blocks, report.tip.number), (3, 0, 6));

    let error = node.import_range(&blocks, 0..=20, ImportOptions::default()).unwrap_err();
    assert!(
        matches!(error, PipelineError::Range(BlockRangeError::FilesEnd { last: 8, to: 20 })),
        "{error:?}"
    );
    names_block(&error, 8);
    assert_eq!(node.tip().number, 8, "what the files hold is imported");
    for range in [9..=20, 9..=u64::MAX] {
        let error = node.import_range(&blocks, range, ImportOptions::default()).unwrap_err();
        assert!(
            matches!(error, PipelineError::Range(BlockRangeError::NothingInRange { from: 9, .. })),
            "{error:?}"
        );
    }
}

#[test]
fn stopping_keeps_every_block_before_and_goes_on_later() {
    let (chain, blocks) = straight(TestRules::Byzantium, 12);
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        let file = node.dir.path().join("all.rlp");
        write_blocks(&file, &blocks);
        let stop = AtomicBool::new(false);
        let report = {
            let sources = vec![BlockSource::open(&file).unwrap()];
            let mut progress = |report: &retrie_pipeline::report::ImportReport| {
                if report.tip.number == 5 {
                    stop.store(true, Ordering::Relaxed);
                }
            };
            let chain = node.open();
            import_into(&chain, sources, 0..=u64::MAX, batches(1000), &stop, &mut progress)
        };
        assert_eq!(report.unwrap().tip.number, 5);
        assert_eq!(node.tip().number, 5, "durable after reopening");
        node.import(&blocks).unwrap();
        let one = TestNode::new(&chain.spec, setup);
        one.import(&blocks).unwrap();
        assert_eq!(node.picture(&blocks), one.picture(&blocks));
    }
}

#[test]
fn blocks_out_of_order_stop_at_the_first_without_parent() {
    let (chain, blocks) = straight(TestRules::Byzantium, 6);
    for (order, head, culprit) in
        [(vec![0, 1, 3, 2], 2, 4), (vec![1], 0, 2), (vec![5, 4, 3, 2, 1, 0], 0, 6)]
    {
        let node = TestNode::new(&chain.spec, NodeSetup::MPT);
        let file: Vec<_> = order.into_iter().map(|i: usize| blocks[i].clone()).collect();
        let error = node.import(&file).unwrap_err();
        assert!(
            matches!(error, PipelineError::UnknownParent { head: at, .. } if at == head),
            "{error:?}"
        );
        names_block(&error, culprit);
        assert_eq!(node.tip().number, head);
        node.import(&blocks).unwrap();
        assert_eq!(node.tip().number, 6);
    }
}

#[test]
fn shadow_mode_records_the_roots_that_it_does_not_check() {
    let (chain, blocks) = straight(TestRules::Byzantium, 5);
    for (setup, backend) in [(NodeSetup::RAW, "raw"), (NodeSetup::MPT_SHADOW, "mpt")] {
        let mut wrong = blocks.clone();
        wrong[4].header.state_root = B256::repeat_byte(1);
        let node = TestNode::new(&chain.spec, setup);
        assert_eq!(node.import(&wrong).unwrap().roots_checked, 0);
        let open = node.open();
        let read = open.db().begin_read().unwrap();
        for (number, block) in (1..).zip(&wrong) {
            let hash = read.canonical_hash(number).unwrap().unwrap();
            assert_eq!(hash, block.header.hash_slow());
            let root = match setup {
                NodeSetup::RAW => B256::ZERO,
                _ => blocks[number as usize - 1].header.state_root,
            };
            assert_eq!(read.roots(&hash).unwrap(), [(backend.to_owned(), root)]);
        }
    }
    // The referee records its own beside.
    let node = TestNode::new(&chain.spec, NodeSetup::REFEREED);
    node.import(&blocks).unwrap();
    let open = node.open();
    let read = open.db().begin_read().unwrap();
    let tip = open.tip().unwrap().hash;
    let expected = [("mpt".to_owned(), blocks[4].header.state_root), ("raw".into(), B256::ZERO)];
    assert_eq!(read.roots(&tip).unwrap(), expected);
}

#[test]
fn referee_catches_a_wrong_state_root() {
    let (chain, mut blocks) = straight(TestRules::Byzantium, 5);
    blocks[4].header.state_root = B256::repeat_byte(1);
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        let error = node.import(&blocks).unwrap_err();
        let backend = setup.backend();
        let checker = if setup.has_referee() { "mpt" } else { backend.identity().name };
        assert!(
            matches!(&error, PipelineError::Invalid(InvalidBlockError::StateRoot { source, .. }) if source.backend == checker),
            "{error:?}"
        );
        names_block(&error, 5);
        assert_eq!(node.tip().number, 4);
    }
}

#[test]
fn referee_must_have_been_there_from_the_start() {
    let (chain, blocks) = straight(TestRules::Byzantium, 3);
    let node = TestNode::new(&chain.spec, NodeSetup::RAW);
    for import in [false, true] {
        if import {
            node.import(&blocks).unwrap();
        } else {
            drop(node.open());
        }
        let error = node.try_open(NodeSetup::REFEREED).unwrap_err();
        assert!(
            matches!(error, PipelineError::Setup(ChainSetupError::RefereeBehind { .. })),
            "{error:?}"
        );
        assert!(error.to_string().contains("used without the referee"), "{error}");
        // The attempt has changed nothing.
        drop(node.open());
    }
    assert_eq!(node.tip().number, 3);
    // A referee that was left out for a while is behind, too.
    let node = TestNode::new(&chain.spec, NodeSetup::REFEREED);
    node.import(&blocks[..1]).unwrap();
    let raw = TestNode { setup: NodeSetup::RAW, ..node };
    raw.import(&blocks).unwrap();
    let error = raw.try_open(NodeSetup::REFEREED).unwrap_err();
    assert!(
        matches!(error, PipelineError::Setup(ChainSetupError::RefereeBehind { .. })),
        "{error:?}"
    );
}

#[test]
fn foreign_datadirs_are_refused_and_left_alone() {
    let (chain, blocks) = straight(TestRules::Byzantium, 3);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    node.import(&blocks).unwrap();
    let refused = |error: PipelineError| match error {
        PipelineError::Db(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            error
        }
        error => panic!("{error:?}"),
    };
    let error = refused(node.try_open(NodeSetup::RAW).unwrap_err());
    assert!(matches!(error, DbError::Metadata(MetadataError::BackendMismatch { .. })), "{error:?}");
    let error = refused(node.try_open(NodeSetup::MPT_SHADOW).unwrap_err());
    assert!(
        matches!(error, DbError::Metadata(MetadataError::StateRootMismatch { .. })),
        "{error:?}"
    );
    let node = TestNode { spec: test_chain(TestRules::Cancun).spec, ..node };
    let error = refused(node.try_open(NodeSetup::MPT).unwrap_err());
    assert!(matches!(error, DbError::Metadata(MetadataError::ChainMismatch { .. })), "{error:?}");
    let node = TestNode { spec: chain.spec, ..node };
    let open = node.open();
    let error = refused(node.try_open(NodeSetup::MPT).unwrap_err());
    assert!(
        matches!(error, DbError::Open(OpenError::InUse { .. } | OpenError::AlreadyOpen { .. })),
        "{error:?}"
    );
    assert_eq!(open.tip().unwrap().number, 3);
}

#[test]
fn intermediate_roots_find_what_receipts_before_byzantium_hide() {
    let (chain, mut blocks) = straight(TestRules::Frontier, 6);
    assert!(blocks[5].body.transactions.len() > 1);
    let check = || ImportOptions { intermediate_roots: true, ..batches(2) };
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        node.import_with(&blocks, check()).unwrap();
    }
    blocks[5].header.receipts_root = B256::repeat_byte(1);
    for setup in sample::of(NodeSetup::checked(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        let error = node.import_with(&blocks, check()).unwrap_err();
        assert!(error.is_invalid_block(), "{error:?}");
        let text = names_block(&error, 6);
        assert!(text.contains("receipts root"), "{text}");
        assert_eq!(node.tip().number, 5);
        // They are only checked if requested.
        node.import(&blocks).unwrap();
        assert_eq!(node.tip().number, 6);
    }
    // Without a trie they cannot be checked, and the report does not count them.
    let node = TestNode::new(&chain.spec, NodeSetup::RAW);
    let error = node.import_with(&blocks, check()).unwrap_err();
    assert!(
        matches!(error, PipelineError::Setup(ChainSetupError::NoHeaderRoot { backend: "raw" })),
        "{error:?}"
    );
}

#[test]
fn state_of_the_tip_is_readable_through_the_chain() {
    let (chain, blocks) = straight(TestRules::Prague, 6);
    for setup in sample::of(NodeSetup::all(), 3) {
        let node = TestNode::new(&chain.spec, setup);
        node.import(&blocks).unwrap();
        let open = node.open();
        let reader = open.state().at(retrie_state_store::StateId::Tip).unwrap();
        let tip = blocks.last().unwrap().header.hash_slow();
        for wallet in 0..WALLETS {
            let address = retrie_pipeline::testkit::TestWallet::new(wallet).address;
            let stored = reader.get(&retrie_state::StateKey::Account(address)).unwrap();
            let stored = stored.map(|value| retrie_state::Account::decode(&value).unwrap());
            assert_eq!(stored, chain.account(tip, address));
        }
    }
}

/// Blocks one by one, as an engine feeds them.
fn import_singly(
    chain: &ChainStore,
    blocks: &[Block],
    flush_at: usize,
) -> Result<(), PipelineError> {
    let metrics = Metrics::new().unwrap();
    std::thread::scope(|scope| {
        let mut importer = BlockImporter::new(chain, batches(4), metrics, scope)?;
        for (i, block) in blocks.iter().enumerate() {
            importer.import(block.clone())?;
            assert_eq!(importer.head().hash, block.header.hash_slow());
            if i == flush_at {
                importer.flush()?;
                assert_eq!(chain.tip().unwrap(), importer.head());
            }
        }
        importer.flush()
    })
}

#[test]
fn importer_goes_on_after_an_invalid_block() {
    let (chain, blocks) = straight(TestRules::Byzantium, 8);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    let open = node.open();
    import_singly(&open, &blocks[..3], 1).unwrap();
    let metrics = Metrics::new().unwrap();
    std::thread::scope(|scope| {
        let mut importer = BlockImporter::new(&open, batches(2), metrics.clone(), scope).unwrap();
        for block in &blocks[3..] {
            let mut bad = block.clone();
            bad.header.state_root = B256::repeat_byte(9);
            let error = importer.import(bad).unwrap_err();
            assert!(error.is_invalid_block(), "{error}");
            importer.import(block.clone()).unwrap();
        }
        importer.flush().unwrap();
    });
    assert_eq!(metrics.invalid_blocks.get(), 5);
    assert_eq!(metrics.durable.get(), 8);
    assert_eq!(open.tip().unwrap().hash, blocks[7].header.hash_slow());
}

#[test]
fn long_blocks_are_committed_before_they_fill_the_memory() {
    // Each block carries about 60 KB of input.
    let mut chain = test_chain(TestRules::Byzantium);
    let mut at = chain.genesis();
    for _ in 0..12 {
        let mut call = TestCall::store(0, GENESIS_CONTRACT, 1, 1);
        call.input = [&call.input[..], &vec![0; 20_000]].concat().into();
        at = chain.extend(at, BlockPlan::new([call.clone(), call.clone(), call]));
    }
    let blocks = chain.path(chain.genesis(), at);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    let mut options = batches(1000);
    options.commit_limits.bytes = 150_000;
    let metrics = Metrics::new().unwrap();
    let open = node.open();
    std::thread::scope(|scope| {
        let mut importer = BlockImporter::new(&open, options, metrics, scope).unwrap();
        for block in &blocks {
            importer.import(block.clone()).unwrap();
        }
        // The last commit that was started may still run, the one before has ended.
        assert!(open.tip().unwrap().number >= 6, "{}", open.tip().unwrap());
        importer.flush().unwrap();
    });
    assert_eq!(open.tip().unwrap().hash, at);
}

/// The tree counts each block that it has verified once.
#[test]
fn blocks_are_counted_once() {
    let (chain, blocks) = straight(TestRules::Byzantium, 9);
    let node = TestNode::new(&chain.spec, NodeSetup::REFEREED);
    let opened = node.open();
    let metrics = Metrics::new().unwrap();
    let txs: usize = blocks.iter().map(|block| block.body.transactions.len()).sum();
    let gas: u64 = blocks.iter().map(|block| block.header.gas_used).sum();
    let report = std::thread::scope(|scope| {
        let options = ImportOptions::default();
        let mut importer = BlockImporter::new(&opened, options, metrics.clone(), scope).unwrap();
        for block in blocks.iter().chain(&blocks) {
            importer.import(block.clone()).unwrap();
        }
        let mut other = blocks[8].clone();
        other.header.state_root = B256::ZERO;
        assert!(importer.import(other).unwrap_err().is_invalid_block());
        importer.flush().unwrap();
        importer.report()
    });
    assert_eq!((report.blocks, report.txs, report.gas), (9, txs as u64, gas));
    assert_eq!(report.known_blocks, 9);
    assert_eq!((metrics.blocks.get(), metrics.transactions.get()), (9, txs as u64));
    assert_eq!((metrics.gas.get(), metrics.invalid_blocks.get()), (gas, 1));
    assert_eq!(metrics.block_seconds.get_sample_count(), 9);
    assert_eq!((metrics.head.get(), metrics.reorgs.get()), (9, 0));
}

/// Receipts before Byzantium hold roots; these are the referee's, as the header's is. Regression: a
/// block that was built beside a referee had the own backend's roots there.
#[test]
fn block_built_beside_a_referee_has_its_roots_throughout() {
    let made = test_chain(TestRules::Frontier);
    let chain = TestNode::new(&made.spec, NodeSetup::REFEREED).open();
    let header = made.spec.genesis_header();
    let (codes, cache) = (HashMap::<B256, Bytes>::default(), CodeCache::default());
    let builder = BlockBuilder {
        spec: &made.spec,
        states: chain.states(),
        codes: &codes,
        hashes: &(),
        code_cache: &cache,
    };
    let parent = BuildParent {
        header,
        total_difficulty: header.difficulty,
        states: StoreSetId::Block(header.hash()),
    };
    let attributes =
        BlockAttributes { timestamp: 12, gas_limit: header.gas_limit, ..Default::default() };
    let wallet = TestWallet::new(0);
    let call = TestCall::transfer(0, Address::with_last_byte(7), 1);
    let transaction = signed(&wallet, &call, 0, None);
    let built = builder.build(parent, attributes, vec![transaction], vec![wallet.address]).unwrap();
    assert_eq!(built.block().header().state_root, built.roots().referee.unwrap());
    let node = TestNode::new(&made.spec, NodeSetup::MPT);
    let options = ImportOptions { intermediate_roots: true, ..ImportOptions::default() };
    node.import_with(&[built.block().clone_block()], options).unwrap();
    assert_eq!(node.tip().hash, built.block().hash());
}
