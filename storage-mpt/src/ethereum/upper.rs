//! What stays in memory between blocks.

use super::{ahead::Ahead, foretold::Foretold};
use crate::trie::{Stamp, Trie};
use alloy_primitives::Address;
use std::{collections::HashMap, sync::Arc};

/// Most branches of storage tries that are kept in memory between blocks.
pub const MAX_CACHED_BRANCHES: usize = 1 << 17;

/// The tries of one block in memory: the account trie, and those storage tries of which there are
/// branches in memory, as many as there is room for. Clones share all nodes.
#[derive(Clone, Debug)]
pub struct Upper<S: Stamp = ()> {
    accounts: Trie<S>,
    storages: Arc<HashMap<Address, Cached<S>>>,
    ahead: Arc<Ahead<S>>,
    foretold: Arc<Foretold<S>>,
}

#[derive(Clone, Debug)]
struct Cached<S> {
    trie: Trie<S>,
    /// Last block that changed it.
    block: u64,
}

impl<S: Stamp> Upper<S> {
    /// Most bytes of the branches of storage tries, at about 1 KiB each. Those of the account trie
    /// come on top: at most 69,905, as only split branches are kept.
    pub const MAX_BYTES: u64 = (MAX_CACHED_BRANCHES as u64) << 10;

    /// A state of which no storage trie is in memory.
    pub fn new(accounts: Trie<S>) -> Self {
        Self::over(accounts, Arc::default())
    }

    fn over(accounts: Trie<S>, storages: Arc<HashMap<Address, Cached<S>>>) -> Self {
        Self { accounts, storages, ahead: Arc::default(), foretold: Arc::default() }
    }

    /// The account trie.
    pub const fn accounts(&self) -> &Trie<S> {
        &self.accounts
    }

    /// The storage trie of `address`, if it is here.
    pub fn storage(&self, address: &Address) -> Option<Trie<S>> {
        match self.storages.get(address) {
            Some(cached) => Some(cached.trie.clone()),
            None => self.ahead.storage(address),
        }
    }

    /// What was fetched ahead of the next block.
    pub fn ahead(&self) -> &Ahead<S> {
        &self.ahead
    }

    /// What was made of the next block's writes.
    pub fn foretold(&self) -> &Foretold<S> {
        &self.foretold
    }

    /// The state after block `block`, which left the account trie as `accounts` and these storage
    /// tries `changed`. Where there is no room for all, those unchanged for longest go.
    #[must_use]
    pub fn child(&self, block: u64, accounts: Trie<S>, changed: Vec<(Address, Trie<S>)>) -> Self {
        self.ahead.close();
        // A trie without branches in memory is opened as fast by its root row.
        let gone = |trie: &Trie<S>| trie.cached() == 0;
        if changed.iter().all(|(address, trie)| gone(trie) && !self.storages.contains_key(address))
        {
            return Self::over(accounts, self.storages.clone());
        }
        let mut storages = HashMap::clone(&self.storages);
        for (address, trie) in changed {
            if gone(&trie) {
                storages.remove(&address);
            } else {
                storages.insert(address, Cached { trie, block });
            }
        }
        let mut cached: usize = storages.values().map(|cached| cached.trie.cached()).sum();
        if cached > MAX_CACHED_BRANCHES {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(address, cached)| (cached.block, *address, cached.trie.cached()))
                .collect();
            by_age.sort_unstable();
            for (_, address, branches) in by_age {
                if cached <= MAX_CACHED_BRANCHES {
                    break;
                }
                storages.remove(&address);
                cached -= branches;
            }
        }
        Self::over(accounts, Arc::new(storages))
    }
}
