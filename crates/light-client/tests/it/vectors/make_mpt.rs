//! Proofs of `mpt` and `mpt-archive`, in envelopes and as EIP-1186 has them; and what the root is
//! trusted for.

use super::{
    chain::{TestChain, accounts, address, changes, word},
    format::{VectorCase, VectorFile, VectorQuestion, VectorTrust},
    make::VectorMaker,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U64, U256, keccak256};
use alloy_rlp::{Decodable, Encodable};
use rand::{SeedableRng, rngs::StdRng};
use retrie_light_client::{
    Account, EthProofResponse, EthSlotProof, StateKey, StateProof, StateProofResponse, StateValue,
};
use retrie_state::{Backend, decode_slot};
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_prefix::prefix::Prefix;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// A chain: the empty state, one account, then many, some with storage, which then change.
struct MptScene {
    chain: TestChain,
    /// Accounts and slots that are there from block 2 on: without storage, with one slot, with
    /// many, and one of the slots of each of the latter two.
    plain: Address,
    single: (Address, B256),
    large: (Address, B256),
    /// An absent account, and an absent slot.
    absent: (Address, B256),
}

const BLOCKS: u64 = 6;

fn scene(backend: impl Backend, count: usize) -> MptScene {
    let random = &mut StdRng::seed_from_u64(1);
    let mut chain = TestChain::new(backend);
    chain.block(&BTreeMap::new());
    chain.block(&accounts(random, [0]));
    let large = accounts(random, [200]);
    let single = accounts(random, [1]);
    let mut all = accounts(random, (0..count).map(|n| n % 100 / 98));
    let plain = *chain.states[1].keys().next().unwrap().address();
    let with_slot = |entries: &BTreeMap<StateKey, _>| {
        let slot = entries.keys().find_map(|key| match key {
            StateKey::Slot(address, slot) => Some((*address, *slot)),
            StateKey::Account(_) => None,
        });
        slot.unwrap()
    };
    let (large_slot, single_slot) = (with_slot(&large), with_slot(&single));
    all.extend(large);
    all.extend(single);
    chain.block(&all);
    for number in 3..=BLOCKS {
        let mut changed = changes(random, &chain.states[number as usize - 1], 20);
        // These stay.
        for (address, slot) in [large_slot, single_slot] {
            changed.remove(&StateKey::Slot(address, slot));
        }
        changed.insert(StateKey::Account(plain), Some(super::chain::account(random)));
        chain.block(&changed);
    }
    let absent = (address(random), word(random));
    MptScene { chain, plain, single: single_slot, large: large_slot, absent }
}

impl MptScene {
    fn some_keys(&self) -> Vec<StateKey> {
        vec![
            StateKey::Slot(self.large.0, self.large.1),
            StateKey::Account(self.plain),
            StateKey::Account(self.absent.0),
            StateKey::Slot(self.large.0, self.absent.1),
            StateKey::Account(self.large.0),
        ]
    }

    fn valid(&self, make: &mut VectorMaker, blocks: &[u64], prefix: &str) {
        let account = StateKey::Account;
        let Self { plain, single, large, absent, .. } = *self;
        let slot = |(address, slot): (Address, B256)| StateKey::Slot(address, slot);
        let asked: [(&str, Vec<StateKey>); 9] = [
            ("an account", vec![account(plain)]),
            ("an absent account", vec![account(absent.0)]),
            ("a slot among many", vec![slot(large)]),
            ("a slot that is alone", vec![slot(single)]),
            ("an absent slot", vec![slot((large.0, absent.1))]),
            ("a slot of an account without storage", vec![slot((plain, absent.1))]),
            ("a slot of an absent account", vec![slot(absent)]),
            ("several keys, one twice", [self.some_keys(), vec![account(plain)]].concat()),
            ("no keys", Vec::new()),
        ];
        for number in blocks {
            for (what, keys) in &asked {
                let name = format!("{prefix}{what} in block {number}");
                make.proof(&name, &self.chain, *number, keys);
            }
        }
        for (number, state) in [(0, "the empty state"), (1, "a state of one account")] {
            let keys = [account(plain), account(absent.0), slot(absent)];
            let name = format!("{prefix}three keys in {state}");
            make.proof(&name, &self.chain, number, &keys);
        }
    }
}

