//! A model of the whole structure, slow and simple: maps, polynomials evaluated at a known tau,
//! trees hashed from their leaves. It shares only hashes and encodings with the crate.

use super::assemble::ProofSource;
use crate::{
    G1Point, SLOTS, VerifierParams, hash, merkle,
    proof::wire::{CompressedPoint, ProvenAmt, ProvenPosition, TreeProof},
};
use alloy_primitives::B256;
use ark_bn254::{Fr, G1Affine, G2Affine};
use ark_ec::{AffineRepr, CurveGroup};
use ark_ff::{FftField, Field, Zero};
use retrie_state::{BackendKey, StateError, StateValue};
use std::collections::{BTreeMap, BTreeSet};

const TAU: u64 = 0x5eed_0000_1234_5678;

pub(super) type ModelPath = Vec<u16>;

pub(super) fn params(height: u8) -> VerifierParams {
    let powers = std::iter::successors(Some(Fr::from(TAU)), |power| Some(power.square()));
    let points =
        powers.take(height.into()).map(|power| (G2Affine::generator() * power).into_affine());
    VerifierParams::new(points.collect()).unwrap()
}

/// A state with its whole history.
#[derive(Clone, Default)]
pub(super) struct LvmtModel {
    pub height: u8,
    pub first: u64,
    /// Leaves of each block's tree.
    pub blocks: Vec<Vec<B256>>,
    /// Of each key: the path of its entry, slot, value and position.
    pub keys: BTreeMap<BackendKey, (ModelPath, u8, Option<StateValue>, ProvenPosition)>,
    pub occupants: BTreeMap<(ModelPath, u8), BackendKey>,
    /// By path of the entry.
    pub versions: BTreeMap<ModelPath, [u64; SLOTS]>,
    /// By path of the AMT. The root AMT has no position.
    pub amts: BTreeMap<ModelPath, (G1Point, Option<ProvenPosition>)>,
}

impl LvmtModel {
    pub(super) fn new(height: u8, first: u64) -> Self {
        Self { height, first, ..Default::default() }
    }

    /// Applies a block and returns the root.
    pub(super) fn block(&mut self, changes: &BTreeMap<BackendKey, Option<StateValue>>) -> B256 {
        let number = self.first + self.blocks.len() as u64;
        let mut leaves = Vec::new();
        let mut changed = BTreeSet::new();
        for (key, value) in changes {
            let place = ProvenPosition { block: number, position: leaves.len() as u32 };
            let (way, slot) = match self.keys.get(key) {
                Some((way, slot, ..)) => (way.clone(), *slot),
                None => self.allocate(key),
            };
            let versions = self.versions.entry(way.clone()).or_default();
            versions[usize::from(slot)] += 1;
            leaves.push(hash::key_tuple(
                (way.len() - 1) as u8,
                slot,
                versions[usize::from(slot)],
                &key.encode(),
                value.as_ref().map(|value| &value[..]),
            ));
            changed.extend((0..way.len()).map(|len| way[..len].to_vec()));
            self.occupants.insert((way.clone(), slot), *key);
            self.keys.insert(*key, (way, slot, value.clone(), place));
        }
        for way in changed.iter().filter(|way| !way.is_empty()) {
            self.versions.get_mut(way).unwrap()[0] += 1;
        }
        let mut deepest_first: Vec<_> = changed.into_iter().collect();
        deepest_first.sort_by_key(|way| (std::cmp::Reverse(way.len()), way.clone()));
        for way in deepest_first {
            let commitment = self.commitment(&way);
            let place = ProvenPosition { block: number, position: leaves.len() as u32 };
            if !way.is_empty() {
                let version = self.versions[&way][0];
                leaves.push(hash::amt_tuple(&way, version, &commitment.to_bytes()));
            }
            self.amts.insert(way.clone(), (commitment, (!way.is_empty()).then_some(place)));
        }
        self.blocks.push(leaves);
        self.root()
    }

    pub(super) fn root(&self) -> B256 {
        let range = merkle::top(&self.range_leaves());
        let first = if self.blocks.is_empty() { 0 } else { self.first };
        let commitment = self.root_amt().to_bytes();
        hash::root(&commitment, first, self.blocks.len() as u64, &range)
    }

    fn root_amt(&self) -> G1Point {
        self.amts.get(&vec![]).map_or(G1Point::INFINITY, |(point, _)| *point)
    }

    fn range_leaves(&self) -> Vec<B256> {
        let leaf = |(number, leaves): (u64, &Vec<B256>)| {
            hash::block(number, leaves.len() as u32, &merkle::top(leaves))
        };
        (self.first..).zip(&self.blocks).map(leaf).collect()
    }

    fn allocate(&self, key: &BackendKey) -> (ModelPath, u8) {
        let location = hash::location(&key.encode());
        let mut way = ModelPath::new();
        loop {
            way.push(hash::entry_of(&location, self.height, way.len()).unwrap() as u16);
            let free = |slot: &u8| !self.occupants.contains_key(&(way.clone(), *slot));
            if let Some(slot) = (1..SLOTS as u8).find(free) {
                return (way, slot);
            }
        }
    }

