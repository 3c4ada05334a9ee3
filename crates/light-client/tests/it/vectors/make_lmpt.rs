//! Proofs of `lmpt`: keys whose newest leaf is in each of the three tries, values and tombstones.

use super::{
    chain::{TestChain, accounts, address, changes, word},
    format::{VectorCase, VectorFile, VectorQuestion, VectorTrust},
    make::VectorMaker,
    make_mpt::answer_by,
};
use alloy_primitives::{B256, Bytes, U64, keccak256};
use rand::{SeedableRng, rngs::StdRng};
use retrie_light_client::{StateKey, StateProofResponse};
use retrie_storage_lmpt::{Lmpt, LmptParams};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Boundaries are blocks 4, 7, 10 and 13: that at 10 publishes what blocks 1 to 3 did, merged.
const INTERVAL: u64 = 3;
/// The block that is proven; there is one more.
const BLOCKS: u64 = 12;
const FIRST_OF_INTERMEDIATE: usize = 7;
const FIRST_OF_DELTA: usize = 10;

struct LmptScene {
    chain: TestChain,
    /// Keys that were last changed in the delta, in the intermediate trie and before: each with a
    /// value, and without.
    set: [StateKey; 3],
    gone: [StateKey; 3],
    absent: Vec<StateKey>,
}

fn scene() -> LmptScene {
    let random = &mut StdRng::seed_from_u64(12);
    let params = LmptParams { interval: INTERVAL, ..LmptParams::default() };
    let mut chain = TestChain::new(Lmpt::new(params).expect("an interval"));
    chain.block(&BTreeMap::new());
    chain.block(&accounts(random, [0]));
    chain.block(&accounts(random, (0..60).map(|n| n % 4)));
    while chain.tip() <= BLOCKS {
        let mut changed = changes(random, chain.states.last().unwrap(), 12);
        changed.extend(accounts(random, [0, 2]));
        chain.block(&changed);
    }
    let (live, before) = (&chain.states[BLOCKS as usize], &chain.states[..BLOCKS as usize]);
    let ever: BTreeSet<_> = before.iter().flat_map(|state| state.keys().copied()).collect();
    // The first block of the layer in which a key was changed last.
    let layer = |key: &StateKey| {
        let at = |number: usize| chain.states[number].get(key);
        let last = (1..=BLOCKS as usize).rev().find(|n| at(*n) != at(*n - 1)).unwrap_or(0);
        match last {
            FIRST_OF_DELTA.. => 0,
            FIRST_OF_INTERMEDIATE.. => 1,
            _ => 2,
        }
    };
    let pick = |of: usize, is_live: bool| {
        let mut found = ever.iter().filter(|key| live.contains_key(*key) == is_live);
        *found.find(|key| layer(key) == of).expect("enough is changed in each layer")
    };
    let (set, gone) = ([0, 1, 2].map(|of| pick(of, true)), [0, 1, 2].map(|of| pick(of, false)));
    let absent = vec![
        StateKey::Account(address(random)),
        StateKey::Slot(address(random), word(random)),
        StateKey::Slot(*set[0].address(), word(random)),
    ];
    LmptScene { chain, set, gone, absent }
}

pub(crate) fn lmpt() -> VectorFile {
    let mut make = VectorMaker::new("Proofs of lmpt, valid and forged.", Vec::new());
    let scene = scene();
    let LmptScene { chain, set, gone, absent } = &scene;
    for (at, layer) in ["the delta", "the intermediate trie", "the snapshot"].iter().enumerate() {
        make.proof(&format!("set in {layer}"), chain, BLOCKS, &[set[at]]);
        make.proof(&format!("gone in {layer}"), chain, BLOCKS, &[gone[at]]);
    }
    for (what, key) in [
        ("an absent account", absent[0]),
        ("a slot of an absent account", absent[1]),
        ("an absent slot", absent[2]),
    ] {
        make.proof(what, chain, BLOCKS, &[key]);
    }
    make.proof("no keys", chain, BLOCKS, &[]);
    let all: Vec<StateKey> = chain.states[BLOCKS as usize].keys().copied().collect();
    make.proof("all keys", chain, BLOCKS, &all);
    let keys = [set[2], gone[0], absent[0], set[0], gone[1], set[1], absent[2]];
    make.proof("several keys, one twice", chain, BLOCKS, &[&keys[..], &keys[..1]].concat());
    let turned: Vec<_> = keys.iter().rev().copied().collect();
    make.proof("several keys, turned around", chain, BLOCKS, &turned);
    make.proof("three keys in the empty state", chain, 0, absent);
    make.proof("no keys in the empty state", chain, 0, &[]);
    make.proof("three keys in a state of one account", chain, 1, absent);
    make.proof("three keys at a boundary", chain, FIRST_OF_DELTA as u64, absent);

    let (of, number) = ("several keys", BLOCKS);
    make.proof(of, chain, number, &keys);
    make.anyhow_forged(of, chain, number, &keys, 80);
    forged_parts(&mut make, of, &chain.prove(number, &keys).bytes);
    forged_layers(&mut make, chain, set, gone);
    answers(&mut make, &scene);
    make.file
}

