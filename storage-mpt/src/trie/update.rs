//! The update of a trie: a recursive descent over a sorted batch.

use super::{
    Item, child_slot,
    early::Early,
    loaded,
    node::{Branch, BranchLink, Children, Encoder, Leaf, Link},
    resolved,
    source::{NodeSource, Recorder},
    stamp::Stamp,
    unresolvable,
};
use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;
use rayon::prelude::*;
use retrie_state::StateError;
use std::sync::Arc;

/// Batches from this size on are worked on in parallel, child by child.
const PARALLEL_ITEMS: usize = 96;

/// What became of a slot.
#[derive(Debug)]
pub(super) enum Outcome<S> {
    /// Nothing changed.
    Same,
    New(Option<Link<S>>),
}

/// A link that is about to be hung somewhere, with the path of its leaf or branch.
#[derive(Clone, Debug)]
pub(super) struct Placed<S> {
    path: Nibbles,
    link: Link<S>,
}

impl<S: Stamp> Placed<S> {
    fn leaf(leaf: Arc<Leaf<S>>) -> Self {
        Self { path: leaf.path(), link: Link::Leaf(leaf) }
    }

    /// Takes `link` off the slot `slot`.
    pub(super) fn taken_from(slot: &Nibbles, link: Link<S>) -> Self {
        let path = match &link {
            Link::Leaf(leaf) => leaf.path(),
            Link::Branch(link) => link.path(slot),
            Link::Unresolved(_) => *slot,
        };
        Self { path, link }
    }
}

/// A part of a subtree that is about to be built.
pub(super) trait Entry<S>: Sync {
    fn path(&self) -> Nibbles;
    fn hang_at(&self, slot: &Nibbles) -> Link<S>;
}

impl<S: Stamp> Entry<S> for Placed<S> {
    fn path(&self) -> Nibbles {
        self.path
    }

    fn hang_at(&self, slot: &Nibbles) -> Link<S> {
        match &self.link {
            Link::Branch(link) => Link::Branch(link.hung_at(slot, &self.path)),
            link => link.clone(),
        }
    }
}

/// An insertion.
#[derive(Clone, Copy)]
pub(super) struct Insert<'a, S> {
    key: &'a B256,
    value: &'a Bytes,
    stamp: S,
}

impl<'a, S: Stamp> Insert<'a, S> {
    pub(super) fn from_item(item: &'a Item<S>) -> Option<Self> {
        item.value.as_ref().map(|value| Self { key: &item.key, value, stamp: item.stamp })
    }

    fn leaf(&self) -> Arc<Leaf<S>> {
        Arc::new(Leaf::new(*self.key, self.value.clone(), self.stamp))
    }
}

impl<S: Stamp> Entry<S> for Insert<'_, S> {
    fn path(&self) -> Nibbles {
        Nibbles::unpack_array(&self.key.0)
    }

    fn hang_at(&self, _: &Nibbles) -> Link<S> {
        Link::Leaf(self.leaf())
    }
}

/// One update under way, or a part of it.
pub(super) struct Update<'a, N, R: Recorder> {
    source: &'a N,
    /// What is done already.
    early: Option<&'a Early<R>>,
    recorder: R,
    pub(super) encoder: Encoder,
}

impl<'a, N: NodeSource, R: Recorder<Stamp = N::Stamp>> Update<'a, N, R> {
    pub(super) fn new(
        source: &'a N,
        recorder: &R,
        with: TrieHash,
        early: Option<&'a Early<R>>,
    ) -> Self {
        let encoder = if R::NODES { Encoder::noting(with) } else { Encoder::new(with) };
        Self { source, early, recorder: recorder.fork(), encoder }
    }

    /// Whether a batch of `len` is worked on by this thread alone.
    const fn is_small(len: usize) -> bool {
        !N::PARALLEL || len < PARALLEL_ITEMS
    }

    fn fork(&self) -> Self {
        let Self { source, early, .. } = *self;
        Self { source, early, recorder: self.recorder.fork(), encoder: self.encoder.fork() }
    }

