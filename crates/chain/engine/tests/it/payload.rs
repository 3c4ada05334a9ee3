//! Payloads: their content, their version, and that other nodes find them valid.

use crate::common;
use retrie_state_testkit::sample;

use alloy_consensus::{
    SignableTransaction, Transaction as _, TxEip1559, TxEip4844, TxEip4844WithSidecar,
};
use alloy_eips::{
    eip2718::Decodable2718,
    eip4844::{Blob, BlobCellsAndProofsV1, BlobTransactionSidecar, env_settings::EnvKzgSettings},
    eip4895::Withdrawal,
    eip7002,
    eip7594::BlobTransactionSidecarEip7594,
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_rpc_types_engine::{ExecutionPayload, ForkchoiceState, PayloadAttributes, PayloadId};
use common::{NodeSetup, RunningNode, TestNode, attributes, code, only_head, syncing, valid};
use retrie_chainspec::{ChainSpec, primitives::Transaction};
use retrie_engine::{
    DevChain, PoolMaintainer, SealingMode,
    pool::{BlobSidecar, CellMask, PooledTransaction, TransactionOrigin},
};
use retrie_pipeline::testkit::{CHAIN_ID, TestRules, TestWallet};
use retrie_state::StateReader;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

const GWEI: u128 = 1_000_000_000;

/// The rules of Prague or Cancun with forks added or taken away.
fn spec(
    rules: TestRules,
    change: impl FnOnce(&mut serde_json::Map<String, Value>),
) -> Arc<ChainSpec> {
    let mut genesis: Value = serde_json::from_str(&rules.genesis_json()).unwrap();
    change(genesis["config"].as_object_mut().unwrap());
    Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap())
}

fn fork(name: &str) -> Arc<ChainSpec> {
    match name {
        "paris" => spec(TestRules::Merge(0), |_| ()),
        "shanghai" => spec(TestRules::Cancun, |config| drop(config.remove("cancunTime"))),
        "cancun" => spec(TestRules::Cancun, |_| ()),
        "prague" => spec(TestRules::Prague, |_| ()),
        "osaka" => {
            spec(TestRules::Prague, |config| drop(config.insert("osakaTime".into(), 0.into())))
        }
        other => panic!("no fork {other}"),
    }
}

/// A call that pays `tip` per gas.
fn call(
    from: u8,
    nonce: u64,
    tip: u128,
    to: Address,
    value: u64,
    input: Bytes,
) -> PooledTransaction {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: if input.is_empty() { 21_000 } else { 300_000 },
        max_fee_per_gas: 100 * GWEI,
        max_priority_fee_per_gas: tip,
        to: TxKind::Call(to),
        value: U256::from(value),
        input,
        ..Default::default()
    };
    let signature = TestWallet::new(from).sign(tx.signature_hash());
    tx.into_signed(signature).into()
}

fn transfer(from: u8, nonce: u64, tip: u128) -> PooledTransaction {
    call(from, nonce, tip, Address::repeat_byte(0xee), 1, Bytes::new())
}

fn with_blob(from: u8, sidecar: BlobSidecar) -> PooledTransaction {
    let tx = TxEip4844 {
        chain_id: CHAIN_ID,
        gas_limit: 21_000,
        max_fee_per_gas: 100 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to: Address::repeat_byte(0xee),
        max_fee_per_blob_gas: GWEI,
        blob_versioned_hashes: sidecar.versioned_hashes().collect(),
        ..Default::default()
    };
    let signature = TestWallet::new(from).sign(tx.signature_hash());
    TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar).into_signed(signature).into()
}

fn blob() -> Vec<Blob> {
    vec![Blob::right_padding_from(&[0, 42])]
}

fn pool_add(running: &RunningNode, transactions: impl IntoIterator<Item = PooledTransaction>) {
    for transaction in transactions {
        running.pool.add(transaction, TransactionOrigin::External, &running.live).unwrap();
    }
}

/// A payload in the form of its fork, with the values around it.
struct FetchedPayload {
    payload: ExecutionPayload,
    value: U256,
    hashes: Vec<B256>,
    requests: Option<Vec<Bytes>>,
}

impl FetchedPayload {
    fn transactions(&self) -> Vec<Transaction> {
        let decode = |bytes: &Bytes| Transaction::decode_2718_exact(bytes).unwrap();
        self.payload.transactions().iter().map(decode).collect()
    }
}

