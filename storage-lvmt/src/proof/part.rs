//! Parts of proofs from other nodes: which holes they have, which shard can fill a hole, and
//! whether a part is valid by itself.

use super::{asked_keys::AskedKeys, wire::LvmtProof};
use crate::{
    merkle::{self, GROUP, MerkleGroup},
    params::VerifierParams,
    record::{RANGE, corrupt, range_key},
    shard::ProofShard,
    verify,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{BackendKey, NodeRead, ProofError, ProofHole, StateError};
use std::collections::BTreeMap;

/// The quotients of an entry of the root AMT; the hole's number is the entry.
const ROOT_ENTRY: &str = "entry of the root AMT";
/// The quotients of an entry of a sub-AMT, numbered in the order of the proof. Every node with
/// tables for proofs can make them.
const DEEPER_ENTRY: &str = "entry of a sub-AMT";
/// The Merkle tree of a block, by number.
const BLOCK: &str = "Merkle tree of block";

/// The holes that are in all of `parts`.
pub(crate) fn holes(
    height: u8,
    keys: &[BackendKey],
    parts: &[Bytes],
) -> Result<Vec<ProofHole>, ProofError> {
    let asked = AskedKeys::new(keys, height);
    // Bounds the entries of a part: a key has at most one entry at each level.
    let most = asked.len() * (B256::len_bytes() * 8 / usize::from(height));
    let mut parts = parts.iter().map(|part| decode(part, most, height));
    let first =
        parts.next().ok_or(ProofError::Missing { what: "all keys: there are no parts" })??;
    let proof = parts.try_fold(first, |whole, part| whole.merge(part?))?;
    let missing = proof.missing();
    let numbers: Vec<_> = (0..asked.len()).collect();
    let roots: Vec<u64> = asked
        .by_entry(&numbers, 0)
        .filter_map(|run| asked.path(run[0], 0)?.first().copied().map(u64::from))
        .collect();
    let entry = |at: usize| match roots.get(at) {
        Some(number) => ProofHole { what: ROOT_ENTRY, number: *number },
        None => ProofHole { what: DEEPER_ENTRY, number: at as u64 },
    };
    let block = |number| ProofHole { what: BLOCK, number };
    let entries = missing.entries.into_iter().map(entry);
    Ok(entries.chain(missing.blocks.into_iter().map(block)).collect())
}

/// Whether a node with the proof shard `shard` can fill the hole.
pub(crate) fn fills(height: u8, shard: ProofShard, hole: &ProofHole) -> bool {
    match hole.what {
        ROOT_ENTRY => {
            let entry = u32::try_from(hole.number).ok().filter(|entry| entry >> height == 0);
            let has = |entry| shard.of_entry(height, entry) == shard;
            entry.is_some_and(has)
        }
        DEEPER_ENTRY => shard != ProofShard::None,
        BLOCK => shard.keeps_tree(hole.number),
        _ => false,
    }
}

/// Checks `part` with the state that `view` shows. `own` is this node's part of the same proof.
pub(crate) fn check(
    params: &VerifierParams,
    view: &dyn NodeRead,
    keys: &[BackendKey],
    own: &Bytes,
    part: &Bytes,
) -> Result<Result<(), ProofError>, StateError> {
    // `own` may be short with many entries, because most of it may be holes. This node made it, so
    // it is trusted.
    let own = match LvmtProof::decode(own, usize::MAX) {
        Ok(own) => own,
        Err(error) => return Ok(Err(error)),
    };
    let bytes = part;
    let part = match decode(part, own.entries.len(), params.height()) {
        Ok(part) => part,
        Err(error) => return Ok(Err(error)),
    };
    let mut leaves = BTreeMap::new();
    for (block, tree) in own.positions().into_keys().zip(&own.trees) {
        if tree.siblings.is_none() {
            leaves.insert(block, leaf(view, own.first, own.blocks, block)?);
        }
    }
    let leaf_of = |block| leaves.get(&block).copied();
    Ok(verify::check_part(params, keys, &own, bytes, &part, &leaf_of))
}

/// Decodes a part with at most `most` entries, of AMTs of this height.
fn decode(part: &[u8], most: usize, height: u8) -> Result<LvmtProof, ProofError> {
    let part = LvmtProof::decode(part, most.saturating_mul(usize::from(height) * 32))?;
    if part.height == height { Ok(part) } else { Err(ProofError::WrongKind { what: "height" }) }
}

/// The leaf of a block in the range. It is kept as long as a tuple of the block is live.
fn leaf(view: &dyn NodeRead, first: u64, blocks: u64, block: u64) -> Result<B256, StateError> {
    let missing = || corrupt(RANGE, format!("the leaf of block {block} is missing"));
    let at = block.checked_sub(first).ok_or_else(missing)?;
    let number = at / GROUP as u64;
    let row = view.get(RANGE, &range_key(0, number))?.ok_or_else(missing)?;
    let group = MerkleGroup::decode(&row, merkle::group_size(blocks, 0, number));
    group.and_then(|group| group.leaf((at % GROUP as u64) as u8)).ok_or_else(missing)
}
