//! The operations of one commit.

use retrie_state::{StateKey, StateValue};

/// One operation on a key. Each operation first reads the key, in the state before the block,
/// because a state store needs the value that it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOp {
    /// Only reads the key.
    Read(StateKey),
    /// Reads the key, then sets it to a value.
    Write(StateKey, StateValue),
    /// Reads the key, then removes it.
    Delete(StateKey),
}

impl KeyOp {
    /// The key.
    pub const fn key(&self) -> &StateKey {
        match self {
            Self::Read(key) | Self::Write(key, _) | Self::Delete(key) => key,
        }
    }

    /// The new value of the key, if the operation changes it; `Some(None)` removes the key.
    pub fn next(&self) -> Option<Option<&StateValue>> {
        match self {
            Self::Read(_) => None,
            Self::Write(_, value) => Some(Some(value)),
            Self::Delete(_) => Some(None),
        }
    }
}

/// The operations of one commit. If a key is written several times, the last write counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitBlock {
    /// The operations in order.
    pub ops: Vec<KeyOp>,
    /// The expected digest of the values read, from the workload's model of the state before the
    /// block.
    pub expected: ReadDigest,
}

impl CommitBlock {
    /// Number of keys read: one per operation.
    pub const fn reads(&self) -> u64 {
        self.ops.len() as u64
    }

    /// Number of keys written or removed.
    pub fn writes(&self) -> u64 {
        self.ops.iter().filter(|op| op.next().is_some()).count() as u64
    }
}

/// A digest of the values that a block reads, in order. It is compared with
/// [the expected one](CommitBlock::expected).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDigest {
    /// Number of keys that had a value.
    pub present: u64,
    /// Computed from all values. If exactly one value differs in any byte or in its length, the
    /// digest differs: each step is a bijection of the previous digest.
    pub digest: u64,
}

impl ReadDigest {
    /// Adds one read value.
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
        let mut reads = ReadDigest::default();
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
        // The zeros that fill the last word are not bytes of the value.
        assert_ne!(digest(&[Some(&[1])]), digest(&[Some(&[1, 0])]));
    }
}
