//! The tables from the powers of an unknown tau, by Fourier transforms over group elements.
//!
//! All polynomials of the tables have one form (with y = 1 / x_e, m = 2^(h-1-d)):
//!
//! * I_e = 1/n sum of y^i x^i over i in 0..n,
//! * u_(d,e) = 1/(2m) sum of y^i x^(i-m) over i in m..2m.
//!
//! At tau, with \[tau^i\] for x^i, they are the values, at all points y, of a polynomial whose
//! coefficients are points of G1. The evaluation goes down the proof tree: node (d, t) has the
//! remainder by y^(2m) - z^2 with 2m coefficients, and its children get low + c high and low - c
//! high. All products at a node have the same factor c, and the results come in the order of the
//! entries. As long as 2m is more than twice the number of coefficients there is no high half, and
//! all nodes of a level are equal: so u_(d,e) starts at depth d.

use super::{
    LvmtParams, ParamsError, SetupPhase, SetupProgress, VerifierParams,
    tables::{PointTable, ProgressMeter},
};
use crate::{
    amt::{SLOTS, VERSION_BITS, domain_point},
    point::G1Point,
};
use ark_bn254::{Fr, G1Affine, G1Projective, g1};
use ark_ec::{CurveGroup, scalar_mul::glv::GLVConfig};
use ark_ff::{AdditiveGroup, BigInteger, Field, One, PrimeField};
use rayon::prelude::*;

impl LvmtParams {
    /// The tables that belong to `powers`: \[tau^i\] for i in 0..2^h.
    pub(super) fn derive(
        verifier: VerifierParams,
        powers: &[G1Affine],
        with_quotients: bool,
        progress: SetupProgress<'_>,
    ) -> Result<Self, ParamsError> {
        let height = usize::from(verifier.height());
        let half = powers.len() / 2;
        let transform = |first: usize| (height - first) * half;
        let slots = SLOTS * powers.len();

        let meter = ProgressMeter::new(progress, SetupPhase::Commitments, transform(0) + slots);
        let mut values = scaled(powers, height);
        descend(&mut values, 0, &meter)?;
        let mut increments = vec![G1Point::INFINITY; slots];
        write_slots(&mut values, &mut increments, 1, 0, &meter)?;

        let mut quotients = None;
        if with_quotients {
            let total = (0..height).map(transform).sum::<usize>() + height * slots;
            let meter = ProgressMeter::new(progress, SetupPhase::Quotients, total);
            let mut points = vec![G1Point::INFINITY; height * slots];
            for depth in 0..height {
                let m = half >> depth;
                let high = scaled(&powers[..m], height - depth);
                for (values, t) in values.chunks_exact_mut(2 * m).zip(0..) {
                    let (left, right) = values.split_at_mut(m);
                    let factor = FixedScalar::of_node(height as u8, depth as u32, t);
                    left.par_iter_mut().zip(right).zip(&high).for_each(|((left, right), high)| {
                        *left = factor.times(*high);
                        *right = -*left;
                    });
                }
                meter.add(half)?;
                descend(&mut values, depth + 1, &meter)?;
                write_slots(&mut values, &mut points, height, depth, &meter)?;
            }
            quotients = Some(PointTable::Owned(points));
        }
        Ok(Self::from_tables(verifier, PointTable::Owned(increments), quotients))
    }
}

/// Points divided by 2^log.
fn scaled(points: &[G1Affine], log: usize) -> Vec<G1Projective> {
    let two_inverse = Fr::from(2u64).inverse().expect("two is not zero");
    let factor = FixedScalar::new(two_inverse.pow([log as u64]));
    points.par_iter().map(|point| factor.times((*point).into())).collect()
}

