//! Rates, their medians and spreads, and the ratio of two series of slices.

use std::time::Duration;

/// The ratio of two contenders, slice by slice. Slices with the same number ran directly after each
/// other, so most noise of the machine is in both and cancels out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// Median of the slices' ratios.
    pub median: f64,
    /// First quartile of the slices' ratios.
    pub lower: f64,
    /// Third quartile of the slices' ratios.
    pub upper: f64,
}

impl PairedRatio {
    /// The ratios of two series of rates with the same numbering of slices.
    pub fn of(
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

/// The `fraction` quantile of `values`, interpolated linearly; 0 without values.
pub fn quantile(values: impl Iterator<Item = f64>, fraction: f64) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let at = fraction * last as f64;
    let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// `count` divided by `ops`.
pub fn per(count: u64, ops: u64) -> f64 {
    count as f64 / ops.max(1) as f64
}

/// Operations per second; 0 if `time` is zero.
pub fn rate(ops: u64, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => ops as f64 / seconds,
    }
}

/// `time` in seconds; `None` if it is zero.
pub fn unless_zero(time: Duration) -> Option<f64> {
    (!time.is_zero()).then_some(time.as_secs_f64())
}
