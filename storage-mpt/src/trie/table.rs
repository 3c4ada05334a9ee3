//! A trie whose branches are rows of a table: reads them, and records which ones change.

use super::{
    Trie,
    node::{Branch, BranchLink, NodeLink},
    record,
    source::{NodeSource, UpdateRecorder},
    stamp::RowStamp,
};
use alloy_primitives::{Bytes, hex};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::{NodeRead, NodeWrite, RowTable, StateError};
use std::{fmt, marker::PhantomData, sync::Arc};

/// Where the rows of a trie are: a table and a prefix of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    table: RowTable,
    prefix: [u8; Self::MAX_PREFIX],
    len: u8,
}

impl RowPlace {
    /// Upper bound of a prefix's length in bytes.
    pub const MAX_PREFIX: usize = 32;

    /// Rows of `table` whose keys start with `prefix`. No other trie in this table may have a
    /// prefix that starts with it.
    ///
    /// # Panics
    /// If the prefix has more than [`MAX_PREFIX`](Self::MAX_PREFIX) bytes.
    pub fn new(table: RowTable, prefix: &[u8]) -> Self {
        assert!(prefix.len() <= Self::MAX_PREFIX, "the prefix of a trie's rows is too long");
        let mut bytes = [0; Self::MAX_PREFIX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        Self { table, prefix: bytes, len: prefix.len() as u8 }
    }

    /// The table.
    pub const fn table(&self) -> RowTable {
        self.table
    }

    /// The prefix of all keys.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[..usize::from(self.len)]
    }

    fn corrupt(&self, what: impl fmt::Display) -> StateError {
        let of = match self.prefix() {
            [] => String::new(),
            prefix => format!(" of the trie {}", hex::encode_prefixed(prefix)),
        };
        StateError::corrupt(self.table.name, format!("{what}{of}"))
    }
}

/// The rows of one trie as a source of branches.
#[derive(Clone, Copy)]
pub struct RowSource<'a, S = ()> {
    view: &'a dyn NodeRead,
    place: RowPlace,
    stamp: PhantomData<S>,
}

impl<S> fmt::Debug for RowSource<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowSource").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<'a, S: RowStamp> RowSource<'a, S> {
    /// The rows at `place` in `view`.
    pub const fn new(view: &'a dyn NodeRead, place: RowPlace) -> Self {
        Self { view, place, stamp: PhantomData }
    }

    /// The trie whose root's row has this stamp; `None` if there is no such row.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if the row is malformed.
    pub fn trie(&self, stamp: S) -> Result<Option<Trie<S>>, StateError> {
        let row = self.view.get(self.place.table, &record::root_key(self.place.prefix(), stamp))?;
        let Some(row) = row else { return Ok(None) };
        let root = record::decode_root(&row);
        let root = root.ok_or_else(|| self.place.corrupt("malformed row of the root"))?;
        Ok(Some(Trie::from_root(Some(root))))
    }

    fn row(&self, path: &Nibbles, stamp: S) -> Result<Bytes, StateError> {
        let key = record::branch_key(self.place.prefix(), path, stamp);
        self.view.get(self.place.table, &key)?.ok_or_else(|| match S::HAS_VERSIONS {
            true => self
                .place
                .corrupt(format_args!("no row for the branch at {path:?} in version {stamp:?}")),
            false => self.place.corrupt(format_args!("no row for the branch at {path:?}")),
        })
    }

    fn malformed(&self, path: &Nibbles) -> StateError {
        self.place.corrupt(format_args!("malformed row of the branch at {path:?}"))
    }
}

