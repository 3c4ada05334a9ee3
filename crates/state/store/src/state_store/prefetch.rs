//! Prefetch: many threads read keys before the block asks for them.
//!
//! If the state exceeds memory, a read waits for the disk. A block that reads one key after the
//! other waits once for each key, while the disk could serve many at a time. So a caller that knows
//! keys beforehand passes them on, and threads read them into the system's page cache and into the
//! backend's caches. Prefetching never changes a result: the block reads each value again, and gets
//! each error itself.
//!
//! | thread | started by | work | bounded by | ends |
//! |---|---|---|---|---|
//! | `state-read-N` | the first job starts one; a read that waits for the disk starts another | keys of the oldest job, a few at a time: the value, then what the backend's root needs ([`Prefetcher`](retrie_state::Prefetcher)) | [`StoreOptions::read_threads`](crate::StoreOptions::read_threads); at most [`JOBS`] jobs of [`KEYS`] keys wait, more are dropped | with the store |
//!
//! The number of active threads adapts to the disk. One thread begins. A thread that has waited for
//! the disk wakes one more; a thread that did not wait several times in a row sleeps again. If the
//! first keys of a job are all in memory, the job ends: the rest is assumed to be in memory too,
//! and the job has cost a few reads on one thread.

use super::provider::StateProvider;
use parking_lot::{Condvar, Mutex, MutexGuard};
use retrie_state::{StateKey, StateReader, StateValue};
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
/// A thread sleeps after this many steps in a row without a wait for the disk.
const PATIENCE: usize = 4;
/// A job ends if its first steps, this many, have not waited for the disk.
const LOOKS: usize = 8;
/// Maximum number of queued jobs.
const JOBS: usize = 64;
/// Maximum number of keys of a job; further keys are not read.
const KEYS: usize = 1 << 16;

/// Called with a key and its value, once they have been prefetched.
pub type PrefetchObserver = Arc<dyn Fn(&StateKey, &StateValue) + Send + Sync>;

/// Handle of keys that are being prefetched; dropping it stops the prefetch.
#[must_use = "the prefetch ends when it is dropped"]
pub struct PrefetchHandle(Arc<AtomicBool>);

impl Drop for PrefetchHandle {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl fmt::Debug for PrefetchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrefetchHandle").finish()
    }
}

/// Keys to be read of one state.
struct PrefetchJob {
    state: StateProvider,
    keys: Vec<StateKey>,
    next: AtomicUsize,
    /// Called with each value; `None` if the job only passes hints to the backend.
    on_read: Option<PrefetchObserver>,
    has_waited: AtomicBool,
    is_stopped: Arc<AtomicBool>,
}

/// The result of one step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchStep {
    /// No keys were left.
    Nothing,
    InMemory,
    OnDisk,
}

impl PrefetchJob {
    fn new(
        state: &StateProvider,
        mut keys: Vec<StateKey>,
        on_read: Option<PrefetchObserver>,
    ) -> Self {
        keys.truncate(KEYS);
        let (next, has_waited, is_stopped) = Default::default();
        let mut state = state.clone();
        state.view.is_timed = false;
        Self { state, keys, next, on_read, has_waited, is_stopped }
    }

    /// Reads the next few keys.
    fn read_some(&self) -> PrefetchStep {
        let first = self.next.fetch_add(AT_ONCE, Relaxed);
        let Some(rest) = self.keys.get(first..).filter(|rest| !rest.is_empty()) else {
            return PrefetchStep::Nothing;
        };
        if self.is_stopped.load(Relaxed) {
            return PrefetchStep::Nothing;
        }
        let keys = &rest[..rest.len().min(AT_ONCE)];
        let before = disk_waits();
        for key in keys {
            // A failed read is ignored: the block gets the error when it reads the key.
            if let Some(on_read) = &self.on_read
                && let Ok(Some(value)) = self.state.get(key)
            {
                on_read(key, &value);
            }
        }
        let StateProvider { durable, view, cache, .. } = &self.state;
        if let Some(prefetcher) = durable.backend.extensions().prefetcher {
            prefetcher.prefetch(view, cache, &durable.keys.keys(keys));
        }
        if disk_waits() == before {
            return PrefetchStep::InMemory;
        }
        self.has_waited.store(true, Relaxed);
        PrefetchStep::OnDisk
    }
}

/// How often this thread has waited for the disk so far: for a page of a mapped file, or in a read.
/// On systems without this count, it grows with each call.
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

