//! A part of an authenticated tree: what a proof shows of a source.

use alloc::vec::Vec;
use alloy_primitives::{B256, Bytes};

/// A pair on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Encoded state key.
    pub(crate) key: Vec<u8>,
    /// The block that set it.
    pub(crate) block: u64,
    /// What it was set to; `None`: deleted.
    pub(crate) value: Option<Bytes>,
}

/// A node of a tree over pairs, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// Anything, by its digest: a pair or a node.
    Hidden(B256),
    /// A node by its children.
    Inner(Vec<Self>),
    /// A pair.
    Pair(Pair),
}
