//! The rows of subtrees, in three layouts.
//!
//! | layout | a row | read for a path of height h | written for a leaf |
//! |---|---|---|---|
//! | `naive` | a node | h, level by level | h |
//! | `dup` | the siblings on a path through a subtree: five nodes | h / 5 | up to 32 a subtree |
//! | `blocked` | a subtree: its bottoms | h / 5 | h / 5 |
//!
//! Rows are keyed by layer (`naive`: level), one byte, and number, eight bytes, big-endian. Empty
//! nodes have no rows.

mod blocked;
mod dup;
mod naive;

use super::{
    shape::{SubtreePlace, TreeShape},
    subtree::{NODES, NodeSet, Subtree},
};
use alloy_primitives::{B256, Bytes, hex};
use core::{fmt, str::FromStr};
use retrie_state::{NodeRead, NodeWrite, StateError};

/// Which rows hold a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DupTreeLayout {
    /// A row for each node: the textbook tree, the baseline of the paper.
    Naive,
    /// A row for each bottom, with the five siblings on its path (sections 4.1.2 and 5.1.1): the
    /// paper's own layout, with many copies of each node.
    Dup,
    /// A row for each subtree, with its bottoms. As few reads as `Dup`, without copies.
    #[default]
    Blocked,
}

/// The error for an unknown layout name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout '{0}': naive, dup and blocked are")]
pub struct UnknownLayout(pub String);

impl DupTreeLayout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Naive, Self::Dup, Self::Blocked];

    /// The name, as in `--duptree.layout` and in datadirs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Dup => "dup",
            Self::Blocked => "blocked",
        }
    }
}

impl fmt::Display for DupTreeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DupTreeLayout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}

/// The key of a row.
pub(crate) type RowKey = [u8; 9];

/// The key of the row with this number in a layer (`naive`: level).
pub(crate) fn row_key(layer: u8, number: u64) -> RowKey {
    let mut key = [layer; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The row before a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreviousRow {
    /// The block did not read it.
    Unread,
    /// The bytes; `None` if there was no row.
    Row(Option<Bytes>),
}

/// A row that a block writes. Rows are never deleted, because trees only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) key: RowKey,
    pub(crate) previous: PreviousRow,
    pub(crate) next: Bytes,
}

impl RowChange {
    /// Writes the row.
    pub(crate) fn write(self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        match self.previous {
            PreviousRow::Unread => view.put(NODES, &self.key, self.next),
            PreviousRow::Row(previous) => view.replace(NODES, &self.key, previous, Some(self.next)),
        }
    }
}

/// A subtree before and after a block.
#[derive(Debug)]
pub(crate) struct SubtreeChange<'a> {
    pub(crate) place: SubtreePlace,
    /// The tree before and after.
    pub(crate) shapes: [TreeShape; 2],
    pub(crate) before: &'a Subtree,
    pub(crate) after: &'a Subtree,
    /// Nodes that the block changed.
    pub(crate) changed: NodeSet,
}

impl DupTreeLayout {
    /// Loads the siblings of `paths`, which proofs need, unless `subtree` has them.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if a row is missing or malformed, as in all functions that load.
    pub(crate) fn load_siblings(
        self,
        view: &dyn NodeRead,
        place: SubtreePlace,
        paths: NodeSet,
        subtree: &mut Subtree,
    ) -> Result<(), StateError> {
        if subtree.knows(paths.siblings()) {
            return Ok(());
        }
        match self {
            Self::Naive => naive::load_siblings(view, place, paths, subtree),
            Self::Dup => dup::load_siblings(view, place, paths, subtree),
            Self::Blocked => {
                blocked::load(view, place, subtree)?;
                subtree.complete()
            }
        }
    }

    /// Loads the nodes that a change along `paths` needs: to hash the subtree and to write its
    /// rows.
    pub(crate) fn load_for_change(
        self,
        view: &dyn NodeRead,
        place: SubtreePlace,
        paths: NodeSet,
        subtree: &mut Subtree,
    ) -> Result<(), StateError> {
        match self {
            Self::Naive => naive::load_siblings(view, place, paths, subtree),
            Self::Dup => dup::load(view, place, subtree),
            Self::Blocked => blocked::load(view, place, subtree),
        }
    }

    /// Appends the rows that a block changes.
    pub(crate) fn rows(
        self,
        step: &SubtreeChange<'_>,
        rows: &mut Vec<RowChange>,
    ) -> Result<(), StateError> {
        match self {
            Self::Naive => naive::rows(step, rows),
            Self::Dup => dup::rows(step, rows),
            Self::Blocked => blocked::rows(step, rows),
        }
    }

    /// Checks the rows of a subtree against each other; returns the subtree that follows from its
    /// bottoms, or `None` if these cannot be read.
    pub(crate) fn check(
        self,
        view: &dyn NodeRead,
        shape: TreeShape,
        place: SubtreePlace,
        report: &mut dyn FnMut(StateError),
    ) -> Result<Option<Subtree>, StateError> {
        let subtree = Subtree::new(place.level(), shape.filled(place));
        match self {
            Self::Naive => naive::check(view, shape, place, subtree, report),
            Self::Dup => dup::check(view, place, subtree, report),
            Self::Blocked => blocked::check(view, place, subtree, report),
        }
    }

    /// Number of rows of a tree in a layer (`naive`: level).
    pub(crate) fn count(self, shape: TreeShape, layer: u8) -> u64 {
        match self {
            Self::Naive if layer < shape.height() => shape.nodes(layer),
            Self::Dup if layer < shape.layers() => {
                shape.nodes(SubtreePlace { layer, index: 0 }.level()).next_multiple_of(2)
            }
            Self::Blocked => shape.subtrees(layer),
            Self::Naive | Self::Dup => 0,
        }
    }
}

/// Reads the row of this key, which must exist.
fn row(view: &dyn NodeRead, key: RowKey) -> Result<Bytes, StateError> {
    view.get(NODES, &key)?.ok_or_else(|| corrupt(key, "is missing"))
}

/// The hashes in a row, which must be `count`.
fn hashes(key: RowKey, row: &[u8], count: usize) -> Result<&[[u8; 32]], StateError> {
    match row.as_chunks::<32>() {
        (hashes, []) if hashes.len() == count => Ok(hashes),
        _ => {
            let len = row.len();
            Err(corrupt(key, &format!("has {len} bytes, not {count} hashes")))
        }
    }
}

/// The row of these nodes.
fn joined<'a>(hashes: impl ExactSizeIterator<Item = &'a B256>) -> Bytes {
    let mut row = Vec::with_capacity(32 * hashes.len());
    hashes.for_each(|hash| row.extend_from_slice(&hash[..]));
    row.into()
}

fn corrupt(key: RowKey, what: &str) -> StateError {
    StateError::corrupt(NODES.name, format!("row {} {what}", hex::encode(key)))
}

/// Reports a corrupt row and returns `None`, so that the check goes on; returns other errors.
fn reported<T>(
    read: Result<T, StateError>,
    report: &mut dyn FnMut(StateError),
) -> Result<Option<T>, StateError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error @ StateError::Corrupt { .. }) => {
            report(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
