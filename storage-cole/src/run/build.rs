//! Writes the files of a run in one pass over its pairs, and the filter in a second pass.
//!
//! Memory does not depend on the size of the run: buffers of the files, a page, about a thousand
//! leaves, the hulls of a model, and [`filter::MEMORY`].

use super::{
    RunDescription,
    description::{file_names, is_stem},
    file::{PageWriter, sync_dir},
    filter::{self, FilterBuilder},
    index::IndexBuilder,
    merkle::{LeafHasher, MerkleWriter},
    model::{self, MAX_KEY},
    page::PageBuilder,
    values::{DESCRIPTION, ValueFile},
};
use crate::{
    ColeParams,
    hash::{HashBatch, SourceHeader},
};
use alloy_primitives::B256;
use retrie_state::StateError;
use std::path::{Path, PathBuf};

/// Long work calls this regularly. It may block; its error ends the work.
pub(crate) type PauseCheck<'a> = &'a dyn Fn() -> Result<(), StateError>;

/// The number of pairs between two calls of a [`PauseCheck`].
pub(super) const PAUSE_EVERY: u64 = 1024;

/// Builds a run. If it is dropped before [`finish`](Self::finish), it leaves no files.
#[derive(Debug)]
pub(crate) struct RunBuilder {
    dir: PathBuf,
    stem: String,
    fanout: u8,
    values: PageWriter,
    index: IndexBuilder,
    merkle: MerkleWriter,
    filter: PageWriter,
    /// Bytes of memory for the filter while it is built.
    pub(super) filter_memory: usize,
    page: PageBuilder,
    payload: Vec<u8>,
    leaves: LeafHasher,
    pairs: u64,
    keys: u64,
    first_block: u64,
    last_block: u64,
    /// The last pair.
    key: Vec<u8>,
    block: u64,
}

impl RunBuilder {
    /// Creates the files of run `stem` (up to 64 letters, digits, `_` and `-`) in `dir`.
    pub(crate) fn new(dir: &Path, stem: &str, params: &ColeParams) -> Result<Self, StateError> {
        if !is_stem(stem) {
            let what = "a run's name is 1 to 64 letters, digits, '_' or '-'";
            return Err(StateError::corrupt(format!("run {stem:?}"), what));
        }
        let [values, index, merkle, filter] = file_names(stem);
        let mut values = PageWriter::new(dir, &values)?;
        // The first page is written at the end.
        values.append(&[])?;
        Ok(Self {
            dir: dir.into(),
            stem: stem.into(),
            fanout: params.fanout,
            values,
            index: IndexBuilder::new(PageWriter::new(dir, &index)?, params.epsilon),
            merkle: MerkleWriter::new(PageWriter::new(dir, &merkle)?),
            filter: PageWriter::new(dir, &filter)?,
            filter_memory: filter::MEMORY,
            page: PageBuilder::new(),
            payload: Vec::new(),
            leaves: LeafHasher::new(params.fanout),
            pairs: 0,
            keys: 0,
            first_block: u64::MAX,
            last_block: 0,
            key: Vec::new(),
            block: 0,
        })
    }

