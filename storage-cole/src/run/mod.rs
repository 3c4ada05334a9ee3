//! Runs: immutable sorted files of pairs, with a learned index, Merkle trees and a filter (COLE,
//! section 4).
//!
//! | module | what |
//! |---|---|
//! | `file` | files of pages with checksums |
//! | `pair`, `page`, `values` | pairs encoded against their neighbours; value pages; the value file and its cursors |
//! | `model`, `index` | learned models; the index |
//! | `merkle` | the trees over pairs and filter |
//! | `version_tree`, `version_file` | the tree over a key's versions; the file of these trees |
//! | `filter` | the Bloom filter |
//! | `description`, `build` | the description of a run; writing a run |
//! | `comparison`, `fences` | the index beside indexes without models, for measurements |
//! | `show`, `check`, `merge` | parts of the trees for proofs; the check of a run; merging several runs into one |
//! | `show_trees`, `check_trees`, `merge_trees` | the same of runs with version trees |

mod build;
mod check;
mod check_trees;
mod comparison;
mod description;
mod fences;
mod file;
mod filter;
mod index;
mod merge;
mod merge_trees;
mod merkle;
mod model;
mod page;
mod pair;
mod show;
mod show_trees;
#[cfg(test)]
mod tests;
mod values;
mod version_file;
mod version_tree;

pub use comparison::{ComparedRun, PageSearch, PagesRead, RunPair};

pub(crate) use build::RunBuilder;
pub(crate) use description::{RunDescription, file_names};
pub(crate) use merge::{MergeCutoff, merge};
pub(crate) use show_trees::ShownKey;
pub(crate) use values::PairCursor;

use crate::{
    filter::{block_of, may_hold},
    shown_tree::CompoundPair,
};
use alloy_primitives::Bytes;
use file::PagedFile;
use merkle::TreeShape;
use retrie_state::StateError;
use std::path::{Path, PathBuf};
use values::ValueFile;
use version_file::VersionFile;

/// An open run. Reads verify checksums: damage is an error that names the file.
#[derive(Debug)]
pub(crate) struct Run {
    dir: PathBuf,
    description: RunDescription,
    values: ValueFile,
    index: PagedFile,
    merkle: PagedFile,
    filter: PagedFile,
    tree: TreeShape,
    filter_tree: TreeShape,
    versions: Option<VersionFile>,
}

impl Run {
    /// Opens the files of a run in `dir`. They must fit the description.
    pub(crate) fn open(dir: &Path, info: RunDescription) -> Result<Self, StateError> {
        let (names, pages) = (info.file_names(), info.pages());
        let open = |n: usize| PagedFile::open(dir, &names[n], pages[n]);
        let values = open(0)?;
        if RunDescription::read(dir, &info.stem)?.as_ref() != Some(&info) {
            return Err(values.wrong("it is not the run that the database names"));
        }
        Ok(Self {
            dir: dir.into(),
            values: ValueFile::new(values),
            index: open(1)?,
            merkle: open(2)?,
            filter: open(3)?,
            versions: match &info.versions {
                Some(extent) => Some(VersionFile::new(open(4)?, extent.bytes)),
                None => None,
            },
            tree: info.tree(),
            filter_tree: info.filter_tree(),
            description: info,
        })
    }

    /// Fails if the checksum of any page of any file is wrong.
    pub(crate) fn check_pages(&self) -> Result<(), StateError> {
        let check = |file: &PagedFile| {
            (0..file.pages()).try_for_each(|page| {
                file.prefetch_after(page);
                file.check(page)
            })
        };
        self.files().try_for_each(check)
    }

    fn files(&self) -> impl Iterator<Item = &PagedFile> {
        let files = [&self.values.file, &self.index, &self.merkle, &self.filter];
        files.into_iter().chain(self.versions.as_ref().map(|versions| &versions.file))
    }

    /// Whether it has version trees.
    pub(crate) const fn has_trees(&self) -> bool {
        self.versions.is_some()
    }

    fn version_file(&self) -> Result<&VersionFile, StateError> {
        self.versions.as_ref().ok_or_else(|| self.values.file.wrong("its run has no version trees"))
    }

    /// The description of the run.
    pub(crate) const fn description(&self) -> &RunDescription {
        &self.description
    }

    /// Whether the run may contain the key with these numbers ([`crate::hash::filter_key`]).
    pub(crate) fn may_hold(&self, (a, b): (u64, u64)) -> Result<bool, StateError> {
        let number = block_of(a, self.description.source.filter_blocks);
        Ok(may_hold(filter::block(&self.filter, number)?, b))
    }

    fn guess(&self, key: &[u8], block: u64) -> Result<u64, StateError> {
        index::search(&self.index, &self.description.index_pages, &model::number(key, block))
    }

    /// The last pair at or below (`key`, `block`), of any key, with its position.
    pub(crate) fn floor(
        &self,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(u64, CompoundPair)>, StateError> {
        let Some((page, located)) = self.values.seek(self.guess(key, block)?, key, block)? else {
            return Ok(None);
        };
        let walk = page.walk_to(located.index);
        let current = walk.ok_or_else(|| self.values.unreadable(page.number))?.current;
        let value = current.value().map(Bytes::copy_from_slice);
        let position = page.position + located.index as u64;
        Ok(Some((position, CompoundPair { key: current.key, block: current.block, value })))
    }

    /// The newest version of `key` at or before `block`: the block that set it, and the value if
    /// there is one.
    pub(crate) fn get(
        &self,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(u64, Option<Bytes>)>, StateError> {
        let found = self.values.seek(self.guess(key, block)?, key, block)?;
        let found = found.filter(|(_, located)| located.same_key);
        Ok(found.map(|(page, located)| (located.block, page.value(located))))
    }

    /// A cursor over all pairs.
    pub(crate) fn cursor_from_start(&self) -> PairCursor<'_> {
        self.values.cursor()
    }

    /// A cursor over the pairs at or above (`key`, `block`).
    pub(crate) fn cursor(&self, key: &[u8], block: u64) -> Result<PairCursor<'_>, StateError> {
        match self.values.seek(self.guess(key, block)?, key, block)? {
            None => Ok(self.cursor_from_start()),
            Some((page, located)) => {
                let is_it = located.same_key && located.block == block;
                self.values.cursor_in(page, located.index + usize::from(!is_it))
            }
        }
    }
}
