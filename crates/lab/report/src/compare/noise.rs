//! Decides whether two series of slices differ by more than their noise.
//!
//! Rates are skewed and contain stalls, so ranks decide. The shift between two series is the median
//! of all pairwise ratios (Hodges and Lehmann, Ann. Math. Stat. 34, 1963). Its interval is cut from
//! the same ratios where the test of Mann and Whitney (Ann. Math. Stat. 18, 1947) begins to reject.
//! Slices of one measurement are not independent, so two measurements can differ by more than their
//! slices show; the threshold of the comparison covers that.
//!
//! Repetitions of a measurement are independent, and noise between them is all there is. They are
//! compared by Welch's test (Biometrika 34, 1947) on logarithms. A report of a paper has hundreds of
//! figures, so the error of the test is divided among all of them (Bonferroni): in a second run of
//! the same program, one figure in a hundred reports is called changed by noise alone.
//!
//! If the slices with the same number did the same work (blocks of a replay), each pair gives a
//! ratio. The shift is then the median of these ratios, and its interval is cut where the sign test
//! begins to reject.

use crate::stats::{standard_error, student_t};

/// Standard deviations of U on each side of the interval: 99 % of a normal distribution.
const Z: f64 = 2.576;

/// Smallest number of slices per series for an estimate.
const FEWEST: usize = 5;

/// Smallest number of pairs for an estimate: all of 8 pairs lie on one side by chance in 1 of 128
/// cases.
const FEWEST_PAIRS: usize = 8;

/// The factor between two series, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SeriesShift {
    /// The factor.
    pub(super) factor: f64,
    /// The 99 % interval of the factor.
    pub(super) interval: (f64, f64),
}

/// The factor from `old` to `new`; `None` if a series has fewer than [`FEWEST`] positive values.
pub(super) fn shift(old: &[f64], new: &[f64]) -> Option<SeriesShift> {
    let usable = |series: &[f64]| -> Vec<f64> {
        series.iter().copied().filter(|rate| rate.is_finite() && *rate > 0.0).collect()
    };
    let (old, new) = (usable(old), usable(new));
    if old.len().min(new.len()) < FEWEST {
        return None;
    }
    let mut ratios: Vec<f64> =
        new.iter().flat_map(|new| old.iter().map(move |old| new / old)).collect();
    ratios.sort_by(f64::total_cmp);
    let (n, m) = (old.len() as f64, new.len() as f64);
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    // Number of the smallest ratios, and of the largest, outside the interval.
    let outside = (n * m / 2.0 - Z * deviation).max(0.0) as usize;
    let interval = (ratios[outside], ratios[ratios.len() - 1 - outside]);
    Some(SeriesShift { factor: median(&ratios), interval })
}

