//! A store with all its data, and a prover that looks at all of it.

use crate::{
    ColeParams, filter,
    hash::{self, LevelDigests, SourceHeader},
    shown_tree::{CompoundPair, ShownNode},
    wire::{AskedKeys, ColeProof, FilterProof, SourceProof},
};
use alloy_primitives::{Address, B256, U256};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{Account, BackendKey, StateValue, ValueVersion, encode_slot};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// The tree of a source, over the numbers of its pairs.
#[derive(Clone, Debug)]
pub(super) enum ModelTree {
    Leaf(usize),
    Inner(Vec<Self>),
}

/// A group in memory, empty or not, or a run.
#[derive(Clone, Debug)]
pub(super) struct ModelSource {
    pub(super) pairs: Vec<CompoundPair>,
    pub(super) tree: ModelTree,
    /// Empty for a group in memory.
    pub(super) filter: Vec<[u8; 64]>,
}

/// A store: its sources, and its true history.
#[derive(Clone, Debug)]
pub(super) struct StoreModel {
    pub(super) params: ColeParams,
    pub(super) horizon: u64,
    /// The two groups in memory, then the runs, newest first.
    pub(super) sources: Vec<ModelSource>,
    /// By level, the number of runs in its two groups.
    pub(super) levels: Vec<[usize; 2]>,
    /// All versions of each key, oldest first.
    pub(super) history: BTreeMap<BackendKey, Vec<ValueVersion>>,
}

pub(super) fn key(number: u32) -> BackendKey {
    let address = Address::left_padding_from(&(number / 3 * 0x0101).to_be_bytes());
    match number % 3 {
        0 => BackendKey::Account(address.into()),
        slot => BackendKey::Slot(address.into(), B256::with_last_byte(slot as u8)),
    }
}

pub(super) fn some_keys(rng: &mut StdRng, below: u32, count: usize) -> Vec<BackendKey> {
    (0..count).map(|_| key(rng.random_range(0..below))).collect()
}

fn value(rng: &mut StdRng, key: &BackendKey) -> StateValue {
    let number = U256::from(rng.random::<u128>() >> rng.random_range(0..120)) + U256::ONE;
    match key {
        BackendKey::Slot(..) => encode_slot(number).unwrap(),
        BackendKey::Account(_) => {
            let nonce = rng.random::<u64>() >> rng.random_range(0..64);
            Account { nonce, balance: number, ..Account::default() }.encode()
        }
    }
}

