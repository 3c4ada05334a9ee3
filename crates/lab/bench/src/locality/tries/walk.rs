//! The nodes that a read or an insert takes in a compressed 16-ary trie of random keys.
//!
//! The trie is never built: a node is a range of the sorted keys.

use crate::random::SplitMix64;
use rayon::slice::ParallelSliceMut;
use std::ops::Range;

/// Nibbles of a key that are drawn. The other 48 follow from these, and no two keys share all 16.
const DRAWN: u32 = 16;

/// Bytes of a prefix of 64 nibbles.
pub(super) const LONGEST_PREFIX: u32 = 40;

/// A node of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefixNode {
    /// The first nibbles of the keys below; zeros follow.
    pub(super) prefix: u64,
    /// Length of the prefix in nibbles: a leaf has 16, which stand for its whole key.
    pub(super) nibbles: u32,
    pub(super) children: u32,
    /// Bytes of the children's prefixes together.
    pub(super) child_bytes: u32,
}

/// Why an access reads a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRole {
    /// It is on the path, or takes a new place in it.
    Path,
    /// Its parent is on the path: only its hash is needed.
    Sibling,
}

/// The nodes that a read takes, in the order of prefixes.
#[derive(Debug, Default)]
pub(super) struct PathNodes {
    pub(super) nodes: Vec<(NodeRole, PrefixNode)>,
    /// Runs of nodes that follow each other in the order of prefixes.
    pub(super) regions: u64,
    last: Option<Range<usize>>,
}

/// The nodes that a commit reads and writes.
#[derive(Debug, Default)]
pub(super) struct CommitNodes {
    pub(super) read: Vec<(NodeRole, PrefixNode)>,
    pub(super) written: Vec<PrefixNode>,
}

/// Distinct random keys, in order.
#[derive(Debug, Default)]
pub(super) struct SortedKeys(Vec<u64>);

impl PrefixNode {
    pub(super) const fn is_leaf(&self) -> bool {
        self.nibbles == DRAWN
    }

    /// Bytes of its prefix.
    pub(super) const fn prefix_bytes(&self) -> u32 {
        prefix_bytes(self.nibbles)
    }

    /// Appends its prefix: five bits a nibble, and zeros up to the next byte.
    pub(super) fn put_prefix(&self, out: &mut Vec<u8>) {
        let mut rest = SplitMix64::new(self.prefix);
        let words = if self.is_leaf() {
            [self.prefix, rest.next(), rest.next(), rest.next()]
        } else {
            [self.prefix, 0, 0, 0]
        };
        let count = if self.is_leaf() { 64 } else { self.nibbles as usize };
        let nibbles =
            words.iter().flat_map(|word| (0..16).map(move |at| word >> (60 - 4 * at) & 15));
        let (mut bits, mut filled) = (0_u64, 0);
        for nibble in nibbles.take(count) {
            bits = bits << 5 | (nibble + 1);
            filled += 5;
            if filled >= 8 {
                filled -= 8;
                out.push((bits >> filled) as u8);
            }
        }
        if filled > 0 {
            out.push((bits << (8 - filled)) as u8);
        }
    }
}

const fn prefix_bytes(nibbles: u32) -> u32 {
    if nibbles == DRAWN { LONGEST_PREFIX } else { (5 * nibbles).div_ceil(8) }
}

impl SortedKeys {
    /// `count` keys, or one less for each that is drawn twice.
    pub(super) fn random(count: u64, random: &mut SplitMix64) -> Self {
        let mut keys: Vec<u64> = (0..count).map(|_| random.next()).collect();
        keys.par_sort_unstable();
        keys.dedup();
        Self(keys)
    }

    /// One of the keys at random; `None` if there are none.
    pub(super) fn any(&self, random: &mut SplitMix64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0[random.index(&self.0)])
    }

    /// Up to `count` new keys, in order.
    pub(super) fn fresh(&self, count: u64, random: &mut SplitMix64) -> Vec<u64> {
        let Self(mut keys) = Self::random(count, random);
        keys.retain(|key| self.0.binary_search(key).is_err());
        keys
    }

    /// Adds new keys.
    pub(super) fn add(&mut self, keys: &[u64]) {
        self.0.extend_from_slice(keys);
        // Two sorted runs, which this sort merges.
        self.0.sort();
    }

    /// Calls `each` with all nodes in the order of prefixes.
    ///
    /// # Errors
    /// The first error of `each`.
    pub(super) fn nodes<E>(
        &self,
        each: &mut dyn FnMut(&PrefixNode) -> Result<(), E>,
    ) -> Result<(), E> {
        fn visit<E>(
            keys: &[u64],
            each: &mut dyn FnMut(&PrefixNode) -> Result<(), E>,
        ) -> Result<(), E> {
            let node = node(keys, &[]);
            each(&node)?;
            parts(keys, &[], node.nibbles).try_for_each(|(part, _)| visit(part, each))
        }
        if self.0.is_empty() { Ok(()) } else { visit(&self.0, each) }
    }

    /// The nodes on the path of `key`, which is one of the keys, and their siblings.
    pub(super) fn path(&self, key: u64) -> PathNodes {
        let mut out = PathNodes::default();
        if !self.0.is_empty() {
            self.descend(0..self.0.len(), key, &mut out);
        }
        out
    }

    fn descend(&self, range: Range<usize>, key: u64, out: &mut PathNodes) {
        let keys = &self.0[range.clone()];
        let own = node(keys, &[]);
        let mut start = range.start;
        out.add(NodeRole::Path, own, range);
        for (part, _) in parts(keys, &[], own.nibbles) {
            let range = start..start + part.len();
            start = range.end;
            match part.binary_search(&key) {
                Ok(_) => self.descend(range, key, out),
                Err(_) => out.add(NodeRole::Sibling, node(part, &[]), range),
            }
        }
    }

    /// The nodes that a commit of the sorted `new` keys reads, and those that it writes: each
    /// changed node once, children first (Fig. 13, Commit).
    pub(super) fn commit(&self, new: &[u64]) -> CommitNodes {
        let mut out = CommitNodes::default();
        if !new.is_empty() {
            change(&self.0, new, &mut out);
        }
        out
    }
}

