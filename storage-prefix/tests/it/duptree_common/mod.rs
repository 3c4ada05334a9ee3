//! Stores of each layout, and a model of the tree by its definition: it shares
//! nothing with the crate but BLAKE2b.
#![allow(dead_code, missing_docs, unreachable_pub)]

use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    ApplyContext, Backend, BackendDelta, BackendKey, DeltaBuilder, JobRunner, StateError,
    StateValue, blake2b,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_prefix::duptree::{DupTree, DupTreeCache, DupTreeLayout};
use std::collections::{BTreeMap, BTreeSet};

pub type ValueMap = BTreeMap<BackendKey, StateValue>;

/// The tree by its definition.
#[derive(Clone, Debug, Default)]
pub struct DupTreeModel {
    /// Keys by number of their leaf, from 1 on.
    pub keys: Vec<BackendKey>,
    pub values: ValueMap,
}

/// A leaf in a proof, perhaps forged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownLeaf {
    pub number: u64,
    /// `None`: the first.
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// `None`: the last.
    pub next: Option<Vec<u8>>,
}

pub fn hash(parts: &[&[u8]]) -> B256 {
    blake2b::hash(parts)
}

pub fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (number % 128) as u8;
        number /= 128;
        if number == 0 {
            out.push(byte);
            return out;
        }
        out.push(byte + 128);
    }
}

impl ShownLeaf {
    /// The bytes that are hashed.
    pub fn bytes(&self) -> Vec<u8> {
        let key = |key: &Option<Vec<u8>>| key.clone().unwrap_or_else(|| vec![2]);
        let value = match &self.value {
            None => vec![0],
            Some(value) => [varint(value.len() as u64 + 1), value.clone()].concat(),
        };
        [key(&self.key), value, key(&self.next)].concat()
    }
}

/// A proof in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofParts {
    pub height: u8,
    pub leaves: Vec<ShownLeaf>,
    pub hashes: Vec<B256>,
}

impl ProofParts {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.height];
        out.extend(varint(self.leaves.len() as u64));
        for leaf in &self.leaves {
            out.extend(varint(leaf.number));
            out.extend(leaf.bytes());
        }
        out.extend(self.hashes.iter().flatten());
        out
    }
}

impl DupTreeModel {
    pub fn apply(&mut self, delta: &BackendDelta) {
        for change in delta.changes() {
            match &change.next {
                Some(value) => {
                    if !self.keys.contains(&change.key) {
                        self.keys.push(change.key);
                    }
                    self.values.insert(change.key, value.clone());
                }
                None => drop(self.values.remove(&change.key)),
            }
        }
    }

    pub fn leaves(&self) -> u64 {
        self.keys.len() as u64 + 1
    }

    pub fn height(&self) -> u8 {
        (0..64).find(|height| 1 << height >= self.leaves()).unwrap()
    }

    /// The leaf of this number.
    pub fn leaf(&self, number: u64) -> ShownLeaf {
        let key = number.checked_sub(1).map(|at| self.keys[at as usize]);
        let next = self.keys.iter().filter(|other| key.is_none_or(|key| **other > key)).min();
        let bytes = |key: BackendKey| key.encode().to_vec();
        let value = key.and_then(|key| self.values.get(&key)).map(|value| value.to_vec());
        ShownLeaf { number, key: key.map(bytes), value, next: next.copied().map(bytes) }
    }

    pub fn node(&self, leaves: &[B256], level: u8, index: u64) -> B256 {
        if level == 0 {
            return leaves.get(index as usize).copied().unwrap_or_else(|| hash(&[&[2]]));
        }
        if index << level >= leaves.len() as u64 {
            let below = self.node(leaves, level - 1, u64::MAX >> 1 >> (level - 1));
            return hash(&[&[1], &below[..], &below[..]]);
        }
        let [left, right] = [0, 1].map(|side| self.node(leaves, level - 1, 2 * index + side));
        hash(&[&[1], &left[..], &right[..]])
    }

    /// Hashes of all leaves.
    pub fn hashes(&self) -> Vec<B256> {
        let mut sorted: Vec<_> = self.keys.iter().collect();
        sorted.sort_unstable();
        (0..self.leaves())
            .map(|number| {
                let key = number.checked_sub(1).map(|at| self.keys[at as usize]);
                let next = sorted.partition_point(|other| key.is_some_and(|key| **other <= key));
                let shown = ShownLeaf {
                    number,
                    key: key.map(|key| key.encode().to_vec()),
                    value: key.and_then(|key| self.values.get(&key)).map(|value| value.to_vec()),
                    next: sorted.get(next).map(|key| key.encode().to_vec()),
                };
                hash(&[&[0], &shown.bytes()])
            })
            .collect()
    }

