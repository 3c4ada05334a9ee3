//! Recorded from the tests of the verifiers of `lvmt` and `cole`, with elaborate forgeries: a
//! choice of it as vectors.

use super::format::{
    ExpectedVerdict, ExpectedVersion, VectorCase, VectorFile, VectorQuestion, VectorTrust,
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_light_client::{
    BlockRef, KeyForm, ProvenanceResponse, StateProof, ValueVersion as Recorded,
};
use retrie_state::BackendKey;
use retrie_storage_lvmt::VerifierParams;
use std::collections::BTreeMap;

/// Selects lines of a record of `lvmt`: some of each test and verdict.
pub(crate) fn lvmt(record: &str) -> VectorFile {
    let about = "Proofs of lvmt whose Merkle proofs fit what is shown, made by somebody who knows \
                 the whole history: recorded from the tests of the verifier in storage-lvmt.";
    choose(about, record, 4, case_of_lvmt)
}

/// The same of `cole`.
pub(crate) fn cole(record: &str) -> VectorFile {
    let about = "Proofs of cole, valid and forged by somebody who knows the whole store, at the \
                 latest block, as of older ones, and over ranges of blocks: recorded from the tests \
                 of the verifier in storage-cole.";
    choose(about, record, 24, case_of_cole)
}

fn choose(
    about: &str,
    record: &str,
    of_a_kind: usize,
    case: fn(String, &[&str], &mut Vec<Bytes>) -> Option<VectorCase>,
) -> VectorFile {
    let mut kinds = BTreeMap::<_, Vec<Vec<&str>>>::new();
    for line in record.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        kinds.entry((fields[0], fields[1])).or_default().push(fields);
    }
    let mut file = VectorFile { about: about.into(), ..VectorFile::default() };
    for ((test, class), lines) in &mut kinds {
        lines.sort_by_key(|fields| (fields[4].len(), fields[4], fields[5]));
        lines.dedup_by_key(|fields| (fields[4], fields[5]));
        // Of the shorter half.
        let step = (lines.len() / 2 / of_a_kind).max(1);
        for (n, fields) in lines.iter().step_by(step).take(of_a_kind).enumerate() {
            let name = format!("{}, {class}, {n}", test.replace('_', " "));
            file.cases.extend(case(name, fields, &mut file.pinned));
        }
    }
    file
}

fn bytes(text: &str) -> Bytes {
    hex::decode(text).unwrap().into()
}

fn list<T>(text: &str, separator: char, item: impl Fn(&str) -> T) -> Vec<T> {
    text.split(separator).filter(|text| !text.is_empty()).map(item).collect()
}

fn pin(pinned: &mut Vec<Bytes>, params: &str) -> Bytes {
    let params = bytes(params);
    if !pinned.contains(&params) {
        pinned.push(params.clone());
    }
    params
}

fn case_of_lvmt(name: String, fields: &[&str], pinned: &mut Vec<Bytes>) -> Option<VectorCase> {
    let [_, class, params, root, proof, keys, values] = fields else { panic!("{fields:?}") };
    let params = pin(pinned, params);
    let proof = StateProof {
        backend: "lvmt".into(),
        version: 1,
        hash: "blake2b-256".into(),
        params: VerifierParams::from_bytes(&params).unwrap().digest(),
        keys: KeyForm::Plain,
        block: BlockRef::default(),
        as_of: None,
        root: B256::from_slice(&bytes(root)),
        bytes: bytes(proof),
    };
    let expect = match *class {
        "ok" => {
            ExpectedVerdict::Values(list(values, ',', |value| (value != "-").then(|| bytes(value))))
        }
        class => ExpectedVerdict::Error(class.into()),
    };
    Some(VectorCase {
        name,
        trusted: Some(VectorTrust::Root(proof.root)),
        keys: Some(list(keys, ',', bytes)),
        question: Some(VectorQuestion::proof(&proof)),
        expect,
        ..VectorCase::default()
    })
}

/// Ranges of one block are asked as proofs, of more blocks as provenance, which is of one key.
fn case_of_cole(name: String, fields: &[&str], pinned: &mut Vec<Bytes>) -> Option<VectorCase> {
    let [_, class, params, root, proof, keys, from, to, answer] = fields else {
        panic!("{fields:?}")
    };
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let keys = list(keys, ',', bytes);
    let proof = StateProof {
        backend: "cole".into(),
        version: 1,
        hash: "blake2b-256".into(),
        params: B256::from_slice(&pin(pinned, params)),
        keys: KeyForm::Plain,
        block: BlockRef::new(u64::MAX, B256::ZERO),
        as_of: (to < u64::MAX).then_some(to),
        root: B256::from_slice(&bytes(root)),
        bytes: bytes(proof),
    };
    let version = |text: &str| {
        let (block, value) = text.split_once(':').unwrap();
        Recorded { block: block.parse().unwrap(), value: (value != "-").then(|| bytes(value)) }
    };
    let versions = || answer.split(',').map(|all| list(all, ';', version));
    let mut case =
        VectorCase { name, trusted: Some(VectorTrust::Root(proof.root)), ..VectorCase::default() };
    if from == to {
        let newest = |all: Vec<Recorded>| all.into_iter().next()?.value;
        let values = versions().map(newest).take(keys.len()).collect();
        case.keys = Some(keys);
        case.question = Some(VectorQuestion::proof(&proof));
        case.expect = ExpectedVerdict::Values(values);
    } else if let [key] = &keys[..] {
        let key = BackendKey::decode(key).unwrap().plain().unwrap();
        let versions = versions().next().unwrap_or_default();
        let shown = versions.iter().map(|of| ExpectedVersion::new(of.block, of.value.clone()));
        case.expect = ExpectedVerdict::Versions(shown.collect());
        let answer = ProvenanceResponse::new(proof, key, from..=to, versions).unwrap();
        case.question = Some(VectorQuestion::Provenance(serde_json::to_value(answer).unwrap()));
    } else {
        return None;
    }
    if *class != "ok" {
        case.expect = ExpectedVerdict::Error((*class).into());
    }
    Some(case)
}
