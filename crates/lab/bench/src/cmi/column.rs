//! A column: the versions of one key, in a Merkle B-tree (MB-tree; Li et al., SIGMOD 2006) whose nodes
//! have 32 children or versions each. Versions only come at the end, so all nodes but those of the
//! right edge are full and never change again.
//!
//! ```text
//!  row of HEADS   key -> number of full leaves (8), the last leaf
//!  rows of NODES  key, level (1), number in its level (8) -> a full leaf (level 0), or an inner node
//!  leaf           00, versions: block (8), 0 for a deletion or else length of the value + 1 (4), value
//!  inner node     01, children: first block (8), digest (32)
//! ```
//!
//! The digest of a node is the keccak-256 of its bytes; the column's is that of its top.

use alloy_primitives::{B256, Bytes, keccak256};
use retrie_state::{
    EncodedKey, NodeRead, ProofError, RowTable, StateError, StateValue, ValueVersion,
    wire::WireReader,
};
use std::ops::{Range, RangeInclusive};

/// The last leaf of each column.
pub(super) const HEADS: RowTable = RowTable::new(0x71, "CmiHeads");
/// The other nodes.
pub(super) const NODES: RowTable = RowTable::new(0x72, "CmiNodes");

/// Most versions of a leaf, and most children of an inner node.
const FANOUT: u64 = 32;
/// Bytes of a child in an inner node.
const CHILD: usize = 8 + 32;
const LEAF: u8 = 0;
const INNER: u8 = 1;

/// The row of a column: its last leaf, which is the whole column at first.
#[derive(Clone, Debug)]
pub(super) struct ColumnHead {
    /// The number of leaves before it, all full.
    full: u64,
    leaf: Bytes,
    versions: Vec<ValueVersion>,
}

impl Default for ColumnHead {
    fn default() -> Self {
        Self { full: 0, leaf: Bytes::from_static(&[LEAF]), versions: Vec::new() }
    }
}

impl ColumnHead {
    /// Reads the row of `key`.
    pub(super) fn decode(key: &[u8], row: &Bytes) -> Result<Self, StateError> {
        let decoded = row.split_first_chunk().and_then(|(full, leaf)| {
            let leaf = row.slice_ref(leaf);
            let MbNode::Leaf(versions) = MbNode::decode(&leaf)? else { return None };
            Some(Self { full: u64::from_be_bytes(*full), leaf, versions })
        });
        decoded.ok_or_else(|| malformed(HEADS, key))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        [&self.full.to_be_bytes(), &self.leaf[..]].concat()
    }

    /// Adds a version to the leaf.
    pub(super) fn push(&mut self, block: u64, value: Option<&StateValue>) {
        // Values of a state have far fewer than 2^32 bytes.
        let length = value.map_or(0, |value| value.len() as u32 + 1);
        let value_bytes = value.map_or(&[][..], |value| &value[..]);
        let parts = [&self.leaf[..], &block.to_be_bytes(), &length.to_be_bytes(), value_bytes];
        self.leaf = parts.concat().into();
        self.versions.push(ValueVersion { block, value: value.cloned() });
    }

    /// Digest of the leaf.
    pub(super) fn digest(&self) -> B256 {
        keccak256(&self.leaf)
    }

    /// The latest value, if the key has one.
    pub(super) fn latest(&self) -> Option<StateValue> {
        // Copied: a slice would keep the whole leaf in memory.
        self.versions.last()?.value.as_ref().map(|value| StateValue::copy_from_slice(value))
    }
}

/// A changed row.
#[derive(Debug)]
pub(super) struct ColumnRow {
    pub(super) table: RowTable,
    pub(super) key: Vec<u8>,
    pub(super) previous: Option<Bytes>,
    pub(super) next: Bytes,
}

/// A column after a block.
#[derive(Debug)]
pub(super) struct ColumnUpdate {
    pub(super) root: B256,
    pub(super) rows: Vec<ColumnRow>,
}

