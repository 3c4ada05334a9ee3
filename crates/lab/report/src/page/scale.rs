//! Maps values to positions on a track, in percent of its width.

/// A scale. Positions are rounded to a hundredth of a percent.
#[derive(Clone, Copy, Debug)]
pub(super) enum AxisScale {
    /// Linear from 0 to `max`.
    Linear { max: f64 },
    /// Logarithmic from `min` to `max`, both above 0.
    Log { min: f64, max: f64 },
}

impl AxisScale {
    /// Linear from 0 to a little above the largest of `values`.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        Self::Linear { max: if max > 0.0 { max * 1.02 } else { 1.0 } }
    }

    /// Linear from 0 to the first round step at or above the largest of `values`.
    pub(super) fn round(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let max = if max > 0.0 { max } else { 1.0 };
        let step = step(max);
        Self::Linear { max: (max / step).ceil() * step }
    }

    /// Logarithmic between two of the numbers 1, 2, 5 times a power of ten, around the positive
    /// `values`.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        if high == 0.0 {
            return Self::Log { min: 1.0, max: 10.0 };
        }
        let min = one_two_five(low).into_iter().rfind(|round| *round <= low * (1.0 + 1e-9));
        let max = one_two_five(high).into_iter().find(|round| *round >= high);
        let (min, max) = (min.unwrap_or(low), max.unwrap_or(high));
        Self::Log { min, max: if max > min { max } else { min * 10.0 } }
    }

    /// The position of `value`.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match *self {
            Self::Linear { max } => value / max,
            Self::Log { min, max } => (value.max(min) / min).ln() / (max / min).ln(),
        };
        (part.clamp(0.0, 1.0) * 10_000.0).round() / 100.0
    }

    /// The position of `value` on a vertical scale, from the top.
    pub(super) fn down_to(&self, value: f64) -> f64 {
        ((100.0 - self.at(value)) * 100.0).round() / 100.0
    }

    /// Round numbers along the scale.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { max } => {
                let step = step(max);
                let count = (max / step + 1e-9) as u32;
                (0..=count).map(|n| f64::from(n) * step).collect()
            }
            Self::Log { min, max } => {
                let powers = min.log10().floor() as i32..=max.log10().ceil() as i32;
                let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)));
                // For a large range only the powers of ten.
                let far = max / min > 300.0;
                let within = (min * (1.0 - 1e-9))..=(max * (1.0 + 1e-9));
                let ticks = all
                    .enumerate()
                    .filter(|(n, tick)| within.contains(tick) && (!far || n % 3 == 0));
                ticks.map(|(_, tick)| tick).collect()
            }
        }
    }
}

/// 1, 2 and 5 times the powers of ten around `value`.
fn one_two_five(value: f64) -> Vec<f64> {
    let power = value.log10().floor() as i32;
    (power - 1..=power + 1)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)))
        .collect()
}

/// A round step (1, 2 or 5 times a power of ten) that divides 0 to `max` into three to seven parts.
fn step(max: f64) -> f64 {
    let rough = max / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = match rough / power {
        rest if rest < 1.5 => 1.0,
        rest if rest < 3.5 => 2.0,
        rest if rest < 7.5 => 5.0,
        _ => 10.0,
    };
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ticks() {
        let scale = AxisScale::round([330_000.0, 12.0].into_iter());
        assert_eq!(scale.ticks(), [0.0, 50e3, 100e3, 150e3, 200e3, 250e3, 300e3, 350e3]);
        assert_eq!(scale.at(175_000.0), 50.0);
        let scale = AxisScale::log([13.0, 90_000.0, 0.0].into_iter());
        assert_eq!(scale.ticks(), [10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!((scale.at(10.0), scale.at(1000.0), scale.at(0.0)), (0.0, 50.0, 0.0));
        let near = AxisScale::log([3.7, 41.0].into_iter());
        assert_eq!(near.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
        let nothing = AxisScale::linear(std::iter::empty());
        assert_eq!((nothing.at(0.0), nothing.at(5.0)), (0.0, 100.0));
        let one = AxisScale::log([100.0].into_iter());
        assert_eq!(one.ticks(), [100.0, 200.0, 500.0, 1000.0]);
    }
}
