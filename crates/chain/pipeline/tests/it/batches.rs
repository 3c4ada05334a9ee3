//! Block batches with one root: they leave what single blocks leave, except the roots and states in
//! between, and an error is about the same block as without batches.

use crate::common::{
    CanonicalBlock, DatadirContents, NodeSetup, TestNode, import_into, init_code, link,
    names_block, rows, test_chain,
};
use alloy_primitives::{B256, TxKind};
use retrie_chainspec::primitives::Block;
use retrie_db::ChainRead;
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportOptions, PipelineError, RootCheckMode,
    report::ImportReport,
    testkit::{BlockPlan, TestCall, TestChain, TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state::StateError;
use retrie_state_store::{FlatHistory, StoreOptions};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

const BATCH: RootCheckMode = RootCheckMode::Batch;
/// Number of blocks above all batches.
const RETENTION: u64 = 7;
/// Two batches of 128 blocks, one of 37, and the blocks above.
const COUNT: u64 = 300;
const ENDS: [u64; 3] = [128, 256, COUNT - RETENTION];

fn straight(rules: TestRules) -> (TestChain, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, COUNT, 12, 0).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

fn options(check_roots: RootCheckMode) -> ImportOptions {
    ImportOptions { check_roots, ..ImportOptions::default() }
}

fn node(chain: &TestChain, setup: NodeSetup) -> TestNode {
    TestNode { retention: RETENTION, ..TestNode::new(&chain.spec, setup) }
}

/// Setups whose stores apply batches, with and without roots to check.
fn in_runs() -> [NodeSetup; 3] {
    [NodeSetup::MPT, NodeSetup::RAW, NodeSetup::REFEREED]
}

fn open(node: &TestNode, flat_history: FlatHistory) -> ChainStore {
    let options = node.options(node.setup);
    let store = StoreOptions { flat_history, ..options.store };
    ChainStore::open(ChainOptions { store, ..options }).unwrap()
}

fn import(
    chain: &ChainStore,
    node: &TestNode,
    blocks: &[Block],
    check_roots: RootCheckMode,
) -> Result<ImportReport, PipelineError> {
    let file = node.dir.path().join("blocks.rlp");
    write_blocks(&file, blocks);
    let sources = vec![BlockSource::open(&file).unwrap()];
    let never = AtomicBool::new(false);
    import_into(chain, sources, 0..=u64::MAX, options(check_roots), &never, &mut |_| {})
}

/// Drops the roots of blocks within batches.
fn but_for_roots(picture: DatadirContents, with_roots: impl Fn(u64) -> bool) -> DatadirContents {
    let but_for = |(number, block): (usize, CanonicalBlock)| match with_roots(number as u64) {
        true => block,
        false => CanonicalBlock { roots: Vec::new(), ..block },
    };
    DatadirContents {
        blocks: picture.blocks.into_iter().enumerate().map(but_for).collect(),
        ..picture
    }
}

fn has_root(number: u64) -> bool {
    number == 0 || ENDS.contains(&number) || number > COUNT - RETENTION
}

#[test]
fn runs_leave_what_single_blocks_leave_but_for_the_roots_between() {
    for (rules, changes) in
        [(TestRules::Amsterdam, FlatHistory::All), (TestRules::Byzantium, FlatHistory::Last(40))]
    {
        let (chain, blocks) = straight(rules);
        for setup in in_runs() {
            let [one_by_one, batched] = [RootCheckMode::Every, BATCH].map(|check_roots| {
                let node = node(&chain, setup);
                let open = open(&node, changes);
                let report = import(&open, &node, &blocks, check_roots).unwrap();
                (node, open, report)
            });
            let what = format!("{rules:?} {setup:?}");
            let [few, all] = if setup.checks_roots() { [10, COUNT] } else { [0, 0] };
            let counts = |report: &ImportReport| (report.blocks, report.txs, report.gas);
            assert_eq!(counts(&batched.2), counts(&one_by_one.2), "{what}");
            assert_eq!((batched.2.roots_checked, one_by_one.2.roots_checked), (few, all), "{what}");
            let [single, batch] =
                [&one_by_one.1, &batched.1].map(|it| DatadirContents::of(it, &blocks));
            for (number, block) in batch.blocks.iter().enumerate() {
                assert_eq!(block.roots.is_empty(), !has_root(number as u64), "{what} {number}");
            }
            assert_eq!(batch, but_for_roots(single, has_root), "{what}");
            // The chain can be reverted as far as ever.
            for back in [0, RETENTION] {
                for (_, open, _) in [&one_by_one, &batched] {
                    open.unwind(COUNT - back, &mut |_| {}).unwrap();
                }
                let [single, batch] = [&one_by_one.1, &batched.1].map(|open| {
                    let mut rows = rows(open);
                    // The number of commits differs.
                    rows.retain(|(table, _), _| *table != "Meta");
                    rows
                });
                let other: BTreeSet<_> = single
                    .keys()
                    .chain(batch.keys())
                    .filter(|key| single.get(key) != batch.get(key))
                    .map(|(table, _)| *table)
                    .collect();
                // History is pruned from commit to commit.
                let is_pruned = changes != FlatHistory::All;
                assert!(
                    other.iter().all(|table| is_pruned && table.starts_with("Change")),
                    "{what}, {back} back: rows differ in {other:?}"
                );
            }
            let beyond = batched.1.unwind(COUNT - RETENTION - 1, &mut |_| {}).unwrap_err();
            let is_typed = matches!(beyond, PipelineError::State(StateError::BeyondRetention {
                first, ..
            }) if first == COUNT - RETENTION);
            assert!(is_typed, "{what}: {beyond:?}");
            let again = import(&batched.1, &batched.0, &blocks, BATCH).unwrap();
            assert_eq!((again.blocks, again.known_blocks), (RETENTION, COUNT - RETENTION));
            assert_eq!(DatadirContents::of(&batched.1, &blocks), batch, "{what}: imported again");
        }
    }
}

#[test]
fn states_that_depend_on_history_or_keep_it_come_block_by_block_as_ever() {
    let (chain, blocks) = straight(TestRules::Byzantium);
    let blocks = &blocks[..40];
    let mut applied = Vec::new();
    for setup in NodeSetup::all() {
        let [single, batch] = [RootCheckMode::Every, BATCH].map(|check_roots| {
            let node = node(&chain, setup);
            let open = node.open();
            let applies = open.states().applies_batches();
            let report = import(&open, &node, blocks, check_roots).unwrap();
            (report.roots_checked, DatadirContents::of(&open, blocks), applies)
        });
        if single.2 {
            applied.push(setup);
            let has_root = |number| number == 0 || number >= 40 - RETENTION;
            assert_eq!(batch.1, but_for_roots(single.1, has_root), "{setup:?}");
        } else {
            assert_eq!((batch.0, batch.1), (single.0, single.1), "{setup:?}");
        }
    }
    assert!(in_runs().iter().all(|setup| applied.contains(setup)), "{applied:?}");
    assert!(applied.len() < NodeSetup::all().len());
}

type BatchDamage = fn(&mut Block);

/// Part of the error message, the damaged blocks with their damage, and the block that the error
/// names.
type BatchCase<'a> = (&'a str, &'a [(u64, BatchDamage)], u64);

const STATE_ROOT: BatchDamage = |block| block.header.state_root = B256::repeat_byte(1);
const RECEIPTS: BatchDamage = |block| block.header.receipts_root = B256::repeat_byte(1);
const GAS: BatchDamage = |block| block.header.gas_used += 1;

#[test]
fn error_is_about_the_block_that_it_would_be_about_without_runs() {
    let (chain, good) = straight(TestRules::Byzantium);
    let cases: [BatchCase<'_>; 11] = [
        ("state root", &[(ENDS[0], STATE_ROOT)], ENDS[0]),
        ("state root", &[(ENDS[1], STATE_ROOT)], ENDS[1]),
        ("state root", &[(ENDS[2], STATE_ROOT)], ENDS[2]),
        ("state root", &[(COUNT, STATE_ROOT)], COUNT),
        // Block by block, the first damaged one is found.
        ("state root", &[(40, STATE_ROOT), (ENDS[0], STATE_ROOT)], 40),
        ("state root", &[(200, STATE_ROOT), (210, GAS)], 200),
        ("receipts root", &[(1, RECEIPTS)], 1),
        ("receipts root", &[(130, RECEIPTS)], 130),
        ("execution used", &[(ENDS[0], GAS)], ENDS[0]),
        ("execution used", &[(170, GAS), (250, RECEIPTS)], 170),
        // Executed while the root of the batch below is not known.
        ("state root", &[(ENDS[0], STATE_ROOT), (ENDS[0] + 1, GAS)], ENDS[0]),
    ];
    for (n, (says, damages, number)) in cases.into_iter().enumerate() {
        let setup = [NodeSetup::MPT, NodeSetup::REFEREED][n % 2];
        let mut bad = good.clone();
        for (at, damage) in damages {
            damage(&mut bad[*at as usize - 1]);
        }
        link(&mut bad);
        let node = node(&chain, setup);
        let error = node.import_with(&bad, options(BATCH)).unwrap_err();
        assert!(error.is_invalid_block(), "{error:?}");
        let text = names_block(&error, number);
        assert!(text.contains(says), "{text}");
        let open = node.open();
        assert_eq!(open.tip().unwrap().number, number - 1, "{text}");
        let read = open.db().begin_read().unwrap();
        for block in &bad[number as usize - 1..] {
            assert_eq!(read.header(&block.header.hash_slow()).unwrap(), None, "{text}");
        }
        // The blocks of the failed batch were imported with every root.
        let run = ENDS.iter().rev().find(|end| **end < number).map_or(0, |end| *end);
        for above in run + 1..number {
            let hash = bad[above as usize - 1].header.hash_slow();
            assert!(!read.roots(&hash).unwrap().is_empty(), "{text}: root of {above}");
        }
        drop((read, open));
        node.import_with(&good, options(BATCH)).unwrap();
        let whole = node.picture(&good);
        assert_eq!((whole.tip.number, whole.root), {
            let straight = self::node(&chain, setup);
            straight.import(&good).unwrap();
            let picture = straight.picture(&good);
            assert_eq!(picture.state, whole.state);
            (COUNT, picture.root)
        });
    }
}

/// A documented limit of the mode: only the author of the last header can make such a header.
#[test]
fn wrong_root_within_a_run_that_ends_right_is_seen_with_every_root_alone() {
    let (chain, mut blocks) = straight(TestRules::Byzantium);
    STATE_ROOT(&mut blocks[59]);
    link(&mut blocks);
    let node = node(&chain, NodeSetup::MPT);
    names_block(&node.import(&blocks).unwrap_err(), 60);
    assert_eq!(node.tip().number, 59);
    let node = self::node(&chain, NodeSetup::MPT);
    assert_eq!(node.import_with(&blocks, options(BATCH)).unwrap().blocks, COUNT);
}

#[test]
fn known_blocks_and_branches_among_runs_are_found() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let trunk = chain.branch(genesis, 280, 12, 0);
    let slow = *chain.branch(trunk[275], 2, 1000, 1).last().unwrap();
    let fast = *chain.branch(trunk[276], 20, 5, 2).last().unwrap();
    let [trunk, slow, fast] = [(genesis, trunk[279]), (trunk[275], slow), (trunk[276], fast)]
        .map(|(from, to)| chain.path(from, to));
    // The beginning twice: known blocks directly above a batch, which lie in the batch or below it.
    let file = [&trunk[..200], &trunk, &slow, &fast].concat();
    for setup in in_runs() {
        let straight = node(&chain, setup);
        straight.import(&file).unwrap();
        let node = node(&chain, setup);
        let report = node.import_with(&file, options(BATCH)).unwrap();
        assert_eq!((report.blocks, report.known_blocks, report.reorgs), (302, 200, 1), "{setup:?}");
        assert!(report.roots_checked < 120, "{setup:?}: {}", report.roots_checked);
        let [single, batch] = [&straight, &node].map(|node| node.picture(&file));
        assert_eq!((batch.tip, &batch.state), (single.tip, &single.state), "{setup:?}");
        assert_eq!(but_for_roots(batch, |_| false), but_for_roots(single, |_| false), "{setup:?}");
    }
}

