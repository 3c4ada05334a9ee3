//! The work that commits need, whatever store does it.

use super::{
    block::CommitBlock,
    workload::{InitialKeys, KeyDistribution, KeyLayout, SLOTS_PER_ACCOUNT, StoreWorkload},
};
use crate::{
    limit::{HashWork, NeededWork},
    race::RaceTerms,
};
use alloy_primitives::Address;
use retrie_db::SyncMode;
use retrie_state::StateKey;
use std::collections::BTreeMap;

/// Least bytes of an entry of a random state: the key of a slot and its value.
const ENTRY_BYTES: u64 = 64;

/// Least numbers of keys in the tries of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrieSizes {
    /// In the trie of accounts.
    accounts: u64,
    /// In the trie of each contract.
    slots: u64,
}

/// Counts the work that commits of a workload need.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitNeeds {
    is_durable: bool,
    /// The tries, for a store with Ethereum's root.
    tries: Option<TrieSizes>,
    /// The share of reads whose keys do not fit into memory.
    from_disk: f64,
}

impl CommitNeeds {
    /// Of a store with Ethereum's root, or of any store; under a memory limit in bytes.
    pub(super) fn new(
        workload: &StoreWorkload,
        terms: &RaceTerms,
        memory_limit: Option<u64>,
        has_ethereum_root: bool,
    ) -> Self {
        Self {
            is_durable: terms.sync == SyncMode::Durable,
            tries: has_ethereum_root.then(|| trie_sizes(workload)),
            from_disk: memory_limit.map_or(0.0, |limit| share_from_disk(workload, limit)),
        }
    }

    /// The work for these commits.
    pub(super) fn of(&self, blocks: &[CommitBlock]) -> NeededWork {
        let mut work = NeededWork::default();
        for block in blocks {
            work += &self.of_block(block);
        }
        work
    }

    fn of_block(&self, block: &CommitBlock) -> NeededWork {
        // The last write of a key counts.
        let mut written = BTreeMap::new();
        for op in &block.ops {
            if let Some(next) = op.next() {
                written.insert(op.key(), next);
            }
        }
        let value_bytes: usize = written.values().flatten().map(|value| value.len()).sum();
        let key_bytes: usize = written.keys().map(|key| key_bytes(key)).sum();
        let durable = self.is_durable && !written.is_empty();
        let kept = written.values().flatten().count() as u64;
        NeededWork {
            lookups: block.reads(),
            commits: durable.into(),
            bytes: if durable { (key_bytes + value_bytes) as u64 } else { 0 },
            hashes: self.tries.map_or_else(HashWork::default, |sizes| {
                HashWork::leaves(kept) + branches(written.keys().copied(), sizes)
            }),
            pages: block.reads() as f64 * self.from_disk,
            ..NeededWork::default()
        }
    }
}

/// Bytes by which a store must tell a key apart. The contract of a slot may be written once for
/// many slots.
const fn key_bytes(key: &StateKey) -> usize {
    match key {
        StateKey::Account(_) => 20,
        StateKey::Slot(..) => 32,
    }
}

/// The branches above keys that a commit writes: of each contract, and of the accounts.
fn branches<'k>(keys: impl Iterator<Item = &'k StateKey>, sizes: TrieSizes) -> HashWork {
    let mut slots: BTreeMap<Address, u64> = BTreeMap::new();
    for key in keys {
        *slots.entry(*key.address()).or_default() += u64::from(matches!(key, StateKey::Slot(..)));
    }
    let mut contracts: BTreeMap<u64, u64> = BTreeMap::new();
    for changed in slots.values() {
        *contracts.entry(*changed).or_default() += 1;
    }
    let of_contracts = contracts
        .iter()
        .map(|(changed, contracts)| HashWork::branches(*changed, sizes.slots) * *contracts as f64);
    let of_accounts = HashWork::branches(slots.len() as u64, sizes.accounts);
    of_contracts.fold(of_accounts, |all, contract| all + contract)
}

