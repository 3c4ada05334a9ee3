//! A session while it lasts.

use super::{
    Timing,
    establish::{EMPTY_LIST, Established, MAX_BASE_BYTES, farewell},
    link::{self, Link, Outgoing},
    states::{self, StateLanes},
};
use crate::{
    eth::{self, Gossip, MAX_ITEMS, Message, PeerId, Request, Version},
    handle::{Event, Offence, PeerInfo, Serve, ServeStates},
    heard::{GossipSender, GossipShare},
    rate::Bucket,
    rchk,
    rlpx::{BASE_MESSAGES, DisconnectReason, Raw, Reader, RlpxError, Writer, id},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    sync::{Notify, Semaphore, broadcast, mpsc, oneshot},
    time::{Instant, timeout},
};

/// Messages that a peer may send in a second, and at once.
const MESSAGES: (u32, u32) = (500, 2000);

/// KiB of answers that a peer may have in a second, and at once.
const SERVED_KIB: (u32, u32) = (64 << 10, 128 << 10);

/// KiB of gossip that a peer may send in a second, and at once.
const HEARD_KIB: (u32, u32) = (2 << 10, 8 << 10);

/// Requests of a peer that wait to be served.
const MAX_REQUESTS: usize = 32;

/// Answers that wait to be written.
const MAX_ANSWERS: usize = 2;

/// Answers of `eth` that are made at once, all peers together: threads stay for whatever else blocks.
pub(crate) const MAX_ANSWERING: usize = 8;

/// Bytes of a message that are decoded on a thread of the runtime.
const DECODED_HERE: usize = 64 << 10;

/// What all peers together have sent and got.
#[derive(Debug, Default)]
pub struct Stats {
    /// Messages that have come.
    pub messages_in: AtomicU64,
    /// Messages that were sent.
    pub messages_out: AtomicU64,
    /// Bytes of messages that have come, decompressed.
    pub bytes_in: AtomicU64,
    /// Bytes that were sent, compressed.
    pub bytes_out: AtomicU64,
    /// Requests of ours that were not answered in time.
    pub timeouts: AtomicU64,
    /// Requests that were answered.
    pub served: AtomicU64,
    /// Requests that were dropped, as too many of the same peer waited.
    pub unserved: AtomicU64,
    /// Connections that were dialled.
    pub dialled: AtomicU64,
    /// Connections that came.
    pub accepted: AtomicU64,
    /// Connections that came and were closed at once, as too many were under way.
    pub throttled: AtomicU64,
    /// Connections that have led to no peer.
    pub refused: AtomicU64,
    /// Peers that were banned.
    pub banned: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// What a session needs of the node.
#[derive(Debug)]
pub struct Context {
    /// Who answers requests.
    pub serve: Arc<dyn Serve>,
    /// Places for answers of `eth` that are being made: fewer than there are threads that may block,
    /// so that messages can always be decoded.
    pub answering: Arc<Semaphore>,
    /// Who answers requests for parts of states.
    pub states: Option<Arc<dyn ServeStates>>,
    /// What these answers may take.
    pub lanes: StateLanes,
    /// Where transactions go that are told.
    pub heard: GossipSender,
    /// Where events go.
    pub events: broadcast::Sender<Event>,
    /// Counters.
    pub stats: Arc<Stats>,
}

/// Who is told of sessions.
pub trait Host: Send + Sync {
    /// One begins; nothing of it has been heard yet.
    fn begin(&self, link: &Arc<Link>);
    /// Its peer has done wrong.
    fn offence(&self, peer: PeerId, offence: Offence);
    /// It has ended; the peer may not have been told yet.
    fn end(&self, peer: PeerId, ended: &Ended);
}

/// How a session has ended.
#[derive(Debug)]
pub struct Ended {
    /// The reason that we gave, if it was we who ended it.
    pub told: Option<DisconnectReason>,
    /// What the peer did wrong, if that was the reason.
    pub offence: Option<Offence>,
    /// The same in words.
    pub why: String,
}

impl Ended {
    fn rlpx(error: &RlpxError) -> Self {
        let told = error.reason();
        let breach = told.filter(|reason| *reason != DisconnectReason::Timeout);
        Self { told, offence: breach.map(Offence::Breach), why: error.to_string() }
    }

