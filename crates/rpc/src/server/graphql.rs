//! GraphQL over HTTP (EIP-1767): `POST /graphql` with a query in JSON, `GET /graphql?query=..`.
//!
//! Names and origins are those of `--graphql.vhosts` and `--graphql.corsdomain`. A POST must have
//! the content type of JSON: a page of another origin cannot send that unasked.

use super::{
    ServerError,
    access::{AllowedHosts, cors},
    budget::{ConnectionBudget, HeldBytes, writing_time},
    config::GraphqlConfig,
    connections::OpenConnection,
    content_type::is_json,
    port::{BodyError, json_body, read_body, text},
    service::{MethodService, RpcResponse},
    span::{caller_of, mark_failed},
};
use crate::{
    RpcContext,
    graphql::{GraphqlCall, GraphqlService},
};
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use jsonrpsee::server::HttpBody;
use std::{sync::Arc, time::Instant};
use tokio::time::timeout;
use tower_http::cors::CorsLayer;
use tracing::{Instrument, debug_span, field};

/// GraphQL on a port.
#[derive(Clone, Debug)]
pub(super) struct GraphqlEndpoint {
    service: GraphqlService,
    hosts: AllowedHosts,
    cors: Option<CorsLayer>,
}

impl GraphqlEndpoint {
    /// The name of queries in metrics and spans.
    pub(super) const NAME: &'static str = "graphql";

    /// GraphQL of a node, for these names and origins.
    ///
    /// # Errors
    /// [`ServerError::Origin`].
    pub(super) fn new(config: &GraphqlConfig, rpc: &RpcContext) -> Result<Self, ServerError> {
        Ok(Self {
            service: GraphqlService::new(rpc),
            hosts: AllowedHosts::new(&config.vhosts),
            cors: cors(&config.cors_origins)?,
        })
    }

    pub(super) const fn hosts(&self) -> &AllowedHosts {
        &self.hosts
    }

    pub(super) fn cors(&self) -> Option<CorsLayer> {
        self.cors.clone()
    }

    /// Answers a request for this endpoint.
    pub(super) async fn answer(
        &self,
        answers: &MethodService,
        connection: &Arc<OpenConnection>,
        tab: Arc<ConnectionBudget>,
        request: Request<Incoming>,
    ) -> Response<HttpBody> {
        let span = debug_span!(
            "request",
            otel.name = Self::NAME,
            otel.kind = "server",
            otel.status_code = field::Empty,
        );
        caller_of(request.headers()).set_parent_of(&span);
        let (call, request_bytes) = match receive(answers, &tab, request).await {
            Ok(received) => received,
            Err(refusal) => return *refusal,
        };
        let start = Instant::now();
        let answer = self.service.answer(call).instrument(span.clone()).await;
        drop(request_bytes);
        let is_success = answer.status == StatusCode::OK;
        if !is_success {
            mark_failed(&span);
        }
        answers.metrics.answered(Self::NAME, start.elapsed(), is_success);
        let bytes = answer.json.get().len();
        answers.metrics.sent.inc_by(bytes as u64);
        let Some(held) = tab.take(bytes).await else { return busy() };
        let time = writing_time(answers.limits.stall_timeout, bytes);
        let held = Some((held, connection.mark_writing(time)));
        let json = RpcResponse { json: answer.json, on_close: None, subscriptions: Vec::new() };
        json_body(answer.status, json, held)
    }
}

/// Reads a query, and the bytes that it holds; the response if it cannot be read, boxed because it
/// is large.
async fn receive(
    answers: &MethodService,
    tab: &Arc<ConnectionBudget>,
    request: Request<Incoming>,
) -> Result<(GraphqlCall, HeldBytes), Box<Response<HttpBody>>> {
    let refuse = |status, reason: &str| Box::new(text(status, reason.into()));
    let wrong = |reason: String| Box::new(text(StatusCode::BAD_REQUEST, reason));
    let mut held = tab.clone().hold();
    if request.method() == Method::GET {
        let query = request.uri().query().unwrap_or_default();
        answers.metrics.received.inc_by(query.len() as u64);
        return Ok((GraphqlCall::of_query_string(query).map_err(wrong)?, held));
    }
    if request.method() != Method::POST {
        let reason = "GraphQL requests must use POST or GET";
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    if !is_json(request.headers().get(header::CONTENT_TYPE)) {
        let reason = "the content type must be application/json";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason));
    }
    let limits = &answers.limits;
    let read = read_body(request.into_body(), limits.max_request_size, &mut held);
    let body = match timeout(limits.stall_timeout, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::TooLarge)) => {
            return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"));
        }
        Ok(Err(BodyError::Busy)) => return Err(Box::new(busy())),
        Ok(Err(BodyError::Broken(reason))) => return Err(wrong(reason)),
        Err(_) => {
            let reason = "the request was not received in time";
            return Err(refuse(StatusCode::REQUEST_TIMEOUT, reason));
        }
    };
    answers.metrics.received.inc_by(body.len() as u64);
    Ok((GraphqlCall::of_body(&body).map_err(wrong)?, held))
}

/// The response if there was no room for a request or its answer.
fn busy() -> Response<HttpBody> {
    let reason = "the server is busy: its clients use all of --rpc.max-buffered-size; try again";
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, reason.into());
    answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    answer
}
