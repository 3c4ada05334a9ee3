//! Points of BN254's G1 in affine coordinates, and their encodings. The module `sum` adds up many
//! points.

#[cfg(feature = "std")]
mod sum;

#[cfg(feature = "std")]
pub(crate) use sum::{PointAdder, sum};

use ark_bn254::{Fq, G1Affine};
use ark_ff::{BigInt, PrimeField};
use ark_serialize::{CanonicalDeserialize, CanonicalSerialize};

/// A point of G1 in affine coordinates; infinity is (0, 0), which is not on the curve.
///
/// 64 bytes, one cache line. The coordinates are four limbs each, least significant first, in
/// Montgomery form (the residue times 2^256), the form that the field arithmetic uses. So a table
/// of points can be used directly from a mapped file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "std",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
#[repr(C)]
pub struct G1Point {
    x: [u64; 4],
    y: [u64; 4],
}

impl G1Point {
    /// The neutral element.
    pub const INFINITY: Self = Self { x: [0; 4], y: [0; 4] };

    /// Whether this is the neutral element.
    #[inline]
    pub fn is_infinity(&self) -> bool {
        *self == Self::INFINITY
    }

    /// x then y, 32 bytes little-endian each, canonical (not in Montgomery form); infinity is
    /// zeros. The encoding of rows and hashes.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let limbs = [self.x(), self.y()].map(|coordinate| coordinate.into_bigint().0);
        for (to, limb) in bytes.chunks_exact_mut(8).zip(limbs.as_flattened()) {
            to.copy_from_slice(&limb.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes). `None` for a coordinate that is not below the
    /// modulus and for a point off the curve (on the curve is in the group: the cofactor is 1).
    pub fn from_bytes(bytes: &[u8; 64]) -> Option<Self> {
        let (x, y) = (coordinate(&bytes[..32])?, coordinate(&bytes[32..])?);
        let point = Self::from_xy(x, y);
        (point.is_infinity() || point.is_on_curve()).then_some(point)
    }

    /// x and the sign of y, 32 bytes: the compressed form of arkworks. The encoding of proofs.
    pub fn to_compressed(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        G1Affine::from(*self).serialize_compressed(&mut bytes[..]).expect("the length fits");
        bytes
    }

    /// The inverse of [`to_compressed`](Self::to_compressed). `None` for bytes that are not the
    /// one compressed form of a point.
    pub fn from_compressed(bytes: &[u8; 32]) -> Option<Self> {
        let point = Self::from(G1Affine::deserialize_compressed(&bytes[..]).ok()?);
        (point.to_compressed() == *bytes).then_some(point)
    }

    /// The x-coordinate; zero for infinity.
    #[inline]
    pub(crate) fn x(&self) -> Fq {
        Fq::new_unchecked(BigInt(self.x))
    }

    /// The y-coordinate; zero for infinity only, because the order of the group is odd.
    #[inline]
    pub(crate) fn y(&self) -> Fq {
        Fq::new_unchecked(BigInt(self.y))
    }

    #[inline]
    pub(crate) fn from_xy(x: Fq, y: Fq) -> Self {
        Self { x: x.0.0, y: y.0.0 }
    }

    /// Whether the point fulfils y^2 = x^3 + 3. Infinity does not.
    pub(crate) fn is_on_curve(&self) -> bool {
        let (x, y) = (self.x(), self.y());
        y * y == x * x * x + Fq::from(3u64)
    }

    /// Whether both coordinates are below the modulus; a point from a file need not be.
    #[cfg(feature = "std")]
    pub(crate) fn is_reduced(&self) -> bool {
        BigInt(self.x) < Fq::MODULUS && BigInt(self.y) < Fq::MODULUS
    }
}

/// A field element from 32 bytes, little-endian; `None` if not below the modulus.
pub(crate) fn coordinate(bytes: &[u8]) -> Option<Fq> {
    Fq::from_bigint(limbs(bytes))
}

/// A field element from 32 bytes in Montgomery form, little-endian; `None` if not below the
/// modulus.
#[cfg(feature = "std")]
pub(crate) fn montgomery(bytes: &[u8]) -> Option<Fq> {
    let limbs = limbs(bytes);
    (limbs < Fq::MODULUS).then(|| Fq::new_unchecked(limbs))
}

fn limbs(bytes: &[u8]) -> BigInt<4> {
    let mut limbs = [0; 4];
    for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks().0) {
        *limb = u64::from_le_bytes(*bytes);
    }
    BigInt(limbs)
}

// arkworks also represents infinity by (0, 0) on this curve.
impl From<G1Affine> for G1Point {
    #[inline]
    fn from(point: G1Affine) -> Self {
        Self::from_xy(point.x, point.y)
    }
}

impl core::ops::Neg for G1Point {
    type Output = Self;

    #[inline]
    fn neg(self) -> Self {
        Self::from_xy(self.x(), -self.y())
    }
}

impl From<G1Point> for G1Affine {
    #[inline]
    fn from(point: G1Point) -> Self {
        Self::new_unchecked(point.x(), point.y())
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::{Fq, G1Point};
    use crate::amt::model::point;
    use ark_bn254::Fr;
    use ark_ff::{BigInteger, PrimeField};

    #[test]
    fn encodings_come_back_and_infinity_has_one() {
        for point in [point(Fr::from(1u64)), point(-Fr::from(1u64)), point(Fr::from(1u64 << 40))] {
            assert_eq!(G1Point::from_bytes(&point.to_bytes()), Some(point));
            assert_eq!(G1Point::from_compressed(&point.to_compressed()), Some(point));
        }
        let generator = point(Fr::from(1u64)).to_bytes();
        assert_eq!((generator[0], generator[32]), (1, 2), "x = 1, y = 2, little-endian");
        assert_eq!(generator.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 3);
        assert_eq!(G1Point::INFINITY.to_bytes(), [0; 64]);
        assert_eq!(G1Point::from_bytes(&[0; 64]), Some(G1Point::INFINITY));
        let compressed = G1Point::INFINITY.to_compressed();
        assert_eq!(G1Point::from_compressed(&compressed), Some(G1Point::INFINITY));
    }

    #[test]
    fn points_off_the_curve_and_second_encodings_are_refused() {
        let good = point(Fr::from(7u64));
        let mut off = good.to_bytes();
        off[0] ^= 1;
        assert_eq!(G1Point::from_bytes(&off), None, "off the curve");
        // x + q and y + q are the same numbers modulo q.
        for half in [0..32, 32..64] {
            let mut bytes = good.to_bytes();
            let mut carry = 0;
            for (byte, add) in bytes[half].iter_mut().zip(Fq::MODULUS.to_bytes_le()) {
                let sum = u16::from(*byte) + u16::from(add) + carry;
                (*byte, carry) = (sum as u8, sum >> 8);
            }
            assert_eq!(carry, 0);
            assert_eq!(G1Point::from_bytes(&bytes), None, "not reduced");
        }
        let compressed = good.to_compressed();
        for bit in 0..256 {
            let mut changed = compressed;
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Some(other) = G1Point::from_compressed(&changed) {
                assert_eq!(other.to_compressed(), changed);
                assert_ne!(other, good);
            }
        }
        let mut infinity = G1Point::INFINITY.to_compressed();
        infinity[3] = 1;
        assert_eq!(G1Point::from_compressed(&infinity), None, "infinity with an x");
        infinity = G1Point::INFINITY.to_compressed();
        infinity[31] |= 0x80;
        assert_eq!(G1Point::from_compressed(&infinity), None, "infinity with a sign");
        assert_eq!(G1Point::from_compressed(&[0xff; 32]), None);
    }
}
