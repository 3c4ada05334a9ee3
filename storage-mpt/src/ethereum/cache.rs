//! The trie branches that stay in memory between blocks.

use super::{prefetch::TriePrefetch, root_task::RootTask};
use crate::trie::{RowStamp, Trie};
use retrie_state::AccountKey;
use std::{collections::HashMap, sync::Arc};

/// Upper bound of storage trie branches that are kept in memory between blocks.
const MAX_CACHED_BRANCHES: usize = 1 << 17;

/// The tries of one block in memory: the account trie, and the storage tries with branches in
/// memory, as far as there is room. Clones share all nodes.
#[derive(Clone, Debug)]
pub struct TrieCache<S: RowStamp = ()> {
    accounts: Trie<S>,
    storages: Arc<HashMap<AccountKey, CachedTrie<S>>>,
    prefetch: Arc<TriePrefetch<S>>,
    root_task: Arc<RootTask<S>>,
}

#[derive(Clone, Debug)]
struct CachedTrie<S> {
    trie: Trie<S>,
    /// Last block that changed it.
    block: u64,
}

impl<S: RowStamp> TrieCache<S> {
    /// Upper bound of the bytes of storage trie branches, at about 1 KiB each. The account trie has
    /// up to 69,905 more branches in memory, since only split branches are kept.
    pub const MAX_BYTES: u64 = (MAX_CACHED_BRANCHES as u64) << 10;

    /// The cache of a state without storage tries in memory.
    pub fn new(accounts: Trie<S>) -> Self {
        Self::over(accounts, Arc::default())
    }

    fn over(accounts: Trie<S>, storages: Arc<HashMap<AccountKey, CachedTrie<S>>>) -> Self {
        Self { accounts, storages, prefetch: Arc::default(), root_task: Arc::default() }
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
            return Self::over(accounts, self.storages.clone());
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
        if cached > MAX_CACHED_BRANCHES {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(owner, cached)| (cached.block, *owner, cached.trie.cached()))
                .collect();
            by_age.sort_unstable();
            for (_, owner, branches) in by_age {
                if cached <= MAX_CACHED_BRANCHES {
                    break;
                }
                storages.remove(&owner);
                cached -= branches;
            }
        }
        Self::over(accounts, Arc::new(storages))
    }
}
