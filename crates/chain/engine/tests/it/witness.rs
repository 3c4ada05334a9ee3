//! Witnesses of blocks: as answers to payloads, verified alone, and compared fault by fault.

use crate::common::{NodeSetup, RunningNode, TestNode, code, hash, invalid, line, valid, with};
use alloy_consensus::{Signed, TxLegacy};
use alloy_primitives::{Address, B256, Bytes, Signature, U256, keccak256};
use alloy_rlp::{Decodable, RlpDecodable};
use alloy_rpc_types_engine::{ExecutionPayload, PayloadStatus};
use retrie_chainspec::primitives::{Block, Header};
use retrie_engine::EngineApiError;
use retrie_pipeline::{
    stateless::{FindingCode as Code, LintReport, StatelessError, WitnessLint, verify_witness},
    testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestChain, TestRules, TestWallet},
};
use retrie_sources::witness::{ExecutionWitness, WitnessAnswer};
use retrie_storage_mpt::Mpt;
use serde_json::json;
use std::collections::BTreeSet;

/// Stores BLOCKHASH of the great-grandparent at slot 0.
const HASH_CODE: [u8; 9] = [0x60, 3, 0x43, 0x03, 0x40, 0x60, 0, 0x55, 0];
/// Creates a contract whose code is one STOP.
const CREATE_STOP: [u8; 10] = [0x60, 0, 0x60, 0, 0x53, 0x60, 1, 0x60, 0, 0xf3];

/// Blocks 1 to 5, of which the last removes a slot, creates a code and reads an old hash; a node on
/// them; and the witness of the last.
struct WitnessScene {
    chain: TestChain,
    blocks: Vec<Block>,
    running: RunningNode,
    witness: ExecutionWitness,
}

impl WitnessScene {
    fn new() -> Self {
        let hasher = Address::repeat_byte(0x4a);
        let backend = std::sync::Arc::new(Mpt::default());
        let mut chain = TestChain::with_contract(TestRules::Cancun, backend, hasher, &HASH_CODE);
        let before = *chain.branch(chain.genesis(), 4, 12, 1).last().unwrap();
        let create = TestCall { input: Bytes::from_static(&CREATE_STOP), ..TestCall::deploy(2) };
        let calls =
            [TestCall::transfer(0, hasher, 0), TestCall::store(1, GENESIS_CONTRACT, 1, 0), create];
        let tip = chain.extend(before, BlockPlan::new(calls));
        let blocks = chain.path(chain.genesis(), tip);
        let running = TestNode::new(&chain.spec, NodeSetup::MPT).start();
        running.follow(&blocks);
        let view = running.live.view().unwrap();
        let block = view.block(&tip).unwrap().unwrap();
        let witness = view.execution_witness(&block).unwrap();
        drop(view);
        Self { chain, blocks, running, witness }
    }

    fn block(&self) -> Block {
        self.blocks[4].clone()
    }

    fn lint(&self, answer: &WitnessAnswer) -> LintReport {
        let lint = WitnessLint { spec: self.chain.spec.clone(), opener: &Mpt::default() };
        lint.check(self.block(), answer).unwrap()
    }

    /// The kinds of faults of the witness after a change.
    fn found(&self, change: impl FnOnce(&mut ExecutionWitness)) -> BTreeSet<Code> {
        let mut witness = self.witness.clone();
        change(&mut witness);
        codes(&self.lint(&witness.into()))
    }

    fn verify(&self, change: impl FnOnce(&mut ExecutionWitness)) -> Result<B256, StatelessError> {
        let mut witness = self.witness.clone();
        change(&mut witness);
        let opener = Mpt::default();
        let shown = verify_witness(&self.chain.spec, &opener, self.block(), &witness);
        shown.map(|shown| shown.after)
    }

    /// Nodes on the paths of a wallet that the block does not touch, which the witness lacks.
    fn other_path(&self) -> Vec<Bytes> {
        let view = self.running.live.view().unwrap();
        let block = view.block(&hash(&self.blocks[4])).unwrap().unwrap();
        let (_, proven) = view.provable_before(&block).unwrap();
        let wallets = (3..8).map(|n| TestWallet::new(n).address);
        let nodes = wallets.flat_map(|one| proven.account_nodes(&one, &[]).unwrap().account);
        nodes.filter(|node| !self.witness.state.contains(node)).collect()
    }
}

fn codes(report: &LintReport) -> BTreeSet<Code> {
    report.findings.iter().map(|finding| finding.code).collect()
}

/// Puts an entry where its bytes belong.
fn put(list: &mut Vec<Bytes>, entry: impl Into<Bytes>) {
    list.push(entry.into());
    list.sort();
}

