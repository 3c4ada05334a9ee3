//! `state_call`: what it proves is enough to execute the call again, and nothing more.

use crate::common::{NodeFixture, backends, raw, test_chain};
use alloy_primitives::{Address, B256, Bytes, U64, hex};
use alloy_rpc_types_eth::TransactionRequest;
use retrie_light_client::{
    CallResponse, LightClientError, ParamsFacts, ProofVerifier, StateVerifier, TrustedBlock,
    VerifiedCall,
};
use retrie_pipeline::testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules};
use retrie_state::{AnyBackend, BackendKey, ProofError, StateValue};
use serde_json::{Value, json};
use std::sync::Arc;

/// Trusts the parameters of a backend in this process.
#[derive(Debug)]
struct PinnedBackend(Arc<dyn AnyBackend>);

impl ProofVerifier for PinnedBackend {
    fn params(&self) -> Option<ParamsFacts> {
        let identity = self.0.identity();
        let (backend, digest) = (identity.name, identity.params);
        Some(ParamsFacts { backend, digest, has_secret: false, insecure: false })
    }

    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        _: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        self.0.verify(root, keys, proof)
    }
}

/// Returns the balance of the contract of genesis, the hash of the block three before, and the size
/// of the contract's code.
fn program() -> Bytes {
    let contract = hex::encode(GENESIS_CONTRACT);
    let text = format!("73{contract}315f52600343034060205273{contract}3b60405260605ff3");
    hex::decode(text).unwrap().into()
}

struct CallNode {
    chain: TestChain,
    blocks: Vec<B256>,
    node: NodeFixture,
    verifier: StateVerifier,
}

impl CallNode {
    async fn on(backend: Arc<dyn AnyBackend>) -> Self {
        let mut chain = test_chain(TestRules::Prague);
        let verifier = StateVerifier::new().pin(Arc::new(PinnedBackend(backend.clone())));
        let mut node = NodeFixture::new(&chain.spec, backend);
        let mut blocks = vec![chain.genesis()];
        for number in 1..=5 {
            let call = TestCall::store(1, GENESIS_CONTRACT, number, 7);
            blocks.push(chain.extend(*blocks.last().unwrap(), BlockPlan::new([call])));
        }
        node.add(&chain.path(blocks[0], blocks[5])).await;
        node.set_head(blocks[5], B256::ZERO, B256::ZERO).await;
        Self { chain, blocks, node, verifier }
    }

    async fn answer(&self, request: &Value, block: usize) -> CallResponse {
        let params = json!([request, self.blocks[block]]);
        serde_json::from_value(self.node.call("state_call", params).await).unwrap()
    }

    /// Trusts the header of a block, and of a store without Ethereum's root the root that the node
    /// names.
    async fn verify(
        &self,
        request: &Value,
        block: usize,
        answer: &CallResponse,
    ) -> Result<VerifiedCall, LightClientError> {
        let hash = self.blocks[block];
        let own = self.node.call("state_getRoot", json!([hash])).await["root"].clone();
        let has_header_root = self.node.live().backend().profile().ethereum_root;
        let root = (!has_header_root).then(|| serde_json::from_value(own).unwrap());
        let request: TransactionRequest = serde_json::from_value(request.clone()).unwrap();
        let trusted = TrustedBlock { hash, root };
        self.verifier.verify_call(&request, answer, &trusted, &self.chain.spec)
    }
}

#[tokio::test]
async fn every_store_proves_calls_that_a_light_client_executes() {
    for backend in backends().into_iter().filter(|one| one.profile().proofs) {
        let name = backend.identity().name;
        let node = CallNode::on(backend).await;
        let store = TestCall::store(1, GENESIS_CONTRACT, 900, 3).input;
        let nobody = Address::repeat_byte(0x99);
        for (request, succeeds) in [
            (json!({ "data": program() }), true),
            (json!({ "to": GENESIS_CONTRACT, "data": store }), true),
            (json!({ "to": nobody, "value": "0x0" }), true),
            // SHA-256 of nothing, by a precompile.
            (json!({ "to": Address::with_last_byte(2) }), true),
            // Reverts with a word; loops until it is out of gas.
            (json!({ "data": "0x60015f5260205ffd" }), false),
            (json!({ "data": "0x5b5f56", "gas": "0x186a0" }), false),
        ] {
            for block in [4, 5] {
                let expected =
                    node.node.ask("eth_call", json!([request, node.blocks[block]])).await;
                let answer = node.answer(&request, block).await;
                let call = node.verify(&request, block, &answer).await;
                let call = call.unwrap_or_else(|error| panic!("{name}: {request}: {error}"));
                assert_eq!((call.is_success, call.number), (succeeds, block as u64), "{request}");
                match expected.get("result") {
                    Some(output) => assert_eq!(json!(call.output), *output, "{name}: {request}"),
                    None => assert!(!call.is_success, "{name}: {expected}"),
                }
            }
        }
        let answer = node.answer(&json!({ "data": program() }), 5).await;
        assert_eq!(answer.headers.len(), 3, "headers 3 to 5 name the hashes of 2 to 4");
        assert_eq!(answer.output[32..64], node.blocks[2][..]);
    }
}

