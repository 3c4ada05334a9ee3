//! Everything that belongs to the peers of a node.

use super::{
    dial, listen,
    reputation::{Reputation, Verdict},
    slots::{NetworkShare, SlotLimits, Slots},
};
use crate::{
    discovery::Enode,
    eth::{BlockRange, Gossip, PeerId, Request, Response},
    handle::{
        BoxFuture, Candidate, Event, GossipReceiver, Network, Offence, PeerInfo, Peers,
        RequestError, Serve, ServeStates, StateAudience,
    },
    heard::{self, GossipLimits},
    rchk,
    rlpx::{self, DisconnectReason},
    session::{
        self, Chain, Context, Ended, Established, Host, Link, Local, MAX_ANSWERING, RefusedError,
        Stats, Timing, add,
    },
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

/// Threads of the runtime.
const WORKERS: usize = 2;

/// Threads on which requests are answered and long messages decoded, at most.
const MAX_BLOCKING: usize = 32;

/// Events that who listens may lag behind.
const MAX_EVENTS: usize = 1024;

/// Candidates that wait to be written down.
const MAX_CANDIDATES: usize = 64;

/// Blocks between two announcements of what is served.
const ANNOUNCED_EACH: u64 = 32;

/// How a node takes part in the network.
#[derive(Debug)]
pub struct Config {
    /// Its key.
    pub key: SecretKey,
    /// What it calls itself.
    pub client: String,
    /// Where it listens; nowhere if none.
    pub listen: Option<SocketAddr>,
    /// Whether another port will do if that one is taken.
    pub any_port: bool,
    /// Peers that have dialled us, at most.
    pub max_inbound: usize,
    /// Peers that we have dialled, at most.
    pub max_outbound: usize,
    /// Nodes for which the limits do not hold, and that are dialled again and again.
    pub trusted: Vec<Enode>,
    /// Nodes that are dialled again and again.
    pub fixed: Vec<Enode>,
    /// Its chain.
    pub chain: Chain,
    /// Connections that come and are no peers yet, at most.
    pub half_open: usize,
    /// Peers that have dialled us from one network, at most.
    pub inbound_of: NetworkShare,
    /// Answers requests for parts of states; `rchk` is not spoken without it.
    pub states: Option<Arc<dyn ServeStates>>,
    /// With whom `rchk` is spoken.
    pub states_for: StateAudience,
    /// How long things may take.
    pub timing: Timing,
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The threads could not be started.
    #[error("the threads of the peers' runtime could not be started: {0}")]
    Runtime(io::Error),
    /// The port could not be had.
    #[error("cannot listen for peers on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        cause: io::Error,
    },
}

/// A network that has been started.
#[derive(Debug)]
pub struct Started {
    /// The manager; the network ends when it is dropped.
    pub manager: Manager,
    /// Transactions that peers tell of.
    pub heard: GossipReceiver,
}

/// The peers of a node, and the threads on which they are served.
#[derive(Debug)]
pub struct Manager {
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
    local_address: Option<SocketAddr>,
}

/// A node that is dialled until it is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) enode: Enode,
    pub(super) failures: u32,
    pub(super) next: Option<Instant>,
}

/// What all tasks of the network share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) local: Local,
    pub(super) slots: Slots,
    pub(super) reputation: Arc<Reputation>,
    pub(super) context: Context,
    pub(super) fixed: Mutex<HashMap<PeerId, Fixed>>,
    /// Woken when there may be somebody to dial.
    pub(super) dial: Notify,
    links: RwLock<HashMap<PeerId, Arc<Link>>>,
    announced: Mutex<BlockRange>,
    /// Whether more candidates are wanted.
    pub(super) wants: watch::Sender<bool>,
    candidates: mpsc::Sender<Candidate>,
    handle: Handle,
    quitting: AtomicBool,
    /// Whether there was a peer yet, for the log.
    had_peers: AtomicBool,
}

