//! Hashes and lookups.

use super::{
    super::{LimitError, UnitCost},
    rounds::RoundPlan,
};
use crate::random::numbered;
use alloy_primitives::{Address, B256, keccak256, map::HashMap};
use retrie_state::StateKey;
use std::hint::black_box;

/// Bytes of a full branch of a trie.
const BRANCH: usize = 532;
/// Bytes of a leaf with the value of a slot.
const LEAF: usize = 70;
/// Hashes between two looks at the clock.
const HASHES: u64 = 1_000;
/// Keys in the map: few, so that no state is looked up faster than this.
const KEYS: u64 = 1 << 16;

/// What hashes and lookups cost.
pub(super) struct MemoryCosts {
    pub(super) branch_hash: UnitCost,
    pub(super) leaf_hash: UnitCost,
    pub(super) lookup: UnitCost,
}

pub(super) fn memory_costs(rounds: &RoundPlan<'_>) -> Result<MemoryCosts, LimitError> {
    Ok(MemoryCosts {
        branch_hash: hash_cost::<BRANCH>(rounds)?,
        leaf_hash: hash_cost::<LEAF>(rounds)?,
        lookup: lookup_cost(rounds)?,
    })
}

fn hash_cost<const BYTES: usize>(rounds: &RoundPlan<'_>) -> Result<UnitCost, LimitError> {
    rounds.unit_cost(&|thread| {
        let mut node = [thread as u8; BYTES];
        for _ in 0..HASHES {
            // Each hash goes into the next node, as those of children do.
            let hash = keccak256(black_box(&node));
            node[..32].copy_from_slice(hash.as_slice());
        }
        black_box(node);
        Ok(HASHES)
    })
}

fn lookup_cost(rounds: &RoundPlan<'_>) -> Result<UnitCost, LimitError> {
    let key = |n| StateKey::Slot(Address::repeat_byte(0x57), B256::from(numbered(b'k', 1, n)));
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let map: HashMap<StateKey, B256> = keys.iter().map(|key| (*key, B256::ZERO)).collect();
    rounds.unit_cost(&|_| {
        let found = keys.iter().filter(|key| black_box(map.get(*key)).is_some());
        black_box(found.count());
        Ok(KEYS)
    })
}
