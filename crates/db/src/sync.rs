//! Bringing commits to the disk, for which they do not wait with [`SyncMode::NoSync`].
//!
//! [`SyncMode::NoSync`]: crate::SyncMode::NoSync

use crate::writer::Gate;
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

/// How often a thread syncs.
const EVERY: Duration = Duration::from_secs(5);

/// Why there was no sync.
pub(crate) enum Failed {
    /// This thread has a write transaction.
    Nested,
    Data(io::Error),
    Mdbx(MdbxError),
}

/// Syncs what has been committed. `data`, the data file, is there if commits do not do that.
pub(crate) fn sync(env: &Environment, gate: &Gate, data: Option<&File>) -> Result<(), Failed> {
    if let Some(data) = data {
        // The most of it, before writers are kept waiting.
        data.sync_data().map_err(Failed::Data)?;
    }
    // MDBX, which here knows no owner of a transaction, would take another thread's for this
    // thread's own and sync in the midst of it.
    let _pass = gate.enter().ok_or(Failed::Nested)?;
    env.sync(true).map(drop).map_err(Failed::Mdbx)
}

/// A thread that syncs every few seconds. Dropping it waits for its end.
#[derive(Debug)]
pub(crate) struct Syncer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(crate) fn start(env: Environment, gate: Arc<Gate>, data: Arc<File>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("db-sync".into())
            .spawn(move || sync_until(&stopped, &env, &gate, &data))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

fn sync_until(stopped: &Receiver<()>, env: &Environment, gate: &Gate, data: &File) {
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        // Commits that could not be synced here meet the same failure once they are many.
        let _ = sync(env, gate, Some(data));
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}
