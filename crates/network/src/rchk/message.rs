//! What is said in `rchk/1`.

use alloy_primitives::{B256, Bytes};
use retrie_state::ChunkId;

/// Something that a peer wants to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `GetChunks`.
    Chunks {
        /// How chunks shall look ([`Chunks::format`](retrie_state::Chunks::format)).
        format: String,
        /// Hash of the block whose state it is.
        block: B256,
        /// Of the chunks.
        ids: Vec<ChunkId>,
    },
    /// `GetCodes`, by the hashes of the codes.
    Codes(Vec<B256>),
}

/// What a peer answers: for the first of what was asked for, as many as fit, the part, or `None` if it
/// has no such one.
pub type Parts = Vec<Option<Bytes>>;

/// An answer, `Chunks` or `Codes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// `Chunks`.
    Chunks(Result<Parts, Refusal>),
    /// `Codes`.
    Codes(Result<Parts, Refusal>),
}

/// Why somebody who has understood gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Later it may: the state is being made ready, or others are being fetched.
    #[error("it is busy with this state or others")]
    Busy,
    /// It does not have the state after that block, or has it no longer.
    #[error("it does not have the state of that block")]
    NoState,
    /// Its states come in chunks of another format, or not at all.
    #[error("it has states in another format")]
    Format,
    /// Something fails there.
    #[error("it cannot read its own state")]
    Failed,
}

/// Any message of the protocol, with the id that a request has and its answer too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request.
    Request(u64, Request),
    /// The answer to the request of this id.
    Response(u64, Response),
}

impl Request {
    /// An answer to it with these parts.
    pub const fn answer(&self, parts: Result<Parts, Refusal>) -> Response {
        match self {
            Self::Chunks { .. } => Response::Chunks(parts),
            Self::Codes(_) => Response::Codes(parts),
        }
    }

    /// How many parts are asked for.
    pub const fn len(&self) -> usize {
        match self {
            Self::Chunks { ids, .. } => ids.len(),
            Self::Codes(hashes) => hashes.len(),
        }
    }

    /// Whether nothing is asked for.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Response {
    /// What it has.
    pub const fn parts(&self) -> &Result<Parts, Refusal> {
        match self {
            Self::Chunks(parts) | Self::Codes(parts) => parts,
        }
    }

    /// What it has.
    pub fn into_parts(self) -> Result<Parts, Refusal> {
        match self {
            Self::Chunks(parts) | Self::Codes(parts) => parts,
        }
    }
}
