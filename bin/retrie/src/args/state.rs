//! The state store of a datadir, and what is checked with it.

use super::{
    backend::{BackendArgs, Hash, check_names, help, make, referee},
    chain::open_to_read,
    prune::PruneArgs,
};
use alloy_primitives::B256;
use retrie_backends::{Purpose, find};
use retrie_chainspec::ChainSpec;
use retrie_db::{ChainRead, DbError, OpenOptions, StateRootMode};
use retrie_pipeline::ChainOptions;
use retrie_state::StoreOptions;
use std::{path::Path, sync::Arc};

/// Backend and what is checked with it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State backend")]
pub(crate) struct StateArgs {
    // Its help: what it is, and a line for each backend.
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "mpt",
        hide_default_value = true,
        help = help("The state store [default: mpt]:")
    )]
    pub(crate) state_backend: String,
    /// Hash function of the state store, for comparison only; `mpt-archive` has the choice.
    #[arg(long, value_name = "HASH")]
    pub(crate) hash: Option<Hash>,
    /// What header state roots mean: `header` (must equal the backend's root; backends with
    /// Ethereum's roots only, their default), `shadow` (belong to another backend; ours is stored
    /// beside them).
    #[arg(long, value_name = "MODE")]
    pub(crate) state_root: Option<StateRootMode>,
    /// Run this backend beside the state backend, on the same deltas, and check header state roots
    /// with it.
    #[arg(long, value_name = "BACKEND")]
    pub(crate) referee: Option<String>,
    /// How many blocks can be reverted.
    #[arg(long, value_name = "BLOCKS", default_value_t = DEFAULT_RETENTION)]
    pub(crate) retention: u64,
    #[command(flatten)]
    pub(crate) prune: PruneArgs,
    #[command(flatten)]
    pub(crate) backends: BackendArgs,
}

/// For tests of crashes: with `RETRIE_FOLD_BYTES` the state is folded after that many bytes.
pub(crate) fn fold_bytes_of(mut options: StoreOptions) -> StoreOptions {
    let bytes = std::env::var("RETRIE_FOLD_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    options.fold_bytes = bytes.unwrap_or(options.fold_bytes);
    options
}

/// Blocks that can be reverted if nothing else is said.
const DEFAULT_RETENTION: u64 = 128;

impl StateArgs {
    /// Keeps more blocks revertible than by default, unless a number was named.
    pub(crate) const fn raise_retention(&mut self, blocks: u64) {
        if self.retention == DEFAULT_RETENTION {
            self.retention = blocks;
        }
    }

    /// Everything needed to open a chain in `datadir`.
    pub(crate) fn chain_options(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        db: OpenOptions,
    ) -> eyre::Result<ChainOptions> {
        let stamp = self.stamp_of(datadir)?;
        let purpose = match &stamp {
            Some((params, layout)) => Purpose::Existing { datadir, params: *params, layout },
            None => Purpose::New { chain: spec.name(), is_public: spec.is_public() },
        };
        check_names(&[&self.state_backend], self.hash)?;
        let backend = make(find(&self.state_backend)?, self.hash, self.backends.flags(), purpose)?;
        let referee = self.referee.as_deref().map(referee).transpose()?;
        let root_mode = match self.state_root {
            Some(mode) => mode,
            None if backend.capabilities().ethereum_root => StateRootMode::Header,
            None => StateRootMode::Shadow,
        };
        let kept = self.prune.kept(&spec, self.retention)?;
        let flat_history = self.prune.flat_history(backend.history().is_some());
        Ok(ChainOptions {
            spec,
            backend,
            referee,
            root_mode,
            datadir: datadir.to_owned(),
            db: OpenOptions { kept, ..db },
            store: fold_bytes_of(StoreOptions {
                retention: self.retention,
                flat_history,
                ..StoreOptions::default()
            }),
        })
    }
}

impl StateArgs {
    /// Digest of the parameters that a datadir was made with, and its layout, for backends that have
    /// a choice of them; `None` if it does not exist yet.
    fn stamp_of(&self, datadir: &Path) -> eyre::Result<Option<(B256, String)>> {
        let backend = find(&self.state_backend)?;
        if backend.flags.is_empty() {
            return Ok(None);
        }
        let db = match open_to_read(datadir) {
            // A kill while it was made can leave it without tables: then it is made once more. A
            // file of somebody else is refused there, and one that is not whole by all but its maker.
            Err(
                DbError::NoDatadir { .. }
                | DbError::NotADatabase { .. }
                | DbError::Unfinished { .. },
            ) => return Ok(None),
            db => db?,
        };
        let Some(metadata) = db.begin_read()?.metadata()? else { return Ok(None) };
        if metadata.backend != backend.stored_name() {
            let (path, expected) = (datadir.to_owned(), self.state_backend.clone());
            let found = metadata.backend;
            return Err(DbError::BackendMismatch { path, found, expected }.into());
        }
        Ok(Some((metadata.params, metadata.layout)))
    }
}
