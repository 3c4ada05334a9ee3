//! The trie: reading, proving, and the one way to change it, a sorted batch.

use crate::node::{Branch, BranchLink, Children, Leaf, Link};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use rayon::prelude::*;
use retrie_state::StateError;
use std::sync::Arc;

/// Batches from this size on are worked on in parallel, child by child.
const PARALLEL_ITEMS: usize = 96;

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

/// Takes down which branches an update changed.
pub trait Recorder: Send + Sync + Sized {
    /// An empty recorder for a part of the work that runs in parallel.
    fn fork(&self) -> Self;

    /// Takes over what a part recorded. Parts are taken over in key order.
    fn absorb(&mut self, part: Self);

    /// The branch at `path` changed. Called at most once a path and update.
    fn record(&mut self, path: &Nibbles, previous: Option<&Branch>, next: Option<&Branch>);
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
}

impl Default for Trie {
    fn default() -> Self {
        Self { root: None, hash: EMPTY_ROOT_HASH }
    }
}

impl Trie {
    /// The trie whose root is only known by its hash.
    pub fn unresolved(hash: B256) -> Self {
        let root = (hash != EMPTY_ROOT_HASH).then(|| Link::Unresolved(RlpNode::word_rlp(&hash)));
        Self { root, hash }
    }

