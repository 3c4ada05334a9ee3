//! What this node reports.

use super::{
    StatsSource,
    messages::{BlockStats, NodeIdentity, NodeStats},
};
use crate::network::NodePeers;
use alloy_consensus::BlockHeader;
use alloy_primitives::B256;
use retrie_engine::{EngineHandle, LiveView, NodeNetwork, pool::TransactionPool};
use retrie_p2p::eth::EthVersion;
use retrie_rpc::client_version;
use tokio::{
    runtime::Handle,
    sync::{broadcast::error::RecvError, watch},
};

/// The chain, the pool and the peers of this node.
pub(crate) struct LocalStats {
    pub(crate) engine: EngineHandle,
    pub(crate) pool: TransactionPool,
    pub(crate) peers: Option<NodePeers>,
}

impl LocalStats {
    /// The number of the head, from now on. Ends with the chain.
    pub(crate) fn heads(&self, threads: &Handle) -> watch::Receiver<u64> {
        let live = self.engine.live();
        let (sender, heads) = watch::channel(live.head().number);
        let mut changes = live.subscribe();
        threads.spawn(async move {
            loop {
                match changes.recv().await {
                    Ok(change) => {
                        if sender.send(change.head.number).is_err() {
                            return;
                        }
                    }
                    // Only the newest head counts.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
        heads
    }
}

fn block_stats(view: &LiveView, hash: &B256) -> Option<BlockStats> {
    let block = view.block(hash).ok()??;
    let header = block.header();
    let total_difficulty = view.total_difficulty(hash).ok().flatten();
    let ommers = block.body().ommers.iter().map(|ommer| ommer.hash_slow());
    Some(BlockStats {
        number: header.number(),
        hash: *hash,
        parent_hash: header.parent_hash(),
        timestamp: header.timestamp(),
        miner: header.beneficiary(),
        gas_used: header.gas_used(),
        gas_limit: header.gas_limit(),
        difficulty: header.difficulty(),
        total_difficulty: total_difficulty.unwrap_or_default(),
        transactions: block.body().transactions.iter().map(|tx| *tx.tx_hash()).collect(),
        transactions_root: header.transactions_root(),
        state_root: header.state_root(),
        ommers: ommers.collect(),
    })
}

impl StatsSource for LocalStats {
    fn identity(&self) -> NodeIdentity {
        let listens = self.peers.as_ref().and_then(|peers| peers.address().listens);
        let versions = EthVersion::ALL.iter().map(ToString::to_string);
        NodeIdentity {
            client: client_version(),
            port: listens.map_or(0, |address| address.port()),
            network: self.engine.live().spec().chain_id(),
            protocols: versions.collect::<Vec<_>>().join(", "),
        }
    }

    fn block(&self, number: Option<u64>) -> Option<BlockStats> {
        let view = self.engine.live().view().ok()?;
        let hash = match number {
            None => view.head().hash(),
            Some(number) => view.canonical_hash(number).ok()??,
        };
        block_stats(&view, &hash)
    }

    fn stats(&self) -> NodeStats {
        let head = self.engine.live().head();
        NodeStats {
            peers: self.peers.as_ref().map_or(0, NodeNetwork::peer_count),
            pending: self.pool.stats().pending.txs,
            gas_price: head.base_fee_per_gas.unwrap_or_default(),
            syncing: self.engine.syncing().is_some(),
        }
    }
}
