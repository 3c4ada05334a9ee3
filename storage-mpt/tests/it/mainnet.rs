//! Real data: the mainnet genesis, block witnesses, and the public trie tests.

use crate::common::{PLAIN, StateModel, TestStore, delta, json};
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use retrie_state::{
    Account, Backend, PartialState, StateError, StateKey, StateReader, encode_slot,
};
use retrie_state_testkit::data;
use retrie_storage_mpt::{LeafUpdate, MemorySource, Mpt, PartialMpt, Trie, WitnessNodes};
use serde_json::Value as Json;
use std::collections::BTreeMap;

fn bytes(value: &Json) -> Bytes {
    hex::decode(value.as_str().unwrap()).unwrap().into()
}

fn number(value: &Json) -> U256 {
    value.as_str().unwrap().parse().unwrap()
}

fn hash(value: &Json) -> B256 {
    value.as_str().unwrap().parse().unwrap()
}

#[test]
fn the_mainnet_genesis_has_its_state_root() {
    let Some(genesis) = data::find("mainnet/genesis/mainnet.json.gz") else { return };
    let genesis = json(&genesis);
    let mut model = StateModel::new();
    for (address, entry) in genesis["alloc"].as_object().unwrap() {
        let balance = number(&entry["balance"]);
        let account = Account { balance, ..Default::default() };
        model.insert(StateKey::Account(address.parse().unwrap()), account.encode());
    }
    assert_eq!(model.len(), 8893);
    let root: B256 =
        "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544".parse().unwrap();
    let mut store = TestStore::new();
    store.block(model, &[]);
    assert_eq!(store.root, root);
    assert_eq!(store.bulk_loaded(), (store.view.clone(), root));
}

/// An account map of a bundle: every entry, absent ones as `None`.
fn entries(map: &Json) -> BTreeMap<StateKey, Option<Bytes>> {
    let mut entries = BTreeMap::new();
    for (address, account) in map.as_object().unwrap() {
        let address: Address = address.parse().unwrap();
        let value = (!account.is_null()).then(|| Account {
            nonce: account["nonce"].as_u64().unwrap(),
            balance: number(&account["balance"]),
            code_hash: hash(&account["codeHash"]),
        });
        entries.insert(StateKey::Account(address), value.map(|account| account.encode()));
        for (slot, value) in account["storage"].as_object().into_iter().flatten() {
            let slot = slot.parse::<U256>().unwrap().into();
            entries.insert(StateKey::Slot(address, slot), encode_slot(number(value)));
        }
    }
    entries
}

