//! Flags of proofs that are assembled from many nodes.

use super::args::{parse_duration, parse_interval};
use clap::Args;
use retrie_rpc::proof_peers::{PeerUrl, ProofPeers, ProofPeersConfig, system_resolver};
use retrie_telemetry::proofs::ProofMetrics;
use std::time::Duration;

/// Flags about other nodes of the same chain and backend.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Proofs from many nodes")]
pub(crate) struct ProofPeersArgs {
    /// Nodes with other proof shards of the same chain and backend. They supply the parts of a
    /// proof that this node cannot make. A host name in http:// stands for all its addresses.
    #[arg(long = "proof-peers", value_name = "RPC_URL,..", value_delimiter = ',')]
    urls: Vec<PeerUrl>,
    /// Ask a second node for a part that has not arrived after this time [default: the 95th
    /// percentile of the last 100 parts].
    #[arg(long = "proof-peers.hedge", value_name = "TIME", value_parser = parse_duration)]
    hedge: Option<Duration>,
    /// Longest time to assemble one proof.
    #[arg(long = "proof-peers.timeout", value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    timeout: Duration,
    /// Interval between health checks of each of these nodes.
    #[arg(long = "proof-peers.probe", value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    probe: Duration,
    /// Interval between resolutions of host names.
    #[arg(long = "proof-peers.resolve", value_name = "TIME", default_value = "10s", value_parser = parse_interval)]
    resolve: Duration,
    /// How long a node that gave a wrong part is not asked again.
    #[arg(long = "proof-peers.set-aside", value_name = "TIME", default_value = "5m", value_parser = parse_interval)]
    set_aside: Duration,
}

impl ProofPeersArgs {
    /// The set of these nodes, watched from now on; `None` if there are none. `head` returns the
    /// number of this node's head.
    pub(crate) fn start(
        &self,
        metrics: &ProofMetrics,
        head: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Option<ProofPeers> {
        let &Self { hedge, timeout, probe, resolve, set_aside, .. } = self;
        let urls = self.urls.clone();
        let config = ProofPeersConfig { urls, hedge, timeout, probe, resolve, set_aside };
        let start = || ProofPeers::start(config, system_resolver(), metrics.clone(), head);
        (!self.urls.is_empty()).then(start)
    }
}
