//! Answers messages: from the bytes of a request to those of its response, for every transport.

use super::{
    budget::BufferBudget,
    config::ConnectionLimits,
    request::{IncomingMessage, RequestId},
    span::{mark_failed, request_span},
};
use crate::RpcError;
use jsonrpsee::{
    BoundedSubscriptions, ConnectionId, MethodCallback, MethodResponse, MethodSink, Methods,
    SubscriptionState,
    core::{
        server::{Extensions, MethodResponseNotifyTx},
        traits::IdProvider,
    },
    types::{
        ErrorObject, Id, Params, SubscriptionId,
        error::{
            ErrorCode, reject_too_big_batch_request, reject_too_big_batch_response,
            reject_too_many_subscriptions,
        },
    },
};
use retrie_telemetry::{rpc::ServerMetrics, spans::TraceContext};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant as Deadline, timeout_at},
};
use tracing::Instrument;

/// Ids of connections, unique over all servers; they identify the owners of subscriptions.
static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(0);

/// The methods of a server, with their limits.
#[derive(Clone, Debug)]
pub(super) struct MethodService {
    pub(super) methods: Methods,
    pub(super) limits: ConnectionLimits,
    pub(super) metrics: ServerMetrics,
    /// Bytes that the connections of this and other servers hold.
    pub(super) buffered: BufferBudget,
}

/// Answers the messages of one connection, or of one HTTP request.
#[derive(Debug)]
pub(super) struct ClientHandler {
    answers: MethodService,
    id: ConnectionId,
    /// Where notifications go, if the transport has them.
    notifications: Option<(MethodSink, BoundedSubscriptions)>,
    /// The span of the client that its requests are a part of.
    caller: TraceContext,
}

impl ClientHandler {
    /// A client that cannot subscribe.
    pub(super) fn new(answers: MethodService) -> Self {
        let id = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
        Self { answers, id, notifications: None, caller: TraceContext::default() }
    }

    /// Makes the requests a part of the caller's span.
    pub(super) fn with_caller(self, caller: TraceContext) -> Self {
        Self { caller, ..self }
    }

    /// Adds a sink for notifications, so that the client can subscribe.
    pub(super) fn with_notifications(self, sink: MethodSink) -> Self {
        let subscriptions = BoundedSubscriptions::new(self.answers.limits.max_subscriptions);
        Self { notifications: Some((sink, subscriptions)), ..self }
    }

    pub(super) const fn limits(&self) -> &ConnectionLimits {
        &self.answers.limits
    }

    /// The response to a message; `None` for notifications.
    pub(super) async fn answer(&self, message: &[u8]) -> Option<RpcResponse> {
        self.answers.metrics.received.inc_by(message.len() as u64);
        let Ok(text) = str::from_utf8(message.trim_ascii()) else {
            return Some(RpcResponse::error(ErrorCode::ParseError));
        };
        if text.starts_with('[') { self.batch(text).await } else { self.single(text).await }
    }

    async fn single(&self, text: &str) -> Option<RpcResponse> {
        match IncomingMessage::new(text) {
            IncomingMessage::Call { id, method, params } => {
                let start = Instant::now();
                let known = || match self.answers.methods.method(&method) {
                    Some(_) => &*method,
                    None => "unknown",
                };
                let span = request_span(&self.caller, known);
                let called = self.call(&id, &method, params).instrument(span.clone());
                let (response, subscription) = called.await;
                if !response.is_success() {
                    mark_failed(&span);
                }
                self.answers.metrics.answered(&method, start.elapsed(), response.is_success());
                let answer = RpcResponse::new(response, &id);
                Some(RpcResponse { subscriptions: subscription.into_iter().collect(), ..answer })
            }
            IncomingMessage::Notification => None,
            IncomingMessage::Invalid { id, error } => {
                Some(RpcResponse::new(MethodResponse::error(id.known.clone(), error), &id))
            }
        }
    }

    /// The response to a batch entry; an error if the batch deadline passes first. Work on a
    /// blocking thread still runs to its end.
    async fn answer_before(&self, deadline: Deadline, text: &str) -> Option<RpcResponse> {
        if Deadline::now() < deadline
            && let Ok(answer) = timeout_at(deadline, self.single(text)).await
        {
            return answer;
        }
        match IncomingMessage::new(text) {
            IncomingMessage::Call { id, method, .. } => {
                self.answers.metrics.answered(&method, Duration::ZERO, false);
                let limit = self.answers.limits.batch_timeout.as_secs_f64();
                let message = format!("request timed out: its batch has taken {limit} s");
                let refused = refusal(id.known.clone(), RpcError::TIMED_OUT, message);
                Some(RpcResponse::new(refused, &id))
            }
            IncomingMessage::Notification => None,
            IncomingMessage::Invalid { id, error } => {
                Some(RpcResponse::new(MethodResponse::error(id.known.clone(), error), &id))
            }
        }
    }

