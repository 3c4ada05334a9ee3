//! Encoding and decoding of messages, with limits.

use super::message::{
    SnapLeaf, SnapMessage, SnapRequest, SnapResponse, SnapVersion, TrieNodePaths,
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable, EMPTY_STRING_CODE, Encodable, Header as RlpHeader};

/// Message ids, relative to the first id of the protocol.
pub(crate) mod id {
    #![allow(missing_docs)]

    pub(crate) const GET_ACCOUNT_RANGE: u8 = 0x00;
    pub(crate) const ACCOUNT_RANGE: u8 = 0x01;
    pub(crate) const GET_STORAGE_RANGES: u8 = 0x02;
    pub(crate) const STORAGE_RANGES: u8 = 0x03;
    pub(crate) const GET_BYTE_CODES: u8 = 0x04;
    pub(crate) const BYTE_CODES: u8 = 0x05;
    pub(crate) const GET_TRIE_NODES: u8 = 0x06;
    pub(crate) const TRIE_NODES: u8 = 0x07;
    pub(crate) const GET_ACCESS_LISTS: u8 = 0x08;
    pub(crate) const ACCESS_LISTS: u8 = 0x09;
}

/// Maximum number of accounts, codes, node paths or blocks in one request.
pub(super) const MAX_ITEMS: usize = 4096;

/// Maximum bytes of a request.
const MAX_REQUEST_BYTES: usize = 512 << 10;

/// Maximum bytes of an answer: what fits into a frame.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Maximum length of a message's payload in bytes; `None` if the version has no such message.
pub(crate) const fn limit(version: SnapVersion, id: u8) -> Option<usize> {
    match (id, version) {
        (id::GET_ACCOUNT_RANGE..=id::BYTE_CODES, _)
        | (id::GET_TRIE_NODES | id::TRIE_NODES, SnapVersion::Snap1)
        | (id::GET_ACCESS_LISTS | id::ACCESS_LISTS, SnapVersion::Snap2) => {
            Some(if is_response(id) { MAX_ANSWER_BYTES } else { MAX_REQUEST_BYTES })
        }
        _ => None,
    }
}

/// Whether messages with this id are answers.
pub(crate) const fn is_response(id: u8) -> bool {
    matches!(
        id,
        id::ACCOUNT_RANGE | id::STORAGE_RANGES | id::BYTE_CODES | id::TRIE_NODES | id::ACCESS_LISTS
    )
}

/// Why a message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapDecodeError {
    /// It is not RLP of the expected form.
    #[error("message {id:#04x} of snap: {cause}")]
    Rlp {
        /// Its message id.
        id: u8,
        /// What is wrong.
        cause: alloy_rlp::Error,
    },
    /// A list of a request, or of access lists, is longer than allowed.
    #[error("message {id:#04x} of snap has more than {MAX_ITEMS} items")]
    TooMany {
        /// Its message id.
        id: u8,
    },
    /// There is no such message.
    #[error("{version} has no message {id:#04x}")]
    Unknown {
        /// The message id.
        id: u8,
        /// The version that is spoken.
        version: SnapVersion,
    },
}

/// A decoding error without the message that it is about.
enum SnapFault {
    Rlp(alloy_rlp::Error),
    TooMany,
}

impl From<alloy_rlp::Error> for SnapFault {
    fn from(error: alloy_rlp::Error) -> Self {
        Self::Rlp(error)
    }
}

type SnapDecodeResult<T> = Result<T, SnapFault>;

/// Reads the request id of an answer without decoding the rest.
pub(crate) fn request_id(payload: &[u8]) -> Option<u64> {
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true).ok()?;
    u64::decode(&mut fields).ok()
}

impl SnapMessage {
    /// Decodes a message. The caller has checked the payload's length against `limit`.
    ///
    /// # Errors
    /// If the version has no such message, it has another form, or a list is too long.
    pub fn decode(version: SnapVersion, id: u8, payload: &[u8]) -> Result<Self, SnapDecodeError> {
        limit(version, id).ok_or(SnapDecodeError::Unknown { id, version })?;
        decode(id, payload).map_err(|fault| match fault {
            SnapFault::Rlp(cause) => SnapDecodeError::Rlp { id, cause },
            SnapFault::TooMany => SnapDecodeError::TooMany { id },
        })
    }

