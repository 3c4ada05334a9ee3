//! The wire protocol `rchk`, version 1: a state in [chunks](retrie_state::Chunks), and codes of
//! contracts (`docs/network.md` has the bytes). Headers come by `eth`.
//!
//! ```text
//!  one who fetches                                    one who serves
//!  RemotePeer --GetChunks, GetCodes--> session --> ServeStates: states that the node holds
//!     ^                                               |
//!     '------------- Chunks, Codes <------------------'
//! ```
//!
//! [`message`] names what is said, `codec` is how it looks in bytes, [`remote`] asks.

mod codec;
pub mod message;
pub mod remote;
#[cfg(test)]
mod tests;

pub use codec::{DecodeError, MAX_ITEMS, id, is_response, limit, request_id};
pub use message::{Message, Refusal, Request, Response};
pub use remote::{ConnectedPeers, RemotePeer};

#[cfg(test)]
pub(crate) use tests::fuzz;

/// What hello messages call it.
pub const NAME: &str = "rchk";
/// The version of which there is.
pub const VERSION: u64 = 1;
/// How many message ids it takes.
pub const MESSAGE_COUNT: u8 = 4;
