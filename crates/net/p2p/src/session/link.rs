//! The handle of a session for the rest of the network.

use super::{
    SessionTiming,
    pauses::ReadingPauses,
    requests::{ExpectedAnswer, ExpiredRequests, RequestResult, RequestTable, SendError},
};
use crate::{
    eth::{BlockRange, EthMessage, EthRequest, EthResponse, TxGossip, id},
    handle::{PeerInfo, RequestError},
    rchk,
    rlpx::{BASE_MESSAGES, DisconnectReason},
    snap,
};
use parking_lot::{Mutex, RwLock};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// Maximum number of messages that wait to be written.
pub(super) const MAX_QUEUED: usize = 256;

/// With this many bytes waiting to be written, gossip is refused.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// An encoded message.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) id: u8,
    pub(super) payload: Vec<u8>,
}

/// A handle to a session. The session ends with [`disconnect`](Self::disconnect) or by itself.
#[derive(Debug)]
pub(crate) struct SessionHandle {
    info: RwLock<Arc<PeerInfo>>,
    outgoing: mpsc::Sender<OutgoingMessage>,
    /// The open requests of `eth`.
    pub(super) requests: Mutex<RequestTable<EthResponse>>,
    /// The open requests of `rchk`.
    pub(super) state_requests: Mutex<RequestTable<rchk::RchkResponse>>,
    /// The open requests of `snap`.
    pub(super) snap_requests: Mutex<RequestTable<snap::SnapResponse>>,
    end: watch::Sender<Option<DisconnectReason>>,
    timing: SessionTiming,
    pub(super) pauses: Mutex<ReadingPauses>,
    /// Bytes of the outgoing messages.
    pub(super) queued_bytes: Arc<AtomicUsize>,
    /// Woken when the peer has sent a ping.
    pub(super) pong: Arc<Notify>,
}

impl SessionHandle {
    /// Makes the handle for a peer, and the receiver of its outgoing messages.
    pub(super) fn new(
        info: PeerInfo,
        timing: SessionTiming,
    ) -> (Arc<Self>, mpsc::Receiver<OutgoingMessage>) {
        let (outgoing, receiver) = mpsc::channel(MAX_QUEUED);
        let link = Self {
            info: RwLock::new(Arc::new(info)),
            outgoing,
            requests: Mutex::default(),
            state_requests: Mutex::default(),
            snap_requests: Mutex::default(),
            end: watch::Sender::new(None),
            timing,
            pauses: Mutex::default(),
            queued_bytes: Arc::default(),
            pong: Arc::default(),
        };
        (Arc::new(link), receiver)
    }

    /// The description of the peer.
    pub(crate) fn info(&self) -> Arc<PeerInfo> {
        self.info.read().clone()
    }

    /// Updates the range of blocks that the peer serves.
    pub(super) fn set_range(&self, range: BlockRange) {
        let mut info = self.info.write();
        *info = Arc::new(PeerInfo { range, ..(**info).clone() });
    }