    /// Takes over what a part of the work that ran in parallel has left.
    fn absorb(&mut self, (recorder, encoder): (R, Encoder)) {
        self.recorder.absorb(recorder);
        self.encoder.absorb(encoder);
    }

    /// What was recorded, and the nodes that were noted, for another update to take over.
    pub(super) fn into_parts(self) -> (R, Encoder) {
        (self.recorder, self.encoder)
    }

    pub(super) fn finish_into(self, recorder: &mut R) {
        recorder.absorb(self.recorder);
        if R::NODES {
            recorder.nodes(self.encoder.into_hashed());
        }
    }

    /// Applies `items`, all below `slot`, to what hangs there.
    pub(super) fn slot(
        &mut self,
        link: Option<&Link<N::Stamp>>,
        slot: &Nibbles,
        items: &[Item<N::Stamp>],
    ) -> Result<Outcome<N::Stamp>, StateError> {
        if items.is_empty() {
            return Ok(Outcome::Same);
        }
        if let Some((outcome, part)) = self.early.and_then(|early| early.take(slot, items)) {
            self.absorb(part);
            return Ok(outcome);
        }
        match link {
            None => {
                let inserts: Vec<_> = items.iter().filter_map(Insert::from_item).collect();
                Ok(match &inserts[..] {
                    [] => Outcome::Same,
                    inserts => Outcome::New(Some(self.build(slot, inserts))),
                })
            }
            Some(Link::Leaf(leaf)) => Ok(self.leaf(leaf, slot, items)),
            Some(Link::Branch(link)) => self.branch(link, slot, items),
            Some(Link::Unresolved(reference)) => match self.source.resolve(slot, reference)? {
                Link::Unresolved(_) => Err(unresolvable(slot)),
                link => self.slot(Some(&link), slot, items),
            },
        }
    }

    fn leaf(
        &mut self,
        leaf: &Arc<Leaf<N::Stamp>>,
        slot: &Nibbles,
        items: &[Item<N::Stamp>],
    ) -> Outcome<N::Stamp> {
        // The common case first: the value of one key changes, or the key goes.
        if let [Item { key, value, stamp }] = items
            && key == leaf.key()
        {
            return match value {
                Some(value) if value == leaf.value() && *stamp == leaf.stamp() => Outcome::Same,
                Some(value) => {
                    let leaf = Leaf::new(*key, value.clone(), *stamp);
                    Outcome::New(Some(Link::Leaf(Arc::new(leaf))))
                }
                None => Outcome::New(None),
            };
        }
        let mut kept = items.iter().all(|item| item.key != *leaf.key()).then(|| leaf.clone());
        let inserts = items.iter().filter_map(Insert::from_item);
        let mut entries = Vec::with_capacity(items.len() + 1);
        for insert in inserts {
            if kept.as_ref().is_some_and(|leaf| leaf.key() < insert.key) {
                entries.extend(kept.take().map(Placed::leaf));
            }
            entries.push(Placed::leaf(insert.leaf()));
        }
        entries.extend(kept.map(Placed::leaf));
        match &entries[..] {
            [] => Outcome::New(None),
            [Placed { link: Link::Leaf(only), .. }] if Arc::ptr_eq(only, leaf) => Outcome::Same,
            entries => Outcome::New(Some(self.build(slot, entries))),
        }
    }