    /// Encodes the message: its id and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let mut id = 0;
        list(&mut out, |out| {
            id = match self {
                Self::Request(number, request) => {
                    number.encode(out);
                    encode_request(request, out)
                }
                Self::Response(number, response) => {
                    number.encode(out);
                    encode_response(response, out)
                }
            };
        });
        (id, out)
    }
}

fn encode_request(request: &SnapRequest, out: &mut Vec<u8>) -> u8 {
    match request {
        SnapRequest::Accounts { root, first, last, bytes } => {
            root.encode(out);
            first.encode(out);
            last.encode(out);
            bytes.encode(out);
            id::GET_ACCOUNT_RANGE
        }
        SnapRequest::Storage { root, accounts, first, last, bytes } => {
            root.encode(out);
            list(out, |out| accounts.iter().for_each(|account| account.encode(out)));
            first.encode(out);
            last.encode(out);
            bytes.encode(out);
            id::GET_STORAGE_RANGES
        }
        SnapRequest::Codes { hashes, bytes } => {
            list(out, |out| hashes.iter().for_each(|hash| hash.encode(out)));
            bytes.encode(out);
            id::GET_BYTE_CODES
        }
        SnapRequest::Nodes { root, paths, bytes } => {
            root.encode(out);
            list(out, |out| paths.iter().for_each(|of| byte_strings(out, of)));
            bytes.encode(out);
            id::GET_TRIE_NODES
        }
        SnapRequest::AccessLists { hashes, bytes } => {
            list(out, |out| hashes.iter().for_each(|hash| hash.encode(out)));
            bytes.encode(out);
            id::GET_ACCESS_LISTS
        }
    }
}

fn encode_response(response: &SnapResponse, out: &mut Vec<u8>) -> u8 {
    match response {
        SnapResponse::Accounts { accounts, proof } => {
            list(out, |out| {
                for SnapLeaf { key, value } in accounts {
                    list(out, |out| {
                        key.encode(out);
                        // An account is a list of its own, not a byte string.
                        out.extend_from_slice(value);
                    });
                }
            });
            byte_strings(out, proof);
            id::ACCOUNT_RANGE
        }
        SnapResponse::Storage { slots, proof } => {
            list(out, |out| {
                for of in slots {
                    list(out, |out| {
                        for SnapLeaf { key, value } in of {
                            list(out, |out| {
                                key.encode(out);
                                value.encode(out);
                            });
                        }
                    });
                }
            });
            byte_strings(out, proof);
            id::STORAGE_RANGES
        }
        SnapResponse::Codes(codes) => {
            byte_strings(out, codes);
            id::BYTE_CODES
        }
        SnapResponse::Nodes(nodes) => {
            byte_strings(out, nodes);
            id::TRIE_NODES
        }
        SnapResponse::AccessLists(lists) => {
            list(out, |out| {
                for item in lists {
                    // A list is an item itself, not a byte string.
                    match item {
                        Some(rlp) => out.extend_from_slice(rlp),
                        None => out.push(EMPTY_STRING_CODE),
                    }
                }
            });
            id::ACCESS_LISTS
        }
    }
}

/// Writes an RLP list whose items `write` writes.
fn list(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut payload = Vec::new();
    write(&mut payload);
    RlpHeader { list: true, payload_length: payload.len() }.encode(out);
    out.extend(payload);
}

fn byte_strings(out: &mut Vec<u8>, all: &[Bytes]) {
    list(out, |out| all.iter().for_each(|bytes| bytes.encode(out)));
}

