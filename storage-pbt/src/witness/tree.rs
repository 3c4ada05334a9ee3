//! A partial tree: nodes are opened when they are needed. A witness's maker opens them from the
//! store's tree; without a store only what the witness holds can be opened.

use super::WitnessFault;
use crate::{
    hash::{KeyBits, Subtree, Sweep, TreeHash, bit, common_bits},
    verify::LeafKey,
};
use alloy_primitives::B256;
use retrie_state::WitnessError;
use std::sync::{Arc, OnceLock};

/// Where nodes come from that are not open yet.
pub(super) trait TreeOrigin {
    /// Names a node.
    type Handle;

    /// Opens a node.
    fn open(&self, handle: &Self::Handle) -> Result<NodeContent<Self::Handle>, WitnessFault>;
}

/// A node at its place, perhaps with its content.
#[derive(Debug)]
pub(super) struct PartialNode<H> {
    /// Its hash at this place.
    pub(super) hash: B256,
    content: OnceLock<NodeContent<H>>,
    handle: Option<H>,
}

#[derive(Debug)]
pub(super) enum NodeContent<H> {
    Leaf {
        key: LeafKey,
        value: B256,
    },
    Branch {
        /// The number of the bit in which the children differ.
        split: usize,
        /// The bits before it.
        key: Box<KeyBits>,
        left: NodePtr<H>,
        right: NodePtr<H>,
    },
}

pub(super) type NodePtr<H> = Arc<PartialNode<H>>;

impl<H> PartialNode<H> {
    /// A node that is not open.
    pub(super) fn closed(hash: B256, handle: Option<H>) -> NodePtr<H> {
        Arc::new(Self { hash, content: OnceLock::new(), handle })
    }

    /// A node with this content, below a branch that splits in the bit before `from`.
    pub(super) fn opened(with: TreeHash, content: NodeContent<H>, from: usize) -> NodePtr<H> {
        let hash = match &content {
            NodeContent::Leaf { key, value } => with.leaf(key, value),
            NodeContent::Branch { split, key, left, right } => {
                with.branch(&key[..], from, *split, &left.hash, &right.hash)
            }
        };
        Arc::new(Self { hash, content: OnceLock::from(content), handle: None })
    }

    /// Its content, if it is open.
    pub(super) fn content(&self) -> Option<&NodeContent<H>> {
        self.content.get()
    }
}

/// A change of a leaf, with its new value; `None` removes it.
pub(super) type LeafChange = (LeafKey, Option<B256>);

/// A subtree that may hang anywhere, with the key of a leaf in it as far as all its leaves share it.
type LooseSubtree = (LeafKey, Subtree);

/// What a place has after an update.
enum PlaceContent {
    /// What it had.
    Same,
    Now(Option<LooseSubtree>),
}

/// Work on the nodes of one origin.
pub(super) struct TreeWork<'a, O> {
    pub(super) with: TreeHash,
    pub(super) origin: &'a O,
}

