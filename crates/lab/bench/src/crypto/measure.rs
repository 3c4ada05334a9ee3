//! The timed operations on points.

use crate::random::SplitMix64;
use ark_ec::{
    CurveConfig, CurveGroup, PrimeGroup,
    short_weierstrass::{Affine, Projective, SWCurveConfig},
};
use ark_ff::{AdditiveGroup, BitIteratorBE, PrimeField};
use std::{
    fmt,
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// A curve with a pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingCurve {
    /// BLS12-381, with a field of 381 bits.
    Bls12381,
    /// BN254, with a field of 254 bits.
    Bn254,
}

impl PairingCurve {
    /// Both, in the order of the paper.
    pub const ALL: [Self; 2] = [Self::Bls12381, Self::Bn254];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bls12381 => "bls12-381",
            Self::Bn254 => "bn254",
        }
    }
}

impl fmt::Display for PairingCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An operation on points of G1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveOperation {
    /// A projective point is added to a sum in projective coordinates.
    Addition,
    /// An affine point is added to a sum in projective coordinates: how precomputed points are added
    /// to a commitment.
    MixedAddition,
    /// A projective point times a random scalar of full length, one bit after the other: a doubling
    /// for each bit, and an addition for each bit that is set.
    DoubleAndAdd,
    /// The same as the library multiplies: with the curve's endomorphism (GLV), which halves the
    /// doublings.
    Multiplication,
    /// A projective point to its affine coordinates: an inversion for each.
    Conversion,
    /// Many at once, with one inversion (Montgomery's trick).
    BatchConversion,
}

impl CurveOperation {
    /// All operations.
    pub const ALL: [Self; 6] = [
        Self::Addition,
        Self::MixedAddition,
        Self::DoubleAndAdd,
        Self::Multiplication,
        Self::Conversion,
        Self::BatchConversion,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Addition => "addition",
            Self::MixedAddition => "mixed addition",
            Self::DoubleAndAdd => "double and add",
            Self::Multiplication => "multiplication",
            Self::Conversion => "conversion",
            Self::BatchConversion => "batch conversion",
        }
    }

    /// Operations in a turn: as many as take about as long as the additions, roughly. Batches are
    /// whole.
    fn count(self, config: &CryptoConfig) -> usize {
        let CryptoConfig { samples, batch, .. } = *config;
        match self {
            Self::Addition | Self::MixedAddition => samples,
            Self::Conversion => samples.div_ceil(20),
            Self::DoubleAndAdd | Self::Multiplication => samples.div_ceil(200),
            Self::BatchConversion => samples.div_ceil(batch) * batch,
        }
    }
}

impl fmt::Display for CurveOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct CryptoConfig {
    /// Turns of each operation.
    pub rounds: u64,
    /// Additions in a turn. Slower operations run less often.
    pub samples: usize,
    /// Points that are converted at once.
    pub batch: usize,
    /// Seed of points and scalars.
    pub seed: u64,
}

/// The times of one operation, turn by turn.
#[derive(Clone, Debug)]
pub struct OperationTimes {
    /// The curve.
    pub curve: PairingCurve,
    /// The operation.
    pub operation: CurveOperation,
    /// Operations in a turn.
    pub count: usize,
    /// The time of each turn.
    pub turns: Vec<Duration>,
}

/// Why curve arithmetic could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CryptoError {
    /// Nothing would be measured.
    #[error("there must be 1 turn, 1 addition and 1 point in a batch at least")]
    Empty,
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

/// Times all operations on both curves, in turns, after one turn each that does not count.
///
/// # Errors
/// [`CryptoError`].
pub fn measure(
    config: &CryptoConfig,
    stop: &AtomicBool,
) -> Result<Vec<OperationTimes>, CryptoError> {
    let CryptoConfig { rounds, samples, batch, .. } = *config;
    if rounds == 0 || samples == 0 || batch == 0 {
        return Err(CryptoError::Empty);
    }
    let bls = CurveInputs::<ark_bls12_381::g1::Config>::new(config);
    let bn = CurveInputs::<ark_bn254::g1::Config>::new(config);
    let new = |(curve, operation): (PairingCurve, CurveOperation)| {
        let count = operation.count(config);
        OperationTimes { curve, operation, count, turns: Vec::new() }
    };
    let all =
        PairingCurve::ALL.into_iter().flat_map(|curve| CurveOperation::ALL.map(|op| (curve, op)));
    let mut all: Vec<_> = all.map(new).collect();
    for round in 0..=rounds {
        for times in &mut all {
            if stop.load(Ordering::Relaxed) {
                return Err(CryptoError::Stopped);
            }
            let OperationTimes { curve, operation, count, turns } = times;
            let took = match curve {
                PairingCurve::Bls12381 => bls.time(*operation, *count, batch),
                PairingCurve::Bn254 => bn.time(*operation, *count, batch),
            };
            // The first turn warms caches up.
            if round > 0 {
                turns.push(took);
            }
        }
    }
    Ok(all)
}

