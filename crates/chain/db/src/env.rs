//! Opening a datadir, and the open tables.

use crate::{
    DbError, HistoryKept, OpenError, ReadError, ReadTxn, Result, StorageError, TableError,
    WriteTxn, checksum,
    disk_sync::{self, SyncFailure, SyncThread},
    error::ErrorContext,
    lock::DatadirLock,
    raw::{RowRange, TableHandle},
    tables::{ChainTable, STATE_PREFIX},
    writer::WriterGate,
};
use mdbx::{
    Database, DatabaseFlags, Environment, EnvironmentFlags, Geometry, MdbxError, MdbxResult, Mode,
    TransactionKind, ffi, sys::PageSize, tx::Tx,
};
use parking_lot::RwLock;
use retrie_state::RowTable;
use std::{
    collections::HashMap,
    fmt,
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Page size of a new environment in bytes.
const PAGE_SIZE: usize = 4096;

/// Directory of MDBX inside the datadir, and its data file.
const FOLDER: &str = "db";
const FILE: &str = "mdbx.dat";

/// With [`SyncMode::NoSync`], a commit syncs once this much data is not yet on disk; usually the
/// sync thread syncs before. The file may grow by as much, as pages freed since the last sync
/// cannot be reused.
const UNSYNCED_BYTES: usize = 512 << 20;

/// Maximum number of open tables: of the chain, of the backend, and of the state framework.
const MAX_TABLES: usize = 96;

/// An open datadir. Clones share it; it is closed when the last clone, snapshot and write
/// transaction is dropped.
#[derive(Clone, Debug)]
pub struct DatabaseEnv {
    pub(crate) inner: Arc<DatabaseInner>,
}

/// How commits reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// A commit returns once its data is on the disk.
    #[default]
    Durable,
    /// A commit returns at once; a thread syncs every five seconds. A crash of the process loses
    /// nothing. A crash of the machine may take the database back to the last synced commit; it
    /// does not damage the database.
    NoSync,
}

/// How many blocks can be reverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSetting {
    /// The number of blocks.
    pub blocks: u64,
    /// Whether a user has set it; otherwise it is a default.
    pub is_explicit: bool,
}

/// How to open a datadir.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Takes no lock file and refuses writes; it may run beside a writing process.
    pub read_only: bool,
    /// Limit of the database size in bytes; may differ at each opening. The process reserves as much
    /// address space: at the default of 1 TiB it can hold about a hundred databases open.
    pub map_limit: u64,
    /// By how many bytes the file grows at a time. The file is sparse: disk usage grows as needed.
    pub growth_step: u64,
    /// Reader slots, shared by all processes. A snapshot takes one to eight.
    pub max_readers: u64,
    /// When commits are synced.
    pub sync: SyncMode,
    /// State tables to create at opening. Other tables are created at their first write.
    pub state_tables: Vec<RowTable>,
    /// Which parts of old blocks are kept; may differ at each opening.
    pub kept: HistoryKept,
    /// How many blocks can be reverted, to be [stored](DatabaseEnv::store_retention) in the
    /// datadir.
    pub retention: Option<RetentionSetting>,
    /// Whether preimages of hashed keys are kept, to be
    /// [stored](DatabaseEnv::store_keeping_of_preimages) in the datadir; `None`: as before.
    pub preimages: Option<bool>,
    /// Opens also an [incomplete](WriteTxn::set_unfinished) datadir. A datadir that is created now
    /// is marked as lacking this.
    pub unfinished: Option<String>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            map_limit: 1 << 40,
            growth_step: 1 << 30,
            max_readers: 4096,
            sync: SyncMode::Durable,
            state_tables: Vec::new(),
            kept: HistoryKept::default(),
            retention: None,
            preimages: None,
            unfinished: None,
        }
    }
}

impl OpenOptions {
    /// Default options for a read-only handle.
    pub fn read_only() -> Self {
        Self { read_only: true, ..Self::default() }
    }
}

impl DatabaseEnv {
    /// Opens an existing datadir.
    pub fn open(datadir: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_as(datadir.as_ref(), options, ExistingPolicy::Required)
    }

    /// Creates a database in a datadir that has none; creates missing directories.
    pub fn create(datadir: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_as(datadir.as_ref(), options, ExistingPolicy::Refused)
    }

