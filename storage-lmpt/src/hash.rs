//! What the root is made of.

use alloy_primitives::{B256, Keccak256};

/// Separates roots from whatever else is hashed with keccak-256.
const ROOT: &[u8] = b"retrie lmpt root\x01";

/// The root of a state whose delta, intermediate and snapshot trie have these roots
/// (`docs/formats/lmpt.md`, Root).
pub fn root(tries: &[B256; 3]) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(ROOT);
    tries.iter().for_each(|trie| hasher.update(trie));
    hasher.finalize()
}

/// Digests of what merges depend on.
#[cfg(feature = "std")]
pub(crate) mod lineage {
    use alloy_primitives::{B256, Keccak256};

    fn digest(tag: &[u8], parts: &[&[u8]]) -> B256 {
        let mut hasher = Keccak256::new();
        hasher.update(tag);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize()
    }

    /// The lineage of the snapshot that the first block made.
    pub(crate) fn first(snapshot: &B256) -> B256 {
        digest(b"retrie lmpt first\x01", &[&snapshot[..]])
    }

    /// The lineage of the snapshot that the trie of `generation` was merged into. That of the one
    /// before tells it apart from another with the same keys: the stamps of its rows are others.
    pub(crate) fn merged(before: &B256, generation: u64, trie: &B256) -> B256 {
        digest(b"retrie lmpt merged\x01", &[&before[..], &generation.to_be_bytes(), &trie[..]])
    }
}