/// Goes from the remainders at the nodes of depth `first` down to the values at the entries.
fn descend(
    values: &mut [G1Projective],
    first: usize,
    meter: &ProgressMeter<'_>,
) -> Result<(), ParamsError> {
    let height = values.len().ilog2();
    for depth in first as u32..height {
        let m = values.len() >> (depth + 1);
        values.par_chunks_exact_mut(2 * m).zip(0..1u32 << depth).try_for_each(|(values, t)| {
            let factor = FixedScalar::of_node(height as u8, depth, t);
            let (low, high) = values.split_at_mut(m);
            low.par_chunks_mut(256).zip(high.par_chunks_mut(256)).try_for_each(|(low, high)| {
                for (low, high) in low.iter_mut().zip(high.iter_mut()) {
                    let product = factor.times(*high);
                    *high = *low - product;
                    *low += product;
                }
                meter.add(low.len())
            })
        })?;
    }
    Ok(())
}

/// Writes 2^(40 j) times the value of each entry into `table[entry][slot j][depth]`.
fn write_slots(
    values: &mut [G1Projective],
    table: &mut [G1Point],
    depths: usize,
    depth: usize,
    meter: &ProgressMeter<'_>,
) -> Result<(), ParamsError> {
    const ENTRIES: usize = 64;
    let tables = table.par_chunks_mut(ENTRIES * SLOTS * depths);
    values.par_chunks_mut(ENTRIES).zip(tables).try_for_each(|(values, table)| {
        for slot in 0..SLOTS {
            if slot > 0 {
                for _ in 0..VERSION_BITS {
                    values.iter_mut().for_each(|value| {
                        value.double_in_place();
                    });
                }
            }
            let points = G1Projective::normalize_batch(values);
            for (entry, point) in points.into_iter().enumerate() {
                table[(entry * SLOTS + slot) * depths + depth] = point.into();
            }
        }
        meter.add(SLOTS * values.len())
    })
}

/// A scalar that many points are multiplied by. BN254's endomorphism phi multiplies by a cube root
/// of unity and costs one field multiplication (Gallant, Lambert, Vanstone); with it the scalar is
/// a + b phi, where a and b have half the length.
struct FixedScalar {
    is_one: bool,
    /// Signed digits of a and b, odd and below 8 in size or zero; most significant first.
    digits: Vec<(i64, i64)>,
}

impl FixedScalar {
    /// 1 / c of the left child of node (depth, t).
    fn of_node(height: u8, depth: u32, t: u32) -> Self {
        let height = u32::from(height);
        let m = 1 << (height - 1 - depth);
        let c = domain_point(height as u8, t << (height - depth)).pow([m]);
        Self::new(c.inverse().expect("roots of unity are not zero"))
    }

    fn new(factor: Fr) -> Self {
        let ((a_positive, a), (b_positive, b)) = g1::Config::scalar_decomposition(factor);
        let digits = |positive: bool, number: Fr| {
            let digits = number.into_bigint().find_wnaf(4).expect("a window of four bits");
            digits.into_iter().map(move |digit| if positive { digit } else { -digit })
        };
        let (a, b) = (digits(a_positive, a), digits(b_positive, b));
        let length = a.len().max(b.len());
        let [a, b] = [a.collect::<Vec<_>>(), b.collect()];
        let digit = |digits: &[i64], i| digits.get(i).copied().unwrap_or(0);
        let digits = (0..length).rev().map(|i| (digit(&a, i), digit(&b, i))).collect();
        Self { is_one: factor.is_one(), digits }
    }

    fn times(&self, point: G1Projective) -> G1Projective {
        if self.is_one {
            return point;
        }
        // 1, 3, 5, 7 times the point.
        let twice = point.double();
        let mut odd = [point; 4];
        for i in 1..4 {
            odd[i] = odd[i - 1] + twice;
        }
        let add = |sum: &mut G1Projective, odd: &[G1Projective; 4], digit: i64| match digit {
            0 => {}
            1.. => *sum += odd[digit as usize / 2],
            _ => *sum -= odd[-digit as usize / 2],
        };
        let odd_phi = odd.map(|point| g1::Config::endomorphism(&point));
        let mut product = G1Projective::ZERO;
        for (a, b) in &self.digits {
            product.double_in_place();
            add(&mut product, &odd, *a);
            add(&mut product, &odd_phi, *b);
        }
        product
    }
}
