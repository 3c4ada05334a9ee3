//! The data structure, free of any one layout: the seam for other stores that are Merkle Patricia
//! tries or contain them.
//!
//! A [`Trie`] is a value in memory, of which mostly a small part is there: what is missing comes from
//! a [`NodeSource`], what changes goes to a [`Recorder`]. Both are known at compile time, and so is
//! the [`Stamp`], by which links find the rows of branches where a path alone does not say it; none of
//! it costs those who do not use it.
//!
//! | a store that | has |
//! |---|---|
//! | keeps the latest version of rows by path ([`Mpt`](crate::Mpt)) | [`Rows`] and [`RowRecorder`], stamp `()` |
//! | keeps all versions of rows, by path and block | [`Rows`] and [`RowRecorder`], stamp `u64`: a parent names the block that wrote its child's row, so that every read is an exact one; of the changed rows it puts those with a `next`, and may prune the others once nobody reads them |
//! | keeps nodes by hash ([`MptArchive`](crate::MptArchive)) | a source that [resolves](NodeSource::resolve), a recorder that wants [nodes](Recorder::NODES) |
//! | has a whole trie in memory | [`InMemory`], and `()` for a recorder |
//! | learns of items before its batch is whole | [`Early`] and [`Trie::update_after`] |
//! | works in the background | [`Sequential`] around its source: then no thread but the caller's works |
//! | builds a trie in steps, each of bounded memory | [`Part::build`] for disjoint subtrees in key order, [`Trie::join`] at the end |
//! | has several tries under one root | [`verify::walk`](crate::verify::walk) for each of them |
//!
//! Tables and prefixes are the store's own: a [`Place`] names them. The bytes of rows are in [`row`].

mod early;
mod node;
mod packed;
pub mod row;
mod source;
mod stamp;
mod table;
mod update;

pub use early::Early;
pub use node::{Branch, BranchLink, Change, Children, Leaf, Link};
pub use source::{InMemory, NodeSource, Recorder, Sequential, Unkept};
pub use stamp::Stamp;
pub use table::{Place, RowChange, RowRecorder, Rows};

pub(crate) use node::Encoder;
pub(crate) use table::write;

use crate::hash::TrieHash;
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::StateError;
use std::sync::Arc;
use update::{Entry, Insert, Outcome, Placed, Update};

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<S = ()> {
    /// The hashed key.
    pub key: B256,
    /// What the leaf shall hold; `None` removes the key if it is there.
    pub value: Option<Bytes>,
    /// What leads to the rows that the value names.
    pub stamp: S,
}

impl<S: Stamp> Item<S> {
    /// A change whose value names no rows.
    pub fn new(key: B256, value: Option<Bytes>) -> Self {
        Self { key, value, stamp: S::default() }
    }
}

/// A Merkle Patricia trie over 32-byte keys. Immutable; clones share all nodes.
#[derive(Clone, Debug)]
pub struct Trie<S = ()> {
    root: Option<Link<S>>,
    hash: B256,
    with: TrieHash,
}

impl Default for Trie {
    fn default() -> Self {
        Self::empty(TrieHash::Keccak256)
    }
}

impl<S: Stamp> Trie<S> {
    /// The trie without keys, whose nodes are hashed `with` this function.
    pub const fn empty(with: TrieHash) -> Self {
        Self { root: None, hash: with.empty_root(), with }
    }

    /// The trie whose root is only known by its hash.
    pub fn unresolved(with: TrieHash, hash: B256) -> Self {
        let is_empty = hash == with.empty_root();
        let root = (!is_empty).then(|| Link::Unresolved(RlpNode::word_rlp(&hash)));
        Self { root, hash, with }
    }

    /// The trie with `root` at its root slot, hashed with keccak-256.
    pub fn from_root(root: Option<Link<S>>) -> Self {
        let with = TrieHash::Keccak256;
        Self::hung(with, root, &mut Encoder::new(with))
    }

    fn hung(with: TrieHash, root: Option<Link<S>>, encoder: &mut Encoder) -> Self {
        let hash = match &root {
            None => with.empty_root(),
            Some(link) => {
                // 32-byte keys make every root long enough to have a hash of its own.
                let reference = link.reference(0, encoder);
                reference.as_hash().unwrap_or_else(|| with.hash(&reference))
            }
        };
        Self { root, hash, with }
    }

