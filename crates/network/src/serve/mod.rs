//! Answers to what peers ask: headers, bodies, receipts, access lists and pooled transactions.
//!
//! | of one answer | at most |
//! |---|---|
//! | headers, blocks, hashes looked up | 1,024 |
//! | bytes | one item beyond 2 MiB, and never beyond 10 MiB |
//! | blocks that are not canonical, walked over from child to parent where some are left out | 100 |
//!
//! Headers, bodies and receipts end before the first that is not here; pooled transactions that are not
//! here are left out, and access lists have an empty entry then (EIP-8159). From eth/70 on the receipts
//! of a block that do not fit are cut, and asked for again from there (EIP-7975). If the database fails,
//! the answer ends where it does so.

mod blocks;
mod chain;
mod headers;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use chain::{Chain, ChainError, ChainView};

use crate::{
    eth::{BlockReceipt, Request, Response, Version},
    peers::{PeerInfo, Serve, ServeStates},
    rchk,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::BlockBody;
use std::sync::Arc;

/// Items of one answer, and hashes looked up for it.
const MAX_ITEMS: usize = 1024;
/// Bytes with which it is enough for one answer.
const ENOUGH: usize = 2 << 20;
/// What a message may have, less what stands around the items.
const MAX_MESSAGE: usize = (10 << 20) - (16 << 10);

/// Answers of a node that has nothing.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Serve for Nothing {
    fn answer(&self, _: &PeerInfo, request: Request) -> Response {
        request.nothing()
    }
}

impl ServeStates for Nothing {
    fn answer(&self, _: &PeerInfo, request: rchk::Request) -> rchk::Response {
        request.answer(Err(rchk::Refusal::NoState))
    }
}

/// Answers from a chain.
#[derive(Clone, Debug)]
pub struct Answers {
    chain: Arc<dyn Chain>,
}

impl Answers {
    /// From this chain.
    pub fn new(chain: Arc<dyn Chain>) -> Self {
        Self { chain }
    }

    fn respond(&self, version: Version, request: &Request) -> Result<Response, ChainError> {
        if let Request::PooledTransactions(hashes) = request {
            return Ok(self.pooled(hashes));
        }
        let view = self.chain.view()?;
        Ok(match request {
            Request::Headers(from) => Response::Headers(headers::answer(&*view, from)),
            Request::Bodies(hashes) => {
                Response::Bodies(up_to_enough(hashes, |hash| view.body(hash), BlockBody::length))
            }
            Request::Receipts { hashes, .. } if version == Version::Eth69 => {
                let length = |all: &Vec<BlockReceipt>| list_length(all.iter().map(receipt_length));
                let lists = up_to_enough(hashes, |hash| view.receipts(hash), length);
                Response::Receipts { last_incomplete: false, lists }
            }
            Request::Receipts { first_index, hashes } => {
                partial_receipts(&*view, *first_index, hashes)
            }
            Request::AccessLists(hashes) => Response::AccessLists(access_lists(&*view, hashes)),
            Request::PooledTransactions(_) => request.nothing(),
        })
    }

    fn pooled(&self, hashes: &[B256]) -> Response {
        let mut found = Vec::new();
        let mut bytes = 0;
        for hash in hashes.iter().take(MAX_ITEMS) {
            let Some(transaction) = self.chain.pooled(hash) else { continue };
            bytes += transaction.encode_2718_len();
            if bytes > MAX_MESSAGE && !found.is_empty() {
                break;
            }
            found.push(transaction);
            if bytes >= ENOUGH {
                break;
            }
        }
        Response::PooledTransactions(found)
    }
}

impl Serve for Answers {
    fn answer(&self, peer: &PeerInfo, request: Request) -> Response {
        self.respond(peer.version, &request).unwrap_or_else(|error| {
            tracing::warn!(%error, peer = %peer.address, "cannot answer a peer");
            request.nothing()
        })
    }
}

/// What there is of each up to the first that is missing, or until it is enough.
fn up_to_enough<T>(
    hashes: &[B256],
    get: impl Fn(&B256) -> Result<Option<T>, ChainError>,
    length: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut bytes = 0;
    for hash in hashes.iter().take(MAX_ITEMS) {
        let Some(item) = told(get(hash)) else { break };
        bytes += length(&item);
        if bytes > MAX_MESSAGE {
            break;
        }
        found.push(item);
        if bytes >= ENOUGH {
            break;
        }
    }
    found
}

/// Receipts with those of the last block cut where the message ends (EIP-7975).
fn partial_receipts(view: &dyn ChainView, first_index: u64, hashes: &[B256]) -> Response {
    let mut lists = Vec::new();
    let mut bytes = 0;
    for (at, hash) in hashes.iter().take(MAX_ITEMS).enumerate() {
        let Some(mut receipts) = told(view.receipts(hash)) else { break };
        if at == 0 {
            let skipped = usize::try_from(first_index).unwrap_or(usize::MAX);
            receipts.drain(..skipped.min(receipts.len()));
        }
        let mut left = MAX_MESSAGE.saturating_sub(bytes);
        let fitting = receipts.iter().map_while(|receipt| {
            left = left.checked_sub(receipt_length(receipt))?;
            Some(())
        });
        let fitting = fitting.count();
        if fitting < receipts.len() {
            // Not one: whoever asks goes on with this block.
            if fitting > 0 {
                receipts.truncate(fitting);
                lists.push(receipts);
                return Response::Receipts { last_incomplete: true, lists };
            }
            break;
        }
        bytes += list_length(receipts.iter().map(receipt_length));
        lists.push(receipts);
        if bytes >= ENOUGH {
            break;
        }
    }
    Response::Receipts { last_incomplete: false, lists }
}

fn access_lists(view: &dyn ChainView, hashes: &[B256]) -> Vec<Option<Bytes>> {
    let mut lists = Vec::new();
    let mut bytes = 0;
    for hash in hashes.iter().take(MAX_ITEMS) {
        let list = told(view.access_list(hash));
        bytes += list.as_ref().map_or(1, |list| list.len());
        if bytes > MAX_MESSAGE {
            break;
        }
        lists.push(list);
        if bytes >= ENOUGH {
            break;
        }
    }
    lists
}

/// `None` also if the database fails, which is told.
fn told<T>(read: Result<Option<T>, ChainError>) -> Option<T> {
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "an answer to a peer ends early");
        None
    })
}

/// Length of a receipt in a message, `[type, status, gas, [log..]]`.
fn receipt_length(receipt: &BlockReceipt) -> usize {
    let alloy_consensus::Receipt { status, cumulative_gas_used, logs } = &receipt.receipt;
    list_length([1, status.length(), cumulative_gas_used.length(), logs.length()])
}

/// Length of the RLP of a list of items of these lengths.
fn list_length(items: impl IntoIterator<Item = usize>) -> usize {
    let payload_length = items.into_iter().sum();
    alloy_rlp::Header { list: true, payload_length }.length_with_payload()
}
