//! The base protocol: hello, disconnect, ping, pong.

use super::{DisconnectReason, RlpxError};
use alloy_primitives::B512;
use alloy_rlp::{Decodable, Encodable, Header};
use std::fmt;

/// Version of the base protocol: 5, with snappy (EIP-706).
pub(crate) const PROTOCOL_VERSION: u64 = 5;

/// How many message ids the base protocol uses.
pub const BASE_MESSAGES: u8 = 0x10;

/// Maximum number of capabilities in a hello. Real ones have fewer than ten.
const MAX_CAPABILITIES: usize = 64;

/// Bytes of a client's name that are kept.
const MAX_NAME_BYTES: usize = 256;

/// A protocol and its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// Name, at most eight ASCII characters.
    pub name: String,
    /// Version.
    pub version: u64,
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.name, self.version)
    }
}

/// The hello message: the node's name, id and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the base protocol.
    pub version: u64,
    /// Name and version of the client.
    pub client: String,
    /// Its capabilities, in its order. Decoding skips the ones with an invalid name (more than
    /// eight characters, not ASCII).
    pub capabilities: Vec<Capability>,
    /// The port on which it listens; most nodes send 0.
    pub port: u64,
    /// Its public key.
    pub id: B512,
}

impl Hello {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut capabilities = Vec::new();
        for capability in &self.capabilities {
            let payload_length = capability.name.length() + capability.version.length();
            Header { list: true, payload_length }.encode(&mut capabilities);
            capability.name.encode(&mut capabilities);
            capability.version.encode(&mut capabilities);
        }
        let mut fields = Vec::new();
        self.version.encode(&mut fields);
        self.client.encode(&mut fields);
        Header { list: true, payload_length: capabilities.len() }.encode(&mut fields);
        fields.extend(capabilities);
        self.port.encode(&mut fields);
        self.id.encode(&mut fields);
        let mut message = Vec::new();
        Header { list: true, payload_length: fields.len() }.encode(&mut message);
        message.extend(fields);
        message
    }

    /// Decodes a message. Additional elements are ignored (EIP-8).
    ///
    /// # Errors
    /// If a field is missing or has another form.
    pub fn decode(mut message: &[u8]) -> Result<Self, RlpxError> {
        let wrong = |what| RlpxError::Base { message: "hello", what };
        let mut fields =
            Header::decode_bytes(&mut message, true).map_err(|_| wrong("it is no list"))?;
        let version = u64::decode(&mut fields).map_err(|_| wrong("version"))?;
        let client =
            Header::decode_bytes(&mut fields, false).map_err(|_| wrong("name of the client"))?;
        let mut list =
            Header::decode_bytes(&mut fields, true).map_err(|_| wrong("capabilities"))?;
        let mut capabilities = Vec::new();
        let mut count = 0;
        while !list.is_empty() {
            count += 1;
            if count > MAX_CAPABILITIES {
                return Err(wrong("more than 64 capabilities"));
            }
            let mut pair =
                Header::decode_bytes(&mut list, true).map_err(|_| wrong("a capability"))?;
            let name = Header::decode_bytes(&mut pair, false)
                .map_err(|_| wrong("name of a capability"))?;
            let version = u64::decode(&mut pair).map_err(|_| wrong("version of a capability"))?;
            if name.len() <= 8 && name.iter().all(u8::is_ascii_graphic) {
                let name = String::from_utf8_lossy(name).into_owned();
                capabilities.push(Capability { name, version });
            }
        }
        let port = u64::decode(&mut fields).map_err(|_| wrong("port"))?;
        let id = B512::decode(&mut fields).map_err(|_| wrong("node id of 64 bytes"))?;
        Ok(Self { version, client: printable(client), capabilities, port, id })
    }
}

/// The client name without control characters, so that it can be logged.
fn printable(name: &[u8]) -> String {
    let name = &name[..name.len().min(MAX_NAME_BYTES)];
    String::from_utf8_lossy(name).chars().filter(|letter| !letter.is_control()).collect()
}

impl DisconnectReason {
    /// Encodes the message: a list with the number.
    pub fn encode(self) -> Vec<u8> {
        let code = self.code();
        let mut message = Vec::new();
        Header { list: true, payload_length: code.length() }.encode(&mut message);
        code.encode(&mut message);
        message
    }

    /// Decodes a message: a list with the number, or the number alone, as some clients send it.
    /// Anything else decodes as [`Requested`](Self::Requested): the connection ends anyway.
    pub fn decode(mut message: &[u8]) -> Self {
        let mut fields = Header::decode_bytes(&mut message, true).unwrap_or(message);
        u8::decode(&mut fields).map_or(Self::Requested, Self::from_code)
    }
}
