//! One TCP port: accepting, serving, stopping.

use super::{
    ServerError,
    access::{Hosts, Origins},
    auth,
    config::ConnectionLimits,
    connections::{Connection, Connections},
    words::{OneAnswer, WordsLayer},
};
use crate::RpcContext;
use alloy_rpc_types_engine::JwtSecret;
use http::{Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jsonrpsee::{
    Methods,
    core::{BoxError, middleware::RpcServiceBuilder, traits::IdProvider},
    server::{
        BatchRequestConfig, HttpBody, PingConfig, ServerBuilder, ServerConfig, ServerHandle,
        StopHandle, TowerServiceBuilder, stop_channel, ws::is_upgrade_request,
    },
    types::SubscriptionId,
};
use serde_json::json;
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_io_timeout::TimeoutStream;
use tower::{Service, ServiceBuilder, layer::util::Identity, layer::util::Stack};
use tower_http::{cors::CorsLayer, timeout::TimeoutBody};

/// How often WebSocket clients are asked whether they are there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after the system could not give a connection, as when files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a connection gets that finds no place.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 22\r\n\r\ntoo many connections\r\n";

/// What a port serves.
pub(super) struct PortConfig {
    pub(super) server: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) methods: Methods,
    pub(super) is_http: bool,
    pub(super) is_ws: bool,
    pub(super) hosts: Hosts,
    pub(super) cors: Option<CorsLayer>,
    pub(super) origins: Origins,
    pub(super) secret: Option<JwtSecret>,
    pub(super) limits: ConnectionLimits,
}

/// A port that is served.
#[derive(Debug)]
pub(super) struct Port {
    addr: SocketAddr,
    handle: ServerHandle,
    accepting: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        // An error means that it has stopped already.
        let _ = self.handle.stop();
        self.accepting.abort();
    }
}

impl Port {
    pub(super) async fn start(
        config: PortConfig,
        context: &RpcContext,
    ) -> Result<Self, ServerError> {
        let PortConfig { server, addr, .. } = config;
        let bind = |source| ServerError::Bind { server, addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let (stop, handle) = stop_channel();
        let shared = Arc::new(Shared::new(config, context, stop.clone()));
        let accepting = tokio::spawn(accept(listener, shared, stop));
        tracing::info!(%addr, "{server} server started");
        Ok(Self { addr, handle, accepting })
    }

    pub(super) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) async fn stop(mut self, grace: Duration) {
        let _ = self.handle.stop();
        // What is not done by then is dropped with the task.
        let _ = tokio::time::timeout(grace, &mut self.accepting).await;
        let _ = tokio::time::timeout(grace, self.handle.clone().stopped()).await;
    }
}

type Rpc = TowerServiceBuilder<Stack<WordsLayer, Identity>, Identity>;

/// What the connections of a port share.
struct Shared {
    methods: Methods,
    is_http: bool,
    is_ws: bool,
    hosts: Hosts,
    cors: Option<CorsLayer>,
    origins: Origins,
    secret: Option<JwtSecret>,
    limits: ConnectionLimits,
    context: RpcContext,
    rpc: Rpc,
    stop: StopHandle,
}

impl Shared {
    fn new(config: PortConfig, context: &RpcContext, stop: StopHandle) -> Self {
        let PortConfig { methods, is_http, is_ws, hosts, cors, origins, secret, limits, .. } =
            config;
        let server = ServerConfig::builder()
            .max_request_body_size(limits.max_request_size)
            .max_response_body_size(limits.max_response_size)
            .max_connections(limits.max_connections)
            .max_subscriptions_per_connection(limits.max_subscriptions)
            .set_batch_request_config(BatchRequestConfig::Limit(limits.max_batch_size))
            .set_message_buffer_capacity(limits.message_buffer)
            .set_id_provider(HexIds)
            .enable_ws_ping(
                PingConfig::new().ping_interval(PING_INTERVAL).inactive_limit(2 * PING_INTERVAL),
            )
            .build();
        let words = RpcServiceBuilder::new().layer(WordsLayer(methods.clone()));
        let rpc = ServerBuilder::with_config(server).set_rpc_middleware(words).to_service_builder();
        let context = context.clone();
        Self { methods, is_http, is_ws, hosts, cors, origins, secret, limits, context, rpc, stop }
    }
}

