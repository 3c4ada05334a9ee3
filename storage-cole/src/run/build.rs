//! Writes the files of a run in one pass over its pairs, and the filter in a second pass.
//!
//! Memory does not depend on the size of the run: buffers of the files, a page, about a thousand
//! leaves, the hulls of a model, and [`filter::MEMORY`]. With version trees also the tree of one key:
//! six bytes for each of its pairs, and 33 for each digest of what was pruned.

use super::{
    RunDescription,
    description::{base_names, is_stem, version_name},
    file::{PageWriter, sync_dir},
    filter::{self, FilterBuilder},
    index::IndexBuilder,
    merkle::{LeafHasher, MerkleWriter},
    model::{self, MAX_KEY},
    page::PageBuilder,
    pair::CurrentPair,
    values::{DESCRIPTION, ValueFile},
    version_file::VersionWriter,
    version_tree::{MalformedTree, SINGLE, TreeBuilder},
};
use crate::{
    ColeParams,
    hash::{self, HashBatch, SourceHeader},
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
    trees: Option<KeyTrees>,
}

/// The version trees of a run that is being built.
#[derive(Debug)]
struct KeyTrees {
    file: VersionWriter,
    /// The tree of the last key.
    tree: TreeBuilder,
    /// The key's first pair, which is not in the tree yet: if no other follows, it is the leaf and is
    /// hashed in a batch.
    first: CurrentPair,
    is_waiting: bool,
    /// Of all pairs, with pruned ones, the number and the first block, if others than of those pushed.
    inherited: Option<(u64, u64)>,
}

impl RunBuilder {
    /// Creates the files of run `stem` (up to 64 letters, digits, `_` and `-`) in `dir`.
    pub(crate) fn new(dir: &Path, stem: &str, params: &ColeParams) -> Result<Self, StateError> {
        if !is_stem(stem) {
            let what = "a run's name is 1 to 64 letters, digits, '_' or '-'";
            return Err(StateError::corrupt(format!("run {stem:?}"), what));
        }
        let [values, index, merkle, filter] = base_names(stem);
        let mut values = PageWriter::new(dir, &values)?;
        // The first page is written at the end.
        values.append(&[])?;
        let trees = params.version_trees.then(|| -> Result<_, StateError> {
            let file = VersionWriter::new(PageWriter::new(dir, &version_name(stem))?);
            let (tree, first) = (TreeBuilder::default(), CurrentPair::default());
            Ok(KeyTrees { file, tree, first, is_waiting: false, inherited: None })
        });
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
            trees: trees.transpose()?,
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
        self.check_order(key, block)?;
        if self.trees.is_some() && self.key != key {
            self.end_key()?;
        }
        if let Some(trees) = &mut self.trees {
            let added = trees.add(key, block, value, leaf);
            added.map_err(|error| self.malformed(error))?;
        } else {
            match leaf {
                Some(leaf) => self.leaves.add_digest(leaf),
                None => self.leaves.add_input(|batch| batch.pair(key, block, value)),
            }
            self.drain_leaves()?;
        }
        self.put(key, block, value)
    }

    fn check_order(&self, key: &[u8], block: u64) -> Result<(), StateError> {
        if (1..=MAX_KEY).contains(&key.len()) && (&*self.key, self.block) < (key, block) {
            return Ok(());
        }
        let key = alloy_primitives::hex::encode(key);
        let what = format!("key {key} of block {block} is out of order or length");
        Err(StateError::corrupt(format!("run {}", self.stem), what))
    }

    fn drain_leaves(&mut self) -> Result<(), StateError> {
        match self.leaves.drain() {
            Some(digests) => self.merkle.extend(&digests),
            None => Ok(()),
        }
    }

