//! The verifier's parameters, a few powers of tau in G2, and the check of openings: one
//! multi-pairing.

use crate::{
    amt::{MAX_HEIGHT, SLOTS, domain_point, entry_value, path_constants},
    hash,
    point::{G1Point, coordinate},
};
use alloc::vec::Vec;
use alloy_primitives::B256;
use ark_bn254::{Bn254, Fq2, Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::{AffineRepr, CurveGroup, VariableBaseMSM, pairing::Pairing};
use ark_ff::{AdditiveGroup, BigInteger, Field, PrimeField, Zero};

/// The verifier's public parameters of AMTs of one height h: the points \[tau^(2^k)\] of G2 for
/// k in 0..h. About 2 KB; a light client needs no others.
#[derive(Clone, Debug)]
pub struct VerifierParams {
    height: u8,
    /// `tau_g2[k]` is \[tau^(2^k)\].
    tau_g2: Vec<G2Affine>,
    /// The generator of G2, then the points in the order of the proof tree, prepared for pairings:
    /// depth d uses \[tau^(2^(h-1-d))\].
    prepared: Vec<<Bn254 as Pairing>::G2Prepared>,
    digest: B256,
}

/// The claim that the vector behind a commitment has these versions at an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryOpening<'a> {
    /// The AMT's commitment.
    pub commitment: G1Point,
    /// The entry, below 2^h.
    pub entry: u32,
    /// Its six slots, below 2^40 each; slot 0 belongs to the sub-AMT.
    pub versions: [u64; SLOTS],
    /// The quotients of the h nodes above the entry, root first.
    pub quotients: &'a [G1Point],
}

/// Bytes of a point of G2.
const G2_LEN: usize = 128;

/// The hash of this sentence is the insecure tau.
const PUBLIC_TAU: &[u8] = b"retrie lvmt: this tau is public, secure nothing with it";

/// The tau of [`VerifierParams::insecure_dev`], for models in tests.
pub fn insecure_dev_tau() -> Fr {
    Fr::from_be_bytes_mod_order(&hash::parts(&[PUBLIC_TAU])[..])
}

impl VerifierParams {
    /// Parameters from \[tau^(2^k)\] for k in 0..h. `None` unless there are 1 to 16 of them.
    ///
    /// The caller must know that the points are powers of one tau.
    pub fn new(tau_g2: Vec<G2Affine>) -> Option<Self> {
        let height = u8::try_from(tau_g2.len()).ok().filter(|h| (1..=MAX_HEIGHT).contains(h))?;
        let prepared = [G2Affine::generator()]
            .iter()
            .chain(tau_g2.iter().rev())
            .map(|point| (*point).into())
            .collect();
        let mut params = Self { height, tau_g2, prepared, digest: B256::ZERO };
        params.digest = hash::parts(&[b"retrie lvmt parameters 1", &params.to_bytes()]);
        Some(params)
    }

    /// **Insecure** parameters for development, of height 1 to 16 (`None` otherwise): their tau is
    /// the hash of a public sentence. The same on every machine.
    pub fn insecure_dev(height: u8) -> Option<Self> {
        Self::of_tau(height, insecure_dev_tau())
    }

    /// The parameters of a known tau.
    pub(crate) fn of_tau(height: u8, tau: Fr) -> Option<Self> {
        if !(1..=MAX_HEIGHT).contains(&height) {
            return None;
        }
        let powers = core::iter::successors(Some(tau), |power| Some(power.square()));
        let tau_g2 = powers.take(height.into()).map(|power| G2Affine::generator() * power);
        Self::new(G2Projective::normalize_batch(&tau_g2.collect::<Vec<_>>()))
    }

    /// Whether the tau is the public one of development, so that proofs can be forged.
    pub fn is_insecure(&self) -> bool {
        self.tau_g2[0] == G2Affine::generator() * insecure_dev_tau()
    }

    /// The height h of the AMTs, which have 2^h entries.
    pub fn height(&self) -> u8 {
        self.height
    }

    /// Identifies the parameters: the BLAKE2b-256 of `retrie lvmt parameters 1` and their
    /// [bytes](Self::to_bytes).
    pub fn digest(&self) -> B256 {
        self.digest
    }

