//! Servers: HTTP, WebSocket and IPC, and the authenticated port for consensus clients.
//!
//! | task | started by | bounded by | ends |
//! |---|---|---|---|
//! | one accept loop per port | [`RunningServers::start`] | | [`RunningServers::stop`] |
//! | one per TCP connection | the accept loop | `max_connections` per port; at the limit, a new connection evicts the one idle for longest | client, timeouts, stop |
//! | one per request of HTTP/2 (authenticated port) | the connection | 32 per connection | with its response, or the connection |
//! | one per WebSocket | the upgrade | `max_connections` per port | client, a ping unanswered, stop |
//! | one IPC accept loop, and one per IPC connection | [`RunningServers::start`] | `max_connections` | client, stop |
//! | one per request of a WebSocket or of IPC | the connection | limits of `session.rs`; at a limit the connection reads no further | with its response, or the connection |
//!
//! Slow clients hold a bounded amount of memory: headers and bodies must arrive in time, responses
//! must be read in time, and notifications wait in queues of fixed length. All untrusted clients
//! together are bounded too, for requests and responses: see `budget.rs`.
//!
//! Every server listens on loopback unless configured otherwise.

mod access;
mod auth;
mod budget;
mod config;
mod connections;
mod content_type;
mod counted_stream;
#[cfg(feature = "graphql")]
mod graphql;
mod ipc;
mod json_frames;
mod port;
mod preface;
mod request;
mod rest;
mod service;
mod session;
mod span;
#[cfg(not(feature = "graphql"))]
mod without_graphql;
mod ws;

pub use auth::sign_token;
pub use config::{
    AuthConfig, ConnectionLimits, GraphqlConfig, HttpConfig, IpcConfig, ServerConfig, WsConfig,
};

use crate::{
    ApiNamespace, RpcContext, build_methods, engine::engine_methods, engine_rest::EngineRest,
};
use access::{AllowedHosts, AllowedOrigins};
use budget::BufferBudget;
#[cfg(feature = "graphql")]
use graphql::GraphqlEndpoint;
use port::{PortConfig, PortServer};
use retrie_engine::EngineApi;
use service::MethodService;
use std::{io, net::SocketAddr, path::PathBuf, time::Duration};
#[cfg(not(feature = "graphql"))]
use without_graphql::GraphqlEndpoint;

/// Longest time for requests in progress once the servers stop.
const GRACE: Duration = Duration::from_secs(5);

/// Why servers could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The port cannot be bound.
    #[error("the {server} server cannot listen on {addr}: {source}")]
    Bind {
        /// Which server.
        server: &'static str,
        /// Where.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The socket file cannot be created.
    #[error("the IPC server cannot listen on {}: {source}", path.display())]
    Ipc {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// HTTP and WebSocket share a port, but not their namespaces.
    #[error(
        "--http.port and --ws.port are both {addr}, so --http.api and --ws.api must be the same"
    )]
    DifferentApis {
        /// The port.
        addr: SocketAddr,
    },
    /// Browsers never send such an origin.
    #[error("{0:?} is no origin: it must be * or like https://example.org")]
    Origin(String),
    /// GraphQL was asked for, but this program has none.
    #[error(
        "this program was built without GraphQL: build it with --features graphql, or leave \
         --graphql out"
    )]
    NoGraphql,
}

/// Running servers. Dropping them stops them without waiting.
#[derive(Debug)]
pub struct RunningServers {
    http: Option<PortServer>,
    ws: Option<PortServer>,
    auth: Option<PortServer>,
    ipc: Option<ipc::IpcServer>,
}