impl StoreModel {
    /// A store of random shape with at most `keys` keys.
    pub(super) fn random(rng: &mut StdRng, keys: u32) -> Self {
        let fanout = [2, 3, 4, 7, 64][rng.random_range(0..5)];
        let params = ColeParams { fanout, async_merge: rng.random(), ..ColeParams::default() };
        let mut levels: Vec<_> = (0..rng.random_range(0..4))
            .map(|_| [rng.random_range(0..3), rng.random_range(0..3)])
            .collect();
        while levels.last() == Some(&[0, 0]) {
            levels.pop();
        }
        let runs: usize = levels.iter().flatten().sum();
        let mut history = BTreeMap::<_, Vec<_>>::new();
        let mut block = [0, 1, 1000, 1 << 60][rng.random_range(0..4)];
        // Oldest first; the last part is the writing group in memory.
        let mut parts = Vec::new();
        for part in 0..runs + 2 {
            let is_run = part < runs;
            let mut pairs = BTreeMap::new();
            for _ in 0..rng.random_range(u32::from(is_run)..6) {
                block += [1, 1, 1, 2, 300][rng.random_range(0..5)];
                let count = [1, 1, 2, 5, 20][rng.random_range(0..5)];
                for key in some_keys(rng, keys, count) {
                    let value = rng.random_bool(0.8).then(|| value(rng, &key));
                    pairs.insert((key, block), value);
                }
            }
            for ((key, block), value) in &pairs {
                history
                    .entry(*key)
                    .or_default()
                    .push(ValueVersion { block: *block, value: value.clone() });
            }
            parts.push(pairs);
        }
        // Merges drop a version if a newer one of its key exists at the horizon.
        let horizon = if rng.random_bool(0.2) { rng.random_range(0..=block) } else { 0 };
        let lives = |key: &BackendKey, block: u64| {
            let newer = |version: &ValueVersion| version.block > block && version.block <= horizon;
            !history[key].iter().any(newer)
        };
        let mut sources = Vec::new();
        for (part, mut pairs) in parts.into_iter().enumerate() {
            if part < runs && pairs.keys().any(|(key, block)| lives(key, *block)) {
                pairs.retain(|(key, block), _| lives(key, *block));
            }
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|((key, block), value)| CompoundPair {
                    key: key.encode().to_vec(),
                    block,
                    value,
                })
                .collect();
            sources.push(ModelSource::new(pairs, (part < runs).then_some(fanout), rng));
        }
        sources.reverse();
        Self { params, horizon, sources, levels, history }
    }

    pub(super) fn root(&self) -> B256 {
        let digests: Vec<_> = self.sources.iter().map(|source| source.digest(self)).collect();
        let mut runs = digests[2..].iter().copied();
        let levels = self.levels.iter().map(|[writing, merging]| LevelDigests {
            writing: runs.by_ref().take(*writing).collect(),
            merging: runs.by_ref().take(*merging).collect(),
        });
        let levels: Vec<_> = levels.collect();
        hash::root(self.horizon, [digests[0], digests[1]], &levels)
    }

    pub(super) fn truth(
        &self,
        keys: &[BackendKey],
        blocks: &RangeInclusive<u64>,
    ) -> Vec<Vec<ValueVersion>> {
        let versions = |key: &BackendKey| {
            let mut shown = Vec::new();
            for version in self.history.get(key).into_iter().flatten().rev() {
                if version.block <= *blocks.end() {
                    shown.push(version.clone());
                }
                if version.block <= *blocks.start() {
                    break;
                }
            }
            shown
        };
        keys.iter().map(versions).collect()
    }

    /// The keys for which no source before source `at` shows a pair at or below `lo`. The source
    /// `silent` is ignored.
    pub(super) fn open_at(
        &self,
        at: usize,
        asked: &AskedKeys,
        lo: u64,
        silent: Option<usize>,
    ) -> Vec<usize> {
        let is_shown = |key: &[u8], source: &ModelSource| {
            source.pairs.iter().any(|pair| pair.key == key && pair.block <= lo)
        };
        let above = || (0..at).filter(|other| Some(*other) != silent);
        let is_open = |number: &usize| {
            !above().any(|other| is_shown(asked.key(*number), &self.sources[other]))
        };
        (0..asked.len()).filter(is_open).collect()
    }

    /// The sources of an honest proof.
    pub(super) fn show(&self, asked: &AskedKeys, blocks: &RangeInclusive<u64>) -> Vec<SourceProof> {
        self.show_without(asked, blocks, None)
    }

    /// The sources of a proof in which one source shows nothing about any key. The forger replaces
    /// that source.
    pub(super) fn show_without(
        &self,
        asked: &AskedKeys,
        blocks: &RangeInclusive<u64>,
        silent: Option<usize>,
    ) -> Vec<SourceProof> {
        let show = |(at, source): (usize, &ModelSource)| {
            source.show(self, asked, &self.open_at(at, asked, *blocks.start(), silent), blocks)
        };
        self.sources.iter().enumerate().map(show).collect()
    }

    /// A proof of these sources.
    pub(super) fn proof(&self, sources: Vec<SourceProof>) -> ColeProof {
        let mut sources = sources.into_iter();
        let memory = [sources.next().unwrap(), sources.next().unwrap()];
        let levels = self.levels.iter().map(|[writing, merging]| {
            let writing = sources.by_ref().take(*writing).collect();
            (writing, sources.by_ref().take(*merging).collect())
        });
        let levels = levels.collect();
        ColeProof { horizon: self.horizon, memory, levels }
    }

    pub(super) fn prove(&self, keys: &[BackendKey], blocks: &RangeInclusive<u64>) -> Vec<u8> {
        let asked = AskedKeys::new(keys);
        self.proof(self.show(&asked, blocks)).encode(&asked)
    }

    /// A range at or near existing blocks, not below the horizon.
    pub(super) fn range(&self, rng: &mut StdRng) -> RangeInclusive<u64> {
        let blocks: BTreeSet<_> =
            self.history.values().flatten().map(|version| version.block).collect();
        let blocks: Vec<_> = blocks.into_iter().collect();
        let mut block = || {
            let block = blocks.choose(rng).copied().unwrap_or_default();
            block.saturating_add_signed(rng.random_range(-1..=1)).max(self.horizon)
        };
        let (a, b) = (block(), block());
        match rng.random_range(0..4) {
            0 => u64::MAX..=u64::MAX,
            1 => a..=a,
            2 => a..=u64::MAX,
            _ => a.min(b)..=a.max(b),
        }
    }
}

