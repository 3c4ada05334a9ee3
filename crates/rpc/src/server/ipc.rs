//! IPC: JSON-RPC over a Unix socket.
//!
//! Requests are JSON values one after the other, with or without newlines between them, as geth
//! reads them; each answer ends with a newline.

use super::{ServerError, config::ConnectionLimits, port::HexIds, words::refusal};
use jsonrpsee::{
    BatchResponseBuilder, BoundedSubscriptions, ConnectionId, MethodCallback, MethodResponse,
    MethodSink, Methods, SubscriptionState,
    core::server::{Extensions, prepare_error},
    server::{ServerHandle, StopHandle, stop_channel},
    types::{
        ErrorObject, Id, Notification, Params, Request,
        error::{
            ErrorCode, reject_too_big_batch_request, reject_too_big_request,
            reject_too_many_subscriptions,
        },
    },
};
use serde_json::value::RawValue;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
    task::{JoinHandle, JoinSet},
};

/// Requests of one connection that are answered at once.
const MAX_CONCURRENT: usize = 64;
/// Bytes read at once.
const READ_SIZE: usize = 64 << 10;

/// A running server.
#[derive(Debug)]
pub(super) struct IpcServer {
    path: PathBuf,
    handle: ServerHandle,
    accepting: JoinHandle<()>,
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        let _ = self.handle.stop();
        self.accepting.abort();
        // If it is gone already, so much the better.
        let _ = fs::remove_file(&self.path);
    }
}

impl IpcServer {
    pub(super) async fn start(
        path: &Path,
        methods: Methods,
        limits: ConnectionLimits,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Ipc { path: path.into(), source };
        let listener = bind(path).await.map_err(failed)?;
        let (stop, handle) = stop_channel();
        let accepting = tokio::spawn(accept(listener, methods, limits, stop));
        tracing::info!(path = %path.display(), "IPC server started");
        Ok(Self { path: path.into(), handle, accepting })
    }

    pub(super) async fn stop(mut self, grace: Duration) {
        let _ = self.handle.stop();
        let _ = tokio::time::timeout(grace, &mut self.accepting).await;
    }
}