    /// Opens a datadir, or creates it.
    pub fn open_or_create(datadir: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_as(datadir.as_ref(), options, ExistingPolicy::Allowed)
    }

    fn open_as(datadir: &Path, options: &OpenOptions, existing: ExistingPolicy) -> Result<Self> {
        let path = datadir.to_owned();
        let folder = datadir.join(FOLDER);
        if options.read_only && existing != ExistingPolicy::Required {
            return Err(StorageError::ReadOnly { path }.into());
        }
        if existing == ExistingPolicy::Required {
            if !folder.join(FILE).is_file() {
                return Err(OpenError::NoDatadir { path }.into());
            }
        } else {
            std::fs::create_dir_all(&folder)
                .map_err(|e| StorageError::io("creating folder", &folder, e))?;
        }
        let lock = if options.read_only { None } else { Some(DatadirLock::acquire(datadir)?) };
        if existing == ExistingPolicy::Refused && folder.join(FILE).exists() {
            return Err(OpenError::Exists { path }.into());
        }
        let inner = DatabaseInner::open(datadir, &folder, options, lock)?;
        let db = Self { inner: Arc::new(inner) };
        if options.unfinished.is_some() { Ok(db) } else { db.check_complete() }
    }

    /// A snapshot of the last commit.
    pub fn begin_read(&self) -> Result<ReadTxn, ReadError> {
        ReadTxn::begin(Arc::clone(&self.inner))
    }

    /// Opens the write transaction; waits for all threads that came before.
    pub fn begin_write(&self) -> Result<WriteTxn, StorageError> {
        WriteTxn::begin(Arc::clone(&self.inner))
    }

    /// Syncs all commits so far to disk (needed with [`SyncMode::NoSync`]). Waits while a write
    /// transaction is open.
    ///
    /// # Errors
    /// [`StorageError::Nested`] if this thread holds the write transaction.
    pub fn sync(&self) -> Result<(), StorageError> {
        // A read-only handle has nothing to sync.
        let Some(gate) = &self.inner.gate else { return Ok(()) };
        disk_sync::sync(&self.inner.env, gate, self.inner.data.as_deref()).map_err(|e| match e {
            SyncFailure::Nested => StorageError::Nested { path: self.inner.context.path.clone() },
            SyncFailure::Data(source) => StorageError::io("syncing", &self.inner.file, source),
            SyncFailure::Mdbx(source) => self.inner.error("syncing", source),
        })
    }

    /// The datadir.
    pub fn datadir(&self) -> &Path {
        &self.inner.context.path
    }

    /// Whether this handle cannot write.
    pub fn is_read_only(&self) -> bool {
        self.inner.gate.is_none()
    }

    /// Longest possible key in bytes.
    pub fn max_key_len(&self) -> usize {
        self.inner.max_key
    }
}

/// Whether a database must, must not, or may exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExistingPolicy {
    Required,
    Refused,
    Allowed,
}

/// Shared by all handles of an open datadir.
pub struct DatabaseInner {
    // Fields are dropped in this order: the thread ends, the environment is closed, the lock is
    // released.
    _syncer: Option<SyncThread>,
    /// `None` if read-only.
    pub(crate) gate: Option<Arc<WriterGate>>,
    pub(crate) env: Environment,
    /// The data file, if commits do not sync themselves.
    data: Option<Arc<File>>,
    pub(crate) tables: OpenTables,
    pub(crate) context: ErrorContext,
    pub(crate) file: PathBuf,
    pub(crate) page_size: usize,
    pub(crate) kept: HistoryKept,
    /// What a datadir that is created through this handle lacks.
    pub(crate) unfinished: Option<String>,
    max_key: usize,
    max_value: usize,
    _lock: Option<DatadirLock>,
}

