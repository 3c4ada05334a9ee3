//! A connection with several requests in progress: WebSocket and IPC.
//!
//! At a limit the connection reads no further, and the client waits. Nothing is refused.
//!
//! | what | at most |
//! |---|---|
//! | requests whose response is not yet written | 64 |
//! | bytes of requests in progress | `max_request_size` |
//! | bytes of unwritten responses beyond which no request is started | `max_response_size` |
//! | unwritten notifications | `message_buffer` |
//!
//! All of these bytes also count in the shared budget (`budget.rs`). A response that finds no room
//! there becomes an error. A notification waits, and its subscription ends if that takes too long.

use super::{
    budget::{ConnectionBudget, HeldBytes},
    service::{ClientHandler, MethodService, PendingNotifications, RpcResponse},
};
use hyper::body::Bytes;
use jsonrpsee::{MethodSink, types::ErrorObject};
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Most requests of one connection in progress.
const MAX_REQUESTS: usize = 64;
/// Bytes per permit of a semaphore.
const UNIT: usize = 1 << 10;

/// The reading side of a connection. After it is dropped, requests go on until the
/// [`ConnectionOutbox`] is dropped.
#[derive(Debug)]
pub(super) struct ConnectionInbox {
    client: Arc<ClientHandler>,
    places: Arc<Semaphore>,
    /// Permits for bytes of requests.
    incoming: Arc<ByteBudget>,
    /// Permits for bytes of unwritten responses.
    unwritten: Arc<ByteBudget>,
    outgoing: mpsc::Sender<OutgoingMessage>,
    tab: Arc<ConnectionBudget>,
}

/// The writing side of a connection.
#[derive(Debug)]
pub(super) struct ConnectionOutbox {
    answers: mpsc::Receiver<OutgoingMessage>,
    notifications: mpsc::Receiver<OutgoingMessage>,
    server: MethodService,
}

/// A message to be written. It counts as unwritten until it is dropped.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    json: Box<RawValue>,
    subscriptions: Vec<PendingNotifications>,
    _places: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    _held: Option<HeldBytes>,
}

impl OutgoingMessage {
    /// The text of the message.
    pub(super) fn text(&self) -> &str {
        self.json.get()
    }

    /// Call after writing: starts the notifications of the subscriptions that it announces.
    pub(super) fn confirm_written(self) {
        self.subscriptions.into_iter().for_each(PendingNotifications::begin);
    }
}

/// A number of bytes, counted in units.
#[derive(Debug)]
struct ByteBudget {
    units: usize,
    left: Arc<Semaphore>,
}

impl ByteBudget {
    fn new(bytes: u32) -> Arc<Self> {
        let units = (bytes as usize).div_ceil(UNIT).max(1);
        Arc::new(Self { units, left: Arc::new(Semaphore::new(units)) })
    }

    /// Waits until `bytes` bytes are free; a larger number than the budget waits for all of it.
    /// Never `None`, because the semaphore is never closed.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.units);
        self.left.clone().acquire_many_owned(u32::try_from(units).ok()?).await.ok()
    }
}

/// Both sides of a new connection with this budget.
pub(super) fn open(
    answers: &MethodService,
    tab: Arc<ConnectionBudget>,
) -> (ConnectionInbox, ConnectionOutbox) {
    let limits = &answers.limits;
    let (outgoing, from_requests) = mpsc::channel(MAX_REQUESTS);
    // Only the task behind this channel waits for a slow client, so the channel can be short.
    let (notify, told) = mpsc::channel(1);
    let (queue, notifications) = mpsc::channel(limits.message_buffer.max(1) as usize);
    tokio::spawn(queue_notifications(told, queue, tab.clone()));
    let client = ClientHandler::new(answers.clone()).with_notifications(MethodSink::new(notify));
    let session = ConnectionInbox {
        client: Arc::new(client),
        places: Arc::new(Semaphore::new(MAX_REQUESTS)),
        incoming: ByteBudget::new(limits.max_request_size),
        unwritten: ByteBudget::new(limits.max_response_size),
        outgoing,
        tab,
    };
    (session, ConnectionOutbox { answers: from_requests, notifications, server: answers.clone() })
}

