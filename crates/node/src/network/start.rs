//! Starts the peer manager and discovery, and reports on both.

use super::{NodeChain, NodeStateHandler, PeerTraffic, ranges::NodeSnapHandler};
use crate::{args::NetworkArgs, secret::warn_if_shared, services::NodeService};
use alloy_primitives::B256;
use eyre::{Context, eyre};
use parking_lot::Mutex;
use retrie_chainspec::ChainSpec;
use retrie_engine::{
    EngineHandle, LiveChain, NodeAddress, NodeNetwork, PeerChange, PeerStatus, StateServer,
    pool::TransactionPool,
};
use retrie_p2p::{
    discovery::{
        self, Discovery, DiscoveryError, Enode, ForkTracker, KEY_FILE, NODES_FILE, NodeKey,
    },
    eth::{BlockRange, EthVersion},
    handle::{
        EthRequestHandler, GossipReceiver, NetworkHandle, PeerEvent, PeerInfo, SnapRequestHandler,
        StateAudience, StateRequestHandler,
    },
    networks,
    peers::{NetworkConfig, NetworkManager, StartedNetwork, start},
    serve::{ChainReader as _, ChainRequestHandler, EmptyRequestHandler},
    session::{LocalChain, SessionTiming},
    snap::SnapVersion,
};
use retrie_state::{KeyForm, RangeFormat};
use retrie_state_sync::{ConnectedPeers, SnapPeerSet};
use retrie_telemetry::Metrics;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::broadcast::{self, error::RecvError},
};

/// Default listening port.
const DEFAULT_PORT: u16 = 30303;
/// Shortest interval between two announcements of a new head.
const HEAD_PAUSE: Duration = Duration::from_millis(100);
/// Changes of peers that an RPC client may lag behind.
const MAX_CHANGES: usize = 1024;

/// A node's peers. Cheap to clone; all clones share one network.
#[derive(Clone)]
pub(crate) struct NodePeers(Arc<PeersInner>);

struct PeersInner {
    manager: NetworkManager,
    /// Peers that connect and disconnect, for RPC clients.
    changes: broadcast::Sender<Arc<PeerChange>>,
    discovery: Mutex<Option<Discovery>>,
    discovery_port: u16,
}

/// What answers the requests of peers.
struct NodeHandlers {
    blocks: Arc<dyn EthRequestHandler>,
    states: Option<(Arc<dyn StateRequestHandler>, StateAudience)>,
    ranges: Option<Arc<dyn SnapRequestHandler>>,
    snap_versions: Vec<SnapVersion>,
}

impl NodePeers {
    /// Starts listening, dialling and discovery. `None` on a dev chain, unless a port is given.
    /// `states` serves state chunks.
    pub(crate) fn start(
        args: &NetworkArgs,
        is_dev: bool,
        datadir: &Path,
        engine: &EngineHandle,
        pool: &TransactionPool,
        states: &StateServer,
    ) -> eyre::Result<Option<(Self, GossipReceiver)>> {
        if is_dev && args.port.is_none() {
            return Ok(None);
        }
        let live = engine.live();
        let chain = Arc::new(NodeChain::new(live.clone(), pool.clone()));
        let (range, timestamp) = served_range(&chain, live).map_err(|error| eyre!(error))?;
        let answers = Arc::new(ChainRequestHandler::new(chain.clone()));
        let audience =
            args.state_audience().filter(|_| live.backend().extensions().chunks.is_some());
        let states = audience.map(|audience| {
            let states = NodeStateHandler::new(live.clone(), states.clone());
            (Arc::new(states) as Arc<dyn StateRequestHandler>, audience)
        });
        let has_ranges = live.backend().extensions().ranges.is_some()
            && args.serve_snap.unwrap_or_else(|| live.chain().state().keys() == KeyForm::Hashed);
        let ranges = has_ranges.then(|| NodeSnapHandler::new(live.clone()));
        let handlers = NodeHandlers {
            blocks: answers,
            states,
            ranges: ranges.map(|ranges| Arc::new(ranges) as Arc<dyn SnapRequestHandler>),
            snap_versions: SnapVersion::ALL.to_vec(),
        };
        let shown = AnnouncedChain { spec: live.spec(), range, timestamp };
        let (peers, heard) = Self::open(args, is_dev, datadir, shown, handlers)?;
        peers.0.manager.runtime().spawn(announce_heads(peers.clone(), live.clone(), chain));
        Ok(Some((peers, heard)))
    }

