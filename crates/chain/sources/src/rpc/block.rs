//! A block of a node: rebuilds the exact block from its JSON. The block hash proves that it is the
//! same.

use alloy_eips::eip4895::Withdrawals;
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{RpcClient, RpcError, RpcErrorKind, quantity, wire::RpcCall};
use crate::{
    check::{self, decode_strictly, same_hash, same_number},
    error::SourceErrorKind,
};

/// Most ommers that a block may have, by the rules of every chain.
const MAX_OMMERS: usize = 2;

/// The members of `eth_getBlockByNumber` that are not in the header.
#[derive(Deserialize)]
struct BlockMembers {
    hash: B256,
    transactions: Value,
    #[serde(default)]
    uncles: Vec<B256>,
    withdrawals: Option<Withdrawals>,
}

pub(super) fn fetch(client: &RpcClient, number: u64) -> Result<Block, RpcError> {
    let call = by_number(number, true);
    let (members, header) = header(client, &call)?;
    complete(client, &call, number, &members, header)
}

pub(super) fn fetch_by_hash(client: &RpcClient, hash: B256) -> Result<Block, RpcError> {
    let call = by_hash(hash, true);
    let (members, header) = header(client, &call)?;
    same_hash("block hash", hash, members.hash)
        .map_err(|kind| client.error(&call, RpcErrorKind::Block(kind)))?;
    let number = header.number;
    complete(client, &call, number, &members, header)
}

pub(super) fn fetch_header_by_hash(client: &RpcClient, hash: B256) -> Result<Header, RpcError> {
    let call = by_hash(hash, false);
    let (members, header) = header(client, &call)?;
    same_hash("block hash", hash, members.hash)
        .and_then(|()| check_header(&members, &header, header.number))
        .map_err(|kind| client.error(&call, RpcErrorKind::Block(kind)))?;
    Ok(header)
}

fn complete(
    client: &RpcClient,
    call: &RpcCall,
    number: u64,
    members: &BlockMembers,
    header: Header,
) -> Result<Block, RpcError> {
    match rebuild(client, call, number, members, header) {
        // The node's JSON may lack a field of the header, or have a transaction type that is
        // unknown here.
        Err(error) if matches!(*error.kind, RpcErrorKind::Result(_) | RpcErrorKind::Block(_)) => {
            raw(client, number, members.hash)?.ok_or(error)
        }
        rebuilt => rebuilt,
    }
}

pub(super) fn fetch_tag(client: &RpcClient, tag: &str) -> Result<(B256, Header), RpcError> {
    let call = RpcCall::of_block("eth_getBlockByNumber", json!([tag, false]), None);
    let (members, header) = header(client, &call)?;
    check_header(&members, &header, header.number)
        .map_err(|kind| client.error(&call, RpcErrorKind::Block(kind)))?;
    Ok((members.hash, header))
}

pub(super) fn fetch_header(client: &RpcClient, number: u64) -> Result<(B256, Header), RpcError> {
    let call = by_number(number, false);
    let (members, header) = header(client, &call)?;
    check_header(&members, &header, number)
        .map_err(|kind| client.error(&call, RpcErrorKind::Block(kind)))?;
    Ok((members.hash, header))
}

fn by_number(number: u64, transactions: bool) -> RpcCall {
    let params = json!([quantity(number), transactions]);
    RpcCall::of_block("eth_getBlockByNumber", params, Some(number))
}

fn by_hash(hash: B256, transactions: bool) -> RpcCall {
    RpcCall::of_block("eth_getBlockByHash", json!([hash, transactions]), None)
}

/// The parts of the answer, without checks.
fn header(client: &RpcClient, call: &RpcCall) -> Result<(BlockMembers, Header), RpcError> {
    let value: Value = client.one(call)?;
    if value.is_null() {
        return Err(client.error(call, RpcErrorKind::NoBlock));
    }
    Ok((client.parse_part(call, &value)?, client.parse(call, value)?))
}

fn check_header(
    members: &BlockMembers,
    header: &Header,
    number: u64,
) -> Result<(), SourceErrorKind> {
    same_number("block number", number, header.number)?;
    same_hash("block hash", members.hash, header.hash_slow())
}

fn rebuild(
    client: &RpcClient,
    call: &RpcCall,
    number: u64,
    members: &BlockMembers,
    header: Header,
) -> Result<Block, RpcError> {
    let fail = |kind| client.error(call, RpcErrorKind::Block(kind));
    check_header(members, &header, number).map_err(fail)?;
    let transactions: Vec<Transaction> = client.parse_part(call, &members.transactions)?;
    let ommers = ommers(client, number, members)?;
    let body = BlockBody { transactions, ommers, withdrawals: members.withdrawals.clone() };
    let block = Block::new(header, body);
    check::transactions_and_withdrawals(&block)
        .and_then(|()| check::ommers(&block))
        .map_err(fail)?;
    Ok(block)
}

fn ommers(
    client: &RpcClient,
    number: u64,
    members: &BlockMembers,
) -> Result<Vec<Header>, RpcError> {
    let count = members.uncles.len();
    if count > MAX_OMMERS {
        let call = by_hash(members.hash, true);
        return Err(client.error(&call, RpcErrorKind::TooManyOmmers { count, most: MAX_OMMERS }));
    }
    let calls: Vec<_> = (0..count as u64)
        .map(|index| {
            let params = json!([members.hash, quantity(index)]);
            RpcCall::new("eth_getUncleByBlockHashAndIndex", params, Some(number))
        })
        .collect();
    let values = client.all(&calls)?;
    calls.iter().zip(values).map(|(call, value)| client.parse(call, value)).collect()
}

/// The block's RLP; `None` if the node does not offer it.
fn raw(client: &RpcClient, number: u64, hash: B256) -> Result<Option<Block>, RpcError> {
    let call = RpcCall::of_block("debug_getRawBlock", json!([hash]), Some(number));
    let bytes: Bytes = match client.one(&call) {
        Ok(bytes) => bytes,
        Err(error) if error.kind.is_refusal() => return Ok(None),
        Err(error) => return Err(error),
    };
    let checked = || {
        let block: Block = decode_strictly(&bytes, "the block", &mut Vec::new())?;
        same_number("block number", number, block.header.number)?;
        same_hash("block hash", hash, block.header.hash_slow())?;
        check::transactions_and_withdrawals(&block)?;
        check::ommers(&block)?;
        Ok(block)
    };
    checked().map(Some).map_err(|kind| client.error(&call, RpcErrorKind::Block(kind)))
}
