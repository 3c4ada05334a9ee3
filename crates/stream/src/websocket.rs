//! The target `ws://`: a WebSocket server (RFC 6455) whose clients have a stream each.
//!
//! The first message of a client says where its stream begins. Then each message of the server is one
//! record. A client that reads slowly only falls behind, for its stream is read from the chain; one
//! that reads nothing for [`WRITE_LIMIT`] is dropped, and resumes with its last cursor. What a client
//! sends later is ignored.

use crate::{
    RecordKind, RecordReader, RecordSelection, ResumeRequest, StreamError, StreamPosition,
    StreamStart,
    core_share::CoreShare,
    error::{ClientRequestError, SinkError},
    service::{AT_HEAD, NICE},
};
use alloy_primitives::{B256, U64};
use retrie_engine::{BackgroundControl, BackgroundThread, LiveChain};
use serde::Deserialize;
use serde_json::json;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tungstenite::{
    Bytes, Error, Message, WebSocket, accept_hdr_with_config,
    handshake::server::{ErrorResponse, Request, Response},
    http::StatusCode,
    protocol::{
        CloseFrame, WebSocketConfig,
        frame::{
            Frame,
            coding::{CloseCode, Data, OpCode},
        },
    },
};

/// Most clients at once.
const MAX_CLIENTS: usize = 16;
/// Longest first message in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// How long a client may take for the handshake, and for its first message.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may leave the server's bytes unread.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// How long the server looks for a message of the client while there are records to send.
const BUSY: Duration = Duration::from_millis(1);
/// How often a client at the head is pinged.
const PING: Duration = Duration::from_secs(30);
/// Bytes of a record per frame: the library's write buffer never shrinks.
const PIECE: usize = 64 << 10;

