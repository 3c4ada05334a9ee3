//! [`StateChunks`]: a whole state in parts that prove themselves, for nodes that fetch it from
//! untrusted peers (state sync).

use super::{AnyCache, BulkSink, NodeRead};
use crate::{BackendKey, ProofError, StateError, StateValue};
use alloy_primitives::{B256, Bytes, hex};
use std::{fmt, path::Path, sync::Arc};

/// Identifies a chunk: the position of a node in the structure under the root, and the node's hash.
/// The backend defines the bytes. Ids of chunks of one state sort by position.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(Bytes);

impl ChunkId {
    /// Maximum length of an id in bytes.
    pub const MAX_LEN: usize = 256;

    /// The id with these bytes; `None` if they are more than [`MAX_LEN`](Self::MAX_LEN).
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= Self::MAX_LEN).then_some(Self(bytes))
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode_prefixed(&self.0))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({self})")
    }
}

/// The checked content of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedChunk {
    /// All entries below the node.
    Entries {
        /// The entries.
        entries: Vec<(BackendKey, StateValue)>,
        /// Chunks of other structures that these entries name (such as storage tries), to be
        /// requested separately.
        further: Vec<ChunkId>,
    },
    /// The node has too many entries for one answer: it is split into child chunks.
    Split {
        /// The chunks to request instead. Together they hold all that is below the node.
        below: Vec<ChunkId>,
        /// An honest server splits only nodes with at least this many entries, without the entries
        /// of [`further`](Self::Entries::further) structures.
        least: u64,
    },
}

/// Optional extension: serves a state in chunks, each of which a receiver can check on its own
/// (B+AVL section IV; snap sync needs a healing phase instead).
///
/// ```text
///  whole(root) --> id --> server.chunk(id) --> bytes --> open(id, bytes) --> entries, more ids
///                   ^                                                            |
///                   '------------------------------------------------------------'
///  all parts, entries sorted by key ------------------------------> load --> root
/// ```
///
/// An id holds the hash that its answer must have. That hash comes from an answer that was checked
/// before, and in the end from the root. So it does not matter which peer answers, nor when: all
/// that [`open`](Self::open) accepts belongs to the state, and once all ids are answered the state
/// is complete.
pub trait StateChunks: Send + Sync {
    /// Name of the format of ids and answers, at most 32 bytes of ASCII. Backends with the same
    /// name can read each other's chunks.
    fn format(&self) -> &'static str;

    /// Starts to serve the state that `view` and `cache` show; the server holds the view until it
    /// is dropped. Answers may need more than the rows of the state, such as keys in another order.
    /// The server builds this when it is first needed, in unnamed files of the directory `scratch`
    /// (`None`: the system's directory for temporary files), and never as a whole in memory.
    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: AnyCache,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError>;

    /// The chunk to request first; `None` if `root` is the root of the empty state.
    fn root_chunk(&self, root: B256) -> Option<ChunkId>;

    /// Checks the answer to `id`. It is pure, and its work and memory are bounded by the length of
    /// `answer`.
    ///
    /// # Errors
    /// [`ProofError`] if it is not the chunk that the id names, or in a form that no honest server
    /// sends.
    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError>;

    /// Whether [`load`](Self::load) needs `parts` beside the entries.
    fn load_needs_parts(&self) -> bool;

    /// Loads a state as block `number`, and returns its root. `entries` are all entries, sorted by
    /// key. `parts` are the ids that were answered with entries, sorted, each with its number of
    /// entries; they are given if the backend [needs](Self::load_needs_parts) them.
    ///
    /// # Errors
    /// As [`Backend::bulk_load`](super::Backend::bulk_load); [`StateError::Corrupt`] if the parts
    /// do not belong to one state.
    fn load(
        &self,
        number: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;
}

/// Serves the chunks of one state.
pub trait ChunkServer: Send + Sync {
    /// The answer to `id`. Any peer may ask for any id, so work and memory are bounded by the
    /// length of the answer. Long work that many answers share runs on another thread.
    ///
    /// # Errors
    /// If rows cannot be read, or are damaged, or files cannot be written.
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError>;
}

/// What a server returns for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkAnswer {
    /// The chunk.
    Chunk(Bytes),
    /// The state has no such node.
    NoNode,
    /// The state has this node, but the server is still preparing its answers. Ask again later.
    NotReady,
}
