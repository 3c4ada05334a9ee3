//! Proofs of `cole`: stores whose levels are so small that most pairs have been merged more than
//! once, read at the tip, as of older blocks, and over ranges of blocks.

use super::{
    chain::{TestChain, accounts, address, changes, slot_value, word},
    format::{
        ExpectedVerdict, ExpectedVersion, VectorCase, VectorFile, VectorQuestion, VectorTrust,
    },
    make::VectorMaker,
    make_mpt::answer_by,
};
use alloy_primitives::{B256, Bytes, U64, keccak256};
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_light_client::{ProvenanceResponse, StateKey, StateProofResponse};
use retrie_state::BlockRef;
use retrie_state_store::StateId;
use retrie_storage_cole::{Cole, ColeParams};
use serde_json::{Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

const BLOCKS: u64 = 70;

/// Blocks of random changes, the first one empty or large; some keys of them.
struct ColeScene {
    name: &'static str,
    chain: TestChain,
    present: Vec<StateKey>,
    /// Those that were never set again.
    deleted: Vec<StateKey>,
    absent: Vec<StateKey>,
    /// The first block whose state can be read.
    horizon: u64,
}

fn small() -> ColeParams {
    ColeParams { memory_pairs: 24, size_ratio: 2, ..ColeParams::default() }
}

/// Stores by name, with the number of slots of each account in their first block.
fn stores() -> [(&'static str, ColeParams, usize); 4] {
    let synchronous = ColeParams { async_merge: false, size_ratio: 3, fanout: 2, ..small() };
    [
        ("COLE*", small(), 0),
        ("COLE", synchronous, 0),
        ("a large first block", ColeParams { fanout: 16, ..small() }, 20),
        ("pruned", ColeParams { keep_history: 20, ..small() }, 0),
    ]
}

/// Stores with version trees. They forget nothing under the root.
fn stores_with_trees() -> [(&'static str, ColeParams, usize); 2] {
    let trees = ColeParams { version_trees: true, ..small() };
    let pruned = ColeParams { keep_history: 20, ..trees };
    [("version trees", trees, 12), ("pruned version trees", pruned, 0)]
}

impl ColeScene {
    fn new(name: &'static str, params: ColeParams, first: usize) -> Self {
        let random = &mut StdRng::seed_from_u64(7);
        let mut chain = TestChain::new(Cole::new(params).unwrap());
        chain.block(&accounts(random, std::iter::repeat_n(first, first)));
        chain.block(&accounts(random, (0..9).map(|n| n % 4)));
        while chain.tip() < BLOCKS {
            let live = chain.states.last().unwrap();
            // Of the large store a fiftieth, so that most of it stays in its first run.
            let mut changed = changes(random, live, live.len() as u32 / 6);
            if chain.tip() % 9 == 4 {
                changed.extend(accounts(random, [1]));
            }
            for key in chain.states.iter().flat_map(BTreeMap::keys).choose_multiple(random, 2) {
                if matches!(key, StateKey::Slot(..)) && !live.contains_key(key) {
                    changed.insert(*key, Some(slot_value(random)));
                }
            }
            chain.block(&changed);
        }
        let live = chain.states.last().unwrap();
        let ever: BTreeSet<_> =
            chain.states.iter().flat_map(|state| state.keys().copied()).collect();
        let (accounts, slots): (Vec<_>, Vec<_>) =
            live.keys().copied().partition(|key| matches!(key, StateKey::Account(_)));
        // In turn an account and a slot.
        let [accounts, slots] =
            [accounts, slots].map(|keys| keys.into_iter().choose_multiple(random, 3).into_iter());
        let present: Vec<_> = accounts.zip(slots).flat_map(|(one, other)| [one, other]).collect();
        let deleted: Vec<_> = ever.into_iter().filter(|key| !live.contains_key(key)).collect();
        assert!(deleted.len() > 1, "{name}");
        let mut absent = vec![
            StateKey::Account(address(random)),
            StateKey::Slot(*present[0].address(), word(random)),
        ];
        // Among this many keys a filter lets one through; its neighbours take more than a filter
        // block.
        let longest = (0..400).map(|_| StateKey::Slot(address(random), word(random)));
        absent.extend(longest.max_by_key(|key| chain.prove(chain.tip(), &[*key]).bytes.len()));
        let horizon = *chain.store.history_kept().unwrap().unwrap().start();
        let scene = Self { name, chain, present, deleted, absent, horizon };
        scene.check_shape(&params);
        scene
    }

    /// There are several levels and runs, and with asynchronous merges some that are under way.
    fn check_shape(&self, params: &ColeParams) {
        // Of no key: kind, horizon, two digests of groups in memory, numbers of levels and runs.
        let bytes = self.chain.prove(self.chain.tip(), &[]).bytes;
        assert_eq!(params.keep_history > 0, self.horizon > 0);
        assert_eq!(bytes[1], if params.version_trees { 0 } else { self.horizon as u8 });
        let counts = &bytes[2 + 2 * 33..];
        let (levels, _) = counts[1..][..2 * usize::from(counts[0])].as_chunks::<2>();
        let runs: u32 = levels.iter().flatten().map(|count| u32::from(*count)).sum();
        let is_merging = levels.iter().any(|[_, merging]| *merging > 0);
        assert!(levels.len() > 2 && runs > 3, "{}: {levels:?}", self.name);
        assert_eq!(is_merging, params.async_merge, "{}: {levels:?}", self.name);
    }

    fn named(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }

    fn root(&self) -> B256 {
        self.chain.headers[self.chain.tip() as usize].state_root
    }

    /// The answer of `state_getProvenance` at the tip.
    fn provenance(
        &self,
        key: StateKey,
        blocks: RangeInclusive<u64>,
    ) -> (Json, Vec<ExpectedVersion>) {
        let tip = self.chain.store.at(StateId::Tip).unwrap();
        let (versions, proof) = tip.versions(&[key], blocks.clone()).unwrap();
        let versions = versions.into_iter().flatten().collect::<Vec<_>>();
        let shown =
            versions.iter().map(|of| ExpectedVersion::new(of.block, of.value.clone())).collect();
        let answer = ProvenanceResponse::new(proof, key, blocks, versions).unwrap();
        (serde_json::to_value(answer).unwrap(), shown)
    }
}

pub(crate) fn cole() -> VectorFile {
    let about = "Proofs of cole in stores with levels of a few pairs, at the latest block, as of \
                 older ones, and over ranges of blocks: valid and forged.";
    of_stores(about, &stores())
}

pub(crate) fn cole_trees() -> VectorFile {
    let about = "Proofs of cole in stores with version trees and levels of a few pairs, one of which \
                 has pruned old versions: valid and forged.";
    of_stores(about, &stores_with_trees())
}

fn of_stores(about: &str, stores: &[(&'static str, ColeParams, usize)]) -> VectorFile {
    let pinned = stores.iter().map(|(_, params, _)| Bytes::from(params.digest().0));
    let mut pinned: Vec<_> = pinned.collect();
    // With version trees the history that is kept is no parameter.
    pinned.dedup();
    let mut make = VectorMaker::new(about, pinned);
    for &(name, params, first) in stores {
        let scene = ColeScene::new(name, params, first);
        proofs(&mut make, &scene);
        as_of(&mut make, &scene);
        answers(&mut make, &scene);
        provenance(&mut make, &scene);
        if scene.horizon > 0 && !params.version_trees {
            pruned(&mut make, &scene);
        }
    }
    make.file
}

/// Of the latest state.
fn proofs(make: &mut VectorMaker, scene: &ColeScene) {
    let ColeScene { chain, present, deleted, absent, .. } = scene;
    let tip = chain.tip();
    let mut prove = |what: &str, number, keys: &[StateKey]| {
        make.proof(&scene.named(what), chain, number, keys);
    };
    for (n, key) in present.iter().take(3).enumerate() {
        prove(&format!("present key {n}"), tip, &[*key]);
    }
    prove("a deleted key", tip, &deleted[..1]);
    prove("an absent account", tip, &absent[..1]);
    prove("an absent slot", tip, &absent[1..2]);
    prove("an absent key that a filter lets through", tip, &absent[2..]);
    prove("no keys", tip, &[]);
    prove("the first block", 0, &[present[0], absent[0]]);
    let mixed = [&present[..], &absent[..2], &deleted[..2], &present[3..4]].concat();
    prove("several keys, one twice", tip, &mixed);
    let asked = [present[0], absent[0], deleted[1]];
    prove("three keys", tip - 1, &asked);
    let of = scene.named("three keys");
    make.anyhow_forged(&of, chain, tip - 1, &asked, 30);
    make.forged_field_as(&of, "said to be of lvmt", "backend", "kind", "lvmt".into());
    let unknown = ColeParams { memory_pairs: 25, ..small() }.digest();
    make.forged_field_as(&of, "parameters that are not pinned", "params", "kind", json!(unknown));
    // The horizon, and how many runs there are.
    let bytes = chain.prove(tip - 1, &asked).bytes;
    let raised = Bytes::from([bytes[1] ^ 1]);
    make.forged_bytes(&of, "another horizon", Some("root"), (1, 1, raised));
    make.longer_number(&of, &bytes, 1);

    // Values: replaced where they stand, behind their length.
    let of = scene.named("present key 0");
    let bytes = chain.prove(tip, &present[..1]).bytes;
    let value = chain.truth(tip, &present[..1]).remove(0).unwrap();
    let mut stands = vec![value.len() as u8 + 1];
    stands.extend(&value);
    let at = bytes.windows(stands.len()).rposition(|window| window == stands).unwrap();
    let gone = (at, stands.len(), Bytes::from([0]));
    make.forged_bytes(&of, "said to be deleted", Some("root"), gone);
    *stands.last_mut().unwrap() ^= 1;
    let other = (at, stands.len(), stands.into());
    make.forged_bytes(&of, "another value", Some("root"), other);
}

/// Of older states, under the root of the tip.
fn as_of(make: &mut VectorMaker, scene: &ColeScene) {
    let ColeScene { chain, present, deleted, absent, .. } = scene;
    let asked = [present[1], deleted[0], absent[0]];
    let tip = chain.tip();
    let first = scene.horizon;
    for number in [first, (first + tip) / 2, tip - 1] {
        let proof = chain.prove_past(number, &asked);
        assert_eq!((proof.as_of, proof.root), (Some(number), scene.root()));
        let trusted = VectorTrust::Checkpoint { block: U64::from(tip), root: proof.root };
        let truth = chain.truth(number, &asked);
        let name = scene.named(&format!("as of block {number}"));
        make.valid(&name, trusted, Some(&asked), VectorQuestion::proof(&proof), truth);
    }
    let number = (first + tip) / 2;
    let of = scene.named(&format!("as of block {number}"));
    make.forged_field_as(
        &of,
        "as of a later block than the root's",
        "asOf",
        "block",
        quantity(tip + 1),
    );
    // Of most other blocks the same proof shows too little or too much, of others the truth.
    let others = [0, number - 9, number - 1, number + 1, number + 9, tip];
    for other in others.map(Some).into_iter().chain([None]) {
        let value = other.map_or(Json::Null, quantity);
        let how = other
            .map_or_else(|| "said to be of the tip".into(), |n| format!("said to be of block {n}"));
        let with = Some(BTreeMap::from([("asOf".to_owned(), value)]));
        let case = VectorCase { with, ..VectorCase::default() };
        let truth = ExpectedVerdict::Values(chain.truth(other.unwrap_or(tip), &asked));
        make.true_or_forged(&of, &how, case, truth);
    }
    let bytes = chain.prove_past(number - 9, &asked).bytes;
    let edit = (0, chain.prove_past(number, &asked).bytes.len(), bytes);
    let case = VectorCase { edit: Some(vec![edit]), ..VectorCase::default() };
    let truth = ExpectedVerdict::Values(chain.truth(number, &asked));
    make.true_or_forged(&of, "the proof of an earlier block", case, truth);
}

/// As a node answers, on a chain of its own.
fn answers(make: &mut VectorMaker, scene: &ColeScene) {
    let ColeScene { chain, present, absent, .. } = scene;
    let tip = chain.tip();
    let StateKey::Slot(address, slot) = present[1] else { unreachable!() };
    let StateKey::Slot(_, nothing) = absent[1] else { unreachable!() };
    let header = &chain.headers[tip as usize];
    let rlp = Bytes::from(alloy_rlp::encode(header));
    let by_header = VectorTrust::Header { hash: keccak256(&rlp), rlp };
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: header.state_root };
    let answered = |number, slots: &[B256]| {
        let keys = StateProofResponse::keys_of(address, slots.to_vec());
        answer_by(chain.prove_past(number, &keys), chain.truth(number, &keys), address, slots)
    };
    let old = (scene.horizon + tip) / 2;
    for (what, number) in
        [("an account under a checkpoint", tip), ("an old account under a later root", old)]
    {
        let (json, truth) = answered(number, &[]);
        let name = scene.named(what);
        make.valid(&name, pinned.clone(), None, VectorQuestion::Answer(json), truth);
    }
    let slots = [slot, nothing];
    let (json, truth) = answered(tip, &slots);
    let question = VectorQuestion::Answer(json);
    let name = scene.named("an answer under a checkpoint");
    make.valid(&name, pinned, None, question.clone(), truth.clone());
    let name = scene.named("an answer under a header of its own chain");
    make.valid(&name, by_header.clone(), None, question, truth);
    let (json, truth) = answered(old, &slots);
    let of = scene.named("an answer of an old block under a later header");
    make.valid(&of, by_header, None, VectorQuestion::Answer(json), truth);
    make.forged_field(&of, "account", "claim", made_up(scene));
    make.forged_field(&of, "block", "block", quantity(old));
    let before = &chain.headers[old as usize];
    let rlp = Bytes::from(alloy_rlp::encode(before));
    let trusted = Some(VectorTrust::Header { hash: keccak256(&rlp), rlp });
    let case = VectorCase { trusted, ..VectorCase::default() };
    make.forged(&of, "under the header of the old block", Some("block"), case);
    let case = VectorCase {
        trusted: Some(VectorTrust::Checkpoint {
            block: U64::from(tip - 1),
            root: header.state_root,
        }),
        ..VectorCase::default()
    };
    make.forged(&of, "under a checkpoint of the block before", Some("block"), case);
}

/// An account that no state contains.
fn made_up(scene: &ColeScene) -> Json {
    let balance = quantity(1_000_000 + scene.chain.tip());
    json!({ "nonce": "0x7", "balance": balance, "codeHash": B256::repeat_byte(7) })
}

fn quantity(number: u64) -> Json {
    json!(U64::from(number))
}

/// What keys were over ranges of blocks.
fn provenance(make: &mut VectorMaker, scene: &ColeScene) {
    let ColeScene { chain, deleted, absent, horizon, .. } = scene;
    let tip = chain.tip();
    let (horizon, middle) = (*horizon, (*horizon + tip) / 2);
    let live = chain.states[tip as usize].keys();
    // The account and the slot with the most versions.
    let count = |key: &&StateKey| chain.versions(key, &(horizon..=tip)).len();
    let (slots, accounts): (Vec<_>, Vec<_>) =
        live.partition(|key| matches!(key, StateKey::Slot(..)));
    let account = *accounts.into_iter().max_by_key(count).unwrap();
    let slot = *slots.into_iter().max_by_key(count).unwrap();
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: scene.root() };
    let mut add = |what: &str, key: StateKey, blocks: RangeInclusive<u64>| {
        let (json, shown) = scene.provenance(key, blocks.clone());
        let truth = chain.versions(&key, &blocks).into_iter();
        let truth: Vec<_> = truth.map(|of| ExpectedVersion::new(of.block, of.value)).collect();
        // A pruned store may have dropped a deletion that nothing lies under.
        let is_bare = truth.last().is_some_and(|of| of.value.is_none()) && horizon > 0;
        assert!(shown == truth || is_bare && shown == truth[..truth.len() - 1], "{what}");
        let name = scene.named(what);
        let question = VectorQuestion::Provenance(json);
        make.shows(&name, pinned.clone(), None, question, ExpectedVerdict::Versions(shown.clone()));
        shown
    };
    let versions = add("an account over all blocks", account, horizon..=tip);
    assert!(versions.len() > 3, "{}", scene.name);
    let shown = add("a slot over all blocks", slot, horizon..=tip);
    assert!(shown.len() > 3, "{}", scene.name);
    add("a slot at one block", slot, middle..=middle);
    add("an account over the last blocks", account, tip - 3..=tip);
    add("a slot over some blocks", slot, middle - 5..=middle + 5);
    add("a slot that was deleted", deleted[0], horizon..=tip);
    add("another slot that was deleted", deleted[1], horizon..=middle);
    add("an account that never was", absent[0], horizon..=tip);
    add("a slot that never was", absent[2], middle..=tip);

    let of = scene.named("an account over all blocks");
    let (answer, _) = scene.provenance(account, horizon..=tip);
    let stated = answer["versions"].as_array().unwrap();
    let change = |change: &dyn Fn(&mut Vec<Json>)| {
        let mut stated = stated.clone();
        change(&mut stated);
        Json::from(stated)
    };
    for (how, value) in [
        ("without its newest version", change(&|all| drop(all.remove(0)))),
        ("without one of its versions", change(&|all| drop(all.remove(1)))),
        ("without its oldest version", change(&|all| drop(all.pop()))),
        ("versions turned around", change(&|all| all.reverse())),
        ("a version twice", change(&|all| all.insert(1, all[1].clone()))),
        ("a version of another block", change(&|all| all[1]["block"] = quantity(tip))),
        ("another value", change(&|all| all[1]["account"] = made_up(scene))),
        ("a version said to be a deletion", change(&|all| all[1]["account"] = Json::Null)),
        ("no versions", Json::Array(Vec::new())),
        (
            "values of a slot",
            change(&|all| {
                let block = all[0]["block"].clone();
                all[0] = json!({ "block": block, "value": "0x1" });
            }),
        ),
    ] {
        make.forged_field_as(&of, how, "versions", "claim", value);
    }
    let mut field = |how: &str, field: &str, class: Option<&str>, value: Json| {
        let with = Some(BTreeMap::from([(field.to_owned(), value)]));
        make.forged(&of, how, class, VectorCase { with, ..VectorCase::default() });
    };
    field("a range beyond the root's block", "to", Some("block"), quantity(tip + 1));
    field("an empty range", "from", Some("malformed"), quantity(tip + 1));
    field("of another account", "address", None, json!(absent[0].address()));
    field("of a slot", "slot", None, json!(B256::ZERO));
    field("of an earlier block", "block", Some("block"), quantity(tip - 1));
    field("under another root", "root", Some("root"), json!(B256::repeat_byte(9)));
    field("said to be of mpt", "backend", Some("kind"), "mpt".into());
    // Ranges that do not begin or end at a version show something else.
    let newest: u64 = versions[0].block.to();
    field("ending before its newest version", "to", None, quantity(newest - 1));
    field("beginning after its newest version", "from", None, quantity(newest));
    let (other, _) = scene.provenance(account, middle..=tip);
    field("the proof of a shorter range", "proof", None, other["proof"].clone());
    let (other, _) = scene.provenance(slot, horizon..=tip);
    field("the proof of a slot", "proof", None, other["proof"].clone());
    let len = (answer["proof"].as_str().unwrap().len() - 2) / 2;
    for at in (0..len).step_by(len / 20) {
        let gone = (at, (len - at).min(7), Bytes::new());
        make.forged_bytes(&of, &format!("7 bytes at {at} dropped"), None, gone);
    }
}

/// Of a store that has dropped old versions: nothing below the horizon.
fn pruned(make: &mut VectorMaker, scene: &ColeScene) {
    let ColeScene { chain, deleted, horizon, .. } = scene;
    let before = quantity(horizon - 1);
    let tip = chain.tip();
    assert!(chain.store.history(BlockRef::new(horizon - 1, B256::ZERO)).is_err());
    let middle = (horizon + tip) / 2;
    for number in [*horizon, middle, tip - 1] {
        let of = scene.named(&format!("as of block {number}"));
        let how = "said to be of one before the horizon";
        make.forged_field_as(&of, how, "asOf", "missing", before.clone());
    }
    let of = scene.named("an account over all blocks");
    make.forged_field_as(&of, "from before the horizon", "from", "missing", before.clone());
    // A lower horizon gives another root.
    let with = Some(BTreeMap::from([("from".to_owned(), before)]));
    let case =
        VectorCase { with, edit: Some(vec![(1, 1, Bytes::from([0]))]), ..VectorCase::default() };
    make.forged(&of, "from before the horizon, which is said to be none", Some("root"), case);
    let dropped = deleted.iter().find(|key| {
        let is_gone =
            chain.versions(key, &(*horizon..=*horizon)).iter().all(|of| of.value.is_none());
        is_gone && scene.provenance(**key, *horizon..=tip).1.is_empty()
    });
    let (json, shown) = scene.provenance(*dropped.unwrap(), *horizon..=tip);
    let name = scene.named("a slot whose deletion was dropped");
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: scene.root() };
    make.shows(
        &name,
        pinned,
        None,
        VectorQuestion::Provenance(json),
        ExpectedVerdict::Versions(shown),
    );
}
