//! The memory level: an MB-tree, a B+-tree with digests (COLE 3.2; Li et al., SIGMOD 2006).
//!
//! Its shape depends on the order in which pairs came. That order is kept: rows hold the pairs block
//! by block, and putting them in again gives the same tree. Pairs are only ever added.
//!
//! Trees are copied on write, so that a block's tree costs what it changes, and those of its parent
//! and its siblings stay.

use crate::{
    hash::{self, Batch},
    tree::{Node, Pair},
};
use alloy_primitives::{Address, B256};
use retrie_state::{StateKey, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Children of a node, and pairs of a leaf, at most. Small nodes make short proofs, and little to
/// copy.
const FANOUT: usize = 8;

/// What pairs are ordered by: the compound key.
pub(crate) type PairId = (StateKey, u64);

/// A [`PairId`] in words whose order is its order, which compare in a few instructions: the encoded
/// key, filled up with zeros, and the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id([u64; 8]);

const KEY: usize = StateKey::MAX_ENCODED_LEN;

impl Id {
    fn new(key: &StateKey, block: u64) -> Self {
        let encoded = key.encode();
        let mut bytes = [0; 64];
        bytes[..encoded.len()].copy_from_slice(&encoded);
        bytes[KEY..KEY + 8].copy_from_slice(&block.to_be_bytes());
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }

    fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = word.to_be_bytes();
        }
        bytes
    }

    fn is_of(&self, other: &Self) -> bool {
        // The key ends within the seventh word.
        const REST: u32 = 64 - (KEY as u32 % 8) * 8;
        self.0[..6] == other.0[..6] && self.0[6] >> REST == other.0[6] >> REST
    }
}

/// A pair in memory. All of it is in place, but for large values: leaves are copied often.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    id: Id,
    value: Option<SmallVec<[u8; 40]>>,
    digest: B256,
}

impl Entry {
    /// Its state key.
    pub(crate) fn key(&self) -> StateKey {
        let bytes = self.id.bytes();
        let address = Address::from_slice(&bytes[1..21]);
        match bytes[0] {
            0 => StateKey::Account(address),
            _ => StateKey::Slot(address, B256::from_slice(&bytes[21..KEY])),
        }
    }

    /// The block that set it.
    pub(crate) const fn block(&self) -> u64 {
        let words = &self.id.0;
        // Bytes 53 to 60.
        words[6] << 40 | words[7] >> 24
    }

    /// What it was set to; `None`: deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Its digest under the root.
    pub(crate) const fn digest(&self) -> B256 {
        self.digest
    }

    fn to_pair(&self) -> Pair {
        Pair {
            key: self.key().encode().to_vec(),
            block: self.block(),
            value: self.value().map(Value::copy_from_slice),
        }
    }
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "five of six nodes are leaves")]
enum Body {
    Leaf(SmallVec<[Entry; FANOUT + 1]>),
    /// Each child with the first pair below it.
    Inner(SmallVec<[(Id, Arc<TreeNode>); FANOUT + 1]>),
}

#[derive(Clone, Debug)]
struct TreeNode {
    body: Body,
    /// `None` while something below has changed.
    digest: Option<B256>,
}

impl TreeNode {
    const fn new(body: Body) -> Self {
        Self { body, digest: None }
    }

    fn first(&self) -> Option<Id> {
        match &self.body {
            Body::Leaf(entries) => entries.first().map(|entry| entry.id),
            Body::Inner(children) => children.first().map(|(first, _)| *first),
        }
    }

    /// Adds a pair that is not there; gives the right half if this node had to be split.
    fn insert(&mut self, entry: Entry) -> Option<Self> {
        self.digest = None;
        match &mut self.body {
            Body::Leaf(entries) => {
                let id = entry.id;
                let at = entries.partition_point(|other| other.id < id);
                entries.insert(at, entry);
                (entries.len() > FANOUT)
                    .then(|| Self::new(Body::Leaf(entries.drain(FANOUT.div_ceil(2)..).collect())))
            }
            Body::Inner(children) => {
                let id = entry.id;
                let at = children.partition_point(|(first, _)| *first <= id).saturating_sub(1);
                let (first, child) = &mut children[at];
                *first = id.min(*first);
                let right = Arc::make_mut(child).insert(entry)?;
                // A half is never empty.
                let first = right.first().unwrap_or(id);
                children.insert(at + 1, (first, Arc::new(right)));
                (children.len() > FANOUT)
                    .then(|| Self::new(Body::Inner(children.drain(FANOUT.div_ceil(2)..).collect())))
            }
        }
    }