    /// \[tau^(2^k)\] for k in 0..h.
    pub fn tau_g2(&self) -> &[G2Affine] {
        &self.tau_g2
    }

    /// The height (one byte), then each \[tau^(2^k)\] in 128 bytes: x.c0, x.c1, y.c0, y.c1,
    /// canonical, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + self.tau_g2.len() * G2_LEN);
        bytes.push(self.height);
        for point in &self.tau_g2 {
            for coordinate in [point.x.c0, point.x.c1, point.y.c0, point.y.c1] {
                bytes.extend(coordinate.into_bigint().to_bytes_le());
            }
        }
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes). `None` unless each point is canonical, on the
    /// curve, in the group of prime order, and not infinity. The caller compares the
    /// [digest](Self::digest) with a trusted one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (height, points) = bytes.split_first()?;
        if points.len() != usize::from(*height) * G2_LEN {
            return None;
        }
        Self::new(points.chunks_exact(G2_LEN).map(g2_from_bytes).collect::<Option<_>>()?)
    }

    /// Whether all these openings are true. Takes one multi-pairing of h + 1 pairs for any number
    /// of them.
    ///
    /// For an opening (C, e, a, Q_0..Q_(h-1)) with a = sum of versions\[j\] 2^(40 j), the claim is
    /// e(C - a G1 + sum of c_d Q_d, G2) = product of e(Q_d, \[tau^(m_d)\]), with m_d = 2^(h-1-d)
    /// and c_d = x_e^(m_d). Claims are combined with coefficients of 128 bits, from a hash of
    /// `seed`, the parameters and the openings themselves; so the seed need not be secret, and may
    /// be any bytes.
    pub fn check_openings(&self, openings: &[EntryOpening<'_>], seed: &[u8; 32]) -> bool {
        let height = usize::from(self.height);
        let well_formed = |opening: &EntryOpening<'_>| {
            opening.entry >> height == 0 && opening.quotients.len() == height
        };
        if !openings.iter().all(well_formed) {
            return false;
        }
        let seed = self.transcript(openings, seed);
        // The first claim needs no random coefficient.
        let coefficients: Vec<u128> =
            (0..openings.len()).map(|i| if i == 0 { 1 } else { coefficient(&seed, i) }).collect();

        let mut of_generator = Fr::zero();
        let (mut points, mut scalars) = (Vec::new(), Vec::new());
        for (opening, coefficient) in openings.iter().zip(&coefficients) {
            let Some(value) = entry_value(&opening.versions) else { return false };
            let coefficient = Fr::from(*coefficient);
            of_generator -= coefficient * value;
            points.push(G1Affine::from(opening.commitment));
            scalars.push(coefficient);
            for (quotient, c) in
                opening.quotients.iter().zip(path_constants(self.height, opening.entry))
            {
                points.push(G1Affine::from(*quotient));
                scalars.push(coefficient * c);
            }
        }
        points.push(G1Affine::generator());
        scalars.push(of_generator);
        let mut sums = Vec::with_capacity(height + 1);
        sums.push(G1Projective::msm_unchecked(&points, &scalars));
        for depth in 0..height {
            let quotients = openings.iter().map(|opening| opening.quotients[depth].into());
            sums.push(-combine(&quotients.collect::<Vec<_>>(), &coefficients));
        }
        let sums = G1Projective::normalize_batch(&sums);
        Bn254::multi_pairing(sums, self.prepared.iter().cloned()).is_zero()
    }

    /// Whether each point is \[I_e(tau)\] of its entry e, the point that a commitment grows by with
    /// slot 0 of e, and `half` is \[tau^(n/2)\] with n = 2^h. Takes one multi-pairing of three pairs
    /// for any number of points.
    ///
    /// I_e(x) (x - x_e) = x_e / n (x^n - 1), so the claims are e(I_e, \[tau\] - x_e G2) =
    /// e(x_e / n G1, G2)^(tau^n - 1) with e(G1, G2)^(tau^n) = e(`half`, \[tau^(n/2)\]), and
    /// e(`half`, G2) = e(G1, \[tau^(n/2)\]). They are combined as those of
    /// [`check_openings`](Self::check_openings).
    pub(crate) fn check_increments(&self, increments: &[(u32, G1Point)], half: G1Point) -> bool {
        let n = Fr::from(1u64 << self.height);
        let Some(inverse) = n.inverse() else { return false };
        let mut bytes = half.to_bytes().to_vec();
        for (entry, point) in increments {
            bytes.extend(entry.to_be_bytes());
            bytes.extend(point.to_bytes());
        }
        let seed = hash::parts(&[b"retrie lvmt increments 1", &self.digest[..], &bytes]);
        let (mut points, mut scalars, mut shifted) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_one = Fr::zero();
        for (i, (entry, point)) in increments.iter().enumerate() {
            if entry >> self.height != 0 {
                return false;
            }
            let (scalar, x) =
                (Fr::from(coefficient(&seed, i + 1)), domain_point(self.height, *entry));
            of_one += scalar * x * inverse;
            points.push(G1Affine::from(*point));
            scalars.push(scalar);
            shifted.push(-(scalar * x));
        }
        let of_half = Fr::from(coefficient(&seed, 0));
        let (one, half) = (G1Affine::generator(), G1Affine::from(half));
        let with_tau = G1Projective::msm_unchecked(&points, &scalars);
        points.extend([one, half]);
        shifted.extend([of_one, of_half]);
        let with_one = G1Projective::msm_unchecked(&points, &shifted);
        let with_half = G1Projective::msm_unchecked(&[half, one], &[-of_one, -of_half]);
        let sums = G1Projective::normalize_batch(&[with_one, with_half, with_tau]);
        let powers = [0, 1, usize::from(self.height)].map(|at| self.prepared[at].clone());
        Bn254::multi_pairing(sums, powers).is_zero()
    }

    /// A hash of everything that the coefficients must depend on.
    fn transcript(&self, openings: &[EntryOpening<'_>], seed: &[u8; 32]) -> B256 {
        let mut bytes = Vec::new();
        for opening in openings {
            bytes.extend(opening.commitment.to_bytes());
            bytes.extend(opening.entry.to_be_bytes());
            bytes.extend(opening.versions.iter().flat_map(|version| version.to_be_bytes()));
            bytes.extend(opening.quotients.iter().flat_map(G1Point::to_bytes));
        }
        hash::parts(&[b"retrie lvmt openings 1", seed, &self.digest[..], &bytes])
    }

    /// Whether b = tau a, by e(a, \[tau\]) = e(b, G2).
    #[cfg(feature = "std")]
    pub(crate) fn is_tau_times(&self, a: G1Affine, b: G1Affine) -> bool {
        let tau = self.prepared[usize::from(self.height)].clone();
        Bn254::multi_pairing([a, -b], [tau, self.prepared[0].clone()]).is_zero()
    }
}