/// `engine_getPayload` in the version of the fork.
fn get(running: &RunningNode, fork: &str, id: PayloadId) -> FetchedPayload {
    let api = &running.api;
    running.runtime.block_on(async {
        match fork {
            "paris" => FetchedPayload {
                payload: api.get_payload_v1(id).await.unwrap().into(),
                value: api.get_payload_v2(id).await.unwrap().block_value,
                hashes: vec![],
                requests: None,
            },
            "shanghai" => {
                let told = api.get_payload_v2(id).await.unwrap();
                FetchedPayload {
                    payload: told.execution_payload.into_payload(),
                    value: told.block_value,
                    hashes: vec![],
                    requests: None,
                }
            }
            "cancun" => {
                let told = api.get_payload_v3(id).await.unwrap();
                FetchedPayload {
                    payload: told.execution_payload.into(),
                    value: told.block_value,
                    hashes: told.blobs_bundle.versioned_hashes(),
                    requests: None,
                }
            }
            "prague" => {
                let told = api.get_payload_v4(id).await.unwrap();
                FetchedPayload {
                    payload: told.envelope_inner.execution_payload.into(),
                    value: told.envelope_inner.block_value,
                    hashes: told.envelope_inner.blobs_bundle.versioned_hashes(),
                    requests: Some(told.execution_requests.take()),
                }
            }
            _ => {
                let told = api.get_payload_v5(id).await.unwrap();
                FetchedPayload {
                    payload: told.execution_payload.into(),
                    value: told.block_value,
                    hashes: told.blobs_bundle.versioned_hashes(),
                    requests: Some(told.execution_requests.take()),
                }
            }
        }
    })
}

/// The version of `engine_forkchoiceUpdated` that takes attributes in this fork.
fn version(fork: &str) -> u8 {
    match fork {
        "paris" => 1,
        "shanghai" => 2,
        _ => 3,
    }
}

fn start(running: &RunningNode, fork: &str, attributes: PayloadAttributes) -> PayloadId {
    let head = only_head(running.head());
    let updated = running.fcu(version(fork), head, Some(attributes)).unwrap();
    assert_eq!(updated.payload_status, valid(running.head()));
    updated.payload_id.expect("a payload has been started")
}

/// Sends a payload to a node, which must find it valid and make it the head.
fn accept(running: &RunningNode, told: &FetchedPayload, root: Option<B256>) {
    let hash = told.payload.block_hash();
    let root = root.unwrap_or_default();
    let payload = told.payload.clone();
    let status = running.send_payload(payload, told.hashes.clone(), root, told.requests.clone());
    assert_eq!(status.unwrap(), valid(hash));
    running.lead(hash);
    assert_eq!(running.head(), hash);
}

#[test]
fn payloads_of_every_fork_are_built_by_tip_and_accepted_by_others() {
    for fork_name in ["paris", "shanghai", "cancun", "prague", "osaka"] {
        let spec = fork(fork_name);
        let maker = TestNode::new(&spec, NodeSetup::MPT).start();
        let judge = TestNode::new(&spec, NodeSetup::ARCHIVE).start();
        let mut maintainer = maker.maintainer();
        let mut nonce = 0;
        for round in 1..=3 {
            let tips = [3, 9, 1, 7].map(|tip| tip * GWEI);
            pool_add(&maker, tips.iter().zip(0..).map(|(tip, from)| transfer(from, nonce, *tip)));
            // A second transaction of the first sender, which cannot overtake the first.
            pool_add(&maker, [transfer(0, nonce + 1, 20 * GWEI)]);
            let mut attributes = attributes(&maker.live, 12 * round);
            let paid = Address::repeat_byte(0xaa);
            if let Some(withdrawals) = &mut attributes.withdrawals {
                withdrawals.push(Withdrawal { address: paid, amount: 5, ..Default::default() });
            }
            let id = start(&maker, fork_name, attributes.clone());
            let told = get(&maker, fork_name, id);
            let got: Vec<_> = told
                .transactions()
                .iter()
                .map(|tx| tx.max_priority_fee_per_gas().unwrap())
                .collect();
            assert_eq!(got, [9, 7, 3, 20, 1].map(|tip| tip * GWEI), "{fork_name}");
            assert_eq!(told.value, U256::from(21_000 * 40 * GWEI));
            assert_eq!(told.payload.timestamp(), 12 * round);
            assert_eq!(told.payload.fee_recipient(), attributes.suggested_fee_recipient);
            assert_eq!(told.payload.prev_randao(), attributes.prev_randao);
            let root = attributes.parent_beacon_block_root;
            accept(&judge, &told, root);
            accept(&maker, &told, root);
            maker.runtime.block_on(maintainer.wait_for(maker.head()));
            assert_eq!(maker.pool.status().pending, 0);
            let state = judge.live.view().unwrap().state(&judge.head()).unwrap();
            let balance =
                StateReader::account(&state, &paid).unwrap().map(|account| account.balance);
            let withdrawn = attributes.withdrawals.map(|_| U256::from(round * 5 * GWEI as u64));
            assert_eq!(balance, withdrawn, "{fork_name}");
            // Sender 0 sent two; other senders must not leave a gap.
            if round < 3 {
                pool_add(&maker, (1..4).map(|from| transfer(from, nonce + 1, GWEI)));
                nonce += 2;
                let next = common::attributes(&maker.live, 12 * round + 1);
                let root = next.parent_beacon_block_root;
                let id = start(&maker, fork_name, next);
                let told = get(&maker, fork_name, id);
                assert_eq!(told.transactions().len(), 3);
                accept(&judge, &told, root);
                accept(&maker, &told, root);
                maker.runtime.block_on(maintainer.wait_for(maker.head()));
            }
        }
    }
}

