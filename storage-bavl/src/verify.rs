//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Soundness
//!
//! The root belongs to an honestly computed state. The prover is not trusted, and may have written
//! keys and values into that state. Breaking any step takes a collision of BLAKE2b-256.
//!
//! 1. *One tree.* Entries, pairs within a chunk, chunks, inner nodes and the root are hashed with
//!    five different first bytes, and each input has exactly one meaning. So, from the root down,
//!    everything that a proof shows is part of the tree, at its position: an inner node of the tree
//!    cannot pass for a node within a chunk, a chunk cannot pass for an inner node, and a value
//!    cannot pass for any of them. A chunk's hash binds its number of entries, which determines the
//!    shape of the hash tree within.
//! 2. *In key order.* Read from left to right, a proof covers every entry of the tree, either shown
//!    or hidden below a hash that stands for at least one entry (an honest tree has no empty
//!    subtree). The entries of an honest tree are sorted.
//! 3. *Presence and absence.* A shown key has the shown value. If a key is not shown, but lies
//!    between two shown entries without a hash between them (or before the first, or after the last
//!    entry), it would have to be between them: it is absent. The two entries may be in different
//!    chunks.
//!
//! The content of a proof, and each of its bytes, follows from the keys: the entries of the keys,
//! or the entries around them, nothing else, and hashes for all subtrees without these. So one root
//! and one set of keys have exactly one proof.

use crate::{
    ChunkEntries,
    proof::{ParsedProof, malformed},
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{BackendKey, ProofError, StateValue};

const MISSING: ProofError =
    ProofError::Missing { what: "a key: its entry, or the entries around it" };

/// The values of `keys` (in any order; a key may come twice) under `root`, as `proof` shows them.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical ([`Malformed`](ProofError::Malformed)), lacks
/// a part ([`Missing`](ProofError::Missing)) or has one too many ([`Unused`](ProofError::Unused)),
/// or leads to another root ([`RootMismatch`](ProofError::RootMismatch)).
pub fn verify(
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let read = ParsedProof::new(proof)?;
    if read.root != root {
        return Err(ProofError::RootMismatch);
    }
    let shown = &read.shown;
    let mut used = vec![false; shown.len()];
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        values.push(match shown.binary_search_by(|entry| entry.key.cmp(key)) {
            Ok(at) => {
                used[at] = true;
                Some(shown[at].value.clone())
            }
            Err(at) => {
                let next = shown.get(at);
                if next.map_or(read.ends_hidden, |next| next.after_hidden) {
                    return Err(MISSING);
                }
                let around = [at.checked_sub(1), next.map(|_| at)];
                around.into_iter().flatten().for_each(|at| used[at] = true);
                None
            }
        });
    }
    // A proof of the empty state shows a chunk, but no entry.
    if used.contains(&false) || (keys.is_empty() && !read.chunks.is_empty()) {
        return Err(ProofError::Unused);
    }
    Ok(values)
}

/// A whole chunk, proven by [`verify_chunk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedChunk {
    /// Upper bound of entries per chunk in this tree.
    pub most: ChunkEntries,
    /// All its entries, in key order; none for the only chunk of the empty state.
    pub entries: Vec<(BackendKey, StateValue)>,
    /// The path from the chunk up to the top. The paths of all chunks determine the whole tree.
    pub path: Vec<PathStep>,
}

/// An inner node on the path from a chunk to the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The side on which the chunk is.
    pub side: ChildSide,
    /// Hash of the child on the other side.
    pub other: B256,
}

/// A side of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildSide {
    /// Smaller keys.
    Left,
    /// Larger keys.
    Right,
}

impl VerifiedChunk {
    /// Whether it is the first chunk of the tree.
    pub fn is_first(&self) -> bool {
        self.path.iter().all(|step| step.side == ChildSide::Left)
    }

    /// Whether it is the last chunk of the tree.
    pub fn is_last(&self) -> bool {
        self.path.iter().all(|step| step.side == ChildSide::Right)
    }
}

/// The one chunk that `proof` shows whole under `root`.
///
/// # Errors
/// As [`verify`]; [`ProofError::Missing`] if the proof does not show a chunk, or not all of its
/// entries.
pub fn verify_chunk(root: B256, proof: &[u8]) -> Result<VerifiedChunk, ProofError> {
    let read = ParsedProof::new(proof)?;
    if read.root != root {
        return Err(ProofError::RootMismatch);
    }
    match &read.chunks[..] {
        [chunk] if chunk.shown == chunk.count as usize => {}
        [_] => return Err(ProofError::Missing { what: "an entry of the chunk" }),
        [] => return Err(ProofError::Missing { what: "the chunk" }),
        _ => return Err(malformed("more than one chunk")),
    }
    let entries = read.shown.into_iter().map(|entry| (entry.key, entry.value)).collect();
    Ok(VerifiedChunk { most: read.most, entries, path: read.path })
}

/// Number of hashes in a proof: the size of a proof as papers count it.
///
/// # Errors
/// [`ProofError::Malformed`] if `proof` is not a valid proof.
pub fn hashes_in(proof: &[u8]) -> Result<usize, ProofError> {
    ParsedProof::new(proof).map(|read| read.hashes)
}
