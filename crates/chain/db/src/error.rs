//! Typed errors, one type per operation: each names the datadir, table or key, and what any program
//! can do about it. The program itself says which of its flags help.
//!
//! ```text
//!   opening      OpenError, MetadataError  --.
//!   storing      BlockError  ----------------+--> DbError
//!   reading      ReadError  -----------------'
//!                  = CorruptRow, PrunedBody, TableError or StorageError
//!   committing   StorageError
//! ```

use alloy_primitives::{B256, hex};
use mdbx::MdbxError;
use std::{
    fmt,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Result of this crate's operations.
pub(crate) type Result<T, E = DbError> = std::result::Result<T, E>;

/// Why an operation of several steps failed, such as opening a datadir or storing a block. It has
/// one variant per step that can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DbError {
    /// There is no datadir to open, or it cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The datadir is not the expected one.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A row that cannot be right.
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
    /// A body that is not kept.
    #[error(transparent)]
    Pruned(#[from] PrunedBody),
    /// A table refuses a key, a value or its own id.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A block does not fit the stored chain.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// MDBX or a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a read failed, or the opening of a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A row that cannot be right.
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
    /// A body that is not kept.
    #[error(transparent)]
    Pruned(#[from] PrunedBody),
    /// A table refuses a key or its own id.
    #[error(transparent)]
    Table(#[from] TableError),
    /// MDBX or a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a datadir cannot be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The datadir has no database to open.
    #[error("there is no database in datadir {path}")]
    NoDatadir {
        /// The datadir.
        path: PathBuf,
    },
    /// The caller wants a new datadir, but this one has a database.
    #[error("datadir {path} already holds a database")]
    Exists {
        /// The datadir.
        path: PathBuf,
    },
    /// Another process (or this one) writes to the datadir.
    #[error("datadir {path} is in use by {holder}")]
    InUse {
        /// The datadir.
        path: PathBuf,
        /// Who holds it, e.g. `process 4711`.
        holder: String,
    },
    /// This process has the environment open already, which MDBX allows only once (or another
    /// process is opening it at this moment).
    #[error(
        "datadir {path} is already open in this process: share that handle (or another process is \
         just opening it: try again)"
    )]
    AlreadyOpen {
        /// The datadir.
        path: PathBuf,
    },
    /// The creation of the datadir was not finished.
    #[error(
        "datadir {path} is not whole: {what}; run the command that creates it again until it is \
         done, or delete the folder"
    )]
    Unfinished {
        /// The datadir.
        path: PathBuf,
        /// What it lacks.
        what: String,
    },
    /// The file is not a database of this program.
    #[error("{path} is not a retrie database: {what}")]
    NotADatabase {
        /// The file or datadir.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Why a datadir is not the expected one: its chain, backend or formats, which [`DatadirMetadata`]
/// names, or the rules and the retention stored beside them.
///
/// [`DatadirMetadata`]: crate::DatadirMetadata
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The datadir has no metadata yet.
    #[error("datadir {path} is not initialised")]
    NotInitialised {
        /// The datadir.
        path: PathBuf,
    },
    /// The datadir has the table layout of another version of this program.
    #[error("datadir {path} has table layout {found}, this program reads {supported}: {advice}")]
    Schema {
        /// The datadir.
        path: PathBuf,
        /// Version on disk.
        found: u64,
        /// Version of this program.
        supported: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The datadir holds another chain.
    #[error(
        "datadir {path} holds chain {found_id} with genesis {found_genesis}, not chain \
         {expected_id} with genesis {expected_genesis}"
    )]
    ChainMismatch {
        /// The datadir.
        path: PathBuf,
        /// Chain id on disk.
        found_id: u64,
        /// Genesis hash on disk.
        found_genesis: B256,
        /// Expected chain id.
        expected_id: u64,
        /// Expected genesis hash.
        expected_genesis: B256,
    },
    /// The datadir does not store the rules of its chain, and the chain is not a known network.
    #[error(
        "datadir {path} was made by an earlier version and does not say which rules its chain {id} \
         with genesis {genesis} has"
    )]
    UnknownChain {
        /// The datadir.
        path: PathBuf,
        /// Chain id on disk.
        id: u64,
        /// Genesis hash on disk.
        genesis: B256,
    },
    /// The datadir holds the state of another backend.
    #[error("datadir {path} holds state of backend {found}, not {expected}")]
    BackendMismatch {
        /// The datadir.
        path: PathBuf,
        /// Backend on disk.
        found: String,
        /// Expected backend.
        expected: String,
    },
    /// The right backend, but with another format version.
    #[error(
        "datadir {path} holds format {found} of backend {backend}, this program writes format \
         {expected}: {advice}"
    )]
    BackendFormat {
        /// The datadir.
        path: PathBuf,
        /// The backend.
        backend: String,
        /// Format on disk.
        found: u32,
        /// Format of this program.
        expected: u32,
        /// What to do.
        advice: &'static str,
    },
    /// The right backend with another hash function or other parameters.
    #[error(
        "datadir {path} holds state of backend {backend} made with {what} {found}, not {expected}"
    )]
    BackendParameters {
        /// The datadir.
        path: PathBuf,
        /// The backend.
        backend: String,
        /// `hash function`, `parameters` or `layout`.
        what: &'static str,
        /// The value on disk.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The datadir has another state root mode.
    #[error("datadir {path} was made with state roots {found}, not {expected}")]
    StateRootMismatch {
        /// The datadir.
        path: PathBuf,
        /// Mode on disk.
        found: String,
        /// Expected mode.
        expected: String,
    },
    /// The datadir has another retention.
    #[error("in datadir {path} {found} blocks can be reverted, not {expected}")]
    RetentionMismatch {
        /// The datadir.
        path: PathBuf,
        /// Number on disk.
        found: u64,
        /// Expected number.
        expected: u64,
    },
}