#[test]
fn payload_is_fetched_by_the_version_of_its_fork_alone() {
    let running = TestNode::new(&fork("prague"), NodeSetup::MPT).start();
    let attributes = attributes(&running.live, 12);
    let id = start(&running, "prague", attributes.clone());
    assert_eq!(start(&running, "prague", attributes.clone()), id, "the same is the same");
    let other = PayloadAttributes { prev_randao: B256::ZERO, ..attributes.clone() };
    assert_ne!(start(&running, "prague", other), id);
    let (api, runtime) = (&running.api, &running.runtime);
    assert_eq!(code(runtime.block_on(api.get_payload_v1(id))), -38005);
    assert_eq!(code(runtime.block_on(api.get_payload_v2(id))), -38005);
    assert_eq!(code(runtime.block_on(api.get_payload_v3(id))), -38005);
    assert_eq!(code(runtime.block_on(api.get_payload_v5(id))), -38005);
    let first = get(&running, "prague", id);
    accept(&running, &first, attributes.parent_beacon_block_root);
    // Once it is durable it can still be fetched, and built upon.
    running.flush();
    let again = get(&running, "prague", id);
    assert_eq!(again.payload, first.payload);
    let next = common::attributes(&running.live, 24);
    let root = next.parent_beacon_block_root;
    let id = start(&running, "prague", next);
    accept(&running, &get(&running, "prague", id), root);
    running.flush();
    assert_eq!(running.live.head().number, 2);
}

