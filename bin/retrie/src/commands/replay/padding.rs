//! The state under a replay: empty, or padded to a realistic size. Padded states are cached between
//! runs.

use crate::{args::parse_count, commands::bench::stores::state_cache, output::grouped};
use retrie_bench::{
    cache::{ScratchFolder, StateCache},
    state::{BackendFactory, StoreFactory},
};
use retrie_db::DatabaseEnv;
use retrie_pipeline::{ChainOptions, ChainStore, replay::StatePadding};
use retrie_state::{AnyBackend, BlockRef, StateStore, StoreOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Flags that pad the state.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PadArgs {
    /// Start from a state of this many random accounts (1000, 50k, 1m). Header state roots are then
    /// not checked.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_accounts: u64,
    /// Also put this many random slots into the state, 100 in each of the first padded accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
    /// Cache of padded states between runs, or `none` [default: retrie/bench in the user's cache
    /// directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
}

impl PadArgs {
    const fn padding(&self) -> StatePadding {
        StatePadding { accounts: self.pad_accounts, slots: self.pad_slots }
    }

    /// The flags that change results, with their values.
    pub(super) fn flag_pairs(&self) -> [(String, String); 2] {
        [("pad-accounts", self.pad_accounts), ("pad-slots", self.pad_slots)]
            .map(|(name, count)| (name.to_owned(), count.to_string()))
    }

    /// The cache of padded states. An empty state is not cached.
    fn cache(&self) -> StateCache {
        if self.padding().is_none() {
            StateCache::none()
        } else {
            state_cache(self.state_cache.clone())
        }
    }

    /// A folder with a database that holds the base state for bundles.
    pub(super) fn base_state(&self, backend: &Arc<dyn AnyBackend>) -> eyre::Result<ScratchFolder> {
        let name = format!("bundles-{}", self.name(backend));
        self.cache().checkout(&name, |folder| {
            let db = DatabaseEnv::create(folder, &Default::default())?;
            if self.padding().is_none() {
                return Ok(());
            }
            self.say(backend);
            let options =
                StoreOptions { dir: Some(state_files(folder)), ..StoreOptions::default() };
            let store = StateStore::open(backend.clone(), db.state_store(), options)?;
            let mut txn = db.begin_write()?;
            let mut entries = self.padding().entries().into_iter().map(Ok);
            let (_, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut txn)?;
            txn.commit()?;
            Ok(after.run()?)
        })
    }

    /// A chain with its genesis block on the padded state, and its folder. The folder must be
    /// dropped last.
    pub(super) fn chain(
        &self,
        options: impl Fn(&Path) -> ChainOptions,
    ) -> eyre::Result<(ScratchFolder, ChainStore)> {
        let ChainOptions { spec, backend, .. } = options(Path::new(""));
        let genesis = spec.genesis_hash();
        let name = format!("chain-{}-{}", &genesis.to_string()[2..18], self.name(&backend));
        let is_padded = !self.padding().is_none();
        let folder = self.cache().checkout(&name, |folder| {
            if is_padded {
                self.say(&backend);
                ChainStore::open_padded(options(folder), self.padding().entries())?;
            }
            eyre::Ok(())
        })?;
        let options = options(folder.path());
        let chain = if is_padded {
            // The padding is in the cached state already.
            ChainStore::open_padded(options, Vec::new())?
        } else {
            ChainStore::open(options)?
        };
        Ok((folder, chain))
    }

    fn name(&self, backend: &Arc<dyn AnyBackend>) -> String {
        format!("{}-{}", BackendFactory::new(backend.clone()).format(), self.padding().name())
    }

    fn say(&self, backend: &Arc<dyn AnyBackend>) {
        tracing::info!(
            "{}: padding the state with {} accounts and {} slots",
            backend.identity().name,
            grouped(self.pad_accounts),
            grouped(self.pad_slots)
        );
    }
}

/// Folder for the state store's own files.
pub(super) fn state_files(folder: &Path) -> PathBuf {
    folder.join("state")
}