/// Why a table refuses a row or cannot exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// MDBX would abort the process on such a key.
    #[error("table {table}: a key of {len} bytes is too long, at most {max} are possible")]
    KeyTooLong {
        /// The table.
        table: String,
        /// Length of the key in bytes.
        len: usize,
        /// Longest possible key in bytes.
        max: usize,
    },
    /// MDBX would abort the process on such a value.
    #[error(
        "table {table}, key {key}: a value of {len} bytes is too long, at most {max} are possible"
    )]
    ValueTooLong {
        /// The table.
        table: String,
        /// The key in hex.
        key: String,
        /// Length of the value in bytes.
        len: usize,
        /// Longest possible value in bytes.
        max: usize,
    },
    /// An appended key does not sort after the last one.
    #[error("table {table}: key {key} cannot be appended, it does not sort after the last key")]
    OutOfOrder {
        /// The table.
        table: String,
        /// The key in hex.
        key: String,
    },
    /// Two tables have the same id.
    #[error("table id {id:#04x} belongs to table {held}, so table {wanted} needs another one")]
    IdTaken {
        /// The id.
        id: u8,
        /// Name of the table that has it.
        held: String,
        /// Name of the table that wants it.
        wanted: String,
    },
}

/// A row that cannot be right.
#[derive(Debug, thiserror::Error)]
#[error("table {table}, key {key}: {what}; restore the datadir or import again")]
pub struct CorruptRow {
    /// The table.
    pub table: String,
    /// The key in hex.
    pub key: String,
    /// What is wrong.
    pub what: String,
}

/// The body of the block was pruned, or never stored.
#[derive(Debug, thiserror::Error)]
#[error(
    "the body of block {number} is not kept: bodies are kept from block {first} on; import the \
     chain into another datadir if you need it"
)]
pub struct PrunedBody {
    /// Number of the block.
    pub number: u64,
    /// From this block on all bodies are stored.
    pub first: u64,
}

/// Why a block cannot be stored, made canonical or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The named block is not stored.
    #[error("block {hash} is not stored; insert it first")]
    UnknownBlock {
        /// Its hash.
        hash: B256,
    },
    /// The parts of a new block do not fit together.
    #[error("block {number} ({hash}) cannot be stored: {what}")]
    BadBlock {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: B256,
        /// What does not fit.
        what: String,
    },
    /// A block does not extend the canonical chain.
    #[error("block {number} ({hash}) cannot become canonical: {what}")]
    NotLinked {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: B256,
        /// Why.
        what: String,
    },
    /// The block to remove is canonical.
    #[error("block {hash} is canonical; unwind the chain below block {number} before removing it")]
    Canonical {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: B256,
    },
}

