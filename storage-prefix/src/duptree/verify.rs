//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Soundness
//!
//! The root belongs to an honestly computed state. The prover is not trusted, and may have written
//! keys and values into that state. Breaking any step takes a collision of BLAKE2b-256.
//!
//! 1. *One tree.* The root is a hash of height and top, so both belong to the tree. A leaf that is
//!    shown at a number is hashed up along the bits of that number, for as many levels as the tree
//!    has. So it is the node of the tree at this number of level 0, or two different inputs on the
//!    path have the same hash. Leaves, inner nodes, the empty leaf and the root start with
//!    different bytes: so no inner node passes for a leaf, no leaf for an inner node, and nothing
//!    shown for an empty position.
//! 2. *One leaf for every key.* In an honest tree the keys of all leaves differ, leaf 0 begins
//!    before all keys, and each leaf names the next existing key, the last leaf none. So the
//!    intervals from a leaf's key (included) to the next key (excluded) cover all keys and are
//!    disjoint.
//! 3. *Presence and absence.* A leaf's own key has the value of that leaf, or none if it was
//!    deleted. A key strictly between a leaf's key and the next key has no leaf, and thus no value.
//!    By 2 exactly one leaf covers each key: a proof cannot show that an existing key is absent,
//!    nor an old value by another leaf.
//!
//! The leaves and hashes that a list of keys needs, their order and all their bytes follow from
//! tree and keys. So one root and one list of keys have exactly one proof.

use super::{
    leaf::{KeyPosition, malformed},
    proof::ParsedProof,
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{BackendKey, ProofError, StateValue};

const MISSING: ProofError = ProofError::Missing { what: "a key: the leaf that covers it" };

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
            KeyPosition::Own => leaf.value.clone(),
            KeyPosition::Gap => None,
            KeyPosition::Elsewhere => return Err(MISSING),
        });
        used[at] = true;
    }
    if used.contains(&false) {
        return Err(ProofError::Unused);
    }
    Ok(values)
}
