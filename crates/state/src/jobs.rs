//! Background work of backends: merges, folds, growth, garbage collection.
//!
//! | thread | started by | runs | ends |
//! |---|---|---|---|
//! | `state-job-N` | first job | jobs in the order of their start, one at a time each | with the [`Jobs`] handle |
//! | any thread in `apply` | a job that is due and not yet started | that job, in place | with the job |
//!
//! A job is named by the digest of its immutable inputs: siblings that need the same work share one
//! run, and a repeated run (after a reopen, a revert, or because nobody held the first) gives the
//! same output. A job may write files of the state directory under names that nobody knows yet; a
//! block makes them known with [`publish_file`](crate::NodeWrite::publish_file).

use crate::StateError;
use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// What a job leaves: anything its backend knows how to read.
pub type JobOutput = Arc<dyn Any + Send + Sync>;

type Outcome = Result<JobOutput, String>;
type Work = Box<dyn FnOnce(&JobContext) -> Result<JobOutput, StateError> + Send>;

/// A piece of background work, not yet started.
pub struct Job {
    /// Digest of the immutable inputs.
    pub id: B256,
    /// What it does, for messages and metrics.
    pub name: &'static str,
    /// The work. It should call [`JobContext::pause_point`] every few milliseconds.
    pub work: Work,
}

impl Job {
    /// A job of identity `id`.
    pub fn new(
        id: B256,
        name: &'static str,
        work: impl FnOnce(&JobContext) -> Result<JobOutput, StateError> + Send + 'static,
    ) -> Self {
        Self { id, name, work: Box::new(work) }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("id", &self.id).finish()
    }
}

/// What a running job sees of the world.
#[derive(Debug)]
pub struct JobContext {
    dir: Option<PathBuf>,
    cancelled: Arc<AtomicBool>,
    delay: Option<Duration>,
}

impl JobContext {
    /// The state directory, in which the job may create files; `None` for a store in memory.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// To be called between bounded slices of work: fails once nobody waits for the job any more.
    pub fn pause_point(&self) -> Result<(), StateError> {
        if let Some(delay) = self.delay {
            std::thread::sleep(delay);
        }
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(StateError::Job { job: "job".into(), reason: "cancelled".into() });
        }
        Ok(())
    }
}

struct Slot {
    id: B256,
    name: &'static str,
    state: Mutex<Progress>,
    done: Condvar,
    cancelled: Arc<AtomicBool>,
}

enum Progress {
    Waiting(Work),
    Running,
    Done(Outcome),
}

impl Slot {
    /// Runs the work unless somebody else has taken it.
    fn run(&self, context: &JobContext) {
        let mut state = self.state.lock();
        let Progress::Waiting(_) = &*state else { return };
        let Progress::Waiting(work) = std::mem::replace(&mut *state, Progress::Running) else {
            return;
        };
        drop(state);
        let outcome = work(context).map_err(|error| error.to_string());
        *self.state.lock() = Progress::Done(outcome);
        self.done.notify_all();
    }
}

/// Keeps a job alive; the last handle dropped cancels it.
#[derive(Clone)]
pub struct JobHandle(Arc<Held>);

struct Held {
    slot: Arc<Slot>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.slot.cancelled.store(true, Ordering::Relaxed);
    }
}

impl JobHandle {
    /// Digest of the job's inputs.
    pub fn id(&self) -> B256 {
        self.0.slot.id
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.slot.name, self.0.slot.id)
    }
}

/// Runs jobs for one state store.
pub struct Jobs {
    dir: Option<PathBuf>,
    known: Mutex<HashMap<B256, Weak<Held>>>,
    queue: Mutex<Option<crossbeam_channel::Sender<JobHandleWeak>>>,
    threads: usize,
    /// Microseconds each pause point sleeps: the test-kit's slow node.
    delay_us: AtomicU64,
}

