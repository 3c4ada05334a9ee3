//! Discovery: finds nodes of this chain (`docs/network.md`, chapter Discovery).
//!
//! ```text
//!   boot nodes, nodes of earlier runs         DNS lists
//!        |                                        |
//!        v                                        |
//!   v4: NodeTable <--lookups--> other nodes  v5   |
//!        |  node records                      |   |
//!        '----------------> CandidateFilter <-'---'
//!                     fork id fits, not offered recently
//!                                |
//!                                '--> Candidate, while the network wants more
//! ```
//!
//! | module | what |
//! |---|---|
//! | `key` | the node key, and its file |
//! | `enode` | `enode://` URLs |
//! | `record` | node records (ENR, EIP-778): the local one, and parsing the ones of other nodes |
//! | `forks` | fork ids (EIP-2124) |
//! | `nat` | the external address of this node |
//! | `table`, `net` | the known nodes, and limits for each network |
//! | `v4` | discovery version 4 |
//! | `v5` | discovery version 5, by the `discv5` crate |
//! | `dns` | DNS lists of nodes (EIP-1459) |
//! | `file` | the file of live nodes |
//! | `candidate_filter` | which nodes become candidates |
//! | [`DiscoveryTiming`] | timeouts and intervals |
//!
//! # Tasks
//!
//! | task | does | bounded by | ends |
//! |---|---|---|---|
//! | receive | reads packets, answers them, never waits | 100 packets/s from a public address | with discovery, as all tasks do |
//! | bootstrap | pings boot nodes and saved ones until one answers, then looks up this node; again every half hour | 16 pings at once | |
//! | maintain | checks nodes of the table | a new one every 3 s, a known one every 10 s | |
//! | lookups | looks up random targets | while candidates are wanted; 3 requests at once | |
//! | records | asks found nodes for their records | while candidates are wanted; 8 at once, 256 wait | |
//! | v5 | tasks of the crate, and lookups | limits of the crate: 1,000 sessions | |
//! | dns | walks trees | while candidates are wanted; 3 names a second | |
//! | forks | puts new fork ids into the local record | | |
//! | save | writes live nodes to disk | every five minutes, 512 nodes | |
//!
//! # Assumptions
//!
//! * A host can send from its own address. It can forge packets from other addresses, but not read
//!   the answers to them.
//! * Records and roots of DNS lists are signed by their keys. No other information from a node is
//!   trusted: a node is passed on to other nodes only after it has answered from its address.
//! * Candidates are hints. Only the handshake shows whether a node is on this chain.

mod candidate_filter;
mod dns;
mod enode;
mod file;
mod forks;
mod key;
mod nat;
mod net;
mod record;
mod table;
mod timing;
mod v4;
mod v5;

pub use dns::{TreeUrl, TreeUrlError};
pub use enode::{Enode, EnodeError};
pub use file::NODES_FILE;
pub use forks::ForkTracker;
pub use key::{KEY_FILE, NodeKey, NodeKeyError};
pub use nat::{NatError, NatMode};
pub use record::{Bootnode, Enr, RecordError};
pub use timing::DiscoveryTiming;

