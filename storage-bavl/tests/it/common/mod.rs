//! A store on a view in memory, and a model of the tree by its definition: it shares nothing
//! with the crate but BLAKE2b.
#![allow(dead_code, missing_docs, unreachable_pub)]

use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    ApplyContext, Backend, BackendDelta, BackendKey, DeltaBuilder, JobRunner, StateError,
    StateValue, blake2b,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_bavl::{Bavl, BavlState, ChunkEntries};
use std::collections::{BTreeMap, BTreeSet};

pub type ValueMap = BTreeMap<BackendKey, StateValue>;

/// The tree by its definition: `docs/formats/bavl.md`, in the simplest words.
#[derive(Clone, Debug)]
pub struct BavlModel {
    pub most: usize,
    pub tree: Option<ModelTree>,
    pub values: ValueMap,
}

type EntryList = Vec<(BackendKey, StateValue)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelTree {
    Chunk(EntryList),
    Inner(Box<Self>, Box<Self>),
}

use ModelTree::{Chunk, Inner};

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

pub fn entry_hash((key, value): &(BackendKey, StateValue)) -> B256 {
    hash(&[&[0], &key.encode(), value])
}

/// RFC 6962, 2.1.
pub fn within(entries: &[B256]) -> B256 {
    if entries.len() == 1 {
        return entries[0];
    }
    let left = (0..).map(|n| 1 << n).take_while(|n| *n < entries.len()).last().unwrap();
    hash(&[&[1], &within(&entries[..left])[..], &within(&entries[left..])[..]])
}

pub fn chunk_hash(entries: &[(BackendKey, StateValue)]) -> B256 {
    let hashes: Vec<_> = entries.iter().map(entry_hash).collect();
    hash(&[&[2], &(entries.len() as u32).to_be_bytes(), &within(&hashes)[..]])
}

impl ModelTree {
    pub fn height(&self) -> u8 {
        match self {
            Chunk(_) => 0,
            Inner(left, right) => 1 + left.height().max(right.height()),
        }
    }

    pub fn hash(&self) -> B256 {
        match self {
            Chunk(entries) => chunk_hash(entries),
            Inner(left, right) => hash(&[&[3], &left.hash()[..], &right.hash()[..]]),
        }
    }

    pub fn chunks(&self) -> Vec<&EntryList> {
        match self {
            Chunk(entries) => vec![entries],
            Inner(left, right) => [left.chunks(), right.chunks()].concat(),
        }
    }

    pub fn first(&self) -> BackendKey {
        self.chunks()[0][0].0
    }

    fn leans(&self) -> i32 {
        match self {
            Chunk(_) => 0,
            Inner(left, right) => i32::from(right.height()) - i32::from(left.height()),
        }
    }

    /// Every node is balanced, and every chunk within bounds.
    pub fn assert_sound(&self, most: usize) {
        let chunks = self.chunks();
        let keys: Vec<_> = chunks.iter().flat_map(|c| c.iter().map(|entry| entry.0)).collect();
        assert!(keys.is_sorted() && !keys.is_empty());
        let is_alone = chunks.len() == 1;
        for chunk in chunks {
            assert!(
                chunk.len() <= most && (is_alone || chunk.len() >= most / 2),
                "{}",
                chunk.len()
            );
        }
        self.assert_balanced();
    }

    fn assert_balanced(&self) {
        assert!(self.leans().abs() < 2);
        if let Inner(left, right) = self {
            left.assert_balanced();
            right.assert_balanced();
        }
    }
}

fn inner(left: ModelTree, right: ModelTree) -> ModelTree {
    Inner(Box::new(left), Box::new(right))
}

fn rotated_left(tree: ModelTree) -> ModelTree {
    let Inner(a, right) = tree else { unreachable!() };
    let Inner(b, c) = *right else { unreachable!() };
    inner(inner(*a, *b), *c)
}

fn rotated_right(tree: ModelTree) -> ModelTree {
    let Inner(left, c) = tree else { unreachable!() };
    let Inner(a, b) = *left else { unreachable!() };
    inner(*a, inner(*b, *c))
}

/// The textbook rotation of a node that leans by 2.
fn balanced(tree: ModelTree) -> ModelTree {
    match (tree.leans(), tree) {
        (2, Inner(left, right)) => {
            let right = if right.leans() < 0 { rotated_right(*right) } else { *right };
            rotated_left(inner(*left, right))
        }
        (-2, Inner(left, right)) => {
            let left = if left.leans() > 0 { rotated_left(*left) } else { *left };
            rotated_right(inner(left, *right))
        }
        (_, tree) => tree,
    }
}