/// Counts notifications and forwards them to the connection, until one end is gone.
async fn queue_notifications(
    mut told: mpsc::Receiver<Box<RawValue>>,
    queue: mpsc::Sender<OutgoingMessage>,
    tab: Arc<ConnectionBudget>,
) {
    loop {
        // Subscriptions learn from this end that the client is gone, also those with nothing to send.
        let json = tokio::select! {
            () = queue.closed() => return,
            json = told.recv() => json,
        };
        let Some(json) = json else { return };
        let held = loop {
            if let Some(held) = tab.clone().take(json.get().len()).await {
                break held;
            }
            if queue.is_closed() {
                return;
            }
        };
        let notification =
            OutgoingMessage { json, subscriptions: Vec::new(), _places: None, _held: Some(held) };
        if queue.send(notification).await.is_err() {
            return;
        }
    }
}

impl ConnectionInbox {
    /// Starts answering a message as soon as the connection has room; `held` counts its bytes.
    pub(super) async fn handle(&self, message: Bytes, held: HeldBytes) {
        // There must be some room for responses; the size of this response is not known yet.
        drop(self.unwritten.take(1).await);
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        let Some(room) = self.incoming.take(message.len()).await else { return };
        let (client, unwritten) = (self.client.clone(), self.unwritten.clone());
        let (outgoing, tab) = (self.outgoing.clone(), self.tab.clone());
        tokio::spawn(async move {
            let answer = async {
                let mut answer = client.answer(&message).await?;
                drop((message, room, held));
                // Counted before waiting for room, because it is held while it waits.
                let held = tab.take(answer.json.get().len()).await;
                if held.is_none() {
                    answer = answer.into_busy_error();
                }
                let room = unwritten.take(answer.json.get().len()).await?;
                let RpcResponse { json, on_close, subscriptions } = answer;
                let _places = Some((place, room));
                Some((OutgoingMessage { json, subscriptions, _places, _held: held }, on_close))
            };
            let answer = tokio::select! {
                // The client is gone.
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

    /// Responds to a message that cannot be read.
    pub(super) async fn refuse(&self, error: ErrorObject<'_>) {
        let RpcResponse { json, .. } = RpcResponse::error(error);
        // Fails only if the client is gone.
        let refusal =
            OutgoingMessage { json, subscriptions: Vec::new(), _places: None, _held: None };
        let _ = self.outgoing.send(refusal).await;
    }

    /// A counter of held bytes, starting at zero.
    pub(super) fn hold(&self) -> HeldBytes {
        self.tab.clone().hold()
    }

    pub(super) fn client(&self) -> &ClientHandler {
        &self.client
    }
}

impl ConnectionOutbox {
    /// The next message; `None` once the session has ended and all its requests are answered.
    pub(super) async fn next(&mut self) -> Option<OutgoingMessage> {
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
            budget::{BufferBudget, OWN},
            config::ConnectionLimits,
        },
        *,
    };
    use jsonrpsee::{RpcModule, types::ErrorObjectOwned};
    use retrie_telemetry::rpc::RpcMetrics;
    use std::time::Duration;

    /// Size of a response, and a limit slightly above it.
    const ANSWER: usize = 100 << 10;
    const ROOM: u32 = 110 << 10;

    /// Serves `large`, which responds once the semaphore has a permit.
    fn answers(gate: &Arc<Semaphore>, buffered: &BufferBudget) -> MethodService {
        let mut module = RpcModule::new(gate.clone());
        module
            .register_async_method("large", async |_, gate, _| {
                gate.acquire().await.unwrap().forget();
                Ok::<_, ErrorObjectOwned>("x".repeat(ANSWER))
            })
            .unwrap();
        MethodService {
            limits: ConnectionLimits { max_response_size: ROOM, ..ConnectionLimits::default() },
            metrics: RpcMetrics::default().server("ws", module.method_names()),
            methods: module.into(),
            buffered: buffered.clone(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_wait_to_be_written_count() {
        let (gate, buffered) = (Arc::new(Semaphore::new(0)), BufferBudget::new(10 * ANSWER));
        let (session, mut outbox) = open(&answers(&gate, &buffered), buffered.open());
        for id in 0..3 {
            let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"large"}}"#);
            session.handle(request.into(), session.hold()).await;
        }
        // The connection has room for one of the three responses.
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