impl ModelSource {
    fn new(pairs: Vec<CompoundPair>, fanout: Option<u8>, rng: &mut StdRng) -> Self {
        let mut layer: Vec<_> = (0..pairs.len()).map(ModelTree::Leaf).collect();
        // In memory there is at least one node, even over one pair.
        let mut is_leaf = fanout.is_none();
        while layer.len() > 1 || is_leaf && !layer.is_empty() {
            let mut rest = layer.into_iter().peekable();
            let mut above = Vec::new();
            while rest.peek().is_some() {
                let count = fanout.map_or_else(|| rng.random_range(1..=5), usize::from);
                above.push(ModelTree::Inner(rest.by_ref().take(count).collect()));
            }
            (layer, is_leaf) = (above, false);
        }
        let tree = layer.pop().unwrap_or(ModelTree::Inner(Vec::new()));
        let mut filter = Vec::new();
        if fanout.is_some() {
            let keys: BTreeSet<_> = pairs.iter().map(|pair| &pair.key).collect();
            filter = vec![[0; 64]; (10 * keys.len()).div_ceil(512)];
            // Sometimes more blocks than needed: filters of few keys have one.
            if rng.random() {
                filter.resize(rng.random_range(1..12), [0; 64]);
            }
            for key in keys {
                let (a, b) = hash::filter_key(key);
                let at = (u128::from(a) * filter.len() as u128) >> 64;
                for i in 0..6 {
                    let bit = (b >> (9 * i)) as usize % 512;
                    filter[at as usize][bit / 8] |= 1 << (bit % 8);
                }
            }
        }
        Self { pairs, tree, filter }
    }

    /// What the root says about it.
    pub(super) fn source(&self, model: &StoreModel) -> SourceHeader {
        let blocks = || self.pairs.iter().map(|pair| pair.block);
        SourceHeader {
            pairs: self.pairs.len() as u64,
            first_block: blocks().min().unwrap(),
            last_block: blocks().max().unwrap(),
            top: self.node_digest(&self.tree),
            filter_blocks: self.filter.len() as u64,
            filter_top: self
                .filter_layers(model.params.fanout)
                .last()
                .map_or(B256::ZERO, |layer| layer[0]),
        }
    }

    fn digest(&self, model: &StoreModel) -> B256 {
        if self.pairs.is_empty() { B256::ZERO } else { self.source(model).digest() }
    }

    pub(super) fn node_digest(&self, tree: &ModelTree) -> B256 {
        match tree {
            ModelTree::Leaf(at) => {
                let pair = &self.pairs[*at];
                hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
            }
            ModelTree::Inner(children) => {
                let digests: Vec<_> =
                    children.iter().map(|child| self.node_digest(child)).collect();
                hash::node(&digests)
            }
        }
    }

    /// The layers of the filter's tree, leaves first.
    fn filter_layers(&self, fanout: u8) -> Vec<Vec<B256>> {
        if self.filter.is_empty() {
            return Vec::new();
        }
        let mut layers = vec![self.filter.iter().map(hash::filter_block).collect::<Vec<_>>()];
        while layers[layers.len() - 1].len() > 1 {
            let below = &layers[layers.len() - 1];
            layers.push(below.chunks(fanout.into()).map(hash::node).collect());
        }
        layers
    }

