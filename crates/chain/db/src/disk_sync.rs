//! Syncing commits to disk with [`SyncMode::NoSync`], where they do not wait for the disk
//! themselves.
//!
//! [`SyncMode::NoSync`]: crate::SyncMode::NoSync

use crate::writer::WriterGate;
use mdbx::{Environment, MdbxError};
use std::{
    fs::File,
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How often the sync thread syncs.
const EVERY: Duration = Duration::from_secs(5);

/// Why a sync failed.
pub(crate) enum SyncFailure {
    /// This thread holds the write transaction.
    Nested,
    Data(io::Error),
    Mdbx(MdbxError),
}

/// Syncs all commits so far. `data` is the data file, if commits do not sync themselves.
pub(crate) fn sync(
    env: &Environment,
    gate: &WriterGate,
    data: Option<&File>,
) -> Result<(), SyncFailure> {
    if let Some(data) = data {
        // Syncs most of the data before writers have to wait.
        data.sync_data().map_err(SyncFailure::Data)?;
    }
    // MDBX does not know the owner of a transaction here: it would take another thread's
    // transaction for this thread's own, and sync in the middle of it.
    let _pass = gate.enter().ok_or(SyncFailure::Nested)?;
    env.sync(true).map(drop).map_err(SyncFailure::Mdbx)
}

/// A thread that syncs every few seconds. Dropping it waits for its end.
#[derive(Debug)]
pub(crate) struct SyncThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    pub(crate) fn start(
        env: Environment,
        gate: Arc<WriterGate>,
        data: Arc<File>,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("db-sync".into())
            .spawn(move || sync_until(&stopped, &env, &gate, &data))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

fn sync_until(stopped: &Receiver<()>, env: &Environment, gate: &WriterGate, data: &File) {
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        // A lasting failure is reported by a later commit, which syncs itself when too much data is
        // not on disk.
        let _ = sync(env, gate, Some(data));
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}
