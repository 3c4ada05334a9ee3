//! Amsterdam through the Engine API: payloads with block access lists (EIP-7928), slots (EIP-7843)
//! and requests of builders (EIP-8282).

use crate::common::{
    NodeSetup, RunningNode, TestNode, attributes, code, hash, invalid, only_head, syncing, valid,
};
use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_eip7928::{AccountChanges, BlockAccessIndex, NonceChange, SlotChanges};
use alloy_eips::eip8282::{BUILDER_EXIT_CONTRACT_ADDRESS, BUILDER_EXIT_REQUEST_TYPE};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_rpc_types_engine::{ExecutionPayloadV4, PayloadAttributes, PayloadStatus};
use retrie_chainspec::primitives::Block;
use retrie_engine::pool::{PooledTransaction, TransactionOrigin};
use retrie_execution::BlockAccessList;
use retrie_pipeline::testkit::{
    BlockPlan, CHAIN_ID, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet, WALLETS,
};
use retrie_state_testkit::sample;

/// Three blocks with stores and transfers, each with its access list.
fn chain(setup: NodeSetup) -> (TestChain, Vec<(Block, BlockAccessList)>) {
    let mut chain = setup.test_chain(TestRules::Amsterdam);
    let mut at = chain.genesis();
    let blocks = (1..=3)
        .map(|round| {
            // All senders write to the same slot, and each pays the next sender.
            let calls = (0..WALLETS).flat_map(|from| {
                let to = TestWallet::new((from + 1) % WALLETS).address;
                let value = 10 * round + u64::from(from);
                [
                    TestCall::store(from, GENESIS_CONTRACT, 1, value),
                    TestCall::transfer(from, to, value),
                ]
            });
            at = chain.extend(at, BlockPlan::new(calls.collect::<Vec<_>>()));
            (chain.block(at).clone(), chain.access_list(at).unwrap().clone())
        })
        .collect();
    (chain, blocks)
}

/// A node that executes in parallel, and one that does not.
fn both(chain: &TestChain, setup: NodeSetup) -> [RunningNode; 2] {
    [true, false].map(|parallel_execution| {
        let mut node = TestNode::new(&chain.spec, setup);
        node.config.parallel_execution = parallel_execution;
        node.start()
    })
}

/// The payload of a block with this list, under this hash.
fn payload(hash: B256, block: &Block, list: &BlockAccessList) -> ExecutionPayloadV4 {
    let list = alloy_rlp::encode(list).into();
    ExecutionPayloadV4::from_block_unchecked_with_bal(hash, block, list)
}

/// `engine_newPayloadV5` without requests.
fn send(running: &RunningNode, payload: ExecutionPayloadV4, block: &Block) -> PayloadStatus {
    let root = block.header.parent_beacon_block_root.unwrap();
    running.send_payload(payload.into(), vec![], root, Some(vec![])).unwrap()
}

fn lead(running: &RunningNode, hash: B256) {
    let updated = running.fcu(4, only_head(hash), None).unwrap();
    assert_eq!(updated.payload_status, valid(hash));
    assert_eq!(running.head(), hash);
}

type BalMutation = fn(&mut BlockAccessList);

/// Lists that no execution can produce.
const MALFORMED: [(&str, BalMutation); 6] = [
    ("another order", |list| list.swap(0, 1)),
    ("an account twice", |list| list.insert(0, list[0].clone())),
    ("a slot that is read and written", |list| {
        let written = list.iter_mut().find(|account| !account.storage_changes.is_empty()).unwrap();
        written.storage_reads = vec![written.storage_changes[0].slot];
    }),
    ("a slot that is written without a value", |list| {
        let changes = &mut list.last_mut().unwrap().storage_changes;
        changes.push(SlotChanges::new(U256::MAX, Vec::new()));
    }),
    ("changes in another order", |list| {
        let changes = list.iter_mut().map(|account| &mut account.balance_changes);
        changes.max_by_key(|changes| changes.len()).unwrap().reverse();
    }),
    ("a change after the block", |list| {
        let index = BlockAccessIndex::new(u64::from(WALLETS) * 2 + 2);
        let change = NonceChange::new(index, 1000);
        list.last_mut().unwrap().nonce_changes.push(change);
    }),
];

/// Lists that another execution could have given.
const UNTRUE: [(&str, BalMutation); 9] = [
    ("nothing", |list| list.clear()),
    ("one account less", |list| drop(list.pop())),
    ("one account more", |list| list.push(AccountChanges::new(Address::repeat_byte(0xff)))),
    ("a read more", |list| list[0].storage_reads.push(U256::MAX)),
    ("another balance", |list| {
        let mut changed = list.iter_mut().flat_map(|account| &mut account.balance_changes);
        changed.next().unwrap().post_balance += U256::from(1);
    }),
    ("another balance at last", |list| {
        let changes = list.iter_mut().map(|account| &mut account.balance_changes);
        let changes = changes.max_by_key(|changes| changes.len()).unwrap();
        changes.last_mut().unwrap().post_balance -= U256::from(1);
    }),
    ("another nonce", |list| {
        let mut changed = list.iter_mut().flat_map(|account| &mut account.nonce_changes);
        changed.next().unwrap().new_nonce += 1;
    }),
    ("another value of a slot", |list| {
        let slots = list.iter_mut().flat_map(|account| &mut account.storage_changes);
        let slot = slots.max_by_key(|slot| slot.changes.len()).unwrap();
        slot.changes.last_mut().unwrap().new_value += U256::from(1);
    }),
    ("a write less", |list| {
        let slots = list.iter_mut().flat_map(|account| &mut account.storage_changes);
        slots.max_by_key(|slot| slot.changes.len()).unwrap().changes.remove(3);
    }),
];

