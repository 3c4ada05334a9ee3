//! What the first block, payload or blob would make and wait for, made when the node starts.
//!
//! | thread | makes | ends |
//! |---|---|---|
//! | `kzg-setup` | the trusted setup of KZG, which takes seconds | with that, or the process |
//! | `warm-up` | tables of the EVM and of signatures, rayon's threads, and what backends keep of the head's state in memory: by a block without transactions, which is dropped | with that |

use crate::{EngineError, PayloadBuilder};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The steps, as the log names them.
const STEPS: [&str; 3] = ["KZG setup", "tables", "state of the head"];

/// The warm-up of a node that has just started. Dropping it waits for the part that reads the datadir.
#[derive(Debug)]
pub struct WarmUp {
    progress: WarmUpProgress,
    thread: Option<JoinHandle<()>>,
}

/// How far a warm-up is. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct WarmUpProgress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    start: Instant,
    steps: Mutex<Vec<(&'static str, Duration)>>,
    moved: Condvar,
}

impl WarmUpProgress {
    /// The steps that are done, each with the time since the start when it was.
    pub fn steps(&self) -> Vec<(&'static str, Duration)> {
        self.0.steps.lock().clone()
    }

    /// Waits until all steps are done, for `patience` at most. Says whether they are.
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

impl WarmUp {
    /// Begins to warm up the chain of `payloads`.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(payloads: PayloadBuilder) -> Result<Self, EngineError> {
        let shared =
            Shared { start: Instant::now(), steps: Mutex::default(), moved: Condvar::new() };
        let progress = WarmUpProgress(Arc::new(shared));
        let [kzg, tables, state] = STEPS;
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map_err(EngineError::Thread)
        };
        let told = progress.clone();
        // It touches nothing of the node, and cannot be stopped: the process ends without it.
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
                if let Err(error) = payloads.build_nothing() {
                    tracing::debug!(%error, "the state of the head is not warm");
                }
                told.add(state);
            }),
        )?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// How far it is.
    pub const fn progress(&self) -> &WarmUpProgress {
        &self.progress
    }
}

impl Drop for WarmUp {
    fn drop(&mut self) {
        // A panic there has been told, and leaves nothing undone that anything depends on.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
