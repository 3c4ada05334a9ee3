//! The rows of subtrees, in three ways.
//!
//! | layout | a row | read for a path of height h | written for a leaf |
//! |---|---|---|---|
//! | `naive` | a node | h, level by level | h |
//! | `dup` | what a path through a subtree needs: five nodes | h / 5 | up to 32 a subtree |
//! | `blocked` | a subtree: its bottoms | h / 5 | h / 5 |
//!
//! Rows are keyed by layer (`naive`: level), one byte, and number, eight bytes, big-endian. Empty
//! nodes have no rows.

mod blocked;
mod dup;
mod naive;

use super::{
    shape::{Place, Shape},
    subtree::{NODES, Nodes, Subtree},
};
use alloy_primitives::{B256, Bytes, hex};
use core::{fmt, str::FromStr};
use retrie_state::{NodeRead, NodeWrite, StateError};

/// Which rows hold a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A row for each node: the textbook's tree, level by level, which the paper compares with.
    Naive,
    /// A row for each bottom, with the five nodes that a path from there needs (sections 4.1.2 and
    /// 5.1.1): the paper's own, with many copies of each node.
    Dup,
    /// A row for each subtree: its bottoms. As few reads as with copies, and no copies.
    #[default]
    Blocked,
}

/// There is no layout of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout '{0}': naive, dup and blocked are")]
pub struct UnknownLayout(pub String);

impl Layout {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Naive, Self::Dup, Self::Blocked];

    /// Its name, as in `--duptree.layout` and in datadirs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Dup => "dup",
            Self::Blocked => "blocked",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}

/// The key of a row.
pub(crate) type RowKey = [u8; 9];

/// The key of the row of this number in a layer, or a level.
pub(crate) fn row_key(layer: u8, number: u64) -> RowKey {
    let mut key = [layer; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// What a row was before a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Previous {
    /// Nobody has read it.
    Unread,
    /// This, or nothing.
    Row(Option<Bytes>),
}

/// A row that a block writes. None goes: trees only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) key: RowKey,
    pub(crate) previous: Previous,
    pub(crate) next: Bytes,
}

impl RowChange {
    /// Writes it.
    pub(crate) fn write(self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        match self.previous {
            Previous::Unread => view.put(NODES, &self.key, self.next),
            Previous::Row(previous) => view.replace(NODES, &self.key, previous, Some(self.next)),
        }
    }
}

/// A subtree before and after a block.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) place: Place,
    /// The tree before and after.
    pub(crate) shapes: [Shape; 2],
    pub(crate) before: &'a Subtree,
    pub(crate) after: &'a Subtree,
    /// Nodes that the block has changed.
    pub(crate) changed: Nodes,
}

impl Layout {
    /// Loads what proofs of `paths` need: the siblings, as far as `subtree` does not know them.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if a row is missing or malformed; so for all that loads.
    pub(crate) fn load_siblings(
        self,
        view: &dyn NodeRead,
        place: Place,
        paths: Nodes,
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

    /// Loads what a change along `paths` needs, to hash the subtree and to write its rows.
    pub(crate) fn load_for_change(
        self,
        view: &dyn NodeRead,
        place: Place,
        paths: Nodes,
        subtree: &mut Subtree,
    ) -> Result<(), StateError> {
        match self {
            Self::Naive => naive::load_siblings(view, place, paths, subtree),
            Self::Dup => dup::load(view, place, subtree),
            Self::Blocked => blocked::load(view, place, subtree),
        }
    }

    /// The rows that a block changes.
    pub(crate) fn rows(self, step: &Step<'_>, rows: &mut Vec<RowChange>) -> Result<(), StateError> {
        match self {
            Self::Naive => naive::rows(step, rows),
            Self::Dup => dup::rows(step, rows),
            Self::Blocked => blocked::rows(step, rows),
        }
    }

    /// Checks the rows of a subtree against each other; the subtree as its bottoms have it, or
    /// `None` if these cannot be read.
    pub(crate) fn check(
        self,
        view: &dyn NodeRead,
        shape: Shape,
        place: Place,
        report: &mut dyn FnMut(StateError),
    ) -> Result<Option<Subtree>, StateError> {
        let subtree = Subtree::new(place.level(), shape.filled(place));
        match self {
            Self::Naive => naive::check(view, shape, place, subtree, report),
            Self::Dup => dup::check(view, place, subtree, report),
            Self::Blocked => blocked::check(view, place, subtree, report),
        }
    }

    /// Number of rows that a tree has in a layer (`naive`: level).
    pub(crate) fn count(self, shape: Shape, layer: u8) -> u64 {
        match self {
            Self::Naive if layer < shape.height() => shape.nodes(layer),
            Self::Dup if layer < shape.layers() => {
                shape.nodes(Place { layer, index: 0 }.level()).next_multiple_of(2)
            }
            Self::Blocked => shape.subtrees(layer),
            Self::Naive | Self::Dup => 0,
        }
    }
}

/// The row of this key, which must be there.
fn row(view: &dyn NodeRead, key: RowKey) -> Result<Bytes, StateError> {
    view.get(NODES, &key)?.ok_or_else(|| corrupt(key, "is missing"))
}

/// The nodes in a row, which must be `count`.
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

/// Passes on an error that is about rows, so that a check goes on.
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
