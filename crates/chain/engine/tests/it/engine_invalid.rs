//! Payloads with one wrong field each.

use crate::common::{NodeSetup, TestNode, code, hash, invalid, line, only_head, valid, with};
use alloy_eips::{eip4895::Withdrawal, eip7685::Requests};
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use alloy_rpc_types_engine::ExecutionPayload;
use retrie_chainspec::primitives::Block;
use retrie_pipeline::testkit::TestRules;
use retrie_state_testkit::sample;

#[test]
fn requests_are_sorted_by_type_and_have_data() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Prague, 1);
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let send = |requests: &[&'static [u8]]| {
        let (payload, _) = ExecutionPayload::from_block_unchecked(hash(&blocks[0]), &blocks[0]);
        let root = blocks[0].header.parent_beacon_block_root.unwrap();
        let requests = requests.iter().map(|one| Bytes::from_static(one)).collect();
        running.send_payload(payload, vec![], root, Some(requests))
    };
    for wrong in [&[&[0u8][..]][..], &[&[]], &[&[1, 2], &[0, 2]], &[&[1, 2], &[1, 3]]] {
        assert_eq!(code(send(wrong)), -32602, "{wrong:?}");
    }
    // In order, but not the block's requests: the hash is another one.
    invalid(send(&[&[0, 1], &[1, 1]]).unwrap(), None);
    assert_eq!(send(&[]).unwrap(), valid(hash(&blocks[0])));
}

#[test]
fn requests_are_those_that_execution_gives() {
    for setup in sample::of(NodeSetup::on_headers(), 3) {
        let (chain, blocks) = line(setup, TestRules::Prague, 2);
        let running = TestNode::new(&chain.spec, setup).start();
        running.follow(&blocks[..1]);
        // The block hash commits to these requests, but execution does not produce them.
        let requests = vec![Bytes::from_static(&[1; 77])];
        let bad = with(&blocks[1], |block| {
            block.header.requests_hash = Some(Requests::new(requests.clone()).requests_hash());
        });
        let (payload, _) = ExecutionPayload::from_block_unchecked(hash(&bad), &bad);
        let root = bad.header.parent_beacon_block_root.unwrap();
        let status = running.send_payload(payload, vec![], root, Some(requests)).unwrap();
        let reason = invalid(status, Some(hash(&blocks[0])));
        assert!(reason.contains("requests"), "{setup:?}: {reason}");
        running.follow(&blocks);
    }
}

#[test]
fn payload_is_the_block_of_its_hash() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 2);
    let block = &blocks[0];
    let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let root = block.header.parent_beacon_block_root.unwrap();
    let payload = || ExecutionPayload::from_block_unchecked(hash(block), block).0;
    let wrong = |change: &dyn Fn(&mut ExecutionPayload)| {
        let mut payload = payload();
        change(&mut payload);
        payload
    };
    let one = B256::with_last_byte(1);
    let withdrawal = Withdrawal { amount: 1, ..Default::default() };
    let changes: &[&dyn Fn(&mut ExecutionPayload)] = &[
        &|payload| payload.set_parent_hash(one),
        &|payload| payload.set_fee_recipient(Address::ZERO),
        &|payload| payload.set_state_root(one),
        &|payload| payload.set_receipts_root(one),
        &|payload| payload.set_logs_bloom(Bloom::repeat_byte(1)),
        &|payload| payload.set_prev_randao(one),
        &|payload| payload.set_block_number(7),
        &|payload| payload.set_gas_limit(30_000_001),
        &|payload| payload.set_gas_used(1),
        &|payload| payload.set_timestamp(13),
        &|payload| payload.set_extra_data(Bytes::from_static(b"x")),
        &|payload| payload.set_extra_data(Bytes::from_static(&[0; 33])),
        &|payload| payload.set_base_fee_per_gas(U256::from(1)),
        &|payload| payload.set_base_fee_per_gas(U256::MAX),
        &|payload| payload.set_block_hash(one),
        &|payload| drop(payload.transactions_mut().pop()),
        &|payload| payload.transactions_mut().reverse(),
        &|payload| payload.transactions_mut().push(Bytes::from_static(&[0xff, 1])),
        &|payload| payload.transactions_mut().push(Bytes::new()),
        &|payload| assert!(payload.set_withdrawals(vec![withdrawal])),
        &|payload| assert!(payload.set_blob_gas_used(131_072)),
        &|payload| assert!(payload.set_excess_blob_gas(1)),
    ];
    for (index, change) in changes.iter().enumerate() {
        let status = running.send_payload(wrong(change), vec![], root, None).unwrap();
        let reason = invalid(status, None);
        assert!(!reason.is_empty(), "change {index}");
    }
    let status = running.send_payload(payload(), vec![], B256::ZERO, None).unwrap();
    invalid(status, None);
    let status = running.send_payload(payload(), vec![one], root, None).unwrap();
    assert!(invalid(status, None).contains("versioned hashes"));
    // The valid blocks are still accepted under their hashes.
    running.follow(&blocks);
}

