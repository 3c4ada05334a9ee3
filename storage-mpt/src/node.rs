//! Nodes in memory. They are immutable and shared: an update makes new branches along the touched
//! paths and keeps the rest.

use alloy_primitives::{B256, Bytes};
use alloy_trie::{
    Nibbles, TrieMask,
    nodes::{BranchNodeRef, ExtensionNodeRef, LeafNodeRef, RlpNode},
};
use std::sync::{Arc, OnceLock};

/// What hangs at a slot of the trie.
#[derive(Clone, Debug)]
pub enum Link {
    /// A node of unknown kind, of which only the reference is known: occurs in partial tries alone.
    Unresolved(RlpNode),
    /// A leaf. It knows its whole key, so it stays the same wherever it hangs.
    Leaf(Arc<Leaf>),
    /// A branch, possibly below an extension.
    Branch(BranchLink),
}

/// A key with its value.
#[derive(Debug)]
pub struct Leaf {
    key: B256,
    value: Bytes,
    /// Reference at the depth (in nibbles) where it was last needed.
    reference: OnceLock<(usize, RlpNode)>,
}

impl Leaf {
    /// A leaf; `value` is what the leaf node holds as a string (RLP of an account, for one).
    pub const fn new(key: B256, value: Bytes) -> Self {
        Self { key, value, reference: OnceLock::new() }
    }

    /// The whole key.
    pub const fn key(&self) -> &B256 {
        &self.key
    }

    /// The value.
    pub const fn value(&self) -> &Bytes {
        &self.value
    }

    pub(crate) fn path(&self) -> Nibbles {
        Nibbles::unpack_array(&self.key.0)
    }

    fn rlp(&self, depth: usize, buf: &mut Vec<u8>) {
        buf.clear();
        let suffix = self.path().slice(depth..);
        alloy_rlp::Encodable::encode(&LeafNodeRef::new(&suffix, &self.value), buf);
    }

    fn reference(&self, depth: usize, buf: &mut Vec<u8>) -> RlpNode {
        if let Some((at, reference)) = self.reference.get()
            && *at == depth
        {
            return reference.clone();
        }
        self.rlp(depth, buf);
        let reference = RlpNode::from_rlp(buf);
        // A leaf that has moved keeps its first reference; it is computed anew at the new depth.
        let _ = self.reference.set((depth, reference.clone()));
        reference
    }
}

/// How a slot knows the branch below it.
#[derive(Clone, Debug)]
pub struct BranchLink {
    /// The branch's path if there is an extension, that is if it differs from the slot's path.
    path: Option<Box<Nibbles>>,
    /// Reference of the branch itself, without the extension.
    pub(crate) reference: RlpNode,
    pub(crate) node: Option<Arc<Branch>>,
}

impl BranchLink {
    /// Link from the slot at `slot` to the branch at `path`, which starts with `slot`.
    pub(crate) fn new(
        slot: &Nibbles,
        path: &Nibbles,
        reference: RlpNode,
        node: Option<Arc<Branch>>,
    ) -> Self {
        let path = (path.len() != slot.len()).then(|| Box::new(*path));
        Self { path, reference, node }
    }

    /// Path of the branch, which hangs at `slot`.
    pub(crate) fn path(&self, slot: &Nibbles) -> Nibbles {
        self.path.as_deref().copied().unwrap_or(*slot)
    }

    /// Whether there is an extension above the branch.
    pub(crate) const fn has_extension(&self) -> bool {
        self.path.is_some()
    }

    /// RLP of the extension that hangs at `depth`, if there is one.
    pub(crate) fn extension_rlp(&self, depth: usize, buf: &mut Vec<u8>) -> bool {
        let Some(path) = &self.path else { return false };
        buf.clear();
        let extension = path.slice(depth..);
        alloy_rlp::Encodable::encode(&ExtensionNodeRef::new(&extension, &self.reference), buf);
        true
    }
}

impl Link {
    /// Reference of the topmost node at a slot of depth `depth` (in nibbles).
    pub(crate) fn reference(&self, depth: usize, buf: &mut Vec<u8>) -> RlpNode {
        match self {
            Self::Unresolved(reference) => reference.clone(),
            Self::Leaf(leaf) => leaf.reference(depth, buf),
            Self::Branch(link) => {
                if link.extension_rlp(depth, buf) {
                    RlpNode::from_rlp(buf)
                } else {
                    link.reference.clone()
                }
            }
        }
    }

    /// RLP of the topmost node at a slot of depth `depth`, if it is a leaf or an extension.
    pub(crate) fn short_rlp(&self, depth: usize, buf: &mut Vec<u8>) -> bool {
        match self {
            Self::Unresolved(_) => false,
            Self::Leaf(leaf) => {
                leaf.rlp(depth, buf);
                true
            }
            Self::Branch(link) => link.extension_rlp(depth, buf),
        }
    }

    fn cached(&self) -> usize {
        match self {
            Self::Branch(BranchLink { node: Some(node), .. }) => node.cached,
            _ => 0,
        }
    }
}

/// The children of a branch, by nibble.
pub(crate) type Children = [Option<Link>; 16];

/// A branch node. Its own path is known from where it hangs.
#[derive(Debug)]
pub struct Branch {
    pub(crate) children: Children,
    pub(crate) reference: RlpNode,
    /// Branches in memory from this one down, this one included.
    pub(crate) cached: usize,
    /// The row it was read from, if it was.
    pub(crate) row: Option<Bytes>,
}

impl Branch {
    /// A branch at `path`, hashed.
    pub(crate) fn hash(path: &Nibbles, children: Children, buf: &mut Vec<u8>) -> Self {
        branch_rlp(&children, path.len(), buf);
        Self::with_reference(children, RlpNode::from_rlp(buf), None)
    }

    /// A branch whose reference is known.
    pub(crate) fn with_reference(
        children: Children,
        reference: RlpNode,
        row: Option<Bytes>,
    ) -> Self {
        let cached = 1 + children.iter().flatten().map(Link::cached).sum::<usize>();
        Self { children, reference, cached, row }
    }

    /// RLP of the node at a branch path of length `depth`.
    pub(crate) fn rlp(&self, depth: usize, buf: &mut Vec<u8>) {
        branch_rlp(&self.children, depth, buf);
    }

    /// Number of children that are branches.
    pub(crate) fn branch_children(&self) -> usize {
        self.children.iter().filter(|child| matches!(child, Some(Link::Branch(_)))).count()
    }
}

fn branch_rlp(children: &Children, depth: usize, buf: &mut Vec<u8>) {
    let mut stack: [RlpNode; 16] = Default::default();
    let (mut len, mut mask) = (0, TrieMask::default());
    for (nibble, child) in (0u8..).zip(children) {
        if let Some(child) = child {
            stack[len] = child.reference(depth + 1, buf);
            len += 1;
            mask.set_bit(nibble);
        }
    }
    buf.clear();
    alloy_rlp::Encodable::encode(&BranchNodeRef::new(&stack[..len], mask), buf);
}