    /// The changed nodes at `depth` below this one.
    fn changed<'a>(node: &'a mut Arc<Self>, depth: usize, found: &mut Vec<&'a mut Self>) {
        if node.digest.is_some() {
            return;
        }
        // Whatever has changed belongs to this tree alone: nothing is copied here.
        let node = Arc::make_mut(node);
        if depth == 0 {
            found.push(node);
        } else if let Body::Inner(children) = &mut node.body {
            for (_, child) in children {
                Self::changed(child, depth - 1, found);
            }
        }
    }

    fn shown(&self, wanted: &[(Id, Id)]) -> Node {
        match &self.body {
            Body::Leaf(entries) => {
                let show = |entry: &Entry| {
                    let id = entry.id;
                    match wanted.iter().any(|(first, last)| *first <= id && id <= *last) {
                        true => Node::Pair(entry.to_pair()),
                        false => Node::Hidden(entry.digest),
                    }
                };
                Node::Inner(entries.iter().map(show).collect())
            }
            Body::Inner(children) => {
                let show = |(n, (first, child)): (usize, &(Id, Arc<Self>))| {
                    let next = children.get(n + 1).map(|(first, _)| *first);
                    // The ends of what is wanted are pairs of the tree.
                    let below = |(from, to): &&(Id, Id)| {
                        next.is_none_or(|next| *from < next) && to >= first
                    };
                    let wanted: Vec<_> = wanted.iter().filter(below).copied().collect();
                    match wanted.is_empty() {
                        true => Node::Hidden(child.digest.unwrap_or_default()),
                        false => child.shown(&wanted),
                    }
                };
                Node::Inner(children.iter().enumerate().map(show).collect())
            }
        }
    }
}

/// A group of the memory level. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    root: Option<Arc<TreeNode>>,
    depth: usize,
    pairs: u64,
    first_block: u64,
    last_block: u64,
}

impl Group {
    /// Number of pairs.
    pub(crate) const fn len(&self) -> u64 {
        self.pairs
    }

    /// Adds the pairs of `block`, which comes after all blocks before it, in key order.
    pub(crate) fn add_block<'a>(
        &mut self,
        block: u64,
        changes: impl ExactSizeIterator<Item = (StateKey, &'a Option<Value>)> + Clone,
    ) {
        if changes.len() == 0 {
            return;
        }
        let mut digests = Vec::with_capacity(changes.len());
        let mut batch = Batch::default();
        for (key, value) in changes.clone() {
            batch.pair(&key.encode(), block, value.as_ref().map(|value| &value[..]));
        }
        batch.finish_into(&mut digests);
        if self.pairs == 0 {
            self.first_block = block;
        }
        self.last_block = block;
        self.pairs += changes.len() as u64;
        for ((key, value), digest) in changes.zip(digests) {
            let value = value.as_ref().map(|value| SmallVec::from_slice(value));
            self.insert(Entry { id: Id::new(&key, block), value, digest });
        }
        self.hash();
    }

    fn insert(&mut self, entry: Entry) {
        let Some(root) = &mut self.root else {
            let leaf = TreeNode::new(Body::Leaf(SmallVec::from_iter([entry])));
            self.root = Some(Arc::new(leaf));
            return;
        };
        let id = entry.id;
        if let Some(right) = Arc::make_mut(root).insert(entry) {
            let left = root.clone();
            let children = [left, Arc::new(right)];
            let children = children.into_iter().map(|child| (child.first().unwrap_or(id), child));
            *root = Arc::new(TreeNode::new(Body::Inner(children.collect())));
            self.depth += 1;
        }
    }

    /// Brings the digests of changed nodes up to date, from the leaves up.
    fn hash(&mut self) {
        let Some(root) = &mut self.root else { return };
        let (mut batch, mut digests) = (Batch::default(), Vec::new());
        for depth in (0..=self.depth).rev() {
            let mut nodes = Vec::new();
            TreeNode::changed(root, depth, &mut nodes);
            for node in &nodes {
                match &node.body {
                    Body::Leaf(entries) => batch.node(entries.iter().map(|entry| &entry.digest)),
                    Body::Inner(children) => {
                        batch.node(children.iter().filter_map(|(_, child)| child.digest.as_ref()));
                    }
                }
            }
            digests.clear();
            batch.finish_into(&mut digests);
            for (node, digest) in nodes.into_iter().zip(&digests) {
                node.digest = Some(*digest);
            }
        }
    }

