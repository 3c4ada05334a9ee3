//! What the engine answers to payloads and forkchoice updates, as the Engine API specifies it.

use crate::common::{
    NodeSetup, RunningNode, TestNode, attributes, code, hash, invalid, line, only_head, syncing,
    valid, with,
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadInputV2, ForkchoiceState, PayloadId, PayloadStatusEnum,
};
use retrie_chainspec::primitives::Block;
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_engine::{EngineConfig, StateNeed};
use retrie_pipeline::{
    PipelineError,
    testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestRules},
};
use retrie_state::{KeyRange, RowTable, ScanDirection, StateError, StateKey, StateReader};
use retrie_state_testkit::sample;

/// `block` with wrong gas, which every setup refuses, and its child in the same way.
fn bad_pair(block: &Block, child: &Block) -> (Block, Block) {
    let bad = with(block, |block| block.header.gas_used += 1);
    let child = with(child, |child| child.header.parent_hash = hash(&bad));
    (bad, child)
}

#[test]
fn valid_blocks_become_the_head_by_forkchoice_alone() {
    for setup in sample::of(NodeSetup::all(), 3) {
        for rules in [TestRules::Cancun, TestRules::Prague] {
            let (chain, blocks) = line(setup, rules, 6);
            let node = TestNode::new(&chain.spec, setup);
            let running = node.start();
            for block in &blocks {
                assert_eq!(running.send(block), valid(hash(block)), "{setup:?} {rules:?}");
            }
            assert_eq!(running.head(), chain.genesis());
            for block in &blocks {
                running.lead(hash(block));
                let view = running.live.view().unwrap();
                assert_eq!(view.head().hash(), hash(block));
                assert_eq!(view.canonical_hash(block.header.number).unwrap(), Some(hash(block)));
            }
            // Sending all blocks again changes nothing.
            running.follow(&blocks);
            let state = running.live.view().unwrap().state(&running.head()).unwrap();
            let contract = StateReader::account(&state, &GENESIS_CONTRACT).unwrap();
            assert_eq!(contract, chain.account(running.head(), GENESIS_CONTRACT));
            drop(state);
            running.stop();
            assert_eq!(node.open().tip().unwrap().hash, hash(&blocks[5]));
        }
    }
}

#[test]
fn blocks_that_come_before_their_parents_wait_for_them() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 6);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    for block in blocks[1..].iter().rev() {
        assert_eq!(running.send(block), syncing());
    }
    let tip = hash(&blocks[5]);
    let updated = running.fcu(3, only_head(tip), None).unwrap();
    assert_eq!((updated.payload_status, updated.payload_id), (syncing(), None));
    assert_eq!(running.engine.handle().wanted_head(), Some(tip), "the follower must fetch it");
    assert_eq!(running.head(), chain.genesis());
    assert_eq!(running.send(&blocks[0]), valid(hash(&blocks[0])));
    assert_eq!(running.send(&blocks[5]), valid(tip), "it was adopted");
    running.lead(tip);
    assert_eq!(running.engine.handle().wanted_head(), None);
    assert_eq!(running.head(), tip);
}

#[test]
fn descendants_of_an_invalid_block_are_invalid_whenever_they_come() {
    for setup in sample::of(NodeSetup::all(), 3) {
        let (chain, blocks) = line(setup, TestRules::Prague, 4);
        let good = hash(&blocks[0]);
        let (bad, child) = bad_pair(&blocks[1], &blocks[2]);
        let grandchild = with(&blocks[3], |block| block.header.parent_hash = hash(&child));

        // Parents first.
        let running = TestNode::new(&chain.spec, setup).start();
        running.follow(&blocks[..1]);
        let reason = invalid(running.send(&bad), Some(good));
        assert!(reason.contains("gas"), "{setup:?}: {reason}");
        for block in [&bad, &child, &grandchild] {
            invalid(running.send(block), Some(good));
            let updated = running.fcu(3, only_head(hash(block)), None).unwrap();
            invalid(updated.payload_status, Some(good));
            assert_eq!(updated.payload_id, None);
        }
        assert_eq!(running.head(), good);
        // The valid block is still accepted.
        running.follow(&blocks);

        // Children first: SYNCING, until their ancestor is found invalid.
        let running = TestNode::new(&chain.spec, setup).start();
        running.follow(&blocks[..1]);
        assert_eq!(running.send(&grandchild), syncing());
        assert_eq!(running.send(&child), syncing());
        invalid(running.send(&bad), Some(good));
        for block in [&grandchild, &child] {
            invalid(running.send(block), Some(good));
            let updated = running.fcu(3, only_head(hash(block)), None).unwrap();
            invalid(updated.payload_status, Some(good));
        }

        // All blocks wait for the lowest one.
        let running = TestNode::new(&chain.spec, setup).start();
        for block in [&grandchild, &child, &bad] {
            assert_eq!(running.send(block), syncing());
        }
        assert_eq!(running.send(&blocks[0]), valid(good));
        for block in [&bad, &child, &grandchild] {
            invalid(running.send(block), Some(good));
        }
    }
}

