//! Proofs: presence and absence, checked by alloy's verifier too, and every forgery refused.

use crate::common::{
    PLAIN, StateModel, TestStore, account_proof, random_address, random_word, storage_root,
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, TrieAccount, proof::verify_proof};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{
    Account, Backend, NodeWrite, ProofError, StateKey, StateReader, decode_slot, encode_slot,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::{MptArchive, NODES, PartialMpt, ROOTS, TrieHash, WitnessNodes, verify};

/// 60 accounts, the first of which have 0, 1, 2, ... slots; and keys that are absent.
fn store() -> (TestStore, Vec<StateKey>, Vec<StateKey>) {
    let random = &mut StdRng::seed_from_u64(11);
    let mut model = StateModel::new();
    for n in 0..60u64 {
        let address = random_address(random);
        let account = Account { nonce: n, balance: U256::from(n * n), ..Default::default() };
        model.insert(StateKey::Account(address), account.encode());
        for _ in 0..if n < 12 { n } else { 0 } {
            let value = encode_slot(U256::from(random.random::<u64>() | 1)).unwrap();
            model.insert(StateKey::Slot(address, random_word(random)), value);
        }
    }
    let mut absent: Vec<_> = (0..10).map(|_| StateKey::Account(random_address(random))).collect();
    absent.push(StateKey::Slot(*absent[0].address(), B256::ZERO));
    let accounts: Vec<_> =
        model.keys().filter(|key| matches!(key, StateKey::Account(_))).copied().collect();
    absent.extend(accounts.iter().map(|key| StateKey::Slot(*key.address(), random_word(random))));
    let mut store = TestStore::new();
    store.block(model, &[]);
    let present = store.model.keys().copied().collect();
    (store, present, absent)
}

impl TestStore {
    fn prove(&self, keys: &[StateKey]) -> Bytes {
        self.mpt.prove(&self.view, &self.cache, &PLAIN.keys(keys)).unwrap()
    }

    fn expect(&self, keys: &[StateKey]) -> Vec<Option<Bytes>> {
        keys.iter().map(|key| self.model.get(key).cloned()).collect()
    }
}

#[test]
fn every_key_is_proven_alone_and_all_together() {
    let (store, present, absent) = store();
    let all: Vec<_> = present.iter().chain(&absent).copied().collect();
    for keys in all.chunks(1).chain([&all[..], &[]]) {
        let proof = store.prove(keys);
        assert_eq!(
            store.mpt.verify(store.root, &PLAIN.keys(keys), &proof).unwrap(),
            store.expect(keys)
        );
    }
    let twice = [all[0], all[0]];
    assert_eq!(
        store.mpt.verify(store.root, &PLAIN.keys(&twice), &store.prove(&twice)).unwrap(),
        store.expect(&twice)
    );
}

#[test]
fn the_empty_state_proves_absence_without_nodes() {
    let store = TestStore::new();
    let keys = [StateKey::Account(Address::ZERO), StateKey::Slot(Address::ZERO, B256::ZERO)];
    let proof = store.prove(&keys);
    assert_eq!(
        store.mpt.verify(EMPTY_ROOT_HASH, &PLAIN.keys(&keys), &proof).unwrap(),
        [None, None]
    );
    assert!(store.mpt.verify(B256::repeat_byte(1), &PLAIN.keys(&keys), &proof).is_err());
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let (store, present, absent) = store();
    let slot = *present.last().unwrap();
    for keys in [vec![present[3]], vec![slot], vec![absent[0], slot, present[0]]] {
        let proof = store.prove(&keys);
        for at in 0..proof.len() {
            for bit in 0..8 {
                let mut forged = proof.to_vec();
                forged[at] ^= 1 << bit;
                let shown = store.mpt.verify(store.root, &PLAIN.keys(&keys), &forged);
                assert!(shown.is_err(), "bit {bit} of byte {at}: {shown:?}");
            }
            assert!(
                store.mpt.verify(store.root, &PLAIN.keys(&keys), &proof[..at]).is_err(),
                "cut at {at}"
            );
        }
        let longer = [&proof[..], &[0x80]].concat();
        assert!(store.mpt.verify(store.root, &PLAIN.keys(&keys), &longer).is_err());
    }
}

fn parts(proof: &[u8]) -> (B256, Vec<Bytes>) {
    let mut content = Header::decode_bytes(&mut &proof[..], true).unwrap();
    (B256::decode(&mut content).unwrap(), Vec::decode(&mut content).unwrap())
}

fn joined(digest: B256, nodes: &[Bytes]) -> Vec<u8> {
    let mut content = alloy_rlp::encode(digest);
    nodes.to_vec().encode(&mut content);
    let mut out = Vec::new();
    Header { list: true, payload_length: content.len() }.encode(&mut out);
    [out, content].concat()
}

#[test]
fn dropped_duplicated_swapped_and_foreign_parts_are_refused() {
    let (store, present, absent) = store();
    let keys = [present[5], *present.last().unwrap(), absent[3]];
    let (digest, nodes) = parts(&store.prove(&keys));
    assert_eq!(joined(digest, &nodes), store.prove(&keys), "the test splits proofs rightly");
    let (_, foreign) = parts(&store.prove(&present[..1]));
    let refused = |nodes: Vec<Bytes>| {
        let shown = store.mpt.verify(store.root, &PLAIN.keys(&keys), &joined(digest, &nodes));
        assert!(shown.is_err(), "{shown:?}");
    };
    for at in 0..nodes.len() {
        let mut forged = nodes.clone();
        forged.remove(at);
        refused(forged);
        for to in 0..=nodes.len() {
            let mut forged = nodes.clone();
            forged.insert(to, nodes[at].clone());
            refused(forged);
        }
        for other in at + 1..nodes.len() {
            let mut forged = nodes.clone();
            forged.swap(at, other);
            refused(forged);
        }
    }
    for node in foreign.iter().chain([&Bytes::new(), &Bytes::from_static(&[0x80])]) {
        refused(nodes.iter().chain([node]).cloned().collect());
    }
    refused(Vec::new());
}

#[test]
fn a_proof_of_other_keys_or_under_another_root_is_refused() {
    let (store, present, absent) = store();
    let keys: Vec<_> = present.iter().chain(&absent).copied().collect();
    let proofs: Vec<_> = keys.iter().map(|key| store.prove(&[*key])).collect();
    for (n, key) in keys.iter().enumerate() {
        for (m, proof) in proofs.iter().enumerate() {
            assert_eq!(
                store.mpt.verify(store.root, &[(*key).into()], proof).is_ok(),
                n == m,
                "{key}"
            );
        }
        let error = store.mpt.verify(keccak256([1]), &[(*key).into()], &proofs[n]).unwrap_err();
        assert_eq!(error, ProofError::RootMismatch);
        assert!(store.mpt.verify(EMPTY_ROOT_HASH, &[(*key).into()], &proofs[n]).is_err());
    }
    let (a, b) = (keys[0], keys[1]);
    assert!(
        store.mpt.verify(store.root, &[b.into(), a.into()], &store.prove(&[a, b])).is_err(),
        "order"
    );
}

#[test]
fn eip_1186_proofs_satisfy_alloy_and_our_verifier() {
    let (store, present, absent) = store();
    for key in present.iter().chain(&absent) {
        let StateKey::Account(address) = key else { continue };
        let slots: Vec<B256> = present
            .iter()
            .chain(&absent)
            .filter_map(|key| match key {
                StateKey::Slot(of, slot) if of == address => Some(*slot),
                _ => None,
            })
            .chain([B256::repeat_byte(0x77)])
            .collect();
        let nodes =
            store.mpt.nodes_of(&store.view, &store.cache, &PLAIN.account(address), &slots).unwrap();
        let proof = account_proof(nodes, &store.model, address, &slots);
        proof.verify(store.root).unwrap();
        assert_eq!(proof.storage_root, storage_root(&store.model, address));
        let account = store.model.get(key).map(|value| Account::decode(value).unwrap());
        assert_eq!(proof.account, account);
        let leaf = account.map(|Account { nonce, balance, code_hash }| {
            let storage_root = proof.storage_root;
            alloy_rlp::encode(TrieAccount { nonce, balance, storage_root, code_hash })
        });
        verify_proof(store.root, Nibbles::unpack(keccak256(address)), leaf, &proof.account_proof)
            .unwrap();
        for (slot, shown) in slots.iter().zip(&proof.storage) {
            assert_eq!(&shown.slot, slot);
            assert_eq!(shown.value, store.model.get(&StateKey::Slot(*address, *slot)).cloned());
            let leaf = shown.value.as_ref().map(|v| alloy_rlp::encode(decode_slot(v).unwrap()));
            let key = Nibbles::unpack(keccak256(slot));
            verify_proof(proof.storage_root, key, leaf, &shown.proof).unwrap();
        }
    }
}

#[test]
fn forged_eip_1186_statements_are_refused() {
    let (store, present, _) = store();
    let StateKey::Slot(address, slot) = *present.last().unwrap() else { panic!("a slot") };
    let slots = [slot, B256::repeat_byte(1)];
    let nodes = store.mpt.nodes_of(&store.view, &store.cache, &address.into(), &slots).unwrap();
    let proof = account_proof(nodes, &store.model, &address, &slots);
    proof.verify(store.root).unwrap();
    let refused = |what: &str, forge: &dyn Fn(&mut verify::AccountProof)| {
        let mut forged = proof.clone();
        forge(&mut forged);
        assert!(forged.verify(store.root).is_err(), "{what}");
    };
    refused("balance", &|p| p.account.as_mut().unwrap().balance += U256::from(1));
    refused("nonce", &|p| p.account.as_mut().unwrap().nonce += 1);
    refused("code", &|p| p.account.as_mut().unwrap().code_hash = B256::ZERO);
    refused("absence", &|p| p.account = None);
    refused("storage root", &|p| p.storage_root = EMPTY_ROOT_HASH);
    refused("address", &|p| p.address = Address::ZERO);
    refused("value", &|p| p.storage[0].value = encode_slot(U256::from(5)));
    refused("absence of a slot", &|p| p.storage[0].value = None);
    refused("presence of a slot", &|p| p.storage[1].value = encode_slot(U256::from(5)));
    refused("other slot", &|p| p.storage[0].slot = B256::repeat_byte(2));
    refused("a node too many", &|p| p.account_proof.push(Bytes::new()));
    refused("a node too few", &|p| drop(p.account_proof.pop()));
    refused("no nodes", &|p| p.storage[0].proof.clear());
}

/// The padding nibble of a path of even length is zero (yellow paper, appendix C). Other paddings
/// are refused in proofs, in rows by hash and in witnesses.
#[test]
fn a_path_padded_with_anything_but_zero_is_refused_wherever_nodes_are_read() {
    let mut store = TestStore::new();
    let key = StateKey::Account(Address::repeat_byte(3));
    store.block(StateModel::from([(key, Account::default().encode())]), &[]);
    let (digest, nodes) = parts(&store.prove(&[key]));
    let leaf = &nodes[0];
    // A list with a long header; a string of 33 bytes, the first of which says: a leaf, even.
    assert_eq!((nodes.len(), leaf[2], leaf[3]), (1, 0xa1, 0x20));
    for padding in 0..16 {
        let mut node = leaf.to_vec();
        node[3] |= padding;
        let (root, node) = (keccak256(&node), Bytes::from(node));
        let mut view = MemoryView::default();
        view.put(NODES, root.as_slice(), node.clone()).unwrap();
        view.put(ROOTS, &0u64.to_be_bytes(), Bytes::copy_from_slice(root.as_slice())).unwrap();
        let archive = MptArchive::with_cache(TrieHash::Keccak256, 2048);
        let witness = PartialMpt::open(root, WitnessNodes::new(std::slice::from_ref(&node)));
        let shown =
            verify::verify(root, &[key.into()], &joined(digest, std::slice::from_ref(&node)));
        let eip_1186 = verify::shown_account(root, key.address(), &[node]);
        let read = [
            archive.read(&view, &root, &PLAIN.key(&key)).ok(),
            archive.prove(&view, &root, &[key.into()]).map(|_| store.model.get(&key).cloned()).ok(),
            witness.get(&key).ok(),
            shown.clone().map(|values| values[0].clone()).ok(),
            eip_1186.map(|account| account.map(|(account, _)| account.encode())).ok(),
        ];
        let expected = (padding == 0).then(|| store.model.get(&key).cloned());
        assert_eq!(read, [(); 5].map(|()| expected.clone()), "padding {padding}");
        if padding > 0 {
            assert_eq!(shown, Err(ProofError::Malformed { what: "trie node" }));
        }
    }
}
