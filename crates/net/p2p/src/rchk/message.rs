//! The messages of `rchk/1`.

use alloy_primitives::{B256, Bytes};
use retrie_state::ChunkId;

/// A request to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RchkRequest {
    /// `GetChunks`.
    Chunks {
        /// Format of the chunks ([`Chunks::format`](retrie_state::StateChunks::format)).
        format: String,
        /// Hash of the block after which the state is meant.
        block: B256,
        /// Ids of the chunks.
        ids: Vec<ChunkId>,
    },
    /// `GetCodes`, by code hashes.
    Codes(Vec<B256>),
}

/// The items of an answer, for a prefix of the request, as many as fit. `None` stands for an item
/// that the peer does not have.
pub(super) type StateParts = Vec<Option<Bytes>>;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RchkResponse {
    /// `Chunks`.
    Chunks(Result<StateParts, RchkRefusal>),
    /// `Codes`.
    Codes(Result<StateParts, RchkRefusal>),
}

/// Why a peer that understands a request refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RchkRefusal {
    /// It prepares the state or serves other peers. It may answer later.
    #[error("it is busy with this state or others")]
    Busy,
    /// It does not have the state after that block, or has pruned it.
    #[error("it does not have the state of that block")]
    NoState,
    /// Its states have chunks of another format, or no chunks.
    #[error("it has states in another format")]
    Format,
    /// It has an internal error.
    #[error("it cannot read its own state")]
    Failed,
}

/// Any message of the protocol. The answer to a request repeats the request id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RchkMessage {
    /// A request.
    Request(u64, RchkRequest),
    /// The answer to the request with this id.
    Response(u64, RchkResponse),
}

impl RchkRequest {
    /// The answer to this request with these parts.
    pub const fn answer(&self, parts: Result<StateParts, RchkRefusal>) -> RchkResponse {
        match self {
            Self::Chunks { .. } => RchkResponse::Chunks(parts),
            Self::Codes(_) => RchkResponse::Codes(parts),
        }
    }

    /// How many items are asked for.
    pub const fn len(&self) -> usize {
        match self {
            Self::Chunks { ids, .. } => ids.len(),
            Self::Codes(hashes) => hashes.len(),
        }
    }

    /// Whether no items are asked for.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl RchkResponse {
    /// The items, or the refusal.
    pub const fn parts(&self) -> &Result<StateParts, RchkRefusal> {
        match self {
            Self::Chunks(parts) | Self::Codes(parts) => parts,
        }
    }

    /// The items, or the refusal.
    pub fn into_parts(self) -> Result<StateParts, RchkRefusal> {
        match self {
            Self::Chunks(parts) | Self::Codes(parts) => parts,
        }
    }
}