    /// The number of pairs so far.
    pub(crate) const fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Adds a pair above all pairs before it. The key has 1 to 65 bytes and is no prefix of another
    /// key. `leaf` is the pair's digest ([`crate::hash::pair`]), if it is known.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
        leaf: Option<B256>,
    ) -> Result<(), StateError> {
        let new_key = self.key != key;
        if !(1..=MAX_KEY).contains(&key.len()) || (&*self.key, self.block) >= (key, block) {
            let key = alloy_primitives::hex::encode(key);
            let what = format!("key {key} of block {block} is out of order or length");
            return Err(StateError::corrupt(format!("run {}", self.stem), what));
        }
        match leaf {
            Some(leaf) => self.leaves.add_digest(leaf),
            None => self.leaves.add_input(|batch| batch.pair(key, block, value)),
        }
        if let Some(digests) = self.leaves.drain() {
            self.merkle.extend(&digests)?;
        }
        if !(self.page.pairs() > 0 && self.page.push(key, block, value)) {
            self.end_page()?;
            self.index.push(&model::number(key, block), self.values.pages())?;
            if !self.page.push(key, block, value) {
                for page in PageBuilder::large(self.pairs, key, block, value) {
                    self.values.append(&page)?;
                }
            }
        }
        if new_key {
            self.keys += 1;
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.block = block;
        self.pairs += 1;
        self.first_block = self.first_block.min(block);
        self.last_block = self.last_block.max(block);
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), StateError> {
        let pairs = self.page.pairs() as u64;
        if pairs > 0 {
            self.page.finish(self.pairs - pairs, &mut self.payload);
            self.values.append(&self.payload)?;
        }
        Ok(())
    }

    /// Completes the files. They are on disk, under their names, when this returns. There must be
    /// at least one pair.
    pub(crate) fn finish(self) -> Result<RunDescription, StateError> {
        self.finish_pausing(&|| Ok(()))
    }

    /// [`finish`](Self::finish) with calls of `pause`.
    pub(crate) fn finish_pausing(
        self,
        pause: PauseCheck<'_>,
    ) -> Result<RunDescription, StateError> {
        let mut this = self;
        if this.pairs == 0 {
            return Err(StateError::corrupt(format!("run {}", this.stem), "it has no pairs"));
        }
        this.end_page()?;
        let (digests, _) = this.leaves.finish();
        this.merkle.extend(&digests)?;
        let (mut index, index_pages) = this.index.finish()?;
        let mut info = RunDescription {
            stem: this.stem,
            source: SourceHeader {
                pairs: this.pairs,
                first_block: this.first_block,
                last_block: this.last_block,
                top: B256::ZERO,
                filter_blocks: 0,
                filter_top: B256::ZERO,
            },
            keys: this.keys,
            fanout: this.fanout,
            value_pages: this.values.pages(),
            index_pages,
        };
        info.source.top = this.merkle.climb(&info.tree())?;

        let [.., name] = info.file_names();
        let mut filter = FilterBuilder::new(&this.dir, &name, info.keys, this.filter_memory)?;
        add_keys(&ValueFile::new(this.values.map()?), &mut filter, pause)?;
        let mut leaves = LeafHasher::new(this.fanout);
        filter.finish(|blocks| {
            for page in blocks.chunks(filter::BLOCKS) {
                this.filter.append(page.as_flattened())?;
            }
            for block in blocks {
                leaves.add_input(|batch| batch.filter_block(block));
                if let Some(digests) = leaves.drain() {
                    this.merkle.extend(&digests)?;
                }
            }
            pause()
        })?;
        let (digests, blocks) = leaves.finish();
        this.merkle.extend(&digests)?;
        info.source.filter_blocks = blocks;
        info.source.filter_top = this.merkle.climb(&info.filter_tree())?;
        let mut merkle = this.merkle.finish()?;

        this.values.replace(DESCRIPTION, &info.to_page())?;
        // Sync all at once: then the journal of the file system commits them together.
        std::thread::scope(|scope| {
            let files = [&mut merkle, &mut index, &mut this.filter, &mut this.values];
            let syncs = files.map(|file| scope.spawn(|| file.sync()));
            syncs.into_iter().try_for_each(|sync| match sync.join() {
                Ok(synced) => synced,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        pause()?;
        // The values come last: if the value file has its name, all files have.
        for file in [merkle, index, this.filter, this.values] {
            file.publish()?;
        }
        sync_dir(&this.dir)?;
        Ok(info)
    }
}

/// Adds all keys of a value file to a filter.
pub(super) fn add_keys(
    values: &ValueFile,
    filter: &mut FilterBuilder,
    pause: PauseCheck<'_>,
) -> Result<(), StateError> {
    let (mut batch, mut hashes, mut last) = (HashBatch::default(), Vec::new(), Vec::new());
    let mut add = |batch: &mut HashBatch| {
        batch.finish_into(&mut hashes);
        hashes.drain(..).try_for_each(|hash| filter.add(&hash))
    };
    let mut cursor = values.cursor();
    while let Some(pair) = cursor.next()? {
        if pair.position.is_multiple_of(PAUSE_EVERY) {
            pause()?;
        }
        if pair.key == last {
            continue;
        }
        last.clear();
        last.extend_from_slice(pair.key);
        batch.filter_key(pair.key);
        if batch.len() == 64 {
            add(&mut batch)?;
        }
    }
    add(&mut batch)
}