#[tokio::test]
async fn forged_and_padded_answers_are_refused() {
    for name in ["mpt", "lvmt", "bavl"] {
        let node = CallNode::on((retrie_backends::find(name).unwrap().small)()).await;
        let request = json!({ "data": program() });
        let answer = node.answer(&request, 5).await;
        let other = node.answer(&json!({ "to": Address::repeat_byte(0x99) }), 5).await;
        let forge = |change: &dyn Fn(&mut CallResponse)| {
            let mut forged = answer.clone();
            change(&mut forged);
            forged
        };
        let flipped = |bytes: &Bytes, at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1;
            Bytes::from(bytes)
        };
        for (what, class, forged) in [
            ("output", "claim", forge(&|a| a.output = flipped(&a.output, 40))),
            ("status", "claim", forge(&|a| a.status = U64::ZERO)),
            ("gas used", "claim", forge(&|a| a.gas_used += U64::from(1))),
            ("another block", "block", forge(&|a| a.block_hash = node.blocks[4])),
            ("a header too few", "call", forge(&|a| drop(a.headers.remove(0)))),
            ("a header too many", "unused", {
                let older = node.answer(&request, 4).await;
                forge(&|a| a.headers.insert(0, older.headers[0].clone()))
            }),
            ("another header", "header", forge(&|a| a.headers[2] = flipped(&a.headers[2], 60))),
            ("no header", "header", forge(&|a| a.headers.clear())),
            ("a code left out", "call", forge(&|a| a.codes.clear())),
            ("another code", "call", forge(&|a| a.codes[0] = flipped(&a.codes[0], 3))),
            ("a code twice", "unused", forge(&|a| a.codes.push(a.codes[0].clone()))),
            (
                "other reads",
                "",
                forge(&|a| (a.reads, a.proof) = (other.reads.clone(), other.proof.clone())),
            ),
            ("a read left out", "", forge(&|a| drop(a.reads.pop()))),
            ("a read twice", "", forge(&|a| a.reads.push(a.reads[0].clone()))),
            ("no proof", "", forge(&|a| a.proof = Bytes::new())),
        ] {
            let error = node.verify(&request, 5, &forged).await.expect_err(what);
            assert!(class.is_empty() || error.class() == class, "{name}: {what}: {error}");
        }
        for at in 0..answer.proof.len() {
            let forged = forge(&|a| a.proof = flipped(&a.proof, at));
            node.verify(&request, 5, &forged).await.expect_err("a proof with a changed byte");
        }
        let other = json!({ "data": "0x5f5ff3" });
        assert_eq!(node.verify(&other, 5, &answer).await.unwrap_err().class(), "unused");
        let capped = json!({ "data": program(), "gas": "0x100000" });
        assert_eq!(node.verify(&capped, 5, &answer).await.unwrap_err().class(), "claim");
    }
}

