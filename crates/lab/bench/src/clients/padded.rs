//! Stores on a padded state, on which the blocks of bundles run one by one.

use super::race::ClientEntrant;
use crate::{
    BenchError,
    cache::{ScratchFolder, StateCache},
    error::BackendErrorExt,
    race::{RaceStep, RaceTerms},
    state::{BackendFactory, EntryStream, GENERATIONS, SortedEntries, StoreFactory as _},
};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_pipeline::replay::StatePadding;
use retrie_state_store::{KvStore, StateStore, StoreOptions};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// How such stores are prepared and opened.
#[derive(Clone, Copy)]
pub(super) struct PaddingSetup<'a> {
    /// The entries of the state beside those of the bundles.
    pub(super) padding: StatePadding,
    /// The terms, equal for all stores.
    pub(super) terms: &'a RaceTerms,
    /// The cache of padded states.
    pub(super) cache: &'a StateCache,
    /// Set to stop.
    pub(super) stop: &'a AtomicBool,
}

/// An open store in its folder.
pub(super) struct PaddedStore<'a> {
    pub(super) name: &'a str,
    pub(super) folder: &'a Path,
    // Dropped in this order: the store before its database.
    pub(super) store: StateStore,
    pub(super) kv: Arc<dyn KvStore>,
    _db: DatabaseEnv,
}

impl PaddingSetup<'_> {
    /// A folder with the padded state for each contender.
    pub(super) fn lay_down(
        &self,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<ScratchFolder>, BenchError> {
        let mut entries = None;
        let folder_of = |entrant: &ClientEntrant| {
            let loader = BackendFactory::new(entrant.backend.clone());
            let name = format!("{}-padding-{}", loader.format(), self.padding.name());
            self.cache.checkout(&name, |folder| {
                let entries =
                    entries.get_or_insert_with(|| SortedEntries::Listed(self.padding.entries()));
                let (backend, total) = (entrant.name.as_str(), entries.len() as u64);
                let mut report = |done| progress(RaceStep::Loading { backend, done, total });
                let (stop, done) = (self.stop, 0);
                let mut entries = EntryStream { entries, stop, progress: &mut report, done };
                loader.load(folder, &mut entries).map_err(|error| error.on_disk(folder))
            })
        };
        entrants.iter().map(folder_of).collect()
    }

    /// Opens the store in its folder.
    pub(super) fn open<'a>(
        &self,
        entrant: &'a ClientEntrant,
        folder: &'a Path,
    ) -> Result<PaddedStore<'a>, BenchError> {
        let name = &entrant.name;
        let options = OpenOptions { sync: self.terms.sync, ..OpenOptions::default() };
        let db = DatabaseEnv::open(folder, &options).of_backend(name)?;
        let kv = db.state_store();
        let options = StoreOptions {
            retention: self.terms.retention,
            fold_bytes: self.terms.rows_bytes(entrant.backend.profile().cache_bytes) / GENERATIONS,
            read_threads: self.terms.read_threads,
            dir: Some(files(folder)),
            ..StoreOptions::default()
        };
        let store =
            StateStore::open(entrant.backend.clone(), kv.clone(), options).of_backend(name)?;
        Ok(PaddedStore { name, folder, store, kv, _db: db })
    }
}

/// The folder of a state store's immutable files, the same as in [`BackendFactory`].
pub(super) fn files(folder: &Path) -> PathBuf {
    folder.join("state")
}