    async fn batch(&self, text: &str) -> Option<RpcResponse> {
        let Ok(entries) = serde_json::from_str::<Vec<&RawValue>>(text) else {
            return Some(RpcResponse::error(ErrorCode::ParseError));
        };
        let most = self.answers.limits.max_batch_size as usize;
        if entries.len() > most {
            return Some(RpcResponse::error(reject_too_big_batch_request(most)));
        }
        if entries.is_empty() {
            return Some(RpcResponse::error(ErrorCode::InvalidRequest));
        }
        let size = self.answers.limits.max_response_size as usize;
        let mut answers: Vec<Box<RawValue>> = Vec::new();
        let mut subscriptions = Vec::new();
        // Counts the brackets, and a comma after each response but the last.
        let mut bytes = 1;
        let deadline = Deadline::now() + self.answers.limits.batch_timeout;
        for entry in entries {
            let Some(answer) = self.answer_before(deadline, entry.get()).await else { continue };
            bytes += answer.json.get().len() + 1;
            if bytes > size {
                return Some(RpcResponse::error(reject_too_big_batch_response(size)));
            }
            answers.push(answer.json);
            subscriptions.extend(answer.subscriptions);
        }
        // A batch of notifications has no response.
        if answers.is_empty() {
            return None;
        }
        let json = to_raw_value(&answers).ok()?;
        Some(RpcResponse { json, on_close: None, subscriptions })
    }

    async fn call(
        &self,
        id: &RequestId<'_>,
        method: &str,
        params: Option<&RawValue>,
    ) -> (MethodResponse, Option<PendingNotifications>) {
        let id = id.known.clone();
        let params = Params::new(params.map(RawValue::get));
        let size = self.answers.limits.max_response_size as usize;
        let extensions = Extensions::new();
        let response = match (self.answers.methods.method(method), &self.notifications) {
            (None, _) => {
                let message = format!("the method {method} does not exist/is not available");
                refusal(id, RpcError::METHOD_NOT_FOUND, message)
            }
            (Some(MethodCallback::Sync(answer)), _) => answer(id, params, size, extensions),
            (Some(MethodCallback::Async(answer)), _) => {
                answer(id.into_owned(), params.into_owned(), self.id, size, extensions).await
            }
            (Some(MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_)), None) => {
                refusal(id, RpcError::METHOD_NOT_FOUND, "notifications not supported".into())
            }
            (Some(MethodCallback::Subscription(answer)), Some((sink, subscriptions))) => {
                let Some(subscription_permit) = subscriptions.acquire() else {
                    let error = reject_too_many_subscriptions(subscriptions.max());
                    return (MethodResponse::error(id, error), None);
                };
                let state = SubscriptionState {
                    conn_id: self.id,
                    id_provider: &HexIdProvider,
                    subscription_permit,
                };
                // jsonrpsee sends the response through the notification sink. Each subscription
                // gets its own channel, so that its response can be part of a batch.
                let (own, mut messages) = mpsc::channel(1);
                let response = answer(id, params, MethodSink::new(own), state, extensions).await;
                let _response = messages.try_recv();
                let notifications = response
                    .is_success()
                    .then(|| PendingNotifications::forward(messages, sink.clone()));
                return (response, notifications);
            }
            (Some(MethodCallback::Unsubscription(answer)), Some(_)) => {
                answer(id, params, self.id, size, extensions)
            }
        };
        (response, None)
    }
}

/// A response to be sent.
#[derive(Debug)]
pub(super) struct RpcResponse {
    pub(super) json: Box<RawValue>,
    /// Is notified whether the response was sent.
    pub(super) on_close: Option<MethodResponseNotifyTx>,
    /// Subscriptions that the response announces.
    pub(super) subscriptions: Vec<PendingNotifications>,
}

/// The notifications of a new subscription, which start once the client has the response. Dropping
/// this ends the subscription.
#[derive(Debug)]
pub(super) struct PendingNotifications(oneshot::Sender<()>);

impl PendingNotifications {
    /// Holds `messages` back from `to` until [`begin`](Self::begin).
    fn forward(mut messages: mpsc::Receiver<Box<RawValue>>, to: MethodSink) -> Self {
        let (begin, begun) = oneshot::channel();
        tokio::spawn(async move {
            if begun.await.is_err() {
                return;
            }
            let forward = async {
                while let Some(message) = messages.recv().await {
                    if to.send(message).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = forward => {}
                // Dropping the channel tells the subscription that the client is gone.
                () = to.closed() => {}
            }
        });
        Self(begin)
    }

    /// Starts the notifications: the client has the response.
    pub(super) fn begin(self) {
        // Fails only if the client is gone.
        let _ = self.0.send(());
    }
}

impl RpcResponse {
    fn new(response: MethodResponse, id: &RequestId<'_>) -> Self {
        let (json, on_close, _) = response.into_parts();
        Self { json: id.put_into(json), on_close, subscriptions: Vec::new() }
    }