/// The column of `key` with a version of `block` added, which is later than all others.
pub(super) fn append(
    view: &dyn NodeRead,
    key: &EncodedKey,
    block: u64,
    value: Option<&StateValue>,
) -> Result<ColumnUpdate, StateError> {
    let previous = view.get(HEADS, key)?;
    let head = previous.as_ref().map(|row| ColumnHead::decode(key, row)).transpose()?;
    let mut head = head.unwrap_or_default();
    let (mut rows, mut sealed) = (Vec::new(), None);
    if head.versions.len() as u64 == FANOUT {
        let leaf = head.leaf;
        let row = NodePlace { level: 0, number: head.full }.row(key);
        rows.push(ColumnRow { table: NODES, key: row, previous: None, next: leaf.clone() });
        sealed = Some(leaf);
        head = ColumnHead { full: head.full + 1, ..ColumnHead::default() };
    }
    head.push(block, value);
    let mut below = child(&head.leaf).ok_or_else(|| malformed(HEADS, key))?;
    let mut at = NodePlace { level: 0, number: head.full };
    let next = head.encode().into();
    rows.push(ColumnRow { table: HEADS, key: key.to_vec(), previous, next });
    // Up the right edge. The node with number 0 is alone in its level: the top.
    while at.number > 0 {
        let slot = (at.number % FANOUT) as usize;
        at = NodePlace { level: at.level + 1, number: at.number / FANOUT };
        let row = at.row(key);
        let wrong = || malformed(NODES, &row);
        let previous = view.get(NODES, &row)?;
        let mut node = match &previous {
            Some(node) => node.to_vec(),
            None if at.number == 0 && slot == 1 => {
                // A new level. Its first child was the top until now.
                let top = match sealed.take() {
                    Some(leaf) if at.level == 1 => Some(leaf),
                    _ => view.get(NODES, &NodePlace { level: at.level - 1, number: 0 }.row(key))?,
                };
                let top = top.and_then(|top| child(&top)).ok_or_else(wrong)?;
                [&[INNER][..], &top].concat()
            }
            None => vec![INNER],
        };
        // The last child may be replaced.
        let start = 1 + slot * CHILD;
        if node.len() < start {
            return Err(wrong());
        }
        node.truncate(start);
        node.extend_from_slice(&below);
        below = child(&node).ok_or_else(wrong)?;
        rows.push(ColumnRow { table: NODES, key: row, previous, next: node.into() });
    }
    Ok(ColumnUpdate { root: B256::from_slice(&below[8..]), rows })
}

/// The versions of `key` in `blocks`, newest first. Adds the nodes that show them to `proof`.
pub(super) fn versions(
    view: &dyn NodeRead,
    key: &EncodedKey,
    blocks: &RangeInclusive<u64>,
    proof: &mut Vec<Bytes>,
) -> Result<Vec<ValueVersion>, StateError> {
    let head = view.get(HEADS, key)?.ok_or_else(|| malformed(HEADS, key))?;
    let head = ColumnHead::decode(key, &head)?;
    let last = NodePlace { level: 0, number: head.full };
    let mut read = |place: NodePlace| {
        let node = match place == last {
            true => Some(head.leaf.clone()),
            false => view.get(NODES, &place.row(key))?,
        };
        let node = node.ok_or_else(|| malformed(NODES, &place.row(key)))?;
        proof.push(node.clone());
        Ok::<_, StateError>(node)
    };
    let mut top = last;
    while top.number > 0 {
        top = NodePlace { level: top.level + 1, number: top.number / FANOUT };
    }
    let mut versions = Vec::new();
    let wrong = || malformed(NODES, key);
    let mut waiting = vec![top];
    while let Some(place) = waiting.pop() {
        match MbNode::decode(&read(place)?).ok_or_else(wrong)? {
            MbNode::Leaf(all) => {
                let chosen = chosen(all.len(), |n| all[n].block, blocks);
                versions.extend_from_slice(&all[chosen]);
            }
            MbNode::Inner(children) => {
                let level = place.level.checked_sub(1).ok_or_else(wrong)?;
                let chosen = chosen(children.len(), |n| children[n].0, blocks);
                let number = |n: usize| place.number * FANOUT + n as u64;
                waiting.extend(chosen.rev().map(|n| NodePlace { level, number: number(n) }));
            }
        }
    }
    versions.reverse();
    Ok(versions)
}

/// The versions in `blocks` of the column with this digest, newest first, if `proof` has the nodes
/// that show them, and no others.
pub(super) fn verify(
    digest: &B256,
    blocks: &RangeInclusive<u64>,
    proof: &[Bytes],
) -> Result<Vec<ValueVersion>, ProofError> {
    let mut nodes = proof.iter();
    let mut versions = Vec::new();
    // Digest and, below the top, first block of nodes that must come, the next one last.
    let mut waiting = vec![(None, *digest)];
    while let Some((first, digest)) = waiting.pop() {
        let node = nodes.next().ok_or(ProofError::Missing { what: "a node of a column" })?;
        if keccak256(node) != digest {
            return Err(ProofError::RootMismatch);
        }
        let wrong = || ProofError::Malformed { what: "node of a column" };
        let decoded = MbNode::decode(node).ok_or_else(wrong)?;
        if first.is_some_and(|first| decoded.first() != Some(first)) {
            return Err(wrong());
        }
        match decoded {
            MbNode::Leaf(all) => {
                let chosen = chosen(all.len(), |n| all[n].block, blocks);
                versions.extend_from_slice(&all[chosen]);
            }
            MbNode::Inner(children) => {
                let chosen = chosen(children.len(), |n| children[n].0, blocks);
                waiting.extend(chosen.rev().map(|n| (Some(children[n].0), children[n].1)));
            }
        }
    }
    if nodes.next().is_some() {
        return Err(ProofError::Unused);
    }
    versions.reverse();
    Ok(versions)
}

