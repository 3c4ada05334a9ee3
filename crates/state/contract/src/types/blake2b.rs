//! BLAKE2b-256, for backends that are free to choose a hash function: of parts, and of many inputs
//! at once.

use alloy_primitives::B256;
use blake2b_simd::{Params, State};

/// Hashes bytes that come in parts.
#[derive(Clone, Debug)]
pub struct Blake2bHasher(State);

impl Default for Blake2bHasher {
    fn default() -> Self {
        Self(params().to_state())
    }
}

impl Blake2bHasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> B256 {
        B256::from_slice(self.0.finalize().as_bytes())
    }
}

fn params() -> Params {
    let mut params = Params::new();
    params.hash_length(32);
    params
}

/// The digest of the concatenated parts.
pub fn hash(parts: &[&[u8]]) -> B256 {
    let mut hasher = Blake2bHasher::default();
    for part in parts {
        hasher.update(part);
    }
    hasher.finish()
}

/// Appends the digests of `inputs`. It hashes four at a time where the CPU can, which is more than
/// twice as fast as one by one.
#[cfg(feature = "std")]
pub fn hash_many<'a>(inputs: impl ExactSizeIterator<Item = &'a [u8]>, digests: &mut Vec<B256>) {
    use blake2b_simd::many::{HashManyJob, hash_many};
    let params = params();
    // `HashManyJob` is large: only a few fit into the L1 cache.
    const AT_ONCE: usize = 16;
    let mut jobs = Vec::with_capacity(inputs.len().min(AT_ONCE));
    digests.reserve(inputs.len());
    let mut inputs = inputs.peekable();
    while inputs.peek().is_some() {
        jobs.clear();
        jobs.extend(inputs.by_ref().take(AT_ONCE).map(|input| HashManyJob::new(&params, input)));
        hash_many(&mut jobs);
        digests.extend(jobs.iter().map(|job| B256::from_slice(job.to_hash().as_bytes())));
    }
}

/// Collects inputs, to hash them [together](hash_many).
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub struct Blake2bBatch {
    inputs: Vec<u8>,
    ends: Vec<usize>,
}

#[cfg(feature = "std")]
impl Blake2bBatch {
    /// An empty batch with room for `count` inputs of about `bytes` bytes each.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { inputs: Vec::with_capacity(count * bytes), ends: Vec::with_capacity(count) }
    }

    /// Adds an input: `write` appends its bytes.
    #[inline]
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.inputs);
        self.ends.push(self.inputs.len());
    }

    /// Number of inputs.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends the digests in the order in which inputs were added, and empties the batch.
    pub fn finish_into(&mut self, digests: &mut Vec<B256>) {
        let mut start = 0;
        let inputs = self.ends.iter().map(|end| {
            let input = &self.inputs[start..*end];
            start = *end;
            input
        });
        hash_many(inputs, digests);
        self.inputs.clear();
        self.ends.clear();
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use alloy_primitives::b256;

    #[test]
    fn digests_are_those_of_the_standard_alone_and_together() {
        // RFC 7693 with 32 bytes of output, the test vector of the reference code.
        let abc = b256!("bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
        assert_eq!((hash(&[b"abc"]), hash(&[b"a", b"", b"bc"])), (abc, abc));
        for count in [0, 1, 2, 3, 4, 5, 15, 16, 17, 100] {
            let input = |n: usize| vec![n as u8; n * 7];
            let mut batch = Blake2bBatch::with_capacity(count, 64);
            (0..count).for_each(|n| batch.push(|out| out.extend(input(n))));
            assert_eq!((batch.len(), batch.is_empty()), (count, count == 0));
            let mut digests = vec![abc];
            batch.finish_into(&mut digests);
            let expected = (0..count).map(|n| hash(&[&input(n)]));
            assert!(digests.iter().copied().eq([abc].into_iter().chain(expected)));
            assert!(batch.is_empty());
        }
    }
}
