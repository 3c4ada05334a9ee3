//! Discovery: finding nodes of our chain (`docs/network.md`, chapter Discovery).
//!
//! ```text
//!   boot nodes, nodes of earlier runs         lists in DNS
//!        |                                        |
//!        v                                        |
//!   v4: table <--lookups--> other nodes    v5     |
//!        |  records asked for               |     |
//!        '-------------------> Sieve <------'-----'
//!                     fork id fits, not offered lately
//!                                |
//!                                '--> Candidate, while the manager wants more
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`key`] | the node's key, and its file |
//! | [`enode`] | `enode://` URLs |
//! | [`record`] | node records (EIP-778): our own, and reading those of others |
//! | [`forks`] | fork ids (EIP-2124) |
//! | [`nat`] | our address as others see it |
//! | `table`, `net` | who is known, and how many of one network |
//! | `v4` | discovery version 4 |
//! | `v5` | discovery version 5, by the `discv5` crate |
//! | `dns` | lists of nodes (EIP-1459) |
//! | `file` | nodes that outlive a restart |
//! | `sieve` | who becomes a candidate |
//! | [`Pace`] | how fast all of it goes, and when |
//!
//! # Tasks
//!
//! | task | does | bounded by | ends |
//! |---|---|---|---|
//! | receive | takes packets, answers, never waits | 100 packets/s an address that is not local | with discovery, as all do |
//! | enter | boot nodes, then a lookup of ourselves; again every half hour | 16 pings at once | |
//! | maintain | checks nodes of the table | a new one every 3 s, a known one every 10 s | |
//! | look | lookups of random targets | while candidates are wanted; 3 questions at once | |
//! | sift | asks found nodes for their records | while candidates are wanted; 8 at once, 256 wait | |
//! | v5 | the crate's tasks, and lookups | the crate's: 1,000 sessions | |
//! | dns | walks trees | while candidates are wanted; 3 names a second | |
//! | forks | new fork ids into our record | | |
//! | save | live nodes to disk | every five minutes, 512 nodes | |
//!
//! # Assumptions
//!
//! * Whoever has an address can send from it; from others he can send, and not read what comes back.
//! * Records and roots of DNS lists are what their keys have signed. Nothing else that is told is
//!   believed: a node is told of to others once it has answered from where it is said to be.
//! * Candidates are hints. Whether a node is of our chain the handshake says.

mod dns;
pub mod enode;
mod file;
pub mod forks;
pub mod key;
pub mod nat;
mod net;
mod pace;
pub mod record;
mod sieve;
mod table;
mod v4;
mod v5;

pub use dns::{TreeUrl, TreeUrlError};
pub use enode::{Enode, EnodeError};
pub use file::NODES_FILE;
pub use forks::Forks;
pub use key::{KEY_FILE, NodeKey, NodeKeyError};
pub use nat::{Nat, NatError};
pub use pace::Pace;
pub use record::{Bootnode, LocalRecord, Record, RecordError};

use crate::handle::{Candidate, CandidateSource};
use parking_lot::Mutex;
use sieve::Sieve;
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
use v4::V4;
use v5::V5;

/// Candidates that wait for the manager.
const MAX_CANDIDATES: usize = 64;
/// Found nodes that wait to be asked for their records.
const MAX_FOUND: usize = 256;
/// Nodes that are asked for their records at once.
const SIFTED: usize = 8;

/// What discovery is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's key.
    pub key: NodeKey,
    /// Address and UDP port to listen on, for both versions; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the node takes connections.
    pub tcp_port: u16,
    /// How the node learns its address.
    pub nat: Nat,
    /// Nodes by which to enter the network.
    pub bootnodes: Vec<Bootnode>,
    /// Forks of the chain.
    pub forks: Arc<Forks>,
    /// Where nodes are kept over restarts.
    pub nodes_file: Option<PathBuf>,
    /// Whether version 4 runs.
    pub v4: bool,
    /// Whether version 5 runs.
    pub v5: bool,
    /// Lists in DNS.
    pub dns: Vec<TreeUrl>,
    /// The name server to ask instead of the system's.
    pub dns_server: Option<SocketAddr>,
    /// Whether more candidates are wanted. With `false` tables are kept and nothing is looked for.
    pub want: watch::Receiver<bool>,
    /// How fast all of it goes.
    pub pace: Pace,
}

/// Why discovery does not start.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The port cannot be had.
    #[error(
        "cannot listen on UDP {address} for discovery: {error}. Choose another with \
         --discovery.port"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// Our own record.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Discovery that runs until this is dropped, or [`shutdown`](Self::shutdown).
#[derive(Debug)]
pub struct Discovery {
    local: Arc<LocalRecord>,
    key: NodeKey,
    tcp_port: u16,
    listen: SocketAddr,
    v4: Option<Arc<V4>>,
    nodes_file: Option<PathBuf>,
    tasks: JoinSet<()>,
}