    /// The hash function of its nodes.
    pub const fn hash_function(&self) -> TrieHash {
        self.with
    }

    /// What hangs at the root slot.
    pub const fn root(&self) -> Option<&Link<S>> {
        self.root.as_ref()
    }

    /// The root hash.
    pub const fn hash(&self) -> B256 {
        self.hash
    }

    /// Whether it has no keys.
    pub const fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Number of branches that are in memory.
    pub fn cached(&self) -> usize {
        match &self.root {
            Some(Link::Branch(link)) => link.node().map_or(0, |node| node.cached),
            _ => 0,
        }
    }

    /// The value at `key`.
    pub fn get(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
    ) -> Result<Option<Bytes>, StateError> {
        let leaf = self.walk(source, key, |_, _| ())?;
        Ok(leaf.map(|leaf| leaf.value().clone()))
    }

    /// The leaf of `key`.
    pub fn leaf(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        self.walk(source, key, |_, _| ())
    }

    /// Appends the nodes on the way to `key` to `proof`, from the root down to the leaf or to where
    /// the way ends, without those embedded in others: what EIP-1186 calls a proof. The empty trie
    /// has no nodes.
    pub fn prove(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
        proof: &mut Vec<Bytes>,
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        let mut add = |rlp: &[u8], depth: usize| {
            // The root stands for itself however short it is.
            if depth == 0 || rlp.len() >= 32 {
                proof.push(Bytes::copy_from_slice(rlp));
            }
        };
        let mut encoder = Encoder::new(self.with);
        self.walk(source, key, |visited, depth| match visited {
            Visited::Link(link) => {
                if link.encode_short(depth, &mut encoder) {
                    add(&encoder.rlp, depth);
                }
            }
            Visited::Branch(branch) => {
                branch.encode(depth, &mut encoder);
                add(&encoder.rlp, depth);
            }
        })
    }

    /// Goes down to `key`, showing each link and each branch with its depth.
    fn walk(
        &self,
        source: &impl NodeSource<Stamp = S>,
        key: &B256,
        mut visit: impl FnMut(Visited<'_, S>, usize),
    ) -> Result<Option<Arc<Leaf<S>>>, StateError> {
        let key_path = Nibbles::unpack_array(&key.0);
        let mut slot = Nibbles::new();
        let mut next = self.root.clone();
        while let Some(link) = next {
            let link = resolved(source, &slot, link)?;
            visit(Visited::Link(&link), slot.len());
            match link {
                Link::Leaf(leaf) => {
                    return Ok((leaf.key() == key).then_some(leaf));
                }
                Link::Unresolved(_) => return Err(unresolvable(&slot)),
                Link::Branch(link) => {
                    let path = link.path(&slot);
                    if !key_path.starts_with(&path) {
                        return Ok(None);
                    }
                    let branch = loaded(source, &path, &link)?;
                    visit(Visited::Branch(&branch), path.len());
                    let nibble = nibble_at(&key_path, &path)?;
                    next = branch.children[nibble as usize].clone();
                    slot = child_slot(&path, nibble);
                }
            }
        }
        Ok(None)
    }

    /// The trie after all of `items`, which must be sorted by key and have one item a key.
    ///
    /// Each touched branch is loaded once, hashed once and recorded once, in an order that depends
    /// on the items alone. A branch that is left with one child gives way to it only when that is
    /// how the batch as a whole leaves it; only then an unresolved child is asked for.
    pub fn update<R: Recorder<Stamp = S>>(
        &self,
        source: &impl NodeSource<Stamp = S>,
        items: &[Item<S>],
        recorder: &mut R,
    ) -> Result<Self, StateError> {
        self.update_after(None, source, items, recorder)
    }

    /// The same, and takes from `early`, which is of this trie, what is done already.
    pub fn update_after<R: Recorder<Stamp = S>>(
        &self,
        early: Option<&Early<R>>,
        source: &impl NodeSource<Stamp = S>,
        items: &[Item<S>],
        recorder: &mut R,
    ) -> Result<Self, StateError> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let mut update = Update::new(source, recorder, self.with, early);
        let outcome = update.slot(self.root.as_ref(), &Nibbles::new(), items)?;
        let trie = match outcome {
            Outcome::Same => self.clone(),
            Outcome::New(root) => Self::hung(self.with, root, &mut update.encoder),
        };
        update.finish_into(recorder);
        Ok(trie)
    }