#[test]
fn block_that_is_invalid_by_itself_has_no_known_valid_ancestor_if_its_parent_is_unknown() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 3);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let bad = with(&blocks[1], |block| block.header.gas_used = block.header.gas_limit + 1);
    invalid(running.send(&bad), None);
    let child = with(&blocks[2], |block| block.header.parent_hash = hash(&bad));
    invalid(running.send(&child), None);
}

#[test]
fn last_valid_ancestor_below_the_merge_is_zero() {
    // Genesis has a difficulty of 2 million, and each block about as much.
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Merge(5_000_000));
    let genesis = chain.genesis();
    let early = chain.extend(genesis, BlockPlan::new([]));
    let mined = chain.extend(early, BlockPlan::new([]));
    let staked = chain.extend(mined, BlockPlan::new([TestCall::transfer(0, Address::ZERO, 1)]));
    let next = chain.extend(staked, BlockPlan::new([TestCall::transfer(0, Address::ZERO, 2)]));
    assert!(chain.total_difficulty(early) < U256::from(5_000_000));
    assert!(chain.block(staked).header.difficulty.is_zero());
    for setup in sample::of(NodeSetup::checked(), 3) {
        let running = TestNode::new(&chain.spec, setup).start();
        assert_eq!(running.insert(chain.block(early)), valid(early));
        // A payload on a block that is not terminal.
        let too_early = with(chain.block(staked), |block| {
            block.header.parent_hash = early;
            block.header.number = 2;
            block.header.timestamp -= 12;
        });
        invalid(running.send(&too_early), Some(B256::ZERO));
        assert_eq!(running.insert(chain.block(mined)), valid(mined));
        let bad = with(chain.block(staked), |block| block.header.gas_used += 1);
        invalid(running.send(&bad), Some(B256::ZERO));
        // From here on a valid ancestor can be named.
        assert_eq!(running.send(chain.block(staked)), valid(staked));
        let bad = with(chain.block(next), |block| block.header.gas_used += 1);
        invalid(running.send(&bad), Some(staked));
        assert_eq!(running.send(chain.block(next)), valid(next));
        let updated = running.fcu(1, ForkchoiceState::same_hash(next), None).unwrap();
        assert_eq!(updated.payload_status, valid(next));
        // A proof-of-work block is no payload.
        let status = running.send(chain.block(mined));
        assert!(matches!(status.status, PayloadStatusEnum::Invalid { .. }), "{status:?}");
    }
}

