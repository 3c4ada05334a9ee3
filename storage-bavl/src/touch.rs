//! The chunks that a delta falls into, and those whose keys stay the same: their groups that changed
//! are hashed anew, in their places.

use crate::{
    chunk::{Chunk, HASHES, group_key, hash_all, read_group},
    hash::Batch,
    tree::{Node, Place, Tree},
};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{Change, NodeRead, NodeWrite, StateError, Table};
use std::sync::Arc;

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
    /// Whether keys come or go.
    pub(crate) fn moves_keys(&self) -> bool {
        self.changes.iter().any(|change| change.previous.is_some() != change.next.is_some())
    }

    /// Entries after the delta; `None` if it removes more than there are.
    pub(crate) fn count_after(&self) -> Option<usize> {
        let set = |value: fn(&Change) -> bool| self.changes.iter().filter(|c| value(c)).count();
        let [before, after] = [set(|c| c.previous.is_some()), set(|c| c.next.is_some())];
        (self.place.chunk.count() + after).checked_sub(before)
    }
}

/// The chunks in whose ranges `changes` lie, in key order.
pub(crate) fn touched<'a>(tree: &'a Tree, changes: &'a [Change]) -> Vec<Touched<'a>> {
    let mut all = Vec::new();
    tree.walk(changes, |change| &change.key, &mut |place, changes| {
        all.push(Touched { place, changes });
    });
    all
}

/// A chunk after a block that kept its keys, and rows of its groups.
#[derive(Debug)]
pub(crate) struct Updated {
    pub(crate) node: Arc<Node>,
    pub(crate) rows: Vec<RowChange>,
}

/// A group on its way.
struct Group<'a> {
    /// Its chunk, among those that are worked on together.
    chunk: usize,
    number: usize,
    key: Vec<u8>,
    row: Bytes,
    hashes: Vec<B256>,
    changes: &'a [Change],
}

/// Updates chunks whose keys stay the same, together. None is without changes.
pub(crate) fn update(
    view: &dyn NodeRead,
    touched: &[Touched<'_>],
) -> Result<Vec<Updated>, StateError> {
    let mut groups = Vec::with_capacity(touched.len());
    for (at, Touched { place, changes }) in touched.iter().enumerate() {
        let first = place.node.first.encode();
        let group_of = |change: &Change| place.chunk.group_of(&first, &change.key.encode());
        let mut rest = *changes;
        while let Some(change) = rest.first() {
            let number = group_of(change);
            let len = rest.iter().take_while(|change| group_of(change) == number).count();
            let (changes, others) = rest.split_at(len);
            let key = group_key(&first, number);
            let (row, hashes) = read_group(view, &key, place.chunk.group_len(number))?;
            groups.push(Group { chunk: at, number, key, row, hashes, changes });
            rest = others;
        }
    }
    replace_entries(&mut groups)?;

    let mut batch = Batch::default();
    let mut tops: Vec<Vec<B256>> = groups.iter().map(|group| group.hashes.clone()).collect();
    batch.fold(&mut tops);
    let mut hashed =
        groups.iter().zip(tops.iter().flatten()).map(|(group, top)| (group, *top)).peekable();
    let chunks: Vec<Chunk> = (0..touched.len())
        .map(|at| {
            let own = std::iter::from_fn(|| hashed.next_if(|(group, _)| group.chunk == at));
            touched[at].place.chunk.with_groups(own.map(|(group, top)| (group.number, top)))
        })
        .collect();
    drop(hashed);
    let hashes = hash_all(&chunks);
    let mut groups = groups.into_iter().peekable();
    let updated = chunks.into_iter().zip(hashes).enumerate().map(|(at, (chunk, hash))| {
        let own = std::iter::from_fn(|| groups.next_if(|group| group.chunk == at));
        let rows = own.map(|group| RowChange {
            table: HASHES,
            key: group.key,
            previous: Some(group.row),
            next: Some(group.hashes.iter().flatten().copied().collect()),
        });
        let rows = rows.filter(|row| row.previous != row.next).collect();
        Updated { node: Node::chunk(touched[at].place.node.first, chunk, hash), rows }
    });
    Ok(updated.collect())
}

/// Puts the hashes of new values where those of the values before are.
fn replace_entries(groups: &mut [Group<'_>]) -> Result<(), StateError> {
    let mut batch = Batch::default();
    for change in groups.iter().flat_map(|group| group.changes) {
        let key = change.key.encode();
        for value in [&change.previous, &change.next].into_iter().flatten() {
            batch.entry(&key, value);
        }
    }
    let hashes = batch.finish();
    let mut hashes = hashes.as_chunks::<2>().0.iter();
    for group in groups {
        for (change, [before, after]) in group.changes.iter().zip(&mut hashes) {
            let place = group.hashes.iter_mut().find(|hash| *hash == before);
            *place.ok_or_else(|| {
                let row = hex::encode(&group.key);
                let what = format!("row {row} has no hash of the value before of {}", change.key);
                StateError::corrupt(HASHES.name, what)
            })? = *after;
        }
    }
    Ok(())
}
