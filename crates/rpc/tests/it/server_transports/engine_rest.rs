//! The Engine API by REST and SSZ: in every fork the same answers as by JSON-RPC, and the errors that
//! the specification wants.

use super::auth::{serve, token};
use crate::common::{NodeFixture, http, http_bytes, mpt, request, test_chain};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip4895::Withdrawal,
    eip7594::BlobTransactionSidecarEip7594,
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadBodyV2, ExecutionPayloadV1, ExecutionPayloadV2,
    ExecutionPayloadV3, ExecutionPayloadV4, ForkchoiceState, JwtSecret, PayloadAttributes,
    PayloadStatus, PayloadStatusEnum,
};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plain::SszPart;
use retrie_chainspec::ChainSpec;
use retrie_engine::{
    ApiFork, PayloadEnvelope,
    pool::{BlobSidecar, PooledTransaction, TransactionOrigin},
};
use retrie_pipeline::testkit::{CHAIN_ID, TestRules, TestWallet};
use retrie_rpc::server::RunningServers;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpStream;

/// The encoder of the unit tests.
#[allow(dead_code)]
#[path = "../../../src/engine_rest/tests/plain.rs"]
mod plain;

const GWEI: u128 = 1_000_000_000;
const SSZ: (&str, &str) = ("content-type", "application/octet-stream");

/// A fork: its name in the header, and the versions of its methods in JSON-RPC.
struct ForkCase {
    fork: ApiFork,
    name: &'static str,
    new_payload: u8,
    get_payload: u8,
    forkchoice: u8,
}

const FORKS: [ForkCase; 6] = [
    ForkCase { fork: ApiFork::Paris, name: "paris", new_payload: 1, get_payload: 1, forkchoice: 1 },
    ForkCase {
        fork: ApiFork::Shanghai,
        name: "shanghai",
        new_payload: 2,
        get_payload: 2,
        forkchoice: 2,
    },
    ForkCase {
        fork: ApiFork::Cancun,
        name: "cancun",
        new_payload: 3,
        get_payload: 3,
        forkchoice: 3,
    },
    ForkCase {
        fork: ApiFork::Prague,
        name: "prague",
        new_payload: 4,
        get_payload: 4,
        forkchoice: 3,
    },
    ForkCase { fork: ApiFork::Osaka, name: "osaka", new_payload: 4, get_payload: 5, forkchoice: 3 },
    ForkCase {
        fork: ApiFork::Amsterdam,
        name: "amsterdam",
        new_payload: 5,
        get_payload: 6,
        forkchoice: 4,
    },
];