    /// Applies `items` to a branch and to the extension above it.
    fn branch(
        &mut self,
        link: &BranchLink<N::Stamp>,
        slot: &Nibbles,
        items: &[Item<N::Stamp>],
    ) -> Result<Outcome<N::Stamp>, StateError> {
        if !link.has_extension() {
            return Ok(match self.inside(link, slot, items)? {
                None => Outcome::Same,
                Some(placed) => Outcome::New(placed.map(|placed| placed.hang_at(slot))),
            });
        }
        let path = link.path(slot);
        // Items below the branch, and those that leave its extension on the one or the other side.
        let head = |item: &Item<N::Stamp>| Nibbles::unpack_array(&item.key.0).slice(..path.len());
        let start = items.partition_point(|item| head(item) < path);
        let end = items.partition_point(|item| head(item) <= path);
        let inserts = |items: &[Item<N::Stamp>]| {
            items.iter().filter_map(Insert::from_item).map(|i| i.leaf()).collect()
        };
        let (before, after): (Vec<_>, Vec<_>) = (inserts(&items[..start]), inserts(&items[end..]));

        let inside =
            if start == end { None } else { self.inside(link, &path, &items[start..end])? };
        let middle = match inside {
            None if before.is_empty() && after.is_empty() => return Ok(Outcome::Same),
            None => Some(Placed { path, link: Link::Branch(link.clone()) }),
            Some(placed) => placed,
        };
        let entries: Vec<_> = before
            .into_iter()
            .map(Placed::leaf)
            .chain(middle)
            .chain(after.into_iter().map(Placed::leaf))
            .collect();
        Ok(Outcome::New(match &entries[..] {
            [] => None,
            entries => Some(self.build(slot, entries)),
        }))
    }

    /// Applies `items`, all below the branch at `path`. `None`: nothing changed.
    fn inside(
        &mut self,
        link: &BranchLink<N::Stamp>,
        path: &Nibbles,
        items: &[Item<N::Stamp>],
    ) -> Result<Option<Option<Placed<N::Stamp>>>, StateError> {
        let node = loaded(self.source, path, link)?;
        let nibble_of =
            |item: &Item<N::Stamp>| Nibbles::unpack_array(&item.key.0).get_unchecked(path.len());
        if path.len() == 64 {
            return Err(StateError::corrupt("trie", format!("a branch at the full key {path:?}")));
        }
        let groups = items.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let child = |update: &mut Self, items: &[Item<N::Stamp>]| {
            let nibble = nibble_of(&items[0]);
            let link = node.children[nibble as usize].as_ref();
            Ok((nibble, update.slot(link, &child_slot(path, nibble), items)?))
        };
        let outcomes: Vec<(u8, Outcome<_>)> = if Self::is_small(items.len()) {
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
        if outcomes.iter().all(|(_, outcome)| matches!(outcome, Outcome::Same)) {
            return Ok(None);
        }
        let mut children = node.children.clone();
        for (nibble, outcome) in outcomes {
            if let Outcome::New(link) = outcome {
                children[nibble as usize] = link;
            }
        }
        let mut left = (0u8..).zip(&mut children).filter(|(_, child)| child.is_some());
        Ok(Some(match (left.next(), left.next()) {
            (Some((nibble, only)), None) => {
                self.recorder.record(path, Some(&node), None);
                let slot = child_slot(path, nibble);
                let link =
                    only.take().map(|link| resolved(self.source, &slot, link)).transpose()?;
                link.map(|link| Placed::taken_from(&slot, link))
            }
            (None, _) => {
                self.recorder.record(path, Some(&node), None);
                None
            }
            _ => Some(self.finish(path, Some(&node), children)),
        }))
    }

    /// Builds what hangs at `slot` from entries in path order, none of them a prefix of another.
    pub(super) fn build<E: Entry<N::Stamp>>(
        &mut self,
        slot: &Nibbles,
        entries: &[E],
    ) -> Link<N::Stamp> {
        let (first, last) = match entries {
            [only] => return only.hang_at(slot),
            [first, .., last] => (first.path(), last.path()),
            [] => unreachable!("callers have handled the empty slot"),
        };
        let path = first.slice(..first.common_prefix_length(&last));
        let nibble_of = |entry: &E| entry.path().get_unchecked(path.len());
        let groups = entries.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let mut children = Children::<N::Stamp>::default();
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
        children: Children<N::Stamp>,
    ) -> Placed<N::Stamp> {
        let branch = Branch::hash(path, children, self.recorder.stamp(), &mut self.encoder);
        self.recorder.record(path, previous, Some(&branch));
        let kept = self.source.keep(path, &branch);
        Placed { path: *path, link: Link::Branch(BranchLink::to(path, path, branch, kept)) }
    }
}
