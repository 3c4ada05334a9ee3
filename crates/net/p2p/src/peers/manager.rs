//! The network manager: starts and owns all tasks of the network, and implements the handle.

use super::{
    dial, listen,
    reputation::{ReputationTable, ReputationVerdict},
    slots::{SlotLimits, SlotPool, SubnetLimits},
};
use crate::{
    discovery::Enode,
    eth::{BlockRange, EthRequest, EthResponse, PeerId, TxGossip},
    gossip_queue::{self, GossipLimits},
    handle::{
        BoxFuture, Candidate, DisconnectedPeer, EthRequestHandler, GossipReceiver, NetworkHandle,
        PeerEvent, PeerInfo, PeerNetwork, PeerOffence, RequestError, SnapRequestHandler,
        StateAudience, StateRequestHandler,
    },
    rchk,
    rlpx::{self, DisconnectReason},
    session::{
        self, EstablishedPeer, LocalChain, LocalNode, MAX_ANSWERING, NetworkStats, RefusedError,
        RequestHandlers, SessionContext, SessionEnd, SessionHandle, SessionHost, SessionTiming,
        add,
    },
    snap::{self, SnapVersion},
};
use parking_lot::{Mutex, RwLock};
use secp256k1::{PublicKey, SecretKey};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Handle, Runtime},
    sync::{Notify, Semaphore, broadcast, mpsc, watch},
};

/// Worker threads of the runtime.
const WORKERS: usize = 2;

/// Maximum number of threads that answer requests and decode long messages.
const MAX_BLOCKING: usize = 32;

/// How many events a receiver may lag behind.
const MAX_EVENTS: usize = 1024;

/// How many candidates may wait for the dialler.
const MAX_CANDIDATES: usize = 64;

/// Blocks between two announcements of the served range.
const ANNOUNCED_EACH: u64 = 32;

/// Configuration of the network.
#[derive(Debug)]
pub struct NetworkConfig {
    /// The node's secret key.
    pub key: SecretKey,
    /// The client name of this node.
    pub client: String,
    /// The address to listen on; without one the node does not listen.
    pub listen: Option<SocketAddr>,
    /// Whether to use another port if that one is taken.
    pub any_port: bool,
    /// Maximum number of inbound peers.
    pub max_inbound: usize,
    /// Maximum number of outbound peers.
    pub max_outbound: usize,
    /// Trusted nodes: static ones, for which slot limits do not hold.
    pub trusted: Vec<Enode>,
    /// Static nodes, which are dialled again after each disconnect.
    pub static_nodes: Vec<Enode>,
    /// The node's chain.
    pub chain: LocalChain,
    /// Maximum number of inbound connections that are not peers yet.
    pub half_open: usize,
    /// Maximum number of inbound peers from one address or subnet.
    pub inbound_of: SubnetLimits,
    /// The handler of `rchk` requests; `rchk` is off without it.
    pub states: Option<Arc<dyn StateRequestHandler>>,
    /// Which peers may use `rchk`.
    pub state_audience: StateAudience,
    /// The handler of `snap` requests; `snap` is off without it.
    pub ranges: Option<Arc<dyn SnapRequestHandler>>,
    /// The versions of `snap` that are offered. A node that needs trie nodes must not offer version
    /// 2, which has none: both sides use the newest version that both offer.
    pub snap_versions: Vec<SnapVersion>,
    /// Timeouts.
    pub timing: SessionTiming,
}

/// Why the network does not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The threads could not be started.
    #[error("the threads of the peers' runtime could not be started: {0}")]
    Runtime(io::Error),
    /// The port cannot be bound.
    #[error("cannot listen for peers on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
    },
}

/// A started network.
#[derive(Debug)]
pub struct StartedNetwork {
    /// The manager. The network ends when it is dropped.
    pub manager: NetworkManager,
    /// The gossip of the peers.
    pub heard: GossipReceiver,
}

/// The peers of a node, and the runtime that serves them.
#[derive(Debug)]
pub struct NetworkManager {
    shared: Arc<NetworkShared>,
    runtime: Mutex<Option<Runtime>>,
    local_address: Option<SocketAddr>,
}

/// A static or trusted node, which is dialled until it is connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaticNode {
    pub(super) enode: Enode,
    pub(super) failures: u32,
    pub(super) next: Option<Instant>,
}

/// The state that all tasks of the network share.
#[derive(Debug)]
pub(super) struct NetworkShared {
    pub(super) local: LocalNode,
    pub(super) slots: SlotPool,
    pub(super) reputation: Arc<ReputationTable>,
    pub(super) context: SessionContext,
    pub(super) static_nodes: Mutex<HashMap<PeerId, StaticNode>>,
    /// Woken when there may be a node to dial.
    pub(super) dial: Notify,
    links: RwLock<HashMap<PeerId, Arc<SessionHandle>>>,
    announced: Mutex<BlockRange>,
    /// Whether more candidates are wanted.
    pub(super) wants: watch::Sender<bool>,
    candidates: mpsc::Sender<Candidate>,
    handle: Handle,
    quitting: AtomicBool,
    /// Whether there has been a peer yet; for the log.
    had_peers: AtomicBool,
}

