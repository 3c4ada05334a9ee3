//! IPC: JSON-RPC over a Unix socket.
//!
//! Requests are JSON values in a row, with or without newlines between them, as in geth; the byte
//! after a number ends it. Each response ends with a newline.

use super::{
    ServerError,
    json_frames::{JsonFrame, JsonSplitter},
    service::MethodService,
    session::{self, ConnectionInbox, ConnectionOutbox},
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

/// Bytes per read.
const READ_SIZE: usize = 64 << 10;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept, e.g. when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// File mode of the socket: only the node's user.
const PRIVATE: u32 = 0o600;

/// A running server.
#[derive(Debug)]
pub(super) struct IpcServer {
    path: PathBuf,
    /// Device and inode; another node may have replaced the file.
    file: Option<(u64, u64)>,
    handle: ServerHandle,
    accepting: JoinHandle<()>,
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        let _ = self.handle.stop();
        self.accepting.abort();
        if identity(&self.path) == self.file {
            // The file may already be gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl IpcServer {
    pub(super) async fn start(path: &Path, answers: MethodService) -> Result<Self, ServerError> {
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

/// Listens at `path`; replaces the socket of a node that no longer runs.
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
    // On Linux the file inherits the socket's permissions, so it is never open to others. On other
    // systems the file's permissions are set before the first accept.
    let of_socket = File::from(socket.as_fd().try_clone_to_owned()?);
    let _ = of_socket.set_permissions(Permissions::from_mode(PRIVATE));
    socket.bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE))?;
    socket.listen(BACKLOG)
}

async fn accept(listener: UnixListener, answers: MethodService, stop: StopHandle) {
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
                // Closing is better than never responding.
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
async fn serve(stream: UnixStream, answers: MethodService, stop: StopHandle) {
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
    // Ends after the last request in progress.
    writing.await;
}

async fn write(mut writer: OwnedWriteHalf, mut outbox: ConnectionOutbox, stall_timeout: Duration) {
    while let Some(message) = outbox.next().await {
        let written = timeout(stall_timeout, async {
            writer.write_all(message.text().as_bytes()).await?;
            writer.write_all(b"\n").await
        });
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
        message.confirm_written();
    }
}

async fn read(mut reader: OwnedReadHalf, session: ConnectionInbox) -> io::Result<()> {
    let mut frames = JsonSplitter::default();
    let most = session.client().limits().max_request_size;
    let take = async |message: Vec<u8>| session.handle(message.into(), session.hold()).await;
    loop {
        frames.buffer.reserve(READ_SIZE);
        if reader.read_buf(&mut frames.buffer).await? == 0 {
            // A client that stops within a value gets an error, if it still reads.
            if let Some(message) = frames.rest() {
                take(message).await;
            }
            return Ok(());
        }
        loop {
            match frames.next(most as usize) {
                JsonFrame::Incomplete => break,
                JsonFrame::Whole(message) => take(message).await,
                // After these the start of the next request is unknown.
                JsonFrame::TooLong => {
                    session.refuse(reject_too_big_request(most)).await;
                    return Ok(());
                }
                JsonFrame::NotJson => {
                    session.refuse(ErrorCode::ParseError.into()).await;
                    return Ok(());
                }
            }
        }
    }
}
