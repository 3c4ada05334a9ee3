//! Pauses in reading from a peer that are caused by this node.

use std::time::Duration;
use tokio::time::Instant;

/// Counts the time in which nothing is read from a connection. An answer that arrives in that time
/// is not late.
#[derive(Debug, Default)]
pub(super) struct ReadingPauses {
    total: Duration,
    since: Option<Instant>,
}

impl ReadingPauses {
    /// Reading stops.
    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Reading goes on.
    pub(super) fn end(&mut self) {
        self.total = self.total();
        self.since = None;
    }

    /// Adds a time in which this process did not run.
    pub(super) fn add(&mut self, time: Duration) {
        self.total += time;
    }

    /// The sum of all pauses up to now.
    pub(super) fn total(&self) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_are_counted_while_they_last() {
        let mut pauses = ReadingPauses::default();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(pauses.total(), Duration::ZERO);
        pauses.begin();
        tokio::time::advance(Duration::from_secs(2)).await;
        pauses.begin();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pauses.total(), Duration::from_secs(3));
        pauses.end();
        tokio::time::advance(Duration::from_secs(9)).await;
        pauses.add(Duration::from_secs(1));
        assert_eq!(pauses.total(), Duration::from_secs(4));
    }
}