    /// The error that replaces this response if the server has no room for it.
    pub(super) fn into_busy_error(self) -> Self {
        #[derive(Deserialize)]
        struct ResponseId<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
        }
        // The response to a batch has no id.
        let answered = serde_json::from_str::<ResponseId<'_>>(self.json.get());
        let id = answered.ok().and_then(|answered| RequestId::new(answered.id));
        let id = id.unwrap_or(RequestId::NULL);
        Self::new(MethodResponse::error(id.known.clone(), busy_error()), &id)
    }

    /// An error for a message that could not be read.
    pub(super) fn error<'e>(error: impl Into<ErrorObject<'e>>) -> Self {
        Self::new(MethodResponse::error(Id::Null, error), &RequestId::NULL)
    }
}

/// The error of a server whose clients hold all the bytes it has for them.
pub(super) fn busy_error() -> ErrorObject<'static> {
    let message = "the server is busy: its clients use all of --rpc.max-buffered-size; try again";
    ErrorObject::owned(RpcError::BUSY, message, None::<()>)
}

fn refusal(id: Id<'_>, code: i32, message: String) -> MethodResponse {
    MethodResponse::error(id, ErrorObject::owned(code, message, None::<()>))
}

/// Subscription ids in geth's form.
#[derive(Debug)]
struct HexIdProvider;

impl IdProvider for HexIdProvider {
    fn next_id(&self) -> SubscriptionId<'static> {
        format!("{:#x}", rand::random::<u128>()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonrpsee::{RpcModule, types::ErrorObjectOwned};
    use retrie_telemetry::rpc::RpcMetrics;

    /// Cause: a batch of a thousand requests took a thousand times the time of one.
    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_in_time_and_every_request_of_it_is_answered() {
        let mut module = RpcModule::new(());
        module
            .register_async_method("slow", async |_, _, _| {
                tokio::time::sleep(Duration::from_secs(7)).await;
                Ok::<_, ErrorObjectOwned>(1)
            })
            .unwrap();
        module.register_method("quick", |_, _, _| Ok::<_, ErrorObjectOwned>(2)).unwrap();
        let answers = MethodService {
            limits: ConnectionLimits {
                batch_timeout: Duration::from_secs(20),
                ..ConnectionLimits::default()
            },
            metrics: RpcMetrics::default().server("http", module.method_names()),
            methods: module.into(),
            buffered: BufferBudget::unlimited(),
        };
        let entry =
            |id: usize, method| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
        let mut entries: Vec<_> = (0..900).map(|id| entry(id, "slow")).collect();
        entries.extend([
            entry(900, "quick"),
            r#"{"jsonrpc":"2.0","method":"quick"}"#.into(),
            "7".into(),
        ]);
        let start = Deadline::now();
        let batch = format!("[{}]", entries.join(","));
        let answer = ClientHandler::new(answers).answer(batch.as_bytes()).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(20));
        let answers: Vec<serde_json::Value> = serde_json::from_str(answer.json.get()).unwrap();
        // The notification has no response.
        assert_eq!(answers.len(), 902);
        for (id, answer) in answers[..901].iter().enumerate() {
            assert_eq!(answer["id"], id);
            match id {
                0 | 1 => assert_eq!(answer["result"], 1),
                _ => assert_eq!(answer["error"]["code"], -32002, "{answer}"),
            }
        }
        assert_eq!(answers[901]["error"]["code"], -32600);
    }

    #[test]
    fn an_answer_that_is_dropped_becomes_an_error_of_the_same_id() {
        for (answer, id) in [
            (r#"{"jsonrpc":"2.0","id":"a","result":[1,{"id":2}]}"#, r#""a""#),
            (r#"{"jsonrpc":"2.0","id":1.5,"result":null}"#, "1.5"),
            (r#"[{"jsonrpc":"2.0","id":1,"result":null}]"#, "null"),
        ] {
            let json = RawValue::from_string(answer.into()).unwrap();
            let dropped =
                RpcResponse { json, on_close: None, subscriptions: Vec::new() }.into_busy_error();
            let text = dropped.json.get();
            assert!(text.contains(&format!(r#""id":{id}"#)), "{text}");
            assert!(text.contains(r#""code":-32005"#), "{text}");
        }
    }
}
