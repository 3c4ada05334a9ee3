//! Flags of proofs that are put together from many nodes.

use super::args::{parse_duration, parse_interval};
use clap::Args;
use retrie_rpc::proof_peers::{PeerUrl, ProofPeers, ProofPeersConfig, system_resolver};
use retrie_telemetry::proofs::ProofMetrics;
use std::time::Duration;

/// Other nodes of the same chain and backend.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Proofs from many nodes")]
pub(crate) struct ProofPeersArgs {
    /// Nodes with other proof shards of the same chain and backend: what this one cannot prove by itself
    /// is put together with their parts. A name in http:// stands for all its addresses.
    #[arg(long = "proof-peers", value_name = "RPC_URL,..", value_delimiter = ',')]
    urls: Vec<PeerUrl>,
    /// Ask a second node for a part that has not come within this time [default: the time in which 95 of
    /// the last 100 came].
    #[arg(long = "proof-peers.hedge", value_name = "TIME", value_parser = parse_duration)]
    hedge: Option<Duration>,
    /// How long one proof may take to put together.
    #[arg(long = "proof-peers.timeout", value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    timeout: Duration,
    /// How often each of these nodes is asked for its health.
    #[arg(long = "proof-peers.probe", value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    probe: Duration,
    /// How often names are resolved.
    #[arg(long = "proof-peers.resolve", value_name = "TIME", default_value = "10s", value_parser = parse_interval)]
    resolve: Duration,
    /// How long a node is not asked that has answered wrongly.
    #[arg(long = "proof-peers.set-aside", value_name = "TIME", default_value = "5m", value_parser = parse_interval)]
    set_aside: Duration,
}

impl ProofPeersArgs {
    /// The set of them, watched from now on; `None` without any. `head` gives the number of this node's
    /// head.
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
