//! Adding up many points: affine additions whose inversions are shared.
//!
//! An affine addition costs six multiplications and one inversion; n inversions cost 3 (n - 1)
//! multiplications and one inversion (Montgomery's trick). So sums are built in rounds: in each,
//! the points of every sum are added in pairs, and all pairs of all sums share one inversion. When
//! few pairs are left, which happens when one sum is much longer than the others, an inversion
//! costs more than additions in Jacobian coordinates, and these end the work.

use super::Point;
use ark_bn254::{Fq, G1Affine, G1Projective};
use ark_ec::CurveGroup;
use ark_ff::{AdditiveGroup, Field, Zero};

/// A round with fewer additions is not worth its inversion.
const MIN_ROUND: usize = 48;

/// Adds to each `targets[i]` all terms (i, p), which may come in any order, and empties `terms`.
pub(crate) fn sum(targets: &mut [Point], terms: &mut Vec<(u32, Point)>) {
    Summer::default().sum(targets, terms);
}

/// [`sum`] with its scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Summer {
    /// By target: how many points its sum has; then where the next one goes. Zeros between calls.
    cursors: Vec<u32>,
    /// The sums that are not done.
    sums: Vec<Sum>,
    /// Their points, one sum after the other.
    points: Vec<Point>,
    /// The points of the next round.
    next: Vec<Point>,
    batch: Batch,
}

/// Some neighbours among the points, to be added up.
#[derive(Clone, Copy, Debug)]
struct Sum {
    target: u32,
    len: u32,
}

impl Summer {
    /// See [`sum`].
    pub(crate) fn sum(&mut self, targets: &mut [Point], terms: &mut Vec<(u32, Point)>) {
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

    /// Sorts the terms by target, behind what the target already is.
    fn gather(&mut self, targets: &[Point], terms: &[(u32, Point)]) {
        if self.cursors.len() < targets.len() {
            self.cursors.resize(targets.len(), 0);
        }
        for (target, _) in terms {
            let cursor = &mut self.cursors[*target as usize];
            if *cursor == 0 {
                self.sums.push(Sum { target: *target, len: 0 });
            }
            *cursor += 1;
        }
        self.points.clear();
        self.points.resize(terms.len() + self.sums.len(), Point::INFINITY);
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

    /// Halves every sum. Those with one point left are done.
    fn round(&mut self, targets: &mut [Point]) {
        self.next.clear();
        self.next.resize(self.points.len() / 2 + self.sums.len(), Point::INFINITY);
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
        // What is left moves together, from the front.
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

    /// Ends all sums in Jacobian coordinates.
    fn finish(&mut self, targets: &mut [Point]) {
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

/// Additions of neighbours that share one inversion.
#[derive(Debug, Default)]
struct Batch {
    additions: Vec<Addition>,
    /// The product of the divisors of all additions so far.
    product: Option<Fq>,
}

/// The points at `from` and `from + 1` give the one at `to`.
#[derive(Debug)]
struct Addition {
    from: u32,
    to: u32,
    divisor: Fq,
    /// The product of the divisors before.
    before: Fq,
}

impl Batch {
    /// Adds the points at `from` and `from + 1`: at once into `out[to]` if that takes no division,
    /// with the batch otherwise.
    #[inline]
    fn push(&mut self, points: &[Point], from: usize, to: usize, out: &mut [Point]) {
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
            // On the curve no y is zero. Whatever a damaged table holds, divisors must not be.
            if a.y() != b.y() || a.y().is_zero() {
                out[to] = Point::INFINITY;
                return;
            }
            divisor = a.y().double();
        }
        let before = self.product.unwrap_or(Fq::ONE);
        self.product = Some(before * divisor);
        self.additions.push(Addition { from: from as u32, to: to as u32, divisor, before });
    }

    /// Does what has been pushed.
    fn run(&mut self, points: &[Point], out: &mut [Point]) {
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
            out[addition.to as usize] = Point::from_xy(sum_x, slope * (x - sum_x) - y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_ROUND, Summer};
    use crate::{amt::model::point, point::Point};
    use ark_bn254::Fr;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Sums of small multiples of the generator: equal and opposite points and infinity, as terms
    /// and as what comes out in between, are then the rule.
    #[test]
    fn sums_are_right_with_equal_opposite_and_neutral_points() {
        let mut rng = StdRng::seed_from_u64(1);
        let multiple =
            |i: i64| if i < 0 { -point(Fr::from(-i as u64)) } else { point(Fr::from(i as u64)) };
        let small: Vec<Point> = (-3..=3).map(multiple).collect();
        let mut summer = Summer::default();
        for count in [0, 1, 2, 3, 17, MIN_ROUND, 4 * MIN_ROUND, 1000] {
            for target_count in [1, 2, 50, 400] {
                let mut numbers: Vec<i64> =
                    (0..target_count).map(|_| rng.random_range(-3..=3)).collect();
                let mut targets: Vec<Point> =
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
                let wanted: Vec<Point> = numbers.iter().map(|i| multiple(*i)).collect();
                assert_eq!(targets, wanted, "{count} terms, {target_count} targets");
            }
        }
    }
}
