//! A connection on which much may be asked at once: WebSocket and IPC.
//!
//! What a client has under way is bounded by not reading on: it waits, as with a node that is slow,
//! and nothing is refused.
//!
//! | what | at most |
//! |---|---|
//! | requests of which no answer has been written yet | 64 |
//! | bytes of requests that are being answered | `max_request_size` |
//! | bytes of answers not yet written beyond which no request is begun | `max_response_size` |
//! | notifications not yet written | `message_buffer` |
//!
//! All of it also counts towards what connections hold together (`budget.rs`). An answer that finds no
//! room there becomes an error; a notification waits, and its subscription ends if that takes too long.

use super::{
    answers::{Answer, Answers, Client, PendingNotifications},
    budget::{Held, Tab},
};
use hyper::body::Bytes;
use jsonrpsee::{MethodSink, types::ErrorObject};
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Requests of one connection that are under way at once.
const MAX_REQUESTS: usize = 64;
/// Bytes are counted in units of so many.
const UNIT: usize = 1 << 10;

/// The side of a connection that reads. Requests go on when it is dropped, until the [`Outbox`] is.
#[derive(Debug)]
pub(super) struct Session {
    client: Arc<Client>,
    places: Arc<Semaphore>,
    /// Units of requests.
    incoming: Arc<Budget>,
    /// Units of answers.
    unwritten: Arc<Budget>,
    outgoing: mpsc::Sender<Outgoing>,
    tab: Arc<Tab>,
}

/// The side of a connection that writes.
#[derive(Debug)]
pub(super) struct Outbox {
    answers: mpsc::Receiver<Outgoing>,
    notifications: mpsc::Receiver<Outgoing>,
    server: Answers,
}

/// A message that is to be written. Its answer counts as unwritten until this is dropped.
#[derive(Debug)]
pub(super) struct Outgoing {
    json: Box<RawValue>,
    subscriptions: Vec<PendingNotifications>,
    _places: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    _held: Option<Held>,
}

impl Outgoing {
    /// What is to be written.
    pub(super) fn text(&self) -> &str {
        self.json.get()
    }

    /// It was written: notifications of subscriptions that it announces may follow.
    pub(super) fn written(self) {
        self.subscriptions.into_iter().for_each(PendingNotifications::begin);
    }
}

/// So many bytes, in units.
#[derive(Debug)]
struct Budget {
    units: usize,
    left: Arc<Semaphore>,
}

impl Budget {
    fn new(bytes: u32) -> Arc<Self> {
        let units = (bytes as usize).div_ceil(UNIT).max(1);
        Arc::new(Self { units, left: Arc::new(Semaphore::new(units)) })
    }

    /// Waits until so many bytes are free; all are enough for what is larger. `None` never comes:
    /// nobody closes a budget.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.units);
        self.left.clone().acquire_many_owned(u32::try_from(units).ok()?).await.ok()
    }
}

/// Both sides of a new connection, which has this tab.
pub(super) fn open(answers: &Answers, tab: Arc<Tab>) -> (Session, Outbox) {
    let limits = &answers.limits;
    let (outgoing, from_requests) = mpsc::channel(MAX_REQUESTS);
    // Nobody but the task behind it waits for a client to read, so it need not hold anything.
    let (notify, told) = mpsc::channel(1);
    let (queue, notifications) = mpsc::channel(limits.message_buffer.max(1) as usize);
    tokio::spawn(queue_notifications(told, queue, tab.clone()));
    let client = Client::new(answers.clone()).with_notifications(MethodSink::new(notify));
    let session = Session {
        client: Arc::new(client),
        places: Arc::new(Semaphore::new(MAX_REQUESTS)),
        incoming: Budget::new(limits.max_request_size),
        unwritten: Budget::new(limits.max_response_size),
        outgoing,
        tab,
    };
    (session, Outbox { answers: from_requests, notifications, server: answers.clone() })
}

/// Takes notifications into account on their way to the connection, until one of its ends is gone.
async fn queue_notifications(
    mut told: mpsc::Receiver<Box<RawValue>>,
    queue: mpsc::Sender<Outgoing>,
    tab: Arc<Tab>,
) {
    while let Some(json) = told.recv().await {
        let held = loop {
            if let Some(held) = tab.clone().take(json.get().len()).await {
                break held;
            }
            if queue.is_closed() {
                return;
            }
        };
        let notification =
            Outgoing { json, subscriptions: Vec::new(), _places: None, _held: Some(held) };
        if queue.send(notification).await.is_err() {
            return;
        }
    }
}

