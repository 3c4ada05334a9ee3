//! The golden vectors of block witnesses: of each store that makes them the witness of one block, on
//! which the block comes to the next root, and forged ones.
//!
//! `RETRIE_WRITE_VECTORS=1 cargo test -p retrie-pipeline --test it witness_vectors` writes them anew.

use crate::common::{NodeSetup, TestNode, test_chain};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::Decodable;
use retrie_backends::{FormatVerifier, open_witness, proof_formats};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header, RecoveredBlock},
};
use retrie_execution::{
    DatabaseError, ExecutionError, ExecutionInput, WitnessExecutionError, execute_on_witness,
    read_block,
};
use retrie_pipeline::{
    StoredContext, prepare,
    testkit::{BlockPlan, GENESIS_CONTRACT, TestCall, TestRules},
    validate_outcome,
};
use retrie_state::{
    BlockRef, KeyForm, ProofError, StateError, StateWitness, WitnessError, WitnessSupport,
    descriptor::{OpenedWitness, ProofVerifier},
};
use retrie_state_store::StateId;
use retrie_storage_lvmt::VerifierParams;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../light-client/vectors/witnesses/witnesses.json");

/// The block, and witnesses of the state before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WitnessVectors {
    about: String,
    /// The genesis file.
    chain: String,
    /// RLP of the block.
    block: Bytes,
    /// RLP of its ancestors' headers, the parent last.
    headers: Vec<Bytes>,
    /// The codes that it reads.
    codes: Vec<Bytes>,
    cases: Vec<WitnessCase>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct WitnessCase {
    name: String,
    /// The case that gives the witness and what is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    witness: Option<WitnessFields>,
    /// Members that are replaced.
    #[serde(default, skip_serializing_if = "CaseChanges::is_empty")]
    with: CaseChanges,
    /// Then edits of the bytes: position, bytes removed, bytes put there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    edit: Vec<(usize, usize, Bytes)>,
    expect: WitnessVerdict,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WitnessFields {
    backend: String,
    version: u32,
    hash: String,
    params: B256,
    /// The trusted parameters of this digest, if it is not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pinned: Option<Bytes>,
    /// The trusted root of the parent's state.
    root: B256,
    bytes: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct CaseChanges {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<B256>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<B256>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    codes: Option<Vec<Bytes>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<Vec<Bytes>>,
}

impl CaseChanges {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum WitnessVerdict {
    /// The root after the block.
    Root(B256),
    /// The class of the error, as of proofs.
    Error(String),
}

impl Default for WitnessVerdict {
    fn default() -> Self {
        Self::Error(String::new())
    }
}

impl WitnessVectors {
    fn read() -> Self {
        serde_json::from_slice(&std::fs::read(FILE).unwrap()).unwrap()
    }

    /// The case with all that it takes from another one.
    fn resolve(&self, case: &WitnessCase) -> (WitnessFields, Vec<Bytes>, Vec<Bytes>) {
        let base = case.of.as_ref().map(|of| self.cases.iter().find(|one| one.name == *of));
        let witness = base.map_or(&case.witness, |base| &base.expect("an earlier case").witness);
        let mut witness = witness.clone().expect("a witness");
        let CaseChanges { backend, params, root, codes, headers } = case.with.clone();
        witness.backend = backend.unwrap_or(witness.backend);
        witness.params = params.unwrap_or(witness.params);
        witness.root = root.unwrap_or(witness.root);
        let mut bytes = witness.bytes.to_vec();
        for (at, gone, put) in &case.edit {
            bytes.splice(*at..at + gone, put.iter().copied());
        }
        witness.bytes = bytes.into();
        let codes = codes.unwrap_or_else(|| self.codes.clone());
        (witness, codes, headers.unwrap_or_else(|| self.headers.clone()))
    }

    fn judge(&self) -> CaseJudge<'_> {
        let spec = Arc::new(ChainSpec::from_genesis_json(&self.chain).unwrap());
        let block = Block::decode(&mut self.block.as_ref()).unwrap();
        let block = prepare(&spec, block).unwrap().block().clone();
        CaseJudge { vectors: self, spec: spec.for_header(block.header()), block }
    }
}

/// Executes the block of the vectors on the witnesses of their cases.
struct CaseJudge<'a> {
    vectors: &'a WitnessVectors,
    spec: Arc<ChainSpec>,
    block: Arc<RecoveredBlock>,
}

impl CaseJudge<'_> {
    fn verdict(&self, case: &WitnessCase) -> WitnessVerdict {
        match self.root(case) {
            Ok(root) => WitnessVerdict::Root(root),
            Err(class) => WitnessVerdict::Error(class.to_owned()),
        }
    }

    /// The root after the block, or the class of what is wrong.
    fn root(&self, case: &WitnessCase) -> Result<B256, &'static str> {
        let (witness, codes, headers) = self.vectors.resolve(case);
        let WitnessFields { backend, version, hash, params, pinned, root, bytes } = witness;
        let (keys, parent) = (KeyForm::Plain, BlockRef::default());
        let envelope = StateWitness { backend, version, hash, params, keys, parent, root, bytes };
        let pinned: Vec<_> = pinned.iter().filter_map(|bytes| pinned_verifier(bytes)).collect();
        let opened = open_witness(&envelope, root, &pinned).map_err(|error| class_of(&error))?;
        let headers = headers.iter().map(|rlp| Header::decode(&mut rlp.as_ref()));
        let headers = headers.collect::<Result<Vec<_>, _>>().map_err(|_| "header")?;
        let witness: (&dyn OpenedWitness, _) = (&*opened, keys);
        let executed = execute_on_witness(&self.spec, &self.block, witness, &codes, &headers);
        let executed = executed.map_err(|error| match error {
            WitnessExecutionError::Execution(error) => class_of_execution(&error),
            WitnessExecutionError::Root { source, .. } => class_of(&source),
            WitnessExecutionError::Unused { .. } => "unused",
            _ => "header",
        })?;
        let valid =
            validate_outcome(&self.spec, self.block.sealed_block(), &executed.outcome, None);
        valid.map(|()| executed.root).map_err(|_| "outcome")
    }
}