    fn breach(why: impl ToString) -> Self {
        let reason = DisconnectReason::SubprotocolError;
        Self { told: Some(reason), offence: Some(Offence::Breach(reason)), why: why.to_string() }
    }
}

/// Runs a session to its end.
pub async fn run<S: AsyncRead + AsyncWrite + Send + 'static>(
    established: Established<S>,
    timing: Timing,
    context: &Context,
    host: &dyn Host,
) {
    // The place is given back at the end.
    let Established { info, place: _place, mut reader, writer } = established;
    let peer = info.id;
    let (link, outgoing) = Link::new(info, timing);
    let (answers, answers_out) = mpsc::channel(MAX_ANSWERS);
    let (requests, requests_out) = mpsc::channel(MAX_REQUESTS);
    let (state_answers, state_answers_out) = mpsc::channel(states::MAX_ANSWERS);
    let (state_requests, state_requests_out) = mpsc::channel(states::MAX_REQUESTS);
    let requests = RequestQueues { blocks: requests, states: state_requests };
    let (stop, stopped) = oneshot::channel();
    let queues = WriteQueues {
        outgoing,
        answers: answers_out,
        state_answers: state_answers_out,
        pong: link.pong.clone(),
        bytes: link.queued_bytes.clone(),
    };
    let stats = context.stats.clone();
    let mut writing = tokio::spawn(write_all(writer, queues, stopped, timing, stats));
    host.begin(&link);
    let mut session = Session::new(&link, context, timing);
    let ended = tokio::select! {
        ended = session.read_all(&mut reader, &requests) => ended,
        ended = serve_all(&link, context, requests_out, &answers) => ended,
        ended = states::serve(&link, context, state_requests_out, &state_answers) => ended,
        ended = keep_time(&link, context, host, timing) => ended,
        reason = link.ended() => {
            Ended { told: Some(reason), offence: None, why: format!("we disconnect: {reason}") }
        }
        result = &mut writing => match result {
            Ok(Err(error)) => Ended { told: None, offence: None, why: error.to_string() },
            _ => Ended { told: None, offence: None, why: "nothing more to write".to_owned() },
        },
    };
    link.close();
    if let Some(offence) = ended.offence {
        host.offence(peer, offence);
    }
    host.end(peer, &ended);
    if !writing.is_finished() {
        // The writer has ended by itself if nobody listens.
        let _ = stop.send(());
        match timeout(timing.write, &mut writing).await {
            Ok(Ok(Ok(mut writer))) => {
                if let Some(reason) = ended.told {
                    let farewell = farewell(&mut reader, &mut writer, reason);
                    // Who does not take it in time will find out anyway.
                    let _ = timeout(Duration::from_secs(2), farewell).await;
                }
            }
            Ok(_) => {}
            Err(_) => writing.abort(),
        }
    }
}

/// What is to be written.
struct WriteQueues {
    outgoing: mpsc::Receiver<Outgoing>,
    answers: mpsc::Receiver<Outgoing>,
    state_answers: mpsc::Receiver<states::StateAnswer>,
    /// Woken when the peer has pinged.
    pong: Arc<Notify>,
    /// Bytes of what is outgoing.
    bytes: Arc<AtomicUsize>,
}

impl WriteQueues {
    /// The next message, and what it holds until it is written. Pongs come first, as the peer goes
    /// without them.
    async fn next(&mut self) -> (Outgoing, Option<states::AnswerHold>) {
        tokio::select! {
            biased;
            () = self.pong.notified() => {
                (Outgoing { id: id::PONG, payload: EMPTY_LIST.to_vec() }, None)
            }
            Some(next) = self.outgoing.recv() => {
                self.bytes.fetch_sub(next.payload.len(), Ordering::Relaxed);
                (next, None)
            }
            Some(next) = self.answers.recv() => (next, None),
            Some(next) = self.state_answers.recv() => (next.outgoing, Some(next.held)),
        }
    }
}

/// Writes what comes until told to stop; gives the writer back.
async fn write_all<S: AsyncRead + AsyncWrite>(
    mut writer: Writer<WriteHalf<S>>,
    mut queues: WriteQueues,
    mut stop: oneshot::Receiver<()>,
    timing: Timing,
    stats: Arc<Stats>,
) -> Result<Writer<WriteHalf<S>>, RlpxError> {
    loop {
        // Given back once it is written.
        let (next, _held) = tokio::select! {
            biased;
            _ = &mut stop => return Ok(writer),
            next = queues.next() => next,
        };
        let bytes = timeout(timing.write, writer.write(next.id, &next.payload))
            .await
            .map_err(|_| RlpxError::Timeout("it to take a message"))??;
        add(&stats.messages_out, 1);
        add(&stats.bytes_out, bytes as u64);
    }
}

/// Pings, and looks for requests whose time is over.
async fn keep_time(link: &Link, context: &Context, host: &dyn Host, timing: Timing) -> Ended {
    let mut ping = tokio::time::interval(timing.ping);
    ping.reset();
    let pause = (timing.request / 8).max(Duration::from_millis(10));
    let mut sweep = tokio::time::interval(pause);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut swept = Instant::now();
    loop {
        tokio::select! {
            // If the queue is full, writing takes too long, and that ends the session.
            _ = ping.tick() => { link.send_base(id::PING, EMPTY_LIST.to_vec()); }
            _ = sweep.tick() => {
                // If this comes late, nothing was read meanwhile either.
                let late = swept.elapsed().saturating_sub(pause);
                if late > pause {
                    link.pauses.lock().add(late);
                }
                swept = Instant::now();
                let expired = link.expire();
                add(&context.stats.timeouts, expired.told as u64);
                for _ in 0..expired.blamed {
                    host.offence(link.info().id, Offence::Timeout);
                }
            }
        }
    }
}

