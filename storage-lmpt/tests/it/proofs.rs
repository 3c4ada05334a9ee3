//! Forged proofs: the verifier rejects a proof that hides a newer leaf or shows a false one.

use crate::common::{TestChain, every, key};
use alloy_primitives::{B256, Bytes, keccak256};
use retrie_state::{ProofError, StateKey, wire::WireReader, wire::put_varint};
use retrie_state_store::StateId;
use retrie_storage_lmpt::{root, verify};
use retrie_storage_mpt::{LeafUpdate, MemorySource, Trie};

/// The parts of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProofParts {
    roots: [B256; 3],
    nodes: [Vec<Vec<u8>>; 3],
}

impl ProofParts {
    fn read(proof: &[u8]) -> Self {
        let mut rest = WireReader::new(proof);
        let roots = [(); 3].map(|()| rest.hash().unwrap());
        let nodes = [(); 3].map(|()| {
            let count = rest.varint().unwrap();
            (0..count)
                .map(|_| {
                    let len = rest.varint().unwrap() as usize;
                    rest.take(len).unwrap().to_vec()
                })
                .collect()
        });
        rest.finish().unwrap();
        Self { roots, nodes }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.roots.concat();
        for nodes in &self.nodes {
            put_varint(&mut out, nodes.len() as u64);
            for node in nodes {
                put_varint(&mut out, node.len() as u64);
                out.extend_from_slice(node);
            }
        }
        out
    }
}

fn value(n: u8) -> Option<Bytes> {
    Some(Bytes::from(vec![n; 20]))
}

/// The newest leaf of each key is in the delta (1 set, 2 deleted), in the intermediate trie (3 set,
/// 4 deleted), in the snapshot (5), or nowhere (200). All but the last have older leaves below.
fn chain() -> TestChain {
    let mut chain = TestChain::new(every(4), 30);
    // Many more keys, so that tries have branches.
    let many = |from: u64| (from..from + 40).map(move |n| (key(n), value(n as u8)));
    chain.block(&(1..8).map(|n| (key(n), value(0xa0 + n as u8))).chain(many(20)).collect());
    let older = |n: u64| (key(n), value(0xb0 + n as u8));
    for _ in 1..=4 {
        chain.block(&(1..5).map(older).chain(many(60)).collect());
    }
    // A boundary. The delta from now on becomes the intermediate trie.
    let middle = vec![(key(3), value(0xc3)), (key(4), None), (key(1), value(0xc1))];
    chain.block(&middle.into_iter().chain(many(100)).collect());
    for n in 0..3 {
        chain.block(&many(100 + n).collect());
    }
    let last = vec![(key(1), value(0xd1)), (key(2), None)];
    chain.block(&last.into_iter().chain(many(140)).collect());
    chain
}

fn prove(chain: &TestChain, at: u64, keys: &[StateKey]) -> (B256, ProofParts) {
    let state = chain.store().at(StateId::Block(chain.hashes[at as usize])).unwrap();
    let proof = state.prove(keys).unwrap();
    let parts = ProofParts::read(&proof.bytes);
    assert_eq!(parts.bytes(), proof.bytes);
    (proof.root, parts)
}

const TIP: u64 = 9;

#[test]
fn a_proof_has_the_parts_that_its_keys_need_and_no_more() {
    let chain = chain();
    let parts = |n: u64| {
        let (root, parts) = prove(&chain, TIP, &[key(n)]);
        let shown = verify(root, &[key(n).into()], &parts.bytes()).unwrap();
        assert_eq!(shown, [chain.states[TIP as usize].get(&key(n)).cloned()]);
        (parts.nodes.map(|nodes| !nodes.is_empty()), shown[0].clone())
    };
    assert_eq!(parts(1), ([true, false, false], value(0xd1)));
    assert_eq!(parts(2), ([true, false, false], None));
    assert_eq!(parts(3), ([true, true, false], value(0xc3)));
    assert_eq!(parts(4), ([true, true, false], None));
    assert_eq!(parts(5), ([true, true, true], value(0xa5)));
    assert_eq!(parts(200), ([true, true, true], None));
}

