//! Encoding and decoding of messages, with limits.
//!
//! Items of a list are counted before they are decoded: a byte that a peer sends must not take a
//! hundred bytes of memory.

use super::message::{
    BlockRange, BlockReceipt, EthMessage, EthRequest, EthResponse, EthVersion, GetBlockHeaders,
    NewPooledTransactionHashes, PooledTransaction, Status, TxGossip,
};
use alloy_consensus::{Eip658Value, Receipt};
use alloy_eip2124::ForkId;
use alloy_eips::{
    BlockHashOrNumber, Typed2718,
    eip7594::{BYTES_PER_CELL, Cell},
};
use alloy_primitives::{B256, Bytes, FixedBytes, Log};
use alloy_rlp::{Decodable, EMPTY_STRING_CODE, Encodable, Header as RlpHeader};
use retrie_chainspec::{
    CellMask,
    primitives::{BlockBody, TxType},
};

/// Message ids, relative to the first id of the protocol.
pub mod id {
    #![allow(missing_docs)]

    pub const STATUS: u8 = 0x00;
    pub const TRANSACTIONS: u8 = 0x02;
    pub const GET_HEADERS: u8 = 0x03;
    pub const HEADERS: u8 = 0x04;
    pub const GET_BODIES: u8 = 0x05;
    pub const BODIES: u8 = 0x06;
    pub const NEW_POOLED_TRANSACTION_HASHES: u8 = 0x08;
    pub const GET_POOLED_TRANSACTIONS: u8 = 0x09;
    pub const POOLED_TRANSACTIONS: u8 = 0x0a;
    pub const GET_RECEIPTS: u8 = 0x0f;
    pub const RECEIPTS: u8 = 0x10;
    pub const BLOCK_RANGE_UPDATE: u8 = 0x11;
    pub const GET_ACCESS_LISTS: u8 = 0x12;
    pub const ACCESS_LISTS: u8 = 0x13;
    pub const GET_CELLS: u8 = 0x14;
    pub const CELLS: u8 = 0x15;
}

/// Maximum number of headers, bodies, receipt lists or access lists in one answer.
pub(crate) const MAX_ITEMS: usize = 1024;

/// Maximum number of transactions in one message.
const MAX_TRANSACTIONS: usize = 5000;

/// Maximum number of receipts in one answer.
const MAX_RECEIPTS: usize = 400_000;

/// Minimum bytes of a transaction, on the average of a list: a signature alone has 64.
const MIN_TRANSACTION_BYTES: usize = 64;

/// Maximum bytes of the answers that are longer than others: what fits into a frame.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Maximum bytes of a request for a list of hashes.
const MAX_HASHES_BYTES: usize = 256 << 10;

/// Maximum length of a message's payload in bytes; `None` if the version has no such message.
pub(crate) const fn limit(version: EthVersion, id: u8) -> Option<usize> {
    Some(match id {
        id::STATUS | id::BLOCK_RANGE_UPDATE | id::GET_HEADERS => 256,
        id::GET_BODIES | id::GET_POOLED_TRANSACTIONS | id::GET_RECEIPTS => MAX_HASHES_BYTES,
        id::NEW_POOLED_TRANSACTION_HASHES => 512 << 10,
        id::HEADERS => 2 << 20,
        id::TRANSACTIONS => 10 << 20,
        id::BODIES | id::POOLED_TRANSACTIONS | id::RECEIPTS => MAX_ANSWER_BYTES,
        id::GET_ACCESS_LISTS if has_access_lists(version) => MAX_HASHES_BYTES,
        id::ACCESS_LISTS if has_access_lists(version) => MAX_ANSWER_BYTES,
        id::GET_CELLS if version.elides_blobs() => MAX_HASHES_BYTES,
        id::CELLS if version.elides_blobs() => MAX_ANSWER_BYTES,
        _ => return None,
    })
}

const fn has_access_lists(version: EthVersion) -> bool {
    matches!(version, EthVersion::Eth71 | EthVersion::Eth72)
}

