//! **Insecure** development parameters: their tau is public, so false openings can be forged.
//! Because tau is known, every point of the tables is a scalar times the generator.

use super::{
    LvmtParams, ParamsError, SetupPhase, SetupProgress, VerifierParams, insecure_dev_tau,
    tables::{PointTable, ProgressMeter},
};
use crate::{
    amt::{SLOTS, VERSION_BITS, reverse_bits, root_of_unity},
    point::{G1Point, PointAdder},
};
use ark_bn254::{Fr, G1Projective};
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::{AdditiveGroup, Field, One, PrimeField, batch_inversion};
use rayon::prelude::*;

impl LvmtParams {
    /// **Insecure** parameters for development, tests and benchmarks, of height 1 to 16: their tau
    /// is the hash of a public sentence, the same on every machine. Without quotients there are no
    /// proofs, and making the parameters takes a sixteenth of the time and memory.
    ///
    /// # Errors
    /// The height is out of range, or `progress` said to stop.
    pub fn insecure_dev(
        height: u8,
        with_quotients: bool,
        progress: SetupProgress<'_>,
    ) -> Result<Self, ParamsError> {
        Self::of_tau(height, insecure_dev_tau(), with_quotients, progress)
    }

    /// The parameters of a known tau. tau must not be a domain point.
    pub(crate) fn of_tau(
        height: u8,
        tau: Fr,
        with_quotients: bool,
        progress: SetupProgress<'_>,
    ) -> Result<Self, ParamsError> {
        let verifier = VerifierParams::of_tau(height, tau).ok_or(ParamsError::Height(height))?;

        let scalars = TauConstants::new(height, tau);
        let base = FixedBase::new(SLOTS << height);
        let table = |depths: usize,
                     phase,
                     scalars_at: &(dyn Fn(&EntryConstants) -> Vec<Fr> + Sync)| {
            let meter = ProgressMeter::new(progress, phase, (SLOTS * depths) << height);
            let mut points = vec![G1Point::INFINITY; (SLOTS * depths) << height];
            let entries = (8192 / (SLOTS * depths)).max(1);
            let chunks = points.par_chunks_mut(entries * SLOTS * depths).enumerate();
            chunks.try_for_each(|(chunk, points)| {
                let first = (chunk * entries) as u32;
                let count = (points.len() / (SLOTS * depths)) as u32;
                let at = scalars.at(first..first + count);
                let scalars: Vec<Fr> = at.iter().flat_map(|at| by_slot(&scalars_at(at))).collect();
                base.multiply(&scalars, points);
                meter.add(points.len())
            })?;
            Ok(PointTable::Owned(points))
        };
        let increments = table(1, SetupPhase::Commitments, &|at| vec![scalars.increment(at)])?;
        let quotients = with_quotients
            .then(|| table(height.into(), SetupPhase::Quotients, &|at| scalars.quotients(at)))
            .transpose()?;
        Ok(Self::from_tables(verifier, increments, quotients))
    }
}

/// Each scalar times 2^(40 j), for slots j = 0..6 one after the other.
fn by_slot(scalars: &[Fr]) -> Vec<Fr> {
    let shift = Fr::from(1u64 << VERSION_BITS);
    let mut all = scalars.to_vec();
    for i in 0..(SLOTS - 1) * scalars.len() {
        all.push(all[i] * shift);
    }
    all
}

/// Constants of the polynomials behind the tables, evaluated at tau.
struct TauConstants {
    height: u8,
    tau: Fr,
    root: Fr,
    half: Fr,
    /// (tau^n - 1) / n.
    common: Fr,
}

/// Constants of the polynomials of entry e.
struct EntryConstants {
    /// 1 / x_e.
    y: Fr,
    /// tau / x_e.
    q: Fr,
    /// 1 / (tau / x_e - 1).
    inverse: Fr,
}

impl TauConstants {
    fn new(height: u8, tau: Fr) -> Self {
        let half = Fr::from(2u64).inverse().expect("two is not zero");
        let common = (tau.pow([1 << height]) - Fr::one()) * half.pow([u64::from(height)]);
        Self { height, tau, root: root_of_unity(height), half, common }
    }

