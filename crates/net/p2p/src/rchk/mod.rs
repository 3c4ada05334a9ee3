//! The wire protocol `rchk`, version 1: a state in [chunks](retrie_state::StateChunks), and contract
//! codes (`docs/network.md` has the byte formats). Headers come by `eth`.
//!
//! ```text
//!  node that syncs                                                   node that serves
//!  NetworkHandle::request_state --GetChunks, GetCodes--> session --> StateRequestHandler
//!     ^                                                                 |
//!     '------------------------ Chunks, Codes <-------------------------'
//! ```
//!
//! `message` has the types, `codec` the encoding.

mod codec;
mod message;
#[cfg(test)]
mod tests;

pub use codec::RchkDecodeError;
pub(crate) use codec::{id, is_response, limit, request_id};
pub use message::{RchkMessage, RchkRefusal, RchkRequest, RchkResponse};

#[cfg(test)]
pub(crate) use tests::fuzz;

/// Its name in hello messages.
pub const NAME: &str = "rchk";
/// The only version.
pub(crate) const VERSION: u64 = 1;
/// How many message ids it takes.
pub(crate) const MESSAGES: u8 = 4;
