//! The update of a trie: a recursive descent over a sorted batch.

use super::{
    LeafUpdate, child_slot,
    early::EarlySubtries,
    loaded,
    node::{Branch, BranchChildren, BranchLink, Leaf, NodeEncoder, NodeLink},
    source::{NodeSource, UpdateRecorder},
    stamp::RowStamp,
    unresolvable,
};
use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;
use rayon::prelude::*;
use retrie_state::StateError;
use std::sync::Arc;

/// Batches of at least this size are updated in parallel, child by child.
const PARALLEL_ITEMS: usize = 96;

/// The result of updating a slot.
#[derive(Debug)]
pub(super) enum SlotOutcome<S> {
    /// Nothing changed.
    Same,
    New(Option<NodeLink<S>>),
}

/// A link that is not at a slot yet, with the path of its leaf or branch.
#[derive(Clone, Debug)]
pub(super) struct PlacedLink<S> {
    path: Nibbles,
    link: NodeLink<S>,
}

impl<S: RowStamp> PlacedLink<S> {
    fn leaf(leaf: Arc<Leaf<S>>) -> Self {
        Self { path: leaf.path(), link: NodeLink::Leaf(leaf) }
    }

    /// Takes `link` off the slot `slot`.
    pub(super) fn taken_from(slot: &Nibbles, link: NodeLink<S>) -> Self {
        let path = match &link {
            NodeLink::Leaf(leaf) => leaf.path(),
            NodeLink::Branch(link) => link.path(slot),
            NodeLink::Unresolved(_) => *slot,
        };
        Self { path, link }
    }
}

/// One entry of a subtrie that is being built: a new leaf, or a link of the old trie.
pub(super) trait BuildEntry<S>: Sync {
    fn path(&self) -> Nibbles;
    fn hang_at(&self, slot: &Nibbles) -> NodeLink<S>;
}

impl<S: RowStamp> BuildEntry<S> for PlacedLink<S> {
    fn path(&self) -> Nibbles {
        self.path
    }

    fn hang_at(&self, slot: &Nibbles) -> NodeLink<S> {
        match &self.link {
            NodeLink::Branch(link) => NodeLink::Branch(link.hung_at(slot, &self.path)),
            link => link.clone(),
        }
    }
}

/// A leaf that is inserted.
#[derive(Clone, Copy)]
pub(super) struct LeafInsert<'a, S> {
    key: &'a B256,
    value: &'a Bytes,
    stamp: S,
}

impl<'a, S: RowStamp> LeafInsert<'a, S> {
    pub(super) fn from_item(item: &'a LeafUpdate<S>) -> Option<Self> {
        item.value.as_ref().map(|value| Self { key: &item.key, value, stamp: item.stamp })
    }

    fn leaf(&self) -> Arc<Leaf<S>> {
        Arc::new(Leaf::new(*self.key, self.value.clone(), self.stamp))
    }
}

impl<S: RowStamp> BuildEntry<S> for LeafInsert<'_, S> {
    fn path(&self) -> Nibbles {
        Nibbles::unpack_array(&self.key.0)
    }

    fn hang_at(&self, _: &Nibbles) -> NodeLink<S> {
        NodeLink::Leaf(self.leaf())
    }
}

/// An update in progress, or a part of it on one thread.
pub(super) struct TrieUpdate<'a, N, R: UpdateRecorder> {
    source: &'a N,
    /// Subtries that are updated already.
    early: Option<&'a EarlySubtries<R>>,
    recorder: R,
    pub(super) encoder: NodeEncoder,
}

impl<'a, N: NodeSource, R: UpdateRecorder<Stamp = N::Stamp>> TrieUpdate<'a, N, R> {
    pub(super) fn new(
        source: &'a N,
        recorder: &R,
        with: TrieHash,
        early: Option<&'a EarlySubtries<R>>,
    ) -> Self {
        let encoder = if R::NODES { NodeEncoder::collecting(with) } else { NodeEncoder::new(with) };
        Self { source, early, recorder: recorder.fork(), encoder }
    }

    /// Whether this thread alone works on a batch of `len` items.
    const fn is_small(len: usize) -> bool {
        !N::PARALLEL || len < PARALLEL_ITEMS
    }

    fn fork(&self) -> Self {
        let Self { source, early, .. } = *self;
        Self { source, early, recorder: self.recorder.fork(), encoder: self.encoder.fork() }
    }

    /// Adds the results of a part that ran in parallel.
    fn absorb(&mut self, (recorder, encoder): (R, NodeEncoder)) {
        self.recorder.absorb(recorder);
        self.encoder.absorb(encoder);
    }

    /// The recorder and the encoder, for another update to absorb.
    pub(super) fn into_parts(self) -> (R, NodeEncoder) {
        (self.recorder, self.encoder)
    }

    pub(super) fn finish_into(self, recorder: &mut R) {
        recorder.absorb(self.recorder);
        if R::NODES {
            recorder.nodes(self.encoder.into_changes());
        }
    }