impl DatabaseInner {
    fn open(
        datadir: &Path,
        folder: &Path,
        options: &OpenOptions,
        lock: Option<DatadirLock>,
    ) -> Result<Self> {
        let context = ErrorContext {
            path: datadir.to_owned(),
            limit: options.map_limit,
            max_readers: options.max_readers,
        };
        let env = open_environment(folder, options).map_err(|e| match e {
            e if is_locked(e) => DbError::from(OpenError::AlreadyOpen { path: datadir.to_owned() }),
            MdbxError::Invalid | MdbxError::VersionMismatch | MdbxError::Incompatible => {
                OpenError::NotADatabase { path: folder.join(FILE), what: e.to_string() }.into()
            }
            e => context.error("opening", e).into(),
        })?;
        let page_size =
            env.stat().map_err(|e| context.error("reading statistics", e))?.page_size() as usize;
        let limit = |limit: isize| usize::try_from(limit).unwrap_or(0);
        // SAFETY: both are pure functions of their arguments.
        let (max_key, max_value) = unsafe {
            (
                limit(ffi::mdbx_limits_keysize_max(page_size as isize, 0)),
                limit(ffi::mdbx_limits_valsize_max(page_size as isize, 0)),
            )
        };
        let tables = if options.read_only {
            OpenTables::open(&env, &context)?
        } else {
            OpenTables::create(&env, &context, &options.state_tables)?
        };
        let gate = (!options.read_only).then(Arc::<WriterGate>::default);
        let file = folder.join(FILE);
        let (mut data, mut _syncer) = (None, None);
        if let (Some(gate), SyncMode::NoSync) = (&gate, options.sync) {
            let fail = |action, source| StorageError::io(action, &file, source);
            let opened = Arc::new(File::open(&file).map_err(|e| fail("opening", e))?);
            let started = SyncThread::start(env.clone(), gate.clone(), opened.clone());
            _syncer = Some(started.map_err(|e| fail("starting the thread that syncs", e))?);
            data = Some(opened);
        }
        let (kept, unfinished) = (options.kept, options.unfinished.clone());
        Ok(Self {
            _syncer,
            gate,
            env,
            data,
            tables,
            context,
            file,
            page_size,
            kept,
            unfinished,
            max_key,
            max_value,
            _lock: lock,
        })
    }

    pub(crate) fn error(&self, action: impl Into<String>, source: MdbxError) -> StorageError {
        self.context.error(action, source)
    }

    /// Refuses keys that are too long: MDBX aborts the process on them, even in reads.
    #[inline]
    pub(crate) fn check_key(&self, table: TableHandle, key: &[u8]) -> Result<(), TableError> {
        if key.len() <= self.max_key {
            return Ok(());
        }
        Err(TableError::KeyTooLong {
            table: table.name.to_owned(),
            len: key.len(),
            max: self.max_key,
        })
    }

    pub(crate) fn check_range(
        &self,
        table: TableHandle,
        range: RowRange<'_>,
    ) -> Result<(), TableError> {
        self.check_key(table, range.start)?;
        self.check_key(table, range.end.unwrap_or_default())
    }

    #[inline]
    pub(crate) fn check_value(
        &self,
        table: TableHandle,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), TableError> {
        if value.len() <= self.max_value - checksum::LEN {
            return Ok(());
        }
        Err(TableError::ValueTooLong {
            table: table.name.to_owned(),
            key: crate::error::show_key(key),
            len: value.len(),
            max: self.max_value - checksum::LEN,
        })
    }

    /// The handle of a state table, if it exists.
    pub(crate) fn state_table(&self, table: RowTable) -> Result<Option<TableHandle>, ReadError> {
        if let Some(handle) = self.tables.state(table)? {
            return Ok(Some(handle));
        }
        // The writing process registers new tables itself; another process has to look them up.
        if self.gate.is_some() {
            return Ok(None);
        }
        let name = self.tables.disk_name(table)?;
        let action = || format!("opening table {name}");
        let tx = self.env.begin_ro_unsync().map_err(|e| self.error(action(), e))?;
        match open_table(&tx, &name).map_err(|e| self.error(action(), e))? {
            Some(db) => Ok(Some(self.tables.add_state(table, db)?)),
            None => Ok(None),
        }
    }
}

impl fmt::Debug for DatabaseInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseInner").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Whether the error means that another process has MDBX's own lock.
fn is_locked(error: MdbxError) -> bool {
    match error {
        MdbxError::Busy => true,
        MdbxError::Other(code) => {
            std::io::Error::from_raw_os_error(code).kind() == std::io::ErrorKind::WouldBlock
        }
        _ => false,
    }
}

