//! RLPx: an encrypted connection with a node whose public key is known, and the messages that every
//! node speaks (`docs/network.md`).
//!
//! ```text
//!  handshake   two packets under ECIES: who we are, and keys for this connection alone (EIP-8)
//!  frame       from then on: length, message, both encrypted, both under a running MAC
//!  snappy      from the hello on: what is in a frame is compressed (EIP-706)
//!  base        hello, disconnect, ping, pong: ids 0x00 to 0x0f; what follows is the capabilities'
//! ```
//!
//! Nothing of a message is decoded, decompressed or waited for before its length has been held
//! against the limit of its kind.

mod base;
mod disconnect;
mod ecies;
mod error;
mod frame;
mod handshake;
mod stream;
#[cfg(test)]
mod tests;

pub use base::{BASE_MESSAGES, Capability, Hello, PROTOCOL_VERSION};
pub use disconnect::DisconnectReason;
pub use ecies::{node_id, public_key, random_key};
pub use error::RlpxError;
pub use frame::MAX_FRAME_BYTES;
pub use handshake::{Secrets, accept, initiate};
pub use stream::{Raw, Reader, Writer, connect};

/// Message ids of the base protocol.
pub mod id {
    /// [`Hello`](super::Hello).
    pub const HELLO: u8 = 0x00;
    /// A [`DisconnectReason`](super::DisconnectReason).
    pub const DISCONNECT: u8 = 0x01;
    /// Asks for a pong.
    pub const PING: u8 = 0x02;
    /// Answers a ping.
    pub const PONG: u8 = 0x03;
}

#[cfg(test)]
pub(crate) use tests::fuzz;
