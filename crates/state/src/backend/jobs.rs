//! Background work of backends: merges, folds, growth, garbage collection.
//!
//! | thread | started by | runs | ends |
//! |---|---|---|---|
//! | `state-job-N`, N below 4 | a job that no other is free for | jobs in the order of their start, one at a time each, behind other threads | with the [`Jobs`] handle |
//! | any thread in `apply` | a job that is due and not yet started | that job, in place | with the job |
//!
//! A job is named by the digest of its immutable inputs: siblings that need the same work share one
//! run, and a repeated run (after a reopen, a revert, or because nobody held the first) gives the
//! same output. A job may write files of the state directory under names that nobody knows yet; a
//! block makes them known with [`publish_file`](crate::NodeWrite::publish_file). What no block names
//! goes at the next opening, except the files that the backend says are
//! [under way](crate::Backend::files_under_way): a job that finds its own output whole need not make
//! it again.

use super::{check_file_name, open_patiently};
use crate::{StateError, durable::Counters};

use alloy_primitives::B256;
use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::HashMap,
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Most jobs that run at once: a long merge does not hold up short ones.
const THREADS: usize = 4;
/// How far jobs stand behind other threads, in steps of `nice`: blocks are executed meanwhile.
#[cfg(target_os = "linux")]
const NICE: libc::c_int = 10;

/// What a job leaves: anything its backend knows how to read.
pub type JobOutput = Arc<dyn Any + Send + Sync>;

type Work = Box<dyn Fn(&JobContext) -> Result<JobOutput, StateError> + Send>;

/// A piece of background work, not yet started.
pub struct Job {
    /// Digest of the immutable inputs.
    pub id: B256,
    /// What it does, for messages and metrics.
    pub name: &'static str,
    /// The work. It should call [`JobContext::pause_point`] every few milliseconds, and is run
    /// again if it failed and its output is asked for.
    pub work: Work,
}