    /// The trie of `items`, which must be sorted by key and have one item a key, all with values.
    /// It is built a 256th at a time: `part` takes what was recorded meanwhile, so that not all of
    /// it is in memory at once.
    pub fn build<R: Recorder<Stamp = S>>(
        with: TrieHash,
        source: &impl NodeSource<Stamp = S>,
        items: &[Item<S>],
        recorder: &R,
        mut part: impl FnMut(R) -> Result<(), StateError>,
    ) -> Result<Self, StateError> {
        let mut parts = Vec::new();
        for items in items.chunk_by(|a, b| a.key[0] == b.key[0]) {
            let slot = Nibbles::unpack_array(&items[0].key.0).slice(..2);
            let mut recorded = recorder.fork();
            parts.extend(Part::build(with, source, &slot, items, &mut recorded));
            part(recorded)?;
        }
        let mut recorded = recorder.fork();
        let trie = Self::join(with, source, &parts, &mut recorded);
        part(recorded)?;
        Ok(trie)
    }

    /// The trie that consists of these parts, which come in key order and none of which lies within
    /// another.
    pub fn join<R: Recorder<Stamp = S>>(
        with: TrieHash,
        source: &impl NodeSource<Stamp = S>,
        parts: &[Part<S>],
        recorder: &mut R,
    ) -> Self {
        let parts: Vec<_> = parts.iter().map(|part| part.0.clone()).collect();
        let mut update = Update::new(source, recorder, with, None);
        let root = (!parts.is_empty()).then(|| update.build(&Nibbles::new(), &parts));
        let trie = Self::hung(with, root, &mut update.encoder);
        update.finish_into(recorder);
        trie
    }
}

/// A subtree that was built on its own, to be [joined](Trie::join) with others.
#[derive(Clone, Debug)]
pub struct Part<S = ()>(Placed<S>);

impl<S: Stamp> Part<S> {
    /// The subtree of `items`, which are all below `slot`, sorted by key, one item a key; `None` if
    /// none of them has a value. Its branches are recorded, but for what only the join decides: the
    /// extension above them.
    pub fn build<R: Recorder<Stamp = S>>(
        with: TrieHash,
        source: &impl NodeSource<Stamp = S>,
        slot: &Nibbles,
        items: &[Item<S>],
        recorder: &mut R,
    ) -> Option<Self> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let inserts: Vec<_> = items.iter().filter_map(Insert::from_item).collect();
        if inserts.is_empty() {
            return None;
        }
        let mut update = Update::new(source, recorder, with, None);
        let part = Placed::taken_from(slot, update.build(slot, &inserts));
        update.finish_into(recorder);
        Some(Self(part))
    }

    /// Reference of its topmost node, if it hangs at `slot`.
    pub(crate) fn reference(&self, slot: &Nibbles, encoder: &mut Encoder) -> RlpNode {
        self.0.hang_at(slot).reference(slot.len(), encoder)
    }
}

/// What a walk comes by.
enum Visited<'a, S> {
    Link(&'a Link<S>),
    Branch(&'a Branch<S>),
}

pub(crate) fn resolved<S: Stamp>(
    source: &impl NodeSource<Stamp = S>,
    slot: &Nibbles,
    link: Link<S>,
) -> Result<Link<S>, StateError> {
    match link {
        Link::Unresolved(reference) => source.resolve(slot, &reference),
        link => Ok(link),
    }
}

pub(crate) fn loaded<S: Stamp>(
    source: &impl NodeSource<Stamp = S>,
    path: &Nibbles,
    link: &BranchLink<S>,
) -> Result<Arc<Branch<S>>, StateError> {
    link.node().map_or_else(|| source.load(path, link), |node| Ok(node.clone()))
}

fn unresolvable(slot: &Nibbles) -> StateError {
    StateError::corrupt("trie", format!("the node at {slot:?} resolves to nothing"))
}

/// The nibble of `key` below the branch at `path`.
fn nibble_at(key: &Nibbles, path: &Nibbles) -> Result<u8, StateError> {
    key.get(path.len())
        .ok_or_else(|| StateError::corrupt("trie", format!("a branch below the full key {path:?}")))
}

/// The slot of a child of the branch at `path`.
pub(crate) fn child_slot(path: &Nibbles, nibble: u8) -> Nibbles {
    let mut slot = *path;
    slot.push(nibble);
    slot
}
