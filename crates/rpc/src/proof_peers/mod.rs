//! Nodes that keep the other shards of the proofs (`--proof-peers`), as one set.
//!
//! ```text
//!  URLs --names--> addresses --probe: GET /health--> ShardPeer: shard, head, healthy or not
//!                                                      |
//!  own part --holes--> needs, one per shard --gather: request, retry, hedge--> parts
//!                        ^                                                    | combined, verified
//!                        '----- wrong part: its peer is set aside ------------'--> the whole proof
//! ```
//!
//! # Vocabulary
//! * **peer**: one address. A name with several addresses is several peers. Names are resolved
//!   again periodically, and peers come and go with the addresses.
//! * **healthy**: reachable, in sync, and at most a few blocks behind this node. Other peers are
//!   asked only when no healthy peer has returned the needed part.
//! * **need**: the holes of a proof that one shard fills. Peers that keep this shard are
//!   *replicas*.
//! * **hedge**: a second replica asked for the same need, when the first has not responded within
//!   the 95th percentile of response times (or within `--proof-peers.hedge`). The first good
//!   response wins.
//! * **set aside**: not asked for some minutes, because of a wrong response.
//! * **behind**: without the block or its state. Such a peer is asked again and not set aside.
//!
//! # Assumptions
//!
//! Peers are not trusted. A part is accepted if it fits this node's own part, and the combined
//! proof is verified against this node's root before it is returned. Only if that fails, each part
//! is checked by itself. So a lying peer costs time. This node has the state of the block.
//!
//! # Tasks
//!
//! | task | started by | bounded by | ends |
//! |---|---|---|---|
//! | resolving names and probing | [`ProofPeers::start`] | one | with the set |
//! | a request or a probe, on a thread that may block | gathering, probing | 192 at once, 24 per peer | response, or timeout |
//! | combining and verifying, on a thread that may block | gathering | cores | by itself |

mod gather;
mod latency;
mod names;
mod peer;
mod probe;
#[cfg(test)]
mod tests;

pub(crate) use gather::{GatherError, PartRequest, ProofAssembler};
pub use names::{BadPeerUrl, NameResolver, PeerUrl, system_resolver};

use latency::PeerLatencies;
use parking_lot::RwLock;
use peer::ShardPeer;
use retrie_telemetry::proofs::ProofMetrics;
use std::{fmt, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, task::AbortHandle};

/// Most requests to all peers at once.
const MAX_REQUESTS: usize = 192;
/// Most peers of one node.
const MAX_PEERS: usize = 256;

/// Which peers to ask, and the timeouts. The flags are in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofPeersConfig {
    /// The peers' URLs (`--proof-peers`).
    pub urls: Vec<PeerUrl>,
    /// Delay before a second replica is asked (`--proof-peers.hedge`); by default the 95th
    /// percentile of the last hundred response times.
    pub hedge: Option<Duration>,
    /// Longest time for gathering one proof (`--proof-peers.timeout`).
    pub timeout: Duration,
    /// How often each peer is probed (`--proof-peers.probe`).
    pub probe: Duration,
    /// How often names are resolved (`--proof-peers.resolve`).
    pub resolve: Duration,
    /// How long a peer is set aside for a wrong response (`--proof-peers.set-aside`); doubled each
    /// time, up to sixteen times as long.
    pub set_aside: Duration,
}

impl Default for ProofPeersConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            hedge: None,
            timeout: Duration::from_secs(5),
            probe: Duration::from_secs(5),
            resolve: Duration::from_secs(10),
            set_aside: Duration::from_secs(5 * 60),
        }
    }
}

/// The set of proof peers. Clones share it; probing ends with the last clone.
#[derive(Clone)]
pub struct ProofPeers(Arc<WatchedPeers>);

/// Ends the probing task when the set is dropped.
struct WatchedPeers {
    set: Arc<PeerSet>,
    watching: AbortHandle,
}

impl Drop for WatchedPeers {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// The state that requests and the probing task share.
struct PeerSet {
    config: ProofPeersConfig,
    resolver: NameResolver,
    /// Returns the number of this node's head.
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    peers: RwLock<Vec<Arc<ShardPeer>>>,
    latencies: PeerLatencies,
    /// Permits for requests.
    requests: Arc<Semaphore>,
    /// Permits for verifying.
    working: Arc<Semaphore>,
    metrics: ProofMetrics,
}

impl fmt::Debug for ProofPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProofPeers").field(&self.0.set.config).finish()
    }
}

impl ProofPeers {
    /// Starts probing the peers at `config`'s URLs, whose names `resolver` resolves. `head` returns
    /// the number of this node's head; a peer far below it is not healthy. Call it within a tokio
    /// runtime. The peers are known only after the first round.
    pub fn start(
        config: ProofPeersConfig,
        resolver: NameResolver,
        metrics: ProofMetrics,
        head: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let set = Arc::new(PeerSet {
            config,
            resolver,
            head: Box::new(head),
            peers: RwLock::default(),
            latencies: PeerLatencies::default(),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            working: Arc::new(Semaphore::new(cores)),
            metrics,
        });
        let watching = tokio::spawn(probe::watch(Arc::downgrade(&set))).abort_handle();
        Self(Arc::new(WatchedPeers { set, watching }))
    }

    /// Gathers a proof: the peers' parts fill the holes of this node's own part, and `parts` checks
    /// and combines them.
    pub(crate) async fn gather(
        &self,
        ask: PartRequest,
        parts: Arc<dyn ProofAssembler>,
    ) -> Result<alloy_primitives::Bytes, GatherError> {
        let set = &self.0.set;
        let gathered = gather::gather(set, ask, parts).await;
        match &gathered {
            Ok(_) => set.metrics.gathered.inc(),
            Err(_) => set.metrics.not_gathered.inc(),
        }
        gathered
    }
}
