//! What a link says of a row beside its path.

use retrie_state::wire::{WireReader, put_varint};
use std::fmt;

/// What a link says beside a branch's path and reference: enough to find the branch's row. The trie
/// carries it along and never looks at it, and no hash depends on it.
///
/// `()` is for tries that have one row a path, as [`Mpt`](crate::Mpt) has. `u64` is for tries that
/// keep old versions of their rows: the block that wrote the row.
///
/// Leaves bear one too, for stores in which a value leads to rows elsewhere: in an account trie, to the
/// row of the storage trie's root. The default is for those that lead nowhere.
///
/// Their order is that in which rows are written: no link is older than the row that it leads to.
pub trait Stamp: Copy + Default + Ord + fmt::Debug + Send + Sync + 'static {
    /// Most bytes that [`put`](Self::put) appends.
    const MAX_LEN: usize;

    /// Whether a path may have several rows, so that one can be given as a change of an older one.
    const HAS_VERSIONS: bool;

    /// Appends it to the key of the branch's own row.
    fn extend_key(self, key: &mut Vec<u8>);

    /// Appends it to the row of whatever links to the branch.
    fn put(self, row: &mut Vec<u8>);

    /// Reads [`put`](Self::put)'s bytes back; `None` if they are not canonical.
    fn take(row: &mut WireReader<'_>) -> Option<Self>;
}

impl Stamp for () {
    const MAX_LEN: usize = 0;
    const HAS_VERSIONS: bool = false;

    fn extend_key(self, _: &mut Vec<u8>) {}

    fn put(self, _: &mut Vec<u8>) {}

    fn take(_: &mut WireReader<'_>) -> Option<Self> {
        Some(())
    }
}

/// Big-endian in keys, so that the rows of a path stand in the order of their blocks; a varint in
/// rows.
impl Stamp for u64 {
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
