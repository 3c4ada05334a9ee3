//! [`PbtState`]: the pages of one block's state that are in memory.

use crate::{
    hash::{Subtree, Sweep, TreeHash},
    page::{Exit, Page, PagePath, TreePlace},
    tree::{KEPT_NIBBLES, LoadedPages},
    units::zones,
};
use alloy_primitives::B256;
use parking_lot::RwLock;
use retrie_state::{AccountKey, LookupCounter, NodeRead, StateError};
use std::{collections::HashMap, sync::Arc};

/// The most pages of storages of accounts that stay in memory, by default.
const MAX_STORAGE_PAGES: usize = 1 << 17;
/// The most pages that are loaded ahead for a block.
const MAX_LOADED_PAGES: usize = 1 << 15;
/// How many bytes a page in memory takes, about.
const PAGE_BYTES: u64 = 1536;

/// How many pages may stay in memory, and how often they were found there. All blocks of a store
/// share it.
#[derive(Debug)]
pub(crate) struct PageRoom {
    /// Pages of storages of accounts.
    storage_pages: usize,
    /// Pages with paths shorter than this stay.
    levels: u8,
    bytes: u64,
    lookups: LookupCounter,
}

impl PageRoom {
    /// Room for pages in `bytes`: a half for storages, a quarter for each of the two large zones. A
    /// tree keeps as many levels as fit into a quarter. `None` is the default: 131,072 pages of
    /// storages, and all pages with at most four nibbles.
    pub(crate) fn within(bytes: Option<u64>) -> Self {
        let lookups = LookupCounter::default();
        let Some(bytes) = bytes else {
            let bytes = (MAX_STORAGE_PAGES as u64 + 2 * 69_905) * PAGE_BYTES;
            let (storage_pages, levels) = (MAX_STORAGE_PAGES, KEPT_NIBBLES + 1);
            return Self { storage_pages, levels, bytes, lookups };
        };
        let pages = bytes / PAGE_BYTES;
        let full = |levels: &u8| (1..*levels).fold(1_u64, |all, _| 1 + 16 * all) <= pages / 4;
        let levels = (1..=KEPT_NIBBLES + 1).take_while(full).count() as u8;
        let most = usize::try_from(pages / 2).unwrap_or(usize::MAX);
        Self { storage_pages: most.min(MAX_STORAGE_PAGES), levels, bytes, lookups }
    }

    /// The most bytes that pages in memory take.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pages that blocks looked up.
    pub(crate) const fn lookups(&self) -> &LookupCounter {
        &self.lookups
    }
}

/// The trees of one block's state: what hangs at the roots of the three zones, and of the storages
/// with pages in memory, as far as there is room. Clones share all pages.
#[derive(Clone, Debug)]
pub struct PbtState {
    zones: [Option<Exit>; 3],
    storages: Arc<HashMap<AccountKey, CachedStorage>>,
    ahead: Arc<PagesAhead>,
    room: Arc<PageRoom>,
}

#[derive(Clone, Debug)]
struct CachedStorage {
    root: Exit,
    /// Last block that changed it.
    block: u64,
}

impl PbtState {
    /// The state that `view` shows, without pages in memory, in this room.
    pub(crate) fn open(
        hash: TreeHash,
        view: &dyn NodeRead,
        room: Arc<PageRoom>,
    ) -> Result<Self, StateError> {
        let [headers, codes, storages] = zones();
        let root = |place: TreePlace| place.load_root(hash, view);
        let zones = [root(headers)?, root(codes)?, root(storages)?];
        Ok(Self::over(zones, Arc::default(), room))
    }

    fn over(
        zones: [Option<Exit>; 3],
        storages: Arc<HashMap<AccountKey, CachedStorage>>,
        room: Arc<PageRoom>,
    ) -> Self {
        let ahead = Arc::new(PagesAhead { loaded: RwLock::default(), room: room.clone() });
        Self { zones, storages, ahead, room }
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
            return Self::over(zones, self.storages.clone(), self.room.clone());
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
        let most = self.room.storage_pages;
        if cached > most {
            let mut by_age: Vec<_> = storages
                .iter()
                .map(|(owner, cached)| (cached.block, *owner, cached.root.pages() as usize))
                .collect();
            by_age.sort_unstable();
            for (_, owner, pages) in by_age {
                if cached <= most {
                    break;
                }
                storages.remove(&owner);
                cached -= pages;
            }
        }
        Self::over(zones, Arc::new(storages), self.room.clone())
    }
}

/// Pages that were loaded for a block before its delta came, by the front of their tree's rows and
/// their path.
#[derive(Debug)]
pub(crate) struct PagesAhead {
    loaded: RwLock<LoadedAhead>,
    room: Arc<PageRoom>,
}

#[derive(Debug, Default)]
struct LoadedAhead {
    pages: HashMap<(Vec<u8>, PagePath), Arc<Page>>,
    is_closed: bool,
}

impl PagesAhead {
    /// Keeps a page, if there is room.
    pub(crate) fn insert(&self, tree: &TreePlace, page: Arc<Page>) {
        let mut loaded = self.loaded.write();
        let most = MAX_LOADED_PAGES.min(self.room.storage_pages);
        if !loaded.is_closed && loaded.pages.len() < most {
            loaded.pages.insert((tree.row.clone(), page.path), page);
        }
    }

    /// Drops all pages: the block is done.
    fn close(&self) {
        let mut loaded = self.loaded.write();
        loaded.is_closed = true;
        loaded.pages = HashMap::new();
    }
}

impl LoadedPages for PagesAhead {
    fn get(&self, tree: &TreePlace, path: &PagePath) -> Option<Arc<Page>> {
        let loaded = self.loaded.read();
        if loaded.pages.is_empty() {
            return None;
        }
        loaded.pages.get(&(tree.row.clone(), *path)).cloned()
    }

    fn keeps(&self, path: &PagePath) -> bool {
        path.len < self.room.levels
    }

    fn found(&self, path: &PagePath) {
        self.room.lookups.hit(path.bits[1]);
    }

    fn missed(&self, path: &PagePath) {
        self.room.lookups.miss(path.bits[1]);
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
