//! A whole state at once, as the first block makes it: chunks are cut as entries come, and written
//! when they are; the tree is known at the end.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, Entry, HASHES, Made, PART, group_key, group_row, make},
    hash::Batch,
    state::root,
    tree::{Node, Tree, halve},
};
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{BulkSink, StateError, StateKey, Value, flat};
use std::sync::Arc;

/// Chunks that are made together.
const AT_ONCE: usize = 128;
/// Chunks, or entries, that one thread takes at a time.
const EACH: usize = 8;
const EACH_ENTRIES: usize = 512;

/// Loads all entries; the root.
pub(crate) fn load(
    most: ChunkEntries,
    entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut loader =
        Loader { most, sink, waiting: Vec::new(), run: Vec::new(), chunks: Vec::new() };
    // A run longer than three usual chunks loses one at its front: so do these.
    let enough = (AT_ONCE + 3) * most.usual();
    for entry in entries {
        let (key, value) = entry?;
        flat::put(loader.sink, &key, &value)?;
        loader.waiting.push((key, value));
        if loader.waiting.len() + loader.run.len() > enough {
            loader.chunks(false)?;
        }
    }
    loader.chunks(true)?;
    let tree = Tree(halve(&loader.chunks));
    tree.hash_all();
    for place in tree.places() {
        let row = place.chunk.row(place.key_height);
        loader.sink.put(CHUNKS, &place.node.first.encode(), &row)?;
    }
    Ok(root(most, &tree))
}

struct Loader<'a> {
    most: ChunkEntries,
    sink: &'a mut dyn BulkSink,
    /// Entries that are not hashed yet.
    waiting: Vec<(StateKey, Value)>,
    /// Entries of chunks that are not cut yet.
    run: Vec<Entry>,
    chunks: Vec<Arc<Node>>,
}

impl Loader<'_> {
    /// Cuts chunks off, all if these are the last entries.
    fn chunks(&mut self, are_last: bool) -> Result<(), StateError> {
        let hashed = self.waiting.par_chunks(EACH_ENTRIES).map(|entries| {
            let mut batch = Batch::default();
            entries.iter().for_each(|(key, value)| batch.entry(&key.encode(), value));
            let hashes = batch.finish().into_iter();
            hashes.zip(entries).map(|(hash, (key, _))| Entry { key: *key, hash }).collect()
        });
        self.run.extend(hashed.collect::<Vec<Vec<Entry>>>().into_iter().flatten());
        self.waiting.clear();
        let (mut chunks, mut rest) = (Vec::new(), &self.run[..]);
        while !rest.is_empty() && (are_last || rest.len() > 3 * self.most.usual()) {
            let (chunk, others) = rest.split_at(self.most.first_of(rest.len()));
            chunks.push(chunk);
            rest = others;
        }
        let made: Vec<Vec<Made>> = chunks.par_chunks(EACH).map(make).collect();
        for (Made { first, chunk, hash }, entries) in made.into_iter().flatten().zip(&chunks) {
            let encoded = first.encode();
            for (name, group) in (0u16..).zip(entries.chunks(PART)) {
                self.sink.put(HASHES, &group_key(&encoded, name), &group_row(group))?;
            }
            let node = Node::chunk(first, chunk, hash);
            self.chunks.push(node);
        }
        let left = rest.len();
        self.run.drain(..self.run.len() - left);
        Ok(())
    }
}
