//! From the bytes of a request to those of its answer, the same for every transport.

use super::{
    budget::Buffered,
    config::ConnectionLimits,
    request::{Message, RequestId},
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
use retrie_telemetry::rpc::ServerMetrics;
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

/// Ids of connections; subscriptions are told apart by them, whatever server they are on.
static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(0);

/// What a server answers, and within which limits.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub(super) methods: Methods,
    pub(super) limits: ConnectionLimits,
    pub(super) metrics: ServerMetrics,
    /// What its connections hold with those of other servers.
    pub(super) buffered: Buffered,
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

    /// The answer to a message, if it gets one: notifications get none.
    pub(super) async fn answer(&self, message: &[u8]) -> Option<Answer> {
        self.answers.metrics.received.inc_by(message.len() as u64);
        let Ok(text) = str::from_utf8(message.trim_ascii()) else {
            return Some(Answer::error(ErrorCode::ParseError));
        };
        if text.starts_with('[') { self.batch(text).await } else { self.single(text).await }
    }

    async fn single(&self, text: &str) -> Option<Answer> {
        match Message::new(text) {
            Message::Call { id, method, params } => {
                let start = Instant::now();
                let (response, subscription) = self.call(&id, &method, params).await;
                self.answers.metrics.answered(&method, start.elapsed(), response.is_success());
                let answer = Answer::new(response, &id);
                Some(Answer { subscriptions: subscription.into_iter().collect(), ..answer })
            }
            Message::Notification => None,
            Message::Invalid { id, error } => {
                Some(Answer::new(MethodResponse::error(id.known.clone(), error), &id))
            }
        }
    }

    /// The answer to an entry of a batch; an error if it is not there in time. What has begun on a thread
    /// of its own ends there, as ever.
    async fn before(&self, deadline: Deadline, text: &str) -> Option<Answer> {
        if Deadline::now() < deadline
            && let Ok(answer) = timeout_at(deadline, self.single(text)).await
        {
            return answer;
        }
        match Message::new(text) {
            Message::Call { id, method, .. } => {
                self.answers.metrics.answered(&method, Duration::ZERO, false);
                let limit = self.answers.limits.batch_timeout.as_secs_f64();
                let message = format!("request timed out: its batch has taken {limit} s");
                let refused = refusal(id.known.clone(), RpcError::TIMED_OUT, message);
                Some(Answer::new(refused, &id))
            }
            Message::Notification => None,
            Message::Invalid { id, error } => {
                Some(Answer::new(MethodResponse::error(id.known.clone(), error), &id))
            }
        }
    }

    async fn batch(&self, text: &str) -> Option<Answer> {
        let Ok(entries) = serde_json::from_str::<Vec<&RawValue>>(text) else {
            return Some(Answer::error(ErrorCode::ParseError));
        };
        let most = self.answers.limits.max_batch_size as usize;
        if entries.len() > most {
            return Some(Answer::error(reject_too_big_batch_request(most)));
        }
        if entries.is_empty() {
            return Some(Answer::error(ErrorCode::InvalidRequest));
        }
        let size = self.answers.limits.max_response_size as usize;
        let mut answers: Vec<Box<RawValue>> = Vec::new();
        let mut subscriptions = Vec::new();
        // With its brackets, and a comma after all but the last.
        let mut bytes = 1;
        let deadline = Deadline::now() + self.answers.limits.batch_timeout;
        for entry in entries {
            let Some(answer) = self.before(deadline, entry.get()).await else { continue };
            bytes += answer.json.get().len() + 1;
            if bytes > size {
                return Some(Answer::error(reject_too_big_batch_response(size)));
            }
            answers.push(answer.json);
            subscriptions.extend(answer.subscriptions);
        }
        // A batch of notifications alone has no answer.
        if answers.is_empty() {
            return None;
        }
        let json = to_raw_value(&answers).ok()?;
        Some(Answer { json, on_close: None, subscriptions })
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
                    id_provider: &HexIds,
                    subscription_permit,
                };
                // The library sends the response where it sends notifications. A subscription has a
                // channel of its own, so that its response can stand in a batch.
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

/// What is sent to a client.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Box<RawValue>,
    /// Who wants to know whether it was sent.
    pub(super) on_close: Option<MethodResponseNotifyTx>,
    /// Subscriptions that it announces.
    pub(super) subscriptions: Vec<PendingNotifications>,
}

/// Notifications of a new subscription, which may follow once the client has the response. Dropping it
/// ends the subscription.
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
                // The subscription learns from its channel that the client is gone.
                () = to.closed() => {}
            }
        });
        Self(begin)
    }

    /// The client has the response.
    pub(super) fn begin(self) {
        // The task ends only with the client.
        let _ = self.0.send(());
    }
}

impl Answer {
    fn new(response: MethodResponse, id: &RequestId<'_>) -> Self {
        let (json, on_close, _) = response.into_parts();
        Self { json: id.put_into(json), on_close, subscriptions: Vec::new() }
    }

    /// An error in place of this answer, for which there is no room.
    pub(super) fn dropped(self) -> Self {
        #[derive(Deserialize)]
        struct Answered<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
        }
        // A batch has none.
        let answered = serde_json::from_str::<Answered<'_>>(self.json.get());
        let id = answered.ok().and_then(|answered| RequestId::new(answered.id));
        let id = id.unwrap_or(RequestId::NULL);
        Self::new(MethodResponse::error(id.known.clone(), busy()), &id)
    }

    /// An error of a message as a whole.
    pub(super) fn error<'e>(error: impl Into<ErrorObject<'e>>) -> Self {
        Self::new(MethodResponse::error(Id::Null, error), &RequestId::NULL)
    }
}

/// That others hold what there is to hold.
pub(super) fn busy() -> ErrorObject<'static> {
    let message =
        "the server is busy: its clients hold as many bytes as it has for them; try again";
    ErrorObject::owned(RpcError::BUSY, message, None::<()>)
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

#[cfg(test)]
mod tests {
    use super::*;
    use jsonrpsee::{RpcModule, types::ErrorObjectOwned};
    use retrie_telemetry::rpc::RpcMetrics;

    /// A batch of a thousand requests once took a thousand times what one may take.
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
        let answers = Answers {
            limits: ConnectionLimits {
                batch_timeout: Duration::from_secs(20),
                ..ConnectionLimits::default()
            },
            metrics: RpcMetrics::default().server("http", module.method_names()),
            methods: module.into(),
            buffered: Buffered::unlimited(),
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
        let answer = Client::new(answers).answer(batch.as_bytes()).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(20));
        let answers: Vec<serde_json::Value> = serde_json::from_str(answer.json.get()).unwrap();
        // Not the notification.
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
            let dropped = Answer { json, on_close: None, subscriptions: Vec::new() }.dropped();
            let text = dropped.json.get();
            assert!(text.contains(&format!(r#""id":{id}"#)), "{text}");
            assert!(text.contains(r#""code":-32005"#), "{text}");
        }
    }
}
