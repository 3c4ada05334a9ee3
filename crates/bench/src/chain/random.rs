//! Random numbers that are the same on every machine and in every version of this program.

use alloy_primitives::{B256, keccak256};

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0 (Lemire's multiplication; its bias is below n / 2^64).
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// One of `items`, which are not empty.
    pub(crate) fn index<T>(&mut self, items: &[T]) -> usize {
        self.below(items.len() as u64) as usize
    }
}

/// A word that belongs to `what` number `n` under this seed: keys, addresses, beacon roots.
pub(crate) fn derive(seed: u64, what: &str, n: u64) -> B256 {
    keccak256(format!("retrie chain {seed} {what} {n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper_and_stay_below_their_bound() {
        // The reference implementation's first outputs for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        let mut seen = [0; 3];
        for _ in 0..3000 {
            seen[random.below(3) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
    }
}