    /// The number a_e of each entry of an AMT that has versions, with its domain point x_e.
    fn vector(&self, way: &[u16]) -> Vec<(u32, Fr, Fr)> {
        let n = 1u64 << self.height;
        let w = Fr::get_root_of_unity(n).unwrap();
        let below = |entry: u32| self.versions.get(&[way, &[entry as u16]].concat());
        let number = |versions: &[u64; SLOTS]| {
            let shift = Fr::from(1u64 << 40);
            versions.iter().rev().fold(Fr::zero(), |sum, version| sum * shift + Fr::from(*version))
        };
        let entries = (0..n as u32).filter_map(|entry| below(entry).map(|of| (entry, of)));
        entries
            .map(|(entry, versions)| {
                let reversed =
                    (0..self.height).fold(0, |r, bit| r << 1 | u64::from(entry >> bit & 1));
                (entry, number(versions), w.pow([reversed]))
            })
            .collect()
    }

    fn commitment(&self, way: &[u16]) -> G1Point {
        let n = 1u64 << self.height;
        let mut value = Fr::zero();
        for (_, a, x) in self.vector(way) {
            let ratio = Fr::from(TAU) / x;
            let basis: Fr = (0..n).map(|i| ratio.pow([i])).sum();
            value += a * basis / Fr::from(n);
        }
        point(value)
    }

    fn quotient(&self, way: &[u16], depth: u8, entry: u32) -> G1Point {
        let m = (1u64 << self.height) >> (depth + 1);
        let node = |entry: u32| entry >> (self.height - depth);
        let mut value = Fr::zero();
        for (other, a, x) in self.vector(way) {
            if node(other) == node(entry) {
                let terms = (m..2 * m).map(|i| Fr::from(TAU).pow([i - m]) / x.pow([i]));
                value += a * terms.sum::<Fr>() / Fr::from(2 * m);
            }
        }
        point(value)
    }
}

fn point(scalar: Fr) -> G1Point {
    (G1Affine::generator() * scalar).into_affine().into()
}

/// The multi-proof, directly from its definition.
fn multi_proof(leaves: &[B256], start: u64, shown: &[u64], siblings: &mut Vec<B256>) {
    let inside = shown.iter().any(|at| (start..start + leaves.len() as u64).contains(at));
    match leaves.len() {
        0 => {}
        _ if !inside => siblings.push(merkle::top(leaves)),
        1 => {}
        n => {
            let half = n.next_power_of_two() / 2;
            multi_proof(&leaves[..half], start, shown, siblings);
            multi_proof(&leaves[half..], start + half as u64, shown, siblings);
        }
    }
}

impl ProofSource for &LvmtModel {
    fn state(&self) -> (u8, CompressedPoint, u64, u64) {
        let first = if self.blocks.is_empty() { 0 } else { self.first };
        (self.height, self.root_amt().to_compressed(), first, self.blocks.len() as u64)
    }

    fn find(&mut self, key: &BackendKey) -> Result<Option<(u8, u8)>, StateError> {
        Ok(self.keys.get(key).map(|(way, slot, ..)| ((way.len() - 1) as u8, *slot)))
    }

    fn versions(&mut self, way: &[u16]) -> Result<[u64; SLOTS], StateError> {
        Ok(self.versions.get(way).copied().unwrap_or_default())
    }

    fn occupant(
        &mut self,
        way: &[u16],
        slot: u8,
    ) -> Result<(BackendKey, Option<StateValue>, ProvenPosition), StateError> {
        let key = self.occupants[&(way.to_vec(), slot)];
        let (_, _, value, place) = &self.keys[&key];
        Ok((key, value.clone(), *place))
    }

    fn amt(&mut self, way: &[u16]) -> Result<ProvenAmt, StateError> {
        let (commitment, place) = self.amts[way];
        Ok(ProvenAmt { commitment: commitment.to_compressed(), place: place.unwrap() })
    }

    fn quotients(&mut self, way: &[u16]) -> Result<Option<Vec<CompressedPoint>>, StateError> {
        let (entry, above) = way.split_last().unwrap();
        let quotient = |depth| self.quotient(above, depth, (*entry).into()).to_compressed();
        Ok(Some((0..self.height).map(quotient).collect()))
    }

    fn tree(&mut self, block: u64, shown: &[u64]) -> Result<TreeProof, StateError> {
        let leaves = &self.blocks[(block - self.first) as usize];
        let mut siblings = Vec::new();
        multi_proof(leaves, 0, shown, &mut siblings);
        Ok(TreeProof { leaves: leaves.len() as u32, siblings: Some(siblings) })
    }

    fn range(&mut self, shown: &[u64]) -> Result<Vec<B256>, StateError> {
        let mut siblings = Vec::new();
        multi_proof(&self.range_leaves(), 0, shown, &mut siblings);
        Ok(siblings)
    }
}