/// Where requests of a peer go, with their numbers.
struct RequestQueues {
    blocks: mpsc::Sender<(u64, Request)>,
    states: mpsc::Sender<states::NumberedRequest>,
}

/// Answers requests of `eth`, one after the other.
async fn serve_all(
    link: &Link,
    context: &Context,
    mut requests: mpsc::Receiver<(u64, Request)>,
    answers: &mpsc::Sender<Outgoing>,
) -> Ended {
    let mut rate = Bucket::new(SERVED_KIB, now());
    while let Some((number, request)) = requests.recv().await {
        let (serve, info) = (context.serve.clone(), link.info());
        // In turn: each peer waits for one place at a time.
        let place = context.answering.clone().acquire_owned().await;
        let answer = tokio::task::spawn_blocking(move || {
            let _place = place;
            answer(&*serve, &info, number, request)
        });
        let answer = answer.await;
        let Ok(Some(outgoing)) = answer else { continue };
        let wait = rate.spend(kib(outgoing.payload.len()), now());
        tokio::time::sleep(wait).await;
        if answers.send(outgoing).await.is_err() {
            break;
        }
        add(&context.stats.served, 1);
    }
    // Whoever has closed the channel says why; so wait for it.
    std::future::pending().await
}

/// The clock of tokio, so that tests can set it.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// KiB of so many bytes, and one.
pub(super) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX - 1) + 1
}

fn answer(serve: &dyn Serve, info: &PeerInfo, number: u64, request: Request) -> Option<Outgoing> {
    let response = Message::Response(number, serve.answer(info, request));
    let (id, payload) = response.encode(info.version)?;
    Some(Outgoing { id: BASE_MESSAGES + id, payload })
}

/// The reading side. It waits for bytes of its own connection, for the decoding of what it has read,
/// and by the rates at which its peer may send: never for what other peers do, nor for what it has read
/// to be looked at.
struct Session<'a> {
    link: &'a Arc<Link>,
    context: &'a Context,
    timing: Timing,
    messages: Bucket,
    heard: Bucket,
    share: GossipShare,
}

impl<'a> Session<'a> {
    fn new(link: &'a Arc<Link>, context: &'a Context, timing: Timing) -> Self {
        let (messages, heard) = (Bucket::new(MESSAGES, now()), Bucket::new(HEARD_KIB, now()));
        let share = context.heard.share(link.info().id);
        Self { link, context, timing, messages, heard, share }
    }

