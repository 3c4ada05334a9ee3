//! How long a request may execute.

use std::time::{Duration, Instant};

/// However long a caller wants to wait, a request executes no longer.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// Bounds the executions of one request: each by itself, and all of them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    each: Duration,
    end: Instant,
}

impl Clock {
    /// Each execution may take so long.
    pub(crate) fn new(each: Duration) -> Self {
        Self { each: each.min(LONGEST), end: Instant::now() + LONGEST }
    }

    /// How long each execution may take.
    pub(crate) const fn each(&self) -> Duration {
        self.each
    }

    /// When an execution that starts now has to end.
    pub(crate) fn deadline(&self) -> Instant {
        self.end.min(Instant::now() + self.each)
    }
}
