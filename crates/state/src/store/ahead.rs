//! Reads ahead: keys that a block will ask for, read by many threads at once before it does.
//!
//! Beyond memory a read waits for the disk, and a block that asks for one key after the other waits
//! once a key, while the disk could serve many at a time. So whoever knows keys beforehand tells them,
//! and threads read them into the system's page cache, and into what the backend keeps of a state.
//! Nothing is promised: a value is always read again by whoever needs it, and so is an error.
//!
//! | thread | started by | work | bounded by | ends |
//! |---|---|---|---|---|
//! | `state-read-N` | the first keys told; the others by reads that wait for the disk | keys of the job told first, a few at a time: the value, then what the backend's root needs ([`Backend::hint`](crate::Backend::hint)) | [`StoreOptions::read_threads`](crate::StoreOptions::read_threads); [`JOBS`] jobs of [`KEYS`] keys wait, more are not read | with the store |
//!
//! How many threads read follows from what they find. One begins. Whenever a thread has waited for the
//! disk it calls one more; one that did not wait a few times in a row rests again. If the first keys of
//! a job are all in memory, the rest is taken to be, and left alone: then the job has cost a few reads
//! on one thread.

use super::at::StateAt;
use crate::{StateKey, StateReader, Value};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

/// Keys that a thread takes at a time.
const AT_ONCE: usize = 4;
/// After so many times without waiting for the disk a thread rests.
const PATIENCE: usize = 4;
/// After so many times without waiting at its beginning a job is given up.
const LOOKS: usize = 8;
/// Jobs that may wait.
const JOBS: usize = 64;
/// Keys of a job; those beyond are not read.
const KEYS: usize = 1 << 16;

/// Called with a key and its value, once they have been read ahead.
pub type OnRead = Arc<dyn Fn(&StateKey, &Value) + Send + Sync>;

/// Keys that are being read ahead, as long as somebody holds this.
#[must_use = "nothing is read ahead once it is dropped"]
pub struct ReadAhead(Arc<AtomicBool>);

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadAhead").finish()
    }
}

/// Keys to be read of one state.
struct Job {
    state: StateAt,
    keys: Vec<StateKey>,
    next: AtomicUsize,
    /// What is done with values; `None` if the backend alone shall learn of the keys.
    on_read: Option<OnRead>,
    has_waited: AtomicBool,
    is_stopped: Arc<AtomicBool>,
}

/// What a few keys of a job were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// There were none left.
    Nothing,
    InMemory,
    OnDisk,
}

impl Job {
    fn new(state: &StateAt, mut keys: Vec<StateKey>, on_read: Option<OnRead>) -> Self {
        keys.truncate(KEYS);
        let (next, has_waited, is_stopped) = Default::default();
        let mut state = state.clone();
        state.view.is_timed = false;
        Self { state, keys, next, on_read, has_waited, is_stopped }
    }

    /// Reads the next few keys.
    fn read_some(&self) -> Found {
        let first = self.next.fetch_add(AT_ONCE, Relaxed);
        let Some(rest) = self.keys.get(first..).filter(|rest| !rest.is_empty()) else {
            return Found::Nothing;
        };
        if self.is_stopped.load(Relaxed) {
            return Found::Nothing;
        }
        let keys = &rest[..rest.len().min(AT_ONCE)];
        let before = disk_waits();
        for key in keys {
            // What cannot be read is left to whoever needs it, and told to him.
            if let Some(on_read) = &self.on_read
                && let Ok(Some(value)) = self.state.get(key)
            {
                on_read(key, &value);
            }
        }
        let StateAt { durable, view, cache, .. } = &self.state;
        durable.backend.hint(view, cache, keys);
        if disk_waits() == before {
            return Found::InMemory;
        }
        self.has_waited.store(true, Relaxed);
        Found::OnDisk
    }
}

/// How often this thread has waited for the disk so far: for a page of a mapped file, or in a read.
/// Where that cannot be told, more each time.
fn disk_waits() -> i64 {
    #[cfg(target_os = "linux")]
    {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: `usage` has room for what is written, and is read only if the call says it was.
        let usage = unsafe {
            match libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) {
                0 => Some(usage.assume_init()),
                _ => None,
            }
        };
        if let Some(usage) = usage {
            return usage.ru_majflt + usage.ru_inblock;
        }
    }
    static CALLS: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
    CALLS.fetch_add(1, Relaxed)
}

/// The threads of a store that read ahead, and what they have to do.
pub(super) struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    /// Most threads.
    most: usize,
    queue: Mutex<Queue>,
    more: Condvar,
    awake: AtomicUsize,
    /// Whether the last job that ended has waited for the disk.
    is_deep: AtomicBool,
    waits_always: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    /// Threads that shall join those awake.
    calls: usize,
    threads: Vec<JoinHandle<()>>,
    is_closing: bool,
}

impl Readers {
    pub(super) fn new(most: usize) -> Self {
        let (queue, more, awake, is_deep, waits_always) = Default::default();
        Self { shared: Arc::new(Shared { most, queue, more, awake, is_deep, waits_always }) }
    }

    /// From now on all that is read counts as read from disk.
    pub(super) fn wait_always(&self) {
        self.shared.waits_always.store(true, Relaxed);
    }

