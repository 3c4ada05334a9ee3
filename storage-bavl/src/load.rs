//! Bulk load of a whole state: with the tree that a first block would make, or with a given tree of
//! another node. Chunks are cut and written as entries come; the tree is built at the end.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, HASHES, HashedEntry, NewChunk, PART, group_key, group_row, make_chunks},
    hash::HashBatch,
    state::root,
    state_sync::tree_of_paths,
    tree::{ChunkTree, TreeNode, halve},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BackendKey, BulkSink, StateError, StateValue, flat};
use std::sync::Arc;

/// Chunks that are made in one step.
const AT_ONCE: usize = 128;
/// Chunks, or entries, that one thread takes at a time.
const EACH: usize = 8;
const EACH_ENTRIES: usize = 512;

/// How the entries are cut into chunks, and how the chunks form a tree.
pub(crate) enum ChunkCut<'a> {
    /// As the first block does it.
    Even,
    /// As given: the path and the number of entries of each chunk.
    AtPaths(&'a [(Vec<u8>, usize)]),
}

impl ChunkCut<'_> {
    /// Number of entries in the next chunk. `done` is the number of chunks before it, `run` the
    /// number of entries that wait to be cut, `are_last` whether no more follow. `None` if more
    /// entries have to come first, or if the given chunks do not fit.
    fn next(&self, most: ChunkEntries, done: usize, run: usize, are_last: bool) -> Option<usize> {
        match self {
            // A list longer than three usual chunks starts with one usual chunk.
            Self::Even => (are_last || run > 3 * most.usual()).then(|| most.first_of(run)),
            Self::AtPaths(parts) => {
                parts.get(done).map(|(_, count)| *count).filter(|count| (1..=run).contains(count))
            }
        }
    }
}

/// Loads all entries and returns the root.
///
/// # Errors
/// [`StateError::Corrupt`] if the entries do not fit `cut`.
pub(crate) fn load(
    most: ChunkEntries,
    cut: ChunkCut<'_>,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut loader =
        ChunkLoader { most, cut, sink, waiting: Vec::new(), uncut: Vec::new(), chunks: Vec::new() };
    let enough = (AT_ONCE + 3) * most.usual();
    for entry in entries {
        let (key, value) = entry?;
        flat::put(loader.sink, &key, &value)?;
        loader.waiting.push((key, value));
        if loader.waiting.len() + loader.uncut.len() > enough {
            loader.chunks(false)?;
        }
    }
    loader.chunks(true)?;
    let tree = match loader.cut {
        ChunkCut::Even => ChunkTree(halve(&loader.chunks)),
        ChunkCut::AtPaths(parts)
            if loader.uncut.is_empty() && parts.len() == loader.chunks.len() =>
        {
            tree_of_paths(parts, &loader.chunks)?
        }
        ChunkCut::AtPaths(_) => {
            return Err(StateError::corrupt("chunks", "they do not fit the entries of the state"));
        }
    };
    tree.hash_all();
    for place in tree.places() {
        let row = place.chunk.row(place.key_height);
        loader.sink.put(CHUNKS, &place.node.first.encode(), &row)?;
    }
    Ok(root(most, &tree))
}

struct ChunkLoader<'a> {
    most: ChunkEntries,
    cut: ChunkCut<'a>,
    sink: &'a mut dyn BulkSink,
    /// Entries that are not hashed yet.
    waiting: Vec<(BackendKey, StateValue)>,
    /// Entries of chunks that are not cut yet.
    uncut: Vec<HashedEntry>,
    chunks: Vec<Arc<TreeNode>>,
}

impl ChunkLoader<'_> {
    /// Cuts and writes as many chunks as possible; all, if these are the last entries.
    fn chunks(&mut self, are_last: bool) -> Result<(), StateError> {
        let hashed = self.waiting.par_chunks(EACH_ENTRIES).map(|entries| {
            let mut batch = HashBatch::default();
            entries.iter().for_each(|(key, value)| batch.entry(&key.encode(), value));
            let hashes = batch.finish().into_iter();
            hashes.zip(entries).map(|(hash, (key, _))| HashedEntry { key: *key, hash }).collect()
        });
        self.uncut.extend(hashed.collect::<Vec<Vec<HashedEntry>>>().into_iter().flatten());
        self.waiting.clear();
        let (mut chunks, mut rest) = (Vec::new(), &self.uncut[..]);
        while !rest.is_empty()
            && let done = self.chunks.len() + chunks.len()
            && let Some(count) = self.cut.next(self.most, done, rest.len(), are_last)
        {
            let (chunk, others) = rest.split_at(count);
            chunks.push(chunk);
            rest = others;
        }
        let made: Vec<Vec<NewChunk>> = chunks.par_chunks(EACH).map(make_chunks).collect();
        for (NewChunk { first, chunk, hash }, entries) in made.into_iter().flatten().zip(&chunks) {
            let encoded = first.encode();
            for (name, group) in (0u16..).zip(entries.chunks(PART)) {
                self.sink.put(HASHES, &group_key(&encoded, name), &group_row(group))?;
            }
            let node = TreeNode::chunk(first, chunk, hash);
            self.chunks.push(node);
        }
        let left = rest.len();
        self.uncut.drain(..self.uncut.len() - left);
        Ok(())
    }
}
