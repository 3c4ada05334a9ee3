//! JSON-RPC over WebSocket (RFC 6455).
//!
//! A client costs what it has really sent: room for a frame is reserved once its header is there,
//! and first touched when its bytes come. They count from then on ([`Counted`]) until their message
//! is answered. The library's read buffer never shrinks, so it must not see long frames as a whole:
//! they come to it in fragments. A connection keeps one [`FRAGMENT`] and one [`PIECE`] of an answer.

use super::{
    answers::{Answers, busy},
    budget::{Held, Tab, writing_time},
    counted::{Counted, FRAGMENT, Heard, is_busy},
    port::text,
    session::{self, Outbox, Session},
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

/// Bytes read at once.
const READ_SIZE: usize = 16 << 10;
/// Bytes of an answer that become one frame. The buffer they are written from never shrinks, so it
/// must not see answers as a whole.
const PIECE: usize = 64 << 10;
/// How often clients are asked whether they are there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long a client may be silent that is asked.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// How long a client may go on to send after it was told that this is too much. If it were cut off at
/// once, it would see a reset connection in place of the reason.
const LINGER: Duration = Duration::from_secs(2);

type Socket = WebSocketStream<Counted<TokioIo<Upgraded>>>;

/// Turns the connection of a handshake into a WebSocket that has this place and tab; the answer to
/// the handshake.
pub(super) fn upgrade(
    request: Request<Body>,
    answers: Answers,
    place: OwnedSemaphorePermit,
    tab: Arc<Tab>,
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
            Err(error) => return tracing::debug!(%error, "a connection became no WebSocket"),
        };
        let most = answers.limits.max_request_size;
        let incoming = Arc::new(Mutex::new(tab.clone().hold()));
        let heard: Heard = Arc::new(Mutex::new(Some(Instant::now())));
        let io = Counted::new(io, incoming.clone(), heard.clone(), most.into());
        let most = most as usize;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_SIZE)
            .write_buffer_size(0)
            // One piece, and answers to pings.
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
    socket: Socket,
    answers: &Answers,
    tab: Arc<Tab>,
    incoming: &Mutex<Held>,
    heard: Heard,
    stop: StopHandle,
) {
    let _connected = answers.metrics.connected();
    let (session, outbox) = session::open(answers, tab);
    let (sink, mut stream) = socket.split();
    let writing = write(sink, outbox, heard.clone(), answers.limits.stall_timeout);
    tokio::pin!(writing);
    // The end, after answers to requests under way.
    let (code, sink) = tokio::select! {
        sink = &mut writing => (CloseCode::Away, sink),
        ended = read(&mut stream, session, incoming, &heard) => match ended {
            Err(Error::Capacity(_)) => (CloseCode::Size, writing.await),
            Err(Error::Io(error)) if is_busy(&error) => (CloseCode::Again, writing.await),
            Err(Error::Utf8(_)) => (CloseCode::Invalid, writing.await),
            // Nobody is left to hear answers.
            Err(error) => return tracing::debug!(%error, "a WebSocket has failed"),
            Ok(()) => return,
        },
        () = stop.clone().shutdown() => (CloseCode::Away, writing.await),
    };
    let Some(mut sink) = sink else { return };
    let close = CloseFrame { code, reason: Default::default() };
    let is_told = sink.send(Message::Close(Some(close))).await.is_ok();
    // What was read of a message that will never be whole.
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

/// Ends with the connection, or with what is too large, no text, or more than there is room for: where
/// the next message begins is unknown then.
async fn read(
    stream: &mut SplitStream<Socket>,
    session: Session,
    incoming: &Mutex<Held>,
    heard: &Heard,
) -> Result<(), Error> {
    while let Some(message) = stream.next().await {
        *heard.lock() = None;
        let message = match message {
            Ok(Message::Text(message)) => Bytes::from(message),
            Ok(Message::Binary(message)) => message,
            // Answering pings and closes is left to the library.
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
        // Copied if it is a part of the read buffer, which would be kept with it.
        let message =
            if message.len() > FRAGMENT { message } else { Bytes::copy_from_slice(&message) };
        session.take(message, held).await;
        *heard.lock() = Some(Instant::now());
    }
    Ok(())
}

/// Answers what ends the connection, if it is the client's doing.
async fn refuse(session: &Session, error: &Error) {
    match error {
        Error::Capacity(_) => {
            let most = session.client().limits().max_request_size;
            session.refuse(reject_too_big_request(most)).await;
        }
        // Text that is none ends a WebSocket (RFC 6455, 8.1).
        Error::Utf8(_) => session.refuse(ErrorCode::ParseError.into()).await,
        Error::Io(error) if is_busy(error) => session.refuse(busy()).await,
        _ => {}
    }
}

/// Ends with the session, or when the client is gone or takes too long for what it is sent; what
/// there is to say goodbye on, unless that has failed.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut outbox: Outbox,
    heard: Heard,
    stall_timeout: Duration,
) -> Option<SplitSink<Socket, Message>> {
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    loop {
        let sent = tokio::select! {
            next = outbox.next() => match next {
                Some(next) => {
                    let time = writing_time(stall_timeout, next.text().len());
                    let sent = timeout(time, send(&mut sink, next.text())).await;
                    next.written();
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

/// Sends a message, in fragments if it is long.
async fn send(sink: &mut SplitSink<Socket, Message>, text: &str) -> Result<(), Error> {
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
