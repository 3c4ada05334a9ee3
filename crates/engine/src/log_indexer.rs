//! The index of logs follows the durable chain.

use crate::EngineError;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use retrie_db::LogBounds;
use retrie_pipeline::Chain;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How often the chain is looked at while there is nothing to do.
const POLL: Duration = Duration::from_secs(1);
/// A pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Keeps the [index of logs](retrie_db::Db::index_logs) of a datadir, on the thread `log-index`, step
/// by step, at most half of the time. What is done is durable: a later run goes on from there.
#[derive(Debug)]
pub struct LogIndexer {
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    /// Dropped to end a pause.
    pause: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LogIndexer {
    /// Starts it. The datadir stays open until it is dropped, which waits for the step under way to be
    /// given up.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(chain: Arc<Chain>, bounds: LogBounds) -> Result<Self, EngineError> {
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

    /// Whether its thread is alive.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Why the last step has failed, if it has. It will be tried again; searches look at blocks one by
    /// one meanwhile.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for LogIndexer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pause = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}

fn keep_indexing(
    chain: &Chain,
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
                // What a head or two bring is not worth a line.
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
