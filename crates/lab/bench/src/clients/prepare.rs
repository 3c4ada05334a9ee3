//! Prepares a race: the blocks, and each client at genesis. The cache keeps both.

use super::race::{ClientEntrant, ClientRace};
use crate::{
    BenchError,
    cache::ScratchFolder,
    chain::{CHAIN_FILE, ChainMaker, GenesisBase, MadeChain, write_blocks},
    error::ClientErrorExt,
    race::RaceStep,
    state::{BackendFactory, GENERATIONS, StoreFactory as _},
};
use alloy_primitives::B256;
use retrie_chainspec::ChainSpec;
use retrie_db::{HistoryKept, KeptBlocks, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{ChainOptions, ChainStore};
use retrie_state::{StateKey, StateValue, StoreError};
use retrie_state_store::StoreOptions;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// Name of the file beside the blocks that describes them.
const MADE_FILE: &str = "chain.json";

/// The content of `chain.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChainManifest {
    /// State root of genesis.
    pub(super) genesis_root: B256,
    #[serde(flatten)]
    chain: MadeChain,
}

impl ClientRace<'_> {
    /// A folder with the blocks and their [`ChainManifest`].
    pub(super) fn make_chain(
        &self,
        base: &GenesisBase,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<ScratchFolder, BenchError> {
        self.cache.checkout(&self.workload.chain_name(base), |folder| {
            let states = self.cache.scratch()?;
            // Before the folder is removed, which frees the disk.
            self.make_into(folder, states.path(), progress).map_err(|error| error.on_disk(folder))
        })
    }

    fn make_into(
        &self,
        folder: &Path,
        states: &Path,
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<(), BenchError> {
        let total = self.workload.warmup + self.workload.blocks;
        let mut maker = ChainMaker::start_in(
            states,
            self.workload.recipe.clone(),
            self.root_maker.clone(),
            self.stop,
            &mut |done, total| {
                progress(RaceStep::Loading { backend: "to make blocks", done, total });
            },
        )?;
        let genesis_root = maker.spec().genesis_header().state_root;
        let file = folder.join(CHAIN_FILE);
        let chain = write_blocks(&mut maker, total, &file, self.stop, &mut |made| {
            progress(RaceStep::Making { done: made.blocks, total });
        })?;
        let path = folder.join(MADE_FILE);
        let made = serde_json::to_vec_pretty(&ChainManifest { genesis_root, chain });
        made.map_err(io::Error::from)
            .and_then(|json| fs::write(&path, json))
            .map_err(|source| BenchError::Io { action: "writing", path, source })
    }

    /// A folder with a client at genesis for each contender.
    pub(super) fn lay_down(
        &self,
        base: &GenesisBase,
        spec: &Arc<ChainSpec>,
        entrants: &[ClientEntrant],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<ScratchFolder>, BenchError> {
        let mut entries: Option<Vec<(StateKey, StateValue)>> = None;
        let mut folders = Vec::new();
        for entrant in entrants {
            let format = BackendFactory::new(entrant.backend.clone()).format();
            let name = format!("client-{}-{format}", &spec.genesis_hash().to_string()[2..18]);
            folders.push(self.cache.checkout(&name, |folder| {
                let entries = entries.get_or_insert_with(|| base.entries());
                let total = entries.len() as u64;
                let mut entries = entries.iter().zip(0..).map(|(entry, done): (_, u64)| {
                    if done.is_multiple_of(4096) {
                        progress(RaceStep::Loading { backend: &entrant.name, done, total });
                        if self.stop.load(Ordering::Relaxed) {
                            let stopped = io::Error::other("stopped");
                            return Err(StoreError::new("loading", stopped).into());
                        }
                    }
                    Ok(entry.clone())
                });
                let options = self.options(spec, entrant, folder, SyncMode::Durable);
                let loaded = ChainStore::create_with_state(options, &mut entries);
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Stopped);
                }
                loaded.map(drop).of_client(&entrant.name).map_err(|error| error.on_disk(folder))
            })?);
        }
        Ok(folders)
    }

    pub(super) fn options(
        &self,
        spec: &Arc<ChainSpec>,
        entrant: &ClientEntrant,
        folder: &Path,
        sync: SyncMode,
    ) -> ChainOptions {
        let root_mode = match entrant.backend.profile().ethereum_root {
            true => StateRootMode::Header,
            false => StateRootMode::Shadow,
        };
        let mut kept = HistoryKept::default();
        if !self.workload.has_lookup() {
            kept.lookup = KeptBlocks { from: u64::MAX, last: 0 };
        }
        ChainOptions {
            spec: spec.clone(),
            backend: entrant.backend.clone(),
            referee: None,
            root_mode,
            datadir: folder.to_owned(),
            db: OpenOptions { sync, kept, ..OpenOptions::default() },
            store: StoreOptions {
                retention: self.terms.retention,
                fold_bytes: self.terms.rows_bytes(entrant.backend.profile().cache_bytes)
                    / GENERATIONS,
                read_threads: self.terms.read_threads,
                ..StoreOptions::default()
            },
        }
    }
}

/// Reads the manifest of the blocks in `folder`.
pub(super) fn read_made(folder: &Path) -> Result<ChainManifest, BenchError> {
    let path = folder.join(MADE_FILE);
    let io = |source| BenchError::Io { action: "reading", path: path.clone(), source };
    serde_json::from_slice(&fs::read(&path).map_err(io)?).map_err(|error| io(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache::failed, chain::MakeChainError};
    use retrie_pipeline::PipelineError;
    use retrie_state::StateError;

    /// Every error with which a race of clients can report a full disk.
    #[test]
    fn full_disk_is_named() {
        let home = tempfile::tempdir().unwrap();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let store = || PipelineError::State(StateError::from(StoreError::new("writing", full())));
        let errors: [BenchError; 4] = [
            Err::<(), _>(store()).of_client("raw").unwrap_err(),
            MakeChainError::from(store()).into(),
            MakeChainError::Io { action: "writing".into(), source: full() }.into(),
            failed("copying", home.path())(full()).into(),
        ];
        for error in errors {
            let named = error.on_disk(home.path());
            assert!(matches!(named, BenchError::DiskFull { .. }), "{named}");
        }
        let refused = MakeChainError::Recipe { what: "no".into() };
        let other = BenchError::from(refused).on_disk(home.path());
        assert!(matches!(other, BenchError::MakeChain(_)), "{other}");
    }
}