    /// Applies `items`, all below `slot`, to what hangs there.
    pub(super) fn slot(
        &mut self,
        link: Option<&NodeLink<N::Stamp>>,
        slot: &Nibbles,
        items: &[LeafUpdate<N::Stamp>],
    ) -> Result<SlotOutcome<N::Stamp>, StateError> {
        if items.is_empty() {
            return Ok(SlotOutcome::Same);
        }
        if let Some((outcome, part)) = self.early.and_then(|early| early.take(slot, items)) {
            self.absorb(part);
            return Ok(outcome);
        }
        match link {
            None => {
                let inserts: Vec<_> = items.iter().filter_map(LeafInsert::from_item).collect();
                Ok(match &inserts[..] {
                    [] => SlotOutcome::Same,
                    inserts => SlotOutcome::New(Some(self.build(slot, inserts))),
                })
            }
            Some(NodeLink::Leaf(leaf)) => Ok(self.leaf(leaf, slot, items)),
            Some(NodeLink::Branch(link)) => self.branch(link, slot, items),
            Some(NodeLink::Unresolved(reference)) => match self.source.resolve(slot, reference)? {
                NodeLink::Unresolved(_) => Err(unresolvable(slot)),
                link => {
                    let outcome = self.slot(Some(&link), slot, items)?;
                    if matches!(outcome, SlotOutcome::New(_)) {
                        self.encoder.remove(reference);
                    }
                    Ok(outcome)
                }
            },
        }
    }

    fn leaf(
        &mut self,
        leaf: &Arc<Leaf<N::Stamp>>,
        slot: &Nibbles,
        items: &[LeafUpdate<N::Stamp>],
    ) -> SlotOutcome<N::Stamp> {
        // The common case first: the value of one key changes, or the key is removed.
        if let [LeafUpdate { key, value, stamp }] = items
            && key == leaf.key()
        {
            return match value {
                Some(value) if value == leaf.value() && *stamp == leaf.stamp() => SlotOutcome::Same,
                Some(value) => {
                    let leaf = Leaf::new(*key, value.clone(), *stamp);
                    SlotOutcome::New(Some(NodeLink::Leaf(Arc::new(leaf))))
                }
                None => SlotOutcome::New(None),
            };
        }
        let mut kept = items.iter().all(|item| item.key != *leaf.key()).then(|| leaf.clone());
        let inserts = items.iter().filter_map(LeafInsert::from_item);
        let mut entries = Vec::with_capacity(items.len() + 1);
        for insert in inserts {
            if kept.as_ref().is_some_and(|leaf| leaf.key() < insert.key) {
                entries.extend(kept.take().map(PlacedLink::leaf));
            }
            entries.push(PlacedLink::leaf(insert.leaf()));
        }
        entries.extend(kept.map(PlacedLink::leaf));
        match &entries[..] {
            [] => SlotOutcome::New(None),
            [PlacedLink { link: NodeLink::Leaf(only), .. }] if Arc::ptr_eq(only, leaf) => {
                SlotOutcome::Same
            }
            entries => SlotOutcome::New(Some(self.build(slot, entries))),
        }
    }

    /// Applies `items` to a branch and to the extension above it.
    fn branch(
        &mut self,
        link: &BranchLink<N::Stamp>,
        slot: &Nibbles,
        items: &[LeafUpdate<N::Stamp>],
    ) -> Result<SlotOutcome<N::Stamp>, StateError> {
        if !link.has_extension() {
            return Ok(match self.inside(link, slot, items)? {
                None => SlotOutcome::Same,
                Some(placed) => SlotOutcome::New(placed.map(|placed| placed.hang_at(slot))),
            });
        }
        let path = link.path(slot);
        // Items below the branch, and items that leave its extension before or after it.
        let head =
            |item: &LeafUpdate<N::Stamp>| Nibbles::unpack_array(&item.key.0).slice(..path.len());
        let start = items.partition_point(|item| head(item) < path);
        let end = items.partition_point(|item| head(item) <= path);
        let inserts = |items: &[LeafUpdate<N::Stamp>]| {
            items.iter().filter_map(LeafInsert::from_item).map(|i| i.leaf()).collect()
        };
        let (before, after): (Vec<_>, Vec<_>) = (inserts(&items[..start]), inserts(&items[end..]));

        let inside =
            if start == end { None } else { self.inside(link, &path, &items[start..end])? };
        let middle = match inside {
            None if before.is_empty() && after.is_empty() => return Ok(SlotOutcome::Same),
            None => Some(PlacedLink { path, link: NodeLink::Branch(link.clone()) }),
            Some(placed) => {
                // The extension is the node of the slot, this the one below it.
                self.encoder.remove(link.reference());
                placed
            }
        };
        let entries: Vec<_> = before
            .into_iter()
            .map(PlacedLink::leaf)
            .chain(middle)
            .chain(after.into_iter().map(PlacedLink::leaf))
            .collect();
        Ok(SlotOutcome::New(match &entries[..] {
            [] => None,
            entries => Some(self.build(slot, entries)),
        }))
    }

