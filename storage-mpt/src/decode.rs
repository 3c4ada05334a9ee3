//! Decodes nodes from their RLP, for tries whose nodes are addressed by hash: into links of a trie
//! that is updated, or in place for a lookup.

use crate::{
    trie::{Branch, BranchChildren, BranchLink, Leaf, NodeLink, child_slot},
    verify::{decode_node, hex_prefix},
};
use alloy_primitives::B256;
use alloy_rlp::Header;
use alloy_trie::{
    Nibbles,
    nodes::{BranchNode, RlpNode, TrieNode},
};
use std::sync::Arc;

/// The link at `slot` to the node with this reference and this RLP; `None` if the RLP is not a
/// valid node of a trie over 32-byte keys.
pub(crate) fn link(slot: &Nibbles, reference: &RlpNode, rlp: &[u8]) -> Option<NodeLink> {
    match decode_node(rlp)? {
        TrieNode::Leaf(leaf) => {
            if slot.len() + leaf.key.len() != 64 {
                return None;
            }
            let mut key = B256::ZERO;
            slot.join(&leaf.key).pack_to(&mut key.0);
            Some(NodeLink::Leaf(Arc::new(Leaf::new(key, leaf.value.into(), ()))))
        }
        TrieNode::Extension(extension) => {
            if extension.key.is_empty() || slot.len() + extension.key.len() > 63 {
                return None;
            }
            let path = slot.join(&extension.key);
            Some(NodeLink::Branch(BranchLink::new(slot, &path, extension.child, ())))
        }
        TrieNode::Branch(node) => {
            let branch = branch_of(slot, reference, &node)?;
            Some(NodeLink::Branch(BranchLink::to(slot, slot, branch, true)))
        }
        TrieNode::EmptyRoot => None,
    }
}

/// The branch at `path` with this reference and this RLP; `None` if the RLP is not a valid branch.
pub(crate) fn branch(path: &Nibbles, reference: &RlpNode, rlp: &[u8]) -> Option<Branch> {
    match decode_node(rlp)? {
        TrieNode::Branch(node) => branch_of(path, reference, &node),
        _ => None,
    }
}

fn branch_of(path: &Nibbles, reference: &RlpNode, node: &BranchNode) -> Option<Branch> {
    if path.len() > 63 || node.stack.len() < 2 {
        return None;
    }
    let mut children = BranchChildren::default();
    let set = (0u8..16).filter(|nibble| node.state_mask.is_bit_set(*nibble));
    for (nibble, child) in set.zip(&node.stack) {
        children[nibble as usize] = Some(if child.is_hash() {
            NodeLink::Unresolved(child.clone())
        } else {
            link(&child_slot(path, nibble), child, child)?
        });
    }
    Some(Branch::new(children, reference.clone(), ()))
}

/// The next step of a lookup from a node towards a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WalkStep<'a> {
    /// Go on at the node with this hash, which hangs at this depth in nibbles.
    Node(B256, usize),
    /// This is the value of the key.
    Value(&'a [u8]),
    /// The key is absent.
    Absent,
}

/// Follows `key` from the node with this RLP, which hangs at `depth`, through embedded nodes too.
/// `None` if the node is malformed.
pub(crate) fn step<'a>(mut rlp: &'a [u8], key: &B256, mut depth: usize) -> Option<WalkStep<'a>> {
    loop {
        let content = Header::decode_bytes(&mut rlp, true).ok().filter(|_| rlp.is_empty())?;
        let mut rest = content;
        let (first, second) = (item(&mut rest)?, item(&mut rest)?);
        let child = if rest.is_empty() {
            let path = Header::decode_bytes(&mut &first[..], false).ok()?;
            let (is_leaf, end) = match follow(path, key, depth)? {
                (is_leaf, Some(end)) => (is_leaf, end),
                (_, None) => return Some(WalkStep::Absent),
            };
            if is_leaf {
                let value = Header::decode_bytes(&mut &second[..], false).ok()?;
                return (end == 64).then_some(WalkStep::Value(value));
            }
            depth = end;
            second
        } else {
            let (nibble, mut rest) = (nibble(key, depth)?, content);
            for _ in 0..nibble {
                item(&mut rest)?;
            }
            depth += 1;
            item(&mut rest)?
        };
        match child.first()? {
            0x80 => return Some(WalkStep::Absent),
            0xa0 => return Some(WalkStep::Node(B256::try_from(&child[1..]).ok()?, depth)),
            _ => rlp = child,
        }
    }
}

/// Takes the first RLP item off `rest`, header included.
fn item<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = match rest.first()? {
        // Nearly all items of branches.
        0x80 => 1,
        0xa0 => 33,
        _ => {
            let mut content = *rest;
            let header = Header::decode(&mut content).ok()?;
            rest.len() - content.len() + header.payload_length
        }
    };
    let (item, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(item)
}

/// Nibble `at` of `key`.
fn nibble(key: &B256, at: usize) -> Option<u8> {
    let byte = key.get(at / 2)?;
    Some(if at.is_multiple_of(2) { byte >> 4 } else { byte & 0x0f })
}

/// Compares a path in hex-prefix encoding (yellow paper, appendix C) with `key` from `depth` on.
/// Returns whether the path is a leaf's, and the depth behind the path if `key` matches it; `None`
/// if the encoding is invalid.
fn follow(path: &[u8], key: &B256, mut depth: usize) -> Option<(bool, Option<usize>)> {
    let (is_leaf, odd, rest) = hex_prefix(path)?;
    let nibbles = odd.into_iter().chain(rest.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]));
    for expected in nibbles {
        if nibble(key, depth)? != expected {
            return Some((is_leaf, None));
        }
        depth += 1;
    }
    Some((is_leaf, Some(depth)))
}