/// The verifier under these parameters, of the one format that has parameters and witnesses.
fn pinned_verifier(bytes: &[u8]) -> Option<Arc<dyn ProofVerifier>> {
    let mut formats = proof_formats().filter(|format| format.backend == "lvmt");
    formats.find_map(|format| match format.verifier {
        FormatVerifier::UnderParams(open) => open(bytes),
        FormatVerifier::Fixed(_) => None,
    })
}

const fn class_of(error: &WitnessError) -> &'static str {
    match error {
        WitnessError::Unsupported { .. } | WitnessError::Refused(ProofError::WrongKind { .. }) => {
            "kind"
        }
        WitnessError::Refused(ProofError::RootMismatch) => "root",
        WitnessError::Refused(ProofError::Unused) => "unused",
        WitnessError::Refused(ProofError::Missing { .. })
        | WitnessError::Unproven { .. }
        | WitnessError::Unlisted { .. }
        | WitnessError::Incomplete { .. } => "missing",
        WitnessError::Refused(_) => "malformed",
        _ => "value",
    }
}

fn class_of_execution(error: &ExecutionError) -> &'static str {
    let ExecutionError::Database { source, .. } = error else { return "outcome" };
    match **source {
        DatabaseError::State(StateError::MissingWitness { .. })
        | DatabaseError::MissingCode { .. } => "missing",
        _ => "malformed",
    }
}