/// Proofs of the same nodes, under another name.
pub(crate) fn prefix() -> VectorFile {
    let mut make = VectorMaker::new("Proofs of prefix, valid and forged.", Vec::new());
    let scene = scene(Prefix::default(), 100);
    scene.valid(&mut make, &[BLOCKS], "");
    let (of, number, keys) = ("several keys", BLOCKS - 1, scene.some_keys());
    make.proof(of, &scene.chain, number, &keys);
    make.anyhow_forged(of, &scene.chain, number, &keys, 20);
    make.file
}

pub(crate) fn mpt() -> VectorFile {
    let mut make = VectorMaker::new("Proofs of mpt, valid and forged.", Vec::new());
    let scene = scene(Mpt::new(), 700);
    scene.valid(&mut make, &[BLOCKS], "");
    let (of, number, keys) = ("several keys", BLOCKS - 1, scene.some_keys());
    make.proof(of, &scene.chain, number, &keys);
    make.anyhow_forged(of, &scene.chain, number, &keys, 60);
    forged_nodes(&mut make, of, &scene.chain, number, &keys);
    let turned: Vec<_> = keys.iter().rev().copied().collect();
    let turned = VectorCase { keys: Some(super::make::encoded(&turned)), ..VectorCase::default() };
    make.forged(of, "the keys in another order", Some("kind"), turned);
    // Both backends make the same proofs.
    let archive = Some(BTreeMap::from([("backend".to_owned(), "mpt-archive".into())]));
    let mut case = VectorCase { with: archive, ..make.file.cases[0].clone() };
    (case.name, case.of) = ("an account, as mpt-archive".into(), Some(case.name));
    (case.trusted, case.keys, case.question) = (None, None, None);
    make.add(case);
    make.forged_field("an account in block 6", "hash", "kind", "blake2b-256".into());
    padded(&mut make, &scene);
    make.file
}

/// Short tries made by hand, and the same tries with a nonzero padding in a path of even length
/// (yellow paper, appendix C). All hashes fit, but the nodes are invalid.
fn padded(make: &mut VectorMaker, scene: &MptScene) {
    let keys = [StateKey::Account(scene.plain)];
    let truth = scene.chain.truth(BLOCKS, &keys);
    let mut proof = scene.chain.prove(BLOCKS, &keys);
    let (digest, nodes) = parts(&proof.bytes);
    let [_, leaf] = <[Bytes; 2]>::try_from(items(nodes.last().unwrap())).unwrap();
    let path: Vec<u8> = keccak256(scene.plain).iter().flat_map(|b| [b >> 4, b & 15]).collect();
    // The nodes of a trie: an extension, a branch and the leaf; or the leaf alone.
    let trie = |along: Option<usize>, [of_extension, of_leaf]: [u8; 2]| {
        let Some(along) = along else { return vec![short(&path, 2, of_leaf, &leaf)] };
        let leaf = short(&path[along + 1..], 2, of_leaf, &leaf);
        let mut children = vec![Bytes::from_static(&[0x80]); 17];
        children[usize::from(path[along])] = alloy_rlp::encode(keccak256(&leaf)).into();
        children[usize::from(path[along] ^ 1)] = alloy_rlp::encode(B256::repeat_byte(9)).into();
        let branch = list(&children);
        let child = alloy_rlp::encode(keccak256(&branch)).into();
        vec![short(&path[..along], 0, of_extension, &child), branch, leaf]
    };
    type ForgedPaddings = &'static [(&'static str, [u8; 2])];
    let cases: [(&str, Option<usize>, ForgedPaddings); 3] = [
        ("a leaf alone", None, &[("of the leaf", [0, 1]), ("of the leaf, all bits", [0, 15])]),
        ("an even extension", Some(2), &[("of the extension", [1, 0]), ("its high bit", [8, 0])]),
        ("an odd extension", Some(3), &[("of the leaf", [0, 5])]),
    ];
    for (name, along, forged) in cases {
        let nodes = trie(along, [0, 0]);
        (proof.root, proof.bytes) = (keccak256(&nodes[0]), joined(digest, &nodes));
        let trusted = VectorTrust::Root(proof.root);
        make.valid(name, trusted, Some(&keys), VectorQuestion::proof(&proof), truth.clone());
        for (of, padding) in forged {
            let nodes = trie(along, *padding);
            let root = keccak256(&nodes[0]);
            let case = VectorCase {
                trusted: Some(VectorTrust::Root(root)),
                with: Some(BTreeMap::from([("root".to_owned(), json!(root))])),
                edit: Some(vec![(0, proof.bytes.len(), joined(digest, &nodes))]),
                ..VectorCase::default()
            };
            make.forged(name, &format!("padding {of}"), Some("malformed"), case);
        }
    }
}

