//! Poseidon2 ([eprint 2023/323](https://eprint.iacr.org/2023/323)) over the KoalaBear field as a hash of
//! bytes: a sponge of 24 elements, 16 of them rate, with the constants of Plonky3. EIP-8297 does not say
//! how an algebraic hash would take bytes; this is our choice, for measurements alone.

use alloy_primitives::B256;
use p3_field::{PrimeCharacteristicRing, PrimeField32};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_24};
use p3_symmetric::Permutation;
use std::sync::LazyLock;

const WIDTH: usize = 24;
const RATE: usize = 16;
/// Bytes that every element of 31 bits can hold.
const LIMB: usize = 3;

static PERMUTATION: LazyLock<Poseidon2KoalaBear<WIDTH>> =
    LazyLock::new(default_koalabear_poseidon2_24);

/// The hash of `bytes`: the first 8 elements, 4 bytes each, big-endian.
pub(crate) fn hash(bytes: &[u8]) -> B256 {
    let mut state = [KoalaBear::ZERO; WIDTH];
    // The length, in the capacity, keeps inputs apart that end with zeros.
    state[WIDTH - 1] = KoalaBear::from_u32(bytes.len() as u32);
    let mut rest = bytes;
    loop {
        let (block, behind) = rest.split_at(rest.len().min(RATE * LIMB));
        for (element, limb) in state.iter_mut().zip(block.chunks(LIMB)) {
            let mut padded = [0; 4];
            padded[..limb.len()].copy_from_slice(limb);
            *element += KoalaBear::from_u32(u32::from_le_bytes(padded));
        }
        PERMUTATION.permute_mut(&mut state);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    let mut out = B256::ZERO;
    for (place, element) in out.chunks_mut(4).zip(state) {
        place.copy_from_slice(&element.as_canonical_u32().to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn inputs_of_every_length_and_with_every_bit_have_their_own_hash() {
        let mut seen = HashSet::new();
        for len in 0..150 {
            assert!(seen.insert(hash(&vec![0; len])), "{len} zeros");
            for bit in 0..len * 8 {
                let mut bytes = vec![0; len];
                bytes[bit / 8] |= 1 << (bit % 8);
                assert!(seen.insert(hash(&bytes)), "bit {bit} of {len} bytes");
            }
        }
    }
}
