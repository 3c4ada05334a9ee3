//! The recorder of a trie's update: new rows, and the older rows that they supersede.

use super::{
    layout::PrefixLayout,
    record::{SupersededLists, SupersededRow, place},
};
use alloy_primitives::{Address, Bytes};
use alloy_trie::Nibbles;
use retrie_state::{NodeWrite, StateError};
use retrie_storage_mpt::{
    Trie,
    trie::{Branch, NodeLink, UpdateRecorder, record},
};

/// Records the rows that a block adds to a trie, and the rows that it supersedes.
#[derive(Clone, Debug)]
pub(super) struct VersionRecorder {
    trie: Option<Address>,
    block: u64,
    added: Vec<(Nibbles, Bytes, usize)>,
    superseded: Vec<(Nibbles, u64)>,
    /// The root's row: its version before the block, and its bytes after the block.
    root: (Option<u64>, Option<Bytes>),
}

impl VersionRecorder {
    /// An empty recorder for block `block` and the storage trie of `trie`, or the account trie.
    pub(super) const fn new(trie: Option<Address>, block: u64) -> Self {
        Self { trie, block, added: Vec::new(), superseded: Vec::new(), root: (None, None) }
    }

    /// Whether no branch has changed.
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.superseded.is_empty()
    }

    /// Records the root of a storage trie, whose row had version `before`; returns the version of
    /// its new row.
    pub(super) fn root(&mut self, before: Option<u64>, next: &Trie<u64>) -> u64 {
        let row = record::encode_root(next.root());
        let version = if row.is_some() { self.block } else { 0 };
        self.root = (before, row);
        version
    }

    /// Keys and bytes of the added rows, unordered.
    pub(super) fn into_added(self, layout: PrefixLayout) -> impl Iterator<Item = (Vec<u8>, Bytes)> {
        let (place, block) = (place(self.trie), self.block);
        // One link if the root is a branch, none if it is a leaf.
        let links = |row: &Bytes| usize::from(row.first() == Some(&1));
        let root = self.root.1.map(|row| {
            let links = links(&row);
            (record::root_key(place.prefix(), block), row, links)
        });
        let branches = self.added.into_iter().map(move |(path, row, links)| {
            (record::branch_key(place.prefix(), &path, block), row, links)
        });
        branches
            .chain(root)
            .map(move |(key, row, links)| (layout.key(&key).into_owned(), layout.row(row, links)))
    }

    /// Writes the added rows, and lists the superseded ones.
    pub(super) fn write(
        self,
        view: &mut dyn NodeWrite,
        layout: PrefixLayout,
        lists: &mut SupersededLists,
    ) -> Result<(), StateError> {
        for (path, version) in &self.superseded {
            lists.add(&SupersededRow::Branch(self.trie, *path, *version));
        }
        if let (Some(address), Some(version)) = (self.trie, self.root.0) {
            lists.add(&SupersededRow::Root(address, version));
        }
        let table = place(self.trie).table();
        // These keys are new, because they contain this block's number.
        self.into_added(layout)
            .try_for_each(|(key, row)| view.replace(table, &key, None, Some(row)))
    }
}

impl UpdateRecorder for VersionRecorder {
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
            let (row, change) = record::encode_next(path, previous, next);
            let shown = change.map_or(u16::MAX, |change| change.children);
            let is_shown = |(n, child): &(usize, &Option<NodeLink<u64>>)| {
                shown >> n & 1 == 1 && matches!(child, Some(NodeLink::Branch(_)))
            };
            let links = next.children().iter().enumerate().filter(is_shown).count();
            self.added.push((*path, row, links));
            base = change.map(|change| change.base);
        }
        // The base of the new row, if that is a delta, is not superseded.
        let of = previous.and_then(Branch::delta).map(|change| change.base);
        let older = previous.map(Branch::stamp).into_iter().chain(of);
        self.superseded.extend(older.filter(|old| base != Some(*old)).map(|old| (*path, old)));
    }
}
