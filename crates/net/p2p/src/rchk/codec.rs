//! Encoding and decoding of messages, with limits.

use super::message::{RchkMessage, RchkRefusal, RchkRequest, RchkResponse, StateParts};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable, EMPTY_LIST_CODE, Encodable, Header as RlpHeader};
use retrie_state::ChunkId;

/// Message ids, relative to the first id of the protocol.
pub(crate) mod id {
    #![allow(missing_docs)]

    pub(crate) const GET_CHUNKS: u8 = 0x00;
    pub(crate) const CHUNKS: u8 = 0x01;
    pub(crate) const GET_CODES: u8 = 0x02;
    pub(crate) const CODES: u8 = 0x03;
}

/// Maximum number of ids in one request.
pub(super) const MAX_ITEMS: usize = 1024;

/// Maximum bytes of a format's name.
const MAX_FORMAT: usize = 32;

/// Maximum bytes of a request: the maximum number of ids of the maximum length.
const MAX_REQUEST_BYTES: usize = MAX_ITEMS * (ChunkId::MAX_LEN + 3) + 128;

/// Maximum bytes of an answer: what fits into a frame.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Maximum length of a message's payload in bytes; `None` if there is no such message.
pub(crate) const fn limit(id: u8) -> Option<usize> {
    Some(match id {
        id::GET_CHUNKS | id::GET_CODES => MAX_REQUEST_BYTES,
        id::CHUNKS | id::CODES => MAX_ANSWER_BYTES,
        _ => return None,
    })
}

/// Whether messages with this id are answers.
pub(crate) const fn is_response(id: u8) -> bool {
    matches!(id, id::CHUNKS | id::CODES)
}

/// Why a message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RchkDecodeError {
    /// It is not RLP of the expected form.
    #[error("message {id:#04x} of rchk/1: {cause}")]
    Rlp {
        /// Its message id.
        id: u8,
        /// What is wrong.
        cause: alloy_rlp::Error,
    },
    /// A list is longer than allowed.
    #[error("message {id:#04x} of rchk/1 has more than {MAX_ITEMS} items")]
    TooMany {
        /// Its message id.
        id: u8,
    },
    /// A field has an invalid value.
    #[error("message {id:#04x} of rchk/1: {what}")]
    Value {
        /// Its message id.
        id: u8,
        /// What is wrong.
        what: &'static str,
    },
    /// There is no such message.
    #[error("rchk/1 has no message {0:#04x}")]
    Unknown(u8),
}

/// A decoding error without the message that it is about.
enum RchkFault {
    Rlp(alloy_rlp::Error),
    TooMany,
    Value(&'static str),
}

impl From<alloy_rlp::Error> for RchkFault {
    fn from(error: alloy_rlp::Error) -> Self {
        Self::Rlp(error)
    }
}

type RchkDecodeResult<T> = Result<T, RchkFault>;

/// Reads the request id of an answer without decoding the rest.
pub(crate) fn request_id(payload: &[u8]) -> Option<u64> {
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true).ok()?;
    u64::decode(&mut fields).ok()
}

impl RchkMessage {
    /// Decodes a message. The caller has checked the payload's length against `limit`.
    ///
    /// # Errors
    /// If the message has another form, or a list is too long.
    pub fn decode(id: u8, payload: &[u8]) -> Result<Self, RchkDecodeError> {
        limit(id).ok_or(RchkDecodeError::Unknown(id))?;
        decode(id, payload).map_err(|fault| match fault {
            RchkFault::Rlp(cause) => RchkDecodeError::Rlp { id, cause },
            RchkFault::TooMany => RchkDecodeError::TooMany { id },
            RchkFault::Value(what) => RchkDecodeError::Value { id, what },
        })
    }

    /// Encodes the message: its id and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let id = match self {
            Self::Request(request, RchkRequest::Chunks { format, block, ids }) => {
                list(&mut out, |out| {
                    request.encode(out);
                    format.encode(out);
                    block.encode(out);
                    list(out, |out| ids.iter().for_each(|id| id.bytes().encode(out)));
                });
                id::GET_CHUNKS
            }
            Self::Request(request, RchkRequest::Codes(hashes)) => {
                list(&mut out, |out| {
                    request.encode(out);
                    list(out, |out| hashes.iter().for_each(|hash| hash.encode(out)));
                });
                id::GET_CODES
            }
            Self::Response(request, response) => {
                list(&mut out, |out| {
                    request.encode(out);
                    encode_parts(response.parts(), out);
                });
                match response {
                    RchkResponse::Chunks(_) => id::CHUNKS,
                    RchkResponse::Codes(_) => id::CODES,
                }
            }
        };
        (id, out)
    }
}

