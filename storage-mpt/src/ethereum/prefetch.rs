//! Prefetched branches: they are loaded before a block's changes are known, so the computation of
//! its root finds them in memory.
//!
//! Hints come while the block executes, from other threads. The prefetched branches belong to the
//! parent state of the block, and are dropped when a block is applied on this state.

use super::{StateTries, cache::CacheRoom};
use crate::{
    leaf,
    trie::{Branch, BranchLink, NodeLink, NodeSource, RowStamp, Trie},
};
use alloy_primitives::{B256, map::HashMap};
use alloy_trie::{Nibbles, nodes::RlpNode};
use parking_lot::Mutex;
use retrie_state::{AccountKey, BackendKey, StateError};
use std::{fmt, sync::Arc};

/// Upper bound of prefetched branches, at about 1 KiB each.
const MAX_PREFETCHED: usize = 1 << 15;

/// The prefetched branches of one state's tries.
pub struct TriePrefetch<S = ()> {
    nodes: Mutex<PrefetchedNodes<S>>,
    room: Arc<CacheRoom>,
}

struct PrefetchedNodes<S> {
    /// By reference, which binds everything in a branch except its path and stamps.
    branches: HashMap<B256, (Nibbles, Arc<Branch<S>>)>,
    storages: HashMap<AccountKey, Trie<S>>,
    /// A block was applied on this state: nothing more is kept.
    is_closed: bool,
}

impl<S> Default for PrefetchedNodes<S> {
    fn default() -> Self {
        Self { branches: HashMap::default(), storages: HashMap::default(), is_closed: false }
    }
}

impl<S> fmt::Debug for TriePrefetch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TriePrefetch")
            .field("branches", &self.nodes.lock().branches.len())
            .finish_non_exhaustive()
    }
}

impl<S: RowStamp> TriePrefetch<S> {
    /// Nothing prefetched yet, for a cache with this room.
    pub(super) fn new(room: Arc<CacheRoom>) -> Self {
        Self { nodes: Mutex::default(), room }
    }

    /// A source that returns prefetched branches, and loads others from `source`.
    pub const fn over<N: NodeSource<Stamp = S>>(&self, source: N) -> PrefetchedSource<'_, N> {
        PrefetchedSource { prefetch: self, source, keeps: false }
    }

    /// The storage trie of `owner`, if a prefetch opened it.
    pub fn storage(&self, owner: &AccountKey) -> Option<Trie<S>> {
        self.nodes.lock().storages.get(owner).cloned()
    }

    /// Fetches the branches on the paths of `keys` in `tries`, while there is room.
    ///
    /// # Errors
    /// Errors of the tries' source. The update that needs the branch meets the same error again.
    pub fn fetch(
        &self,
        tries: &impl StateTries<Stamp = S>,
        keys: &[BackendKey],
    ) -> Result<(), StateError> {
        let with = tries.hash();
        let (accounts, source) = tries.accounts();
        let source = PrefetchedSource { prefetch: self, source, keeps: true };
        for key in keys {
            if self.nodes.lock().branches.len() >= MAX_PREFETCHED.min(self.room.branches()) {
                break;
            }
            let owner = key.account();
            let account = accounts.leaf(&source, &with.account_path(owner))?;
            let (root, stamp) = match &account {
                None => (with.empty_root(), S::default()),
                Some(account) => match leaf::decode_account(account.value()) {
                    Some((_, root)) => (root, account.stamp()),
                    None => continue,
                },
            };
            let keep = |trie: Trie<S>| {
                let mut fetched = self.nodes.lock();
                if !fetched.is_closed {
                    fetched.storages.entry(*owner).or_insert(trie);
                }
            };
            if root == with.empty_root() {
                // This saves the lookup of its root row.
                keep(Trie::empty(with));
                continue;
            }
            let BackendKey::Slot(_, slot) = key else { continue };
            let (trie, source) = tries.storage(owner, root, stamp)?;
            keep(trie.clone());
            trie.leaf(
                &PrefetchedSource { prefetch: self, source, keeps: true },
                &with.slot_path(owner, slot),
            )?;
        }
        Ok(())
    }

    /// Drops everything, since a block was applied on this state. Hints may still come, because the
    /// hinting threads do not wait for the block.
    pub(super) fn close(&self) {
        let closed = PrefetchedNodes { is_closed: true, ..PrefetchedNodes::default() };
        drop(std::mem::replace(&mut *self.nodes.lock(), closed));
    }

    fn get(&self, path: &Nibbles, link: &BranchLink<S>) -> Option<Arc<Branch<S>>> {
        let fetched = self.nodes.lock();
        let (at, branch) = fetched.branches.get(&link.reference().as_hash()?)?;
        (at == path && branch.stamp() == link.stamp()).then(|| branch.clone())
    }
}

/// A source that looks among the prefetched branches first.
#[derive(Debug)]
pub struct PrefetchedSource<'a, N: NodeSource> {
    prefetch: &'a TriePrefetch<N::Stamp>,
    source: N,
    /// Whether loaded branches are added to the prefetched ones.
    keeps: bool,
}

impl<N: NodeSource> NodeSource for PrefetchedSource<'_, N> {
    type Stamp = N::Stamp;

    const PARALLEL: bool = N::PARALLEL;

    fn load(
        &self,
        path: &Nibbles,
        link: &BranchLink<N::Stamp>,
    ) -> Result<Arc<Branch<N::Stamp>>, StateError> {
        if let Some(branch) = self.prefetch.get(path, link) {
            return Ok(branch);
        }
        // A branch is missed once: by the prefetch, or by the update if it was not prefetched.
        self.prefetch.room.lookups().miss(spread(path));
        let branch = self.source.load(path, link)?;
        if self.keeps
            && let Some(hash) = link.reference().as_hash()
        {
            let mut fetched = self.prefetch.nodes.lock();
            if !fetched.is_closed {
                fetched.branches.insert(hash, (*path, branch.clone()));
            }
        }
        Ok(branch)
    }

    fn resolve(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
    ) -> Result<NodeLink<N::Stamp>, StateError> {
        self.source.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<N::Stamp>) -> bool {
        self.prefetch.room.has_level(path.len()) && self.source.keep(path, branch)
    }

    fn found(&self, path: &Nibbles) {
        // The update finds it again.
        if !self.keeps {
            self.prefetch.room.lookups().hit(spread(path));
        }
    }
}

/// A number that differs between neighbouring branches.
fn spread(path: &Nibbles) -> u8 {
    path.last().unwrap_or_default()
}