#[test]
fn head_goes_back_to_an_ancestor_unless_that_lies_below_the_final_block() {
    for persistence_threshold in [0, 100] {
        let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 6);
        let mut node = TestNode::new(&chain.spec, NodeSetup::MPT);
        node.config = EngineConfig { persistence_threshold, ..EngineConfig::default() };
        let running = node.start();
        running.follow(&blocks);
        if persistence_threshold == 0 {
            running.flush();
        }
        let back = hash(&blocks[2]);
        let wanted = attributes(&running.live, 10_000);
        let named = ForkchoiceState {
            head_block_hash: back,
            safe_block_hash: hash(&blocks[1]),
            finalized_block_hash: hash(&blocks[1]),
        };
        let updated = running.fcu(3, named, Some(wanted.clone())).unwrap();
        assert_eq!(updated.payload_status, valid(back));
        assert_eq!(running.head(), back);
        let id = updated.payload_id.expect("a payload on the ancestor");
        let built = running.runtime.block_on(running.api.get_payload_v3(id)).unwrap();
        let built = built.execution_payload.payload_inner.payload_inner;
        assert_eq!((built.block_number, built.parent_hash), (4, back));
        let view = running.live.view().unwrap();
        assert_eq!(view.canonical_hash(4).unwrap(), None);
        drop(view);
        // The blocks above it are still known, and may become canonical again.
        running.lead(hash(&blocks[5]));
        assert_eq!(running.head(), hash(&blocks[5]));
        for past in [hash(&blocks[0]), chain.genesis()] {
            let updated = running.fcu(3, only_head(past), Some(wanted.clone())).unwrap();
            assert_eq!((updated.payload_status, updated.payload_id), (valid(past), None));
            assert_eq!(running.head(), hash(&blocks[5]));
        }
        // The new head of a chain that was set back is durable too.
        running.lead(back);
        running.stop();
        assert_eq!(node.open().tip().unwrap().hash, back);
    }
}

#[test]
fn safe_and_final_block_are_known_after_a_restart() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 6);
    let node = TestNode::new(&chain.spec, NodeSetup::MPT);
    let running = node.start();
    running.follow(&blocks);
    let named = ForkchoiceState {
        head_block_hash: hash(&blocks[5]),
        safe_block_hash: hash(&blocks[3]),
        finalized_block_hash: hash(&blocks[2]),
    };
    running.flush();
    // Only safe and finalized change, so no commit of blocks stores them.
    running.fcu(3, named, None).unwrap();
    running.stop();
    let running = node.start();
    let view = running.live.view().unwrap();
    let names = [view.safe(), view.finalized()].map(|block| block.unwrap().hash);
    assert_eq!(names, [hash(&blocks[3]), hash(&blocks[2])]);
    drop(view);
    // The safe block leaves the chain.
    running.lead(hash(&blocks[2]));
    let view = running.live.view().unwrap();
    assert_eq!(view.safe(), None);
    assert_eq!(view.finalized().unwrap().number, 3);
    drop(view);
    running.stop();
    let running = node.start();
    let view = running.live.view().unwrap();
    assert_eq!((view.safe(), view.finalized().unwrap().number), (None, 3));
}

#[test]
fn invalid_blocks_are_kept_for_a_look_at_them() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 3);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    running.follow(&blocks[..1]);
    let kept = || -> Vec<_> {
        running.engine.handle().bad_blocks().iter().map(|block| block.hash()).collect()
    };
    assert!(kept().is_empty());
    // One that needs the state, one that does not.
    let executed = with(&blocks[1], |block| block.header.gas_used += 1);
    let alone = with(&blocks[1], |block| block.header.gas_used = block.header.gas_limit + 1);
    for bad in [&executed, &alone] {
        for _ in 0..2 {
            running.send(bad);
        }
    }
    assert_eq!(kept(), [hash(&alone), hash(&executed)]);
    for n in 0..10 {
        running.send(&with(&blocks[1], |block| block.header.gas_used += 2 + n));
    }
    assert_eq!(kept().len(), 10);
    assert!(!kept().contains(&hash(&alone)));
}

#[test]
fn head_must_be_named_and_safe_and_final_blocks_lie_below_it() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 5, 12, 1);
    let side = chain.branch(main[1], 2, 12, 2);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    running.follow(&chain.path(genesis, main[4]));
    for block in chain.path(main[1], side[1]) {
        assert_eq!(running.send(&block), valid(hash(&block)));
    }
    assert_eq!(code(running.fcu(3, ForkchoiceState::default(), None)), -38002);
    let named = |head, safe, finalized| ForkchoiceState {
        head_block_hash: head,
        safe_block_hash: safe,
        finalized_block_hash: finalized,
    };
    for (safe, finalized) in [
        (side[0], B256::ZERO),
        (B256::ZERO, side[0]),
        (B256::repeat_byte(9), B256::ZERO),
        (B256::ZERO, B256::repeat_byte(9)),
    ] {
        assert_eq!(code(running.fcu(3, named(main[4], safe, finalized), None)), -38002);
    }
    // Above the new head, and on the chain that it leaves.
    assert_eq!(code(running.fcu(3, named(side[1], main[2], B256::ZERO), None)), -38002);
    assert_eq!(running.head(), main[4], "an error changes nothing");
    let view = running.live.view().unwrap();
    assert_eq!((view.safe(), view.finalized()), (None, None));

    let updated = running.fcu(3, named(side[1], side[0], main[0]), None).unwrap();
    assert_eq!(updated.payload_status, valid(side[1]));
    let view = running.live.view().unwrap();
    let named_blocks = [view.safe(), view.finalized()].map(|block| block.unwrap().hash);
    assert_eq!(named_blocks, [side[0], main[0]]);
    // Zero hashes leave them as they are.
    running.fcu(3, only_head(side[1]), None).unwrap();
    assert!(running.live.view().unwrap().finalized().is_some());
}

