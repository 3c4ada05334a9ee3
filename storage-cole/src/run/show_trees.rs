//! Parts of the trees of a run with version trees, for proofs.

use super::{
    PairCursor, Run,
    show::digest,
    values::PairRef,
    version_file::{KeyEntry, VersionFile},
    version_tree::{VersionTree, stored_top},
};
use crate::{
    hash,
    shown_tree::{CompoundPair, ShownNode},
};
use alloy_primitives::{B256, Bytes};
use retrie_state::StateError;
use std::{collections::BTreeMap, ops::Range};

/// A key whose leaf a proof shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownKey {
    /// The position of one of its pairs.
    pub(crate) position: u64,
    /// The positions of the pairs to show; empty if the leaf alone is needed.
    pub(crate) pairs: Range<u64>,
}

impl Run {
    /// The tree over the keys, with exactly the leaves of these keys shown (at least one), and exactly
    /// these pairs of each. A key may occur twice, once with pairs.
    pub(crate) fn show_keys(&self, keys: &[ShownKey]) -> Result<ShownNode, StateError> {
        let file = self.version_file()?;
        let mut shown: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        for key in keys {
            let pairs = shown.entry(file.key_at(key.position)?).or_insert(0..0);
            if pairs.is_empty() {
                pairs.clone_from(&key.pairs);
            }
        }
        let leaves: Vec<_> = shown.keys().map(|number| *number..*number + 1).collect();
        let mut pairs = PairReader { run: self, cursor: None };
        self.show_tree(&leaves, &mut |_, numbers| {
            let mut entries = file.entries(numbers.start)?;
            numbers
                .map(|number| pairs.leaf(file, &entries.next()?, shown.get(&number)))
                .collect::<Result<_, _>>()
        })
    }
}

/// Reads pairs by their positions, mostly in order.
struct PairReader<'a> {
    run: &'a Run,
    /// The cursor, and the position of its next pair.
    cursor: Option<(u64, PairCursor<'a>)>,
}

impl PairReader<'_> {
    fn pair(&mut self, position: u64) -> Result<PairRef<'_>, StateError> {
        let (run, pairs) = (self.run, self.run.description.stored_pairs());
        let cursor = match self.cursor.take() {
            Some((next, cursor)) if next == position => cursor,
            _ => run.values.cursor_at(position, pairs)?,
        };
        let (_, cursor) = self.cursor.insert((position + 1, cursor));
        let ended = || run.values.file.wrong(format!("it ends before pair {position}"));
        cursor.next()?.ok_or_else(ended)
    }

    /// The leaf of a key, with `shown` of its pairs if it is shown.
    fn leaf(
        &mut self,
        file: &VersionFile,
        entry: &KeyEntry,
        shown: Option<&Range<u64>>,
    ) -> Result<ShownNode, StateError> {
        let first = self.pair(entry.position)?;
        let Some(bytes) = &entry.tree else {
            return Ok(match shown {
                Some(_) => ShownNode::Pair(compound(&first)),
                None => ShownNode::Hidden(pair_digest(&first)),
            });
        };
        let key = first.key.to_vec();
        let tree = match (shown, stored_top(bytes, entry.pairs)) {
            (None, Some(top)) => ShownNode::Hidden(top),
            _ => {
                let tree = VersionTree::parse(bytes).map_err(|_| file.wrong_tree(entry.number))?;
                if tree.pairs(tree.top()) != entry.pairs {
                    return Err(file.wrong_tree(entry.number));
                }
                let shown = shown.cloned().unwrap_or_default();
                self.versions(&tree, tree.top(), entry.position, &shown)?
            }
        };
        Ok(match shown {
            Some(_) => ShownNode::Versions(key, Box::new(tree)),
            None => ShownNode::Hidden(hash::versions(&key, &digest(&tree))),
        })
    }

    /// The part of a version tree below a node, whose first pair is at `position`.
    fn versions(
        &mut self,
        tree: &VersionTree<'_>,
        number: usize,
        position: u64,
        shown: &Range<u64>,
    ) -> Result<ShownNode, StateError> {
        let below = position..position.saturating_add(tree.pairs(number));
        if shown.start.max(below.start) >= shown.end.min(below.end) {
            return Ok(ShownNode::Hidden(self.digest(tree, number, position)?));
        }
        let Some((left, right)) = tree.children(number) else {
            return Ok(ShownNode::Pair(compound(&self.pair(position)?)));
        };
        Ok(ShownNode::Inner(vec![
            self.versions(tree, left, position, shown)?,
            self.versions(tree, right, position + tree.pairs(left), shown)?,
        ]))
    }

    fn digest(
        &mut self,
        tree: &VersionTree<'_>,
        number: usize,
        position: u64,
    ) -> Result<B256, StateError> {
        if let Some(digest) = tree.stored_digest(number) {
            return Ok(digest);
        }
        let Some((left, right)) = tree.children(number) else {
            return Ok(pair_digest(&self.pair(position)?));
        };
        let digests = [
            self.digest(tree, left, position)?,
            self.digest(tree, right, position + tree.pairs(left))?,
        ];
        Ok(hash::node(&digests))
    }
}

fn compound(pair: &PairRef<'_>) -> CompoundPair {
    let value = pair.value.map(Bytes::copy_from_slice);
    CompoundPair { key: pair.key.to_vec(), block: pair.block, value }
}

fn pair_digest(pair: &PairRef<'_>) -> B256 {
    hash::pair(pair.key, pair.block, pair.value)
}
