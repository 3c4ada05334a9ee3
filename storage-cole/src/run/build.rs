//! Writes the files of a run in one pass over its pairs, and the filter in a second.

use super::{
    RunInfo,
    file::{PageWriter, sync_dir},
    filter::FilterBuilder,
    index::IndexBuilder,
    info::{file_names, is_stem},
    merkle::{Leaves, MerkleWriter},
    model::{self, MAX_KEY},
    page::PageBuilder,
    values::{DESCRIPTION, Values},
};
use crate::{
    Params,
    hash::{Batch, Source},
};
use alloy_primitives::B256;
use retrie_state::StateError;
use std::path::{Path, PathBuf};

/// A hold of long work: called now and then, an error ends the work.
pub(crate) type Pause<'a> = &'a dyn Fn() -> Result<(), StateError>;

/// Work between two calls of a [`Pause`], in pairs.
pub(super) const PAUSE_EVERY: u64 = 1024;

/// A run in the making. Dropped before [`finish`](Self::finish), it leaves no files.
#[derive(Debug)]
pub(crate) struct RunBuilder {
    dir: PathBuf,
    stem: String,
    fanout: u8,
    values: PageWriter,
    index: IndexBuilder,
    merkle: MerkleWriter,
    filter: PageWriter,
    page: PageBuilder,
    payload: Vec<u8>,
    leaves: Leaves,
    pairs: u64,
    keys: u64,
    first_block: u64,
    last_block: u64,
    /// The last pair.
    key: Vec<u8>,
    block: u64,
}

impl RunBuilder {
    /// Starts the files of run `stem` (up to 64 letters, digits, `_` and `-`) in `dir`.
    pub(crate) fn new(dir: &Path, stem: &str, params: &Params) -> Result<Self, StateError> {
        if !is_stem(stem) {
            let what = "a run's name is 1 to 64 letters, digits, '_' or '-'";
            return Err(StateError::corrupt(format!("run {stem:?}"), what));
        }
        let [values, index, merkle, filter] = file_names(stem);
        let mut values = PageWriter::new(dir, &values)?;
        // Its content is known at the end.
        values.append(&[])?;
        Ok(Self {
            dir: dir.into(),
            stem: stem.into(),
            fanout: params.fanout,
            values,
            index: IndexBuilder::new(PageWriter::new(dir, &index)?, params.epsilon),
            merkle: MerkleWriter::new(PageWriter::new(dir, &merkle)?),
            filter: PageWriter::new(dir, &filter)?,
            page: PageBuilder::new(),
            payload: Vec::new(),
            leaves: Leaves::new(params.fanout),
            pairs: 0,
            keys: 0,
            first_block: u64::MAX,
            last_block: 0,
            key: Vec::new(),
            block: 0,
        })
    }

    /// Number of pairs so far.
    pub(crate) const fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Adds a pair, above all before it: a key of 1 to 53 bytes that no other one starts with.
    /// `leaf` is its digest ([`crate::hash::pair`]), if that is known.
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
            Some(leaf) => self.leaves.known(leaf),
            None => self.leaves.hashed(|batch| batch.pair(key, block, value)),
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

    /// Completes the files: they are on disk, under their names, when this returns. There must be a
    /// pair.
    pub(crate) fn finish(self) -> Result<RunInfo, StateError> {
        self.finish_pausing(&|| Ok(()))
    }

    /// [`finish`](Self::finish), held up or ended by `pause`.
    pub(crate) fn finish_pausing(self, pause: Pause<'_>) -> Result<RunInfo, StateError> {
        let mut this = self;
        if this.pairs == 0 {
            return Err(StateError::corrupt(format!("run {}", this.stem), "it has no pairs"));
        }
        this.end_page()?;
        let (digests, _) = this.leaves.finish();
        this.merkle.extend(&digests)?;
        let (mut index, index_pages) = this.index.finish()?;
        let mut info = RunInfo {
            stem: this.stem,
            source: Source {
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

        let filter = keys_filter(&Values::new(this.values.map()?), info.keys, pause)?;
        filter.write(&mut this.filter)?;
        let mut leaves = Leaves::new(this.fanout);
        for block in &filter.blocks {
            leaves.hashed(|batch| batch.filter_block(block));
            if let Some(digests) = leaves.drain() {
                this.merkle.extend(&digests)?;
            }
        }
        let (digests, blocks) = leaves.finish();
        this.merkle.extend(&digests)?;
        info.source.filter_blocks = blocks;
        info.source.filter_top = this.merkle.climb(&info.filter_tree())?;
        let mut merkle = this.merkle.finish()?;

        this.values.replace(DESCRIPTION, &info.to_page())?;
        // All at once: the file system's journal then commits them together.
        std::thread::scope(|scope| {
            let files = [&mut merkle, &mut index, &mut this.filter, &mut this.values];
            let syncs = files.map(|file| scope.spawn(|| file.sync()));
            syncs.into_iter().try_for_each(|sync| match sync.join() {
                Ok(synced) => synced,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        pause()?;
        // The values last: that they have their name tells that all have.
        for file in [merkle, index, this.filter, this.values] {
            file.publish()?;
        }
        sync_dir(&this.dir)?;
        Ok(info)
    }
}

/// The filter over the `keys` distinct keys of a values file.
pub(super) fn keys_filter(
    values: &Values,
    keys: u64,
    pause: Pause<'_>,
) -> Result<FilterBuilder, StateError> {
    let mut filter = FilterBuilder::new(keys);
    let (mut batch, mut hashes, mut last) = (Batch::default(), Vec::new(), Vec::new());
    let mut add = |batch: &mut Batch| {
        batch.finish_into(&mut hashes);
        hashes.drain(..).for_each(|hash| filter.add(&hash));
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
            add(&mut batch);
        }
    }
    add(&mut batch);
    Ok(filter)
}
