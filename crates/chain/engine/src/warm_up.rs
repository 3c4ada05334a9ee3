//! [`NodeWarmUp`]: fills caches and tables at startup that the first block, payload or blob would
//! otherwise wait for.
//!
//! | thread | prepares | ends |
//! |---|---|---|
//! | `kzg-setup` | the trusted setup of KZG, which takes seconds | when it is loaded, or with the process |
//! | `warm-up` | tables of the EVM and of signatures, rayon's threads, and the backends' caches of the head's state: it builds a block without transactions and drops it | when done |

use crate::{EngineError, PayloadBuilder};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The steps, under their names in the log.
const STEPS: [&str; 3] = ["KZG setup", "tables", "state of the head"];

/// The warm-up of a node. Dropping it waits for the thread that reads the datadir.
#[derive(Debug)]
pub struct NodeWarmUp {
    progress: WarmUpProgress,
    thread: Option<JoinHandle<()>>,
}

/// Progress of a warm-up. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct WarmUpProgress(Arc<WarmUpState>);

#[derive(Debug)]
struct WarmUpState {
    start: Instant,
    steps: Mutex<Vec<(&'static str, Duration)>>,
    moved: Condvar,
}

impl WarmUpProgress {
    /// The finished steps, each with the time from the start to its end.
    pub fn steps(&self) -> Vec<(&'static str, Duration)> {
        self.0.steps.lock().clone()
    }

    /// Waits until all steps are done, at most for `patience`. Returns whether they are.
    pub fn wait(&self, patience: Duration) -> bool {
        let mut steps = self.0.steps.lock();
        let end = Instant::now() + patience;
        while steps.len() < STEPS.len() {
            if self.0.moved.wait_until(&mut steps, end).timed_out() {
                return steps.len() == STEPS.len();
            }
        }
        true
    }

    fn add(&self, step: &'static str) {
        let time = self.0.start.elapsed();
        let mut steps = self.0.steps.lock();
        steps.push((step, time));
        self.0.moved.notify_all();
        if steps.len() == STEPS.len() {
            tracing::info!("warm: {}", describe(&steps));
        }
    }
}

fn describe(steps: &[(&str, Duration)]) -> String {
    let steps = steps.iter().map(|(step, time)| format!("{step} after {} ms", time.as_millis()));
    steps.collect::<Vec<_>>().join(", ")
}

impl NodeWarmUp {
    /// Starts to warm up the chain of `payloads`.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(payloads: PayloadBuilder) -> Result<Self, EngineError> {
        let shared =
            WarmUpState { start: Instant::now(), steps: Mutex::default(), moved: Condvar::new() };
        let progress = WarmUpProgress(Arc::new(shared));
        let [kzg, tables, state] = STEPS;
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map_err(EngineError::Thread)
        };
        let told = progress.clone();
        // This thread uses no state of the node and cannot be stopped: the process does not wait
        // for it.
        spawn(
            "kzg-setup",
            Box::new(move || {
                retrie_execution::load_trusted_setup();
                told.add(kzg);
            }),
        )?;
        let told = progress.clone();
        let thread = spawn(
            "warm-up",
            Box::new(move || {
                retrie_execution::make_tables();
                rayon::broadcast(|_| ());
                told.add(tables);
                if let Err(error) = payloads.build_empty() {
                    tracing::debug!(%error, "the state of the head is not warm");
                }
                told.add(state);
            }),
        )?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// The progress.
    pub const fn progress(&self) -> &WarmUpProgress {
        &self.progress
    }
}

impl Drop for NodeWarmUp {
    fn drop(&mut self) {
        // A panic was already reported, and nothing depends on the thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
