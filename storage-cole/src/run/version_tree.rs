//! The tree over the versions of a key (COLE+, prunable version tree; `docs/formats/cole.md`, Version
//! trees), and its bytes.
//!
//! A tree is binary. A flush makes one of all versions of a key; a merge joins the trees that its
//! inputs have of a key, the oldest first, and looks into none. So every subtree stays what it was,
//! and one whose pairs have all been dropped is replaced by its digest.

use crate::hash;
use alloy_primitives::B256;
use retrie_state::wire::WireReader;

const PAIR: u8 = 0;
const PRUNED: u8 = 1;
const JOIN: u8 = 2;
const JOIN_STORED: u8 = 3;

/// The tree of a key with one version.
pub(super) const SINGLE: &[u8] = &[PAIR];

/// A node over this many stored pairs or more has its digest beside it: so no proof reads all
/// versions of a key.
pub(super) const PAIRS_A_DIGEST: u64 = 16;

/// The bytes are no version tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedTree;

/// A step of building a tree: children come before their parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeStep {
    /// The next pair in the value file.
    Pair,
    /// A subtree without stored pairs, by its digest.
    Pruned(B256),
    /// A node over the last two parts, with its digest if that is stored.
    Join(Option<B256>),
}

/// Reads the steps of a tree.
pub(super) struct StepReader<'a>(WireReader<'a>);

impl<'a> StepReader<'a> {
    /// The steps in `bytes`.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(WireReader::new(bytes))
    }

    fn read(&mut self) -> Option<TreeStep> {
        Some(match self.0.u8().ok()? {
            PAIR => TreeStep::Pair,
            PRUNED => TreeStep::Pruned(self.0.hash().ok()?),
            JOIN => TreeStep::Join(None),
            JOIN_STORED => TreeStep::Join(Some(self.0.hash().ok()?)),
            _ => return None,
        })
    }
}

impl Iterator for StepReader<'_> {
    type Item = Result<TreeStep, MalformedTree>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let step = self.read();
        if step.is_none() {
            self.0 = WireReader::new(&[]);
        }
        Some(step.ok_or(MalformedTree))
    }
}

/// Builds the bytes of a tree, step by step.
#[derive(Debug, Default)]
pub(super) struct TreeBuilder {
    bytes: Vec<u8>,
    /// Subtrees that no node has joined yet.
    parts: Vec<TreePart>,
    /// The number of versions [appended](Self::append).
    appended: u64,
}

#[derive(Debug)]
struct TreePart {
    digest: B256,
    /// Stored pairs.
    pairs: u64,
    /// Where its bytes begin.
    start: usize,
}

impl TreeBuilder {
    /// Adds a pair by its digest.
    pub(super) fn pair(&mut self, digest: B256) {
        self.parts.push(TreePart { digest, pairs: 1, start: self.bytes.len() });
        self.bytes.push(PAIR);
    }

    /// Adds a subtree without stored pairs.
    pub(super) fn pruned(&mut self, digest: B256) {
        self.parts.push(TreePart { digest, pairs: 0, start: self.bytes.len() });
        self.put(PRUNED, &digest);
    }

    /// Joins the last two parts. Returns the digest of the node.
    pub(super) fn join(&mut self) -> Result<B256, MalformedTree> {
        let (Some(right), Some(left)) = (self.parts.pop(), self.parts.pop()) else {
            return Err(MalformedTree);
        };
        let digest = hash::node([&left.digest, &right.digest]);
        let (pairs, start) = (left.pairs + right.pairs, left.start);
        match pairs {
            0 => {
                self.bytes.truncate(start);
                self.put(PRUNED, &digest);
            }
            1..PAIRS_A_DIGEST => self.bytes.push(JOIN),
            _ => self.put(JOIN_STORED, &digest),
        }
        self.parts.push(TreePart { digest, pairs, start });
        Ok(digest)
    }

    fn put(&mut self, tag: u8, digest: &B256) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&digest[..]);
    }

    /// Adds the next of a key's versions, which all come in this way: whole binary trees grow from
    /// the left, and [`close`](Self::close) joins what is left of them.
    pub(super) fn append(&mut self, digest: B256) -> Result<(), MalformedTree> {
        self.pair(digest);
        self.appended += 1;
        (0..self.appended.trailing_zeros()).try_for_each(|_| self.join().map(|_| ()))
    }

    /// Joins all parts, from the right.
    pub(super) fn close(&mut self) -> Result<(), MalformedTree> {
        while self.parts.len() > 1 {
            self.join()?;
        }
        Ok(())
    }

    /// The number of parts.
    pub(super) const fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The top, the number of stored pairs, and the bytes of a tree of one part.
    pub(super) fn whole(&self) -> Result<(B256, u64, &[u8]), MalformedTree> {
        match &self.parts[..] {
            [part] if part.pairs > 0 => Ok((part.digest, part.pairs, &self.bytes)),
            _ => Err(MalformedTree),
        }
    }

    /// Starts over.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.appended = 0;
    }
}

/// A tree that was read, for proofs. It takes about 50 bytes a stored pair.
pub(super) struct VersionTree<'a> {
    bytes: &'a [u8],
    /// Children come before their parent, the right one just before it. The top is last.
    nodes: Vec<VersionNode>,
}

