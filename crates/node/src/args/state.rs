//! Flags of a datadir's state store and of the referee.

use super::{
    backend::{BackendArgs, HashChoice, check_names, help, make, make_existing, referee},
    chain::open_to_read,
    prune::PruneArgs,
};
use retrie_backends::{StorePurpose, find};
use retrie_chainspec::ChainSpec;
use retrie_db::{
    ChainRead, DatadirMetadata, DbError, MetadataError, OpenError, OpenOptions, RetentionSetting,
    StateRootMode,
};
use retrie_pipeline::ChainOptions;
use retrie_state::{AnyBackend, BackendProfile, KeyForm};
use retrie_state_store::StoreOptions;
use std::{path::Path, str::FromStr, sync::Arc};

/// Flags of the state backend and of the checks beside it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State backend")]
pub struct StateArgs {
    /// Name of the state backend. The help text is a sentence and a line for each backend.
    #[arg(
        long,
        value_name = "BACKEND",
        help = help("The state store [default: that of the datadir; of a new one mpt]:")
    )]
    pub state_backend: Option<String>,
    /// Hash function of the state store, for comparison only; `mpt-archive` and `pbt` have the choice.
    #[arg(long, value_name = "HASH")]
    pub hash: Option<HashChoice>,
    /// Form of the keys under which the backend keeps the state: `plain` (addresses and slots), or
    /// `hashed` (their keccak-256, all that a state from `snap` has) [default: the datadir's; for
    /// a new one plain].
    #[arg(long = "state.keys", value_name = "FORM")]
    pub keys: Option<KeyFormChoice>,
    /// Keep the addresses and slots that blocks write beside their hashes, in a datadir with hashed
    /// keys, from now on [default: the datadir's; for a new one false].
    #[arg(
        long = "state.preimages",
        // A file may follow.
        require_equals = true,
        value_name = "BOOL",
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub preimages: Option<bool>,
    /// What header state roots mean. `header`: each must equal the backend's root; only for
    /// backends with Ethereum's roots, and their default; on a chain that switches to the binary
    /// tree (`binaryTrieTime`) also of `pbt`, from that time on. `shadow`: they are roots of another
    /// backend; ours is stored beside them.
    #[arg(long, value_name = "MODE")]
    pub state_root: Option<StateRootMode>,
    /// Run this backend beside the state backend on the same deltas, and check header state roots
    /// with it. A chain that switches to the binary tree needs one backend for each side of the
    /// switch: `pbt` beside `mpt`, or `mpt` beside `pbt`.
    #[arg(long, value_name = "BACKEND")]
    pub referee: Option<String>,
    /// Let a referee join that the datadir does not have, or that was left out for a while: its state
    /// is made from that of the state backend, and blocks are applied to it until it is at the tip.
    /// A node does so beside its work, and has the referee from its next start on.
    #[arg(long = "referee.join", requires = "referee")]
    pub referee_joins: bool,
    /// How many blocks can be reverted [default: the datadir's; for a new one 128].
    #[arg(long, value_name = "BLOCKS")]
    pub retention: Option<u64>,
    /// Retention of a new datadir without `--retention`.
    #[arg(skip = DEFAULT_RETENTION)]
    pub default_retention: u64,
    /// What is pruned.
    #[command(flatten)]
    pub prune: PruneArgs,
    /// The flags of the backends.
    #[command(flatten)]
    pub backends: BackendArgs,
}

/// Value of `--state.keys`.
#[derive(Clone, Copy, Debug)]
pub struct KeyFormChoice(pub KeyForm);

impl FromStr for KeyFormChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let form = KeyForm::from_name(name).map(Self);
        form.ok_or_else(|| format!("`{name}` is neither plain nor hashed"))
    }
}

