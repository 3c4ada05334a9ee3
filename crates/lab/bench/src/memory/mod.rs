//! Memory of this process: its size, and a cap on it, so that a race can run on data that is larger
//! than memory.

mod balloon;
mod cap;
mod cgroup;
mod mappings;

pub(crate) use cap::drop_cached_pages;
pub use cap::{CapError, MemoryCap, SharedMemoryCap, parse_size};
pub(crate) use mappings::{drop_pages, mapped};

/// Anonymous resident memory in bytes: allocated memory, without the pages of mapped files. 0 if
/// the system does not report it.
pub(crate) fn anonymous() -> i64 {
    field("/proc/self/status", "RssAnon:").unwrap_or(0)
}

/// Resets the peak of the resident set, where the system allows it.
pub(crate) fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory of the machine that can be allocated without swapping, in bytes.
pub(crate) fn available() -> Option<u64> {
    field("/proc/meminfo", "MemAvailable:")?.try_into().ok()
}

/// A value that a file of `/proc` states in KiB, in bytes.
fn field(file: &str, name: &str) -> Option<i64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.split_whitespace().next()?.parse::<i64>().ok()? * 1024)
}
