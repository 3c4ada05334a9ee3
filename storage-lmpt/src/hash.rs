//! The hash of the root, and the lineage.

use alloy_primitives::{B256, Keccak256};

/// Separates roots from all other inputs of keccak-256.
const ROOT: &[u8] = b"retrie lmpt root\x01";

/// The root of a state, from the roots of its delta, intermediate and snapshot trie
/// (`docs/formats/lmpt.md`, Root).
pub fn root(tries: &[B256; 3]) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(ROOT);
    tries.iter().for_each(|trie| hasher.update(trie));
    hasher.finalize()
}

/// Digests of the merges behind a snapshot.
#[cfg(feature = "std")]
pub(crate) mod lineage {
    use alloy_primitives::{B256, Keccak256};

    fn digest(tag: &[u8], parts: &[&[u8]]) -> B256 {
        let mut hasher = Keccak256::new();
        hasher.update(tag);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize()
    }

    /// The lineage of the snapshot of the first block.
    pub(crate) fn first(snapshot: &B256) -> B256 {
        digest(b"retrie lmpt first\x01", &[&snapshot[..]])
    }

    /// The lineage of the snapshot after the merge of the trie of `generation`. It includes the
    /// lineage before: two snapshots with the same keys can have rows with different stamps.
    pub(crate) fn merged(before: &B256, generation: u64, trie: &B256) -> B256 {
        digest(b"retrie lmpt merged\x01", &[&before[..], &generation.to_be_bytes(), &trie[..]])
    }
}
