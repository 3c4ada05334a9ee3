//! Runs: immutable sorted files of pairs, with a learned index, Merkle trees and a filter (COLE,
//! section 4).
//!
//! | module | what |
//! |---|---|
//! | `file` | files of checked pages |
//! | `entry`, `page`, `values` | pairs against their neighbours, in pages; the walk over all |
//! | `model`, `index` | where a key is |
//! | `merkle` | the trees over pairs and filter |
//! | `filter` | which keys are not there |
//! | `info`, `build` | description of a run; how it is written |
//! | `show`, `check`, `merge` | parts of the trees for proofs; the check of everything; several runs into one |

mod build;
mod check;
mod entry;
mod file;
mod filter;
mod index;
mod info;
mod merge;
mod merkle;
mod model;
mod page;
mod show;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use build::RunBuilder;
pub(crate) use info::{RunInfo, file_names};
pub(crate) use merge::{Cutoff, merge};
pub(crate) use values::Cursor;

use crate::{
    filter::{block_of, may_hold},
    tree::Pair,
};
use alloy_primitives::Bytes;
use file::PagedFile;
use merkle::Shape;
use retrie_state::StateError;
use std::path::Path;
use values::Values;

/// An open run. Reads check what they read: damage is an error that names the file.
#[derive(Debug)]
pub(crate) struct Run {
    info: RunInfo,
    values: Values,
    index: PagedFile,
    merkle: PagedFile,
    filter: PagedFile,
    tree: Shape,
    filter_tree: Shape,
}

impl Run {
    /// Opens the files of a run in `dir`, which must be the one described.
    pub(crate) fn open(dir: &Path, info: RunInfo) -> Result<Self, StateError> {
        let (names, pages) = (info.file_names(), info.pages());
        let open = |n: usize| PagedFile::open(dir, &names[n], pages[n]);
        let values = open(0)?;
        if RunInfo::read(dir, &info.stem)?.as_ref() != Some(&info) {
            return Err(values.wrong("it is not the run that the database says"));
        }
        Ok(Self {
            values: Values::new(values),
            index: open(1)?,
            merkle: open(2)?,
            filter: open(3)?,
            tree: info.tree(),
            filter_tree: info.filter_tree(),
            info,
        })
    }

    /// Fails unless every page of every file is as it was written.
    pub(crate) fn check_pages(&self) -> Result<(), StateError> {
        let check = |file: &PagedFile| {
            (0..file.pages()).try_for_each(|page| {
                file.walks_to(page);
                file.check(page)
            })
        };
        [&self.values.file, &self.index, &self.merkle, &self.filter].into_iter().try_for_each(check)
    }

    /// What there is to know of it.
    pub(crate) const fn info(&self) -> &RunInfo {
        &self.info
    }

    /// May it hold the key with these numbers ([`crate::hash::filter_key`])?
    pub(crate) fn may_hold(&self, (a, b): (u64, u64)) -> Result<bool, StateError> {
        let number = block_of(a, self.info.source.filter_blocks);
        Ok(may_hold(filter::block(&self.filter, number)?, b))
    }

    fn guess(&self, key: &[u8], block: u64) -> Result<u64, StateError> {
        index::search(&self.index, &self.info.index_pages, &model::number(key, block))
    }

    /// The last pair at or below (`key`, `block`), of whatever key, with its position.
    pub(crate) fn floor(&self, key: &[u8], block: u64) -> Result<Option<(u64, Pair)>, StateError> {
        let Some((page, located)) = self.values.seek(self.guess(key, block)?, key, block)? else {
            return Ok(None);
        };
        let walk = page.walk_to(located.index);
        let current = walk.ok_or_else(|| self.values.unreadable(page.number))?.current;
        let value = current.value().map(Bytes::copy_from_slice);
        let position = page.position + located.index as u64;
        Ok(Some((position, Pair { key: current.key, block: current.block, value })))
    }

    /// The newest version of `key` at or before `block`: its block and its value, if there is one.
    pub(crate) fn get(
        &self,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(u64, Option<Bytes>)>, StateError> {
        let found = self.values.seek(self.guess(key, block)?, key, block)?;
        let found = found.filter(|(_, located)| located.same_key);
        Ok(found.map(|(page, located)| (located.block, page.value(located))))
    }

    /// All pairs.
    pub(crate) fn cursor_from_start(&self) -> Cursor<'_> {
        self.values.cursor()
    }

    /// The pairs from the first one at or above (`key`, `block`) on.
    pub(crate) fn cursor(&self, key: &[u8], block: u64) -> Result<Cursor<'_>, StateError> {
        match self.values.seek(self.guess(key, block)?, key, block)? {
            None => Ok(self.cursor_from_start()),
            Some((page, located)) => {
                let is_it = located.same_key && located.block == block;
                self.values.cursor_in(page, located.index + usize::from(!is_it))
            }
        }
    }
}