/// The items of a list, headers included.
fn items(list: &[u8]) -> Vec<Bytes> {
    let mut rest = alloy_rlp::Header::decode_bytes(&mut &list[..], true).unwrap();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let start = rest;
        let header = alloy_rlp::Header::decode(&mut rest).unwrap();
        rest = &rest[header.payload_length..];
        items.push(Bytes::copy_from_slice(&start[..start.len() - rest.len()]));
    }
    items
}

fn list(items: &[Bytes]) -> Bytes {
    let mut out = Vec::new();
    let payload_length = items.iter().map(|item| item.len()).sum();
    alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
    out.extend(items.iter().flatten());
    out.into()
}

/// A leaf (`flags` 2) or an extension (0) in RLP, with this padding if the path is even.
fn short(path: &[u8], flags: u8, padding: u8, item: &Bytes) -> Bytes {
    let head = match path.len() % 2 {
        0 => vec![flags, padding],
        _ => vec![flags + 1],
    };
    let nibbles = [&head[..], path].concat();
    let bytes: Vec<u8> = nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    list(&[alloy_rlp::encode(&bytes[..]).into(), item.clone()])
}

pub(crate) fn archive() -> VectorFile {
    let about = "Proofs of mpt-archive at old blocks, with keccak-256 and with BLAKE2b-256.";
    let mut make = VectorMaker::new(about, Vec::new());
    for (hash, name) in [(TrieHash::Keccak256, "keccak"), (TrieHash::Blake2b256, "blake2b")] {
        let scene = scene(MptArchive::new(hash), 120);
        let prefix = format!("{name}: ");
        scene.valid(&mut make, &[2], &prefix);
        let old = [StateKey::Account(scene.plain), StateKey::Slot(scene.large.0, scene.large.1)];
        for number in 3..=BLOCKS {
            let name = format!("{prefix}block {number}");
            make.proof(&name, &scene.chain, number, &old);
        }
        let of = format!("{prefix}block 4");
        make.anyhow_forged(&of, &scene.chain, 4, &old, 20);
        forged_nodes(&mut make, &of, &scene.chain, 4, &old);
    }
    let of = "blake2b: block 4";
    make.forged_field_as(of, "said to be of keccak", "hash", "kind", "keccak256".into());
    make.file
}

/// The nodes of proof bytes, and the digest before them.
fn parts(bytes: &[u8]) -> (B256, Vec<Bytes>) {
    let mut content = alloy_rlp::Header::decode_bytes(&mut &bytes[..], true).unwrap();
    (B256::decode(&mut content).unwrap(), Vec::decode(&mut content).unwrap())
}

fn joined(digest: B256, nodes: &[Bytes]) -> Bytes {
    let mut content = alloy_rlp::encode(digest);
    nodes.to_vec().encode(&mut content);
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length: content.len() }.encode(&mut out);
    [out, content].concat().into()
}

