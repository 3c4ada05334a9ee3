//! Time limits of replays and traces.

use std::time::{Duration, Instant};

/// Upper bound for a request, whatever timeout its client sets.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// Bounds the executions of one request: each execution, and all of them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutionClock {
    each: Duration,
    end: Instant,
}

impl ExecutionClock {
    /// With this limit for each execution.
    pub(crate) fn new(each: Duration) -> Self {
        Self { each: each.min(LONGEST), end: Instant::now() + LONGEST }
    }

    /// The limit for each execution.
    pub(crate) const fn each(&self) -> Duration {
        self.each
    }

    /// Whether the time of the request is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// The deadline of an execution that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        self.end.min(Instant::now() + self.each)
    }
}
