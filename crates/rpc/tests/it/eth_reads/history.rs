//! Old states from backends that keep them themselves, and provenance.

use crate::common::{NodeFixture, cole, mpt_archive, test_chain};
use alloy_primitives::{Address, B256, U64};
use retrie_engine::StateNeed;
use retrie_light_client::{ProvenanceResponse, StateProofResponse, VersionValue};
use retrie_pipeline::testkit::{GENESIS_CONTRACT, TestChain, TestRules, TestWallet, write_blocks};
use retrie_state::{Account, StateReader, ValueVersion};
use retrie_state_store::StoreOptions;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The durable tip, and the head.
const TIP: usize = 25;
const HEAD: usize = 30;
/// Blocks that can be reverted.
const RETENTION: usize = 16;

/// A node on `cole` without flat history, on a chain of 30 blocks of which five are in memory; all
/// hashes.
async fn node(chain: &mut TestChain) -> (NodeFixture, Vec<B256>) {
    let genesis = chain.genesis();
    let blocks = [vec![genesis], chain.branch(genesis, HEAD as u64, 12, 1)].concat();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("blocks.rlp");
    write_blocks(&file, &chain.path(genesis, blocks[TIP]));
    let options = StoreOptions { retention: RETENTION as u64, ..StoreOptions::default() };
    let mut node = NodeFixture::with_store(&chain.spec, cole(), Some(&file), options);
    node.add(&chain.path(blocks[TIP], blocks[HEAD])).await;
    node.set_head(blocks[HEAD], B256::ZERO, B256::ZERO).await;
    assert!(node.live().chain().tip().unwrap().number >= TIP as u64);
    let files = node.live().chain().state().stats().unwrap().file_bytes;
    assert!(files > 0, "most blocks lie in runs");
    (node, blocks)
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

#[tokio::test]
async fn states_of_all_blocks_come_from_the_backend() {
    let mut chain = test_chain(TestRules::Cancun);
    let (node, blocks) = node(&mut chain).await;
    let wallet = TestWallet::new(0).address;
    for (number, block) in blocks.iter().enumerate() {
        let account = chain.account(*block, wallet).unwrap();
        for at in [json!(U64::from(number)), json!(block)] {
            let got = node.call("eth_getBalance", json!([wallet, at])).await;
            assert_eq!(got, json!(account.balance), "block {number}");
        }
    }
    // A method that needs flat history says so.
    let (_, words) = node.fail("debug_getModifiedAccountsByNumber", json!(["0x5", "0x7"])).await;
    let says = words.contains("backend cole") && words.contains("--prune.state-history.distance");
    assert!(says, "{words}");
    let kept = node.call("eth_capabilities", json!([])).await;
    assert_eq!(kept["state"]["oldestBlock"], "0x0", "{kept}");
    assert_eq!(kept["stateproofs"]["oldestBlock"], "0x0", "{kept}");
}

/// Reads accounts, code and slots of every block, and compares with an archive of tries.
#[tokio::test]
async fn calls_at_every_block_see_what_the_archive_sees() {
    let mut chain = test_chain(TestRules::Cancun);
    let (node, blocks) = node(&mut chain).await;
    let archive =
        NodeFixture::with_store(&chain.spec, mpt_archive(), None, StoreOptions::default());
    archive.add(&chain.path(blocks[0], blocks[HEAD])).await;
    let mut archive = archive;
    archive.set_head(blocks[HEAD], B256::ZERO, B256::ZERO).await;
    let mut answers = BTreeSet::new();
    for (number, block) in blocks.iter().enumerate() {
        let deployed = chain.next_contract(blocks[0], 2);
        for address in [GENESIS_CONTRACT, deployed] {
            // Returns the sum of slots 1 to 3 and of the balance of wallet 0.
            let code = format!(
                "0x73{}316001540160025401600354015f5260205ff3",
                alloy_primitives::hex::encode(TestWallet::new(0).address)
            );
            let with_code = json!({ address.to_string(): { "code": code } });
            let call = json!({ "to": address, "gas": "0x186a0" });
            for (method, params) in [
                ("eth_call", json!([call, block, with_code])),
                ("eth_call", json!([{ "data": code }, U64::from(number)])),
                ("eth_getStorageAt", json!([address, "0x2", block])),
                ("eth_getTransactionCount", json!([address, block])),
                ("eth_getCode", json!([address, block])),
                ("eth_estimateGas", json!([{ "to": address, "data": B256::ZERO }, block])),
            ] {
                let got = node.call(method, params.clone()).await;
                assert_eq!(got, archive.call(method, params).await, "{method} at block {number}");
                answers.insert(got.to_string());
            }
        }
    }
    assert!(answers.len() > 2 * HEAD, "{answers:?}");
}

#[tokio::test]
async fn states_beyond_retention_are_proven_by_the_durable_tip() {
    let mut chain = test_chain(TestRules::Cancun);
    let (node, blocks) = node(&mut chain).await;
    let verifier = cole();
    let provenance = verifier.extensions().provenance.unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let params = json!([GENESIS_CONTRACT, ["0x1", "0x2", "0x9"], block]);
        let answer: StateProofResponse = parse(&node.call("state_getProof", params).await);
        // The engine may have committed more blocks meanwhile.
        let proving = answer.block.to::<usize>();
        assert!(
            proving >= number && (number >= TIP - RETENTION || proving >= TIP),
            "block {number}"
        );
        let as_of = (proving != number).then(|| U64::from(number));
        assert_eq!(answer.as_of, as_of, "block {number}");
        assert!(number < TIP || as_of.is_none(), "block {number}");
        assert_eq!(answer.block_hash, blocks[proving]);
        let root = node.call("state_getRoot", json!([blocks[proving]])).await;
        assert_eq!(root["root"], json!(answer.root));
        let (proof, at) = (answer.to_proof(), number as u64);
        proof.check_kind(verifier.identity()).unwrap();
        let at = if as_of.is_some() { at..=at } else { u64::MAX..=u64::MAX };
        let shown = provenance.verify_versions(
            answer.root,
            &retrie_state::KeyForm::Plain.keys(&answer.keys()),
            at,
            &proof.bytes,
        );
        let shown = shown.unwrap();
        let account = shown[0].first().and_then(|of| Account::decode(of.value.as_ref()?));
        assert_eq!(account, chain.account(*block, GENESIS_CONTRACT), "block {number}");
        assert_eq!(answer.account.map(Account::from), account);
    }
}

