//! Roots and proofs compared with a model that follows `docs/formats/lmpt.md`: three plain tries
//! that move on at boundaries.

use crate::common;

use alloy_primitives::{B256, Bytes, b256, keccak256};
use common::{BlockChanges, NEVER, TestChain, changes, every, key};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use retrie_state::{StateKey, StateReader};
use retrie_state_store::StateId;
use retrie_storage_lmpt::{LmptParams, root, verify};
use retrie_storage_mpt::{LeafUpdate, MemorySource, Trie};
use std::collections::BTreeMap;

/// A layer as the format defines it: leaves by path.
type ModelLayer = BTreeMap<B256, Bytes>;

fn trie_root(layer: &ModelLayer) -> B256 {
    let items: Vec<_> =
        layer.iter().map(|(path, leaf)| LeafUpdate::new(*path, Some(leaf.clone()))).collect();
    Trie::default().update(&MemorySource, &items, &mut ()).unwrap().hash()
}

struct LayersModel {
    params: LmptParams,
    delta: ModelLayer,
    intermediate: ModelLayer,
    snapshot: ModelLayer,
    /// First block of the delta.
    from: Option<u64>,
}

impl LayersModel {
    fn new(params: LmptParams) -> Self {
        let (delta, intermediate, snapshot) =
            (ModelLayer::new(), ModelLayer::new(), ModelLayer::new());
        Self { params, delta, intermediate, snapshot, from: None }
    }

    fn block(
        &mut self,
        number: u64,
        before: &common::StateEntries,
        changes: &BlockChanges,
    ) -> B256 {
        let last: BTreeMap<_, _> = changes.iter().cloned().collect();
        let path = |key: &StateKey| keccak256(&*key.encode());
        let value = |value: &Bytes| [&[1], &value[..]].concat().into();
        match self.from {
            None => {
                let set = last.iter().filter_map(|(key, next)| Some((path(key), next.as_ref()?)));
                self.snapshot.extend(set.map(|(path, next)| (path, value(next))));
                self.from = Some(number + 1);
            }
            Some(from) => {
                let (age, keys) = (number - from, self.delta.len() as u64);
                let LmptParams { interval, keys: most, least } = self.params;
                if age >= interval || (keys >= most && age >= least) {
                    for (path, leaf) in std::mem::take(&mut self.intermediate) {
                        match leaf[0] {
                            0 => drop(self.snapshot.remove(&path)),
                            _ => drop(self.snapshot.insert(path, leaf)),
                        }
                    }
                    self.intermediate = std::mem::take(&mut self.delta);
                    self.from = Some(number);
                }
                for (key, next) in &last {
                    if before.get(key) != next.as_ref() {
                        let leaf = next.as_ref().map_or_else(|| Bytes::from_static(&[0]), value);
                        self.delta.insert(path(key), leaf);
                    }
                }
            }
        }
        root(&[&self.delta, &self.intermediate, &self.snapshot].map(trie_root))
    }
}

fn run(params: LmptParams, blocks: &[BlockChanges]) {
    let (mut chain, mut model) = (TestChain::new(params, 4), LayersModel::new(params));
    for (number, changes) in blocks.iter().enumerate() {
        let before = chain.tip_entries();
        let expected = model.block(number as u64, &before, changes);
        assert_eq!(chain.block(changes), expected, "block {number} under {params}");
    }
    if !blocks.is_empty() {
        chain.check_block(chain.number() - 1, &(0..40).map(key).collect::<Vec<_>>());
        assert_eq!(chain.faults(), [""; 0]);
    }
}

fn any_changes() -> impl Strategy<Value = BlockChanges> {
    let change = (0u64..30, proptest::option::weighted(0.7, any::<[u8; 2]>()));
    let change = change.prop_map(|(n, value)| (key(n), value.map(|v| Bytes::from(v.to_vec()))));
    proptest::collection::vec(change, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn roots_and_proofs_are_those_of_the_definition(
        blocks in proptest::collection::vec(any_changes(), 0..24),
        interval in 1u64..9,
        keys in 1u64..30,
        least in 1u64..6,
    ) {
        run(LmptParams { interval, keys, least }, &blocks);
    }
}

#[test]
fn long_chains_with_many_keys_are_those_of_the_definition() {
    for params in [every(7), LmptParams { interval: NEVER, keys: 400, least: 2 }] {
        let random = &mut StdRng::seed_from_u64(3);
        let blocks: Vec<_> = (0..40).map(|_| changes(random, 3_000, 300)).collect();
        run(params, &blocks);
    }
}

/// Regression: a first block of a few keys, like a genesis, and then merges in many steps. See
/// `merge/tests.rs`.
#[test]
fn young_chains_with_many_keys_are_those_of_the_definition() {
    for (first, interval) in [(4, 9), (12, 9), (30, 6)] {
        let random = &mut StdRng::seed_from_u64(first);
        let mut blocks = vec![changes(random, first, first as usize)];
        blocks.extend((0..30).map(|_| changes(random, 4_000, 400)));
        run(every(interval), &blocks);
    }
}

/// The root of format version 1, and the roots of a chain with it. Other programs depend on these
/// bytes.
#[test]
fn golden_roots_are_those_of_the_format() {
    let empty = b256!("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");
    let chain = TestChain::new(every(2), 4);
    let root_of_nothing = chain.store().root(StateId::Tip).unwrap();
    assert_eq!(root_of_nothing, root(&[empty; 3]));
    let tagged = [&b"retrie lmpt root\x01"[..], &empty[..], &empty[..], &empty[..]].concat();
    assert_eq!(root_of_nothing, keccak256(tagged));
    let mut chain = chain;
    let value = |n: u8| Some(Bytes::from(vec![n; 3]));
    let blocks: [BlockChanges; 6] = [
        vec![(key(0), value(1)), (key(1), value(2)), (key(2), value(3))],
        vec![(key(0), value(4)), (key(3), value(5))],
        vec![(key(1), None)],
        vec![(key(4), value(6)), (key(3), None)],
        vec![(key(1), value(7))],
        vec![(key(2), None)],
    ];
    for changes in &blocks {
        chain.block(changes);
    }
    let digest = keccak256(chain.roots.concat());
    assert_eq!(digest, b256!("f9d044eb51926bd64fafc39553a7437f8d352f466e096e4e8a0f5ea51e16321e"));
    let keys: Vec<_> = (0..6).map(key).collect();
    let proof = chain.store().at(StateId::Tip).unwrap().prove(&keys).unwrap();
    let digest = keccak256(&proof.bytes);
    assert_eq!(digest, b256!("27fb3a53411ac6adf90ecdd921b74a0c59c090722b4736a615758451a7c5d084"));
    let shown =
        verify(proof.root, &retrie_state::KeyForm::Plain.keys(&keys), &proof.bytes).unwrap();
    let state = chain.store().at(StateId::Tip).unwrap();
    assert!(keys.iter().zip(&shown).all(|(key, shown)| state.get(key).unwrap() == *shown));
}