/// Where the parts of a proof begin, behind the three roots: delta, intermediate, snapshot, end.
fn parts(proof: &[u8]) -> [usize; 4] {
    let number = |at: &mut usize| {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = proof[*at];
            *at += 1;
            number |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    };
    let mut at = 96;
    [0, 1, 2, 3].map(|part| {
        let start = at;
        if part < 3 {
            for _ in 0..number(&mut at) {
                let len = number(&mut at);
                at += len;
            }
        }
        start
    })
}

/// Wrong counts, lengths and whole parts.
fn forged_parts(make: &mut VectorMaker, of: &str, proof: &[u8]) {
    let at = parts(proof);
    assert_eq!(at[3], proof.len());
    let part = |n: usize| Bytes::copy_from_slice(&proof[at[n]..at[n + 1]]);
    make.longer_number(of, proof, 96);
    for (n, name) in ["delta", "intermediate", "snapshot"].iter().enumerate() {
        let len = at[n + 1] - at[n];
        let none = Bytes::from([0]);
        make.forged_bytes(
            of,
            &format!("no nodes of the {name}"),
            Some("missing"),
            (at[n], len, none),
        );
        let count = proof[at[n]];
        assert!(count > 1 && count < 0x7f);
        for (how, count) in [("less", count - 1), ("more", count + 1)] {
            let how = format!("a node {how} of the {name}");
            make.forged_bytes(of, &how, None, (at[n], 1, Bytes::from([count])));
        }
        let how = format!("more nodes of the {name} than bytes");
        let many = Bytes::from_static(&[0xff, 0xff, 0x7f]);
        make.forged_bytes(of, &how, Some("malformed"), (at[n], 1, many));
        let empty = retrie_storage_mpt::TrieHash::Keccak256.empty_root();
        let how = format!("the {name} said to be empty");
        make.forged_bytes(of, &how, Some("root"), (32 * n, 32, empty.to_vec().into()));
    }
    for (n, names) in [(0, "delta and intermediate"), (1, "intermediate and snapshot")] {
        let swapped = [part(n + 1), part(n)].concat().into();
        let len = at[n + 2] - at[n];
        make.forged_bytes(of, &format!("parts of {names} swapped"), None, (at[n], len, swapped));
        let roots = [&proof[32 * n + 32..32 * n + 64], &proof[32 * n..32 * n + 32]].concat().into();
        make.forged_bytes(
            of,
            &format!("roots of {names} swapped"),
            Some("root"),
            (32 * n, 64, roots),
        );
    }
}

/// Proofs that hide a newer value: for a key that was set or deleted in a newer layer, the path to
/// an older leaf; and a layer of another block that has been merged since.
fn forged_layers(
    make: &mut VectorMaker,
    chain: &TestChain,
    set: &[StateKey; 3],
    gone: &[StateKey; 3],
) {
    for (name, key) in [
        ("set in the delta", set[0]),
        ("gone in the delta", gone[0]),
        ("gone in the intermediate trie", gone[1]),
    ] {
        let own = chain.prove(BLOCKS, &[key]).bytes;
        let before = chain.prove(FIRST_OF_DELTA as u64 - 1, &[key]).bytes;
        let (at, old) = (parts(&own), parts(&before));
        let whole = |bytes: Bytes| (0, own.len(), bytes);
        // The roots of this block, the parts of one before.
        let nodes = [&own[..96], &before[96..]].concat();
        make.forged_bytes(name, "parts of an older block", None, whole(nodes.into()));
        let edit = (0, own.len(), before.clone());
        make.forged_bytes(name, "roots and parts of an older block", Some("root"), edit);
        let hidden = [&own[..96], &[0], &before[old[1]..]].concat();
        make.forged_bytes(name, "an older leaf, nothing of the delta", None, whole(hidden.into()));
        let more = [&own[..at[2]], &before[old[2]..]].concat();
        if more[..] != own[..] {
            make.forged_bytes(name, "a part that is not needed", None, whole(more.into()));
        }
    }
}

fn answers(make: &mut VectorMaker, scene: &LmptScene) {
    let LmptScene { chain, set, gone, absent } = scene;
    let tip = chain.tip();
    let slot = set.iter().chain(gone).find_map(|key| match key {
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
    make.forged_field_as(of, "said to be of mpt", "backend", "malformed", json!("mpt"));
    make.forged_field_as(of, "said to be of duptree", "backend", "kind", json!("duptree"));
    make.forged_field_as(of, "of other parameters", "params", "kind", json!(B256::repeat_byte(1)));
    let with = Some(BTreeMap::from([("address".to_owned(), json!(absent[0].address()))]));
    make.forged(of, "of another account", None, VectorCase { with, ..VectorCase::default() });
}