/// The median factor from each value of `old` to the value of `new` with the same index; `None`
/// with fewer than [`FEWEST_PAIRS`] pairs of positive values, or if the lengths differ.
pub(super) fn paired_shift(old: &[f64], new: &[f64]) -> Option<SeriesShift> {
    let ratios = old.iter().zip(new).map(|(old, new)| new / old);
    let mut ratios: Vec<f64> = ratios.filter(|r| r.is_finite() && *r > 0.0).collect();
    if old.len() != new.len() || ratios.len() < FEWEST_PAIRS {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len() as f64;
    // Number of the smallest ratios, and of the largest, outside the interval, with a continuity
    // correction of a half.
    let outside = ((count - 1.0) / 2.0 - Z * count.sqrt() / 2.0).max(0.0) as usize;
    let interval = (ratios[outside], ratios[ratios.len() - 1 - outside]);
    Some(SeriesShift { factor: median(&ratios), interval })
}

/// The factor between the means of two sets of repetitions, with its interval at `confidence`; `None`
/// with fewer than two positive values in one of them.
pub(super) fn repeated_shift(old: &[f64], new: &[f64], confidence: f64) -> Option<SeriesShift> {
    let logarithms = |series: &[f64]| -> Vec<f64> {
        series.iter().map(|value| value.ln()).filter(|value| value.is_finite()).collect()
    };
    let (old, new) = (logarithms(old), logarithms(new));
    let mean = |series: &[f64]| series.iter().sum::<f64>() / series.len() as f64;
    let (a, b) = (standard_error(&old)?.powi(2), standard_error(&new)?.powi(2));
    let (n, m) = ((old.len() - 1) as f64, (new.len() - 1) as f64);
    let freedom = (a + b).powi(2) / (a * a / n + b * b / m);
    let freedom = if freedom.is_finite() { freedom } else { n + m };
    let half = student_t(confidence, freedom as usize) * (a + b).sqrt();
    let shift = mean(&new) - mean(&old);
    Some(SeriesShift {
        factor: shift.exp(),
        interval: ((shift - half).exp(), (shift + half).exp()),
    })
}

/// The median of a sorted series, which must not be empty.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] * sorted[middle]).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_shift_lies_in_the_interval_and_equal_series_hold_one() {
        let old: Vec<f64> = (0..25).map(|n| 100.0 + f64::from(n * 7 % 11)).collect();
        let new: Vec<f64> = old.iter().rev().map(|rate| rate * 0.8).collect();
        let found = shift(&old, &new).unwrap();
        assert!((found.factor - 0.8).abs() < 1e-9, "{found:?}");
        assert!(found.interval.0 < 0.8 && found.interval.1 > 0.8 && found.interval.1 < 1.0);
        let same = shift(&old, &old).unwrap();
        assert!(same.interval.0 < 1.0 && same.interval.1 > 1.0 && same.factor == 1.0, "{same:?}");
    }

    #[test]
    fn pairs_show_a_shift_that_is_small_beside_the_differences_of_blocks() {
        let old: Vec<f64> = (0..20).map(|n| 100.0 * f64::from(1 + n * 7 % 20)).collect();
        let new: Vec<f64> = old.iter().map(|rate| rate * 0.9).collect();
        let found = paired_shift(&old, &new).unwrap();
        assert!((found.factor - 0.9).abs() < 1e-9 && found.interval.1 < 0.91, "{found:?}");
        let pooled = shift(&old, &new).unwrap();
        assert!(pooled.interval.0 < 0.9 && pooled.interval.1 > 1.0, "{pooled:?}");
        // Three of twenty pairs may lie outside on each side, by the binomial distribution.
        let ratios: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(paired_shift(&[1.0; 20], &ratios).unwrap().interval, (4.0, 17.0));
        assert_eq!(paired_shift(&[1.0; 7], &[2.0; 7]), None);
        assert_eq!(paired_shift(&[1.0; 9], &[2.0; 8]), None);
    }

    #[test]
    fn few_slices_say_nothing_and_one_stall_does_not_move_the_shift() {
        assert_eq!(shift(&[1.0; 4], &[1.0; 25]), None);
        assert_eq!(shift(&[0.0; 9], &[1.0; 25]), None, "a rate of 0 was not measured");
        let old = [100.0; 9];
        let mut new = [100.0; 9];
        new[3] = 1.0;
        assert_eq!(shift(&old, &new).unwrap().factor, 1.0);
    }

    #[test]
    fn repetitions_show_what_exceeds_the_noise_between_them() {
        let old = [100.0, 103.0, 98.0, 101.0, 99.0];
        let half: Vec<f64> = old.iter().rev().map(|rate| rate / 2.0).collect();
        let found = repeated_shift(&old, &half, 0.99).unwrap();
        assert!((found.factor - 0.5).abs() < 1e-9, "{found:?}");
        assert!(found.interval.0 > 0.4 && found.interval.1 < 0.6, "{found:?}");
        let stricter = repeated_shift(&old, &half, 0.99999).unwrap();
        assert!(stricter.interval.0 < found.interval.0 && stricter.interval.1 < 1.0);
        let again = repeated_shift(&old, &[97.0, 100.0, 104.0, 99.0, 103.0], 0.99).unwrap();
        assert!(again.interval.0 < 1.0 && again.interval.1 > 1.0, "{again:?}");
        assert_eq!(repeated_shift(&old, &[100.0], 0.99), None);
        let equal = repeated_shift(&[2.0, 2.0], &[2.0, 2.0], 0.99).unwrap();
        assert_eq!((equal.factor, equal.interval), (1.0, (1.0, 1.0)));
    }
}
