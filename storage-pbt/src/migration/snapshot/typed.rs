//! Reading both typed layouts: which record may come next.

use super::{
    super::{MigrationError, TreeLeaf, check_order, file::DigestReader},
    record::{CODE, DELEGATION, NO_CODE, group_count, read_group, read_header},
};
use crate::hash::MAX_KEY_LEN;
use alloy_primitives::{B256, hex};
use std::{collections::VecDeque, io::Read};

/// The stems of headers and groups, which must ascend: else a stem could come in two records.
#[derive(Debug, Default)]
struct StemOrder {
    last: Option<[u8; MAX_KEY_LEN]>,
    storage: Option<B256>,
}

impl StemOrder {
    fn group<R: Read>(
        &mut self,
        file: &mut DigestReader<R>,
        account: Option<&B256>,
        is_one: bool,
        ready: &mut VecDeque<TreeLeaf>,
    ) -> Result<(), MigrationError> {
        let stem = read_group(file, account, is_one, ready)?;
        let last = self.last.replace(stem);
        let len = if account.is_some() { MAX_KEY_LEN - 1 } else { 33 };
        check_order(file.place(), last, stem, || {
            format!("group {}", hex::encode_prefixed(&stem[..len]))
        })
    }

    fn header<R: Read>(
        &mut self,
        file: &mut DigestReader<R>,
        tag: Option<u8>,
        ready: &mut VecDeque<TreeLeaf>,
    ) -> Result<(), MigrationError> {
        let path = read_header(file, tag, ready)?;
        let mut stem = [0; MAX_KEY_LEN];
        stem[1..33].copy_from_slice(&path[..]);
        let last = self.last.replace(stem);
        check_order(file.place(), last, stem, || format!("header {path}"))
    }

    fn storage(
        &mut self,
        file: &DigestReader<impl Read>,
        path: B256,
    ) -> Result<(), MigrationError> {
        let last = self.storage.replace(path);
        check_order(file.place(), last, path, || format!("storage {path}"))
    }
}

/// Reads the layout `counts`.
#[derive(Debug, Default)]
pub(super) struct CountsReader {
    stems: StemOrder,
    section: CountsSection,
    /// Records that are left of the section.
    left: u64,
    /// Groups that are left of the last storage.
    groups: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CountsSection {
    #[default]
    Start,
    Headers,
    Codes,
    Storages,
}

impl CountsReader {
    /// Reads the next record with leaves, if there is one.
    pub(super) fn next_record<R: Read>(
        &mut self,
        file: &mut DigestReader<R>,
        ready: &mut VecDeque<TreeLeaf>,
    ) -> Result<bool, MigrationError> {
        file.begin();
        if self.groups > 0 {
            self.groups -= 1;
            let storage = self.stems.storage;
            self.stems.group(file, storage.as_ref(), false, ready)?;
            return Ok(true);
        }
        while self.left == 0 {
            self.section = match self.section {
                CountsSection::Start => CountsSection::Headers,
                CountsSection::Headers => CountsSection::Codes,
                CountsSection::Codes => CountsSection::Storages,
                CountsSection::Storages => return Ok(false),
            };
            self.left = file.u64()?;
            file.begin();
        }
        self.left -= 1;
        match self.section {
            CountsSection::Start => {}
            CountsSection::Headers => self.stems.header(file, None, ready)?,
            CountsSection::Codes => self.stems.group(file, None, false, ready)?,
            CountsSection::Storages => {
                let (place, account) = (file.place(), file.hash()?);
                self.stems.storage(file, account)?;
                let groups = group_count(file)?;
                self.groups =
                    groups.checked_sub(1).ok_or(MigrationError::EmptyStorage { place, account })?;
                file.begin();
                self.stems.group(file, Some(&account), false, ready)?;
            }
        }
        Ok(true)
    }
}

/// The tags of the layout `tagged`, beside those of headers.
pub(super) const CODE_GROUP: u8 = 3;
pub(super) const STORAGE: u8 = 4;
pub(super) const ONE_SLOT: u8 = 5;
pub(super) const SLOT_GROUP: u8 = 6;
pub(super) const END: u8 = 7;

/// Reads the layout `tagged`.
#[derive(Debug, Default)]
pub(super) struct TaggedReader {
    stems: StemOrder,
    last: TagSection,
    /// The root, once it is read.
    pub(super) root: Option<B256>,
}

/// What came last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum TagSection {
    #[default]
    Headers,
    Codes,
    /// A storage without groups so far.
    Storage,
    Slots,
}

impl TaggedReader {
    /// Reads the next record, if there is one.
    pub(super) fn next_record<R: Read>(
        &mut self,
        file: &mut DigestReader<R>,
        ready: &mut VecDeque<TreeLeaf>,
    ) -> Result<bool, MigrationError> {
        if self.root.is_some() {
            return Ok(false);
        }
        let place = file.begin();
        let tag = file.byte()?;
        if self.last == TagSection::Storage
            && !matches!(tag, ONE_SLOT | SLOT_GROUP)
            && let Some(account) = self.stems.storage
        {
            return Err(MigrationError::EmptyStorage { place, account });
        }
        let section = match tag {
            NO_CODE | CODE | DELEGATION => TagSection::Headers,
            CODE_GROUP => TagSection::Codes,
            STORAGE => TagSection::Storage,
            ONE_SLOT | SLOT_GROUP => TagSection::Slots,
            END => {
                self.root = Some(file.hash()?);
                return Ok(false);
            }
            tag => return Err(MigrationError::UnknownTag { place, tag }),
        };
        let is_right = match section {
            TagSection::Headers | TagSection::Codes => self.last <= section,
            TagSection::Storage => true,
            TagSection::Slots => self.last >= TagSection::Storage,
        };
        if !is_right {
            return Err(MigrationError::TagOrder { place, tag });
        }
        self.last = section;
        match section {
            TagSection::Headers => self.stems.header(file, Some(tag), ready)?,
            TagSection::Codes => self.stems.group(file, None, false, ready)?,
            TagSection::Storage => {
                let path = file.hash()?;
                self.stems.storage(file, path)?;
            }
            TagSection::Slots => {
                let storage = self.stems.storage;
                self.stems.group(file, storage.as_ref(), tag == ONE_SLOT, ready)?;
                if tag == SLOT_GROUP && ready.len() == 1 {
                    return Err(MigrationError::GroupForm { place });
                }
            }
        }
        Ok(true)
    }
}
