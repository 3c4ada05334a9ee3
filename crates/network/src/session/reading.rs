//! For how long a peer could not be heard, by our own doing.

use std::time::Duration;
use tokio::time::Instant;

/// Counts the time in which nothing was read from a connection: what its peer has sent then is not late.
#[derive(Debug, Default)]
pub(super) struct ReadingPauses {
    total: Duration,
    since: Option<Instant>,
}

impl ReadingPauses {
    /// From now on nothing is read.
    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// The next message is read.
    pub(super) fn end(&mut self) {
        self.total = self.total();
        self.since = None;
    }

    /// This process stood still for a time.
    pub(super) fn add(&mut self, time: Duration) {
        self.total += time;
    }

    /// All pauses up to now.
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
