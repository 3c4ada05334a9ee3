//! Proofs of `lvmt`: small heights, so that ways are long; parts of several nodes put together.

use super::{
    chain::{TestChain, accounts, address, changes, word},
    format::{ExpectedVerdict, VectorCase, VectorFile, VectorQuestion, VectorTrust},
    make::VectorMaker,
    make_mpt::answer,
};
use alloy_primitives::{Bytes, U64, keccak256};
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_light_client::{StateKey, StateValue};
use retrie_state_store::StateId;
use retrie_storage_lvmt::{Lvmt, LvmtParams, ProofShard, VerifierParams};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
};

/// Blocks of random changes, the first one empty; some keys of them, and some that were deleted.
struct LvmtScene {
    chain: TestChain,
    present: Vec<StateKey>,
    deleted: Vec<StateKey>,
    absent: Vec<StateKey>,
}

pub(crate) fn params(height: u8) -> Arc<LvmtParams> {
    Arc::new(LvmtParams::insecure_dev(height, true, &|_, _, _| ControlFlow::Continue(())).unwrap())
}

pub(crate) fn pin(params: &LvmtParams) -> Bytes {
    params.verifier().to_bytes().into()
}

fn scene(params: &Arc<LvmtParams>, shard: ProofShard, keys: usize, blocks: u64) -> LvmtScene {
    let random = &mut StdRng::seed_from_u64(2);
    let mut chain = TestChain::new(Lvmt::new(params.clone(), shard).unwrap());
    chain.block(&BTreeMap::new());
    chain.block(&accounts(random, [0]));
    chain.block(&accounts(random, (0..keys).map(|n| n % 4)));
    while chain.tip() < blocks {
        let changed = changes(random, chain.states.last().unwrap(), 6);
        chain.block(&changed);
    }
    let live = chain.states.last().unwrap();
    let ever: BTreeSet<_> = chain.states.iter().flat_map(|state| state.keys().copied()).collect();
    let pick = |random: &mut StdRng, keys: Vec<StateKey>, count| {
        let mut picked = keys.into_iter().choose_multiple(random, count);
        picked.sort_unstable();
        picked
    };
    let present = pick(random, live.keys().copied().collect(), 8);
    let deleted = ever.into_iter().filter(|key| !live.contains_key(key)).collect();
    let deleted = pick(random, deleted, 2);
    let absent = (0..3).map(|n| match n {
        0 => StateKey::Account(address(random)),
        1 => StateKey::Slot(address(random), word(random)),
        _ => StateKey::Slot(*present[0].address(), word(random)),
    });
    let absent = absent.collect();
    LvmtScene { chain, present, deleted, absent }
}

pub(crate) fn lvmt() -> VectorFile {
    let about = "Proofs of lvmt under development parameters of heights 1, 2, 3 and 8, valid and \
                 forged; parts of four proof shards put together.";
    let all: Vec<_> = [1, 2, 3, 8].into_iter().map(params).collect();
    let mut make = VectorMaker::new(about, all.iter().map(|params| pin(params)).collect());
    for params in &all {
        let height = params.height();
        let scene = scene(params, ProofShard::All, 10 << height.min(4), 9);
        of_height(&mut make, height, &scene);
        if height == 3 {
            shards(&mut make, params);
        }
    }
    make.file
}

