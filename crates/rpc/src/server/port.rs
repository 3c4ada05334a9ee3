//! A TCP port: its connections, access checks, and JSON-RPC over HTTP.

use super::{
    GraphqlEndpoint, ServerError,
    access::{AllowedHosts, AllowedOrigins},
    auth,
    budget::{BufferBudget, ConnectionBudget, HeldBytes, writing_time},
    config::ConnectionLimits,
    connections::{OpenConnection, PortConnections, WriteGuard},
    content_type::is_json,
    preface::begins_with_http2,
    rest,
    service::{ClientHandler, MethodService, RpcResponse, busy_error},
    span::caller_of,
    ws,
};
use crate::{
    RpcContext, client_version,
    engine_rest::{EngineRest, RestCall},
};
use alloy_rpc_types_engine::JwtSecret;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jsonrpsee::{
    Methods,
    server::{HttpBody, ServerHandle, StopHandle, stop_channel, ws::is_upgrade_request},
    types::error::reject_too_big_request,
};
use serde_json::json;
use std::{convert::Infallible, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tower::{Service as _, ServiceBuilder};
use tower_http::cors::CorsLayer;

/// Size of hyper's read and write buffers of a connection, and the longest header of a request.
const MAX_BUFFER: usize = 64 << 10;
/// Pause after a failed accept, e.g. when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The response to a connection beyond the limit.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 22\r\n\r\ntoo many connections\r\n";
/// Bytes of one request, and of one connection, that a client of HTTP/2 may send ahead of reading.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Requests that one connection of HTTP/2 may have open.
const MAX_STREAMS: u32 = 32;
/// How often a silent connection of HTTP/2 is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Configuration of a port.
pub(super) struct PortConfig {
    pub(super) server: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) methods: Methods,
    /// Name of HTTP in metrics, if it is served.
    pub(super) http: Option<&'static str>,
    /// Name of WebSockets in metrics, if they are served.
    pub(super) ws: Option<&'static str>,
    pub(super) hosts: AllowedHosts,
    pub(super) cors: Option<CorsLayer>,
    pub(super) origins: AllowedOrigins,
    pub(super) secret: Option<JwtSecret>,
    /// The Engine API by REST, if it is served; then HTTP/2 is too.
    pub(super) rest: Option<EngineRest>,
    /// GraphQL, if it is served.
    pub(super) graphql: Option<GraphqlEndpoint>,
    pub(super) limits: ConnectionLimits,
    /// Bytes that the connections of this and other ports hold.
    pub(super) buffered: BufferBudget,
}

/// A running server on a TCP port.
#[derive(Debug)]
pub(super) struct PortServer {
    addr: SocketAddr,
    handle: ServerHandle,
    accepting: JoinHandle<()>,
}

impl Drop for PortServer {
    fn drop(&mut self) {
        // An error means that the server has already stopped.
        let _ = self.handle.stop();
        self.accepting.abort();
    }
}

impl PortServer {
    pub(super) async fn start(
        config: PortConfig,
        context: &RpcContext,
    ) -> Result<Self, ServerError> {
        let PortConfig { server, addr, .. } = config;
        let bind = |source| ServerError::Bind { server, addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let (stop, handle) = stop_channel();
        let port = Arc::new(PortState::new(config, context, stop.clone()));
        let accepting = tokio::spawn(accept(listener, port, stop));
        tracing::info!(%addr, "{server} server started");
        Ok(Self { addr, handle, accepting })
    }

    pub(super) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) async fn stop(mut self, grace: Duration) {
        let _ = self.handle.stop();
        let handle = self.handle.clone();
        let ended = async {
            let _ = (&mut self.accepting).await;
            // WebSockets have their own tasks.
            handle.stopped().await;
        };
        if timeout(grace, ended).await.is_err() {
            tracing::debug!(addr = %self.addr, "connections that did not end in time are dropped");
        }
    }
}

/// State that the connections of a port share.
struct PortState {
    http: Option<MethodService>,
    ws: Option<MethodService>,
    /// Permits for WebSockets.
    ws_places: Arc<Semaphore>,
    hosts: AllowedHosts,
    cors: Option<CorsLayer>,
    origins: AllowedOrigins,
    secret: Option<JwtSecret>,
    rest: Option<EngineRest>,
    graphql: Option<GraphqlEndpoint>,
    limits: ConnectionLimits,
    buffered: BufferBudget,
    context: RpcContext,
    stop: StopHandle,
}

