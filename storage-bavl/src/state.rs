//! [`BavlState`]: the tree of one block's state, and how it is rebuilt from rows.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, ChunkBody, hash_all},
    hash,
    proof::MAX_HEIGHT,
    tree::{ChunkTree, TreeNode},
    upper::UpperNode,
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BackendKey, KeyRange, NodeRead, ScanDirection, StateError};
use std::sync::{Arc, OnceLock};

/// Chunks that one thread hashes at a time.
const AT_ONCE: usize = 64;

/// The tree of one block's state. It shares unchanged nodes with its parent's tree.
#[derive(Debug)]
pub struct BavlState {
    tree: OnceLock<ChunkTree>,
    /// For an older block: the upper nodes of its tree, enough to make most of a proof.
    upper: Option<Arc<UpperNode>>,
}

/// The tree from which a proof is made: the complete tree, or only its upper nodes.
pub(crate) enum ProofTree<'a> {
    Tree(&'a ChunkTree),
    Upper(&'a UpperNode),
}

impl BavlState {
    /// The state of a view. The tree is rebuilt when it is first needed, because reads of values do
    /// not need it, and old blocks may be opened for reading alone.
    pub(crate) const fn open() -> Self {
        Self { tree: OnceLock::new(), upper: None }
    }

    pub(crate) fn of(tree: ChunkTree) -> Self {
        Self { tree: OnceLock::from(tree), upper: None }
    }

    /// The compacted state that is kept of an older block, and the bytes it takes beyond shared
    /// nodes; `None` if the tree is empty or was not built yet.
    pub(crate) fn compacted(&self) -> Option<(Self, u64)> {
        let top = self.tree.get()?.0.as_ref()?;
        let mut bytes = 0;
        let upper = UpperNode::of(top, &mut bytes);
        Some((Self { tree: OnceLock::new(), upper: Some(upper) }, bytes))
    }

    /// The tree, or its upper nodes, for a proof; `view` shows this state.
    pub(crate) fn top(
        &self,
        view: &dyn NodeRead,
        most: ChunkEntries,
    ) -> Result<ProofTree<'_>, StateError> {
        match (&self.upper, self.tree.get()) {
            (Some(upper), None) => Ok(ProofTree::Upper(upper)),
            _ => self.tree(view, most).map(ProofTree::Tree),
        }
    }

    /// The tree; `view` shows this state.
    pub(crate) fn tree(
        &self,
        view: &dyn NodeRead,
        most: ChunkEntries,
    ) -> Result<&ChunkTree, StateError> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = rebuild(view, most)?;
        Ok(self.tree.get_or_init(|| tree))
    }
}

/// The root of a hashed tree.
pub(crate) fn root(most: ChunkEntries, tree: &ChunkTree) -> B256 {
    let top = tree.0.as_ref().map_or_else(hash::no_entries, |top| top.hash());
    hash::root(most.get(), &top)
}

/// Rebuilds the tree from the rows of its chunks (section IV.D). This reads one row per chunk and
/// no entries.
///
/// # Errors
/// [`StateError::Corrupt`] for malformed rows, and for key-heights that do not form an AVL tree.
pub(crate) fn rebuild(view: &dyn NodeRead, most: ChunkEntries) -> Result<ChunkTree, StateError> {
    let tree = tree_of_key_heights(chunks(view, most, KeyRange::ALL)?)?;
    tree.hash_all();
    Ok(tree)
}

/// Rebuilds the tree below an upper node, whose range ends before `next`, from the rows of its
/// chunks.
///
/// # Errors
/// As [`rebuild`], and if the tree's hash is not the hash of the upper node.
pub(crate) fn rebuild_below(
    view: &dyn NodeRead,
    most: ChunkEntries,
    upper: &UpperNode,
    next: Option<&BackendKey>,
) -> Result<Arc<TreeNode>, StateError> {
    let (start, end) = (upper.first.encode(), next.map(BackendKey::encode));
    let range = KeyRange { start: &start, end: end.as_deref() };
    // The key-height of the first chunk belongs to an inner node above this subtree.
    let chunks = chunks(view, most, range)?.enumerate();
    let tree = tree_of_key_heights(
        chunks.map(|(at, (height, chunk))| (if at == 0 { 0 } else { height }, chunk)),
    )?;
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
) -> Result<impl Iterator<Item = (u8, Arc<TreeNode>)> + use<>, StateError> {
    let mut rows = Vec::new();
    for row in view.scan(CHUNKS, range, ScanDirection::Forward)? {
        let (key, value) = row?;
        let read = || {
            let first = BackendKey::decode(&key)?;
            let key_height = *value.first()?;
            Some((first, key_height, ChunkBody::decode(&first, value.slice(1..), most)?))
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
    Ok(chunks.map(|((first, key_height, chunk), hash)| {
        (key_height, TreeNode::chunk(first, chunk, hash))
    }))
}

/// The only tree in which the chunks, in key order, have these key-heights.
pub(crate) fn tree_of_key_heights(
    chunks: impl Iterator<Item = (u8, Arc<TreeNode>)>,
) -> Result<ChunkTree, StateError> {
    // Left subtrees that wait for their right sibling, with the height of the node above both,
    // highest first.
    let mut active: Vec<(u8, Arc<TreeNode>)> = Vec::new();
    let mut done: Option<Arc<TreeNode>> = None;
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
        None => Ok(ChunkTree(None)),
        Some(done) => Ok(ChunkTree(Some(close(&mut active, u8::MAX, done)?))),
    }
}

/// Joins all waiting left subtrees whose node is lower than `height` with `right`, which follows
/// them.
fn close(
    active: &mut Vec<(u8, Arc<TreeNode>)>,
    height: u8,
    mut right: Arc<TreeNode>,
) -> Result<Arc<TreeNode>, StateError> {
    while let Some((own, left)) = active.pop_if(|(waiting, _)| *waiting < height) {
        let (low, high) = (left.height().min(right.height()), left.height().max(right.height()));
        if own != high + 1 || high > low + 1 {
            return Err(no_tree(&right.first, own));
        }
        right = TreeNode::inner(left, right);
    }
    match active.last() {
        Some((waiting, _)) if *waiting == height => Err(no_tree(&right.first, height)),
        _ => Ok(right),
    }
}

fn no_tree(first: &BackendKey, key_height: u8) -> StateError {
    let row = alloy_primitives::hex::encode(&first.encode()[..]);
    let what = format!("row {row}: key-height {key_height} fits into no AVL tree");
    StateError::corrupt(CHUNKS.name, what)
}
