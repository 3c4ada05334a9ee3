//! The public API beyond verdicts, which the vectors test: JSON, accounts and slots by key, and the
//! sentences about the basis of trust.

use alloy_primitives::{Address, B256, U64, U256, keccak256};
use retrie_light_client::{
    Account, BlockRef, KeyForm, LightClientError, ProvenanceResponse, RootTrust, StateKey,
    StateProof, StateProofResponse, StateVerifier, TrustedRoot, ValueVersion, VersionValue,
    verify_code,
};
use retrie_storage_cole::ColeParams;
use retrie_storage_lvmt::VerifierParams;
use serde_json::{Value, json};
use std::sync::Arc;

/// A valid answer with two slots, the second one absent, of this file of vectors.
fn answer(file: &str, name: &str) -> StateProofResponse {
    let path = format!("{}/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = file["cases"].as_array().unwrap().iter().find(|case| case["name"] == name);
    serde_json::from_value(case.unwrap()["question"]["answer"].clone()).unwrap()
}

#[test]
fn answers_have_the_json_of_the_format_page() {
    let address = Address::repeat_byte(0xab);
    let proof = StateProof {
        backend: "lvmt".into(),
        version: 1,
        hash: "blake2b-256".into(),
        params: B256::repeat_byte(1),
        keys: KeyForm::Plain,
        block: BlockRef::new(256, B256::repeat_byte(2)),
        as_of: None,
        root: B256::repeat_byte(3),
        bytes: vec![4, 5].into(),
    };
    let account = Account { nonce: 0, balance: U256::from(10), code_hash: B256::repeat_byte(6) };
    let slots = [(B256::ZERO, U256::from(0x1234)), (B256::repeat_byte(7), U256::ZERO)];
    let answer = StateProofResponse::new(proof.clone(), address, Some(account), slots);
    let json = json!({
        "backend": "lvmt", "version": 1, "hash": "blake2b-256", "params": B256::repeat_byte(1),
        "block": "0x100", "blockHash": B256::repeat_byte(2), "root": B256::repeat_byte(3),
        "address": "0xabababababababababababababababababababab",
        "account": {"nonce": "0x0", "balance": "0xa", "codeHash": B256::repeat_byte(6)},
        "storage": [
            {"key": B256::ZERO, "value": "0x1234"},
            {"key": B256::repeat_byte(7), "value": "0x0"},
        ],
        "proof": "0x0405",
    });
    assert_eq!(serde_json::to_value(&answer).unwrap(), json);
    assert_eq!(serde_json::from_value::<StateProofResponse>(json).unwrap(), answer);
    assert_eq!(answer.to_proof(), proof);
    let keys = [0, 7].map(|byte| StateKey::Slot(address, B256::repeat_byte(byte)));
    assert_eq!(answer.keys(), [&[StateKey::Account(address)], &keys[..]].concat());
    let nobody = StateProofResponse::new(proof, address, None, []);
    assert_eq!(serde_json::to_value(nobody).unwrap()["account"], Value::Null);
}

/// An answer cannot choose in which form its keys are looked up under a root of a store's own.
#[test]
fn the_form_of_keys_comes_with_the_root() {
    let plain = answer("lvmt.json", "height 2: an answer under a checkpoint");
    let trusted = TrustedRoot::Root(plain.root);
    let params = VerifierParams::insecure_dev(2).unwrap();
    let verifier = StateVerifier::new().pin(Arc::new(params));
    assert!(verifier.verify_response(&plain, &trusted).is_ok());
    let other = |trusted, proof| LightClientError::OtherKeys { trusted, proof };
    let refused = verifier.clone().hashed_keys().verify_response(&plain, &trusted).unwrap_err();
    assert_eq!(refused, other(KeyForm::Hashed, KeyForm::Plain));

    let mut hashed = plain;
    hashed.keys = KeyForm::Hashed;
    let json = serde_json::to_value(&hashed).unwrap();
    assert_eq!(json["keys"], "hashed");
    assert_eq!(serde_json::from_value::<StateProofResponse>(json.clone()).unwrap(), hashed);
    let refused = verifier.verify_response(&hashed, &trusted).unwrap_err();
    assert_eq!(refused, other(KeyForm::Plain, KeyForm::Hashed));
    // The keys are not those of the proof.
    assert!(verifier.hashed_keys().verify_response(&hashed, &trusted).is_err());
    let mut unknown = json;
    unknown["keys"] = "salted".into();
    assert!(serde_json::from_value::<StateProofResponse>(unknown).is_err());
}

fn cole_proof() -> StateProof {
    StateProof {
        backend: "cole".into(),
        version: 1,
        hash: "blake2b-256".into(),
        params: ColeParams::default().digest(),
        keys: KeyForm::Plain,
        block: BlockRef::new(16, B256::repeat_byte(2)),
        as_of: None,
        root: B256::repeat_byte(3),
        bytes: vec![4, 5].into(),
    }
}

#[test]
fn old_states_and_provenance_have_the_json_of_the_format_page() {
    let address = Address::repeat_byte(0xab);
    let answer = StateProofResponse::new(cole_proof().as_of(10), address, None, []);
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!((&json["asOf"], &json["block"]), (&json!("0xa"), &json!("0x10")));
    assert_eq!(serde_json::from_value::<StateProofResponse>(json).unwrap(), answer);
    assert_eq!(answer.to_proof(), cole_proof().as_of(10));

    let account = Account { nonce: 1, balance: U256::from(10), code_hash: B256::repeat_byte(6) };
    let envelope = json!({
        "backend": "cole", "version": 1, "hash": "blake2b-256", "params": cole_proof().params,
        "block": "0x10", "blockHash": B256::repeat_byte(2), "root": B256::repeat_byte(3),
        "address": address, "from": "0x2", "to": "0xc", "proof": "0x0405",
    });
    let check = |key, versions: Vec<ValueVersion>, slot: Value, stated: Value| {
        let answer = ProvenanceResponse::new(cole_proof(), key, 2..=12, versions).unwrap();
        let mut json = envelope.clone();
        (json["slot"], json["versions"]) = (slot, stated);
        assert_eq!(serde_json::to_value(&answer).unwrap(), json);
        assert_eq!(serde_json::from_value::<ProvenanceResponse>(json).unwrap(), answer);
        assert_eq!((answer.key(), answer.blocks()), (key, 2..=12));
        assert_eq!(answer.to_proof(), cole_proof().as_of(12));
    };
    let deleted = ValueVersion { block: 12, value: None };
    let versions = vec![deleted.clone(), ValueVersion { block: 1, value: Some(account.encode()) }];
    let stated = json!([
        {"block": "0xc", "account": null},
        {"block": "0x1", "account": {"nonce": "0x1", "balance": "0xa", "codeHash": B256::repeat_byte(6)}},
    ]);
    check(StateKey::Account(address), versions, Value::Null, stated);
    let slot = B256::repeat_byte(7);
    let versions = vec![deleted, ValueVersion { block: 1, value: Some(vec![0x12, 0x34].into()) }];
    let stated = json!([{"block": "0xc", "value": "0x0"}, {"block": "0x1", "value": "0x1234"}]);
    check(StateKey::Slot(address, slot), versions, json!(slot), stated);

    let bad = vec![ValueVersion { block: 1, value: Some(vec![0].into()) }];
    let error = ProvenanceResponse::new(cole_proof(), StateKey::Slot(address, slot), 2..=12, bad);
    assert_eq!(error.unwrap_err().class(), "value");
}

#[test]
fn what_a_root_cannot_show_is_refused_before_its_proof_is_read() {
    let (address, proof) = (Address::ZERO, cole_proof());
    let trusted = TrustedRoot::Root(proof.root);
    let verifier = StateVerifier::new().pin(Arc::new(ColeParams::default()));
    let class = |proof: StateProof, verifier: &StateVerifier| {
        let answer = StateProofResponse::new(proof, address, None, []);
        verifier.verify_response(&answer, &trusted).unwrap_err().class()
    };
    assert_eq!(class(proof.clone().as_of(16), &verifier), "malformed");
    assert_eq!(class(proof.clone().as_of(17), &verifier), "block");
    assert_eq!(class(proof.clone(), &StateVerifier::new()), "kind");
    let other = ColeParams { fanout: 5, ..ColeParams::default() };
    assert_eq!(class(proof.clone(), &StateVerifier::new().pin(Arc::new(other))), "kind");
    let mpt = StateProof { backend: "mpt".into(), hash: "keccak256".into(), ..proof.clone() };
    let mpt = StateProof { params: B256::ZERO, ..mpt };
    assert_eq!(class(mpt.clone(), &verifier), "malformed");
    assert_eq!(class(mpt.clone().as_of(16), &verifier), "kind");

    let class = |proof: &StateProof, blocks| {
        let key = StateKey::Account(address);
        let answer = ProvenanceResponse::new(proof.clone(), key, blocks, Vec::new()).unwrap();
        verifier.verify_provenance(&answer, &trusted).unwrap_err().class()
    };
    assert_eq!(class(&proof, 3..=16), "malformed");
    assert_eq!(class(&proof, 3..=17), "block");
    let (from, to) = (4, 3);
    assert_eq!(class(&proof, from..=to), "malformed");
    assert_eq!(class(&mpt, 3..=16), "kind");
}

#[test]
fn provenance_must_state_all_versions_that_are_shown_and_no_others() {
    let path = format!("{}/vectors/cole-forged.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut seen = 0;
    for case in file["cases"].as_array().unwrap() {
        let Some(true) = case["expect"]["versions"].as_array().map(|all| all.len() > 1) else {
            continue;
        };
        let answer = case["question"]["provenance"].clone();
        let answer: ProvenanceResponse = serde_json::from_value(answer).unwrap();
        let params = ColeParams::from_digest(&answer.params).unwrap();
        let verifier = StateVerifier::new().pin(Arc::new(params));
        let trusted = TrustedRoot::Root(answer.root);
        let shown = verifier.verify_provenance(&answer, &trusted).unwrap();
        assert_eq!((shown.key, shown.blocks), (answer.key(), answer.blocks()));
        assert_eq!(shown.versions.len(), answer.versions.len());
        assert!(shown.trust.to_string().contains("were pinned"), "{}", shown.trust);
        let class = |change: &dyn Fn(&mut ProvenanceResponse)| {
            let mut answer = answer.clone();
            change(&mut answer);
            verifier.verify_provenance(&answer, &trusted).unwrap_err().class()
        };
        assert_eq!(class(&|answer| answer.versions.truncate(1)), "claim");
        assert_eq!(class(&|answer| answer.versions.reverse()), "claim");
        assert_eq!(class(&|answer| answer.versions.push(answer.versions[0])), "claim");
        assert_eq!(class(&|answer| answer.versions[0].block += U64::from(1)), "claim");
        let value = VersionValue::Value(U256::from(77));
        assert_eq!(class(&|answer| answer.versions[0].value = value), "claim");
        seen += 1;
    }
    assert!(seen > 2);
}

#[test]
fn what_was_shown_is_found_by_key_and_nothing_else_is() {
    let answer = answer("answers.json", "with slots");
    let trusted = TrustedRoot::Root(answer.root);
    let verified = StateVerifier::new().verify_response(&answer, &trusted).unwrap();
    let [present, absent] = [answer.storage[0], answer.storage[1]];
    assert_eq!(verified.slot(&answer.address, &present.key), Some(present.value));
    assert_eq!(verified.slot(&answer.address, &absent.key), Some(U256::ZERO));
    assert_eq!(verified.slot(&answer.address, &B256::ZERO), None);
    assert_eq!(verified.slot(&Address::ZERO, &present.key), None);
    let account = verified.account(&answer.address).unwrap();
    assert_eq!(account, answer.account.map(Account::from));
    assert_eq!(verified.account(&Address::ZERO), None);
}

#[test]
fn a_result_says_what_it_rests_on() {
    let answer = answer("lvmt.json", "height 2: an answer under a checkpoint");
    let params = VerifierParams::insecure_dev(2).unwrap();
    let verifier = StateVerifier::new().pin(Arc::new(params.clone()));
    let number = answer.block.to();
    let trusted = TrustedRoot::Checkpoint { number, root: answer.root };
    let trust = verifier.verify_response(&answer, &trusted).unwrap().trust;
    assert_eq!((trust.root, trust.reason), (answer.root, RootTrust::Checkpoint { number }));
    assert_eq!(trust.params.unwrap().digest, params.digest());
    let words = trust.to_string();
    assert!(words.contains("pinned by hand for block 9") && words.contains("INSECURE"), "{words}");

    let trusted = TrustedRoot::Root(answer.root);
    let words = verifier.verify_response(&answer, &trusted).unwrap().trust.to_string();
    assert!(words.contains("given by hand") && words.contains("the node's word"), "{words}");

    // Pinned parameters of another height do not serve.
    let other = StateVerifier::new().pin(Arc::new(VerifierParams::insecure_dev(3).unwrap()));
    let error = other.verify_response(&answer, &trusted).unwrap_err();
    assert!(matches!(error, LightClientError::UnknownParams { .. }), "{error}");
    assert!(error.to_string().contains(&params.digest().to_string()), "{error}");
}

#[test]
fn errors_name_blocks_roots_and_keys() {
    let mut answer = answer("answers.json", "under a checkpoint");
    let verify = |answer: &StateProofResponse, trusted: TrustedRoot| {
        StateVerifier::new().verify_response(answer, &trusted).unwrap_err().to_string()
    };
    let root = answer.root;
    let line = verify(&answer, TrustedRoot::Checkpoint { number: 77, root });
    assert!(line.contains("of block 5") && line.contains("of block 77"), "{line}");
    let line = verify(&answer, TrustedRoot::Root(B256::repeat_byte(9)));
    assert!(line.contains(&root.to_string()) && line.contains("checkpoint"), "{line}");
    answer.account.as_mut().unwrap().nonce = U64::from(1);
    let line = verify(&answer, TrustedRoot::Root(root));
    assert!(line.contains(&answer.address.to_string()), "{line}");
}

#[test]
fn code_is_known_by_its_hash() {
    let account = Account { code_hash: keccak256([1, 2]), ..Account::default() };
    assert_eq!(verify_code(&account, &[1, 2]), Ok(()));
    let error = verify_code(&account, &[1]).unwrap_err();
    assert_eq!(error.class(), "code");
    assert_eq!(verify_code(&Account::default(), &[]), Ok(()));
}
