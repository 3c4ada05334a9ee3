//! [`StateFormat`]: how a state is cut into chunks.

use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AnyBackend, ChunkId, ChunkPlace, OpenedChunk, ProofError, RangeChanges, RangeFormat, StateTrie,
    TrieLeaf,
};
use std::sync::Arc;

/// How a state is cut into chunks, and by which root they are checked.
#[derive(Clone, Debug)]
pub enum StateFormat {
    /// As a backend with [`StateChunks`](retrie_state::StateChunks) cuts it, by the backend's root.
    Chunks(Arc<dyn AnyBackend>),
    /// As ranges of Ethereum's tries with hashed keys, by the header's root. Any backend may load
    /// them.
    Ranges(&'static dyn RangeFormat),
}

impl StateFormat {
    /// The name of the backend that cannot do it, if it cannot.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        match self {
            Self::Chunks(backend) if backend.extensions().chunks.is_none() => {
                Some(backend.identity().name)
            }
            _ => None,
        }
    }

    /// The chunk to ask for first; `None` if `root` is the root of the empty state.
    pub(crate) fn whole(&self, root: B256) -> Option<ChunkId> {
        match self {
            Self::Chunks(backend) => backend.extensions().chunks?.root_chunk(root),
            Self::Ranges(ranges) => ranges.whole_range(StateTrie::Accounts, root),
        }
    }

    /// Checks the answer to an id.
    pub(crate) fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        match self {
            Self::Chunks(backend) => match backend.extensions().chunks {
                Some(chunks) => chunks.open(id, answer),
                None => Err(ProofError::Malformed { what: "no chunks" }),
            },
            Self::Ranges(ranges) => ranges.open_range(id, answer),
        }
    }

    /// Whether loading needs the ids of the chunks beside their entries.
    pub(crate) fn needs_parts(&self) -> bool {
        match self {
            Self::Chunks(backend) => {
                backend.extensions().chunks.is_some_and(|chunks| chunks.load_needs_parts())
            }
            Self::Ranges(_) => false,
        }
    }

    const fn ranges(&self) -> Option<&'static dyn RangeFormat> {
        match self {
            Self::Chunks(_) => None,
            Self::Ranges(ranges) => Some(*ranges),
        }
    }

    /// The slot of a chunk, in formats in which leaves of earlier states help.
    pub(crate) fn place(&self, id: &ChunkId) -> Option<ChunkPlace> {
        self.ranges()?.place(id)
    }

    /// The whole storage trie that an account had under a root.
    pub(crate) fn storage(&self, account: B256, root: B256) -> Option<ChunkId> {
        self.ranges()?.whole_range(StateTrie::Storage(account), root)
    }

    pub(crate) fn unpack_leaves(&self, answer: &[u8]) -> Option<Vec<TrieLeaf>> {
        self.ranges()?.unpack_leaves(answer)
    }

    pub(crate) fn pack_leaves(&self, leaves: &[TrieLeaf]) -> Bytes {
        self.ranges().map_or_else(Bytes::new, |ranges| ranges.pack_leaves(leaves))
    }

    /// The leaves at a place after changes, as far as they are known.
    pub(crate) fn changed(
        &self,
        place: &ChunkPlace,
        leaves: &[TrieLeaf],
        changes: &RangeChanges,
        storage: &mut dyn FnMut(B256, B256) -> Option<Vec<TrieLeaf>>,
    ) -> Vec<TrieLeaf> {
        match self.ranges() {
            Some(ranges) if !changes.0.is_empty() => {
                ranges.changed(place, leaves, changes, storage)
            }
            _ => leaves.to_vec(),
        }
    }
}