/// Starts to listen and to dial. `serve` answers the `eth` requests of peers.
///
/// # Errors
/// If the port is taken, or threads cannot be started.
pub fn start(
    config: NetworkConfig,
    serve: Arc<dyn EthRequestHandler>,
) -> Result<StartedNetwork, NetworkError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(MAX_BLOCKING)
        .thread_name("p2p")
        .enable_all()
        .build()
        .map_err(NetworkError::Runtime)?;
    let listener = match config.listen {
        Some(address) => {
            let _guard = runtime.enter();
            Some(bind(address, config.any_port)?)
        }
        None => None,
    };
    let local_address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let local = LocalNode {
        id: rlpx::node_id(&PublicKey::from_secret_key_global(&config.key)),
        key: config.key,
        client: config.client,
        port: local_address.map_or(0, |address| address.port()),
        chain: config.chain,
        rchk: config.states.is_some().then_some(config.state_audience),
        snap: config.ranges.as_ref().map(|_| config.snap_versions).unwrap_or_default(),
        timing: config.timing,
    };
    let reputation = Arc::new(ReputationTable::default());
    let limits = SlotLimits {
        inbound: config.max_inbound,
        outbound: config.max_outbound,
        inbound_of: config.inbound_of,
    };
    let slots = SlotPool::new(local.id, limits, reputation.clone());
    let (heard, heard_out) = gossip_queue::channel(GossipLimits::default());
    let (candidates, found) = mpsc::channel(MAX_CANDIDATES);
    let context = SessionContext {
        serve,
        answering: Arc::new(Semaphore::new(MAX_ANSWERING)),
        handlers: RequestHandlers { states: config.states, ranges: config.ranges },
        lanes: Default::default(),
        heard,
        events: broadcast::Sender::new(MAX_EVENTS),
        stats: Arc::default(),
    };
    let shared = Arc::new(NetworkShared {
        announced: Mutex::new(local.chain.range()),
        wants: watch::Sender::new(false),
        candidates,
        local,
        slots,
        reputation,
        context,
        static_nodes: Mutex::default(),
        dial: Notify::new(),
        links: RwLock::default(),
        handle: runtime.handle().clone(),
        quitting: AtomicBool::new(false),
        had_peers: AtomicBool::new(false),
    });
    for enode in config.static_nodes {
        shared.add_fixed(enode);
    }
    for enode in config.trusted {
        shared.slots.set_trusted(enode.id, true);
        shared.add_fixed(enode);
    }
    if let Some(listener) = listener {
        runtime.spawn(listen::run(shared.clone(), listener, config.half_open));
    }
    runtime.spawn(dial::run(shared.clone(), found));
    let manager = NetworkManager { shared, runtime: Mutex::new(Some(runtime)), local_address };
    Ok(StartedNetwork { manager, heard: heard_out })
}