#[test]
fn wrong_attributes_are_told_and_the_head_stands() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 8);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    for block in &blocks {
        running.send(block);
    }
    let good = attributes(&running.live, 10_000);
    let with = |change: fn(&mut alloy_rpc_types_engine::PayloadAttributes)| {
        let mut wrong = good.clone();
        change(&mut wrong);
        wrong
    };
    let cases = [
        (3, with(|wrong| wrong.parent_beacon_block_root = None), -38003),
        (3, with(|wrong| wrong.withdrawals = None), -38003),
        (3, with(|wrong| wrong.timestamp = 12), -38003),
        (2, good.clone(), -38003),
        (1, good.clone(), -38003),
        // The form matches the version, the time does not.
        (2, with(|wrong| wrong.parent_beacon_block_root = None), -38005),
        (4, with(|wrong| wrong.slot_number = Some(1)), -38005),
        (4, good.clone(), -38003),
    ];
    for ((version, attributes, expected), block) in cases.into_iter().zip(&blocks) {
        let head = hash(block);
        let got = code(running.fcu(version, only_head(head), Some(attributes.clone())));
        assert_eq!(got, expected, "V{version} {attributes:?}");
        assert_eq!(running.head(), head, "the update of the head must not be rolled back");
    }
    // While the head is unknown, attributes are not checked.
    let unknown = only_head(B256::repeat_byte(7));
    let wrong = with(|wrong| wrong.withdrawals = None);
    let updated = running.fcu(3, unknown, Some(wrong)).unwrap();
    assert_eq!((updated.payload_status, updated.payload_id), (syncing(), None));
}

#[test]
fn each_version_is_for_its_forks() {
    let root = B256::ZERO;
    let call = |running: &RunningNode, version: u8, block: &Block| {
        let (payload, _) = ExecutionPayload::from_block_unchecked(hash(block), block);
        let ExecutionPayload::V3(payload) = payload else { panic!("a payload of Cancun") };
        let api = &running.api;
        running.runtime.block_on(async {
            match version {
                1 => api.new_payload_v1(payload.payload_inner.payload_inner).await,
                2 => {
                    let execution_payload = payload.payload_inner.payload_inner;
                    let withdrawals = Some(payload.payload_inner.withdrawals);
                    api.new_payload_v2(ExecutionPayloadInputV2 { execution_payload, withdrawals })
                        .await
                }
                3 => api.new_payload_v3(payload, vec![], root).await,
                _ => api.new_payload_v4(payload, vec![], root, vec![]).await,
            }
        })
    };
    let (chain, cancun) = line(NodeSetup::MPT, TestRules::Cancun, 1);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    for version in [1, 2, 4] {
        assert_eq!(code(call(&running, version, &cancun[0])), -38005);
    }
    let (chain, prague) = line(NodeSetup::MPT, TestRules::Prague, 1);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    for version in [1, 2, 3] {
        assert_eq!(code(call(&running, version, &prague[0])), -38005);
    }
    // Withdrawals before Shanghai.
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Merge(0));
    let genesis = chain.genesis();
    let paris = chain.extend(genesis, BlockPlan::new([]));
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let (payload, _) = ExecutionPayload::from_block_unchecked(paris, chain.block(paris));
    let execution_payload = payload.into_v1();
    let mut input = ExecutionPayloadInputV2 { execution_payload, withdrawals: Some(vec![]) };
    let send = |input| running.runtime.block_on(running.api.new_payload_v2(input));
    assert_eq!(code(send(input.clone())), -32602);
    input.withdrawals = None;
    assert_eq!(send(input).unwrap(), valid(paris));
}

