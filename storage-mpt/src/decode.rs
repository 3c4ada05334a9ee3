//! Nodes from their RLP, where nodes are addressed by hash: as links of a trie that is updated, or
//! read in place.

use crate::{
    trie::{Branch, BranchLink, Children, Leaf, Link, child_slot},
    verify::{decode_node, hex_prefix},
};
use alloy_primitives::B256;
use alloy_rlp::Header;
use alloy_trie::{
    Nibbles,
    nodes::{BranchNode, RlpNode, TrieNode},
};
use std::sync::Arc;

/// What hangs at `slot`, whose node has this reference and this RLP; `None` if no node of a trie
/// over 32-byte keys has it.
pub(crate) fn link(slot: &Nibbles, reference: &RlpNode, rlp: &[u8]) -> Option<Link> {
    match decode_node(rlp)? {
        TrieNode::Leaf(leaf) => {
            if slot.len() + leaf.key.len() != 64 {
                return None;
            }
            let mut key = B256::ZERO;
            slot.join(&leaf.key).pack_to(&mut key.0);
            Some(Link::Leaf(Arc::new(Leaf::new(key, leaf.value.into(), ()))))
        }
        TrieNode::Extension(extension) => {
            if extension.key.is_empty() || slot.len() + extension.key.len() > 63 {
                return None;
            }
            let path = slot.join(&extension.key);
            Some(Link::Branch(BranchLink::new(slot, &path, extension.child, ())))
        }
        TrieNode::Branch(node) => {
            let branch = branch_of(slot, reference, &node)?;
            Some(Link::Branch(BranchLink::to(slot, slot, branch, true)))
        }
        TrieNode::EmptyRoot => None,
    }
}

/// The branch at `path` with this reference and this RLP; `None` if there is no such branch.
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
    let mut children = Children::default();
    let set = (0u8..16).filter(|nibble| node.state_mask.is_bit_set(*nibble));
    for (nibble, child) in set.zip(&node.stack) {
        children[nibble as usize] = Some(if child.is_hash() {
            Link::Unresolved(child.clone())
        } else {
            link(&child_slot(path, nibble), child, child)?
        });
    }
    Some(Branch::new(children, reference.clone(), ()))
}

/// Where the way to a key leads from a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// To the node of this hash, which hangs at this depth in nibbles.
    Node(B256, usize),
    /// To the value of the key.
    Value(&'a [u8]),
    /// Nowhere: the key is absent.
    Absent,
}

/// Goes from the node with this RLP, which hangs at `depth`, towards `key`, through embedded nodes
/// too. `None` if the node is malformed.
pub(crate) fn step<'a>(mut rlp: &'a [u8], key: &B256, mut depth: usize) -> Option<Step<'a>> {
    loop {
        let content = Header::decode_bytes(&mut rlp, true).ok().filter(|_| rlp.is_empty())?;
        let mut rest = content;
        let (first, second) = (item(&mut rest)?, item(&mut rest)?);
        let child = if rest.is_empty() {
            let path = Header::decode_bytes(&mut &first[..], false).ok()?;
            let (is_leaf, end) = match follow(path, key, depth)? {
                (is_leaf, Some(end)) => (is_leaf, end),
                (_, None) => return Some(Step::Absent),
            };
            if is_leaf {
                let value = Header::decode_bytes(&mut &second[..], false).ok()?;
                return (end == 64).then_some(Step::Value(value));
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
            0x80 => return Some(Step::Absent),
            0xa0 => return Some(Step::Node(B256::try_from(&child[1..]).ok()?, depth)),
            _ => rlp = child,
        }
    }
}

/// The item at the head of `rest`, header included; `rest` then starts behind it.
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

/// Follows a path in hex-prefix encoding (yellow paper, appendix C) from `depth` on: whether it is
/// a leaf's, and the depth behind it if `key` goes along. `None` if it is no such path.
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
