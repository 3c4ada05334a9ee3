//! The key-value view backends are written against, and the durable store underneath.
//!
//! ```text
//!  backend  --NodeRead/NodeWrite-->  overlay of proposals
//!                                       | undo (reverse overlay), counters
//!                                    journalled generations in memory
//!                                       | background fold
//!                                    KvStore: MDBX (crates/db) or memory
//! ```

use crate::{StateError, StoreError};
use alloy_primitives::Bytes;
use std::{path::Path, sync::Arc};

/// A named table. Ids are unique within one store; ids from [`Table::FRAMEWORK`] up belong to the
/// framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Small number that stands for the table in journal and undo rows.
    pub id: u8,
    /// Name on disk and in messages.
    pub name: &'static str,
}

impl Table {
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

    pub(crate) const fn framework(id: u8, name: &'static str) -> Self {
        assert!(id >= Self::FRAMEWORK);
        Self { id, name }
    }
}

/// Direction of a range read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
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
pub type Row = (Bytes, Bytes);

/// Rows of a range read, lazily.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, StateError>> + 'a>;

/// Reads of one consistent state of all tables.
pub trait NodeRead: Send + Sync {
    /// The value of `key`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError>;

    /// The rows of `range` in `direction`.
    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError>;

    /// The same state on its own, for a [job](crate::Job) that outlives this call; on a view that
    /// is being written, the state of the parent. `None` if the view has no life of its own, which
    /// the framework's views always have.
    ///
    /// It holds a snapshot of the store, and a snapshot held for long keeps MDBX from reusing pages.
    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        None
    }
}

/// Writes of one block onto a [`NodeRead`]; reads see them at once.
pub trait NodeWrite: NodeRead {
    /// Sets `key`, which has at most 1,024 bytes. The framework reads the value it had, for undo.
    fn put(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError>;

    /// Removes `key`; removing an absent key is allowed and leaves no trace.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StateError>;

    /// As [`put`](Self::put) (or [`delete`](Self::delete) for `next = None`) when the caller has
    /// just read `previous` from this view: saves the framework that read.
    fn replace(
        &mut self,
        table: Table,
        key: &[u8],
        previous: Option<Bytes>,
        next: Option<Bytes>,
    ) -> Result<(), StateError>;

    /// Names an immutable file of the state directory as belonging to the state from this block on.
    /// It must be complete and fsynced when the block is committed (commit refuses it if it is not
    /// there), and its content follow from its name: siblings and repeated blocks share it. Name
    /// it after the digest of its content and the block that publishes it: a name that was retired
    /// must not come back.
    fn publish_file(&mut self, name: &str) -> Result<(), StateError>;

    /// Ends the life of a file at this block. It is deleted once no retained block can need it; a
    /// cache that reads it keeps it open, as readers may live longer than that.
    fn retire_file(&mut self, name: &str) -> Result<(), StateError>;

    /// Access for reading alone.
    fn as_read(&self) -> &dyn NodeRead;
}

/// Takes the initial state, straight into the tables.
pub trait BulkSink {
    /// Adds a row. Keys of one table must come in ascending order.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError>;

    /// Adds a row of a table whose keys come in any order; that table takes no rows by
    /// [`put`](Self::put). The same row may come twice. Rows beyond a bounded amount of memory wait
    /// in temporary files for the end of the load.
    fn put_unordered(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError>;

    /// The state directory, for files that the load itself writes; `None` without one.
    fn dir(&self) -> Option<&Path> {
        None
    }

    /// As [`NodeWrite::publish_file`].
    fn publish_file(&mut self, name: &str) -> Result<(), StateError> {
        Err(StoreError::new(format!("publishing the state file {name}"), "no files here").into())
    }
}

/// Refuses names that could lead out of the state directory.
pub(crate) fn check_file_name(name: &str) -> Result<(), StateError> {
    let plain = !name.is_empty()
        && name.len() <= 200
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !name.starts_with('.');
    if plain {
        return Ok(());
    }
    let what = "file names are 1 to 200 letters, digits, '.', '_' or '-', and start with no '.'";
    Err(StoreError::new(format!("naming the state file {name:?}"), what).into())
}
