//! The AMT, an authenticated multipoint evaluation tree (LVMT paper, 2.3): what its vector is, how
//! entries are arranged in the domain, and (with `std`) commitments and quotients from scratch.
//!
//! The vector of an AMT of height h has n = 2^h entries of six 40-bit versions v_0..v_5; entry e is
//! the number a_e = sum of v_j 2^(40 j). Its polynomial f of degree below n takes the value a_e at
//! the domain point x_e = w^brev(e), where w is a primitive n-th root of unity and brev reverses h
//! bits. Its commitment is \[f(tau)\].
//!
//! The proof tree is binary, of height h; node (d, t), with 0 <= d < h and 0 <= t < 2^d, covers the
//! entries whose d most significant bits are t. With m = n / 2^(d+1), these x_e are the roots of
//! x^(2m) - z^2 for some z, those of the left child the roots of x^m - z, those of the right one
//! the roots of x^m + z. The node's quotient Q is what both divisions have in common:
//! f mod (x^(2m) - z^2) = Q x^m + r with Q and r of degree below m. So with c = x_e^m = +-z,
//! going from the node to its child takes off Q (x^m - c), and down to the leaf
//! f(x) - a_e = sum over d of Q_(d, e >> (h-d)) (x^(m_d) - c_d).

#[cfg(all(test, feature = "std"))]
pub(crate) mod model;
#[cfg(all(test, feature = "std"))]
mod tests;
#[cfg(feature = "std")]
mod vector;

#[cfg(feature = "std")]
pub(crate) use vector::{commit, node_count, node_index, open_sparse, proof_tree};

use alloc::vec::Vec;
use ark_bn254::Fr;
use ark_ff::{BigInt, FftField, Field, One, PrimeField};

/// The largest height of an AMT.
pub const MAX_HEIGHT: u8 = 16;

/// Versions in an entry: one of the sub-AMT, five of keys.
pub const SLOTS: usize = 6;

/// Bits of a version.
pub const VERSION_BITS: u32 = 40;

/// w: the primitive 2^height-th root of unity.
pub(crate) fn root_of_unity(height: u8) -> Fr {
    Fr::get_root_of_unity(1 << height).expect("the field has roots of order 2^28")
}

/// x_e: where the polynomial takes the value of entry e.
pub(crate) fn domain_point(height: u8, entry: u32) -> Fr {
    root_of_unity(height).pow([u64::from(reverse_bits(height, entry))])
}

/// The `height` bits of `entry` in reverse order.
pub(crate) fn reverse_bits(height: u8, entry: u32) -> u32 {
    debug_assert!((1..=MAX_HEIGHT).contains(&height) && entry >> height == 0);
    entry.reverse_bits() >> (32 - u32::from(height))
}

/// c_d = x_e^(m_d) of the h nodes above an entry, root first: each is the square of the next.
pub(crate) fn path_constants(height: u8, entry: u32) -> Vec<Fr> {
    let mut c = domain_point(height, entry);
    let mut constants = Vec::with_capacity(usize::from(height));
    for _ in 0..height {
        constants.push(c);
        c.square_in_place();
    }
    debug_assert!(c.is_one());
    constants.reverse();
    constants
}

/// a_e = sum of v_j 2^(40 j), below 2^240. `None` if a version has more than 40 bits.
pub(crate) fn entry_value(versions: &[u64; SLOTS]) -> Option<Fr> {
    let mut limbs = [0; 4];
    for (slot, version) in versions.iter().enumerate() {
        if version >> VERSION_BITS != 0 {
            return None;
        }
        let (limb, shift) = (slot * 40 / 64, slot * 40 % 64);
        limbs[limb] |= version << shift;
        if shift > 24 {
            limbs[limb + 1] |= version >> (64 - shift);
        }
    }
    Some(Fr::from_bigint(BigInt(limbs)).expect("240 bits are below the modulus"))
}
