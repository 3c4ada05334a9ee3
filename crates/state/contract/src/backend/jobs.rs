//! Background work of backends: merges, folds, growth, garbage collection.
//!
//! | thread | started by | runs | ends |
//! |---|---|---|---|
//! | `state-job-N`, N below 4 | a new job, if all other workers are busy | jobs in the order of their start, one at a time each, at a lower priority than other threads | with the [`JobRunner`] |
//! | any thread in `apply` | a job that is due and not yet started | that job, in place | with the job |
//!
//! A job is named by the digest of its immutable inputs. Siblings that need the same work share one
//! execution, and a repeated execution (after a reopen, a revert, or because the first handle was
//! dropped) gives the same output. A job may write files of the state directory that no block names
//! yet; a block names them with [`publish_file`](crate::NodeWrite::publish_file). The next opening
//! removes all files that no block names, except the backend's [pending
//! files](crate::JobFiles::pending_files): a job that finds its own output complete need not produce
//! it again.

use crate::StateError;

use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Maximum number of jobs that run at once, so that a long merge does not delay short jobs.
const THREADS: usize = 4;
/// The `nice` value of job threads: execution of blocks goes first.
const NICE: i32 = 10;

/// The output of a job, of a type that its backend defines.
pub type JobOutput = Arc<dyn Any + Send + Sync>;

type JobWork = Box<dyn Fn(&JobContext) -> Result<JobOutput, StateError> + Send>;

/// A piece of background work, not yet started.
pub struct BackgroundJob {
    /// Digest of the immutable inputs.
    pub id: B256,
    /// What it does, for messages and metrics.
    pub name: &'static str,
    /// The work. It should call [`JobContext::pause_point`] every few milliseconds. It runs again
    /// if it failed and its output is needed.
    pub work: JobWork,
}

impl BackgroundJob {
    /// A job of identity `id`.
    pub fn new(
        id: B256,
        name: &'static str,
        work: impl Fn(&JobContext) -> Result<JobOutput, StateError> + Send + 'static,
    ) -> Self {
        Self { id, name, work: Box::new(work) }
    }
}

impl fmt::Debug for BackgroundJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundJob").field("name", &self.name).field("id", &self.id).finish()
    }
}

/// What a running job gets from its runner.
#[derive(Debug)]
pub struct JobContext {
    name: &'static str,
    dir: Option<PathBuf>,
    /// The last handle was dropped.
    cancelled: Arc<AtomicBool>,
    /// The store is being closed.
    closing: Arc<AtomicBool>,
    delay: Option<Duration>,
}

impl JobContext {
    /// The state directory, in which the job may create files; `None` for a store in memory.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Call it between bounded slices of work: it fails once the job is cancelled.
    pub fn pause_point(&self) -> Result<(), StateError> {
        if let Some(delay) = self.delay {
            std::thread::sleep(delay);
        }
        if self.cancelled.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed) {
            return Err(StateError::Job { job: self.name.into(), reason: "cancelled".into() });
        }
        Ok(())
    }
}

struct JobSlot {
    id: B256,
    name: &'static str,
    state: Mutex<JobProgress>,
    done: Condvar,
    cancelled: Arc<AtomicBool>,
}

enum JobProgress {
    Waiting(JobWork),
    Running,
    Done(JobOutput),
    /// Runs again if its output is needed.
    Failed(JobWork),
}

impl JobSlot {
    /// Runs the work unless another thread has taken it. `again`: even if it has failed before.
    fn run(&self, context: &JobContext, again: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        let work = match std::mem::replace(&mut *state, JobProgress::Running) {
            JobProgress::Waiting(work) => work,
            JobProgress::Failed(work) if again => work,
            other => {
                *state = other;
                return Ok(());
            }
        };
        drop(state);
        let run = AssertUnwindSafe(|| work(context).map_err(|error| error.to_string()));
        let outcome = catch_unwind(run).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!("it panicked: {}", text.unwrap_or("no message")))
        });
        let (progress, outcome) = match outcome {
            Ok(output) => (JobProgress::Done(output), Ok(())),
            Err(reason) => (JobProgress::Failed(work), Err(reason)),
        };
        *self.state.lock() = progress;
        self.done.notify_all();
        outcome
    }
}