#[tokio::test]
async fn what_cannot_be_proven_is_refused() {
    let node = CallNode::on(raw()).await;
    let call = json!({ "to": GENESIS_CONTRACT });
    let (code, words) = node.node.fail("state_call", json!([call])).await;
    assert_eq!(code, -32000);
    assert!(words.contains("backend raw does not support"), "{words}");

    let node = CallNode::on(crate::common::mpt()).await;
    let accounts = json!({ GENESIS_CONTRACT.to_string(): { "balance": "0x5" } });
    let (code, _) = node.node.fail("state_call", json!([call, "latest", accounts])).await;
    assert_eq!(code, -32602, "there are no overrides");
    // Reads a further account in each round: BALANCE(GAS) for ever.
    let greedy = |gas: u64| json!({ "data": "0x5b5a31505f56", "gas": U64::from(gas) });
    let answer = node.answer(&greedy(1_000_000), 5).await;
    assert!(answer.reads.len() > 300, "{:?}", answer.reads);
    let call = node.verify(&greedy(1_000_000), 5, &answer).await.unwrap();
    assert!(!call.is_success);
    let (code, words) = node.node.fail("state_call", json!([greedy(50_000_000)])).await;
    assert_eq!(code, -32000);
    assert!(words.contains("more than 16384"), "{words}");
    let (code, words) =
        node.node.fail("state_call", json!([{ "data": "0x" , "gasPrice": "0x1" }])).await;
    assert_eq!(code, -32000);
    assert!(words.contains("less than block base fee"), "{words}");
}

/// The golden vectors of calls, which the verifier in WebAssembly runs too: of each store an answer,
/// and of `mpt` forged ones.
#[tokio::test]
async fn the_vectors_of_calls_are_what_nodes_answer() {
    let mut cases = Vec::new();
    let request = json!({ "data": program() });
    for name in ["mpt", "prefix", "duptree", "lvmt", "cole", "lmpt", "bavl", "pbt"] {
        let backend = (retrie_backends::find(name).unwrap().small)();
        let (identity, has_header_root) =
            (backend.identity().clone(), backend.profile().ethereum_root);
        let node = CallNode::on(backend).await;
        let answer = node.answer(&request, 5).await;
        let params = match name {
            "lvmt" => {
                let height = answer.proof[1];
                let params = retrie_storage_lvmt::VerifierParams::insecure_dev(height).unwrap();
                json!({ name: [Bytes::from(params.to_bytes())] })
            }
            "cole" => json!({ name: [identity.params] }),
            _ => json!({}),
        };
        let call = node.verify(&request, 5, &answer).await.unwrap();
        let mut question = json!({
            "request": request, "hash": answer.block_hash, "params": params, "answer": answer,
        });
        if !has_header_root {
            question["root"] = json!(answer.root);
        }
        let expect = json!({ "output": call.output, "gasUsed": call.gas_used });
        cases.push(json!({ "name": name, "question": question, "expect": expect }));
        if name == "mpt" {
            let flipped = |bytes: &Bytes, at: usize| {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 1;
                Bytes::from(bytes)
            };
            let middle = answer.proof.len() / 2;
            let forged = [
                ("another output", json!({ "output": flipped(&answer.output, 40) }), "claim"),
                ("gas that lies", json!({ "gasUsed": answer.gas_used + U64::from(1) }), "claim"),
                ("gas without end", json!({ "gas": "0xffffffffffffff" }), "call"),
                ("a key left out", json!({ "reads": answer.reads[1..] }), "kind"),
                ("a code left out", json!({ "codes": [] }), "call"),
                ("another code", json!({ "codes": [flipped(&answer.codes[0], 3)] }), "call"),
                ("a code too many", json!({ "codes": [answer.codes[0], "0x00"] }), "unused"),
                ("a header left out", json!({ "headers": answer.headers[1..] }), "call"),
                ("another header", json!({ "headers": [answer.headers[1]] }), "header"),
                ("another block", json!({ "blockHash": node.blocks[4] }), "block"),
                ("another value", json!({ "proof": flipped(&answer.proof, middle) }), "root"),
            ];
            for (what, with, class) in forged {
                let mut all = json!(answer);
                all.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
                let forged: CallResponse = serde_json::from_value(all).unwrap();
                let error = node.verify(&request, 5, &forged).await.expect_err(what);
                assert_eq!(error.class(), class, "{what}: {error}");
                let expect = json!({ "error": class });
                cases.push(json!({ "name": what, "of": name, "with": with, "expect": expect }));
            }
        }
    }
    let chain = TestRules::Prague.genesis_json();
    let about = "Calls proven by nodes, and what a verifier makes of them: docs/formats/proofs.md.";
    let vectors = json!({ "about": about, "chain": chain, "cases": cases });
    let text = serde_json::to_string_pretty(&vectors).unwrap() + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../light-client/vectors/calls/calls.json");
    if std::env::var_os("RETRIE_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(file).parent().unwrap()).unwrap();
        std::fs::write(file, &text).unwrap();
    }
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(stored == text, "{file} differs: write it again with RETRIE_WRITE_VECTORS=1");
}
