//! Commands on existing datadirs: the chain, backend, retention, referee and root mode are the
//! datadir's, and override the flags.

use crate::args::{self, BackendArgs, ChainArgs, backend_of, fold_bytes_of, open_to_read};
use retrie_chainspec::ChainSpec;
use retrie_db::{ChainRead, DatabaseEnv, DatadirMetadata, DbError, OpenOptions};
use retrie_pipeline::{ChainOptions, ChainStore, verify::referee_name};
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use std::{path::PathBuf, sync::Arc};

/// A datadir opened to read.
pub(crate) struct ExistingDatadir {
    pub(crate) path: PathBuf,
    pub(crate) db: DatabaseEnv,
    given: Option<Arc<ChainSpec>>,
}

impl ExistingDatadir {
    /// Opens the datadir of `chain`. If the flags name a chain, it must be the datadir's.
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

    /// The chain's rules: from the flags if given, else from the datadir.
    pub(crate) fn spec(&self) -> Result<Arc<ChainSpec>, DbError> {
        let read = self.db.begin_read()?;
        match &self.given {
            Some(given) => Ok(read.with_own_genesis(given)?.unwrap_or_else(|| given.clone())),
            None => read.spec(),
        }
    }

    /// The backend of the datadir.
    pub(crate) fn backend(
        &self,
        metadata: &DatadirMetadata,
        flags: &BackendArgs,
    ) -> eyre::Result<Arc<dyn AnyBackend>> {
        backend_of(metadata, flags, &self.path)
    }
}

/// Opens the datadir of `chain` to write, with its own backend.
pub(crate) fn open_existing(
    chain: &ChainArgs,
    backends: &BackendArgs,
    db: OpenOptions,
) -> eyre::Result<ChainStore> {
    // Close the reader before the database is opened to write.
    let options = {
        let found = ExistingDatadir::open(chain)?;
        let metadata = found.db.metadata()?;
        let read = found.db.begin_read()?;
        let referee = referee_name(&read, &metadata)?;
        let mut store = StoreOptions { keys: metadata.keys.into(), ..StoreOptions::default() };
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
    Ok(ChainStore::open(options)?)
}