#[test]
fn blobs_come_with_the_payload_that_holds_their_transaction() {
    // One proof a blob up to Prague.
    let settings = EnvKzgSettings::Default;
    let sidecar = BlobTransactionSidecar::try_from_blobs_with_settings(blob(), settings.get());
    let sidecar = sidecar.unwrap();
    for fork_name in ["cancun", "prague"] {
        let maker = TestNode::new(&fork(fork_name), NodeSetup::MPT).start();
        let judge = TestNode::new(&fork(fork_name), NodeSetup::MPT).start();
        let _maintainer = maker.maintainer();
        pool_add(&maker, [with_blob(1, sidecar.clone().into()), transfer(0, 0, GWEI)]);
        let attributes = attributes(&maker.live, 12);
        let id = start(&maker, fork_name, attributes.clone());
        let told = get(&maker, fork_name, id);
        let hashes: Vec<_> = sidecar.versioned_hashes().collect();
        assert_eq!((told.transactions().len(), &told.hashes), (2, &hashes));
        let bundle = maker.runtime.block_on(async {
            match fork_name {
                "cancun" => maker.api.get_payload_v3(id).await.unwrap(),
                _ => maker.api.get_payload_v4(id).await.unwrap().envelope_inner,
            }
        });
        let bundle = bundle.blobs_bundle;
        assert_eq!(bundle.blobs, sidecar.blobs);
        assert_eq!(bundle.commitments, sidecar.commitments);
        assert_eq!(bundle.proofs, sidecar.proofs);
        let blobs = maker.api.blobs_v1(&[hashes[0], B256::ZERO]).unwrap();
        assert_eq!(blobs[0].as_ref().unwrap().proof, sidecar.proofs[0]);
        assert!(blobs[1].is_none());
        assert_eq!(maker.api.blobs_v3(&hashes).unwrap(), None);
        let cells = maker.api.blobs_v4(hashes, CellMask::from([0xff_u8; 16]));
        assert_eq!(maker.runtime.block_on(cells).unwrap(), None);
        accept(&judge, &told, attributes.parent_beacon_block_root);
    }
    // 128 proofs of cells from Osaka on.
    let sidecar =
        BlobTransactionSidecarEip7594::try_from_blobs_with_settings(blob(), settings.get());
    let sidecar = sidecar.unwrap();
    let maker = TestNode::new(&fork("osaka"), NodeSetup::MPT).start();
    let judge = TestNode::new(&fork("osaka"), NodeSetup::MPT).start();
    let _maintainer = maker.maintainer();
    pool_add(&maker, [with_blob(1, sidecar.clone().into())]);
    let attributes = attributes(&maker.live, 12);
    let id = start(&maker, "osaka", attributes.clone());
    let told = get(&maker, "osaka", id);
    let bundle = maker.runtime.block_on(maker.api.get_payload_v5(id)).unwrap().blobs_bundle;
    assert_eq!((bundle.blobs.len(), bundle.proofs.len()), (1, 128));
    assert_eq!(bundle.proofs, sidecar.cell_proofs);
    let hashes: Vec<_> = sidecar.versioned_hashes().collect();
    assert_eq!(maker.api.blobs_v2(&hashes).unwrap().unwrap()[0].proofs.len(), 128);
    assert!(maker.api.blobs_v2(&[hashes[0], B256::ZERO]).unwrap().is_none());
    // Cells 1 and 127, in the order of the request; a blob may be named twice.
    let mut mask = [0_u8; 16];
    (mask[0], mask[15]) = (0b10, 0b1000_0000);
    let cells_of =
        |hashes: &[B256]| maker.runtime.block_on(maker.api.blobs_v4(hashes.to_vec(), mask.into()));
    let cells = sidecar.compute_cells().unwrap();
    let expected = BlobCellsAndProofsV1 {
        blob_cells: vec![Some(cells[1]), Some(cells[127])],
        proofs: vec![Some(sidecar.cell_proofs[1]), Some(sidecar.cell_proofs[127])],
    };
    let given = cells_of(&[B256::ZERO, hashes[0], hashes[0]]).unwrap().unwrap();
    assert_eq!(given, [None, Some(expected.clone()), Some(expected)]);
    assert_eq!(cells_of(&[]).unwrap(), Some(vec![]));
    assert_eq!(cells_of(&[hashes[0]; 128]).unwrap().unwrap().len(), 128);
    assert_eq!(cells_of(&[hashes[0]; 129]).unwrap_err().code(), -38004);
    // Its answer has room for one proof per blob: it was null for every blob.
    assert_eq!(maker.api.blobs_v1(&hashes).unwrap_err().code(), -38005);
    accept(&judge, &told, attributes.parent_beacon_block_root);
    // A node that is behind has no blobs to offer: null, and not a list of nulls.
    let unknown = only_head(B256::repeat_byte(9));
    assert_eq!(maker.fcu(3, unknown, None).unwrap().payload_status, syncing());
    assert_eq!(cells_of(&hashes).unwrap(), None);
}

#[test]
fn withdrawal_requests_go_to_the_consensus_layer() {
    let maker = TestNode::new(&fork("prague"), NodeSetup::MPT).start();
    let judge = TestNode::new(&fork("prague"), NodeSetup::REFEREED).start();
    let _maintainer = maker.maintainer();
    // Public key and amount, paid for with at least a wei (EIP-7002).
    let input: Bytes = [0x77; 56].into();
    let target = eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS;
    pool_add(&maker, [call(2, 0, GWEI, target, 1, input)]);
    let attributes = attributes(&maker.live, 12);
    let id = start(&maker, "prague", attributes.clone());
    let told = get(&maker, "prague", id);
    let mut expected = vec![1];
    expected.extend(TestWallet::new(2).address);
    expected.extend([0x77; 56]);
    assert_eq!(told.requests.as_deref(), Some(&[Bytes::from(expected)][..]));
    let empty = FetchedPayload {
        requests: Some(vec![]),
        payload: told.payload.clone(),
        ..get(&maker, "prague", id)
    };
    let root = attributes.parent_beacon_block_root;
    let status = judge.send_payload(empty.payload, vec![], root.unwrap(), empty.requests).unwrap();
    common::invalid(status, None);
    accept(&judge, &told, root);
}

