//! The AMT in plain numbers: slow and simple. It needs tau, which only tests have.

use super::{SLOTS, domain_point};
use ark_bn254::{Fr, G1Affine};
use ark_ec::{AffineRepr, CurveGroup};
use ark_ff::{AdditiveGroup, Field, Zero};

use crate::point::G1Point;

/// A vector, and the secret tau.
#[derive(Clone, Debug)]
pub(crate) struct AmtModel {
    pub(crate) height: u8,
    pub(crate) tau: Fr,
    pub(crate) versions: Vec<[u64; SLOTS]>,
}

impl AmtModel {
    /// All versions are zero.
    pub(crate) fn new(height: u8, tau: Fr) -> Self {
        Self { height, tau, versions: vec![[0; SLOTS]; 1 << height] }
    }

    /// The entries that have a version above zero.
    pub(crate) fn entries(&self) -> Vec<(u32, [u64; SLOTS])> {
        (0..).zip(self.versions.iter().copied()).filter(|(_, v)| *v != [0; SLOTS]).collect()
    }

    /// a_e as a number.
    pub(crate) fn value(&self, entry: u32) -> Fr {
        let shift = Fr::from(2u64).pow([40]);
        let versions = &self.versions[entry as usize];
        versions.iter().rev().fold(Fr::zero(), |value, v| value * shift + Fr::from(*v))
    }

    /// The coefficients of f, lowest first, by Lagrange interpolation over products.
    pub(crate) fn polynomial(&self) -> Vec<Fr> {
        let n = self.versions.len() as u32;
        let mut f = vec![Fr::zero(); n as usize];
        for e in 0..n {
            let x_e = domain_point(self.height, e);
            let mut basis = vec![self.value(e)];
            for other in (0..n).filter(|other| *other != e) {
                let x = domain_point(self.height, other);
                // basis * (X - x) / (x_e - x)
                let scale = (x_e - x).inverse().unwrap();
                let mut next = vec![Fr::zero(); basis.len() + 1];
                for (i, coefficient) in basis.iter().enumerate() {
                    next[i + 1] += *coefficient * scale;
                    next[i] -= *coefficient * x * scale;
                }
                basis = next;
            }
            f.iter_mut().zip(basis).for_each(|(sum, coefficient)| *sum += coefficient);
        }
        f
    }

    /// \[f(tau)\].
    pub(crate) fn commitment(&self) -> G1Point {
        point(evaluate(&self.polynomial(), self.tau))
    }

    /// The quotient of the node at `depth` above `entry`, by two polynomial divisions: f by
    /// x^(2m) - z^2, and the remainder by x^m - c.
    pub(crate) fn quotient(&self, f: &[Fr], depth: u32, entry: u32) -> G1Point {
        let m = 1 << (u32::from(self.height) - 1 - depth);
        let c = domain_point(self.height, entry).pow([m as u64]);
        let (_, remainder) = divide(f, 2 * m, c * c);
        let (quotient, _) = divide(&remainder, m, c);
        point(evaluate(&quotient, self.tau))
    }

    /// All quotients above `entry`.
    pub(crate) fn quotients(&self, entry: u32) -> Vec<G1Point> {
        let f = self.polynomial();
        (0..self.height.into()).map(|depth| self.quotient(&f, depth, entry)).collect()
    }
}

/// The generator times `scalar`.
pub(crate) fn point(scalar: Fr) -> G1Point {
    (G1Affine::generator() * scalar).into_affine().into()
}

/// The value of a polynomial, given by its coefficients, lowest first.
pub(crate) fn evaluate(polynomial: &[Fr], x: Fr) -> Fr {
    polynomial.iter().rev().fold(Fr::ZERO, |value, coefficient| value * x + coefficient)
}

/// Quotient and remainder by x^m - c.
fn divide(polynomial: &[Fr], m: usize, c: Fr) -> (Vec<Fr>, Vec<Fr>) {
    let mut rest = polynomial.to_vec();
    let mut quotient = vec![Fr::zero(); rest.len().saturating_sub(m).max(1)];
    for i in (m..rest.len()).rev() {
        let leading = std::mem::replace(&mut rest[i], Fr::zero());
        quotient[i - m] = leading;
        rest[i - m] += c * leading;
    }
    rest.truncate(m);
    (quotient, rest)
}
