//! Memory of this process, as Linux tells it; elsewhere 0.

/// Anonymous resident memory in bytes: what was allocated, without the pages of mapped files.
pub(crate) fn anonymous() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok())
        .map_or(0, |kb| kb * 1024)
}

/// Lets the peak of the resident set begin anew, where the system allows it.
pub(crate) fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
