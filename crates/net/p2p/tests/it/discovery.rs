//! Nodes find each other.

use retrie_chainspec::ChainSpec;
use retrie_p2p::{
    discovery::{
        Bootnode, Discovery, DiscoveryConfig, DiscoveryTiming, Enode, ForkTracker, NatMode, NodeKey,
    },
    eth::PeerId,
    handle::{Candidate, CandidateSource},
};
use std::{
    collections::HashSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
};

const LONG: Duration = Duration::from_secs(60);

struct DiscoveryNode {
    discovery: Discovery,
    candidates: mpsc::Receiver<Candidate>,
    _want: watch::Sender<bool>,
}

fn node(
    spec: &ChainSpec,
    bootnodes: Vec<Bootnode>,
    versions: (bool, bool),
    file: Option<PathBuf>,
) -> DiscoveryNode {
    let (want, wants) = watch::channel(true);
    let config = DiscoveryConfig {
        key: NodeKey::random(),
        listen: ([127, 0, 0, 1], 0).into(),
        tcp_port: 30303,
        nat: NatMode::None,
        bootnodes,
        forks: Arc::new(ForkTracker::new(spec, 0, 0)),
        nodes_file: file,
        v4: versions.0,
        v5: versions.1,
        dns: vec![],
        dns_server: None,
        want: wants,
        pace: DiscoveryTiming::fast(),
    };
    let (discovery, candidates) = Discovery::start(config, &Handle::current()).unwrap();
    DiscoveryNode { discovery, candidates, _want: want }
}

impl DiscoveryNode {
    fn enode(&self) -> Enode {
        self.discovery.local_enode()
    }

    /// Waits until all of these nodes have been offered as candidates.
    async fn finds(&mut self, all: &[Enode]) -> HashSet<CandidateSource> {
        let mut missing: HashSet<PeerId> = all.iter().map(|node| node.id).collect();
        missing.remove(&self.enode().id);
        let (start, mut sources) = (Instant::now(), HashSet::new());
        while !missing.is_empty() {
            let rest = LONG.saturating_sub(start.elapsed());
            let next = tokio::time::timeout(rest, self.candidates.recv()).await;
            let candidate = next.unwrap_or_else(|_| panic!("not found: {missing:?}")).unwrap();
            let node = all.iter().find(|node| node.id == candidate.id);
            let node = node.expect("nobody else is offered");
            assert_eq!((candidate.ip, candidate.tcp_port), (node.ip, node.tcp));
            assert_eq!(candidate.udp_port, node.udp);
            sources.insert(candidate.source);
            missing.remove(&candidate.id);
        }
        sources
    }
}

/// Nine nodes; eight of them know the first one.
async fn nine(versions: (bool, bool), boot: impl Fn(&DiscoveryNode) -> Bootnode) {
    let spec = ChainSpec::mainnet();
    let mut nodes = vec![node(&spec, vec![], versions, None)];
    let boot = boot(&nodes[0]);
    nodes.extend((0..8).map(|_| node(&spec, vec![boot.clone()], versions, None)));
    // A node of another chain is known to all of them, and is offered to none.
    let other = node(&ChainSpec::sepolia(), vec![boot], versions, None);
    let all: Vec<_> = nodes.iter().map(DiscoveryNode::enode).collect();
    let mut sources = HashSet::new();
    for node in &mut nodes {
        sources.extend(node.finds(&all).await);
    }
    let (v4, v5) = versions;
    assert!(v4 || !sources.contains(&CandidateSource::Discv4));
    assert!(v5 || !sources.contains(&CandidateSource::Discv5));
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_nodes_find_each_other_from_one_by_version_4() {
    nine((true, false), |node| node.enode().into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_nodes_find_each_other_from_one_by_version_5() {
    nine((false, true), |node| node.discovery.local_record().to_base64().parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_nodes_find_each_other_from_one_with_both_versions_on_one_port() {
    nine((true, true), |node| node.enode().into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_boot_node_is_got_by_version_5_from_its_url() {
    let spec = ChainSpec::mainnet();
    let mut first = node(&spec, vec![], (false, true), None);
    let mut second = node(&spec, vec![first.enode().into()], (false, true), None);
    second.finds(&[first.enode()]).await;
    first.finds(&[second.enode()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_its_way_without_boot_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("discovery-nodes");
    let spec = ChainSpec::mainnet();
    let first = node(&spec, vec![], (true, false), None);
    let boot = vec![first.enode().into()];
    let mut second = node(&spec, boot, (true, false), Some(file.clone()));
    second.finds(&[first.enode()]).await;
    // A node is offered once it has answered, and saved once it has answered a check too.
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < LONG, "no node was saved");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    second.discovery.shutdown().await;
    let mut third = node(&spec, vec![], (true, false), Some(file));
    third.finds(&[first.enode()]).await;
}