/// Whole nodes dropped, doubled, swapped, foreign.
fn forged_nodes(
    make: &mut VectorMaker,
    of: &str,
    chain: &TestChain,
    number: u64,
    keys: &[StateKey],
) {
    let bytes = chain.prove(number, keys).bytes;
    let (digest, nodes) = parts(&bytes);
    let whole = nodes.clone();
    let mut forge = |how: String, class, nodes: Vec<Bytes>| {
        let forged = joined(digest, &nodes);
        // Lengths and digest stand before the nodes; of these, what differs.
        fn prefix<'a>(all: &'a Bytes, nodes: &[Bytes]) -> (&'a [u8], &'a [u8]) {
            let nodes: usize = nodes.iter().map(|node| node.length()).sum();
            all.split_at(all.len() - nodes)
        }
        let ((lead, old), (new_lead, new)) = (prefix(&bytes, &whole), prefix(&forged, &nodes));
        let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let tails = old[head..].iter().rev().zip(new[head..].iter().rev());
        let tail = tails.take_while(|(a, b)| a == b).count();
        let put = Bytes::copy_from_slice(&new[head..new.len() - tail]);
        let edits = vec![
            (lead.len() + head, old.len() - tail - head, put),
            (0, lead.len(), Bytes::copy_from_slice(new_lead)),
        ];
        make.forged(of, &how, class, VectorCase { edit: Some(edits), ..VectorCase::default() });
    };
    for at in 0..nodes.len() {
        let mut forged = nodes.clone();
        forged.remove(at);
        let class = if at + 1 == nodes.len() { "missing" } else { "root" };
        forge(format!("node {at} dropped"), Some(class), forged);
        let mut forged = nodes.clone();
        forged.insert(at, nodes[at].clone());
        let class = if at + 1 == nodes.len() { "unused" } else { "root" };
        forge(format!("node {at} doubled"), Some(class), forged);
    }
    for (a, b) in [(0, 1), (1, 2), (nodes.len() - 2, nodes.len() - 1)] {
        let mut forged = nodes.clone();
        forged.swap(a, b);
        forge(format!("nodes {a} and {b} swapped"), Some("root"), forged);
    }
    let mut forged = nodes.clone();
    forged.push(Bytes::from_static(&[0x80]));
    forge("an empty node more".into(), Some("unused"), forged);
    forge("no nodes".into(), Some("missing"), Vec::new());
    let mut forged = nodes;
    forged[0] = Bytes::new();
    forge("an empty first node".into(), Some("root"), forged);
}