    /// The same, with other request handlers.
    fn open(
        args: &NetworkArgs,
        is_dev: bool,
        datadir: &Path,
        shown: AnnouncedChain<'_>,
        handlers: NodeHandlers,
    ) -> eyre::Result<(Self, GossipReceiver)> {
        let AnnouncedChain { spec, range, timestamp } = shown;
        let key_file = args.secret_key.clone().unwrap_or_else(|| datadir.join(KEY_FILE));
        let key = NodeKey::load_or_create(&key_file)?;
        warn_if_shared(&key_file, "the node key");
        let forks = Arc::new(ForkTracker::new(spec, range.latest, timestamp));
        let (states, states_for) = handlers.states.unzip();
        let config = NetworkConfig {
            key: *key.secret(),
            client: client_name(),
            listen: Some(SocketAddr::new(args.addr, args.port.unwrap_or(DEFAULT_PORT))),
            any_port: args.port.is_none(),
            max_inbound: args.max_inbound,
            max_outbound: args.max_outbound,
            trusted: args.trusted_peers.clone(),
            static_nodes: Vec::new(),
            chain: LocalChain::new(spec.chain_id(), spec.genesis_hash(), forks.clone(), range),
            half_open: args.half_open,
            inbound_of: args.inbound_limits(),
            states,
            state_audience: states_for.unwrap_or_default(),
            ranges: handlers.ranges,
            snap_versions: handlers.snap_versions,
            timing: SessionTiming::default(),
        };
        let StartedNetwork { manager, heard } =
            start(config, handlers.blocks).wrap_err("starting to listen for peers")?;
        let discovers = !args.disable_discovery && !is_dev;
        let discovery = if discovers {
            Some(discover(args, key, &manager, forks, spec.chain_id(), datadir)?)
        } else {
            None
        };
        let discovery_port = discovery.as_ref().map_or(0, |discovery| discovery.local_enode().udp);
        let changes = broadcast::Sender::new(MAX_CHANGES);
        manager.runtime().spawn(forward_changes(manager.peers().events(), changes.clone()));
        let discovery = Mutex::new(discovery);
        let parts = PeersInner { manager, changes, discovery, discovery_port };
        let peers = Self(Arc::new(parts));
        tracing::info!(
            listens = %peers.address().listens.map(|on| on.to_string()).unwrap_or_default(),
            discovery = discovers,
            forks = ?peers.0.manager.chain().fork_id(),
            "peers: {}",
            peers.address().enode
        );
        Ok((peers, heard))
    }

    /// The connected peers, for code that sends requests to them.
    pub(crate) fn peers(&self) -> NetworkHandle {
        self.0.manager.peers()
    }

    /// The runtime for tasks that talk to peers.
    pub(crate) fn runtime(&self) -> &Handle {
        self.0.manager.runtime()
    }

    /// Updates the metrics of peers and traffic.
    pub(crate) fn show_in(&self, metrics: &Metrics, traffic: &PeerTraffic) {
        traffic.show_in(metrics);
        let all = self.peers().connected();
        let inbound = all.iter().filter(|peer| peer.inbound).count();
        metrics.traffic.show_peers(inbound, all.len() - inbound);
        let stats = self.0.manager.stats();
        metrics.traffic.show_connections(&[
            ("messages_in", stats.messages_in.load(Ordering::Relaxed)),
            ("messages_out", stats.messages_out.load(Ordering::Relaxed)),
            ("bytes_in", stats.bytes_in.load(Ordering::Relaxed)),
            ("bytes_out", stats.bytes_out.load(Ordering::Relaxed)),
            ("timeouts", stats.timeouts.load(Ordering::Relaxed)),
            ("served", stats.served.load(Ordering::Relaxed)),
            ("unserved", stats.unserved.load(Ordering::Relaxed)),
            ("dialled", stats.dialled.load(Ordering::Relaxed)),
            ("accepted", stats.accepted.load(Ordering::Relaxed)),
            ("throttled", stats.throttled.load(Ordering::Relaxed)),
            ("refused", stats.refused.load(Ordering::Relaxed)),
            ("banned", stats.banned.load(Ordering::Relaxed)),
        ]);
    }
}

/// The chain that the first handshakes announce.
struct AnnouncedChain<'a> {
    spec: &'a ChainSpec,
    range: BlockRange,
    /// Timestamp of the head, in seconds.
    timestamp: u64,
}

