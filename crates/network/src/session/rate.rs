//! How much a peer may make us do in a second.

use std::time::Duration;
use tokio::time::Instant;

/// Tokens that come with time and are spent. Who has none waits.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    most: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) fn new(per_second: u32, most: u32) -> Self {
        let most = f64::from(most);
        Self { per_second: f64::from(per_second), most, tokens: most, filled: Instant::now() }
    }

    /// Spends tokens, and says how long to wait before the next are spent.
    pub(super) fn spend(&mut self, tokens: u32) -> Duration {
        let now = Instant::now();
        let come = (now - self.filled).as_secs_f64() * self.per_second;
        self.filled = now;
        self.tokens = (self.tokens + come).min(self.most) - f64::from(tokens);
        Duration::from_secs_f64((-self.tokens / self.per_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_spends_more_than_comes_waits_for_it() {
        let mut bucket = Bucket::new(10, 20);
        assert_eq!(bucket.spend(20), Duration::ZERO);
        assert_eq!(bucket.spend(5), Duration::from_millis(500));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(bucket.spend(20), Duration::ZERO, "full again");
        assert_eq!(bucket.spend(1), Duration::from_millis(100), "and no fuller than full");
    }
}
