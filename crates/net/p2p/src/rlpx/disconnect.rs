//! The reasons to disconnect.

use std::fmt;

/// The reason in a disconnect message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// The disconnect was requested.
    Requested,
    /// The connection failed.
    Network,
    /// A breach of RLPx.
    ProtocolBreach,
    /// The peer is of no use: it is on another network, or has no data.
    UselessPeer,
    /// No slot is free.
    TooManyPeers,
    /// There is a connection with this node already.
    AlreadyConnected,
    /// The version of the base protocol is not supported.
    IncompatibleVersion,
    /// The node id is null.
    NullIdentity,
    /// The node stops.
    Quitting,
    /// The node is another one than the one that was dialled.
    UnexpectedIdentity,
    /// The node is this node itself.
    ConnectedToSelf,
    /// The peer did not answer in time.
    Timeout,
    /// A breach of `eth` or another protocol above RLPx.
    SubprotocolError,
    /// A number without a defined meaning.
    Other(u8),
}

impl DisconnectReason {
    /// All named reasons, with their numbers.
    const NAMED: [(Self, u8, &'static str); 13] = [
        (Self::Requested, 0x00, "disconnect requested"),
        (Self::Network, 0x01, "network error"),
        (Self::ProtocolBreach, 0x02, "breach of protocol"),
        (Self::UselessPeer, 0x03, "useless peer"),
        (Self::TooManyPeers, 0x04, "too many peers"),
        (Self::AlreadyConnected, 0x05, "already connected"),
        (Self::IncompatibleVersion, 0x06, "incompatible protocol version"),
        (Self::NullIdentity, 0x07, "null node identity"),
        (Self::Quitting, 0x08, "client quitting"),
        (Self::UnexpectedIdentity, 0x09, "unexpected identity"),
        (Self::ConnectedToSelf, 0x0a, "connected to self"),
        (Self::Timeout, 0x0b, "timeout"),
        (Self::SubprotocolError, 0x10, "subprotocol error"),
    ];

    /// Its number on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            _ => Self::NAMED.iter().find(|named| named.0 == self).map_or(0x10, |named| named.1),
        }
    }

    /// The reason with this number.
    pub(crate) fn from_code(code: u8) -> Self {
        Self::NAMED.iter().find(|named| named.1 == code).map_or(Self::Other(code), |named| named.0)
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|named| named.0 == *self) {
            Some(named) => formatter.write_str(named.2),
            None => write!(formatter, "reason {:#04x}", self.code()),
        }
    }
}