    /// Applies `items`, all below the branch at `path`. `None` if nothing changes.
    fn inside(
        &mut self,
        link: &BranchLink<N::Stamp>,
        path: &Nibbles,
        items: &[LeafUpdate<N::Stamp>],
    ) -> Result<Option<Option<PlacedLink<N::Stamp>>>, StateError> {
        let node = loaded(self.source, path, link)?;
        let nibble_of = |item: &LeafUpdate<N::Stamp>| {
            Nibbles::unpack_array(&item.key.0).get_unchecked(path.len())
        };
        if path.len() == 64 {
            return Err(StateError::corrupt("trie", format!("a branch at the full key {path:?}")));
        }
        let groups = items.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let child = |update: &mut Self, items: &[LeafUpdate<N::Stamp>]| {
            let nibble = nibble_of(&items[0]);
            let link = node.children[nibble as usize].as_ref();
            Ok((nibble, update.slot(link, &child_slot(path, nibble), items)?))
        };
        let outcomes: Vec<(u8, SlotOutcome<_>)> = if Self::is_small(items.len()) {
            groups.map(|items| child(self, items)).collect::<Result<_, StateError>>()?
        } else {
            let this = &*self;
            let parts = groups
                .collect::<Vec<_>>()
                .into_par_iter()
                .map(|items| {
                    let mut part = this.fork();
                    Ok((child(&mut part, items)?, (part.recorder, part.encoder)))
                })
                .collect::<Result<Vec<_>, StateError>>()?;
            let absorb = |(outcome, part)| {
                self.absorb(part);
                outcome
            };
            parts.into_iter().map(absorb).collect()
        };
        if outcomes.iter().all(|(_, outcome)| matches!(outcome, SlotOutcome::Same)) {
            return Ok(None);
        }
        let mut children = node.children.clone();
        for (nibble, outcome) in outcomes {
            if let SlotOutcome::New(link) = outcome {
                children[nibble as usize] = link;
            }
        }
        let mut left = (0u8..).zip(&mut children).filter(|(_, child)| child.is_some());
        Ok(Some(match (left.next(), left.next()) {
            (Some((nibble, only)), None) => {
                self.recorder.record(path, Some(&node), None);
                let slot = child_slot(path, nibble);
                let link = only.take().map(|link| self.only_child(&slot, link)).transpose()?;
                link.map(|link| PlacedLink::taken_from(&slot, link))
            }
            (None, _) => {
                self.recorder.record(path, Some(&node), None);
                None
            }
            _ => Some(self.finish(path, Some(&node), children)),
        }))
    }

    /// Resolves the only child that a branch has left, which moves up from `slot`.
    fn only_child(
        &mut self,
        slot: &Nibbles,
        link: NodeLink<N::Stamp>,
    ) -> Result<NodeLink<N::Stamp>, StateError> {
        let NodeLink::Unresolved(reference) = link else { return Ok(link) };
        let link = self.source.resolve(slot, &reference)?;
        // A leaf or an extension is another node elsewhere; a branch stays the same.
        let is_branch = matches!(&link, NodeLink::Branch(link) if !link.has_extension());
        if !is_branch {
            self.encoder.remove(&reference);
        }
        Ok(link)
    }

    /// Builds the subtrie at `slot` from entries in path order, of which none is a prefix of
    /// another.
    pub(super) fn build<E: BuildEntry<N::Stamp>>(
        &mut self,
        slot: &Nibbles,
        entries: &[E],
    ) -> NodeLink<N::Stamp> {
        let (first, last) = match entries {
            [only] => return only.hang_at(slot),
            [first, .., last] => (first.path(), last.path()),
            [] => unreachable!("callers have handled the empty slot"),
        };
        let path = first.slice(..first.common_prefix_length(&last));
        let nibble_of = |entry: &E| entry.path().get_unchecked(path.len());
        let groups = entries.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let mut children = BranchChildren::<N::Stamp>::default();
        let child = |update: &mut Self, entries: &[E]| {
            let nibble = nibble_of(&entries[0]);
            (nibble, update.build(&child_slot(&path, nibble), entries))
        };
        if Self::is_small(entries.len()) {
            for entries in groups {
                let (nibble, link) = child(self, entries);
                children[nibble as usize] = Some(link);
            }
        } else {
            let this = &*self;
            let parts: Vec<_> = groups
                .collect::<Vec<_>>()
                .into_par_iter()
                .map(|entries| {
                    let mut part = this.fork();
                    (child(&mut part, entries), (part.recorder, part.encoder))
                })
                .collect();
            for ((nibble, link), part) in parts {
                self.absorb(part);
                children[nibble as usize] = Some(link);
            }
        }
        self.finish(&path, None, children).hang_at(slot)
    }

    /// Hashes and records a new branch.
    fn finish(
        &mut self,
        path: &Nibbles,
        previous: Option<&Branch<N::Stamp>>,
        children: BranchChildren<N::Stamp>,
    ) -> PlacedLink<N::Stamp> {
        let branch = Branch::hash(path, children, self.recorder.stamp(), &mut self.encoder);
        self.recorder.record(path, previous, Some(&branch));
        let kept = self.source.keep(path, &branch);
        PlacedLink { path: *path, link: NodeLink::Branch(BranchLink::to(path, path, branch, kept)) }
    }
}
