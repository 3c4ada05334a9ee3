//! What the rest of a node holds of a session.

use super::{
    Timing,
    reading::ReadingPauses,
    requests::{Answer, ExpectedAnswer, ExpiredRequests, Requests, SendError},
};
use crate::{
    eth::{BlockRange, Gossip, Message, Request, Response, id},
    handle::{PeerInfo, RequestError},
    rchk,
    rlpx::{BASE_MESSAGES, DisconnectReason},
};
use parking_lot::{Mutex, RwLock};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// Messages that wait to be written.
pub(super) const MAX_QUEUED: usize = 256;

/// Bytes that wait to be written, from which on a peer is told no transactions.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// A message that is encoded already.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: u8,
    pub(super) payload: Vec<u8>,
}

/// A session from outside. It ends with [`disconnect`](Self::disconnect), or by itself.
#[derive(Debug)]
pub struct Link {
    info: RwLock<Arc<PeerInfo>>,
    outgoing: mpsc::Sender<Outgoing>,
    /// Of `eth`.
    pub(super) requests: Mutex<Requests<Response>>,
    /// Of `rchk`.
    pub(super) state_requests: Mutex<Requests<rchk::Response>>,
    end: watch::Sender<Option<DisconnectReason>>,
    timing: Timing,
    pub(super) pauses: Mutex<ReadingPauses>,
    /// Bytes of what is outgoing.
    pub(super) queued_bytes: Arc<AtomicUsize>,
    /// Woken when the peer has pinged.
    pub(super) pong: Arc<Notify>,
}

impl Link {
    /// Of a peer; what is sent comes out of the receiver.
    pub(super) fn new(info: PeerInfo, timing: Timing) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        let (outgoing, receiver) = mpsc::channel(MAX_QUEUED);
        let link = Self {
            info: RwLock::new(Arc::new(info)),
            outgoing,
            requests: Mutex::default(),
            state_requests: Mutex::default(),
            end: watch::Sender::new(None),
            timing,
            pauses: Mutex::default(),
            queued_bytes: Arc::default(),
            pong: Arc::default(),
        };
        (Arc::new(link), receiver)
    }

    /// What is known of the peer.
    pub fn info(&self) -> Arc<PeerInfo> {
        self.info.read().clone()
    }

    /// What it serves, as it has just said.
    pub(super) fn set_range(&self, range: BlockRange) {
        let mut info = self.info.write();
        *info = Arc::new(PeerInfo { range, ..(**info).clone() });
    }

    /// Ends the session for this reason. The first reason counts.
    pub fn disconnect(&self, reason: DisconnectReason) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(reason);
            first
        });
    }

    /// Waits until the session shall end.
    pub(super) async fn ended(&self) -> DisconnectReason {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|reason| *reason) {
            Ok(Some(reason)) => reason,
            _ => DisconnectReason::Requested,
        }
    }

    /// Sends a message of the base protocol, unless too many wait.
    pub(super) fn send_base(&self, id: u8, payload: Vec<u8>) -> bool {
        self.send_now(id, payload).is_ok()
    }

    fn send_now(
        &self,
        id: u8,
        payload: Vec<u8>,
    ) -> Result<(), mpsc::error::TrySendError<Outgoing>> {
        let bytes = payload.len();
        // Before it is sent, as it may be written at once.
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let sent = self.outgoing.try_send(Outgoing { id, payload });
        if sent.is_err() {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent
    }

    fn send_message(&self, message: &Message) -> bool {
        let Some((id, payload)) = message.encode(self.info().version) else { return false };
        self.send_base(BASE_MESSAGES + id, payload)
    }

    /// Tells the peer; false if too much waits already. Half of the queue is left to other messages.
    pub fn send(&self, gossip: Gossip) -> bool {
        let has_room = self.outgoing.capacity() > MAX_QUEUED / 2
            && self.queued_bytes.load(Ordering::Relaxed) < MAX_QUEUED_BYTES;
        has_room && self.send_message(&Message::Gossip(gossip))
    }

    /// Tells the peer what is served; false if too much waits already.
    pub fn announce(&self, range: BlockRange) -> bool {
        self.send_message(&Message::BlockRangeUpdate(range))
    }

    fn send_request(&self, id: u8, payload: Vec<u8>) -> Result<(), SendError> {
        self.send_now(id, payload).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full,
            mpsc::error::TrySendError::Closed(_) => SendError::Failed(RequestError::Gone),
        })
    }

    /// Asks the peer; the answer comes over the receiver, or why there is none. One of more than
    /// `bytes` is a breach.
    ///
    /// # Errors
    /// If it cannot be asked now.
    pub fn request(
        &self,
        request: Request,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Answer<Response>>, RequestError> {
        let version = self.info().version;
        let (id, items) = expected(&request);
        let expected = ExpectedAnswer { id, items, bytes };
        let pauses = self.pauses.lock().total();
        self.requests.lock().add(expected, self.timing.request, pauses, |number| {
            let message = Message::Request(number, request).encode(version);
            let unspoken = SendError::Failed(RequestError::Unspoken(version));
            let (id, payload) = message.ok_or(unspoken)?;
            self.send_request(BASE_MESSAGES + id, payload)
        })
    }

    /// Asks the peer for parts of a state; the answer comes over the receiver, or why there is none.
    ///
    /// # Errors
    /// If it cannot be asked now.
    pub fn request_state(
        &self,
        request: rchk::Request,
    ) -> Result<oneshot::Receiver<Answer<rchk::Response>>, RequestError> {
        let base = self.info().rchk_base().ok_or(RequestError::NoStates)?;
        let (id, items) = match &request {
            rchk::Request::Chunks { ids, .. } => (rchk::id::CHUNKS, ids.len()),
            rchk::Request::Codes(hashes) => (rchk::id::CODES, hashes.len()),
        };
        let expected = ExpectedAnswer { id, items, bytes: usize::MAX };
        let pauses = self.pauses.lock().total();
        self.state_requests.lock().add(expected, self.timing.request, pauses, |number| {
            let (id, payload) = rchk::Message::Request(number, request).encode();
            self.send_request(base + id, payload)
        })
    }

    /// Tells those who have waited too long.
    pub(super) fn expire(&self) -> ExpiredRequests {
        let (limit, pauses) = (self.timing.request, self.pauses.lock().total());
        let blocks = self.requests.lock().expire(limit, pauses);
        let states = self.state_requests.lock().expire(limit, pauses);
        ExpiredRequests { told: blocks.told + states.told, blamed: blocks.blamed + states.blamed }
    }

    /// Tells all who wait that the peer is gone.
    pub(super) fn close(&self) {
        self.requests.lock().close();
        self.state_requests.lock().close();
    }
}

/// Id of the answer to a request, and how many items it may have.
fn expected(request: &Request) -> (u8, usize) {
    match request {
        Request::Headers(from) => (id::HEADERS, usize::try_from(from.limit).unwrap_or(usize::MAX)),
        Request::Bodies(hashes) => (id::BODIES, hashes.len()),
        Request::PooledTransactions(hashes) => (id::POOLED_TRANSACTIONS, hashes.len()),
        Request::Receipts { hashes, .. } => (id::RECEIPTS, hashes.len()),
        Request::AccessLists(hashes) => (id::ACCESS_LISTS, hashes.len()),
    }
}

/// How many items an answer has.
pub(super) const fn items(response: &Response) -> usize {
    match response {
        Response::Headers(items) => items.len(),
        Response::Bodies(items) => items.len(),
        Response::PooledTransactions(items) => items.len(),
        Response::Receipts { lists, .. } => lists.len(),
        Response::AccessLists(items) => items.len(),
    }
}
