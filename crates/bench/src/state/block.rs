//! What one commit does.

use retrie_state::{StateKey, Value};

/// One operation on a key. Each reads the key first, in the state before the block: a state store
/// has to know what it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Only reads it.
    Read(StateKey),
    /// Reads it, then sets it to a value.
    Write(StateKey, Value),
    /// Reads it, then removes it.
    Delete(StateKey),
}

impl Op {
    /// The key.
    pub const fn key(&self) -> &StateKey {
        match self {
            Self::Read(key) | Self::Write(key, _) | Self::Delete(key) => key,
        }
    }

    /// What the key is to hold afterwards, if the operation changes it: `Some(None)` is nothing.
    pub fn next(&self) -> Option<Option<&Value>> {
        match self {
            Self::Read(_) => None,
            Self::Write(_, value) => Some(Some(value)),
            Self::Delete(_) => Some(None),
        }
    }
}

/// The operations of one commit. Of several writes to one key the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// In the order they are done.
    pub ops: Vec<Op>,
    /// What reading their keys gives, in the state before the block, by the workload's own model of
    /// the state.
    pub expected: Reads,
}

impl Block {
    /// Keys read: one an operation.
    pub const fn reads(&self) -> u64 {
        self.ops.len() as u64
    }

    /// Keys written or deleted.
    pub fn writes(&self) -> u64 {
        self.ops.iter().filter(|op| op.next().is_some()).count() as u64
    }
}

/// What a block's reads gave: whole values, in order. What a contender reads is held against what the
/// workload [expects](Block::expected).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Keys that had a value.
    pub present: u64,
    /// Mixed from all values. One value that is other in any byte, or of another length, always gives
    /// another digest: each step is a bijection of the digest before it.
    pub digest: u64,
}

impl Reads {
    /// Takes note of one read.
    #[inline]
    pub fn note(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else { return self.mix(0) };
        self.present += 1;
        self.mix(value.len() as u64 + 1);
        let (words, rest) = value.as_chunks();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(last));
        }
    }

    #[inline]
    const fn mix(&mut self, word: u64) {
        self.digest = (self.digest.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn digest(values: &[Option<&[u8]>]) -> u64 {
        let mut reads = Reads::default();
        values.iter().for_each(|value| reads.note(*value));
        reads.digest
    }

    /// Once, eight bytes of a value were compared, and values shorter than that were all the same.
    #[test]
    fn every_byte_and_the_length_of_a_value_count() {
        let value = [7; 33];
        let mut seen = BTreeSet::from([digest(&[None]), digest(&[Some(&value)])]);
        for at in 0..value.len() {
            let mut other = value;
            other[at] ^= 1;
            assert!(seen.insert(digest(&[Some(&other)])), "byte {at} is not compared");
            assert!(seen.insert(digest(&[Some(&value[..at])])), "{at} bytes are like others");
        }
        let [a, b] = [Some(&value[..1]), Some(&value[..2])];
        assert_ne!(digest(&[a, b]), digest(&[b, a]));
        assert_ne!(digest(&[a, None]), digest(&[a]));
        // Zeros that fill the last word are no bytes of the value.
        assert_ne!(digest(&[Some(&[1])]), digest(&[Some(&[1, 0])]));
    }
}
