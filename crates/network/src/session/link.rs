//! What the rest of a node holds of a session.

use super::Timing;
use crate::{
    eth::{BlockRange, Gossip, Message, Request, Response, id},
    handle::{PeerInfo, RequestError},
    rlpx::{BASE_MESSAGES, DisconnectReason},
};
use parking_lot::{Mutex, RwLock};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

/// Requests of ours that a peer may have at once.
const MAX_IN_FLIGHT: usize = 16;

/// Messages that wait to be written.
pub(super) const MAX_QUEUED: usize = 256;

/// For how long an answer that comes too late is not held against a peer again.
const LATE: Duration = Duration::from_secs(120);

/// A message that is encoded already.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: u8,
    pub(super) payload: Vec<u8>,
}

type Answer = Result<Response, RequestError>;

/// A request under way.
#[derive(Debug)]
struct Pending {
    /// Id of the message that answers it.
    answer: u8,
    /// How many items there may be.
    items: usize,
    /// Who waits; nobody any more once the time is over.
    reply: Option<oneshot::Sender<Answer>>,
    deadline: Instant,
}

/// A session from outside. It ends with [`disconnect`](Self::disconnect), or by itself.
#[derive(Debug)]
pub struct Link {
    info: RwLock<Arc<PeerInfo>>,
    outgoing: mpsc::Sender<Outgoing>,
    pending: Mutex<Requests>,
    end: watch::Sender<Option<DisconnectReason>>,
    timing: Timing,
}

#[derive(Debug, Default)]
struct Requests {
    next: u64,
    under_way: HashMap<u64, Pending>,
    over: bool,
}

impl Link {
    /// Of a peer; what is sent comes out of the receiver.
    pub(super) fn new(info: PeerInfo, timing: Timing) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        let (outgoing, receiver) = mpsc::channel(MAX_QUEUED);
        let pending = Requests { next: rand::random::<u32>().into(), ..Requests::default() };
        let link = Self {
            info: RwLock::new(Arc::new(info)),
            outgoing,
            pending: Mutex::new(pending),
            end: watch::Sender::new(None),
            timing,
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
        self.outgoing.try_send(Outgoing { id, payload }).is_ok()
    }

    fn send_message(&self, message: &Message) -> bool {
        let Some((id, payload)) = message.encode(self.info().version) else { return false };
        self.send_base(BASE_MESSAGES + id, payload)
    }

    /// Tells the peer; false if too much waits already.
    pub fn send(&self, gossip: Gossip) -> bool {
        self.send_message(&Message::Gossip(gossip))
    }

    /// Tells the peer what is served; false if too much waits already.
    pub fn announce(&self, range: BlockRange) -> bool {
        self.send_message(&Message::BlockRangeUpdate(range))
    }

    /// Asks the peer; the answer comes over the receiver, or why there is none.
    ///
    /// # Errors
    /// If it cannot be asked now.
    pub fn request(&self, request: Request) -> Result<oneshot::Receiver<Answer>, RequestError> {
        let version = self.info().version;
        let (answer, items) = expected(&request);
        let mut pending = self.pending.lock();
        if pending.over {
            return Err(RequestError::Gone);
        }
        let waiting = pending.under_way.values().filter(|one| one.reply.is_some()).count();
        if waiting >= MAX_IN_FLIGHT {
            return Err(RequestError::Busy(waiting));
        }
        let number = pending.next;
        let (id, payload) = Message::Request(number, request)
            .encode(version)
            .ok_or(RequestError::Unspoken(version))?;
        let outgoing = Outgoing { id: BASE_MESSAGES + id, payload };
        match self.outgoing.try_send(outgoing) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(RequestError::Busy(waiting)),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(RequestError::Gone),
        }
        pending.next += 1;
        let (sender, receiver) = oneshot::channel();
        let deadline = Instant::now() + self.timing.request;
        let one = Pending { answer, items, reply: Some(sender), deadline };
        pending.under_way.insert(number, one);
        Ok(receiver)
    }

    /// Whether an answer of this id may come.
    pub(super) fn expects(&self, answer: u8) -> bool {
        self.pending.lock().under_way.values().any(|one| one.answer == answer)
    }

    /// Whether somebody waits for the answer to this request; forgets it if nobody does any more.
    /// Err if there was never such a request.
    pub(super) fn is_awaited(&self, number: u64, answer: u8) -> Result<bool, ()> {
        let mut pending = self.pending.lock();
        let one = pending.under_way.get(&number).ok_or(())?;
        if one.answer != answer {
            return Err(());
        }
        let awaited = one.reply.as_ref().is_some_and(|reply| !reply.is_closed());
        if !awaited {
            pending.under_way.remove(&number);
        }
        Ok(awaited)
    }

    /// Hands over an answer. Err if it has more items than were asked for.
    pub(super) fn answer(&self, number: u64, response: Response) -> Result<(), ()> {
        let Some(one) = self.pending.lock().under_way.remove(&number) else { return Ok(()) };
        let fits = items(&response) <= one.items;
        if let Some(reply) = one.reply {
            // Who no longer waits does not want it.
            let _ = reply.send(if fits { Ok(response) } else { Err(RequestError::WrongAnswer) });
        }
        if fits { Ok(()) } else { Err(()) }
    }

    /// Tells those who have waited too long; how many there were.
    pub(super) fn expire(&self) -> usize {
        let now = Instant::now();
        let mut pending = self.pending.lock();
        let mut expired = 0;
        for one in pending.under_way.values_mut().filter(|one| one.deadline <= now) {
            if let Some(reply) = one.reply.take() {
                // As above.
                let _ = reply.send(Err(RequestError::Timeout(self.timing.request)));
                expired += 1;
            }
        }
        pending.under_way.retain(|_, one| now < one.deadline + LATE);
        expired
    }

    /// Tells all who wait that the peer is gone.
    pub(super) fn close(&self) {
        let mut pending = self.pending.lock();
        pending.over = true;
        for (_, one) in pending.under_way.drain() {
            if let Some(reply) = one.reply {
                // As above.
                let _ = reply.send(Err(RequestError::Gone));
            }
        }
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

const fn items(response: &Response) -> usize {
    match response {
        Response::Headers(items) => items.len(),
        Response::Bodies(items) => items.len(),
        Response::PooledTransactions(items) => items.len(),
        Response::Receipts { lists, .. } => lists.len(),
        Response::AccessLists(items) => items.len(),
    }
}