fn decode(id: u8, payload: &[u8]) -> SnapDecodeResult<SnapMessage> {
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true)?;
    end(rest)?;
    let fields = &mut fields;
    let number = u64::decode(fields)?;
    let request = |request| SnapMessage::Request(number, request);
    let response = |response| SnapMessage::Response(number, response);
    let message = match id {
        id::GET_ACCOUNT_RANGE => request(SnapRequest::Accounts {
            root: B256::decode(fields)?,
            first: B256::decode(fields)?,
            last: B256::decode(fields)?,
            bytes: u64::decode(fields)?,
        }),
        id::GET_STORAGE_RANGES => request(SnapRequest::Storage {
            root: B256::decode(fields)?,
            accounts: decode_list(fields, MAX_ITEMS, |list| Ok(B256::decode(list)?))?,
            first: byte_string(fields)?,
            last: byte_string(fields)?,
            bytes: u64::decode(fields)?,
        }),
        id::GET_BYTE_CODES => request(SnapRequest::Codes {
            hashes: decode_list(fields, MAX_ITEMS, |list| Ok(B256::decode(list)?))?,
            bytes: u64::decode(fields)?,
        }),
        id::GET_TRIE_NODES => {
            let root = B256::decode(fields)?;
            let mut left = MAX_ITEMS;
            let paths = decode_list(fields, MAX_ITEMS, |list| {
                let paths: TrieNodePaths = decode_list(list, left, byte_string)?;
                if paths.is_empty() {
                    return Err(alloy_rlp::Error::InputTooShort.into());
                }
                left -= paths.len();
                Ok(paths)
            })?;
            request(SnapRequest::Nodes { root, paths, bytes: u64::decode(fields)? })
        }
        id::ACCOUNT_RANGE => {
            let accounts = decode_list(fields, usize::MAX, |list| leaf(list, raw_list))?;
            response(SnapResponse::Accounts { accounts, proof: decode_proof(fields)? })
        }
        id::STORAGE_RANGES => {
            let slots = decode_list(fields, usize::MAX, |list| {
                decode_list(list, usize::MAX, |list| leaf(list, byte_string))
            })?;
            response(SnapResponse::Storage { slots, proof: decode_proof(fields)? })
        }
        id::BYTE_CODES => response(SnapResponse::Codes(decode_proof(fields)?)),
        id::TRIE_NODES => response(SnapResponse::Nodes(decode_proof(fields)?)),
        id::GET_ACCESS_LISTS => request(SnapRequest::AccessLists {
            hashes: decode_list(fields, MAX_ITEMS, |list| Ok(B256::decode(list)?))?,
            bytes: u64::decode(fields)?,
        }),
        _ => response(SnapResponse::AccessLists(decode_list(fields, MAX_ITEMS, access_list)?)),
    };
    end(fields)?;
    Ok(message)
}

/// Reads a leaf, whose value `value` reads.
fn leaf(
    list: &mut &[u8],
    value: impl FnOnce(&mut &[u8]) -> SnapDecodeResult<Bytes>,
) -> SnapDecodeResult<SnapLeaf> {
    let mut fields = RlpHeader::decode_bytes(list, true)?;
    let leaf = SnapLeaf { key: B256::decode(&mut fields)?, value: value(&mut fields)? };
    end(fields)?;
    Ok(leaf)
}

/// Reads an RLP list without decoding what is in it.
fn raw_list(fields: &mut &[u8]) -> SnapDecodeResult<Bytes> {
    let whole = *fields;
    RlpHeader::decode_bytes(fields, true)?;
    Ok(Bytes::copy_from_slice(&whole[..whole.len() - fields.len()]))
}

fn access_list(fields: &mut &[u8]) -> SnapDecodeResult<Option<Bytes>> {
    match fields.split_first() {
        Some((&EMPTY_STRING_CODE, rest)) => {
            *fields = rest;
            Ok(None)
        }
        _ => raw_list(fields).map(Some),
    }
}

fn byte_string(fields: &mut &[u8]) -> SnapDecodeResult<Bytes> {
    Ok(Bytes::copy_from_slice(RlpHeader::decode_bytes(fields, false)?))
}

fn decode_proof(fields: &mut &[u8]) -> SnapDecodeResult<Vec<Bytes>> {
    decode_list(fields, usize::MAX, byte_string)
}

/// Reads a list of at most `most` items. Each item takes a byte at least, so that the length of
/// the message bounds the memory.
fn decode_list<T>(
    fields: &mut &[u8],
    most: usize,
    mut item: impl FnMut(&mut &[u8]) -> SnapDecodeResult<T>,
) -> SnapDecodeResult<Vec<T>> {
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    let mut items = Vec::new();
    while !list.is_empty() {
        if items.len() >= most {
            return Err(SnapFault::TooMany);
        }
        items.push(item(&mut list)?);
    }
    Ok(items)
}

/// Fails unless all bytes are read.
const fn end(rest: &[u8]) -> SnapDecodeResult<()> {
    if rest.is_empty() { Ok(()) } else { Err(SnapFault::Rlp(alloy_rlp::Error::UnexpectedLength)) }
}