/// With the header's roots, with native roots, and with a backend that does not compute the
/// header's roots, where only the list commits to the writes of a block.
#[test]
fn payloads_are_valid_with_their_own_access_list_alone() {
    for setup in [NodeSetup::MPT, NodeSetup::LVMT_NATIVE, NodeSetup::RAW, NodeSetup::LVMT] {
        let (chain, blocks) = chain(setup);
        let nodes = both(&chain, setup);
        for (block, list) in &blocks {
            let hash = block.header.hash_slow();
            let before = nodes[0].head();
            let wrong = MALFORMED.iter().map(|one| (one, "malformed"));
            let wrong = wrong.chain(UNTRUE.iter().map(|one| (one, "block access list hash is")));
            for ((what, spoil), reason) in wrong {
                let mut other = list.clone();
                spoil(&mut other);
                assert_ne!(other, *list, "{what}");
                // The block that commits to the list.
                let mut bad = block.clone();
                bad.header.block_access_list_hash = Some(keccak256(alloy_rlp::encode(&other)));
                let bad_hash = bad.header.hash_slow();
                let [parallel, serial] = nodes.each_ref().map(|node| {
                    // The block hash does not match.
                    let status = send(node, payload(hash, block, &other), block);
                    assert!(status.is_invalid(), "{what}: {status:?}");
                    invalid(send(node, payload(bad_hash, &bad, &other), &bad), Some(before))
                });
                assert_eq!(parallel, serial);
                assert!(serial.contains(reason), "{setup:?}, {what}: {serial}");
            }
            for node in &nodes {
                // Bytes that are no list, in a block that commits to them.
                let mut garbage = payload(hash, block, list);
                garbage.block_access_list = Bytes::from_static(&[0xc1]);
                assert!(send(node, garbage.clone(), block).is_invalid());
                let mut bad = block.clone();
                bad.header.block_access_list_hash = Some(keccak256(&garbage.block_access_list));
                garbage.payload_inner.payload_inner.payload_inner.block_hash =
                    bad.header.hash_slow();
                let reason = invalid(send(node, garbage, &bad), Some(before));
                assert!(reason.contains("malformed"), "{reason}");
                assert_eq!(node.head(), before);

                assert_eq!(send(node, payload(hash, block, list), block), valid(hash));
                lead(node, hash);
            }
        }
        let [parallel, serial] = nodes.each_ref().map(|node| node.metrics.transactions_ahead.get());
        assert!(parallel >= 3 * 2 * u64::from(WALLETS), "{parallel}");
        assert_eq!(serial, 0);
    }
}

#[test]
fn every_store_takes_help_from_lists() {
    for setup in sample::of(NodeSetup::all(), 3) {
        let (chain, blocks) = chain(setup);
        let [node, _] = both(&chain, setup);
        for (block, list) in &blocks {
            let hash = block.header.hash_slow();
            assert_eq!(send(&node, payload(hash, block, list), block), valid(hash), "{setup:?}");
            lead(&node, hash);
        }
        assert_eq!(node.metrics.transactions_ahead.get(), node.metrics.transactions.get());
    }
}

#[test]
fn a_block_that_waits_for_its_parent_keeps_its_list() {
    let (chain, blocks) = chain(NodeSetup::MPT);
    let all = blocks.len() as u64 * 2 * u64::from(WALLETS);
    for (node, expected) in both(&chain, NodeSetup::MPT).iter().zip([all, 0]) {
        let hash = |at: usize| blocks[at].0.header.hash_slow();
        let give = |at: usize| {
            let (block, list) = &blocks[at];
            send(node, payload(hash(at), block, list), block)
        };
        assert_eq!(give(2), syncing());
        assert_eq!(give(1), syncing());
        assert_eq!(give(0), valid(hash(0)));
        lead(node, hash(2));
        assert_eq!(node.metrics.transactions.get(), all);
        assert_eq!(node.metrics.transactions_ahead.get(), expected);
    }
}