pub(crate) fn eip1186() -> VectorFile {
    let mut make = VectorMaker::new("Answers of eth_getProof (EIP-1186).", Vec::new());
    let scene = scene(Mpt::new(), 700);
    let MptScene { chain, plain, single, large, absent } = &scene;
    let (plain, single, large, absent) = (*plain, *single, *large, *absent);
    let root = chain.headers[BLOCKS as usize].state_root;
    let asked = [
        ("an account without slots", BLOCKS, plain, vec![]),
        ("slots, one absent", BLOCKS, large.0, vec![large.1, absent.1, B256::ZERO]),
        ("a slot that is alone", BLOCKS, single.0, vec![single.1]),
        ("an absent account", BLOCKS, absent.0, vec![absent.1]),
        ("the empty state", 0, absent.0, vec![absent.1]),
        ("a state of one account", 1, plain, vec![B256::ZERO]),
    ];
    for (name, number, address, slots) in &asked {
        let answer = eth_answer(chain, *number, *address, slots);
        let header = &chain.headers[*number as usize];
        let trusted = VectorTrust::Root(header.state_root);
        let truth = chain.truth(*number, &StateProofResponse::keys_of(*address, slots.clone()));
        let question = VectorQuestion::EthProof(serde_json::to_value(answer).unwrap());
        make.valid(name, trusted, None, question, truth);
    }
    let (of, of_slots) = ("an account without slots", "slots, one absent");
    let header = alloy_rlp::encode(&chain.headers[BLOCKS as usize]);
    let trusted = VectorTrust::Header { hash: keccak256(&header), rlp: header.into() };
    let mut case = make.file.cases[0].clone();
    (case.name, case.of) = ("an account under a header".into(), Some(case.name));
    (case.trusted, case.question) = (Some(trusted), None);
    make.add(case);

    let trusted =
        |root| VectorCase { trusted: Some(VectorTrust::Root(root)), ..VectorCase::default() };
    make.forged(of, "another root", Some("root"), trusted(B256::repeat_byte(1)));
    let before = chain.headers[BLOCKS as usize - 1].state_root;
    make.forged(of, "the root of the block before", Some("root"), trusted(before));
    make.forged_field(of, "address", "root", json!(absent.0));
    make.forged_field(of, "balance", "claim", json!("0x1"));
    make.forged_field(of, "nonce", "claim", json!("0x1234"));
    make.forged_field(of, "codeHash", "claim", json!(B256::repeat_byte(2)));
    make.forged_field(of, "storageHash", "claim", json!(root));
    let nodes = eth_answer(chain, BLOCKS, plain, &[]).account_proof;
    make.forged_field(of, "accountProof", "missing", json!(nodes[..nodes.len() - 1]));
    let mut case = VectorCase::default();
    let mut with = |how: &str, class: &str, field: &str, value: Json, of: &str| {
        case.with = Some(BTreeMap::from([(field.to_owned(), value)]));
        make.forged(of, how, Some(class), case.clone());
    };
    let turned: Vec<_> = nodes.iter().rev().collect();
    with("nodes turned around", "root", "accountProof", json!(turned), of);
    let twice = [&nodes[..], &nodes[nodes.len() - 1..]].concat();
    with("a node twice", "unused", "accountProof", json!(twice), of);
    with("no nodes", "missing", "accountProof", json!([]), of);

    let slots = eth_answer(chain, BLOCKS, large.0, &[large.1, absent.1]).storage_proof;
    let changed = |change: &dyn Fn(&mut Vec<EthSlotProof>)| {
        let mut slots = slots.clone();
        change(&mut slots);
        json!(slots)
    };
    let of = of_slots;
    let field = "storageProof";
    let value = changed(&|slots| slots[0].value += U256::from(1));
    with("another value", "claim", field, value, of);
    let value = changed(&|slots| slots[0].value = U256::ZERO);
    with("a present slot said to be zero", "claim", field, value, of);
    let value = changed(&|slots| slots[1].value = U256::from(1));
    with("an absent slot said to be set", "claim", field, value, of);
    let value = changed(&|slots| slots[0].key += U256::from(1));
    with("another slot", "root", field, value, of);
    let value = changed(&|slots| slots.swap_with_proofs());
    with("proofs of two slots swapped", "root", field, value, of);
    let value = changed(&|slots| {
        slots[1].proof.pop();
    });
    with("a proof of absence that stops early", "missing", field, value, of);
    let value = changed(&|slots| slots[0].proof.clear());
    with("no proof", "missing", field, value, of);

    let of = "an absent account";
    with("some balance", "claim", "balance", json!("0x1"), of);
    with("some storage", "claim", "storageHash", json!(root), of);
    let mut zeros = make.file.resolve(&make.file.cases[3]);
    (zeros.name, zeros.of) = ("an absent account, hashes as zeros".into(), Some(zeros.name));
    (zeros.trusted, zeros.question) = (None, None);
    let zero = json!(B256::ZERO);
    zeros.with = Some(BTreeMap::from([
        ("codeHash".to_owned(), zero.clone()),
        ("storageHash".to_owned(), zero),
    ]));
    make.add(zeros);
    make.file
}

trait SwapProofs {
    fn swap_with_proofs(&mut self);
}

impl SwapProofs for Vec<EthSlotProof> {
    fn swap_with_proofs(&mut self) {
        let first = std::mem::take(&mut self[0].proof);
        self[0].proof = std::mem::replace(&mut self[1].proof, first);
    }
}

