//! A consensus client wants a deep branch, which leaves the chain below the oldest state that can
//! be restored: it gets an error, and the operator gets a message with a way out.

use crate::common::{NodeSetup, RunningNode, TestNode, hash, only_head, syncing, valid};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadStatusEnum;
use retrie_chainspec::primitives::Block;
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_engine::{BlockSyncWait, DeepBranch, EngineConfig, WaitReason};
use retrie_pipeline::{
    ChainMigration, ChainOptions,
    testkit::{TestChain, TestRules},
};
use retrie_state_store::StoreOptions;
use retrie_state_testkit::sample;
use retrie_telemetry::Metrics;
use std::sync::{Arc, atomic::AtomicBool};
use tempfile::TempDir;

const RETENTION: u64 = 8;

/// A chain of 24 blocks, and the hashes of a branch of 26 blocks that leaves it above block 1.
fn forked(setup: NodeSetup) -> (TestChain, Vec<B256>, Vec<B256>) {
    let mut chain = setup.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 24, 12, 1);
    let side = chain.branch(main[0], 26, 12, 2);
    (chain, main, side)
}

/// A node that has followed the chain, and keeps few states.
fn node(chain: &TestChain, setup: NodeSetup, main: &[B256]) -> (TestNode, RunningNode) {
    let mut node = TestNode::new(&chain.spec, setup);
    node.retention = RETENTION;
    node.config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
    let running = node.start();
    for block in chain.path(chain.genesis(), main[23]) {
        running.follow(std::slice::from_ref(&block));
    }
    running.flush();
    (node, running)
}

fn assert_too_deep(running: &RunningNode, head: B256) {
    let error = running.fcu(3, only_head(head), None).unwrap_err();
    assert_eq!(error.code(), -38006, "{error}");
    let wait = running.engine.handle().waiting();
    let Some(BlockSyncWait {
        head: Some(wanted),
        reason: WaitReason::TooDeepReorg(27, branch),
        ..
    }) = wait
    else {
        panic!("{wait:?}")
    };
    let DeepBranch { fork, first_retained, retention } = branch;
    assert_eq!((wanted, fork, retention), (head, 1, RETENTION));
    assert!(first_retained > 1);
    let progress = running.engine.handle().syncing().unwrap();
    assert_eq!((progress.starting, progress.current, progress.highest), (24, 24, 27));
}

/// Regression: every payload was answered ACCEPTED or SYNCING and every update SYNCING, for ever,
/// without a line in the log.
#[test]
fn a_reorganisation_below_what_is_kept_is_refused_with_its_code_whatever_is_heard_of_it() {
    let (chain, main, side) = forked(NodeSetup::MPT);
    let branch = chain.path(main[0], side[25]);
    let send = |running: &RunningNode, block: &Block| running.send(block).status;
    // Parents first, as a consensus client sends them.
    let (_, running) = node(&chain, NodeSetup::MPT, &main);
    for block in &branch {
        assert_eq!(send(&running, block), PayloadStatusEnum::Accepted);
    }
    assert_too_deep(&running, side[25]);
    assert_eq!(running.head(), main[23]);
    let since = running.engine.handle().waiting().unwrap().since;
    assert_too_deep(&running, side[25]);
    assert_eq!(running.engine.handle().waiting().unwrap().since, since);
    // The client returns to the first branch.
    running.lead(main[23]);
    assert_eq!(running.engine.handle().waiting(), None);
    assert_eq!(running.engine.handle().syncing(), None);

    // Children first: only the lowest block shows where the branch leaves the chain.
    let (_, running) = node(&chain, NodeSetup::MPT, &main);
    for block in branch[1..].iter().rev() {
        assert_eq!(send(&running, block), PayloadStatusEnum::Syncing);
    }
    let updated = running.fcu(3, only_head(side[25]), None).unwrap();
    assert_eq!(updated.payload_status, syncing());
    let wait = running.engine.handle().waiting().unwrap();
    assert_eq!((wait.head, wait.reason), (Some(side[25]), WaitReason::NoSource));
    assert_eq!(send(&running, &branch[0]), PayloadStatusEnum::Accepted);
    assert_too_deep(&running, side[25]);
    assert_eq!(running.head(), main[23]);
}

/// The way out that the log names: the stored blocks are executed again up to where the branch
/// leaves the chain, in a new datadir.
#[test]
fn a_datadir_that_ends_below_the_branch_takes_it() {
    for setup in sample::of(NodeSetup::on_headers(), 3) {
        let (chain, main, side) = forked(setup);
        let (node, running) = node(&chain, setup, &main);
        let branch = chain.path(main[0], side[25]);
        running.send(&branch[0]);
        let error = running.fcu(3, only_head(side[0]), None).unwrap_err();
        assert_eq!(error.code(), -38006, "{setup:?}");
        let wait = running.engine.handle().waiting().unwrap();
        let WaitReason::TooDeepReorg(2, DeepBranch { fork, .. }) = wait.reason else {
            panic!("{wait:?}")
        };
        running.stop();

        let new = TestNode { dir: Arc::new(TempDir::new().unwrap()), retention: 128, ..node };
        let db = DatabaseEnv::open(node.dir.path(), &OpenOptions::read_only()).unwrap();
        let read = Arc::new(db.begin_read().unwrap());
        let to = ChainOptions {
            spec: chain.spec.clone(),
            backend: setup.backend(),
            referee: None,
            root_mode: setup.root_mode(),
            datadir: new.dir.path().to_owned(),
            db: OpenOptions { map_limit: 1 << 30, growth_step: 1 << 20, ..OpenOptions::default() },
            store: StoreOptions { retention: new.retention, ..StoreOptions::default() },
        };
        let backend = setup.backend();
        let migration =
            ChainMigration { from: &read, backend, to, history: true, until: Some(fork) };
        let metrics = Metrics::new().unwrap();
        let migrated = migration.run(&metrics, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((migrated.tip.number, migrated.tip.hash), (1, main[0]), "{setup:?}");

        let running = new.start();
        assert_eq!(running.head(), main[0], "{setup:?}");
        for block in &branch {
            assert_eq!(running.send(block), valid(hash(block)), "{setup:?}");
        }
        running.lead(side[25]);
        // And the other branch, if the client wants that one again.
        running.follow(&chain.path(main[0], main[23]));
    }
}