/// For peers and for the consensus client, whether the block is in memory or on disk.
#[test]
fn lists_of_blocks_are_kept() {
    let (chain, blocks) = chain(NodeSetup::MPT);
    let check = |running: &RunningNode, count: usize| {
        let view = running.live.view().unwrap();
        for (at, (block, list)) in blocks.iter().enumerate() {
            let expected = (at < count).then(|| Bytes::from(alloy_rlp::encode(list)));
            assert_eq!(view.access_list(&hash(block)).unwrap(), expected, "block {}", at + 1);
        }
        // No execution has made genesis.
        assert_eq!(view.access_list(&chain.genesis()).unwrap(), None);
        let bodies = running.runtime.block_on(running.api.bodies_by_range_v2(1, 9)).unwrap();
        let hashes = blocks.iter().map(|(block, _)| hash(block)).collect();
        let by_hash = running.runtime.block_on(running.api.bodies_by_hash_v2(hashes)).unwrap();
        assert_eq!(bodies, by_hash[..count]);
        for (body, (block, list)) in bodies.iter().zip(&blocks) {
            let body = body.as_ref().unwrap();
            assert_eq!(body.transactions.len(), block.body.transactions.len());
            assert_eq!(body.block_access_list, Some(alloy_rlp::encode(list).into()));
        }
    };
    for threshold in [64, 0] {
        let mut node = TestNode::new(&chain.spec, NodeSetup::MPT);
        node.config.persistence_threshold = threshold;
        let running = node.start();
        for (at, (block, list)) in blocks.iter().enumerate() {
            let hash = hash(block);
            assert_eq!(send(&running, payload(hash, block, list), block), valid(hash));
            lead(&running, hash);
            check(&running, at + 1);
        }
        running.flush();
        check(&running, blocks.len());
        running.stop();
        check(&node.start(), blocks.len());
    }
}

#[test]
fn only_the_fifth_version_takes_these_payloads() {
    let (chain, blocks) = chain(NodeSetup::MPT);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let (block, list) = &blocks[0];
    let whole = payload(block.header.hash_slow(), block, list);
    let root = block.header.parent_beacon_block_root.unwrap();
    let inner = whole.payload_inner.clone();
    let fourth = running.send_payload(inner.clone().into(), vec![], root, Some(vec![]));
    assert_eq!(code(fourth), -38005);
    assert_eq!(code(running.send_payload(inner.into(), vec![], root, None)), -38005);
    let osaka = NodeSetup::MPT.test_chain(TestRules::Prague);
    let other = TestNode::new(&osaka.spec, NodeSetup::MPT).start();
    assert_eq!(code(other.send_payload(whole.into(), vec![], root, Some(vec![]))), -38005);
}

#[test]
fn payloads_are_built_with_what_others_need_to_check_them() {
    let chain = NodeSetup::MPT.test_chain(TestRules::Amsterdam);
    let maker = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let judges = [NodeSetup::ARCHIVE, NodeSetup::REFEREED]
        .map(|setup| TestNode::new(&chain.spec, setup).start());
    let mut maintainer = maker.maintainer();
    // A builder requests its exit, with its key and a fee of one wei (EIP-8282).
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        gas_limit: 2_000_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(BUILDER_EXIT_CONTRACT_ADDRESS),
        value: U256::from(1),
        input: [0x77; 48].into(),
        ..Default::default()
    };
    let signature = TestWallet::new(2).sign(tx.signature_hash());
    let exit: PooledTransaction = tx.into_signed(signature).into();
    maker.pool.add(exit, TransactionOrigin::External, &maker.live).unwrap();

    for round in 1..=2 {
        let attributes = attributes(&maker.live, 12 * round);
        let head = only_head(maker.head());
        // The slot is part of the attributes.
        assert_eq!(code(maker.fcu(4, head, Some(attributes.clone()))), -38003);
        let attributes = PayloadAttributes { slot_number: Some(70 + round), ..attributes };
        assert_eq!(code(maker.fcu(3, head, Some(attributes.clone()))), -38005);
        let id = maker.fcu(4, head, Some(attributes.clone())).unwrap().payload_id.unwrap();
        let api = &maker.api;
        assert_eq!(code(maker.runtime.block_on(api.get_payload_v5(id))), -38005);
        let told = maker.runtime.block_on(api.get_payload_v6(id)).unwrap();
        let (payload, requests) = (told.execution_payload, told.execution_requests.take());
        assert_eq!(payload.slot_number, 70 + round);
        let mut expected = vec![];
        if round == 1 {
            let mut request = vec![BUILDER_EXIT_REQUEST_TYPE];
            request.extend(TestWallet::new(2).address);
            request.extend([0x77; 48]);
            expected.push(Bytes::from(request));
        }
        assert_eq!(requests, expected);

        let hash = payload.payload_inner.payload_inner.payload_inner.block_hash;
        let root = attributes.parent_beacon_block_root.unwrap();
        for judge in judges.iter().chain([&maker]) {
            let send = |requests| {
                judge.send_payload(payload.clone().into(), vec![], root, Some(requests)).unwrap()
            };
            if round == 1 {
                assert!(send(vec![]).is_invalid(), "without its request it is another block");
            }
            assert_eq!(send(requests.clone()), valid(hash));
            lead(judge, hash);
        }
        maker.runtime.block_on(maintainer.wait_for(hash));
        assert_eq!(maker.pool.status().pending, 0);
    }
}
