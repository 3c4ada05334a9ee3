//! Datadirs that there are: chain, backend, retention, referee and root mode are theirs, whatever the flags
//! say.

use crate::args::{self, BackendArgs, ChainArgs, backend_of, fold_bytes_of, open_to_read};
use retrie_chainspec::ChainSpec;
use retrie_db::{ChainRead, Db, DbError, Metadata, OpenOptions};
use retrie_pipeline::{Chain, ChainOptions, verify::referee_name};
use retrie_state::{AnyBackend, StoreOptions};
use std::{path::PathBuf, sync::Arc};

/// A datadir, open to read.
pub(crate) struct Existing {
    pub(crate) path: PathBuf,
    pub(crate) db: Db,
    given: Option<Arc<ChainSpec>>,
}

impl Existing {
    /// Opens the datadir that `chain` names. What is said of the chain must hold for it.
    pub(crate) fn open(chain: &ChainArgs) -> eyre::Result<Self> {
        let given = chain.given()?;
        let path = chain.datadir()?;
        let db = open_to_read(&path)?;
        let read = db.begin_read()?;
        if let Some(given) = &given
            && read.metadata()?.is_some()
        {
            read.check_spec(given)?;
        }
        Ok(Self { path, db, given })
    }

    /// The rules of its chain; those that were given, if any were.
    pub(crate) fn spec(&self) -> Result<Arc<ChainSpec>, DbError> {
        match &self.given {
            Some(given) => Ok(given.clone()),
            None => self.db.begin_read()?.spec(),
        }
    }

    /// The backend it was made by.
    pub(crate) fn backend(
        &self,
        metadata: &Metadata,
        flags: &BackendArgs,
    ) -> eyre::Result<Arc<dyn AnyBackend>> {
        backend_of(metadata, flags, &self.path)
    }
}

/// Opens the datadir that `chain` names, with the backend it was made by.
pub(crate) fn open_existing(
    chain: &ChainArgs,
    backends: &BackendArgs,
    db: OpenOptions,
) -> eyre::Result<Chain> {
    // Closed before it is opened to write.
    let options = {
        let found = Existing::open(chain)?;
        let metadata = found.db.metadata()?;
        let read = found.db.begin_read()?;
        let referee = referee_name(&read, &metadata)?;
        let mut store = StoreOptions::default();
        if let Some(kept) = read.retention()? {
            store.retention = kept.blocks;
        }
        drop(read);
        ChainOptions {
            spec: found.spec()?,
            backend: found.backend(&metadata, backends)?,
            referee: referee.as_deref().map(args::referee).transpose()?,
            root_mode: metadata.state_root,
            datadir: found.path,
            db,
            store: fold_bytes_of(store),
        }
    };
    Ok(Chain::open(options)?)
}
