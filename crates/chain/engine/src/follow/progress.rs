//! Progress of a follower for the log, and its failures.

use super::FollowError;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between two log lines about progress.
const LOG_INTERVAL: Duration = Duration::from_secs(8);

/// Time and block number of the last log line about progress.
pub(super) struct ProgressLogger {
    at: Instant,
    number: u64,
}

impl ProgressLogger {
    pub(super) fn new(number: u64) -> Self {
        Self { at: Instant::now(), number }
    }

    /// Logs the progress every few seconds.
    pub(super) fn log(&mut self, number: u64, to: u64, from: &str) {
        let seconds = self.at.elapsed().as_secs_f64();
        if seconds < LOG_INTERVAL.as_secs_f64() {
            return;
        }
        let rate = number.saturating_sub(self.number) as f64 / seconds;
        tracing::info!("block {number} of {to} from {from}, {rate:.0} blocks/s");
        *self = Self::new(number);
    }
}

/// The failures since the last success: time of the first, message of the last.
#[derive(Clone, Debug, Default)]
pub(super) struct FollowFailures(Arc<Mutex<Option<(Instant, String)>>>);

impl FollowFailures {
    pub(super) fn add(&self, error: &FollowError) {
        let mut troubles = self.0.lock();
        let since = troubles.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *troubles = Some((since, error.to_string()));
    }

    /// Clears the failures, and returns whether there were any.
    pub(super) fn clear(&self) -> bool {
        self.0.lock().take().is_some()
    }

    pub(super) fn lasting(&self, time: Duration) -> Option<String> {
        let troubles = self.0.lock();
        let lasting = troubles.as_ref().filter(|(since, _)| since.elapsed() >= time);
        lasting.map(|(_, last)| last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_sources::FetchError;

    #[test]
    fn troubles_last_from_the_first_failure_to_the_next_success() {
        let troubles = FollowFailures::default();
        assert_eq!((troubles.lasting(Duration::ZERO), troubles.clear()), (None, false));
        troubles.add(&FetchError::new("first").into());
        std::thread::sleep(Duration::from_millis(20));
        troubles.add(&FetchError::new("second").into());
        let lasting = troubles.lasting(Duration::from_millis(20));
        assert_eq!(lasting.as_deref(), Some("second"));
        assert_eq!(troubles.lasting(Duration::from_secs(60)), None);
        assert!(troubles.clear());
        assert_eq!(troubles.lasting(Duration::ZERO), None);
    }
}