use crate::handle::{Candidate, CandidateSource};
use candidate_filter::CandidateFilter;
use parking_lot::Mutex;
use record::LocalEnr;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};
use tokio::{
    net::UdpSocket,
    runtime::Handle,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tracing::{info, warn};
use v4::Discv4Service;
use v5::Discv5Service;

/// How many candidates may wait for the network.
const MAX_CANDIDATES: usize = 64;
/// How many found nodes may wait to be asked for their records.
const MAX_FOUND: usize = 256;
/// How many nodes are asked for their records at once.
const MAX_RECORD_REQUESTS: usize = 8;

/// Configuration of discovery.
#[derive(Clone, Debug)]
pub struct DiscoveryConfig {
    /// The node's key.
    pub key: NodeKey,
    /// The address and UDP port to listen on, for both versions; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The TCP port on which the node accepts connections.
    pub tcp_port: u16,
    /// How the node learns its external address.
    pub nat: NatMode,
    /// The boot nodes.
    pub bootnodes: Vec<Bootnode>,
    /// The fork id of the chain.
    pub forks: Arc<ForkTracker>,
    /// The file of live nodes.
    pub nodes_file: Option<PathBuf>,
    /// Whether version 4 runs.
    pub v4: bool,
    /// Whether version 5 runs.
    pub v5: bool,
    /// The DNS lists.
    pub dns: Vec<TreeUrl>,
    /// A name server to ask instead of the system's.
    pub dns_server: Option<SocketAddr>,
    /// Whether more candidates are wanted. If `false`, the tables are kept but no nodes are
    /// searched.
    pub want: watch::Receiver<bool>,
    /// Timeouts and intervals.
    pub pace: DiscoveryTiming,
}

/// Why discovery does not start.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The port cannot be bound.
    #[error(
        "cannot listen on UDP {address} for discovery: {error}. Choose another with \
         --discovery.port"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The local record cannot be made.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Running discovery. It ends when it is dropped, or with [`shutdown`](Self::shutdown).
#[derive(Debug)]
pub struct Discovery {
    local: Arc<LocalEnr>,
    key: NodeKey,
    tcp_port: u16,
    listen: SocketAddr,
    v4: Option<Arc<Discv4Service>>,
    nodes_file: Option<PathBuf>,
    tasks: JoinSet<()>,
}

impl Discovery {
    /// Starts discovery on a runtime. Returns the stream of candidates. A candidate that cannot be
    /// queued is dropped and found again later.
    ///
    /// # Errors
    /// If the port cannot be bound, or the local record cannot be made.
    pub fn start(
        config: DiscoveryConfig,
        runtime: &Handle,
    ) -> Result<(Self, mpsc::Receiver<Candidate>), DiscoveryError> {
        let _guard = runtime.enter();
        let DiscoveryConfig { key, nat, forks, pace, want, tcp_port, .. } = config;
        let socket = bind(config.listen)?;
        let listen = local_address(&socket, config.listen)?;
        let ip = match nat {
            NatMode::ExtIp(ip) => Some(ip),
            NatMode::Any | NatMode::None => Some(listen.ip()).filter(|ip| !ip.is_unspecified()),
        };
        let local = LocalEnr::new(&key, ip, tcp_port, listen, forks.current())?;
        let local = Arc::new(local);
        let (candidates, receiver) = mpsc::channel(MAX_CANDIDATES);
        let (shared_records, records) = mpsc::channel(MAX_CANDIDATES);
        let sieve = Arc::new(CandidateFilter {
            own: key.id(),
            forks: Arc::clone(&forks),
            again: pace.again,
            recent: Mutex::default(),
            candidates,
            records: config.v5.then_some(shared_records),
            want: want.clone(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn_on(follow_forks(Arc::clone(&forks), Arc::clone(&local)), runtime);
        let boot: Vec<_> = config.bootnodes.iter().map(|boot| boot.enode).collect();
        let boot = boot.into_iter().filter(|node| node.id != key.id() && node.udp != 0).collect();
        let (v4_local, v4_socket) = (Arc::clone(&local), Arc::clone(&socket));
        let v4 = config.v4.then(|| {
            Arc::new(Discv4Service::new(v4::Discv4Config {
                key: key.clone(),
                local: v4_local,
                socket: v4_socket,
                listen,
                tcp: tcp_port,
                nat,
                pace,
                boot,
            }))
        });
        if let Some(v4) = &v4 {
            let saved = config.nodes_file.as_deref().map(file::load).unwrap_or_default();
            let (found, finds) = mpsc::channel(MAX_FOUND);
            // Otherwise version 5 reads the socket and passes packets on.
            if !config.v5 {
                tasks.spawn_on(Arc::clone(v4).receive(), runtime);
            }
            tasks.spawn_on(Arc::clone(v4).bootstrap(saved, found.clone()), runtime);
            tasks.spawn_on(Arc::clone(v4).maintain(), runtime);
            tasks.spawn_on(run_lookups(Arc::clone(v4), want.clone(), found, pace), runtime);
            tasks.spawn_on(request_records(Arc::clone(v4), finds, Arc::clone(&sieve)), runtime);
            if let Some(path) = config.nodes_file.clone() {
                tasks.spawn_on(save(Arc::clone(v4), path, pace), runtime);
            }
        }
        if config.v5 {
            let v5 = Discv5Service {
                local: Arc::clone(&local),
                socket,
                v4: v4.clone(),
                nat,
                pace,
                boot: config.bootnodes,
                sieve: Arc::clone(&sieve),
                want: want.clone(),
                records,
            };
            tasks.spawn_on(v5.run(), runtime);
        }
        if !config.dns.is_empty() {
            let take = move |record: Enr| sieve.offer(&record, None, CandidateSource::Dns);
            tasks.spawn_on(dns::run(config.dns, config.dns_server, pace, want, take), runtime);
        }
        let nodes_file = config.nodes_file;
        let discovery = Self { local, key, tcp_port, listen, v4, nodes_file, tasks };
        info!(target: "retrie::network", node = %discovery.local_enode(), "discovery");
        Ok((discovery, receiver))
    }

    /// The current node record of this node.
    pub fn local_record(&self) -> Enr {
        self.local.get()
    }

    /// The URL of this node, as far as it knows its address: the external address, else the one it
    /// listens on, else the loopback address.
    pub fn local_enode(&self) -> Enode {
        let listens = Some(self.listen.ip()).filter(|ip| !ip.is_unspecified());
        let ip = self.local.ip().or(listens).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Enode { id: self.key.id(), ip, tcp: self.tcp_port, udp: self.listen.port() }
    }

    /// Ends discovery, and writes the live nodes to disk.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
        if let (Some(v4), Some(path)) = (self.v4.take(), self.nodes_file.take()) {
            write_nodes(&v4, path).await;
        }
    }
}

fn bind(address: SocketAddr) -> Result<Arc<UdpSocket>, DiscoveryError> {
    let bind = || {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    };
    bind().map(Arc::new).map_err(|error| DiscoveryError::Listen { address, error })
}

fn local_address(socket: &UdpSocket, address: SocketAddr) -> Result<SocketAddr, DiscoveryError> {
    socket.local_addr().map_err(|error| DiscoveryError::Listen { address, error })
}

async fn follow_forks(forks: Arc<ForkTracker>, local: Arc<LocalEnr>) {
    let mut ids = forks.watch();
    loop {
        let id = *ids.borrow_and_update();
        if let Err(error) = local.set_fork_id(id) {
            warn!(target: "retrie::network", %error, "the record keeps its old fork id");
        }
        if ids.changed().await.is_err() {
            return;
        }
    }
}

async fn run_lookups(
    v4: Arc<Discv4Service>,
    mut want: watch::Receiver<bool>,
    found: mpsc::Sender<Enode>,
    pace: DiscoveryTiming,
) {
    while timing::wanted(&mut want).await {
        v4.lookup_random(&found).await;
        tokio::time::sleep(pace.lookup).await;
    }
}

/// Asks found nodes for their records while candidates are wanted.
async fn request_records(
    v4: Arc<Discv4Service>,
    mut found: mpsc::Receiver<Enode>,
    sieve: Arc<CandidateFilter>,
) {
    let mut tasks = JoinSet::new();
    while let Some(node) = found.recv().await {
        if !*sieve.want.borrow() || !sieve.is_new(node.id) {
            continue;
        }
        while tasks.len() >= MAX_RECORD_REQUESTS {
            tasks.join_next().await;
        }
        let (v4, sieve) = (Arc::clone(&v4), Arc::clone(&sieve));
        tasks.spawn(async move {
            if let Ok(record) = v4.record(&node).await {
                sieve.share(&record);
                sieve.offer(&record, Some(&node), CandidateSource::Discv4);
            }
        });
    }
}

async fn save(v4: Arc<Discv4Service>, path: PathBuf, pace: DiscoveryTiming) {
    loop {
        tokio::time::sleep(pace.save).await;
        write_nodes(&v4, path.clone()).await;
    }
}

async fn write_nodes(v4: &Discv4Service, path: PathBuf) {
    let nodes = v4.live_nodes();
    // A node that has found no others keeps its old file.
    if nodes.is_empty() {
        return;
    }
    let shown = path.clone();
    let written = tokio::task::spawn_blocking(move || file::save(&path, &nodes)).await;
    if let Ok(Err(error)) = written {
        warn!(target: "retrie::network", "cannot write {}: {error}", shown.display());
    }
}

/// The decoders of bytes that remote nodes send.
#[cfg(test)]
pub(crate) fn fuzz() -> Vec<crate::fuzz::FuzzDecoder> {
    use crate::fuzz::FuzzDecoder;

    let key = NodeKey::random();
    let node = Enode { id: key.id(), ip: [1, 2, 3, 4].into(), tcp: 5, udp: 6 };
    let fork = alloy_eip2124::ForkId { hash: alloy_eip2124::ForkHash([1; 4]), next: 7 };
    let record = LocalEnr::new(&key, Some(node.ip), 5, node.udp_address(), fork);
    let record = record.map(|record| record.get()).expect("a record of a fresh key");
    // Inputs without a kind: the first byte is ignored.
    let kindless = |bytes: Vec<u8>| [vec![0], bytes].concat();
    let mut all = vec![
        FuzzDecoder {
            name: "record",
            seeds: vec![kindless(alloy_rlp::encode(&record))],
            run: |bytes| record::decode(bytes.get(1..).unwrap_or_default()).is_ok(),
        },
        FuzzDecoder {
            name: "enode",
            seeds: vec![node.to_string().into_bytes(), record.to_base64().into_bytes()],
            run: |bytes| str::from_utf8(bytes).is_ok_and(|text| text.parse::<Bootnode>().is_ok()),
        },
        v4::packet::fuzz(),
    ];
    all.extend(dns::fuzz(&record));
    all
}