impl Session {
    /// Begins to answer a message, as soon as the connection has room for it; `held` is what it was
    /// read into.
    pub(super) async fn take(&self, message: Bytes, held: Held) {
        // Room for answers only has to be there; how much of it this one needs, nobody knows yet.
        drop(self.unwritten.take(1).await);
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        let Some(room) = self.incoming.take(message.len()).await else { return };
        let (client, unwritten) = (self.client.clone(), self.unwritten.clone());
        let (outgoing, tab) = (self.outgoing.clone(), self.tab.clone());
        tokio::spawn(async move {
            let answer = async {
                let mut answer = client.answer(&message).await?;
                drop((message, room, held));
                // First, so that what waits to be written counts too.
                let held = tab.take(answer.json.get().len()).await;
                if held.is_none() {
                    answer = answer.dropped();
                }
                let room = unwritten.take(answer.json.get().len()).await?;
                let Answer { json, on_close, subscriptions } = answer;
                let _places = Some((place, room));
                Some((Outgoing { json, subscriptions, _places, _held: held }, on_close))
            };
            let answer = tokio::select! {
                // Nobody is left to hear it.
                () = outgoing.closed() => None,
                answer = answer => answer,
            };
            if let Some((answer, on_close)) = answer {
                let is_success = outgoing.send(answer).await.is_ok();
                if let Some(on_close) = on_close {
                    on_close.notify(is_success);
                }
            }
        });
    }

    /// Answers what cannot even be read.
    pub(super) async fn refuse(&self, error: ErrorObject<'_>) {
        let Answer { json, .. } = Answer::error(error);
        // If nobody reads it, so be it.
        let refusal = Outgoing { json, subscriptions: Vec::new(), _places: None, _held: None };
        let _ = self.outgoing.send(refusal).await;
    }

    /// Holds nothing of the connection's tab yet.
    pub(super) fn hold(&self) -> Held {
        self.tab.clone().hold()
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

impl Outbox {
    /// The next message; `None` once the session has ended and all its requests are answered.
    pub(super) async fn next(&mut self) -> Option<Outgoing> {
        let next = tokio::select! {
            answer = self.answers.recv() => answer,
            Some(notification) = self.notifications.recv() => Some(notification),
        };
        if let Some(next) = &next {
            self.server.metrics.sent.inc_by(next.text().len() as u64);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            budget::{Buffered, OWN},
            config::ConnectionLimits,
        },
        *,
    };
    use jsonrpsee::{RpcModule, types::ErrorObjectOwned};
    use retrie_telemetry::rpc::RpcMetrics;
    use std::time::Duration;

    /// Bytes of an answer, and a little more.
    const ANSWER: usize = 100 << 10;
    const ROOM: u32 = 110 << 10;

    /// Answers `large` once the semaphore has a permit for it.
    fn answers(gate: &Arc<Semaphore>, buffered: &Buffered) -> Answers {
        let mut module = RpcModule::new(gate.clone());
        module
            .register_async_method("large", async |_, gate, _| {
                gate.acquire().await.unwrap().forget();
                Ok::<_, ErrorObjectOwned>("x".repeat(ANSWER))
            })
            .unwrap();
        Answers {
            limits: ConnectionLimits { max_response_size: ROOM, ..ConnectionLimits::default() },
            metrics: RpcMetrics::default().server("ws", module.method_names()),
            methods: module.into(),
            buffered: buffered.clone(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_wait_to_be_written_count() {
        let (gate, buffered) = (Arc::new(Semaphore::new(0)), Buffered::new(10 * ANSWER));
        let (session, mut outbox) = open(&answers(&gate, &buffered), buffered.open());
        for id in 0..3 {
            let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"large"}}"#);
            session.take(request.into(), session.hold()).await;
        }
        // Of the three answers that come at once the connection has room for one.
        gate.add_permits(3);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let others = OWN + 8 * ANSWER;
        assert!(buffered.open().take(others).await.is_none(), "all three are held");
        for _ in 0..3 {
            assert!(outbox.next().await.unwrap().text().len() > ANSWER);
        }
        assert!(buffered.open().take(others).await.is_some(), "all three were dropped");
    }
}
