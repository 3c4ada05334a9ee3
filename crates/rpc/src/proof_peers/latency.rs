//! Response times of peers, which decide when to ask a second replica.

use parking_lot::Mutex;
use std::time::Duration;

/// Number of remembered times.
const WINDOW: usize = 100;
/// With fewer times, [`FIRST`] is used.
const ENOUGH: usize = 20;
/// The initial hedging delay.
const FIRST: Duration = Duration::from_millis(100);
/// A shorter delay would double the requests because of scheduling noise.
const SHORTEST: Duration = Duration::from_millis(5);

/// Times of the last responses of all peers.
#[derive(Debug, Default)]
pub(super) struct PeerLatencies(Mutex<LatencyRing>);

#[derive(Debug, Default)]
struct LatencyRing {
    times: Vec<Duration>,
    next: usize,
}

impl PeerLatencies {
    /// Adds the time of a response.
    pub(super) fn add(&self, time: Duration) {
        let mut ring = self.0.lock();
        let at = ring.next;
        match ring.times.get_mut(at) {
            Some(oldest) => *oldest = time,
            None => ring.times.push(time),
        }
        ring.next = (at + 1) % WINDOW;
    }

    /// The 95th percentile of the response times.
    pub(super) fn p95(&self) -> Duration {
        let mut times = self.0.lock().times.clone();
        if times.len() < ENOUGH {
            return FIRST;
        }
        // Less than the length, which is not zero.
        let at = times.len() * 95 / 100;
        let (_, time, _) = times.select_nth_unstable(at);
        (*time).max(SHORTEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_most_answers_follows_the_last_ones() {
        let latencies = PeerLatencies::default();
        assert_eq!(latencies.p95(), FIRST);
        for millis in 0..100 {
            latencies.add(Duration::from_millis(100 + millis));
        }
        assert_eq!(latencies.p95(), Duration::from_millis(195));
        for _ in 0..100 {
            latencies.add(Duration::from_millis(8));
        }
        assert_eq!(latencies.p95(), Duration::from_millis(8));
        for _ in 0..100 {
            latencies.add(Duration::from_micros(90));
        }
        assert_eq!(latencies.p95(), SHORTEST);
    }
}
