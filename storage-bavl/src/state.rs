//! [`State`]: the structure of one block's state, the tree; and how it is rebuilt from rows.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, Chunk, hash_all},
    hash,
    read::MAX_HEIGHT,
    tree::{Node, Tree},
    upper::Upper,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{Direction, KeyRange, NodeRead, StateError, StateKey};
use std::sync::{Arc, OnceLock};

/// Chunks that one thread hashes at a time.
const AT_ONCE: usize = 64;

/// The structure of one block's state. It shares with its parent's whatever the block did not change.
#[derive(Debug)]
pub struct State {
    tree: OnceLock<Tree>,
    /// Of an older block: the upper part of its tree, by which proofs are made without the rest.
    upper: Option<Arc<Upper>>,
}

/// By what proofs are made.
pub(crate) enum Top<'a> {
    Tree(&'a Tree),
    Upper(&'a Upper),
}

impl State {
    /// The state of a view. Its tree is rebuilt when it is first needed: values are read without it,
    /// and old blocks are opened for reading, too.
    pub(crate) const fn open() -> Self {
        Self { tree: OnceLock::new(), upper: None }
    }

    pub(crate) fn of(tree: Tree) -> Self {
        Self { tree: OnceLock::from(tree), upper: None }
    }

    /// What is kept of it once its block is no longer among the latest, and the bytes that this takes
    /// for itself; `None` of a tree that is empty, or was not needed yet.
    pub(crate) fn thinned(&self) -> Option<(Self, u64)> {
        let top = self.tree.get()?.0.as_ref()?;
        let mut bytes = 0;
        let upper = Upper::of(top, &mut bytes);
        Some((Self { tree: OnceLock::new(), upper: Some(upper) }, bytes))
    }

    /// What proofs need of the tree; `view` shows this state.
    pub(crate) fn top(
        &self,
        view: &dyn NodeRead,
        most: ChunkEntries,
    ) -> Result<Top<'_>, StateError> {
        match (&self.upper, self.tree.get()) {
            (Some(upper), None) => Ok(Top::Upper(upper)),
            _ => self.tree(view, most).map(Top::Tree),
        }
    }

    /// The tree; `view` shows this state.
    pub(crate) fn tree(
        &self,
        view: &dyn NodeRead,
        most: ChunkEntries,
    ) -> Result<&Tree, StateError> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = rebuild(view, most)?;
        Ok(self.tree.get_or_init(|| tree))
    }
}

/// The root over a tree that is hashed.
pub(crate) fn root(most: ChunkEntries, tree: &Tree) -> B256 {
    let top = tree.0.as_ref().map_or_else(hash::no_entries, |top| top.hash());
    hash::root(most.get(), &top)
}

/// The tree that the rows of chunks make (section IV.D): one row a chunk is read, and no entry.
///
/// # Errors
/// [`StateError::Corrupt`] for rows that are malformed, and for key-heights of no AVL tree.
pub(crate) fn rebuild(view: &dyn NodeRead, most: ChunkEntries) -> Result<Tree, StateError> {
    let tree = shape(chunks(view, most, KeyRange::ALL)?)?;
    tree.hash_all();
    Ok(tree)
}

/// The tree below a node of the upper part, whose range ends before `next`, from the rows of its chunks.
///
/// # Errors
/// As [`rebuild`], and if it is not the tree that was there.
pub(crate) fn below(
    view: &dyn NodeRead,
    most: ChunkEntries,
    upper: &Upper,
    next: Option<&StateKey>,
) -> Result<Arc<Node>, StateError> {
    let (start, end) = (upper.first.encode(), next.map(StateKey::encode));
    let range = KeyRange { start: &start, end: end.as_deref() };
    // The key-height of the first one is that of a node above.
    let chunks = chunks(view, most, range)?.enumerate();
    let tree =
        shape(chunks.map(|(at, (height, chunk))| (if at == 0 { 0 } else { height }, chunk)))?;
    tree.hash_all();
    tree.0.filter(|top| top.hash() == upper.hash).ok_or_else(|| {
        let what =
            format!("the chunks from {} on do not make the tree that was there", upper.first);
        StateError::corrupt(CHUNKS.name, what)
    })
}

/// The chunks with rows in `range`, hashed, with their key-heights.
fn chunks(
    view: &dyn NodeRead,
    most: ChunkEntries,
    range: KeyRange<'_>,
) -> Result<impl Iterator<Item = (u8, Arc<Node>)> + use<>, StateError> {
    let mut rows = Vec::new();
    for row in view.scan(CHUNKS, range, Direction::Forward)? {
        let (key, value) = row?;
        let read = || {
            let first = StateKey::decode(&key)?;
            let key_height = *value.first()?;
            Some((first, key_height, Chunk::decode(&first, value.slice(1..), most)?))
        };
        rows.push(read().ok_or_else(|| {
            StateError::corrupt(
                CHUNKS.name,
                format!("row {key} is no chunk of up to {most} entries"),
            )
        })?);
    }
    let hashes: Vec<Vec<B256>> =
        rows.par_chunks(AT_ONCE).map(|rows| hash_all(rows.iter().map(|row| &row.2))).collect();
    let chunks = rows.into_iter().zip(hashes.into_iter().flatten());
    Ok(chunks
        .map(|((first, key_height, chunk), hash)| (key_height, Node::chunk(first, chunk, hash))))
}

/// The one tree in which chunks, in key order, have these key-heights.
pub(crate) fn shape(chunks: impl Iterator<Item = (u8, Arc<Node>)>) -> Result<Tree, StateError> {
    // Left parts that wait for what is on their right, with heights of the nodes to come: highest first.
    let mut active: Vec<(u8, Arc<Node>)> = Vec::new();
    let mut done: Option<Arc<Node>> = None;
    for (key_height, chunk) in chunks {
        let left = match done.take() {
            None if key_height == 0 => None,
            Some(done) if (1..=MAX_HEIGHT).contains(&key_height) => {
                Some(close(&mut active, key_height, done)?)
            }
            _ => return Err(no_tree(&chunk.first, key_height)),
        };
        if let Some(left) = left {
            active.push((key_height, left));
        }
        done = Some(chunk);
    }
    match done {
        None => Ok(Tree(None)),
        Some(done) => Ok(Tree(Some(close(&mut active, u8::MAX, done)?))),
    }
}

/// Puts what waits for nodes lower than `height` together with `right`, which is behind it.
fn close(
    active: &mut Vec<(u8, Arc<Node>)>,
    height: u8,
    mut right: Arc<Node>,
) -> Result<Arc<Node>, StateError> {
    while let Some((own, left)) = active.pop_if(|(waiting, _)| *waiting < height) {
        let (low, high) = (left.height().min(right.height()), left.height().max(right.height()));
        if own != high + 1 || high > low + 1 {
            return Err(no_tree(&right.first, own));
        }
        right = Node::inner(left, right);
    }
    match active.last() {
        Some((waiting, _)) if *waiting == height => Err(no_tree(&right.first, height)),
        _ => Ok(right),
    }
}

fn no_tree(first: &StateKey, key_height: u8) -> StateError {
    let row = alloy_primitives::hex::encode(&first.encode()[..]);
    let what = format!("row {row}: key-height {key_height} fits into no AVL tree");
    StateError::corrupt(CHUNKS.name, what)
}