/// Whether messages with this id are answers.
pub(crate) const fn is_response(id: u8) -> bool {
    matches!(
        id,
        id::HEADERS
            | id::BODIES
            | id::POOLED_TRANSACTIONS
            | id::RECEIPTS
            | id::ACCESS_LISTS
            | id::CELLS
    )
}

/// Why a message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EthDecodeError {
    /// It is not RLP of the expected form.
    #[error("message {id:#04x} of {version}: {cause}")]
    Rlp {
        /// Its message id.
        id: u8,
        /// The version of the connection.
        version: EthVersion,
        /// What is wrong.
        cause: alloy_rlp::Error,
    },
    /// A list is longer than allowed.
    #[error("message {id:#04x} of {version} has {count} items; {max} are allowed")]
    TooMany {
        /// Its message id.
        id: u8,
        /// The version of the connection.
        version: EthVersion,
        /// How many there are.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// A field has an invalid value.
    #[error("message {id:#04x} of {version}: {what}")]
    Value {
        /// Its message id.
        id: u8,
        /// The version of the connection.
        version: EthVersion,
        /// What is wrong.
        what: &'static str,
    },
    /// The version has no such message.
    #[error("{version} has no message {id:#04x}")]
    Unknown {
        /// The message id.
        id: u8,
        /// The version of the connection.
        version: EthVersion,
    },
}

/// A decoding error without the message that it is about.
enum MessageFault {
    Rlp(alloy_rlp::Error),
    TooMany(usize, usize),
    Value(&'static str),
    Unknown,
}

impl From<alloy_rlp::Error> for MessageFault {
    fn from(error: alloy_rlp::Error) -> Self {
        Self::Rlp(error)
    }
}

type DecodeResult<T> = Result<T, MessageFault>;

/// Reads the request id of an answer without decoding the rest.
pub(crate) fn request_id(payload: &[u8]) -> Option<u64> {
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true).ok()?;
    u64::decode(&mut fields).ok()
}

impl EthMessage {
    /// Decodes a message. The caller has checked the payload's length against `limit`.
    ///
    /// # Errors
    /// If the message has another form, or a list is too long.
    pub fn decode(version: EthVersion, id: u8, payload: &[u8]) -> Result<Self, EthDecodeError> {
        Self::decode_within(version, id, payload, usize::MAX)
    }

    /// Decodes a message, but of unrequested transactions only the first ones, up to `room` bytes
    /// together. The others are only counted.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub(crate) fn decode_within(
        version: EthVersion,
        id: u8,
        payload: &[u8],
        room: usize,
    ) -> Result<Self, EthDecodeError> {
        decode(version, id, payload, room).map_err(|fault| match fault {
            MessageFault::Rlp(cause) => EthDecodeError::Rlp { id, version, cause },
            MessageFault::TooMany(count, max) => {
                EthDecodeError::TooMany { id, version, count, max }
            }
            MessageFault::Value(what) => EthDecodeError::Value { id, version, what },
            MessageFault::Unknown => EthDecodeError::Unknown { id, version },
        })
    }

    /// Encodes the message: its id and payload. `None` if the version cannot express it.
    pub fn encode(&self, version: EthVersion) -> Option<(u8, Vec<u8>)> {
        let mut out = Vec::new();
        let id = match self {
            Self::Status(status) => {
                list(&mut out, |out| {
                    status.version.number().encode(out);
                    status.network.encode(out);
                    status.genesis.encode(out);
                    status.fork_id.encode(out);
                    encode_range(&status.range, out);
                });
                id::STATUS
            }
            Self::BlockRangeUpdate(range) => {
                list(&mut out, |out| encode_range(range, out));
                id::BLOCK_RANGE_UPDATE
            }
            Self::Gossip(TxGossip::Transactions(transactions)) => {
                items(&mut out, transactions);
                id::TRANSACTIONS
            }
            Self::Gossip(TxGossip::Hashes(known)) => {
                list(&mut out, |out| {
                    known.types.as_slice().encode(out);
                    items(out, &known.sizes);
                    items(out, &known.hashes);
                    if version.elides_blobs() {
                        encode_mask(known.cells, out);
                    }
                });
                id::NEW_POOLED_TRANSACTION_HASHES
            }
            Self::Request(request, what) => {
                let mut fields = Vec::new();
                request.encode(&mut fields);
                let id = encode_request(version, what, &mut fields)?;
                list(&mut out, |out| out.extend(fields));
                id
            }
            Self::Response(request, what) => {
                let mut fields = Vec::new();
                request.encode(&mut fields);
                let id = encode_response(version, what, &mut fields)?;
                list(&mut out, |out| out.extend(fields));
                id
            }
        };
        Some((id, out))
    }
}