    /// What the root says of it; `None` without pairs.
    pub(crate) fn source(&self) -> Option<hash::Source> {
        let root = self.root.as_ref()?;
        Some(hash::Source {
            pairs: self.pairs,
            first_block: self.first_block,
            last_block: self.last_block,
            top: root.digest.unwrap_or_default(),
            filter_blocks: 0,
            filter_top: B256::ZERO,
        })
    }

    /// Its digest under the root.
    pub(crate) fn digest(&self) -> B256 {
        self.source().map_or(B256::ZERO, |source| source.digest())
    }

    /// The last pair at or before `id`.
    pub(crate) fn floor(&self, (key, block): &PairId) -> Option<&Entry> {
        self.floor_of(Id::new(key, *block))
    }

    fn floor_of(&self, id: Id) -> Option<&Entry> {
        let mut node = self.root.as_ref()?;
        loop {
            match &node.body {
                Body::Leaf(entries) => {
                    let at = entries.partition_point(|entry| entry.id <= id);
                    return entries.get(at.checked_sub(1)?);
                }
                Body::Inner(children) => {
                    let at = children.partition_point(|(first, _)| *first <= id);
                    node = &children.get(at.checked_sub(1)?)?.1;
                }
            }
        }
    }

    /// The newest version of `key` at or before `block`.
    pub(crate) fn get(&self, key: &StateKey, block: u64) -> Option<&Entry> {
        let id = Id::new(key, block);
        self.floor_of(id).filter(|entry| entry.id.is_of(&id))
    }

    /// The pairs from `id` on, in order.
    pub(crate) fn from(&self, (key, block): &PairId) -> Iter<'_> {
        let id = Id::new(key, *block);
        let mut way = Vec::with_capacity(self.depth + 1);
        let mut node = self.root.as_deref();
        while let Some(at) = node {
            node = match &at.body {
                Body::Leaf(entries) => {
                    way.push((at, entries.partition_point(|entry| entry.id < id)));
                    None
                }
                Body::Inner(children) => {
                    let child = children.partition_point(|(first, _)| *first <= id);
                    let child = child.saturating_sub(1);
                    way.push((at, child + 1));
                    Some(&*children[child].1)
                }
            };
        }
        Iter { way }
    }

    /// The tree with the pairs of `wanted` shown: ranges from a pair of the tree to another one,
    /// both ends included. `None` without pairs.
    pub(crate) fn show(&self, wanted: &[(PairId, PairId)]) -> Option<Node> {
        let root = self.root.as_ref()?;
        let id = |(key, block): &PairId| Id::new(key, *block);
        let wanted: Vec<_> = wanted.iter().map(|(first, last)| (id(first), id(last))).collect();
        Some(match wanted.is_empty() {
            true => Node::Hidden(root.digest.unwrap_or_default()),
            false => root.shown(&wanted),
        })
    }
}

