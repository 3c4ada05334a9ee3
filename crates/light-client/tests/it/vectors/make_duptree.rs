//! Proofs of `duptree`: a tree of several layers whose keys came in several blocks, some of them
//! deleted, some of these set again.

use super::{
    chain::{TestChain, accounts, address, changes, slot_value, word},
    format::{VectorCase, VectorFile, VectorQuestion, VectorTrust},
    make::VectorMaker,
    make_mpt::answer_by,
};
use alloy_primitives::{B256, Bytes, U64, keccak256};
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_light_client::{StateKey, StateProofResponse};
use retrie_storage_prefix::duptree::{DupTree, DupTreeLayout};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u64 = 9;

struct DupTreeScene {
    chain: TestChain,
    present: Vec<StateKey>,
    deleted: Vec<StateKey>,
    absent: Vec<StateKey>,
}

fn scene() -> DupTreeScene {
    let random = &mut StdRng::seed_from_u64(11);
    let mut chain = TestChain::new(DupTree::new(DupTreeLayout::default()));
    chain.block(&BTreeMap::new());
    chain.block(&accounts(random, [0]));
    chain.block(&accounts(random, (0..60).map(|n| n % 4)));
    while chain.tip() < BLOCKS {
        let live = chain.states.last().unwrap();
        let mut changed = changes(random, live, 6);
        changed.extend(accounts(random, [0, 2]));
        // Deleted keys come back to their leaves.
        for key in chain.states.iter().flat_map(BTreeMap::keys).choose_multiple(random, 3) {
            if matches!(key, StateKey::Slot(..)) && !live.contains_key(key) {
                changed.insert(*key, Some(slot_value(random)));
            }
        }
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
    assert_eq!(deleted.len(), 2);
    let absent = vec![
        StateKey::Account(address(random)),
        StateKey::Slot(address(random), word(random)),
        StateKey::Slot(*present[0].address(), word(random)),
    ];
    DupTreeScene { chain, present, deleted, absent }
}

pub(crate) fn duptree() -> VectorFile {
    let mut make = VectorMaker::new("Proofs of duptree, valid and forged.", Vec::new());
    let scene = scene();
    let DupTreeScene { chain, present, deleted, absent } = &scene;
    for (what, key) in [
        ("an account", present[0]),
        ("a slot", present[7]),
        ("a deleted slot", deleted[0]),
        ("another deleted slot", deleted[1]),
        ("an absent account", absent[0]),
        ("a slot of an absent account", absent[1]),
        ("an absent slot", absent[2]),
        ("a key before all others", StateKey::Account(Default::default())),
        ("a key after all others", StateKey::Slot([0xff; 20].into(), B256::repeat_byte(0xff))),
    ] {
        make.proof(what, chain, BLOCKS, &[key]);
    }
    make.proof("no keys", chain, BLOCKS, &[]);
    let all: Vec<StateKey> = chain.states.last().unwrap().keys().copied().collect();
    make.proof("all keys", chain, BLOCKS, &all);
    let keys = [present[5], deleted[1], absent[0], present[1], present[6], absent[2]];
    make.proof("several keys, one twice", chain, BLOCKS, &[&keys[..], &keys[..1]].concat());
    let turned: Vec<_> = keys.iter().rev().copied().collect();
    make.proof("several keys, turned around", chain, BLOCKS, &turned);
    let edges = [present[0], absent[0], absent[1]];
    make.proof("three keys in the empty state", chain, 0, &edges);
    make.proof("no keys in the empty state", chain, 0, &[]);
    make.proof("three keys in a state of one account", chain, 1, &edges);

    let (of, number) = ("several keys", BLOCKS - 1);
    make.proof(of, chain, number, &keys);
    make.anyhow_forged(of, chain, number, &keys, 80);
    forged_parts(&mut make, of, &chain.prove(number, &keys).bytes);
    answers(&mut make, &scene);
    make.file
}

/// Wrong heights, leaves and hashes. Byte 0 is the height, byte 1 the number of leaves, the first
/// of which begins at byte 2; hashes stand at the end.
fn forged_parts(make: &mut VectorMaker, of: &str, proof: &[u8]) {
    let (height, count, len) = (proof[0], proof[1], proof.len());
    assert!(height > 5 && count > 3 && count < 0x80, "two layers, several leaves");
    make.longer_number(of, proof, 1);
    for (how, class, height) in [
        ("a level less", None, height - 1),
        ("a level more", None, height + 1),
        ("no levels", Some("malformed"), 0),
        ("more levels than numbers have bits", Some("malformed"), 64),
    ] {
        make.forged_bytes(of, how, class, (0, 1, Bytes::from([height])));
    }
    make.forged_bytes(of, "a leaf less", None, (1, 1, Bytes::from([count - 1])));
    make.forged_bytes(of, "a leaf more", None, (1, 1, Bytes::from([count + 1])));
    make.forged_bytes(of, "a hash less", Some("missing"), (len - 32, 32, Bytes::new()));
    let last = Bytes::copy_from_slice(&proof[len - 32..]);
    make.forged_bytes(of, "a hash more", Some("malformed"), (len, 0, last));
    make.forged_bytes(of, "half a hash more", Some("malformed"), (len, 0, vec![1; 16].into()));
    // Nothing but a top.
    make.forged_bytes(of, "no leaves", None, (1, len - 33, Bytes::from([0])));
}

fn answers(make: &mut VectorMaker, scene: &DupTreeScene) {
    let DupTreeScene { chain, present, absent, .. } = scene;
    let tip = chain.tip();
    let slot = present.iter().rev().find_map(|key| match key {
        StateKey::Slot(address, slot) => Some((*address, *slot)),
        StateKey::Account(_) => None,
    });
    let (address, slot) = slot.expect("one of the keys is a slot");
    let nothing = B256::repeat_byte(0x3c);
    let header = &chain.headers[tip as usize];
    let rlp = Bytes::from(alloy_rlp::encode(header));
    let by_header = VectorTrust::Header { hash: keccak256(&rlp), rlp };
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: header.state_root };
    for (name, address, slots, trusted) in [
        ("an answer under a header", address, vec![slot, nothing], by_header),
        ("an answer under a checkpoint", address, vec![slot], pinned.clone()),
        ("an answer of an absent account", *absent[0].address(), vec![nothing], pinned),
    ] {
        let keys = StateProofResponse::keys_of(address, slots.clone());
        let (proof, truth) = (chain.prove(tip, &keys), chain.truth(tip, &keys));
        let (json, truth) = answer_by(proof, truth, address, &slots);
        make.valid(name, trusted, None, VectorQuestion::Answer(json), truth);
    }
    let of = "an answer under a checkpoint";
    let storage = json!([{"key": slot, "value": "0x1"}]);
    make.forged_field_as(of, "another value", "storage", "claim", storage);
    make.forged_field_as(of, "an older state", "asOf", "kind", json!("0x1"));
    make.forged_field_as(of, "said to be of mpt", "backend", "kind", json!("mpt"));
    let with = Some(BTreeMap::from([("address".to_owned(), json!(absent[0].address()))]));
    make.forged(of, "of another account", None, VectorCase { with, ..VectorCase::default() });
}
