//! Errors of a connection.

use super::DisconnectReason;
use std::io;

/// Why a connection has ended, or was not established.
#[derive(Debug, thiserror::Error)]
pub enum RlpxError {
    /// The connection failed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// The peer closed it between two messages.
    #[error("the peer has closed the connection")]
    Closed,
    /// Nothing came in time.
    #[error("timed out while waiting for {0}")]
    Timeout(&'static str),
    /// A handshake packet has an impossible length.
    #[error("handshake packet of {length} bytes; {min} to {max} are possible")]
    HandshakeLength {
        /// The length in its prefix.
        length: usize,
        /// The shortest possible length.
        min: usize,
        /// The longest length that is read.
        max: usize,
    },
    /// A handshake packet is encrypted for another key, or damaged.
    #[error("a handshake packet is not for this node's key, or damaged")]
    HandshakeCipher,
    /// A field of a handshake packet is invalid.
    #[error("handshake packet: {0}")]
    HandshakeField(&'static str),
    /// The MAC of a frame's header or body is wrong.
    #[error("the MAC of a frame's {0} is wrong")]
    Mac(&'static str),
    /// A frame, or its decompressed content, is longer than allowed for its message id.
    #[error("message {id:#04x} of {length} bytes; {max} are allowed")]
    TooLong {
        /// Its message id.
        id: u8,
        /// Its length in bytes.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// A frame has no valid message id.
    #[error("a frame has no message id, or one above 127")]
    MessageId,
    /// A message is not valid snappy.
    #[error("message {id:#04x} is not valid snappy")]
    Snappy {
        /// Its message id.
        id: u8,
    },
    /// A message of the base protocol is invalid.
    #[error("{message}: {what}")]
    Base {
        /// Name of the message.
        message: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// Another message came than the one that must come first.
    #[error("message {id:#04x} came instead of {expected}")]
    Unexpected {
        /// Its message id.
        id: u8,
        /// The expected message.
        expected: &'static str,
    },
    /// The peer has disconnected.
    #[error("the peer disconnects: {0}")]
    Disconnected(DisconnectReason),
}

impl RlpxError {
    /// The reason to send to the peer; `None` if nothing can be sent.
    pub(crate) const fn reason(&self) -> Option<DisconnectReason> {
        match self {
            Self::Io(_) | Self::Closed | Self::Disconnected(_) => None,
            Self::Timeout(_) => Some(DisconnectReason::Timeout),
            _ => Some(DisconnectReason::ProtocolBreach),
        }
    }
}
