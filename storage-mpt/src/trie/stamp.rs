//! The stamp: the version of a row that a link names.

use retrie_state::wire::{WireReader, put_varint};
use std::fmt;

/// The version of a branch's row, which a link stores beside the branch's path and reference to
/// find the row. The trie carries it along and does not interpret it, and no hash depends on it.
///
/// `()` is for tries with one row a path, like [`Mpt`](crate::Mpt). `u64` is for tries that keep
/// old versions of their rows: the number of the block that wrote the row.
///
/// A leaf has a stamp too, for stores whose values name other rows: a leaf of the account trie
/// names the row of the storage trie's root. Leaves that name no row have the default stamp.
///
/// Stamps are ordered as rows are written: no link is older than the row that it names.
pub trait RowStamp: Copy + Default + Ord + fmt::Debug + Send + Sync + 'static {
    /// Upper bound of the bytes that [`put`](Self::put) appends.
    const MAX_LEN: usize;

    /// Whether a path may have several rows: then values of leaves are packed.
    const HAS_VERSIONS: bool;

    /// Appends the stamp to the key of the branch's own row.
    fn extend_key(self, key: &mut Vec<u8>);

    /// Appends the stamp to the row that links to the branch.
    fn put(self, row: &mut Vec<u8>);

    /// Reads [`put`](Self::put)'s bytes back; `None` if they are not canonical.
    fn take(row: &mut WireReader<'_>) -> Option<Self>;
}

impl RowStamp for () {
    const MAX_LEN: usize = 0;
    const HAS_VERSIONS: bool = false;

    fn extend_key(self, _: &mut Vec<u8>) {}

    fn put(self, _: &mut Vec<u8>) {}

    fn take(_: &mut WireReader<'_>) -> Option<Self> {
        Some(())
    }
}

/// Big-endian in keys, so that the rows of a path are sorted by block; a varint in rows.
impl RowStamp for u64 {
    const MAX_LEN: usize = 10;
    const HAS_VERSIONS: bool = true;

    fn extend_key(self, key: &mut Vec<u8>) {
        key.extend_from_slice(&self.to_be_bytes());
    }

    fn put(self, row: &mut Vec<u8>) {
        put_varint(row, self);
    }

    fn take(row: &mut WireReader<'_>) -> Option<Self> {
        row.varint().ok()
    }
}
