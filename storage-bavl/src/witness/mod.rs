//! Block witnesses: a partial tree with the entries that a block reads or changes, the hashes of
//! entries that shift, the chunks that merge, and the shape of subtrees whose height matters.
//!
//! # Soundness
//!
//! As that of [proofs](crate::verify). Where an entry goes follows from the entries around it: it
//! belongs to the chunk of the one before. How chunks are cut and merged follows from their numbers of
//! entries, which their hashes bind, and how the tree is rotated from the heights of subtrees
//! ([`tree`]).
//!
//! The witness is made by running [`apply`] on a tree that opens what it is asked for, and writing down
//! what was opened.

mod bytes;
mod chunk;
mod make;
mod regroup;
mod tree;

pub(crate) use make::make;

use crate::{ChunkEntries, hash, proof::malformed};
use alloy_primitives::B256;
use chunk::{PartialChunk, PositionChange, WitnessEntry};
use regroup::RegionWork;
use retrie_state::{
    AccountKey, BackendDelta, BackendKey, ProofError, StateError, StateValue, WitnessError,
    descriptor::{OpenedWitness, WitnessResult, check_previous},
};
use tree::{NodeContent, NodePath, NodePtr, PartialNode, TreeOrigin, TreeWork};

/// Why an update of a partial tree ended: a row could not be read, or the witness lacks something.
#[derive(Debug)]
enum WitnessFault {
    State(StateError),
    Witness(WitnessError),
}

impl From<StateError> for WitnessFault {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<WitnessError> for WitnessFault {
    fn from(error: WitnessError) -> Self {
        Self::Witness(error)
    }
}

/// Opens the witness `bytes` of the state of `root`.
pub(crate) fn open(root: B256, bytes: &[u8]) -> WitnessResult {
    let (most, top) = bytes::decode(bytes)?;
    let tree = PartialTree::new(most, top);
    if tree.root(tree.top.as_ref()) != root {
        return Err(ProofError::RootMismatch.into());
    }
    if !tree.entries.windows(2).all(|pair| pair[0].entry.key < pair[1].entry.key) {
        return Err(malformed("keys are out of order").into());
    }
    Ok(Box::new(BavlWitness(tree)))
}

/// The tree of a witness: nothing more can be opened.
#[derive(Debug)]
enum NoHandle {}

/// The origin of nodes without a store.
struct NoOrigin;

impl TreeOrigin for NoOrigin {
    type Handle = NoHandle;

    fn open(&self, handle: &NoHandle) -> Result<NodeContent<NoHandle>, WitnessFault> {
        match *handle {}
    }

