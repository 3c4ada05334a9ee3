//! Sums of many points, by affine additions that share their inversions.
//!
//! An affine addition costs six multiplications and one inversion; n inversions cost 3 (n - 1)
//! multiplications and one inversion (Montgomery's trick). So sums are built in rounds: each round
//! adds the points of every sum in pairs, and all pairs of all sums share one inversion. When few
//! pairs are left, because one sum is much longer than the others, an inversion costs more than
//! additions in Jacobian coordinates, and the remaining additions are Jacobian.

use super::G1Point;
use ark_bn254::{Fq, G1Affine, G1Projective};
use ark_ec::CurveGroup;
use ark_ff::{AdditiveGroup, Field, Zero};

/// The smallest round, in additions, that is worth its inversion.
const MIN_ROUND: usize = 48;

/// Adds all terms (i, p) to `targets[i]`, in any order of the terms, and empties `terms`.
pub(crate) fn sum(targets: &mut [G1Point], terms: &mut Vec<(u32, G1Point)>) {
    PointAdder::default().sum(targets, terms);
}

/// Scratch memory of [`sum`], to be used again.
#[derive(Debug, Default)]
pub(crate) struct PointAdder {
    /// By target: the number of points of its sum, then where the next one goes. Zeros between
    /// calls.
    cursors: Vec<u32>,
    /// The sums that are not complete.
    sums: Vec<PendingSum>,
    /// The points of these sums, one sum after the other.
    points: Vec<G1Point>,
    /// The points of the next round.
    next: Vec<G1Point>,
    batch: InversionBatch,
}

/// Consecutive points of one sum.
#[derive(Clone, Copy, Debug)]
struct PendingSum {
    target: u32,
    len: u32,
}

impl PointAdder {
    /// See [`sum`].
    pub(crate) fn sum(&mut self, targets: &mut [G1Point], terms: &mut Vec<(u32, G1Point)>) {
        self.gather(targets, terms);
        terms.clear();
        while !self.sums.is_empty() {
            let additions: u32 = self.sums.iter().map(|sum| sum.len / 2).sum();
            if (additions as usize) < MIN_ROUND {
                self.finish(targets);
            } else {
                self.round(targets);
            }
        }
    }

    /// Sorts the terms by target; the first point of each sum is the target's old value.
    fn gather(&mut self, targets: &[G1Point], terms: &[(u32, G1Point)]) {
        if self.cursors.len() < targets.len() {
            self.cursors.resize(targets.len(), 0);
        }
        for (target, _) in terms {
            let cursor = &mut self.cursors[*target as usize];
            if *cursor == 0 {
                self.sums.push(PendingSum { target: *target, len: 0 });
            }
            *cursor += 1;
        }
        self.points.clear();
        self.points.resize(terms.len() + self.sums.len(), G1Point::INFINITY);
        let mut start = 0;
        for sum in &mut self.sums {
            let cursor = &mut self.cursors[sum.target as usize];
            sum.len = *cursor + 1;
            self.points[start as usize] = targets[sum.target as usize];
            *cursor = start + 1;
            start += sum.len;
        }
        for (target, point) in terms {
            let cursor = &mut self.cursors[*target as usize];
            self.points[*cursor as usize] = *point;
            *cursor += 1;
        }
        for sum in &self.sums {
            self.cursors[sum.target as usize] = 0;
        }
    }

    /// Halves every sum. A sum with one point left is complete.
    fn round(&mut self, targets: &mut [G1Point]) {
        self.next.clear();
        self.next.resize(self.points.len() / 2 + self.sums.len(), G1Point::INFINITY);
        let (mut from, mut to) = (0, 0);
        for sum in &mut self.sums {
            for _ in 0..sum.len / 2 {
                self.batch.push(&self.points, from, to, &mut self.next);
                from += 2;
                to += 1;
            }
            if sum.len % 2 == 1 {
                self.next[to] = self.points[from];
                from += 1;
                to += 1;
            }
            sum.len = sum.len.div_ceil(2);
        }
        self.batch.run(&self.points, &mut self.next);
        // Move the incomplete sums to the front.
        let (mut from, mut to) = (0, 0);
        self.sums.retain(|sum| {
            let len = sum.len as usize;
            if len == 1 {
                targets[sum.target as usize] = self.next[from];
            } else {
                self.next.copy_within(from..from + len, to);
                to += len;
            }
            from += len;
            len > 1
        });
        self.next.truncate(to);
        std::mem::swap(&mut self.points, &mut self.next);
    }