impl ForkCase {
    fn spec(&self) -> Arc<ChainSpec> {
        let of = |rules: TestRules, change: fn(&mut serde_json::Map<String, Value>)| {
            let mut genesis: Value = serde_json::from_str(&rules.genesis_json()).unwrap();
            change(genesis["config"].as_object_mut().unwrap());
            Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap())
        };
        match self.fork {
            ApiFork::Paris => of(TestRules::Merge(0), |_| ()),
            ApiFork::Shanghai => of(TestRules::Cancun, |config| drop(config.remove("cancunTime"))),
            ApiFork::Cancun => of(TestRules::Cancun, |_| ()),
            ApiFork::Prague => of(TestRules::Prague, |_| ()),
            ApiFork::Osaka => {
                of(TestRules::Prague, |config| drop(config.insert("osakaTime".into(), 0.into())))
            }
            ApiFork::Amsterdam => of(TestRules::Amsterdam, |_| ()),
        }
    }

    fn attributes(&self, timestamp: u64) -> PayloadAttributes {
        let withdrawal = Withdrawal {
            index: 7,
            validator_index: 8,
            address: Address::repeat_byte(9),
            amount: 10,
        };
        PayloadAttributes {
            timestamp,
            prev_randao: B256::repeat_byte(0x33),
            suggested_fee_recipient: Address::repeat_byte(0xfe),
            withdrawals: (self.fork >= ApiFork::Shanghai).then(|| vec![withdrawal]),
            parent_beacon_block_root: self.root(),
            slot_number: (self.fork >= ApiFork::Amsterdam).then_some(timestamp),
            target_gas_limit: (self.fork >= ApiFork::Amsterdam).then_some(30_000_000),
        }
    }

    fn root(&self) -> Option<B256> {
        (self.fork >= ApiFork::Cancun).then(|| B256::repeat_byte(0x44))
    }

    /// The payload in the JSON of `engine_getPayload`.
    fn payload(&self, built: &Value) -> ExecutionPayload {
        let payload = match built.get("executionPayload") {
            Some(payload) => payload.clone(),
            None => built.clone(),
        };
        match self.fork {
            ApiFork::Paris => ExecutionPayload::V1(parsed::<ExecutionPayloadV1>(payload)),
            ApiFork::Shanghai => ExecutionPayload::V2(parsed::<ExecutionPayloadV2>(payload)),
            ApiFork::Amsterdam => ExecutionPayload::V4(parsed::<ExecutionPayloadV4>(payload)),
            _ => ExecutionPayload::V3(parsed::<ExecutionPayloadV3>(payload)),
        }
    }

    /// The parameters of `engine_newPayload`.
    fn params(&self, payload: &ExecutionPayload, hashes: &[B256], requests: &[Bytes]) -> Value {
        let payload = serde_json::to_value(payload).unwrap();
        match self.new_payload {
            1 | 2 => json!([payload]),
            3 => json!([payload, hashes, self.root()]),
            _ => json!([payload, hashes, self.root(), requests]),
        }
    }

    fn envelope(&self, payload: &ExecutionPayload, requests: &[Bytes]) -> Vec<u8> {
        plain::envelope(&PayloadEnvelope {
            payload: payload.clone(),
            parent_beacon_block_root: self.root(),
            requests: (self.fork >= ApiFork::Prague).then(|| requests.to_vec()),
        })
    }

    fn forkchoice(&self, head: B256, attributes: Option<&PayloadAttributes>) -> Vec<u8> {
        let state = ForkchoiceState { head_block_hash: head, ..Default::default() };
        plain::forkchoice(self.fork, state, attributes, None)
    }
}

fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node with an authenticated port.
struct ServedNode {
    node: NodeFixture,
    addr: SocketAddr,
    secret: JwtSecret,
    _servers: RunningServers,
}

impl ServedNode {
    async fn new(spec: &Arc<ChainSpec>) -> Self {
        let node = NodeFixture::new(spec, mpt());
        let secret = JwtSecret::random();
        let (servers, addr) = serve(&node, secret).await;
        Self { node, addr, secret, _servers: servers }
    }

    async fn json(&self, method: &str, params: Value) -> Value {
        let body = request(method, params).to_string();
        let token = token(&self.secret, 0);
        let headers = [("content-type", "application/json"), ("authorization", &*token)];
        http(self.addr, "POST", "/", &headers, &body).await.json()
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.json(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    async fn rest(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> ::http::Response<Bytes> {
        let token = token(&self.secret, 0);
        let headers = [&[("authorization", &*token)][..], headers].concat();
        http_bytes(self.addr, method, &format!("/engine/v1/{path}"), &headers, body).await
    }

    async fn post(&self, path: &str, fork: &str, body: Vec<u8>) -> ::http::Response<Bytes> {
        self.rest("POST", path, &[SSZ, ("eth-execution-version", fork)], body).await
    }

    /// The body of an answer that is SSZ.
    async fn ssz(&self, path: &str, fork: &str, body: Vec<u8>) -> Bytes {
        let answer = self.post(path, fork, body).await;
        assert_eq!(answer.status(), 200, "{path}: {answer:?}");
        assert_eq!(answer.headers()["content-type"], "application/octet-stream");
        answer.into_body()
    }
}

/// Status and type of a problem, as the specification wants them.
fn problem(answer: &::http::Response<Bytes>) -> (u16, String) {
    assert_eq!(answer.headers()["content-type"], "application/problem+json", "{answer:?}");
    let document: Value = serde_json::from_slice(answer.body()).unwrap();
    let name = document["type"].as_str().unwrap().strip_prefix("/engine-api/errors/").unwrap();
    (answer.status().as_u16(), name.into())
}

fn status_bytes(code: u8, latest: Option<B256>, error: Option<&str>) -> Vec<u8> {
    let status = PayloadStatus::new(PayloadStatusEnum::Valid, latest);
    plain::status(code, &status, error)
}

/// The status in JSON, in the bytes that REST must give for it.
fn in_ssz(status: &Value) -> Vec<u8> {
    let code = ["VALID", "INVALID", "SYNCING", "ACCEPTED"]
        .iter()
        .position(|name| status["status"] == *name);
    let latest: Option<B256> = parsed(status["latestValidHash"].clone());
    status_bytes(code.unwrap() as u8, latest, status["validationError"].as_str())
}

fn transfer(nonce: u64) -> PooledTransaction {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 100 * GWEI,
        max_priority_fee_per_gas: GWEI,
        // An account that exists: making one takes more gas from Amsterdam on (EIP-8037).
        to: TxKind::Call(TestWallet::new(2).address),
        value: U256::from(1),
        ..Default::default()
    };
    let signature = TestWallet::new(0).sign(tx.signature_hash());
    tx.into_signed(signature).into()
}

/// Blobs of zeros: commitment and proofs are the point at infinity.
fn sidecar(fork: ApiFork) -> BlobSidecar {
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    let points = |count: usize| vec![Bytes48::from(infinity); count];
    let (blobs, commitments) = (vec![Blob::ZERO], points(1));
    match fork >= ApiFork::Osaka {
        true => {
            let cell_proofs = points(128);
            BlobSidecar::Eip7594(BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs })
        }
        false => {
            let proofs = points(1);
            BlobSidecar::Eip4844(BlobTransactionSidecar { blobs, commitments, proofs })
        }
    }
}

fn with_blob(sidecar: BlobSidecar) -> PooledTransaction {
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
    let signature = TestWallet::new(1).sign(tx.signature_hash());
    TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar).into_signed(signature).into()
}

