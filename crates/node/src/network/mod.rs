//! The node's peer-to-peer side: what it serves to peers, and what it does with their messages.

mod chain;
mod ranges;
mod start;
mod txpool;

pub(super) use chain::{NodeChain, NodeStateHandler};
pub(super) use start::{NodePeers, StateSyncPeers};
pub(super) use txpool::NodePool;

use super::services::{FollowService, TaskService};
use alloy_primitives::B256;
use retrie_block_sync::{BlockSyncFigures, BlockSyncOptions, PeerBlocks};
use retrie_engine::{ChainFollower, EngineHandle, FollowConfig, HeadSource, pool::TransactionPool};
use retrie_p2p::{
    gossip::{GossipFigures, GossipOptions, TxGossiper},
    handle::{GossipReceiver, NetworkHandle},
};
use retrie_telemetry::Metrics;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Handle;

/// Interval between checks for a wanted head that is missing here.
const HEAD_POLL: Duration = Duration::from_millis(250);

/// Figures of block sync and gossip, for the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerTraffic {
    sync: Option<Arc<BlockSyncFigures>>,
    gossip: Option<Arc<GossipFigures>>,
}

impl PeerTraffic {
    /// Copies the figures into the metrics.
    pub(super) fn show_in(&self, metrics: &Metrics) {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        if let Some(sync) = &self.sync {
            metrics.traffic.show_blocks(&[
                ("headers", get(&sync.headers)),
                ("bodies", get(&sync.bodies)),
                ("body_bytes", get(&sync.body_bytes)),
                ("wrong", get(&sync.wrong)),
                ("failed", get(&sync.failed)),
            ]);
        }
        if let Some(gossip) = &self.gossip {
            let counts = [
                ("sent", get(&gossip.sent)),
                ("announced", get(&gossip.announced)),
                ("heard", get(&gossip.heard)),
                ("overheard", get(&gossip.overheard)),
                ("fetched", get(&gossip.fetched)),
                ("taken", get(&gossip.taken)),
                ("refused", get(&gossip.refused)),
            ];
            metrics.traffic.show_transactions(&counts, get(&gossip.wanted));
        }
    }
}

/// Starts block sync: fetches from peers the blocks missing below the consensus client's head, and
/// below `head` if given.
pub(super) fn start_block_sync(
    engine: &EngineHandle,
    peers: NetworkHandle,
    head: Option<B256>,
    runtime: &Handle,
    traffic: &mut PeerTraffic,
) -> eyre::Result<FollowService> {
    let leader = head.map_or(HeadSource::ConsensusClient, HeadSource::Named);
    let stop = Arc::<AtomicBool>::default();
    let options = BlockSyncOptions::default();
    let from_peers = PeerBlocks::new(peers, options, runtime.clone(), stop.clone());
    traffic.sync = Some(from_peers.figures());
    let config = FollowConfig { head_source: leader, interval: HEAD_POLL };
    let (engine, runtime) = (engine.clone(), runtime.clone());
    let following =
        ChainFollower::new(engine, from_peers, config, runtime, stop.clone()).start()?;
    Ok(FollowService { following, stop })
}

/// Starts the gossip of transactions between peers and the pool.
pub(super) fn start_gossip(
    engine: &EngineHandle,
    pool: &TransactionPool,
    peers: NetworkHandle,
    heard: GossipReceiver,
    runtime: &Handle,
    traffic: &mut PeerTraffic,
) -> TaskService<std::io::Error> {
    let pool = Arc::new(NodePool::new(engine.clone(), pool.clone()));
    let gossiper = TxGossiper::new(peers, heard, pool, GossipOptions::default());
    traffic.gossip = Some(gossiper.figures());
    TaskService { name: "gossip", task: runtime.spawn(gossiper.run()), threads: runtime.clone() }
}
