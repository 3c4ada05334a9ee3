//! Requests for announced transactions: whole ones, and from eth/72 on transactions and the cells of
//! their blobs (EIP-8070).

use super::tx_fetcher::{FetchOutcome, TxRequest, is_as_announced};
use crate::{
    eth::{EthRequest, EthResponse, PeerId, PooledTransaction},
    handle::{NetworkHandle, RequestError},
};
use alloy_consensus::Typed2718;
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::Blob,
    eip7594::{BYTES_PER_CELL, BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB, Cell},
};
use alloy_primitives::{B256, map::HashMap};
use retrie_chainspec::{CELLS_PER_BLOB, CellMask};

/// Maximum number of blobs whose cells are fetched at once: 2 MiB, after which other clients end an
/// answer.
const MOST_BLOBS: usize = 16;
/// What an answer with cells may have around each of them, and around all, in bytes.
const CELL_SLACK: usize = 8;
const ANSWER_SLACK: usize = 64 << 10;

/// Requests transactions with their blobs.
pub(super) async fn whole(peers: &NetworkHandle, request: TxRequest) -> FetchOutcome {
    let TxRequest { peer, hashes, bytes, .. } = request;
    match pooled(peers, peer, hashes, bytes).await {
        Ok(transactions) => FetchOutcome::Transactions(transactions),
        Err(failed) => failed,
    }
}

/// Requests transactions without their blobs, and then the cells that make up the blobs of the first
/// ones. Transactions without all of their cells are left out.
pub(super) async fn with_cells(peers: &NetworkHandle, request: TxRequest) -> FetchOutcome {
    let TxRequest { peer, hashes, asked, bytes } = request;
    let transactions = match pooled(peers, peer, hashes, bytes).await {
        Ok(transactions) => transactions,
        Err(failed) => return failed,
    };
    let sized = transactions.into_iter().map(|one| (one.encode_2718_len() as u64, one));
    let mut sized: Vec<(u64, PooledTransaction)> = sized.collect();
    let is_false = |(size, one): &(u64, PooledTransaction)| {
        let announced = asked.iter().find(|announced| announced.hash == *one.tx_hash());
        announced.is_none_or(|announced| !is_as_announced(announced, one.ty(), *size))
    };
    if sized.iter().any(is_false) {
        // The peer is to blame for these; nothing more is fetched from it.
        sized.retain(is_false);
        return FetchOutcome::WithCells(sized);
    }
    let (mut blobs, mut fitting) = (0, sized.len());
    let mut wanted = HashMap::<B256, usize>::default();
    for (at, (_, transaction)) in sized.iter().enumerate() {
        let missing = missing_blobs(transaction);
        blobs += missing;
        if blobs > MOST_BLOBS {
            // The peer is asked again for this one and the rest, as if they had not fitted.
            fitting = at;
            break;
        }
        if missing > 0 {
            wanted.insert(*transaction.tx_hash(), missing);
        }
    }
    sized.truncate(fitting);
    if wanted.is_empty() {
        return FetchOutcome::WithCells(sized);
    }
    let mask = CellMask::BLOB;
    let count: usize = wanted.values().map(|blobs| blobs * CELLS_PER_BLOB).sum();
    let most = count * (BYTES_PER_CELL + CELL_SLACK) + ANSWER_SLACK;
    // In the order of the announcements: an answer that ends early lacks the last ones.
    let hashes = sized.iter().map(|(_, one)| *one.tx_hash());
    let hashes = hashes.filter(|hash| wanted.contains_key(hash)).collect();
    let request = EthRequest::Cells { hashes, mask };
    let mut found = match peers.request_within(peer, request, most).await {
        Ok(EthResponse::Cells { cells, mask: told }) if told == mask => {
            cells.into_iter().collect::<HashMap<B256, Vec<Cell>>>()
        }
        Err(RequestError::Busy(_)) => return FetchOutcome::Busy,
        Ok(_) | Err(_) => return FetchOutcome::Failed,
    };
    let restored = sized.into_iter().filter_map(|(size, transaction)| {
        let Some(blobs) = wanted.get(transaction.tx_hash()) else {
            return Some((size, transaction));
        };
        let blobs = joined(&found.remove(transaction.tx_hash())?, *blobs)?;
        Some((size, with_blobs(transaction, blobs)))
    });
    FetchOutcome::WithCells(restored.collect())
}

async fn pooled(
    peers: &NetworkHandle,
    peer: PeerId,
    hashes: Vec<B256>,
    bytes: usize,
) -> Result<Vec<PooledTransaction>, FetchOutcome> {
    let request = EthRequest::PooledTransactions(hashes);
    match peers.request_within(peer, request, bytes).await {
        Ok(EthResponse::PooledTransactions(transactions)) => Ok(transactions),
        Err(RequestError::Busy(_)) => Err(FetchOutcome::Busy),
        Ok(_) | Err(_) => Err(FetchOutcome::Failed),
    }
}

/// How many blobs came apart: none unless the sidecar has the commitment of each versioned hash, and
/// all proofs of its cells. A peer must send these for each blob that it makes a node fetch; what it
/// sends else is for the pool to refuse.
fn missing_blobs(transaction: &PooledTransaction) -> usize {
    let PooledTransaction::Eip4844(signed) = transaction else { return 0 };
    let tx = signed.tx();
    let Some(sidecar) = tx.sidecar.as_eip7594() else { return 0 };
    let blobs = tx.tx.blob_versioned_hashes.len();
    let is_whole = sidecar.cell_proofs.len() == blobs * CELLS_PER_EXT_BLOB
        && sidecar.versioned_hashes().eq(tx.tx.blob_versioned_hashes.iter().copied());
    if sidecar.blobs.is_empty() && is_whole { blobs } else { 0 }
}

/// The blobs, one or more, that these cells make up: they come by index, and those of one index by
/// blob. `None` if their number is another one.
fn joined(cells: &[Cell], blobs: usize) -> Option<Vec<Blob>> {
    if cells.len() != blobs * CELLS_PER_BLOB {
        return None;
    }
    let mut joined = vec![Blob::ZERO; blobs];
    for (at, cell) in cells.iter().enumerate() {
        let first = at / blobs * BYTES_PER_CELL;
        let bytes = joined.get_mut(at % blobs)?.get_mut(first..first + BYTES_PER_CELL)?;
        bytes.copy_from_slice(cell.as_slice());
    }
    Some(joined)
}

fn with_blobs(transaction: PooledTransaction, blobs: Vec<Blob>) -> PooledTransaction {
    let mut blobs = Some(blobs);
    transaction.map_eip4844(|mut tx| {
        if let BlobTransactionSidecarVariant::Eip7594(sidecar) = &mut tx.sidecar {
            sidecar.blobs = blobs.take().unwrap_or_default();
        }
        tx
    })
}
