//! What servers there are, and their limits. The flags are those of reth.

use crate::Namespace;
use alloy_rpc_types_engine::JwtSecret;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Which servers run. None does by default.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// `--http`.
    pub http: Option<HttpConfig>,
    /// `--ws`.
    pub ws: Option<WsConfig>,
    /// The port of consensus clients.
    pub auth: Option<AuthConfig>,
    /// IPC, unless `--ipcdisable`.
    pub ipc: Option<IpcConfig>,
    /// What connections may take.
    pub limits: ConnectionLimits,
}

/// JSON-RPC over HTTP.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `--http.addr`, `--http.port`: 127.0.0.1:8545.
    pub addr: SocketAddr,
    /// `--http.api`: eth, net, web3.
    pub apis: Vec<Namespace>,
    /// `--http.corsdomain`: origins whose pages may read answers, `*` for all. None by default.
    pub cors_origins: Vec<String>,
    /// `--http.vhosts`: names in the header `Host` under which the server answers, `*` for all.
    /// Addresses always do. `localhost` by default.
    pub vhosts: Vec<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            addr: SocketAddr::new(LOOPBACK, 8545),
            apis: Namespace::DEFAULT.into(),
            cors_origins: Vec::new(),
            vhosts: vec!["localhost".into()],
        }
    }
}

/// JSON-RPC over WebSocket. On the same port as HTTP, both are served there.
#[derive(Clone, Debug)]
pub struct WsConfig {
    /// `--ws.addr`, `--ws.port`: 127.0.0.1:8546.
    pub addr: SocketAddr,
    /// `--ws.api`: eth, net, web3.
    pub apis: Vec<Namespace>,
    /// `--ws.origins`: origins whose pages may connect, `*` for all. Pages of localhost by default;
    /// what is no browser sends no origin and may always.
    pub origins: Vec<String>,
}

impl Default for WsConfig {
    fn default() -> Self {
        Self {
            addr: SocketAddr::new(LOOPBACK, 8546),
            apis: Namespace::DEFAULT.into(),
            origins: Vec::new(),
        }
    }
}

/// The port of consensus clients: HTTP and WebSocket, each request or connection with a token.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// `--authrpc.addr`, `--authrpc.port`: 127.0.0.1:8551.
    pub addr: SocketAddr,
    /// `--authrpc.vhosts`: as for HTTP.
    pub vhosts: Vec<String>,
    /// `--authrpc.jwtsecret`: the secret under which tokens are signed.
    pub secret: JwtSecret,
}

impl AuthConfig {
    /// The default port with this secret.
    pub fn new(secret: JwtSecret) -> Self {
        let addr = SocketAddr::new(LOOPBACK, 8551);
        Self { addr, vhosts: vec!["localhost".into()], secret }
    }
}

/// JSON-RPC over a Unix socket that only the user of the node may open.
#[derive(Clone, Debug)]
pub struct IpcConfig {
    /// `--ipcpath`.
    pub path: PathBuf,
    /// All namespaces by default.
    pub apis: Vec<Namespace>,
}

impl IpcConfig {
    /// All namespaces at this path.
    pub fn new(path: PathBuf) -> Self {
        Self { path, apis: Namespace::ALL.into() }
    }
}

/// What connections may take. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `--rpc.max-request-size`: 15 MB.
    pub max_request_size: u32,
    /// `--rpc.max-response-size`: 160 MB. Of a batch: all its answers together.
    pub max_response_size: u32,
    /// `--rpc.max-connections`: 500 per server.
    pub max_connections: u32,
    /// `--rpc.max-batch-size`: 1,000 requests.
    pub max_batch_size: u32,
    /// `--rpc.max-subscriptions-per-connection`: 1,024.
    pub max_subscriptions: u32,
    /// `--rpc.max-buffered-size`: 256 MB of requests and answers that all HTTP and WebSocket
    /// connections together make the node hold, beyond 64 KiB of each. The port of consensus clients
    /// and IPC, whose clients are trusted, do not count.
    pub max_buffered_size: usize,
    /// `--rpc.batch-timeout`: how long the requests of one batch may take together, 60 s. Each
    /// that has no answer then gets an error.
    pub batch_timeout: Duration,
    /// Messages that wait for a client that does not read.
    pub message_buffer: u32,
    /// How long a connection may be idle, and how long a request's header may take.
    pub idle_timeout: Duration,
    /// How long the body of a request may take, and how long a client may take nothing that an answer
    /// is written to.
    pub stall_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_request_size: 15 << 20,
            max_response_size: 160 << 20,
            max_connections: 500,
            max_batch_size: 1000,
            max_subscriptions: 1024,
            max_buffered_size: 256 << 20,
            batch_timeout: Duration::from_secs(60),
            message_buffer: 1024,
            idle_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

impl ConnectionLimits {
    /// The same with room for the largest payloads, and without an end to what a consensus client has
    /// begun.
    pub(super) fn for_engine(self) -> Self {
        Self {
            max_request_size: self.max_request_size.max(128 << 20),
            batch_timeout: Duration::from_secs(3600),
            ..self
        }
    }
}
