//! JSON-RPC over WebSocket (RFC 6455).
//!
//! A connection holds only bytes that the client has really sent: memory for a frame is allocated
//! when its header arrives, and touched when its bytes arrive. The bytes count ([`CountedStream`])
//! until their message is answered. The library's read buffer never shrinks, so long frames are
//! split into fragments before it sees them. An idle connection keeps one [`FRAGMENT`] and one
//! [`PIECE`] of memory.

use super::{
    budget::{ConnectionBudget, HeldBytes, writing_time},
    counted_stream::{CountedStream, FRAGMENT, LastHeard, is_busy},
    port::text,
    service::{MethodService, busy_error},
    session::{self, ConnectionInbox, ConnectionOutbox},
};
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming as Body, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use jsonrpsee::{
    server::{HttpBody, StopHandle},
    types::error::{ErrorCode, reject_too_big_request},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{
    io,
    sync::OwnedSemaphorePermit,
    time::{Instant, interval_at, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Error, Message,
        handshake::server::create_response_with_body,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

/// Bytes per read.
const READ_SIZE: usize = 16 << 10;
/// Bytes of a response per frame. The library's write buffer never shrinks, so long responses are
/// split into frames.
const PIECE: usize = 64 << 10;
/// How often clients are pinged.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Longest silence of a client that is pinged.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// How long a client may go on sending after the close frame. Closing at once would reset the
/// connection, and the client would not see the reason.
const LINGER: Duration = Duration::from_secs(2);

type WsSocket = WebSocketStream<CountedStream<TokioIo<Upgraded>>>;

/// Upgrades a connection to a WebSocket, with this permit and budget; returns the handshake's
/// response.
pub(super) fn upgrade(
    request: Request<Body>,
    answers: MethodService,
    place: OwnedSemaphorePermit,
    tab: Arc<ConnectionBudget>,
    stop: StopHandle,
) -> Response<HttpBody> {
    let answer = match create_response_with_body(&request, HttpBody::empty) {
        Ok(answer) => answer,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    tokio::spawn(async move {
        let _place = place;
        let io = match hyper::upgrade::on(request).await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => return tracing::debug!(%error, "the upgrade to a WebSocket failed"),
        };
        let most = answers.limits.max_request_size;
        let incoming = Arc::new(Mutex::new(tab.clone().hold()));
        let heard: LastHeard = Arc::new(Mutex::new(Some(Instant::now())));
        let io = CountedStream::new(io, incoming.clone(), heard.clone(), most.into());
        let most = most as usize;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_SIZE)
            .write_buffer_size(0)
            // One piece, and responses to pings.
            .max_write_buffer_size(2 * PIECE)
            .max_frame_size(Some(most))
            .max_message_size(Some(most));
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        serve(socket, &answers, tab, &incoming, heard, stop).await;
    });
    answer
}

/// Serves a connection until the client or the node ends it.
async fn serve(
    socket: WsSocket,
    answers: &MethodService,
    tab: Arc<ConnectionBudget>,
    incoming: &Mutex<HeldBytes>,
    heard: LastHeard,
    stop: StopHandle,
) {
    let _connected = answers.metrics.connected();
    let (session, outbox) = session::open(answers, tab);
    let (sink, mut stream) = socket.split();
    let writing = write(sink, outbox, heard.clone(), answers.limits.stall_timeout);
    tokio::pin!(writing);
    // The close code; responses to requests in progress are sent first.
    let (code, sink) = tokio::select! {
        sink = &mut writing => (CloseCode::Away, sink),
        ended = read(&mut stream, session, incoming, &heard) => match ended {
            Err(Error::Capacity(_)) => (CloseCode::Size, writing.await),
            Err(Error::Io(error)) if is_busy(&error) => (CloseCode::Again, writing.await),
            Err(Error::Utf8(_)) => (CloseCode::Invalid, writing.await),
            // The client is gone.
            Err(error) => return tracing::debug!(%error, "a WebSocket has failed"),
            Ok(()) => return,
        },
        () = stop.clone().shutdown() => (CloseCode::Away, writing.await),
    };
    let Some(mut sink) = sink else { return };
    let close = CloseFrame { code, reason: Default::default() };
    let is_told = sink.send(Message::Close(Some(close))).await.is_ok();
    // Bytes of an incomplete message.
    drop(incoming.lock().split());
    if is_told
        && matches!(code, CloseCode::Size | CloseCode::Again)
        && let Ok(mut socket) = sink.reunite(stream)
    {
        let mut nowhere = io::sink();
        tokio::select! {
            _ = timeout(LINGER, io::copy(socket.get_mut().inner(), &mut nowhere)) => {}
            () = stop.shutdown() => {}
        }
    }
}

/// Reads messages until the connection ends, or a message is too large, not UTF-8, or finds no
/// room: then the start of the next message is unknown.
async fn read(
    stream: &mut SplitStream<WsSocket>,
    session: ConnectionInbox,
    incoming: &Mutex<HeldBytes>,
    heard: &LastHeard,
) -> Result<(), Error> {
    while let Some(message) = stream.next().await {
        *heard.lock() = None;
        let message = match message {
            Ok(Message::Text(message)) => Bytes::from(message),
            Ok(Message::Binary(message)) => message,
            // The library responds to pings and closes.
            Ok(_) => {
                *heard.lock() = Some(Instant::now());
                continue;
            }
            Err(error) => {
                refuse(&session, &error).await;
                return Err(error);
            }
        };
        let held = incoming.lock().split();
        // A short message is part of the read buffer; copying it avoids keeping the whole buffer.
        let message =
            if message.len() > FRAGMENT { message } else { Bytes::copy_from_slice(&message) };
        session.handle(message, held).await;
        *heard.lock() = Some(Instant::now());
    }
    Ok(())
}

/// Responds to an error that the client caused.
async fn refuse(session: &ConnectionInbox, error: &Error) {
    match error {
        Error::Capacity(_) => {
            let most = session.client().limits().max_request_size;
            session.refuse(reject_too_big_request(most)).await;
        }
        // Invalid UTF-8 in a text message ends a WebSocket (RFC 6455, 8.1).
        Error::Utf8(_) => session.refuse(ErrorCode::ParseError.into()).await,
        Error::Io(error) if is_busy(error) => session.refuse(busy_error()).await,
        _ => {}
    }
}

/// Writes until the session ends, or the client is gone or too slow. Returns the sink for the close
/// frame, unless writing has failed.
async fn write(
    mut sink: SplitSink<WsSocket, Message>,
    mut outbox: ConnectionOutbox,
    heard: LastHeard,
    stall_timeout: Duration,
) -> Option<SplitSink<WsSocket, Message>> {
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    loop {
        let sent = tokio::select! {
            next = outbox.next() => match next {
                Some(next) => {
                    let time = writing_time(stall_timeout, next.text().len());
                    let sent = timeout(time, send(&mut sink, next.text())).await;
                    next.confirm_written();
                    sent.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                }
                None => return Some(sink),
            },
            _ = pings.tick() => {
                if heard.lock().is_some_and(|heard| heard.elapsed() > MAX_SILENCE) {
                    tracing::debug!("a WebSocket client is gone");
                    return Some(sink);
                }
                sink.send(Message::Ping(Bytes::new())).await
            }
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a WebSocket client does not read");
            return None;
        }
    }
}

/// Sends a message, split into frames if it is long.
async fn send(sink: &mut SplitSink<WsSocket, Message>, text: &str) -> Result<(), Error> {
    let mut pieces = text.as_bytes().chunks(PIECE).peekable();
    let mut kind = Data::Text;
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        let frame = Frame::message(Bytes::copy_from_slice(piece), OpCode::Data(kind), is_last);
        sink.send(Message::Frame(frame)).await?;
        kind = Data::Continue;
    }
    Ok(())
}