/// Starts to listen and to dial. `serve` answers requests.
///
/// # Errors
/// If the port is taken, or threads cannot be had.
pub fn start(config: Config, serve: Arc<dyn Serve>) -> Result<Started, NetworkError> {
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
    let local = Local {
        id: rlpx::node_id(&PublicKey::from_secret_key_global(&config.key)),
        key: config.key,
        client: config.client,
        port: local_address.map_or(0, |address| address.port()),
        chain: config.chain,
        rchk: config.states.is_some().then_some(config.states_for),
        timing: config.timing,
    };
    let reputation = Arc::new(Reputation::default());
    let limits = SlotLimits {
        inbound: config.max_inbound,
        outbound: config.max_outbound,
        inbound_of: config.inbound_of,
    };
    let slots = Slots::new(local.id, limits, reputation.clone());
    let (heard, heard_out) = heard::channel(GossipLimits::default());
    let (candidates, found) = mpsc::channel(MAX_CANDIDATES);
    let context = Context {
        serve,
        answering: Arc::new(Semaphore::new(MAX_ANSWERING)),
        states: config.states,
        lanes: Default::default(),
        heard,
        events: broadcast::Sender::new(MAX_EVENTS),
        stats: Arc::default(),
    };
    let shared = Arc::new(Shared {
        announced: Mutex::new(local.chain.range()),
        wants: watch::Sender::new(false),
        candidates,
        local,
        slots,
        reputation,
        context,
        fixed: Mutex::default(),
        dial: Notify::new(),
        links: RwLock::default(),
        handle: runtime.handle().clone(),
        quitting: AtomicBool::new(false),
        had_peers: AtomicBool::new(false),
    });
    for enode in config.fixed {
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
    let manager = Manager { shared, runtime: Mutex::new(Some(runtime)), local_address };
    Ok(Started { manager, heard: heard_out })
}

/// Listens, within a runtime.
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

impl Manager {
    /// The peers, for whoever talks to them.
    pub fn peers(&self) -> Peers {
        Peers::new(self.shared.clone())
    }

    /// Where other tasks of the network run.
    pub fn runtime(&self) -> &Handle {
        &self.shared.handle
    }

    /// Dials nodes that discovery finds.
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

    /// Whether there is room for more nodes than are known.
    pub fn wants(&self) -> watch::Receiver<bool> {
        self.shared.wants.subscribe()
    }

    /// Where it listens.
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Its public key.
    pub fn id(&self) -> PeerId {
        self.shared.local.id
    }

    /// What it calls itself.
    pub fn client(&self) -> &str {
        &self.shared.local.client
    }

    /// The chain as peers are told of it.
    pub fn chain(&self) -> &Chain {
        &self.shared.local.chain
    }

    /// Counters of all connections.
    pub fn stats(&self) -> &Stats {
        &self.shared.context.stats
    }

    /// Peers that have dialled us, and that we have dialled, of those that need a slot.
    pub fn slots(&self) -> (usize, usize) {
        let counts = self.shared.slots.counts();
        (counts.inbound, counts.outbound)
    }

    /// The chain has another head. `timestamp` is its time in seconds. Peers are told of each 32nd
    /// block, and whenever less is served than they were told.
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

    /// Dials a node until it is there, whatever it did before, also after a connection has ended.
    pub fn add_peer(&self, enode: Enode) {
        self.shared.reputation.forgive(&enode.id);
        self.shared.add_fixed(enode);
    }

    /// Dials a node no longer, and ends the connection with it.
    pub fn remove_peer(&self, id: &PeerId) -> bool {
        let was_fixed = self.shared.fixed.lock().remove(id).is_some();
        self.shared.slots.set_static(*id, false);
        let link = self.shared.links.read().get(id).cloned();
        if let Some(link) = &link {
            link.disconnect(DisconnectReason::Requested);
        }
        was_fixed || link.is_some()
    }

    /// From now on limits do not hold for a node, and it is dialled until it is there.
    pub fn add_trusted(&self, enode: Enode) {
        self.shared.slots.set_trusted(enode.id, true);
        self.add_peer(enode);
    }

    /// From the next connection on limits hold for a node.
    pub fn remove_trusted(&self, id: &PeerId) {
        self.shared.slots.set_trusted(*id, false);
    }

    /// Tells all peers that this node is being stopped, and waits for two seconds at most.
    pub fn stop(&self) {
        self.shared.quitting.store(true, Ordering::Release);
        for link in self.shared.links.read().values() {
            link.disconnect(DisconnectReason::Quitting);
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.shared.links.read().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends all that runs here, and waits for it for two seconds at most: then the port is free. Not to
    /// be called on a thread of a runtime.
    pub fn end(&self) {
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.get_mut().take() {
            // Requests that are being answered need not be waited for.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    pub(super) fn quitting(&self) -> bool {
        self.quitting.load(Ordering::Acquire)
    }

    fn add_fixed(&self, enode: Enode) {
        self.slots.set_static(enode.id, true);
        self.fixed.lock().insert(enode.id, Fixed { enode, failures: 0, next: None });
        self.dial.notify_one();
    }

    fn link(&self, id: &PeerId) -> Option<Arc<Link>> {
        self.links.read().get(id).cloned()
    }

    fn judge(&self, id: PeerId, offence: Offence) {
        let verdict = self.reputation.report(id, offence, self.slots.is_trusted(&id));
        let Verdict { disconnect: Some(reason), banned } = verdict else { return };
        add(&self.context.stats.banned, banned.into());
        if let Some(link) = self.link(&id) {
            let address = link.info().address;
            tracing::debug!(%address, ?offence, banned, "peer is disconnected for what it did");
            link.disconnect(reason);
        }
    }

    /// Whether anybody is connected.
    pub(super) fn has_peers(&self) -> bool {
        !self.links.read().is_empty()
    }

    /// Where those are whom we have dialled.
    pub(super) fn dialled(&self) -> Vec<IpAddr> {
        let infos = self.links.read();
        let infos = infos.values().map(|link| link.info()).filter(|info| !info.inbound);
        infos.map(|info| info.address.ip()).collect()
    }

    /// Makes a peer of a connection.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        dialled: Option<PeerId>,
    ) -> Result<Established<TcpStream>, RefusedError> {
        let addresses = [stream.peer_addr(), stream.local_addr()];
        let [Ok(address), Ok(local)] = addresses else {
            return Err(RefusedError::Rlpx(rlpx::RlpxError::Closed));
        };
        // Without it small messages wait for each other; if it fails, they do.
        let _ = stream.set_nodelay(true);
        let established =
            session::establish(stream, [address, local], dialled, &self.local, &self.slots).await;
        if let Err(error) = &established {
            add(&self.context.stats.refused, 1);
            tracing::debug!(%address, inbound = dialled.is_none(), %error, "no peer");
        }
        established
    }

    /// Stays with a peer until the connection ends.
    pub(super) async fn stay(&self, established: Established<TcpStream>) {
        session::run(established, self.local.timing, &self.context, self).await;
        self.dial.notify_one();
    }
}

impl Host for Shared {
    fn begin(&self, link: &Arc<Link>) {
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
        } else if info.is_static && !info.inbound && !self.fixed.lock().contains_key(&info.id) {
            // It was removed while it was dialled.
            link.disconnect(DisconnectReason::Requested);
        }
        // Nobody may be listening.
        let _ = self.context.events.send(Event::Connected(info));
    }

    fn offence(&self, peer: PeerId, offence: Offence) {
        self.judge(peer, offence);
    }

    fn end(&self, peer: PeerId, ended: &Ended) {
        self.links.write().remove(&peer);
        tracing::debug!(peer = %short(&peer), why = %ended.why, "peer disconnected");
        // As above.
        let _ = self.context.events.send(Event::Disconnected(peer));
    }
}

/// The first digits of an id, for logs.
pub(crate) fn short(id: &PeerId) -> String {
    alloy_primitives::hex::encode(&id[..6])
}

/// Whether an address is of this machine or of a network that is not public.
pub(super) fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// The network of an address: the first 24 bits of IPv4, the first 64 of IPv6.
pub(super) fn subnet(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(ip) => u64::from(u32::from(ip) >> 8),
        IpAddr::V6(ip) => (u128::from(ip) >> 64) as u64,
    }
}

impl Network for Arc<Shared> {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.links.read().values().map(|link| link.info()).collect()
    }

    fn request(&self, peer: PeerId, request: Request) -> BoxFuture<Result<Response, RequestError>> {
        self.request_within(peer, request, usize::MAX)
    }

    fn request_within(
        &self,
        peer: PeerId,
        request: Request,
        bytes: usize,
    ) -> BoxFuture<Result<Response, RequestError>> {
        let link = self.link(&peer).ok_or(RequestError::Gone);
        let asked = link.and_then(|link| link.request(request, bytes));
        Box::pin(async move { asked?.await.unwrap_or(Err(RequestError::Gone)) })
    }

    fn request_state(
        &self,
        peer: PeerId,
        request: rchk::Request,
    ) -> BoxFuture<Result<rchk::Response, RequestError>> {
        let asked = self.link(&peer).ok_or(RequestError::Gone);
        let asked = asked.and_then(|link| link.request_state(request));
        Box::pin(async move { asked?.await.unwrap_or(Err(RequestError::Gone)) })
    }

    fn send(&self, peer: PeerId, gossip: Gossip) -> bool {
        self.link(&peer).is_some_and(|link| link.send(gossip))
    }

    fn report(&self, peer: PeerId, offence: Offence) {
        self.judge(peer, offence);
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.context.events.subscribe()
    }
}
