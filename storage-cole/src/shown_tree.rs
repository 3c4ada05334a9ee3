//! The part of an authenticated tree that a proof shows of a source.

use alloc::vec::Vec;
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
}