/// Points and scalars of a curve.
struct CurveInputs<P: SWCurveConfig> {
    points: Vec<Projective<P>>,
    affine: Vec<Affine<P>>,
    scalars: Vec<P::ScalarField>,
}

impl<P: SWCurveConfig> CurveInputs<P> {
    /// Random points. Each is twice the one before plus a fixed point, which is fast, and leaves
    /// them in projective coordinates.
    fn new(config: &CryptoConfig) -> Self {
        let most = CurveOperation::ALL.map(|operation| operation.count(config));
        let samples = most.into_iter().max().unwrap_or(0);
        let mut random = SplitMix64::new(config.seed);
        let mut scalar = || scalar::<P>(&mut random);
        let step = Projective::<P>::generator() * scalar();
        let mut point = Projective::<P>::generator() * scalar();
        let mut points = Vec::with_capacity(samples);
        for _ in 0..samples {
            point = point.double() + step;
            points.push(point);
        }
        let affine = Projective::normalize_batch(&points);
        let scalars = (0..CurveOperation::Multiplication.count(config)).map(|_| scalar()).collect();
        Self { points, affine, scalars }
    }

    fn time(&self, operation: CurveOperation, count: usize, batch: usize) -> Duration {
        let points = &self.points[..count];
        let start = Instant::now();
        match operation {
            CurveOperation::Addition => {
                let mut sum = Projective::<P>::generator();
                points.iter().for_each(|point| sum += point);
                let _ = black_box(sum);
            }
            CurveOperation::MixedAddition => {
                let mut sum = Projective::<P>::generator();
                self.affine[..count].iter().for_each(|point| sum += point);
                let _ = black_box(sum);
            }
            CurveOperation::DoubleAndAdd => {
                for (point, scalar) in points.iter().zip(&self.scalars) {
                    let _ = black_box(double_and_add(point, scalar));
                }
            }
            CurveOperation::Multiplication => {
                for (point, scalar) in points.iter().zip(&self.scalars) {
                    let _ = black_box(*point * scalar);
                }
            }
            CurveOperation::Conversion => {
                for point in points {
                    let _ = black_box(point.into_affine());
                }
            }
            CurveOperation::BatchConversion => {
                for batch in points.chunks(batch) {
                    black_box(Projective::normalize_batch(batch));
                }
            }
        }
        start.elapsed()
    }
}

/// A random scalar.
fn scalar<P: CurveConfig>(random: &mut SplitMix64) -> P::ScalarField {
    let words: Vec<u8> = (0..8).flat_map(|_| random.next().to_le_bytes()).collect();
    P::ScalarField::from_le_bytes_mod_order(&words)
}

/// The product, one bit of the scalar after the other.
fn double_and_add<P: SWCurveConfig>(
    point: &Projective<P>,
    scalar: &P::ScalarField,
) -> Projective<P> {
    let mut product = Projective::<P>::ZERO;
    for bit in BitIteratorBE::without_leading_zeros(scalar.into_bigint()) {
        product.double_in_place();
        if bit {
            product += point;
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_multiplications_are_the_same_product() {
        fn check<P: SWCurveConfig>() {
            let config = CryptoConfig { rounds: 1, samples: 600, batch: 256, seed: 7 };
            let inputs = CurveInputs::<P>::new(&config);
            assert_eq!((inputs.scalars.len(), inputs.points.len()), (3, 768));
            for (point, scalar) in inputs.points.iter().zip(&inputs.scalars) {
                assert_eq!(double_and_add(point, scalar), *point * scalar);
            }
            let affine: Vec<_> = inputs.points.iter().map(|point| point.into_affine()).collect();
            assert_eq!(affine, inputs.affine);
            assert!(inputs.points.iter().all(|point| point.z != P::BaseField::from(1u64)));
        }
        check::<ark_bn254::g1::Config>();
        check::<ark_bls12_381::g1::Config>();
    }

    #[test]
    fn every_operation_of_both_curves_is_timed_in_every_turn() {
        let config = CryptoConfig { rounds: 2, samples: 40, batch: 16, seed: 1 };
        let all = measure(&config, &AtomicBool::new(false)).unwrap();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|times| times.turns.len() == 2 && times.count >= 1));
        let none = CryptoConfig { samples: 0, ..config };
        assert!(matches!(measure(&none, &AtomicBool::new(false)), Err(CryptoError::Empty)));
        let stopped = measure(&config, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(CryptoError::Stopped)));
    }
}
