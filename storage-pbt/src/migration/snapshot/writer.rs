//! Writing a snapshot.

use super::{
    SnapshotLayout,
    record::{put_group, put_header, put_number},
    rlp,
    typed::{CODE_GROUP, END, ONE_SLOT, SLOT_GROUP, STORAGE},
};
use crate::{
    key::{CODE_ZONE, HEADER_ZONE},
    migration::{
        FileDigest, MigrationError, MigrationFile, TreeKey, TreeLeaf, file::DigestWriter,
        leaf::HeaderLeaves,
    },
};
use alloy_primitives::B256;
use retrie_state::StateError;
use std::{fmt, io::Write};

/// What a snapshot has, which some layouts say at the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTotals {
    /// The root of the tree.
    pub root: B256,
    /// Leaves.
    pub leaves: u64,
    /// Accounts.
    pub headers: u64,
    /// Groups of code chunks.
    pub code_groups: u64,
    /// Accounts with slots outside of their headers.
    pub storages: u64,
}

/// The number of groups of each storage, in order; the layout `counts` has it in front of them.
pub type GroupCounts<'a> = Box<dyn Iterator<Item = Result<u64, StateError>> + 'a>;

/// Writes a snapshot. The caller gives the leaves in the order of their keys, and what they are in total.
pub struct SnapshotWriter<'a, W: Write> {
    out: DigestWriter<W>,
    layout: SnapshotLayout,
    totals: SnapshotTotals,
    groups: GroupCounts<'a>,
    /// The last leaf, and all before it with the same stem.
    last: Option<TreeKey>,
    header: HeaderLeaves,
    group: Vec<(u8, B256)>,
    /// The account whose storage was begun last.
    storage: Option<B256>,
    section: usize,
    record: Vec<u8>,
}

impl<W: Write> fmt::Debug for SnapshotWriter<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { out, layout, totals, .. } = self;
        let mut all = f.debug_struct("SnapshotWriter");
        all.field("out", out).field("layout", layout).field("totals", totals);
        all.finish_non_exhaustive()
    }
}

impl<'a, W: Write> SnapshotWriter<'a, W> {
    /// Begins a snapshot. Only the layout `counts` reads `groups`.
    ///
    /// # Errors
    /// If the file cannot be written; so for all methods.
    pub fn new(
        layout: SnapshotLayout,
        out: W,
        totals: SnapshotTotals,
        groups: GroupCounts<'a>,
    ) -> Result<Self, MigrationError> {
        let mut out = DigestWriter::new(MigrationFile::Snapshot, out);
        if layout != SnapshotLayout::Tagged {
            out.put(&totals.root[..])?;
        }
        match layout {
            SnapshotLayout::Rlp => out.put(&totals.leaves.to_be_bytes())?,
            SnapshotLayout::Counts => out.put(&totals.headers.to_be_bytes())?,
            SnapshotLayout::Tagged => {}
        }
        Ok(Self {
            out,
            layout,
            totals,
            groups,
            last: None,
            header: HeaderLeaves::default(),
            group: Vec::new(),
            storage: None,
            section: 0,
            record: Vec::new(),
        })
    }

    /// Adds a leaf.
    ///
    /// # Errors
    /// [`MigrationError::EmptyAccount`] in a typed layout; if the leaves of a header make no account.
    pub fn push(&mut self, leaf: &TreeLeaf) -> Result<(), MigrationError> {
        if self.layout == SnapshotLayout::Rlp {
            self.record.clear();
            rlp::encode(leaf, &mut self.record);
            return self.out.put(&self.record);
        }
        if self.last.is_some_and(|last| last.stem() != leaf.key.stem()) {
            self.put_record()?;
        }
        if leaf.key.zone() == HEADER_ZONE {
            if self.last.is_none() {
                self.header = HeaderLeaves::new(leaf.key.path());
            }
            self.header.push(leaf);
        } else {
            self.group.push((leaf.key.sub(), leaf.value));
        }
        self.last = Some(leaf.key);
        Ok(())
    }

    /// Writes the record of the last stem.
    fn put_record(&mut self) -> Result<(), MigrationError> {
        let Some(key) = self.last.take() else { return Ok(()) };
        let is_tagged = self.layout == SnapshotLayout::Tagged;
        self.record.clear();
        match key.zone() {
            HEADER_ZONE => {
                let account = self.header.account()?;
                let HeaderLeaves { path, slots, .. } = &self.header;
                if account.is_empty() {
                    return Err(MigrationError::EmptyAccount { account: *path });
                }
                put_header(&mut self.record, path, &account, slots, is_tagged);
            }
            CODE_ZONE => {
                self.begin_section(1)?;
                if is_tagged {
                    self.record.push(CODE_GROUP);
                }
                put_group(&mut self.record, &key.path(), &self.group, false);
            }
            _ => {
                self.begin_section(2)?;
                self.begin_storage(key.path())?;
                let is_one = is_tagged && self.group.len() == 1;
                if is_tagged {
                    self.record.push(if is_one { ONE_SLOT } else { SLOT_GROUP });
                }
                put_group(&mut self.record, &key.group(), &self.group, is_one);
            }
        }
        self.group.clear();
        self.out.put(&self.record)
    }

    /// Writes the numbers of records of the sections up to this one: 1 for code, 2 for storage.
    fn begin_section(&mut self, section: usize) -> Result<(), MigrationError> {
        while self.section < section {
            self.section += 1;
            let count =
                if self.section == 1 { self.totals.code_groups } else { self.totals.storages };
            if self.layout == SnapshotLayout::Counts {
                self.out.put(&count.to_be_bytes())?;
            }
        }
        Ok(())
    }

    fn begin_storage(&mut self, path: B256) -> Result<(), MigrationError> {
        if self.storage.replace(path) == Some(path) {
            return Ok(());
        }
        if self.layout == SnapshotLayout::Tagged {
            self.record.push(STORAGE);
            self.record.extend_from_slice(&path[..]);
            return Ok(());
        }
        let groups = self.groups.next().transpose()?.ok_or_else(|| {
            let what = format!("the number of groups of storage {path} is not known");
            StateError::corrupt("snapshot", what)
        })?;
        self.record.extend_from_slice(&path[..]);
        put_number(&mut self.record, &groups.to_be_bytes());
        Ok(())
    }

    /// Gives all bytes to the writer below, and returns it with the file's digest.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(mut self) -> Result<(FileDigest, W), MigrationError> {
        self.put_record()?;
        self.begin_section(2)?;
        if self.layout == SnapshotLayout::Tagged {
            self.out.put(&[END])?;
            self.out.put(&self.totals.root[..])?;
        }
        self.out.finish()
    }
}
