//! Chain and datadir.

use eyre::bail;
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{ChainRead, DatabaseEnv, DbError, OpenError, OpenOptions, StorageError};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Chain and datadir.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Chain and datadir")]
pub struct ChainArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file. The default is the
    /// chain of the datadir; for a new one mainnet.
    #[arg(long, value_name = "CHAIN_OR_PATH")]
    chain: Option<String>,
    /// Folder of the chain and the state.
    #[arg(long, value_name = "DATA_DIR")]
    datadir: Option<PathBuf>,
}

/// The chain of a new datadir without `--chain`.
pub const DEFAULT_CHAIN: &str = "mainnet";

impl ChainArgs {
    /// The chain that `--chain` names.
    ///
    /// # Errors
    /// If there is no such chain, or its genesis file cannot be read.
    pub fn given(&self) -> eyre::Result<Option<Arc<ChainSpec>>> {
        Ok(self.chain.as_deref().map(parse_chain).transpose()?)
    }

    /// The chain and the datadir, for a command that creates a missing datadir.
    ///
    /// # Errors
    /// As [`given`](Self::given) and [`datadir`](Self::datadir), and if an existing datadir cannot be read.
    pub fn resolve(&self) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        self.resolve_or(DEFAULT_CHAIN)
    }

    /// The same; a new datadir gets the chain `default` unless `--chain` is given.
    pub(crate) fn resolve_or(&self, default: &str) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        let datadir = self.datadir_or(default)?;
        let spec = match self.given()? {
            Some(given) => given,
            None => match spec_of(&datadir)? {
                Some(kept) => kept,
                None => parse_chain(default)?,
            },
        };
        Ok((spec, datadir))
    }

    /// Whether neither a flag nor the datadir says which chain it is.
    ///
    /// # Errors
    /// If an existing datadir cannot be read.
    pub(crate) fn is_open(&self, datadir: &Path) -> eyre::Result<bool> {
        Ok(self.chain.is_none() && spec_of(datadir)?.is_none())
    }

    /// The datadir: as given, or the folder of the chain in the user's data directory.
    ///
    /// # Errors
    /// If it is not given and there is no home directory, or the chain is not known.
    pub fn datadir(&self) -> eyre::Result<PathBuf> {
        self.datadir_or(DEFAULT_CHAIN)
    }

    /// The same; without `--chain` the folder is that of `default`.
    pub(crate) fn datadir_or(&self, default: &str) -> eyre::Result<PathBuf> {
        if let Some(datadir) = &self.datadir {
            return Ok(datadir.clone());
        }
        let spec = parse_chain(self.chain.as_deref().unwrap_or(default))?;
        let base = std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")));
        match base {
            Some(base) => Ok(base.join("retrie").join(spec.name())),
            None => bail!("there is no home directory: pass --datadir"),
        }
    }
}

/// Opens a datadir to read, also while another process writes to it.
///
/// # Errors
/// [`DbError`] if there is none, or it cannot be opened.
pub fn open_to_read(datadir: &Path) -> Result<DatabaseEnv, DbError> {
    DatabaseEnv::open(datadir, &OpenOptions::read_only()).or_else(|error| match error {
        // After a kill with `--db.sync-mode none` only a writer can recover the database.
        DbError::Storage(StorageError::Mdbx { .. } | StorageError::System { .. }) => {
            // However large it is.
            let map_limit = 8 << 40;
            DatabaseEnv::open(datadir, &OpenOptions { map_limit, ..OpenOptions::default() })
        }
        error => Err(error),
    })
}

/// The chain stored in a datadir; `None` if there is no datadir yet.
fn spec_of(datadir: &Path) -> Result<Option<Arc<ChainSpec>>, DbError> {
    let db = match open_to_read(datadir) {
        // A kill during creation can leave a datadir without tables. The next start creates it
        // again, but refuses a file that is not a database of this program.
        Err(DbError::Open(OpenError::NoDatadir { .. } | OpenError::NotADatabase { .. })) => {
            return Ok(None);
        }
        db => db?,
    };
    let read = db.begin_read()?;
    if read.metadata()?.is_none() { Ok(None) } else { read.spec().map(Some) }
}
