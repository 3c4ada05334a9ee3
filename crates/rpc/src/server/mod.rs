//! Servers: HTTP, WebSocket and IPC, and the authenticated port of consensus clients.
//!
//! | task | started by | bounded by | ends |
//! |---|---|---|---|
//! | one accept loop per port | [`Servers::start`] | | [`Servers::stop`] |
//! | one per TCP connection | the accept loop | `max_connections` a port; when they are used up, a new one replaces the one idle for longest | client, timeouts, stop |
//! | one per WebSocket | the upgrade | `max_connections` a port | client, a ping unanswered, stop |
//! | one accept loop and one per connection of IPC | [`Servers::start`] | `max_connections` | client, stop |
//! | one per request of a WebSocket or of IPC | the connection | see `session.rs`: then it reads no further | with its answer, or the connection |
//!
//! Clients that are slow bound what they hold: headers and bodies have to come, and answers be
//! taken, in time; messages of subscriptions wait in queues of fixed length. What strangers hold
//! together is bounded too, whether it is on its way in or out: see `budget.rs`.
//!
//! Everything binds to loopback unless told otherwise.

mod access;
mod answers;
mod auth;
mod budget;
mod config;
mod connections;
mod content_type;
mod counted;
mod frames;
mod ipc;
mod port;
mod request;
mod session;
mod ws;

pub use auth::sign_token;
pub use config::{AuthConfig, ConnectionLimits, HttpConfig, IpcConfig, ServerConfig, WsConfig};

use crate::{Namespace, RpcContext, build_methods};
use access::{Hosts, Origins};
use answers::Answers;
use budget::Buffered;
use jsonrpsee::Methods;
use port::{Port, PortConfig};
use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

/// How long requests under way may take to end once the servers are told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Why servers could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A port cannot be had.
    #[error("the {server} server cannot listen on {addr}: {source}")]
    Bind {
        /// Which server.
        server: &'static str,
        /// Where.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The socket file cannot be made.
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
    /// An origin that browsers never send.
    #[error("{0:?} is no origin: it must be * or like https://example.org")]
    Origin(String),
}

/// Running servers. Dropping them stops them without waiting.
#[derive(Debug)]
pub struct Servers {
    http: Option<Port>,
    ws: Option<Port>,
    auth: Option<Port>,
    ipc: Option<ipc::IpcServer>,
}

impl Servers {
    /// Starts what `config` asks for. `engine` are the methods that consensus clients call; the auth
    /// port serves them beside `eth`, and no other server does.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running then.
    pub async fn start(
        config: &ServerConfig,
        context: &RpcContext,
        engine: Methods,
    ) -> Result<Self, ServerError> {
        let mut servers = Self { http: None, ws: None, auth: None, ipc: None };
        let ServerConfig { http, ws, auth, ipc, limits } = config;
        let shared = http.as_ref().zip(ws.as_ref()).filter(|(http, ws)| {
            // Port 0 is another one each time.
            http.addr == ws.addr && http.addr.port() != 0
        });
        let shares_port = shared.is_some();
        if let Some((http, ws)) = shared
            && !same(&http.apis, &ws.apis)
        {
            return Err(ServerError::DifferentApis { addr: http.addr });
        }
        let buffered = Buffered::new(limits.max_buffered_size);
        // Who can reach a dev chain's tools owns it: nobody but this machine does.
        let strangers = context.without_dev();
        let for_addr = |addr: &SocketAddr| {
            let has_tools = addr.ip().is_loopback() || context.dev.is_none();
            if !has_tools {
                tracing::warn!(
                    %addr, "the tools of the dev chain and its accounts are not served here, as \
                    others than this machine may reach it"
                );
            }
            if has_tools { context } else { &strangers }
        };
        if let Some(http) = http {
            let ws = ws.as_ref().filter(|_| shares_port);
            let config = PortConfig {
                server: "HTTP",
                addr: http.addr,
                methods: build_methods(for_addr(&http.addr), &http.apis),
                http: Some("http"),
                ws: ws.map(|_| "ws"),
                hosts: Hosts::new(&http.vhosts),
                cors: access::cors(&http.cors_origins)?,
                origins: Origins::new(ws.map_or(&[], |ws| &ws.origins)),
                secret: None,
                limits: *limits,
                buffered: buffered.clone(),
            };
            servers.http = Some(Port::start(config, context).await?);
        }
        if let Some(ws) = ws.as_ref().filter(|_| !shares_port) {
            let config = PortConfig {
                server: "WebSocket",
                addr: ws.addr,
                methods: build_methods(for_addr(&ws.addr), &ws.apis),
                http: None,
                ws: Some("ws"),
                // Names in browsers are guarded by origins here, as in geth.
                hosts: Hosts::any(),
                cors: None,
                origins: Origins::new(&ws.origins),
                secret: None,
                limits: *limits,
                buffered,
            };
            servers.ws = Some(Port::start(config, context).await?);
        }
        if let Some(auth) = auth {
            let mut methods = build_methods(for_addr(&auth.addr), &[Namespace::Eth]);
            methods.merge(engine).expect("the engine's methods have a namespace of their own");
            let config = PortConfig {
                server: "Engine API",
                addr: auth.addr,
                methods,
                http: Some("engine"),
                ws: Some("engine"),
                hosts: Hosts::new(&auth.vhosts),
                cors: None,
                origins: Origins::any(),
                secret: Some(auth.secret),
                limits: limits.for_engine(),
                // Nobody without the secret sends a body or opens a WebSocket.
                buffered: Buffered::unlimited(),
            };
            servers.auth = Some(Port::start(config, context).await?);
        }
        if let Some(ipc) = ipc {
            let methods = build_methods(context, &ipc.apis);
            let metrics = context.metrics.server("ipc", methods.method_names());
            // The socket is open to the node's user alone.
            let buffered = Buffered::unlimited();
            let answers = Answers { methods, limits: *limits, metrics, buffered };
            servers.ipc = Some(ipc::IpcServer::start(&ipc.path, answers).await?);
        }
        Ok(servers)
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Port::addr)
    }

    /// Where WebSockets are served on a port of their own.
    pub fn ws_addr(&self) -> Option<SocketAddr> {
        self.ws.as_ref().map(Port::addr)
    }

    /// Where consensus clients are served.
    pub fn auth_addr(&self) -> Option<SocketAddr> {
        self.auth.as_ref().map(Port::addr)
    }

    /// Takes no more requests, lets those under way end for a while, and closes all connections.
    pub async fn stop(self) {
        let Self { http, ws, auth, ipc } = self;
        let port = |port: Option<Port>| async move {
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

fn same(one: &[Namespace], other: &[Namespace]) -> bool {
    let within = |a: &[Namespace], b: &[Namespace]| a.iter().all(|api| b.contains(api));
    within(one, other) && within(other, one)
}
