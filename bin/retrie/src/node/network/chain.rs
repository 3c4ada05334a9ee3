//! The node's chain and pool, as its answers to peers read them.

use super::txpool::may_be_told;
use alloy_consensus::Receipt as WireReceipt;
use alloy_primitives::{B256, Bytes};
use retrie_chainspec::{
    EthereumHardforks,
    primitives::{BlockBody, Header, Receipt},
};
use retrie_db::{ChainRead, DbError};
use retrie_engine::{LiveChain, StateClient, StateServer, StatesError, View, pool::Pool};
use retrie_network::{
    eth::{BlockRange, BlockReceipt, PooledTransaction},
    handle::{PeerInfo, ServeStates, StateAudience},
    rchk::{self, Refusal},
    serve::{Chain, ChainError, ChainView},
};
use retrie_pipeline::PipelineError;
use std::sync::Arc;

/// The chain that the engine moves, and its pool.
#[derive(Clone, Debug)]
pub(crate) struct NodeChain {
    live: LiveChain,
    pool: Pool,
}

impl NodeChain {
    pub(crate) const fn new(live: LiveChain, pool: Pool) -> Self {
        Self { live, pool }
    }
}

impl Chain for NodeChain {
    fn view(&self) -> Result<Box<dyn ChainView + '_>, ChainError> {
        Ok(Box::new(NodeView(self.live.view().map_err(ChainError::new)?)))
    }

    fn pooled(&self, hash: &B256) -> Option<PooledTransaction> {
        self.pool.get(hash).filter(|tx| may_be_told(tx))?.to_pooled()
    }
}

/// The states of that chain, in chunks.
#[derive(Debug)]
pub(crate) struct NodeStates {
    live: LiveChain,
    server: StateServer,
}

impl NodeStates {
    pub(crate) const fn new(live: LiveChain, server: StateServer) -> Self {
        Self { live, server }
    }

    fn parts(
        &self,
        client: StateClient,
        request: &rchk::Request,
    ) -> Result<Vec<Option<Bytes>>, Refusal> {
        let view = self.live.view().map_err(StatesError::from);
        let parts = view.and_then(|view| match request {
            rchk::Request::Chunks { block, ids, .. } => {
                self.server.chunks(&view, client, *block, ids)
            }
            rchk::Request::Codes(hashes) => self.server.codes(&view, hashes),
        });
        parts.map_err(|error| match error {
            error if error.is_busy() => Refusal::Busy,
            error if error.is_no_state() => Refusal::NoState,
            error => {
                tracing::warn!(%error, "a part of a state cannot be read for a peer");
                Refusal::Failed
            }
        })
    }
}

impl ServeStates for NodeStates {
    fn answer(&self, peer: &PeerInfo, request: rchk::Request) -> rchk::Response {
        let client = match StateAudience::Named.includes(peer.trusted, peer.is_static) {
            true => StateClient::Trusted,
            false => StateClient::Stranger,
        };
        let parts = match &request {
            rchk::Request::Chunks { format, .. }
                if self.live.backend().chunks().is_none_or(|ours| ours.format() != format) =>
            {
                Err(Refusal::Format)
            }
            request => self.parts(client, request),
        };
        request.answer(parts)
    }
}

struct NodeView(View);

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
        // Those of earlier blocks have a state root each, which is not kept.
        let receipts = receipts.filter(|receipts| has_status || receipts.is_empty());
        Ok(receipts.map(|receipts| Arc::unwrap_or_clone(receipts).into_iter().map(wire).collect()))
    }

    fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, ChainError> {
        Ok(self.0.access_list(hash))
    }
}

fn wire(receipt: Receipt) -> BlockReceipt {
    let Receipt { tx_type, success, cumulative_gas_used, logs } = receipt;
    let receipt = WireReceipt { status: success.into(), cumulative_gas_used, logs };
    BlockReceipt { tx_type, receipt }
}

/// What is pruned is not here.
fn kept<T>(read: Result<Option<T>, PipelineError>) -> Result<Option<T>, ChainError> {
    match read {
        Err(PipelineError::Db(DbError::Pruned { .. })) => Ok(None),
        read => read.map_err(ChainError::new),
    }
}