/// Writes an RLP list whose items `write` writes.
fn list(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut payload = Vec::new();
    write(&mut payload);
    RlpHeader { list: true, payload_length: payload.len() }.encode(out);
    out.extend(payload);
}

impl RchkRefusal {
    const ALL: [Self; 4] = [Self::Busy, Self::NoState, Self::Format, Self::Failed];

    /// Its number in answers; 0 stands for no refusal.
    const fn number(self) -> u8 {
        match self {
            Self::Busy => 1,
            Self::NoState => 2,
            Self::Format => 3,
            Self::Failed => 4,
        }
    }
}

fn encode_parts(parts: &Result<StateParts, RchkRefusal>, out: &mut Vec<u8>) {
    match parts {
        Ok(_) => 0u8.encode(out),
        Err(refusal) => refusal.number().encode(out),
    }
    list(out, |out| {
        for part in parts.iter().flatten() {
            match part {
                Some(bytes) => bytes.encode(out),
                None => out.push(EMPTY_LIST_CODE),
            }
        }
    });
}

fn decode(id: u8, payload: &[u8]) -> RchkDecodeResult<RchkMessage> {
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true)?;
    end(rest)?;
    let fields = &mut fields;
    let request = u64::decode(fields)?;
    let message = match id {
        id::GET_CHUNKS => {
            let format = RlpHeader::decode_str(fields)?;
            if format.len() > MAX_FORMAT || !format.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(RchkFault::Value("invalid name of a format"));
            }
            let format = format.to_owned();
            let block = B256::decode(fields)?;
            let ids = decode_list(fields, |list| {
                let id = RlpHeader::decode_bytes(list, false)?;
                ChunkId::new(Bytes::copy_from_slice(id))
                    .ok_or(RchkFault::Value("the id of a chunk is too long"))
            })?;
            RchkMessage::Request(request, RchkRequest::Chunks { format, block, ids })
        }
        id::GET_CODES => {
            let hashes = decode_list(fields, |list| Ok(B256::decode(list)?))?;
            RchkMessage::Request(request, RchkRequest::Codes(hashes))
        }
        id => {
            let parts = decode_parts(fields)?;
            let response = if id == id::CHUNKS {
                RchkResponse::Chunks(parts)
            } else {
                RchkResponse::Codes(parts)
            };
            RchkMessage::Response(request, response)
        }
    };
    end(fields)?;
    Ok(message)
}

fn decode_parts(fields: &mut &[u8]) -> RchkDecodeResult<Result<StateParts, RchkRefusal>> {
    let number = u8::decode(fields)?;
    let parts = decode_list(fields, |list| {
        if let Some((&EMPTY_LIST_CODE, rest)) = list.split_first() {
            *list = rest;
            return Ok(None);
        }
        let bytes = RlpHeader::decode_bytes(list, false)?;
        Ok(Some(Bytes::copy_from_slice(bytes)))
    })?;
    if number == 0 {
        return Ok(Ok(parts));
    }
    let refusal = RchkRefusal::ALL.into_iter().find(|refusal| refusal.number() == number);
    match (refusal, &parts[..]) {
        (Some(refusal), []) => Ok(Err(refusal)),
        (Some(_), _) => Err(RchkFault::Value("a refusal with parts")),
        (None, _) => Err(RchkFault::Value("unknown refusal")),
    }
}

fn decode_list<T>(
    fields: &mut &[u8],
    mut item: impl FnMut(&mut &[u8]) -> RchkDecodeResult<T>,
) -> RchkDecodeResult<Vec<T>> {
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    let mut items = Vec::new();
    while !list.is_empty() {
        if items.len() == MAX_ITEMS {
            return Err(RchkFault::TooMany);
        }
        items.push(item(&mut list)?);
    }
    Ok(items)
}

/// Fails unless all bytes are read.
const fn end(rest: &[u8]) -> RchkDecodeResult<()> {
    if rest.is_empty() { Ok(()) } else { Err(RchkFault::Rlp(alloy_rlp::Error::UnexpectedLength)) }
}