struct VersionNode {
    /// Where it is in the bytes.
    at: usize,
    /// Stored pairs.
    pairs: u64,
    /// The number of its left child, or its own if it has none.
    left: usize,
}

impl<'a> VersionTree<'a> {
    /// Reads a tree.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, MalformedTree> {
        let mut nodes: Vec<VersionNode> = Vec::new();
        let mut parts: Vec<usize> = Vec::new();
        let mut steps = StepReader::new(bytes);
        loop {
            let at = bytes.len() - steps.0.rest().len();
            let Some(step) = steps.next() else { break };
            let number = nodes.len();
            let node = match step? {
                TreeStep::Pair => VersionNode { at, pairs: 1, left: number },
                TreeStep::Pruned(_) => VersionNode { at, pairs: 0, left: number },
                TreeStep::Join(_) => {
                    let (Some(right), Some(left)) = (parts.pop(), parts.pop()) else {
                        return Err(MalformedTree);
                    };
                    VersionNode { at, pairs: nodes[left].pairs + nodes[right].pairs, left }
                }
            };
            nodes.push(node);
            parts.push(number);
        }
        match parts[..] {
            [_] => Ok(Self { bytes, nodes }),
            _ => Err(MalformedTree),
        }
    }

    /// The number of the top.
    pub(super) fn top(&self) -> usize {
        self.nodes.len().saturating_sub(1)
    }

    /// The number of stored pairs below a node.
    pub(super) fn pairs(&self, number: usize) -> u64 {
        self.nodes[number].pairs
    }

    /// The digest of a node, if it is stored.
    pub(super) fn stored_digest(&self, number: usize) -> Option<B256> {
        match StepReader::new(&self.bytes[self.nodes[number].at..]).next()?.ok()? {
            TreeStep::Pair => None,
            TreeStep::Pruned(digest) => Some(digest),
            TreeStep::Join(digest) => digest,
        }
    }

    /// The children of a node that is neither a pair nor pruned.
    pub(super) fn children(&self, number: usize) -> Option<(usize, usize)> {
        let left = self.nodes[number].left;
        (left < number).then(|| (left, number - 1))
    }
}

/// The digest of the top of a tree over `pairs` stored pairs, if its bytes end with it.
pub(super) fn stored_top(bytes: &[u8], pairs: u64) -> Option<B256> {
    let (head, digest) = bytes.split_last_chunk::<32>()?;
    (pairs >= PAIRS_A_DIGEST && head.last() == Some(&JOIN_STORED)).then(|| B256::from(*digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(n: u8) -> B256 {
        B256::repeat_byte(n)
    }

    #[test]
    fn a_tree_of_versions_in_order_is_the_tree_of_rfc_6962() {
        fn expected(leaves: &[B256]) -> B256 {
            if let [leaf] = leaves {
                return *leaf;
            }
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            hash::node([&expected(left), &expected(right)])
        }
        for count in 1..70u8 {
            let leaves: Vec<_> = (0..count).map(leaf).collect();
            let mut tree = TreeBuilder::default();
            leaves.iter().for_each(|leaf| tree.append(*leaf).unwrap());
            tree.close().unwrap();
            let (top, pairs, bytes) = tree.whole().unwrap();
            assert_eq!((top, pairs), (expected(&leaves), count.into()));
            let parsed = VersionTree::parse(bytes).unwrap();
            assert_eq!(parsed.pairs(parsed.top()), count.into());
            assert_eq!(parsed.stored_digest(parsed.top()), stored_top(bytes, count.into()));
            assert_eq!(stored_top(bytes, count.into()).is_some(), count >= 16);
        }
    }

    #[test]
    fn a_subtree_of_which_all_is_pruned_is_one_digest() {
        let build = |pruned: u8| {
            let mut tree = TreeBuilder::default();
            for n in 0..8 {
                match n < pruned {
                    true => tree.pruned(leaf(n)),
                    false => tree.pair(leaf(n)),
                }
                for _ in 0..(n + 1).trailing_zeros() {
                    tree.join().unwrap();
                }
            }
            tree
        };
        let whole = build(0);
        let (top, ..) = whole.whole().unwrap();
        for pruned in 1..8 {
            let tree = build(pruned);
            let (of_pruned, pairs, bytes) = tree.whole().unwrap();
            assert_eq!((of_pruned, pairs), (top, u64::from(8 - pruned)));
            let digests = StepReader::new(bytes)
                .filter(|step| matches!(step, Ok(TreeStep::Pruned(_))))
                .count();
            assert_eq!(digests as u32, pruned.count_ones());
        }
        assert_eq!(build(8).whole(), Err(MalformedTree));
    }

    #[test]
    fn bytes_that_are_no_tree_are_refused() {
        for bytes in [&[][..], &[PAIR, PAIR], &[JOIN], &[PAIR, JOIN], &[4], &[PRUNED, 1, 2]] {
            assert!(VersionTree::parse(bytes).is_err(), "{bytes:?}");
        }
        assert!(VersionTree::parse(&[PAIR, PAIR, JOIN]).is_ok());
    }
}