/// Keeps a job alive; the last handle dropped cancels it.
#[derive(Clone)]
pub struct JobHandle(Arc<HandleGuard>);

struct HandleGuard {
    slot: Arc<JobSlot>,
}

impl Drop for HandleGuard {
    fn drop(&mut self) {
        self.slot.cancelled.store(true, Ordering::Relaxed);
    }
}

impl JobHandle {
    /// Digest of the job's inputs.
    pub fn id(&self) -> B256 {
        self.0.slot.id
    }

    /// The output, if the job is done. Only for work on which no root depends: a block at which the
    /// output is due calls [`JobRunner::wait`].
    pub fn output(&self) -> Option<JobOutput> {
        match &*self.0.slot.state.lock() {
            JobProgress::Done(output) => Some(output.clone()),
            _ => None,
        }
    }

    /// Whether its last execution has failed. A holder that does not [wait](JobRunner::wait) for it
    /// should then drop it, as it keeps its inputs in memory.
    pub fn has_failed(&self) -> bool {
        matches!(*self.0.slot.state.lock(), JobProgress::Failed(_))
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.slot.name, self.0.slot.id)
    }
}

/// Runs jobs for one state store. Dropping it cancels them and waits for their threads.
pub struct JobRunner {
    dir: Option<PathBuf>,
    known: Mutex<HashMap<B256, Weak<HandleGuard>>>,
    workers: Mutex<WorkerPool>,
    /// Maximum number of threads.
    limit: usize,
    closing: Arc<AtomicBool>,
    /// Jobs that workers have not finished yet.
    outstanding: Arc<OutstandingJobs>,
    /// Microseconds each pause point sleeps: the test-kit's slow node.
    delay_us: AtomicU64,
    /// Nanoseconds that [`wait`](Self::wait) took so far.
    wait_nanos: AtomicU64,
}

#[derive(Default)]
struct OutstandingJobs {
    count: Mutex<usize>,
    none: Condvar,
}

impl OutstandingJobs {
    fn done(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }
}

/// A queued job, whose handles may have been dropped meanwhile.
type QueuedJob = (Weak<HandleGuard>, JobContext);

#[derive(Default)]
struct WorkerPool {
    /// Both ends (the receiver is for later threads); `None` before the first job.
    queue: Option<(crossbeam_channel::Sender<QueuedJob>, crossbeam_channel::Receiver<QueuedJob>)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Drop for JobRunner {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let WorkerPool { queue, threads } = std::mem::take(self.workers.get_mut());
        drop(queue);
        for thread in threads {
            // Panics of jobs are caught; nothing else can end a worker early.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for JobRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRunner").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl JobRunner {
    /// A runner whose jobs write their files into `dir`.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            known: Mutex::default(),
            workers: Mutex::default(),
            limit: THREADS,
            closing: Arc::default(),
            outstanding: Arc::default(),
            delay_us: AtomicU64::new(0),
            wait_nanos: AtomicU64::new(0),
        }
    }

    /// A runner without threads: a job runs on the thread that waits for it.
    pub fn without_threads(dir: Option<PathBuf>) -> Self {
        let mut jobs = Self::new(dir);
        jobs.limit = 0;
        jobs
    }

    /// The state directory, for files that `apply` itself writes.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Makes every pause point sleep, to simulate a slow node. For the test-kit.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    fn delay(&self) -> Option<Duration> {
        let us = self.delay_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Starts `job` in the background, or returns a handle of the running job with the same id.
    pub fn start(&self, job: BackgroundJob) -> JobHandle {
        let mut known = self.known.lock();
        if let Some(held) = known.get(&job.id).and_then(Weak::upgrade) {
            return JobHandle(held);
        }
        known.retain(|_, held| held.strong_count() > 0);
        let handle = JobHandle(Arc::new(HandleGuard {
            slot: Arc::new(JobSlot {
                id: job.id,
                name: job.name,
                state: Mutex::new(JobProgress::Waiting(job.work)),
                done: Condvar::new(),
                cancelled: Arc::default(),
            }),
        }));
        known.insert(job.id, Arc::downgrade(&handle.0));
        drop(known);
        self.enqueue(&handle);
        handle
    }

