//! The elements of the trees: distinct 4-byte keys in random order, and values of one size.

use crate::random::SplitMix64;

/// Length of the random bytes from which values are cut.
const POOL: usize = 1 << 20;

/// Generates elements by number.
#[derive(Clone, Debug)]
pub(crate) struct ElementGenerator {
    seed: u32,
    size: usize,
    pool: Vec<u8>,
}

impl ElementGenerator {
    /// Elements with values of `size` bytes.
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let mut random = SplitMix64::new(seed);
        let seed = random.next() as u32;
        let pool = (0..(POOL + size).div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
        Self { seed, size, pool: pool.collect() }
    }

    /// The key of element `n`. Each step is a bijection of 32-bit numbers.
    pub(crate) const fn key(&self, n: u64) -> u32 {
        let mut key = n as u32 ^ self.seed;
        key = (key ^ (key >> 16)).wrapping_mul(0x85eb_ca6b);
        key = (key ^ (key >> 13)).wrapping_mul(0xc2b2_ae35);
        key ^ (key >> 16)
    }

    /// The value of element `n`.
    pub(crate) fn value(&self, n: u64) -> &[u8] {
        let at = (n as usize).wrapping_mul(67) % POOL;
        &self.pool[at..at + self.size]
    }
}
