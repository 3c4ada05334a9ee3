//! Rate limits on what a peer may make this node do.

use std::time::{Duration, Instant};

/// A token bucket: tokens come back with time and are spent.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    most: f64,
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket of `most` tokens that gets `per_second` tokens a second.
    pub(crate) fn new((per_second, most): (u32, u32), now: Instant) -> Self {
        let most = f64::from(most);
        Self { per_second: f64::from(per_second), most, tokens: most, filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let come = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + come).min(self.most);
    }

    /// How long until there is a token.
    pub(crate) fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        Duration::from_secs_f64((-self.tokens / self.per_second).max(0.0))
    }

    /// Spends tokens, even more than there are, and returns how long to wait before the next call.
    pub(crate) fn spend(&mut self, tokens: u32, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= f64::from(tokens);
        self.wait(now)
    }

    /// Takes the tokens that there are, at most `most`, and returns how many it took.
    pub(crate) fn take(&mut self, most: usize, now: Instant) -> usize {
        self.fill(now);
        let taken = most.min(self.tokens.max(0.0) as usize);
        self.tokens -= taken as f64;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spends_more_than_comes_waits_for_it() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new((10, 20), start);
        assert_eq!(bucket.spend(20, start), Duration::ZERO);
        assert_eq!(bucket.spend(5, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(100);
        assert_eq!(bucket.spend(20, later), Duration::ZERO, "full again");
        assert_eq!(bucket.spend(1, later), Duration::from_millis(100), "and no fuller than full");
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new((10, 20), start);
        assert_eq!(
            [bucket.take(15, start), bucket.take(15, start), bucket.take(1, start)],
            [15, 5, 0]
        );
        assert_eq!(bucket.take(100, start + Duration::from_secs(1)), 10);
    }
}
