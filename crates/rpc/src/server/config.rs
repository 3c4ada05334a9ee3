//! Configuration of the servers and their limits. The flags are reth's.

use crate::ApiNamespace;
use alloy_rpc_types_engine::JwtSecret;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Which servers run; none by default.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// `--http`.
    pub http: Option<HttpConfig>,
    /// `--ws`.
    pub ws: Option<WsConfig>,
    /// The authenticated port for consensus clients.
    pub auth: Option<AuthConfig>,
    /// IPC, unless `--ipcdisable`.
    pub ipc: Option<IpcConfig>,
    /// Limits of connections.
    pub limits: ConnectionLimits,
}

/// JSON-RPC over HTTP.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `--http.addr`, `--http.port`: 127.0.0.1:8545 by default.
    pub addr: SocketAddr,
    /// `--http.api`: eth, net, web3 by default.
    pub apis: Vec<ApiNamespace>,
    /// `--http.corsdomain`: origins whose pages may read responses, `*` for all. None by default.
    pub cors_origins: Vec<String>,
    /// `--http.vhosts`: allowed names in the header `Host`, `*` for all; IP addresses are always
    /// allowed. `localhost` by default.
    pub vhosts: Vec<String>,
    /// `--graphql`: GraphQL under `/graphql` of the same port.
    pub graphql: Option<GraphqlConfig>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            addr: SocketAddr::new(LOOPBACK, 8545),
            apis: ApiNamespace::DEFAULT.into(),
            cors_origins: Vec::new(),
            vhosts: vec!["localhost".into()],
            graphql: None,
        }
    }
}

/// GraphQL on the port of HTTP; the cargo feature `graphql` has it.
#[derive(Clone, Debug)]
pub struct GraphqlConfig {
    /// `--graphql.corsdomain`: as for HTTP.
    pub cors_origins: Vec<String>,
    /// `--graphql.vhosts`: as for HTTP.
    pub vhosts: Vec<String>,
}

impl Default for GraphqlConfig {
    fn default() -> Self {
        Self { cors_origins: Vec::new(), vhosts: vec!["localhost".into()] }
    }
}

/// JSON-RPC over WebSocket. If it has the port of HTTP, one server serves both.
#[derive(Clone, Debug)]
pub struct WsConfig {
    /// `--ws.addr`, `--ws.port`: 127.0.0.1:8546 by default.
    pub addr: SocketAddr,
    /// `--ws.api`: eth, net, web3 by default.
    pub apis: Vec<ApiNamespace>,
    /// `--ws.origins`: origins whose pages may connect, `*` for all. Pages of localhost by default;
    /// clients that send no origin (no browsers) may always connect.
    pub origins: Vec<String>,
}

impl Default for WsConfig {
    fn default() -> Self {
        Self {
            addr: SocketAddr::new(LOOPBACK, 8546),
            apis: ApiNamespace::DEFAULT.into(),
            origins: Vec::new(),
        }
    }
}

/// The authenticated port: HTTP and WebSocket; each request or connection needs a token.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// `--authrpc.addr`, `--authrpc.port`: 127.0.0.1:8551 by default.
    pub addr: SocketAddr,
    /// `--authrpc.vhosts`: as for HTTP.
    pub vhosts: Vec<String>,
    /// `--authrpc.jwtsecret`: the secret that signs tokens.
    pub secret: JwtSecret,
}

impl AuthConfig {
    /// The default port with this secret.
    pub fn new(secret: JwtSecret) -> Self {
        let addr = SocketAddr::new(LOOPBACK, 8551);
        Self { addr, vhosts: vec!["localhost".into()], secret }
    }
}

/// JSON-RPC over a Unix socket that only the node's user may open.
#[derive(Clone, Debug)]
pub struct IpcConfig {
    /// `--ipcpath`.
    pub path: PathBuf,
    /// All namespaces by default.
    pub apis: Vec<ApiNamespace>,
}

impl IpcConfig {
    /// All namespaces at this path.
    pub fn new(path: PathBuf) -> Self {
        Self { path, apis: ApiNamespace::ALL.into() }
    }
}

/// Limits of connections. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `--rpc.max-request-size`: 15 MB by default.
    pub max_request_size: u32,
    /// `--rpc.max-response-size`: 160 MB by default. For a batch: all responses together.
    pub max_response_size: u32,
    /// `--rpc.max-connections`: 500 per server by default.
    pub max_connections: u32,
    /// `--rpc.max-batch-size`: 1,000 requests by default.
    pub max_batch_size: u32,
    /// `--rpc.max-subscriptions-per-connection`: 1,024 by default.
    pub max_subscriptions: u32,
    /// `--rpc.max-buffered-size`: 256 MB by default. Bytes of requests and responses that all HTTP
    /// and WebSocket connections hold together, beyond 64 KiB per connection. The authenticated
    /// port and IPC, whose clients are trusted, are not counted.
    pub max_buffered_size: usize,
    /// `--rpc.batch-timeout`: time for all requests of one batch together, 60 s by default.
    /// Requests without a response then get an error.
    pub batch_timeout: Duration,
    /// Queue length for messages to a client that does not read.
    pub message_buffer: u32,
    /// Longest time a connection may be idle, and longest time for a request's header.
    pub idle_timeout: Duration,
    /// Longest time for a request's body, and longest time a client may read nothing of its
    /// response.
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
    /// The limits of the authenticated port: room for the largest payloads, and no batch timeout in
    /// practice.
    pub(super) fn for_engine(self) -> Self {
        Self {
            max_request_size: self.max_request_size.max(128 << 20),
            batch_timeout: Duration::from_secs(3600),
            ..self
        }
    }
}
