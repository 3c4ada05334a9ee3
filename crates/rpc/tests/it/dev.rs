//! The tools of dev chains, as users of Hardhat and anvil call them.

use crate::common::*;
use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy, crypto::secp256k1::sign_message};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Bytes, TxKind, U256};
use retrie_chainspec::{ChainSpec, DEV_ACCOUNTS, DEV_KEYS};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_light_client::StateProofResponse;
use retrie_pipeline::StatePatch;
use retrie_rpc::server::HttpConfig;
use retrie_state::{Account, decode_slot};
use serde_json::{Value, json};

const SOMEONE: Address = Address::repeat_byte(0x77);
/// Reverts without data.
const REVERTS: &str = "0x5f5ffd";

fn hex(number: u64) -> Value {
    json!(format!("{number:#x}"))
}

fn number(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

async fn height(node: &NodeFixture) -> u64 {
    number(&node.call("eth_blockNumber", json!([])).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn unlocked_accounts_send_and_are_answered_once_it_is_mined() {
    for backend in backends() {
        let node = NodeFixture::dev(backend);
        let accounts = node.call("eth_accounts", json!([])).await;
        assert_eq!(accounts, json!(DEV_ACCOUNTS.map(|one| format!("{one:#x}"))));
        for nonce in 0..20 {
            let request = json!([{"from": DEV_ACCOUNTS[1], "to": SOMEONE, "value": "0x1"}]);
            let hash = node.call("eth_sendTransaction", request).await;
            let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
            assert_eq!(receipt["status"], "0x1");
            let tx = node.call("eth_getTransactionByHash", json!([hash])).await;
            assert_eq!((&tx["nonce"], &tx["type"]), (&hex(nonce), &json!("0x2")));
        }
        let balance = node.call("eth_getBalance", json!([SOMEONE, "latest"])).await;
        assert_eq!(balance, "0x14");
        // Raw transactions are awaited too.
        let tx = TxEip1559 {
            chain_id: ChainSpec::dev().chain_id(),
            gas_limit: 21_000,
            max_fee_per_gas: 100_000_000_000,
            to: TxKind::Call(SOMEONE),
            ..Default::default()
        };
        let signature = sign_message(DEV_KEYS[2], tx.signature_hash()).unwrap();
        let raw = Bytes::from(tx.into_signed(signature).encoded_2718());
        let hash = node.call("eth_sendRawTransaction", json!([raw])).await;
        let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!(receipt["blockNumber"], hex(21));
        // A transaction with a nonce gap is answered at once.
        let request = json!([{"from": DEV_ACCOUNTS[3], "to": SOMEONE, "nonce": "0x9"}]);
        let hash = node.call("eth_sendTransaction", request).await;
        assert!(node.call("eth_getTransactionReceipt", json!([hash])).await.is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_changed_without_a_block_under_both_names() {
    for (tools, backend) in ["hardhat", "anvil"].into_iter().zip([lvmt(), cole()]) {
        let node = NodeFixture::dev(backend);
        let set = |what: &str| format!("{tools}_{what}");
        node.call(&set("setBalance"), json!([SOMEONE, "0xde0b6b3a7640000"])).await;
        node.call(&set("setNonce"), json!([SOMEONE, "0x5"])).await;
        node.call(&set("setCode"), json!([SOMEONE, "0x5f545f5260205ff3"])).await;
        let word = format!("0x{:064x}", 42);
        node.call(&set("setStorageAt"), json!([SOMEONE, "0x0", word])).await;
        for moment in ["before a block", "in a block"] {
            let at = json!([SOMEONE, "latest"]);
            assert_eq!(node.call("eth_getBalance", at.clone()).await, "0xde0b6b3a7640000");
            assert_eq!(node.call("eth_getTransactionCount", at.clone()).await, "0x5", "{moment}");
            assert_eq!(node.call("eth_getCode", at.clone()).await, "0x5f545f5260205ff3");
            let called = node.call("eth_call", json!([{"to": SOMEONE}, "latest"])).await;
            assert_eq!(called, json!(word), "{moment}");
            if moment == "before a block" {
                assert_eq!(height(&node).await, 0);
                node.call(&set("mine"), json!([])).await;
            }
        }
        // The header has the backend's own root, which proves the override.
        let head = node.live().head();
        let proof = node.call("state_getProof", json!([SOMEONE, ["0x0"], "latest"])).await;
        assert_eq!(proof["root"], json!(head.state_root));
        assert_eq!(proof["account"]["balance"], "0xde0b6b3a7640000");
        let (code, message) = node.fail(&set("setNonce"), json!([SOMEONE, "0x4"])).await;
        assert_eq!(code, -32602, "{message}");

        // An impersonated account with code can send.
        let request = json!([{"from": SOMEONE, "to": DEV_ACCOUNTS[0], "value": "0x1"}]);
        assert_eq!(node.fail("eth_sendTransaction", request.clone()).await.0, -32000);
        node.call(&set("impersonateAccount"), json!([SOMEONE])).await;
        let hash = node.call("eth_sendTransaction", request.clone()).await;
        let tx = node.call("eth_getTransactionByHash", json!([hash])).await;
        assert_eq!(tx["from"], json!(format!("{SOMEONE:#x}")));
        node.call(&set("stopImpersonatingAccount"), json!([SOMEONE])).await;
        assert_eq!(node.fail("eth_sendTransaction", request).await.0, -32000);
        let traced = node.call("debug_traceTransaction", json!([hash])).await;
        assert_eq!(traced["failed"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fixtures_are_loaded_by_snapshots() {
    let node = NodeFixture::dev(mpt());
    let send = |value: u64| json!([{"from": DEV_ACCOUNTS[0], "to": SOMEONE, "value": hex(value)}]);
    node.call("eth_sendTransaction", send(1)).await;
    let mut last = None;
    for _ in 0..5 {
        let id = node.call("evm_snapshot", json!([])).await;
        assert!(last.replace(number(&id)).is_none_or(|last| last < number(&id)));
        // The same transaction, with the same hash, each time.
        let hash = node.call("eth_sendTransaction", send(7)).await;
        node.call("eth_sendTransaction", send(8)).await;
        assert_eq!(height(&node).await, 3);
        assert_eq!(node.call("evm_revert", json!([id])).await, json!(true));
        assert_eq!(node.call("evm_revert", json!([id])).await, json!(false));
        assert_eq!(height(&node).await, 1);
        assert!(node.call("eth_getTransactionByHash", json!([hash])).await.is_null());
        let balance = node.call("eth_getBalance", json!([SOMEONE, "latest"])).await;
        assert_eq!(balance, "0x1");
    }
    node.call("hardhat_reset", json!([])).await;
    assert_eq!(height(&node).await, 0);
    let forking = json!([{"forking": {"jsonRpcUrl": "http://127.0.0.1:1"}}]);
    assert_eq!(node.fail("hardhat_reset", forking).await.0, -32000);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_come_when_they_are_asked_for() {
    let node = NodeFixture::dev(mpt());
    node.call("evm_setAutomine", json!([false])).await;
    let send = |from: usize| json!([{"from": DEV_ACCOUNTS[from], "to": SOMEONE, "gas": "0x5208"}]);
    let first = node.call("eth_sendTransaction", send(0)).await;
    let second = node.call("eth_sendTransaction", send(0)).await;
    let third = node.call("eth_sendTransaction", send(1)).await;
    assert_eq!(height(&node).await, 0);
    assert_eq!(node.call("hardhat_dropTransaction", json!([third])).await, json!(true));
    assert_eq!(node.call("evm_mine", json!([])).await, "0x0");
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(block["transactions"], json!([first, second]));
    // Mining several blocks, with an interval, and at a set time.
    let now = number(&block["timestamp"]);
    node.call("hardhat_mine", json!(["0x3", "0x3c"])).await;
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(number(&block["number"]), 4);
    assert!((now + 120..now + 130).contains(&number(&block["timestamp"])));
    node.call("evm_setAutomine", json!([true])).await;
    let eta = now + 100_000;
    node.call("evm_setNextBlockTimestamp", json!([eta])).await;
    // The code reverts before that time: an estimate uses the next block's time.
    let early = format!("0x63{:08x}4210600b57005b5f5ffd", eta);
    node.call("hardhat_setCode", json!([SOMEONE, early])).await;
    let (code, _) = node.fail("eth_call", json!([{"to": SOMEONE}, "latest"])).await;
    assert_eq!(code, 3);
    node.call("eth_estimateGas", json!([{"to": SOMEONE}, "pending"])).await;
    node.call("eth_sendTransaction", json!([{"from": DEV_ACCOUNTS[0], "to": SOMEONE}])).await;
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(block["timestamp"], hex(eta));
    let (code, message) = node.fail("evm_setNextBlockTimestamp", json!([hex(eta)])).await;
    assert_eq!(code, -32602, "{message}");
    assert!(node.call("evm_increaseTime", json!(["0xE10"])).await.is_i64());
    node.call("anvil_mine", json!([])).await;
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert!(number(&block["timestamp"]) >= eta + 3600);
    for (name, value) in [("setNextBlockBaseFeePerGas", 12_345), ("setPrevRandao", 99)] {
        node.call(&format!("hardhat_{name}"), json!([hex(value)])).await;
    }
    node.call("evm_setBlockGasLimit", json!(["0x989680"])).await;
    node.call("hardhat_setCoinbase", json!([SOMEONE])).await;
    node.call("evm_mine", json!([])).await;
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(block["baseFeePerGas"], hex(12_345));
    assert_eq!(block["gasLimit"], "0x989680");
    assert_eq!(block["miner"], json!(format!("{SOMEONE:#x}")));
    assert_eq!(block["mixHash"], json!(format!("0x{:064x}", 99)));
}

/// Cause: the pool used the base fee computed from the head, not the one that the user set, and
/// refused fees below 7 wei; `eth_sendTransaction` refused a price of zero (foundry#5125).
#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_free_where_the_base_fee_is_zero() {
    let node = NodeFixture::dev(mpt());
    let send = |fees: Value| {
        let mut request = json!({"from": DEV_ACCOUNTS[0], "to": SOMEONE});
        request.as_object_mut().unwrap().extend(fees.as_object().unwrap().clone());
        json!([request])
    };
    let set = |fee: u64| node.call("hardhat_setNextBlockBaseFeePerGas", json!([hex(fee)]));
    let price = async |hash: Value| {
        let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
        receipt["effectiveGasPrice"].clone()
    };
    let free = json!({"gasPrice": "0x0"});
    let (code, message) = node.fail("eth_sendTransaction", send(free.clone())).await;
    assert!(code == -32000 && message.starts_with("transaction underpriced"), "{message}");

    set(0).await;
    let tx = TxLegacy {
        chain_id: Some(ChainSpec::dev().chain_id()),
        gas_limit: 21_000,
        to: TxKind::Call(SOMEONE),
        ..Default::default()
    };
    let signature = sign_message(DEV_KEYS[2], tx.signature_hash()).unwrap();
    let raw = Bytes::from(tx.into_signed(signature).encoded_2718());
    let hash = node.call("eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(price(hash).await, "0x0", "in a block at once");
    // A base fee of zero stays zero in the next block.
    let also_free = json!({"maxFeePerGas": "0x0", "maxPriorityFeePerGas": "0x0"});
    for fees in [free.clone(), also_free] {
        let hash = node.call("eth_sendTransaction", send(fees)).await;
        assert_eq!(price(hash).await, "0x0");
    }

    // The set base fee holds until the next block, across account changes and snapshots.
    set(1000).await;
    let hash =
        node.call("eth_sendTransaction", send(json!({"gasPrice": "0x64", "gas": "0x5208"}))).await;
    assert!(price(hash.clone()).await.is_null(), "it waits for a lower fee");
    let id = node.call("evm_snapshot", json!([])).await;
    set(0).await;
    let mined = async {
        while price(hash.clone()).await.is_null() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), mined).await.expect("it is mined");
    node.call("evm_revert", json!([id])).await;
    node.call("hardhat_setBalance", json!([SOMEONE, "0x1"])).await;
    assert!(price(hash).await.is_null());
    let status = node.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({ "pending": "0x0", "queued": "0x1" }), "as before the snapshot");
    node.call("anvil_dropAllTransactions", json!([])).await;
    // A transaction without a fee gets one that is high enough.
    set(10_000_000_000_000).await;
    let hash = node.call("eth_sendTransaction", send(json!({}))).await;
    assert!(number(&price(hash).await) >= 10_000_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_are_sent_at_once_get_nonces_of_their_own() {
    let node = NodeFixture::dev(mpt());
    node.call("evm_setAutomine", json!([false])).await;
    let request = json!([{"from": DEV_ACCOUNTS[0], "to": SOMEONE, "gas": "0x5208"}]);
    let sent = (0..20).map(|_| node.call("eth_sendTransaction", request.clone()));
    let hashes = futures::future::join_all(sent).await;
    let pending = json!(["pending"]);
    let count = node.call("eth_getBlockTransactionCountByNumber", pending.clone()).await;
    assert_eq!(count, "0x14");
    node.call("evm_mine", json!([])).await;
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(block["transactions"].as_array().unwrap().len(), hashes.len());
    assert_eq!(node.call("eth_getBlockTransactionCountByNumber", pending).await, "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_fails_is_mined_and_an_error() {
    let node = NodeFixture::dev(mpt());
    node.call("hardhat_setCode", json!([SOMEONE, REVERTS])).await;
    let request = json!([{"from": DEV_ACCOUNTS[0], "to": SOMEONE, "gas": "0x186a0"}]);
    let answer = node.ask("eth_sendTransaction", request).await;
    assert_eq!(answer["error"]["code"], 3, "{answer}");
    assert_eq!(answer["error"]["data"], "0x");
    let block = node.call("eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(block["transactions"].as_array().unwrap().len(), 1);
    // Tools detect a revert by its data, which is empty if the execution halted.
    node.call("hardhat_setCode", json!([SOMEONE, "0xfe"])).await;
    for method in ["eth_call", "eth_estimateGas"] {
        let answer = node.ask(method, json!([{"to": SOMEONE}])).await;
        assert_eq!(answer["error"]["data"], "0x", "{method}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_typed_data_are_signed_by_unlocked_accounts_alone() {
    let node = NodeFixture::dev(raw());
    let signed = node.call("personal_sign", json!(["0x1234", DEV_ACCOUNTS[0]])).await;
    assert_eq!(signed, node.call("eth_sign", json!([DEV_ACCOUNTS[0], "0x1234"])).await);
    let bytes: Bytes = serde_json::from_value(signed).unwrap();
    let signature = alloy_primitives::Signature::try_from(&bytes[..]).unwrap();
    let signer = signature.recover_address_from_msg([0x12, 0x34]).unwrap();
    assert_eq!(signer, DEV_ACCOUNTS[0]);
    let (code, message) = node.fail("personal_sign", json!(["0x1234", SOMEONE])).await;
    assert_eq!((code, message.contains("unknown account")), (-32000, true));
    let request = json!([{"from": DEV_ACCOUNTS[1], "to": SOMEONE, "value": "0x1"}]);
    let signed = node.call("eth_signTransaction", request).await;
    let hash = node.call("eth_sendRawTransaction", json!([signed["raw"]])).await;
    assert_eq!(hash, signed["tx"]["hash"]);
    let blobs = json!([{
        "from": DEV_ACCOUNTS[1], "to": SOMEONE, "maxFeePerBlobGas": "0x1",
        "blobVersionedHashes": [format!("0x01{}", "00".repeat(31))],
    }]);
    assert_eq!(node.fail("eth_sendTransaction", blobs).await.0, -32000);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_get_neither_tools_nor_accounts() {
    let node = NodeFixture::dev(raw());
    let mut config = node.config();
    config.ws = None;
    let ask = async |addr: std::net::SocketAddr, method: &str| {
        let body = request(method, json!([])).to_string();
        let own = std::net::SocketAddr::from(([127, 0, 0, 1], addr.port()));
        post(own, &body).await.json()
    };
    let servers = node.serve(&config).await;
    let addr = servers.http_addr().unwrap();
    assert_eq!(ask(addr, "evm_snapshot").await["result"], "0x0");
    assert_eq!(ask(addr, "web3_clientVersion").await["result"], "HardhatNetwork/test");
    servers.stop().await;
    config.http = config.http.map(|http| HttpConfig { addr: "0.0.0.0:0".parse().unwrap(), ..http });
    let servers = node.serve(&config).await;
    let addr = servers.http_addr().unwrap();
    assert_eq!(ask(addr, "evm_snapshot").await["error"]["code"], -32601);
    assert_eq!(ask(addr, "eth_accounts").await["result"], json!([]));
    servers.stop().await;
    // Other chains do not have them either.
    let other = NodeFixture::new(&ChainSpec::dev(), mpt());
    assert_eq!(other.fail("evm_snapshot", json!([])).await.0, -32601);
    assert_eq!(other.call("eth_accounts", json!([])).await, json!([]));
    let request = json!([{"from": DEV_ACCOUNTS[0], "to": SOMEONE}]);
    assert_eq!(other.fail("eth_sendTransaction", request).await.0, -32000);
}

/// Verifies a response of `state_getProof` under its root.
fn proves_itself(backend: &dyn retrie_state::AnyBackend, answer: &Value) {
    let answer: StateProofResponse = serde_json::from_value(answer.clone()).unwrap();
    let proof = answer.to_proof();
    let shown = backend
        .verify(answer.root, &retrie_state::KeyForm::Plain.keys(&answer.keys()), &proof.bytes)
        .unwrap();
    let account = shown[0].as_ref().map(|value| Account::decode(value).unwrap());
    assert_eq!(answer.account.map(Account::from), account);
    for (slot, shown) in answer.storage.iter().zip(&shown[1..]) {
        let shown = shown.as_ref().map_or(U256::ZERO, |value| decode_slot(value).unwrap());
        assert_eq!(slot.value, shown, "slot {}", slot.key);
    }
}

/// Cause: the values included dev-chain overrides and the proof did not, so verification failed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_by_hand_is_proven_by_the_next_block_and_refused_before() {
    for backend in backends().into_iter().filter(|one| one.profile().proofs) {
        let node = NodeFixture::dev(backend.clone());
        let methods = match backend.extensions().account_proofs {
            Some(_) => vec!["state_getProof", "eth_getProof"],
            None => vec!["state_getProof"],
        };
        node.call("hardhat_setBalance", json!([SOMEONE, "0x1234"])).await;
        let word = format!("0x{:064x}", 42);
        let owner = Address::repeat_byte(0x55);
        node.call("anvil_setStorageAt", json!([owner, "0x1", word])).await;
        let other = Address::repeat_byte(0x66);
        for block in ["latest", "0x0"] {
            for method in &methods {
                for changed in [SOMEONE, owner] {
                    let params = json!([changed, ["0x1"], block]);
                    let (code, message) = node.fail(method, params).await;
                    assert_eq!(code, -32000);
                    let name = changed.to_string();
                    for part in [&*name, "changed by hand", "after block 0", "evm_mine"] {
                        assert!(message.contains(part), "{method}: {message}");
                    }
                }
                // Other accounts are proven.
                node.call(method, json!([other, ["0x1"], block])).await;
            }
            let proof = json!([DEV_ACCOUNTS[0], [], block]);
            proves_itself(&*backend, &node.call("state_getProof", proof).await);
            // Next time block 0 is below the head.
            node.call("evm_mine", json!([])).await;
        }
        for (address, balance) in [(SOMEONE, json!("0x1234")), (owner, json!("0x0"))] {
            let proof = node.call("state_getProof", json!([address, ["0x1"], "latest"])).await;
            assert_eq!(proof["root"], json!(node.live().head().state_root));
            assert_eq!(proof["account"]["balance"], balance);
            proves_itself(&*backend, &proof);
        }
        let read = node.call("eth_getStorageAt", json!([owner, "0x1", "latest"])).await;
        assert_eq!(read, json!(word));
    }
}

/// Cause: both methods listed the state without dev-chain overrides.
#[tokio::test(flavor = "multi_thread")]
async fn dumps_show_what_was_changed_by_hand_under_a_root_of_that() {
    for backend in backends() {
        let has_root = backend.profile().proofs;
        let node = NodeFixture::dev(backend);
        let word = format!("0x{:064x}", 42);
        let before = node.call("debug_dumpBlock", json!(["latest"])).await;
        node.call("hardhat_setBalance", json!([SOMEONE, "0x1234"])).await;
        node.call("hardhat_setCode", json!([SOMEONE, REVERTS])).await;
        node.call("hardhat_setStorageAt", json!([SOMEONE, "0x1", word])).await;
        let key = SOMEONE.to_checksum(None);
        let mut roots = vec![before["root"].clone()];
        for moment in ["before a block", "in a block"] {
            let dump = node.call("debug_dumpBlock", json!(["latest"])).await;
            let account = &dump["accounts"][&key];
            assert_eq!(account["balance"], "4660", "{moment}: {dump}");
            assert_eq!(account["code"], REVERTS);
            assert_eq!(account["storage"][format!("0x{:064x}", 1)], "2a");
            let params = json!(["latest", "0x", 256, false, false, false]);
            assert_eq!(node.call("debug_accountRange", params).await, dump, "{moment}");
            roots.push(dump["root"].clone());
            node.call("evm_mine", json!([])).await;
        }
        if has_root {
            let view = node.live().view().unwrap();
            let header = |number| view.header_by_number(number).unwrap().unwrap();
            let root = |number| json!(alloy_primitives::hex::encode(header(number).state_root));
            assert_eq!((&roots[0], &roots[2]), (&root(0), &root(1)));
            assert_ne!(roots[1], roots[0], "no header has the root of what is pending");
            // A simulated block builds on the overridden state too.
            let simulated = json!([{"blockStateCalls": [{}]}, "latest"]);
            let blocks = node.call("eth_simulateV1", simulated.clone()).await;
            node.call("hardhat_setBalance", json!([SOMEONE, "0x1235"])).await;
            let others = node.call("eth_simulateV1", simulated).await;
            assert_ne!(blocks[0]["stateRoot"], others[0]["stateRoot"]);
        }
    }
}

/// Returns its first slot, after incrementing it.
const COUNTS: &str = "0x5f545f525f546001015f5560205ff3";

/// Mines a block that starts with overrides, and has two transactions that need them; returns the
/// hash of the second one.
async fn changed_block(node: &NodeFixture) -> Value {
    let word = format!("0x{:064x}", 7);
    node.call("hardhat_setCode", json!([SOMEONE, COUNTS])).await;
    node.call("hardhat_setStorageAt", json!([SOMEONE, "0x0", word])).await;
    node.call("evm_setAutomine", json!([false])).await;
    let request = json!([{"from": DEV_ACCOUNTS[1], "to": SOMEONE, "gas": "0x30000"}]);
    node.call("eth_sendTransaction", request.clone()).await;
    let hash = node.call("eth_sendTransaction", request).await;
    node.call("evm_mine", json!([])).await;
    hash
}

/// All methods that execute a block again.
fn executed_again(hash: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("debug_traceTransaction", json!([hash, {"tracer": "callTracer"}])),
        ("debug_traceBlockByNumber", json!(["0x1", {"tracer": "prestateTracer"}])),
        ("trace_transaction", json!([hash])),
        ("trace_block", json!(["0x1"])),
        ("trace_replayTransaction", json!([hash, ["trace", "stateDiff"]])),
        ("trace_replayBlockTransactions", json!(["0x1", ["trace"]])),
        ("trace_filter", json!([{"fromBlock": "0x1", "toBlock": "0x1"}])),
        (
            "debug_traceCallMany",
            json!([
                [{"transactions": [{"to": SOMEONE}]}],
                {"blockNumber": "0x1", "transactionIndex": 1},
                {"tracer": "callTracer"}
            ]),
        ),
    ]
}

/// Cause: overrides were kept in memory only. A clean stop lost a set balance, and blocks were
/// traced on a wrong state.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_changes_no_answer() {
    for backend in [mpt(), lvmt(), cole(), raw()] {
        let node = NodeFixture::dev(backend.clone());
        let hash = changed_block(&node).await;
        node.call("hardhat_setBalance", json!([SOMEONE, "0x1234"])).await;
        node.call("hardhat_setCode", json!([Address::repeat_byte(3), REVERTS])).await;
        let mut asked = executed_again(&hash);
        for block in ["0x0", "0x1"] {
            asked.push(("eth_getBalance", json!([SOMEONE, block])));
            asked.push(("eth_getCode", json!([SOMEONE, block])));
            asked.push(("eth_getCode", json!([Address::repeat_byte(3), block])));
            asked.push(("eth_getStorageAt", json!([SOMEONE, "0x0", block])));
            asked.push(("debug_dumpBlock", json!([block])));
        }
        let mut answers = Vec::new();
        for (method, params) in &asked {
            answers.push(node.call(method, params.clone()).await);
        }
        assert_eq!(answers[0]["output"], json!(format!("0x{:064x}", 8)));
        let node = NodeFixture::dev_in(node.stop().await, backend.clone());
        for ((method, params), before) in asked.iter().zip(&answers) {
            assert_eq!(node.call(method, params.clone()).await, *before, "{method} {params}");
        }
        // The next block includes the pending overrides; then none is pending.
        node.call("evm_mine", json!([])).await;
        let node = NodeFixture::dev_in(node.stop().await, backend);
        let params = json!([SOMEONE, "latest"]);
        assert_eq!(node.call("eth_getBalance", params).await, "0x1234");
        assert_eq!(node.call("eth_getBalance", json!([SOMEONE, "0x0"])).await, "0x0");
        node.call("debug_traceBlockByNumber", json!(["0x2"])).await;
        if node.live().backend().extensions().account_proofs.is_some() {
            node.call("eth_getProof", json!([SOMEONE, [], "latest"])).await;
            let (code, message) = node.fail("debug_executionWitness", json!(["0x2"])).await;
            assert_eq!((code, message.contains("changed by hand")), (-32000, true), "{message}");
        }
    }
}

/// Cause: results of a replay were returned although the stored receipts contradicted them.
#[tokio::test(flavor = "multi_thread")]
async fn an_execution_that_contradicts_the_receipts_is_refused() {
    let node = NodeFixture::dev(mpt());
    let hash = changed_block(&node).await;
    let block = node.live().head().hash();
    let dir = node.stop().await;
    {
        // As in a datadir of an earlier version, which lacks the overrides.
        let db = DatabaseEnv::open(dir.path().join("data"), &OpenOptions::default()).unwrap();
        let mut txn = db.begin_write().unwrap();
        txn.insert_patch(&block, &StatePatch::default().encode()).unwrap();
        txn.commit().unwrap();
    }
    let node = NodeFixture::dev_in(dir, mpt());
    let receipt = node.call("eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(receipt["status"], "0x1");
    let mut asked = executed_again(&hash);
    asked.push(("debug_executionWitness", json!(["0x1"])));
    for (method, params) in asked {
        let (code, message) = node.fail(method, params).await;
        assert_eq!(code, -32000, "{method}: {message}");
        for part in [&*block.to_string(), "executed again", "gas used of transaction 0"] {
            assert!(message.contains(part), "{method}: {message}");
        }
    }
}