/// The coefficient of the `i`-th claim: 128 bits of a hash, and not zero.
pub(super) fn coefficient(seed: &B256, i: usize) -> u128 {
    let digest = hash::parts(&[&seed[..], &(i as u64).to_be_bytes()]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    u128::from_be_bytes(bytes).max(1)
}

/// The sum of points times coefficients, for few points: they share the doublings (Straus).
pub(super) fn combine(points: &[G1Affine], coefficients: &[u128]) -> G1Projective {
    let all_bits = coefficients.iter().fold(0, |all, coefficient| all | coefficient);
    let mut sum = G1Projective::ZERO;
    for bit in (0..u128::BITS - all_bits.leading_zeros()).rev() {
        sum.double_in_place();
        for (point, coefficient) in points.iter().zip(coefficients) {
            if coefficient >> bit & 1 == 1 {
                sum += point;
            }
        }
    }
    sum
}

fn g2_from_bytes(bytes: &[u8]) -> Option<G2Affine> {
    let mut coordinates = bytes.chunks_exact(32).map(coordinate);
    let mut next = || coordinates.next().flatten();
    let (x, y) = (Fq2::new(next()?, next()?), Fq2::new(next()?, next()?));
    let point = G2Affine::new_unchecked(x, y);
    // (0, 0) is off the curve: infinity is refused.
    let valid =
        !point.is_zero() && point.is_on_curve() && point.is_in_correct_subgroup_assuming_on_curve();
    valid.then_some(point)
}