/// The prefetch threads of a store, and their queue.
pub(super) struct PrefetchPool {
    shared: Arc<SharedPool>,
}

struct SharedPool {
    /// Maximum number of threads.
    most: usize,
    queue: Mutex<PrefetchQueue>,
    more: Condvar,
    awake: AtomicUsize,
    /// Whether the last finished job has waited for the disk.
    is_deep: AtomicBool,
    waits_always: AtomicBool,
}

#[derive(Default)]
struct PrefetchQueue {
    jobs: VecDeque<Arc<PrefetchJob>>,
    /// Number of sleeping threads that are to wake up.
    calls: usize,
    threads: Vec<JoinHandle<()>>,
    is_closing: bool,
}

impl PrefetchPool {
    pub(super) fn new(most: usize) -> Self {
        let (queue, more, awake, is_deep, waits_always) = Default::default();
        Self { shared: Arc::new(SharedPool { most, queue, more, awake, is_deep, waits_always }) }
    }

    /// From now on every read counts as a read from disk.
    pub(super) fn wait_always(&self) {
        self.shared.waits_always.store(true, Relaxed);
    }

    /// Starts to read `keys` of `state`, and passes them to the backend's
    /// [`Prefetcher`](retrie_state::Prefetcher).
    pub(super) fn read(
        &self,
        state: &StateProvider,
        keys: Vec<StateKey>,
        on_read: PrefetchObserver,
    ) -> PrefetchHandle {
        let job = Arc::new(PrefetchJob::new(state, keys, Some(on_read)));
        let handle = PrefetchHandle(job.is_stopped.clone());
        self.shared.push(job);
        handle
    }

    /// Passes `keys` of `state` to the backend's [`Prefetcher`](retrie_state::Prefetcher) on this thread,
    /// and also on prefetch threads if that waits for the disk.
    pub(super) fn prefetch_nodes(&self, state: &StateProvider, keys: &[StateKey]) {
        let job = Arc::new(PrefetchJob::new(state, keys.to_vec(), None));
        let mut is_shared = false;
        loop {
            match self.shared.read_some(&job) {
                PrefetchStep::Nothing => return,
                PrefetchStep::InMemory => {}
                PrefetchStep::OnDisk if is_shared => self.shared.call(),
                PrefetchStep::OnDisk => {
                    is_shared = true;
                    self.shared.push(job.clone());
                }
            }
        }
    }

    /// Ends the threads, each after its current key.
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

impl SharedPool {
    fn push(self: &Arc<Self>, job: Arc<PrefetchJob>) {
        if self.most == 0 || job.keys.is_empty() {
            return;
        }
        if self.is_deep.load(Relaxed) {
            // After a commit the store cannot open more readers of this snapshot.
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

    /// Wakes one more thread.
    fn call(self: &Arc<Self>) {
        if self.awake.load(Relaxed) < self.most {
            self.call_in(&mut self.queue.lock());
        }
    }

    fn call_in(self: &Arc<Self>, queue: &mut PrefetchQueue) {
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
                // If a thread cannot start, the others take longer; without any, nothing is
                // prefetched.
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
                // One thread stays awake as long as there are jobs.
                if !is_over && self.awake.load(Relaxed) > 1 {
                    break;
                }
                if is_over {
                    queue.jobs.retain(|other| !Arc::ptr_eq(other, &job));
                    self.is_deep.store(job.has_waited.load(Relaxed), Relaxed);
                    // This may free the last reference to a snapshot: do it without the lock.
                    MutexGuard::unlocked(&mut queue, || drop(job));
                }
                next = queue.jobs.front().filter(|_| !queue.is_closing).cloned();
            }
            self.awake.fetch_sub(1, Relaxed);
        }
    }

    fn read_some(&self, job: &PrefetchJob) -> PrefetchStep {
        match job.read_some() {
            PrefetchStep::InMemory if self.waits_always.load(Relaxed) => {
                job.has_waited.store(true, Relaxed);
                PrefetchStep::OnDisk
            }
            found => found,
        }
    }

    /// Reads keys of a job. Returns true once the job is done, false if fewer threads are enough.
    fn serve(self: &Arc<Self>, job: &PrefetchJob) -> bool {
        let mut in_memory = 0;
        loop {
            let found = catch_unwind(AssertUnwindSafe(|| self.read_some(job)));
            match found.unwrap_or(PrefetchStep::Nothing) {
                PrefetchStep::Nothing => return true,
                PrefetchStep::OnDisk => {
                    in_memory = 0;
                    self.call();
                }
                PrefetchStep::InMemory => {
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