impl PortState {
    fn new(config: PortConfig, context: &RpcContext, stop: StopHandle) -> Self {
        let PortConfig {
            methods,
            http,
            ws,
            hosts,
            cors,
            origins,
            secret,
            rest,
            graphql,
            limits,
            buffered,
            ..
        } = config;
        let mut names: Vec<_> = match rest {
            Some(_) => methods.method_names().chain(RestCall::NAMES).collect(),
            None => methods.method_names().collect(),
        };
        names.extend(graphql.as_ref().map(|_| GraphqlEndpoint::NAME));
        let answers = |name: &'static str| MethodService {
            methods: methods.clone(),
            limits,
            metrics: context.metrics.server(name, names.iter().copied()),
            buffered: buffered.clone(),
        };
        Self {
            http: http.map(answers),
            ws: ws.map(answers),
            ws_places: Arc::new(Semaphore::new(limits.max_connections.max(1) as usize)),
            hosts,
            cors,
            origins,
            secret,
            rest,
            graphql,
            limits,
            buffered: buffered.clone(),
            context: context.clone(),
            stop,
        }
    }

    /// GraphQL, if the request is for it; WebSockets have JSON-RPC on each path.
    fn graphql_for<B>(&self, request: &Request<B>) -> Option<&GraphqlEndpoint> {
        let is_for_it = matches!(request.uri().path(), "/graphql" | "/graphql/")
            && !is_upgrade_request(request);
        self.graphql.as_ref().filter(|_| is_for_it)
    }

    /// The service whose metrics count the port's connections.
    fn answers(&self) -> Option<&MethodService> {
        self.http.as_ref().or(self.ws.as_ref())
    }
}

/// Accepts connections until the port is stopped, then waits for the last one.
async fn accept(listener: TcpListener, port: Arc<PortState>, stop: StopHandle) {
    let refused = port.answers().map(|answers| answers.metrics.refused.clone());
    let connections = PortConnections::new(port.limits.max_connections as usize, refused);
    let mut tasks = JoinSet::new();
    let stopped = stop.shutdown();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            // Removes finished tasks.
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match connections.open() {
                    Some(connection) => {
                        tasks.spawn(serve(stream, Arc::new(connection), port.clone()));
                    }
                    // The client may already be gone.
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

async fn serve(stream: TcpStream, connection: Arc<OpenConnection>, port: Arc<PortState>) {
    let _connected = port.http.as_ref().map(|http| http.metrics.connected());
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone");
        return;
    }
    let is_http2 = match &port.rest {
        None => Ok(false),
        Some(_) => tokio::select! {
            begun = begins_with_http2(&stream, port.limits.idle_timeout) => begun,
            () = connection.evicted() => return,
            () = port.stop.clone().shutdown() => return,
        },
    };
    let is_http2 = match is_http2 {
        Ok(is_http2) => is_http2,
        Err(error) => return tracing::debug!(%error, "a connection has sent no request"),
    };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(port.limits.stall_timeout));
    if is_http2 {
        // A client that is there answers pings. Before the handshake ends hyper sends none.
        stream.set_read_timeout(Some(2 * PING_INTERVAL));
    }
    let tab = port.buffered.open();
    let calls = |port: Arc<PortState>, connection: Arc<OpenConnection>| {
        tower::service_fn(move |request| {
            let (port, connection, tab) = (port.clone(), connection.clone(), tab.clone());
            async move { Ok::<_, Infallible>(dispatch(&port, &connection, tab, request).await) }
        })
    };
    let calls = calls(port.clone(), connection.clone());
    let for_origins =
        |cors: Option<CorsLayer>| ServiceBuilder::new().option_layer(cors).service(calls.clone());
    let service = for_origins(port.cors.clone());
    let graphql = for_origins(port.graphql.as_ref().and_then(GraphqlEndpoint::cors));
    let answer = |request: Request<Incoming>| {
        let busy = connection.mark_busy();
        let mut service = match port.graphql_for(&request) {
            Some(_) => graphql.clone(),
            None => service.clone(),
        };
        let port = port.clone();
        async move {
            let _busy = busy;
            match before_rpc(&port, &request) {
                Some(answer) => Ok(answer),
                None => service.call(request).await,
            }
        }
    };
    let io = TokioIo::new(Box::pin(stream));
    if is_http2 {
        let http = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(PING_INTERVAL)
            .serve_connection(io, service_fn(answer));
        drive(http, |http| http.graceful_shutdown(), &connection, &port.stop).await;
    } else {
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(port.limits.idle_timeout)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(io, service_fn(answer))
            .with_upgrades();
        drive(http, |http| http.graceful_shutdown(), &connection, &port.stop).await;
    }
}

