//! Memory of this process: how much it has, and a cap on it, so that a race can be run on data that
//! is larger than memory.

mod balloon;
mod cap;
mod cgroup;

pub(crate) use cap::cap_params;
pub use cap::{CapError, MemoryCap, drop_cached_pages, parse_size};

/// Anonymous resident memory in bytes: what was allocated, without the pages of mapped files. 0
/// where the system does not tell.
pub(crate) fn anonymous() -> i64 {
    field("/proc/self/status", "RssAnon:").unwrap_or(0)
}

/// Lets the peak of the resident set begin anew, where the system allows it.
pub(crate) fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory of the machine that could be allocated without swapping, in bytes.
fn available() -> Option<u64> {
    field("/proc/meminfo", "MemAvailable:")?.try_into().ok()
}

/// A figure in KiB of a file of `/proc`, in bytes.
fn field(file: &str, name: &str) -> Option<i64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.split_whitespace().next()?.parse::<i64>().ok()? * 1024)
}