/// Sets up a contract, then: a slot is removed, one is added, and a contract is created.
fn make() -> WitnessVectors {
    let mut chain = test_chain(TestRules::Cancun);
    let set_up = [
        TestCall::transfer(0, Address::repeat_byte(0x77), 5),
        TestCall::store(1, GENESIS_CONTRACT, 4, 44),
    ];
    let first = chain.extend(chain.genesis(), BlockPlan::new(set_up));
    let calls = [
        TestCall::store(1, GENESIS_CONTRACT, 2, 0),
        TestCall::store(2, GENESIS_CONTRACT, 9, 99),
        TestCall::deploy(3),
    ];
    let second = chain.extend(first, BlockPlan::new(calls));
    let [parent, block] = [first, second].map(|hash| chain.block(hash).clone());
    let mut vectors = WitnessVectors {
        about: "Block witnesses, and what a verifier makes of them: docs/formats/witnesses.md."
            .into(),
        chain: chain.genesis_json.clone(),
        block: alloy_rlp::encode(&block).into(),
        headers: vec![alloy_rlp::encode(&parent.header).into()],
        codes: Vec::new(),
        cases: Vec::new(),
    };
    for setup in NodeSetup::all().into_iter().filter(|setup| !setup.has_referee()) {
        let backend = setup.backend();
        let name = backend.identity().name;
        if let WitnessSupport::Unsupported(why) = backend.extensions().witnesses {
            assert!(["cole", "raw"].contains(&name) && !why.is_empty(), "{name}: {why}");
            continue;
        }
        let node = TestNode::new(&chain.spec, setup);
        node.import(std::slice::from_ref(&parent)).unwrap();
        let (witness, codes) = witness_of(&node, &block);
        assert!(vectors.codes.is_empty() || vectors.codes == codes, "{name} reads other codes");
        vectors.codes = codes;
        node.import(std::slice::from_ref(&block)).unwrap();
        let next = node.open().state().root(StateId::Tip).unwrap();
        if name == "mpt" {
            assert_eq!(next, block.header.state_root);
        }
        let expect = WitnessVerdict::Root(next);
        let forged = forgeries(name, &witness);
        let witness = Some(witness);
        vectors.cases.push(WitnessCase {
            name: name.into(),
            witness,
            expect,
            ..Default::default()
        });
        vectors.cases.extend(forged);
    }
    let (code, header) = (&vectors.codes[0], &vectors.headers[0]);
    let changed = |bytes: &Bytes| Bytes::from([&bytes[..4], &[bytes[4] ^ 1], &bytes[5..]].concat());
    let codes = |codes: Vec<Bytes>| CaseChanges { codes: Some(codes), ..Default::default() };
    let mut another = vectors.codes.clone();
    another[0] = changed(code);
    let more = [&vectors.codes[..], &[Bytes::from_static(&[0])]].concat();
    let twice = [&vectors.codes[..], &vectors.codes[..1]].concat();
    let headers = Some(vec![changed(header)]);
    let around = [
        ("a code left out", codes(vectors.codes[1..].to_vec())),
        ("another code", codes(another)),
        ("a code too many", codes(more)),
        ("a code twice", codes(twice)),
        ("another header", CaseChanges { headers, ..Default::default() }),
    ];
    for (what, with) in around {
        let (name, of) = (format!("mpt: {what}"), Some("mpt".into()));
        vectors.cases.push(WitnessCase { name, of, with, ..Default::default() });
    }
    let judge = vectors.judge();
    let verdicts: Vec<_> = vectors.cases.iter().map(|case| judge.verdict(case)).collect();
    for (case, verdict) in vectors.cases.iter_mut().zip(verdicts) {
        match &case.of {
            None => assert_eq!(verdict, case.expect, "{}", case.name),
            Some(_) => case.expect = verdict,
        }
    }
    vectors
}

/// The witness of the block on the tip of `node`, and the codes that it reads.
fn witness_of(node: &TestNode, block: &Block) -> (WitnessFields, Vec<Bytes>) {
    let chain = node.open();
    let block = prepare(&node.spec, block.clone()).unwrap().block().clone();
    let spec = node.spec.for_header(block.header());
    let read = chain.db().begin_read().unwrap();
    let stored = StoredContext(&read);
    let state = chain.state().at(StateId::Tip).unwrap();
    let reads = read_block(&spec, &block, ExecutionInput::new(&state, &stored, &stored)).unwrap();
    assert_eq!(reads.oldest_hash, None);
    let delta = &reads.outcome.delta;
    let witness = state.witness(block.number, &reads.keys, &reads.listed, delta).unwrap();
    let StateWitness { backend, version, hash, params, keys, root, bytes, .. } = witness;
    assert_eq!(keys, KeyForm::Plain);
    let pinned = (!params.is_zero()).then(|| {
        let mut heights = (1..=16).filter_map(VerifierParams::insecure_dev);
        let pinned = heights.find(|pinned| pinned.digest() == params).expect("of this height");
        Bytes::from(pinned.to_bytes())
    });
    (WitnessFields { backend, version, hash, params, pinned, root, bytes }, reads.codes)
}

