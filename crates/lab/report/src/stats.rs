//! Rates, their medians and spreads, the ratio of two series of slices, and the mean of repetitions
//! with its interval.

use std::{f64::consts::FRAC_2_PI, time::Duration};

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

/// Repetitions of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSummary {
    /// Number of repetitions.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Half the width of the 95 % interval of the mean, by Student's t; `None` for one repetition,
    /// whose noise is unknown.
    pub half_width: Option<f64>,
}

impl SampleSummary {
    /// Of finite values; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let median = quantile(values.iter().copied(), 0.5);
        let error = standard_error(&values).map(|error| error * student_t(0.95, count - 1));
        Some(Self { count, mean, median, half_width: error })
    }
}

/// The standard error of the mean of `values`; `None` for fewer than two.
pub(super) fn standard_error(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt())
}

/// The value that the absolute value of Student's t stays below with probability `confidence`, for
/// `freedom` degrees of freedom, at least 1: 12.7, 4.30, 3.18, 2.78 for 95 %.
pub(super) fn student_t(confidence: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while within_t(high, freedom) < confidence && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if within_t(middle, freedom) < confidence { low = middle } else { high = middle }
    }
    high
}

/// The probability that Student's t lies between -`t` and `t` (Abramowitz and Stegun, 26.7.3 and
/// 26.7.4).
fn within_t(t: f64, freedom: usize) -> f64 {
    let freedom = freedom.max(1);
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    // The powers of the cosine are odd for odd degrees of freedom, and even otherwise.
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    let mut power = if is_odd { 1 } else { 0 };
    while power + 2 <= freedom {
        sum += term;
        term *= cosine * cosine * (power + 1) as f64 / (power + 2) as f64;
        power += 2;
    }
    if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_students_t() {
        let near =
            |found: f64, table: f64| assert!((found - table).abs() < 0.002, "{found} {table}");
        for (freedom, table) in [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)] {
            near(student_t(0.95, freedom), table);
        }
        near(student_t(0.99, 8), 3.355);
        near(student_t(0.9999, 8), 7.120);
        near(student_t(0.95, 120), 1.980);
        let five = SampleSummary::of(&[10.0, 12.0, 11.0, 9.0, 13.0]).unwrap();
        assert_eq!((five.count, five.mean, five.median), (5, 11.0, 11.0));
        // The deviation is the root of 2.5, over the root of 5, times 2.776.
        near(five.half_width.unwrap(), 1.963);
        assert_eq!(SampleSummary::of(&[7.0]).unwrap().half_width, None);
        assert_eq!(SampleSummary::of(&[f64::NAN]), None);
    }
}