fn of_height(make: &mut VectorMaker, height: u8, scene: &LvmtScene) {
    let LvmtScene { chain, present, deleted, absent } = scene;
    let tip = chain.tip();
    let prefix = format!("height {height}: ");
    let mut prove = |what: &str, number, keys: &[StateKey]| {
        make.proof(&format!("{prefix}{what}"), chain, number, keys);
    };
    for (n, key) in present.iter().take(3).enumerate() {
        prove(&format!("present key {n}"), tip, &[*key]);
    }
    prove("a deleted key", tip, &deleted[..1]);
    for (n, key) in absent.iter().take(2).enumerate() {
        prove(&format!("absent key {n}"), tip, &[*key]);
    }
    let mixed = [&present[3..], &absent[2..], &deleted[1..], &present[3..4]].concat();
    prove("several keys, one twice", tip, &mixed);
    prove("no keys", tip, &[]);
    prove("the empty state", 0, &[present[0], absent[0]]);
    let single = *chain.states[1].keys().next().unwrap();
    prove("a state of one key", 1, &[single, absent[0]]);
    let many: Vec<_> = present.iter().chain(absent).chain(deleted).copied().collect();
    prove("many keys", tip, &many);
    let asked = [present[0], absent[0], present[1]];
    prove("three keys", tip - 1, &asked);
    let of = format!("{prefix}three keys");
    let flips = if height == 2 { 90 } else { 25 };
    make.anyhow_forged(&of, chain, tip - 1, &asked, flips);
    make.forged_field_as(&of, "said to be of mpt", "backend", "kind", "mpt".into());
    let other = VerifierParams::insecure_dev(if height == 1 { 2 } else { 1 }).unwrap();
    make.forged_field_as(
        &of,
        "parameters of another height",
        "params",
        "kind",
        json!(other.digest()),
    );
    let turned: Vec<_> = asked.iter().rev().copied().collect();
    let expect = ExpectedVerdict::Values(chain.truth(tip - 1, &turned));
    make.add(VectorCase {
        name: format!("{of}: in another order, which does not matter"),
        of: Some(of.clone()),
        keys: Some(super::make::encoded(&turned)),
        expect,
        ..VectorCase::default()
    });

    // Values: replaced where they stand.
    let bytes = chain.prove(tip - 1, &asked).bytes;
    let value: StateValue = chain.truth(tip - 1, &asked[..1])[0].clone().unwrap();
    let at = bytes.windows(value.len()).position(|window| window == &value[..]).unwrap();
    let mut other = value.to_vec();
    *other.last_mut().unwrap() ^= 1;
    make.forged_bytes(&of, "another value", Some("root"), (at, other.len(), other.into()));
    // Behind kind, height and commitment: the first block.
    make.longer_number(&of, &bytes, 34);

    // As a node answers, on a chain of its own and beside another chain's headers.
    let own = present.iter().find(|key| matches!(key, StateKey::Slot(..))).unwrap();
    let StateKey::Slot(of_address, slot) = *own else { unreachable!() };
    let (json, truth) =
        answer(chain, tip, of_address, &[slot, word(&mut StdRng::seed_from_u64(3))]);
    let header = &chain.headers[tip as usize];
    let rlp = Bytes::from(alloy_rlp::encode(header));
    let hash = keccak256(&rlp);
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: header.state_root };
    let (alone, truth_alone) = answer(chain, tip, of_address, &[]);
    let of = format!("{prefix}an account under a checkpoint");
    make.valid(&of, pinned.clone(), None, VectorQuestion::Answer(alone), truth_alone);
    let question = VectorQuestion::Answer(json);
    let of = format!("{prefix}an answer under a checkpoint");
    make.valid(&of, pinned, None, question.clone(), truth.clone());
    let name = format!("{prefix}an answer under a header of its own chain");
    make.valid(&name, VectorTrust::Header { hash, rlp }, None, question, truth);
    let mut foreign = header.clone();
    foreign.state_root = keccak256(b"the root of another store");
    let rlp = Bytes::from(alloy_rlp::encode(&foreign));
    let hash = keccak256(&rlp);
    let with = Some(BTreeMap::from([("blockHash".to_owned(), json!(hash))]));
    let case = VectorCase {
        trusted: Some(VectorTrust::Header { hash, rlp }),
        with,
        ..VectorCase::default()
    };
    make.forged(&of, "under a header with the root of another store", Some("root"), case);
    make.forged_field(&of, "account", "claim", json!(null));
}

/// Four nodes with a part of the proof each.
fn shards(make: &mut VectorMaker, params: &Arc<LvmtParams>) {
    let nodes: Vec<_> =
        (0..4).map(|index| scene(params, format!("{index}/4").parse().unwrap(), 80, 9)).collect();
    let whole = scene(params, ProofShard::All, 80, 9);
    let keys = [whole.present[0], whole.present[3], whole.absent[1], whole.deleted[0]];
    let at = whole.chain.tip();
    let hash = whole.chain.hash(at);
    let parts: Vec<_> = nodes
        .iter()
        .map(|node| {
            let state = node.chain.store.at(StateId::Block(hash)).unwrap();
            state.prove_part(&keys).unwrap()
        })
        .collect();
    let bytes: Vec<_> = parts.iter().map(|part| part.bytes.clone()).collect();
    let mut combined = parts[0].clone();
    combined.bytes = retrie_storage_lvmt::combine(&bytes).unwrap().into();
    assert_eq!(combined, whole.chain.prove(at, &keys));
    let of = "shards: four parts put together";
    let truth = whole.chain.truth(at, &keys);
    let trusted = VectorTrust::Root(combined.root);
    make.valid(of, trusted, Some(&keys), VectorQuestion::proof(&combined), truth);
    for (n, part) in parts.iter().enumerate() {
        let edit = (0, combined.bytes.len(), part.bytes.clone());
        make.forged_bytes(of, &format!("part {n} alone"), Some("missing"), edit);
    }
    let three = retrie_storage_lvmt::combine(&bytes[..3]);
    assert!(three.is_err(), "the fourth part is needed");
    let edit = (0, 1, Bytes::from([2]));
    make.forged_bytes(of, "said to have holes", Some("malformed"), edit);
}

/// A proof of full height. Its tables take 400 MB, so it is not made again in every test.
pub(crate) fn full_height() -> VectorFile {
    let about = "Proofs of lvmt under development parameters of height 16.";
    let params = params(16);
    let mut make = VectorMaker::new(about, vec![pin(&params)]);
    let scene = scene(&params, ProofShard::All, 400, 5);
    let tip = scene.chain.tip();
    make.proof("a present key", &scene.chain, tip, &scene.present[..1]);
    make.proof("an absent key", &scene.chain, tip, &scene.absent[..1]);
    let keys = [&scene.present[..], &scene.absent].concat();
    make.proof("several keys", &scene.chain, tip, &keys);
    let len = scene.chain.prove(tip, &scene.present[..1]).bytes.len();
    for at in [40, len / 3, len / 2, len - 10] {
        let byte = scene.chain.prove(tip, &scene.present[..1]).bytes[at] ^ 4;
        let edit = (at, 1, Bytes::from([byte]));
        make.forged_bytes("a present key", &format!("byte {at} changed"), None, edit);
    }
    make.file
}