/// Serves a connection until either side ends it; `shut_down` lets it end its requests first.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    http: C,
    shut_down: impl FnOnce(Pin<&mut C>),
    connection: &OpenConnection,
    stop: &StopHandle,
) {
    let stopped = stop.clone().shutdown();
    tokio::pin!(http, stopped);
    let ended = tokio::select! {
        ended = &mut http => ended,
        () = connection.evicted() => return,
        () = connection.overdue() => {
            tracing::debug!("a client reads its response too slowly");
            return;
        }
        () = &mut stopped => {
            shut_down(http.as_mut());
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection has failed");
    }
}

/// The response to a request that JSON-RPC does not handle; `None` for JSON-RPC requests.
fn before_rpc(port: &PortState, request: &Request<Incoming>) -> Option<Response<HttpBody>> {
    let headers = request.headers();
    let refuse = |status, reason: String| Some(text(status, reason));
    let hosts = port.graphql_for(request).map_or(&port.hosts, GraphqlEndpoint::hosts);
    if !hosts.allow(request.uri(), headers) {
        return refuse(StatusCode::FORBIDDEN, "invalid host specified".into());
    }
    if request.method() == Method::GET && request.uri().path() == "/health" {
        return Some(health(&port.context));
    }
    if let Some(secret) = &port.secret
        && let Err(reason) = auth::check(secret, headers)
    {
        return refuse(StatusCode::UNAUTHORIZED, reason.to_string());
    }
    if is_upgrade_request(request) && !port.origins.allow(headers) {
        return refuse(StatusCode::FORBIDDEN, "origin not allowed".into());
    }
    None
}

async fn dispatch(
    port: &PortState,
    connection: &Arc<OpenConnection>,
    tab: Arc<ConnectionBudget>,
    request: Request<Incoming>,
) -> Response<HttpBody> {
    if !is_upgrade_request(&request) {
        if let (Some(api), Some(answers)) = (&port.rest, &port.http)
            && RestCall::is_path(request.uri().path())
        {
            return rest::answer(api, answers, connection, tab, request).await;
        }
        if let (Some(endpoint), Some(answers)) = (port.graphql_for(&request), &port.http) {
            return endpoint.answer(answers, connection, tab, request).await;
        }
        return match &port.http {
            Some(answers) => post(answers, connection, tab, request).await,
            None => text(StatusCode::FORBIDDEN, "there are only WebSockets on this port".into()),
        };
    }
    let Some(answers) = &port.ws else {
        return text(StatusCode::FORBIDDEN, "there are no WebSockets on this port".into());
    };
    match port.ws_places.clone().try_acquire_owned() {
        Ok(place) => ws::upgrade(request, answers.clone(), place, tab, port.stop.clone()),
        Err(_) => {
            answers.metrics.refused.inc();
            text(StatusCode::TOO_MANY_REQUESTS, "too many connections".into())
        }
    }
}

/// Handles a JSON-RPC request over HTTP. Its whole body must arrive within the stall timeout.
async fn post(
    answers: &MethodService,
    connection: &Arc<OpenConnection>,
    tab: Arc<ConnectionBudget>,
    request: Request<Incoming>,
) -> Response<HttpBody> {
    if request.method() != Method::POST {
        let reason = "JSON-RPC requests must use POST".into();
        return text(StatusCode::METHOD_NOT_ALLOWED, reason);
    }
    if !is_json(request.headers().get(header::CONTENT_TYPE)) {
        let reason = "the content type must be application/json".into();
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason);
    }
    let caller = caller_of(request.headers());
    let limits = &answers.limits;
    let mut held = tab.clone().hold();
    let read = read_body(request.into_body(), limits.max_request_size, &mut held);
    let body = match timeout(limits.stall_timeout, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::TooLarge)) => {
            let error = reject_too_big_request(limits.max_request_size);
            return json_body(StatusCode::PAYLOAD_TOO_LARGE, RpcResponse::error(error), None);
        }
        Ok(Err(BodyError::Busy)) => return busy_body(RpcResponse::error(busy_error())),
        Ok(Err(BodyError::Broken(reason))) => return text(StatusCode::BAD_REQUEST, reason),
        Err(_) => {
            let reason = "the request was not received in time".into();
            return text(StatusCode::REQUEST_TIMEOUT, reason);
        }
    };
    let client = ClientHandler::new(answers.clone()).with_caller(caller);
    let answer = client.answer(&body).await;
    drop((body, held));
    let Some(answer) = answer else { return Response::new(HttpBody::empty()) };
    let bytes = answer.json.get().len();
    answers.metrics.sent.inc_by(bytes as u64);
    match tab.take(bytes).await {
        Some(held) => {
            let answering = connection.mark_writing(writing_time(limits.stall_timeout, bytes));
            json_body(StatusCode::OK, answer, Some((held, answering)))
        }
        None => busy_body(answer.into_busy_error()),
    }
}