/// Every forgery with whole layers and nodes.
#[test]
fn a_part_that_is_dropped_swapped_doubled_or_of_another_block_is_refused() {
    let chain = chain();
    let (before, _) = prove(&chain, TIP - 1, &[]);
    for n in [1, 2, 3, 4, 5, 200] {
        let keys = [key(n)];
        let (root, parts) = prove(&chain, TIP, &keys);
        let (_, old) = prove(&chain, TIP - 1, &keys);
        let (_, oldest) = prove(&chain, 0, &keys);
        let refuse = |how: &str, forged: &ProofParts| {
            if *forged != parts {
                let shown =
                    verify(root, &retrie_state::KeyForm::Plain.keys(&keys), &forged.bytes());
                assert!(shown.is_err(), "key {n}, {how}: {shown:?}");
            }
        };
        for at in 0..3 {
            let mut forged = parts.clone();
            forged.nodes[at].clear();
            refuse("a part is dropped", &forged);
            forged.roots[at] = retrie_storage_mpt::TrieHash::Keccak256.empty_root();
            refuse("a layer is said to be empty", &forged);
            for (of, other) in [("the block before", &old), ("the first block", &oldest)] {
                let mut forged = parts.clone();
                forged.nodes[at].clone_from(&other.nodes[at]);
                refuse(of, &forged);
                forged.roots[at] = other.roots[at];
                refuse(of, &forged);
            }
            let mut forged = parts.clone();
            forged.nodes.swap(at, (at + 1) % 3);
            refuse("parts are swapped", &forged);
            forged.roots.swap(at, (at + 1) % 3);
            refuse("layers are swapped", &forged);
            for node in 0..parts.nodes[at].len() {
                let mut forged = parts.clone();
                let taken = forged.nodes[at].remove(node);
                refuse("a node is dropped", &forged);
                forged.nodes[at].insert(node, taken.clone());
                forged.nodes[at].insert(node, taken);
                refuse("a node is doubled", &forged);
            }
        }
        refuse("of the block before", &old);
        assert!(verify(before, &retrie_state::KeyForm::Plain.keys(&keys), &parts.bytes()).is_err());
    }
}

/// A proof with an unused part is rejected: a proof has one form.
#[test]
fn a_part_that_is_not_needed_is_refused() {
    let chain = chain();
    let (root, all) = prove(&chain, TIP, &[key(1), key(5)]);
    let (_, own) = prove(&chain, TIP, &[key(1)]);
    let mut forged = own;
    forged.nodes[2].clone_from(&all.nodes[2]);
    assert_eq!(verify(root, &[key(1).into()], &forged.bytes()), Err(ProofError::Unused));
}

/// Tries with one malformed leaf, under a root that names them.
#[test]
fn leaves_that_no_layer_has_are_refused() {
    let path = keccak256(&*key(1).encode());
    let trie = |leaf: &[u8]| {
        let item = LeafUpdate::new(path, Some(Bytes::copy_from_slice(leaf)));
        Trie::default().update(&MemorySource, &[item], &mut ()).unwrap()
    };
    let empty = Trie::default();
    let shown = |at: usize, leaf: &[u8]| {
        let made = trie(leaf);
        let mut roots = [empty.hash(); 3];
        roots[at] = made.hash();
        let mut way = Vec::new();
        made.prove(&MemorySource, &path, &mut way).unwrap();
        let mut nodes: [Vec<Vec<u8>>; 3] = Default::default();
        nodes[at] = way.into_iter().map(Vec::from).collect();
        verify(root(&roots), &[key(1).into()], &ProofParts { roots, nodes }.bytes())
    };
    for at in 0..3 {
        assert_eq!(shown(at, &[1, 7]), Ok(vec![Some(Bytes::from_static(&[7]))]));
        for wrong in [&[0, 0][..], &[2], &[2, 7], &[0xff]] {
            let error = Err(ProofError::Malformed { what: "leaf" });
            assert_eq!(shown(at, wrong), error, "{wrong:?}");
        }
    }
    assert_eq!(shown(0, &[0]), Ok(vec![None]));
    assert_eq!(shown(1, &[0]), Ok(vec![None]));
    let tombstone = ProofError::Malformed { what: "tombstone in the snapshot" };
    assert_eq!(shown(2, &[0]), Err(tombstone));
}

#[test]
fn bytes_have_one_form() {
    let chain = chain();
    let keys = [key(1), key(5), key(5), key(200)];
    let (root, parts) = prove(&chain, TIP, &keys);
    let bytes = parts.bytes();
    assert!(verify(root, &retrie_state::KeyForm::Plain.keys(&keys), &bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(
            verify(root, &retrie_state::KeyForm::Plain.keys(&keys), &bytes[..len]).is_err(),
            "cut at {len}"
        );
    }
    let longer = [&bytes[..96], &[bytes[96] | 0x80, 0], &bytes[97..]].concat();
    assert!(matches!(
        verify(root, &retrie_state::KeyForm::Plain.keys(&keys), &longer),
        Err(ProofError::Malformed { .. })
    ));
    let huge = [&bytes[..96], &[0xff; 9], &[1], &bytes[97..]].concat();
    assert!(matches!(
        verify(root, &retrie_state::KeyForm::Plain.keys(&keys), &huge),
        Err(ProofError::Malformed { .. })
    ));
    assert!(verify(root, &[], &bytes).is_err());
    let none = chain.store().at(StateId::Tip).unwrap().prove(&[]).unwrap();
    assert_eq!((none.bytes.len(), verify(root, &[], &none.bytes)), (99, Ok(Vec::new())));
}
