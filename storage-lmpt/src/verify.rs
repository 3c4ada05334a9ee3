//! Checking proofs against a root: pure, without storage or `std`. `docs/formats/lmpt.md` describes
//! the bytes.
//!
//! The verifier searches the layers itself, newest first. A leaf decides: it is a value, or a
//! tombstone, which says that the key is absent. The verifier goes on to the next layer only if the
//! nodes of a layer *prove* that it has no leaf of the key. So a proof cannot hide a newer leaf.

use crate::{hash, leaf};
use alloc::{collections::BTreeMap, vec::Vec};
use alloy_primitives::{B256, keccak256};
use retrie_state::{BackendKey, ProofError, StateValue, wire::WireReader};
use retrie_storage_mpt::{TrieHash, verify::walk};

const MISSING: ProofError = ProofError::Missing { what: "a node on the way" };

/// The values of `keys` under `root`, as `proof` shows them.
///
/// # Errors
/// A [`ProofError`] for anything but the one valid proof of `keys` under `root`.
pub fn verify(
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let mut rest = WireReader::new(proof);
    let roots = [rest.hash()?, rest.hash()?, rest.hash()?];
    let [delta, intermediate, snapshot] = roots;
    let mut small = [TrieProof::read(delta, &mut rest)?, TrieProof::read(intermediate, &mut rest)?];
    let mut snapshot = TrieProof::read(snapshot, &mut rest)?;
    rest.finish()?;
    if hash::root(&roots) != root {
        return Err(ProofError::RootMismatch);
    }
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let path = keccak256(&*key.encode());
        let mut shown = None;
        for part in &mut small {
            shown = part.leaf(&path)?;
            if shown.is_some() {
                break;
            }
        }
        values.push(match shown {
            Some(leaf) => value_of(&leaf)?,
            None => snapshot.leaf(&path)?.map(|leaf| snapshot_value(&leaf)).transpose()?,
        });
    }
    if small.iter().chain([&snapshot]).all(TrieProof::is_used_up) {
        Ok(values)
    } else {
        Err(ProofError::Unused)
    }
}

/// The value in a leaf of a small layer; `None` for a tombstone.
fn value_of(bytes: &[u8]) -> Result<Option<StateValue>, ProofError> {
    let shown = leaf::decode(bytes).ok_or(ProofError::Malformed { what: "leaf" })?;
    Ok(shown.map(StateValue::copy_from_slice))
}

fn snapshot_value(bytes: &[u8]) -> Result<StateValue, ProofError> {
    value_of(bytes)?.ok_or(ProofError::Malformed { what: "tombstone in the snapshot" })
}

/// The part of a proof for one trie.
struct TrieProof<'a> {
    root: B256,
    nodes: alloc::vec::IntoIter<&'a [u8]>,
    seen: BTreeMap<B256, &'a [u8]>,
}

impl<'a> TrieProof<'a> {
    fn read(root: B256, rest: &mut WireReader<'a>) -> Result<Self, ProofError> {
        let count = rest.count(1)?;
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let len = rest.count(1)?;
            nodes.push(rest.take(len)?);
        }
        Ok(Self { root, nodes: nodes.into_iter(), seen: BTreeMap::new() })
    }

    /// The content of the leaf of a key; `None` if the nodes prove that there is no leaf.
    fn leaf(&mut self, path: &B256) -> Result<Option<Vec<u8>>, ProofError> {
        let Self { root, nodes, seen } = self;
        walk(TrieHash::Keccak256, *root, path, &mut |hash| {
            if let Some(node) = seen.get(hash) {
                return Ok(*node);
            }
            let node = nodes.next().ok_or(MISSING)?;
            if keccak256(node) != *hash {
                return Err(ProofError::RootMismatch);
            }
            seen.insert(*hash, node);
            Ok(node)
        })
    }

    fn is_used_up(&self) -> bool {
        self.nodes.len() == 0
    }
}
