//! What an update of a trie leaves: new rows, and which older ones it superseded.

use super::{
    layout::Layout,
    row::{Lists, Superseded, place},
};
use alloy_primitives::{Address, Bytes};
use alloy_trie::Nibbles;
use retrie_state::{NodeWrite, StateError};
use retrie_storage_mpt::{
    Trie,
    trie::{Branch, Link, Recorder, row},
};

/// Takes down the rows that a block adds to a trie, and those that it supersedes.
#[derive(Clone, Debug)]
pub(super) struct Versions {
    trie: Option<Address>,
    block: u64,
    added: Vec<(Nibbles, Bytes, usize)>,
    superseded: Vec<(Nibbles, u64)>,
    /// The row of the root: before the block, if there was one, and after it.
    root: (Option<u64>, Option<Bytes>),
}

impl Versions {
    /// Nothing yet of block `block` and this trie: that of the storage of `trie`, or the account trie.
    pub(super) const fn new(trie: Option<Address>, block: u64) -> Self {
        Self { trie, block, added: Vec::new(), superseded: Vec::new(), root: (None, None) }
    }

    /// Whether no branch has changed.
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.superseded.is_empty()
    }

    /// The root of a storage trie, whose row was of version `before`, if there was one; gives the
    /// version of its row now.
    pub(super) fn root(&mut self, before: Option<u64>, next: &Trie<u64>) -> u64 {
        let row = row::encode_root(next.root());
        let version = if row.is_some() { self.block } else { 0 };
        self.root = (before, row);
        version
    }

    /// Keys and rows that were added, in no order.
    pub(super) fn into_added(self, layout: Layout) -> impl Iterator<Item = (Vec<u8>, Bytes)> {
        let (place, block) = (place(self.trie), self.block);
        // The one that a branch as root is, and none for a leaf.
        let links = |row: &Bytes| usize::from(row.first() == Some(&1));
        let root = self.root.1.map(|row| {
            let links = links(&row);
            (row::root_key(place.prefix(), block), row, links)
        });
        let branches = self.added.into_iter().map(move |(path, row, links)| {
            (row::branch_key(place.prefix(), &path, block), row, links)
        });
        branches
            .chain(root)
            .map(move |(key, row, links)| (layout.key(&key).into_owned(), layout.row(row, links)))
    }

    /// Writes what was added, and lists what was superseded.
    pub(super) fn write(
        self,
        view: &mut dyn NodeWrite,
        layout: Layout,
        lists: &mut Lists,
    ) -> Result<(), StateError> {
        for (path, version) in &self.superseded {
            lists.add(&Superseded::Branch(self.trie, *path, *version));
        }
        if let (Some(address), Some(version)) = (self.trie, self.root.0) {
            lists.add(&Superseded::Root(address, version));
        }
        let table = place(self.trie).table();
        // No row has been under these keys: they bear this block's number.
        self.into_added(layout)
            .try_for_each(|(key, row)| view.replace(table, &key, None, Some(row)))
    }
}

impl Recorder for Versions {
    type Stamp = u64;

    fn stamp(&self) -> u64 {
        self.block
    }

    fn fork(&self) -> Self {
        Self::new(self.trie, self.block)
    }

    fn absorb(&mut self, part: Self) {
        self.added.extend(part.added);
        self.superseded.extend(part.superseded);
    }

    fn record(
        &mut self,
        path: &Nibbles,
        previous: Option<&Branch<u64>>,
        next: Option<&Branch<u64>>,
    ) {
        let mut base = None;
        if let Some(next) = next {
            let (row, change) = row::encode_next(path, previous, next);
            let shown = change.map_or(u16::MAX, |change| change.children);
            let is_shown = |(n, child): &(usize, &Option<Link<u64>>)| {
                shown >> n & 1 == 1 && matches!(child, Some(Link::Branch(_)))
            };
            let links = next.children().iter().enumerate().filter(is_shown).count();
            self.added.push((*path, row, links));
            base = change.map(|change| change.base);
        }
        // What the new row is a change of stays.
        let of = previous.and_then(Branch::change).map(|change| change.base);
        let older = previous.map(Branch::stamp).into_iter().chain(of);
        self.superseded.extend(older.filter(|old| base != Some(*old)).map(|old| (*path, old)));
    }
}
