//! Bundles as a source. Each block is executed on the state in its bundle.

use super::{BlockChanges, BlockData, BlockNeeds, BlockNumbers, BlockSource, chain::codes_of};
use crate::BlockSourceError;
use alloy_primitives::B256;
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{
    PipelineError, recover_senders,
    replay::{BundleReplayOptions, execute_bundle},
};
use retrie_sources::{Bundle, BundleFile, BundleKind};
use std::{collections::BTreeMap, sync::Arc};

/// Blocks of bundles. If a block has several bundles, a witness bundle is preferred, as it has the
/// whole state that the block touches.
#[derive(Debug)]
pub struct BundleSource<'a> {
    options: &'a BundleReplayOptions<'a>,
    files: BTreeMap<u64, Vec<BundleFile>>,
    blocks: BlockNumbers,
    /// The last loaded bundle, as a bundle is read several times.
    last: Option<Bundle>,
    without_ommers: Vec<u64>,
}

impl<'a> BundleSource<'a> {
    /// The blocks of these bundles.
    pub fn new(
        options: &'a BundleReplayOptions<'a>,
        bundles: impl IntoIterator<Item = BundleFile>,
    ) -> Self {
        let mut files: BTreeMap<u64, Vec<BundleFile>> = BTreeMap::new();
        for bundle in bundles {
            let of_block = files.entry(bundle.number).or_default();
            if !of_block.contains(&bundle) {
                of_block.push(bundle);
            }
        }
        let blocks = BlockNumbers::Listed(files.keys().copied().collect());
        Self { options, files, blocks, last: None, without_ommers: Vec::new() }
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Number of blocks with several bundles.
    pub fn repeated(&self) -> usize {
        self.files.values().filter(|files| files.len() > 1).count()
    }

    /// Blocks so far whose changes were requested but left out, as the bundle lacks the ommers that
    /// the block pays.
    pub fn without_ommers(&self) -> &[u64] {
        &self.without_ommers
    }

    fn load(&mut self, number: u64) -> Result<&Bundle, BlockSourceError> {
        if self.last.as_ref().is_none_or(|last| last.number != number) {
            let files = self.files.get(&number).ok_or(BlockSourceError::NoBlock { number })?;
            let mut chosen: Option<Bundle> = None;
            for file in files {
                let bundle = file.load()?;
                chosen = Some(match chosen {
                    Some(other) if other.hash != bundle.hash => {
                        let (hash, file) = (bundle.hash, bundle.file);
                        return Err(BlockSourceError::TwoBlocks { number, hash, file });
                    }
                    Some(other) if matches!(bundle.kind, BundleKind::Prestate(_)) => other,
                    _ => bundle,
                });
            }
            self.last = chosen;
        }
        self.last.as_ref().ok_or(BlockSourceError::NoBlock { number })
    }
}

impl BlockSource for BundleSource<'_> {
    fn spec(&self) -> &Arc<ChainSpec> {
        &self.options.spec
    }

    fn blocks(&self) -> &BlockNumbers {
        &self.blocks
    }

    fn hash(&mut self, number: u64) -> Result<B256, BlockSourceError> {
        Ok(self.load(number)?.hash)
    }

    fn read(&mut self, number: u64, needs: BlockNeeds) -> Result<BlockData, BlockSourceError> {
        let options = self.options;
        let bundle = self.load(number)?;
        let ommers_known = bundle.ommers_known;
        let block_of = |block| BlockData::new(&options.spec, block);
        let mut data = if needs.receipts || needs.changes {
            let executed = execute_bundle(bundle, options)?;
            let mut data = block_of(executed.block)?;
            data.roots = executed.roots;
            if needs.changes && ommers_known {
                let outcome = executed.outcome;
                let stored = bundle.codes();
                let stored = |hash: &B256| Ok(stored.get(hash).cloned());
                let codes = codes_of(number, &outcome.delta, outcome.codes, stored)?;
                data.receipts = needs.receipts.then_some(outcome.receipts);
                data.changes = Some(BlockChanges { delta: outcome.delta, codes });
            } else {
                data.receipts = needs.receipts.then_some(executed.outcome.receipts);
            }
            data
        } else {
            let block = recover_senders(&options.spec, bundle.block.clone());
            block_of(block.map_err(PipelineError::from)?)?
        };
        data.ommers_known = ommers_known;
        if needs.changes && !ommers_known {
            self.without_ommers.push(number);
        }
        Ok(data)
    }
}