#[test]
fn import_stops_at_the_end_of_a_run_and_goes_on() {
    let (chain, blocks) = straight(TestRules::Byzantium);
    for setup in in_runs() {
        let node = node(&chain, setup);
        let file = node.dir.path().join("all.rlp");
        write_blocks(&file, &blocks);
        let stop = AtomicBool::new(false);
        let mut heads = Vec::new();
        let mut progress = |report: &ImportReport| {
            heads.push(report.tip.number);
            stop.store(true, Ordering::Relaxed);
        };
        let open = node.open();
        let sources = vec![BlockSource::open(&file).unwrap()];
        let range = 0..=u64::MAX;
        import_into(&open, sources, range, options(BATCH), &stop, &mut progress).unwrap();
        heads.dedup();
        assert_eq!((heads, open.tip().unwrap().number), (vec![128], 128));
        assert_eq!(open.states().first_retained(), Some(128), "the way back ends here");
        let beyond = open.unwind(127, &mut |_| {}).unwrap_err();
        assert!(matches!(beyond, PipelineError::State(StateError::BeyondRetention { .. })));
        drop(open);
        node.import(&blocks).unwrap();
        let singly = self::node(&chain, setup);
        singly.import(&blocks).unwrap();
        let [stopped, singly] = [&node, &singly].map(|node| node.picture(&blocks));
        assert_eq!(stopped, but_for_roots(singly, |number| number == 0 || number >= 128));
    }
}

