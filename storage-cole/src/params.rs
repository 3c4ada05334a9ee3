//! The parameters of a store (COLE, Table 2). They are fixed when the store is created.

use alloy_primitives::B256;

/// The parameters of a store. They are part of its identity, encoded and not hashed, so that a
/// datadir and a proof tell which parameters they were made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColeParams {
    /// Whether merges run in the background, between a start and a commit checkpoint (COLE*,
    /// section 5).
    pub async_merge: bool,
    /// Size ratio T between levels, 2 to 64.
    pub size_ratio: u8,
    /// Fanout m of the Merkle trees of runs, 2 to 64.
    pub fanout: u8,
    /// The largest error of the models of an index, in 64ths of a page, 1 to 32.
    pub epsilon: u8,
    /// Capacity B of a group of the memory level in pairs, 1 to 2^32.
    pub memory_pairs: u64,
    /// The number of blocks whose history merges keep; 0 = all.
    pub keep_history: u64,
    /// Whether runs have version trees (COLE+). Then the root does not depend on `keep_history`, which
    /// is no part of the identity and may change at each opening.
    pub version_trees: bool,
}

impl Default for ColeParams {
    /// COLE* with T and m of the paper.
    fn default() -> Self {
        Self {
            async_merge: true,
            size_ratio: 4,
            fanout: 4,
            epsilon: 32,
            memory_pairs: 1 << 18,
            keep_history: 0,
            version_trees: false,
        }
    }
}

/// A parameter outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter `{name}` of cole is {value}, it must be {range}")]
pub struct ParamsError {
    /// The name of the parameter.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The valid range.
    pub range: &'static str,
}

impl ColeParams {
    /// The same parameters, if each is in its range.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub const fn checked(self) -> Result<Self, ParamsError> {
        const fn bad<T>(
            name: &'static str,
            value: u64,
            range: &'static str,
        ) -> Result<T, ParamsError> {
            Err(ParamsError { name, value, range })
        }
        if self.size_ratio < 2 || self.size_ratio > 64 {
            return bad("size ratio", self.size_ratio as u64, "2 to 64");
        }
        if self.fanout < 2 || self.fanout > 64 {
            return bad("fanout", self.fanout as u64, "2 to 64");
        }
        if self.epsilon < 1 || self.epsilon > 32 {
            return bad("epsilon", self.epsilon as u64, "1 to 32 (64ths of a page)");
        }
        if self.memory_pairs < 1 || self.memory_pairs > 1 << 32 {
            return bad("memory pairs", self.memory_pairs, "1 to 2^32");
        }
        Ok(self)
    }

    /// The encoding in 32 bytes (`docs/formats/cole.md`, Parameters).
    pub fn digest(&self) -> B256 {
        let mut bytes = [0; 32];
        bytes[..5].copy_from_slice(&[
            1,
            self.async_merge as u8 | (self.version_trees as u8) << 1,
            self.size_ratio,
            self.fanout,
            self.epsilon,
        ]);
        bytes[8..16].copy_from_slice(&self.memory_pairs.to_be_bytes());
        let keep_history = if self.version_trees { 0 } else { self.keep_history };
        bytes[16..24].copy_from_slice(&keep_history.to_be_bytes());
        bytes.into()
    }

    /// Decodes the bytes of [`digest`](Self::digest). `None` for bytes of another version, or if a
    /// parameter is out of its range.
    pub fn from_digest(digest: &B256) -> Option<Self> {
        let word = |at: usize| digest[at..at + 8].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let params = Self {
            async_merge: digest[1] & 1 == 1,
            version_trees: digest[1] & 2 == 2,
            size_ratio: digest[2],
            fanout: digest[3],
            epsilon: digest[4],
            memory_pairs: word(8),
            keep_history: word(16),
        };
        // All other bytes must be as `digest` writes them.
        params.checked().ok().filter(|params| params.digest() == *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_read_back_and_nothing_else_does() {
        let params =
            ColeParams { keep_history: 90_000, async_merge: false, ..ColeParams::default() };
        let digest = params.digest();
        assert_eq!(ColeParams::from_digest(&digest), Some(params));
        assert_eq!(
            ColeParams::from_digest(&ColeParams::default().digest()),
            Some(ColeParams::default())
        );
        // With version trees the history that is kept is left out.
        let with_trees = ColeParams { version_trees: true, ..params };
        let whole = ColeParams { keep_history: 0, ..with_trees };
        assert_eq!(ColeParams::from_digest(&with_trees.digest()), Some(whole));
        for (at, byte) in [(1, 4), (1, 2)] {
            let mut other = digest;
            other[at] |= byte;
            assert_eq!(ColeParams::from_digest(&other), None);
        }
        for bit in 0..256 {
            let mut other = digest;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(ColeParams::from_digest(&other), Some(params));
        }
        for at in [0, 5, 6, 7, 24, 31] {
            let mut other = digest;
            other[at] ^= 2;
            assert_eq!(ColeParams::from_digest(&other), None, "byte {at}");
        }
        assert!(ColeParams { fanout: 1, ..params }.checked().is_err());
        assert!(ColeParams { epsilon: 33, ..params }.checked().is_err());
    }
}