fn open_environment(folder: &Path, options: &OpenOptions) -> MdbxResult<Environment> {
    let limit = usize::try_from(options.map_limit).map_err(|_| MdbxError::TooLarge)?;
    let step = isize::try_from(options.growth_step.min(options.map_limit))
        .map_err(|_| MdbxError::TooLarge)?;
    let sync_mode = match options.sync {
        SyncMode::Durable => mdbx::SyncMode::Durable,
        SyncMode::NoSync => mdbx::SyncMode::SafeNoSync,
    };
    let mode = if options.read_only { Mode::ReadOnly } else { Mode::ReadWrite { sync_mode } };
    let mut builder = Environment::builder();
    builder
        .set_max_dbs(MAX_TABLES)
        .set_max_readers(options.max_readers)
        // State keys are hashes, so read-ahead of neighbouring pages is of no use.
        .set_flags(EnvironmentFlags {
            mode,
            no_rdahead: true,
            coalesce: true,
            ..EnvironmentFlags::default()
        });
    if options.sync == SyncMode::NoSync && !options.read_only {
        // Without a threshold MDBX syncs whenever it has no free page left, which is in every
        // commit.
        builder.set_sync_bytes(UNSYNCED_BYTES);
    }
    if !options.read_only {
        builder.set_geometry(Geometry {
            size: Some(0..=limit),
            growth_step: Some(step),
            // A file that has grown will grow again.
            shrink_threshold: Some(0),
            page_size: Some(PageSize::Set(PAGE_SIZE)),
        });
    }
    builder.open(folder)
}

/// Handles of all tables, opened once. A lookup indexes an array.
pub(crate) struct OpenTables {
    chain: [TableHandle; ChainTable::ALL.len()],
    /// By table id, filled at first use.
    state: Box<[OnceLock<TableHandle>]>,
    /// State tables on disk, by their name there.
    on_disk: RwLock<HashMap<String, Database>>,
}

impl OpenTables {
    /// Opens all tables and creates those that are missing.
    fn create(env: &Environment, context: &ErrorContext, state: &[RowTable]) -> Result<Self> {
        let failed = |e| context.error("opening the tables", e);
        let tx = env.begin_rw_unsync().map_err(failed)?;
        let create = |name: &str| tx.create_db(Some(name), DatabaseFlags::empty());
        let mut on_disk = HashMap::new();
        for name in table_names(&tx).map_err(failed)? {
            if name.starts_with(STATE_PREFIX) {
                let db = create(&name).map_err(failed)?;
                on_disk.insert(name, db);
            }
        }
        let mut chain = Vec::new();
        for table in ChainTable::ALL {
            let db = create(table.name()).map_err(failed)?;
            chain.push(TableHandle::new(table.name(), table.name(), Some(db)));
        }
        let tables = Self::new(chain, on_disk, context)?;
        for table in state {
            let name = tables.disk_name(*table)?;
            let db = create(&name).map_err(failed)?;
            tables.add_state(*table, db)?;
        }
        tx.commit().map_err(failed)?;
        Ok(tables)
    }

    /// Opens the existing tables.
    fn open(env: &Environment, context: &ErrorContext) -> Result<Self> {
        let failed = |e| context.error("opening the tables", e);
        let tx = env.begin_ro_unsync().map_err(failed)?;
        let mut on_disk = HashMap::new();
        for name in table_names(&tx).map_err(failed)? {
            if name.starts_with(STATE_PREFIX)
                && let Some(db) = open_table(&tx, &name).map_err(failed)?
            {
                on_disk.insert(name, db);
            }
        }
        let mut chain = Vec::new();
        for table in ChainTable::ALL {
            let db = open_table(&tx, table.name()).map_err(failed)?;
            if db.is_none() && !ChainTable::LATER.contains(&table) {
                let what = format!("it has no table {}", table.name());
                return Err(OpenError::NotADatabase { path: context.path.clone(), what }.into());
            }
            chain.push(TableHandle::new(table.name(), table.name(), db));
        }
        tx.commit().map_err(failed)?;
        Self::new(chain, on_disk, context)
    }

    fn new(
        chain: Vec<TableHandle>,
        on_disk: HashMap<String, Database>,
        context: &ErrorContext,
    ) -> Result<Self> {
        let chain = chain.try_into().map_err(|_| OpenError::NotADatabase {
            path: context.path.clone(),
            what: "it lacks tables".to_owned(),
        })?;
        let state = (0..=u8::MAX).map(|_| OnceLock::new()).collect();
        Ok(Self { chain, state, on_disk: RwLock::new(on_disk) })
    }