/// Binds the listener. Must run within a runtime.
fn bind(address: SocketAddr, any_port: bool) -> Result<TcpListener, NetworkError> {
    let bind = |address| {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    let failed = |address| move |cause| NetworkError::Listen { address, cause };
    match bind(address) {
        Err(cause) if any_port && cause.kind() == io::ErrorKind::AddrInUse => {
            let any = SocketAddr::new(address.ip(), 0);
            let listener = bind(any).map_err(failed(any))?;
            let port = listener.local_addr().map_or(0, |address| address.port());
            tracing::warn!(
                taken = address.port(),
                port,
                "the default port for peers is taken; another one is used (--port chooses one)"
            );
            Ok(listener)
        }
        other => other.map_err(failed(address)),
    }
}

impl NetworkManager {
    /// A handle to this network.
    pub fn peers(&self) -> NetworkHandle {
        NetworkHandle::new(self.shared.clone())
    }

    /// The runtime, for other tasks of the network.
    pub fn runtime(&self) -> &Handle {
        &self.shared.handle
    }

    /// Feeds the candidates of discovery to the dialler.
    pub fn discover(&self, mut found: mpsc::Receiver<Candidate>) {
        let candidates = self.shared.candidates.clone();
        self.shared.handle.spawn(async move {
            while let Some(candidate) = found.recv().await {
                if candidates.send(candidate).await.is_err() {
                    break;
                }
            }
        });
    }

    /// Whether more candidates are wanted.
    pub fn wants_candidates(&self) -> watch::Receiver<bool> {
        self.shared.wants.subscribe()
    }

    /// The address that the node listens on.
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// The node's public key.
    pub fn id(&self) -> PeerId {
        self.shared.local.id
    }

    /// The client name of this node.
    pub fn client(&self) -> &str {
        &self.shared.local.client
    }

    /// The chain as this node announces it to peers.
    pub fn chain(&self) -> &LocalChain {
        &self.shared.local.chain
    }

    /// Counters of all connections.
    pub fn stats(&self) -> &NetworkStats {
        &self.shared.context.stats
    }

    /// The number of inbound and of outbound peers that use a slot.
    pub fn slots(&self) -> (usize, usize) {
        let counts = self.shared.slots.counts();
        (counts.inbound, counts.outbound)
    }

    /// Sets the served range of blocks after the head has changed; `timestamp` is the head's time
    /// in seconds. Peers get an update every 32 blocks, and whenever the range shrinks.
    pub fn set_range(&self, range: BlockRange, timestamp: u64) {
        self.shared.local.chain.set_range(range, timestamp);
        let mut announced = self.shared.announced.lock();
        let news = range.latest >= announced.latest + ANNOUNCED_EACH
            || range.latest < announced.latest
            || range.earliest > announced.earliest;
        if news {
            *announced = range;
            for link in self.shared.links.read().values() {
                link.announce(range);
            }
        }
    }

    /// Adds a static node: it is dialled until it is connected, and again after each disconnect.
    /// Forgives its offences.
    pub fn add_peer(&self, enode: Enode) {
        self.shared.reputation.forgive(&enode.id);
        self.shared.add_fixed(enode);
    }

    /// Removes a static node and disconnects it. Returns whether there was such a node or peer.
    pub fn remove_peer(&self, id: &PeerId) -> bool {
        let was_fixed = self.shared.static_nodes.lock().remove(id).is_some();
        self.shared.slots.set_static(*id, false);
        let link = self.shared.links.read().get(id).cloned();
        if let Some(link) = &link {
            link.disconnect(DisconnectReason::Requested);
        }
        was_fixed || link.is_some()
    }

    /// Adds a trusted node: slot limits do not hold for it, and it is dialled as a static one.
    pub fn add_trusted(&self, enode: Enode) {
        self.shared.slots.set_trusted(enode.id, true);
        self.add_peer(enode);
    }

    /// Removes a node from the trusted ones. Slot limits hold for its next connection.
    pub fn remove_trusted(&self, id: &PeerId) {
        self.shared.slots.set_trusted(*id, false);
    }

    /// Disconnects all peers because the node stops, and waits at most two seconds for it.
    pub fn disconnect_all(&self) {
        self.shared.quitting.store(true, Ordering::Release);
        for link in self.shared.links.read().values() {
            link.disconnect(DisconnectReason::Quitting);
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.shared.links.read().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Shuts the runtime down, and waits at most two seconds for it; then the port is free. Must
    /// not be called on a thread of a runtime.
    pub fn shutdown(&self) {
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

impl Drop for NetworkManager {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.get_mut().take() {
            // Answers that are in progress are not waited for.
            runtime.shutdown_background();
        }
    }
}

impl NetworkShared {
    pub(super) fn quitting(&self) -> bool {
        self.quitting.load(Ordering::Acquire)
    }

    fn add_fixed(&self, enode: Enode) {
        self.slots.set_static(enode.id, true);
        self.static_nodes.lock().insert(enode.id, StaticNode { enode, failures: 0, next: None });
        self.dial.notify_one();
    }

    fn link(&self, id: &PeerId) -> Option<Arc<SessionHandle>> {
        self.links.read().get(id).cloned()
    }

    fn report_offence(&self, id: PeerId, offence: PeerOffence) {
        let verdict = self.reputation.report(id, offence, self.slots.is_trusted(&id));
        let ReputationVerdict { disconnect: Some(reason), banned } = verdict else { return };
        add(&self.context.stats.banned, banned.into());
        if let Some(link) = self.link(&id) {
            let address = link.info().address;
            tracing::debug!(%address, ?offence, banned, "peer is disconnected for an offence");
            link.disconnect(reason);
        }
    }

    /// Whether any peer is connected.
    pub(super) fn has_peers(&self) -> bool {
        !self.links.read().is_empty()
    }

    /// The addresses of the outbound peers.
    pub(super) fn dialled(&self) -> Vec<IpAddr> {
        let infos = self.links.read();
        let infos = infos.values().map(|link| link.info()).filter(|info| !info.inbound);
        infos.map(|info| info.address.ip()).collect()
    }

    /// Makes a peer of a connection: handshake, hello, status.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        dialled: Option<PeerId>,
    ) -> Result<EstablishedPeer<TcpStream>, RefusedError> {
        let addresses = [stream.peer_addr(), stream.local_addr()];
        let [Ok(address), Ok(local)] = addresses else {
            return Err(RefusedError::Rlpx(rlpx::RlpxError::Closed));
        };
        // Without Nagle's delay. If this fails, small messages are only slower.
        let _ = stream.set_nodelay(true);
        let established =
            session::establish(stream, [address, local], dialled, &self.local, &self.slots).await;
        if let Err(error) = &established {
            add(&self.context.stats.refused, 1);
            tracing::debug!(%address, inbound = dialled.is_none(), %error, "not a peer");
        }
        established
    }

    /// Runs the session of a peer until it ends.
    pub(super) async fn run_session(&self, established: EstablishedPeer<TcpStream>) {
        session::run(established, self.local.timing, &self.context, self).await;
        self.dial.notify_one();
    }
}

impl SessionHost for NetworkShared {
    fn begin(&self, link: &Arc<SessionHandle>) {
        let info = link.info();
        self.links.write().insert(info.id, link.clone());
        let PeerInfo { address, name, inbound, version, range, .. } = &*info;
        if self.had_peers.swap(true, Ordering::Relaxed) {
            tracing::debug!(%address, %name, inbound, %version, "peer connected");
        } else {
            tracing::info!(%address, %name, inbound, %version, head = range.latest, "first peer connected");
        }
        if self.quitting() {
            link.disconnect(DisconnectReason::Quitting);
        } else if info.is_static
            && !info.inbound
            && !self.static_nodes.lock().contains_key(&info.id)
        {
            // It was removed while the dial was under way.
            link.disconnect(DisconnectReason::Requested);
        }
        // There may be no receiver.
        let _ = self.context.events.send(PeerEvent::Connected(info));
    }

    fn offence(&self, peer: PeerId, offence: PeerOffence) {
        self.report_offence(peer, offence);
    }

    fn end(&self, peer: Arc<PeerInfo>, ended: &SessionEnd) {
        self.links.write().remove(&peer.id);
        tracing::debug!(peer = %short(&peer.id), why = %ended.why, "peer disconnected");
        let peer = DisconnectedPeer { info: peer, cause: ended.why.clone() };
        // There may be no receiver.
        let _ = self.context.events.send(PeerEvent::Disconnected(Arc::new(peer)));
    }
}

/// The first digits of an id, for logs.
pub(super) fn short(id: &PeerId) -> String {
    alloy_primitives::hex::encode(&id[..6])
}

/// Whether an address is of this machine or of a private network.
pub(super) fn is_private_ip(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// The subnet of an address: the first 24 bits of IPv4, the first 64 bits of IPv6.
pub(super) fn subnet(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(ip) => u64::from(u32::from(ip) >> 8),
        IpAddr::V6(ip) => (u128::from(ip) >> 64) as u64,
    }
}

impl PeerNetwork for Arc<NetworkShared> {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.links.read().values().map(|link| link.info()).collect()
    }

    fn request(
        &self,
        peer: PeerId,
        request: EthRequest,
    ) -> BoxFuture<Result<EthResponse, RequestError>> {
        self.request_within(peer, request, usize::MAX)
    }

    fn request_within(
        &self,
        peer: PeerId,
        request: EthRequest,
        bytes: usize,
    ) -> BoxFuture<Result<EthResponse, RequestError>> {
        let link = self.link(&peer).ok_or(RequestError::NotConnected);
        let asked = link.and_then(|link| link.request(request, bytes));
        Box::pin(async move { asked?.await.unwrap_or(Err(RequestError::NotConnected)) })
    }

    fn request_state(
        &self,
        peer: PeerId,
        request: rchk::RchkRequest,
    ) -> BoxFuture<Result<rchk::RchkResponse, RequestError>> {
        let asked = self.link(&peer).ok_or(RequestError::NotConnected);
        let asked = asked.and_then(|link| link.request_state(request));
        Box::pin(async move { asked?.await.unwrap_or(Err(RequestError::NotConnected)) })
    }

    fn request_snap(
        &self,
        peer: PeerId,
        request: snap::SnapRequest,
    ) -> BoxFuture<Result<snap::SnapResponse, RequestError>> {
        let asked = self.link(&peer).ok_or(RequestError::NotConnected);
        let asked = asked.and_then(|link| link.request_snap(request));
        Box::pin(async move { asked?.await.unwrap_or(Err(RequestError::NotConnected)) })
    }

    fn send(&self, peer: PeerId, gossip: TxGossip) -> bool {
        self.link(&peer).is_some_and(|link| link.send(gossip))
    }

    fn report(&self, peer: PeerId, offence: PeerOffence) {
        self.report_offence(peer, offence);
    }

    fn events(&self) -> broadcast::Receiver<PeerEvent> {
        self.context.events.subscribe()
    }
}
