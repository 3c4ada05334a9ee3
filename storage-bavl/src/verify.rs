//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why a proof that is accepted tells the truth
//!
//! The root is that of an honestly computed state; who proves is not trusted, and may have written
//! keys and values into that state. Each step takes a collision of BLAKE2b-256 to break.
//!
//! 1. *One tree.* Entries, pairs within a chunk, chunks, inner nodes and the root are hashed with
//!    five different first bytes, and each input has one way to be read. So from the root down
//!    everything that is shown is the tree's own, in its place: an inner node of the tree does not
//!    pass for one of a chunk, a chunk not for an inner node, and no value for any of them. A chunk's
//!    hash binds how many entries it has, which settles the shape of the hash tree within.
//! 2. *In key order.* Read from left to right, a proof meets every entry of the tree, either itself
//!    or in a hash that stands for one or more (no honest tree has an empty subtree). Entries of an
//!    honest tree ascend.
//! 3. *Presence and absence.* A key that is shown has its value. A key that is not, but lies between
//!    two entries with no hash in between (or before the first, or behind the last one), would have
//!    to be in between: it is absent. It does not matter whether the two are in one chunk.
//!
//! What a proof shows follows from the keys, and so does each of its bytes: the entries of the keys,
//! or those around them, nothing else, and hashes for all that has none of these. So one root and one
//! set of keys have one proof.

use crate::{
    ChunkEntries,
    read::{Read, malformed},
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value};

const MISSING: ProofError = ProofError::Missing { what: "a key: its entry, or those around it" };

/// The values of `keys` (in any order; a key may come twice) under `root`, as `proof` shows them.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical ([`Malformed`](ProofError::Malformed)), lacks
/// a part ([`Missing`](ProofError::Missing)) or has one too many ([`Unused`](ProofError::Unused)),
/// or leads to another root ([`RootMismatch`](ProofError::RootMismatch)).
pub fn verify(
    root: B256,
    keys: &[StateKey],
    proof: &[u8],
) -> Result<Vec<Option<Value>>, ProofError> {
    let read = Read::new(proof)?;
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
    // Of the empty state there is a chunk to show, but no entry.
    if used.contains(&false) || (keys.is_empty() && !read.chunks.is_empty()) {
        return Err(ProofError::Unused);
    }
    Ok(values)
}

/// A whole chunk, as a proof shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkShown {
    /// How many entries chunks hold at most, in this tree.
    pub most: ChunkEntries,
    /// All its entries, in key order; none in the empty state, which has one such chunk.
    pub entries: Vec<(StateKey, Value)>,
    /// The way up, from the chunk to the top. Ways of all chunks make the whole tree.
    pub way: Vec<Step>,
}

/// A step of a way from a chunk to the top: an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// On which side of it the chunk is.
    pub side: Side,
    /// Hash of what is on the other one.
    pub other: B256,
}

/// A side of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Smaller keys.
    Left,
    /// Larger keys.
    Right,
}

impl ChunkShown {
    /// Whether no entry of the tree comes before its own.
    pub fn is_first(&self) -> bool {
        self.way.iter().all(|step| step.side == Side::Left)
    }

    /// Whether no entry of the tree comes after its own.
    pub fn is_last(&self) -> bool {
        self.way.iter().all(|step| step.side == Side::Right)
    }
}

/// The one chunk that `proof` shows whole under `root`.
///
/// # Errors
/// As [`verify`]; [`ProofError::Missing`] if it does not show one, or not all of its entries.
pub fn verify_chunk(root: B256, proof: &[u8]) -> Result<ChunkShown, ProofError> {
    let read = Read::new(proof)?;
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
    Ok(ChunkShown { most: read.most, entries, way: read.way })
}

/// Number of hashes in a proof: its size as papers count it.
///
/// # Errors
/// [`ProofError::Malformed`] if it is none.
pub fn hashes_in(proof: &[u8]) -> Result<usize, ProofError> {
    Read::new(proof).map(|read| read.hashes)
}
