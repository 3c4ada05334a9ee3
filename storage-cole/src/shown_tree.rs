//! The part of an authenticated tree that a proof shows of a source.

use alloc::{boxed::Box, vec::Vec};
use alloy_primitives::{B256, Bytes};

/// A pair: a compound key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompoundPair {
    /// Encoded state key.
    pub(crate) key: Vec<u8>,
    /// The block that set the key.
    pub(crate) block: u64,
    /// The new value; `None`: deleted.
    pub(crate) value: Option<Bytes>,
}

/// A node of a tree over pairs, as a proof shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShownNode {
    /// A pair or a node, by its digest alone.
    Hidden(B256),
    /// A node, by its children.
    Inner(Vec<Self>),
    /// A pair.
    Pair(CompoundPair),
    /// The leaf of a key with several versions, in a run with version trees: the encoded state key,
    /// and the tree over its versions. All pairs below have this key.
    Versions(Vec<u8>, Box<Self>),
}
