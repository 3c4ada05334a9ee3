//! [`Chunks`]: a whole state in parts that prove themselves, for nodes that get it from peers whom
//! they do not trust.

use super::{BulkSink, NodeRead};
use crate::{ProofError, StateError, StateKey, Value};
use alloy_primitives::{B256, Bytes, hex};
use std::{fmt, path::Path, sync::Arc};

/// What to ask for: the place of a node in the structure under the root, and that node's hash. In
/// the bytes of its backend; ids of chunks of one state sort by place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(Bytes);

impl ChunkId {
    /// Most bytes of an id.
    pub const MAX_LEN: usize = 256;

    /// The id with these bytes; `None` if no id is as long.
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

/// What an answer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// All that is below the node.
    Entries {
        /// Its entries.
        entries: Vec<(StateKey, Value)>,
        /// Other structures that these entries name, each to be asked for on its own.
        further: Vec<ChunkId>,
    },
    /// The nodes below it, as there is too much for one answer.
    Split {
        /// Each to be asked for on its own. Together they are all that is below.
        below: Vec<ChunkId>,
        /// An honest server splits only what has so many entries at least, those of
        /// [`further`](Self::Entries::further) structures not counted.
        least: u64,
    },
}

/// The optional faculty to hand a state out in parts, each of which a receiver can check by itself
/// (B+AVL section IV; snap sync needs a healing phase instead).
///
/// ```text
///  whole(root) --> id --> server.chunk(id) --> bytes --> open(id, bytes) --> entries, more ids
///                   ^                                                            |
///                   '------------------------------------------------------------'
///  all parts, entries sorted by key ------------------------------> load --> root
/// ```
///
/// An id holds the hash that its answer must have, which comes from an answer that was checked itself,
/// in the end from the root. So it does not matter who answers, nor when: whatever
/// [`open`](Self::open) accepts is the state's own, and once all ids are answered nothing is missing.
pub trait Chunks<C: ?Sized>: Send + Sync {
    /// Names how ids and answers look, in at most 32 bytes of ASCII: backends of one name understand each
    /// other.
    fn format(&self) -> &'static str;

    /// Begins to serve the state that `view` and `cache` show, and holds the view until it is dropped.
    /// What answers need beyond the rows of the state, such as keys in another order, is made once it is
    /// needed, in nameless files of the folder `scratch` (the system's one for temporary files if that is
    /// `None`), and never as a whole in memory.
    fn serve(
        &self,
        view: Arc<dyn NodeRead>,
        cache: Arc<C>,
        scratch: Option<&Path>,
    ) -> Result<Box<dyn ChunkServer>, StateError>;

    /// What to ask for first; `None` if the state under `root` is the empty one.
    fn whole(&self, root: B256) -> Option<ChunkId>;

    /// Checks the answer to `id`: pure, and its work and memory are bounded by the length of `answer`.
    ///
    /// # Errors
    /// [`ProofError`] if it is not what the id names, or in a form that no honest server sends.
    fn open(&self, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError>;

    /// Whether [`load`](Self::load) needs to know the parts, and not the entries alone.
    fn loads_by_parts(&self) -> bool;

    /// Loads a state as block `number`, and returns its root. `parts` are the ids that were answered
    /// with entries, with the number of these, sorted, if [needed](Self::loads_by_parts); `entries` are
    /// all of them, sorted by key.
    ///
    /// # Errors
    /// As [`Backend::bulk_load`](super::Backend::bulk_load); [`StateError::Corrupt`] for parts that
    /// are not those of one state.
    fn load(
        &self,
        number: u64,
        parts: &[(ChunkId, u64)],
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;
}

/// Serves one state.
pub trait ChunkServer: Send + Sync {
    /// The answer to `id`. Anybody may ask, for anything: work and memory are bounded by the length of
    /// the answer, and what has to be done once for many of them is left to another thread if it takes
    /// long.
    ///
    /// # Errors
    /// If rows cannot be read, or are damaged, or files cannot be written.
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError>;
}

/// What a server has for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkAnswer {
    /// The chunk.
    Chunk(Bytes),
    /// The state has no such node.
    NoNode,
    /// The state has this node; what its answer needs is being made ready.
    NotReady,
}
