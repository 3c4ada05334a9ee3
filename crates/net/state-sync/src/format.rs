//! [`StateFormat`]: how a state is cut into chunks.

use alloy_primitives::B256;
use retrie_state::{AnyBackend, ChunkId, OpenedChunk, ProofError, StateChunks, StateRanges};
use std::sync::Arc;

/// How a state is cut into chunks, and by which root they are checked.
#[derive(Clone, Debug)]
pub enum StateFormat {
    /// As a backend cuts it, by the backend's root.
    Chunks(Arc<dyn AnyBackend>),
    /// As ranges of Ethereum's tries with hashed keys, by the header's root. This backend, which
    /// has [`StateRanges`], checks them; any backend may load them.
    Ranges(Arc<dyn AnyBackend>),
}

impl StateFormat {
    /// The backend.
    pub fn backend(&self) -> &Arc<dyn AnyBackend> {
        let (Self::Chunks(backend) | Self::Ranges(backend)) = self;
        backend
    }

    /// The part of the backend that does it; `None` if it has none.
    fn part(&self) -> Option<FormatPart<'_>> {
        Some(match self {
            Self::Chunks(backend) => FormatPart::Chunks(backend.extensions().chunks?),
            Self::Ranges(backend) => FormatPart::Ranges(backend.extensions().ranges?),
        })
    }

    /// Whether the backend can do it.
    pub(crate) fn is_supported(&self) -> bool {
        self.part().is_some()
    }

    /// The chunk to ask for first; `None` if `root` is the root of the empty state.
    pub(crate) fn whole(&self, root: B256) -> Option<ChunkId> {
        match self.part()? {
            FormatPart::Chunks(chunks) => chunks.root_chunk(root),
            FormatPart::Ranges(ranges) => ranges.whole_range(root),
        }
    }

    /// Checks the answer to an id.
    pub(crate) fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        match self.part().ok_or(ProofError::Malformed { what: "no chunks" })? {
            FormatPart::Chunks(chunks) => chunks.open(id, answer),
            FormatPart::Ranges(ranges) => ranges.open_range(id, answer),
        }
    }

    /// Whether loading needs the ids of the chunks beside their entries.
    pub(crate) fn needs_parts(&self) -> bool {
        match self.part() {
            Some(FormatPart::Chunks(chunks)) => chunks.load_needs_parts(),
            _ => false,
        }
    }
}

enum FormatPart<'a> {
    Chunks(&'a dyn StateChunks),
    Ranges(&'a dyn StateRanges),
}
