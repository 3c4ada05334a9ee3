//! OTLP over gRPC: one unary call, `TraceService/Export`, over HTTP/2 without TLS.
//!
//! A message goes behind a byte (0: not compressed) and its length in four bytes. The outcome is the
//! trailer `grpc-status`, or a header if there is no message.

use super::sender::{MAX_ANSWER, SendError, SpanTransport};
use ::http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Bytes, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{fmt, io, time::Duration};
use tokio::{net::TcpStream, runtime::Runtime, time::timeout};

/// The path of the call.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Bytes before a message.
const PREFIX: usize = 5;

/// A collector that takes gRPC.
pub(super) struct GrpcTransport {
    /// Runs on the thread that sends, and only while that waits.
    runtime: Runtime,
    host: String,
    port: u16,
    timeout: Duration,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport").field("host", &self.host).finish_non_exhaustive()
    }
}

impl GrpcTransport {
    /// Calls the collector at `host`, an address or a name.
    pub(super) fn new(host: &str, port: u16, timeout: Duration) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, host: host.into(), port, timeout, connection: None })
    }
}

impl SpanTransport for GrpcTransport {
    fn send(&mut self, request: Vec<u8>) -> Result<Vec<u8>, SendError> {
        let Self { runtime, host, port, timeout: time, connection } = self;
        let (host, port, time) = (host.as_str(), *port, *time);
        let open = connection.take().filter(|open| !open.is_closed());
        let called = runtime.block_on(async {
            let exchange = async {
                let mut open = match open {
                    Some(open) => open,
                    None => connect(host, port).await?,
                };
                let answer = call(&mut open, host, port, &request).await?;
                Ok((open, answer))
            };
            timeout(time, exchange).await.unwrap_or(Err(SendError::Timeout(time)))
        });
        let (open, answer) = called?;
        *connection = Some(open);
        Ok(answer)
    }
}

fn broken(error: impl fmt::Display) -> SendError {
    SendError::Connection(error.to_string())
}

async fn connect(host: &str, port: u16) -> Result<SendRequest<Full<Bytes>>, SendError> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((name, port)).await?;
    let (calls, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(broken)?;
    // An error of the connection is also one of the call.
    tokio::spawn(async move { drop(connection.await) });
    Ok(calls)
}

async fn call(
    open: &mut SendRequest<Full<Bytes>>,
    host: &str,
    port: u16,
    message: &[u8],
) -> Result<Vec<u8>, SendError> {
    let length = u32::try_from(message.len()).map_err(broken)?;
    let mut body = Vec::with_capacity(PREFIX + message.len());
    body.push(0);
    body.extend(length.to_be_bytes());
    body.extend(message);
    let request = Request::post(format!("http://{host}:{port}{METHOD}"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(Full::new(Bytes::from(body)))
        .map_err(broken)?;
    open.ready().await.map_err(broken)?;
    let answer = open.send_request(request).await.map_err(broken)?;
    if !answer.status().is_success() {
        return Err(SendError::Refusal(answer.status().to_string()));
    }
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(broken)?;
    check_status(body.trailers().unwrap_or(&head.headers))?;
    let body = body.to_bytes();
    // Without a message, the collector has nothing to say.
    Ok(body.get(PREFIX..).unwrap_or_default().to_vec())
}

/// Fails unless the call has succeeded.
fn check_status(trailers: &HeaderMap) -> Result<(), SendError> {
    let text = |name| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        "0" => Ok(()),
        "" => Err(SendError::Refusal("without a gRPC status: this is no gRPC server".into())),
        code => {
            let message = text("grpc-message");
            Err(SendError::Refusal(format!("gRPC status {code} {message}")))
        }
    }
}
