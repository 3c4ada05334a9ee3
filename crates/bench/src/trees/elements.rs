//! The elements that trees are made of: keys of 4 bytes, all different, in random order, and values of
//! one size.

use crate::random::Random;

/// Bytes that values are cut from.
const POOL: usize = 1 << 20;

/// Elements, numbered.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    seed: u32,
    size: usize,
    pool: Vec<u8>,
}

impl Elements {
    /// With values of `size` bytes.
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let mut random = Random::new(seed);
        let seed = random.next() as u32;
        let pool = (0..(POOL + size).div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
        Self { seed, size, pool: pool.collect() }
    }

    /// The key of number `n`. Each step is a bijection of numbers of 32 bits.
    pub(crate) const fn key(&self, n: u64) -> u32 {
        let mut key = n as u32 ^ self.seed;
        key = (key ^ (key >> 16)).wrapping_mul(0x85eb_ca6b);
        key = (key ^ (key >> 13)).wrapping_mul(0xc2b2_ae35);
        key ^ (key >> 16)
    }

    /// Its value.
    pub(crate) fn value(&self, n: u64) -> &[u8] {
        let at = (n as usize).wrapping_mul(67) % POOL;
        &self.pool[at..at + self.size]
    }
}