    async fn read_all<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut Reader<ReadHalf<S>>,
        requests: &RequestQueues,
    ) -> Ended {
        let info = self.link.info();
        let (version, states) = (info.version, info.rchk_base());
        drop(info);
        loop {
            let read = reader.read(|id| limit(self.link, version, states, id));
            let raw = match timeout(self.timing.idle, read).await {
                Ok(Ok(raw)) => raw,
                Ok(Err(error)) => return Ended::rlpx(&error),
                Err(_) => return Ended::rlpx(&RlpxError::Timeout("its next message")),
            };
            self.link.pauses.lock().begin();
            add(&self.context.stats.messages_in, 1);
            add(&self.context.stats.bytes_in, raw.payload.len() as u64);
            let handled = match raw.id {
                id::DISCONNECT => {
                    let reason = DisconnectReason::decode(&raw.payload);
                    let why = format!("the peer disconnects: {reason}");
                    return Ended { told: None, offence: None, why };
                }
                id::PING => {
                    self.link.pong.notify_one();
                    Ok(())
                }
                id::PONG => Ok(()),
                id => match (states.filter(|base| *base <= id), id) {
                    (Some(base), _) => self.handle_state(base, &raw, &requests.states),
                    (None, BASE_MESSAGES..) => self.handle(version, raw, &requests.blocks).await,
                    (None, id) => Err(Ended::rlpx(&RlpxError::Unexpected {
                        id,
                        expected: "a ping, a pong, a disconnect or a message of a protocol that is \
                                   spoken",
                    })),
                },
            };
            if let Err(ended) = handled {
                return ended;
            }
            // A peer that sends too much is read more slowly. What it has sent is answered before.
            let wait = self.messages.spend(1, now()).max(self.heard.wait(now()));
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            self.link.pauses.lock().end();
        }
    }

    /// A message of `eth`.
    async fn handle(
        &mut self,
        version: Version,
        raw: Raw,
        requests: &mpsc::Sender<(u64, Request)>,
    ) -> Result<(), Ended> {
        let id = raw.id - BASE_MESSAGES;
        let length = raw.payload.len();
        if eth::is_response(id) {
            let awaited = eth::request_id(&raw.payload)
                .ok_or(())
                .and_then(|number| self.link.requests.lock().is_awaited(number, id));
            match awaited {
                Ok(true) => {}
                // Too late, and reported already.
                Ok(false) => return Ok(()),
                Err(()) => return Err(Ended::breach("it answers what was not asked")),
            }
        }
        let room = self.share.room();
        let message = if length <= DECODED_HERE {
            decode(version, id, &raw.payload, room)
        } else {
            let decode = move || decode(version, id, &raw.payload, room);
            match tokio::task::spawn_blocking(decode).await {
                Ok(message) => message,
                Err(error) => return Err(Ended::breach(error)),
            }
        };
        match message.map_err(Ended::breach)? {
            Message::Status(_) => return Err(Ended::breach("a second status")),
            Message::BlockRangeUpdate(range) => {
                self.link.set_range(range);
                self.event(Event::RangeUpdate(self.link.info().id, range));
            }
            Message::Request(number, mut request) => {
                request.truncate(MAX_ITEMS);
                // Dropped if too many of the peer wait: to wait until they are answered would be to
                // wait for what other peers have asked.
                if requests.try_send((number, request)).is_err() {
                    add(&self.context.stats.unserved, 1);
                }
            }
            Message::Response(number, response) => {
                let items = link::items(&response);
                let answered = self.link.requests.lock().answer(number, response, items);
                answered.map_err(|()| Ended::breach("its answer has more than was asked for"))?;
            }
            Message::Gossip(gossip) => {
                self.heard.spend(kib(length), now());
                self.share.push(gossip);
            }
        }
        Ok(())
    }

    /// A message of `rchk`, whose first id is `base`. It is never waited here: other messages follow.
    fn handle_state(
        &self,
        base: u8,
        raw: &Raw,
        requests: &mpsc::Sender<states::NumberedRequest>,
    ) -> Result<(), Ended> {
        let (id, payload) = (raw.id - base, &raw.payload);
        if rchk::is_response(id) {
            let number = rchk::request_id(payload);
            let awaited = number
                .ok_or(())
                .and_then(|number| self.link.state_requests.lock().is_awaited(number, id));
            match awaited {
                Ok(true) => {}
                // Too late, and reported already.
                Ok(false) => return Ok(()),
                Err(()) => return Err(Ended::breach("it answers what was not asked")),
            }
        }
        match rchk::Message::decode(id, payload).map_err(Ended::breach)? {
            rchk::Message::Request(number, request) => {
                if let Err(mpsc::error::TrySendError::Full(asked)) =
                    requests.try_send((number, request))
                {
                    let (id, payload) = states::refusal(asked);
                    // If it does not read, it is not told.
                    self.link.send_base(base + id, payload);
                }
            }
            rchk::Message::Response(number, response) => {
                let items = response.parts().as_ref().map_or(0, Vec::len);
                let answered = self.link.state_requests.lock().answer(number, response, items);
                answered.map_err(|()| Ended::breach("its answer has more than was asked for"))?;
            }
        }
        Ok(())
    }

    fn event(&self, event: Event) {
        // Nobody may be listening.
        let _ = self.context.events.send(event);
    }
}

/// Decodes a message of `eth`; of transactions that are told as many as there is room for. Their hashes
/// are computed here, and not by the task that looks at those of all peers.
fn decode(
    version: Version,
    id: u8,
    payload: &[u8],
    room: usize,
) -> Result<Message, eth::DecodeError> {
    let message = Message::decode_within(version, id, payload, room)?;
    if let Message::Gossip(Gossip::Transactions(transactions)) = &message {
        transactions.iter().for_each(|transaction| {
            transaction.tx_hash();
        });
    }
    Ok(message)
}

/// How long a message may be now; `states` is the first id of `rchk`.
fn limit(link: &Link, version: Version, states: Option<u8>, id: u8) -> Option<usize> {
    if let Some(id) = states.and_then(|base| id.checked_sub(base)) {
        let limit = rchk::limit(id)?;
        if rchk::is_response(id) {
            return Some(
                link.state_requests.lock().expects(id).map_or(0, |bytes| bytes.min(limit)),
            );
        }
        return Some(limit);
    }
    match id.checked_sub(BASE_MESSAGES) {
        None => (id::DISCONNECT..=id::PONG).contains(&id).then_some(MAX_BASE_BYTES),
        Some(id) => {
            let limit = eth::limit(version, id)?;
            if eth::is_response(id) {
                return Some(link.requests.lock().expects(id).map_or(0, |bytes| bytes.min(limit)));
            }
            Some(limit)
        }
    }
}
