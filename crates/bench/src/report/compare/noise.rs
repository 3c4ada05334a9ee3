//! Whether two series of slices differ by more than their noise.
//!
//! Rates are skewed and have stalls among them, so ranks decide: the shift between two series is the
//! median of all pairwise ratios (Hodges and Lehmann, Ann. Math. Stat. 34, 1963), and its interval is
//! cut from the same ratios where the test of Mann and Whitney (Ann. Math. Stat. 18, 1947) would
//! begin to reject. Slices of a run follow each other and share its luck, so two runs can differ by
//! more than their slices tell: that is what the threshold is for.
//!
//! Where slices of the same place did the same work (blocks of a replay), each pair gives a ratio. The
//! shift is then their median, and its interval is cut where the sign test would begin to reject.

/// How many standard deviations of U the interval spans to each side: 99 % of a normal distribution.
const Z: f64 = 2.576;

/// Fewer slices than this a side say nothing.
const FEWEST: usize = 5;

/// Fewer pairs than this say nothing: all of 8 lie on one side by chance in 1 of 128 cases.
const FEWEST_PAIRS: usize = 8;

/// By which factor one series lies above another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shift {
    /// The factor.
    pub(super) factor: f64,
    /// Between these it lies, in 99 of 100 cases.
    pub(super) interval: (f64, f64),
}

/// The factor from `old` to `new`; nothing with fewer than [`FEWEST`] positive figures a side.
pub(super) fn shift(old: &[f64], new: &[f64]) -> Option<Shift> {
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
    // So many of the smallest and of the largest ratios lie outside.
    let outside = (n * m / 2.0 - Z * deviation).max(0.0) as usize;
    let interval = (ratios[outside], ratios[ratios.len() - 1 - outside]);
    Some(Shift { factor: median(&ratios), interval })
}

/// The factor from each of `old` to the one of `new` at the same place; nothing with fewer than
/// [`FEWEST_PAIRS`] pairs of positive figures, or if there are not as many in both.
pub(super) fn paired_shift(old: &[f64], new: &[f64]) -> Option<Shift> {
    let ratios = old.iter().zip(new).map(|(old, new)| new / old);
    let mut ratios: Vec<f64> = ratios.filter(|r| r.is_finite() && *r > 0.0).collect();
    if old.len() != new.len() || ratios.len() < FEWEST_PAIRS {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len() as f64;
    // So many of the smallest and of the largest ratios lie outside; half a one for continuity.
    let outside = ((count - 1.0) / 2.0 - Z * count.sqrt() / 2.0).max(0.0) as usize;
    let interval = (ratios[outside], ratios[ratios.len() - 1 - outside]);
    Some(Shift { factor: median(&ratios), interval })
}

/// The median of a sorted series, which is not empty.
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
}
