//! Makes proofs of keys and of whole chunks.

use crate::{
    ChunkEntries,
    chunk::{
        CHUNKS, ChunkBody, HashGroup, PART, PART_LEVEL, group_key, group_of, levels, read_group,
    },
    hash,
    proof::{CHUNK, HIDDEN, INNER},
    state::{ProofTree, rebuild_below},
    tree::{ChunkPlace, ChunkTree, NodeKind, TreeNode},
    upper::UpperNode,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{
    BackendKey, KeyRange, NodeRead, ScanDirection, StateError, StateValue, flat, wire::put_varint,
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Bound,
};

/// Keys that one thread takes at a time.
const AT_ONCE: usize = 16;

/// The proof of `keys` in the state of `view` and `top`.
pub(crate) fn prove(
    most: ChunkEntries,
    view: &dyn NodeRead,
    top: ProofTree<'_>,
    keys: &[BackendKey],
) -> Result<Vec<u8>, StateError> {
    let found = keys
        .par_iter()
        .with_min_len(AT_ONCE)
        .map(|key| around(view, key))
        .collect::<Result<Vec<_>, _>>()?;
    let shown: BTreeMap<BackendKey, StateValue> = found.into_iter().flatten().collect();
    let shown: Vec<(BackendKey, StateValue)> = shown.into_iter().collect();
    let mut proof = ProofWriter::new(most, view);
    match top {
        // The chunk of the empty state has no entries to prove.
        ProofTree::Tree(ChunkTree(None)) if !keys.is_empty() => proof.out.extend([CHUNK, 0, 0]),
        ProofTree::Tree(ChunkTree(None)) => proof.hidden(&hash::no_entries()),
        ProofTree::Tree(ChunkTree(Some(top))) => proof.node(top, &shown)?,
        ProofTree::Upper(upper) => proof.upper(upper, None, &shown)?,
    }
    Ok(proof.out)
}

/// The proof of the whole chunk in whose range `key` lies, and the first key of the next one.
pub(crate) fn prove_chunk(
    most: ChunkEntries,
    view: &dyn NodeRead,
    tree: &ChunkTree,
    key: &BackendKey,
) -> Result<(Vec<u8>, Option<BackendKey>), StateError> {
    let mut proof = ProofWriter::new(most, view);
    let (Some(top), Some(ChunkPlace { next, node, .. })) = (&tree.0, tree.find(key)) else {
        proof.out.extend([CHUNK, 0, 0]);
        return Ok((proof.out, None));
    };
    proof.node(top, &entries(view, &node.first, next.as_ref())?)?;
    Ok((proof.out, next))
}

/// The entries from `first` on, up to `next`.
pub(crate) fn entries(
    view: &dyn NodeRead,
    first: &BackendKey,
    next: Option<&BackendKey>,
) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
    let (start, end) = (first.encode(), next.map(BackendKey::encode));
    let range = KeyRange { start: &start, end: end.as_deref() };
    view.scan(flat::TABLE, range, ScanDirection::Forward)?.map(|row| entry(row?)).collect()
}

fn entry(
    (key, value): (alloy_primitives::Bytes, StateValue),
) -> Result<(BackendKey, StateValue), StateError> {
    let what = || StateError::corrupt(flat::TABLE.name, format!("row {key} is not a state key"));
    Ok((BackendKey::decode(&key).ok_or_else(what)?, value))
}

/// The entry of `key`; if it has none, the entries before and after it.
pub(crate) fn around(
    view: &dyn NodeRead,
    key: &BackendKey,
) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
    if let Some(value) = flat::get(view, key)? {
        return Ok(vec![(*key, value)]);
    }
    let encoded = key.encode();
    let one = |range, direction| {
        let row = view.scan(flat::TABLE, range, direction)?.next().transpose()?;
        row.map(entry).transpose()
    };
    let before = one(KeyRange::new(&[], &encoded), ScanDirection::Backward)?;
    let after = one(KeyRange::from(&encoded), ScanDirection::Forward)?;
    Ok(before.into_iter().chain(after).collect())
}

struct ProofWriter<'a> {
    most: ChunkEntries,
    view: &'a dyn NodeRead,
    out: Vec<u8>,
}

impl<'a> ProofWriter<'a> {
    fn new(most: ChunkEntries, view: &'a dyn NodeRead) -> Self {
        let mut out = Vec::new();
        put_varint(&mut out, most.get().into());
        Self { most, view, out }
    }

    fn hidden(&mut self, hash: &B256) {
        self.out.push(HIDDEN);
        self.out.extend_from_slice(&hash[..]);
    }

    /// Writes an upper node, whose range ends before `next`, with the entries `shown` below it.
    fn upper(
        &mut self,
        upper: &UpperNode,
        next: Option<&BackendKey>,
        shown: &[(BackendKey, StateValue)],
    ) -> Result<(), StateError> {
        match &upper.children {
            _ if shown.is_empty() => self.hidden(&upper.hash),
            None => {
                let top = rebuild_below(self.view, self.most, upper, next)?;
                self.node(&top, shown)?;
            }
            Some([left, right]) => {
                let at = shown.partition_point(|(key, _)| *key < right.first);
                self.out.push(INNER);
                self.upper(left, Some(&right.first), &shown[..at])?;
                self.upper(right, next, &shown[at..])?;
            }
        }
        Ok(())
    }

