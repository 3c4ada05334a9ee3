//! What the tests of `lvmt`'s verifier ask it, forged with all means: a choice of it as vectors.

use crate::format::{Case, Expect, File, Question, Trusted};
use alloy_primitives::{B256, Bytes, hex};
use retrie_light_client::{BlockRef, StateProof, VerifierParams};
use std::collections::BTreeMap;

/// How many of one test with one verdict.
const OF_A_KIND: usize = 4;

/// A choice of the lines of a record.
pub(crate) fn choose(record: &str) -> File {
    let about = "Proofs of lvmt whose Merkle proofs fit what is shown, made by somebody who knows \
                 the whole history: recorded from the tests of the verifier in storage-lvmt.";
    let mut kinds = BTreeMap::<_, Vec<Vec<&str>>>::new();
    for line in record.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        kinds.entry((fields[0], fields[1])).or_default().push(fields);
    }
    let mut file = File { about: about.into(), ..File::default() };
    for lines in kinds.values_mut() {
        lines.sort_by_key(|fields| (fields[4].len(), fields[4], fields[5]));
        lines.dedup_by_key(|fields| (fields[4], fields[5]));
        // Of the shorter half.
        let step = (lines.len() / 2 / OF_A_KIND).max(1);
        for (n, fields) in lines.iter().step_by(step).take(OF_A_KIND).enumerate() {
            file.cases.push(case(n, fields, &mut file.pinned));
        }
    }
    file
}

fn bytes(text: &str) -> Bytes {
    hex::decode(text).unwrap().into()
}

fn list<T>(text: &str, item: impl Fn(&str) -> T) -> Vec<T> {
    text.split(',').filter(|text| !text.is_empty()).map(item).collect()
}

fn case(n: usize, fields: &[&str], pinned: &mut Vec<Bytes>) -> Case {
    let [test, class, params, root, proof, keys, values] = fields else { panic!("{fields:?}") };
    let params = bytes(params);
    if !pinned.contains(&params) {
        pinned.push(params.clone());
    }
    let proof = StateProof {
        backend: "lvmt".into(),
        version: 1,
        hash: "blake2b-256".into(),
        params: VerifierParams::from_bytes(&params).unwrap().digest(),
        block: BlockRef::default(),
        root: B256::from_slice(&bytes(root)),
        bytes: bytes(proof),
    };
    let expect = match *class {
        "ok" => Expect::Values(list(values, |value| (value != "-").then(|| bytes(value)))),
        class => Expect::Error(class.into()),
    };
    Case {
        name: format!("{}, {class}, {n}", test.replace('_', " ")),
        trusted: Some(Trusted::Root(proof.root)),
        keys: Some(list(keys, bytes)),
        question: Some(Question::proof(&proof)),
        expect,
        ..Case::default()
    }
}
