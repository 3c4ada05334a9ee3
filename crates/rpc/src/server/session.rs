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

use super::answers::{Answer, Answers, Client};
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
}

/// The side of a connection that writes.
#[derive(Debug)]
pub(super) struct Outbox {
    answers: mpsc::Receiver<Outgoing>,
    notifications: mpsc::Receiver<Box<RawValue>>,
    server: Answers,
}

/// A message that is to be written. Its answer counts as unwritten until this is dropped.
#[derive(Debug)]
pub(super) struct Outgoing {
    json: Box<RawValue>,
    _held: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Outgoing {
    /// What is to be written.
    pub(super) fn text(&self) -> &str {
        self.json.get()
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

/// Both sides of a new connection.
pub(super) fn open(answers: &Answers) -> (Session, Outbox) {
    let limits = &answers.limits;
    let (outgoing, from_requests) = mpsc::channel(MAX_REQUESTS);
    let (notify, notifications) = mpsc::channel(limits.message_buffer.max(1) as usize);
    let client = Client::new(answers.clone()).with_notifications(MethodSink::new(notify));
    let session = Session {
        client: Arc::new(client),
        places: Arc::new(Semaphore::new(MAX_REQUESTS)),
        incoming: Budget::new(limits.max_request_size),
        unwritten: Budget::new(limits.max_response_size),
        outgoing,
    };
    (session, Outbox { answers: from_requests, notifications, server: answers.clone() })
}

impl Session {
    /// Begins to answer a message, as soon as the connection has room for it.
    pub(super) async fn take(&self, message: Vec<u8>) {
        // Room for answers only has to be there; how much of it this one needs, nobody knows yet.
        drop(self.unwritten.take(1).await);
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        let Some(room) = self.incoming.take(message.len()).await else { return };
        let (client, unwritten) = (self.client.clone(), self.unwritten.clone());
        let outgoing = self.outgoing.clone();
        tokio::spawn(async move {
            let answer = async {
                let Answer { json, on_close } = client.answer(&message).await?;
                drop((message, room));
                let room = unwritten.take(json.get().len()).await?;
                Some((Outgoing { json, _held: Some((place, room)) }, on_close))
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
        let _ = self.outgoing.send(Outgoing { json, _held: None }).await;
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
            Some(json) = self.notifications.recv() => Some(Outgoing { json, _held: None }),
        };
        if let Some(next) = &next {
            self.server.metrics.sent.inc_by(next.text().len() as u64);
        }
        next
    }
}