impl Discovery {
    /// Starts it on a runtime. Candidates come as they are found; those that wait too long are dropped
    /// and found again.
    ///
    /// # Errors
    /// If a port cannot be had.
    pub fn start(
        config: Config,
        runtime: &Handle,
    ) -> Result<(Self, mpsc::Receiver<Candidate>), DiscoveryError> {
        let _guard = runtime.enter();
        let Config { key, nat, forks, pace, want, tcp_port, .. } = config;
        let socket = bind(config.listen)?;
        let listen = local_address(&socket, config.listen)?;
        let ip = match nat {
            Nat::ExtIp(ip) => Some(ip),
            Nat::Any | Nat::None => Some(listen.ip()).filter(|ip| !ip.is_unspecified()),
        };
        let local = LocalRecord::new(&key, ip, tcp_port, listen, forks.current())?;
        let local = Arc::new(local);
        let (candidates, receiver) = mpsc::channel(MAX_CANDIDATES);
        let (shared_records, records) = mpsc::channel(MAX_CANDIDATES);
        let sieve = Arc::new(Sieve {
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
            Arc::new(V4::new(v4::Setup {
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
            // Else version 5 hands them on.
            if !config.v5 {
                tasks.spawn_on(Arc::clone(v4).receive(), runtime);
            }
            tasks.spawn_on(Arc::clone(v4).enter(saved, found.clone()), runtime);
            tasks.spawn_on(Arc::clone(v4).maintain(), runtime);
            tasks.spawn_on(look(Arc::clone(v4), want.clone(), found, pace), runtime);
            tasks.spawn_on(sift(Arc::clone(v4), finds, Arc::clone(&sieve)), runtime);
            if let Some(path) = config.nodes_file.clone() {
                tasks.spawn_on(save(Arc::clone(v4), path, pace), runtime);
            }
        }
        if config.v5 {
            let v5 = V5 {
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
            let take = move |record: Record| sieve.offer(&record, None, CandidateSource::Dns);
            tasks.spawn_on(dns::run(config.dns, config.dns_server, pace, want, take), runtime);
        }
        let nodes_file = config.nodes_file;
        let discovery = Self { local, key, tcp_port, listen, v4, nodes_file, tasks };
        info!(target: "retrie::network", node = %discovery.local_enode(), "discovery");
        Ok((discovery, receiver))
    }

    /// The node's record as it is now.
    pub fn local_record(&self) -> Record {
        self.local.get()
    }

    /// Where the node is, as far as it knows: with the address that others see, else the one it listens
    /// on, else that of this machine alone.
    pub fn local_enode(&self) -> Enode {
        let listens = Some(self.listen.ip()).filter(|ip| !ip.is_unspecified());
        let ip = self.local.ip().or(listens).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Enode { id: self.key.id(), ip, tcp: self.tcp_port, udp: self.listen.port() }
    }

    /// Nodes in the table of version 4.
    pub fn known_nodes(&self) -> usize {
        self.v4.as_ref().map_or(0, |v4| v4.len())
    }

    /// Ends it, and writes the nodes that are live to disk.
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

async fn follow_forks(forks: Arc<Forks>, local: Arc<LocalRecord>) {
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

async fn look(
    v4: Arc<V4>,
    mut want: watch::Receiver<bool>,
    found: mpsc::Sender<Enode>,
    pace: Pace,
) {
    while pace::wanted(&mut want).await {
        v4.lookup_anywhere(&found).await;
        tokio::time::sleep(pace.lookup).await;
    }
}

/// Asks found nodes for their records, while candidates are wanted.
async fn sift(v4: Arc<V4>, mut found: mpsc::Receiver<Enode>, sieve: Arc<Sieve>) {
    let mut tasks = JoinSet::new();
    while let Some(node) = found.recv().await {
        if !*sieve.want.borrow() || !sieve.is_new(node.id) {
            continue;
        }
        while tasks.len() >= SIFTED {
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

async fn save(v4: Arc<V4>, path: PathBuf, pace: Pace) {
    loop {
        tokio::time::sleep(pace.save).await;
        write_nodes(&v4, path.clone()).await;
    }
}

async fn write_nodes(v4: &V4, path: PathBuf) {
    let nodes = v4.live_nodes();
    // A node that was alone, if for a while, keeps the file of before.
    if nodes.is_empty() {
        return;
    }
    let shown = path.clone();
    let written = tokio::task::spawn_blocking(move || file::save(&path, &nodes)).await;
    if let Ok(Err(error)) = written {
        warn!(target: "retrie::network", "cannot write {}: {error}", shown.display());
    }
}

/// What reads bytes of strangers here.
#[cfg(test)]
pub(crate) fn fuzz() -> Vec<crate::fuzz::Decoder> {
    use crate::fuzz::Decoder;

    let key = NodeKey::random();
    let node = Enode { id: key.id(), ip: [1, 2, 3, 4].into(), tcp: 5, udp: 6 };
    let fork = alloy_eip2124::ForkId { hash: alloy_eip2124::ForkHash([1; 4]), next: 7 };
    let record = LocalRecord::new(&key, Some(node.ip), 5, node.udp_address(), fork);
    let record = record.map(|record| record.get()).expect("a record of a fresh key");
    // The first byte of inputs that have no kinds is not read.
    let kindless = |bytes: Vec<u8>| [vec![0], bytes].concat();
    let mut all = vec![
        Decoder {
            name: "record",
            seeds: vec![kindless(alloy_rlp::encode(&record))],
            run: |bytes| record::decode(bytes.get(1..).unwrap_or_default()).is_ok(),
        },
        Decoder {
            name: "enode",
            seeds: vec![node.to_string().into_bytes(), record.to_base64().into_bytes()],
            run: |bytes| str::from_utf8(bytes).is_ok_and(|text| text.parse::<Bootnode>().is_ok()),
        },
        v4::packet::fuzz(),
    ];
    all.extend(dns::fuzz(&record));
    all
}
