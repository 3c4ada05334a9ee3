//! IPC: JSON-RPC over a Unix socket.
//!
//! Requests are JSON values one after the other, with or without newlines between them, as geth
//! reads them (a number ends with what follows it); each answer ends with a newline.

use super::{
    ServerError,
    answers::Answers,
    frames::{Frame, Frames},
    session::{self, Outbox, Session},
};
use jsonrpsee::{
    server::{ServerHandle, StopHandle, stop_channel},
    types::error::{ErrorCode, reject_too_big_request},
};
use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixSocket, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::{JoinHandle, JoinSet},
    time::timeout,
};

/// Bytes read at once.
const READ_SIZE: usize = 64 << 10;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after the system could not give a connection, as when files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the node's user alone.
const PRIVATE: u32 = 0o600;

/// A running server.
#[derive(Debug)]
pub(super) struct IpcServer {
    path: PathBuf,
    /// Which file it is; another node may have put its own there since.
    file: Option<(u64, u64)>,
    handle: ServerHandle,
    accepting: JoinHandle<()>,
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        let _ = self.handle.stop();
        self.accepting.abort();
        if identity(&self.path) == self.file {
            // If it is gone already, so much the better.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl IpcServer {
    pub(super) async fn start(path: &Path, answers: Answers) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Ipc { path: path.into(), source };
        let listener = bind(path).await.map_err(failed)?;
        let (stop, handle) = stop_channel();
        let accepting = tokio::spawn(accept(listener, answers, stop));
        tracing::info!(path = %path.display(), "IPC server started");
        Ok(Self { path: path.into(), file: identity(path), handle, accepting })
    }

    pub(super) async fn stop(mut self, grace: Duration) {
        let _ = self.handle.stop();
        let _ = timeout(grace, &mut self.accepting).await;
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Listens at `path`, in place of a socket that a dead node has left there.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            let message = "there is a file that is no socket; choose another --ipcpath";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => {
            if UnixStream::connect(path).await.is_ok() {
                let message = "another node listens there; choose another --ipcpath";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            fs::remove_file(path)?;
        }
        Err(_) => {}
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let socket = UnixSocket::new_stream()?;
    // Linux gives the file the permissions of the socket, so that it is never open to others. Where
    // a socket has none, those of the file have to do, before anybody can be accepted.
    let of_socket = File::from(socket.as_fd().try_clone_to_owned()?);
    let _ = of_socket.set_permissions(Permissions::from_mode(PRIVATE));
    socket.bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE))?;
    socket.listen(BACKLOG)
}

async fn accept(listener: UnixListener, answers: Answers, stop: StopHandle) {
    let most = answers.limits.max_connections as usize;
    let mut tasks = JoinSet::new();
    let stopped = stop.clone().shutdown();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if tasks.len() < most => {
                    tasks.spawn(serve(stream, answers.clone(), stop.clone()));
                }
                // Closed is better than never answered.
                Ok(_) => answers.metrics.refused.inc(),
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Serves one connection until the client or the node ends it.
async fn serve(stream: UnixStream, answers: Answers, stop: StopHandle) {
    let _connected = answers.metrics.connected();
    let (reader, writer) = stream.into_split();
    let (session, outbox) = session::open(&answers, answers.buffered.open());
    let writing = write(writer, outbox, answers.limits.stall_timeout);
    tokio::pin!(writing);
    tokio::select! {
        () = &mut writing => return,
        () = stop.shutdown() => {}
        read = read(reader, session) => if let Err(error) = read {
            tracing::debug!(%error, "an IPC connection has failed");
        },
    }
    // Ends with the last request under way.
    writing.await;
}

async fn write(mut writer: OwnedWriteHalf, mut outbox: Outbox, stall_timeout: Duration) {
    while let Some(message) = outbox.next().await {
        let written = timeout(stall_timeout, async {
            writer.write_all(message.text().as_bytes()).await?;
            writer.write_all(b"\n").await
        });
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
        message.written();
    }
}

async fn read(mut reader: OwnedReadHalf, session: Session) -> io::Result<()> {
    let mut frames = Frames::default();
    let most = session.client().limits().max_request_size;
    let take = async |message: Vec<u8>| session.take(message.into(), session.hold()).await;
    loop {
        frames.buffer.reserve(READ_SIZE);
        if reader.read_buf(&mut frames.buffer).await? == 0 {
            // A client that stops within a value is told so, if it still listens.
            if let Some(message) = frames.rest() {
                take(message).await;
            }
            return Ok(());
        }
        loop {
            match frames.next(most as usize) {
                Frame::Incomplete => break,
                Frame::Whole(message) => take(message).await,
                // After these nobody knows where the next request begins.
                Frame::TooLong => {
                    session.refuse(reject_too_big_request(most)).await;
                    return Ok(());
                }
                Frame::NotJson => {
                    session.refuse(ErrorCode::ParseError.into()).await;
                    return Ok(());
                }
            }
        }
    }
}
