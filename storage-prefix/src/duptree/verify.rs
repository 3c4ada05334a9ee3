//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why a proof that is accepted tells the truth
//!
//! The root is that of an honestly computed state; who proves is not trusted, and may have written
//! keys and values into that state. Each step takes a collision of BLAKE2b-256 to break.
//!
//! 1. *One tree.* The root is a hash of height and top, so both are the tree's. A leaf that is
//!    shown at a number is hashed up along the bits of that number for as many levels as the tree
//!    has: it is the node of the tree at that place of level 0, or two different inputs have one
//!    hash on the way. Leaves, inner nodes, the empty leaf and the root start with different bytes:
//!    so no inner node passes for a leaf, no leaf for an inner node, and nothing shown for an empty
//!    place.
//! 2. *One leaf for every key.* In an honest tree the keys of all leaves differ, leaf 0 begins
//!    before all keys, and each leaf names the next key that there is, the last one none. So the
//!    intervals from a leaf's key (with it) up to the next (without) cover all keys, and no two of
//!    them meet.
//! 3. *Presence and absence.* A key that is a leaf's own has the value of that leaf, or none if it
//!    was deleted. A key strictly between a leaf's own and the next one has no leaf, and thus no
//!    value. By 2 there is exactly one leaf that can say either: absence cannot be shown of a key
//!    that is there, nor an old value by another leaf.
//!
//! Which leaves a list of keys needs, and which hashes, follows from tree and keys; their order and
//! each of their bytes too. So one root and one list of keys have one proof.

use super::{
    leaf::{Place, malformed},
    proof::Read,
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value};

const MISSING: ProofError = ProofError::Missing { what: "a key: the leaf that speaks for it" };

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
    if read.root()? != root {
        return Err(ProofError::RootMismatch);
    }
    let leaves = &read.proof.leaves;
    let mut by_key: Vec<usize> = (0..leaves.len()).collect();
    by_key.sort_unstable_by_key(|at| leaves[*at].1.key);
    if by_key.windows(2).any(|pair| leaves[pair[0]].1.key == leaves[pair[1]].1.key) {
        return Err(malformed("two leaves of one key"));
    }
    let mut used = vec![false; leaves.len()];
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let after = by_key.partition_point(|at| leaves[*at].1.key.as_ref() <= Some(key));
        let at = after.checked_sub(1).and_then(|last| by_key.get(last)).copied().ok_or(MISSING)?;
        let leaf = &leaves[at].1;
        values.push(match leaf.place(key) {
            Place::Own => leaf.value.clone(),
            Place::Gap => None,
            Place::Elsewhere => return Err(MISSING),
        });
        used[at] = true;
    }
    if used.contains(&false) {
        return Err(ProofError::Unused);
    }
    Ok(values)
}
