//! Positions of keys in blocked Bloom filters (`docs/formats/cole.md`, Filters).
//! [`filter_key`](crate::hash::filter_key) gives the numbers `a` and `b` of a key.

/// The block of a filter of `blocks` blocks that holds the bits of a key.
pub(crate) const fn block_of(a: u64, blocks: u64) -> u64 {
    ((a as u128 * blocks as u128) >> 64) as u64
}

/// The bits of a key in its block: byte and mask.
pub(crate) fn bits(b: u64) -> impl Iterator<Item = (usize, u8)> {
    (0..6).map(move |i| {
        let bit = (b >> (9 * i)) as usize % 512;
        (bit / 8, 1 << (bit % 8))
    })
}

/// Whether the block may contain a key. False positives are possible.
pub(crate) fn may_hold(block: &[u8; 64], b: u64) -> bool {
    bits(b).all(|(byte, mask)| block[byte] & mask != 0)
}
