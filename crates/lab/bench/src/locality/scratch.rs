//! Temporary databases of MDBX with one table.

use super::LocalityError;
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_state::RowTable;
use retrie_state_store::KvStore;
use std::{path::Path, sync::Arc};

/// The table.
pub(super) const TABLE: RowTable = RowTable::new(1, "Rows");

/// A database, and its temporary folder, which is removed with it.
pub(super) struct ScratchDatabase {
    pub(super) store: Arc<dyn KvStore>,
    _folder: tempfile::TempDir,
}

impl ScratchDatabase {
    /// An empty database below `folder`. Its commits are durable.
    pub(super) fn create(folder: &Path) -> Result<Self, LocalityError> {
        let dir = scratch_folder(folder)?;
        let options = OpenOptions { state_tables: vec![TABLE], ..OpenOptions::default() };
        let db = DatabaseEnv::create(dir.path(), &options).context("making a database")?;
        Ok(Self { store: db.state_store(), _folder: dir })
    }
}

/// A temporary folder below `folder`.
pub(super) fn scratch_folder(folder: &Path) -> Result<tempfile::TempDir, LocalityError> {
    let failed =
        |source| LocalityError::Io { action: "making a folder in", path: folder.into(), source };
    tempfile::Builder::new().prefix("retrie-rows-").tempdir_in(folder).map_err(failed)
}

/// Adds the action that failed to an error of the database.
pub(super) trait RowErrorExt<T> {
    fn context(self, action: &'static str) -> Result<T, LocalityError>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> RowErrorExt<T> for Result<T, E> {
    fn context(self, action: &'static str) -> Result<T, LocalityError> {
        self.map_err(|source| LocalityError::Rows { action, source: source.into() })
    }
}
