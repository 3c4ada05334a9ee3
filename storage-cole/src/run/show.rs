//! Parts of a run's trees, for proofs.

use super::{Run, description::base_names, filter, merkle::reduce};
use crate::{
    hash::{self, HashBatch},
    multi_proof,
    shown_tree::{CompoundPair, ShownNode},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::StateError;
use std::ops::Range;

/// Makes the leaves of a range, shown if they are in one of the sorted ranges.
pub(super) type LeafSource<'a> =
    &'a mut dyn FnMut(&[Range<u64>], Range<u64>) -> Result<Vec<ShownNode>, StateError>;

/// Blocks of a filter, and the hashes of their multi-proof.
pub(crate) type ShownFilter = (Vec<[u8; filter::BLOCK]>, Vec<B256>);

impl Run {
    /// The tree over the pairs, with exactly the pairs at the positions in `shown` shown: ranges
    /// that are sorted, disjoint and not empty. Its top is the top of the run's source.
    pub(crate) fn show(&self, shown: &[Range<u64>]) -> Result<ShownNode, StateError> {
        self.show_tree(shown, &mut |shown, leaves| self.show_pairs(shown, leaves))
    }

    /// The tree with the leaves shown that are in these ranges. `leaves` makes the leaves of a range,
    /// shown or hidden.
    pub(super) fn show_tree(
        &self,
        shown: &[Range<u64>],
        leaves: LeafSource<'_>,
    ) -> Result<ShownNode, StateError> {
        let node = self.show_node(shown, self.tree.top(), 0, leaves)?;
        if digest(&node) != self.description.source.top {
            return Err(self.mismatch(&self.values.file, "top"));
        }
        Ok(node)
    }

    fn show_node(
        &self,
        shown: &[Range<u64>],
        layer: usize,
        index: u64,
        leaves: LeafSource<'_>,
    ) -> Result<ShownNode, StateError> {
        let below = self.tree.leaves(layer, index);
        let first = shown.partition_point(|range| range.end <= below.start);
        if shown.get(first).is_none_or(|range| range.start >= below.end) {
            return Ok(ShownNode::Hidden(self.tree.digest(&self.merkle, layer, index)?));
        }
        if layer == self.tree.lowest() {
            return self.show_lowest(leaves(&shown[first..], below)?);
        }
        let children = self.tree.children(layer, index);
        let children =
            children.map(|child| self.show_node(&shown[first..], layer - 1, child, leaves));
        Ok(ShownNode::Inner(children.collect::<Result<_, _>>()?))
    }

    fn show_pairs(
        &self,
        shown: &[Range<u64>],
        leaves: Range<u64>,
    ) -> Result<Vec<ShownNode>, StateError> {
        let mut layer = Vec::new();
        let mut cursor = self.values.cursor_at(leaves.start, self.description.source.pairs)?;
        let mut ranges = shown.iter().peekable();
        for position in leaves {
            let Some(pair) = cursor.next()? else {
                return Err(self.values.file.wrong(format!("it ends before pair {position}")));
            };
            while ranges.next_if(|range| range.end <= position).is_some() {}
            layer.push(match ranges.peek() {
                Some(range) if range.contains(&position) => ShownNode::Pair(CompoundPair {
                    key: pair.key.to_vec(),
                    block: pair.block,
                    value: pair.value.map(Bytes::copy_from_slice),
                }),
                _ => ShownNode::Hidden(hash::pair(pair.key, pair.block, pair.value)),
            });
        }
        Ok(layer)
    }

    /// A node of the lowest stored layer, computed from the leaves below.
    fn show_lowest(&self, leaves: Vec<ShownNode>) -> Result<ShownNode, StateError> {
        let mut layer = leaves;
        for _ in 0..self.tree.lowest() {
            let mut below = layer.into_iter().peekable();
            layer = Vec::new();
            while below.peek().is_some() {
                let children: Vec<_> =
                    below.by_ref().take(self.description.fanout.into()).collect();
                let hidden = children.iter().all(|child| matches!(child, ShownNode::Hidden(_)));
                let node = ShownNode::Inner(children);
                layer.push(if hidden { ShownNode::Hidden(digest(&node)) } else { node });
            }
        }
        let node = layer.pop().filter(|_| layer.is_empty());
        node.ok_or_else(|| self.mismatch(&self.values.file, "number of pairs"))
    }

    /// The `blocks` of the filter (sorted, distinct, at least one), and the hashes of their
    /// multi-proof, in the order of `docs/formats/cole.md`, Proof bytes.
    pub(crate) fn show_filter(&self, blocks: &[u64]) -> Result<ShownFilter, StateError> {
        let mut shown = Vec::with_capacity(blocks.len());
        let mut known = Vec::with_capacity(blocks.len());
        for number in blocks {
            let block = *filter::block(&self.filter, *number)?;
            known.push((*number, hash::filter_block(&block)));
            shown.push(block);
        }
        let mut hashes = Vec::new();
        let missing = |layer, index| {
            let digest = self.filter_digest(layer as usize, index)?;
            hashes.push(digest);
            Ok::<_, StateError>(digest)
        };
        let source = &self.description.source;
        let node = |children: &[B256]| hash::node(children);
        let top = multi_proof::climb(
            self.description.fanout,
            source.filter_blocks,
            known,
            missing,
            node,
        )?;
        match top == Some(source.filter_top) {
            true => Ok((shown, hashes)),
            false => Err(self.mismatch(&self.filter, "top of the filter's tree")),
        }
    }

    /// Any digest of the filter's tree, stored or computed.
    pub(super) fn filter_digest(&self, layer: usize, index: u64) -> Result<B256, StateError> {
        if layer >= self.filter_tree.lowest() {
            return self.filter_tree.digest(&self.merkle, layer, index);
        }
        let mut batch = HashBatch::default();
        for number in self.filter_tree.leaves(layer, index) {
            batch.filter_block(filter::block(&self.filter, number)?);
        }
        let mut digests = Vec::new();
        batch.finish_into(&mut digests);
        for _ in 0..layer {
            reduce(&mut digests, self.description.fanout.into(), &mut batch);
        }
        digests.pop().ok_or_else(|| self.filter.wrong(format!("no block is at {index}")))
    }

    /// The error of files with valid checksums that do not fit together.
    fn mismatch(&self, file: &super::PagedFile, what: &str) -> StateError {
        let [_, _, merkle, _] = base_names(&self.description.stem);
        file.wrong(format!("with {merkle} it does not lead to the {what} in the run's description"))
    }
}

/// The digest of a node.
pub(super) fn digest(node: &ShownNode) -> B256 {
    match node {
        ShownNode::Hidden(digest) => *digest,
        ShownNode::Inner(children) => hash::node(&children.iter().map(digest).collect::<Vec<_>>()),
        ShownNode::Pair(pair) => {
            hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
        }
        ShownNode::Versions(key, tree) => hash::versions(key, &digest(tree)),
    }
}
