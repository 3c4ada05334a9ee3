//! Finds the chunks that a delta touches, and updates the chunks that stay in place: changed groups
//! are written, and the parts with changed or shifted entries are hashed again.

use crate::{
    ChunkEntries,
    chunk::{
        ChunkBody, GroupFence, HASHES, HashGroup, MAX_GROUP, PART, group_key, hash_all, read_group,
    },
    hash::HashBatch,
    tree::{ChunkPlace, ChunkTree, TreeNode},
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{
    BackendChange, EncodedKey, KeyRange, NodeRead, NodeWrite, RowTable, ScanDirection, StateError,
    flat,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A row that a block writes or, for `next` of `None`, removes.
#[derive(Debug)]
pub(crate) struct RowChange {
    pub(crate) table: RowTable,
    pub(crate) key: Vec<u8>,
    pub(crate) previous: Option<Bytes>,
    pub(crate) next: Option<Bytes>,
}

impl RowChange {
    pub(crate) fn write(self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        view.replace(self.table, &self.key, self.previous, self.next)
    }
}

/// A chunk and the changes of a delta in its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TouchedChunk<'a> {
    pub(crate) place: ChunkPlace<'a>,
    pub(crate) changes: &'a [BackendChange],
}

impl TouchedChunk<'_> {
    /// Whether the chunk stays in place: it keeps a valid size and its first key, and has not many
    /// more groups than it needs. Other chunks are made again from their entries.
    pub(crate) fn stays(&self, most: ChunkEntries) -> bool {
        let ChunkPlace { node, chunk, .. } = &self.place;
        if !self.changes.iter().any(moves) {
            return true;
        }
        let keeps_first = self.changes.iter().all(|change| {
            change.key > node.first || (change.key == node.first && change.next.is_some())
        });
        let is_whole = chunk.group_count() <= 2 * chunk.count().div_ceil(PART) + 1;
        keeps_first && is_whole && self.count_after().is_some_and(|count| most.holds(count))
    }

    /// Number of entries after the delta; `None` if the delta removes more than there are.
    pub(crate) fn count_after(&self) -> Option<usize> {
        let set =
            |value: fn(&BackendChange) -> bool| self.changes.iter().filter(|c| value(c)).count();
        let [before, after] = [set(|c| c.previous.is_some()), set(|c| c.next.is_some())];
        (self.place.chunk.count() + after).checked_sub(before)
    }
}

/// Whether a key is added or removed, so that positions shift.
fn moves(change: &BackendChange) -> bool {
    change.previous.is_some() != change.next.is_some()
}

/// The chunks in whose ranges `changes` lie, in key order.
pub(crate) fn touched_chunks<'a>(
    tree: &'a ChunkTree,
    changes: &'a [BackendChange],
) -> Vec<TouchedChunk<'a>> {
    let mut all = Vec::new();
    tree.walk(changes, |change| &change.key, &mut |place, changes| {
        all.push(TouchedChunk { place, changes });
    });
    all
}

/// A chunk that stayed in place, after the block, with the changed rows of its groups.
#[derive(Debug)]
pub(crate) struct UpdatedChunk {
    pub(crate) node: Arc<TreeNode>,
    pub(crate) rows: Vec<RowChange>,
}

/// Updates chunks that stay in place, all together. Each has changes; `view` shows the entries
/// after the block.
pub(crate) fn update(
    view: &dyn NodeRead,
    touched: &[TouchedChunk<'_>],
) -> Result<Vec<UpdatedChunk>, StateError> {
    let mut batch = HashBatch::default();
    for change in touched.iter().flat_map(|touched| touched.changes) {
        let key = change.key.encode();
        for value in [&change.previous, &change.next].into_iter().flatten() {
            batch.entry(&key, value);
        }
    }
    let mut hashes = batch.finish().into_iter();
    let mut work = Vec::with_capacity(touched.len());
    for touched in touched {
        let hashed: Vec<HashedChange<'_>> = touched
            .changes
            .iter()
            .map(|change| {
                let before = change.previous.as_ref().and_then(|_| hashes.next());
                let after = change.next.as_ref().and_then(|_| hashes.next());
                HashedChange { change, before, after }
            })
            .collect();
        work.push(ChunkUpdate::new(view, &touched.place, &hashed)?);
    }

    // First the parts of all chunks, then the chunks.
    let mut lists = Vec::with_capacity(work.len());
    for work in &mut work {
        let parts = work.dirty.iter().copied().collect::<Vec<_>>();
        for part in parts {
            lists.push(work.part(view, part)?);
        }
    }
    batch.fold(&mut lists);
    let mut tops = lists.iter().flatten().copied();
    let chunks: Vec<ChunkBody> = work.iter().map(|work| work.chunk(&mut tops)).collect();
    let hashes = hash_all(&chunks);
    let done = work.into_iter().zip(chunks).zip(hashes);
    let done = done.map(|((work, chunk), hash)| {
        let node = TreeNode::chunk(work.place.node.first, chunk, hash);
        UpdatedChunk { node, rows: work.rows }
    });
    Ok(done.collect())
}

/// A change, with the hashes of its entry before and after.
struct HashedChange<'a> {
    change: &'a BackendChange,
    before: Option<B256>,
    after: Option<B256>,
}

