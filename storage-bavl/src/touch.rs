//! The chunks that a delta falls into, and those that stay in their places: the groups that changed
//! are hashed anew, and the parts that they are in.

use crate::{
    ChunkEntries,
    chunk::{Chunk, Fence, Group, HASHES, MOST_IN_GROUP, PART, group_key, hash_all, read_group},
    hash::Batch,
    tree::{Node, Place, Tree},
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{
    Change, Direction, EncodedKey, KeyRange, NodeRead, NodeWrite, StateError, Table, flat,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A row that a block writes or, for `next` of `None`, removes.
#[derive(Debug)]
pub(crate) struct RowChange {
    pub(crate) table: Table,
    pub(crate) key: Vec<u8>,
    pub(crate) previous: Option<Bytes>,
    pub(crate) next: Option<Bytes>,
}

impl RowChange {
    pub(crate) fn write(self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        view.replace(self.table, &self.key, self.previous, self.next)
    }
}

/// A chunk with what a delta changes in its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) changes: &'a [Change],
}

impl Touched<'_> {
    /// Whether the chunk stays in its place: within its bounds, with its first key, and not in many
    /// more groups than it needs. Others are made anew of their entries.
    pub(crate) fn stays(&self, most: ChunkEntries) -> bool {
        let Place { node, chunk, .. } = &self.place;
        if !self.changes.iter().any(moves) {
            return true;
        }
        let keeps_first = self.changes.iter().all(|change| {
            change.key > node.first || (change.key == node.first && change.next.is_some())
        });
        let is_whole = chunk.group_count() <= 2 * chunk.count().div_ceil(PART) + 1;
        keeps_first && is_whole && self.count_after().is_some_and(|count| most.holds(count))
    }

    /// Entries after the delta; `None` if it removes more than there are.
    pub(crate) fn count_after(&self) -> Option<usize> {
        let set = |value: fn(&Change) -> bool| self.changes.iter().filter(|c| value(c)).count();
        let [before, after] = [set(|c| c.previous.is_some()), set(|c| c.next.is_some())];
        (self.place.chunk.count() + after).checked_sub(before)
    }
}

/// Whether a key comes or goes.
fn moves(change: &Change) -> bool {
    change.previous.is_some() != change.next.is_some()
}

/// The chunks in whose ranges `changes` lie, in key order.
pub(crate) fn touched<'a>(tree: &'a Tree, changes: &'a [Change]) -> Vec<Touched<'a>> {
    let mut all = Vec::new();
    tree.walk(changes, |change| &change.key, &mut |place, changes| {
        all.push(Touched { place, changes });
    });
    all
}

/// A chunk after a block that left it in its place, and rows of its groups.
#[derive(Debug)]
pub(crate) struct Updated {
    pub(crate) node: Arc<Node>,
    pub(crate) rows: Vec<RowChange>,
}

/// Updates chunks that stay in their places, together. None is without changes; the entries after the
/// block are in `view`.
pub(crate) fn update(
    view: &dyn NodeRead,
    touched: &[Touched<'_>],
) -> Result<Vec<Updated>, StateError> {
    let mut batch = Batch::default();
    for change in touched.iter().flat_map(|touched| touched.changes) {
        let key = change.key.encode();
        for value in [&change.previous, &change.next].into_iter().flatten() {
            batch.entry(&key, value);
        }
    }
    let mut hashes = batch.finish().into_iter();
    let mut work = Vec::with_capacity(touched.len());
    for touched in touched {
        let hashed: Vec<Hashed<'_>> = touched
            .changes
            .iter()
            .map(|change| {
                let before = change.previous.as_ref().and_then(|_| hashes.next());
                let after = change.next.as_ref().and_then(|_| hashes.next());
                Hashed { change, before, after }
            })
            .collect();
        work.push(Work::new(view, &touched.place, &hashed)?);
    }

    // The parts of all of them, then the chunks.
    let mut lists = Vec::with_capacity(work.len());
    for work in &mut work {
        let parts = work.dirty.iter().copied().collect::<Vec<_>>();
        for part in parts {
            lists.push(work.part(view, part)?);
        }
    }
    batch.fold(&mut lists);
    let mut tops = lists.iter().flatten().copied();
    let chunks: Vec<Chunk> = work.iter().map(|work| work.chunk(&mut tops)).collect();
    let hashes = hash_all(&chunks);
    let done = work.into_iter().zip(chunks).zip(hashes);
    let done = done.map(|((work, chunk), hash)| {
        let node = Node::chunk(work.place.node.first, chunk, hash);
        Updated { node, rows: work.rows }
    });
    Ok(done.collect())
}

/// A change with the hashes of its entry, before and after.
struct Hashed<'a> {
    change: &'a Change,
    before: Option<B256>,
    after: Option<B256>,
}