/// A change of a block.
type BlockChange<'a> = dyn Fn(&mut Block) + 'a;

#[test]
fn each_wrong_field_makes_a_block_invalid() {
    let (chain, blocks) = line(NodeSetup::MPT, TestRules::Cancun, 3);
    let (parent, block) = (hash(&blocks[0]), &blocks[1]);
    let one = B256::with_last_byte(1);
    let reseal = |block: &mut Block| {
        let root = alloy_consensus::proofs::calculate_transaction_root(&block.body.transactions);
        block.header.transactions_root = root;
    };
    // Every node finds these.
    let everywhere: &[&BlockChange<'_>] = &[
        &|block| block.header.receipts_root = one,
        &|block| block.header.logs_bloom = Bloom::repeat_byte(1),
        &|block| block.header.number += 1,
        &|block| block.header.gas_limit += 100_000,
        &|block| block.header.gas_limit = 1,
        &|block| block.header.gas_used -= 1,
        &|block| block.header.timestamp = blocks[0].header.timestamp,
        &|block| block.header.base_fee_per_gas = Some(1),
        &|block| block.header.blob_gas_used = Some(131_072),
        &|block| block.header.excess_blob_gas = Some(131_072),
        &|block| {
            block.body.transactions.pop();
            reseal(block);
        },
        &|block| {
            let again = block.body.transactions[0].clone();
            block.body.transactions.push(again);
            reseal(block);
        },
    ];
    // Only a node that computes the header's state root finds these.
    let by_root: &[&BlockChange<'_>] = &[
        &|block| block.header.state_root = one,
        &|block| block.header.beneficiary = Address::ZERO,
        &|block| block.header.parent_beacon_block_root = Some(one),
        &|block| {
            let withdrawal = Withdrawal { amount: 1, address: Address::ZERO, ..Default::default() };
            let list = vec![withdrawal];
            block.header.withdrawals_root =
                Some(alloy_consensus::proofs::calculate_withdrawals_root(&list));
            block.body.withdrawals = Some(list.into());
        },
    ];
    let checked = NodeSetup::checked();
    for setup in [NodeSetup::on_headers(), NodeSetup::refereed()].concat() {
        let running = TestNode::new(&chain.spec, setup).start();
        running.follow(&blocks[..1]);
        let sees_roots = checked.contains(&setup);
        let changes = everywhere.iter().chain(by_root.iter().filter(|_| sees_roots));
        for (index, change) in changes.enumerate() {
            let bad = with(block, change);
            assert_ne!(hash(&bad), hash(block));
            let status = running.send(&bad);
            assert!(status.is_invalid(), "{setup:?} change {index}: {status:?}");
            assert!(!invalid(status, Some(parent)).is_empty());
            let updated = running.fcu(3, only_head(hash(&bad)), None).unwrap();
            invalid(updated.payload_status, Some(parent));
        }
        assert_eq!(running.head(), parent);
        running.follow(&blocks);
    }
}