impl RunningServers {
    /// Starts the servers of `config`. Only the authenticated port serves `engine`, the API for
    /// consensus clients, by JSON-RPC beside `eth`, and by REST.
    ///
    /// # Errors
    /// [`ServerError`]; then no server runs.
    pub async fn start(
        config: &ServerConfig,
        context: &RpcContext,
        engine: Option<EngineApi>,
    ) -> Result<Self, ServerError> {
        let mut servers = Self { http: None, ws: None, auth: None, ipc: None };
        let ServerConfig { http, ws, auth, ipc, limits } = config;
        let shared = http.as_ref().zip(ws.as_ref()).filter(|(http, ws)| {
            // Port 0 is a different port each time.
            http.addr == ws.addr && http.addr.port() != 0
        });
        let shares_port = shared.is_some();
        if let Some((http, ws)) = shared
            && !same(&http.apis, &ws.apis)
        {
            return Err(ServerError::DifferentApis { addr: http.addr });
        }
        let buffered = BufferBudget::new(limits.max_buffered_size);
        // A client of the dev chain's tools controls the chain: only this machine may reach them.
        let strangers = context.without_dev();
        let for_addr = |addr: &SocketAddr| {
            let has_tools = addr.ip().is_loopback() || context.dev.is_none();
            if !has_tools {
                tracing::warn!(
                    %addr, "the dev chain's tools and accounts are not served at this address, \
                    because other machines can reach it"
                );
            }
            if has_tools { context } else { &strangers }
        };
        if let Some(http) = http {
            let ws = ws.as_ref().filter(|_| shares_port);
            let graphql = match &http.graphql {
                Some(config) => Some(GraphqlEndpoint::new(config, for_addr(&http.addr))?),
                None => None,
            };
            let config = PortConfig {
                server: "HTTP",
                addr: http.addr,
                methods: build_methods(for_addr(&http.addr), &http.apis),
                http: Some("http"),
                ws: ws.map(|_| "ws"),
                hosts: AllowedHosts::new(&http.vhosts),
                cors: access::cors(&http.cors_origins)?,
                origins: AllowedOrigins::new(ws.map_or(&[], |ws| &ws.origins)),
                secret: None,
                rest: None,
                graphql,
                limits: *limits,
                buffered: buffered.clone(),
            };
            servers.http = Some(PortServer::start(config, context).await?);
        }
        if let Some(ws) = ws.as_ref().filter(|_| !shares_port) {
            let config = PortConfig {
                server: "WebSocket",
                addr: ws.addr,
                methods: build_methods(for_addr(&ws.addr), &ws.apis),
                http: None,
                ws: Some("ws"),
                // As in geth, a WebSocket server checks origins and not names.
                hosts: AllowedHosts::any(),
                cors: None,
                origins: AllowedOrigins::new(&ws.origins),
                secret: None,
                rest: None,
                graphql: None,
                limits: *limits,
                buffered,
            };
            servers.ws = Some(PortServer::start(config, context).await?);
        }
        if let Some(auth) = auth {
            let mut methods = build_methods(for_addr(&auth.addr), &[ApiNamespace::Eth]);
            let rest = engine.clone().map(EngineRest::new);
            if let Some(api) = engine {
                let own = methods.merge(engine_methods(api));
                own.expect("the engine's methods have a namespace of their own");
            }
            let config = PortConfig {
                server: "Engine API",
                addr: auth.addr,
                methods,
                http: Some("engine"),
                ws: Some("engine"),
                hosts: AllowedHosts::new(&auth.vhosts),
                cors: None,
                origins: AllowedOrigins::any(),
                secret: Some(auth.secret),
                rest,
                graphql: None,
                limits: limits.for_engine(),
                // A client without the secret cannot send a body or open a WebSocket.
                buffered: BufferBudget::unlimited(),
            };
            servers.auth = Some(PortServer::start(config, context).await?);
        }
        if let Some(ipc) = ipc {
            let methods = build_methods(context, &ipc.apis);
            let metrics = context.metrics.server("ipc", methods.method_names());
            // Only the node's user can open the socket.
            let buffered = BufferBudget::unlimited();
            let answers = MethodService { methods, limits: *limits, metrics, buffered };
            servers.ipc = Some(ipc::IpcServer::start(&ipc.path, answers).await?);
        }
        Ok(servers)
    }

    /// The address of the HTTP server.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(PortServer::addr)
    }

    /// The address of WebSockets, if they have their own port.
    pub fn ws_addr(&self) -> Option<SocketAddr> {
        self.ws.as_ref().map(PortServer::addr)
    }

    /// The address of the authenticated port.
    pub fn auth_addr(&self) -> Option<SocketAddr> {
        self.auth.as_ref().map(PortServer::addr)
    }

    /// Accepts no more requests, waits a while for those in progress, and closes all connections.
    pub async fn stop(self) {
        let Self { http, ws, auth, ipc } = self;
        let port = |port: Option<PortServer>| async move {
            if let Some(port) = port {
                port.stop(GRACE).await;
            }
        };
        let ipc = async move {
            if let Some(ipc) = ipc {
                ipc.stop(GRACE).await;
            }
        };
        tokio::join!(port(http), port(ws), port(auth), ipc);
    }
}

fn same(one: &[ApiNamespace], other: &[ApiNamespace]) -> bool {
    let within = |a: &[ApiNamespace], b: &[ApiNamespace]| a.iter().all(|api| b.contains(api));
    within(one, other) && within(other, one)
}