/// Pairs in order.
#[derive(Debug)]
pub(crate) struct Iter<'a> {
    /// Nodes from the root down, each with the next child or pair.
    way: Vec<(&'a TreeNode, usize)>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Entry;

    fn next(&mut self) -> Option<&'a Entry> {
        loop {
            let (node, at) = self.way.last_mut()?;
            let node: &'a TreeNode = node;
            match &node.body {
                Body::Leaf(entries) => {
                    if let Some(entry) = entries.get(*at) {
                        *at += 1;
                        return Some(entry);
                    }
                }
                Body::Inner(children) => {
                    if let Some((_, child)) = children.get(*at) {
                        *at += 1;
                        self.way.push((child, 0));
                        continue;
                    }
                }
            }
            self.way.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, Bytes};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    fn key(n: u64) -> StateKey {
        StateKey::Slot(
            Address::repeat_byte((n % 3) as u8),
            B256::from(alloy_primitives::U256::from(n)),
        )
    }

    type Model = BTreeMap<PairId, Option<Value>>;

    fn id(entry: &Entry) -> PairId {
        (entry.key(), entry.block())
    }

    fn value(entry: &Entry) -> Option<Value> {
        entry.value().map(Value::copy_from_slice)
    }

    /// Groups after each of some blocks, with what they hold.
    fn grown(seed: u64, blocks: u64, keys: u64) -> Vec<(Group, Model)> {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut group, mut model) = (Group::default(), Model::new());
        let mut grown = Vec::new();
        for block in 5..5 + blocks {
            let mut changes = BTreeMap::new();
            for _ in 0..rng.random_range(0..30) {
                let n = rng.random_range(0..keys);
                let value = (n % 4 > 0).then(|| Bytes::from(vec![n as u8; rng.random_range(0..9)]));
                changes.insert(key(n), value);
            }
            group.add_block(block, changes.iter().map(|(key, value)| (*key, value)));
            model.extend(changes.into_iter().map(|(key, value)| ((key, block), value)));
            grown.push((group.clone(), model.clone()));
        }
        grown
    }

    fn check(group: &Group, model: &Model) {
        assert_eq!(group.len(), model.len() as u64);
        let first = (key(0), 0).min((StateKey::Account(Address::ZERO), 0));
        let pairs = |group: &Group, from: &PairId| -> Vec<_> {
            group.from(from).map(|entry| (id(entry), value(entry))).collect()
        };
        assert!(pairs(group, &first).into_iter().eq(model.clone()));
        for n in 0..40 {
            for block in [0, 6, 9, 30, u64::MAX] {
                let id = (key(n), block);
                let floor = model.range(..=id).next_back().map(|(id, value)| (*id, value.clone()));
                let found = group.floor(&id).map(|entry| (self::id(entry), value(entry)));
                assert_eq!(found, floor);
                let from = model.range(id..).map(|(id, value)| (*id, value.clone()));
                assert!(pairs(group, &id).into_iter().eq(from));
            }
        }
    }

    /// The digest of a shown tree, and the pairs it shows.
    fn fold(node: &Node, pairs: &mut Vec<Pair>) -> B256 {
        match node {
            Node::Hidden(digest) => *digest,
            Node::Pair(pair) => {
                pairs.push(pair.clone());
                hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
            }
            Node::Inner(children) => {
                let digests: Vec<_> = children.iter().map(|child| fold(child, pairs)).collect();
                hash::node(&digests)
            }
        }
    }

    #[test]
    fn every_block_has_its_own_tree_and_the_same_blocks_give_the_same_tree() {
        let (one, two) = (grown(1, 40, 60), grown(1, 40, 60));
        for ((group, model), (other, _)) in one.iter().zip(&two) {
            check(group, model);
            assert_eq!(group.digest(), other.digest());
        }
    }

    #[test]
    fn shown_pairs_lead_to_the_top() {
        for (group, model) in grown(2, 30, 200).iter().skip(3).step_by(5) {
            let ids: Vec<PairId> = model.keys().copied().collect();
            let last = ids.len() - 1;
            for ranges in [
                vec![(0, 0)],
                vec![(last, last)],
                vec![(0, last)],
                vec![(3, 5), (6, 6), (last / 2, last / 2 + 2)],
            ] {
                let wanted: Vec<_> = ranges.iter().map(|(a, b)| (ids[*a], ids[*b])).collect();
                let tree = group.show(&wanted).unwrap();
                let mut pairs = Vec::new();
                assert_eq!(fold(&tree, &mut pairs), group.source().unwrap().top);
                let expected = ranges.iter().flat_map(|(a, b)| ids[*a..=*b].iter());
                let shown =
                    pairs.iter().map(|pair| (StateKey::decode(&pair.key).unwrap(), pair.block));
                assert!(shown.eq(expected.copied()));
            }
            assert!(
                matches!(group.show(&[]), Some(Node::Hidden(top)) if top == group.source().unwrap().top)
            );
        }
    }

    #[test]
    fn nodes_are_as_full_as_they_should_be() {
        fn walk(node: &TreeNode, is_root: bool, depth: usize) {
            let len = match &node.body {
                Body::Leaf(entries) => {
                    assert_eq!(depth, 0);
                    entries.len()
                }
                Body::Inner(children) => {
                    for (first, child) in children {
                        assert_eq!(Some(*first), child.first());
                        walk(child, false, depth - 1);
                    }
                    children.len()
                }
            };
            assert!(node.digest.is_some() && len <= FANOUT && (is_root || len >= FANOUT / 2));
        }
        for (group, _) in grown(3, 60, 1000) {
            if let Some(root) = &group.root {
                walk(root, true, group.depth);
            }
        }
    }
}