    /// The filter's blocks of these numbers, and their multi-proof.
    pub(super) fn show_filter(&self, fanout: u8, blocks: &BTreeSet<usize>) -> FilterProof {
        let layers = self.filter_layers(fanout);
        let (mut known, mut hashes) = (blocks.clone(), Vec::new());
        for layer in &layers[..layers.len() - 1] {
            let parents: BTreeSet<_> = known.iter().map(|at| at / usize::from(fanout)).collect();
            for (at, digest) in layer.iter().enumerate() {
                if parents.contains(&(at / usize::from(fanout))) && !known.contains(&at) {
                    hashes.push(*digest);
                }
            }
            known = parents;
        }
        FilterProof::Blocks { blocks: blocks.iter().map(|at| self.filter[*at]).collect(), hashes }
    }

    /// Whether the filter lets a key pass, and the block that decides it.
    pub(super) fn passes(&self, key: &[u8]) -> (bool, usize) {
        let (a, b) = hash::filter_key(key);
        let at = filter::block_of(a, self.filter.len() as u64) as usize;
        (filter::may_hold(&self.filter[at], b), at)
    }

    /// The numbers of the pairs that a proof of these keys must show.
    pub(super) fn needed(&self, keys: &[&[u8]], blocks: &RangeInclusive<u64>) -> BTreeSet<usize> {
        let mut needed = BTreeSet::new();
        for key in keys {
            let id = |at: &usize| (&self.pairs[*at].key[..], self.pairs[*at].block);
            let (lo, hi) = ((*key, *blocks.start()), (*key, *blocks.end()));
            let all = 0..self.pairs.len();
            needed.extend(all.clone().rfind(|at| id(at) <= lo));
            needed.extend(all.clone().filter(|at| id(at) > lo && id(at) <= hi));
            needed.extend(all.clone().find(|at| id(at) > hi));
        }
        needed
    }

    pub(super) fn show(
        &self,
        model: &StoreModel,
        asked: &AskedKeys,
        open: &[usize],
        blocks: &RangeInclusive<u64>,
    ) -> SourceProof {
        if open.is_empty() {
            return SourceProof::Closed(self.digest(model));
        }
        if self.pairs.is_empty() {
            return SourceProof::Empty;
        }
        let source = self.source(model);
        if source.first_block > *blocks.end() {
            return SourceProof::Young(source);
        }
        let mut excluded = vec![false; open.len()];
        let mut filter = FilterProof::None;
        if !self.filter.is_empty() {
            let mut shown = BTreeSet::new();
            for (number, excluded) in open.iter().zip(&mut excluded) {
                let (passes, at) = self.passes(asked.key(*number));
                *excluded = !passes;
                shown.extend((!passes).then_some(at));
            }
            filter = match shown.is_empty() {
                true => FilterProof::Top(source.filter_top),
                false => self.show_filter(model.params.fanout, &shown),
            };
        }
        let searched = open.iter().zip(&excluded).filter(|(_, excluded)| !**excluded);
        let keys: Vec<_> = searched.map(|(number, _)| asked.key(*number)).collect();
        let tree = self.show_tree(&self.tree, &self.needed(&keys, blocks));
        SourceProof::Searched { source, excluded, filter, tree }
    }

    /// The tree that shows exactly these pairs.
    pub(super) fn show_tree(&self, tree: &ModelTree, needed: &BTreeSet<usize>) -> ShownNode {
        fn has(tree: &ModelTree, needed: &BTreeSet<usize>) -> bool {
            match tree {
                ModelTree::Leaf(at) => needed.contains(at),
                ModelTree::Inner(children) => children.iter().any(|child| has(child, needed)),
            }
        }
        match tree {
            tree if !has(tree, needed) => ShownNode::Hidden(self.node_digest(tree)),
            ModelTree::Leaf(at) => ShownNode::Pair(self.pairs[*at].clone()),
            ModelTree::Inner(children) => ShownNode::Inner(
                children.iter().map(|child| self.show_tree(child, needed)).collect(),
            ),
        }
    }
}