    fn load(&self, handle: &NoHandle, _: &PartialChunk) -> Result<(), WitnessFault> {
        match *handle {}
    }
}

/// An entry that a partial tree shows, and its place.
#[derive(Debug)]
struct PlacedEntry {
    entry: WitnessEntry,
    path: NodePath,
    position: usize,
    /// Whether hidden entries may lie before it.
    after_hidden: bool,
}

/// A partial tree, and the entries that it shows.
#[derive(Debug)]
struct PartialTree<H> {
    most: ChunkEntries,
    /// `None` for the empty state.
    top: Option<NodePtr<H>>,
    /// In key order.
    entries: Vec<PlacedEntry>,
    /// Whether hidden entries may lie behind the last one.
    ends_hidden: bool,
}

/// Where a key is, or belongs.
enum KeyPlace<'a> {
    /// Its entry.
    Entry(&'a PlacedEntry),
    /// Right behind this entry.
    After(&'a PlacedEntry),
    /// Before this entry, the first of all.
    First(&'a PlacedEntry),
    /// The tree is empty.
    Empty,
}

impl<H> PartialTree<H> {
    fn new(most: ChunkEntries, top: Option<NodePtr<H>>) -> Self {
        let mut tree = Self { most, top, entries: Vec::new(), ends_hidden: false };
        if let Some(top) = tree.top.clone() {
            tree.find_entries(&top, &mut Vec::new());
        }
        tree
    }

    fn find_entries(&mut self, node: &PartialNode<H>, path: &mut NodePath) {
        match node.content() {
            None => self.ends_hidden = true,
            Some(NodeContent::Inner(left, right)) => {
                for (turn, child) in [(false, left), (true, right)] {
                    path.push(turn);
                    self.find_entries(child, path);
                    path.pop();
                }
            }
            Some(NodeContent::Chunk(chunk)) => {
                let mut next = 0;
                for (position, entry) in chunk.shown() {
                    let after_hidden = std::mem::take(&mut self.ends_hidden) || position > next;
                    next = position + 1;
                    let path = path.clone();
                    self.entries.push(PlacedEntry { entry, path, position, after_hidden });
                }
                self.ends_hidden |= next < chunk.count;
            }
        }
    }

    fn place(&self, key: &BackendKey) -> Result<KeyPlace<'_>, WitnessError> {
        let found = self.entries.binary_search_by(|placed| placed.entry.key.cmp(key));
        let at = match found {
            Ok(at) => return Ok(KeyPlace::Entry(&self.entries[at])),
            Err(at) => at,
        };
        let next = self.entries.get(at);
        if next.map_or(self.ends_hidden, |next| next.after_hidden) {
            return Err(WitnessError::Unproven { key: *key });
        }
        let before = at.checked_sub(1).and_then(|before| self.entries.get(before));
        Ok(match (before, next) {
            (Some(before), _) => KeyPlace::After(before),
            (None, Some(next)) => KeyPlace::First(next),
            (None, None) => KeyPlace::Empty,
        })
    }

    /// The root of the tree below `top`, which has the chunk size of this one.
    fn root(&self, top: Option<&NodePtr<H>>) -> B256 {
        hash::root(self.most.get(), &top.map_or_else(hash::no_entries, |top| top.hash))
    }
}

/// The changes of a delta in one chunk.
struct TouchedPlace {
    path: NodePath,
    changes: Vec<PositionChange>,
}

/// The top after `delta`, whose previous values are those of the tree.
fn apply<O: TreeOrigin>(
    origin: &O,
    tree: &PartialTree<O::Handle>,
    delta: &BackendDelta,
) -> Result<Option<NodePtr<O::Handle>>, WitnessFault> {
    let Some(top) = &tree.top else { return Ok(first_tree(tree.most, delta)) };
    if delta.changes().is_empty() {
        return Ok(Some(top.clone()));
    }
    let mut touched: Vec<TouchedPlace> = Vec::new();
    for change in delta.changes() {
        let adds = change
            .next
            .as_ref()
            .map(|value| WitnessEntry { key: change.key, value: value.clone() }.hash());
        let (path, change) = match tree.place(&change.key)? {
            KeyPlace::Entry(placed) => {
                (&placed.path, PositionChange { at: placed.position, removes: true, adds })
            }
            // It was not there, and is not.
            _ if adds.is_none() => continue,
            KeyPlace::After(placed) => {
                (&placed.path, PositionChange { at: placed.position + 1, removes: false, adds })
            }
            KeyPlace::First(placed) => {
                (&placed.path, PositionChange { at: 0, removes: false, adds })
            }
            KeyPlace::Empty => continue,
        };
        match touched.last_mut() {
            Some(last) if last.path == *path => last.changes.push(change),
            _ => touched.push(TouchedPlace { path: path.clone(), changes: vec![change] }),
        }
    }
    let work = TreeWork(origin);
    let edits = RegionWork::new(tree.most, &work, top).edits(touched)?;
    work.edit(top, &edits)
}

/// The tree of the first entries.
fn first_tree<H>(most: ChunkEntries, delta: &BackendDelta) -> Option<NodePtr<H>> {
    let entries = delta.changes().iter().filter_map(|change| {
        Some(WitnessEntry { key: change.key, value: change.next.clone()? }.hash())
    });
    let hashes: Vec<B256> = entries.collect();
    let chunks: Vec<_> = most.cut(&hashes).into_iter().map(new_chunk).collect();
    tree::halve(&chunks)
}

/// A chunk of entries with these hashes, at least one.
fn new_chunk<H>(hashes: &[B256]) -> NodePtr<H> {
    let top = crate::chunk::levels(hashes.to_vec()).pop().and_then(|level| level.first().copied());
    PartialNode::chunk(PartialChunk::new(hashes.len(), top.unwrap_or_default()))
}

/// An opened witness.
#[derive(Debug)]
struct BavlWitness(PartialTree<NoHandle>);

impl OpenedWitness for BavlWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        Ok(match self.0.place(key)? {
            KeyPlace::Entry(placed) => Some(placed.entry.value.clone()),
            _ => None,
        })
    }

    /// The tree is in key order, so entries without a hidden one between them are all.
    fn slots_of(&self, account: &AccountKey) -> Result<Vec<(B256, StateValue)>, WitnessError> {
        let first = BackendKey::Slot(*account, B256::ZERO);
        let last = BackendKey::Slot(*account, B256::repeat_byte(0xff));
        let unlisted = |_| WitnessError::Unlisted { account: *account };
        self.0.place(&first).map_err(unlisted)?;
        self.0.place(&last).map_err(unlisted)?;
        let entries = &self.0.entries;
        let start = entries.partition_point(|placed| placed.entry.key < first);
        let slots = entries.iter().skip(start).take_while(|placed| placed.entry.key <= last);
        let mut all = Vec::new();
        for (at, placed) in slots.enumerate() {
            let BackendKey::Slot(_, slot) = placed.entry.key else { continue };
            if at > 0 && placed.after_hidden {
                return Err(unlisted(WitnessError::Unproven { key: placed.entry.key }));
            }
            all.push((slot, placed.entry.value.clone()));
        }
        Ok(all)
    }

    fn apply(&self, _: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        check_previous(self, delta)?;
        match apply(&NoOrigin, &self.0, delta) {
            Ok(top) => Ok(self.0.root(top.as_ref())),
            Err(WitnessFault::Witness(error)) => Err(error),
            Err(WitnessFault::State(_)) => {
                Err(WitnessError::Incomplete { what: "a node of the tree".into() })
            }
        }
    }
}