    /// The trie with `root` at its root slot.
    pub(crate) fn from_link(root: Option<Link>) -> Self {
        let hash = root.as_ref().map_or(EMPTY_ROOT_HASH, |link| {
            let reference = link.reference(0, &mut Vec::new());
            reference.as_hash().unwrap_or_else(|| keccak256(&reference))
        });
        Self { root, hash }
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
        let mut buf = Vec::new();
        self.walk(source, key, |visited, depth| match visited {
            Visited::Link(link) => {
                if link.short_rlp(depth, &mut buf) {
                    add(&buf, depth);
                }
            }
            Visited::Branch(branch) => {
                branch.rlp(depth, &mut buf);
                add(&buf, depth);
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
        let mut update = Update { source, recorder: recorder.fork(), buf: Vec::with_capacity(600) };
        let outcome = update.slot(self.root.as_ref(), &Nibbles::new(), items)?;
        recorder.absorb(update.recorder);
        Ok(match outcome {
            Outcome::Same => self.clone(),
            Outcome::New(root) => Self::from_link(root),
        })
    }
}

/// What a walk comes by.
enum Visited<'a> {
    Link(&'a Link),
    Branch(&'a Branch),
}

fn resolved(source: &impl NodeSource, slot: &Nibbles, link: Link) -> Result<Link, StateError> {
    match link {
        Link::Unresolved(reference) => source.resolve(slot, &reference),
        link => Ok(link),
    }
}

fn loaded(
    source: &impl NodeSource,
    path: &Nibbles,
    link: &BranchLink,
) -> Result<Arc<Branch>, StateError> {
    link.node.as_ref().map_or_else(|| source.load(path, &link.reference), |node| Ok(node.clone()))
}

fn unresolvable(slot: &Nibbles) -> StateError {
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

/// What became of a slot.
enum Outcome {
    /// Nothing changed.
    Same,
    New(Option<Link>),
}

/// A link that is about to be hung somewhere, with the path of its leaf or branch.
struct Placed {
    path: Nibbles,
    link: Link,
}

impl Placed {
    fn leaf(leaf: Arc<Leaf>) -> Self {
        Self { path: leaf.path(), link: Link::Leaf(leaf) }
    }

    /// Takes `link` off the slot `slot`.
    fn taken_from(slot: &Nibbles, link: Link) -> Self {
        let path = match &link {
            Link::Leaf(leaf) => leaf.path(),
            Link::Branch(link) => link.path(slot),
            Link::Unresolved(_) => *slot,
        };
        Self { path, link }
    }
}

/// A part of a subtree that is about to be built.
trait Entry: Sync {
    fn path(&self) -> Nibbles;
    fn hang_at(&self, slot: &Nibbles) -> Link;
}

impl Entry for Placed {
    fn path(&self) -> Nibbles {
        self.path
    }

    fn hang_at(&self, slot: &Nibbles) -> Link {
        match &self.link {
            Link::Branch(BranchLink { reference, node, .. }) => {
                let link = BranchLink::new(slot, &self.path, reference.clone(), node.clone());
                Link::Branch(link)
            }
            link => link.clone(),
        }
    }
}

/// An insertion.
#[derive(Clone, Copy)]
struct Insert<'a> {
    key: &'a B256,
    value: &'a Bytes,
}

impl<'a> Insert<'a> {
    fn from_item(item: &'a Item) -> Option<Self> {
        item.value.as_ref().map(|value| Self { key: &item.key, value })
    }

    fn leaf(&self) -> Arc<Leaf> {
        Arc::new(Leaf::new(*self.key, self.value.clone()))
    }
}

impl Entry for Insert<'_> {
    fn path(&self) -> Nibbles {
        Nibbles::unpack_array(&self.key.0)
    }

    fn hang_at(&self, _: &Nibbles) -> Link {
        Link::Leaf(self.leaf())
    }
}

/// One update under way, or a part of it.
struct Update<'a, S, R> {
    source: &'a S,
    recorder: R,
    buf: Vec<u8>,
}

impl<S: NodeSource, R: Recorder> Update<'_, S, R> {
    fn fork(&self) -> Self {
        Self { source: self.source, recorder: self.recorder.fork(), buf: Vec::with_capacity(600) }
    }

    /// Applies `items`, all below `slot`, to what hangs there.
    fn slot(
        &mut self,
        link: Option<&Link>,
        slot: &Nibbles,
        items: &[Item],
    ) -> Result<Outcome, StateError> {
        if items.is_empty() {
            return Ok(Outcome::Same);
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

    fn leaf(&mut self, leaf: &Arc<Leaf>, slot: &Nibbles, items: &[Item]) -> Outcome {
        // The common case first: the value of one key changes, or the key goes.
        if let [Item { key, value }] = items
            && key == leaf.key()
        {
            return match value {
                Some(value) if value == leaf.value() => Outcome::Same,
                Some(value) => {
                    Outcome::New(Some(Link::Leaf(Arc::new(Leaf::new(*key, value.clone())))))
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
        link: &BranchLink,
        slot: &Nibbles,
        items: &[Item],
    ) -> Result<Outcome, StateError> {
        if !link.has_extension() {
            return Ok(match self.inside(link, slot, items)? {
                None => Outcome::Same,
                Some(placed) => Outcome::New(placed.map(|placed| placed.hang_at(slot))),
            });
        }
        let path = link.path(slot);
        // Items below the branch, and those that leave its extension on the one or the other side.
        let head = |item: &Item| Nibbles::unpack_array(&item.key.0).slice(..path.len());
        let start = items.partition_point(|item| head(item) < path);
        let end = items.partition_point(|item| head(item) <= path);
        let inserts =
            |items: &[Item]| items.iter().filter_map(Insert::from_item).map(|i| i.leaf()).collect();
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
        link: &BranchLink,
        path: &Nibbles,
        items: &[Item],
    ) -> Result<Option<Option<Placed>>, StateError> {
        let node = loaded(self.source, path, link)?;
        let nibble_of = |item: &Item| Nibbles::unpack_array(&item.key.0).get_unchecked(path.len());
        if path.len() == 64 {
            return Err(StateError::corrupt("trie", format!("a branch at the full key {path:?}")));
        }
        let groups = items.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let child = |update: &mut Self, items: &[Item]| {
            let nibble = nibble_of(&items[0]);
            let link = node.children[nibble as usize].as_ref();
            Ok((nibble, update.slot(link, &child_slot(path, nibble), items)?))
        };
        let outcomes: Vec<(u8, Outcome)> = if items.len() < PARALLEL_ITEMS {
            groups.map(|items| child(self, items)).collect::<Result<_, StateError>>()?
        } else {
            let this = &*self;
            let parts = groups
                .collect::<Vec<_>>()
                .into_par_iter()
                .map(|items| {
                    let mut part = this.fork();
                    Ok((child(&mut part, items)?, part.recorder))
                })
                .collect::<Result<Vec<_>, StateError>>()?;
            let absorb = |(outcome, part)| {
                self.recorder.absorb(part);
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
    fn build<E: Entry>(&mut self, slot: &Nibbles, entries: &[E]) -> Link {
        let (first, last) = match entries {
            [only] => return only.hang_at(slot),
            [first, .., last] => (first.path(), last.path()),
            [] => unreachable!("callers have handled the empty slot"),
        };
        let path = first.slice(..first.common_prefix_length(&last));
        let nibble_of = |entry: &E| entry.path().get_unchecked(path.len());
        let groups = entries.chunk_by(|a, b| nibble_of(a) == nibble_of(b));
        let mut children = Children::default();
        let child = |update: &mut Self, entries: &[E]| {
            let nibble = nibble_of(&entries[0]);
            (nibble, update.build(&child_slot(&path, nibble), entries))
        };
        if entries.len() < PARALLEL_ITEMS {
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
                    (child(&mut part, entries), part.recorder)
                })
                .collect();
            for ((nibble, link), part) in parts {
                self.recorder.absorb(part);
                children[nibble as usize] = Some(link);
            }
        }
        self.finish(&path, None, children).hang_at(slot)
    }

    /// Hashes and records a new branch.
    fn finish(&mut self, path: &Nibbles, previous: Option<&Branch>, children: Children) -> Placed {
        let branch = Branch::hash(path, children, &mut self.buf);
        self.recorder.record(path, previous, Some(&branch));
        let reference = branch.reference.clone();
        let node = self.source.keep(path, &branch).then(|| Arc::new(branch));
        Placed { path: *path, link: Link::Branch(BranchLink::new(path, path, reference, node)) }
    }
}
