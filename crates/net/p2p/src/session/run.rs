//! A session while it runs.

use super::{
    SessionTiming,
    establish::{EMPTY_LIST, EstablishedPeer, MAX_BASE_BYTES, farewell},
    link::{self, OutgoingMessage, SessionHandle},
    state_serving::{self, ServeLimits, StateRequest},
};
use crate::{
    eth::{self, EthMessage, EthRequest, EthVersion, MAX_ITEMS, PeerId, TxGossip},
    gossip_queue::{GossipSender, GossipShare},
    handle::{
        EthRequestHandler, PeerEvent, PeerInfo, PeerOffence, SnapRequestHandler,
        StateRequestHandler,
    },
    rate::TokenBucket,
    rchk,
    rlpx::{
        BASE_MESSAGES, DisconnectReason, MessageReader, MessageWriter, RawMessage, RlpxError, id,
    },
    snap::{self, SnapVersion},
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

/// Messages that a peer may send: a second, and at once.
const MESSAGES: (u32, u32) = (500, 2000);

/// KiB of answers that a peer may get: a second, and at once.
const SERVED_KIB: (u32, u32) = (64 << 10, 128 << 10);

/// KiB of gossip that a peer may send: a second, and at once.
const HEARD_KIB: (u32, u32) = (2 << 10, 8 << 10);

/// Maximum number of a peer's requests that wait to be served.
const MAX_REQUESTS: usize = 32;

/// Maximum number of answers that wait to be written.
const MAX_ANSWERS: usize = 2;

/// Maximum number of `eth` answers in progress for all peers. Other blocking work keeps some
/// threads.
pub(crate) const MAX_ANSWERING: usize = 8;

/// Messages of up to this many bytes are decoded on the runtime's own threads.
const DECODED_HERE: usize = 64 << 10;

/// Counters of the whole network.
#[derive(Debug, Default)]
pub struct NetworkStats {
    /// Messages that were received.
    pub messages_in: AtomicU64,
    /// Messages that were sent.
    pub messages_out: AtomicU64,
    /// Bytes of received messages, decompressed.
    pub bytes_in: AtomicU64,
    /// Bytes that were sent, compressed.
    pub bytes_out: AtomicU64,
    /// Requests of this node that have timed out.
    pub timeouts: AtomicU64,
    /// Requests of peers that were answered.
    pub served: AtomicU64,
    /// Requests of peers that were dropped, since too many of the same peer waited.
    pub unserved: AtomicU64,
    /// Connections that were dialled.
    pub dialled: AtomicU64,
    /// Inbound connections that were accepted.
    pub accepted: AtomicU64,
    /// Inbound connections that were closed at once, since too many were under way.
    pub throttled: AtomicU64,
    /// Connections that led to no peer.
    pub refused: AtomicU64,
    /// Peers that were banned.
    pub banned: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// What answers requests for parts of states.
#[derive(Clone, Debug)]
pub(crate) struct RequestHandlers {
    /// Answers `rchk` requests, if `rchk` is on.
    pub(crate) states: Option<Arc<dyn StateRequestHandler>>,
    /// Answers `snap` requests, if the node serves them.
    pub(crate) ranges: Option<Arc<dyn SnapRequestHandler>>,
}

/// What a session needs from the node.
#[derive(Debug)]
pub(crate) struct SessionContext {
    /// Answers `eth` requests.
    pub(crate) serve: Arc<dyn EthRequestHandler>,
    /// Permits for `eth` answers in progress: fewer than there are blocking threads, so that
    /// messages can always be decoded.
    pub(crate) answering: Arc<Semaphore>,
    /// Answers requests for parts of states.
    pub(crate) handlers: RequestHandlers,
    /// Limits on the answers to `rchk` and `snap` requests.
    pub(crate) lanes: ServeLimits,
    /// Receives gossip.
    pub(crate) heard: GossipSender,
    /// Receives peer events.
    pub(crate) events: broadcast::Sender<PeerEvent>,
    /// Counters.
    pub(crate) stats: Arc<NetworkStats>,
}

/// Observes the sessions.
pub(crate) trait SessionHost: Send + Sync {
    /// A session begins. Nothing has been read from it yet.
    fn begin(&self, link: &Arc<SessionHandle>);
    /// The peer has committed an offence.
    fn offence(&self, peer: PeerId, offence: PeerOffence);
    /// A session has ended. The reason may not have been sent to the peer yet.
    fn end(&self, peer: Arc<PeerInfo>, ended: &SessionEnd);
}

/// How a session has ended.
#[derive(Debug)]
pub(crate) struct SessionEnd {
    /// The reason to send to the peer, if this node ended the session.
    pub(crate) told: Option<DisconnectReason>,
    /// The offence of the peer that ended the session, if any.
    pub(crate) offence: Option<PeerOffence>,
    /// The cause in words.
    pub(crate) why: String,
}

impl SessionEnd {
    fn rlpx(error: &RlpxError) -> Self {
        let told = error.reason();
        let breach = told.filter(|reason| *reason != DisconnectReason::Timeout);
        Self { told, offence: breach.map(PeerOffence::Breach), why: error.to_string() }
    }

    pub(super) fn breach(why: impl ToString) -> Self {
        let reason = DisconnectReason::SubprotocolError;
        Self {
            told: Some(reason),
            offence: Some(PeerOffence::Breach(reason)),
            why: why.to_string(),
        }
    }
}

/// Runs a session to its end.
pub(crate) async fn run<S: AsyncRead + AsyncWrite + Send + 'static>(
    established: EstablishedPeer<S>,
    timing: SessionTiming,
    context: &SessionContext,
    host: &dyn SessionHost,
) {
    // The slot is freed at the end of this function.
    let EstablishedPeer { info, place: _place, mut reader, writer } = established;
    let peer = info.id;
    let (link, outgoing) = SessionHandle::new(info, timing);
    let (answers, answers_out) = mpsc::channel(MAX_ANSWERS);
    let (requests, requests_out) = mpsc::channel(MAX_REQUESTS);
    let (state_answers, state_answers_out) = mpsc::channel(state_serving::MAX_ANSWERS);
    let (state_requests, state_requests_out) = mpsc::channel(state_serving::MAX_REQUESTS);
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
    let mut session = SessionReader::new(&link, context, timing);
    let ended = tokio::select! {
        ended = session.read_all(&mut reader, &requests) => ended,
        ended = serve_all(&link, context, requests_out, &answers) => ended,
        ended = state_serving::serve(&link, context, state_requests_out, &state_answers) => ended,
        ended = keep_time(&link, context, host, timing) => ended,
        reason = link.wait_disconnect() => {
            SessionEnd { told: Some(reason), offence: None, why: format!("we disconnect: {reason}") }
        }
        result = &mut writing => match result {
            Ok(Err(error)) => SessionEnd { told: None, offence: None, why: error.to_string() },
            _ => SessionEnd { told: None, offence: None, why: "nothing more to write".to_owned() },
        },
    };
    link.close();
    if let Some(offence) = ended.offence {
        host.offence(peer, offence);
    }
    host.end(link.info(), &ended);
    if !writing.is_finished() {
        // The writer may have ended by itself.
        let _ = stop.send(());
        match timeout(timing.write, &mut writing).await {
            Ok(Ok(Ok(mut writer))) => {
                if let Some(reason) = ended.told {
                    let farewell = farewell(&mut reader, &mut writer, reason);
                    // The reason is a courtesy: a timeout here changes nothing.
                    let _ = timeout(Duration::from_secs(2), farewell).await;
                }
            }
            Ok(_) => {}
            Err(_) => writing.abort(),
        }
    }
}

/// The queues of messages to be written.
struct WriteQueues {
    outgoing: mpsc::Receiver<OutgoingMessage>,
    answers: mpsc::Receiver<OutgoingMessage>,
    state_answers: mpsc::Receiver<state_serving::StateAnswer>,
    /// Woken when the peer has sent a ping.
    pong: Arc<Notify>,
    /// Bytes of the outgoing messages.
    bytes: Arc<AtomicUsize>,
}

impl WriteQueues {
    /// The next message, and the permits that it holds until it is written. Pongs come first, since
    /// the peer disconnects without them.
    async fn next(&mut self) -> (OutgoingMessage, Option<state_serving::AnswerPermits>) {
        tokio::select! {
            biased;
            () = self.pong.notified() => {
                (OutgoingMessage { id: id::PONG, payload: EMPTY_LIST.to_vec() }, None)
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

/// Writes messages until it is stopped. Returns the writer.
async fn write_all<S: AsyncRead + AsyncWrite>(
    mut writer: MessageWriter<WriteHalf<S>>,
    mut queues: WriteQueues,
    mut stop: oneshot::Receiver<()>,
    timing: SessionTiming,
    stats: Arc<NetworkStats>,
) -> Result<MessageWriter<WriteHalf<S>>, RlpxError> {
    loop {
        // The permits are released once the message is written.
        let (next, _held) = tokio::select! {
            biased;
            _ = &mut stop => return Ok(writer),
            next = queues.next() => next,
        };
        let bytes = timeout(timing.write, writer.write(next.id, &next.payload))
            .await
            .map_err(|_| RlpxError::Timeout("it to read a message"))??;
        add(&stats.messages_out, 1);
        add(&stats.bytes_out, bytes as u64);
    }
}

/// Sends pings, and fails requests that have timed out.
async fn keep_time(
    link: &SessionHandle,
    context: &SessionContext,
    host: &dyn SessionHost,
    timing: SessionTiming,
) -> SessionEnd {
    let mut ping = tokio::time::interval(timing.ping);
    ping.reset();
    let pause = (timing.request / 8).max(Duration::from_millis(10));
    let mut sweep = tokio::time::interval(pause);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut swept = Instant::now();
    loop {
        tokio::select! {
            // If the queue is full, the timeout of the current write ends the session.
            _ = ping.tick() => { link.send_base(id::PING, EMPTY_LIST.to_vec()); }
            _ = sweep.tick() => {
                // If this tick is late, nothing was read meanwhile either.
                let late = swept.elapsed().saturating_sub(pause);
                if late > pause {
                    link.pauses.lock().add(late);
                }
                swept = Instant::now();
                let expired = link.expire();
                add(&context.stats.timeouts, expired.told as u64);
                for _ in 0..expired.blamed {
                    host.offence(link.info().id, PeerOffence::Timeout);
                }
            }
        }
    }
}

/// The queues of a peer's requests, each with its request id.
struct RequestQueues {
    blocks: mpsc::Sender<(u64, EthRequest)>,
    states: mpsc::Sender<state_serving::NumberedRequest>,
}

/// Answers `eth` requests, one after the other.
async fn serve_all(
    link: &SessionHandle,
    context: &SessionContext,
    mut requests: mpsc::Receiver<(u64, EthRequest)>,
    answers: &mpsc::Sender<OutgoingMessage>,
) -> SessionEnd {
    let mut rate = TokenBucket::new(SERVED_KIB, now());
    while let Some((number, request)) = requests.recv().await {
        let (serve, info) = (context.serve.clone(), link.info());
        // The semaphore is fair, and each peer waits for one permit at a time.
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
    // The task that closed the channel returns the cause.
    std::future::pending().await
}

/// The clock of tokio, which tests can set.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// The bytes in KiB, rounded up; at least 1.
pub(super) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX - 1) + 1
}

fn answer(
    serve: &dyn EthRequestHandler,
    info: &PeerInfo,
    number: u64,
    request: EthRequest,
) -> Option<OutgoingMessage> {
    let response = EthMessage::Response(number, serve.answer(info, request));
    let (id, payload) = response.encode(info.version)?;
    Some(OutgoingMessage { id: BASE_MESSAGES + id, payload })
}

/// The reading side of a session. It waits only for bytes of its own connection, for decoding, and
/// for the rate limits of its peer: never for other peers, and never for the gossip task.
struct SessionReader<'a> {
    link: &'a Arc<SessionHandle>,
    context: &'a SessionContext,
    timing: SessionTiming,
    messages: TokenBucket,
    heard: TokenBucket,
    share: GossipShare,
}

impl<'a> SessionReader<'a> {
    fn new(
        link: &'a Arc<SessionHandle>,
        context: &'a SessionContext,
        timing: SessionTiming,
    ) -> Self {
        let (messages, heard) =
            (TokenBucket::new(MESSAGES, now()), TokenBucket::new(HEARD_KIB, now()));
        let share = context.heard.share(link.info().id);
        Self { link, context, timing, messages, heard, share }
    }

    async fn read_all<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut MessageReader<ReadHalf<S>>,
        requests: &RequestQueues,
    ) -> SessionEnd {
        let info = self.link.info();
        let spoken = SpokenProtocols::with(&info);
        drop(info);
        loop {
            let read = reader.read(|id| limit(self.link, spoken, id));
            let raw = match timeout(self.timing.idle, read).await {
                Ok(Ok(raw)) => raw,
                Ok(Err(error)) => return SessionEnd::rlpx(&error),
                Err(_) => return SessionEnd::rlpx(&RlpxError::Timeout("its next message")),
            };
            self.link.pauses.lock().begin();
            add(&self.context.stats.messages_in, 1);
            add(&self.context.stats.bytes_in, raw.payload.len() as u64);
            let handled = match raw.id {
                id::DISCONNECT => {
                    let reason = DisconnectReason::decode(&raw.payload);
                    let why = format!("the peer disconnects: {reason}");
                    return SessionEnd { told: None, offence: None, why };
                }
                id::PING => {
                    self.link.pong.notify_one();
                    Ok(())
                }
                id::PONG => Ok(()),
                id => match spoken.of(id) {
                    Some((WireProtocol::Rchk, base)) => {
                        self.handle_state(base, &raw, &requests.states)
                    }
                    Some((WireProtocol::Snap(version), base)) => {
                        self.handle_snap(version, base, &raw, &requests.states)
                    }
                    Some((WireProtocol::Eth, _)) => {
                        self.handle(spoken.eth, raw, &requests.blocks).await
                    }
                    None => Err(SessionEnd::rlpx(&RlpxError::Unexpected {
                        id,
                        expected: "a ping, a pong, a disconnect or a message of a protocol that is \
                                   spoken",
                    })),
                },
            };
            if let Err(ended) = handled {
                return ended;
            }
            // A peer that sends too much is read more slowly. The message just read is handled
            // before that.
            let wait = self.messages.spend(1, now()).max(self.heard.wait(now()));
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            self.link.pauses.lock().end();
        }
    }

    /// Handles an `eth` message.
    async fn handle(
        &mut self,
        version: EthVersion,
        raw: RawMessage,
        requests: &mpsc::Sender<(u64, EthRequest)>,
    ) -> Result<(), SessionEnd> {
        let id = raw.id - BASE_MESSAGES;
        let length = raw.payload.len();
        if eth::is_response(id) {
            // A late answer; the timeout is reported already.
            if !self.link.requests.lock().awaits(eth::request_id(&raw.payload), id)? {
                return Ok(());
            }
        }
        let room = self.share.room();
        let message = if length <= DECODED_HERE {
            decode(version, id, &raw.payload, room)
        } else {
            let decode = move || decode(version, id, &raw.payload, room);
            match tokio::task::spawn_blocking(decode).await {
                Ok(message) => message,
                Err(error) => return Err(SessionEnd::breach(error)),
            }
        };
        match message.map_err(SessionEnd::breach)? {
            EthMessage::Status(_) => return Err(SessionEnd::breach("a second status")),
            EthMessage::BlockRangeUpdate(range) => {
                self.link.set_range(range);
                self.event(PeerEvent::RangeUpdate(self.link.info().id, range));
            }
            EthMessage::Request(number, mut request) => {
                request.truncate(MAX_ITEMS);
                // Dropped if too many requests of the peer wait: waiting here would mean to wait
                // for the requests of other peers.
                if requests.try_send((number, request)).is_err() {
                    add(&self.context.stats.unserved, 1);
                }
            }
            EthMessage::Response(number, response) => {
                let items = link::items(&response);
                self.link.requests.lock().answer(number, response, items)?;
            }
            EthMessage::Gossip(gossip) => {
                self.heard.spend(kib(length), now());
                self.share.push(gossip);
            }
        }
        Ok(())
    }

    /// Handles an `rchk` message; `base` is its first id. It never waits, since other messages
    /// follow.
    fn handle_state(
        &self,
        base: u8,
        raw: &RawMessage,
        requests: &mpsc::Sender<state_serving::NumberedRequest>,
    ) -> Result<(), SessionEnd> {
        let (id, payload) = (raw.id - base, &raw.payload);
        if rchk::is_response(id) {
            // A late answer, as above.
            if !self.link.state_requests.lock().awaits(rchk::request_id(payload), id)? {
                return Ok(());
            }
        }
        match rchk::RchkMessage::decode(id, payload).map_err(SessionEnd::breach)? {
            rchk::RchkMessage::Request(number, request) => {
                self.serve_state(requests, number, StateRequest::Rchk(request));
            }
            rchk::RchkMessage::Response(number, response) => {
                let items = response.parts().as_ref().map_or(0, Vec::len);
                self.link.state_requests.lock().answer(number, response, items)?;
            }
        }
        Ok(())
    }

    /// Handles a `snap` message, as [`handle_state`](Self::handle_state) does those of `rchk`.
    fn handle_snap(
        &self,
        version: SnapVersion,
        base: u8,
        raw: &RawMessage,
        requests: &mpsc::Sender<state_serving::NumberedRequest>,
    ) -> Result<(), SessionEnd> {
        let (id, payload) = (raw.id - base, &raw.payload);
        if snap::is_response(id)
            && !self.link.snap_requests.lock().awaits(snap::request_id(payload), id)?
        {
            return Ok(());
        }
        match snap::SnapMessage::decode(version, id, payload).map_err(SessionEnd::breach)? {
            snap::SnapMessage::Request(number, request) => {
                self.serve_state(requests, number, StateRequest::Snap(request));
            }
            snap::SnapMessage::Response(number, response) => {
                let items = response.items();
                self.link.snap_requests.lock().answer(number, response, items)?;
            }
        }
        Ok(())
    }

    /// Queues a request for a part of a state, or refuses it.
    fn serve_state(
        &self,
        requests: &mpsc::Sender<state_serving::NumberedRequest>,
        number: u64,
        request: StateRequest,
    ) {
        if let Err(mpsc::error::TrySendError::Full((number, request))) =
            requests.try_send((number, request))
            && let Some(refusal) = request.refusal(number, &self.link.info())
        {
            // If the queue is full, the peer does not read, and gets no refusal.
            self.link.send_base(refusal.id, refusal.payload);
        }
    }

    fn event(&self, event: PeerEvent) {
        // There may be no receiver.
        let _ = self.context.events.send(event);
    }
}

/// Decodes an `eth` message, but of unrequested transactions only as many as there is room for.
/// Their hashes are computed here, so that the gossip task does not have to do it for all peers.
fn decode(
    version: EthVersion,
    id: u8,
    payload: &[u8],
    room: usize,
) -> Result<EthMessage, eth::EthDecodeError> {
    let message = EthMessage::decode_within(version, id, payload, room)?;
    if let EthMessage::Gossip(TxGossip::Transactions(transactions)) = &message {
        transactions.iter().for_each(|transaction| {
            transaction.tx_hash();
        });
    }
    Ok(message)
}

/// A protocol above the base protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireProtocol {
    Eth,
    Rchk,
    Snap(SnapVersion),
}

/// The protocols that are spoken on a connection.
#[derive(Clone, Copy, Debug)]
struct SpokenProtocols {
    eth: EthVersion,
    /// The first message id, as for `snap`.
    rchk: Option<u8>,
    snap: Option<(SnapVersion, u8)>,
}

impl SpokenProtocols {
    fn with(info: &PeerInfo) -> Self {
        let snap = info.snap.zip(info.snap_base());
        Self { eth: info.version, rchk: info.rchk_base(), snap }
    }

    /// The protocol of a message, and the first id of that; `None` for the base protocol.
    fn of(self, id: u8) -> Option<(WireProtocol, u8)> {
        let bases = [
            self.snap.map(|(version, base)| (WireProtocol::Snap(version), base)),
            self.rchk.map(|base| (WireProtocol::Rchk, base)),
            Some((WireProtocol::Eth, BASE_MESSAGES)),
        ];
        bases.into_iter().flatten().find(|(_, base)| *base <= id)
    }
}

/// The maximum length of a message with this id now.
fn limit(link: &SessionHandle, spoken: SpokenProtocols, id: u8) -> Option<usize> {
    let Some((protocol, base)) = spoken.of(id) else {
        return (id::DISCONNECT..=id::PONG).contains(&id).then_some(MAX_BASE_BYTES);
    };
    let id = id - base;
    // An answer may have bytes only while a request waits for it.
    let (limit, expected) = match protocol {
        WireProtocol::Eth => (
            eth::limit(spoken.eth, id)?,
            eth::is_response(id).then(|| link.requests.lock().expects(id)),
        ),
        WireProtocol::Rchk => (
            rchk::limit(id)?,
            rchk::is_response(id).then(|| link.state_requests.lock().expects(id)),
        ),
        WireProtocol::Snap(version) => (
            snap::limit(version, id)?,
            snap::is_response(id).then(|| link.snap_requests.lock().expects(id)),
        ),
    };
    Some(expected.map_or(limit, |expected| expected.map_or(0, |bytes| bytes.min(limit))))
}