impl PathNodes {
    fn add(&mut self, role: NodeRole, node: PrefixNode, range: Range<usize>) {
        // A branch is followed by its first child, a leaf by the highest node of the next key.
        let follows = self.last.as_ref().is_some_and(|last| match last.len() {
            1 => last.end == range.start,
            _ => last.start == range.start,
        });
        self.regions += u64::from(!follows);
        self.nodes.push((role, node));
        self.last = Some(range);
    }
}

/// Adds the nodes of a subtree with `old` keys that gets `new` ones, of which there are some.
fn change(old: &[u64], new: &[u64], out: &mut CommitNodes) {
    let changed = node(old, new);
    let before = (!old.is_empty()).then(|| node(old, &[]));
    let stays = before.is_some_and(|before| before.nibbles == changed.nibbles);
    if let Some(before) = before.filter(|_| stays) {
        out.read.push((NodeRole::Path, before));
    }
    for (old, new) in parts(old, new, changed.nibbles) {
        if new.is_empty() {
            // Where prefixes part, the old node becomes a child of a new branch: it is on the path.
            let role = if stays { NodeRole::Sibling } else { NodeRole::Path };
            out.read.push((role, node(old, &[])));
        } else {
            change(old, new, out);
        }
    }
    out.written.push(changed);
}

/// The node above all keys of two sorted lists, which are not both empty.
fn node(a: &[u64], b: &[u64]) -> PrefixNode {
    let (prefix, nibbles) = common(a, b);
    let (mut children, mut child_bytes) = (0, 0);
    for (a, b) in parts(a, b, nibbles) {
        children += 1;
        child_bytes += prefix_bytes(common(a, b).1);
    }
    PrefixNode { prefix, nibbles, children, child_bytes }
}

/// The longest common prefix of two sorted lists, which are not both empty, and its length.
fn common(a: &[u64], b: &[u64]) -> (u64, u32) {
    let first = a.first().into_iter().chain(b.first()).min().copied().unwrap_or(0);
    let last = a.last().into_iter().chain(b.last()).max().copied().unwrap_or(0);
    let nibbles = (first ^ last).leading_zeros() / 4;
    let kept = u64::MAX.checked_shl(64 - 4 * nibbles).unwrap_or(0);
    (first & kept, nibbles)
}