fn join(left: ModelTree, right: ModelTree) -> ModelTree {
    let (l, r) = (left.height(), right.height());
    match (left, right) {
        (Inner(a, b), right) if l >= r + 2 => balanced(inner(*a, join(*b, right))),
        (left, Inner(a, b)) if r >= l + 2 => balanced(inner(join(left, *a), *b)),
        (left, right) => inner(left, right),
    }
}

fn halved(mut chunks: Vec<EntryList>) -> Option<ModelTree> {
    if chunks.len() < 2 {
        return chunks.pop().map(Chunk);
    }
    let right = chunks.split_off(chunks.len().div_ceil(2));
    Some(inner(halved(chunks)?, halved(right)?))
}

/// The tree with chunks in place of those that begin with the keys given.
fn replaced(tree: ModelTree, new: &BTreeMap<BackendKey, Vec<EntryList>>) -> Option<ModelTree> {
    match tree {
        Chunk(entries) => halved(new[&entries[0].0].clone()),
        Inner(left, right) => match (replaced(*left, new), replaced(*right, new)) {
            (Some(left), Some(right)) => Some(join(left, right)),
            (left, right) => left.or(right),
        },
    }
}

impl BavlModel {
    pub fn new(most: u32) -> Self {
        Self { most: most as usize, tree: None, values: ValueMap::new() }
    }

    /// Sizes of the chunks that a run is cut into.
    fn cut(&self, mut run: EntryList) -> Vec<EntryList> {
        let usual = self.most - self.most / 4;
        let mut chunks = Vec::new();
        while !run.is_empty() {
            let len = run.len();
            let size = match len {
                _ if len <= self.most => len,
                _ if len <= self.most + usual => len.div_ceil(2),
                _ if len <= 3 * usual => len.div_ceil(3),
                _ => usual,
            };
            let rest = run.split_off(size);
            chunks.push(std::mem::replace(&mut run, rest));
        }
        chunks
    }

    pub fn apply(&mut self, delta: &BackendDelta) {
        for change in delta.changes() {
            match &change.next {
                Some(value) => drop(self.values.insert(change.key, value.clone())),
                None => drop(self.values.remove(&change.key)),
            }
        }
        let Some(tree) = self.tree.take() else {
            let all = self.values.clone().into_iter().collect();
            self.tree = halved(self.cut(all));
            return;
        };
        // The entries in the range of each chunk after the block, which are then regrouped.
        let firsts: Vec<BackendKey> = tree.chunks().iter().map(|chunk| chunk[0].0).collect();
        let mut new: Vec<EntryList> = Vec::new();
        let holds = |run: &EntryList| (self.most / 2..=self.most).contains(&run.len());
        for at in 0..firsts.len() {
            let next = firsts.get(at + 1);
            let is_own = |key: &BackendKey| {
                (at == 0 || *key >= firsts[at]) && next.is_none_or(|next| key < next)
            };
            let own = self.values.iter().filter(|(key, _)| is_own(key));
            let run: EntryList = own.map(|(key, value)| (*key, value.clone())).collect();
            let waits = new.len() == 1 && !holds(&new[0]);
            if run.is_empty() {
                continue;
            }
            if waits || (!holds(&run) && !new.is_empty()) {
                let both = [new.pop().unwrap(), run].concat();
                new.extend(self.cut(both));
            } else {
                new.push(run);
            }
        }
        // The last chunk may still wait for a neighbour.
        let new = match &new[..] {
            [only] => self.cut(only.clone()),
            _ => new,
        };
        let mut places: BTreeMap<BackendKey, Vec<EntryList>> =
            firsts.iter().map(|first| (*first, Vec::new())).collect();
        for chunk in new {
            let place = firsts.iter().rev().find(|first| **first <= chunk[0].0);
            places.get_mut(place.unwrap_or(&firsts[0])).unwrap().push(chunk);
        }
        self.tree = replaced(tree, &places);
    }

    pub fn top(&self) -> B256 {
        self.tree.as_ref().map_or_else(|| hash(&[&[2, 0, 0, 0, 0]]), ModelTree::hash)
    }

    pub fn root(&self) -> B256 {
        hash(&[&[4], &(self.most as u32).to_be_bytes(), &self.top()[..]])
    }

    /// Chunks with their key-heights, in order.
    pub fn key_heights(&self) -> Vec<(BackendKey, u8)> {
        fn walk(tree: &ModelTree, own: u8, all: &mut Vec<(BackendKey, u8)>) {
            match tree {
                Chunk(entries) => all.push((entries[0].0, own)),
                Inner(left, right) => {
                    walk(left, own, all);
                    walk(right, tree.height(), all);
                }
            }
        }
        let mut all = Vec::new();
        if let Some(tree) = &self.tree {
            walk(tree, 0, &mut all);
        }
        all
    }