    /// The output of `handle`'s job. If no worker has taken the job yet, or if it has failed, it
    /// runs on this thread.
    ///
    /// # Errors
    /// [`StateError::Job`] if it fails on this thread. The next call tries again.
    pub fn wait(&self, handle: &JobHandle) -> Result<JobOutput, StateError> {
        let begun = Instant::now();
        let output = self.wait_for(handle);
        self.wait_nanos.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        output
    }

    fn wait_for(&self, handle: &JobHandle) -> Result<JobOutput, StateError> {
        let slot = &handle.0.slot;
        let failed = |reason| StateError::Job { job: slot.name.into(), reason };
        loop {
            slot.run(&self.context(slot), true).map_err(failed)?;
            let mut state = slot.state.lock();
            match &*state {
                JobProgress::Done(output) => return Ok(output.clone()),
                JobProgress::Running => slot.done.wait(&mut state),
                // Another thread's attempt has just failed.
                JobProgress::Waiting(_) | JobProgress::Failed(_) => {}
            }
        }
    }

    /// How long all calls of [`wait`](Self::wait) have taken so far, together.
    pub fn wait_time(&self) -> Duration {
        Duration::from_nanos(self.wait_nanos.load(Ordering::Relaxed))
    }

    /// Waits until no job is queued or running.
    pub fn wait_idle(&self) {
        let mut count = self.outstanding.count.lock();
        while *count > 0 {
            self.outstanding.none.wait(&mut count);
        }
    }

    fn context(&self, slot: &JobSlot) -> JobContext {
        JobContext {
            name: slot.name,
            dir: self.dir.clone(),
            cancelled: slot.cancelled.clone(),
            closing: self.closing.clone(),
            delay: self.delay(),
        }
    }

    /// Queues a job for the workers, and starts one more worker if all are busy and the limit
    /// allows.
    fn enqueue(&self, handle: &JobHandle) {
        let mut workers = self.workers.lock();
        let outstanding = *self.outstanding.count.lock() + 1;
        let started = workers.threads.len();
        let (queue, jobs) = workers.queue.get_or_insert_with(crossbeam_channel::unbounded).clone();
        if started < outstanding.min(self.limit) {
            let settled = self.outstanding.clone();
            let name = format!("state-job-{started}");
            match std::thread::Builder::new().name(name).spawn(move || run_worker(&jobs, &settled))
            {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => tracing::debug!(%error, "no thread for a job"),
            }
        }
        // If no worker can start, the job runs on the thread that waits for it.
        if !workers.threads.is_empty() {
            *self.outstanding.count.lock() += 1;
            if queue.send((Arc::downgrade(&handle.0), self.context(&handle.0.slot))).is_err() {
                self.outstanding.done();
            }
        }
    }
}

/// Lowers the priority of the calling thread to the `nice` value (1 to 19), so that the execution of
/// blocks goes first. Only on Linux, where each thread has a priority of its own.
pub fn lower_thread_priority(nice: i32) {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes only numbers, and 0 means the calling thread. If the call fails, the
    // thread runs at normal priority.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// A worker thread: runs jobs until the queue is closed.
fn run_worker(jobs: &crossbeam_channel::Receiver<QueuedJob>, outstanding: &OutstandingJobs) {
    lower_thread_priority(NICE);
    for (held, context) in jobs {
        // Only the slot is kept, so that dropping the handles cancels the job.
        let slot = held.upgrade().map(|held| held.slot.clone());
        if let Some(slot) = slot
            && !context.closing.load(Ordering::Relaxed)
            && let Err(reason) = slot.run(&context, false)
        {
            log_failure(slot.name, &reason, &context);
        }
        outstanding.done();
    }
}

/// Logs a failure when it happens: the block that needs the job may be thousands of blocks away.
fn log_failure(job: &str, reason: &str, context: &JobContext) {
    if context.cancelled.load(Ordering::Relaxed) || context.closing.load(Ordering::Relaxed) {
        tracing::debug!(job, "job cancelled");
    } else {
        tracing::warn!(
            job,
            "background job {job} failed: {reason}; import continues until a block needs the job, \
             and then the job runs again; check the disk, and run `db verify` on the datadir"
        );
    }
}

#[cfg(test)]
mod tests;