#[test]
fn unknown_payloads_and_too_many_bodies_are_refused() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 5);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    running.follow(&blocks);
    let (api, runtime) = (&running.api, &running.runtime);
    let unknown = PayloadId::new([3; 8]);
    assert_eq!(code(runtime.block_on(api.get_payload_v3(unknown))), -38001);

    assert_eq!(code(runtime.block_on(api.bodies_by_range(0, 3))), -32602);
    assert_eq!(code(runtime.block_on(api.bodies_by_range(3, 0))), -32602);
    assert_eq!(code(runtime.block_on(api.bodies_by_range(1, 1025))), -38004);
    assert_eq!(code(runtime.block_on(api.bodies_by_hash(vec![B256::ZERO; 1025]))), -38004);
    assert_eq!(code(api.blobs_v1(&[B256::ZERO; 129])), -38004);

    // There is no body after the head's.
    let bodies = runtime.block_on(api.bodies_by_range(4, 1024)).unwrap();
    let counts: Vec<_> =
        bodies.iter().map(|body| body.as_ref().unwrap().transactions.len()).collect();
    let expected: Vec<_> = blocks[3..].iter().map(|block| block.body.transactions.len()).collect();
    assert_eq!(counts, expected);
    assert_eq!(runtime.block_on(api.bodies_by_range(6, 1)).unwrap(), []);
    assert_eq!(runtime.block_on(api.bodies_by_range(u64::MAX, 1024)).unwrap(), []);
    let hashes = vec![hash(&blocks[4]), B256::repeat_byte(1), hash(&blocks[0])];
    let bodies = runtime.block_on(api.bodies_by_hash(hashes)).unwrap();
    assert!(bodies[0].is_some() && bodies[1].is_none() && bodies[2].is_some());
    assert_eq!(bodies[0].as_ref().unwrap().withdrawals.as_deref(), Some(&[][..]));
}

#[test]
fn reorg_below_what_is_kept_is_refused_and_changes_nothing() {
    let mut chain = NodeSetup::MPT.test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let main = chain.branch(genesis, 24, 12, 1);
    let side = chain.branch(main[0], 26, 12, 2);
    for setup in sample::of(NodeSetup::on_headers(), 3) {
        let mut node = TestNode::new(&chain.spec, setup);
        node.retention = 8;
        node.config = EngineConfig { persistence_threshold: 0, ..EngineConfig::default() };
        let running = node.start();
        running.follow(&chain.path(genesis, main[2]));
        for block in chain.path(main[0], side[25]) {
            assert_eq!(running.send(&block), valid(hash(&block)));
        }
        for block in chain.path(main[2], main[23]) {
            running.follow(std::slice::from_ref(&block));
        }
        running.flush();
        // Only the upper part of the branch is in memory.
        let got = code(running.fcu(3, only_head(side[25]), None));
        assert_eq!((got, running.head()), (-38006, main[23]), "{setup:?}");
        // A new block that deep cannot become part of the chain any more.
        let status = running.send(chain.block(side[0]));
        assert_eq!(status.status, PayloadStatusEnum::Accepted, "{setup:?}");
        running.follow(&[{
            let next = chain.extend(main[23], BlockPlan::new([]));
            chain.block(next).clone()
        }]);
    }
}