/// Why MDBX or a file of the datadir failed: at the beginning of a transaction, in it, or at its
/// commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A write through a read-only handle.
    #[error("datadir {path} was opened read-only; open it for writing first")]
    ReadOnly {
        /// The datadir.
        path: PathBuf,
    },
    /// A thread that holds the write transaction wants another one, and would wait for itself.
    #[error("datadir {path}: this thread holds the write transaction already; end it first")]
    Nested {
        /// The datadir.
        path: PathBuf,
    },
    /// A write of this transaction failed before, so it cannot be committed.
    #[error("the write transaction was aborted because an earlier write in it failed: {reason}")]
    Aborted {
        /// The first failure.
        reason: String,
    },
    /// The limit of the memory map is reached. The transaction is lost; all earlier commits are
    /// kept.
    #[error(
        "the database in datadir {path} has reached its size limit of {limit} bytes; reopen it \
         with a larger limit (nothing committed is lost)"
    )]
    MapFull {
        /// The datadir.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// No space on the device, or a quota or file size limit is reached. The transaction is lost;
    /// all earlier commits are kept.
    #[error(
        "no space left for the database in datadir {path} ({source}) while {action}; free some \
         space or raise the limit, then start again (nothing committed is lost)"
    )]
    DiskFull {
        /// The datadir.
        path: PathBuf,
        /// What was attempted.
        action: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The map does not fit into the address space.
    #[error(
        "datadir {path}: a map of up to {limit} bytes does not fit into the address space; open \
         it with a smaller limit, or lift `ulimit -v`"
    )]
    NoAddressSpace {
        /// The datadir.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// Too many snapshots at once.
    #[error(
        "all {max} reader slots of datadir {path} are taken; close other readers or open it with \
         a larger `max_readers`"
    )]
    ReadersFull {
        /// The datadir.
        path: PathBuf,
        /// Number of slots.
        max: u64,
    },
    /// An operation on a file or directory of the datadir failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A system call of MDBX failed, for another reason than a lack of space.
    #[error("datadir {path}: {action} failed: {source}{}", device_fault(.source))]
    System {
        /// The datadir.
        path: PathBuf,
        /// What was attempted, with table and key.
        action: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Any other error of MDBX.
    #[error("datadir {path}: {action} failed: {source}")]
    Mdbx {
        /// The datadir.
        path: PathBuf,
        /// What was attempted, with table and key.
        action: String,
        /// MDBX's error.
        source: MdbxError,
    },
}

impl From<ReadError> for DbError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupt(row) => Self::Corrupt(row),
            ReadError::Pruned(body) => Self::Pruned(body),
            ReadError::Table(error) => Self::Table(error),
            ReadError::Storage(error) => Self::Storage(error),
        }
    }
}

impl ReadError {
    pub(crate) fn corrupt(table: &str, key: &[u8], what: impl fmt::Display) -> Self {
        CorruptRow::new(table, key, what).into()
    }
}

impl CorruptRow {
    pub(crate) fn new(table: &str, key: &[u8], what: impl fmt::Display) -> Self {
        Self { table: table.to_owned(), key: show_key(key), what: what.to_string() }
    }
}

impl StorageError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: std::io::Error,
    ) -> Self {
        Self::Io { action, path: path.into(), source }
    }
}

/// A key as messages show it.
pub(crate) fn show_key(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    if key.len() <= SHOWN {
        hex::encode_prefixed(key)
    } else {
        format!("{}.. ({} bytes)", hex::encode_prefixed(&key[..SHOWN]), key.len())
    }
}

/// Facts about an open environment that error messages need.
#[derive(Clone, Debug)]
pub(crate) struct ErrorContext {
    /// The datadir.
    pub(crate) path: PathBuf,
    /// Limit of the map in bytes.
    pub(crate) limit: u64,
    /// Number of reader slots.
    pub(crate) max_readers: u64,
}

