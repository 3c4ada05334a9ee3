//! What peers see of this node, and what it does with what they send.

mod chain;
mod start;
mod txpool;

pub(super) use chain::{NodeChain, NodeStates};
pub(super) use start::{NodePeers, Visitor};
pub(super) use txpool::NodePool;

use super::services::{FollowService, TaskService};
use alloy_primitives::B256;
use retrie_engine::{EngineHandle, FollowConfig, Follower, Leader, pool::Pool};
use retrie_network::{
    gossip::{GossipFigures, GossipOptions, Gossiper},
    peers::{GossipReceiver, Peers},
    sync::{PeerBlocks, SyncFigures, SyncOptions},
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

/// How often it is looked whether a head is wanted that is not here.
const LOOK: Duration = Duration::from_millis(250);

/// Figures of what comes from peers, for the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    sync: Option<Arc<SyncFigures>>,
    gossip: Option<Arc<GossipFigures>>,
}

impl Traffic {
    /// Shows them.
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

/// Fetches from peers what is missing below the head that a consensus client names, or below `head`
/// and that one.
pub(super) fn follow_peers(
    engine: &EngineHandle,
    peers: Peers,
    head: Option<B256>,
    runtime: &Handle,
    traffic: &mut Traffic,
) -> eyre::Result<FollowService> {
    let leader = head.map_or(Leader::ConsensusClient, Leader::Named);
    let stop = Arc::<AtomicBool>::default();
    let options = SyncOptions::default();
    let from_peers = PeerBlocks::new(peers, options, runtime.clone(), stop.clone());
    traffic.sync = Some(from_peers.figures());
    let config = FollowConfig { leader, interval: LOOK };
    let (engine, runtime) = (engine.clone(), runtime.clone());
    let following = Follower::new(engine, from_peers, config, runtime, stop.clone()).start()?;
    Ok(FollowService { following, stop })
}

/// Passes transactions on between peers and the pool.
pub(super) fn gossip(
    engine: &EngineHandle,
    pool: &Pool,
    peers: Peers,
    heard: GossipReceiver,
    runtime: &Handle,
    traffic: &mut Traffic,
) -> TaskService<std::io::Error> {
    let pool = Arc::new(NodePool::new(engine.clone(), pool.clone()));
    let gossiper = Gossiper::new(peers, heard, pool, GossipOptions::default());
    traffic.gossip = Some(gossiper.figures());
    TaskService { name: "gossip", task: runtime.spawn(gossiper.run()), threads: runtime.clone() }
}
