//! The recorder of a trie's update: new rows, and the older rows that they supersede.

use super::{
    branch_row::{self, BranchPlace},
    layout::PrefixLayout,
    pack,
    record::{SupersededLists, SupersededRow, table},
};
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::{AccountKey, NodeWrite, StateError};
use retrie_storage_mpt::{
    Trie,
    trie::{Branch, NodeLink, UpdateRecorder},
};

/// A row for a pack.
#[derive(Clone, Debug)]
struct AddedRow {
    group: Nibbles,
    tag: u8,
    row: Bytes,
    /// Number of branches that it leads to.
    links: usize,
}

/// Records the rows that a block adds to a trie, and the rows that it supersedes.
#[derive(Clone, Debug)]
pub(super) struct VersionRecorder {
    trie: Option<AccountKey>,
    block: u64,
    max_deltas: usize,
    added: Vec<AddedRow>,
    superseded: Vec<(Nibbles, u64)>,
    /// The root's row: its version before the block, and its bytes after the block.
    root: (Option<u64>, Option<Bytes>),
}

impl VersionRecorder {
    /// An empty recorder for block `block` and the storage trie of `trie`, or the account trie. At
    /// most `max_deltas` build on a whole row.
    pub(super) const fn new(trie: Option<AccountKey>, block: u64, max_deltas: usize) -> Self {
        Self {
            trie,
            block,
            max_deltas,
            added: Vec::new(),
            superseded: Vec::new(),
            root: (None, None),
        }
    }

    /// Whether no branch has changed.
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.superseded.is_empty()
    }

    /// Records the root of a storage trie, whose row had version `before`; returns the version of
    /// its new row.
    pub(super) fn root(&mut self, before: Option<u64>, next: &Trie<u64>) -> u64 {
        let encode =
            |root: &NodeLink<u64>| branch_row::encode_root(root, self.block, self.trie.is_none());
        let row = next.root().map(encode);
        let version = if row.is_some() { self.block } else { 0 };
        self.root = (before, row);
        version
    }

    /// Moves the rows of the uppermost group, which a bulk load adds last, into another recorder.
    pub(super) fn split_off_top(&mut self) -> Self {
        let mut top = self.fork();
        top.added = self.added.extract_if(.., |row| row.group.is_empty()).collect();
        top
    }

    /// Keys and bytes of the added packs, in the order of their groups.
    pub(super) fn into_added(self, layout: PrefixLayout) -> impl Iterator<Item = (Vec<u8>, Bytes)> {
        let Self { trie, block, mut added, root, .. } = self;
        added.extend(root.1.map(|row| {
            // The root is a leaf, or leads to a branch.
            let links = usize::from(row.first() == Some(&1));
            AddedRow { group: Nibbles::new(), tag: pack::ROOT_TAG, row, links }
        }));
        added.sort_unstable_by_key(|row| (row.group, row.tag));
        let packs: Vec<_> = added
            .chunk_by(|a, b| a.group == b.group)
            .map(|rows| {
                let key = pack::key(block, trie, &rows[0].group);
                let pack = pack::encode(rows.iter().map(|row| (row.tag, &row.row[..])));
                let links = rows.iter().map(|row| row.links).sum();
                (layout.key(&key).into_owned(), layout.row(pack, links))
            })
            .collect();
        packs.into_iter()
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
        if let (Some(owner), Some(version)) = (self.trie, self.root.0) {
            lists.add(&SupersededRow::Root(owner, version));
        }
        let table = table(self.trie);
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
        Self::new(self.trie, self.block, self.max_deltas)
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
        if let Some(next) = next {
            let place = BranchPlace { path, version: self.block, has_stamps: self.trie.is_none() };
            let encoded = place.encode(previous, next, self.max_deltas);
            let (row, links) = (encoded.row.into(), encoded.links);
            self.added.push(AddedRow {
                group: pack::group(path),
                tag: pack::tag(path),
                row,
                links,
            });
            // A delta needs the rows of the version before.
            if encoded.is_delta {
                return;
            }
        }
        let of = previous
            .into_iter()
            .flat_map(|old| [old.stamp()].into_iter().chain(old.bases().iter().copied()));
        self.superseded.extend(of.map(|old| (*path, old)));
    }
}
