//! Roots compared with a slow model that shares no code with the backend: it interpolates
//! polynomials and evaluates them at the known tau of the development parameters, its Merkle trees
//! follow the recursion of RFC 6962, and it keeps everything.

use crate::common;

use alloy_primitives::{Address, B256, Bytes};
use ark_bn254::{Fr, G1Projective};
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::{BigInteger, FftField, Field, One, PrimeField, Zero};
use blake2::{Blake2b, Digest, digest::consts::U32};
use proptest::prelude::*;
use retrie_state::{DeltaBuilder, StateDelta, StateKey};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_storage_lvmt::{ProofShard, insecure_dev_tau};
use std::{collections::BTreeMap, sync::Arc};

fn hash(parts: &[&[u8]]) -> B256 {
    let mut state = Blake2b::<U32>::new();
    parts.iter().for_each(|part| state.update(part));
    B256::from_slice(&state.finalize())
}

/// RFC 6962, section 2.1, over hashes of leaves.
fn top(leaves: &[B256]) -> B256 {
    match leaves {
        [] => B256::ZERO,
        [leaf] => *leaf,
        _ => {
            let mut k = 1;
            while 2 * k < leaves.len() {
                k *= 2;
            }
            hash(&[&[3], top(&leaves[..k]).as_slice(), top(&leaves[k..]).as_slice()])
        }
    }
}

struct ModelKey {
    way: Vec<u16>,
    slot: usize,
}

struct RootModel {
    height: u32,
    first: u64,
    keys: BTreeMap<StateKey, ModelKey>,
    /// Versions of an entry, by its path.
    versions: BTreeMap<Vec<u16>, [u64; 6]>,
    range: Vec<B256>,
}

impl RootModel {
    fn new(height: u8, first: u64) -> Self {
        let (keys, versions, range) = Default::default();
        Self { height: height.into(), first, keys, versions, range }
    }

    /// The path of a key, through all levels that the hash has bits for.
    fn way(&self, key: &StateKey) -> Vec<u16> {
        let location = hash(&[&[0], &key.encode()]);
        let bits: String = location.iter().map(|byte| format!("{byte:08b}")).collect();
        let entries = bits.as_bytes().chunks_exact(self.height as usize);
        entries
            .map(|bits| u16::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap())
            .collect()
    }

    fn place(&mut self, key: &StateKey) -> (Vec<u16>, usize) {
        if let Some(ModelKey { way, slot }) = self.keys.get(key) {
            return (way.clone(), *slot);
        }
        let whole = self.way(key);
        for level in 1.. {
            let way = whole[..level].to_vec();
            let entry = self.versions.entry(way.clone()).or_default();
            if let Some(slot) = (1..=5).find(|slot| entry[*slot] == 0) {
                self.keys.insert(*key, ModelKey { way: way.clone(), slot });
                return (way, slot);
            }
        }
        unreachable!()
    }

    /// The commitment of the AMT at the path `way`, interpolated and evaluated at tau.
    fn commitment(&self, way: &[u16]) -> [u8; 64] {
        let n = 1u32 << self.height;
        let w = Fr::get_root_of_unity(n.into()).unwrap();
        let reversed = |entry: u32| entry.reverse_bits() >> (32 - self.height);
        let x: Vec<Fr> = (0..n).map(|entry| w.pow([u64::from(reversed(entry))])).collect();
        let tau = insecure_dev_tau();
        let mut value = Fr::zero();
        for entry in 0..n as usize {
            let at = [way, &[entry as u16]].concat();
            let Some(versions) = self.versions.get(&at) else { continue };
            let shift = Fr::from(1u64 << 40);
            let a = versions.iter().rev().fold(Fr::zero(), |a, v| a * shift + Fr::from(*v));
            let others = (0..n as usize).filter(|other| *other != entry);
            let lagrange = others.fold(Fr::one(), |product, other| {
                product * (tau - x[other]) / (x[entry] - x[other])
            });
            value += a * lagrange;
        }
        let point = (G1Projective::generator() * value).into_affine();
        let mut bytes = [0; 64];
        if !value.is_zero() {
            bytes[..32].copy_from_slice(&point.x.into_bigint().to_bytes_le());
            bytes[32..].copy_from_slice(&point.y.into_bigint().to_bytes_le());
        }
        bytes
    }