fn header(block: &Block) -> Bytes {
    alloy_rlp::encode(&block.header).into()
}

/// What is done to a witness, how, and the kinds of faults that it then has.
type WitnessFault<'a> = (&'static str, Box<dyn Fn(&mut ExecutionWitness) + 'a>, BTreeSet<Code>);

#[test]
fn a_lint_names_each_fault_of_a_witness() {
    let scene = WitnessScene::new();
    let report = scene.lint(&scene.witness.clone().into());
    assert_eq!(report.findings, [], "our own witness is canonical");
    assert!(report.complete && report.needed == report.given, "{report:?}");
    assert_eq!(scene.witness.headers.len(), 3, "from the oldest hash read to the parent");
    assert_eq!(scene.verify(|_| ()).unwrap(), scene.blocks[4].header.state_root);

    // Every node, code and header is needed, by the verifier too.
    for at in 0..scene.witness.state.len() {
        let found = scene.found(|one| drop(one.state.remove(at)));
        assert!(found.contains(&Code::StateMissing), "{at}: {found:?}");
        assert!(scene.verify(|one| drop(one.state.remove(at))).is_err());
    }
    for at in 0..scene.witness.codes.len() {
        let found = scene.found(|one| drop(one.codes.remove(at)));
        assert_eq!(found, BTreeSet::from([Code::CodesMissing]), "{at}");
        assert!(scene.verify(|one| drop(one.codes.remove(at))).is_err());
    }

    let stop = Bytes::from_static(&[0]);
    let other = scene.other_path();
    let foreign = Bytes::from(alloy_rlp::encode(vec![Bytes::from_static(&[0x20; 33]); 2]));
    let own = |code| BTreeSet::from([code]);
    let cases: [WitnessFault<'_>; 19] = [
        ("unused", Box::new(|one| put(&mut one.state, other[0].clone())), own(Code::StateUnused)),
        ("foreign", Box::new(|one| put(&mut one.state, foreign.clone())), own(Code::StateUnlinked)),
        ("no node", Box::new(|one| put(&mut one.state, [1, 2])), own(Code::StateMalformed)),
        (
            "twice",
            Box::new(|one| one.state.insert(1, one.state[0].clone())),
            own(Code::StateDuplicate),
        ),
        ("order", Box::new(|one| one.state.swap(0, 1)), own(Code::StateOrder)),
        ("code order", Box::new(|one| one.codes.swap(0, 1)), own(Code::CodesOrder)),
        (
            "code twice",
            Box::new(|one| one.codes.insert(1, one.codes[0].clone())),
            own(Code::CodesDuplicate),
        ),
        ("foreign code", Box::new(|one| put(&mut one.codes, [7, 7])), own(Code::CodesUnused)),
        ("new code", Box::new(|one| put(&mut one.codes, stop.clone())), own(Code::CodesCreated)),
        ("empty code", Box::new(|one| put(&mut one.codes, [])), own(Code::CodesEmpty)),
        ("oldest header", Box::new(|one| drop(one.headers.remove(0))), own(Code::HeadersMissing)),
        (
            "header between",
            Box::new(|one| drop(one.headers.remove(1))),
            BTreeSet::from([Code::HeadersMissing, Code::HeadersUnlinked]),
        ),
        (
            "no parent",
            Box::new(|one| drop(one.headers.pop())),
            BTreeSet::from([Code::HeadersMissing, Code::HeadersUnlinked]),
        ),
        (
            "older header",
            Box::new(|one| one.headers.insert(0, header(&scene.blocks[0]))),
            own(Code::HeadersUnused),
        ),
        ("header order", Box::new(|one| one.headers.reverse()), own(Code::HeadersOrder)),
        ("no header", Box::new(|one| one.headers.push([0xc0].into())), own(Code::HeadersMalformed)),
        ("lost key", Box::new(|one| drop(one.keys.remove(0))), own(Code::KeysMissing)),
        ("foreign key", Box::new(|one| put(&mut one.keys, [9; 20])), own(Code::KeysUnused)),
        ("short key", Box::new(|one| put(&mut one.keys, [9; 4])), own(Code::EntryMalformed)),
    ];
    for (name, change, expected) in cases {
        assert_eq!(scene.found(change), expected, "{name}");
    }
}

