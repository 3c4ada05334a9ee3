//! One block in a file of its own, in any of the forms in which nodes give it.

use crate::{
    MAX_ITEM_BYTES, SourceError, SourceErrorKind, SourceLocation, SourcePlace,
    check::{self, decode_strictly, same_hash},
    input::SourceInput,
};
use alloy_eips::eip4895::Withdrawals;
use alloy_primitives::{B256, Bytes, hex};
use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// Largest file: a block as JSON has up to seven times its bytes.
const MAX_FILE_BYTES: u64 = 8 * MAX_ITEM_BYTES;

/// Reads a block: its RLP, binary or hexadecimal, or JSON with the answer of
/// `eth_getBlockByNumber` (with transactions) or `debug_getRawBlock`. The file may be gzipped. The
/// body is checked against the header.
///
/// # Errors
/// If the file cannot be read, is no block, or contradicts itself.
pub fn read_block(source: impl Into<SourceLocation>) -> Result<Block, SourceError> {
    let location = source.into();
    let read = SourceInput::open(&location)
        .and_then(|input| input.read_whole(MAX_FILE_BYTES, "the block"))
        .and_then(|bytes| {
            parse(&bytes).map_err(|kind| SourceError::new(location.name(), SourcePlace::File, kind))
        });
    read.map_err(|error| location.explain_error(error))
}

fn parse(bytes: &[u8]) -> Result<Block, SourceErrorKind> {
    match bytes.trim_ascii_start().first() {
        Some(b'{' | b'"') => {
            let json: Value = serde_json::from_slice(bytes).map_err(SourceErrorKind::Json)?;
            of_json(json)
        }
        Some(b'0') => match bytes.trim_ascii().strip_prefix(b"0x").map(hex::decode) {
            Some(Ok(rlp)) => of_rlp(&rlp),
            _ => Err(NOT_HEX),
        },
        _ => of_rlp(bytes),
    }
}

const NOT_HEX: SourceErrorKind = SourceErrorKind::Format("the block is not hexadecimal");

/// The block in the member `block` of a witness, checked as [`read_block`] does. `file` is for error
/// messages.
///
/// # Errors
/// If it is no block, or contradicts itself.
pub fn enclosed_block(file: &Path, rlp: &[u8]) -> Result<Block, SourceError> {
    let place = || SourcePlace::Member("block".to_owned());
    of_rlp(rlp).map_err(|kind| SourceError::new(file, place(), kind))
}

/// A block from its RLP, checked against its header.
fn of_rlp(rlp: &[u8]) -> Result<Block, SourceErrorKind> {
    checked(decode_strictly(rlp, "the block", &mut Vec::new())?)
}

fn checked(block: Block) -> Result<Block, SourceErrorKind> {
    check::transactions_and_withdrawals(&block)?;
    check::ommers(&block)?;
    Ok(block)
}

fn of_json(json: Value) -> Result<Block, SourceErrorKind> {
    // A JSON-RPC response, or a witness with its block.
    let json = match json {
        Value::Object(mut members) => match members.remove("result") {
            Some(result) => result,
            None => match members.remove("block") {
                Some(block) => block,
                None => Value::Object(members),
            },
        },
        json => json,
    };
    match json {
        Value::String(_) => {
            let rlp: Bytes = serde_json::from_value(json).map_err(|_| NOT_HEX)?;
            of_rlp(&rlp)
        }
        json => of_members(json),
    }
}

/// The members of `eth_getBlockByNumber` that are not in the header.
#[derive(Deserialize)]
struct BodyMembers {
    hash: Option<B256>,
    transactions: Vec<Transaction>,
    #[serde(default)]
    uncles: Vec<B256>,
    withdrawals: Option<Withdrawals>,
}

fn of_members(json: Value) -> Result<Block, SourceErrorKind> {
    let body = BodyMembers::deserialize(&json).map_err(SourceErrorKind::Json)?;
    let header: Header = serde_json::from_value(json).map_err(SourceErrorKind::Json)?;
    if let Some(hash) = body.hash {
        same_hash("block hash", hash, header.hash_slow())?;
    }
    if !body.uncles.is_empty() {
        return Err(SourceErrorKind::Format(
            "the JSON of a block has only the hashes of its ommers: give its RLP (debug_getRawBlock)",
        ));
    }
    let BodyMembers { transactions, withdrawals, .. } = body;
    checked(Block::new(header, BlockBody { transactions, ommers: Vec::new(), withdrawals }))
}