    /// The entries that the one proof of `keys` shows.
    pub fn shown(&self, keys: &[BackendKey]) -> BTreeSet<BackendKey> {
        let mut shown = BTreeSet::new();
        for key in keys {
            if self.values.contains_key(key) {
                shown.insert(*key);
            } else {
                shown.extend(self.values.range(..key).next_back().map(|(key, _)| *key));
                shown.extend(self.values.range(key..).next().map(|(key, _)| *key));
            }
        }
        shown
    }

    /// The one proof of `keys`.
    pub fn proof(&self, keys: &[BackendKey]) -> ProofParts {
        let shown = self.shown(keys);
        let node = match &self.tree {
            None if keys.is_empty() => NodePart::Hidden(self.top()),
            None => NodePart::Chunk { count: 0, entries: Vec::new(), hashes: Vec::new() },
            Some(tree) => part(tree, &shown),
        };
        ProofParts { most: self.most as u64, node }
    }
}

/// A proof in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofParts {
    pub most: u64,
    pub node: NodePart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePart {
    Hidden(B256),
    Inner(Box<Self>, Box<Self>),
    Chunk { count: u64, entries: Vec<(u64, Vec<u8>, Vec<u8>)>, hashes: Vec<B256> },
}

fn part(tree: &ModelTree, shown: &BTreeSet<BackendKey>) -> NodePart {
    match tree {
        _ if !tree.chunks().into_iter().flatten().any(|(key, _)| shown.contains(key)) => {
            NodePart::Hidden(tree.hash())
        }
        Inner(left, right) => {
            NodePart::Inner(Box::new(part(left, shown)), Box::new(part(right, shown)))
        }
        Chunk(all) => {
            let mut entries = Vec::new();
            let mut next = 0;
            for (at, (key, value)) in all.iter().enumerate() {
                if shown.contains(key) {
                    entries.push((at as u64 - next, key.encode().to_vec(), value.to_vec()));
                    next = at as u64 + 1;
                }
            }
            let mut hashes = Vec::new();
            beside(all, shown, &mut hashes);
            NodePart::Chunk { count: all.len() as u64, entries, hashes }
        }
    }
}

/// The hashes beside the shown entries, from left to right.
fn beside(all: &[(BackendKey, StateValue)], shown: &BTreeSet<BackendKey>, hashes: &mut Vec<B256>) {
    if !all.iter().any(|(key, _)| shown.contains(key)) {
        hashes.push(within(&all.iter().map(entry_hash).collect::<Vec<_>>()));
    } else if all.len() > 1 {
        let left = all.len().next_power_of_two() / 2;
        beside(&all[..left], shown, hashes);
        beside(&all[left..], shown, hashes);
    }
}

impl ProofParts {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = varint(self.most);
        self.node.write(&mut out);
        out
    }
}

impl NodePart {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hidden(hash) => {
                out.push(0);
                out.extend(hash);
            }
            Self::Inner(left, right) => {
                out.push(1);
                left.write(out);
                right.write(out);
            }
            Self::Chunk { count, entries, hashes } => {
                out.push(2);
                out.extend(varint(*count));
                out.extend(varint(entries.len() as u64));
                for (gap, key, value) in entries {
                    out.extend(varint(*gap));
                    out.extend(key);
                    out.extend(varint(value.len() as u64));
                    out.extend(value);
                }
                out.extend(hashes.iter().flatten());
            }
        }
    }

    /// All nodes, parents first.
    pub fn each(&mut self, change: &mut dyn FnMut(&mut Self)) {
        change(self);
        if let Self::Inner(left, right) = self {
            left.each(change);
            right.each(change);
        }
    }
}

/// A backend with its state.
pub struct BavlStore {
    pub backend: Bavl,
    pub view: MemoryView,
    pub cache: BavlState,
    pub root: B256,
    pub number: u64,
}

pub fn bavl(most: u32) -> Bavl {
    Bavl::new(ChunkEntries::new(most).unwrap())
}

impl BavlStore {
    pub fn new(most: u32) -> Self {
        let (backend, view) = (bavl(most), MemoryView::default());
        let cache = backend.open(&view, None).unwrap();
        let root = backend.profile().empty_root;
        Self { backend, view, cache, root, number: 0 }
    }

    pub fn most(&self) -> u32 {
        self.backend.chunk_entries().get()
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