impl ErrorContext {
    /// The typed error for an error of MDBX; `action` reads as in "while writing table X".
    pub(crate) fn error(&self, action: impl Into<String>, source: MdbxError) -> StorageError {
        let path = self.path.clone();
        match source {
            MdbxError::MapFull => StorageError::MapFull { path, limit: self.limit },
            MdbxError::ReadersFull => StorageError::ReadersFull { path, max: self.max_readers },
            MdbxError::UnableExtendMapSize | MdbxError::TooLarge => {
                StorageError::NoAddressSpace { path, limit: self.limit }
            }
            MdbxError::Access => StorageError::ReadOnly { path },
            MdbxError::BotchedTransaction => StorageError::Aborted { reason: source.to_string() },
            MdbxError::Other(code) if code > 0 => {
                let (action, source) = (action.into(), std::io::Error::from_raw_os_error(code));
                match no_room(&path, source) {
                    Ok(source) => StorageError::DiskFull { path, action, source },
                    Err(source) => StorageError::System { path, action, source },
                }
            }
            source => StorageError::Mdbx { path, action: action.into(), source },
        }
    }
}

/// EIO, the error of a device that cannot read or write, on every Unix.
const DEVICE_FAULT: i32 = 5;

/// `Ok` with the system's error for a lack of space, if that is the cause of `error`; else `Err`
/// with `error`.
///
/// MDBX reports EIO also when a write was cut short. The last write before a disk is full often is,
/// as its first pages still fit. So on EIO this function tries to write a small file.
fn no_room(datadir: &Path, error: io::Error) -> Result<io::Error, io::Error> {
    if is_no_room(&error) {
        return Ok(error);
    }
    if error.raw_os_error() != Some(DEVICE_FAULT) {
        return Err(error);
    }
    match ask_for_room(datadir) {
        Err(refused) if is_no_room(&refused) => Ok(refused),
        _ => Err(error),
    }
}

fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// Writes an unnamed file, which is removed at once.
fn ask_for_room(datadir: &Path) -> io::Result<()> {
    const ROOM: usize = 1 << 20;
    let mut file = tempfile::tempfile_in(datadir)?;
    file.write_all(&vec![1; ROOM])?;
    file.sync_all()
}

fn device_fault(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(DEVICE_FAULT) {
        "; the device it lies on cannot read or write: look at the system's log and check the disk"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> ErrorContext {
        ErrorContext { path: "/data".into(), limit: 4096, max_readers: 3 }
    }

    #[test]
    fn every_way_of_running_out_of_room_says_what_to_do() {
        let full = context().error("writing", MdbxError::MapFull);
        assert!(matches!(full, StorageError::MapFull { limit: 4096, .. }));
        assert!(full.to_string().contains("larger limit"), "{full}");
        #[cfg(target_os = "linux")]
        for code in [28, 122, 27] {
            // ENOSPC, EDQUOT, EFBIG
            let full = context().error("writing table X", MdbxError::Other(code));
            assert!(matches!(full, StorageError::DiskFull { .. }), "{full:?}");
            let text = full.to_string();
            assert!(text.contains("/data") && text.contains("free some space"), "{text}");
        }
        let other = context().error("writing", MdbxError::Problem);
        assert!(matches!(other, StorageError::Mdbx { .. }), "{other:?}");
    }

    #[test]
    fn a_fault_of_the_device_is_called_so_and_others_have_the_words_of_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let context = ErrorContext { path: dir.path().to_owned(), ..context() };
        let fault = context.error("committing", MdbxError::Other(5));
        assert!(matches!(fault, StorageError::System { .. }), "{fault:?}");
        let text = fault.to_string();
        let words = [dir.path().to_str().unwrap(), "committing", "nput/output error", "the disk"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
        let other = context.error("committing", MdbxError::Other(1)).to_string();
        assert!(other.contains("not permitted") && !other.contains("unknown"), "{other}");
    }

    #[test]
    fn long_keys_are_shortened_in_messages() {
        assert_eq!(show_key(&[1, 2]), "0x0102");
        assert!(show_key(&[0; 100]).ends_with(".. (100 bytes)"));
    }
}
