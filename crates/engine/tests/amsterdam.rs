//! Amsterdam through the Engine API: payloads with block access lists (EIP-7928), slots (EIP-7843) and
//! requests of builders (EIP-8282).

mod common;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_eip7928::AccountChanges;
use alloy_eips::eip8282::{BUILDER_EXIT_CONTRACT_ADDRESS, BUILDER_EXIT_REQUEST_TYPE};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_rpc_types_engine::{ExecutionPayloadV4, PayloadAttributes, PayloadStatus};
use common::{Node, Running, Setup, attributes, code, only_head, valid};
use retrie_chainspec::primitives::Block;
use retrie_engine::pool::{Origin, PooledTransaction};
use retrie_execution::BlockAccessList;
use retrie_pipeline::testkit::{CHAIN_ID, Call, GENESIS_CONTRACT, Plan, Rules, TestChain, Wallet};

/// Three blocks with stores and transfers, each with its access list.
fn chain() -> (TestChain, Vec<(Block, BlockAccessList)>) {
    let mut chain = Setup::MPT.test_chain(Rules::Amsterdam);
    let mut at = chain.genesis();
    let blocks = (1..=3)
        .map(|round| {
            let to = Wallet::new(5).address;
            let calls =
                [Call::store(0, GENESIS_CONTRACT, 1, round), Call::transfer(1, to, 1000 + round)];
            at = chain.extend(at, Plan::new(calls));
            (chain.block(at).clone(), chain.access_list(at).unwrap().clone())
        })
        .collect();
    (chain, blocks)
}

/// The payload of a block with this list, under this hash.
fn payload(hash: B256, block: &Block, list: &BlockAccessList) -> ExecutionPayloadV4 {
    let list = alloy_rlp::encode(list).into();
    ExecutionPayloadV4::from_block_unchecked_with_bal(hash, block, list)
}

/// `engine_newPayloadV5` without requests.
fn send(running: &Running, payload: ExecutionPayloadV4, block: &Block) -> PayloadStatus {
    let root = block.header.parent_beacon_block_root.unwrap();
    running.send_payload(payload.into(), vec![], root, Some(vec![])).unwrap()
}

fn lead(running: &Running, hash: B256) {
    let updated = running.fcu(4, only_head(hash), None).unwrap();
    assert_eq!(updated.payload_status, valid(hash));
    assert_eq!(running.head(), hash);
}

#[test]
fn payloads_are_valid_with_their_own_access_list_alone() {
    type Spoil = fn(&mut BlockAccessList);
    let wrong: [(&str, Spoil); 7] = [
        ("nothing", |list| list.clear()),
        ("one account less", |list| drop(list.pop())),
        ("one account more", |list| list.push(AccountChanges::new(Address::repeat_byte(0xff)))),
        ("another order", |list| list.swap(0, 1)),
        ("an account twice", |list| list.insert(0, list[0].clone())),
        ("a read more", |list| list[0].storage_reads.push(U256::from(77))),
        ("another balance", |list| {
            let mut changed = list.iter_mut().flat_map(|account| &mut account.balance_changes);
            changed.next().unwrap().post_balance += U256::from(1);
        }),
    ];
    for setup in [Setup::MPT, Setup::LVMT_NATIVE] {
        let (chain, blocks) = if setup == Setup::MPT {
            chain()
        } else {
            let mut chain = setup.test_chain(Rules::Amsterdam);
            let genesis = chain.genesis();
            let hash = chain.extend(genesis, Plan::new([Call::store(0, GENESIS_CONTRACT, 1, 7)]));
            let one = (chain.block(hash).clone(), chain.access_list(hash).unwrap().clone());
            (chain, vec![one])
        };
        let running = Node::new(&chain.spec, setup).start();
        for (block, list) in &blocks {
            let hash = block.header.hash_slow();
            let before = running.head();
            for (what, spoil) in wrong {
                let mut other = list.clone();
                spoil(&mut other);
                // Another block than its hash says.
                let status = send(&running, payload(hash, block, &other), block);
                assert!(status.is_invalid(), "{what}: {status:?}");
                // The block that commits to it.
                let mut bad = block.clone();
                bad.header.block_access_list_hash = Some(keccak256(alloy_rlp::encode(&other)));
                let bad_hash = bad.header.hash_slow();
                let status = send(&running, payload(bad_hash, &bad, &other), &bad);
                assert!(status.is_invalid(), "{what}: {status:?}");
                assert_eq!(status.latest_valid_hash, Some(before), "{what}");
            }
            // Bytes that are no list at all.
            let mut garbage = payload(hash, block, list);
            garbage.block_access_list = Bytes::from_static(&[0xc1]);
            assert!(send(&running, garbage, block).is_invalid());
            assert_eq!(running.head(), before);

            assert_eq!(send(&running, payload(hash, block, list), block), valid(hash));
            lead(&running, hash);
        }
    }
}

#[test]
fn only_the_fifth_version_takes_these_payloads() {
    let (chain, blocks) = chain();
    let running = Node::new(&chain.spec, Setup::MPT).start();
    let (block, list) = &blocks[0];
    let whole = payload(block.header.hash_slow(), block, list);
    let root = block.header.parent_beacon_block_root.unwrap();
    let inner = whole.payload_inner.clone();
    let fourth = running.send_payload(inner.clone().into(), vec![], root, Some(vec![]));
    assert_eq!(code(fourth), -38005);
    assert_eq!(code(running.send_payload(inner.into(), vec![], root, None)), -38005);
    let osaka = Setup::MPT.test_chain(Rules::Prague);
    let other = Node::new(&osaka.spec, Setup::MPT).start();
    assert_eq!(code(other.send_payload(whole.into(), vec![], root, Some(vec![]))), -38005);
}

#[test]
fn payloads_are_built_with_what_others_need_to_check_them() {
    let chain = Setup::MPT.test_chain(Rules::Amsterdam);
    let maker = Node::new(&chain.spec, Setup::MPT).start();
    let judges =
        [Setup::ARCHIVE, Setup::REFEREED].map(|setup| Node::new(&chain.spec, setup).start());
    let mut maintainer = maker.maintainer();
    // A builder asks for its exit, with its key and a fee of a wei (EIP-8282).
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
    let signature = Wallet::new(2).sign(tx.signature_hash());
    let exit: PooledTransaction = tx.into_signed(signature).into();
    maker.pool.add(exit, Origin::External, &maker.live).unwrap();

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
            request.extend(Wallet::new(2).address);
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