/// The keys of each child of a branch whose prefix has `nibbles` nibbles. A leaf has no children.
fn parts<'k>(
    mut a: &'k [u64],
    mut b: &'k [u64],
    nibbles: u32,
) -> impl Iterator<Item = (&'k [u64], &'k [u64])> {
    let shift = 60_u32.checked_sub(4 * nibbles);
    std::iter::from_fn(move || {
        let shift = shift?;
        let next = a.first().into_iter().chain(b.first()).min()? >> shift;
        let split = |keys: &mut &'k [u64]| {
            let (own, others) = keys.split_at(keys.partition_point(|key| key >> shift <= next));
            *keys = others;
            own
        };
        Some((split(&mut a), split(&mut b)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Prefix and length of every node, by the definition: prefixes after which keys differ, and
    /// keys.
    fn by_definition(keys: &[u64]) -> BTreeSet<(u64, u32)> {
        let pairs = keys.windows(2).map(|pair| common(pair, &[]));
        pairs.chain(keys.iter().map(|key| (*key, DRAWN))).collect()
    }

    fn place(node: &PrefixNode) -> (u64, u32) {
        (node.prefix, node.nibbles)
    }

    fn all(keys: &SortedKeys) -> Vec<PrefixNode> {
        let mut nodes = Vec::new();
        keys.nodes::<()>(&mut |node| {
            nodes.push(*node);
            Ok(())
        })
        .unwrap();
        nodes
    }

    #[test]
    fn nodes_are_those_of_the_definition_and_their_prefixes_sort_in_their_order() {
        let mut random = SplitMix64::new(4);
        let mut keys = SortedKeys::random(300, &mut random);
        // Long common prefixes.
        keys.add(&[16, 17, 0x1000]);
        let nodes = all(&keys);
        assert_eq!(nodes.iter().map(place).collect::<BTreeSet<_>>(), by_definition(&keys.0));
        let encoded: Vec<_> = nodes
            .iter()
            .map(|node| {
                let mut bytes = Vec::new();
                node.put_prefix(&mut bytes);
                assert_eq!(bytes.len(), node.prefix_bytes() as usize);
                // A version, as in a row's key.
                [bytes, vec![0, 0, 0, 9]].concat()
            })
            .collect();
        assert!(encoded.is_sorted_by(|a, b| a < b));
        let edges: u32 = nodes.iter().map(|node| node.children).sum();
        assert_eq!(edges as usize, nodes.len() - 1);
        let below_root: u32 = nodes.iter().map(|node| node.child_bytes).sum();
        let prefixes: u32 = nodes.iter().map(PrefixNode::prefix_bytes).sum();
        assert_eq!(below_root + nodes[0].prefix_bytes(), prefixes);
    }

    #[test]
    fn a_path_has_all_children_of_its_branches_and_its_regions_are_runs_of_nodes() {
        let keys = SortedKeys::random(200, &mut SplitMix64::new(5));
        let order: BTreeMap<_, _> = all(&keys).iter().map(place).zip(0..).collect();
        for key in &keys.0 {
            let path = keys.path(*key);
            let above = |node: &&(NodeRole, PrefixNode)| node.0 == NodeRole::Path;
            let children: u32 = path.nodes.iter().filter(above).map(|node| node.1.children).sum();
            assert_eq!(children as usize + 1, path.nodes.len());
            let last = path.nodes.iter().rfind(above).unwrap().1;
            assert_eq!(place(&last), (*key, DRAWN));
            let slots: Vec<i32> = path.nodes.iter().map(|node| order[&place(&node.1)]).collect();
            assert!(slots.is_sorted());
            let runs = 1 + slots.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
            assert_eq!(path.regions, runs as u64);
        }
    }

    #[test]
    fn a_commit_writes_the_nodes_that_differ_and_reads_what_their_hashes_need() {
        let mut random = SplitMix64::new(6);
        for (before, added) in [(0, 3), (1, 1), (40, 1), (40, 25), (500, 60)] {
            let mut keys = SortedKeys::random(before, &mut random);
            let new = keys.fresh(added, &mut random);
            let old: BTreeMap<_, _> = all(&keys).into_iter().map(|n| (place(&n), n)).collect();
            let CommitNodes { read, written } = keys.commit(&new);
            keys.add(&new);
            let after: BTreeMap<_, _> = all(&keys).into_iter().map(|n| (place(&n), n)).collect();
            // A node changes if a new key is below it.
            let is_above = |(prefix, nibbles): (u64, u32), key: &u64| {
                nibbles == 0 || (key ^ prefix) >> (64 - 4 * nibbles) == 0
            };
            let changed: BTreeMap<_, _> = after
                .iter()
                .filter(|(place, _)| new.iter().any(|key| is_above(**place, key)))
                .map(|(place, node)| (*place, *node))
                .collect();
            let found: BTreeMap<_, _> = written.iter().map(|node| (place(node), *node)).collect();
            assert_eq!((found.len(), &found), (written.len(), &changed), "{before} + {added}");
            // Every old node that is changed or has a changed parent.
            let parent = |(prefix, nibbles): (u64, u32)| {
                let above = |at: &u32| after.get_key_value(&common_to(prefix, *at));
                (0..nibbles).rev().find_map(|at| above(&at)).map(|(place, _)| *place)
            };
            let needed: BTreeSet<_> = old
                .keys()
                .filter(|place| {
                    let above = parent(**place);
                    changed.contains_key(place) || above.is_some_and(|a| changed.contains_key(&a))
                })
                .copied()
                .collect();
            let places: BTreeSet<_> = read.iter().map(|(_, node)| place(node)).collect();
            assert_eq!((places.len(), &places), (read.len(), &needed), "{before} + {added}");
            for (role, node) in &read {
                let on_path = changed.contains_key(&place(node))
                    || parent(place(node)).is_some_and(|above| !old.contains_key(&above));
                assert_eq!(*role == NodeRole::Path, on_path, "{node:?}");
                assert_eq!(old[&place(node)], *node, "read as it was");
            }
        }
    }

    /// The first `nibbles` nibbles of a prefix.
    fn common_to(prefix: u64, nibbles: u32) -> (u64, u32) {
        (prefix & u64::MAX.checked_shl(64 - 4 * nibbles).unwrap_or(0), nibbles)
    }
}
