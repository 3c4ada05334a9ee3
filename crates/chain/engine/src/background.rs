//! [`BackgroundThread`]: a thread that works in steps beside the node, and tries again after failures.

use crate::EngineError;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A thread that works in steps until it is dropped. Dropping cancels the current step and waits for
/// the thread.
#[derive(Debug)]
pub struct BackgroundThread {
    work: &'static str,
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    /// Dropped to end a pause.
    pause: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts the thread `name`, which does `work`: a few words for people. `run` goes on
    /// after failures, and ends when its [`BackgroundControl`] says so.
    ///
    /// # Errors
    /// [`EngineError::Thread`] if the thread cannot be started.
    pub fn start(
        name: &str,
        work: &'static str,
        run: impl FnOnce(&BackgroundControl) + Send + 'static,
    ) -> Result<Self, EngineError> {
        let (stop, trouble) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let (pause, wake) = bounded(0);
        let control = BackgroundControl { stop: stop.clone(), trouble: trouble.clone(), wake };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&control));
        let thread = Some(thread.map_err(EngineError::Thread)?);
        Ok(Self { work, stop, trouble, pause: Some(pause), thread })
    }

    /// What it does, in a few words.
    pub const fn work(&self) -> &'static str {
        self.work
    }

    /// Whether the thread is alive.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Why the last step failed, if it did. The thread tries again.
    pub fn last_error(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pause = None;
        if let Some(thread) = self.thread.take() {
            // A panic was already reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}

/// What the work on a [`BackgroundThread`] asks and tells.
#[derive(Debug)]
pub struct BackgroundControl {
    /// Set when the thread is to end.
    pub(crate) stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    wake: Receiver<()>,
}

impl BackgroundControl {
    /// Whether the thread is to end.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records how the last step ended. Logs an error unless the step before ended with the same.
    pub fn record(&self, failed: Option<String>, what: &'static str) {
        let mut trouble = self.trouble.lock();
        if let Some(error) = failed.as_ref().filter(|_| *trouble != failed) {
            tracing::error!(error, "{what}");
        }
        *trouble = failed;
    }

    /// Pauses; returns whether the thread is to go on.
    pub fn pause(&self, time: Duration) -> bool {
        self.wake.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}