/// Why a body was not read.
pub(super) enum BodyError {
    TooLarge,
    /// Other clients hold all the bytes that the server has.
    Busy,
    Broken(String),
}

/// Reads a body of at most `most` bytes, which `held` counts as they arrive.
pub(super) async fn read_body(
    body: Incoming,
    most: u32,
    held: &mut HeldBytes,
) -> Result<Vec<u8>, BodyError> {
    let announced = body.size_hint().lower();
    // Does not read a body that is announced as too long.
    if announced > u64::from(most) {
        return Err(BodyError::TooLarge);
    }
    // Allocated memory costs nothing until it is written.
    let mut read = Vec::with_capacity(announced as usize);
    let mut body = Limited::new(body, most as usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => BodyError::TooLarge,
            false => BodyError::Broken(error.to_string()),
        })?;
        let Some(data) = frame.data_ref() else { continue };
        if !held.grow(data.len()).await {
            return Err(BodyError::Busy);
        }
        read.extend_from_slice(data);
    }
    Ok(read)
}

/// `/health`: 200 if the node works and is in sync, 503 if not.
fn health(context: &RpcContext) -> Response<HttpBody> {
    let (syncing, failing) = (context.node.syncing(), context.node.failing());
    let status = match syncing.is_none() && failing.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let head = context.live.head();
    let mut body = json!({
        "syncing": syncing.is_some(),
        "head": head.number,
        "hash": head.hash(),
        // The shard of this node's proofs; null if the backend's proofs have no shards.
        "shard": context.live.backend().extensions().proof_shards.map(|shards| shards.shard()),
        "node": client_version(),
    });
    if !failing.is_empty() {
        body["failing"] = json!(failing);
    }
    if let Some(wait) = context.node.waiting() {
        body["waitingFor"] = json!(wait.reason);
    }
    response(status, "application/json", body.to_string().into())
}

/// A response; its bytes and its write guard are held until the last byte is written.
pub(super) fn json_body(
    status: StatusCode,
    answer: RpcResponse,
    held: Option<(HeldBytes, WriteGuard)>,
) -> Response<HttpBody> {
    struct HeldBody {
        json: Box<str>,
        _held: Option<(HeldBytes, WriteGuard)>,
    }
    impl AsRef<[u8]> for HeldBody {
        fn as_ref(&self) -> &[u8] {
            self.json.as_bytes()
        }
    }
    let text = HeldBody { json: Box::<str>::from(answer.json), _held: held };
    response(status, "application/json; charset=utf-8", Bytes::from_owner(text))
}

/// The response if there was no room for a request or its response.
fn busy_body(answer: RpcResponse) -> Response<HttpBody> {
    let mut answer = json_body(StatusCode::SERVICE_UNAVAILABLE, answer, None);
    answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    answer
}

pub(super) fn text(status: StatusCode, body: String) -> Response<HttpBody> {
    response(status, "text/plain; charset=utf-8", body.into())
}

pub(super) fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<HttpBody> {
    let mut answer = Response::new(HttpBody::new(Full::new(body)));
    *answer.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