#[test]
fn a_lint_reads_the_forms_of_other_clients_and_ends_on_hostile_ones() {
    let scene = WitnessScene::new();
    let ExecutionWitness { state, codes: code, headers, .. } = &scene.witness;
    let objects: Vec<Header> =
        headers.iter().map(|rlp| Header::decode(&mut rlp.as_ref()).unwrap()).collect();
    let geth = json!({ "state": state, "codes": code, "keys": null, "headers": objects });
    let by_hash = |list: &[Bytes]| -> serde_json::Map<String, serde_json::Value> {
        list.iter().map(|one| (keccak256(one).to_string(), json!(one))).collect()
    };
    let old = json!({ "state": by_hash(state), "codes": by_hash(code), "headers": headers });
    let hostile = json!({ "state": [7, "0x", {}, [], "zz"], "codes": null, "keys": ["0x00"] });
    for (answer, expected) in [
        (geth, vec![Code::KeysEmpty, Code::HeadersForm]),
        (old, vec![Code::MemberForm]),
        (
            hostile,
            vec![Code::MemberMissing, Code::MemberForm, Code::EntryMalformed, Code::HeadersMissing],
        ),
    ] {
        let report = scene.lint(&serde_json::from_value(answer).unwrap());
        assert_eq!(codes(&report), expected.into_iter().collect(), "{:?}", report.findings);
    }
    // A block that could take hours is not executed.
    let endless = with(&scene.block(), |block| {
        let tx = TxLegacy { gas_limit: u64::MAX, ..TxLegacy::default() };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        block.body.transactions.push(Signed::new_unhashed(tx, signature).into());
    });
    let lint = WitnessLint { spec: scene.chain.spec.clone(), opener: &Mpt::default() };
    let refused = lint.check(endless, &scene.witness.clone().into()).unwrap_err();
    assert!(matches!(refused, StatelessError::TooMuchGas { .. }), "{refused}");
}

/// geth's `stateless.Witness`, in its RLP.
#[derive(Debug, RlpDecodable)]
struct GethWitness {
    headers: Vec<Header>,
    codes: Vec<Bytes>,
    state: Vec<Bytes>,
    keys: Vec<Bytes>,
}

/// `engine_newPayloadWithWitnessV3`.
fn send(
    running: &RunningNode,
    block: &Block,
) -> Result<(PayloadStatus, Option<Bytes>), EngineApiError> {
    let (payload, _) = ExecutionPayload::from_block_unchecked(hash(block), block);
    let ExecutionPayload::V3(payload) = payload else { panic!("a block of Cancun") };
    let root = block.header.parent_beacon_block_root.unwrap_or_default();
    let named = (hash(block), block.header.timestamp);
    let sent = running.api.new_payload_v3(payload, Vec::new(), root);
    running.runtime.block_on(running.api.with_witness(named, sent))
}

#[test]
fn a_valid_payload_is_answered_with_the_witness_of_its_block() {
    for setup in [NodeSetup::MPT, NodeSetup::ARCHIVE] {
        let (chain, blocks) = line(setup, TestRules::Cancun, 3);
        let running = TestNode::new(&chain.spec, setup).start();
        let capable = running.runtime.block_on(running.api.capabilities()).unwrap();
        assert!(capable.contains(&"engine_newPayloadWithWitnessV5"));
        for block in &blocks {
            // The second time the block is known.
            for _ in 0..2 {
                let (status, witness) = send(&running, block).unwrap();
                assert_eq!(status, valid(hash(block)));
                let witness = witness.expect("a valid block has a witness");
                let GethWitness { headers, codes, state, keys } =
                    alloy_rlp::decode_exact(&witness).unwrap();
                assert_eq!(headers.last().unwrap().hash_slow(), block.header.parent_hash);
                assert!(keys.is_empty());
                let headers = headers.iter().map(|one| alloy_rlp::encode(one).into()).collect();
                let witness = ExecutionWitness { state, codes, keys, headers };
                let (spec, opener) = (&chain.spec, Mpt::default());
                verify_witness(spec, &opener, block.clone(), &witness).unwrap();
            }
        }
        let bad = with(&blocks[2], |block| block.header.gas_used += 1);
        let (status, witness) = send(&running, &bad).unwrap();
        assert!(invalid(status, Some(hash(&blocks[1]))).contains("gas") && witness.is_none());
    }
    // Stores without Ethereum's trie refuse, and execute nothing.
    let (chain, blocks) = line(NodeSetup::LVMT, TestRules::Cancun, 1);
    let running = TestNode::new(&chain.spec, NodeSetup::LVMT).start();
    let capable = running.runtime.block_on(running.api.capabilities()).unwrap();
    assert!(!capable.iter().any(|name| name.contains("WithWitness")));
    assert_eq!(code(send(&running, &blocks[0])), -32000);
    assert!(running.live.view().unwrap().header(&hash(&blocks[0])).unwrap().is_none());
}