/// What `GET /payloads/{id}` must give for the answer of `engine_getPayload`.
fn built_payload(case: &ForkCase, built: &Value, value: U256) -> Vec<u8> {
    let mut parts = vec![
        SszPart::Variable(plain::payload(&case.payload(built))),
        SszPart::Fixed(value.as_le_slice().to_vec()),
    ];
    if case.fork >= ApiFork::Cancun {
        let bundle = ["commitments", "proofs", "blobs"].map(|name| {
            let items: Vec<Bytes> = parsed(built["blobsBundle"][name].clone());
            SszPart::Variable(items.concat())
        });
        parts.push(SszPart::Variable(plain::sequence(bundle.into())));
    }
    if case.fork >= ApiFork::Prague {
        let requests: Vec<Bytes> = parsed(built["executionRequests"].clone());
        let requests = requests.iter().map(|one| SszPart::Variable(one.to_vec())).collect();
        parts.push(SszPart::Variable(plain::sequence(requests)));
    }
    if case.fork >= ApiFork::Cancun {
        parts.push(SszPart::Fixed(vec![0]));
    }
    plain::sequence(parts)
}

/// Builds a payload on a fresh chain, and gives it to other nodes, each step by both transports.
async fn goes_through(case: &ForkCase) {
    let ForkCase { fork, name, new_payload, get_payload, forkchoice } = *case;
    let spec = case.spec();
    let maker = ServedNode::new(&spec).await;
    let genesis = maker.node.live().head().hash();
    let add = |tx| {
        let ServedNode { node, .. } = &maker;
        node.pool.add(tx, TransactionOrigin::External, node.live()).unwrap();
    };
    add(transfer(0));
    let has_blobs = matches!(fork, ApiFork::Cancun | ApiFork::Osaka);
    let hashes: Vec<B256> = match has_blobs {
        true => sidecar(fork).versioned_hashes().collect(),
        false => Vec::new(),
    };
    if has_blobs {
        add(with_blob(sidecar(fork)));
    }

    // Building.
    let attributes = case.attributes(12);
    let answer = maker.ssz("forkchoice", name, case.forkchoice(genesis, Some(&attributes))).await;
    let status = status_bytes(0, Some(genesis), None);
    let (front, id) = answer.split_at(answer.len() - 8);
    let expected = plain::sequence(vec![SszPart::Variable(status), SszPart::Variable(id.to_vec())]);
    assert_eq!(answer, expected, "{name}");
    assert_eq!(front.len(), 8 + 41);
    let id = Bytes::copy_from_slice(id).to_string();
    let fork_header = [("eth-execution-version", name)];
    let got = maker.rest("GET", &format!("payloads/{id}"), &fork_header, Vec::new()).await;
    assert_eq!(got.status(), 200, "{name}: {got:?}");
    assert_eq!(got.headers()["cache-control"], "no-store");
    let built = maker.result(&format!("engine_getPayloadV{get_payload}"), json!([id])).await;
    // The first version has no value.
    let value = match built.get("blockValue") {
        Some(value) => parsed(value.clone()),
        None => {
            let at = 4;
            U256::from_le_slice(&got.body()[at..at + 32])
        }
    };
    assert!(got.body() == &built_payload(case, &built, value), "{name}");
    let payload = case.payload(&built);
    let hash = payload.block_hash();
    assert_eq!(payload.transactions().len(), 1 + usize::from(has_blobs));
    let requests: Vec<Bytes> = match built.get("executionRequests") {
        Some(requests) => parsed(requests.clone()),
        None => Vec::new(),
    };

    // The same payload, given first by REST, and to another node first by JSON.
    let (judge, other) = (ServedNode::new(&spec).await, ServedNode::new(&spec).await);
    let method = format!("engine_newPayloadV{new_payload}");
    let params = case.params(&payload, &hashes, &requests);
    let by_json = other.result(&method, params.clone()).await;
    assert_eq!(by_json["status"], "VALID", "{name}: {by_json}");
    for node in [&judge, &judge, &other] {
        let by_rest = node.ssz("payloads", name, case.envelope(&payload, &requests)).await;
        assert_eq!(by_rest, in_ssz(&by_json), "{name}");
        assert_eq!(node.result(&method, params.clone()).await, by_json, "{name}");
    }

    // A payload that is not what its hash says.
    let mut forged = payload.clone();
    forged.as_v1_mut().gas_used += 1;
    let by_rest = judge.ssz("payloads", name, case.envelope(&forged, &requests)).await;
    let by_json = judge.result(&method, case.params(&forged, &hashes, &requests)).await;
    assert_eq!(by_json["status"], "INVALID", "{name}");
    assert_eq!(by_rest, in_ssz(&by_json), "{name}");

    // The head, and its body.
    let answer = judge.ssz("forkchoice", name, case.forkchoice(hash, None)).await;
    let status = status_bytes(0, Some(hash), None);
    let parts = vec![SszPart::Variable(status), SszPart::Variable(Vec::new())];
    assert_eq!(answer, plain::sequence(parts), "{name}");
    assert_eq!(judge.node.live().head().hash(), hash);
    bodies(case, &judge, &[hash, genesis, B256::repeat_byte(1)]).await;

    // A payload on an unknown parent.
    let state = json!({ "headBlockHash": hash, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
    maker.ssz("payloads", name, case.envelope(&payload, &requests)).await;
    let next = json!([state, case.attributes(24)]);
    let started = maker.result(&format!("engine_forkchoiceUpdatedV{forkchoice}"), next).await;
    let id = started["payloadId"].clone();
    let built = maker.result(&format!("engine_getPayloadV{get_payload}"), json!([id])).await;
    let child = case.payload(&built);
    let stranger = ServedNode::new(&spec).await;
    let by_rest = stranger.ssz("payloads", name, case.envelope(&child, &requests)).await;
    assert_eq!(by_rest, status_bytes(2, None, None), "{name}");

    if has_blobs {
        blobs(case, &maker, hashes[0]).await;
    }
    wrong_forks(case, &judge, &payload, &requests).await;
}

/// Bodies by hash and by range, beside those of JSON.
async fn bodies(case: &ForkCase, node: &ServedNode, hashes: &[B256]) {
    let by_json = node.result("engine_getPayloadBodiesByHashV2", json!([hashes])).await;
    let by_json: Vec<Option<ExecutionPayloadBodyV2>> = parsed(by_json);
    let is_whole = |body: &ExecutionPayloadBodyV2| {
        case.fork < ApiFork::Amsterdam || body.block_access_list.is_some()
    };
    let expected: Vec<_> = by_json.into_iter().map(|body| body.filter(is_whole)).collect();
    assert!(expected[0].is_some() && expected[2].is_none());
    let body = plain::sequence(vec![SszPart::Variable(hashes.concat())]);
    let by_rest = node.ssz("bodies/hash", case.name, body.clone()).await;
    assert_eq!(by_rest, plain::bodies(case.fork, &expected), "{}", case.name);

    // The range ends at the head.
    let header = [("eth-execution-version", case.name)];
    let ranges = [(1, 1, &expected[..1]), (1, 32, &expected[..1]), (2, 32, &expected[..0])];
    for (from, count, expected) in ranges {
        let path = format!("bodies?from={from}&count={count}");
        let answer = node.rest("GET", &path, &header, Vec::new()).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.body(), &plain::bodies(case.fork, expected), "{} {path}", case.name);
    }
    // The blocks are those of one fork alone.
    for other in FORKS.iter().filter(|other| other.fork != case.fork) {
        let by_rest = node.ssz("bodies/hash", other.name, body.clone()).await;
        assert_eq!(by_rest, plain::bodies(other.fork, &[None, None, None]), "{}", other.name);
    }
    for (path, status, kind) in [
        ("bodies?from=0&count=1", 422, "invalid-body"),
        ("bodies?from=1&count=0", 422, "invalid-body"),
        ("bodies?from=1&count=33", 413, "request-too-large"),
    ] {
        let answer = node.rest("GET", path, &header, Vec::new()).await;
        assert_eq!(problem(&answer), (status, kind.into()), "{path}");
    }
}

/// Blobs of the pool, beside those of JSON.
async fn blobs(case: &ForkCase, node: &ServedNode, hash: B256) {
    let hashes = [hash, B256::repeat_byte(1)];
    let body = |hashes: &[B256]| plain::sequence(vec![SszPart::Variable(hashes.concat())]);
    let field = |blob: &Value, name: &str| -> Bytes { parsed(blob[name].clone()) };
    let answer = node.rest("POST", "blobs/v1", &[SSZ], body(&hashes)).await;
    if case.fork < ApiFork::Osaka {
        let json = node.result("engine_getBlobsV1", json!([hashes])).await;
        assert!(json[1].is_null());
        let there = [&[1][..], &field(&json[0], "blob"), &field(&json[0], "proof")].concat();
        let entries = [there, vec![0; 1 + 131_072 + 48]].concat();
        assert!(answer.body() == &plain::sequence(vec![SszPart::Variable(entries)]));
        for path in ["blobs/v2", "blobs/v3"] {
            let answer = node.rest("POST", path, &[SSZ], body(&hashes)).await;
            assert_eq!((answer.status().as_u16(), answer.body().len()), (204, 0), "{path}");
        }
        return;
    }
    assert_eq!(problem(&answer), (400, "unsupported-fork".into()));
    let json = node.result("engine_getBlobsV3", json!([hashes])).await;
    let proofs: Vec<Bytes> = parsed(json[0]["proofs"].clone());
    let entry = |mark: u8, blob: Vec<u8>, proofs: Vec<u8>| {
        let contents = plain::sequence(vec![SszPart::Fixed(blob), SszPart::Variable(proofs)]);
        SszPart::Variable(plain::sequence(vec![
            SszPart::Fixed(vec![mark]),
            SszPart::Variable(contents),
        ]))
    };
    let there = || entry(1, field(&json[0], "blob").to_vec(), proofs.concat());
    let absent = entry(0, vec![0; 131_072], Vec::new());
    let list = |entries| plain::sequence(vec![SszPart::Variable(plain::sequence(entries))]);
    let v3 = node.rest("POST", "blobs/v3", &[SSZ], body(&hashes)).await;
    assert!(v3.body() == &list(vec![there(), absent]));
    let v2 = node.rest("POST", "blobs/v2", &[SSZ], body(&hashes[..1])).await;
    assert!(v2.body() == &list(vec![there()]));
    let v2 = node.rest("POST", "blobs/v2", &[SSZ], body(&hashes)).await;
    assert_eq!((v2.status().as_u16(), v2.body().len()), (204, 0), "all or nothing");
}

/// The payload and attributes of one fork under the names of others.
async fn wrong_forks(
    case: &ForkCase,
    node: &ServedNode,
    payload: &ExecutionPayload,
    requests: &[Bytes],
) {
    let envelope = case.envelope(payload, requests);
    let head = payload.block_hash();
    let is_pair = |other: &ForkCase| {
        let pair = [ApiFork::Prague, ApiFork::Osaka];
        pair.contains(&other.fork) && pair.contains(&case.fork)
    };
    for other in FORKS.iter().filter(|other| other.fork != case.fork) {
        let answer = node.post("payloads", other.name, envelope.clone()).await;
        match is_pair(other) {
            true => assert_eq!(answer.status(), 200),
            false => assert_eq!(problem(&answer), (400, "ssz-decode-error".into())),
        }
        let attributes = other.attributes(24);
        let body = other.forkchoice(head, Some(&attributes));
        let answer = node.post("forkchoice", other.name, body).await;
        assert_eq!(problem(&answer), (400, "unsupported-fork".into()), "{}", other.name);
        // Without attributes any fork may name the head.
        node.ssz("forkchoice", other.name, other.forkchoice(head, None)).await;
    }
    let late = case.forkchoice(head, Some(&case.attributes(12)));
    let answer = node.post("forkchoice", case.name, late).await;
    assert_eq!(problem(&answer), (422, "invalid-attributes".into()));
}

#[tokio::test]
async fn paris_and_shanghai_go_through() {
    for case in &FORKS[..2] {
        goes_through(case).await;
    }
}

#[tokio::test]
async fn cancun_goes_through() {
    goes_through(&FORKS[2]).await;
}

#[tokio::test]
async fn prague_and_amsterdam_go_through() {
    goes_through(&FORKS[3]).await;
    goes_through(&FORKS[5]).await;
}

#[tokio::test]
async fn osaka_goes_through() {
    goes_through(&FORKS[4]).await;
}

#[tokio::test]
async fn errors_are_problems_with_their_status() {
    let node = ServedNode::new(&test_chain(TestRules::Cancun).spec).await;
    let fork = ("eth-execution-version", "cancun");
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>| {
        node.rest(method, path, headers, body).await
    };
    // Without a token nothing is read.
    let answer = http_bytes(node.addr, "GET", "/engine/v1/capabilities", &[], Vec::new()).await;
    assert_eq!(answer.status(), 401);
    type ErrorCase<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], usize, u16, &'a str);
    let unknown = ("eth-execution-version", "tokyo");
    let json = ("content-type", "application/json");
    let cases: [ErrorCase<'_>; 16] = [
        ("POST", "payloads", &[SSZ], 0, 400, "unsupported-fork"),
        ("POST", "payloads", &[SSZ, unknown], 0, 400, "unsupported-fork"),
        ("POST", "payloads", &[fork], 0, 415, "unsupported-media-type"),
        ("POST", "payloads", &[fork, json], 0, 415, "unsupported-media-type"),
        ("POST", "blobs/v3", &[], 0, 415, "unsupported-media-type"),
        ("POST", "payloads", &[SSZ, fork], 0, 400, "ssz-decode-error"),
        ("POST", "payloads", &[SSZ, fork], 5000, 400, "ssz-decode-error"),
        ("POST", "forkchoice", &[SSZ, fork], 99, 400, "ssz-decode-error"),
        ("POST", "forkchoice", &[SSZ, fork], 5000, 413, "request-too-large"),
        ("POST", "bodies/hash", &[SSZ, fork], 4 + 33 * 32, 413, "request-too-large"),
        ("POST", "blobs/v1", &[SSZ], 4 + 129 * 32, 413, "request-too-large"),
        ("GET", "payloads/0x0000000000000001", &[fork], 0, 404, "unknown-payload"),
        ("GET", "payloads/1", &[fork], 0, 400, "invalid-request"),
        ("GET", "bodies?from=1", &[fork], 0, 400, "invalid-request"),
        ("POST", "nothing", &[SSZ, fork], 0, 404, "method-not-found"),
        ("PUT", "payloads", &[SSZ, fork], 0, 405, "method-not-found"),
    ];
    for (method, path, headers, bytes, status, kind) in cases {
        let body = vec![7; bytes];
        let answer = ask(method, path, headers, body).await;
        assert_eq!(problem(&answer), (status, kind.into()), "{method} {path}");
        if status == 405 {
            assert_eq!(answer.headers()["allow"], "POST");
        }
    }
    // A decoding error says nothing more.
    let answer = ask("POST", "payloads", &[SSZ, fork], vec![1]).await;
    assert_eq!(answer.body(), &br#"{"type":"/engine-api/errors/ssz-decode-error"}"#[..]);
    // Forkchoices that contradict themselves.
    let case = &FORKS[2];
    let answer = node.post("forkchoice", case.name, case.forkchoice(B256::ZERO, None)).await;
    assert_eq!(problem(&answer), (409, "invalid-forkchoice".into()));
    let unknown =
        node.ssz("forkchoice", case.name, case.forkchoice(B256::repeat_byte(1), None)).await;
    let status = status_bytes(2, None, None);
    let parts = vec![SszPart::Variable(status), SszPart::Variable(Vec::new())];
    assert_eq!(unknown, plain::sequence(parts), "SYNCING");
}

/// HTTP/2 without TLS, as the specification wants it, on one connection beside JSON-RPC.
#[tokio::test]
async fn one_connection_of_http2_carries_both_apis() {
    let node = ServedNode::new(&test_chain(TestRules::Cancun).spec).await;
    let stream = TcpStream::connect(node.addr).await.unwrap();
    let (client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let send = async |method: &str, path: &str, kind: &str, body: Vec<u8>| {
        let request = ::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", node.addr))
            .header("authorization", token(&node.secret, 0))
            .header("eth-execution-version", "cancun")
            .header("content-type", kind)
            .body(Full::new(hyper::body::Bytes::from(body)))
            .unwrap();
        let answer = client.clone().send_request(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        ::http::Response::from_parts(parts, Bytes::from(body))
    };
    let genesis = node.node.live().head().hash();
    let update = FORKS[2].forkchoice(genesis, None);
    let call = request("eth_blockNumber", json!([])).to_string().into_bytes();
    let (identity, updated, json, wrong) = tokio::join!(
        send("GET", "/engine/v1/identity", "application/json", Vec::new()),
        send("POST", "/engine/v1/forkchoice", SSZ.1, update),
        send("POST", "/", "application/json", call),
        send("POST", "/engine/v1/payloads", SSZ.1, vec![0; 2 << 20]),
    );
    let identity: Value = serde_json::from_slice(identity.body()).unwrap();
    assert_eq!(identity[0]["name"], "retrie");
    let status = status_bytes(0, Some(genesis), None);
    let parts = vec![SszPart::Variable(status), SszPart::Variable(Vec::new())];
    assert_eq!(updated.body(), &plain::sequence(parts));
    let json: Value = serde_json::from_slice(json.body()).unwrap();
    assert_eq!(json["result"], "0x0");
    assert_eq!(problem(&wrong), (400, "ssz-decode-error".into()));
    // Names and tokens are checked as with HTTP/1.
    for (authority, expected) in [(node.addr.to_string(), 401), ("evil.example".into(), 403)] {
        let request = ::http::Request::builder()
            .uri(format!("http://{authority}/engine/v1/identity"))
            .body(Full::new(hyper::body::Bytes::new()))
            .unwrap();
        let answer = client.clone().send_request(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{authority}");
    }
}

#[tokio::test]
async fn capabilities_and_identity_are_json() {
    let node = ServedNode::new(&test_chain(TestRules::Cancun).spec).await;
    for path in ["capabilities", "identity"] {
        let accept = [("accept", "application/octet-stream"), ("eth-execution-version", "tokyo")];
        let answer = node.rest("GET", path, &accept, Vec::new()).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/json");
    }
    let capabilities = node.rest("GET", "capabilities", &[], Vec::new()).await;
    let capabilities: Value = serde_json::from_slice(capabilities.body()).unwrap();
    assert_eq!(capabilities["supported_forks"][5], "amsterdam");
    let identity = json!([{ "code": "LH", "name": "a", "version": "b", "commit": "0x00000000" }]);
    let by_json = node.result("engine_getClientVersionV1", identity).await;
    let by_rest = node.rest("GET", "identity", &[], Vec::new()).await;
    assert_eq!(serde_json::from_slice::<Value>(by_rest.body()).unwrap(), by_json);
}