#[test]
fn node_without_the_state_roots_of_its_chain_builds_nothing() {
    let checked = NodeSetup::checked();
    for setup in NodeSetup::on_headers().into_iter().filter(|setup| !checked.contains(setup)) {
        let running = TestNode::new(&fork("cancun"), setup).start();
        let attributes = attributes(&running.live, 12);
        let head = ForkchoiceState::same_hash(running.head());
        let error = running.fcu(3, head, Some(attributes)).unwrap_err();
        assert_eq!(error.code(), -38003);
        assert!(error.to_string().contains("no referee beside it"), "{error}");
    }
}

#[test]
fn referee_and_native_roots_make_payloads_of_every_backend() {
    let on_headers = NodeSetup::checked().into_iter().map(|maker| (maker, NodeSetup::MPT));
    let native = NodeSetup::native().into_iter().map(|setup| (setup, setup));
    for (maker, judge) in on_headers.chain(native) {
        let spec = fork("prague");
        let maker = TestNode::new(&spec, maker).start();
        let judge = TestNode::new(&spec, judge).start();
        let mut maintainer = maker.maintainer();
        for nonce in 0..4 {
            pool_add(&maker, (0..3).map(|from| transfer(from, nonce, GWEI)));
            let attributes = attributes(&maker.live, 12 + nonce);
            let root = attributes.parent_beacon_block_root;
            let id = start(&maker, "prague", attributes);
            let told = get(&maker, "prague", id);
            assert_eq!(told.transactions().len(), 3);
            accept(&judge, &told, root);
            accept(&maker, &told, root);
            maker.runtime.block_on(maintainer.wait_for(maker.head()));
        }
    }
}

fn miner(running: &RunningNode, maintainer: &PoolMaintainer, sealing: SealingMode) -> DevChain {
    DevChain::new(
        running.engine.handle().clone(),
        running.payloads.clone(),
        running.pool.clone(),
        maintainer.clone(),
        sealing,
        Address::repeat_byte(0xd),
    )
}

#[test]
fn dev_chain_seals_each_transaction_at_once() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let node = TestNode::new(&fork("prague"), setup);
        let running = node.start();
        let maintainer = running.maintainer();
        let mut waiter = maintainer.clone();
        let mut heads = running.live.subscribe();
        // One transaction is in the pool before the miner starts.
        pool_add(&running, [transfer(0, 0, GWEI)]);
        let miner = running.runtime.spawn(miner(&running, &maintainer, SealingMode::Instant).run());
        for nonce in 0..4 {
            if nonce > 0 {
                pool_add(&running, [transfer(0, nonce, GWEI)]);
            }
            let change = running.runtime.block_on(heads.recv()).unwrap();
            assert_eq!(change.committed.len(), 1);
            let block = &change.committed[0].block;
            assert_eq!(
                (block.number, block.body().transactions.len()),
                (nonce + 1, 1),
                "{setup:?}"
            );
            running.runtime.block_on(waiter.wait_for(block.hash()));
        }
        miner.abort();
        let head = running.head();
        running.stop();
        assert_eq!(node.open().tip().unwrap().hash, head);
    }
}

#[test]
fn dev_chain_seals_at_an_interval_with_or_without_transactions() {
    let node = TestNode::new(&fork("prague"), NodeSetup::LVMT_NATIVE);
    let running = node.start();
    let maintainer = running.maintainer();
    let mut heads = running.live.subscribe();
    let sealing = SealingMode::Interval(Duration::from_millis(20));
    let miner = running.runtime.spawn(miner(&running, &maintainer, sealing).run());
    for number in 1..=3 {
        let change = running.runtime.block_on(heads.recv()).unwrap();
        assert_eq!(change.committed[0].block.number, number);
    }
    pool_add(&running, [transfer(0, 0, GWEI)]);
    let mut sealed = 0;
    while sealed == 0 {
        let change = running.runtime.block_on(heads.recv()).unwrap();
        sealed = change.committed[0].block.body().transactions.len();
    }
    miner.abort();
    let times = |number| {
        let view = running.live.view().unwrap();
        view.header_by_number(number).unwrap().unwrap().timestamp
    };
    assert!((2..=4).all(|number| times(number) > times(number - 1)));
}
