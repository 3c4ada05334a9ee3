//! Nodes that keep other parts of proofs (`--proof-peers`), as one set.
//!
//! ```text
//!  URLs --names--> addresses --probe: GET /health--> Peer: shard, head, well or not
//!                                                      |
//!  own part --holes--> needs, one a shard --gather: request, retry, hedge--> parts
//!                        ^                                                    | put together, verified
//!                        '----- a wrong part: its peer is set aside ----------'--> the whole proof
//! ```
//!
//! # Vocabulary
//! * **peer**: one address. A name that has several is as many peers; it is resolved again now and
//!   then, and peers come and go with its addresses.
//! * **well**: reachable, in sync, and not more than a few blocks behind this node. Others are asked
//!   only when no peer that is well has given what is needed.
//! * **need**: the holes of a proof that one shard fills. Peers that keep it are *replicas*.
//! * **hedge**: a second replica asked for the same need, as the first has not answered in the time in
//!   which 95 of 100 requests were (or in `--proof-peers.hedge`). The first good answer counts.
//! * **set aside**: not asked for minutes, because of a wrong answer.
//! * **behind**: without the block yet, or without its state. It is asked again, and blamed for nothing.
//!
//! # Assumptions
//!
//! None about peers: a part counts once it fits what this node knows of the proof, and the whole is
//! verified against this node's root before anybody gets it. Parts are checked one by one only if
//! that fails. So a peer that lies costs time. This node has the state of the block.
//!
//! # Tasks
//!
//! | task | started by | bounded by | ends |
//! |---|---|---|---|
//! | resolving and probing | [`ProofPeers::start`] | one | with the set |
//! | a request or a probe, on a thread that may block | gathering, probing | 192 at once, 24 a peer | answer, or its time limit |
//! | putting together and verifying, likewise | gathering | cores | by itself |

mod gather;
mod latency;
mod names;
mod peer;
mod probe;
#[cfg(test)]
mod tests;

pub(crate) use gather::{Ask, GatherError, Parts};
pub use names::{BadPeerUrl, PeerUrl, Resolver, system_resolver};

use latency::Latencies;
use parking_lot::RwLock;
use peer::Peer;
use retrie_telemetry::proofs::ProofMetrics;
use std::{fmt, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, task::AbortHandle};

/// Most requests to all peers at once.
const MAX_REQUESTS: usize = 192;
/// Most peers of one node.
const MAX_PEERS: usize = 256;

/// Whom to ask, and how patiently. The flags are in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofPeersConfig {
    /// Where they are (`--proof-peers`).
    pub urls: Vec<PeerUrl>,
    /// After how long a second replica is asked (`--proof-peers.hedge`); if absent, the time in which 95
    /// of the last hundred requests were answered.
    pub hedge: Option<Duration>,
    /// How long one proof may take to put together (`--proof-peers.timeout`).
    pub timeout: Duration,
    /// How often each peer is asked how it is (`--proof-peers.probe`).
    pub probe: Duration,
    /// How often names are resolved (`--proof-peers.resolve`).
    pub resolve: Duration,
    /// How long a peer is set aside for a wrong answer (`--proof-peers.set-aside`); twice as long each
    /// further time, up to sixteen times.
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

/// The set of peers. Clones are the same set; it is watched until the last one is gone.
#[derive(Clone)]
pub struct ProofPeers(Arc<Watched>);

/// Ends the watching with the set.
struct Watched {
    set: Arc<Set>,
    watching: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// What requests and the watching share.
struct Set {
    config: ProofPeersConfig,
    resolver: Resolver,
    /// Number of this node's head.
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    peers: RwLock<Vec<Arc<Peer>>>,
    latencies: Latencies,
    /// Places for requests.
    requests: Arc<Semaphore>,
    /// Places for verifying.
    working: Arc<Semaphore>,
    metrics: ProofMetrics,
}

impl fmt::Debug for ProofPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProofPeers").field(&self.0.set.config).finish()
    }
}

impl ProofPeers {
    /// The set of the peers at `config`'s URLs, whose names `resolver` resolves. `head` gives the number
    /// of this node's head, by which peers are found to lag. To be called within a runtime; peers are
    /// known by and by.
    pub fn start(
        config: ProofPeersConfig,
        resolver: Resolver,
        metrics: ProofMetrics,
        head: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let set = Arc::new(Set {
            config,
            resolver,
            head: Box::new(head),
            peers: RwLock::default(),
            latencies: Latencies::default(),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            working: Arc::new(Semaphore::new(cores)),
            metrics,
        });
        let watching = tokio::spawn(probe::watch(Arc::downgrade(&set))).abort_handle();
        Self(Arc::new(Watched { set, watching }))
    }

    /// Puts the proof together that `ask` asks for: the parts that peers give fill the holes of this
    /// node's own, and `parts` judges them.
    pub(crate) async fn gather(
        &self,
        ask: Ask,
        parts: Arc<dyn Parts>,
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
