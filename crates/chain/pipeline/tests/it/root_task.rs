//! Blocks that are executed ahead of the roots of the blocks below them: an import leaves the same
//! rows, and if a block fails, the blocks on top of it fail with it.

use crate::common::{
    DatadirContents, NodeSetup, TestNode, batches, import_into, init_code,
    late::{LATE, LateRootBackend, RootWatch},
    link, names_block, rows, test_chain,
};
use alloy_primitives::{Address, B256, TxKind, keccak256};
use retrie_chainspec::primitives::Block;
use retrie_db::ChainRead;
use retrie_pipeline::{
    BlockImporter, BlockStatus, ChainOptions, ChainStore, ImportOptions, ImportOutcome,
    PipelineError, import, prepare,
    report::ImportReport,
    testkit::{BlockPlan, TestCall, TestChain, TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state_store::{FlatHistory, StoreOptions};
use retrie_state_testkit::sample;
use retrie_telemetry::Metrics;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

fn straight(rules: TestRules, count: u64) -> (TestChain, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, count, 12, 0).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

/// Opens a datadir with all flat history, whose backend's roots come late.
fn open_late(node: &TestNode) -> (ChainStore, Arc<RootWatch>) {
    let options = node.options(node.setup);
    let (backend, watch) = LateRootBackend::watched(options.backend);
    let store = StoreOptions { flat_history: FlatHistory::All, ..options.store };
    (ChainStore::open(ChainOptions { backend, store, ..options }).unwrap(), watch)
}

fn sources(node: &TestNode, blocks: &[Block]) -> Vec<BlockSource> {
    let file = node.dir.path().join("blocks.rlp");
    write_blocks(&file, blocks);
    vec![BlockSource::open(&file).unwrap()]
}

fn import_late(
    node: &TestNode,
    blocks: &[Block],
    options: ImportOptions,
    progress: &mut dyn FnMut(&ImportReport),
) -> Result<ImportReport, PipelineError> {
    let (chain, _) = open_late(node);
    let never = AtomicBool::new(false);
    import_into(&chain, sources(node, blocks), 0..=u64::MAX, options, &never, progress)
}

/// Blocks one by one, none ahead.
fn import_singly(chain: &ChainStore, blocks: &[Block], options: ImportOptions) {
    let metrics = Metrics::new().unwrap();
    std::thread::scope(|scope| {
        let mut importer = BlockImporter::new(chain, options, metrics, scope).unwrap();
        for block in blocks {
            importer.import(block.clone()).unwrap();
        }
        importer.flush().unwrap();
    });
}

#[test]
fn chain_is_the_same_to_the_row_with_blocks_ahead_and_without() {
    for rules in
        [TestRules::Frontier, TestRules::Byzantium, TestRules::Prague, TestRules::Amsterdam]
    {
        let (chain, blocks) = straight(rules, 14);
        for setup in sample::of(NodeSetup::all(), 3) {
            let singly = TestNode::new(&chain.spec, setup);
            let (singly, watch) = open_late(&singly);
            import_singly(&singly, &blocks, batches(3));
            assert_eq!(watch.reads_beside.load(Ordering::SeqCst), 0, "nothing ahead");
            let ahead = TestNode::new(&chain.spec, setup);
            let files = sources(&ahead, &blocks);
            let (ahead, watch) = open_late(&ahead);
            let never = AtomicBool::new(false);
            let report =
                import_into(&ahead, files, 0..=u64::MAX, batches(3), &never, &mut |_| {}).unwrap();
            assert!(watch.reads_beside.load(Ordering::SeqCst) > 0, "{setup:?}: nothing was ahead");
            let checked = if setup.checks_roots() { 14 } else { 0 };
            assert_eq!((report.blocks, report.roots_checked), (14, checked), "{setup:?}");
            let pictures = [&singly, &ahead].map(|chain| DatadirContents::of(chain, &blocks));
            assert_eq!(pictures[0], pictures[1], "{rules:?} {setup:?}");
            for back in [14, 5] {
                for chain in [&singly, &ahead] {
                    chain.unwind(back, &mut |_| {}).unwrap();
                }
                let [singly, ahead] = [&singly, &ahead].map(rows);
                let others = singly.iter().filter(|(key, row)| ahead.get(key) != Some(row));
                let others: Vec<_> = others.map(|(key, _)| key).collect();
                assert!(others.is_empty(), "{rules:?} {setup:?} at {back}: other rows {others:?}");
                assert_eq!(singly.len(), ahead.len(), "{rules:?} {setup:?} at {back}");
            }
        }
    }
}

/// Part of the error message, and the change to a block.
type AheadDamage = (&'static str, fn(&mut Block));

const DAMAGES: [AheadDamage; 3] = [
    ("state root", |block| block.header.state_root = B256::repeat_byte(1)),
    ("receipts root", |block| block.header.receipts_root = B256::repeat_byte(1)),
    ("execution used", |block| block.header.gas_used += 1),
];

/// Imports `bad`, whose first wrong block is `number`. The blocks before it stay, and nothing of
/// the others.
fn assert_stops_before(
    number: u64,
    node: &TestNode,
    bad: &[Block],
    options: ImportOptions,
) -> String {
    let mut highest = 0;
    let mut progress = |report: &ImportReport| highest = highest.max(report.tip.number);
    let error = import_late(node, bad, options, &mut progress).unwrap_err();
    assert!(error.is_invalid_block(), "{error:?}");
    let text = names_block(&error, number);
    assert_eq!(highest, number - 1, "{text}: seen as the head");
    let open = node.open();
    assert_eq!(open.tip().unwrap().number, number - 1, "{text}: durable after reopening");
    let read = open.db().begin_read().unwrap();
    for block in &bad[number as usize - 1..] {
        assert_eq!(read.header(&block.header.hash_slow()).unwrap(), None, "{text}");
    }
    text
}

#[test]
fn wrong_block_takes_with_it_what_was_executed_on_it_wherever_it_is() {
    const COUNT: usize = 7;
    let (chain, good) = straight(TestRules::Byzantium, COUNT as u64);
    let setups = NodeSetup::checked();
    let mut turn = 0;
    for at in 0..COUNT {
        for (says, damage) in DAMAGES {
            for batch in [1, 3, 1000] {
                let mut bad = good.clone();
                damage(&mut bad[at]);
                // The blocks above are right, except that they stand on it.
                link(&mut bad);
                let node = TestNode::new(&chain.spec, setups[turn % setups.len()]);
                turn += 1;
                let text = assert_stops_before(at as u64 + 1, &node, &bad, batches(batch));
                assert!(text.contains(says), "{text}");
                node.import_with(&good, batches(batch)).unwrap();
                let straight = TestNode::new(&chain.spec, node.setup);
                straight.import_with(&good, batches(batch)).unwrap();
                assert_eq!(node.picture(&good), straight.picture(&good), "usable afterwards");
            }
        }
    }
}

/// The second one is found first, as execution does not wait for roots.
#[test]
fn lower_one_of_two_wrong_blocks_is_named() {
    let (chain, good) = straight(TestRules::Byzantium, 8);
    for setup in sample::of(NodeSetup::checked(), 3) {
        for above in [1, 2] {
            let mut bad = good.clone();
            bad[3].header.state_root = B256::repeat_byte(1);
            bad[3 + above].header.gas_used += 1;
            link(&mut bad);
            let node = TestNode::new(&chain.spec, setup);
            let text = assert_stops_before(4, &node, &bad, batches(2));
            assert!(text.contains("state root"), "{text}");
        }
    }
}

#[test]
fn every_block_is_seen_as_the_head_and_import_stops_at_any() {
    let (chain, blocks) = straight(TestRules::Byzantium, 12);
    let setups = NodeSetup::checked();
    for last in 1..=12 {
        let node = TestNode::new(&chain.spec, setups[last % setups.len()]);
        let stop = AtomicBool::new(false);
        let mut heads = Vec::new();
        let mut progress = |report: &ImportReport| {
            heads.push(report.tip.number);
            if report.tip.number == last as u64 {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let files = sources(&node, &blocks);
        let (open, _) = open_late(&node);
        let options = batches([1, 5, 1000][last % 3]);
        let report = import_into(&open, files, 0..=u64::MAX, options, &stop, &mut progress);
        drop(open);
        assert_eq!(report.unwrap().blocks, last as u64);
        heads.dedup();
        assert!(heads.into_iter().eq(1..=last as u64));
        assert_eq!(node.tip().number, last as u64, "durable after reopening");
        node.import(&blocks).unwrap();
        assert_eq!(node.tip().number, 12);
    }
}

#[test]
fn reorgs_side_blocks_and_known_blocks_wait_for_those_ahead() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let trunk = *chain.branch(genesis, 5, 12, 0).last().unwrap();
    let slow = *chain.branch(trunk, 8, 1000, 1).last().unwrap();
    let fast = *chain.branch(trunk, 7, 5, 2).last().unwrap();
    let comeback = *chain.branch(slow, 6, 12, 1).last().unwrap();
    assert!(chain.total_difficulty(fast) > chain.total_difficulty(slow));
    assert!(chain.total_difficulty(comeback) > chain.total_difficulty(fast));
    let paths = [(genesis, trunk), (trunk, slow), (trunk, fast), (slow, comeback)];
    let [trunk, slow, fast, comeback] = paths.map(|(from, to)| chain.path(from, to));
    // Every second block of the branches comes twice.
    let twice = |blocks: &[Block]| -> Vec<Block> {
        let one = |(n, block): (usize, &Block)| vec![block.clone(); 1 + n % 2];
        blocks.iter().enumerate().flat_map(one).collect()
    };
    let file = [twice(&trunk), twice(&slow), twice(&fast), twice(&comeback)].concat();
    for setup in sample::of(NodeSetup::checked(), 3) {
        let straight = TestNode::new(&chain.spec, setup);
        straight.import(&[&trunk[..], &slow, &comeback].concat()).unwrap();
        for batch in [1, 3, 1000] {
            let node = TestNode::new(&chain.spec, setup);
            let report = import_late(&node, &file, batches(batch), &mut |_| {}).unwrap();
            assert_eq!((report.blocks, report.reorgs), (26, 2), "{setup:?} batch {batch}");
            assert_eq!(node.picture(&file), straight.picture(&file), "{setup:?} batch {batch}");
        }
    }
}

#[test]
fn commit_that_fails_below_blocks_ahead_is_what_is_told() {
    let (chain, blocks) = straight(TestRules::Byzantium, 12);
    for setup in sample::of(NodeSetup::all(), 3) {
        for commits in [0, 2] {
            let node = TestNode::new(&chain.spec, setup);
            let files = sources(&node, &blocks);
            let (open, watch) = open_late(&node);
            watch.commits.store(commits, Ordering::SeqCst);
            let never = AtomicBool::new(false);
            let range = 0..=u64::MAX;
            let error =
                import_into(&open, files, range, batches(2), &never, &mut |_| {}).unwrap_err();
            drop(open);
            let durable = u64::from(2 * commits);
            let is_first = |error: &PipelineError| match error {
                PipelineError::Commit { first, last, .. } => {
                    (*first, *last) == (durable + 1, durable + 2)
                }
                _ => false,
            };
            assert!(is_first(&error), "{setup:?}: {error:?}");
            assert_eq!(node.tip().number, durable, "{setup:?}");
            node.import(&blocks).unwrap();
            assert_eq!(node.tip().number, 12);
        }
    }
}

#[test]
fn times_of_roots_are_told_as_far_as_they_were_waited_for_and_beside() {
    let (chain, mut blocks) = straight(TestRules::Byzantium, 12);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    blocks[11].header.state_root = B256::ZERO;
    let files = sources(&node, &blocks);
    let (open, _) = open_late(&node);
    let metrics = Metrics::new().unwrap();
    let never = AtomicBool::new(false);
    let options = ImportOptions::default();
    let ImportOutcome { report, end, times, .. } =
        import(&open, files, 0..=u64::MAX, options, &metrics, &never, &mut |_| {}).unwrap();
    end.unwrap_err();
    assert_eq!(report.blocks, 11);
    assert!(!times.roots_aside.is_zero() && !times.authentication.is_zero(), "{times:?}");
    assert!(times.roots_aside + times.authentication >= 11 * LATE, "{times:?}");
    let waited = times.authentication.as_secs_f64();
    assert!((metrics.root_wait_seconds.get() - waited).abs() < 1e-6);
    assert_eq!(metrics.propose_seconds.get_sample_count(), 11);
    assert_eq!((metrics.blocks.get(), metrics.invalid_blocks.get()), (11, 1));
    assert_eq!((metrics.head.get(), metrics.durable.get()), (11, 11));
}

/// A contract that creates another one, always at the same address; and that address.
fn factory(at: Address) -> (Vec<u8>, Address) {
    let made = TestCall::deploy(0).input;
    let len = made.len() as u8;
    let head = [
        0x60, len, 0x60, 0x11, 0x60, 0x00, 0x39, // CODECOPY(0, 17, len)
        0x60, 0x00, 0x60, len, 0x60, 0x00, 0x60, 0x00, 0xf5, // CREATE2(0, 0, len, 0)
        0x00, // STOP
    ];
    (init_code(&[&head[..], &made].concat()), at.create2(B256::ZERO, keccak256(&made)))
}

/// Stores the hashes of the blocks 2 and 3 below its own, at slots of its own number.
const HASHES: [u8; 18] = [
    0x60, 0x02, 0x43, 0x03, 0x40, 0x43, 0x55, // SSTORE(NUMBER, BLOCKHASH(NUMBER - 2))
    0x60, 0x03, 0x43, 0x03, 0x40, 0x43, 0x60, 0x64, 0x01, 0x55, // SSTORE(100 + NUMBER, ...)
    0x00,
];

/// The next blocks see the effects of a block before it has a root: a code, a storage that was
/// wiped and filled again, hashes of ancestors.
#[test]
fn contracts_and_hashes_of_blocks_ahead_are_found() {
    // SELFDESTRUCT removes contracts that are older than the transaction, and CREATE2 is there.
    let mut chain = test_chain(TestRules::Merge(u64::MAX));
    let create =
        |from, code: Vec<u8>| TestCall { from, to: TxKind::Create, value: 0, input: code.into() };
    let genesis = chain.genesis();
    let maker = chain.next_contract(genesis, 1);
    let (code, made) = factory(maker);
    let hashes = chain.next_contract(genesis, 2);
    let make = || TestCall::destroy(1, maker);
    let note = || TestCall::destroy(2, hashes);
    let store = |slot, value| TestCall::store(3, made, slot, value);
    let destroy = || TestCall::destroy(4, made);
    let plans = [
        vec![create(1, code), create(2, init_code(&HASHES))],
        vec![make(), note()],
        vec![store(1, 1), store(2, 2), note()],
        vec![destroy(), note()],
        // A contract cannot be created where there is storage (EIP-7610): the storage is gone.
        vec![make(), note(), store(2, 22)],
        vec![store(1, 0), store(3, 3)],
        vec![destroy()],
        vec![make(), store(3, 33), note()],
        vec![destroy(), make(), note()],
        vec![store(4, 4), note()],
        vec![store(5, 5), destroy()],
        vec![make(), store(4, 44)],
    ];
    let mut at = genesis;
    for calls in plans {
        at = chain.extend(at, BlockPlan::new(calls));
    }
    let last = chain.account(at, made).unwrap();
    assert_eq!(last.nonce, 1, "it was made anew");
    let blocks = chain.path(genesis, at);
    for setup in sample::of(NodeSetup::all(), 3) {
        let singly = TestNode::new(&chain.spec, setup);
        let singly = singly.open();
        import_singly(&singly, &blocks, batches(3));
        let expected = DatadirContents::of(&singly, &blocks);
        let noted =
            expected.state.iter().filter(|(key, _)| *key.account() == hashes.into()).count();
        assert!(noted > 10, "hashes are noted");
        for batch in [1, 3, 1000] {
            let node = TestNode::new(&chain.spec, setup);
            import_late(&node, &blocks, batches(batch), &mut |_| {}).unwrap();
            assert_eq!(node.picture(&blocks), expected, "{setup:?} batch {batch}");
        }
    }
}

/// As a caller that feeds an importer block by block.
#[test]
fn error_of_a_block_given_ahead_comes_later_and_the_importer_goes_on() {
    let (chain, good) = straight(TestRules::Byzantium, 8);
    for setup in sample::of(NodeSetup::checked(), 3) {
        for at in [0, 4, 7] {
            let mut bad = good.clone();
            bad[at].header.state_root = B256::repeat_byte(1);
            link(&mut bad);
            let node = TestNode::new(&chain.spec, setup);
            let (open, _) = open_late(&node);
            let prepared = |block: &Block| prepare(&chain.spec, block.clone()).unwrap();
            let metrics = Metrics::new().unwrap();
            std::thread::scope(|scope| {
                let mut importer = BlockImporter::new(&open, batches(3), metrics, scope).unwrap();
                let given = bad.iter().try_for_each(|block| importer.import_ahead(prepared(block)));
                let error = given.and_then(|()| importer.flush()).unwrap_err();
                assert!(error.is_invalid_block(), "{error:?}");
                names_block(&error, at as u64 + 1);
                assert_eq!(importer.head().number, at as u64);
                for block in &good[at..] {
                    importer.import_ahead(prepared(block)).unwrap();
                }
                // A block that does not extend the chain waits for the blocks ahead.
                assert_eq!(importer.import(good[3].clone()).unwrap(), BlockStatus::Known);
                assert_eq!(importer.head().number, 8);
                importer.flush().unwrap();
            });
            assert_eq!(open.tip().unwrap().hash, good[7].header.hash_slow(), "{setup:?}");
        }
    }
}
