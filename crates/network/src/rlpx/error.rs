//! What goes wrong on a connection.

use super::DisconnectReason;
use std::io;

/// Why a connection has ended, or was never made.
#[derive(Debug, thiserror::Error)]
pub enum RlpxError {
    /// The connection failed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// It ended between two messages.
    #[error("the peer has closed the connection")]
    Closed,
    /// Nothing came in time.
    #[error("timed out while waiting for {0}")]
    Timeout(&'static str),
    /// A handshake packet of an impossible length.
    #[error("handshake packet of {length} bytes; {min} to {max} are possible")]
    HandshakeLength {
        /// What its prefix says.
        length: usize,
        /// Shortest possible.
        min: usize,
        /// Longest that is read.
        max: usize,
    },
    /// Encrypted for another key, or damaged.
    #[error("a handshake packet is not for this node's key, or damaged")]
    HandshakeCipher,
    /// A field of a handshake packet.
    #[error("handshake packet: {0}")]
    HandshakeField(&'static str),
    /// A header or body of a frame whose MAC is wrong.
    #[error("the MAC of a frame's {0} is wrong")]
    Mac(&'static str),
    /// A frame, or what is compressed in it, longer than its kind of message may be.
    #[error("message {id:#04x} of {length} bytes; {max} are allowed")]
    TooLong {
        /// Its id.
        id: u8,
        /// Its length in bytes.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// A frame without a message id.
    #[error("a frame has no message id, or one above 127")]
    MessageId,
    /// What should be snappy is not.
    #[error("message {id:#04x} is not what snappy makes")]
    Snappy {
        /// Its id.
        id: u8,
    },
    /// A field of a message of the base protocol.
    #[error("{message}: {what}")]
    Base {
        /// Name of the message.
        message: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// Another message than the one that must come first.
    #[error("message {id:#04x} came where {expected} must")]
    Unexpected {
        /// Its id.
        id: u8,
        /// What should have come.
        expected: &'static str,
    },
    /// The peer has ended it.
    #[error("the peer disconnects: {0}")]
    Disconnected(DisconnectReason),
}

impl RlpxError {
    /// What to tell the peer about it; none if nothing can be told.
    pub const fn reason(&self) -> Option<DisconnectReason> {
        match self {
            Self::Io(_) | Self::Closed | Self::Disconnected(_) => None,
            Self::Timeout(_) => Some(DisconnectReason::Timeout),
            _ => Some(DisconnectReason::ProtocolBreach),
        }
    }
}
