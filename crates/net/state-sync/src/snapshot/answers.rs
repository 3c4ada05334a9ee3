//! [`AnswerSource`]: the answers to ids, from the state of a datadir.

use super::SnapshotError;
use crate::format::StateFormat;
use alloy_primitives::Bytes;
use retrie_state::{
    ChunkAnswer, ChunkId, ChunkServer, RangeAnswer, RangeServer, StateError, StateRanges,
};
use retrie_state_store::StateProvider;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Leaves of an answer, at most: as many as a chunk of plain keys has.
const MAX_LEAVES: usize = 4096;
/// Pause while the server sorts keys.
const PAUSE: Duration = Duration::from_millis(20);

/// Answers ids of one state.
pub(super) enum AnswerSource<'a> {
    Chunks(Box<dyn ChunkServer>),
    Ranges(&'a dyn StateRanges, Box<dyn RangeServer>),
}

impl<'a> AnswerSource<'a> {
    /// The answers of `state` in this format, whose backend is the state's. `scratch` is a folder
    /// for temporary files.
    pub(super) fn new(
        format: &'a StateFormat,
        state: &StateProvider,
        scratch: &Path,
    ) -> Result<Self, SnapshotError> {
        let unsupported =
            || SnapshotError::Unsupported { backend: format.backend().identity().name };
        Ok(match format {
            StateFormat::Chunks(backend) => {
                backend.extensions().chunks.ok_or_else(unsupported)?;
                Self::Chunks(state.serve_chunks(Some(scratch))?)
            }
            StateFormat::Ranges(backend) => {
                let ranges = backend.extensions().ranges.ok_or_else(unsupported)?;
                Self::Ranges(ranges, state.serve_ranges(Some(scratch))?)
            }
        })
    }

    /// The answer to an id, once the server has it.
    pub(super) fn answer(&self, id: &ChunkId, stop: &AtomicBool) -> Result<Bytes, SnapshotError> {
        loop {
            let answer = match self {
                Self::Chunks(server) => server.chunk(id)?,
                Self::Ranges(ranges, server) => range(*ranges, &**server, id)?,
            };
            match answer {
                ChunkAnswer::Chunk(answer) => return Ok(answer),
                ChunkAnswer::NoNode => {
                    return Err(SnapshotError::Missing { what: format!("chunk {id}") });
                }
                ChunkAnswer::NotReady if stop.load(Ordering::Relaxed) => {
                    return Err(SnapshotError::Stopped);
                }
                ChunkAnswer::NotReady => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// All leaves of a range, or the node at its slot if they are too many.
fn range(
    ranges: &dyn StateRanges,
    server: &dyn RangeServer,
    id: &ChunkId,
) -> Result<ChunkAnswer, StateError> {
    let Some(place) = ranges.place(id) else { return Ok(ChunkAnswer::NoNode) };
    if let Some(node) = &place.embedded {
        return Ok(ChunkAnswer::Chunk(ranges.pack_node(node)));
    }
    let mut count = 0;
    let leaves = server.leaves(place.trie, *place.keys.start(), &mut |leaf| {
        count += 1;
        leaf.key >= *place.keys.end() || count > MAX_LEAVES
    })?;
    let mut leaves = match leaves {
        RangeAnswer::Found(leaves) => leaves,
        RangeAnswer::NoTrie => return Ok(ChunkAnswer::NoNode),
        RangeAnswer::NotReady => return Ok(ChunkAnswer::NotReady),
    };
    leaves.retain(|leaf| place.keys.contains(&leaf.key));
    if leaves.len() <= MAX_LEAVES {
        return Ok(ChunkAnswer::Chunk(ranges.pack_leaves(&leaves)));
    }
    Ok(match server.node(place.trie, &place.path)? {
        RangeAnswer::Found(Some(node)) => ChunkAnswer::Chunk(ranges.pack_node(&node)),
        RangeAnswer::Found(None) | RangeAnswer::NoTrie => ChunkAnswer::NoNode,
        RangeAnswer::NotReady => ChunkAnswer::NotReady,
    })
}
