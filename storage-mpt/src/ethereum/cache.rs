//! The trie branches that stay in memory between blocks.

use super::{prefetch::TriePrefetch, root_task::RootTask};
use crate::trie::{RowStamp, Trie};
use retrie_state::{AccountKey, LookupCounter};
use std::{collections::HashMap, sync::Arc};

/// Upper bound of storage trie branches that are kept in memory between blocks, by default.
const MAX_CACHED_BRANCHES: usize = 1 << 17;

/// How many branches the caches of a store may keep in memory, and how often they were found there.
/// All blocks of the store share it.
#[derive(Debug)]
pub struct CacheRoom {
    /// Branches of all storage tries.
    branches: usize,
    /// Levels of branches of each trie, from the root's on.
    levels: usize,
    bytes: u64,
    lookups: LookupCounter,
}

impl Default for CacheRoom {
    fn default() -> Self {
        let bytes = (MAX_CACHED_BRANCHES as u64) << 10;
        let lookups = LookupCounter::default();
        Self { branches: MAX_CACHED_BRANCHES, levels: usize::MAX, bytes, lookups }
    }
}

impl CacheRoom {
    /// Room for branches of about 1 KiB in `bytes`: one half for the account trie, one for storage
    /// tries. A trie keeps as many levels as fit into its half. `None` is the default: up to
    /// 131,072 branches of storage tries, and all split branches of the account trie, at most
    /// 69,905.
    pub fn within(bytes: Option<u64>) -> Self {
        let Some(bytes) = bytes else { return Self::default() };
        let branches = usize::try_from(bytes >> 11).unwrap_or(usize::MAX);
        let full = |levels: &u32| (1..*levels).fold(1_usize, |all, _| 1 + 16 * all) <= branches;
        let levels = (1..=5).take_while(full).count();
        let branches = branches.min(MAX_CACHED_BRANCHES);
        Self { branches, levels, bytes, lookups: LookupCounter::default() }
    }

    /// Upper bound of the bytes of storage trie branches; with a limit, of all branches.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Branches that were looked up by updates and reads.
    pub const fn lookups(&self) -> &LookupCounter {
        &self.lookups
    }

    /// Upper bound of branches of storage tries.
    pub(super) const fn branches(&self) -> usize {
        self.branches
    }

    /// Whether branches with this many nibbles above them are kept.
    pub(super) const fn has_level(&self, depth: usize) -> bool {
        depth < self.levels
    }
}

/// The tries of one block in memory: the account trie, and the storage tries with branches in
/// memory, as far as there is room. Clones share all nodes.
#[derive(Clone, Debug)]
pub struct TrieCache<S: RowStamp = ()> {
    accounts: Trie<S>,
    storages: Arc<HashMap<AccountKey, CachedTrie<S>>>,
    prefetch: Arc<TriePrefetch<S>>,
    root_task: Arc<RootTask<S>>,
    room: Arc<CacheRoom>,
}

#[derive(Clone, Debug)]
struct CachedTrie<S> {
    trie: Trie<S>,
    /// Last block that changed it.
    block: u64,
}

impl<S: RowStamp> TrieCache<S> {
    /// The cache of a state without storage tries in memory, in this room.
    pub fn new(accounts: Trie<S>, room: Arc<CacheRoom>) -> Self {
        Self::over(accounts, Arc::default(), room)
    }

    fn over(
        accounts: Trie<S>,
        storages: Arc<HashMap<AccountKey, CachedTrie<S>>>,
        room: Arc<CacheRoom>,
    ) -> Self {
        let prefetch = Arc::new(TriePrefetch::new(room.clone()));
        Self { accounts, storages, prefetch, root_task: Arc::default(), room }
    }

    /// The account trie.
    pub const fn accounts(&self) -> &Trie<S> {
        &self.accounts
    }

    /// The storage trie of `owner`, if it is in memory.
    pub fn storage(&self, owner: &AccountKey) -> Option<Trie<S>> {
        match self.storages.get(owner) {
            Some(cached) => Some(cached.trie.clone()),
            None => self.prefetch.storage(owner),
        }
    }

    /// The branches prefetched for the next block.
    pub fn prefetch(&self) -> &TriePrefetch<S> {
        &self.prefetch
    }

    /// The state root task of the next block.
    pub fn root_task(&self) -> &RootTask<S> {
        &self.root_task
    }

    /// The cache after block `block`, with the new account trie `accounts` and the `changed`
    /// storage tries. If there is not enough room, the storage tries that were unchanged for
    /// longest are dropped.
    #[must_use]
    pub fn child(
        &self,
        block: u64,
        accounts: Trie<S>,
        changed: Vec<(AccountKey, Trie<S>)>,
    ) -> Self {
        self.prefetch.close();
        // Opening a trie without branches in memory from its root row is as fast.
        let gone = |trie: &Trie<S>| trie.cached() == 0;
        if changed.iter().all(|(owner, trie)| gone(trie) && !self.storages.contains_key(owner)) {
            return Self::over(accounts, self.storages.clone(), self.room.clone());
        }
        let mut storages = HashMap::clone(&self.storages);
        for (owner, trie) in changed {
            if gone(&trie) {
                storages.remove(&owner);
            } else {
                storages.insert(owner, CachedTrie { trie, block });
            }
        }
        let mut cached: usize = storages.values().map(|cached| cached.trie.cached()).sum();
        let most = self.room.branches;
        if cached > most {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(owner, cached)| (cached.block, *owner, cached.trie.cached()))
                .collect();
            by_age.sort_unstable();
            for (_, owner, branches) in by_age {
                if cached <= most {
                    break;
                }
                storages.remove(&owner);
                cached -= branches;
            }
        }
        Self::over(accounts, Arc::new(storages), self.room.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_halved_and_keeps_whole_levels() {
        let of = |bytes| {
            let room = CacheRoom::within(bytes);
            (room.branches, room.levels, room.bytes)
        };
        assert_eq!(of(None), (1 << 17, usize::MAX, 128 << 20));
        assert_eq!(of(Some(1)), (0, 0, 1), "nothing fits");
        // 17 branches are the root and its children, 273 one level more.
        assert_eq!(of(Some((2 * 272) << 10)), (272, 2, 544 << 10));
        assert_eq!(of(Some((2 * 273) << 10)), (273, 3, 546 << 10));
        assert_eq!(of(Some(1 << 40)), (1 << 17, 5, 1 << 40));
        let room = CacheRoom::within(Some((2 * 17) << 10));
        assert!(room.has_level(1) && !room.has_level(2));
    }
}
