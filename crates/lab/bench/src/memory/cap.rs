//! The cap on memory: a cgroup where that is permitted, otherwise a balloon.
//!
//! | | cgroup | balloon |
//! |---|---|---|
//! | how | a new group for this process and its children, with a limit | memory of the machine is locked until only the limit is available |
//! | page cache | counts in the group | uses the remaining memory of the machine |
//! | affects | this process | all processes of the machine |
//! | needs | write access to its own cgroup | `CAP_IPC_LOCK`, or `ulimit -l` |
//!
//! **Only later allocations are capped.** Memory that was allocated before is charged to the old
//! group, or was already unavailable when the balloon was inflated. The kernel kills a process that
//! allocates more than the cap. [`MemoryCap::exceeded`] reports this before it happens: a thread
//! reads the memory of this process (not of its children) every few milliseconds, and the caller
//! has to stop with an error. All stores and clients of a process share its cap.

use super::{anonymous, balloon::MemoryBalloon, cgroup::MemoryCgroup};
use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Memory that a process needs beside its caches: stacks, buffers, and some page cache.
const SLACK: u64 = 48 << 20;
/// Interval at which the watcher reads the memory of the process.
const EVERY: Duration = Duration::from_millis(10);

/// Why memory cannot be capped, or why a capped race has to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapError {
    /// With this limit the kernel would kill the process.
    #[error(
        "a memory limit of {} MiB is too small: {} MiB are needed for caches, and some more; the \
         smallest sensible limit is {} MiB",
        limit >> 20, mib_up(*needed), mib_up(*smallest)
    )]
    TooSmall {
        /// The requested limit in bytes.
        limit: u64,
        /// Bytes that the caches will need.
        needed: u64,
        /// The smallest limit that is accepted.
        smallest: u64,
    },
    /// Allocated memory alone has almost reached the cap.
    #[error(
        "{} MiB of the {} MiB that memory is limited to are allocated, and the system would soon \
         kill this process: give a larger memory limit or smaller caches, or race fewer stores",
        used >> 20, limit >> 20
    )]
    Exceeded {
        /// The limit in bytes.
        limit: u64,
        /// Allocated bytes.
        used: u64,
    },
    /// Neither a cgroup nor a balloon is permitted.
    #[error("memory cannot be capped here: by cgroup: {cgroup}; by a balloon: {balloon}")]
    NotPermitted {
        /// Why no cgroup could be made.
        cgroup: String,
        /// Why memory could not be locked.
        balloon: String,
    },
}

