//! The trie: reading, proving, and the one way to change it, a sorted batch.

use crate::{
    hash::TrieHash,
    node::{Branch, BranchLink, Encoder, Link},
    update::{Insert, Outcome, Placed, Update},
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::StateError;
use std::sync::Arc;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The hashed key.
    pub key: B256,
    /// What the leaf shall hold; `None` removes the key if it is there.
    pub value: Option<Bytes>,
}

/// Where branches come from that are not in memory.
pub trait NodeSource: Sync {
    /// The branch at `path`, which has the given reference.
    fn load(&self, path: &Nibbles, reference: &RlpNode) -> Result<Arc<Branch>, StateError>;

    /// Finds out what an [`Unresolved`](Link::Unresolved) link at the slot `path` is.
    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link, StateError>;

    /// Whether a changed branch stays in memory as part of the new trie; otherwise it is loaded
    /// when it is next needed.
    fn keep(&self, path: &Nibbles, branch: &Branch) -> bool;
}

/// The source of tries that are wholly in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl NodeSource for InMemory {
    fn load(&self, path: &Nibbles, _: &RlpNode) -> Result<Arc<Branch>, StateError> {
        Err(StateError::corrupt("trie in memory", format!("no branch at {path:?}")))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<Link, StateError> {
        Err(StateError::corrupt("trie in memory", format!("no node at {path:?}")))
    }

    fn keep(&self, _: &Nibbles, _: &Branch) -> bool {
        true
    }
}

/// Takes down what an update changed: branches by path, or nodes by hash.
pub trait Recorder: Send + Sync + Sized {
    /// Whether [`nodes`](Self::nodes) wants to know the nodes.
    const NODES: bool = false;

    /// An empty recorder for a part of the work that runs in parallel.
    fn fork(&self) -> Self;

    /// Takes over what a part recorded. Parts are taken over in key order.
    fn absorb(&mut self, part: Self);

    /// The branch at `path` changed. Called at most once a path and update.
    fn record(&mut self, path: &Nibbles, previous: Option<&Branch>, next: Option<&Branch>);

    /// The nodes of the changed paths that have a hash, with their RLP: branches, extensions and
    /// leaves, the root's included. Called once an update.
    fn nodes(&mut self, nodes: Vec<(B256, Bytes)>) {
        let _ = nodes;
    }
}

impl Recorder for () {
    fn fork(&self) -> Self {}
    fn absorb(&mut self, (): Self) {}
    fn record(&mut self, _: &Nibbles, _: Option<&Branch>, _: Option<&Branch>) {}
}

/// A Merkle Patricia trie over 32-byte keys. Immutable; clones share all nodes.
#[derive(Clone, Debug)]
pub struct Trie {
    root: Option<Link>,
    hash: B256,
    with: TrieHash,
}

impl Default for Trie {
    fn default() -> Self {
        Self::empty(TrieHash::Keccak256)
    }
}

impl Trie {
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

    /// The trie with `root` at its root slot.
    pub(crate) fn from_link(root: Option<Link>) -> Self {
        let with = TrieHash::Keccak256;
        Self::hung(with, root, &mut Encoder::new(with))
    }

    fn hung(with: TrieHash, root: Option<Link>, encoder: &mut Encoder) -> Self {
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
    pub(crate) const fn hash_function(&self) -> TrieHash {
        self.with
    }

    /// What hangs at the root slot.
    pub const fn root(&self) -> Option<&Link> {
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
            Some(Link::Branch(BranchLink { node: Some(node), .. })) => node.cached,
            _ => 0,
        }
    }

    /// The value at `key`.
    pub fn get(&self, source: &impl NodeSource, key: &B256) -> Result<Option<Bytes>, StateError> {
        self.walk(source, key, |_, _| ())
    }

    /// Appends the nodes on the way to `key` to `proof`, from the root down to the leaf or to where
    /// the way ends, without those embedded in others: what EIP-1186 calls a proof. The empty trie
    /// has no nodes.
    pub fn prove(
        &self,
        source: &impl NodeSource,
        key: &B256,
        proof: &mut Vec<Bytes>,
    ) -> Result<Option<Bytes>, StateError> {
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
        source: &impl NodeSource,
        key: &B256,
        mut visit: impl FnMut(Visited<'_>, usize),
    ) -> Result<Option<Bytes>, StateError> {
        let key_path = Nibbles::unpack_array(&key.0);
        let mut slot = Nibbles::new();
        let mut next = self.root.clone();
        while let Some(link) = next {
            let link = resolved(source, &slot, link)?;
            visit(Visited::Link(&link), slot.len());
            match link {
                Link::Leaf(leaf) => {
                    return Ok((leaf.key() == key).then(|| leaf.value().clone()));
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
    pub fn update<R: Recorder>(
        &self,
        source: &impl NodeSource,
        items: &[Item],
        recorder: &mut R,
    ) -> Result<Self, StateError> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let mut update = Update::new(source, recorder, self.with);
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
    pub fn build<R: Recorder>(
        with: TrieHash,
        source: &impl NodeSource,
        items: &[Item],
        recorder: &R,
        mut part: impl FnMut(R) -> Result<(), StateError>,
    ) -> Result<Self, StateError> {
        debug_assert!(items.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted by key");
        let mut parts = Vec::new();
        for items in items.chunk_by(|a, b| a.key[0] == b.key[0]) {
            let slot = Nibbles::unpack_array(&items[0].key.0).slice(..2);
            let inserts: Vec<_> = items.iter().filter_map(Insert::from_item).collect();
            if inserts.is_empty() {
                continue;
            }
            let mut update = Update::new(source, recorder, with);
            parts.push(Placed::taken_from(&slot, update.build(&slot, &inserts)));
            let mut recorded = recorder.fork();
            update.finish_into(&mut recorded);
            part(recorded)?;
        }
        let mut update = Update::new(source, recorder, with);
        let root = (!parts.is_empty()).then(|| update.build(&Nibbles::new(), &parts));
        let trie = Self::hung(with, root, &mut update.encoder);
        let mut recorded = recorder.fork();
        update.finish_into(&mut recorded);
        part(recorded)?;
        Ok(trie)
    }
}

/// What a walk comes by.
enum Visited<'a> {
    Link(&'a Link),
    Branch(&'a Branch),
}

pub(crate) fn resolved(
    source: &impl NodeSource,
    slot: &Nibbles,
    link: Link,
) -> Result<Link, StateError> {
    match link {
        Link::Unresolved(reference) => source.resolve(slot, &reference),
        link => Ok(link),
    }
}

pub(crate) fn loaded(
    source: &impl NodeSource,
    path: &Nibbles,
    link: &BranchLink,
) -> Result<Arc<Branch>, StateError> {
    link.node.as_ref().map_or_else(|| source.load(path, &link.reference), |node| Ok(node.clone()))
}

pub(crate) fn unresolvable(slot: &Nibbles) -> StateError {
    StateError::corrupt("trie", format!("the node at {slot:?} resolves to nothing"))
}

/// The nibble of `key` below the branch at `path`.
fn nibble_at(key: &Nibbles, path: &Nibbles) -> Result<u8, StateError> {
    key.get(path.len())
        .ok_or_else(|| StateError::corrupt("trie", format!("a branch below the full key {path:?}")))
}

pub(crate) fn child_slot(path: &Nibbles, nibble: u8) -> Nibbles {
    let mut slot = *path;
    slot.push(nibble);
    slot
}
