//! The wire protocol `rchk`, version 1: a state in [chunks](retrie_state::StateChunks), and contract
//! codes (`docs/network.md` has the byte formats). Headers come by `eth`.
//!
//! ```text
//!  node that syncs                                    node that serves
//!  RemotePeer --GetChunks, GetCodes--> session --> StateRequestHandler: states of the node
//!     ^                                               |
//!     '------------- Chunks, Codes <------------------'
//! ```
//!
//! [`message`] has the types, `codec` the encoding, [`remote`] the client side.

mod codec;
pub mod message;
pub mod remote;
#[cfg(test)]
mod tests;

pub use codec::{MAX_ITEMS, RchkDecodeError, id, is_response, limit, request_id};
pub use message::{RchkMessage, RchkRefusal, RchkRequest, RchkResponse};
pub use remote::{ConnectedPeers, RemotePeer};

#[cfg(test)]
pub(crate) use tests::fuzz;

/// Its name in hello messages.
pub const NAME: &str = "rchk";
/// The only version.
pub const VERSION: u64 = 1;
/// How many message ids the protocol uses.
pub const MESSAGE_COUNT: u8 = 4;
