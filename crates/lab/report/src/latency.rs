//! Histograms of durations and their percentiles.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Upper bound of the histogram: one hour, in microseconds. Longer durations count as this long.
const LONGEST: u64 = 3_600_000_000;

/// A histogram of durations in microseconds, with three significant digits.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("these bounds are allowed"))
    }
}

impl LatencyHistogram {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The `quantile` (0 to 1) of all durations, in microseconds.
    pub fn micros(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// The longest duration in microseconds.
    pub fn max_micros(&self) -> u64 {
        self.0.max()
    }

    /// The longest duration divided by the median; 0 without durations.
    pub fn stall_ratio(&self) -> f64 {
        match self.micros(0.5) {
            0 => 0.0,
            median => self.max_micros() as f64 / median as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_stalls() {
        let mut latency = LatencyHistogram::default();
        for millis in 1..=99 {
            latency.record(Duration::from_millis(millis));
        }
        latency.record(Duration::from_secs(1));
        let near = |micros: u64, expected: u64| micros.abs_diff(expected) * 500 <= expected;
        assert_eq!(latency.count(), 100);
        assert!(near(latency.micros(0.5), 50_000), "{latency:?}");
        assert!(near(latency.micros(0.99), 99_000), "{latency:?}");
        assert!(near(latency.max_micros(), 1_000_000), "{latency:?}");
        assert!((19.8..20.2).contains(&latency.stall_ratio()), "{latency:?}");
        assert_eq!(LatencyHistogram::default().stall_ratio(), 0.0);
    }
}