    fn apply(&mut self, number: u64, delta: &StateDelta) -> B256 {
        let mut leaves = Vec::new();
        // Sub-AMTs that change, deepest first.
        let mut amts = BTreeMap::<(std::cmp::Reverse<usize>, Vec<u16>), ()>::new();
        for change in delta.changes() {
            let (way, slot) = self.place(&change.key);
            let version = &mut self.versions.get_mut(&way).unwrap()[slot];
            *version += 1;
            let key = change.key.encode();
            let head = [1, way.len() as u8 - 1, slot as u8];
            let value = match &change.next {
                None => vec![0],
                Some(value) => [&[1], &value[..]].concat(),
            };
            leaves.push(hash(&[
                &head,
                &version.to_be_bytes()[3..],
                &[key.len() as u8],
                &key,
                &value,
            ]));
            for level in 1..way.len() {
                amts.insert((std::cmp::Reverse(level), way[..level].to_vec()), ());
            }
        }
        for (_, way) in amts.keys() {
            self.versions.get_mut(way).unwrap()[0] += 1;
        }
        for (_, way) in amts.keys() {
            let version = self.versions[way][0];
            let entries: Vec<u8> = way.iter().flat_map(|entry| entry.to_be_bytes()).collect();
            leaves.push(hash(&[
                &[2, way.len() as u8],
                &entries,
                &version.to_be_bytes()[3..],
                &self.commitment(way),
            ]));
        }
        let count = leaves.len() as u32;
        let tree = top(&leaves);
        self.range.push(hash(&[&[4], &number.to_be_bytes(), &count.to_be_bytes(), &tree[..]]));
        let blocks = self.range.len() as u64;
        hash(&[
            &[5],
            &self.commitment(&[]),
            &self.first.to_be_bytes(),
            &blocks.to_be_bytes(),
            &top(&self.range)[..],
        ])
    }
}

/// One of a few keys, accounts and slots, so that keys are changed repeatedly.
fn key(n: u8) -> StateKey {
    let address = Address::repeat_byte(n / 8);
    match n % 8 {
        0 => StateKey::Account(address),
        slot => StateKey::Slot(address, B256::repeat_byte(slot)),
    }
}

type ModelBlocks = Vec<Vec<(u8, Option<u8>)>>;

fn blocks() -> impl Strategy<Value = ModelBlocks> {
    let change = (0..160u8, proptest::option::weighted(0.7, any::<u8>()));
    proptest::collection::vec(proptest::collection::vec(change, 0..40), 1..12)
}

fn run(height: u8, first: u64, blocks: &ModelBlocks) {
    let kv = MemoryStore::new();
    let backend = Arc::new(common::lvmt(height, ProofShard::None).with_slack(20));
    let store = StateStore::open(backend, Arc::new(kv.clone()), StoreOptions::default()).unwrap();
    let mut model = RootModel::new(height, first);
    let mut values = BTreeMap::<StateKey, Bytes>::new();
    for (number, block) in (first..).zip(blocks) {
        let mut delta = DeltaBuilder::new();
        let mut after = values.clone();
        for (n, value) in block {
            let (key, next) = (key(*n), value.map(|value| Bytes::from(vec![value; 3])));
            delta.change(key, values.get(&key).cloned(), next.clone());
            match next {
                Some(next) => after.insert(key, next),
                None => after.remove(&key),
            };
        }
        values = after;
        let delta = delta.build();
        let proposal = store.begin(StateId::Tip).unwrap().finish_as(number, &delta).unwrap();
        assert_eq!(proposal.root(), model.apply(number, &delta), "block {number}");
        store.seal(&proposal, B256::from(alloy_primitives::U256::from(number + 1)));
        let mut txn = kv.begin_write().unwrap();
        let after = store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn roots_are_those_of_the_model(height in 1..=4u8, first in 0..3u64, blocks in blocks()) {
        run(height, first, &blocks);
    }
}