/// The update of one chunk, in progress.
struct ChunkUpdate<'a> {
    place: ChunkPlace<'a>,
    first: EncodedKey,
    /// The groups after the block.
    groups: Vec<HashGroup>,
    /// Hashes of entries, by group name, as far as they were read.
    known: BTreeMap<u16, Vec<B256>>,
    /// Parts that have to be hashed again.
    dirty: BTreeSet<usize>,
    rows: Vec<RowChange>,
}

/// The groups that a group is cut into: their lengths, and the fences of all but the first.
type GroupPieces = Vec<(usize, GroupFence)>;

/// A group with the changes in its range.
struct GroupChange<'a> {
    place: &'a ChunkPlace<'a>,
    first: &'a EncodedKey,
    groups: &'a [HashGroup],
    at: usize,
    changes: &'a [HashedChange<'a>],
}

impl<'a> ChunkUpdate<'a> {
    fn new(
        view: &dyn NodeRead,
        place: &ChunkPlace<'a>,
        changes: &[HashedChange<'_>],
    ) -> Result<Self, StateError> {
        let first = place.node.first.encode();
        let old = place.chunk.groups(&first);
        let mut work = Self {
            place: *place,
            first,
            groups: Vec::with_capacity(old.len() + 1),
            known: BTreeMap::new(),
            dirty: BTreeSet::new(),
            rows: Vec::new(),
        };
        let mut names: BTreeSet<u16> = old.iter().map(|group| group.name).collect();
        let mut rest = changes;
        let mut shift_from = None;
        for (at, group) in old.iter().enumerate() {
            let end = old.get(at + 1).map(|next| next.fence);
            let is_own = |hashed: &HashedChange<'_>| {
                end.is_none_or(|end| hashed.change.key.encode()[..] < *end.bytes())
            };
            let (own, others) = rest.split_at(rest.partition_point(is_own));
            rest = others;
            let start = work.count();
            if own.is_empty() {
                work.groups.push(HashGroup { start, ..*group });
                continue;
            }
            let changing = GroupChange { place, first: &first, groups: &old, at, changes: own };
            let key = group_key(&first, group.name);
            let (row, before) = read_group(view, &key, group.len)?;
            let (after, pieces) = changing.apply(view, &key, &before)?;
            let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
            if after.len() == before.len() {
                let differs = before.iter().zip(&after).enumerate().filter(|(_, (a, b))| a != b);
                work.dirty.extend(differs.map(|(at, _)| (start + at) / PART));
            } else if shift_from.is_none() {
                shift_from = Some(start + same);
            }
            work.put(group, row, key, after, pieces, &mut names);
        }
        // All positions behind an added or removed key have shifted.
        if let Some(from) = shift_from {
            work.dirty.extend(from / PART..work.count().div_ceil(PART));
        }
        Ok(work)
    }

    /// Number of entries so far.
    fn count(&self) -> usize {
        self.groups.last().map_or(0, |last| last.start + last.len)
    }

    /// Adds the new groups of a group: none, one, or several.
    fn put(
        &mut self,
        group: &HashGroup,
        row: Bytes,
        key: Vec<u8>,
        hashes: Vec<B256>,
        pieces: GroupPieces,
        names: &mut BTreeSet<u16>,
    ) {
        let mut previous = Some((key, row));
        let mut hashes = &hashes[..];
        for (len, fence) in pieces {
            let (own, rest) = hashes.split_at(len);
            hashes = rest;
            let next: Bytes = own.iter().flatten().copied().collect();
            let start = self.count();
            let (name, fence, key, row) = match previous.take() {
                Some((key, row)) => (group.name, group.fence, key, Some(row)),
                None => {
                    let name = (0..=u16::MAX).find(|name| names.insert(*name)).unwrap_or_default();
                    (name, fence, group_key(&self.first, name), None)
                }
            };
            self.groups.push(HashGroup { name, len, start, fence });
            self.known.insert(name, own.to_vec());
            if row.as_ref() != Some(&next) {
                self.rows.push(RowChange { table: HASHES, key, previous: row, next: Some(next) });
            }
        }
        // The group has no entries left.
        if let Some((key, row)) = previous {
            self.rows.push(RowChange { table: HASHES, key, previous: Some(row), next: None });
        }
    }

    /// The hashes of a part's entries.
    fn part(&mut self, view: &dyn NodeRead, part: usize) -> Result<Vec<B256>, StateError> {
        let (start, end) = (part * PART, (part + 1) * PART);
        let mut hashes = Vec::with_capacity(PART);
        let from = self.groups.partition_point(|group| group.start + group.len <= start);
        for group in self.groups[from..].iter().take_while(|group| group.start < end) {
            let own = match self.known.entry(group.name) {
                std::collections::btree_map::Entry::Occupied(own) => own.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => {
                    let key = group_key(&self.first, group.name);
                    place.insert(read_group(view, &key, group.len)?.1)
                }
            };
            let positions = start.saturating_sub(group.start)..(end - group.start).min(group.len);
            hashes.extend_from_slice(&own[positions]);
        }
        Ok(hashes)
    }