const fn mib_up(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// A cap on the memory of this process and its page cache. It is lifted when it is dropped.
#[derive(Debug)]
pub struct MemoryCap {
    limit: u64,
    watcher: MemoryWatcher,
    means: CapMeans,
}

#[derive(Debug)]
enum CapMeans {
    Group(#[expect(dead_code, reason = "left when it is dropped")] MemoryCgroup),
    Balloon(MemoryBalloon),
}

impl MemoryCap {
    /// Caps memory at `limit` bytes.
    ///
    /// # Errors
    /// If the limit is [too small](Self::check) for any process, or the system permits neither a
    /// cgroup nor a balloon.
    pub(crate) fn apply(limit: u64) -> Result<Self, CapError> {
        Self::check(limit, 0)?;
        let means = match MemoryCgroup::enter(limit) {
            Ok(group) => CapMeans::Group(group),
            Err(cgroup) => match MemoryBalloon::inflate(limit) {
                Ok(balloon) => CapMeans::Balloon(balloon),
                Err(balloon) => {
                    let (cgroup, balloon) = (cgroup.to_string(), balloon.to_string());
                    return Err(CapError::NotPermitted { cgroup, balloon });
                }
            },
        };
        Ok(Self { limit, watcher: MemoryWatcher::start(limit), means })
    }

    /// Why the memory of this process cannot be capped by a cgroup; `None` if it can. In the first
    /// case a cap uses a balloon. The call creates a cgroup, enters it and leaves
    /// it again.
    pub fn why_no_cgroup() -> Option<String> {
        MemoryCgroup::enter(1 << 40).err().map(|error| error.to_string())
    }

    /// Whether memory can be capped here, and by which means. Of a balloon it tries to lock one
    /// piece.
    ///
    /// # Errors
    /// [`CapError::NotPermitted`] with the reasons.
    pub fn permitted() -> Result<&'static str, CapError> {
        let Some(cgroup) = Self::why_no_cgroup() else { return Ok("cgroup") };
        match MemoryBalloon::is_permitted() {
            Ok(()) => Ok("balloon"),
            Err(balloon) => {
                let balloon = balloon.to_string();
                Err(CapError::NotPermitted { cgroup, balloon })
            }
        }
    }

    /// Rejects a limit under which the kernel would kill this process: the limit must hold `needed`
    /// bytes for later caches, and some more.
    ///
    /// # Errors
    /// [`CapError::TooSmall`], which names the smallest limit.
    pub const fn check(limit: u64, needed: u64) -> Result<(), CapError> {
        let smallest = needed.saturating_add(SLACK);
        if limit < smallest {
            return Err(CapError::TooSmall { limit, needed, smallest });
        }
        Ok(())
    }

    /// The limit in bytes.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The means of the cap: `cgroup` or `balloon`.
    pub const fn means(&self) -> &'static str {
        match self.means {
            CapMeans::Group(_) => "cgroup",
            CapMeans::Balloon(_) => "balloon",
        }
    }

    /// Locked memory in bytes, which counts in the resident set of this process.
    pub(crate) fn balloon_bytes(&self) -> u64 {
        match &self.means {
            CapMeans::Group(_) => 0,
            CapMeans::Balloon(balloon) => balloon.bytes(),
        }
    }

    /// Checks whether memory allocated since the cap was applied is close to the limit. Call it
    /// often, and stop on an error, or the kernel kills the process.
    ///
    /// # Errors
    /// [`CapError::Exceeded`].
    pub(crate) fn exceeded(&self) -> Result<(), CapError> {
        match self.watcher.most.load(Relaxed) {
            used if used > threshold(self.limit) => {
                Err(CapError::Exceeded { limit: self.limit, used })
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for MemoryCap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory capped to {} MiB by {}", self.limit >> 20, self.means())
    }
}

/// The number of bytes from which on the cap counts as exceeded. A sixteenth of the limit is left
/// for stopping.
const fn threshold(limit: u64) -> u64 {
    limit - limit / 16
}

/// A thread that reads the memory of this process.
#[derive(Debug)]
struct MemoryWatcher {
    most: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatcher {
    fn start(limit: u64) -> Self {
        let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (most.clone(), done.clone());
        let mut growth = MemoryGrowth::from(anonymous());
        let watch = move || {
            while !end.load(Relaxed) && seen.load(Relaxed) <= threshold(limit) {
                seen.fetch_max(growth.at(anonymous()), Relaxed);
                std::thread::sleep(EVERY);
            }
        };
        // If the thread cannot start, only the early error is missing.
        let thread = std::thread::Builder::new().name("memory-watch".into()).spawn(watch).ok();
        Self { most, done, thread }
    }
}

/// Growth of memory since its minimum. Memory that was allocated before the cap may be freed later;
/// without the minimum, that would hide growth under the cap.
#[derive(Debug)]
struct MemoryGrowth {
    floor: i64,
}

impl MemoryGrowth {
    const fn from(bytes: i64) -> Self {
        Self { floor: bytes }
    }

    /// The growth when `bytes` are allocated; `bytes` is 0 if the system does not report them.
    fn at(&mut self, bytes: i64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        self.floor = self.floor.min(bytes);
        (bytes - self.floor) as u64
    }
}

impl Drop for MemoryWatcher {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Drops the files below `folder` from the page cache, so that later reads come from the disk and
/// count in the group of the reader. Does nothing if the system does not support it.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be synced.
pub(crate) fn drop_cached_pages(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            drop_cached_pages(&entry.path())?;
        } else if kind.is_file() {
            let file = match File::open(entry.path()) {
                // It was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            // Pages that are not on the disk yet cannot be dropped.
            file.sync_all()?;
            #[cfg(target_os = "linux")]
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// A cap that contenders of a race share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemoryCap {
    /// The limit in bytes.
    pub limit: u64,
    /// The means: `cgroup` or `balloon`.
    pub means: &'static str,
    /// Number of contenders that share it.
    pub shared_by: usize,
}

impl SharedMemoryCap {
    /// The params of a result.
    pub(crate) fn params(&self) -> [(String, serde_json::Value); 3] {
        [
            ("memory_limit_mb".to_owned(), (self.limit >> 20).into()),
            ("memory_limit_by".to_owned(), self.means.into()),
            ("memory_limit_shared_by".to_owned(), self.shared_by.into()),
        ]
    }
}

/// Parses a size: a number with `KB`, `MB`, `GB` (or `K`, `KiB`, ...), which are powers of 1024, or
/// without unit, in bytes.
///
/// # Errors
/// A message for the user.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "it is a size such as 512MB or 2GB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1u64 << shift) as f64;
    if bytes < 1.0 || bytes >= i64::MAX as f64 {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        let sizes = [("512MB", 512 << 20), ("2GB", 2 << 30), ("1.5G", 3 << 29), ("4096", 4096)];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("64 KiB"), Ok(64 << 10));
        for wrong in ["", "MB", "0", "-1MB", "12 parsecs", "1e3MB", "1.2.3GB", "9999999999TB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limit_below_what_is_needed_is_refused_with_the_smallest() {
        let error = MemoryCap::apply(1 << 20).unwrap_err();
        assert!(matches!(error, CapError::TooSmall { .. }), "{error}");
        let Err(CapError::TooSmall { smallest, .. }) = MemoryCap::check(1 << 20, 1 << 30) else {
            panic!("1 MiB is less than 1 GiB")
        };
        assert!(smallest > 1 << 30 && MemoryCap::check(smallest, 1 << 30).is_ok());
        let line = MemoryCap::check(100 << 20, 1 << 30).unwrap_err().to_string();
        assert!(line.contains("a memory limit of 100 MiB is too small"), "{line}");
        assert!(line.contains("the smallest sensible limit is 1072 MiB"), "{line}");
    }

    #[test]
    fn memory_given_back_does_not_hide_growth() {
        let mut growth = MemoryGrowth::from(100);
        assert_eq!([90, 130, 0, 40, 75].map(|bytes| growth.at(bytes)), [0, 40, 0, 0, 35]);
    }

    #[test]
    fn watcher_tells_before_the_limit_is_reached() {
        // Without a cap: only the watcher is tested.
        let limit = 64 << 20;
        let watcher = MemoryWatcher::start(limit);
        let allocated = vec![1u8; 80 << 20];
        let begin = std::time::Instant::now();
        while watcher.most.load(Relaxed) <= threshold(limit) {
            assert!(begin.elapsed() < Duration::from_secs(20), "80 MiB went unnoticed");
            std::thread::sleep(EVERY);
        }
        assert_eq!(allocated[allocated.len() / 2], 1);
    }
}
