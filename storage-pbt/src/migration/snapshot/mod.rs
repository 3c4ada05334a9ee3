//! The snapshot: all leaves of a tree in the order of their keys, in one of three layouts.
//!
//! ```text
//!  rlp     root (32) | number of leaves (8) | RLP [key, value] ...
//!  counts  root (32) | n (8) | headers | n (8) | code groups | n (8) | storages
//!  tagged  tag (1), record, tag, record, ... | 7 | root (32)
//!
//!  header      path (32) | nonce | balance | kind (1) | code | m (1) | (slot (1) | value) * m
//!  code        kind 0: nothing; 1: code hash (32) | size; 2: target of the delegation (20)
//!  code group  path (32) | m - 1 (1) | (sub-index (1) | value) * m
//!  storage     path of the account (32) | number of groups | groups, which are as code groups
//!  nonce, balance, size, value, number of groups: its length (1), big-endian without leading zeros
//! ```
//!
//! `tagged` has neither `kind` nor numbers of records. Its tags are 0, 1, 2 for headers by kind, 3 for a
//! code group, 4 for a storage (its path alone), 5 for a group of slots with one leaf (without `m - 1`),
//! 6 for a longer one, 7 for the end.

mod record;
mod rlp;
mod typed;
mod writer;

pub use writer::{GroupCounts, SnapshotTotals, SnapshotWriter};

use super::{FileDigest, MigrationError, MigrationFile, TreeKey, TreeLeaf, file::DigestReader};
use alloy_primitives::B256;
use std::{collections::VecDeque, fmt, io::Read, str::FromStr};
use typed::{CountsReader, TaggedReader};

/// How a snapshot is written. EIP-8347 is a draft, whose layout has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotLayout {
    /// A list for each leaf, as in the text of August 2026.
    Rlp,
    /// Records by account and group, with their numbers in front: the first proposal to replace `rlp`.
    Counts,
    /// Records with tags: the later proposal.
    #[default]
    Tagged,
}

impl SnapshotLayout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Rlp, Self::Counts, Self::Tagged];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rlp => "rlp",
            Self::Counts => "counts",
            Self::Tagged => "tagged",
        }
    }
}

impl fmt::Display for SnapshotLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SnapshotLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| format!("there is no layout `{text}`: it is rlp, counts or tagged"))
    }
}

/// Reads the leaves of a snapshot in the order of their keys, and refuses all bytes that a writer would
/// not have written for them.
///
/// A record is at most a header or a group, so it takes little memory.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    file: DigestReader<R>,
    layout: LayoutReader,
    /// Leaves of the last record.
    ready: VecDeque<TreeLeaf>,
    last: Option<TreeKey>,
    leaves: u64,
    /// Whether the front of the file has been read.
    begun: bool,
    /// The root that the file has, once it is read.
    root: B256,
}

#[derive(Debug)]
enum LayoutReader {
    Rlp { leaves: u64 },
    Counts(CountsReader),
    Tagged(TaggedReader),
}

/// What a snapshot says, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// The root that it claims.
    pub root: B256,
    /// The number of its leaves.
    pub leaves: u64,
    /// The file.
    pub file: FileDigest,
}

impl<R: Read> SnapshotReader<R> {
    /// A reader of the file with these bytes. Nothing is read yet.
    pub fn new(layout: SnapshotLayout, input: R) -> Self {
        let layout = match layout {
            SnapshotLayout::Rlp => LayoutReader::Rlp { leaves: 0 },
            SnapshotLayout::Counts => LayoutReader::Counts(CountsReader::default()),
            SnapshotLayout::Tagged => LayoutReader::Tagged(TaggedReader::default()),
        };
        Self {
            file: DigestReader::new(MigrationFile::Snapshot, input),
            layout,
            ready: VecDeque::new(),
            last: None,
            leaves: 0,
            begun: false,
            root: B256::ZERO,
        }
    }

    /// The next leaf; `None` at the end.
    ///
    /// # Errors
    /// If the file cannot be read, or is not canonical. The reader cannot be used any more.
    pub fn next_leaf(&mut self) -> Result<Option<TreeLeaf>, MigrationError> {
        while self.ready.is_empty() {
            if !self.next_record()? {
                return Ok(None);
            }
        }
        let Some(leaf) = self.ready.pop_front() else { return Ok(None) };
        let place = self.file.place();
        if leaf.value.is_zero() {
            return Err(MigrationError::ZeroValue { place, key: leaf.key });
        }
        let last = self.last.replace(leaf.key);
        super::check_order(place, last, leaf.key, || leaf.key.to_string())?;
        self.leaves += 1;
        Ok(Some(leaf))
    }

    /// Number of leaves so far.
    pub const fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Reads the leaves of the next record, if there is one.
    fn next_record(&mut self) -> Result<bool, MigrationError> {
        if !std::mem::replace(&mut self.begun, true)
            && !matches!(self.layout, LayoutReader::Tagged(_))
        {
            self.root = self.file.hash()?;
            if let LayoutReader::Rlp { leaves } = &mut self.layout {
                *leaves = self.file.u64()?;
            }
        }
        match &mut self.layout {
            LayoutReader::Rlp { leaves } => {
                let (claimed, found) = (*leaves, self.leaves);
                self.file.begin();
                if found == claimed {
                    return Ok(false);
                }
                if self.file.is_at_end()? {
                    return Err(MigrationError::LeafCount { claimed, found });
                }
                self.ready.push_back(rlp::read(&mut self.file)?);
                Ok(true)
            }
            LayoutReader::Counts(reader) => reader.next_record(&mut self.file, &mut self.ready),
            LayoutReader::Tagged(reader) => {
                let is_record = reader.next_record(&mut self.file, &mut self.ready)?;
                if let Some(root) = reader.root {
                    self.root = root;
                }
                Ok(is_record)
            }
        }
    }

    /// Reads on to the end, and returns what the file is.
    ///
    /// # Errors
    /// As [`next_leaf`](Self::next_leaf); [`MigrationError::TrailingBytes`].
    pub fn finish(mut self) -> Result<SnapshotSummary, MigrationError> {
        while self.next_leaf()?.is_some() {}
        let Self { file, leaves, root, .. } = self;
        Ok(SnapshotSummary { root, leaves, file: file.finish()? })
    }
}