/// Listens at `path`, in place of a socket that a dead node has left there.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    if path.exists() {
        if UnixStream::connect(path).await.is_ok() {
            let message = "another node listens there; choose another --ipcpath";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        fs::remove_file(path)?;
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(
    listener: UnixListener,
    methods: Methods,
    limits: ConnectionLimits,
    stop: StopHandle,
) {
    let mut tasks = JoinSet::new();
    let next_id = AtomicUsize::new(0);
    let stopped = stop.clone().shutdown();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept(), if tasks.len() < limits.max_connections as usize => {
                match accepted {
                    Ok((stream, _)) => {
                        let id = ConnectionId(next_id.fetch_add(1, Ordering::Relaxed));
                        tasks.spawn(serve(stream, id, methods.clone(), limits, stop.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Serves one connection until the client or the node ends it.
async fn serve(
    stream: UnixStream,
    id: ConnectionId,
    methods: Methods,
    limits: ConnectionLimits,
    stop: StopHandle,
) {
    let (reader, writer) = stream.into_split();
    let (answers, outgoing) = mpsc::channel(limits.message_buffer.max(1) as usize);
    let calls = Arc::new(Calls {
        methods,
        id,
        limits,
        sink: MethodSink::new(answers),
        subscriptions: BoundedSubscriptions::new(limits.max_subscriptions),
    });
    let writing = tokio::spawn(write(writer, outgoing, limits.stall_timeout));
    tokio::select! {
        () = stop.shutdown() => {}
        read = read(reader, calls) => if let Err(error) = read {
            tracing::debug!(%error, "an IPC connection has failed");
        },
    }
    // Ends with the last request under way.
    let _ = writing.await;
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Box<RawValue>>,
    stall_timeout: Duration,
) {
    while let Some(answer) = outgoing.recv().await {
        let mut line = Box::<str>::from(answer).into_string();
        line.push('\n');
        let written = tokio::time::timeout(stall_timeout, writer.write_all(line.as_bytes()));
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
    }
}

async fn read(mut reader: OwnedReadHalf, calls: Arc<Calls>) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut frames = Frames::default();
    let most = calls.limits.max_request_size as usize;
    loop {
        frames.buffer.reserve(READ_SIZE);
        if reader.read_buf(&mut frames.buffer).await? == 0 {
            return Ok(());
        }
        loop {
            match frames.next(most) {
                Frame::Incomplete => break,
                Frame::Whole(message) => {
                    let Ok(permit) = permits.clone().acquire_owned().await else { return Ok(()) };
                    let calls = calls.clone();
                    tokio::spawn(async move {
                        let _permit = permit;
                        calls.answer(&message).await;
                    });
                }
                // After these nobody knows where the next request begins.
                Frame::TooLong => {
                    let error = reject_too_big_request(calls.limits.max_request_size);
                    let _ = calls.sink.send_error(Id::Null, error).await;
                    return Ok(());
                }
                Frame::NotJson => {
                    let error = ErrorCode::ParseError.into();
                    let _ = calls.sink.send_error(Id::Null, error).await;
                    return Ok(());
                }
            }
        }
    }
}

/// Finds where JSON values end in a stream, looking at each byte once.
#[derive(Debug, Default)]
struct Frames {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Incomplete,
    Whole(Vec<u8>),
    TooLong,
    NotJson,
}

impl Frames {
    fn next(&mut self, most: usize) -> Frame {
        if self.depth == 0 {
            let blank = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.drain(..blank);
            self.seen = 0;
            match self.buffer.first() {
                None => return Frame::Incomplete,
                Some(b'{' | b'[') => {}
                Some(_) => return Frame::NotJson,
            }
        }
        for at in self.seen..self.buffer.len() {
            let byte = self.buffer[at];
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                let rest = self.buffer.split_off(at + 1);
                self.seen = 0;
                return Frame::Whole(std::mem::replace(&mut self.buffer, rest));
            }
        }
        self.seen = self.buffer.len();
        if self.seen > most { Frame::TooLong } else { Frame::Incomplete }
    }
}

/// Answers the requests of one connection.
#[derive(Debug)]
struct Calls {
    methods: Methods,
    id: ConnectionId,
    limits: ConnectionLimits,
    sink: MethodSink,
    subscriptions: BoundedSubscriptions,
}

impl Calls {
    async fn answer(&self, message: &[u8]) {
        let answer = if message.first() == Some(&b'[') {
            self.batch(message).await
        } else {
            self.single(message).await
        };
        let Some(answer) = answer else { return };
        // Subscriptions answer by themselves.
        if answer.is_method_call() || answer.is_batch() {
            let is_success = answer.is_success();
            let (json, on_close, _) = answer.into_parts();
            if self.sink.send(json).await.is_ok()
                && let Some(on_close) = on_close
            {
                on_close.notify(is_success);
            }
        }
    }

    /// The answer to one message; `None` to a notification.
    async fn single(&self, message: &[u8]) -> Option<MethodResponse> {
        if let Ok(request) = serde_json::from_slice::<Request<'_>>(message) {
            return Some(self.call(request).await);
        }
        if serde_json::from_slice::<Notification<'_, Option<&RawValue>>>(message).is_ok() {
            return None;
        }
        let (id, code) = prepare_error(message);
        Some(MethodResponse::error(id, ErrorObject::from(code)))
    }

    async fn batch(&self, message: &[u8]) -> Option<MethodResponse> {
        let Ok(entries) = serde_json::from_slice::<Vec<&RawValue>>(message) else {
            let error = ErrorObject::from(ErrorCode::ParseError);
            return Some(MethodResponse::error(Id::Null, error));
        };
        let most = self.limits.max_batch_size as usize;
        if entries.len() > most {
            let error = reject_too_big_batch_request(most);
            return Some(MethodResponse::error(Id::Null, error));
        }
        let is_empty = entries.is_empty();
        let size = self.limits.max_response_size as usize;
        let mut answers = BatchResponseBuilder::new_with_limit(size);
        for entry in entries {
            let entry = entry.get().as_bytes();
            let answer = match entry.first() {
                Some(b'{') => self.single(entry).await,
                _ => {
                    let error = ErrorObject::from(ErrorCode::InvalidRequest);
                    Some(MethodResponse::error(Id::Null, error))
                }
            };
            if let Some(answer) = answer
                && let Err(too_large) = answers.append(answer)
            {
                return Some(too_large);
            }
        }
        // A batch of notifications alone has no answer, an empty one is an error.
        if answers.is_empty() && !is_empty {
            return None;
        }
        Some(MethodResponse::from_batch(answers.finish()))
    }

    async fn call(&self, request: Request<'_>) -> MethodResponse {
        if let Some(error) = refusal(&self.methods, &request) {
            return MethodResponse::error(request.id, error);
        }
        let Request { id, method, params, .. } = request;
        let params = Params::new(params.as_ref().map(|params| params.get()));
        let size = self.limits.max_response_size as usize;
        let extensions = Extensions::new();
        match self.methods.method(&method) {
            None => MethodResponse::error(id, ErrorObject::from(ErrorCode::MethodNotFound)),
            Some(MethodCallback::Sync(answer)) => answer(id, params, size, extensions),
            Some(MethodCallback::Async(answer)) => {
                answer(id.into_owned(), params.into_owned(), self.id, size, extensions).await
            }
            Some(MethodCallback::Subscription(answer)) => {
                let Some(subscription_permit) = self.subscriptions.acquire() else {
                    let error = reject_too_many_subscriptions(self.subscriptions.max());
                    return MethodResponse::error(id, error);
                };
                let state = SubscriptionState {
                    conn_id: self.id,
                    id_provider: &HexIds,
                    subscription_permit,
                };
                answer(id, params, self.sink.clone(), state, extensions).await
            }
            Some(MethodCallback::Unsubscription(answer)) => {
                answer(id, params, self.id, size, extensions)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of a stream that comes in pieces of this size.
    fn frames(stream: &[u8], piece: usize, most: usize) -> Vec<Frame> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for piece in stream.chunks(piece) {
            frames.buffer.extend_from_slice(piece);
            loop {
                match frames.next(most) {
                    Frame::Incomplete => break,
                    frame @ Frame::Whole(_) => found.push(frame),
                    end => {
                        found.push(end);
                        return found;
                    }
                }
            }
        }
        found
    }

    #[test]
    fn values_are_found_however_they_come() {
        let stream = br#"{"a":"}]\"{"} [1,{"b":[]}]
            {"c":"\\"}"#;
        let whole = |text: &str| Frame::Whole(text.as_bytes().to_vec());
        let expected =
            [whole(r#"{"a":"}]\"{"}"#), whole(r#"[1,{"b":[]}]"#), whole(r#"{"c":"\\"}"#)];
        for piece in [1, 2, 7, 1000] {
            assert_eq!(frames(stream, piece, 1000), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn garbage_and_endless_values_end_the_stream() {
        assert_eq!(frames(b" hello", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(b"]", 3, 100), [Frame::NotJson]);
        assert_eq!(frames(&[b'['; 200], 7, 100), [Frame::TooLong]);
    }
}