/// Stores the hashes of the blocks 200 and 2 below its own, at slots of its own number.
const HASHES: [u8; 19] = [
    0x60, 0xc8, 0x43, 0x03, 0x40, 0x43, 0x55, // SSTORE(NUMBER, BLOCKHASH(NUMBER - 200))
    0x60, 0x02, 0x43, 0x03, 0x40, 0x61, 0x04, 0x00, 0x43, 0x01,
    0x55, // SSTORE(NUMBER + 1024, ..)
    0x00,
];

/// Blocks of batches that are not durable yet, or have no root yet, are known to the blocks above.
#[test]
fn hashes_of_blocks_in_runs_are_found() {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let contract = chain.next_contract(genesis, 1);
    let create =
        TestCall { from: 1, to: TxKind::Create, value: 0, input: init_code(&HASHES).into() };
    let mut at = chain.extend(genesis, BlockPlan::new([create]));
    for _ in 1..COUNT {
        at = chain.extend(at, BlockPlan::new([TestCall::destroy(2, contract)]));
    }
    let blocks = chain.path(genesis, at);
    for setup in in_runs() {
        let node = node(&chain, setup);
        let report = node.import_with(&blocks, options(BATCH)).unwrap();
        assert!(report.roots_checked < 20, "{setup:?}");
        let state = node.picture(&blocks).state;
        let noted =
            state.iter().filter(|(key, _)| *key.account() == contract.into()).count() as u64;
        assert!(noted > COUNT, "{noted}");
        let singly = self::node(&chain, setup);
        singly.import(&blocks).unwrap();
        assert_eq!(state, singly.picture(&blocks).state, "{setup:?}");
    }
}