fn trie_sizes(workload: &StoreWorkload) -> TrieSizes {
    match (&workload.keys, workload.layout) {
        (InitialKeys::Preloaded(keys), KeyLayout::OneContract) => {
            TrieSizes { accounts: 1, slots: *keys }
        }
        (InitialKeys::Preloaded(keys), KeyLayout::Accounts) => TrieSizes {
            accounts: keys.div_ceil(SLOTS_PER_ACCOUNT),
            slots: SLOTS_PER_ACCOUNT.min(*keys),
        },
        (InitialKeys::Real(trace), _) => TrieSizes { accounts: trace.padding().accounts, slots: 0 },
        (InitialKeys::Trace(trace), _) => TrieSizes { accounts: trace.accounts(), slots: 0 },
        // The keys written before are not counted; keys of attacks are not random.
        (InitialKeys::Fresh | InitialKeys::Adversary(_), _) => TrieSizes { accounts: 0, slots: 0 },
    }
}

/// The share of uniform reads of keys that memory of `limit` bytes cannot hold.
fn share_from_disk(workload: &StoreWorkload, limit: u64) -> f64 {
    match (&workload.keys, workload.choice) {
        (InitialKeys::Preloaded(keys), KeyDistribution::Uniform) => {
            let bytes = (keys * ENTRY_BYTES) as f64;
            (1.0 - limit as f64 / bytes).max(0.0)
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::MemoryTerms;

    fn terms(sync: SyncMode) -> RaceTerms {
        RaceTerms {
            sync,
            cache_bytes: 1 << 20,
            retention: 8,
            read_threads: 0,
            memory: MemoryTerms::FREE,
        }
    }

    fn needed(workload: &StoreWorkload, sync: SyncMode, has_root: bool) -> NeededWork {
        let needs = CommitNeeds::new(workload, &terms(sync), None, has_root);
        needs.of(&workload.stream().take(4).collect::<Vec<_>>())
    }

    fn workload(layout: KeyLayout) -> StoreWorkload {
        let keys = InitialKeys::Preloaded(20_000);
        StoreWorkload {
            keys,
            pairs: 400,
            commit_every: 100,
            warmup: 0,
            slices: 1,
            layout,
            ..Default::default()
        }
    }

    #[test]
    fn each_commit_writes_its_keys_and_values_once() {
        let any = needed(&workload(KeyLayout::OneContract), SyncMode::Durable, false);
        assert_eq!((any.commits, any.lookups, any.hashes), (4, 400, HashWork::default()));
        // A few keys are written twice in a commit.
        assert!((390 * 64..=400 * 64).contains(&any.bytes), "{any:?}");
        let none = needed(&workload(KeyLayout::OneContract), SyncMode::NoSync, false);
        assert_eq!((none.commits, none.bytes, none.lookups), (0, 0, 400));
        let reads = StoreWorkload { reads: 1.0, ..workload(KeyLayout::OneContract) };
        let reads = needed(&reads, SyncMode::Durable, true);
        assert_eq!((reads.commits, reads.bytes, reads.hashes), (0, 0, HashWork::default()));
    }

    #[test]
    fn stores_with_ethereums_root_hash_the_path_of_each_key() {
        let one = needed(&workload(KeyLayout::OneContract), SyncMode::Durable, true);
        // A leaf for each key, and at most four branches above it; many are shared.
        assert!(one.hashes.nodes > 2.0 * 390.0 && one.hashes.nodes < 5.0 * 400.0, "{one:?}");
        let many = needed(&workload(KeyLayout::Accounts), SyncMode::Durable, true);
        assert!(many.hashes.nodes > 390.0 && many.hashes.permutations > many.hashes.nodes);
        let fresh = StoreWorkload { keys: InitialKeys::Fresh, ..workload(KeyLayout::OneContract) };
        let fresh = needed(&fresh, SyncMode::Durable, true);
        assert!(fresh.hashes.nodes > 400.0 && fresh.hashes.nodes < one.hashes.nodes);
    }

    #[test]
    fn keys_that_memory_cannot_hold_come_from_the_disk() {
        let workload = workload(KeyLayout::OneContract);
        let pages = |limit| {
            let needs = CommitNeeds::new(&workload, &terms(SyncMode::Durable), limit, false);
            needs.of(&workload.stream().take(4).collect::<Vec<_>>()).pages
        };
        assert_eq!((pages(None), pages(Some(20_000 * 64))), (0.0, 0.0));
        assert!((pages(Some(20_000 * 16)) - 300.0).abs() < 1e-9);
    }
}