    /// Adds a pair to the value file.
    fn put(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) -> Result<(), StateError> {
        if !(self.page.pairs() > 0 && self.page.push(key, block, value)) {
            self.end_page()?;
            self.index.push(&model::number(key, block), self.values.pages())?;
            if !self.page.push(key, block, value) {
                for page in PageBuilder::large(self.pairs, key, block, value) {
                    self.values.append(&page)?;
                }
            }
        }
        if self.key != key {
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
        this.end_key()?;
        let (digests, _) = this.leaves.finish();
        this.merkle.extend(&digests)?;
        let (index, index_pages) = this.index.finish()?;
        let inherited = this.trees.as_ref().and_then(|trees| trees.inherited);
        let (pairs, first_block) = inherited.unwrap_or((this.pairs, this.first_block));
        let trees = this.trees.map(|trees| trees.file.finish(this.pairs)).transpose()?;
        let (version_file, versions) = trees.unzip();
        let mut info = RunDescription {
            stem: this.stem,
            source: SourceHeader {
                pairs,
                first_block,
                last_block: this.last_block,
                top: B256::ZERO,
                filter_blocks: 0,
                filter_top: B256::ZERO,
            },
            keys: this.keys,
            fanout: this.fanout,
            value_pages: this.values.pages(),
            index_pages,
            versions,
        };
        info.source.top = this.merkle.climb(&info.tree())?;

        let [.., name] = base_names(&info.stem);
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
        let merkle = this.merkle.finish()?;

        this.values.replace(DESCRIPTION, &info.to_page())?;
        // The values come last: if the value file has its name, all files have.
        let mut files = vec![merkle, index, this.filter];
        files.extend(version_file);
        files.push(this.values);
        sync_all(&mut files)?;
        pause()?;
        files.into_iter().try_for_each(PageWriter::publish)?;
        sync_dir(&this.dir)?;
        Ok(info)
    }
}

/// Syncs files all at once: then the journal of the file system commits them together.
fn sync_all(files: &mut [PageWriter]) -> Result<(), StateError> {
    std::thread::scope(|scope| {
        let files = files.iter_mut();
        let syncs: Vec<_> = files.map(|file| scope.spawn(move || file.sync())).collect();
        syncs.into_iter().try_for_each(|sync| match sync.join() {
            Ok(synced) => synced,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

impl KeyTrees {
    /// Adds the next of a key's versions, which all come in this way.
    fn add(
        &mut self,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
        leaf: Option<B256>,
    ) -> Result<(), MalformedTree> {
        if leaf.is_none() && self.parts() == 0 {
            self.wait(key, block, value);
            return Ok(());
        }
        self.settle()?;
        self.tree.append(leaf.unwrap_or_else(|| hash::pair(key, block, value)))
    }

    /// Keeps the first pair of a key.
    fn wait(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) {
        self.first.set(key, block, value);
        self.is_waiting = true;
    }

    /// Adds the first pair to the tree.
    fn settle(&mut self) -> Result<(), MalformedTree> {
        if !std::mem::take(&mut self.is_waiting) {
            return Ok(());
        }
        let first = &self.first;
        self.tree.append(hash::pair(&first.key, first.block, first.value()))
    }

    fn parts(&self) -> usize {
        self.tree.parts() + usize::from(self.is_waiting)
    }
}

/// Building a run of a merge, in which each key's tree is given step by step.
impl RunBuilder {
    /// Whether the run has version trees.
    pub(super) const fn has_trees(&self) -> bool {
        self.trees.is_some()
    }

    /// Says how many pairs there have been with those that are pruned, and in which block the first.
    pub(super) fn inherit(&mut self, pairs: u64, first_block: u64) {
        if let Some(trees) = &mut self.trees {
            trees.inherited = Some((pairs, first_block));
        }
    }

    /// The tree of the key, with all its pairs so far.
    fn tree(&mut self) -> Result<&mut TreeBuilder, StateError> {
        let missing =
            || StateError::corrupt(format!("run {}", self.stem), "it has no version trees");
        let trees = self.trees.as_mut().ok_or_else(missing)?;
        trees.settle().map_err(|MalformedTree| missing())?;
        Ok(&mut trees.tree)
    }

    /// Adds a pair above all pairs before it, as the next part of the tree.
    pub(super) fn push_step(
        &mut self,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
    ) -> Result<(), StateError> {
        self.check_order(key, block)?;
        match &mut self.trees {
            Some(trees) if trees.parts() == 0 => trees.wait(key, block, value),
            _ => self.tree()?.pair(hash::pair(key, block, value)),
        }
        self.put(key, block, value)
    }

    /// Adds a subtree without pairs.
    pub(super) fn prune_step(&mut self, digest: B256) -> Result<(), StateError> {
        self.tree()?.pruned(digest);
        Ok(())
    }

    /// Joins the last two parts, and returns the digest.
    pub(super) fn join_step(&mut self) -> Result<B256, StateError> {
        let joined = self.tree()?.join();
        joined.map_err(|error| self.malformed(error))
    }

    /// The number of parts of the tree.
    pub(super) fn parts(&self) -> usize {
        self.trees.as_ref().map_or(0, KeyTrees::parts)
    }

    /// Ends the key of the last pair, if there is one.
    pub(super) fn end_key(&mut self) -> Result<(), StateError> {
        let Some(trees) = self.trees.as_mut().filter(|trees| trees.parts() > 0) else {
            return Ok(());
        };
        if std::mem::take(&mut trees.is_waiting) {
            let CurrentPair { key, block, .. } = &trees.first;
            self.leaves.add_input(|batch| batch.pair(key, *block, trees.first.value()));
            return self.drain_leaves();
        }
        let closed = trees.tree.close().and_then(|()| trees.tree.whole());
        let (top, pairs, bytes) = match closed {
            Ok(whole) => whole,
            Err(error) => return Err(self.malformed(error)),
        };
        if bytes == SINGLE {
            self.leaves.add_digest(top);
        } else {
            trees.file.push(self.keys - 1, self.pairs - pairs, pairs, bytes)?;
            self.leaves.add_input(|batch| batch.versions(&self.key, &top));
        }
        trees.tree.clear();
        self.drain_leaves()
    }

    fn malformed(&self, _: MalformedTree) -> StateError {
        let key = alloy_primitives::hex::encode(&self.key);
        let what = format!("the version tree of key {key} is malformed");
        StateError::corrupt(format!("run {}", self.stem), what)
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
