//! Proofs of `pbt`: accounts with codes of all kinds, delegations, slots in headers and outside, whose
//! keys came and went in several blocks.

use super::{
    chain::{TestChain, accounts, address, changes, slot_value},
    format::{ExpectedVerdict, VectorCase, VectorFile, VectorQuestion, VectorTrust},
    make::VectorMaker,
    make_hashed::{self, HashedScene},
    make_mpt::answer,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U64, U256, keccak256};
use rand::{
    SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom, IteratorRandom},
};
use retrie_light_client::{Account, KeyForm, StateKey, StateProof, StateValue};
use retrie_storage_pbt::{
    Pbt,
    hash::{TreeHash, bit, common_bits, sweep},
    key::{BASIC_DATA, CODE_HASH, DELEGATION, HEADER_ZONE, Stem, account_path},
    leaf::basic_data,
    verify::targets_of,
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const BLOCKS: u64 = 6;
const LAST_SLOT: B256 = B256::repeat_byte(0xff);

/// Two indicators of EIP-7702, then codes: chunks that begin with pushed data, two groups of chunks,
/// no chunk at all, and what is nearly an indicator.
fn codes() -> [Bytes; 7] {
    let of = |front: &[u8], len, byte: fn(usize) -> u8| {
        front.iter().copied().chain((front.len()..len).map(byte)).collect()
    };
    [
        of(&[0xef, 0x01, 0x00], 23, |_| 0x77),
        of(&[0xef, 0x01, 0x00], 23, |_| 0x88),
        of(&[], 70, |_| 0x7f),
        of(&[], 31 * 256 + 40, |at| (at % 251) as u8),
        of(&[], 40, |_| 0),
        of(&[0xef, 0x01, 0x01], 23, |_| 0x77),
        of(&[], 1, |_| 0x5b),
    ]
}

type Changes = BTreeMap<StateKey, Option<StateValue>>;

/// Accounts of a chain, among others.
struct PbtScene {
    chain: TestChain,
    plain: Address,
    empty: Address,
    coded: Address,
    zeros: Address,
    delegated: Address,
    /// Delegated once.
    recalled: Address,
    deleted: Address,
    absent: Address,
}

fn coded_account(code: &[u8]) -> Option<StateValue> {
    let (nonce, balance) = (3, U256::from(10).pow(U256::from(18)));
    Some(Account { nonce, balance, code_hash: keccak256(code) }.encode())
}

fn slot(address: Address, number: u64) -> StateKey {
    StateKey::Slot(address, B256::from(U256::from(number)))
}

/// Gives the accounts that have a code one of `codes`.
fn with_codes(random: &mut StdRng, codes: &[Bytes], mut changes: Changes) -> Changes {
    for (key, value) in &mut changes {
        let (StateKey::Account(_), Some(value)) = (key, value) else { continue };
        let account = Account::decode(value).unwrap();
        if account.code_hash != KECCAK256_EMPTY {
            let code_hash = keccak256(codes.choose(random).unwrap());
            *value = Account { code_hash, ..account }.encode();
        }
    }
    changes
}

impl PbtScene {
    fn new(hash: TreeHash, keys: KeyForm) -> Self {
        let random = &mut StdRng::seed_from_u64(18);
        let codes = codes();
        let [indicator, other_indicator, pushes, long, zero_code, ..] = &codes;
        let mut chain = TestChain::on(Arc::new(Pbt::new(hash)), keys);
        chain.codes = codes.iter().map(|code| (keccak256(code), code.clone())).collect();
        let [plain, empty, coded, zeros, delegated, recalled, deleted, absent] =
            std::array::from_fn(|_| address(random));
        let known = [plain, empty, coded, zeros, delegated, recalled, deleted];

        chain.block(&Changes::new());
        chain
            .block(&Changes::from([(StateKey::Account(empty), Some(Account::default().encode()))]));
        let crowd = accounts(random, (0..30).map(|n| n % 3));
        let mut made = with_codes(random, &codes, crowd);
        made.extend(
            [
                (plain, &[][..]),
                (coded, &long[..]),
                (zeros, &zero_code[..]),
                (delegated, &indicator[..]),
                (recalled, &indicator[..]),
                (deleted, &pushes[..]),
            ]
            .map(|(address, code)| (StateKey::Account(address), coded_account(code))),
        );
        let slots = [0, 1, 63, 64, 65, 255, 300, 1 << 40].into_iter().chain(512..550);
        let slots = slots.map(|number| slot(coded, number)).chain([
            StateKey::Slot(coded, LAST_SLOT),
            slot(zeros, 7),
            slot(deleted, 5),
            slot(deleted, 700),
        ]);
        made.extend(slots.map(|slot| (slot, Some(slot_value(random)))));
        chain.block(&made);
        while chain.tip() < BLOCKS {
            let mut live = chain.states.last().unwrap().clone();
            live.retain(|key, _| !known.contains(key.address()));
            let changed = changes(random, &live, 6);
            let mut changed = with_codes(random, &codes, changed);
            if chain.tip() == 2 {
                let gone = [
                    StateKey::Account(deleted),
                    slot(deleted, 5),
                    slot(deleted, 700),
                    slot(coded, 1),
                    slot(coded, 65),
                ];
                changed.extend(gone.map(|key| (key, None)));
                changed.extend([
                    (StateKey::Account(delegated), coded_account(other_indicator)),
                    (StateKey::Account(recalled), coded_account(&[])),
                ]);
            }
            chain.block(&changed);
        }
        Self { chain, plain, empty, coded, zeros, delegated, recalled, deleted, absent }
    }

    /// Keys of all kinds, each with what it is.
    fn keys(&self) -> Vec<(&'static str, StateKey)> {
        let Self { plain, empty, coded, zeros, delegated, recalled, deleted, absent, .. } = *self;
        let accounts = [
            ("an account without code", plain),
            ("an empty account", empty),
            ("an account with code", coded),
            ("an account whose code has no chunks", zeros),
            ("a delegated account", delegated),
            ("an account that delegates no more", recalled),
            ("a deleted account", deleted),
            ("an absent account", absent),
        ];
        let slots = [
            ("a slot in a header", coded, 0),
            ("the last slot in a header", coded, 63),
            ("the first slot outside of a header", coded, 64),
            ("the only slot of a group", coded, 300),
            ("a slot of a wide group", coded, 530),
            ("a deleted slot in a header", coded, 1),
            ("a deleted slot", coded, 65),
            ("a slot in the header of a deleted account", deleted, 5),
            ("a slot of a deleted account", deleted, 700),
            ("an absent slot in a header", coded, 2),
            ("an absent slot beside the only one of a group", coded, 301),
            ("an absent slot of a wide group", coded, 700),
            ("a slot of an absent group", coded, 1 << 50),
            ("a slot in a header without slots", plain, 0),
            ("a slot of an account without slots", plain, 64),
            ("a slot in the header of an absent account", absent, 0),
            ("a slot of an absent account", absent, 64),
        ];
        let accounts = accounts.map(|(what, address)| (what, StateKey::Account(address)));
        let slots = slots.map(|(what, address, number)| (what, slot(address, number)));
        let last = ("the last slot of all", StateKey::Slot(coded, LAST_SLOT));
        accounts.into_iter().chain(slots).chain([last]).collect()
    }

    fn several(&self) -> [StateKey; 8] {
        [
            slot(self.zeros, 7),
            StateKey::Account(self.delegated),
            slot(self.coded, 65),
            StateKey::Account(self.absent),
            slot(self.coded, 530),
            StateKey::Account(self.coded),
            slot(self.coded, 64),
            slot(self.plain, 64),
        ]
    }
}

pub(crate) fn pbt() -> VectorFile {
    let mut make = VectorMaker::new("Proofs of pbt, valid and forged.", Vec::new());
    for (name, hash, flips) in
        [("", TreeHash::Blake3, 80), ("keccak-256: ", TreeHash::Keccak256, 12)]
    {
        let scene = PbtScene::new(hash, KeyForm::Plain);
        proofs(&mut make, name, &scene);
        let of = &*format!("{name}several keys");
        make.anyhow_forged(of, &scene.chain, BLOCKS - 1, &scene.several(), flips);
        forged_nodes(&mut make, name, hash, &scene);
        headers(&mut make, name, hash, &scene.chain);
        answers(&mut make, name, &scene);
    }
    make.file
}

/// Of a store with hashed keys.
pub(crate) fn hashed() -> VectorFile {
    let about = "Proofs of pbt with hashed keys, valid and forged, and of the same states with plain \
                 keys, under the root of a store with hashed keys.";
    let mut make = VectorMaker::hashed(about, Vec::new());
    for (name, hash) in [("pbt", TreeHash::Blake3), ("pbt of keccak-256", TreeHash::Keccak256)] {
        let [hashed, plain] =
            [KeyForm::Hashed, KeyForm::Plain].map(|keys| PbtScene::new(hash, keys));
        let keys = vec![
            StateKey::Account(plain.delegated),
            StateKey::Account(plain.coded),
            slot(plain.coded, 0),
            slot(plain.coded, 300),
            slot(plain.zeros, 7),
            slot(plain.coded, 65),
            slot(plain.delegated, 64),
            StateKey::Account(plain.absent),
        ];
        let scene = HashedScene { hashed: hashed.chain, plain: plain.chain, keys };
        make_hashed::proofs(&mut make, name, &scene);
        make_hashed::answers(&mut make, name, &scene);
    }
    make.file
}

fn proofs(make: &mut VectorMaker, name: &str, scene: &PbtScene) {
    let PbtScene { chain, plain, absent, .. } = scene;
    let mut prove = |what: &str, number, keys: &[StateKey]| {
        make.proof(&format!("{name}{what}"), chain, number, keys);
    };
    for (what, key) in scene.keys() {
        prove(what, BLOCKS, &[key]);
    }
    prove("no keys", BLOCKS, &[]);
    let random = &mut StdRng::seed_from_u64(1);
    let all = chain.states.last().unwrap().keys().copied();
    prove("many keys", BLOCKS, &all.choose_multiple(random, 60));
    let keys = scene.several();
    prove("several keys, one twice", BLOCKS, &[&keys[..], &keys[..1]].concat());
    let turned: Vec<_> = keys.iter().rev().copied().collect();
    prove("several keys, turned around", BLOCKS, &turned);
    let edges = [StateKey::Account(*plain), slot(*plain, 0), slot(*absent, 64)];
    prove("three keys in the empty state", 0, &edges);
    prove("no keys in the empty state", 0, &[]);
    prove("three keys in a state of one leaf", 1, &edges);
    prove("the account of that leaf", 1, &[StateKey::Account(scene.empty)]);
    prove("a slot of that account", 1, &[slot(scene.empty, 64)]);
    prove("several keys", BLOCKS - 1, &keys);
}

/// The nodes on the way to the only target of a proof: the place of each, and the bit where it begins.
fn way(proof: &[u8], target: &[u8]) -> Vec<(usize, usize)> {
    let (mut nodes, mut at, mut from) = (Vec::new(), 0, 0);
    loop {
        nodes.push((at, from));
        if proof[at] != 2 {
            return nodes;
        }
        let split = from + usize::from(u16::from_be_bytes([proof[at + 1], proof[at + 2]]));
        at += 3 + 32 * usize::from(bit(target, split));
        from = split + 1;
    }
}

/// The bits `from..to` of a key.
fn packed(key: &[u8], from: usize, to: usize) -> Vec<u8> {
    let mut bytes = vec![0; (to - from).div_ceil(8)];
    for at in from..to {
        bytes[(at - from) / 8] |= bit(key, at) << (7 - (at - from) % 8);
    }
    bytes
}

/// Wrong kinds of nodes, prefixes, keys and values, at the end of the way to a slot and above.
fn forged_nodes(make: &mut VectorMaker, name: &str, hash: TreeHash, scene: &PbtScene) {
    let keys = scene.keys();
    let find = |wanted: &str| {
        let (_, key) = keys.iter().find(|(what, _)| *what == wanted).unwrap();
        let target = targets_of(hash, &KeyForm::Plain.key(key)).remove(0);
        let proof = scene.chain.prove(BLOCKS, &[*key]).bytes;
        let nodes = way(&proof, &target);
        (format!("{name}{wanted}"), target, proof, nodes)
    };
    let (of, target, proof, nodes) = find("the only slot of a group");
    let (leaf, from) = *nodes.last().unwrap();
    assert_eq!((proof[leaf], nodes.len() > 4), (0, true));
    let len = [proof[leaf + 1]];
    let node_len = 2 + usize::from(len[0]);
    let value = &proof[leaf + 2..leaf + node_len];
    let turned = |key: &[u8], at: usize| {
        let mut key = key.to_vec();
        key[at / 8] ^= 0x80 >> (at % 8);
        key
    };
    let ends = |node: &[&[u8]]| (leaf, node_len, Bytes::from(node.concat()));
    let two = [7; 64];
    let other = turned(&target, target.len() * 8 - 1);
    let away = turned(&target, from - 1);
    let aside = packed(&turned(&target, from), from, from + 1);
    let all = target.len() * 8;
    let to_end = ((all - from) as u16).to_be_bytes();
    let past_end = packed(&turned(&target, from), from, all);
    for (how, class, node) in [
        ("an unknown kind of node", Some("malformed"), ends(&[&[4], &len, value])),
        ("with its key", Some("malformed"), ends(&[&[1], &target, &len, value])),
        ("another value", Some("root"), ends(&[&[0, 1, 1]])),
        ("a value of zero", Some("malformed"), ends(&[&[0, 0]])),
        ("a value with a leading zero", Some("malformed"), ends(&[&[0, len[0] + 1, 0], value])),
        ("a value of 33 bytes", Some("malformed"), ends(&[&[0, 33], &two[..33]])),
        ("hidden by another leaf", Some("root"), ends(&[&[1], &other, &len, value])),
        ("hidden by a leaf from elsewhere", Some("malformed"), ends(&[&[1], &away, &len, value])),
        ("hidden by a branch", Some("root"), ends(&[&[3, 0, 1], &aside, &two])),
        ("hidden by a branch without prefix", Some("malformed"), ends(&[&[3, 0, 0], &two])),
        ("below a branch more", None, ends(&[&[2, 0, 0], &two[..32], &[0], &len, value])),
        (
            "a prefix that is the whole key",
            Some("malformed"),
            ends(&[&[2], &to_end, &[0], &len, value, &two[..32]]),
        ),
        (
            "a prefix as long as the longest key",
            Some("malformed"),
            ends(&[&[3], &to_end, &past_end, &two]),
        ),
    ] {
        make.forged_bytes(&of, how, class, node);
    }
    let (at, from) = nodes[nodes.len() - 2];
    let split = nodes[nodes.len() - 1].1 - 1;
    let spelled = [(at, 1, vec![3].into()), (at + 3, 0, packed(&target, from, split).into())];
    let edit = Some(spelled.to_vec());
    make.forged(
        &of,
        "a prefix that needs no bits",
        Some("malformed"),
        VectorCase { edit, ..VectorCase::default() },
    );
    let count = ((split - from + 1) as u16).to_be_bytes();
    make.forged_bytes(&of, "a bit more of prefix", None, (at + 1, 2, count.to_vec().into()));
    make.forged_bytes(&of, "all of it twice", Some("malformed"), (0, 0, proof.clone()));

    let (of, target, proof, nodes) = find("a slot in a header");
    let (leaf, from) = *nodes.last().unwrap();
    let count = ((target.len() * 8 - from) as u16).to_be_bytes();
    let bits = packed(&target, from, target.len() * 8);
    let node = Bytes::from([&[3], &count[..], &bits, &[7; 64]].concat());
    let gone = 2 + usize::from(proof[leaf + 1]);
    make.forged_bytes(&of, "a branch below its key", Some("root"), (leaf, gone, node));

    let of = format!("{name}several keys");
    let proof = scene.chain.prove(BLOCKS - 1, &scene.several()).bytes;
    assert_eq!(proof[..3], [2, 0, 0], "zones differ in the first bit");
    let longer = Bytes::from([0, 1]);
    make.forged_bytes(&of, "a prefix that not all share", Some("malformed"), (1, 2, longer));

    let (of, target, proof, nodes) = find("an absent slot beside the only one of a group");
    let (leaf, _) = *nodes.last().unwrap();
    assert_eq!((proof[leaf], target.len()), (1, 66));
    let own = Bytes::from(target);
    make.forged_bytes(&of, "by its own leaf", Some("malformed"), (leaf + 1, 66, own));
    make.forged_bytes(&of, "that leaf without key", Some("root"), (leaf, 67, vec![0].into()));
    let chunk = (leaf + 1, 66, vec![1; 34].into());
    make.forged_bytes(&of, "a chunk for that leaf", Some("malformed"), chunk);

    let (of, _, proof, nodes) = find("an absent slot of a wide group");
    let (at, _) = *nodes.last().unwrap();
    let count = usize::from(u16::from_be_bytes([proof[at + 1], proof[at + 2]]));
    assert_eq!((proof[at], proof.len() > at + 3 + 64), (3, true));
    let bits = count.div_ceil(8);
    let last = at + 2 + bits;
    if !count.is_multiple_of(8) {
        let spare = Bytes::from([proof[last] | 1]);
        make.forged_bytes(&of, "a bit behind the prefix", Some("malformed"), (last, 1, spare));
    }
    let shared = [(at, 1, vec![2].into()), (at + 3, bits, Bytes::new())];
    let edit = Some(shared.to_vec());
    make.forged(&of, "a prefix left out", None, VectorCase { edit, ..VectorCase::default() });
    let children = &proof[last + 1..last + 65];
    let swapped = [&children[32..], &children[..32]].concat();
    make.forged_bytes(&of, "children swapped", Some("root"), (last + 1, 64, swapped.into()));
    let of = format!("{name}three keys in the empty state");
    make.forged_bytes(&of, "a leaf", Some("malformed"), (0, 0, vec![0, 1, 1].into()));
    let of = format!("{name}no keys");
    make.forged_bytes(&of, "a leaf", Some("malformed"), (0, 0, vec![0, 1, 1].into()));
}

/// A leaf's key and value.
type Leaf = (Vec<u8>, B256);

/// Appends the proof of `targets` in the tree of `leaves`, as docs/formats/pbt.md has it; both are
/// sorted.
fn prove(hash: TreeHash, leaves: &[Leaf], targets: &[Vec<u8>], from: usize, out: &mut Vec<u8>) {
    let [(first, _), .., (last, _)] = leaves else {
        let (key, value) = &leaves[0];
        match targets == std::slice::from_ref(key) {
            true => out.push(0),
            false => out.extend([&[1], &key[..]].concat()),
        }
        let zeros = value.iter().take_while(|byte| **byte == 0).count();
        out.push(32 - zeros as u8);
        return out.extend(&value[zeros..]);
    };
    let split = common_bits(first, last);
    let there = targets.iter().filter(|target| common_bits(target, first) >= split);
    let there: Vec<_> = there.cloned().collect();
    let is_shared = there.len() == targets.len();
    out.push(if is_shared { 2 } else { 3 });
    out.extend(((split - from) as u16).to_be_bytes());
    if !is_shared {
        out.extend(packed(first, from, split));
    }
    for side in [0, 1] {
        let leaves: Vec<_> =
            leaves.iter().filter(|(key, _)| bit(key, split) == side).cloned().collect();
        let there: Vec<_> = there.iter().filter(|key| bit(key, split) == side).cloned().collect();
        match there.is_empty() {
            true => out.extend(root_of(hash, &leaves, split + 1)),
            false => prove(hash, &leaves, &there, split + 1, out),
        }
    }
}

fn root_of(hash: TreeHash, leaves: &[Leaf], from: usize) -> B256 {
    let leaves = leaves.iter().map(|(key, value)| (key, hash.leaf(key, value)));
    sweep(hash, leaves).unwrap().hash(hash, from)
}

/// Accounts at the edge of what a header can say, and beyond: trees that no chain has.
fn headers(make: &mut VectorMaker, name: &str, hash: TreeHash, chain: &TestChain) {
    let address = Address::repeat_byte(0x11);
    let key = StateKey::Account(address);
    let store_key = KeyForm::Plain.key(&key);
    let stem = Stem::short(HEADER_ZONE, &account_path(hash, store_key.account()));
    let basic = |size| {
        let account = Account { nonce: 1, balance: U256::from(2), ..Account::default() };
        (BASIC_DATA, basic_data(&account, size).unwrap())
    };
    let with_byte = |(sub, mut value): (u8, B256), at: usize| {
        value[at] ^= 1;
        (sub, value)
    };
    let code = B256::repeat_byte(0xc0);
    let (no_code, some_code) = ((CODE_HASH, KECCAK256_EMPTY), (CODE_HASH, code));
    let target = (DELEGATION, B256::right_padding_from(&codes()[0]));
    let most = Account { nonce: u64::MAX, balance: U256::from(u128::MAX), code_hash: code };
    let largest = (BASIC_DATA, basic_data(&most, u32::MAX).unwrap());
    let delegated = Account { nonce: 1, balance: U256::from(2), code_hash: keccak256(&codes()[0]) };
    // What the leaves show: an account or none, or nothing that can be.
    let mut add = |what: &str, leaves: Vec<Leaf>, shown: Option<Option<Account>>| {
        let mut bytes = Vec::new();
        prove(hash, &leaves, &targets_of(hash, &store_key), 0, &mut bytes);
        let root = root_of(hash, &leaves, 0);
        let proof = StateProof { root, bytes: bytes.into(), ..chain.prove(1, &[key]) };
        let question = VectorQuestion::proof(&proof);
        let expect = match shown {
            Some(account) => ExpectedVerdict::Values(vec![account.map(|account| account.encode())]),
            None => ExpectedVerdict::Error("malformed".into()),
        };
        let name = format!("{name}a header: {what}");
        make.shows(&name, VectorTrust::Root(root), Some(&[key]), question, expect);
    };
    for (what, leaves, account) in [
        ("a code hash alone", vec![no_code], Some(Account::default())),
        ("the largest account", vec![largest, some_code], Some(most)),
        ("a delegation", vec![basic(23), target], Some(delegated)),
        ("a leaf of unknown meaning", vec![no_code, (3, code)], Some(Account::default())),
        ("basic data alone", vec![basic(0)], None),
        ("a code hash and a delegation", vec![basic(23), some_code, target], None),
        ("basic data of version 1", vec![with_byte(basic(0), 0), no_code], None),
        ("basic data with a reserved byte", vec![with_byte(basic(0), 3), no_code], None),
        ("a code of no bytes", vec![basic(0), some_code], None),
        ("no code, of one byte", vec![basic(1), no_code], None),
        ("a code without basic data", vec![some_code], None),
        ("a delegation of 22 bytes", vec![basic(22), target], None),
        ("a delegation without basic data", vec![target], None),
        ("a delegation of another version", vec![basic(23), with_byte(target, 2)], None),
        ("a delegation with a byte behind", vec![basic(23), with_byte(target, 31)], None),
    ] {
        let leaf = |(sub, value)| {
            let (key, len) = stem.key(sub);
            (key[..len].to_vec(), value)
        };
        add(what, leaves.into_iter().map(leaf).collect(), account.map(Some));
    }
    let chunk = |zone| vec![([&[zone], &[0x22; 33][..]].concat(), code)];
    for (what, leaves) in [("a chunk alone", chunk(1)), ("a leaf of an unknown zone", chunk(2))] {
        add(what, leaves, Some(None));
    }
}

fn answers(make: &mut VectorMaker, name: &str, scene: &PbtScene) {
    let PbtScene { chain, coded, delegated, absent, .. } = scene;
    let tip = chain.tip();
    let number = |number: u64| B256::from(U256::from(number));
    let header = &chain.headers[tip as usize];
    let rlp = Bytes::from(alloy_rlp::encode(header));
    let by_header = VectorTrust::Header { hash: keccak256(&rlp), rlp };
    let pinned = VectorTrust::Checkpoint { block: U64::from(tip), root: header.state_root };
    for (what, address, slots, trusted) in [
        ("an answer under a header", *coded, vec![number(0), number(65), number(530)], by_header),
        ("an answer under a checkpoint", *coded, vec![number(64)], pinned.clone()),
        ("an answer of a delegated account", *delegated, vec![], pinned.clone()),
        ("an answer of an absent account", *absent, vec![number(0)], pinned),
    ] {
        let (json, truth) = answer(chain, tip, address, &slots);
        make.valid(&format!("{name}{what}"), trusted, None, VectorQuestion::Answer(json), truth);
    }
    let of = &*format!("{name}an answer under a checkpoint");
    let storage = json!([{"key": number(64), "value": "0x1"}]);
    make.forged_field_as(of, "another value", "storage", "claim", storage);
    make.forged_field_as(of, "an older state", "asOf", "kind", json!("0x1"));
    make.forged_field_as(of, "said to be of lvmt", "backend", "kind", json!("lvmt"));
    let other = if name.is_empty() { "keccak256" } else { "blake3" };
    for (how, field, value) in [
        ("said to be of the other hash", "hash", json!(other)),
        ("of another account", "address", json!(absent)),
    ] {
        let with = Some(BTreeMap::from([(field.to_owned(), value)]));
        make.forged(of, how, None, VectorCase { with, ..VectorCase::default() });
    }
    let of = &*format!("{name}an answer of a delegated account");
    let account =
        json!({"nonce": "0x3", "balance": "0xde0b6b3a7640000", "codeHash": KECCAK256_EMPTY});
    make.forged_field_as(of, "said to have no code", "account", "claim", account);
}