/// For crash tests: the environment variable `RETRIE_FOLD_BYTES` sets how many pending bytes
/// trigger a fold of the state.
pub fn fold_bytes_of(mut options: StoreOptions) -> StoreOptions {
    let bytes = std::env::var("RETRIE_FOLD_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    options.fold_bytes = bytes.unwrap_or(options.fold_bytes);
    options
}

/// The backend of a new datadir without `--state-backend`.
const DEFAULT_BACKEND: &str = "mpt";
/// Retention of a new datadir.
pub const DEFAULT_RETENTION: u64 = 128;

/// The settings stored in a datadir, which are the defaults of the flags.
struct DatadirSettings {
    metadata: DatadirMetadata,
    retention: Option<RetentionSetting>,
}

impl StateArgs {
    /// All options needed to open a chain in `datadir`.
    ///
    /// # Errors
    /// If the flags contradict each other or an existing datadir, or a backend cannot be made.
    pub fn chain_options(
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
            (None, None) if has_roots_of(&backend.profile(), &spec) => StateRootMode::Header,
            (None, None) => StateRootMode::Shadow,
        };
        let keys = match (self.keys, &settled) {
            (Some(KeyFormChoice(form)), _) => form,
            (None, Some(settled)) => settled.metadata.keys.into(),
            (None, None) => KeyForm::Plain,
        };
        let retention = self.retention(datadir, settled.as_ref())?;
        let kept = self.prune.kept(&spec, retention.blocks)?;
        let flat_history = self.prune.flat_history(backend.extensions().history.is_some());
        Ok(ChainOptions {
            spec,
            backend,
            referee,
            root_mode,
            datadir: datadir.to_owned(),
            db: OpenOptions { kept, retention: Some(retention), preimages: self.preimages, ..db },
            store: fold_bytes_of(StoreOptions {
                retention: retention.blocks,
                flat_history,
                keys,
                ..StoreOptions::default()
            }),
        })
    }
}

/// Whether headers of this chain carry, at some time, the roots of a backend with this profile.
fn has_roots_of(profile: &BackendProfile, spec: &ChainSpec) -> bool {
    profile.ethereum_root || profile.binary_root && spec.binary_tree_time().is_some()
}

impl StateArgs {
    /// The backend: the one given, or the datadir's.
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
            let purpose = StorePurpose::New { chain: spec.name(), is_public: spec.is_public() };
            return make(find(name)?, self.hash, flags, purpose);
        };
        let name = self.state_backend.as_deref().unwrap_or(&metadata.backend);
        check_names(&[name], self.hash)?;
        let backend = find(name)?;
        if metadata.backend != backend.stored_name() {
            let (path, found, expected) = (datadir.into(), metadata.backend.clone(), name.into());
            return Err(MetadataError::BackendMismatch { path, found, expected }.into());
        }
        if let Some(hash) = self.hash.filter(|hash| hash.id().name() != metadata.hash) {
            return Err(MetadataError::BackendParameters {
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
    ) -> Result<RetentionSetting, MetadataError> {
        let kept = settled.and_then(|settled| settled.retention);
        match (self.retention, kept) {
            (Some(blocks), Some(kept)) if kept.is_explicit && blocks != kept.blocks => {
                let path = datadir.to_owned();
                Err(MetadataError::RetentionMismatch { path, found: kept.blocks, expected: blocks })
            }
            (Some(blocks), _) => Ok(RetentionSetting { blocks, is_explicit: true }),
            (None, Some(kept)) => Ok(kept),
            (None, None) => {
                Ok(RetentionSetting { blocks: self.default_retention, is_explicit: false })
            }
        }
    }
}

impl DatadirSettings {
    /// The settings of the datadir; `None` if it does not exist yet.
    fn find(datadir: &Path) -> Result<Option<Self>, DbError> {
        let db = match open_to_read(datadir) {
            // A kill during creation can leave a datadir without tables: the next start creates it
            // again. That start refuses a file that is not a database, and every command but `db
            // migrate` refuses a datadir whose migration has not ended.
            Err(DbError::Open(
                OpenError::NoDatadir { .. }
                | OpenError::NotADatabase { .. }
                | OpenError::Unfinished { .. },
            )) => return Ok(None),
            db => db?,
        };
        let read = db.begin_read()?;
        let retention = read.retention()?;
        Ok(read.metadata()?.map(|metadata| Self { metadata, retention }))
    }
}
