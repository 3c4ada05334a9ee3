//! [`RefereeJoiner`]: lets a referee join the chain of a running node.

use crate::EngineError;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use retrie_pipeline::{ChainStore, JoinStep, JoiningReferee};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Time between two looks at the chain while the referee is at its tip.
const POLL: Duration = Duration::from_millis(200);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Time between two lines of the log.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The referee is brought to the tip at the end if it lacks at most this many blocks.
const NEAR: u64 = 256;

/// Lets a referee join on the thread `referee-join`. What it has done is durable, so a restarted node
/// goes on from there.
#[derive(Debug)]
pub struct RefereeJoiner {
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    /// Dropped to end a pause.
    pause: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RefereeJoiner {
    /// Starts the thread. It keeps the datadir open until the joiner is dropped. Drop it after the
    /// engine: a referee that is near is then brought to the last block, so that the next start has it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(chain: Arc<ChainStore>, joining: JoiningReferee) -> Result<Self, EngineError> {
        let (stop, trouble) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let (pause, wake) = bounded(0);
        let run = {
            let (stop, trouble) = (stop.clone(), trouble.clone());
            move || keep_joining(&chain, joining, &stop, &trouble, &wake)
        };
        let thread = std::thread::Builder::new().name("referee-join".into()).spawn(run);
        let thread = Some(thread.map_err(EngineError::Thread)?);
        Ok(Self { stop, trouble, pause: Some(pause), thread })
    }

    /// Whether the thread is alive.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Why the last attempt failed, if it did. The joiner tries again.
    pub fn last_error(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for RefereeJoiner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pause = None;
        if let Some(thread) = self.thread.take() {
            // A panic was already reported, and nothing depends on the thread.
            let _ = thread.join();
        }
    }
}

fn keep_joining(
    chain: &ChainStore,
    mut joining: JoiningReferee,
    stop: &AtomicBool,
    trouble: &Mutex<Option<String>>,
    wake: &Receiver<()>,
) {
    let mut line = StepLog::default();
    loop {
        let outcome = joining.advance(chain, stop, &mut |step| line.tell(step));
        let failed = outcome.as_ref().err().map(ToString::to_string);
        if let Some(error) = failed.as_ref().filter(|_| *trouble.lock() != failed) {
            tracing::error!(error, "the referee cannot join");
        }
        let pause = if failed.is_some() { AFTER_FAILURE } else { POLL };
        *trouble.lock() = failed;
        if wake.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    let is_near = joining.missing(chain).is_ok_and(|missing| missing.is_some_and(|n| n <= NEAR));
    if is_near && let Err(error) = joining.advance(chain, &AtomicBool::new(false), &mut |_| {}) {
        tracing::warn!(%error, "the referee is behind the chain; it goes on at the next start");
    }
}

/// The lines of the log.
#[derive(Default)]
struct StepLog {
    last: Option<Instant>,
    was_level: bool,
}

impl StepLog {
    fn tell(&mut self, step: JoinStep) {
        let is_level = step.missing() == Some(0);
        if is_level && !self.was_level {
            self.was_level = true;
            tracing::info!("the referee is at the tip of the chain: the next start has it");
        }
        if is_level || self.last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        tracing::info!("the referee joins: {step}");
    }
}
