//! The key-value view that backends use, and the durable store underneath.
//!
//! ```text
//!  backend  --NodeRead/NodeWrite-->  overlay of proposals
//!                                       | undo (reverse overlay), counters
//!                                    journalled generations in memory
//!                                       | background fold
//!                                    KvStore: MDBX (crates/chain/db) or memory
//! ```

use crate::{StateError, StoreError};
use alloy_primitives::{B256, Bytes};
use std::{path::Path, sync::Arc};

/// A named table of rows. Ids are unique within one store; ids from [`RowTable::FRAMEWORK`] up
/// belong to the framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowTable {
    /// Small number that stands for the table in journal and undo rows.
    pub id: u8,
    /// Name on disk and in messages.
    pub name: &'static str,
}

impl RowTable {
    /// First id of the framework's own tables.
    pub const FRAMEWORK: u8 = 0xf0;

    /// A backend's table.
    ///
    /// # Panics
    /// At compile time, when the id belongs to the framework.
    pub const fn new(id: u8, name: &'static str) -> Self {
        assert!(id < Self::FRAMEWORK, "this id belongs to the framework");
        Self { id, name }
    }

    /// A table of the framework itself.
    ///
    /// # Panics
    /// At compile time, when the id belongs to backends.
    pub const fn framework(id: u8, name: &'static str) -> Self {
        assert!(id >= Self::FRAMEWORK);
        Self { id, name }
    }
}

/// Direction of a range read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanDirection {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// A half-open range of keys `start..end`; `end` `None` is unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// First key that belongs to the range.
    pub start: &'a [u8],
    /// First key beyond it.
    pub end: Option<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// Every key.
    pub const ALL: KeyRange<'static> = KeyRange { start: &[], end: None };

    /// The range `start..end`.
    pub const fn new(start: &'a [u8], end: &'a [u8]) -> Self {
        Self { start, end: Some(end) }
    }

    /// From `start` on.
    pub const fn from(start: &'a [u8]) -> Self {
        Self { start, end: None }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start && self.end.is_none_or(|end| key < end)
    }
}

/// First key beyond all keys that start with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// One row of a range read.
pub type TableRow = (Bytes, Bytes);

/// The rows of a range read, read lazily.
pub type RowScan<'a> = Box<dyn Iterator<Item = Result<TableRow, StateError>> + 'a>;

/// Reads of one consistent state of all tables.
pub trait NodeRead: Send + Sync {
    /// The value of `key`.
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError>;

    /// The rows of `range` in `direction`.
    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError>;

    /// The same state as an owned view, for a [job](crate::BackgroundJob) that outlives this call;
    /// on a view that is being written, the state of the parent. `None` if the view cannot be
    /// detached; the framework's views always can.
    ///
    /// It holds a snapshot of the store. A snapshot held for long keeps MDBX from reusing pages.
    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        None
    }
}

/// Writes of one block onto a [`NodeRead`]; reads see them at once.
pub trait NodeWrite: NodeRead {
    /// Sets `key`, which has at most 1,024 bytes. The framework reads the value it had, for undo.
    fn put(&mut self, table: RowTable, key: &[u8], value: Bytes) -> Result<(), StateError>;

    /// Removes `key`; removing an absent key is allowed and changes nothing.
    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<(), StateError>;

    /// As [`put`](Self::put) (or [`delete`](Self::delete) for `next = None`) when the caller has
    /// just read `previous` from this view: it saves the framework a read.
    fn replace(
        &mut self,
        table: RowTable,
        key: &[u8],
        previous: Option<Bytes>,
        next: Option<Bytes>,
    ) -> Result<(), StateError>;

    /// Makes an immutable file of the state directory part of the state from this block on. The
    /// file must be complete and fsynced when the block is committed (commit fails if it is
    /// missing). Its content must follow from its name, as sibling and repeated blocks share the
    /// file. Name it after the digest of its content and the block that publishes it: a retired
    /// name must not be used again.
    fn publish_file(&mut self, name: &str) -> Result<(), StateError>;

    /// Ends the life of a file at this block. It is deleted once no retained block can need it. A
    /// cache that reads it keeps it open, as readers may live longer.
    fn retire_file(&mut self, name: &str) -> Result<(), StateError>;

    /// The view for reading only.
    fn as_read(&self) -> &dyn NodeRead;
}

/// Sorts records by key for a bulk load. Records beyond a bounded amount of memory are kept in
/// temporary files until the sorter is dropped.
pub trait BulkSorter {
    /// Adds a record, in any order.
    ///
    /// # Errors
    /// If a temporary file cannot be written.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError>;

    /// All keys and values in the order of keys; a record that came twice is returned once.
    ///
    /// # Errors
    /// If a file cannot be read, or a key came with two values. The iterator may fail for the same
    /// reasons.
    fn sorted(&mut self) -> Result<SortedRecords<'_>, StateError>;
}

/// Keys and values of a [`BulkSorter`].
pub type SortedRecords<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>), StateError>> + 'a>;

/// Writes the initial state straight into the tables.
pub trait BulkSink {
    /// Adds a row. Keys of one table must come in ascending order.
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StateError>;

    /// Adds a row of a table whose keys come in any order; such a table takes no rows by
    /// [`put`](Self::put). The same row may come twice. Rows beyond a bounded amount of memory are
    /// kept in temporary files until the end of the load.
    fn put_unordered(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError>;

    /// A sorter for records that the load itself needs in order.
    fn sorter(&self) -> Box<dyn BulkSorter>;

    /// The code of this keccak-256, which an account of the load has. Only backends that [need
    /// codes](crate::BackendProfile::needs_codes) ask; `None` if the caller of the load has no such
    /// code.
    ///
    /// # Errors
    /// If the code cannot be read.
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        let _ = hash;
        Ok(None)
    }

    /// The state directory, for files that the load itself writes; `None` without one.
    fn dir(&self) -> Option<&Path> {
        None
    }

    /// As [`NodeWrite::publish_file`].
    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        Err(StoreError::new(format!("publishing the state file {name}"), "no files here").into())
    }
}
