//! Branches that are fetched before a block's changes are known: its root then finds them in memory.
//!
//! Hints come while the block executes, on other threads than the one that executes it. What they bring
//! belongs to the state that the block stands on, and goes once a block stands on it.

use super::Tries;
use crate::{
    leaf,
    trie::{Branch, BranchLink, Link, NodeSource, Stamp, Trie},
};
use alloy_primitives::{Address, B256, map::HashMap};
use alloy_trie::{Nibbles, nodes::RlpNode};
use parking_lot::Mutex;
use retrie_state::{StateError, StateKey};
use std::{fmt, sync::Arc};

/// Most branches that wait, at about 1 KiB each.
const MOST: usize = 1 << 15;

/// What was fetched ahead of one state's tries.
pub struct Ahead<S = ()>(Mutex<Fetched<S>>);

struct Fetched<S> {
    /// By reference, which binds all of a branch but path and stamps.
    branches: HashMap<B256, (Nibbles, Arc<Branch<S>>)>,
    storages: HashMap<Address, Trie<S>>,
    /// A block stands on the state: nothing is kept any more.
    is_closed: bool,
}

impl<S> Default for Fetched<S> {
    fn default() -> Self {
        Self { branches: HashMap::default(), storages: HashMap::default(), is_closed: false }
    }
}

impl<S> Default for Ahead<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> fmt::Debug for Ahead<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("branches", &self.0.lock().branches.len()).finish()
    }
}

impl<S: Stamp> Ahead<S> {
    /// A source that has what was fetched, and else takes branches from `source`.
    pub const fn over<N: NodeSource<Stamp = S>>(&self, source: N) -> Over<'_, N> {
        Over { ahead: self, source, keeps: false }
    }

    /// The storage trie of `address`, if it was opened.
    pub fn storage(&self, address: &Address) -> Option<Trie<S>> {
        self.0.lock().storages.get(address).cloned()
    }

    /// Fetches the branches on the ways to `keys` in `tries`, as far as there is room.
    ///
    /// # Errors
    /// Those of the tries' source: whoever needs the branch will see them again.
    pub fn fetch(
        &self,
        tries: &impl Tries<Stamp = S>,
        keys: &[StateKey],
    ) -> Result<(), StateError> {
        let with = tries.hash();
        let (accounts, source) = tries.accounts();
        let source = Over { ahead: self, source, keeps: true };
        for key in keys {
            if self.0.lock().branches.len() >= MOST {
                break;
            }
            let address = key.address();
            let account = accounts.leaf(&source, &with.hash(address))?;
            let (root, stamp) = match &account {
                None => (with.empty_root(), S::default()),
                Some(account) => match leaf::decode_account(account.value()) {
                    Some((_, root)) => (root, account.stamp()),
                    None => continue,
                },
            };
            let keep = |trie: Trie<S>| {
                let mut fetched = self.0.lock();
                if !fetched.is_closed {
                    fetched.storages.entry(*address).or_insert(trie);
                }
            };
            if root == with.empty_root() {
                // Then nobody has to look for its rows.
                keep(Trie::empty(with));
                continue;
            }
            let StateKey::Slot(_, slot) = key else { continue };
            let (trie, source) = tries.storage(address, root, stamp)?;
            keep(trie.clone());
            trie.leaf(&Over { ahead: self, source, keeps: true }, &with.hash(slot))?;
        }
        Ok(())
    }

    /// Forgets all, as a block stands on the state by now. Hints may still come: whoever gives them does
    /// not wait for the block.
    pub(super) fn close(&self) {
        let closed = Fetched { is_closed: true, ..Fetched::default() };
        drop(std::mem::replace(&mut *self.0.lock(), closed));
    }

    fn get(&self, path: &Nibbles, link: &BranchLink<S>) -> Option<Arc<Branch<S>>> {
        let fetched = self.0.lock();
        let (at, branch) = fetched.branches.get(&link.reference().as_hash()?)?;
        (at == path && branch.stamp() == link.stamp()).then(|| branch.clone())
    }
}

/// Branches that were fetched ahead, over a source that has them all.
#[derive(Debug)]
pub struct Over<'a, N: NodeSource> {
    ahead: &'a Ahead<N::Stamp>,
    source: N,
    /// Whether what comes from the source is kept for others.
    keeps: bool,
}

impl<N: NodeSource> NodeSource for Over<'_, N> {
    type Stamp = N::Stamp;

    const PARALLEL: bool = N::PARALLEL;

    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<N::Stamp>,
    ) -> Result<Arc<Branch<N::Stamp>>, StateError> {
        if let Some(branch) = self.ahead.get(path, link) {
            return Ok(branch);
        }
        let branch = self.source.load(path, link)?;
        if self.keeps
            && let Some(hash) = link.reference().as_hash()
        {
            let mut fetched = self.ahead.0.lock();
            if !fetched.is_closed {
                fetched.branches.insert(hash, (*path, branch.clone()));
            }
        }
        Ok(branch)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link<N::Stamp>, StateError> {
        self.source.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<N::Stamp>) -> bool {
        self.source.keep(path, branch)
    }
}