    pub(crate) fn chain(&self, table: ChainTable) -> TableHandle {
        self.chain[table as usize]
    }

    /// The handle of a state table that is known to exist.
    #[inline]
    fn state(&self, table: RowTable) -> Result<Option<TableHandle>, TableError> {
        match self.state[usize::from(table.id)].get() {
            Some(handle) if handle.name == table.name => Ok(Some(*handle)),
            Some(handle) => Err(taken(table, handle.name)),
            None => self.find_state(table),
        }
    }

    #[cold]
    fn find_state(&self, table: RowTable) -> Result<Option<TableHandle>, TableError> {
        let db = self.on_disk.read().get(&state_table_name(table)).copied();
        match db {
            Some(db) => self.remember(table, db).map(Some),
            None => Ok(None),
        }
    }

    /// Registers a state table that is on disk.
    fn add_state(&self, table: RowTable, db: Database) -> Result<TableHandle, TableError> {
        self.on_disk.write().insert(self.disk_name(table)?, db);
        self.remember(table, db)
    }

    /// Commits a transaction that has created state tables, and registers them. The lock is held
    /// throughout, so that each reader whose snapshot has a new table also finds its handle.
    pub(crate) fn commit_created(
        &self,
        created: &[(RowTable, TableHandle)],
        commit: impl FnOnce() -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        if created.is_empty() {
            return commit();
        }
        let mut on_disk = self.on_disk.write();
        commit()?;
        for (table, handle) in created {
            let Some(db) = handle.db else { continue };
            on_disk.insert(state_table_name(*table), db);
            // The creation of the table has checked its name, and that its id is free.
            let _ = self.remember(*table, db);
        }
        Ok(())
    }

    fn remember(&self, table: RowTable, db: Database) -> Result<TableHandle, TableError> {
        let name = self.disk_name(table)?;
        let handle = || TableHandle::new(table.name, &name, Some(db));
        let held = self.state[usize::from(table.id)].get_or_init(handle);
        if held.name == table.name { Ok(*held) } else { Err(taken(table, held.name)) }
    }

    /// Name of a state table on disk, if MDBX can store it.
    pub(crate) fn disk_name(&self, table: RowTable) -> Result<String, TableError> {
        // A NUL would end the name early.
        if table.name.contains('\0') {
            return Err(taken(table, "no name with a NUL"));
        }
        Ok(state_table_name(table))
    }

    /// State tables on disk, with their names there.
    pub(crate) fn all_state(&self) -> Vec<(String, Database)> {
        self.on_disk.read().iter().map(|(name, db)| (name.clone(), *db)).collect()
    }
}

/// Name of a state table on disk.
fn state_table_name(table: RowTable) -> String {
    format!("{STATE_PREFIX}{}", table.name)
}

pub(crate) fn taken(wanted: RowTable, held: &str) -> TableError {
    TableError::IdTaken { id: wanted.id, held: held.to_owned(), wanted: wanted.name.to_owned() }
}

/// Names of all tables, in order.
fn table_names<K: TransactionKind>(tx: &Tx<K>) -> MdbxResult<Vec<String>> {
    let main = tx.open_db(None)?;
    let rows = crate::raw::scan(
        tx,
        Some(main),
        RowRange {
            start: &[],
            end: None,
            direction: retrie_state::ScanDirection::Forward,
            limit: usize::MAX,
        },
    )?;
    Ok(rows.into_iter().filter_map(|(name, _)| String::from_utf8(name.to_vec()).ok()).collect())
}

fn open_table<K: TransactionKind>(tx: &Tx<K>, name: &str) -> MdbxResult<Option<Database>> {
    match tx.open_db_no_cache(Some(name)) {
        Ok(db) => Ok(Some(db)),
        Err(MdbxError::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_limit_is_that_of_4k_pages() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        assert_eq!(db.inner.page_size, PAGE_SIZE);
        assert_eq!(db.max_key_len(), 2022);
        assert_eq!(db.inner.max_value, 0x7ff0_0000);
    }
}
