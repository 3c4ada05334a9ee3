//! RLPx: encrypted connections with nodes whose public key is known, and the base protocol
//! (`docs/network.md`).
//!
//! ```text
//!  handshake   two packets under ECIES: the node ids, and keys for this connection (EIP-8)
//!  frame       all later messages: length and body, both encrypted and under a running MAC
//!  snappy      from the hello on: the body of a frame is compressed (EIP-706)
//!  base        hello, disconnect, ping, pong: ids 0x00 to 0x0f; higher ids belong to capabilities
//! ```
//!
//! A message is decoded, decompressed or waited for only after its length is checked against the
//! limit of its id.

mod base;
mod disconnect;
mod ecies;
mod error;
mod frame;
mod handshake;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use base::PROTOCOL_VERSION;
pub use base::{BASE_MESSAGES, Capability, Hello};
pub use disconnect::DisconnectReason;
pub use ecies::{node_id, random_key};
pub use error::RlpxError;
pub(crate) use handshake::accept;
pub use handshake::{RlpxSecrets, initiate};
pub use stream::{MessageReader, MessageWriter, RawMessage, connect};

/// Message ids of the base protocol.
pub mod id {
    /// The [`Hello`](super::Hello) message.
    pub const HELLO: u8 = 0x00;
    /// Carries a [`DisconnectReason`](super::DisconnectReason).
    pub const DISCONNECT: u8 = 0x01;
    /// Asks for a pong.
    pub const PING: u8 = 0x02;
    /// Answers a ping.
    pub const PONG: u8 = 0x03;
}

#[cfg(test)]
pub(crate) use tests::fuzz;