/// What waits in the queue: the job may have been dropped meanwhile.
type JobHandleWeak = (Weak<Held>, Option<Duration>);

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Jobs {
    /// A runner that gives jobs `dir` for their files.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            known: Mutex::default(),
            queue: Mutex::new(None),
            threads: 1,
            delay_us: AtomicU64::new(0),
        }
    }

    /// The state directory, for files that `apply` itself writes.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Makes every pause point sleep, to act as a slow node. For the test-kit.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    fn delay(&self) -> Option<Duration> {
        let us = self.delay_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Starts `job` in the background, or joins the one of the same identity that is under way.
    pub fn start(&self, job: Job) -> JobHandle {
        let mut known = self.known.lock();
        if let Some(held) = known.get(&job.id).and_then(Weak::upgrade) {
            return JobHandle(held);
        }
        known.retain(|_, held| held.strong_count() > 0);
        let handle = JobHandle(Arc::new(Held {
            slot: Arc::new(Slot {
                id: job.id,
                name: job.name,
                state: Mutex::new(Progress::Waiting(job.work)),
                done: Condvar::new(),
                cancelled: Arc::default(),
            }),
        }));
        known.insert(job.id, Arc::downgrade(&handle.0));
        drop(known);
        // A worker that cannot be started is no failure: the job then runs where it is due.
        if let Some(queue) = self.workers() {
            let _ = queue.send((Arc::downgrade(&handle.0), self.delay()));
        }
        handle
    }

    /// The output of `handle`'s job; runs it in place if no worker has taken it yet.
    pub fn wait(&self, handle: &JobHandle) -> Result<JobOutput, StateError> {
        let slot = &handle.0.slot;
        slot.run(&self.context(slot));
        let mut state = slot.state.lock();
        loop {
            match &*state {
                Progress::Done(Ok(output)) => return Ok(output.clone()),
                Progress::Done(Err(reason)) => {
                    return Err(StateError::Job { job: slot.name.into(), reason: reason.clone() });
                }
                _ => slot.done.wait(&mut state),
            }
        }
    }

    /// Writes a file of the state directory whole and fsynced: it appears under `name` complete or
    /// not at all.
    pub fn write_file(dir: &Path, name: &str, content: &[u8]) -> Result<(), StateError> {
        use std::io::Write;
        let fail = |error: std::io::Error| {
            crate::StoreError::new(
                format!("writing state file {}", dir.join(name).display()),
                error,
            )
        };
        let mut file = tempfile_in(dir, name).map_err(fail)?;
        file.1.write_all(content).and_then(|()| file.1.sync_all()).map_err(fail)?;
        fs::rename(&file.0, dir.join(name)).map_err(fail)?;
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(())
    }

    fn context(&self, slot: &Slot) -> JobContext {
        JobContext { dir: self.dir.clone(), cancelled: slot.cancelled.clone(), delay: self.delay() }
    }

    fn workers(&self) -> Option<crossbeam_channel::Sender<JobHandleWeak>> {
        let mut queue = self.queue.lock();
        if queue.is_none() {
            let (sender, receiver) = crossbeam_channel::unbounded::<JobHandleWeak>();
            for n in 0..self.threads {
                let (receiver, dir) = (receiver.clone(), self.dir.clone());
                std::thread::Builder::new()
                    .name(format!("state-job-{n}"))
                    .spawn(move || {
                        for (held, delay) in receiver {
                            let Some(held) = held.upgrade() else { continue };
                            let slot = held.slot.clone();
                            // The slot alone is kept, so that dropping the handles cancels the job.
                            drop(held);
                            let context = JobContext {
                                dir: dir.clone(),
                                cancelled: slot.cancelled.clone(),
                                delay,
                            };
                            slot.run(&context);
                        }
                    })
                    .ok()?;
            }
            *queue = Some(sender);
        }
        queue.clone()
    }
}

fn tempfile_in(dir: &Path, name: &str) -> std::io::Result<(PathBuf, fs::File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = dir.join(format!("{name}.{}.tmp", NEXT.fetch_add(1, Ordering::Relaxed)));
    let file = fs::File::create(&path)?;
    Ok((path, file))
}
