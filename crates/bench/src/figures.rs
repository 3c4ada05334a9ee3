//! Rates, their medians and spreads, and how two series compare.

use std::time::Duration;

/// How a contender compares with another one, slice by slice: those of the same number were run next
/// to each other, so most of the machine's noise is in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median of the slices' ratios.
    pub median: f64,
    /// A quarter of the slices' ratios lies below this one,
    pub lower: f64,
    /// and a quarter above this one.
    pub upper: f64,
}

impl Ratio {
    /// Of two series of rates that were measured next to each other.
    pub(crate) fn of(
        these: impl Iterator<Item = f64> + Clone,
        others: impl Iterator<Item = f64> + Clone,
    ) -> Self {
        let ratios = || these.clone().zip(others.clone()).map(|(this, other)| this / other);
        let at = |fraction| quantile(ratios(), fraction);
        Self { median: at(0.5), lower: at(0.25), upper: at(0.75) }
    }

    /// Interquartile range over the median.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.upper - self.lower) / self.median }
    }
}

/// The value that a fraction of all does not exceed, linear between them; 0 without any.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, fraction: f64) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let at = fraction * last as f64;
    let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// `count` for each of `ops`.
pub(crate) fn per(count: u64, ops: u64) -> f64 {
    count as f64 / ops.max(1) as f64
}

/// Operations a second; 0 without time.
pub(crate) fn rate(ops: u64, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => ops as f64 / seconds,
    }
}

/// Seconds of a time, if there was any.
pub(crate) fn unless_zero(time: Duration) -> Option<f64> {
    (!time.is_zero()).then_some(time.as_secs_f64())
}
