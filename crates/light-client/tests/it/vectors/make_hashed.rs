//! Proofs of stores with hashed keys: one of each kind, the whole beside the same state with plain
//! keys. Those of `pbt`, which needs codes, are in `make_pbt`.

use super::{
    chain::{TestChain, accounts, address, changes, word},
    format::{
        ExpectedVerdict, ExpectedVersion, VectorCase, VectorFile, VectorQuestion, VectorTrust,
    },
    make::VectorMaker,
    make_lvmt,
    make_mpt::answer,
};
use alloy_primitives::{Bytes, U64};
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_light_client::{KeyForm, ProvenanceResponse, StateKey, StateProofResponse};
use retrie_state::AnyBackend;
use retrie_state_store::StateId;
use retrie_storage_bavl::{Bavl, ChunkEntries};
use retrie_storage_cole::{Cole, ColeParams};
use retrie_storage_lmpt::{Lmpt, LmptParams};
use retrie_storage_lvmt::{Lvmt, ProofShard};
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_prefix::{
    duptree::{DupTree, DupTreeLayout},
    prefix::Prefix,
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const BLOCKS: u64 = 8;

/// The same random blocks on two stores.
pub(crate) struct HashedScene {
    pub(crate) hashed: TestChain,
    pub(crate) plain: TestChain,
    /// Two accounts, three slots, a deleted one, one that never was, and an account that never was.
    pub(crate) keys: Vec<StateKey>,
}

impl HashedScene {
    fn new(make: &dyn Fn() -> Arc<dyn AnyBackend>) -> Self {
        let random = &mut StdRng::seed_from_u64(38);
        let [mut hashed, mut plain] =
            [KeyForm::Hashed, KeyForm::Plain].map(|keys| TestChain::on(make(), keys));
        let mut block = |changes: &BTreeMap<_, _>| {
            hashed.block(changes);
            plain.block(changes);
            hashed.states.last().unwrap().clone()
        };
        block(&accounts(random, [2]));
        let mut live = block(&accounts(random, (0..200).map(|n| n % 4)));
        let mut ever = live.clone();
        for _ in 2..=BLOCKS {
            live = block(&changes(random, &live, 5));
            ever.extend(live.clone());
        }
        let (accounts, slots): (Vec<_>, Vec<_>) =
            live.keys().copied().partition(|key| matches!(key, StateKey::Account(_)));
        let mut keys = accounts.into_iter().choose_multiple(random, 2);
        keys.extend(slots.into_iter().choose_multiple(random, 3));
        keys.extend(ever.into_keys().filter(|key| !live.contains_key(key)).take(1));
        keys.push(StateKey::Slot(*keys[0].address(), word(random)));
        keys.push(StateKey::Account(address(random)));
        assert_eq!(keys.len(), 8);
        Self { hashed, plain, keys }
    }
}

/// Makes a store: each of a scene has one of its own.
type StoreMaker<'a> = &'a dyn Fn() -> Arc<dyn AnyBackend>;

pub(crate) fn hashed() -> VectorFile {
    let about = "Proofs of stores with hashed keys, valid and forged, and of the same states with \
                 plain keys, under the root of a store with hashed keys.";
    let params = make_lvmt::params(2);
    let cole = ColeParams { memory_pairs: 24, size_ratio: 2, ..ColeParams::default() };
    let pinned = vec![make_lvmt::pin(&params), Bytes::from(cole.digest().0)];
    let mut make = VectorMaker::hashed(about, pinned);
    let lvmt = || Arc::new(Lvmt::new(params.clone(), ProofShard::All).unwrap()) as Arc<_>;
    let stores: [(&str, StoreMaker<'_>); 9] = [
        ("mpt", &|| Arc::new(Mpt::new())),
        ("mpt-archive", &|| Arc::new(MptArchive::new(TrieHash::Keccak256))),
        ("mpt-archive of BLAKE2b", &|| Arc::new(MptArchive::new(TrieHash::Blake2b256))),
        ("prefix", &|| Arc::new(Prefix::default())),
        ("duptree", &|| Arc::new(DupTree::new(DupTreeLayout::default()))),
        ("lmpt", &|| {
            Arc::new(Lmpt::new(LmptParams { interval: 3, ..LmptParams::default() }).unwrap())
        }),
        ("bavl", &|| Arc::new(Bavl::new(ChunkEntries::new(20).unwrap()))),
        ("lvmt", &lvmt),
        ("cole", &|| Arc::new(Cole::new(cole).unwrap())),
    ];
    for (name, store) in stores {
        let scene = HashedScene::new(store);
        proofs(&mut make, name, &scene);
        answers(&mut make, name, &scene);
        if name == "cole" {
            provenance(&mut make, &scene);
        }
    }
    make.file
}

pub(crate) fn proofs(make: &mut VectorMaker, name: &str, scene: &HashedScene) {
    let HashedScene { hashed, plain, keys } = scene;
    let (of, number) = (&*format!("{name}: several keys"), hashed.tip() - 1);
    for (at, what) in
        [(0, "an account"), (2, "a slot"), (5, "a deleted slot"), (6, "no slot"), (7, "no account")]
    {
        make.proof(&format!("{name}: {what}"), hashed, number, &keys[at..=at]);
    }
    make.proof(&format!("{name}: no keys"), hashed, number, &[]);
    make.proof(of, hashed, number, keys);
    make.anyhow_forged(of, hashed, number, keys, 12);
    make.forged_field_as(of, "said to be of plain keys", "keys", "kind", json!("plain"));

    // The root of a store with plain keys is another one, unless it is Ethereum's.
    let (proof, truth) = (plain.prove(number, keys), plain.truth(number, keys));
    let is_ethereum = proof.root == hashed.headers[number as usize].state_root;
    let expect = match is_ethereum {
        true => ExpectedVerdict::Values(truth),
        false => ExpectedVerdict::Error("kind".into()),
    };
    let root = VectorTrust::Root(proof.root);
    let what = format!("{name}: keys of a store with plain ones");
    make.shows(&what, root, Some(keys), VectorQuestion::proof(&proof), expect);
    let edit = (0, hashed.prove(number, keys).bytes.len(), proof.bytes);
    make.forged_bytes(of, "the proof of the same keys in plain form", None, edit);
}

pub(crate) fn answers(make: &mut VectorMaker, name: &str, scene: &HashedScene) {
    let HashedScene { hashed, keys, .. } = scene;
    let tip = hashed.tip();
    let StateKey::Slot(address, slot) = keys[2] else { panic!("it is a slot") };
    let root = hashed.headers[tip as usize].state_root;
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root };
    let (json, truth) = answer(hashed, tip, address, &[slot]);
    let of = &*format!("{name}: an answer");
    make.valid(of, pinned, None, VectorQuestion::Answer(json), truth);
    let storage = json!([{"key": slot, "value": "0x1"}]);
    make.forged_field_as(of, "another value", "storage", "claim", storage);
    // The hash of a slot is no slot.
    let storage = json!([{"key": KeyForm::Hashed.slot(&slot), "value": "0x1"}]);
    let with = Some(BTreeMap::from([("storage".to_owned(), storage)]));
    make.forged(of, "by the hash of the slot", None, VectorCase { with, ..VectorCase::default() });
    let keys = StateProofResponse::keys_of(address, [slot]);
    assert_eq!(hashed.prove(tip, &keys).keys, KeyForm::Hashed);
}

fn provenance(make: &mut VectorMaker, scene: &HashedScene) {
    let state = scene.hashed.store.at(StateId::Tip).unwrap();
    for (key, what) in [(scene.keys[0], "an account"), (scene.keys[5], "a deleted slot")] {
        let blocks = 1..=BLOCKS - 2;
        let (versions, proof) = state.versions(&[key], blocks.clone()).unwrap();
        let versions: Vec<_> = versions.into_iter().flatten().collect();
        let shown =
            versions.iter().map(|of| ExpectedVersion::new(of.block, of.value.clone())).collect();
        let trusted = VectorTrust::Root(proof.root);
        let answer = ProvenanceResponse::new(proof, key, blocks, versions).unwrap();
        let question = VectorQuestion::Provenance(serde_json::to_value(answer).unwrap());
        let name = format!("cole: versions of {what}");
        make.shows(&name, trusted, None, question, ExpectedVerdict::Versions(shown));
        make.forged_field_as(&name, "said to be of plain keys", "keys", "kind", json!("plain"));
    }
}