impl<O: TreeOrigin> TreeWork<'_, O> {
    fn open<'n>(
        &self,
        node: &'n PartialNode<O::Handle>,
    ) -> Result<&'n NodeContent<O::Handle>, WitnessFault> {
        if let Some(content) = node.content.get() {
            return Ok(content);
        }
        let handle = node.handle.as_ref();
        let handle = handle.ok_or_else(|| {
            WitnessFault::from(WitnessError::Incomplete { what: format!("the node {}", node.hash) })
        })?;
        let content = self.origin.open(handle)?;
        Ok(node.content.get_or_init(|| content))
    }

    /// The value of the leaf with this key.
    pub(super) fn leaf(
        &self,
        top: Option<&NodePtr<O::Handle>>,
        target: &[u8],
    ) -> Result<Option<B256>, WitnessFault> {
        let Some(mut node) = top else { return Ok(None) };
        loop {
            match self.open(node)? {
                NodeContent::Leaf { key, value } => {
                    return Ok((key == target).then_some(*value));
                }
                NodeContent::Branch { split, key, left, right } => {
                    if common_bits(&key[..], target) < *split || target.len() * 8 <= *split {
                        return Ok(None);
                    }
                    node = if bit(target, *split) == 0 { left } else { right };
                }
            }
        }
    }

    /// The root after `changes`, sorted by key, in the tree below `top`.
    pub(super) fn root_after(
        &self,
        top: Option<&NodePtr<O::Handle>>,
        changes: &[LeafChange],
    ) -> Result<B256, WitnessFault> {
        let empty = crate::hash::EMPTY_ROOT;
        Ok(match self.update(top, changes)? {
            PlaceContent::Same => top.map_or(empty, |top| top.hash),
            PlaceContent::Now(None) => empty,
            PlaceContent::Now(Some((_, subtree))) => subtree.hash(self.with, 0),
        })
    }

    /// What comes in place of `node` after `changes` of leaves that lead there.
    fn update(
        &self,
        node: Option<&NodePtr<O::Handle>>,
        changes: &[LeafChange],
    ) -> Result<PlaceContent, WitnessFault> {
        if changes.is_empty() {
            return Ok(PlaceContent::Same);
        }
        let Some(node) = node else { return Ok(PlaceContent::Now(self.join(changes, None, &[]))) };
        match self.open(node)? {
            NodeContent::Leaf { key, value } => {
                let at = changes.partition_point(|(changed, _)| changed < key);
                let (before, rest) = changes.split_at(at);
                let (own, after) = match rest.split_first() {
                    Some(((changed, next), after)) if changed == key => (*next, after),
                    _ => (Some(*value), rest),
                };
                let own =
                    own.map(|value| (key.clone(), Subtree::Leaf(self.with.leaf(key, &value))));
                Ok(PlaceContent::Now(self.join(before, own, after)))
            }
            NodeContent::Branch { split, key, left, right } => {
                let goes_on = |(changed, _): &LeafChange| {
                    common_bits(&key[..], changed) >= *split && changed.len() * 8 > *split
                };
                let start = changes.iter().position(goes_on).unwrap_or_else(|| {
                    changes.partition_point(|(changed, _)| changed[..] < key[..])
                });
                let (before, rest) = changes.split_at(start);
                let (own, after) = rest.split_at(rest.partition_point(goes_on));
                let below = self.branch(*split, key, [left, right], own)?;
                let is_set = |(_, value): &LeafChange| value.is_some();
                let is_alone = !before.iter().chain(after).any(is_set);
                Ok(match below {
                    below if is_alone => below,
                    PlaceContent::Same => {
                        PlaceContent::Now(self.join(before, Some(self.loose(node)?), after))
                    }
                    PlaceContent::Now(below) => PlaceContent::Now(self.join(before, below, after)),
                })
            }
        }
    }

    /// What comes in place of a branch after `changes` of leaves that continue its bits.
    fn branch(
        &self,
        split: usize,
        key: &KeyBits,
        children: [&NodePtr<O::Handle>; 2],
        changes: &[LeafChange],
    ) -> Result<PlaceContent, WitnessFault> {
        let (left, right) =
            changes.split_at(changes.partition_point(|(changed, _)| bit(changed, split) == 0));
        let after = [self.update(Some(children[0]), left)?, self.update(Some(children[1]), right)?];
        if after.iter().all(|after| matches!(after, PlaceContent::Same)) {
            return Ok(PlaceContent::Same);
        }
        let hash = |node: &NodePtr<O::Handle>, after: &PlaceContent| match after {
            PlaceContent::Same => Some(node.hash),
            PlaceContent::Now(after) => {
                after.as_ref().map(|(_, subtree)| subtree.hash(self.with, split + 1))
            }
        };
        let hashes = [hash(children[0], &after[0]), hash(children[1], &after[1])];
        if let [Some(left), Some(right)] = hashes {
            let subtree = Subtree::branch(&key[..], split, left, right);
            return Ok(PlaceContent::Now(Some((key.to_vec(), subtree))));
        }
        // The only child, if there is one, takes the branch's place.
        for (node, after) in children.into_iter().zip(after) {
            match after {
                PlaceContent::Same => return Ok(PlaceContent::Now(Some(self.loose(node)?))),
                PlaceContent::Now(None) => {}
                child => return Ok(child),
            }
        }
        Ok(PlaceContent::Now(None))
    }

    /// A node without its place.
    fn loose(&self, node: &PartialNode<O::Handle>) -> Result<LooseSubtree, WitnessFault> {
        Ok(match self.open(node)? {
            NodeContent::Leaf { key, .. } => (key.clone(), Subtree::Leaf(node.hash)),
            NodeContent::Branch { split, key, left, right } => {
                (key.to_vec(), Subtree::branch(&key[..], *split, left.hash, right.hash))
            }
        })
    }

    /// The subtree over the leaves that are set in `before`, over `own`, and over those set in `after`.
    fn join(
        &self,
        before: &[LeafChange],
        own: Option<LooseSubtree>,
        after: &[LeafChange],
    ) -> Option<LooseSubtree> {
        let leaf = |(key, value): &LeafChange| {
            let leaf = self.with.leaf(key, &(*value)?);
            Some((key.clone(), Subtree::Leaf(leaf)))
        };
        let parts = before.iter().filter_map(leaf).chain(own);
        let mut parts = parts.chain(after.iter().filter_map(leaf)).peekable();
        let first = parts.peek()?.0.clone();
        let mut sweep = Sweep::new(self.with);
        let mut count = 0;
        let mut only = None;
        for (key, part) in parts {
            sweep.push(&key, part);
            count += 1;
            only = Some((key, part));
        }
        match count {
            1 => only,
            _ => sweep.finish().map(|subtree| (first, subtree)),
        }
    }
}