/// A view still gives states after its blocks have become durable and have left the retention
/// depth, if the backend keeps history.
#[test]
fn a_view_outlives_its_blocks_in_memory() {
    for setup in sample::of(NodeSetup::on_headers(), 3) {
        let (chain, blocks) = line(setup, TestRules::Cancun, 30);
        let mut node = TestNode::new(&chain.spec, setup);
        node.retention = 2;
        node.config =
            EngineConfig { persistence_threshold: 5, memory_blocks: 5, ..EngineConfig::default() };
        let running = node.start();
        running.follow(&blocks[..4]);
        let view = running.live.view().unwrap();
        running.follow(&blocks[4..]);
        running.flush();
        let key = StateKey::Account(GENESIS_CONTRACT);
        let has_history = setup.backend().extensions().history.is_some();
        for block in &blocks[..4] {
            let hash = hash(block);
            let (state, proven) = (view.state(&hash), view.state_at(&hash, StateNeed::Proofs));
            let listed = view.state_at(&hash, StateNeed::Entries);
            if !has_history {
                assert!(state.is_err());
                // The error names the kept states, not an unknown block.
                for kept in [proven.map(drop), listed.map(drop)] {
                    let error = kept.unwrap_err();
                    assert!(
                        matches!(error, PipelineError::State(StateError::BeyondRetention { .. })),
                        "{setup:?}: {error}"
                    );
                }
                continue;
            }
            let contract = StateReader::account(&state.unwrap(), &GENESIS_CONTRACT).unwrap();
            assert_eq!(contract, chain.account(hash, GENESIS_CONTRACT), "{setup:?}");
            let (proven, entries) = (proven.unwrap(), listed.unwrap().entries(None, 5).unwrap());
            assert_eq!(entries.len(), 5, "{setup:?}");
            let proof = proven.prove(&[key]).unwrap();
            let shown = proof.as_of.unwrap_or(proof.block.number);
            assert_eq!(shown, block.header.number, "{setup:?}");
            if setup == NodeSetup::ARCHIVE {
                // As eth_getProof and debug_executionWitness do.
                let nodes = proven.account_nodes(&GENESIS_CONTRACT, &[]).unwrap();
                assert_eq!(keccak256(&nodes.account[0]), block.header.state_root);
                proven.merge_nodes(&[key]).unwrap();
            }
        }
    }
}

/// State rows of a datadir that is not open.
fn state_rows(node: &TestNode, table: RowTable) -> Vec<(Bytes, Bytes)> {
    node.open().flush().unwrap();
    let db = DatabaseEnv::open(node.dir.path(), &OpenOptions::default()).unwrap();
    let snapshot = db.state_store().snapshot().unwrap();
    snapshot
        .scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX)
        .unwrap()
        .into_iter()
        .collect()
}

/// Writes rows, or removes them.
fn put_state_rows(node: &TestNode, table: RowTable, rows: &[(Bytes, Bytes)], are_there: bool) {
    let db = DatabaseEnv::open(node.dir.path(), &OpenOptions::default()).unwrap();
    let store = db.state_store();
    let mut txn = store.begin_write().unwrap();
    for (key, row) in rows {
        match are_there {
            true => txn.put(table, key, row).unwrap(),
            false => drop(txn.delete(table, key).unwrap()),
        }
    }
    txn.commit().unwrap();
}

/// A failed background job of a store only stops the block that needs it. The message says what to
/// do, and the same block is valid once the cause is removed.
#[test]
fn a_node_whose_background_work_fails_goes_on_answering() {
    let snapshot = RowTable::new(0x60, "LmptSnapshot");
    let (chain, blocks) = line(NodeSetup::LMPT, TestRules::Prague, 16);
    let node = TestNode::new(&chain.spec, NodeSetup::LMPT);
    let running = node.start();
    // Block 6 begins with a merge, which block 11 waits for.
    running.follow(&blocks[..8]);
    running.stop();
    let rows = state_rows(&node, snapshot);
    assert!(!rows.is_empty());
    put_state_rows(&node, snapshot, &rows, false);

    let running = node.start();
    running.follow(&blocks[8..10]);
    assert_eq!(running.engine.handle().last_error(), None);
    for _ in 0..2 {
        let error = running.try_to_send(&blocks[10]).unwrap_err().to_string();
        for said in ["block 11", "lmpt merge", "no row for the branch", "can still be read"] {
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(running.engine.is_running() && running.engine.handle().last_error().is_some());
        let view = running.live.view().unwrap();
        assert_eq!(view.head().hash(), hash(&blocks[9]));
        let state = view.state(&hash(&blocks[9])).unwrap();
        let contract = StateReader::account(&state, &GENESIS_CONTRACT).unwrap();
        assert_eq!(contract, chain.account(hash(&blocks[9]), GENESIS_CONTRACT));
    }
    running.stop();

    put_state_rows(&node, snapshot, &rows, true);
    let running = node.start();
    running.follow(&blocks[10..]);
    assert_eq!(running.engine.handle().last_error(), None);
}
