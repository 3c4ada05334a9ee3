//! Answers to requests of peers: headers, bodies, receipts, access lists, pooled transactions and
//! cells of their blobs.
//!
//! | in one answer | at most |
//! |---|---|
//! | headers, blocks, hashes looked up | 1,024 |
//! | bytes | one item beyond 2 MiB, and never beyond 10 MiB |
//! | blobs whose cells beyond the blob itself are computed | 16, and those of one transaction; for all peers together 20 a second, 256 at once |
//! | side-chain blocks, stepped over from child to parent in a request that skips blocks | 100 |
//!
//! Lists of headers, bodies and receipts end before the first item that is not available. Pooled
//! transactions that are not available are skipped, and their cells. From eth/72 on pooled
//! transactions have no blobs (EIP-8070). For access lists that are not available there
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
    rate::TokenBucket,
    rchk,
    snap::{SnapRequest, SnapResponse},
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip7594::{BYTES_PER_CELL, BlobTransactionSidecarVariant, Cell},
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Encodable;
use parking_lot::Mutex;
use retrie_chainspec::{CellMask, primitives::BlockBody};
use std::{sync::Arc, time::Instant};

/// Maximum items of one answer, and hashes looked up for it.
const MAX_ITEMS: usize = 1024;
/// An answer ends with the item that reaches this many bytes.
const ENOUGH: usize = 2 << 20;
/// Maximum bytes of the items in a message, less a reserve for what is around them.
const MAX_MESSAGE: usize = (10 << 20) - (16 << 10);
/// An answer ends with the transaction that reaches this many blobs whose cells are computed: each
/// takes milliseconds.
const ENOUGH_EXTENDED: usize = 16;
/// Blobs whose cells are computed for peers: in a second, and at once.
const EXTENSIONS: (u32, u32) = (20, 256);

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
    /// Blobs whose cells may be computed for peers.
    extensions: Arc<Mutex<TokenBucket>>,
}

impl ChainRequestHandler {
    /// Makes a handler for this chain.
    pub fn new(chain: Arc<dyn ChainReader>) -> Self {
        let extensions = TokenBucket::new(EXTENSIONS, Instant::now());
        Self { chain, extensions: Arc::new(Mutex::new(extensions)) }
    }

    fn respond(
        &self,
        version: EthVersion,
        request: &EthRequest,
    ) -> Result<EthResponse, ChainError> {
        if let EthRequest::PooledTransactions(hashes) = request {
            return Ok(self.pooled(version, hashes));
        }
        if let EthRequest::Cells { hashes, mask } = request {
            return Ok(self.cells(hashes, *mask));
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
            EthRequest::PooledTransactions(_) | EthRequest::Cells { .. } => {
                request.empty_response()
            }
        })
    }

    fn pooled(&self, version: EthVersion, hashes: &[B256]) -> EthResponse {
        let mut found = Vec::new();
        let mut bytes = 0;
        for hash in hashes.iter().take(MAX_ITEMS) {
            let Some(mut transaction) = self.chain.pooled(hash) else { continue };
            if version.elides_blobs() {
                transaction = transaction.map_eip4844(|mut tx| {
                    if let BlobTransactionSidecarVariant::Eip7594(sidecar) = &mut tx.sidecar {
                        // Cleared, it would keep the memory of the blobs until all are sent.
                        sidecar.blobs = Vec::new();
                    }
                    tx
                });
            }
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

    fn cells(&self, hashes: &[B256], mask: CellMask) -> EthResponse {
        let (mut found, mut bytes, mut extended) = (Vec::new(), 0, 0);
        let hashes: &[B256] = if mask.count() == 0 { &[] } else { hashes };
        for hash in hashes.iter().take(MAX_ITEMS) {
            let to_extend =
                if mask.names_extension() { self.chain.blobs_to_extend(hash) } else { 0 };
            if to_extend > 0 && !self.may_extend(to_extend) {
                continue;
            }
            let Some(blobs) = self.chain.blob_cells(hash, mask) else { continue };
            let cells: Vec<Cell> = (0..mask.count())
                .flat_map(|at| blobs.iter().filter_map(move |cells| cells.get(at).copied()))
                .collect();
            bytes += cells.len() * BYTES_PER_CELL;
            if bytes > MAX_MESSAGE && !found.is_empty() {
                break;
            }
            extended += to_extend;
            found.push((*hash, cells));
            if bytes >= ENOUGH || extended >= ENOUGH_EXTENDED {
                break;
            }
        }
        EthResponse::Cells { cells: found, mask }
    }

    /// Spends what the cells of these blobs cost, if peers have not used it up.
    fn may_extend(&self, blobs: usize) -> bool {
        let (mut extensions, now) = (self.extensions.lock(), Instant::now());
        let may = extensions.wait(now).is_zero();
        if may {
            extensions.spend(u32::try_from(blobs).unwrap_or(u32::MAX), now);
        }
        may
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