    /// Writes a node with the entries `shown` below it.
    fn node(
        &mut self,
        node: &TreeNode,
        shown: &[(BackendKey, StateValue)],
    ) -> Result<(), StateError> {
        match &node.kind {
            _ if shown.is_empty() => self.hidden(&node.hash()),
            NodeKind::Inner(_, left, right) => {
                let at = shown.partition_point(|(key, _)| *key < right.first);
                self.out.push(INNER);
                self.node(left, &shown[..at])?;
                self.node(right, &shown[at..])?;
            }
            NodeKind::Chunk(chunk) => {
                self.out.push(CHUNK);
                self.chunk(&node.first, chunk, shown)?;
            }
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        first: &BackendKey,
        chunk: &ChunkBody,
        shown: &[(BackendKey, StateValue)],
    ) -> Result<(), StateError> {
        let mut within = ChunkHashTree::new(self.view, first, chunk);
        put_varint(&mut self.out, chunk.count() as u64);
        put_varint(&mut self.out, shown.len() as u64);
        let mut positions = BTreeSet::new();
        let mut next = 0;
        for (key, value) in shown {
            let position = within.position(key, value)?;
            let gap = position.checked_sub(next).ok_or_else(|| {
                StateError::corrupt(CHUNKS.name, format!("{key} has a place before smaller keys"))
            })?;
            put_varint(&mut self.out, gap as u64);
            self.out.extend_from_slice(&key.encode());
            put_varint(&mut self.out, value.len() as u64);
            self.out.extend_from_slice(value);
            next = position + 1;
            positions.insert(position);
            within.read_part(position / PART)?;
        }
        let top = hash::levels(chunk.count());
        within.hashes(top, 0, &positions, &mut self.out);
        Ok(())
    }
}

/// The hash tree of a chunk. Groups are read when they are needed.
struct ChunkHashTree<'a> {
    view: &'a dyn NodeRead,
    first: &'a BackendKey,
    chunk: &'a ChunkBody,
    groups: Vec<HashGroup>,
    /// Hashes of entries, by index of their group.
    known: BTreeMap<usize, Vec<B256>>,
    /// The levels in each part, from entries up.
    parts: BTreeMap<usize, Vec<Vec<B256>>>,
    /// The levels above parts, from parts up.
    upper: Vec<Vec<B256>>,
}

impl<'a> ChunkHashTree<'a> {
    fn new(view: &'a dyn NodeRead, first: &'a BackendKey, chunk: &'a ChunkBody) -> Self {
        let (known, parts) = (BTreeMap::new(), BTreeMap::new());
        let groups = chunk.groups(&first.encode());
        let upper = levels(chunk.parts().collect());
        Self { view, first, chunk, groups, known, parts, upper }
    }

    /// The hashes of a group's entries.
    fn group(&mut self, at: usize) -> Result<&[B256], StateError> {
        Ok(match self.known.entry(at) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let HashGroup { name, len, .. } = self.groups[at];
                place.insert(read_group(self.view, &group_key(&self.first.encode(), name), len)?.1)
            }
        })
    }

    /// The position of an entry in the chunk.
    fn position(&mut self, key: &BackendKey, value: &StateValue) -> Result<usize, StateError> {
        let encoded = key.encode();
        let at = group_of(&self.groups, &encoded);
        let hash = hash::entry(&encoded, value);
        let place = self.group(at)?.iter().position(|own| *own == hash);
        let HashGroup { name, start, .. } = self.groups[at];
        place.map(|place| start + place).ok_or_else(|| {
            let what = format!("group {name} of the chunk from {} on lacks {key}", self.first);
            StateError::corrupt(crate::HASHES.name, what)
        })
    }

    /// Hashes a part that has shown and hidden entries.
    fn read_part(&mut self, part: usize) -> Result<(), StateError> {
        if self.parts.contains_key(&part) {
            return Ok(());
        }
        let (start, end) = (part * PART, (part + 1) * PART);
        let mut hashes = Vec::with_capacity(PART);
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            if group.start < end && start < group.start + group.len {
                let own = start.saturating_sub(group.start)..(end - group.start).min(group.len);
                hashes.extend_from_slice(&self.group(at)?[own]);
            }
        }
        self.parts.insert(part, levels(hashes));
        Ok(())
    }

    /// Appends the hashes of the topmost nodes, at or below node `index` of `level`, that have no
    /// shown entry below them.
    fn hashes(&self, level: u32, index: usize, shown: &BTreeSet<usize>, out: &mut Vec<u8>) {
        let range = (Bound::Included(index << level), Bound::Excluded((index + 1) << level));
        if shown.range(range).next().is_none() {
            out.extend(self.hash(level, index).unwrap_or_default());
        } else if let Some(below) = level.checked_sub(1) {
            self.hashes(below, 2 * index, shown, out);
            if 2 * index + 1 < hash::nodes_at(self.chunk.count(), below) {
                self.hashes(below, 2 * index + 1, shown, out);
            }
        }
    }

    fn hash(&self, level: u32, index: usize) -> Option<B256> {
        if let Some(above) = level.checked_sub(PART_LEVEL) {
            return self.upper.get(above as usize)?.get(index).copied();
        }
        // Nodes in a part are hashed only beside shown entries. A short last part has fewer levels.
        let (part, within) = (index >> (PART_LEVEL - level), index % (PART >> level));
        let levels = self.parts.get(&part)?;
        levels.get(level as usize).or_else(|| levels.last())?.get(within).copied()
    }
}
