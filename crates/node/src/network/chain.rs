//! The node's chain, pool and states, as requests of peers read them.

use super::txpool::may_be_announced;
use alloy_consensus::{Receipt as WireReceipt, Transaction as _};
use alloy_eips::{eip4844::BlobCellsAndProofsV1, eip7594::Cell};
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::{
    CellMask, EthereumHardforks,
    primitives::{BlockBody, Header, Receipt},
};
use retrie_db::{ChainRead, DbError};
use retrie_engine::{
    LiveChain, LiveView, StateClient, StateServeError, StateServer,
    pool::{BlobSidecar, TransactionPool},
};
use retrie_p2p::{
    eth::{BlockRange, BlockReceipt, PooledTransaction},
    handle::{PeerInfo, StateAudience, StateRequestHandler},
    rchk::{self, RchkRefusal},
    serve::{ChainError, ChainReader, ChainView},
};
use retrie_pipeline::PipelineError;
use std::sync::Arc;

/// The engine's chain and the transaction pool.
#[derive(Clone, Debug)]
pub(crate) struct NodeChain {
    live: LiveChain,
    pool: TransactionPool,
}

impl NodeChain {
    pub(crate) const fn new(live: LiveChain, pool: TransactionPool) -> Self {
        Self { live, pool }
    }
}

impl ChainReader for NodeChain {
    fn view(&self) -> Result<Box<dyn ChainView + '_>, ChainError> {
        Ok(Box::new(NodeView(self.live.view().map_err(ChainError::new)?)))
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.pool.get(hash).filter(|tx| may_be_announced(tx))?.to_pooled()
    }

    fn blob_cells(&self, hash: &B256, mask: CellMask) -> Option<Vec<Vec<Cell>>> {
        let tx = self.pool.get(hash).filter(|tx| may_be_announced(tx))?;
        let blobs = self.pool.blob_cells(tx.transaction.blob_versioned_hashes()?, mask);
        let whole = |blob: Option<BlobCellsAndProofsV1>| -> Option<Vec<Cell>> {
            blob?.blob_cells.into_iter().collect()
        };
        blobs.into_iter().map(whole).collect()
    }

    fn blobs_to_extend(&self, hash: &B256) -> usize {
        let has_cells = |sidecar: &Arc<BlobSidecar>| sidecar.is_eip7594();
        let tx = self.pool.get(hash).filter(|tx| may_be_announced(tx));
        let tx = tx.filter(|tx| tx.sidecar.as_ref().is_some_and(has_cells));
        let hashes = tx.as_ref().and_then(|tx| tx.transaction.blob_versioned_hashes());
        hashes.map_or(0, |hashes| self.pool.blobs_to_extend(hashes))
    }
}

/// The states of that chain, served in chunks.
#[derive(Debug)]
pub(crate) struct NodeStateHandler {
    live: LiveChain,
    server: StateServer,
}

impl NodeStateHandler {
    pub(crate) const fn new(live: LiveChain, server: StateServer) -> Self {
        Self { live, server }
    }

    fn parts(
        &self,
        client: StateClient,
        request: &rchk::RchkRequest,
    ) -> Result<Vec<Option<Bytes>>, RchkRefusal> {
        let view = self.live.view().map_err(StateServeError::from);
        let parts = view.and_then(|view| match request {
            rchk::RchkRequest::Chunks { block, ids, .. } => {
                self.server.chunks(&view, client, *block, ids)
            }
            rchk::RchkRequest::Codes(hashes) => self.server.codes(&view, hashes),
        });
        parts.map_err(|error| match error {
            error if error.is_busy() => RchkRefusal::Busy,
            error if error.is_no_state() => RchkRefusal::NoState,
            error => {
                tracing::warn!(%error, "a part of a state cannot be read for a peer");
                RchkRefusal::Failed
            }
        })
    }
}

impl StateRequestHandler for NodeStateHandler {
    fn answer(&self, peer: &PeerInfo, request: rchk::RchkRequest) -> rchk::RchkResponse {
        let client = match StateAudience::Named.includes(peer.trusted, peer.is_static) {
            true => StateClient::Trusted,
            false => StateClient::Stranger,
        };
        let parts = match &request {
            rchk::RchkRequest::Chunks { format, .. }
                if self
                    .live
                    .backend()
                    .extensions()
                    .chunks
                    .is_none_or(|ours| ours.format() != format) =>
            {
                Err(RchkRefusal::Format)
            }
            request => self.parts(client, request),
        };
        request.answer(parts)
    }
}

struct NodeView(LiveView);

impl ChainView for NodeView {
    fn range(&self) -> Result<BlockRange, ChainError> {
        let head = self.0.head();
        let earliest = self.0.durable().bodies_pruned_below().map_err(ChainError::new)?;
        Ok(BlockRange {
            earliest: earliest.min(head.number),
            latest: head.number,
            latest_hash: head.hash(),
        })
    }

    fn canonical_hash(&self, number: u64) -> Result<Option<B256>, ChainError> {
        self.0.canonical_hash(number).map_err(ChainError::new)
    }

    fn header(&self, hash: &B256) -> Result<Option<Header>, ChainError> {
        let header = self.0.header(hash).map_err(ChainError::new)?;
        Ok(header.map(|header| header.into_header()))
    }

    fn body(&self, hash: &B256) -> Result<Option<BlockBody>, ChainError> {
        kept(self.0.body(hash))
    }

    fn receipts(&self, hash: &B256) -> Result<Option<Vec<BlockReceipt>>, ChainError> {
        let Some(header) = self.0.header(hash).map_err(ChainError::new)? else { return Ok(None) };
        let receipts = kept(self.0.receipts(hash))?;
        let has_status = self.0.live().spec().is_byzantium_active_at_block(header.number);
        // Earlier receipts have a state root each, which is not stored.
        let receipts = receipts.filter(|receipts| has_status || receipts.is_empty());
        Ok(receipts.map(|receipts| Arc::unwrap_or_clone(receipts).into_iter().map(wire).collect()))
    }

    fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, ChainError> {
        self.0.access_list(hash).map_err(ChainError::new)
    }
}

fn wire(receipt: Receipt) -> BlockReceipt {
    let Receipt { tx_type, success, cumulative_gas_used, logs } = receipt;
    let receipt = WireReceipt { status: success.into(), cumulative_gas_used, logs };
    BlockReceipt { tx_type, receipt }
}

/// Treats pruned rows as missing.
fn kept<T>(read: Result<Option<T>, PipelineError>) -> Result<Option<T>, ChainError> {
    match read {
        Err(PipelineError::Db(DbError::Pruned(_))) => Ok(None),
        read => read.map_err(ChainError::new),
    }
}
