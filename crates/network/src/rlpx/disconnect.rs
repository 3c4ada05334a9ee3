//! Why a connection is ended.

use std::fmt;

/// The reason in a disconnect message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// Somebody wished it.
    Requested,
    /// The connection failed.
    Network,
    /// Something that RLPx does not allow.
    ProtocolBreach,
    /// Of no use: another network, or no data.
    UselessPeer,
    /// No slot is free.
    TooManyPeers,
    /// There is a connection with this node already.
    AlreadyConnected,
    /// The version of the base protocol is not spoken here.
    IncompatibleVersion,
    /// The node id is null.
    NullIdentity,
    /// The node is being stopped.
    Quitting,
    /// Another node than the one that was dialled.
    UnexpectedIdentity,
    /// It is this node itself.
    ConnectedToSelf,
    /// It did not answer in time.
    Timeout,
    /// Something that `eth` does not allow.
    SubprotocolError,
    /// A number that nobody has given a meaning.
    Other(u8),
}

impl DisconnectReason {
    /// All that have a name, with their numbers.
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

    /// The reason of this number.
    pub fn from_code(code: u8) -> Self {
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
