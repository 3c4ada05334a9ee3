//! The HTTP client below `object_store`. Its requests go through the blocking HTTP client of this
//! crate, each on its own thread, which passes the body on in pieces.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the reading thread | drives the futures of `object_store` | | |
//! | one per request | sends it, reads the answer | [`PIECES`] pieces of [`PIECE`] bytes wait | end of the answer, reader gone, time-out |
//!
//! Neither this client nor `object_store` repeats a request: only the reader knows how far an
//! object was read.

use std::{
    fmt,
    future::Future,
    io::Read,
    net::Ipv4Addr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot},
};
use ureq::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, response::Parts};

use super::error::ObjectError;
use crate::http::{BlockingClient, HttpFault, HttpOptions, retry_after};

/// Bytes in one piece of a body.
const PIECE: usize = 64 << 10;
/// Pieces that may wait for the reader.
const PIECES: usize = 4;
/// Bytes of an error page that are read.
const ERROR_BYTES: u64 = 64 << 10;
/// Time-out for the machine's own credential service: most machines have none.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a future of `object_store` to its end on this thread.
pub(super) fn block_on<F: Future>(future: F) -> Result<F::Output, ObjectError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = match RUNTIME.get() {
        Some(runtime) => runtime,
        None => {
            let made = Builder::new_current_thread().enable_time().build();
            let made = made.map_err(ObjectError::Runtime)?;
            RUNTIME.get_or_init(|| made)
        }
    };
    Ok(runtime.block_on(future))
}

/// An answer with an error status.
#[derive(Clone, Debug)]
pub(super) struct StoreRefusal {
    pub(super) status: u16,
    /// `<Code>` of the answer, the reason in S3's and GCS's words.
    pub(super) code: Option<String>,
    pub(super) region: Option<String>,
    pub(super) retry_after: Option<Duration>,
}

impl fmt::Display for StoreRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answers {}", self.status)?;
        self.code.as_ref().map_or(Ok(()), |code| write!(f, " ({code})"))
    }
}

impl std::error::Error for StoreRefusal {}

/// Creates the clients of one store, and is one itself.
#[derive(Clone, Debug)]
pub(super) struct StoreConnector {
    http: BlockingClient,
    /// For the clouds' credential services: without a proxy, and with short time-outs.
    metadata: BlockingClient,
    /// Whether this is a plain web server: redirects are followed, and the server may not support
    /// ranges.
    plain: bool,
}

impl StoreConnector {
    pub(super) fn new(http: &BlockingClient, plain: bool) -> Self {
        let impatient = HttpOptions {
            timeout: METADATA_TIMEOUT,
            total_timeout: Some(2 * METADATA_TIMEOUT),
            retries: 0,
            ..HttpOptions::default()
        };
        Self { http: http.clone(), metadata: http.direct(impatient), plain }
    }

    /// One request and its answer. Blocks the calling thread.
    fn exchange(&self, request: Request<Vec<u8>>) -> Result<(Parts, IncomingBody), HttpError> {
        let host = request.uri().host().unwrap_or_default();
        let link_local = host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_link_local());
        let metadata = link_local || host == "metadata" || host.starts_with("metadata.google.");
        let http = if metadata { &self.metadata } else { &self.http };
        http.check_stop().map_err(failed)?;
        let from = if self.plain { range_of(request.headers()) } else { None };
        let answer = http.send(request, self.plain).map_err(failed)?;
        if !answer.status().is_success() {
            let refusal = refusal(http, answer);
            return Err(HttpError::new(HttpErrorKind::Unknown, refusal));
        }
        let (mut parts, body) = answer.into_parts();
        let mut reader: Box<dyn Read + Send> = Box::new(body.into_reader());
        if let Some((first, last)) = from
            && parts.status == StatusCode::OK
        {
            let total = content_length(&parts.headers).ok_or_else(no_length)?;
            let end = last.map_or(total, |last| total.min(last.saturating_add(1)));
            if first >= end {
                let none =
                    StoreRefusal { status: 416, code: None, region: None, retry_after: None };
                return Err(HttpError::new(HttpErrorKind::Unknown, none));
            }
            let mut before = reader.by_ref().take(first);
            let skipped = std::io::copy(&mut before, &mut std::io::sink());
            skipped.map_err(|error| failed(http.read_fault(error)))?;
            reader = Box::new(reader.take(end - first));
            as_partial(&mut parts, first, end, total);
        }
        Ok((parts, IncomingBody { http: http.clone(), reader }))
    }
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for StoreConnector {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let this = Arc::new(self.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let request = Request::from_parts(parts, body.collect().await?.to_bytes().to_vec());
            let (head, answered) = oneshot::channel();
            let (pieces, body) = mpsc::channel(PIECES);
            tokio::task::spawn_blocking(move || match this.exchange(request) {
                Ok((parts, incoming)) => {
                    if head.send(Ok(parts)).is_ok() {
                        incoming.pass_on(&pieces);
                    }
                }
                // The caller may be gone.
                Err(error) => drop(head.send(Err(error))),
            });
            let gone = |_| failed(HttpFault::Broken("its thread has ended".to_owned()));
            let parts = answered.await.map_err(gone)??;
            Ok(Response::from_parts(parts, HttpResponseBody::new(BodyPieces(body))))
        })
    }
}

/// The body of an answer.
struct IncomingBody {
    http: BlockingClient,
    reader: Box<dyn Read + Send>,
}

impl IncomingBody {
    fn pass_on(mut self, pieces: &mpsc::Sender<Result<Bytes, HttpError>>) {
        loop {
            let mut piece = vec![0; PIECE];
            let read = match self.reader.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) => {
                    // The reader may be gone.
                    let _ = pieces.blocking_send(Err(failed(self.http.read_fault(error))));
                    return;
                }
            };
            piece.truncate(read);
            if pieces.blocking_send(Ok(piece.into())).is_err() {
                return;
            }
        }
    }
}

struct BodyPieces(mpsc::Receiver<Result<Bytes, HttpError>>);

impl Body for BodyPieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// An error of a kind that `object_store` does not retry.
fn failed(fault: HttpFault) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, fault)
}

fn no_length() -> HttpError {
    failed(HttpFault::Broken("the server does not say how long the file is".to_owned()))
}

fn refusal(http: &BlockingClient, answer: Response<ureq::Body>) -> StoreRefusal {
    let text = |name| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    let (status, region) = (answer.status().as_u16(), text("x-amz-bucket-region"));
    let retry_after = retry_after(&answer);
    // The status is enough if the page cannot be read.
    let page = http.read(answer, ERROR_BYTES).unwrap_or_default();
    let page = String::from_utf8_lossy(&page);
    let code = page.split_once("<Code>").and_then(|(_, rest)| Some(rest.split_once('<')?.0));
    let code = code.filter(|code| code.len() <= 64).map(str::to_owned);
    StoreRefusal { status, code, region, retry_after }
}

/// First and last byte of a request's `Range` (RFC 9110, 14.2).
fn range_of(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
    Some((first.parse().ok()?, last))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Changes the head of the answer to what a server with range support sends.
fn as_partial(parts: &mut Parts, first: u64, end: u64, total: u64) {
    parts.status = StatusCode::PARTIAL_CONTENT;
    let range = format!("bytes {first}-{}/{total}", end - 1);
    if let Ok(range) = HeaderValue::try_from(range) {
        parts.headers.insert(header::CONTENT_RANGE, range);
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - first));
}