    fn at(&self, entries: std::ops::Range<u32>) -> Vec<EntryConstants> {
        let n = 1 << self.height;
        let y = |entry| self.root.pow([u64::from(n - reverse_bits(self.height, entry))]);
        let ys: Vec<Fr> = entries.map(y).collect();
        let mut inverses: Vec<Fr> = ys.iter().map(|y| self.tau * y - Fr::one()).collect();
        batch_inversion(&mut inverses);
        let at = ys.into_iter().zip(inverses);
        at.map(|(y, inverse)| EntryConstants { y, q: self.tau * y, inverse }).collect()
    }

    /// I_e(tau) = (tau^n - 1) / (n (tau / x_e - 1)).
    fn increment(&self, at: &EntryConstants) -> Fr {
        self.common * at.inverse
    }

    /// u_(d,e)(tau) = ((tau / x_e)^m - 1) / (2 m x_e^m (tau / x_e - 1)) with m = 2^(h-1-d), for
    /// d in 0..h.
    fn quotients(&self, at: &EntryConstants) -> Vec<Fr> {
        let (mut q_m, mut y_m, mut scale) = (at.q, at.y, at.inverse * self.half);
        let mut scalars = Vec::with_capacity(self.height.into());
        for _ in 0..self.height {
            scalars.push((q_m - Fr::one()) * y_m * scale);
            q_m.square_in_place();
            y_m.square_in_place();
            scale *= self.half;
        }
        scalars.reverse();
        scalars
    }
}

/// Precomputed multiples of the generator, for many multiplications at a time.
struct FixedBase {
    /// Bits of a digit.
    bits: u32,
    /// `windows[k][i]` is (i + 1) 2^(bits k) times the generator.
    windows: Vec<Vec<G1Point>>,
}

impl FixedBase {
    /// Sized for `count` multiplications.
    fn new(count: usize) -> Self {
        // With digits of 14 bits a window of the table just fits into a second-level cache.
        let bits = count.ilog2().saturating_sub(2).clamp(4, 14);
        // One bit more than a scalar has, for the last carry.
        let windows = (Fr::MODULUS_BIT_SIZE + 1).div_ceil(bits);
        let mut base = G1Projective::generator();
        let mut bases = Vec::with_capacity(windows as usize);
        for _ in 0..windows {
            bases.push(base);
            for _ in 0..bits {
                base.double_in_place();
            }
        }
        let bases = G1Projective::normalize_batch(&bases);
        let window = |base: &_| {
            let (mut multiples, mut summer) = (vec![G1Point::from(*base)], PointAdder::default());
            while multiples.len() < 1 << (bits - 1) {
                let last = multiples[multiples.len() - 1];
                let mut next = multiples.clone();
                let mut terms = (0..next.len() as u32).map(|i| (i, last)).collect();
                summer.sum(&mut next, &mut terms);
                multiples.extend(next);
            }
            multiples
        };
        Self { bits, windows: bases.par_iter().map(window).collect() }
    }

    /// Adds its scalar times the generator to each of `points`, which must be infinity. In every
    /// window, a digit is above -2^(bits - 1) and at most 2^(bits - 1).
    fn multiply(&self, scalars: &[Fr], points: &mut [G1Point]) {
        let mut rest: Vec<[u64; 4]> = scalars.iter().map(|scalar| scalar.into_bigint().0).collect();
        let mut carries = vec![0; scalars.len()];
        let (mut terms, mut summer) = (Vec::with_capacity(scalars.len()), PointAdder::default());
        for window in &self.windows {
            for (i, (rest, carry)) in rest.iter_mut().zip(&mut carries).enumerate() {
                let mut digit = (rest[0] & ((1 << self.bits) - 1)) as usize + *carry;
                for limb in 0..4 {
                    let above = if limb < 3 { rest[limb + 1] } else { 0 };
                    rest[limb] = rest[limb] >> self.bits | above << (64 - self.bits);
                }
                *carry = usize::from(digit > window.len());
                if *carry == 1 {
                    digit = (1 << self.bits) - digit;
                }
                if digit > 0 {
                    let point = window[digit - 1];
                    terms.push((i as u32, if *carry == 1 { -point } else { point }));
                }
            }
            summer.sum(points, &mut terms);
        }
    }
}
