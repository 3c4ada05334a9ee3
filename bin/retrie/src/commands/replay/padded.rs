//! The state under a replay: empty, or padded to the size of a real one. Padded states are kept
//! between runs.

use crate::{args::parse_count, commands::bench::stores::state_cache, output::grouped};
use retrie_bench::{
    cache::{RunFolder, StateCache},
    state::{BackendEntrant, Entrant},
};
use retrie_db::Db;
use retrie_pipeline::{Chain, ChainOptions, replay::Padding};
use retrie_state::{AnyBackend, BlockRef, StateStore, StoreOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Flags that make the state larger.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PadArgs {
    /// Put the blocks on a state of this many random accounts (1000, 50k, 1m). The state roots in
    /// headers are then not checked.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_accounts: u64,
    /// And of this many random slots, 100 in each of the first padded accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
    /// Where padded states are kept between runs, or `none`; by default retrie/bench in the user's
    /// cache directory.
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
}

impl PadArgs {
    const fn padding(&self) -> Padding {
        Padding { accounts: self.pad_accounts, slots: self.pad_slots }
    }

    /// What results depend on, as flags and values.
    pub(super) fn words(&self) -> [(String, String); 2] {
        [("pad-accounts", self.pad_accounts), ("pad-slots", self.pad_slots)]
            .map(|(name, count)| (name.to_owned(), count.to_string()))
    }

    /// Where the states are kept; an empty state is not worth it.
    fn cache(&self) -> StateCache {
        if self.padding().is_none() {
            StateCache::none()
        } else {
            state_cache(self.state_cache.clone())
        }
    }

    /// A folder with a database that holds the base state of bundles.
    pub(super) fn base_state(&self, backend: &Arc<dyn AnyBackend>) -> eyre::Result<RunFolder> {
        let name = format!("bundles-{}", self.name(backend));
        self.cache().checkout(&name, |folder| {
            let db = Db::create(folder, &Default::default())?;
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

    /// A chain with its genesis block on the padding, and before it the folder it lives in.
    pub(super) fn chain(
        &self,
        options: impl Fn(&Path) -> ChainOptions,
    ) -> eyre::Result<(RunFolder, Chain)> {
        let ChainOptions { spec, backend, .. } = options(Path::new(""));
        let genesis = spec.genesis_hash();
        let name = format!("chain-{}-{}", &genesis.to_string()[2..18], self.name(&backend));
        let is_padded = !self.padding().is_none();
        let folder = self.cache().checkout(&name, |folder| {
            if is_padded {
                self.say(&backend);
                Chain::open_padded(options(folder), self.padding().entries())?;
            }
            eyre::Ok(())
        })?;
        let options = options(folder.path());
        let chain = if is_padded {
            // The padding is there, and nothing is added to it.
            Chain::open_padded(options, Vec::new())?
        } else {
            Chain::open(options)?
        };
        Ok((folder, chain))
    }

    fn name(&self, backend: &Arc<dyn AnyBackend>) -> String {
        format!("{}-{}", BackendEntrant::new(backend.clone()).format(), self.padding().name())
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

/// Folder of a state store's own files.
pub(super) fn state_files(folder: &Path) -> PathBuf {
    folder.join("state")
}