#[tokio::test]
async fn versions_of_an_account_are_those_of_the_chain() {
    let mut chain = test_chain(TestRules::Cancun);
    let (node, blocks) = node(&mut chain).await;
    let verifier = cole();
    let state = node.call("state_backend", json!([])).await;
    assert_eq!(state["provenance"], json!(true));
    let ask = |address: Address, slot: Value, from: usize, to: Value| {
        let params = json!([address, slot, U64::from(from), to]);
        node.call("state_getProvenance", params)
    };
    let wallet = TestWallet::new(0).address;
    let mut seen = BTreeSet::new();
    for (from, to) in [(0, HEAD), (3, 3), (7, 20), (TIP, HEAD), (HEAD, HEAD), (0, 0)] {
        let answer = ask(wallet, Value::Null, from, json!(U64::from(to))).await;
        assert_eq!(answer["slot"], Value::Null);
        let answer: ProvenanceResponse = parse(&answer);
        assert_eq!((answer.block, answer.block_hash), (U64::from(HEAD), blocks[HEAD]));
        assert_eq!(answer.blocks(), from as u64..=to as u64);
        let account = |number: usize| chain.account(blocks[number], wallet);
        let mut expected = Vec::new();
        for number in 0..=to {
            if number == 0 || account(number) != account(number - 1) {
                if number <= from {
                    expected.clear();
                }
                expected
                    .push((number as u64, VersionValue::Account(account(number).map(Into::into))));
            }
        }
        expected.reverse();
        let shown: Vec<_> = answer.versions.iter().map(|of| (of.block.to(), of.value)).collect();
        assert_eq!(shown, expected, "{from} to {to}");
        seen.extend(shown.into_iter().map(|(block, _)| block));
        let provenance = verifier.extensions().provenance.unwrap();
        let (keys, range) = ([answer.key()], answer.blocks());
        let proven = provenance
            .verify_versions(
                answer.root,
                &retrie_state::KeyForm::Plain.keys(&keys),
                range,
                &answer.proof,
            )
            .unwrap();
        let decode = |ValueVersion { block, value }: &ValueVersion| {
            let account = value.as_ref().map(|value| Account::decode(value).unwrap());
            (*block, VersionValue::Account(account.map(Into::into)))
        };
        assert!(proven[0].iter().map(decode).eq(expected));
    }
    assert!(seen.len() > 5, "{seen:?}");
    let slot = ask(GENESIS_CONTRACT, json!("0x1"), 0, json!("latest")).await;
    assert_eq!((&slot["slot"], &slot["to"]), (&json!(B256::with_last_byte(1)), &json!("0x1e")));
    let nobody = ask(Address::repeat_byte(7), Value::Null, 0, json!("latest")).await;
    assert_eq!(nobody["versions"], json!([]));

    let fail = async |from: &str, to: &str| {
        node.fail("state_getProvenance", json!([wallet, null, from, to])).await
    };
    assert_eq!(fail("0x5", "0x4").await.0, -32602);
    assert_eq!(fail("0x0", "0x1f").await, (-32000, "header not found".into()));
}