/// Of `count` items that begin at rising blocks, those in force within `blocks`.
fn chosen(
    count: usize,
    block: impl Fn(usize) -> u64,
    blocks: &RangeInclusive<u64>,
) -> Range<usize> {
    let up_to = |last: u64| (0..count).take_while(|n| block(*n) <= last).count();
    up_to(*blocks.start()).saturating_sub(1)..up_to(*blocks.end())
}

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodePlace {
    /// 0: leaves.
    level: u8,
    number: u64,
}

impl NodePlace {
    fn row(self, key: &[u8]) -> Vec<u8> {
        [key, &[self.level], &self.number.to_be_bytes()].concat()
    }
}

/// How a node stands in the one above: its first block and its digest.
fn child(node: &[u8]) -> Option<[u8; CHILD]> {
    let mut child = [0; CHILD];
    // Both kinds of nodes begin with it.
    child[..8].copy_from_slice(node.get(1..9)?);
    child[8..].copy_from_slice(keccak256(node).as_slice());
    Some(child)
}

/// A node, decoded.
enum MbNode {
    Leaf(Vec<ValueVersion>),
    /// First blocks and digests.
    Inner(Vec<(u64, B256)>),
}

impl MbNode {
    /// Decodes a node with at least one child or version, in order of blocks.
    fn decode(node: &Bytes) -> Option<Self> {
        let mut bytes = WireReader::new(node);
        let is_leaf = match bytes.u8().ok()? {
            LEAF => true,
            INNER => false,
            _ => return None,
        };
        let (mut versions, mut children) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let block = bytes.u64().ok()?;
            if !is_leaf {
                children.push((block, bytes.hash().ok()?));
                continue;
            }
            let length = u32::from_be_bytes(*bytes.take(4).ok()?.first_chunk()?);
            let value = length.checked_sub(1).map(|length| bytes.take(length as usize));
            let value = value.transpose().ok()?.map(|value| node.slice_ref(value));
            versions.push(ValueVersion { block, value });
        }
        let node = if is_leaf { Self::Leaf(versions) } else { Self::Inner(children) };
        node.is_sound().then_some(node)
    }

    fn is_sound(&self) -> bool {
        let count = match self {
            Self::Leaf(versions) => versions.len(),
            Self::Inner(children) => children.len(),
        };
        let rises = match self {
            Self::Leaf(versions) => versions.is_sorted_by(|a, b| a.block < b.block),
            Self::Inner(children) => children.is_sorted_by(|a, b| a.0 < b.0),
        };
        (1..=FANOUT as usize).contains(&count) && rises
    }

    fn first(&self) -> Option<u64> {
        match self {
            Self::Leaf(versions) => versions.first().map(|version| version.block),
            Self::Inner(children) => children.first().map(|child| child.0),
        }
    }
}

fn malformed(table: RowTable, key: &[u8]) -> StateError {
    let key = alloy_primitives::hex::encode(key);
    StateError::corrupt(table.name, format!("the column of key {key} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;
    use retrie_state::{BackendKey, NodeWrite, StateKey};
    use retrie_state_testkit::MemoryView;

    /// Three levels: 32^2 versions and more.
    #[test]
    fn a_long_column_shows_every_range_of_its_versions_and_no_other() {
        const COUNT: u64 = 1_100;
        let key = BackendKey::from(StateKey::Account(Address::repeat_byte(7))).encode();
        let mut view = MemoryView::default();
        let mut root = B256::ZERO;
        let value = |n: u64| (n % 9 != 4).then(|| StateValue::from(n.to_be_bytes().to_vec()));
        for n in 0..COUNT {
            let update = append(&view, &key, 3 * n + 5, value(n).as_ref()).unwrap();
            root = update.root;
            for row in update.rows {
                view.replace(row.table, &row.key, row.previous, Some(row.next)).unwrap();
            }
        }
        for (from, to) in [(0, 4), (0, 5), (5, 5), (7, 7), (90, 110), (0, 5_000), (3_100, 3_400)] {
            let blocks = from..=to;
            let mut proof = Vec::new();
            let shown = versions(&view, &key, &blocks, &mut proof).unwrap();
            let all = (0..COUNT).map(|n| ValueVersion { block: 3 * n + 5, value: value(n) });
            let mut expected: Vec<_> = all.filter(|version| version.block <= to).collect();
            let before = expected.partition_point(|version| version.block <= from);
            expected.drain(..before.saturating_sub(1));
            expected.reverse();
            assert_eq!(shown, expected, "{blocks:?}");
            assert_eq!(verify(&root, &blocks, &proof), Ok(expected), "{blocks:?}");
            if to < 5_000 {
                // The top, and two nodes on either side of the range.
                assert!(proof.len() <= 1 + 4 + (to - from) as usize / 90, "{}", proof.len());
            }
            for n in 0..proof.len() {
                let mut lacking = proof.clone();
                lacking.remove(n);
                assert!(verify(&root, &blocks, &lacking).is_err(), "{blocks:?}, node {n}");
            }
            proof.push(proof[0].clone());
            assert_eq!(verify(&root, &blocks, &proof), Err(ProofError::Unused));
        }
    }
}