/// Ids of subscriptions as geth has them.
#[derive(Debug)]
pub(super) struct HexIds;

impl IdProvider for HexIds {
    fn next_id(&self) -> SubscriptionId<'static> {
        format!("{:#x}", rand::random::<u128>()).into()
    }
}

/// Serves connections until the port is stopped, then until the last one is done.
async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: StopHandle) {
    let connections = Connections::new(shared.limits.max_connections as usize);
    let mut tasks = JoinSet::new();
    let stopped = stop.shutdown();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            // Takes the finished ones out.
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match connections.open() {
                    Some(connection) => {
                        tasks.spawn(serve(stream, Arc::new(connection), shared.clone()));
                    }
                    // Whether it still hears of it or not.
                    None => drop(stream.try_write(NO_PLACE)),
                },
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve(stream: TcpStream, connection: Arc<Connection>, shared: Arc<Shared>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone");
        return;
    }
    let limits = shared.limits;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.stall_timeout));
    let rpc = shared.rpc.clone().build(shared.methods.clone(), shared.stop.clone());
    let service = ServiceBuilder::new().option_layer(shared.cors.clone()).service(rpc);
    let answer = |request: Request<Incoming>| {
        let busy = connection.busy();
        let mut service = service.clone();
        let shared = shared.clone();
        async move {
            let _busy = busy;
            if let Some(answer) = before_rpc(&shared, &request) {
                return Ok::<_, Infallible>(answer);
            }
            let mut request =
                request.map(|body| TimeoutBody::new(shared.limits.stall_timeout, body));
            if !is_upgrade_request(&request) {
                request.extensions_mut().insert(OneAnswer);
            }
            let answer: Result<Response<HttpBody>, BoxError> = service.call(request).await;
            Ok(answer
                .unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
        }
    };
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .serve_connection(TokioIo::new(Box::pin(stream)), service_fn(answer))
        .with_upgrades();
    let stopped = shared.stop.clone().shutdown();
    tokio::pin!(http, stopped);
    let ended = tokio::select! {
        ended = &mut http => ended,
        () = connection.evicted() => return,
        () = &mut stopped => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection has failed");
    }
}

/// The answer to a request that does not come to JSON-RPC, if it does not.
fn before_rpc(shared: &Shared, request: &Request<Incoming>) -> Option<Response<HttpBody>> {
    let headers = request.headers();
    let refuse = |status, reason: String| Some(text(status, reason));
    if !shared.hosts.allow(headers) {
        return refuse(StatusCode::FORBIDDEN, "invalid host specified".into());
    }
    if request.method() == Method::GET && request.uri().path() == "/health" {
        return Some(health(&shared.context));
    }
    if let Some(secret) = &shared.secret
        && let Err(reason) = auth::check(secret, headers)
    {
        return refuse(StatusCode::UNAUTHORIZED, reason.to_string());
    }
    if is_upgrade_request(request) {
        if !shared.is_ws {
            return refuse(StatusCode::FORBIDDEN, "there are no WebSockets on this port".into());
        }
        if !shared.origins.allow(headers) {
            return refuse(StatusCode::FORBIDDEN, "origin not allowed".into());
        }
    } else if !shared.is_http {
        return refuse(StatusCode::FORBIDDEN, "there are only WebSockets on this port".into());
    }
    None
}

/// Whether the node is in sync: 200 if so, 503 if not.
fn health(context: &RpcContext) -> Response<HttpBody> {
    let syncing = context.node.syncing();
    let status = match syncing {
        None => StatusCode::OK,
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({ "syncing": syncing.is_some(), "head": context.live.head().number });
    let mut answer = text(status, body.to_string());
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

fn text(status: StatusCode, body: String) -> Response<HttpBody> {
    let mut answer = Response::new(HttpBody::from(body));
    *answer.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    answer
}