impl Job {
    /// A job of identity `id`.
    pub fn new(
        id: B256,
        name: &'static str,
        work: impl Fn(&JobContext) -> Result<JobOutput, StateError> + Send + 'static,
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
    name: &'static str,
    dir: Option<PathBuf>,
    /// Nobody holds a handle any more.
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

    /// To be called between bounded slices of work: fails once nobody waits for the job any more.
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
    Done(JobOutput),
    /// Kept to be tried again by whoever asks for the output.
    Failed(Work),
}

impl Slot {
    /// Runs the work unless somebody else has taken it. `again`: even if it has failed before.
    fn run(&self, context: &JobContext, again: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        let work = match std::mem::replace(&mut *state, Progress::Running) {
            Progress::Waiting(work) => work,
            Progress::Failed(work) if again => work,
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
            Ok(output) => (Progress::Done(output), Ok(())),
            Err(reason) => (Progress::Failed(work), Err(reason)),
        };
        *self.state.lock() = progress;
        self.done.notify_all();
        outcome
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

    /// The output, if the job is done. For work on which no root depends: that of a block at which
    /// output is due is asked for with [`Jobs::wait`].
    pub fn output(&self) -> Option<JobOutput> {
        match &*self.0.slot.state.lock() {
            Progress::Done(output) => Some(output.clone()),
            _ => None,
        }
    }

    /// Whether it was tried and has failed. Whoever does not [wait](Jobs::wait) for it then lets it
    /// go, as it holds on to its inputs.
    pub fn has_failed(&self) -> bool {
        matches!(*self.0.slot.state.lock(), Progress::Failed(_))
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.slot.name, self.0.slot.id)
    }
}

/// Runs jobs for one state store. Dropping it cancels them and waits for their threads.
pub struct Jobs {
    dir: Option<PathBuf>,
    known: Mutex<HashMap<B256, Weak<Held>>>,
    workers: Mutex<Workers>,
    /// Most threads of [`Workers`].
    limit: usize,
    closing: Arc<AtomicBool>,
    /// Jobs given to workers that have not been dealt with.
    outstanding: Arc<Outstanding>,
    /// Microseconds each pause point sleeps: the test-kit's slow node.
    delay_us: AtomicU64,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Outstanding {
    count: Mutex<usize>,
    none: Condvar,
}

impl Outstanding {
    fn done(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }
}

/// What waits in the queue: the job may have been dropped meanwhile.
type Queued = (Weak<Held>, JobContext);

#[derive(Default)]
struct Workers {
    /// Both ends, the second for threads yet to come; there once a job was started.
    queue: Option<(crossbeam_channel::Sender<Queued>, crossbeam_channel::Receiver<Queued>)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let Workers { queue, threads } = std::mem::take(self.workers.get_mut());
        drop(queue);
        for thread in threads {
            // Panics of jobs are caught; nothing else can end a worker early.
            let _ = thread.join();
        }
    }
}

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
            workers: Mutex::default(),
            limit: THREADS,
            closing: Arc::default(),
            outstanding: Arc::default(),
            delay_us: AtomicU64::new(0),
            counters: Arc::default(),
        }
    }

    /// It, counting how long blocks wait.
    pub(crate) fn counted_by(mut self, counters: Arc<Counters>) -> Self {
        self.counters = counters;
        self
    }

    /// A runner that starts nothing by itself: a job runs where it is waited for.
    pub(crate) fn at_rest(dir: Option<PathBuf>) -> Self {
        let mut jobs = Self::new(dir);
        jobs.limit = 0;
        jobs
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
        self.enqueue(&handle);
        handle
    }

    /// The output of `handle`'s job; runs it in place if no worker has taken it yet, or if it has
    /// failed.
    ///
    /// # Errors
    /// [`StateError::Job`] if it fails here and now. The next call tries again.
    pub fn wait(&self, handle: &JobHandle) -> Result<JobOutput, StateError> {
        let begun = Instant::now();
        let output = self.wait_for(handle);
        self.counters.job_wait(begun.elapsed());
        output
    }

    fn wait_for(&self, handle: &JobHandle) -> Result<JobOutput, StateError> {
        let slot = &handle.0.slot;
        let failed = |reason| StateError::Job { job: slot.name.into(), reason };
        loop {
            slot.run(&self.context(slot), true).map_err(failed)?;
            let mut state = slot.state.lock();
            match &*state {
                Progress::Done(output) => return Ok(output.clone()),
                Progress::Running => slot.done.wait(&mut state),
                // Somebody else's attempt has just failed.
                Progress::Waiting(_) | Progress::Failed(_) => {}
            }
        }
    }

    /// Waits until the workers have nothing left to do.
    pub fn settle(&self) {
        let mut count = self.outstanding.count.lock();
        while *count > 0 {
            self.outstanding.none.wait(&mut count);
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
        check_file_name(name)?;
        let (path, mut file) = tempfile_in(dir, name).map_err(fail)?;
        let written = file
            .write_all(content)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&path, dir.join(name)));
        if let Err(error) = written {
            // It would be removed at the next open, but a full disk is better served now.
            let _ = fs::remove_file(&path);
            return Err(fail(error).into());
        }
        open_patiently(|| fs::File::open(dir)).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(())
    }

    fn context(&self, slot: &Slot) -> JobContext {
        JobContext {
            name: slot.name,
            dir: self.dir.clone(),
            cancelled: slot.cancelled.clone(),
            closing: self.closing.clone(),
            delay: self.delay(),
        }
    }

    /// Leaves a job to the workers, one more of them if all are busy and there may be.
    fn enqueue(&self, handle: &JobHandle) {
        let mut workers = self.workers.lock();
        let outstanding = *self.outstanding.count.lock() + 1;
        let started = workers.threads.len();
        let (queue, jobs) = workers.queue.get_or_insert_with(crossbeam_channel::unbounded).clone();
        if started < outstanding.min(self.limit) {
            let settled = self.outstanding.clone();
            let name = format!("state-job-{started}");
            match std::thread::Builder::new().name(name).spawn(move || work_off(&jobs, &settled)) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => tracing::debug!(%error, "no thread for a job"),
            }
        }
        // Without any worker that is no failure: the job then runs where it is due.
        if !workers.threads.is_empty() {
            *self.outstanding.count.lock() += 1;
            if queue.send((Arc::downgrade(&handle.0), self.context(&handle.0.slot))).is_err() {
                self.outstanding.done();
            }
        }
    }
}

/// The life of a worker: until the queue is closed.
fn work_off(jobs: &crossbeam_channel::Receiver<Queued>, outstanding: &Outstanding) {
    #[cfg(target_os = "linux")]
    // SAFETY: it takes numbers alone. On Linux a thread has a priority of its own, and 0 is the one
    // that calls; if it is refused, jobs run like all others.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
    for (held, context) in jobs {
        // The slot alone is kept, so that dropping the handles cancels the job.
        let slot = held.upgrade().map(|held| held.slot.clone());
        if let Some(slot) = slot
            && !context.closing.load(Ordering::Relaxed)
            && let Err(reason) = slot.run(&context, false)
        {
            tell_failure(slot.name, &reason, &context);
        }
        outstanding.done();
    }
}

/// A failure is told when it happens: the block that needs the job may be thousands of blocks away.
fn tell_failure(job: &str, reason: &str, context: &JobContext) {
    if context.cancelled.load(Ordering::Relaxed) || context.closing.load(Ordering::Relaxed) {
        tracing::debug!(job, "job cancelled");
    } else {
        tracing::warn!(
            job,
            "background job {job} failed: {reason}; blocks go on until one needs it, which runs it again; \
             check the disk, and run `db verify` on the datadir"
        );
    }
}

fn tempfile_in(dir: &Path, name: &str) -> std::io::Result<(PathBuf, fs::File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = dir.join(format!("{name}.{}.tmp", NEXT.fetch_add(1, Ordering::Relaxed)));
    let file = open_patiently(|| fs::File::create(&path))?;
    Ok((path, file))
}

#[cfg(test)]
mod tests;
