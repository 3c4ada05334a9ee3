//! The AMT, an authenticated multipoint evaluation tree (LVMT paper, 2.3): its vector, the order of
//! its entries in the domain, and (with `std`) commitments and quotients computed from scratch.
//!
//! The vector of an AMT of height h has n = 2^h entries of six 40-bit versions v_0..v_5; entry e is
//! the number a_e = sum of v_j 2^(40 j). Its polynomial f of degree below n takes the value a_e at
//! the domain point x_e = w^brev(e), where w is a primitive n-th root of unity and brev reverses h
//! bits. Its commitment is \[f(tau)\].
//!
//! The proof tree is binary, of height h; node (d, t), with 0 <= d < h and 0 <= t < 2^d, covers the
//! entries whose d most significant bits are t. With m = n / 2^(d+1), the x_e of these entries are
//! the roots of x^(2m) - z^2 for some z. The left child covers the roots of x^m - z, the right
//! child the roots of x^m + z. Dividing f by either of the two gives the same quotient Q of the
//! node: f mod (x^(2m) - z^2) = Q x^m + r with Q and r of degree below m. So with c = x_e^m = +-z,
//! a step from the node to its child subtracts Q (x^m - c), and down to the leaf f(x) - a_e = sum
//! over d of Q_(d, e >> (h-d)) (x^(m_d) - c_d).

#[cfg(all(test, feature = "std"))]
pub(crate) mod model;
#[cfg(all(test, feature = "std"))]
mod tests;
#[cfg(feature = "std")]
mod vector;

#[cfg(feature = "std")]
pub(crate) use vector::{
    commit, node_count, node_index, open_sparse, proof_tree, upper_node, upper_trees,
};

use alloc::vec::Vec;
use ark_bn254::Fr;
use ark_ff::{BigInt, FftField, Field, One, PrimeField};

/// The largest height of an AMT.
pub const MAX_HEIGHT: u8 = 16;

/// Slots of an entry: one for the version of the sub-AMT, five for versions of keys.
pub const SLOTS: usize = 6;

/// Bits of a version.
pub const VERSION_BITS: u32 = 40;

/// w: the primitive 2^height-th root of unity.
pub(crate) fn root_of_unity(height: u8) -> Fr {
    Fr::get_root_of_unity(1 << height).expect("the field has roots of order 2^28")
}

/// x_e: the domain point at which the polynomial takes the value of entry e.
pub(crate) fn domain_point(height: u8, entry: u32) -> Fr {
    root_of_unity(height).pow([u64::from(reverse_bits(height, entry))])
}

/// The `height` bits of `entry` in reverse order.
pub(crate) fn reverse_bits(height: u8, entry: u32) -> u32 {
    debug_assert!((1..=MAX_HEIGHT).contains(&height) && entry >> height == 0);
    entry.reverse_bits() >> (32 - u32::from(height))
}

/// c_d = x_e^(m_d) of the h nodes above an entry, root first: each is the square of the next one.
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
