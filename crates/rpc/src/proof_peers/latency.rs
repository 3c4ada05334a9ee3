//! How fast peers answer: when a second one is worth asking.

use parking_lot::Mutex;
use std::time::Duration;

/// Times that are remembered.
const WINDOW: usize = 100;
/// Before so many are known, [`FIRST`] counts.
const ENOUGH: usize = 20;
/// What counts as slow before anything is known.
const FIRST: Duration = Duration::from_millis(100);
/// Hedging sooner than this would double requests because of the scheduler's whims.
const SHORTEST: Duration = Duration::from_millis(5);

/// The times of the last answers of all peers.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    times: Vec<Duration>,
    next: usize,
}

impl Latencies {
    /// Remembers the time of an answer.
    pub(super) fn add(&self, time: Duration) {
        let mut ring = self.0.lock();
        let at = ring.next;
        match ring.times.get_mut(at) {
            Some(oldest) => *oldest = time,
            None => ring.times.push(time),
        }
        ring.next = (at + 1) % WINDOW;
    }

    /// The time in which 95 of 100 answers came.
    pub(super) fn p95(&self) -> Duration {
        let mut times = self.0.lock().times.clone();
        if times.len() < ENOUGH {
            return FIRST;
        }
        // Below their number, as that is not zero.
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
        let latencies = Latencies::default();
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