    /// Begins to read `keys` of `state`, and tells the backend of them.
    pub(super) fn read(&self, state: &StateAt, keys: Vec<StateKey>, on_read: OnRead) -> ReadAhead {
        let job = Arc::new(Job::new(state, keys, Some(on_read)));
        let handle = ReadAhead(job.is_stopped.clone());
        self.shared.push(job);
        handle
    }

    /// Tells the backend of `keys` of `state`, on this thread, and beside it on others if that waits
    /// for the disk.
    pub(super) fn hint(&self, state: &StateAt, keys: &[StateKey]) {
        let job = Arc::new(Job::new(state, keys.to_vec(), None));
        let mut is_shared = false;
        loop {
            match self.shared.read_some(&job) {
                Found::Nothing => return,
                Found::InMemory => {}
                Found::OnDisk if is_shared => self.shared.call(),
                Found::OnDisk => {
                    is_shared = true;
                    self.shared.push(job.clone());
                }
            }
        }
    }

    /// Ends the threads, each after the key at hand.
    pub(super) fn close(&self) {
        let threads = {
            let mut queue = self.shared.queue.lock();
            queue.is_closing = true;
            for job in queue.jobs.drain(..) {
                job.is_stopped.store(true, Relaxed);
            }
            std::mem::take(&mut queue.threads)
        };
        self.shared.more.notify_all();
        for thread in threads {
            // A panic was caught where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn push(self: &Arc<Self>, job: Arc<Job>) {
        if self.most == 0 || job.keys.is_empty() {
            return;
        }
        if self.is_deep.load(Relaxed) {
            // Once something is committed, there is no way to make room.
            job.state.expect_readers(self.most);
        }
        let mut queue = self.queue.lock();
        queue.jobs.retain(|job| !job.is_stopped.load(Relaxed));
        if queue.is_closing || queue.jobs.len() >= JOBS {
            return;
        }
        queue.jobs.push_back(job);
        if self.awake.load(Relaxed) == 0 && queue.calls == 0 {
            self.call_in(&mut queue);
        }
    }

    /// Calls one more thread.
    fn call(self: &Arc<Self>) {
        if self.awake.load(Relaxed) < self.most {
            self.call_in(&mut self.queue.lock());
        }
    }

    fn call_in(self: &Arc<Self>, queue: &mut Queue) {
        let threads = self.awake.load(Relaxed) + queue.calls;
        if queue.is_closing || threads >= self.most {
            return;
        }
        queue.calls += 1;
        if threads >= queue.threads.len() {
            let shared = self.clone();
            let name = format!("state-read-{threads}");
            match thread::Builder::new().name(name).spawn(move || shared.work()) {
                Ok(thread) => queue.threads.push(thread),
                // Without it the others read a little longer, and without any, nothing is read ahead.
                Err(_) => {
                    queue.calls -= 1;
                    if queue.threads.is_empty() {
                        queue.jobs.clear();
                    }
                }
            }
        }
        self.more.notify_one();
    }

    fn work(self: &Arc<Self>) {
        let mut queue = self.queue.lock();
        while !queue.is_closing {
            let job = queue.jobs.front().filter(|_| queue.calls > 0).cloned();
            let Some(job) = job else {
                queue.calls = 0;
                self.more.wait(&mut queue);
                continue;
            };
            queue.calls -= 1;
            self.awake.fetch_add(1, Relaxed);
            let mut next = Some(job);
            while let Some(job) = next {
                let is_over = MutexGuard::unlocked(&mut queue, || self.serve(&job));
                // One of them stays as long as there is something to do.
                if !is_over && self.awake.load(Relaxed) > 1 {
                    break;
                }
                if is_over {
                    queue.jobs.retain(|other| !Arc::ptr_eq(other, &job));
                    self.is_deep.store(job.has_waited.load(Relaxed), Relaxed);
                    // What it holds may be the last of a snapshot.
                    MutexGuard::unlocked(&mut queue, || drop(job));
                }
                next = queue.jobs.front().filter(|_| !queue.is_closing).cloned();
            }
            self.awake.fetch_sub(1, Relaxed);
        }
    }

    fn read_some(&self, job: &Job) -> Found {
        match job.read_some() {
            Found::InMemory if self.waits_always.load(Relaxed) => {
                job.has_waited.store(true, Relaxed);
                Found::OnDisk
            }
            found => found,
        }
    }

    /// Reads keys of a job: true once nothing of it is left to do, false if others can do it alone.
    fn serve(self: &Arc<Self>, job: &Job) -> bool {
        let mut in_memory = 0;
        loop {
            let found = catch_unwind(AssertUnwindSafe(|| self.read_some(job)));
            match found.unwrap_or(Found::Nothing) {
                Found::Nothing => return true,
                Found::OnDisk => {
                    in_memory = 0;
                    self.call();
                }
                Found::InMemory => {
                    in_memory += 1;
                    if in_memory >= PATIENCE && self.awake.load(Relaxed) > 1 {
                        return false;
                    }
                    if in_memory >= LOOKS && !job.has_waited.load(Relaxed) {
                        return true;
                    }
                }
            }
        }
    }
}
