//! Random numbers that are the same on every machine and in every version of this program.

use alloy_primitives::{B256, Bytes, keccak256};
use retrie_state::StateValue;

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
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

    /// A number in `0.0..1.0` with 53 random bits, the precision of an `f64`.
    pub(crate) const fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random index into `items`, which must not be empty.
    pub(crate) fn index<T>(&mut self, items: &[T]) -> usize {
        self.below(items.len() as u64) as usize
    }
}

/// The Zipf distribution of YCSB (Gray et al.: Quickly Generating Billion-Record Synthetic
/// Databases, 1994): number `n` of `0..items` is about `1 / (n + 1)^theta` as likely as number 0.
/// The callers map numbers to keys by hashes, so the frequent keys are scattered.
#[derive(Clone, Debug)]
pub(crate) struct ZipfDistribution {
    items: f64,
    theta: f64,
    /// Sum of all `1 / n^theta`.
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl ZipfDistribution {
    /// The constant of YCSB (Cooper et al., SoCC 2010).
    pub(crate) const YCSB: f64 = 0.99;

    /// `theta` lies between 0 and 1, and `items` is at least 1.
    pub(crate) fn new(items: u64, theta: f64) -> Self {
        let zeta: f64 = (1..=items).map(|n| (n as f64).powf(-theta)).sum();
        let two = 1.0 + 0.5_f64.powf(theta);
        let items = items as f64;
        let eta = (1.0 - (2.0 / items).powf(1.0 - theta)) / (1.0 - two / zeta);
        Self { items, theta, zeta, alpha: 1.0 / (1.0 - theta), eta }
    }

    pub(crate) fn next(&self, random: &mut SplitMix64) -> u64 {
        let u = random.fraction();
        let at = u * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < 1.0 + 0.5_f64.powf(self.theta) {
            return 1.min(self.items as u64 - 1);
        }
        let n = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (n as u64).min(self.items as u64 - 1)
    }
}

/// A permutation of the numbers below `n` that moves neighbours far apart.
pub(crate) const fn scatter(number: u64, n: u64) -> u64 {
    // A large prime: 2^61 - 1.
    (number as u128 * ((1 << 61) - 1) % n as u128) as u64
}

/// The hash from which the `n`th key of a kind is made, under this seed.
pub(crate) fn numbered(kind: u8, seed: u64, n: u64) -> [u8; 32] {
    let mut input = [kind; 17];
    input[1..9].copy_from_slice(&seed.to_be_bytes());
    input[9..].copy_from_slice(&n.to_be_bytes());
    keccak256(input).0
}

/// 32 bytes without a leading zero, as slot values are stored.
pub(crate) fn slot_value(random: &mut SplitMix64) -> StateValue {
    let mut value = B256::ZERO;
    for word in value.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_be_bytes());
    }
    value[0] |= 1;
    Bytes::copy_from_slice(value.as_slice())
}

/// The hash for `what` number `n` under this seed: private keys, addresses, beacon roots.
pub(crate) fn derive(seed: u64, what: &str, n: u64) -> B256 {
    keccak256(format!("retrie chain {seed} {what} {n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_numbers_are_as_frequent_as_they_should_be() {
        let (items, theta) = (1000, 0.9);
        let (zipf, mut random) = (ZipfDistribution::new(items, theta), SplitMix64::new(5));
        let mut seen = vec![0u32; items as usize];
        (0..200_000).for_each(|_| seen[zipf.next(&mut random) as usize] += 1);
        let near = |n: u32, m: f64| (f64::from(n) - m).abs() < 0.1 * m;
        let likely = |n: f64| 200_000.0 * n.powf(-theta) / zipf.zeta;
        assert!(near(seen[0], likely(1.0)) && near(seen[1], likely(2.0)), "{:?}", &seen[..9]);
        // The method is exact for the first two, and close for sums of the rest.
        let (sum, expected) = (seen[100..].iter().sum(), (101..=1000).map(f64::from).map(likely));
        assert!(near(sum, expected.sum()), "{sum}");
        for few in [1, 2, 3] {
            let zipf = ZipfDistribution::new(few, theta);
            assert!((0..1000).all(|_| zipf.next(&mut random) < few), "{few}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_paper_and_stay_below_their_bound() {
        // The reference implementation's first outputs for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        let mut seen = [0; 3];
        for _ in 0..3000 {
            seen[random.below(3) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
    }
}