/// Writes an RLP list whose items `write` writes.
fn list(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut payload = Vec::new();
    write(&mut payload);
    RlpHeader { list: true, payload_length: payload.len() }.encode(out);
    out.extend(payload);
}

fn items<T: Encodable>(out: &mut Vec<u8>, items: &[T]) {
    list(out, |out| items.iter().for_each(|item| item.encode(out)));
}

/// Always 16 bytes: EIP-8070 has an empty string for no cells, which go-ethereum does not read.
fn encode_mask(mask: CellMask, out: &mut Vec<u8>) {
    FixedBytes::<16>::from(mask).encode(out);
}

fn encode_range(range: &BlockRange, out: &mut Vec<u8>) {
    range.earliest.encode(out);
    range.latest.encode(out);
    range.latest_hash.encode(out);
}

fn encode_request(version: EthVersion, request: &EthRequest, out: &mut Vec<u8>) -> Option<u8> {
    Some(match request {
        EthRequest::Headers(from) => {
            list(out, |out| {
                match from.start {
                    BlockHashOrNumber::Hash(hash) => hash.encode(out),
                    BlockHashOrNumber::Number(number) => number.encode(out),
                }
                from.limit.encode(out);
                from.skip.encode(out);
                from.reverse.encode(out);
            });
            id::GET_HEADERS
        }
        EthRequest::Bodies(hashes) => {
            items(out, hashes);
            id::GET_BODIES
        }
        EthRequest::PooledTransactions(hashes) => {
            items(out, hashes);
            id::GET_POOLED_TRANSACTIONS
        }
        EthRequest::Receipts { first_index, hashes } => {
            if version >= EthVersion::Eth70 {
                first_index.encode(out);
            } else if *first_index != 0 {
                return None;
            }
            items(out, hashes);
            id::GET_RECEIPTS
        }
        EthRequest::AccessLists(hashes) => {
            if version < EthVersion::Eth71 {
                return None;
            }
            items(out, hashes);
            id::GET_ACCESS_LISTS
        }
        EthRequest::Cells { hashes, mask } => {
            if !version.elides_blobs() {
                return None;
            }
            items(out, hashes);
            encode_mask(*mask, out);
            id::GET_CELLS
        }
    })
}

fn encode_response(version: EthVersion, response: &EthResponse, out: &mut Vec<u8>) -> Option<u8> {
    Some(match response {
        EthResponse::Headers(headers) => {
            items(out, headers);
            id::HEADERS
        }
        EthResponse::Bodies(bodies) => {
            items(out, bodies);
            id::BODIES
        }
        EthResponse::PooledTransactions(transactions) => {
            items(out, transactions);
            id::POOLED_TRANSACTIONS
        }
        EthResponse::Receipts { last_incomplete, lists } => {
            if version >= EthVersion::Eth70 {
                last_incomplete.encode(out);
            } else if *last_incomplete {
                return None;
            }
            list(out, |out| {
                for block in lists {
                    list(out, |out| block.iter().for_each(|receipt| encode_receipt(receipt, out)));
                }
            });
            id::RECEIPTS
        }
        EthResponse::AccessLists(lists) => {
            if version < EthVersion::Eth71 {
                return None;
            }
            list(out, |out| {
                for item in lists {
                    match item {
                        Some(rlp) => out.extend(rlp),
                        None => out.push(EMPTY_STRING_CODE),
                    }
                }
            });
            id::ACCESS_LISTS
        }
        EthResponse::Cells { cells, mask } => {
            if !version.elides_blobs() {
                return None;
            }
            list(out, |out| cells.iter().for_each(|(hash, _)| hash.encode(out)));
            list(out, |out| cells.iter().for_each(|(_, cells)| items(out, cells)));
            encode_mask(*mask, out);
            id::CELLS
        }
    })
}

