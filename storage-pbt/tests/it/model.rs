//! Blocks of random changes: root, rows, proofs and values are those that the whole state gives.

use crate::common::{CodedView, HASH, StateModel, Step, TestTree, codes};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_state::{Account, AnyCache, Backend, BackendKey, CodePart, StateKey};
use retrie_storage_pbt::{CODES, NODES, STEMS, STORAGE_NODES, verify};

fn address(rng: &mut StdRng, many: u16) -> Address {
    Address::left_padding_from(&rng.random_range(0..many).to_be_bytes())
}

fn account(rng: &mut StdRng, model: &StateModel) -> Account {
    let code_hash = match rng.random_bool(0.4) {
        true => *model.codes.keys().choose(rng).unwrap(),
        false => KECCAK256_EMPTY,
    };
    let small = |rng: &mut StdRng| rng.random_range(0..3u64);
    Account { nonce: small(rng), balance: U256::from(small(rng)), code_hash }
}

fn slot(rng: &mut StdRng) -> B256 {
    let number = match rng.random_range(0..4) {
        0 => U256::from(rng.random_range(0..80u64)),
        1 => U256::from(rng.random_range(256..512u64)),
        2 => U256::MAX - U256::from(rng.random_range(0..4u64)),
        _ => U256::from(rng.random_range(0..40u64)) << 128,
    };
    B256::from(number)
}

pub(crate) fn steps(rng: &mut StdRng, model: &StateModel, count: usize, many: u16) -> Vec<Step> {
    let step = |rng: &mut StdRng| {
        let address = address(rng, many);
        match rng.random_range(0..10) {
            0..3 => Step::Account(address, Some(account(rng, model))),
            3 if rng.random_bool(0.3) => Step::Account(address, None),
            _ => {
                let value = match rng.random_range(0..3) {
                    0 => U256::ZERO,
                    1 => U256::from(rng.random_range(1..4u64)),
                    _ => U256::MAX,
                };
                Step::Slot(address, slot(rng), value)
            }
        }
    };
    (0..count).map(|_| step(rng)).collect()
}

#[test]
fn blocks_lead_to_the_tree_of_all_leaves() {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut model = StateModel::with_codes(codes(&mut rng));
        let mut tree = TestTree::new();
        let many = [4, 40, 400][seed as usize % 3];
        for block in 0..30 {
            let count = if block % 7 == 0 { 600 } else { rng.random_range(1..30) };
            let steps = steps(&mut rng, &model, count, many);
            let delta = model.apply(steps);
            tree.apply(&delta);
            assert_eq!(tree.root, model.root(), "seed {seed}, block {block}");
        }
        // A state without pages in memory goes on in the same way.
        tree.state = tree.backend.open(&tree.view, None).unwrap();
        let more = steps(&mut rng, &model, 50, many);
        tree.apply(&model.apply(more));
        assert_eq!(tree.root, model.root());
        rows_are_those_of_a_load(&model, &tree);
        proofs_show_all(&mut rng, &model, &tree, many);
        // To nothing.
        let all: Vec<_> = model.accounts.keys().map(|key| Step::Account(*key, None)).collect();
        tree.apply(&model.apply(all));
        assert_eq!(tree.root, B256::ZERO);
        assert!(tree.view.filled().is_empty());
    }
}

fn rows_are_those_of_a_load(model: &StateModel, tree: &TestTree) {
    let mut loaded = CodedView { codes: model.codes.clone(), ..CodedView::default() };
    let mut entries = model.entries().into_iter().map(Ok);
    let root = tree.backend.bulk_load(0, &mut entries, &mut loaded).unwrap();
    assert_eq!(root, model.root());
    let (left, right) = (tree.view.filled(), loaded.view.filled());
    for table in [NODES, STORAGE_NODES, STEMS, CODES] {
        assert_eq!(left.get(&table), right.get(&table), "{}", table.name);
    }
}

fn proofs_show_all(rng: &mut StdRng, model: &StateModel, tree: &TestTree, many: u16) {
    let values: std::collections::BTreeMap<_, _> = model.entries().into_iter().collect();
    for round in 0..60 {
        let count = if round == 0 { 200 } else { rng.random_range(0..6) };
        let keys: Vec<BackendKey> = (0..count)
            .map(|_| match rng.random_range(0..3) {
                0 => StateKey::Account(address(rng, many * 2)).into(),
                1 => StateKey::Slot(address(rng, many * 2), slot(rng)).into(),
                _ => values
                    .keys()
                    .choose(rng)
                    .copied()
                    .unwrap_or_else(|| StateKey::Account(Address::ZERO).into()),
            })
            .collect();
        let proof = tree.backend.prove(&tree.view, &tree.state, &keys).unwrap();
        let shown = verify::verify(HASH, tree.root, &keys, &proof).unwrap();
        let expected: Vec<_> = keys.iter().map(|key| values.get(key).cloned()).collect();
        assert_eq!(shown, expected);
        for _ in 0..20 {
            let mut forged = proof.to_vec();
            if forged.is_empty() {
                break;
            }
            let at = rng.random_range(0..forged.len());
            forged[at] ^= 1 << rng.random_range(0..8);
            assert!(verify::verify(HASH, tree.root, &keys, &forged).is_err());
        }
    }
}

#[test]
fn chunks_are_proven_and_their_absence() {
    let mut rng = StdRng::seed_from_u64(9);
    let mut model = StateModel::with_codes(codes(&mut rng));
    let mut tree = TestTree::new();
    let all: Vec<_> = model.codes.keys().copied().collect();
    let accounts = all.iter().enumerate().map(|(at, code_hash)| {
        let account = Account { code_hash: *code_hash, ..Account::default() };
        Step::Account(Address::with_last_byte(at as u8), Some(account))
    });
    let accounts = accounts.collect();
    tree.apply(&model.apply(accounts));
    let proofs = tree.backend.extensions().code_proofs.unwrap();
    let cache = AnyCache::new(tree.state.clone());
    let keys: Vec<BackendKey> =
        (0..3).map(|at| StateKey::Account(Address::with_last_byte(at)).into()).collect();
    let values: std::collections::BTreeMap<_, _> = model.entries().into_iter().collect();
    for code in model.codes.values().filter(|code| !code.starts_with(&[0xef, 1])) {
        let count = code.len().div_ceil(proofs.chunk_bytes()) as u32;
        for chunks in [(0..count).collect(), vec![count / 2], vec![0, count - 1], vec![]] {
            for keys in [&keys[..], &[]] {
                let part = CodePart { code: code.clone(), chunks: chunks.clone() };
                let parts = std::slice::from_ref(&part);
                let proof = proofs.prove_with_codes(&tree.view, &cache, keys, parts).unwrap();
                let check = |parts: &[CodePart], proof: &[u8]| {
                    proofs.verify_with_codes(tree.root, keys, parts, proof)
                };
                let expected: Vec<_> = keys.iter().map(|key| values.get(key).cloned()).collect();
                assert_eq!(check(parts, &proof).unwrap(), expected);
                if !chunks.is_empty() {
                    let mut other = part.code.to_vec();
                    other[0] ^= 1;
                    let other = CodePart { code: other.into(), ..part.clone() };
                    check(&[other], &proof).unwrap_err();
                }
                for _ in 0..20.min(proof.len()) {
                    let mut forged = proof.to_vec();
                    let at = rng.random_range(0..forged.len());
                    forged[at] ^= 1 << rng.random_range(0..8);
                    check(parts, &forged).unwrap_err();
                }
            }
        }
    }
}
