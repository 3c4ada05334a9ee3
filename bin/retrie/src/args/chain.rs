//! Chain and datadir.

use eyre::bail;
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{ChainRead, Db, DbError, OpenOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Chain and datadir.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Chain and datadir")]
pub(crate) struct ChainArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file. A datadir knows its
    /// chain; a new one is of mainnet if nothing is said.
    #[arg(long, value_name = "CHAIN_OR_PATH")]
    chain: Option<String>,
    /// Where chain and state are kept.
    #[arg(long, value_name = "DATA_DIR")]
    datadir: Option<PathBuf>,
}

/// The chain that is meant where nothing is said.
pub(crate) const DEFAULT_CHAIN: &str = "mainnet";

impl ChainArgs {
    /// The chain that `--chain` names.
    pub(crate) fn given(&self) -> eyre::Result<Option<Arc<ChainSpec>>> {
        Ok(self.chain.as_deref().map(parse_chain).transpose()?)
    }

    /// Chain and datadir of a command that makes the datadir if there is none.
    pub(crate) fn resolve(&self) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        self.resolve_or(DEFAULT_CHAIN)
    }

    /// The same, where a new datadir is of chain `default` unless another one is given.
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

    /// The datadir: as given, or by chain in the user's data directory.
    pub(crate) fn datadir(&self) -> eyre::Result<PathBuf> {
        self.datadir_or(DEFAULT_CHAIN)
    }

    /// The same, of chain `default` unless another one is given.
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

/// Opens a datadir to read from it, beside a process that may be writing to it.
pub(crate) fn open_to_read(datadir: &Path) -> Result<Db, DbError> {
    Db::open(datadir, &OpenOptions::read_only()).or_else(|error| match error {
        // What a killed process has left with `--db.sync-mode none` takes a writer to recover.
        DbError::Mdbx { .. } | DbError::System { .. } => Db::open(datadir, &OpenOptions::default()),
        error => Err(error),
    })
}

/// The chain that a datadir keeps; `None` if there is none yet.
fn spec_of(datadir: &Path) -> Result<Option<Arc<ChainSpec>>, DbError> {
    let db = match open_to_read(datadir) {
        // A kill while it was made can leave it without tables: then it is made once more. A file
        // of somebody else is refused there.
        Err(DbError::NoDatadir { .. } | DbError::NotADatabase { .. }) => return Ok(None),
        db => db?,
    };
    let read = db.begin_read()?;
    if read.metadata()?.is_none() { Ok(None) } else { read.spec().map(Some) }
}