fn encode_receipt(receipt: &BlockReceipt, out: &mut Vec<u8>) {
    list(out, |out| {
        receipt.tx_type.ty().encode(out);
        receipt.receipt.status.encode(out);
        receipt.receipt.cumulative_gas_used.encode(out);
        items(out, &receipt.receipt.logs);
    });
}

fn decode(version: EthVersion, id: u8, payload: &[u8], room: usize) -> DecodeResult<EthMessage> {
    if limit(version, id).is_none() {
        return Err(MessageFault::Unknown);
    }
    let mut rest = payload;
    let mut fields = RlpHeader::decode_bytes(&mut rest, true)?;
    end(rest)?;
    let fields = &mut fields;
    if id == id::TRANSACTIONS {
        count_transactions(fields, MAX_TRANSACTIONS)?;
        let transactions = transactions(&mut first_items(fields, room)?)?;
        if transactions.iter().any(PooledTransaction::is_eip4844) {
            return Err(MessageFault::Value("blob transactions must only be announced"));
        }
        return Ok(EthMessage::Gossip(TxGossip::Transactions(transactions)));
    }
    let message = match id {
        id::STATUS => EthMessage::Status(decode_status(fields)?),
        id::BLOCK_RANGE_UPDATE => EthMessage::BlockRangeUpdate(decode_range(fields)?),
        id::NEW_POOLED_TRANSACTION_HASHES => {
            EthMessage::Gossip(TxGossip::Hashes(decode_known(version, fields)?))
        }
        _ if is_response(id) => {
            let request = u64::decode(fields)?;
            EthMessage::Response(request, decode_response(version, id, fields)?)
        }
        _ => {
            let request = u64::decode(fields)?;
            EthMessage::Request(request, decode_request(version, id, fields)?)
        }
    };
    end(fields)?;
    Ok(message)
}

/// Fails unless all bytes are read.
const fn end(rest: &[u8]) -> DecodeResult<()> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(MessageFault::Rlp(alloy_rlp::Error::UnexpectedLength))
    }
}

fn decode_status(fields: &mut &[u8]) -> DecodeResult<Status> {
    let version = EthVersion::from_number(u64::decode(fields)?)
        .ok_or(MessageFault::Value("unsupported version"))?;
    Ok(Status {
        version,
        network: u64::decode(fields)?,
        genesis: B256::decode(fields)?,
        fork_id: ForkId::decode(fields)?,
        range: decode_range(fields)?,
    })
}

fn decode_range(fields: &mut &[u8]) -> DecodeResult<BlockRange> {
    let range = BlockRange {
        earliest: u64::decode(fields)?,
        latest: u64::decode(fields)?,
        latest_hash: B256::decode(fields)?,
    };
    if range.earliest > range.latest {
        return Err(MessageFault::Value("the earliest block is above the latest"));
    }
    if range.latest_hash.is_zero() {
        return Err(MessageFault::Value("the hash of the latest block is zero"));
    }
    Ok(range)
}

fn decode_known(
    version: EthVersion,
    fields: &mut &[u8],
) -> DecodeResult<NewPooledTransactionHashes> {
    let types = RlpHeader::decode_bytes(fields, false)?.to_vec();
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    let mut sizes = Vec::with_capacity(types.len());
    while !list.is_empty() {
        if sizes.len() == types.len() {
            return Err(MessageFault::Value("more sizes than types"));
        }
        sizes.push(u64::decode(&mut list)?);
    }
    let hashes = hashes(fields)?;
    if hashes.len() != types.len() || sizes.len() != types.len() {
        return Err(MessageFault::Value("types, sizes and hashes differ in number"));
    }
    let cells = if version.elides_blobs() { decode_mask(fields)? } else { CellMask::default() };
    Ok(NewPooledTransactionHashes { types, sizes, hashes, cells })
}

