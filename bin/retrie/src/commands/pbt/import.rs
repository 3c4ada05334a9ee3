//! `retrie pbt import`: a datadir that starts from the state of checked files.

use super::files::{PbtFileArgs, describe};
use crate::{
    args::{ChainArgs, DbArgs, StateArgs, open_to_read},
    output::{CommandOutput, say},
};
use alloy_primitives::{B256, U256};
use retrie_db::ChainRead;
use retrie_pipeline::{AnchorError, ChainAnchor, ChainOptions, ChainStore, ChunkedState};
use retrie_sources::read_headers;
use retrie_state_store::EntrySorter;
use retrie_storage_pbt::migration::CheckedState;
use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Instant,
};

/// Arguments of `retrie pbt import`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PbtImportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    #[command(flatten)]
    files: PbtFileArgs,
    /// The header of the files' block in RLP, binary or hex; in front of it the file may hold
    /// consecutive ancestors, as the headers.rlp of an export does. Without it the files must be of the
    /// genesis block.
    #[arg(long, value_name = "HEADER_FILE")]
    header: Option<PathBuf>,
    /// Hash that the last header must have. Without it the file is trusted.
    #[arg(long, value_name = "HASH", requires = "header")]
    header_hash: Option<B256>,
    /// Total difficulty of the chain up to and including the last header, if it is proof of work.
    #[arg(long, value_name = "DIFFICULTY", requires = "header")]
    total_difficulty: Option<U256>,
}

impl PbtImportArgs {
    /// Runs the command. The datadir is complete or missing.
    pub(super) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let start = Instant::now();
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        refuse_filled(&datadir)?;
        let anchor = match &self.header {
            Some(file) => {
                let items = read_headers(file)?;
                ChainAnchor::for_dump(&options, items, self.header_hash, self.total_difficulty)?
            }
            None => {
                let root = options.spec.genesis_header().state_root;
                ChainAnchor::genesis(&options, root)?
            }
        };
        let header = anchor.header().clone();
        if self.header.is_some() && self.header_hash.is_none() {
            tracing::info!(
                "block {} is trusted as the file of headers gives it: compare its hash with one that \
                 you trust (--header-hash)",
                header.number
            );
        }
        let mut checked = self.files.check(header.state_root, stop)?;
        let said = describe(&checked);
        let chain = load(options, &anchor, &mut checked, &self.files)?;
        chain.flush()?;
        say!(
            CommandOutput::default(),
            "{}: chain {}, backend {}, begins at block {} ({}) with {said}; headers of {} ancestors; \
             loaded in {:.1} s",
            datadir.display(),
            chain.spec().name(),
            chain.state().identity().name,
            header.number,
            header.hash(),
            anchor.ancestor_count(),
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// Refuses a datadir with blocks before the files are read.
fn refuse_filled(datadir: &Path) -> eyre::Result<()> {
    let Ok(db) = open_to_read(datadir) else { return Ok(()) };
    match db.begin_read()?.tip()? {
        Some(tip) => Err(AnchorError::NotEmpty { datadir: datadir.to_owned(), tip }.into()),
        None => Ok(()),
    }
}

/// Creates the datadir.
fn load(
    options: ChainOptions,
    anchor: &ChainAnchor,
    checked: &mut CheckedState,
    files: &PbtFileArgs,
) -> eyre::Result<ChainStore> {
    let keys = options.store.keys;
    let has_tree = options.backend.profile().binary_root && keys.is_plain();
    let root = has_tree.then_some(checked.snapshot.root);
    let mut entries = EntrySorter::new(&files.scratch());
    for entry in checked.entries()? {
        let (key, value) = entry?;
        entries.put(&keys.key(&key), &value)?;
    }
    let mut codes = checked
        .codes()?
        .map(|code| code.map(|(hash, code)| (hash, code.into())).map_err(io::Error::other));
    let state = ChunkedState { root, parts: None, entries, codes: &mut codes, executed: None };
    Ok(ChainStore::create_synced(options, anchor, state)?.0)
}
