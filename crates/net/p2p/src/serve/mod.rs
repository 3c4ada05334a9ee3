//! Answers to requests of peers: headers, bodies, receipts, access lists and pooled transactions.
//!
//! | in one answer | at most |
//! |---|---|
//! | headers, blocks, hashes looked up | 1,024 |
//! | bytes | one item beyond 2 MiB, and never beyond 10 MiB |
//! | side-chain blocks, stepped over from child to parent in a request that skips blocks | 100 |
//!
//! Lists of headers, bodies and receipts end before the first item that is not available. Pooled
//! transactions that are not available are skipped. For access lists that are not available there
//! is an empty entry (EIP-8159, EIP-8189). From eth/70 on the receipts of a block may be cut, and the peer
//! asks for the rest (EIP-7975). If the database fails, the answer ends there.

mod chain;
mod headers;
mod memory_chain;
#[cfg(test)]
mod tests;

pub use chain::{ChainError, ChainReader, ChainView};
pub use memory_chain::MemoryChain;

use crate::{
    eth::{BlockReceipt, EthRequest, EthResponse, EthVersion},
    handle::{EthRequestHandler, PeerInfo, SnapRequestHandler, StateRequestHandler},
    rchk,
    snap::{SnapRequest, SnapResponse},
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::BlockBody;
use std::sync::Arc;

/// Maximum items of one answer, and hashes looked up for it.
const MAX_ITEMS: usize = 1024;
/// An answer ends with the item that reaches this many bytes.
const ENOUGH: usize = 2 << 20;
/// Maximum bytes of the items in a message, less a reserve for what is around them.
const MAX_MESSAGE: usize = (10 << 20) - (16 << 10);

/// Answers of a node that has no data.
#[derive(Clone, Copy, Debug)]
pub struct EmptyRequestHandler;

impl EthRequestHandler for EmptyRequestHandler {
    fn answer(&self, _: &PeerInfo, request: EthRequest) -> EthResponse {
        request.empty_response()
    }
}

impl StateRequestHandler for EmptyRequestHandler {
    fn answer(&self, _: &PeerInfo, request: rchk::RchkRequest) -> rchk::RchkResponse {
        request.answer(Err(rchk::RchkRefusal::NoState))
    }
}

impl SnapRequestHandler for EmptyRequestHandler {
    fn answer(&self, _: &PeerInfo, request: SnapRequest) -> Option<SnapResponse> {
        Some(request.empty_answer())
    }
}

/// Answers requests from a chain and a pool.
#[derive(Clone, Debug)]
pub struct ChainRequestHandler {
    chain: Arc<dyn ChainReader>,
}

impl ChainRequestHandler {
    /// Makes a handler for this chain.
    pub fn new(chain: Arc<dyn ChainReader>) -> Self {
        Self { chain }
    }

    fn respond(
        &self,
        version: EthVersion,
        request: &EthRequest,
    ) -> Result<EthResponse, ChainError> {
        if let EthRequest::PooledTransactions(hashes) = request {
            return Ok(self.pooled(hashes));
        }
        let view = self.chain.view()?;
        Ok(match request {
            EthRequest::Headers(from) => EthResponse::Headers(headers::answer(&*view, from)),
            EthRequest::Bodies(hashes) => {
                EthResponse::Bodies(up_to_enough(hashes, |hash| view.body(hash), BlockBody::length))
            }
            EthRequest::Receipts { hashes, .. } if version == EthVersion::Eth69 => {
                let length = |all: &Vec<BlockReceipt>| list_length(all.iter().map(receipt_length));
                let lists = up_to_enough(hashes, |hash| view.receipts(hash), length);
                EthResponse::Receipts { last_incomplete: false, lists }
            }
            EthRequest::Receipts { first_index, hashes } => {
                partial_receipts(&*view, *first_index, hashes)
            }
            EthRequest::AccessLists(hashes) => {
                EthResponse::AccessLists(access_lists(hashes, ENOUGH, |hash| {
                    view.access_list(hash)
                }))
            }
            EthRequest::PooledTransactions(_) => request.empty_response(),
        })
    }

    fn pooled(&self, hashes: &[B256]) -> EthResponse {
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
        EthResponse::PooledTransactions(found)
    }
}

impl EthRequestHandler for ChainRequestHandler {
    fn answer(&self, peer: &PeerInfo, request: EthRequest) -> EthResponse {
        self.respond(peer.version, &request).unwrap_or_else(|error| {
            tracing::warn!(%error, peer = %peer.address, "cannot answer a peer");
            request.empty_response()
        })
    }
}

/// The items of these hashes, up to the first that is missing or the one that reaches the size
/// limit.
fn up_to_enough<T>(
    hashes: &[B256],
    get: impl Fn(&B256) -> Result<Option<T>, ChainError>,
    length: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut bytes = 0;
    for hash in hashes.iter().take(MAX_ITEMS) {
        let Some(item) = unwrap_or_log(get(hash)) else { break };
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

/// Receipts; those of the last block are cut where the message ends (EIP-7975).
fn partial_receipts(view: &dyn ChainView, first_index: u64, hashes: &[B256]) -> EthResponse {
    let mut lists = Vec::new();
    let mut bytes = 0;
    for (at, hash) in hashes.iter().take(MAX_ITEMS).enumerate() {
        let Some(mut receipts) = unwrap_or_log(view.receipts(hash)) else { break };
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
            // Not a single receipt fits: the peer asks again from this block on.
            if fitting > 0 {
                receipts.truncate(fitting);
                lists.push(receipts);
                return EthResponse::Receipts { last_incomplete: true, lists };
            }
            break;
        }
        bytes += list_length(receipts.iter().map(receipt_length));
        lists.push(receipts);
        if bytes >= ENOUGH {
            break;
        }
    }
    EthResponse::Receipts { last_incomplete: false, lists }
}

/// The access lists of the first of these blocks, up to the one that reaches `enough` bytes; `None`
/// for a list that is not available. `get` reads the RLP of a list by the hash of its block.
pub fn access_lists(
    hashes: &[B256],
    enough: usize,
    get: impl Fn(&B256) -> Result<Option<Bytes>, ChainError>,
) -> Vec<Option<Bytes>> {
    let mut lists = Vec::new();
    let mut bytes = 0;
    for hash in hashes.iter().take(MAX_ITEMS) {
        let list = unwrap_or_log(get(hash));
        bytes += list.as_ref().map_or(1, |list| list.len());
        if bytes > MAX_MESSAGE {
            break;
        }
        lists.push(list);
        if bytes >= enough {
            break;
        }
    }
    lists
}

/// Unwraps an item. `None` also if the database fails, which is logged.
fn unwrap_or_log<T>(read: Result<Option<T>, ChainError>) -> Option<T> {
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "an answer to a peer ends early");
        None
    })
}

/// Length of a receipt on the wire, `[type, status, gas, [log..]]`.
fn receipt_length(receipt: &BlockReceipt) -> usize {
    let alloy_consensus::Receipt { status, cumulative_gas_used, logs } = &receipt.receipt;
    list_length([1, status.length(), cumulative_gas_used.length(), logs.length()])
}

/// Length of an RLP list whose items have these lengths.
fn list_length(items: impl IntoIterator<Item = usize>) -> usize {
    let payload_length = items.into_iter().sum();
    alloy_rlp::Header { list: true, payload_length }.length_with_payload()
}
