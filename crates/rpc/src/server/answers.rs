//! From the bytes of a request to those of its answer, the same for every transport.

use super::config::ConnectionLimits;
use crate::RpcError;
use jsonrpsee::{
    BatchResponseBuilder, BoundedSubscriptions, ConnectionId, MethodCallback, MethodResponse,
    MethodSink, Methods, SubscriptionState,
    core::{
        server::{Extensions, prepare_error},
        traits::IdProvider,
    },
    types::{
        ErrorObject, Id, Notification, Params, Request, SubscriptionId,
        error::{ErrorCode, reject_too_big_batch_request, reject_too_many_subscriptions},
    },
};
use retrie_telemetry::rpc::ServerMetrics;
use serde_json::value::RawValue;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

/// Code of subscriptions where there can be none.
const NO_NOTIFICATIONS: i32 = -32001;

/// Ids of connections; subscriptions are told apart by them, whatever server they are on.
static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(0);

/// What a server answers, and within which limits.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub(super) methods: Methods,
    pub(super) limits: ConnectionLimits,
    pub(super) metrics: ServerMetrics,
}

/// The client of one connection, or of one request over HTTP.
#[derive(Debug)]
pub(super) struct Client {
    answers: Answers,
    id: ConnectionId,
    /// Where notifications go, if there is a way for them.
    notifications: Option<(MethodSink, BoundedSubscriptions)>,
}

impl Client {
    /// A client that gets answers and nothing else.
    pub(super) fn new(answers: Answers) -> Self {
        let id = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
        Self { answers, id, notifications: None }
    }

    /// The same, who can subscribe.
    pub(super) fn with_notifications(self, sink: MethodSink) -> Self {
        let subscriptions = BoundedSubscriptions::new(self.answers.limits.max_subscriptions);
        Self { notifications: Some((sink, subscriptions)), ..self }
    }

    pub(super) const fn limits(&self) -> &ConnectionLimits {
        &self.answers.limits
    }

    /// The answer to a message, if it gets one here: notifications get none, and subscriptions
    /// answer by themselves.
    pub(super) async fn answer(&self, message: &[u8]) -> Option<MethodResponse> {
        self.answers.metrics.received.inc_by(message.len() as u64);
        let message = message.trim_ascii_start();
        let answer = match message.first() {
            Some(b'[') => self.batch(message).await,
            _ => self.single(message).await,
        };
        answer.filter(|answer| answer.is_method_call() || answer.is_batch())
    }

    async fn single(&self, message: &[u8]) -> Option<MethodResponse> {
        if let Ok(request) = serde_json::from_slice::<Request<'_>>(message) {
            return Some(self.call(request).await);
        }
        if serde_json::from_slice::<Notification<'_, Option<&RawValue>>>(message).is_ok() {
            return None;
        }
        let (id, code) = prepare_error(message);
        Some(MethodResponse::error(id, ErrorObject::from(code)))
    }

    async fn batch(&self, message: &[u8]) -> Option<MethodResponse> {
        let Ok(entries) = serde_json::from_slice::<Vec<&RawValue>>(message) else {
            let error = ErrorObject::from(ErrorCode::ParseError);
            return Some(MethodResponse::error(Id::Null, error));
        };
        let most = self.answers.limits.max_batch_size as usize;
        if entries.len() > most {
            let error = reject_too_big_batch_request(most);
            return Some(MethodResponse::error(Id::Null, error));
        }
        let is_empty = entries.is_empty();
        let size = self.answers.limits.max_response_size as usize;
        let mut answers = BatchResponseBuilder::new_with_limit(size);
        for entry in entries {
            let entry = entry.get().as_bytes();
            let answer = match entry.first() {
                Some(b'{') => self.single(entry).await,
                _ => {
                    let error = ErrorObject::from(ErrorCode::InvalidRequest);
                    Some(MethodResponse::error(Id::Null, error))
                }
            };
            if let Some(answer) = answer
                && let Err(too_large) = answers.append(answer)
            {
                return Some(too_large);
            }
        }
        // A batch of notifications alone has no answer, an empty one is an error.
        if answers.is_empty() && !is_empty {
            return None;
        }
        Some(MethodResponse::from_batch(answers.finish()))
    }

    async fn call(&self, request: Request<'_>) -> MethodResponse {
        let method = request.method.clone();
        let start = Instant::now();
        let answer = self.run(request).await;
        self.answers.metrics.answered(&method, start.elapsed(), answer.is_success());
        answer
    }

    async fn run(&self, request: Request<'_>) -> MethodResponse {
        let Request { id, method, params, .. } = request;
        let params = Params::new(params.as_ref().map(|params| params.get()));
        let size = self.answers.limits.max_response_size as usize;
        let extensions = Extensions::new();
        match (self.answers.methods.method(&method), &self.notifications) {
            (None, _) => {
                let message = format!("the method {method} does not exist/is not available");
                refusal(id, RpcError::METHOD_NOT_FOUND, message)
            }
            (Some(MethodCallback::Sync(answer)), _) => answer(id, params, size, extensions),
            (Some(MethodCallback::Async(answer)), _) => {
                answer(id.into_owned(), params.into_owned(), self.id, size, extensions).await
            }
            (Some(MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_)), None) => {
                refusal(id, NO_NOTIFICATIONS, "notifications not supported".into())
            }
            (Some(MethodCallback::Subscription(answer)), Some((sink, subscriptions))) => {
                let Some(subscription_permit) = subscriptions.acquire() else {
                    let error = reject_too_many_subscriptions(subscriptions.max());
                    return MethodResponse::error(id, error);
                };
                let state = SubscriptionState {
                    conn_id: self.id,
                    id_provider: &HexIds,
                    subscription_permit,
                };
                answer(id, params, sink.clone(), state, extensions).await
            }
            (Some(MethodCallback::Unsubscription(answer)), Some(_)) => {
                answer(id, params, self.id, size, extensions)
            }
        }
    }
}

fn refusal(id: Id<'_>, code: i32, message: String) -> MethodResponse {
    MethodResponse::error(id, ErrorObject::owned(code, message, None::<()>))
}

/// Ids of subscriptions as geth has them.
#[derive(Debug)]
struct HexIds;

impl IdProvider for HexIds {
    fn next_id(&self) -> SubscriptionId<'static> {
        format!("{:#x}", rand::random::<u128>()).into()
    }
}