    /// The new chunk; `tops` are the hashes of its dirty parts.
    fn chunk(&self, tops: &mut impl Iterator<Item = B256>) -> ChunkBody {
        let old = self.place.chunk;
        let hashes = self.dirty.iter().copied().zip(tops);
        // If the groups are unchanged, only hashes of parts are replaced.
        if old.groups(&self.first) == self.groups {
            return old.with_parts(hashes);
        }
        let mut parts: Vec<B256> = old.parts().collect();
        parts.resize(self.count().div_ceil(PART), B256::ZERO);
        for (part, hash) in hashes {
            parts[part] = hash;
        }
        ChunkBody::new(&self.first, &parts, &self.groups)
    }
}

impl GroupChange<'_> {
    /// Applies the changes: the hashes of the group's entries, and the groups that it is cut into.
    fn apply(
        &self,
        view: &dyn NodeRead,
        row: &[u8],
        before: &[B256],
    ) -> Result<(Vec<B256>, GroupPieces), StateError> {
        let corrupt = |what: String| {
            let what = format!("row {}: {what}", hex::encode(row));
            StateError::corrupt(HASHES.name, what)
        };
        let mut places = Vec::with_capacity(self.changes.len());
        for hashed in self.changes {
            let place = hashed.before.map(|hash| before.iter().position(|own| *own == hash));
            places.push(
                place
                    .map(|place| {
                        let key = &hashed.change.key;
                        place.ok_or_else(|| corrupt(format!("no hash of the old value of {key}")))
                    })
                    .transpose()?,
            );
        }
        let mut hashes: Vec<Option<B256>> = before.iter().copied().map(Some).collect();
        if self.changes.iter().all(|hashed| hashed.before.is_some()) {
            for (hashed, place) in self.changes.iter().zip(places) {
                if let Some(place) = place {
                    hashes[place] = hashed.after;
                }
            }
            let hashes: Vec<B256> = hashes.into_iter().flatten().collect();
            let pieces =
                if hashes.is_empty() { Vec::new() } else { vec![(hashes.len(), GroupFence::NONE)] };
            return Ok((hashes, pieces));
        }
        // Keys were added: the order of the hashes follows from the keys in the flat state.
        places.into_iter().flatten().for_each(|place| hashes[place] = None);
        let mut kept = hashes.into_iter().flatten();
        let mut changed = self.changes.iter().filter(|hashed| hashed.after.is_some()).peekable();
        let keys = self.keys(view)?;
        let mut after = Vec::with_capacity(keys.len());
        for key in &keys {
            let own = changed.next_if(|hashed| hashed.change.key.encode()[..] == key[..]);
            let hash = own.map_or_else(|| kept.next(), |hashed| hashed.after);
            after.push(hash.ok_or_else(|| corrupt(format!("no hash of the entry {key}")))?);
        }
        if kept.next().is_some() || changed.next().is_some() {
            return Err(corrupt(format!("{} hashes, {} entries", before.len(), keys.len())));
        }
        Ok((after, pieces(&keys)))
    }

    /// Keys of the entries in the group's range after the block.
    fn keys(&self, view: &dyn NodeRead) -> Result<Vec<Bytes>, StateError> {
        let group = &self.groups[self.at];
        let start = match (self.at, self.place.is_first) {
            (0, true) => &[],
            (0, false) => &self.first[..],
            _ => group.fence.bytes(),
        };
        let next = self.place.next.map(|next| next.encode());
        let end = match self.groups.get(self.at + 1) {
            Some(next) => Some(next.fence.bytes()),
            None => next.as_deref(),
        };
        // A damaged fence may lie outside of the chunk.
        if end.is_some_and(|end| end <= start) {
            return Ok(Vec::new());
        }
        let rows = view.scan(flat::TABLE, KeyRange { start, end }, ScanDirection::Forward)?;
        rows.map(|row| row.map(|(key, _)| key)).collect()
    }
}

/// Cuts entries with these keys into groups: one, or several of about the same size.
fn pieces(keys: &[Bytes]) -> GroupPieces {
    let count = if keys.len() > MAX_GROUP { keys.len().div_ceil(PART) } else { 1 };
    let ends = (1..=count).map(|piece| keys.len() * piece / count);
    let mut start = 0usize;
    ends.map(|end| {
        let last = start.checked_sub(1).and_then(|last| keys.get(last));
        let fence =
            last.zip(keys.get(start)).map_or(GroupFence::NONE, |(l, f)| GroupFence::between(l, f));
        let len = end - start;
        start = end;
        (len, fence)
    })
    .collect()
}
