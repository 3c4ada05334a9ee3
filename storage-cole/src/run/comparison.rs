//! The learned index of a run compared with indexes without models (`retrie bench cole-index`).
//!
//! All searches find pairs in the same value pages, without the filter.

use super::{Run, RunBuilder, build::PAUSE_EVERY, fences::FenceFile, model, values::DESCRIPTION};
use crate::ColeParams;
use retrie_state::{StateError, StateValue};
use std::path::Path;

/// A way to find the value page of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSearch {
    /// The learned index (COLE, section 4.1): models predict the page, layer by layer.
    Learned,
    /// A static B+-tree over the first key of each value page.
    FenceTree,
    /// Binary search over the first keys of all value pages, which lie side by side.
    FenceArray,
    /// Binary search over the value pages themselves, without an index.
    ValuePages,
}

impl PageSearch {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Learned, Self::FenceTree, Self::FenceArray, Self::ValuePages];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::FenceTree => "fence-tree",
            Self::FenceArray => "fence-array",
            Self::ValuePages => "value-pages",
        }
    }
}

/// A pair that is given to [`ComparedRun::build`]: encoded state key, block, value.
pub type RunPair = (Vec<u8>, u64, Option<StateValue>);

/// Numbers of distinct pages of 4 KiB that a search read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesRead {
    /// Pages of the index.
    pub index: u64,
    /// Value pages.
    pub values: u64,
}

/// A run with the files of a run of the store, and with fence keys beside them.
#[derive(Debug)]
pub struct ComparedRun {
    run: Run,
    fences: FenceFile,
}

impl ComparedRun {
    /// Builds the run in `dir`, as a merge does, and its fence keys. Pairs come in order of key, then
    /// block; no two are equal, there is at least one, and keys are encoded
    /// [`BackendKey`](retrie_state::BackendKey)s. The caller removes `dir`. `pause` is called about
    /// every thousand pairs; its error ends the work.
    ///
    /// # Errors
    /// If the disk fails, or pairs are out of order.
    pub fn build(
        dir: &Path,
        params: &ColeParams,
        pairs: impl IntoIterator<Item = RunPair>,
        pause: &dyn Fn() -> Result<(), StateError>,
    ) -> Result<Self, StateError> {
        let mut builder = RunBuilder::new(dir, "compared", params)?;
        for (n, (key, block, value)) in pairs.into_iter().enumerate() {
            if n.is_multiple_of(PAUSE_EVERY as usize) {
                pause()?;
            }
            let value = value.as_ref().map(|value| &value[..]);
            builder.push(&key, block, value, None)?;
        }
        let run = Run::open(dir, builder.finish_pausing(pause)?)?;
        let fences = FenceFile::build(dir, &run.values, pause)?;
        Ok(Self { run, fences })
    }

    /// The newest version of `key`, an encoded state key, at or before `block`: the block that set
    /// it, and the value unless it was deleted. `None` if the run has no such version.
    ///
    /// # Errors
    /// If a page cannot be read, or is damaged.
    pub fn get(
        &self,
        search: PageSearch,
        key: &[u8],
        block: u64,
    ) -> Result<Option<(u64, Option<StateValue>)>, StateError> {
        let values = &self.run.values;
        let page = match search {
            PageSearch::Learned => return self.run.get(key, block),
            PageSearch::FenceTree => self.fences.descend(&model::number(key, block))?,
            PageSearch::FenceArray => self.fences.bisect(&model::number(key, block))?,
            PageSearch::ValuePages => self.bisect(key, block)?,
        };
        let Some(page) = page else { return Ok(None) };
        let page = values.page(page)?;
        let located = values.locate(&page, key, block)?.filter(|located| located.same_key);
        Ok(located.map(|located| (located.block, page.value(located))))
    }

    /// The value page of a pair, by bisection of the value pages; `None` if it is below all pairs.
    fn bisect(&self, key: &[u8], block: u64) -> Result<Option<u64>, StateError> {
        let values = &self.run.values;
        let (mut low, mut high) = (DESCRIPTION + 1, values.file.pages());
        let mut found = None;
        while low < high {
            let page = values.page(low + (high - low) / 2)?;
            match page.first().ok_or_else(|| values.unreadable(page.number))? <= (key, block) {
                true => (found, low) = (Some(page.number), page.number + page.span),
                false => high = page.number,
            }
        }
        Ok(found)
    }

    /// The pages that a [`get`](Self::get) reads.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn pages_read(
        &mut self,
        search: PageSearch,
        key: &[u8],
        block: u64,
    ) -> Result<PagesRead, StateError> {
        self.take_read();
        self.get(search, key, block)?;
        Ok(self.take_read())
    }

    fn take_read(&mut self) -> PagesRead {
        PagesRead {
            index: self.run.index.take_read() + self.fences.file.take_read(),
            values: self.run.values.file.take_read(),
        }
    }

    /// Reads all value pages and all pages of the indexes, so that later reads check no checksum.
    ///
    /// # Errors
    /// If a page cannot be read, or is damaged.
    pub fn read_all(&self) -> Result<(), StateError> {
        let files = [&self.run.values.file, &self.run.index, &self.fences.file];
        files
            .into_iter()
            .try_for_each(|file| (0..file.pages()).try_for_each(|page| file.page(page).map(drop)))
    }

    /// Pages of the index of a search, 4 KiB each.
    pub fn index_pages(&self, search: PageSearch) -> u64 {
        match search {
            PageSearch::Learned => self.run.index.pages(),
            PageSearch::FenceTree => self.fences.pages(true),
            PageSearch::FenceArray => self.fences.pages(false),
            PageSearch::ValuePages => 0,
        }
    }

    /// Number of value pages, 4 KiB each.
    pub fn value_pages(&self) -> u64 {
        self.run.values.file.pages() - 1
    }

    /// Number of pairs.
    pub const fn pairs(&self) -> u64 {
        self.run.description().source.pairs
    }
}