/// Forged witnesses, whose class of error is not yet known.
fn forgeries(backend: &str, witness: &WitnessFields) -> Vec<WitnessCase> {
    let bytes = &witness.bytes;
    let (middle, end) = (bytes.len() / 2, bytes.len());
    let part = |from: usize, to: usize| Bytes::copy_from_slice(&bytes[from..to]);
    let flipped = |at: usize| (at, 1, Bytes::from(vec![bytes[at] ^ 1]));
    let mut edits = vec![
        ("another version", flipped(0)),
        ("a bit changed at the start", flipped(1)),
        ("a bit changed in the middle", flipped(middle)),
        ("a bit changed at the end", flipped(end - 1)),
        ("a byte too many", (end, 0, Bytes::from_static(&[0]))),
        ("the last byte left out", (end - 1, 1, Bytes::new())),
        ("a part left out", (middle, 33, Bytes::new())),
        ("a part twice", (middle, 0, part(middle, middle + 33))),
        ("nothing", (0, end, Bytes::new())),
    ];
    // Lists of nodes: behind the version, or behind the three roots of `lmpt`.
    let list = match backend {
        "mpt" | "mpt-archive" | "prefix" => Some(1),
        "lmpt" => Some(97),
        _ => None,
    };
    if let Some(at) = list {
        let (count, first) = (bytes[at], at + 1);
        let end = first + node_length(&bytes[first..]);
        let listed = |count: u8, put: &[u8]| Bytes::from([&[count][..], put].concat());
        // A leaf of no trie here, which stands before all nodes of these.
        let foreign = [0x03, 0xc2, 0x20, 0x01];
        edits.extend([
            ("a foreign node", (at, 1, listed(count + 1, &foreign))),
            ("a node twice", (at, 1, listed(count + 1, &bytes[first..end]))),
            ("a node left out", (at, 1 + end - first, listed(count - 1, &[]))),
        ]);
    }
    let case = |what: &str| WitnessCase {
        name: format!("{backend}: {what}"),
        of: Some(backend.into()),
        ..Default::default()
    };
    let edited =
        edits.into_iter().map(|(what, edit)| WitnessCase { edit: vec![edit], ..case(what) });
    let other = if backend == "bavl" { "duptree" } else { "bavl" };
    let changed = [
        ("another root", CaseChanges { root: Some(B256::repeat_byte(7)), ..Default::default() }),
        ("of another store", CaseChanges { backend: Some(other.into()), ..Default::default() }),
        (
            "under other parameters",
            CaseChanges { params: Some(B256::repeat_byte(7)), ..Default::default() },
        ),
    ];
    edited
        .chain(changed.into_iter().map(|(what, with)| WitnessCase { with, ..case(what) }))
        .collect()
}

/// Bytes of a node with its length before it.
fn node_length(bytes: &[u8]) -> usize {
    let mut length = 0;
    for (at, byte) in bytes.iter().enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return at + 1 + length;
        }
    }
    panic!("a varint without an end");
}

#[test]
fn stores_make_the_very_witnesses_of_the_vectors() {
    let made = make();
    if std::env::var_os("RETRIE_WRITE_VECTORS").is_some() {
        let without = WitnessVectors { cases: Vec::new(), ..made.clone() };
        let text = serde_json::to_string_pretty(&without).unwrap() + "\n";
        let cases = made.cases.iter().map(|case| serde_json::to_string(case).unwrap());
        let cases = cases.collect::<Vec<_>>().join(",\n");
        std::fs::create_dir_all(std::path::Path::new(FILE).parent().unwrap()).unwrap();
        std::fs::write(FILE, text.replace("[]", &format!("[\n{cases}\n  ]"))).unwrap();
    }
    let stored = WitnessVectors::read();
    for (made, stored) in made.cases.iter().zip(&stored.cases) {
        assert_eq!(made, stored, "write them again with RETRIE_WRITE_VECTORS=1");
    }
    assert_eq!(made, stored, "write them again with RETRIE_WRITE_VECTORS=1");
}

#[test]
fn blocks_come_to_their_roots_on_the_vectors_and_forged_ones_are_refused() {
    let vectors = WitnessVectors::read();
    let judge = vectors.judge();
    let mut stores = 0;
    for case in &vectors.cases {
        stores += usize::from(case.of.is_none());
        assert_eq!(judge.verdict(case), case.expect, "{}", case.name);
        let is_error = matches!(case.expect, WitnessVerdict::Error(_));
        assert_eq!(is_error, case.of.is_some(), "{}", case.name);
    }
    assert_eq!(stores, 8);
}

/// Wherever a byte is changed, a witness is refused or does not reach a root.
#[test]
fn no_changed_byte_of_a_vector_gives_another_root() {
    let vectors = WitnessVectors::read();
    let judge = vectors.judge();
    for case in vectors.cases.iter().filter(|case| case.of.is_none()) {
        let witness = case.witness.as_ref().unwrap();
        // A product of pairings takes a hundred times as long.
        let step = if case.name == "lvmt" { 211 } else { 11 };
        for at in (0..witness.bytes.len()).step_by(step) {
            let edit = vec![(at, 1, Bytes::from(vec![witness.bytes[at] ^ 0x10]))];
            let forged = WitnessCase { of: Some(case.name.clone()), edit, ..Default::default() };
            let verdict = judge.verdict(&forged);
            assert!(matches!(verdict, WitnessVerdict::Error(_)), "{}: byte {at}", case.name);
        }
    }
}