/// A node without a chain, connected to the peers that serve it the state.
pub(crate) struct StateSyncPeers(NodePeers);

impl StateSyncPeers {
    /// Starts listening, dialling and discovery, as [`NodePeers::start`] does.
    pub(crate) fn start(
        args: &NetworkArgs,
        datadir: &Path,
        spec: &ChainSpec,
    ) -> eyre::Result<Self> {
        let range = BlockRange { earliest: 0, latest: 0, latest_hash: spec.genesis_hash() };
        let timestamp = spec.genesis_header().timestamp;
        let shown = AnnouncedChain { spec, range, timestamp };
        let nothing = Arc::new(EmptyRequestHandler);
        // This node asks every peer that speaks `rchk` or `snap`.
        let handlers = NodeHandlers {
            states: Some((nothing.clone(), StateAudience::All)),
            ranges: Some(nothing.clone()),
            snap_versions: SnapVersion::ALL.to_vec(),
            blocks: nothing,
        };
        // A node without a state cannot check gossiped transactions.
        let (peers, _) = NodePeers::open(args, false, datadir, shown, handlers)?;
        Ok(Self(peers))
    }

    /// The peers that serve states in chunks of this format.
    pub(crate) fn peers(&self, format: &str) -> ConnectedPeers {
        ConnectedPeers::new(self.0.peers(), format, self.0.runtime().clone())
    }

    /// The peers that speak `snap`, to ask for the state with this root.
    pub(crate) fn snap_peers(&self, format: &'static dyn RangeFormat, root: B256) -> SnapPeerSet {
        SnapPeerSet::new(self.0.peers(), format, root, self.0.runtime().clone())
    }

    /// Closes all connections, so that the ports are free again.
    pub(crate) fn close(self) -> eyre::Result<()> {
        Box::new(self.0.clone()).stop()?;
        self.0.0.manager.shutdown();
        Ok(())
    }
}

fn client_name() -> String {
    let system = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    format!("retrie/v{}/{system}", env!("CARGO_PKG_VERSION"))
}

fn discover(
    args: &NetworkArgs,
    key: NodeKey,
    manager: &NetworkManager,
    forks: Arc<ForkTracker>,
    chain_id: u64,
    datadir: &Path,
) -> eyre::Result<Discovery> {
    let tcp_port = manager.local_address().map_or(0, |address| address.port());
    let known = networks::bootnodes(chain_id).iter().filter_map(|url| url.parse().ok());
    let bootnodes = args.bootnodes.clone().unwrap_or_else(|| known.collect());
    let list = || networks::dns_list(chain_id).and_then(|url| url.parse().ok());
    let dns = if args.disable_dns {
        Vec::new()
    } else {
        // A node with its own bootnodes is in a network of its own.
        let default = if args.bootnodes.is_some() { None } else { list() };
        args.dns.clone().unwrap_or_else(|| default.into_iter().collect())
    };
    let config = discovery::DiscoveryConfig {
        key,
        listen: SocketAddr::new(args.addr, args.discovery_port.unwrap_or(tcp_port)),
        tcp_port,
        nat: args.nat,
        bootnodes,
        forks,
        nodes_file: Some(datadir.join(NODES_FILE)),
        v4: !args.disable_v4,
        v5: !args.disable_v5,
        dns,
        dns_server: args.dns_server,
        want: manager.wants_candidates(),
        pace: Default::default(),
    };
    let any_port = args.port.is_none() && args.discovery_port.is_none();
    let (discovery, found) = match Discovery::start(config.clone(), manager.runtime()) {
        Err(DiscoveryError::Listen { address, error }) if any_port => {
            tracing::warn!(%error, "the port {address} is taken, discovery uses another one");
            let listen = SocketAddr::new(args.addr, 0);
            Discovery::start(discovery::DiscoveryConfig { listen, ..config }, manager.runtime())?
        }
        other => other?,
    };
    manager.discover(found);
    Ok(discovery)
}

/// The range of blocks that peers can request, and the timestamp of the head.
fn served_range(
    chain: &NodeChain,
    live: &LiveChain,
) -> Result<(BlockRange, u64), retrie_p2p::serve::ChainError> {
    let range = chain.view()?.range()?;
    Ok((range, live.head().timestamp))
}

