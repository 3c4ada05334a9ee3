//! [`LogIndexer`]: keeps the log index at the head of the durable chain.

use crate::EngineError;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use retrie_db::LogBounds;
use retrie_pipeline::ChainStore;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Time between two checks of the chain while there is nothing to index.
const POLL: Duration = Duration::from_secs(1);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Keeps the [log index](retrie_db::DatabaseEnv::index_logs) of a datadir on the thread `log-index`,
/// in steps, with a pause as long as the step after each. Each step is durable, so a restarted node
/// continues from the last one.
#[derive(Debug)]
pub struct LogIndexer {
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    /// Dropped to end a pause.
    pause: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LogIndexer {
    /// Starts the thread. It keeps the datadir open until the indexer is dropped; dropping cancels
    /// the current step and waits for the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(chain: Arc<ChainStore>, bounds: LogBounds) -> Result<Self, EngineError> {
        let (stop, trouble) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let (pause, wake) = bounded(0);
        let run = {
            let (stop, trouble) = (stop.clone(), trouble.clone());
            move || keep_indexing(&chain, &bounds, &stop, &trouble, &wake)
        };
        let thread = std::thread::Builder::new().name("log-index".into()).spawn(run);
        let thread = Some(thread.map_err(EngineError::Thread)?);
        Ok(Self { stop, trouble, pause: Some(pause), thread })
    }

    /// Whether the thread is alive.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Why the last step failed, if it did. The indexer tries again; until then log searches read
    /// blocks one by one.
    pub fn last_error(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for LogIndexer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pause = None;
        if let Some(thread) = self.thread.take() {
            // A panic was already reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}

fn keep_indexing(
    chain: &ChainStore,
    bounds: &LogBounds,
    stop: &AtomicBool,
    trouble: &Mutex<Option<String>>,
    wake: &Receiver<()>,
) {
    let mut steps = 0_u64;
    loop {
        let began = Instant::now();
        let step = chain.db().index_logs(bounds, stop);
        let failed = step.as_ref().err().map(ToString::to_string);
        let pause = match step {
            Ok(true) => {
                steps += 1;
                began.elapsed()
            }
            Ok(false) => {
                // One step, for a new head or two, is not worth a log line.
                if steps > 1 {
                    tracing::info!(steps, "the index of logs is complete");
                }
                steps = 0;
                POLL
            }
            Err(_) => AFTER_FAILURE,
        };
        if let Some(error) = failed.as_ref().filter(|_| *trouble.lock() != failed) {
            tracing::error!(error, "logs cannot be indexed");
        }
        *trouble.lock() = failed;
        if wake.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