/// A stale view must not show blocks of the new chain in place of reverted durable blocks.
#[tokio::test]
async fn a_replaced_block_is_not_read_from_the_chain_that_took_its_place() {
    let mut chain = test_chain(TestRules::Cancun);
    let (mut node, blocks) = node(&mut chain).await;
    let side = chain.branch(blocks[20], 15, 12, 7);
    let stale = node.live().view().unwrap();
    let wallet = TestWallet::new(0).address;
    node.add(&chain.path(blocks[20], *side.last().unwrap())).await;
    node.set_head(*side.last().unwrap(), B256::ZERO, B256::ZERO).await;
    let tip = node.live().chain().tip().unwrap();
    assert!(tip.number <= 20 || !blocks.contains(&tip.hash), "durable blocks were reverted: {tip}");
    let mut read = 0;
    for view in [&stale, &node.live().view().unwrap()] {
        for block in blocks.iter().chain(&side) {
            // A missing state is an error; a read that succeeds must be right.
            if let Ok(state) = view.state(block) {
                assert_eq!(state.account(&wallet).unwrap(), chain.account(*block, wallet));
                read += 1;
            }
            if let Ok(proof) =
                view.state_at(block, StateNeed::Proofs).and_then(|state| Ok(state.prove(&[])?))
            {
                // The proof is under the root of the current tip, which a stale view does not know.
                let now = node.live().view().unwrap();
                let number = now.block_number(block).unwrap();
                assert_eq!(proof.as_of.or(Some(proof.block.number)), number);
                let proving = now.block_number(&proof.block.hash).unwrap();
                assert_eq!(proving, Some(proof.block.number));
                assert!(proof.as_of.is_none() || now.is_canonical(block).unwrap());
            }
        }
    }
    assert!(read >= 21 + 21 + side.len(), "{read}");
    for (number, block) in (21..).zip(&side) {
        let got = node.call("eth_getBalance", json!([wallet, U64::from(number)])).await;
        assert_eq!(got, json!(chain.account(*block, wallet).unwrap().balance), "block {number}");
    }
}