fn present(entries: BTreeMap<StateKey, Option<Bytes>>) -> StateModel {
    entries.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

#[test]
fn witnesses_of_mainnet_blocks_open_read_and_reach_the_post_state_root() {
    let Some(witnesses) = data::find("mainnet/witness") else { return };
    let (mut blocks, mut reached) = (0, Vec::new());
    let mut files: Vec<_> =
        std::fs::read_dir(witnesses).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files {
        let bundle = json(&file);
        let number = bundle["number"].as_u64().unwrap();
        let root = hash(&bundle["preStateRoot"]);
        let nodes: Vec<Bytes> = bundle["state"].as_array().unwrap().iter().map(bytes).collect();
        let tree = PartialMpt::open(root, WitnessNodes::new(&nodes));
        blocks += 1;
        let Some(pre) = bundle.get("pre").filter(|pre| pre.is_object()) else {
            assert_eq!(number, 23879620, "the one bundle without keys");
            continue;
        };
        let before = entries(pre);
        for (key, value) in &before {
            assert_eq!(&tree.get(key).unwrap(), value, "block {number}: {key}");
        }
        for (address, account) in pre.as_object().unwrap() {
            let address = address.parse().unwrap();
            let shown = tree.account_and_storage_root(&address).unwrap();
            assert_eq!(shown.is_some(), !account.is_null());
            if let Some((_, storage_root)) = shown {
                assert_eq!(storage_root, hash(&account["storageRoot"]), "{number}: {address}");
            }
        }
        let Some(post) = bundle.get("post").filter(|post| post.is_object()) else { continue };
        let mut after = entries(post);
        // A proof shows an empty account and an absent one alike; none of these blocks makes an
        // account empty that was absent.
        let empty = Some(Account::default().encode());
        for (key, value) in &mut after {
            if *value == empty && before.get(key).is_some_and(Option::is_none) {
                *value = None;
            }
        }
        let (before, after) = (present(before), present(after));
        let next = tree.after(&delta(&before, &after, &[])).unwrap_or_else(|error| {
            panic!("block {number}: {error}");
        });
        for (address, account) in post.as_object().unwrap() {
            let address: Address = address.parse().unwrap();
            if let Some((_, storage_root)) = next.account_and_storage_root(&address).unwrap() {
                let expected = hash(&account["storageRoot"]);
                assert_eq!(storage_root, expected, "block {number}: storage root of {address}");
            }
        }
        for (key, value) in &after {
            assert_eq!(next.get(key).unwrap().as_ref(), Some(value), "block {number}: {key}");
        }
        assert_eq!(next.root(), hash(&bundle["postStateRoot"]), "block {number}");
        assert_eq!(tree.root(), root, "the tree before stays as it was");
        reached.push(number);
    }
    println!("{blocks} witnesses; post-state root reached for {reached:?}");
    assert_eq!(blocks, 25);
    assert_eq!(reached.len(), 10, "bundles with a post map: {reached:?}");
}

#[test]
fn a_witness_without_a_needed_node_names_it() {
    let mut store = TestStore::new();
    let model: StateModel = (1..=40u8)
        .map(|n| (StateKey::Account(Address::repeat_byte(n)), Account::default().encode()))
        .collect();
    store.block(model, &[]);
    let keys: Vec<_> = store.model.keys().copied().collect();
    let nodes = |keys: &[StateKey]| {
        let mut nodes = Vec::new();
        for key in keys {
            let proof =
                store.mpt.nodes_of(&store.view, &store.cache, &PLAIN.account(key.address()), &[]);
            nodes.extend(proof.unwrap().account);
        }
        nodes
    };
    let tree = store.mpt.open_witness(store.root, &nodes(&keys[..1])).unwrap();
    assert_eq!(tree.get(&keys[0]).unwrap(), Some(store.model[&keys[0]].clone()));
    let missing =
        keys.iter().filter(|key| matches!(tree.get(key), Err(StateError::MissingWitness { .. })));
    assert!(missing.count() > 30);
    // The whole witness shows all; what it shows can be deleted down to nothing.
    let tree = store.mpt.open_witness(store.root, &nodes(&keys)).unwrap();
    let after = tree.apply(&delta(&store.model, &StateModel::new(), &[])).unwrap();
    assert_eq!(after.root(), Mpt::new().profile().empty_root);
    // Deleting one of two leaves collapses their branch into the other: it has to be shown.
    let sibling = keys.iter().find_map(|key| {
        let tree = store.mpt.open_witness(store.root, &nodes(&[*key])).unwrap();
        let mut after = store.model.clone();
        after.remove(key);
        tree.apply(&delta(&store.model, &after, &[])).err()
    });
    let error = sibling.expect("some leaf has a single sibling");
    assert!(matches!(error, StateError::MissingWitness { .. }), "{error}");
}

#[test]
fn a_wiped_account_of_a_witness_starts_from_empty_storage() {
    let mut store = TestStore::new();
    let address = Address::repeat_byte(5);
    let slot = |n| StateKey::Slot(address, B256::with_last_byte(n));
    let one = encode_slot(U256::from(1)).unwrap();
    let mut model = StateModel::from([(StateKey::Account(address), Account::default().encode())]);
    model.extend((0..20).map(|n| (slot(n), one.clone())));
    store.block(model, &[]);
    let proof = store.mpt.nodes_of(&store.view, &store.cache, &address.into(), &[]).unwrap();
    let tree = store.mpt.open_witness(store.root, &proof.account).unwrap();
    assert!(matches!(tree.slots_of(&address), Err(StateError::MissingWitness { .. })));
    let mut after = StateModel::from([(StateKey::Account(address), Account::default().encode())]);
    after.insert(slot(33), one.clone());
    after.insert(slot(3), one.clone());
    // The witness contains one of the old slots, which is set again to its old value. That the
    // others are deleted follows from the wipe marker alone.
    let mut before = StateModel::from([(StateKey::Account(address), Account::default().encode())]);
    before.insert(slot(3), one);
    let known = delta(&before, &after, &[address]);
    let root = tree.apply(&known).unwrap().root();
    store.block(after, &[address]);
    assert_eq!(root, store.root);
}

#[test]
fn public_secure_trie_tests_have_their_roots_in_any_order() {
    let archive = "conformance/ethereum-tests-basics.tar.zst";
    let Some(archive) = data::find(archive) else { return };
    let file = std::fs::File::open(archive).unwrap();
    let mut archive = tar::Archive::new(zstd::Decoder::new(file).unwrap());
    let mut tests = 0;
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        // The other files have keys of other lengths than 32 bytes, which no state trie has.
        let name = path.file_name().unwrap().to_string_lossy().to_lowercase();
        if !path.components().any(|part| part.as_os_str() == "TrieTests")
            || !name.contains("secure")
        {
            continue;
        }
        let file: Json = serde_json::from_reader(entry).unwrap();
        for (name, test) in file.as_object().unwrap() {
            let read = |text: &str| {
                text.strip_prefix("0x")
                    .map_or_else(|| text.as_bytes().to_vec(), |text| hex::decode(text).unwrap())
            };
            let pair = |key: &str, value: Option<&str>| {
                LeafUpdate::new(keccak256(read(key)), value.map(|value| read(value).into()))
            };
            let pairs: Vec<LeafUpdate> = match &test["in"] {
                Json::Object(map) => {
                    map.iter().map(|(key, value)| pair(key, value.as_str())).collect()
                }
                Json::Array(list) => list
                    .iter()
                    .map(|entry| pair(entry[0].as_str().unwrap(), entry[1].as_str()))
                    .collect(),
                _ => panic!("{name}: unknown form"),
            };
            let root = hash(&test["root"]);
            // One by one, in the order given and backwards (where no key comes twice).
            let one_by_one = |pairs: &mut dyn Iterator<Item = &LeafUpdate>| {
                pairs.fold(Trie::default(), |trie, item| {
                    trie.update(&MemorySource, std::slice::from_ref(item), &mut ()).unwrap()
                })
            };
            assert_eq!(one_by_one(&mut pairs.iter()).hash(), root, "{name}");
            let batch: BTreeMap<_, _> =
                pairs.iter().map(|item| (item.key, item.value.clone())).collect();
            if batch.len() == pairs.len() {
                assert_eq!(one_by_one(&mut pairs.iter().rev()).hash(), root, "{name} backwards");
            }
            let batch: Vec<_> =
                batch.into_iter().map(|(key, value)| LeafUpdate::new(key, value)).collect();
            let trie = Trie::default().update(&MemorySource, &batch, &mut ()).unwrap();
            assert_eq!(trie.hash(), root, "{name} as one batch");
            tests += 1;
        }
    }
    assert!(tests >= 3, "{tests} tests found");
}
