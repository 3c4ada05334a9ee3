//! The state store of a datadir, and what is checked with it.

use super::{
    backend::{BackendArgs, Hash, check_names, help, make, make_existing, referee},
    chain::open_to_read,
    prune::PruneArgs,
};
use retrie_backends::{Purpose, find};
use retrie_chainspec::ChainSpec;
use retrie_db::{ChainRead, DbError, Metadata, OpenOptions, Retention, StateRootMode};
use retrie_pipeline::ChainOptions;
use retrie_state::{AnyBackend, StoreOptions};
use std::{path::Path, sync::Arc};

/// Backend and what is checked with it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State backend")]
pub(crate) struct StateArgs {
    // Its help: what it is, and a line for each backend.
    #[arg(
        long,
        value_name = "BACKEND",
        help = help("The state store [default: that of the datadir; of a new one mpt]:")
    )]
    pub(crate) state_backend: Option<String>,
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
    /// How many blocks can be reverted [default: as many as in the datadir so far; in a new one 128].
    #[arg(long, value_name = "BLOCKS")]
    pub(crate) retention: Option<u64>,
    /// The same of a datadir for which nobody has said it.
    #[arg(skip = DEFAULT_RETENTION)]
    pub(crate) default_retention: u64,
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

/// The backend of a new datadir if none is named.
const DEFAULT_BACKEND: &str = "mpt";
/// Blocks that can be reverted if nothing else is said.
pub(crate) const DEFAULT_RETENTION: u64 = 128;

/// What a datadir was made with, and what wins where the command line says nothing.
struct DatadirSettings {
    metadata: Metadata,
    retention: Option<Retention>,
}

impl StateArgs {
    /// Everything needed to open a chain in `datadir`.
    pub(crate) fn chain_options(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        db: OpenOptions,
    ) -> eyre::Result<ChainOptions> {
        let settled = DatadirSettings::find(datadir)?;
        let backend = self.backend(&spec, datadir, settled.as_ref())?;
        let referee = self.referee.as_deref().map(referee).transpose()?;
        let root_mode = match (self.state_root, &settled) {
            (Some(mode), _) => mode,
            (None, Some(settled)) => settled.metadata.state_root,
            (None, None) if backend.capabilities().ethereum_root => StateRootMode::Header,
            (None, None) => StateRootMode::Shadow,
        };
        let retention = self.retention(datadir, settled.as_ref())?;
        let kept = self.prune.kept(&spec, retention.blocks)?;
        let flat_history = self.prune.flat_history(backend.history().is_some());
        Ok(ChainOptions {
            spec,
            backend,
            referee,
            root_mode,
            datadir: datadir.to_owned(),
            db: OpenOptions { kept, retention: Some(retention), ..db },
            store: fold_bytes_of(StoreOptions {
                retention: retention.blocks,
                flat_history,
                ..StoreOptions::default()
            }),
        })
    }
}

impl StateArgs {
    /// The backend that is named, or that the datadir has.
    fn backend(
        &self,
        spec: &ChainSpec,
        datadir: &Path,
        settled: Option<&DatadirSettings>,
    ) -> eyre::Result<Arc<dyn AnyBackend>> {
        let flags = self.backends.flags();
        let Some(DatadirSettings { metadata, .. }) = settled else {
            let name = self.state_backend.as_deref().unwrap_or(DEFAULT_BACKEND);
            check_names(&[name], self.hash)?;
            let purpose = Purpose::New { chain: spec.name(), is_public: spec.is_public() };
            return make(find(name)?, self.hash, flags, purpose);
        };
        let name = self.state_backend.as_deref().unwrap_or(&metadata.backend);
        check_names(&[name], self.hash)?;
        let backend = find(name)?;
        if metadata.backend != backend.stored_name() {
            let (path, found, expected) = (datadir.into(), metadata.backend.clone(), name.into());
            return Err(DbError::BackendMismatch { path, found, expected }.into());
        }
        if let Some(hash) = self.hash.filter(|hash| hash.id().name() != metadata.hash) {
            return Err(DbError::BackendParameters {
                path: datadir.into(),
                backend: metadata.backend.clone(),
                what: "hash function",
                found: metadata.hash.clone(),
                expected: hash.id().name().into(),
            }
            .into());
        }
        make_existing(backend, metadata, flags, datadir)
    }

    /// How many blocks can be reverted.
    fn retention(
        &self,
        datadir: &Path,
        settled: Option<&DatadirSettings>,
    ) -> Result<Retention, DbError> {
        let kept = settled.and_then(|settled| settled.retention);
        match (self.retention, kept) {
            (Some(blocks), Some(kept)) if kept.is_named && blocks != kept.blocks => {
                let path = datadir.to_owned();
                Err(DbError::RetentionMismatch { path, found: kept.blocks, expected: blocks })
            }
            (Some(blocks), _) => Ok(Retention { blocks, is_named: true }),
            (None, Some(kept)) => Ok(kept),
            (None, None) => Ok(Retention { blocks: self.default_retention, is_named: false }),
        }
    }
}

impl DatadirSettings {
    /// That of the datadir; `None` if it does not exist yet.
    fn find(datadir: &Path) -> Result<Option<Self>, DbError> {
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
        let read = db.begin_read()?;
        let retention = read.retention()?;
        Ok(read.metadata()?.map(|metadata| Self { metadata, retention }))
    }
}