fn decode_mask(fields: &mut &[u8]) -> DecodeResult<CellMask> {
    let whole = *fields;
    if let Some(rest) = whole.strip_prefix(&[EMPTY_STRING_CODE]) {
        *fields = rest;
        return Ok(CellMask::default());
    }
    Ok(FixedBytes::<16>::decode(fields)?.into())
}

fn hashes(fields: &mut &[u8]) -> DecodeResult<Vec<B256>> {
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    let mut hashes = Vec::with_capacity(list.len() / 33);
    while !list.is_empty() {
        hashes.push(B256::decode(&mut list)?);
    }
    Ok(hashes)
}

fn decode_request(version: EthVersion, id: u8, fields: &mut &[u8]) -> DecodeResult<EthRequest> {
    Ok(match id {
        id::GET_HEADERS => {
            let mut query = RlpHeader::decode_bytes(fields, true)?;
            let query = &mut query;
            let start = match query.first() {
                Some(0xa0) => BlockHashOrNumber::Hash(B256::decode(query)?),
                _ => BlockHashOrNumber::Number(u64::decode(query)?),
            };
            let limit = u64::decode(query)?;
            let skip = u64::decode(query)?;
            let reverse = bool::decode(query)?;
            end(query)?;
            EthRequest::Headers(GetBlockHeaders { start, limit, skip, reverse })
        }
        id::GET_BODIES => EthRequest::Bodies(hashes(fields)?),
        id::GET_POOLED_TRANSACTIONS => EthRequest::PooledTransactions(hashes(fields)?),
        id::GET_RECEIPTS => {
            let first_index = if version >= EthVersion::Eth70 { u64::decode(fields)? } else { 0 };
            EthRequest::Receipts { first_index, hashes: hashes(fields)? }
        }
        id::GET_ACCESS_LISTS => EthRequest::AccessLists(hashes(fields)?),
        id::GET_CELLS => EthRequest::Cells { hashes: hashes(fields)?, mask: decode_mask(fields)? },
        _ => return Err(MessageFault::Unknown),
    })
}

fn decode_response(version: EthVersion, id: u8, fields: &mut &[u8]) -> DecodeResult<EthResponse> {
    if id == id::RECEIPTS {
        let last_incomplete = version >= EthVersion::Eth70 && bool::decode(fields)?;
        return Ok(EthResponse::Receipts { last_incomplete, lists: decode_receipts(fields)? });
    }
    if id == id::CELLS {
        return decode_cells(fields);
    }
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    if id == id::POOLED_TRANSACTIONS {
        return Ok(EthResponse::PooledTransactions(transactions(&mut list)?));
    }
    let count = count(list, MAX_ITEMS)?;
    Ok(match id {
        id::HEADERS => EthResponse::Headers(decode_items(list, count, Decodable::decode)?),
        id::BODIES => {
            let mut bodies = Vec::with_capacity(count);
            while !list.is_empty() {
                bodies.push(decode_body(&mut list)?);
            }
            EthResponse::Bodies(bodies)
        }
        id::ACCESS_LISTS => EthResponse::AccessLists(decode_items(list, count, access_list)?),
        _ => return Err(MessageFault::Unknown),
    })
}

fn decode_items<T>(
    mut list: &[u8],
    count: usize,
    decode: fn(&mut &[u8]) -> alloy_rlp::Result<T>,
) -> DecodeResult<Vec<T>> {
    let mut items = Vec::with_capacity(count);
    while !list.is_empty() {
        items.push(decode(&mut list)?);
    }
    Ok(items)
}

/// The number of items in a list.
fn count(mut list: &[u8], max: usize) -> DecodeResult<usize> {
    let mut count = 0;
    while !list.is_empty() {
        skip(&mut list)?;
        count += 1;
        if count > max {
            return Err(MessageFault::TooMany(count, max));
        }
    }
    Ok(count)
}

/// Skips one item, and returns its bytes.
fn skip<'a>(list: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    let whole = *list;
    let header = RlpHeader::decode(list)?;
    let (_, rest) =
        list.split_at_checked(header.payload_length).ok_or(alloy_rlp::Error::InputTooShort)?;
    *list = rest;
    Ok(&whole[..whole.len() - rest.len()])
}