impl<S: RowStamp> NodeSource for RowSource<'_, S> {
    type Stamp = S;

    fn load(&self, path: &Nibbles, link: &BranchLink<S>) -> Result<Arc<Branch<S>>, StateError> {
        let head = |path: &Nibbles, stamp: S| {
            record::head(&self.row(path, stamp)?).ok_or_else(|| self.malformed(path))
        };
        let branch = record::decode(path, link.stamp(), &self.row(path, link.stamp())?, head)?;
        let branch = branch.ok_or_else(|| self.malformed(path))?;
        if branch.newest_child() > Some(branch.stamp()) {
            let what = format_args!("the branch at {path:?} leads to a row newer than itself");
            return Err(self.place.corrupt(what));
        }
        if branch.reference() != link.reference() {
            let what = format_args!("the branch at {path:?} is not the one its parent names");
            return Err(self.place.corrupt(what));
        }
        Ok(Arc::new(branch))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<NodeLink<S>, StateError> {
        Err(self.place.corrupt(format_args!("unresolved node at {path:?}")))
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<S>) -> bool {
        // Split branches are expensive to load: each reads the rows of all its children.
        record::is_split(path, branch)
    }
}

/// A changed row. If rows have versions, a changed branch gives two of these: one without `next`
/// for the superseded version, and one without `previous` for the new version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// Key of the row.
    pub key: Vec<u8>,
    /// The row before the update.
    pub previous: Option<Bytes>,
    /// The row after it.
    pub next: Option<Bytes>,
}

/// Records the rows that an update changes.
#[derive(Clone, Debug)]
pub struct RowRecorder<S = ()> {
    place: RowPlace,
    stamp: S,
    rows: Vec<RowChange>,
}

impl<S: RowStamp> RowRecorder<S> {
    /// An empty recorder for the trie at `place`, whose new rows have this stamp.
    pub const fn new(place: RowPlace, stamp: S) -> Self {
        Self { place, stamp, rows: Vec::new() }
    }

    /// Adds the row of the root, if it changes.
    pub fn root(&mut self, previous: &Trie<S>, next: &Trie<S>) {
        let (previous, next) =
            (record::encode_root(previous.root()), record::encode_root(next.root()));
        if previous != next {
            let key = record::root_key(self.place.prefix(), self.stamp);
            self.rows.push(RowChange { key, previous, next });
        }
    }

    /// The rows, in no particular order.
    pub fn into_rows(self) -> Vec<RowChange> {
        self.rows
    }

    /// Writes the rows; each replaces its previous value.
    ///
    /// # Errors
    /// Errors of the view.
    pub fn write(self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        write(view, self.place.table, self.rows)
    }

    fn push(&mut self, path: &Nibbles, previous: Option<&Branch<S>>, next: Option<&Branch<S>>) {
        let Some(stamp) = next.or(previous).map(Branch::stamp) else { return };
        let encode = |branch: &Branch<S>| record::encode(path, branch);
        let key = record::branch_key(self.place.prefix(), path, stamp);
        self.rows.push(RowChange { key, previous: previous.map(encode), next: next.map(encode) });
    }
}

/// Writes changed rows of a table.
pub(crate) fn write(
    view: &mut dyn NodeWrite,
    table: RowTable,
    rows: Vec<RowChange>,
) -> Result<(), StateError> {
    rows.into_iter().try_for_each(|row| view.replace(table, &row.key, row.previous, row.next))
}

impl<S: RowStamp> UpdateRecorder for RowRecorder<S> {
    type Stamp = S;

    fn stamp(&self) -> S {
        self.stamp
    }

    fn fork(&self) -> Self {
        Self::new(self.place, self.stamp)
    }

    fn absorb(&mut self, part: Self) {
        if self.rows.is_empty() {
            self.rows = part.rows;
        } else {
            self.rows.extend(part.rows);
        }
    }

    fn record(&mut self, path: &Nibbles, previous: Option<&Branch<S>>, next: Option<&Branch<S>>) {
        match (previous, next) {
            (Some(old), Some(new)) if old.stamp() != new.stamp() => {
                self.push(path, previous, None);
                self.push(path, None, next);
            }
            _ => self.push(path, previous, next),
        }
    }
}
