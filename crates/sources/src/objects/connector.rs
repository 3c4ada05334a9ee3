//! The client below `object_store`: its requests go through the blocking HTTP client that everything
//! else uses, each on a thread of its own, which hands the answer's body on piece by piece.
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | whoever reads | drives the futures of `object_store` | | |
//! | one a request | sends it, reads the answer | [`PIECES`] pieces of [`PIECE`] bytes wait | end of the answer, reader gone, time-out |
//!
//! Nothing is tried again here, nor by `object_store`: that is decided where it is known how far an
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
use crate::http::{Http, HttpFault, HttpOptions, retry_after};

/// Bytes of a piece of an answer.
const PIECE: usize = 64 << 10;
/// Pieces that wait for the reader.
const PIECES: usize = 4;
/// Bytes of an error page that are looked at.
const ERROR_BYTES: u64 = 64 << 10;
/// How long a machine's own credential service may take: on other machines there is none.
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

/// An answer that is not success.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// `<Code>` of the answer, as S3 and GCS name the reason.
    pub(super) code: Option<String>,
    pub(super) region: Option<String>,
    pub(super) retry_after: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answers {}", self.status)?;
        self.code.as_ref().map_or(Ok(()), |code| write!(f, " ({code})"))
    }
}

impl std::error::Error for Refusal {}

/// Makes the clients of one store, and is one.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    http: Http,
    /// For the credential services of clouds: no proxy leads there, and nobody waits for them.
    metadata: Http,
    /// Whether this is a plain web server: redirects are followed, and ranges may be unknown to it.
    plain: bool,
}

impl Connector {
    pub(super) fn new(http: &Http, plain: bool) -> Self {
        let impatient = HttpOptions {
            timeout: METADATA_TIMEOUT,
            whole: Some(2 * METADATA_TIMEOUT),
            retries: 0,
            ..HttpOptions::default()
        };
        Self { http: http.clone(), metadata: http.direct(impatient), plain }
    }

    /// One exchange, from a thread that may wait.
    fn exchange(&self, request: Request<Vec<u8>>) -> Result<(Parts, Incoming), HttpError> {
        let host = request.uri().host().unwrap_or_default();
        let link_local = host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_link_local());
        let metadata = link_local || host == "metadata" || host.starts_with("metadata.google.");
        let http = if metadata { &self.metadata } else { &self.http };
        http.go_on().map_err(failed)?;
        let from = if self.plain { range_of(request.headers()) } else { None };
        let answer = http.run(request, self.plain).map_err(failed)?;
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
                let none = Refusal { status: 416, code: None, region: None, retry_after: None };
                return Err(HttpError::new(HttpErrorKind::Unknown, none));
            }
            let mut before = reader.by_ref().take(first);
            let skipped = std::io::copy(&mut before, &mut std::io::sink());
            skipped.map_err(|error| failed(http.read_fault(error)))?;
            reader = Box::new(reader.take(end - first));
            as_partial(&mut parts, first, end, total);
        }
        Ok((parts, Incoming { http: http.clone(), reader }))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Connector {
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
                // Whoever asked may have gone.
                Err(error) => drop(head.send(Err(error))),
            });
            let gone = |_| failed(HttpFault::Broken("its thread has ended".to_owned()));
            let parts = answered.await.map_err(gone)??;
            Ok(Response::from_parts(parts, HttpResponseBody::new(Pieces(body))))
        })
    }
}

/// A body on its way in.
struct Incoming {
    http: Http,
    reader: Box<dyn Read + Send>,
}

impl Incoming {
    fn pass_on(mut self, pieces: &mpsc::Sender<Result<Bytes, HttpError>>) {
        loop {
            let mut piece = vec![0; PIECE];
            let read = match self.reader.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) => {
                    // Nobody to tell if the reader has gone.
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

struct Pieces(mpsc::Receiver<Result<Bytes, HttpError>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// With a kind of which `object_store` tries nothing again.
fn failed(fault: HttpFault) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, fault)
}

fn no_length() -> HttpError {
    failed(HttpFault::Broken("the server does not say how long the file is".to_owned()))
}

fn refusal(http: &Http, answer: Response<ureq::Body>) -> Refusal {
    let text = |name| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    let (status, region) = (answer.status().as_u16(), text("x-amz-bucket-region"));
    let retry_after = retry_after(&answer);
    // The status says enough if the page does not come.
    let page = http.read(answer, ERROR_BYTES).unwrap_or_default();
    let page = String::from_utf8_lossy(&page);
    let code = page.split_once("<Code>").and_then(|(_, rest)| Some(rest.split_once('<')?.0));
    let code = code.filter(|code| code.len() <= 64).map(str::to_owned);
    Refusal { status, code, region, retry_after }
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

/// The head of the answer that a server which knows ranges had given.
fn as_partial(parts: &mut Parts, first: u64, end: u64, total: u64) {
    parts.status = StatusCode::PARTIAL_CONTENT;
    let range = format!("bytes {first}-{}/{total}", end - 1);
    if let Ok(range) = HeaderValue::try_from(range) {
        parts.headers.insert(header::CONTENT_RANGE, range);
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - first));
}