    /// Completes all sums in Jacobian coordinates.
    fn finish(&mut self, targets: &mut [G1Point]) {
        let mut points = self.points.iter();
        let totals: Vec<G1Projective> = self
            .sums
            .iter()
            .map(|sum| points.by_ref().take(sum.len as usize).map(|p| G1Affine::from(*p)).sum())
            .collect();
        for (sum, total) in self.sums.drain(..).zip(G1Projective::normalize_batch(&totals)) {
            targets[sum.target as usize] = total.into();
        }
    }
}

/// Additions of neighbouring points that share one inversion.
#[derive(Debug, Default)]
struct InversionBatch {
    additions: Vec<PointAddition>,
    /// The product of the divisors of all additions so far.
    product: Option<Fq>,
}

/// The sum of the points at `from` and `from + 1` goes to `to`.
#[derive(Debug)]
struct PointAddition {
    from: u32,
    to: u32,
    divisor: Fq,
    /// The product of the divisors before this one.
    before: Fq,
}

impl InversionBatch {
    /// Adds the points at `from` and `from + 1`: directly into `out[to]` if that takes no division,
    /// else together with the batch.
    #[inline]
    fn push(&mut self, points: &[G1Point], from: usize, to: usize, out: &mut [G1Point]) {
        let (a, b) = (&points[from], &points[from + 1]);
        let mut divisor = b.x() - a.x();
        if a.is_infinity() {
            out[to] = *b;
            return;
        }
        if b.is_infinity() {
            out[to] = *a;
            return;
        }
        if divisor.is_zero() {
            // No point of the curve has y = 0. A damaged table may hold one; no divisor may be 0.
            if a.y() != b.y() || a.y().is_zero() {
                out[to] = G1Point::INFINITY;
                return;
            }
            divisor = a.y().double();
        }
        let before = self.product.unwrap_or(Fq::ONE);
        self.product = Some(before * divisor);
        self.additions.push(PointAddition { from: from as u32, to: to as u32, divisor, before });
    }

    /// Performs all additions that were pushed.
    fn run(&mut self, points: &[G1Point], out: &mut [G1Point]) {
        let Some(product) = self.product.take() else { return };
        let mut inverse = product.inverse().expect("no divisor is zero");
        for addition in self.additions.drain(..).rev() {
            let (a, b) = (&points[addition.from as usize], &points[addition.from as usize + 1]);
            let (x, y) = (a.x(), a.y());
            let dividend = if a.x == b.x {
                let square = x.square();
                square.double() + square
            } else {
                b.y() - y
            };
            let slope = dividend * (inverse * addition.before);
            inverse *= addition.divisor;
            let sum_x = slope.square() - x - b.x();
            out[addition.to as usize] = G1Point::from_xy(sum_x, slope * (x - sum_x) - y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_ROUND, PointAdder};
    use crate::{amt::model::point, point::G1Point};
    use ark_bn254::Fr;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Sums of small multiples of the generator: so equal points, opposite points and infinity are
    /// frequent, as terms and as intermediate results.
    #[test]
    fn sums_are_right_with_equal_opposite_and_neutral_points() {
        let mut rng = StdRng::seed_from_u64(1);
        let multiple =
            |i: i64| if i < 0 { -point(Fr::from(-i as u64)) } else { point(Fr::from(i as u64)) };
        let small: Vec<G1Point> = (-3..=3).map(multiple).collect();
        let mut summer = PointAdder::default();
        for count in [0, 1, 2, 3, 17, MIN_ROUND, 4 * MIN_ROUND, 1000] {
            for target_count in [1, 2, 50, 400] {
                let mut numbers: Vec<i64> =
                    (0..target_count).map(|_| rng.random_range(-3..=3)).collect();
                let mut targets: Vec<G1Point> =
                    numbers.iter().map(|i| small[(i + 3) as usize]).collect();
                let mut terms = Vec::new();
                for _ in 0..count {
                    // Every other term goes to the first target.
                    let target = if rng.random() { 0 } else { rng.random_range(0..target_count) };
                    let number = rng.random_range(-3..=3);
                    numbers[target] += number;
                    terms.push((target as u32, small[(number + 3) as usize]));
                }
                summer.sum(&mut targets, &mut terms);
                assert!(terms.is_empty());
                let wanted: Vec<G1Point> = numbers.iter().map(|i| multiple(*i)).collect();
                assert_eq!(targets, wanted, "{count} terms, {target_count} targets");
            }
        }
    }
}
