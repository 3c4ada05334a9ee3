//! The upper nodes of a tree, which are kept for older blocks. Most of a tree lies below them, a
//! few chunks under each lowest upper node. When a proof needs such a part, it is rebuilt from the
//! rows of its chunks.

use crate::tree::{NodeKind, TreeNode};
use alloy_primitives::B256;
use retrie_state::BackendKey;
use std::sync::Arc;

/// Height of the lowest nodes that keep their children. Each of these children has at most eight
/// chunks below it.
const LOWEST: u8 = 4;

/// A node in the upper part of a tree.
#[derive(Debug)]
pub(crate) struct UpperNode {
    /// The smallest key below.
    pub(crate) first: BackendKey,
    pub(crate) hash: B256,
    /// `None` for the lowest upper nodes.
    pub(crate) children: Option<[Arc<Self>; 2]>,
}

impl UpperNode {
    /// The upper nodes of the tree below `node`, which is hashed. Trees share upper nodes as they
    /// share nodes; the size of nodes that are made now is added to `bytes`.
    pub(crate) fn of(node: &TreeNode, bytes: &mut u64) -> Arc<Self> {
        let make = || {
            *bytes += size_of::<Self>() as u64;
            let children = match &node.kind {
                NodeKind::Inner(height, left, right) if *height >= LOWEST => {
                    Some([Self::of(left, bytes), Self::of(right, bytes)])
                }
                _ => None,
            };
            Arc::new(Self { first: node.first, hash: node.hash(), children })
        };
        node.upper.get_or_init(make).clone()
    }
}
