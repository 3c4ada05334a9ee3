//! The upper part of a tree, which is kept of older blocks: what lies below, a few chunks at each of its
//! ends, is most of the tree, and is made again from their rows when a proof shows something there.

use crate::tree::{Kind, Node};
use alloy_primitives::B256;
use retrie_state::StateKey;
use std::sync::Arc;

/// Height of the lowest nodes that are kept. Below each of their children are eight chunks at most.
const LOWEST: u8 = 4;

/// A node of the upper part.
#[derive(Debug)]
pub(crate) struct Upper {
    /// The smallest key below.
    pub(crate) first: StateKey,
    pub(crate) hash: B256,
    /// `None` of the lowest ones.
    pub(crate) children: Option<[Arc<Self>; 2]>,
}

impl Upper {
    /// That of the tree below `node`, which is hashed. Trees share it as they share their nodes: what has
    /// not been made before is added to `bytes`.
    pub(crate) fn of(node: &Node, bytes: &mut u64) -> Arc<Self> {
        let make = || {
            *bytes += size_of::<Self>() as u64;
            let children = match &node.kind {
                Kind::Inner(height, left, right) if *height >= LOWEST => {
                    Some([Self::of(left, bytes), Self::of(right, bytes)])
                }
                _ => None,
            };
            Arc::new(Self { first: node.first, hash: node.hash(), children })
        };
        node.upper.get_or_init(make).clone()
    }
}