    /// Ends the session with this reason. The first reason counts.
    pub(crate) fn disconnect(&self, reason: DisconnectReason) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(reason);
            first
        });
    }

    /// Waits until a disconnect is requested.
    pub(super) async fn wait_disconnect(&self) -> DisconnectReason {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|reason| *reason) {
            Ok(Some(reason)) => reason,
            _ => DisconnectReason::Requested,
        }
    }

    /// Queues a message; false if the queue is full.
    pub(super) fn send_base(&self, id: u8, payload: Vec<u8>) -> bool {
        self.send_now(id, payload).is_ok()
    }

    fn send_now(
        &self,
        id: u8,
        payload: Vec<u8>,
    ) -> Result<(), mpsc::error::TrySendError<OutgoingMessage>> {
        let bytes = payload.len();
        // Counted before it is queued, since the writer may take it at once.
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let sent = self.outgoing.try_send(OutgoingMessage { id, payload });
        if sent.is_err() {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent
    }

    fn send_message(&self, message: &EthMessage) -> bool {
        let Some((id, payload)) = message.encode(self.info().version) else { return false };
        self.send_base(BASE_MESSAGES + id, payload)
    }

    /// Queues gossip; false if too much waits already. Half of the queue is reserved for other
    /// messages.
    pub(crate) fn send(&self, gossip: TxGossip) -> bool {
        let has_room = self.outgoing.capacity() > MAX_QUEUED / 2
            && self.queued_bytes.load(Ordering::Relaxed) < MAX_QUEUED_BYTES;
        has_room && self.send_message(&EthMessage::Gossip(gossip))
    }

    /// Queues an update of the served range; false if the queue is full.
    pub(crate) fn announce(&self, range: BlockRange) -> bool {
        self.send_message(&EthMessage::BlockRangeUpdate(range))
    }

    fn send_request(&self, id: u8, payload: Vec<u8>) -> Result<(), SendError> {
        self.send_now(id, payload).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full,
            mpsc::error::TrySendError::Closed(_) => SendError::Failed(RequestError::NotConnected),
        })
    }

    /// Sends a request. The receiver gets the answer, or the error. An answer of more than `bytes`
    /// bytes is a breach of the protocol.
    ///
    /// # Errors
    /// If the request cannot be sent now.
    pub(crate) fn request(
        &self,
        request: EthRequest,
        bytes: usize,
    ) -> Result<oneshot::Receiver<RequestResult<EthResponse>>, RequestError> {
        let version = self.info().version;
        let (id, items) = expected(&request);
        let expected = ExpectedAnswer { id, items, bytes };
        let pauses = self.pauses.lock().total();
        self.requests.lock().add(expected, self.timing.request, pauses, |number| {
            let message = EthMessage::Request(number, request).encode(version);
            let unspoken = SendError::Failed(RequestError::Unsupported(version));
            let (id, payload) = message.ok_or(unspoken)?;
            self.send_request(BASE_MESSAGES + id, payload)
        })
    }

    /// Sends an `rchk` request. The receiver gets the answer, or the error.
    ///
    /// # Errors
    /// If the request cannot be sent now.
    pub(crate) fn request_state(
        &self,
        request: rchk::RchkRequest,
    ) -> Result<oneshot::Receiver<RequestResult<rchk::RchkResponse>>, RequestError> {
        let base = self.info().rchk_base().ok_or(RequestError::NoStates)?;
        let (id, items) = match &request {
            rchk::RchkRequest::Chunks { ids, .. } => (rchk::id::CHUNKS, ids.len()),
            rchk::RchkRequest::Codes(hashes) => (rchk::id::CODES, hashes.len()),
        };
        let expected = ExpectedAnswer { id, items, bytes: usize::MAX };
        let pauses = self.pauses.lock().total();
        self.state_requests.lock().add(expected, self.timing.request, pauses, |number| {
            let (id, payload) = rchk::RchkMessage::Request(number, request).encode();
            self.send_request(base + id, payload)
        })
    }

    /// Sends a `snap` request. The receiver gets the answer, or the error.
    ///
    /// # Errors
    /// If the request cannot be sent now.
    pub(crate) fn request_snap(
        &self,
        request: snap::SnapRequest,
    ) -> Result<oneshot::Receiver<RequestResult<snap::SnapResponse>>, RequestError> {
        let info = self.info();
        let (base, version) = info.snap_base().zip(info.snap).ok_or(RequestError::NoSnap)?;
        if !request.is_of(version) {
            return Err(RequestError::UnsupportedSnap(version));
        }
        let (id, items) = (request.answered_by(), request.most_items());
        let expected = ExpectedAnswer { id, items, bytes: usize::MAX };
        let pauses = self.pauses.lock().total();
        self.snap_requests.lock().add(expected, self.timing.request, pauses, |number| {
            let (id, payload) = snap::SnapMessage::Request(number, request).encode();
            self.send_request(base + id, payload)
        })
    }

    /// Fails the requests that have timed out.
    pub(super) fn expire(&self) -> ExpiredRequests {
        let (limit, pauses) = (self.timing.request, self.pauses.lock().total());
        let blocks = self.requests.lock().expire(limit, pauses);
        let states = self.state_requests.lock().expire(limit, pauses);
        let ranges = self.snap_requests.lock().expire(limit, pauses);
        let all = [blocks, states, ranges];
        ExpiredRequests {
            told: all.iter().map(|of| of.told).sum(),
            blamed: all.iter().map(|of| of.blamed).sum(),
        }
    }

    /// Fails all open requests: the peer is gone.
    pub(super) fn close(&self) {
        self.requests.lock().close();
        self.state_requests.lock().close();
        self.snap_requests.lock().close();
    }
}

/// The message id of the answer to a request, and its maximum number of items.
fn expected(request: &EthRequest) -> (u8, usize) {
    match request {
        EthRequest::Headers(from) => {
            (id::HEADERS, usize::try_from(from.limit).unwrap_or(usize::MAX))
        }
        EthRequest::Bodies(hashes) => (id::BODIES, hashes.len()),
        EthRequest::PooledTransactions(hashes) => (id::POOLED_TRANSACTIONS, hashes.len()),
        EthRequest::Receipts { hashes, .. } => (id::RECEIPTS, hashes.len()),
        EthRequest::AccessLists(hashes) => (id::ACCESS_LISTS, hashes.len()),
        EthRequest::Cells { hashes, .. } => (id::CELLS, hashes.len()),
    }
}

/// The number of items in an answer.
pub(super) const fn items(response: &EthResponse) -> usize {
    match response {
        EthResponse::Headers(items) => items.len(),
        EthResponse::Bodies(items) => items.len(),
        EthResponse::PooledTransactions(items) => items.len(),
        EthResponse::Receipts { lists, .. } => lists.len(),
        EthResponse::AccessLists(items) => items.len(),
        EthResponse::Cells { cells, .. } => cells.len(),
    }
}