/// The answer of `eth_getProof`, its nodes taken from proofs of single keys.
fn eth_answer(
    chain: &TestChain,
    number: u64,
    address: Address,
    slots: &[B256],
) -> EthProofResponse {
    let nodes = |keys: &[StateKey]| parts(&chain.prove(number, keys).bytes).1;
    let account_proof = nodes(&[StateKey::Account(address)]);
    let values = chain.truth(number, &StateProofResponse::keys_of(address, slots.to_vec()));
    let account = values[0].as_ref().map(|value| Account::decode(value).unwrap());
    let number_of =
        |value: &Option<StateValue>| value.as_ref().map_or(U256::ZERO, |v| decode_slot(v).unwrap());
    let storage_proof = slots.iter().zip(&values[1..]).map(|(slot, value)| EthSlotProof {
        key: (*slot).into(),
        value: number_of(value),
        proof: nodes(&[StateKey::Slot(address, *slot)]).split_off(account_proof.len()),
    });
    let storage_proof: Vec<_> = storage_proof.collect();
    // The last node of an account that is there is its leaf, the storage root its third field.
    let storage_hash = account.map(|_| {
        let leaf = account_proof.last().unwrap();
        B256::from_slice(&leaf[leaf.len() - 65..leaf.len() - 33])
    });
    let Account { nonce, balance, code_hash } = account.unwrap_or_default();
    EthProofResponse {
        address,
        balance,
        code_hash: if account.is_some() { code_hash } else { KECCAK256_EMPTY },
        nonce: U64::from(nonce),
        storage_hash: storage_hash.unwrap_or(TrieHash::Keccak256.empty_root()),
        account_proof,
        storage_proof,
    }
}

/// The answer of `state_getProof`.
pub(crate) fn answer(
    chain: &TestChain,
    number: u64,
    address: Address,
    slots: &[B256],
) -> (Json, Vec<Option<StateValue>>) {
    let keys = StateProofResponse::keys_of(address, slots.to_vec());
    answer_by(chain.prove(number, &keys), chain.truth(number, &keys), address, slots)
}

/// The same with this proof of these values, the account's first.
pub(crate) fn answer_by(
    proof: StateProof,
    truth: Vec<Option<StateValue>>,
    address: Address,
    slots: &[B256],
) -> (Json, Vec<Option<StateValue>>) {
    let account = truth[0].as_ref().map(|value| Account::decode(value).unwrap());
    let value =
        |value: &Option<StateValue>| value.as_ref().map_or(U256::ZERO, |v| decode_slot(v).unwrap());
    let storage = slots.iter().copied().zip(truth[1..].iter().map(value));
    let answer = StateProofResponse::new(proof, address, account, storage);
    (serde_json::to_value(answer).unwrap(), truth)
}

