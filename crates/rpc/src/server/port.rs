//! A TCP port: its connections, what is refused on them, and JSON-RPC over HTTP.

use super::{
    ServerError,
    access::{Hosts, Origins},
    answers::{Answer, Answers, Client},
    auth,
    config::ConnectionLimits,
    connections::{Connection, Connections},
    ws,
};
use crate::RpcContext;
use alloy_rpc_types_engine::JwtSecret;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use jsonrpsee::{
    Methods,
    server::{
        HttpBody, ServerHandle, StopHandle, http::is_json, stop_channel, ws::is_upgrade_request,
    },
    types::error::reject_too_big_request,
};
use serde_json::json;
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tower::{Service, ServiceBuilder};
use tower_http::cors::CorsLayer;

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
    /// Name of HTTP in metrics, if it is served.
    pub(super) http: Option<&'static str>,
    /// Name of WebSockets in metrics, if they are served.
    pub(super) ws: Option<&'static str>,
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
        let handle = self.handle.clone();
        let ended = async {
            let _ = (&mut self.accepting).await;
            // WebSockets have tasks of their own.
            handle.stopped().await;
        };
        if timeout(grace, ended).await.is_err() {
            tracing::debug!(addr = %self.addr, "connections that did not end in time are dropped");
        }
    }
}

/// What the connections of a port share.
struct Shared {
    http: Option<Answers>,
    ws: Option<Answers>,
    /// Places for WebSockets.
    ws_places: Arc<Semaphore>,
    hosts: Hosts,
    cors: Option<CorsLayer>,
    origins: Origins,
    secret: Option<JwtSecret>,
    limits: ConnectionLimits,
    context: RpcContext,
    stop: StopHandle,
}

impl Shared {
    fn new(config: PortConfig, context: &RpcContext, stop: StopHandle) -> Self {
        let PortConfig { methods, http, ws, hosts, cors, origins, secret, limits, .. } = config;
        let answers = |name: &'static str| Answers {
            methods: methods.clone(),
            limits,
            metrics: context.metrics.server(name, methods.method_names()),
        };
        Self {
            http: http.map(answers),
            ws: ws.map(answers),
            ws_places: Arc::new(Semaphore::new(limits.max_connections.max(1) as usize)),
            hosts,
            cors,
            origins,
            secret,
            limits,
            context: context.clone(),
            stop,
        }
    }

    /// Those that count the port's connections.
    fn answers(&self) -> Option<&Answers> {
        self.http.as_ref().or(self.ws.as_ref())
    }
}

/// Serves connections until the port is stopped, then until the last one is done.
async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: StopHandle) {
    let refused = shared.answers().map(|answers| answers.metrics.refused.clone());
    let connections = Connections::new(shared.limits.max_connections as usize, refused);
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
    let _connected = shared.http.as_ref().map(|http| http.metrics.connected());
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone");
        return;
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(shared.limits.stall_timeout));
    let calls = |shared: Arc<Shared>| {
        tower::service_fn(move |request| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(dispatch(&shared, request).await) }
        })
    };
    let service =
        ServiceBuilder::new().option_layer(shared.cors.clone()).service(calls(shared.clone()));
    let answer = |request: Request<Incoming>| {
        let busy = connection.busy();
        let mut service = service.clone();
        let shared = shared.clone();
        async move {
            let _busy = busy;
            match before_rpc(&shared, &request) {
                Some(answer) => Ok(answer),
                None => service.call(request).await,
            }
        }
    };
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.idle_timeout)
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
    if is_upgrade_request(request) && !shared.origins.allow(headers) {
        return refuse(StatusCode::FORBIDDEN, "origin not allowed".into());
    }
    None
}

async fn dispatch(shared: &Shared, request: Request<Incoming>) -> Response<HttpBody> {
    if !is_upgrade_request(&request) {
        return match &shared.http {
            Some(answers) => post(answers, request).await,
            None => text(StatusCode::FORBIDDEN, "there are only WebSockets on this port".into()),
        };
    }
    let Some(answers) = &shared.ws else {
        return text(StatusCode::FORBIDDEN, "there are no WebSockets on this port".into());
    };
    match shared.ws_places.clone().try_acquire_owned() {
        Ok(place) => ws::upgrade(request, answers.clone(), place, shared.stop.clone()),
        Err(_) => {
            answers.metrics.refused.inc();
            text(StatusCode::TOO_MANY_REQUESTS, "too many connections".into())
        }
    }
}

/// A request over HTTP. Its body has to come as a whole within the time that a client may stall.
async fn post(answers: &Answers, request: Request<Incoming>) -> Response<HttpBody> {
    if request.method() != Method::POST {
        let reason = "JSON-RPC is spoken by POST".into();
        return text(StatusCode::METHOD_NOT_ALLOWED, reason);
    }
    if !is_json(request.headers().get(header::CONTENT_TYPE)) {
        let reason = "the content type must be application/json".into();
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason);
    }
    let limits = &answers.limits;
    let too_large = || {
        let error = reject_too_big_request(limits.max_request_size);
        json_body(StatusCode::PAYLOAD_TOO_LARGE, Answer::error(error))
    };
    // Without reading what it announces to be too long.
    if request.body().size_hint().lower() > u64::from(limits.max_request_size) {
        return too_large();
    }
    let body = Limited::new(request.into_body(), limits.max_request_size as usize);
    let body = match timeout(limits.stall_timeout, body.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return too_large(),
        Ok(Err(error)) => return text(StatusCode::BAD_REQUEST, error.to_string()),
        Err(_) => {
            let reason = "the request did not come in time".into();
            return text(StatusCode::REQUEST_TIMEOUT, reason);
        }
    };
    match Client::new(answers.clone()).answer(&body).await {
        Some(answer) => {
            answers.metrics.sent.inc_by(answer.json.get().len() as u64);
            json_body(StatusCode::OK, answer)
        }
        None => Response::new(HttpBody::empty()),
    }
}

/// Whether the node is in sync: 200 if so, 503 if not.
fn health(context: &RpcContext) -> Response<HttpBody> {
    let syncing = context.node.syncing();
    let status = match syncing {
        None => StatusCode::OK,
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({ "syncing": syncing.is_some(), "head": context.live.head().number });
    response(status, "application/json", body.to_string())
}

fn json_body(status: StatusCode, answer: Answer) -> Response<HttpBody> {
    let json = Box::<str>::from(answer.json).into_string();
    response(status, "application/json; charset=utf-8", json)
}

pub(super) fn text(status: StatusCode, body: String) -> Response<HttpBody> {
    response(status, "text/plain; charset=utf-8", body)
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<HttpBody> {
    let mut answer = Response::new(HttpBody::from(body));
    *answer.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