/// The first items of a list, up to `room` bytes together.
fn first_items(list: &[u8], room: usize) -> alloy_rlp::Result<&[u8]> {
    let mut rest = list;
    let mut bytes = 0;
    while !rest.is_empty() {
        let with = bytes + skip(&mut rest)?.len();
        if with > room {
            break;
        }
        bytes = with;
    }
    Ok(&list[..bytes])
}

/// Decodes all transactions of a list.
fn transactions(list: &mut &[u8]) -> DecodeResult<Vec<PooledTransaction>> {
    let count = count_transactions(list, MAX_TRANSACTIONS)?;
    let transactions = decode_items(list, count, PooledTransaction::decode)?;
    *list = &[];
    Ok(transactions)
}

fn count_transactions(list: &[u8], max: usize) -> DecodeResult<usize> {
    count(list, max.min(list.len() / MIN_TRANSACTION_BYTES + 1))
}

fn decode_body(list: &mut &[u8]) -> DecodeResult<BlockBody> {
    let mut body = skip(list)?;
    let mut whole = body;
    let mut fields = RlpHeader::decode_bytes(&mut body, true)?;
    let transactions = RlpHeader::decode_bytes(&mut fields, true)?;
    count_transactions(transactions, usize::MAX)?;
    Ok(BlockBody::decode(&mut whole)?)
}

fn access_list(list: &mut &[u8]) -> alloy_rlp::Result<Option<Bytes>> {
    let item = skip(list)?;
    match item {
        // EIP-8159 says the first; an earlier draft said the second. No block with an access list
        // has an empty one, since every block calls system contracts.
        [EMPTY_STRING_CODE] | [0xc0] => Ok(None),
        [0xc1..=0xff, ..] => Ok(Some(Bytes::copy_from_slice(item))),
        _ => Err(alloy_rlp::Error::UnexpectedString),
    }
}

fn decode_cells(fields: &mut &[u8]) -> DecodeResult<EthResponse> {
    let hashes = hashes(fields)?;
    let mut lists = RlpHeader::decode_bytes(fields, true)?;
    if hashes.len() > MAX_ITEMS {
        return Err(MessageFault::TooMany(hashes.len(), MAX_ITEMS));
    }
    if count(lists, hashes.len())? != hashes.len() {
        return Err(MessageFault::Value("hashes and lists of cells differ in number"));
    }
    let mut cells = Vec::with_capacity(hashes.len());
    for hash in hashes {
        let list = RlpHeader::decode_bytes(&mut lists, true)?;
        let count = count(list, list.len() / BYTES_PER_CELL)?;
        cells.push((hash, decode_items(list, count, Cell::decode)?));
    }
    Ok(EthResponse::Cells { cells, mask: decode_mask(fields)? })
}

fn decode_receipts(fields: &mut &[u8]) -> DecodeResult<Vec<Vec<BlockReceipt>>> {
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    let mut lists = Vec::with_capacity(count(list, MAX_ITEMS)?);
    let mut left = MAX_RECEIPTS;
    while !list.is_empty() {
        let block = RlpHeader::decode_bytes(&mut list, true)?;
        let count = count(block, left)?;
        left -= count;
        lists.push(decode_items(block, count, decode_receipt)?);
    }
    Ok(lists)
}

fn decode_receipt(list: &mut &[u8]) -> alloy_rlp::Result<BlockReceipt> {
    let mut fields = RlpHeader::decode_bytes(list, true)?;
    let fields = &mut fields;
    let tx_type = TxType::try_from(u8::decode(fields)?)
        .map_err(|_| alloy_rlp::Error::Custom("unknown transaction type"))?;
    let status = Eip658Value::decode(fields)?;
    let cumulative_gas_used = u64::decode(fields)?;
    let mut logs = Vec::new();
    let mut list = RlpHeader::decode_bytes(fields, true)?;
    while !list.is_empty() {
        logs.push(Log::decode(&mut list)?);
    }
    if !fields.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    Ok(BlockReceipt { tx_type, receipt: Receipt { status, cumulative_gas_used, logs } })
}