    pub fn root(&self) -> B256 {
        let height = self.height();
        let top = self.node(&self.hashes(), height, 0);
        hash(&[&[3, height], &top[..]])
    }

    /// The one proof of `keys`.
    pub fn proof(&self, keys: &[BackendKey]) -> ProofParts {
        let numbers: BTreeSet<u64> = keys
            .iter()
            .map(|key| {
                let before = self.keys.iter().enumerate().filter(|(_, other)| *other <= key);
                before.max_by_key(|(_, other)| **other).map_or(0, |(at, _)| at as u64 + 1)
            })
            .collect();
        let (height, leaves) = (self.height(), self.hashes());
        let mut hashes = Vec::new();
        if numbers.is_empty() {
            hashes.push(self.node(&leaves, height, 0));
        }
        for level in 0..height {
            let known: BTreeSet<u64> = numbers.iter().map(|number| number >> level).collect();
            for index in &known {
                if !known.contains(&(index ^ 1)) {
                    hashes.push(self.node(&leaves, level, index ^ 1));
                }
            }
        }
        let leaves = numbers.into_iter().map(|number| self.leaf(number)).collect();
        ProofParts { height, leaves, hashes }
    }
}

/// A backend with its state.
pub struct DupTreeStore {
    pub layout: DupTreeLayout,
    pub backend: DupTree,
    pub view: MemoryView,
    pub cache: DupTreeCache,
    pub root: B256,
    pub number: u64,
}

impl DupTreeStore {
    pub fn new(layout: DupTreeLayout) -> Self {
        Self::of(layout, DupTree::new(layout))
    }

    pub fn of(layout: DupTreeLayout, backend: DupTree) -> Self {
        let view = MemoryView::default();
        let cache = backend.open(&view, None).unwrap();
        let root = backend.profile().empty_root;
        Self { layout, backend, view, cache, root, number: 0 }
    }

    pub fn apply(&mut self, delta: &BackendDelta) -> Result<(), StateError> {
        let jobs = JobRunner::new(None);
        let context = ApplyContext { number: self.number, parent_root: self.root, jobs: &jobs };
        let applied = self.backend.apply(&context, &mut self.view, &self.cache, delta)?;
        (self.root, self.cache) = (applied.root, applied.cache);
        self.number += 1;
        Ok(())
    }

    pub fn reopen(&mut self) {
        self.cache = self.backend.open(&self.view, None).unwrap();
    }

    pub fn prove(&self, keys: &[BackendKey]) -> Bytes {
        self.backend.prove(&self.view, &self.cache, keys).unwrap()
    }

    /// The faults that its check finds.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let report = &mut |fault: StateError| faults.push(fault.to_string());
        let done = self.backend.check(&self.view, &self.cache, self.root, true, None, report);
        faults.extend(done.err().map(|error| error.to_string()));
        faults
    }
}

/// Accounts and slots, of which some differ in their last byte alone.
pub fn key(n: u64) -> BackendKey {
    match n % 4 {
        0 => BackendKey::Account(Address::left_padding_from(&n.to_be_bytes()).into()),
        1 => BackendKey::Account(Address::from_word(hash(&[&n.to_be_bytes()])).into()),
        _ => BackendKey::Slot(
            Address::repeat_byte((n % 3) as u8).into(),
            B256::from(U256::from(n / 3)),
        ),
    }
}

pub fn value(random: &mut StdRng) -> StateValue {
    let len = random.random_range(0..80);
    (0..len).map(|_| random.random::<u8>()).collect()
}

/// The delta that sets (or deletes) these keys.
pub fn delta(
    before: &ValueMap,
    changes: impl IntoIterator<Item = (BackendKey, Option<StateValue>)>,
) -> BackendDelta {
    let mut builder = DeltaBuilder::new();
    for (key, next) in changes {
        builder.change(key, before.get(&key).cloned(), next);
    }
    builder.build()
}

/// Some of the first `keys` keys, set or deleted.
pub fn random_delta(
    random: &mut StdRng,
    before: &ValueMap,
    keys: u64,
    changes: usize,
) -> BackendDelta {
    let changes: Vec<_> = (0..changes)
        .map(|_| {
            let key = key(random.random_range(0..keys));
            (key, random.random_ratio(3, 4).then(|| value(random)))
        })
        .collect();
    delta(before, changes)
}
