//! The Engine API by REST over HTTP: reads bodies, and writes answers in pieces.

use super::{
    budget::{ConnectionBudget, HeldBytes, writing_time},
    connections::{OpenConnection, WriteGuard},
    content_type::is_bytes,
    port::{BodyError, read_body, response},
    service::MethodService,
    span::{caller_of, mark_failed},
};
use crate::engine_rest::{EngineRest, PROBLEM_JSON, RestAnswer, RestCall, RestProblem, SszBuffer};
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{self, CONTENT_TYPE},
};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use jsonrpsee::server::HttpBody;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::time::timeout;
use tracing::{Instrument, debug_span, field};

/// Answers a request whose path is one of the API.
pub(super) async fn answer(
    api: &EngineRest,
    answers: &MethodService,
    connection: &Arc<OpenConnection>,
    tab: Arc<ConnectionBudget>,
    request: Request<Incoming>,
) -> Response<HttpBody> {
    let (parts, body) = request.into_parts();
    let call = match RestCall::new(&parts.method, &parts.uri, &parts.headers) {
        Ok(call) => call,
        Err(problem) => return problem_response(&problem),
    };
    let start = Instant::now();
    let span = debug_span!(
        "request",
        otel.name = call.name(),
        otel.kind = "server",
        otel.status_code = field::Empty,
    );
    caller_of(&parts.headers).set_parent_of(&span);
    let outcome = run(api, answers, &tab, call, &parts.headers, body).instrument(span.clone());
    let outcome = outcome.await;
    answers.metrics.answered(call.name(), start.elapsed(), outcome.is_ok());
    let mut answer = match outcome {
        Ok(RestAnswer::Ssz(buffer)) => ssz_response(answers, connection, tab, buffer).await,
        Ok(RestAnswer::Json(json)) => response(StatusCode::OK, "application/json", json.into()),
        Ok(RestAnswer::NoContent) => {
            let mut empty = Response::new(HttpBody::empty());
            *empty.status_mut() = StatusCode::NO_CONTENT;
            empty
        }
        Err(problem) => {
            mark_failed(&span);
            problem_response(&problem)
        }
    };
    if call.is_never_stored() {
        let value = HeaderValue::from_static("no-store");
        answer.headers_mut().insert(header::CACHE_CONTROL, value);
    }
    answer
}

/// Reads the body that the call has, and makes the call.
async fn run(
    api: &EngineRest,
    answers: &MethodService,
    tab: &Arc<ConnectionBudget>,
    call: RestCall,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<RestAnswer, RestProblem> {
    let Some(most) = call.max_body() else { return api.answer(call, Default::default()).await };
    if !is_bytes(headers.get(CONTENT_TYPE)) {
        return Err(RestProblem::media_type());
    }
    let limits = &answers.limits;
    let most = u32::try_from(most).unwrap_or(u32::MAX).min(limits.max_request_size);
    let mut held = tab.clone().hold();
    let read = timeout(limits.stall_timeout, read_body(body, most, &mut held)).await;
    let body = match read {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::TooLarge)) => return Err(RestProblem::too_large(most)),
        Ok(Err(BodyError::Busy)) => return Err(RestProblem::busy()),
        Ok(Err(BodyError::Broken(reason))) => return Err(RestProblem::invalid_request(reason)),
        Err(_) => return Err(RestProblem::timeout()),
    };
    answers.metrics.received.inc_by(body.len() as u64);
    api.answer(call, body.into()).await
}

async fn ssz_response(
    answers: &MethodService,
    connection: &Arc<OpenConnection>,
    tab: Arc<ConnectionBudget>,
    buffer: SszBuffer,
) -> Response<HttpBody> {
    let (bytes, most) = (buffer.size(), answers.limits.max_response_size);
    if bytes > most as usize {
        return problem_response(&RestProblem::long_answer(bytes, most));
    }
    answers.metrics.sent.inc_by(bytes as u64);
    let Some(held) = tab.take(bytes).await else { return problem_response(&RestProblem::busy()) };
    let writing = connection.mark_writing(writing_time(answers.limits.stall_timeout, bytes));
    let body = PieceBody {
        pieces: buffer.into_pieces().into_iter(),
        left: bytes as u64,
        _held: (held, writing),
    };
    let mut answer = Response::new(HttpBody::new(body));
    let kind = HeaderValue::from_static("application/octet-stream");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn problem_response(problem: &RestProblem) -> Response<HttpBody> {
    let mut answer = response(problem.status, PROBLEM_JSON, problem.to_json().into());
    if problem.status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if let Some(allowed) = problem.allowed {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    }
    answer
}

/// An answer in pieces. Its counted bytes and its write guard are held until the last one is written.
struct PieceBody {
    pieces: std::vec::IntoIter<alloy_primitives::Bytes>,
    left: u64,
    _held: (HeldBytes, WriteGuard),
}

impl Body for PieceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.0))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