/// Answers of `state_getProof`, and every way to trust a root.
pub(crate) fn answers() -> VectorFile {
    let about = "Answers of state_getProof under a header, a checkpoint and a root.";
    let mut make = VectorMaker::new(about, Vec::new());
    let scene = scene(Mpt::new(), 700);
    let MptScene { chain, plain, large, absent, .. } = &scene;
    let (plain, large, absent) = (*plain, *large, *absent);
    let number = BLOCKS - 1;
    let header = &chain.headers[number as usize];
    let rlp = Bytes::from(alloy_rlp::encode(header));
    let hash = keccak256(&rlp);
    let root = VectorTrust::Root(header.state_root);
    let by_header = VectorTrust::Header { hash, rlp: rlp.clone() };
    let pinned = VectorTrust::Checkpoint { block: U64::from(number), root: header.state_root };
    let (json_plain, truth) = answer(chain, number, plain, &[]);
    let question = VectorQuestion::Answer(json_plain);
    make.valid("under a root", root.clone(), None, question.clone(), truth.clone());
    make.valid("under a checkpoint", pinned, None, question.clone(), truth.clone());
    make.valid("under a header", by_header, None, question, truth);
    let (json_slots, truth) = answer(chain, number, large.0, &[large.1, absent.1]);
    make.valid("with slots", root.clone(), None, VectorQuestion::Answer(json_slots.clone()), truth);
    let (json_absent, truth) = answer(chain, number, absent.0, &[absent.1]);
    make.valid("of an absent account", root, None, VectorQuestion::Answer(json_absent), truth);

    let trusted = |trusted| VectorCase { trusted: Some(trusted), ..VectorCase::default() };
    let of = "under a header";
    let mut other = rlp.to_vec();
    other[100] ^= 1;
    let forged = VectorTrust::Header { hash, rlp: other.clone().into() };
    make.forged(of, "a header that was changed", Some("header"), trusted(forged));
    let forged = VectorTrust::Header { hash: keccak256(&other), rlp: other.into() };
    make.forged(of, "a header of another root", None, trusted(forged));
    for (how, bytes) in [
        ("no header", vec![]),
        ("a header cut off", rlp[..100].to_vec()),
        ("bytes after the header", [&rlp[..], &[0x80]].concat()),
        ("a list of one field", vec![0xc1, 0x80]),
        ("a string", vec![0x83, 1, 2, 3]),
    ] {
        let forged = VectorTrust::Header { hash: keccak256(&bytes), rlp: bytes.into() };
        make.forged(of, how, Some("header"), trusted(forged));
    }
    let before = alloy_rlp::encode(&chain.headers[number as usize - 1]);
    let forged = VectorTrust::Header { hash: keccak256(&before), rlp: before.into() };
    make.forged(of, "the header of the block before", Some("block"), trusted(forged));
    make.forged_field(of, "block", "block", json!("0x1"));
    make.forged_field(of, "blockHash", "block", json!(B256::repeat_byte(3)));

    let of = "under a checkpoint";
    let (block, root) = (U64::from(number), header.state_root);
    let forged = VectorTrust::Checkpoint { block: block + U64::from(1), root };
    make.forged(of, "of another block", Some("block"), trusted(forged));
    let forged = VectorTrust::Checkpoint { block, root: B256::repeat_byte(4) };
    make.forged(of, "of another root", Some("root"), trusted(forged));

    let of = "under a root";
    let account = &json_slots["account"];
    make.forged_field(of, "account", "claim", Json::Null);
    make.forged_field(of, "address", "kind", json!(large.0));
    let mut with = |of: &str, how: &str, class: &str, field: &str, value: Json| {
        let with = Some(BTreeMap::from([(field.to_owned(), value)]));
        make.forged(of, how, Some(class), VectorCase { with, ..VectorCase::default() });
    };
    with(of, "the account of another address", "claim", "account", account.clone());
    with(of, "another kind", "kind", "backend", "cole".into());
    with(of, "a slot more", "kind", "storage", json_slots["storage"].clone());
    let of = "with slots";
    for (field, value) in [
        ("nonce", json!("0xffff")),
        ("balance", json!("0x3635c9adc5dea00000")),
        ("codeHash", json!(B256::repeat_byte(5))),
    ] {
        let mut forged = account.clone();
        forged[field] = value;
        with(of, &format!("another {field}"), "claim", "account", forged);
    }
    let slots = json_slots["storage"].as_array().unwrap();
    let change = |change: &dyn Fn(&mut Vec<Json>)| {
        let mut slots = slots.clone();
        change(&mut slots);
        Json::from(slots)
    };
    let value = change(&|slots| slots[0]["value"] = json!("0x1"));
    with(of, "another value", "claim", "storage", value);
    let value = change(&|slots| {
        let first = slots[0]["value"].take();
        slots[0]["value"] = slots[1]["value"].take();
        slots[1]["value"] = first;
    });
    with(of, "values swapped", "claim", "storage", value);
    let value = change(&|slots| slots.swap(0, 1));
    with(of, "slots in another order", "kind", "storage", value);
    let value = change(&|slots| slots.truncate(1));
    with(of, "a slot less", "kind", "storage", value);
    let of = "of an absent account";
    with(of, "an account made up", "claim", "account", account.clone());
    let slots = json!([{"key": absent.1, "value": "0x1"}]);
    with(of, "a slot made up", "claim", "storage", slots);
    make.file
}