/// Listens on `address`, and serves clients with records of `live`. Returns the address with its port.
pub(crate) fn listen(
    address: SocketAddr,
    live: LiveChain,
    kinds: RecordSelection,
) -> Result<(BackgroundThread, SocketAddr), StreamError> {
    let failed = |source| SinkError::Listen { address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let run = move |control: &BackgroundControl| take_clients(&listener, &live, kinds, control);
    let thread = BackgroundThread::start("stream-listen", "stream to WebSocket clients", run)?;
    Ok((thread, bound))
}

/// A client and its thread.
struct ClientThread {
    socket: TcpStream,
    thread: JoinHandle<()>,
    began: Instant,
    /// Whether its first message has come.
    has_asked: Arc<AtomicBool>,
}

impl ClientThread {
    /// Ends the connection of a client that sends its request byte by byte: each byte comes in time.
    fn check_time(&self) {
        if self.began.elapsed() > 2 * REQUEST_LIMIT && !self.has_asked.load(Ordering::Relaxed) {
            // It may be gone already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

fn take_clients(
    listener: &TcpListener,
    live: &LiveChain,
    kinds: RecordSelection,
    control: &BackgroundControl,
) {
    retrie_state::lower_thread_priority(NICE);
    let stop = Arc::<AtomicBool>::default();
    let mut clients: Vec<ClientThread> = Vec::new();
    while !control.is_stopping() {
        clients.retain(|client| !client.thread.is_finished());
        clients.iter().for_each(ClientThread::check_time);
        match listener.accept() {
            Ok((socket, peer)) if clients.len() >= MAX_CLIENTS => {
                tracing::debug!(%peer, "a client of the stream is refused: there are too many");
                refuse(socket);
            }
            Ok((socket, peer)) => match start_client(socket, live, kinds, &stop) {
                Ok(client) => clients.push(client),
                Err(error) => tracing::debug!(%peer, %error, "a client of the stream is lost"),
            },
            Err(error) => {
                let failed = (error.kind() != ErrorKind::WouldBlock).then(|| error.to_string());
                control.record(failed, "no clients of the stream can be taken");
                if !control.pause(AT_HEAD) {
                    break;
                }
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    for ClientThread { socket, thread, .. } in clients {
        // It may wait for its client, which ends with the connection.
        let _ = socket.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// Refuses a client before the handshake.
fn refuse(mut socket: TcpStream) {
    let answer =
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    // Unread bytes would reset the connection, and the client would not see the answer.
    let mut request = [0; 2048];
    // A client that is gone needs no answer.
    let _ = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(AT_HEAD)))
        .and_then(|()| socket.read(&mut request))
        .and_then(|_| socket.write_all(answer));
}

fn start_client(
    socket: TcpStream,
    live: &LiveChain,
    kinds: RecordSelection,
    stop: &Arc<AtomicBool>,
) -> std::io::Result<ClientThread> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(REQUEST_LIMIT))?;
    socket.set_write_timeout(Some(WRITE_LIMIT))?;
    let own = socket.try_clone()?;
    let (live, stop) = (live.clone(), stop.clone());
    let has_asked = Arc::<AtomicBool>::default();
    let asked = has_asked.clone();
    let thread = std::thread::Builder::new().name("stream-client".into()).spawn(move || {
        retrie_state::lower_thread_priority(NICE);
        if let Err(error) = serve(own, live, kinds, &asked, &stop) {
            tracing::debug!(%error, "a client of the stream is gone");
        }
    })?;
    Ok(ClientThread { socket, thread, began: Instant::now(), has_asked })
}

/// The first message of a client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientRequest {
    from: Option<FirstBlock>,
    cursor: Option<String>,
    #[serde(default)]
    recent: Vec<(U64, B256)>,
    records: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FirstBlock {
    Number(u64),
    Text(String),
}

impl ClientRequest {
    /// The position, and the kinds of records.
    fn read(
        text: &str,
        head: u64,
        kinds: RecordSelection,
    ) -> Result<(StreamPosition, RecordSelection), ClientRequestError> {
        let Self { from, cursor, recent, records } = serde_json::from_str(text)
            .map_err(|error| ClientRequestError::Form(error.to_string()))?;
        let kinds = match records {
            None => kinds,
            Some(names) => {
                let named: Result<Vec<RecordKind>, _> =
                    names.iter().map(|name| name.parse()).collect();
                RecordSelection::new(&named.map_err(ClientRequestError::Form)?)
            }
        };
        let position = match (from, cursor) {
            (None, Some(cursor)) => StreamPosition::resume(&ResumeRequest { cursor, recent })?,
            (Some(from), None) => {
                let start = match from {
                    FirstBlock::Number(number) => StreamStart::Number(number),
                    FirstBlock::Text(text) => text.parse().map_err(ClientRequestError::Form)?,
                };
                StreamPosition::start(start.number(head))
            }
            (None, None) => return Err(ClientRequestError::Form("it has neither".into())),
            (Some(_), Some(_)) => return Err(ClientRequestError::Form("it has both".into())),
        };
        Ok((position, kinds))
    }
}

type ClientSocket = WebSocket<TcpStream>;

/// Serves a client until it or the stream ends. Sets `has_asked` once its request has come.
fn serve(
    socket: TcpStream,
    live: LiveChain,
    kinds: RecordSelection,
    has_asked: &AtomicBool,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let config = WebSocketConfig::default()
        .read_buffer_size(4 << 10)
        .write_buffer_size(0)
        .max_frame_size(Some(MAX_REQUEST))
        .max_message_size(Some(MAX_REQUEST));
    let accepted = accept_hdr_with_config(socket, refuse_pages, Some(config));
    let mut socket =
        accepted.map_err(|error| Error::Io(std::io::Error::other(error.to_string())))?;
    let first = first_message(&mut socket)?;
    has_asked.store(true, Ordering::Relaxed);
    let request = match first {
        Some(text) => ClientRequest::read(&text, live.head().number, kinds),
        None => Err(ClientRequestError::TooLate(REQUEST_LIMIT.as_secs())),
    };
    let (mut position, kinds) = match request {
        Ok(request) => request,
        Err(error) => return end(&mut socket, CloseCode::Policy, "request", &error.to_string()),
    };
    let mut reader = RecordReader::new(live, kinds);
    let (mut pinged, mut share) = (Instant::now(), CoreShare::begin());
    loop {
        if stop.load(Ordering::Relaxed) {
            let close = CloseFrame { code: CloseCode::Away, reason: "the node stops".into() };
            return socket.close(Some(close));
        }
        let records = match reader.read(&mut position) {
            Ok(records) => records,
            Err(error) => {
                let code = match error {
                    StreamError::UnknownBlock { .. } => "unknown-block",
                    StreamError::WrongNumber { .. } => "cursor",
                    _ => "node",
                };
                return end(&mut socket, CloseCode::Error, code, &error.to_string());
            }
        };
        let is_at_head = records.is_empty();
        for record in records {
            send(&mut socket, &record.json)?;
        }
        if is_at_head && pinged.elapsed() >= PING {
            socket.send(Message::Ping(Bytes::new()))?;
            pinged = Instant::now();
        }
        let wait = if is_at_head { AT_HEAD } else { BUSY };
        let until = Instant::now() + wait.max(share.pause());
        // A client that sends messages does not shorten it.
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || stop.load(Ordering::Relaxed) {
                break;
            }
            socket.get_ref().set_read_timeout(Some(left))?;
            match socket.read() {
                Ok(_) => {}
                Err(Error::Io(error)) if is_timeout(&error) => {}
                Err(Error::ConnectionClosed) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Refuses web pages, as every page that a user of this machine opens could connect.
#[allow(clippy::result_large_err)]
fn refuse_pages(request: &Request, response: Response) -> Result<Response, ErrorResponse> {
    if !request.headers().contains_key("origin") {
        return Ok(response);
    }
    let mut refused = ErrorResponse::new(Some("the stream does not serve web pages".into()));
    *refused.status_mut() = StatusCode::FORBIDDEN;
    Err(refused)
}

/// The first message with text; `None` if none comes in time.
fn first_message(socket: &mut ClientSocket) -> Result<Option<String>, Error> {
    let began = Instant::now();
    while began.elapsed() < REQUEST_LIMIT {
        match socket.read() {
            Ok(Message::Text(text)) => return Ok(Some(text.as_str().to_owned())),
            Ok(_) => {}
            Err(Error::Io(error)) if is_timeout(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Tells the client why its stream ends, and closes it.
fn end(
    socket: &mut ClientSocket,
    close: CloseCode,
    code: &str,
    message: &str,
) -> Result<(), Error> {
    let told = json!({ "type": "error", "code": code, "message": message });
    send(socket, &told.to_string())?;
    socket.close(Some(CloseFrame { code: close, reason: code.into() }))?;
    // Until the client has closed it too: else it might not get the message.
    let began = Instant::now();
    while began.elapsed() < REQUEST_LIMIT {
        if socket.read().is_err() {
            break;
        }
    }
    Ok(())
}

/// Sends a message, in several frames if it is long.
fn send(socket: &mut ClientSocket, text: &str) -> Result<(), Error> {
    let mut pieces = text.as_bytes().chunks(PIECE).peekable();
    let mut kind = Data::Text;
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        let frame = Frame::message(Bytes::copy_from_slice(piece), OpCode::Data(kind), is_last);
        socket.write(Message::Frame(frame))?;
        kind = Data::Continue;
    }
    socket.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_where_to_begin_or_is_refused() {
        let read = |text: &str| ClientRequest::read(text, 9, RecordSelection::default());
        for (text, first) in [
            (r#"{"from": 3}"#, 3),
            (r#"{"from": "0x3"}"#, 3),
            (r#"{"from": "latest"}"#, 10),
            (r#"{"from": "earliest", "records": ["delta"]}"#, 0),
        ] {
            assert_eq!(read(text).unwrap().0, StreamPosition::start(first), "{text}");
        }
        let hash = B256::repeat_byte(5);
        let cursor = format!("7-2-{hash}-delta");
        let text = json!({ "cursor": cursor, "recent": [["0x1", hash]] }).to_string();
        assert_eq!(read(&text).unwrap().0.cursor().unwrap().to_string(), cursor);
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"from": -1}"#,
            r#"{"from": "head"}"#,
            r#"{"from": 1, "to": 2}"#,
            r#"{"from": 1, "cursor": "1-1-0x-block"}"#,
            r#"{"cursor": "made up"}"#,
            r#"{"from": 1, "records": ["blocks"]}"#,
            r#"{"from": 1, "recent": [[1]]}"#,
        ] {
            read(wrong).unwrap_err();
        }
    }
}
