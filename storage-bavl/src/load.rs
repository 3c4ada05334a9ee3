//! A whole state at once, as the first block makes it, or as it was elsewhere: chunks are cut as
//! entries come, and written when they are; the tree is known at the end.

use crate::{
    ChunkEntries,
    chunk::{CHUNKS, Entry, HASHES, Made, PART, group_key, group_row, make},
    hash::Batch,
    state::root,
    sync::tree_of,
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

/// How the entries are cut into chunks, and these made a tree.
pub(crate) enum Cut<'a> {
    /// As the first block does it.
    Even,
    /// Into chunks of so many entries, at the ends of these ways.
    As(&'a [(Vec<u8>, usize)]),
}

impl Cut<'_> {
    /// How many entries the next chunk has, `done` being those before it, of a run of `run` entries,
    /// behind which more come if they are not the last. `None` if that is not known yet, or never.
    fn next(&self, most: ChunkEntries, done: usize, run: usize, are_last: bool) -> Option<usize> {
        match self {
            // A run longer than three usual chunks loses one at its front.
            Self::Even => (are_last || run > 3 * most.usual()).then(|| most.first_of(run)),
            Self::As(parts) => {
                parts.get(done).map(|(_, count)| *count).filter(|count| (1..=run).contains(count))
            }
        }
    }
}

/// Loads all entries; the root.
///
/// # Errors
/// [`StateError::Corrupt`] if the entries cannot be cut so.
pub(crate) fn load(
    most: ChunkEntries,
    cut: Cut<'_>,
    entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut loader =
        Loader { most, cut, sink, waiting: Vec::new(), run: Vec::new(), chunks: Vec::new() };
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
    let tree = match loader.cut {
        Cut::Even => Tree(halve(&loader.chunks)),
        Cut::As(parts) if loader.run.is_empty() && parts.len() == loader.chunks.len() => {
            tree_of(parts, &loader.chunks)?
        }
        Cut::As(_) => {
            return Err(StateError::corrupt("chunks", "their entries are not those of the state"));
        }
    };
    tree.hash_all();
    for place in tree.places() {
        let row = place.chunk.row(place.key_height);
        loader.sink.put(CHUNKS, &place.node.first.encode(), &row)?;
    }
    Ok(root(most, &tree))
}

struct Loader<'a> {
    most: ChunkEntries,
    cut: Cut<'a>,
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
        while !rest.is_empty()
            && let done = self.chunks.len() + chunks.len()
            && let Some(count) = self.cut.next(self.most, done, rest.len(), are_last)
        {
            let (chunk, others) = rest.split_at(count);
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
