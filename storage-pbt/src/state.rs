//! [`PbtState`]: the pages of one block's state that are in memory.

use crate::{
    hash::{Subtree, Sweep, TreeHash},
    page::{Exit, Page, PagePath, TreePlace},
    tree::LoadedPages,
    units::zones,
};
use alloy_primitives::B256;
use parking_lot::RwLock;
use retrie_state::{AccountKey, NodeRead, StateError};
use std::{collections::HashMap, sync::Arc};

/// The most pages of storages of accounts that stay in memory.
const MAX_STORAGE_PAGES: usize = 1 << 17;
/// The most pages that are loaded ahead for a block.
const MAX_LOADED_PAGES: usize = 1 << 15;
/// How many bytes a page in memory takes, about.
const PAGE_BYTES: u64 = 1536;

/// The trees of one block's state: what hangs at the roots of the three zones, and of the storages
/// with pages in memory, as far as there is room. Clones share all pages.
#[derive(Clone, Debug)]
pub struct PbtState {
    zones: [Option<Exit>; 3],
    storages: Arc<HashMap<AccountKey, CachedStorage>>,
    ahead: Arc<PagesAhead>,
}

#[derive(Clone, Debug)]
struct CachedStorage {
    root: Exit,
    /// Last block that changed it.
    block: u64,
}

impl PbtState {
    /// The most bytes that pages in memory take: those of zones, of which all with at most four
    /// nibbles stay, and of storages.
    pub const MAX_BYTES: u64 = (MAX_STORAGE_PAGES as u64 + 2 * 69_905) * PAGE_BYTES;

    /// The state that `view` shows, without pages in memory.
    pub(crate) fn open(hash: TreeHash, view: &dyn NodeRead) -> Result<Self, StateError> {
        let [headers, codes, storages] = zones();
        let root = |place: TreePlace| place.load_root(hash, view);
        let zones = [root(headers)?, root(codes)?, root(storages)?];
        Ok(Self { zones, storages: Arc::default(), ahead: Arc::default() })
    }

    /// What hangs at the root of each zone.
    pub(crate) const fn zones(&self) -> &[Option<Exit>; 3] {
        &self.zones
    }

    /// Pages loaded ahead for the next block.
    pub(crate) fn ahead(&self) -> &PagesAhead {
        &self.ahead
    }

    /// What hangs at the root of an account's storage.
    pub(crate) fn storage(
        &self,
        hash: TreeHash,
        view: &dyn NodeRead,
        place: &TreePlace,
        owner: &AccountKey,
    ) -> Result<Option<Exit>, StateError> {
        match self.storages.get(owner) {
            Some(cached) => Ok(Some(cached.root.clone())),
            None => place.load_root(hash, view),
        }
    }

    /// The state after `block`, with other trees in the zones, and `changed` storages. If there is
    /// not enough room, the storages that were unchanged for longest are dropped.
    #[must_use]
    pub(crate) fn child(
        &self,
        block: u64,
        zones: [Option<Exit>; 3],
        changed: Vec<(AccountKey, Option<Exit>)>,
    ) -> Self {
        self.ahead.close();
        let pages = |root: &Option<Exit>| root.as_ref().map_or(0, Exit::pages);
        let is_gone = |(owner, root): &(AccountKey, Option<Exit>)| {
            pages(root) == 0 && !self.storages.contains_key(owner)
        };
        if changed.iter().all(is_gone) {
            return Self { zones, storages: self.storages.clone(), ahead: Arc::default() };
        }
        let mut storages = HashMap::clone(&self.storages);
        for (owner, root) in changed {
            match root.filter(|root| root.pages() > 0) {
                Some(root) => storages.insert(owner, CachedStorage { root, block }),
                None => storages.remove(&owner),
            };
        }
        let count = |storages: &HashMap<_, CachedStorage>| {
            storages.values().map(|cached| cached.root.pages() as usize).sum::<usize>()
        };
        let mut cached = count(&storages);
        if cached > MAX_STORAGE_PAGES {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(owner, cached)| (cached.block, *owner, cached.root.pages() as usize))
                .collect();
            by_age.sort_unstable();
            for (_, owner, pages) in by_age {
                if cached <= MAX_STORAGE_PAGES {
                    break;
                }
                storages.remove(&owner);
                cached -= pages;
            }
        }
        Self { zones, storages: Arc::new(storages), ahead: Arc::default() }
    }
}

/// Pages that were loaded for a block before its delta came, by the front of their tree's rows and
/// their path.
#[derive(Debug, Default)]
pub(crate) struct PagesAhead(RwLock<LoadedAhead>);

#[derive(Debug, Default)]
struct LoadedAhead {
    pages: HashMap<(Vec<u8>, PagePath), Arc<Page>>,
    is_closed: bool,
}

impl PagesAhead {
    /// Keeps a page, if there is room.
    pub(crate) fn insert(&self, tree: &TreePlace, page: Arc<Page>) {
        let mut loaded = self.0.write();
        if !loaded.is_closed && loaded.pages.len() < MAX_LOADED_PAGES {
            loaded.pages.insert((tree.row.clone(), page.path), page);
        }
    }

    /// Drops all pages: the block is done.
    fn close(&self) {
        let mut loaded = self.0.write();
        loaded.is_closed = true;
        loaded.pages = HashMap::new();
    }
}

impl LoadedPages for PagesAhead {
    fn get(&self, tree: &TreePlace, path: &PagePath) -> Option<Arc<Page>> {
        let loaded = self.0.read();
        if loaded.pages.is_empty() {
            return None;
        }
        loaded.pages.get(&(tree.row.clone(), *path)).cloned()
    }
}

/// The trees of one state, for reading.
#[derive(Clone, Copy)]
pub(crate) struct StateTrees<'a> {
    pub(crate) hash: TreeHash,
    pub(crate) view: &'a dyn NodeRead,
    pub(crate) state: &'a PbtState,
}

impl StateTrees<'_> {
    /// The tree of an account's storage, and what hangs at its root.
    pub(crate) fn storage_root(
        &self,
        place: &TreePlace,
        owner: &AccountKey,
    ) -> Result<Option<Exit>, StateError> {
        self.state.storage(self.hash, self.view, place, owner)
    }
}

/// The root of the tree over the subtrees of the zones.
pub(crate) fn join_zones(hash: TreeHash, subtrees: [Option<Subtree>; 3]) -> B256 {
    let mut sweep = Sweep::new(hash);
    for (place, zone) in zones().iter().zip(subtrees) {
        if let Some(subtree) = zone {
            sweep.push(&place.lead, subtree);
        }
    }
    sweep.root()
}