/// A chunk on its way.
struct Work<'a> {
    place: Place<'a>,
    first: EncodedKey,
    /// As they will be.
    groups: Vec<Group>,
    /// Hashes of entries, by names of groups, as far as they are known.
    known: BTreeMap<u16, Vec<B256>>,
    /// Parts that are to be hashed anew.
    dirty: BTreeSet<usize>,
    rows: Vec<RowChange>,
}

/// The groups that a group becomes: lengths, and fences of all but the first.
type Pieces = Vec<(usize, Fence)>;

/// A group that changes.
struct Changing<'a> {
    place: &'a Place<'a>,
    first: &'a EncodedKey,
    groups: &'a [Group],
    at: usize,
    changes: &'a [Hashed<'a>],
}

impl<'a> Work<'a> {
    fn new(
        view: &dyn NodeRead,
        place: &Place<'a>,
        changes: &[Hashed<'_>],
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
            let is_own = |hashed: &Hashed<'_>| {
                end.is_none_or(|end| hashed.change.key.encode()[..] < *end.bytes())
            };
            let (own, others) = rest.split_at(rest.partition_point(is_own));
            rest = others;
            let start = work.count();
            if own.is_empty() {
                work.groups.push(Group { start, ..*group });
                continue;
            }
            let changing = Changing { place, first: &first, groups: &old, at, changes: own };
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
        // What is behind a key that came or went has other positions.
        if let Some(from) = shift_from {
            work.dirty.extend(from / PART..work.count().div_ceil(PART));
        }
        Ok(work)
    }

    /// Entries so far.
    fn count(&self) -> usize {
        self.groups.last().map_or(0, |last| last.start + last.len)
    }

    /// Adds what a group has become: nothing, itself, or several.
    fn put(
        &mut self,
        group: &Group,
        row: Bytes,
        key: Vec<u8>,
        hashes: Vec<B256>,
        pieces: Pieces,
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
            self.groups.push(Group { name, len, start, fence });
            self.known.insert(name, own.to_vec());
            if row.as_ref() != Some(&next) {
                self.rows.push(RowChange { table: HASHES, key, previous: row, next: Some(next) });
            }
        }
        // It has no entries left.
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

    /// The chunk, with the hashes of its dirty parts.
    fn chunk(&self, tops: &mut impl Iterator<Item = B256>) -> Chunk {
        let old = self.place.chunk;
        let hashes = self.dirty.iter().copied().zip(tops);
        // In place, if nothing else has changed.
        if old.groups(&self.first) == self.groups {
            return old.with_parts(hashes);
        }
        let mut parts: Vec<B256> = old.parts().collect();
        parts.resize(self.count().div_ceil(PART), B256::ZERO);
        for (part, hash) in hashes {
            parts[part] = hash;
        }
        Chunk::new(&self.first, &parts, &self.groups)
    }
}

impl Changing<'_> {
    /// The hashes of the group's entries after the changes, and the groups that it becomes: lengths,
    /// and fences of all but the first.
    fn apply(
        &self,
        view: &dyn NodeRead,
        row: &[u8],
        before: &[B256],
    ) -> Result<(Vec<B256>, Pieces), StateError> {
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
                        place
                            .ok_or_else(|| corrupt(format!("no hash of the value before of {key}")))
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
                if hashes.is_empty() { Vec::new() } else { vec![(hashes.len(), Fence::NONE)] };
            return Ok((hashes, pieces));
        }
        // Where keys have come their order is that of the entries.
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

    /// Keys of the entries in its range after the block.
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
        // A fence that was damaged may lie beyond the chunk.
        if end.is_some_and(|end| end <= start) {
            return Ok(Vec::new());
        }
        let rows = view.scan(flat::TABLE, KeyRange { start, end }, Direction::Forward)?;
        rows.map(|row| row.map(|(key, _)| key)).collect()
    }
}

/// The groups of entries with these keys: one, or if they are too many for it, some of like size.
fn pieces(keys: &[Bytes]) -> Pieces {
    let count = if keys.len() > MOST_IN_GROUP { keys.len().div_ceil(PART) } else { 1 };
    let ends = (1..=count).map(|piece| keys.len() * piece / count);
    let mut start = 0usize;
    ends.map(|end| {
        let last = start.checked_sub(1).and_then(|last| keys.get(last));
        let fence = last.zip(keys.get(start)).map_or(Fence::NONE, |(l, f)| Fence::between(l, f));
        let len = end - start;
        start = end;
        (len, fence)
    })
    .collect()
}