/// Tells RPC clients which peers connect and disconnect, until the network ends.
async fn forward_changes(
    mut events: broadcast::Receiver<PeerEvent>,
    changes: broadcast::Sender<Arc<PeerChange>>,
) {
    loop {
        let (peer, dropped) = match events.recv().await {
            Ok(PeerEvent::Connected(peer)) => (peer, None),
            Ok(PeerEvent::Disconnected(ended)) => (ended.info.clone(), Some(ended.cause.clone())),
            Ok(PeerEvent::RangeUpdate(..)) => continue,
            Err(RecvError::Lagged(lost)) => {
                tracing::debug!("{lost} changes of peers were not told to RPC clients");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let PeerInfo { id, address, local_address, .. } = *peer;
        let change = PeerChange { id, remote: address, local: local_address, dropped };
        // There may be no client.
        let _ = changes.send(Arc::new(change));
    }
}

/// Announces new heads to peers and discovery until the node ends.
async fn announce_heads(peers: NodePeers, live: LiveChain, chain: Arc<NodeChain>) {
    let mut changes = live.subscribe();
    while !matches!(changes.recv().await, Err(RecvError::Closed)) {
        tokio::time::sleep(HEAD_PAUSE).await;
        changes = changes.resubscribe();
        let (live, chain) = (live.clone(), chain.clone());
        let range = tokio::task::spawn_blocking(move || served_range(&chain, &live)).await;
        match range {
            Ok(Ok((range, timestamp))) => peers.0.manager.set_range(range, timestamp),
            Ok(Err(error)) => tracing::warn!(%error, "the new head cannot be announced to peers"),
            Err(_) => return,
        }
    }
}

impl NodeNetwork for NodePeers {
    fn address(&self) -> NodeAddress {
        let manager = &self.0.manager;
        let listens = manager.local_address();
        let discovery = self.0.discovery.lock();
        let enode = discovery.as_ref().map(Discovery::local_enode).unwrap_or_else(|| {
            let ip = listens.map(|listens| listens.ip()).filter(|ip| !ip.is_unspecified());
            Enode {
                id: manager.id(),
                ip: ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                tcp: listens.map_or(0, |listens| listens.port()),
                udp: 0,
            }
        });
        NodeAddress {
            id: enode.id,
            enode: enode.to_string(),
            enr: discovery.as_ref().map(|discovery| discovery.local_record().to_base64()),
            ip: enode.ip,
            listens,
            discovery_port: self.0.discovery_port,
        }
    }

    fn protocol_version(&self) -> u64 {
        EthVersion::ALL[0].number().into()
    }

    fn peer_count(&self) -> usize {
        self.peers().connected().len()
    }

    fn peers(&self) -> Vec<PeerStatus> {
        let status = |peer: Arc<PeerInfo>| PeerStatus {
            id: peer.id,
            name: peer.name.clone(),
            capabilities: peer.capabilities.clone(),
            remote: peer.address,
            local: peer.local_address,
            inbound: peer.inbound,
            trusted: peer.trusted,
            is_static: peer.is_static,
            version: peer.version.number().into(),
            snap: peer.snap.map(|version| version.number().into()),
            blocks: [peer.range.earliest, peer.range.latest],
            head: peer.range.latest_hash,
        };
        self.0.manager.peers().connected().into_iter().map(status).collect()
    }

    fn changes(&self) -> broadcast::Receiver<Arc<PeerChange>> {
        self.0.changes.subscribe()
    }

    fn add(&self, url: &str, trusted: bool) -> Result<(), String> {
        let enode: Enode = url.parse().map_err(|error: discovery::EnodeError| error.to_string())?;
        if trusted {
            self.0.manager.add_trusted(enode);
        } else {
            self.0.manager.add_peer(enode);
        }
        Ok(())
    }

    fn remove(&self, url: &str, only_trust: bool) -> Result<(), String> {
        let enode: Enode = url.parse().map_err(|error: discovery::EnodeError| error.to_string())?;
        if only_trust {
            self.0.manager.remove_trusted(&enode.id);
        } else {
            self.0.manager.remove_peer(&enode.id);
        }
        Ok(())
    }
}

impl NodeService for NodePeers {
    fn name(&self) -> &'static str {
        "peers"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.0.manager.disconnect_all();
        if let Some(discovery) = self.0.discovery.lock().take() {
            self.0.manager.runtime().block_on(discovery.shutdown());
        }
        Ok(())
    }
}
